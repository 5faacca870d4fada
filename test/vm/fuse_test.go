package vm

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestFuseOnDebianKernel runs the tests of the FUSE front end on Debian's kernel, whose loop driver and FUSE are
// years older than what the tests usually run on.
func TestFuseOnDebianKernel(t *testing.T) {
	l := New(t, "fuse")
	dir := t.TempDir()
	cmd := exec.Command("go", "test", "-c", "-o", filepath.Join(dir, "fuse.test"), "github.com/hawser-ha/hawser/replicator/export/fuse")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	l.Script("vm", "start", "kf", "--ip", "10.77.0.42", "--share", dir, "--mods", "fuse,loop,xfs", "--mem", "900")
	// bonnie++ is left out: emulated, it takes longer than it is worth.
	out, err := l.TryExec("kf", "uname -r; cp /host/fuse.test /run/ && cd /run && ./fuse.test -test.v -test.timeout 170s -test.skip 'TestCompare|TestTools/bonnie' 2>&1 | grep -v level=INFO")
	if err != nil || !strings.Contains(out, "\nPASS") || strings.Contains(out, "--- SKIP: TestFile") {
		t.Errorf("%v\n%s", err, out)
	}
	t.Log(out)
}
