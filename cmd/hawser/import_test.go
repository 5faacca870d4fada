package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const oldConf = `resource r { protocol C; on a {device /dev/drbd0; disk /dev/sdc; address 192.168.90.17:7790; meta-disk internal;} on b {device /dev/drbd0; disk /dev/sdc; address 192.168.90.18:7790; meta-disk internal;} disk { on-io-error detach; } syncer { rate 40M; al-extents 257; } startup { degr-wfc-timeout 120; } }
resource elsewhere { device minor 9; disk /dev/x; meta-disk internal; on x { address 10.0.0.1:1; } on y { address 10.0.0.2:1; } }
resource broken { device minor 10; disk /dev/y; on a { address 10.0.0.1:2; } net { timeout 0; } on b { address 10.0.0.2:2; } }
`

func TestImport(t *testing.T) {
	dir, _ := serveAgent(t, nil)
	conf := filepath.Join(dir, "drbd.conf")
	resources := filepath.Join(dir, "resources.d")
	if err := os.WriteFile(conf, []byte(oldConf), 0o644); err != nil {
		t.Fatal(err)
	}
	run := func(args ...string) (int, string, string) {
		return hawser(dir, append([]string{"import", "--node", "a", "--resources-dir", resources}, args...)...)
	}
	missing := func() {
		t.Helper()
		if list, err := os.ReadDir(resources); err == nil && len(list) > 0 {
			t.Fatalf("there is %v", list)
		}
	}
	code, out, errs := run(conf)
	if code != 1 || out != "" || !strings.Contains(errs, conf+":3:") || !strings.Contains(errs, "the value of timeout, '0', is too small") {
		t.Errorf("a broken file: %d %s%s", code, out, errs)
	}
	missing()
	code, out, errs = run(conf, "r", "--dry-run")
	if code != 0 || !strings.Contains(out, "resync-rate: 40M") || !strings.Contains(errs, "warning: "+conf+":1: resource r: degr-wfc-timeout 120: nothing waits for peers at boot") {
		t.Errorf("dry run: %d %s%s", code, out, errs)
	}
	missing()
	file := filepath.Join(resources, "r.yaml")
	if code, out, errs = run(conf, "r"); code != 0 || out != file+"\n" {
		t.Fatalf("import: %d %s%s", code, out, errs)
	}
	written, err := os.ReadFile(file)
	if err != nil || !strings.Contains(string(written), "# "+conf+":1: resource r: degr-wfc-timeout 120") || !strings.Contains(string(written), "device: /dev/drbd0") {
		t.Errorf("%s %v", written, err)
	}
	if err := os.WriteFile(file, []byte("# mine\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if code, _, errs = run(conf, "r"); code != 1 || !strings.Contains(errs, "there is already "+file) {
		t.Errorf("over a file: %d %s", code, errs)
	}
	if code, _, errs = run(conf, "r", "--force"); code != 0 {
		t.Errorf("--force: %d %s", code, errs)
	}
	if again, err := os.ReadFile(file); err != nil || string(again) != string(written) {
		t.Errorf("%s %v", again, err)
	}
	if code, out, errs = run(conf, "elsewhere", "--dry-run"); code != 0 || !strings.Contains(out, "name: x") {
		t.Errorf("of other nodes, by name: %d %s%s", code, out, errs)
	}
	if code, _, errs = run(filepath.Join(dir, "none")); code != 4 || !strings.Contains(errs, "no such file") {
		t.Errorf("no file: %d %s", code, errs)
	}
	if code, _, errs = run(); code != 2 {
		t.Errorf("no argument: %d %s", code, errs)
	}
	if code, _, errs = run(conf, "nosuch"); code != 1 || !strings.Contains(errs, "there is no resource nosuch") {
		t.Errorf("no resource: %d %s", code, errs)
	}
	// What is in the folder already, in whatever syntax, may not be contradicted.
	if err := os.Rename(file, filepath.Join(dir, "away")); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(resources, "old.res"), []byte(strings.Replace(strings.SplitAfter(oldConf, "\n")[0], "resource r ", "resource z ", 1)), 0o644); err != nil {
		t.Fatal(err)
	}
	if code, _, errs = run(conf, "r"); code != 1 || !strings.Contains(errs, "192.168.90.17:7790") {
		t.Errorf("the address of another resource: %d %s", code, errs)
	}
	if err := os.WriteFile(filepath.Join(resources, "old.res"), []byte(strings.SplitAfter(oldConf, "\n")[0]), 0o644); err != nil {
		t.Fatal(err)
	}
	if code, _, errs = run(conf, "r", "--force"); code != 1 || !strings.Contains(errs, "is already defined in "+filepath.Join(resources, "old.res")) {
		t.Errorf("the name of another resource: %d %s", code, errs)
	}
}

func TestDumpAsDRBD(t *testing.T) {
	dir, _ := serveAgent(t, map[string]any{"GET /v1/resources/r0/file": `resource: r0
nodes:
  - {name: a, address: 10.1.0.1:7789}
  - {name: b, address: 10.1.0.2:7789}
volumes:
  - {device: /dev/drbd7, disk: /dev/vg/r0, disk-options: {direct-io: no}}
net: {timeout: 3s}
`})
	code, out, errs := hawser(dir, "dump", "r0", "--format", "drbd")
	want := `resource r0 {
    volume 0 {
        device           /dev/drbd7 minor 7;
        disk             /dev/vg/r0;
    }
    on a {
        node-id 0;
        address          ipv4 10.1.0.1:7789;
    }
    on b {
        node-id 1;
        address          ipv4 10.1.0.2:7789;
    }
    net {
        timeout           30;
    }
}

`
	if code != 0 || out != want || errs != "warning: resource r0: direct-io no: drbd.conf has no such option: it is left out\n" {
		t.Errorf("%d\n%s\n%s", code, out, errs)
	}
	if code, _, _ := hawser(dir, "dump", "r0", "--format", "xml"); code != 2 {
		t.Error(code)
	}
}
