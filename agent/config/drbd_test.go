package config

import (
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/hawser-ha/hawser/agent/drbdconf"
)

// mnt is the samples of drbdconf, seen as /mnt.
type mnt struct{ osFiles }

const drbdSamples = "../drbdconf/testdata/samples"

func (m mnt) Read(name string) ([]byte, error) {
	if !strings.HasPrefix(name, "/mnt/") {
		return nil, fs.ErrNotExist
	}
	return m.osFiles.Read(drbdSamples + strings.TrimPrefix(name, "/mnt"))
}

func (m mnt) Glob(pattern string) ([]string, error) {
	list, err := m.osFiles.Glob(drbdSamples + strings.TrimPrefix(pattern, "/mnt"))
	for i := range list {
		list[i] = "/mnt" + strings.TrimPrefix(list[i], drbdSamples)
	}
	return list, err
}

func (mnt) Canonical(name string) string { return name }

func as(node string) DRBDOptions {
	return DRBDOptions{Node: node, All: true, Local: func(a netip.Addr) bool { return a == netip.MustParseAddr("10.9.0.1") }}
}

// report is what an import says and writes.
func report(rs []Resource, warnings []Warning, err error) string {
	var b strings.Builder
	for _, e := range Errors(err) {
		fmt.Fprintf(&b, "error: %v\n", e)
	}
	for _, w := range warnings {
		level := "warning"
		if w.Note {
			level = "note"
		}
		fmt.Fprintf(&b, "%s: %v\n", level, w)
	}
	for _, r := range rs {
		b.WriteString("---\n")
		b.Write(Marshal(r))
	}
	return b.String()
}

// What becomes of each sample of drbd.conf.
func TestDRBDSamples(t *testing.T) {
	manifest, err := os.ReadFile(drbdSamples + "/manifest.tsv")
	if err != nil {
		t.Fatal(err)
	}
	ran := 0
	for line := range strings.Lines(string(manifest)) {
		f := strings.Split(line, "\t")
		if f[0] == "sample" || strings.HasPrefix(f[0], "e") { // those with errors are drbdconf's
			continue
		}
		t.Run(f[0], func(t *testing.T) {
			host := f[1]
			if host == "10.9.0.1" {
				host = "alpha" // floating: nodes have names here
			}
			rs, warnings, err := readDRBD(mnt{}, []string{"/mnt/" + f[0] + ".conf"}, as(host))
			golden(t, "testdata/drbd/"+f[0]+".golden", report(rs, warnings, err))
			for _, r := range rs {
				again, err := Parse("again.yaml", Marshal(r))
				if err != nil || len(again) != 1 {
					t.Fatalf("what was written is not read: %v", err)
				}
				for _, n := range r.Nodes {
					if _, err := again[0].Definition(n.Name); err != nil {
						t.Error(err)
					}
				}
				ran++
			}
		})
	}
	if ran < 35 {
		t.Errorf("only %d resources came out", ran)
	}
}

// other is a valid value of an option that is not its default, as far as there is one.
func other(s drbdconf.Spec) string {
	switch s.Kind {
	case drbdconf.Number:
		if s.Default == fmt.Sprint(s.Min+1) {
			return fmt.Sprint(s.Min + 2)
		}
		if s.Section == "proxy" {
			return "3"
		}
		return fmt.Sprint(s.Min + 1)
	case drbdconf.Bool:
		if s.Default == "yes" {
			return "no"
		}
		return "yes"
	case drbdconf.Enum:
		for _, v := range s.Values {
			if v != s.Default {
				return v
			}
		}
	}
	return "sha1"
}

const twoHosts = `
on alpha { address 10.9.0.1:7000; }
on bravo { address 10.9.0.2:7000; }
device minor 1; disk /dev/sdb; meta-disk internal;
`

