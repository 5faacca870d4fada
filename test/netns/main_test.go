package netns

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

var (
	long   = flag.Bool("long", false, "more rounds, larger volumes")
	rounds = flag.Int("rounds", 0, "rounds of the random kills; 0: a few")
	seed   = flag.Uint64("seed", 1, "of everything random")
	keep   = flag.Bool("keep", false, "keep folders and logs")
	racy   = flag.Bool("racy", false, "build the programs with the race detector")
)

// binaries are built once for all tests.
var binaries struct{ dir, hawser, faultfs, servicerun string }

// slots bounds how many clusters run at once: they measure nothing when the machine is overloaded.
var slots = make(chan struct{}, 2)

func TestMain(m *testing.M) {
	flag.Parse()
	os.Exit(run(m))
}

func run(m *testing.M) int {
	if os.Geteuid() == 0 {
		dir, err := os.MkdirTemp("/var/tmp", "hawser-netns-bin-")
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		defer os.RemoveAll(dir)
		binaries.dir = dir
		for name, pkg := range map[string]string{"hawser": "./cmd/hawser", "faultfs": "./test/faultfs/cmd/faultfs", "servicerun": "./test/servicerun"} {
			args := []string{"build", "-o", filepath.Join(dir, name)}
			if *racy {
				args = append(args, "-race")
			}
			cmd := exec.CommandContext(context.Background(), "go", append(args, pkg)...)
			cmd.Dir = "../.."
			if out, err := cmd.CombinedOutput(); err != nil {
				fmt.Fprintf(os.Stderr, "build %s: %v\n%s", name, err, out)
				return 1
			}
		}
		binaries.hawser, binaries.faultfs, binaries.servicerun = filepath.Join(dir, "hawser"), filepath.Join(dir, "faultfs"), filepath.Join(dir, "servicerun")
	}
	return m.Run()
}
