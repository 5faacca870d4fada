package vm

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestOnDebianKernel runs tests of this module on Debian's kernel: its loop driver and FUSE are years older than
// what the tests usually run on, and root may do there what a container forbids.
func TestOnDebianKernel(t *testing.T) {
	l := New(t, "fuse")
	dir := t.TempDir()
	packages := []string{"memguard", "export/hostdev", "export/fuse"}
	for _, p := range packages {
		cmd := exec.Command("go", "test", "-c", "-o", filepath.Join(dir, filepath.Base(p)), "github.com/hawser-ha/hawser/replicator/"+p)
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%s: %v\n%s", p, err, out)
		}
	}
	l.Script("vm", "start", "kf", "--ip", "10.77.0.42", "--share", dir, "--mods", "fuse,loop,xfs", "--mem", "900")
	for _, p := range packages {
		// bonnie++ is left out: emulated, it takes longer than it is worth.
		out, err := l.TryExec("kf", "uname -r; cp /host/"+filepath.Base(p)+
			" /run/test && cd /run && ./test -test.v -test.timeout 170s -test.skip 'TestCompare|TestTools/bonnie' 2>&1 | grep -v level=INFO")
		if err != nil || !strings.Contains(out, "\nPASS") || strings.Contains(out, "need root\n") {
			t.Errorf("%s: %v\n%s", p, err, out)
			continue
		}
		t.Logf("%s: %s", p, out)
		if p == "memguard" && !strings.Contains(out, "flusher=true") {
			t.Error("root of a whole machine may be an I/O flusher, and is not")
		}
	}
}