// No option of drbd.conf is silently dropped: it comes out in the resource, or a warning names it and says what hawser
// does.
func TestEveryOptionOfDRBDIsHonouredOrNamed(t *testing.T) {
	honoured, named := 0, 0
	for _, s := range drbdconf.Specs() {
		values := append(slices.Clone(s.Values), other(s))
		if s.Open == discardNode {
			values = append(values, discardNode+"bravo")
		}
		for _, value := range values {
			// What goes along where an option alone makes no sense.
			with := map[string]string{"cram-hmac-alg": "net { shared-secret x; cram-hmac-alg %s; }", "shared-secret": "net { cram-hmac-alg sha1; shared-secret %s; }",
				"on-congestion": "net { protocol A; on-congestion %s; }", "congestion-fill": "net { protocol A; on-congestion pull-ahead; congestion-fill %s; }",
				"congestion-extents":     "net { protocol A; on-congestion pull-ahead; congestion-extents %s; }",
				"csums-after-crash-only": "net { csums-alg sha1; csums-after-crash-only %s; }",
				"timeout":                "net { ping-int 100; connect-int 100; timeout %s; }",
				"ping-int":               "net { timeout 10; ping-int %s; }", "connect-int": "net { timeout 10; connect-int %s; }",
				"c-max-rate": "disk { c-min-rate 0; c-max-rate %s; }"}[s.Name]
			if with == "" {
				with = s.Section + " { " + s.Name + " %s; }"
			}
			if s.Kind == drbdconf.Flag {
				value = ""
			}
			line := fmt.Sprintf(with, value)
			if s.Section != "handlers" {
				line += ` handlers { fence-peer f; pri-lost p; pri-lost-after-sb q; local-io-error l; }`
			}
			text := "resource r {" + twoHosts + line + "}"
			if s.Section == "global" {
				text = line[:strings.Index(line, "handlers")] + "resource r {" + twoHosts + "}"
			}
			rs, warnings, err := ReadDRBD([]string{writeFile(t, text)}, as("alpha"))
			if err != nil || len(rs) != 1 {
				t.Errorf("%s: %v", line, err)
				continue
			}
			isNamed := slices.ContainsFunc(warnings, func(w Warning) bool { return strings.Fields(w.Option + " ?")[0] == s.Name && len(w.Text) > 15 })
			isHonoured := s.Name == "size" && rs[0].Volumes[0].Size == value+"s" || s.Name == "outdate-peer" && len(rs[0].Handlers) == 1
			for _, o := range slices.Concat(rs[0].Net, rs[0].Disk, rs[0].Options, rs[0].Handlers) {
				isHonoured = isHonoured || o.Name == s.Name && (o.Value == value || s.Name == "protocol" && o.Value == strings.ToUpper(value))
			}
			switch {
			case isHonoured:
				honoured++
			case isNamed:
				named++
			default:
				t.Errorf("%s: neither honoured nor named by a warning:\n%s", line, report(rs, warnings, err))
			}
		}
	}
	t.Log(honoured, "honoured", named, "named")
	if honoured < 80 || named < 60 {
		t.Error("this is no longer the whole table")
	}
}

// Every row of the tables of this package about drbd.conf is about something that drbd.conf has.
func TestTablesOfDRBDHaveNoStrangers(t *testing.T) {
	for key := range insteadOf {
		section, name, _ := strings.Cut(key, " ")
		if drbdconf.Find(section, name) == nil && key != "proxy plugin" && key != "disk tiebreaker" {
			t.Error(key)
		}
		etcdOnly := name == "auto-promote" || name == "on-no-quorum"
		if findOption(name, inNet, inDisk, inResync, inOptions) != nil && section != "proxy" && !etcdOnly {
			t.Errorf("%s: hawser has this option", key)
		}
	}
	for name, values := range otherValue {
		for v, x := range values {
			if s := drbdconf.Find("net", name); s == nil {
				s = drbdconf.Find("disk", name)
				if s == nil || s.Check(v) != "" {
					t.Error(name, v)
				}
			}
			if o := findOption(name, inNet, inDisk); o == nil || !slices.Contains(o.enum, x.use) || o.refuse[x.use] != "" {
				t.Error(name, x.use)
			}
		}
	}
}

func writeFile(t *testing.T, text string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "drbd.conf")
	if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	return file
}

