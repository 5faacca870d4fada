package nbd

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

var (
	compareRounds  = flag.Int("compare.rounds", 1, "alternating runs of TestCompare for each server")
	compareRuntime = flag.Duration("compare.runtime", 500*time.Millisecond, "length of one run of TestCompare")
)

// TestCompare measures this server and nbdkit's file plugin in turns, both on a file in memory, and logs the ratio
// of the medians. Only silence fails it: one short run, the default, proves nothing about speed.
func TestCompare(t *testing.T) {
	fio, nbdkit := tool(t, "fio", "fio"), tool(t, "nbdkit", "nbdkit")
	const size = 512 << 20
	dir, err := os.MkdirTemp("/dev/shm", "compare")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	mine, back := newFileVolume(t, dir, size), newFileVolume(t, dir, size)
	for _, v := range []*fileVolume{mine, back} {
		if err := unix.Fallocate(v.fd, 0, 0, size); err != nil {
			t.Fatal(err)
		}
	}
	_, ours := start(t, Config{}, mine)
	theirs := filepath.Join(dir, "s")
	cmd := exec.Command(nbdkit, "-f", "-U", theirs, "file", back.path)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cmd.Process.Kill(); cmd.Wait() })
	waitFor(t, "nbdkit's socket", func() bool { _, err := os.Stat(theirs); return err == nil })

	measure := func(sock, rw, bs string, depth int) float64 {
		out := run(t, fio, "--name=c", "--ioengine=nbd", "--uri="+uri(sock, ""), "--rw="+rw, "--bs="+bs,
			fmt.Sprintf("--iodepth=%d", depth), "--size=512M", "--norandommap", "--time_based",
			fmt.Sprintf("--runtime=%dms", compareRuntime.Milliseconds()), "--output-format=json")
		var result struct {
			Jobs []struct{ Read, Write struct{ Iops float64 } }
		}
		if err := json.Unmarshal([]byte(out[max(0, strings.Index(out, "{")):]), &result); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		iops := result.Jobs[0].Read.Iops + result.Jobs[0].Write.Iops
		if iops == 0 {
			t.Fatalf("fio did nothing: %s", out)
		}
		return iops
	}
	for _, cell := range []struct {
		rw, bs string
		depth  int
	}{
		{"randread", "4k", 1}, {"randwrite", "4k", 1}, {"randread", "4k", 32}, {"randwrite", "4k", 32},
		{"read", "1M", 8}, {"write", "1M", 8},
	} {
		t.Run(fmt.Sprintf("%s %s depth %d", cell.rw, cell.bs, cell.depth), func(t *testing.T) {
			var a, b []float64
			for range *compareRounds {
				a = append(a, measure(ours, cell.rw, cell.bs, cell.depth))
				b = append(b, measure(theirs, cell.rw, cell.bs, cell.depth))
			}
			slices.Sort(a)
			slices.Sort(b)
			m, n := a[len(a)/2], b[len(b)/2]
			t.Logf("%7.0f (%.0f-%.0f) : %7.0f (%.0f-%.0f) IOPS, ratio %.2f", m, a[0], a[len(a)-1], n, b[0], b[len(b)-1], m/n)
		})
	}
}

// waitFor waits for a condition.
func waitFor(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(10 * time.Second); !ok(); {
		if time.Now().After(deadline) {
			t.Fatalf("timeout: %s", what)
		}
		tick := time.NewTimer(time.Millisecond)
		<-tick.C
	}
}
