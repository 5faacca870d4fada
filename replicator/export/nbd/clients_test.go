package nbd

import (
	"bytes"
	"context"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/hawser-ha/hawser/replicator/export"
)

// tool finds a client program.
func tool(t testing.TB, name, pkg string) string {
	t.Helper()
	path, err := exec.LookPath(name)
	if err != nil {
		t.Fatalf("%s is not there: install %s (make deps)", name, pkg)
	}
	return path
}

// run runs a client and returns its output; it must succeed.
func run(t testing.TB, name string, args ...string) string {
	t.Helper()
	out, err := try(t, name, args...)
	if err != nil {
		t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, out)
	}
	return out
}

func try(t testing.TB, name string, args ...string) (string, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir = t.TempDir()
	cmd.Env = append(os.Environ(), "PATH=/usr/bin:"+os.Getenv("PATH")) // nbdsh needs the system's python
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	err := cmd.Run()
	return out.String(), err
}

// start serves volumes, named by their place ("v0", "v1", ...), on a unix socket and returns it.
func start(t testing.TB, cfg Config, volumes ...export.Volume) (*Server, string) {
	t.Helper()
	dir, err := os.MkdirTemp("", "nbd") // socket paths are short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	cfg.Unix = filepath.Join(dir, "s")
	s := New(cfg)
	for i, v := range volumes {
		if err := s.Add("v"+string(rune('0'+i)), "volume "+string(rune('0'+i)), v); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
		defer cancel()
		if err := s.Close(ctx); err != nil {
			t.Errorf("close: %v", err)
		}
		if _, err := net.Dial("unix", cfg.Unix); err == nil {
			t.Error("somebody listens after Close")
		}
		if _, err := os.Lstat(cfg.Unix); !os.IsNotExist(err) {
			t.Errorf("socket is left over: %v", err)
		}
		if used := s.pool.InUse(); used != 0 {
			t.Errorf("%d bytes of buffers are still lent after Close", used)
		}
	})
	return s, cfg.Unix
}

func uri(sock, name string) string { return "nbd+unix:///" + name + "?socket=" + sock }

func TestNbdinfo(t *testing.T) {
	nbdinfo := tool(t, "nbdinfo", "libnbd-bin")
	_, sock := start(t, Config{}, newMemVolume(64<<20), newMemVolume(1<<20))
	out := run(t, nbdinfo, uri(sock, ""))
	t.Log(out)
	for _, want := range []string{"export-size: 67108864", "can_multi_conn: true", "can_fua: true", "can_fast_zero: true",
		"can_df: true", "is_read_only: false", "block_size_minimum: 512", "block_size_maximum: 33554432", "base:allocation"} {
		if !strings.Contains(out, want) {
			t.Errorf("nbdinfo does not say %q", want)
		}
	}
	if out := run(t, nbdinfo, "--list", uri(sock, "")); !strings.Contains(out, `export="v0"`) || !strings.Contains(out, `export="v1"`) ||
		!strings.Contains(out, "volume 1") {
		t.Errorf("nbdinfo --list: %s", out)
	}
	run(t, nbdinfo, "--json", uri(sock, "v1"))
	run(t, nbdinfo, "--can", "multi-conn", uri(sock, "v1"))
	if out := run(t, nbdinfo, "--size", uri(sock, "v1")); out != "1048576\n" {
		t.Errorf("nbdinfo --size: %q", out)
	}
	if out := run(t, nbdinfo, "--map", uri(sock, "v1")); !strings.Contains(out, "1048576    3  hole,zero") {
		t.Errorf("nbdinfo --map: %q", out)
	}
	if out, err := try(t, nbdinfo, uri(sock, "other")); err == nil || !strings.Contains(out, "No such file or directory for export: other") {
		t.Errorf("nbdinfo of an unknown export: %v %s", err, out)
	}
}