// Files in the syntax of drbd.conf stand beside YAML in the folder: what is common is common to all of them, and a broken
// one keeps only its own resources from starting.
func TestLoadReadsDRBDFiles(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{
		"global_common.conf": "global { usage-count no; } common { net { protocol A; fencing resource-and-stonith; } handlers { fence-peer f; } }",
		"r0.res":             "resource r0 {" + twoHosts + "}",
		"broken.res":         "resource r1 { device minor 3;\n net { timeout 0; } }",
		"other.res":          "resource r2 { device minor 9; disk /dev/sdx; on Alpha.example.com { address 10.9.0.1:7009; } on z { address 10.9.0.2:7009; } }",
		"y.yaml":             "resource: y\nnodes:\n  - {name: alpha, address: 10.9.0.1:7100}\n  - {name: b, address: 10.9.0.2:7100}\nvolumes:\n  - {disk: /dev/sdy}\n",
		"again.yaml":         "resource: r0\nnodes:\n  - {name: alpha, address: 10.9.0.1:7200}\nvolumes:\n  - {disk: /dev/sdz}\n",
		".hidden.res":        "nonsense",
		"README.txt":         "nonsense",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	set, err := LoadFor(dir, "alpha")
	if set == nil || !slices.Equal(set.Names(), []string{"r0", "y", "r2"}) {
		t.Fatal(set, err)
	}
	list := Errors(err)
	if len(list) != 2 || !strings.HasSuffix(list[0].File, "broken.res") || list[0].Line != 2 || !strings.Contains(list[1].Error(), "resource r0 is already defined") {
		t.Error(err)
	}
	r, _ := set.Resource("r2")
	d, err := r.Definition("alpha")
	if err != nil || d.Peers[0].Net.Protocol != "A" || d.Peers[0].Net.Fencing != "resource-and-stonith" || d.Volumes[0].DevLink != "/dev/drbd9" || d.NodeID != 1 {
		t.Error(d, err)
	}
	if r.Nodes[0].Name != "alpha" {
		t.Errorf("the host section is for node alpha, not %s", r.Nodes[0].Name)
	}
	if len(set.Warnings) != 1 || !set.Warnings[0].Note || set.Warnings[0].Option != "usage-count no" {
		t.Error(set.Warnings)
	}
}

// What comes from drbd.conf goes back to it, and is the same when it is read again.
func TestDRBDSamplesGoBack(t *testing.T) {
	files, err := filepath.Glob(drbdSamples + "/v*.conf")
	if err != nil {
		t.Fatal(err)
	}
	same := 0
	for _, file := range files {
		name := filepath.Base(file)
		rs, _, err := readDRBD(mnt{}, []string{"/mnt/" + name}, as("alpha"))
		if len(rs) == 0 || err != nil {
			continue
		}
		text, warnings := MarshalDRBD(rs)
		for _, w := range warnings {
			if !strings.Contains(w.Text, "needs a minor number") || name != "v20-device-spellings.conf" {
				t.Errorf("%s: %v", name, w)
			}
		}
		again, _, err := ReadDRBD([]string{writeFile(t, string(text))}, as("alpha"))
		if err != nil || len(again) != len(rs) {
			t.Errorf("%s: %v in\n%s", name, err, text)
			continue
		}
		for i := range rs {
			if a, b := Marshal(rs[i]), Marshal(again[i]); string(a) != string(b) {
				t.Errorf("%s: before\n%safter\n%swritten as\n%s", name, a, b, text)
			}
			same++
		}
	}
	if same < 30 {
		t.Errorf("only %d resources went back", same)
	}
}

func TestMarshalDRBDNamesWhatItLeavesOut(t *testing.T) {
	rs, err := Parse("r0.yaml", []byte(`resource: r0
nodes:
  - {name: a, node-id: 3, address: "10.1.0.1:7789"}
  - {name: b, node-id: 1, address: "[fd00::2]:7789", volumes: [{volume: 1, disk: /dev/b1, meta-disk: /dev/m}]}
  - {name: c, node-id: 2, address: "10.1.0.3:7789", diskless: true}
volumes:
  - {device: nbd /dev/drbd1, disk: /dev/a0, size: 1T}
  - {disk: /dev/a1, disk-options: {direct-io: no, disk-timeout: 3s}}
connections:
  - {nodes: [a, b], addresses: {a: "10.2.0.1:1", b: "10.2.0.2:2"}, net: {protocol: a, ping-int: 1m}, disk: {c-max-rate: 64MiB/s}}
net: {timeout: 500ms, allow-two-primaries: false, sndbuf-size: 1M}
options: {undo-log: none, on-no-data-accessible: suspend-io}
nbd: {listen: "0.0.0.0:10809"}
handlers: {split-brain: "echo \"it's\" $DRBD_RESOURCE\\n"}
`))
	if err != nil {
		t.Fatal(err)
	}
	text, warnings := MarshalDRBD(rs)
	golden(t, "testdata/drbd/write.golden", report(nil, warnings, nil)+string(text))
	again, _, err := ReadDRBD([]string{writeFile(t, string(text))}, as("a"))
	if err != nil || len(again) != 1 {
		t.Fatal(err)
	}
	for _, node := range []string{"a", "b", "c"} {
		x, err1 := rs[0].Definition(node)
		y, err2 := again[0].Definition(node)
		if err1 != nil || err2 != nil {
			t.Fatal(err1, err2)
		}
		// What was named:
		for i := range x.Volumes {
			y.Volumes[i].Opts.DirectIO = x.Volumes[i].Opts.DirectIO
			y.Volumes[i].Device, y.Volumes[i].DevLink = x.Volumes[i].Device, x.Volumes[i].DevLink
		}
		y.Options.UndoLog, y.NBD = x.Options.UndoLog, x.NBD
		if a, b := fmt.Sprintf("%+v", x), fmt.Sprintf("%+v", y); a != b {
			t.Errorf("on %s:\n%s\n%s", node, a, b)
		}
	}
}
