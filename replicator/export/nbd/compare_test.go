package nbd

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
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

	measure := func(sock, rw, bs string, depth int) (iops, ios float64) {
		out := run(t, fio, "--name=c", "--ioengine=nbd", "--uri="+uri(sock, ""), "--rw="+rw, "--bs="+bs,
			fmt.Sprintf("--iodepth=%d", depth), "--size=512M", "--norandommap", "--time_based",
			fmt.Sprintf("--runtime=%dms", compareRuntime.Milliseconds()), "--output-format=json")
		var result struct {
			Jobs []struct {
				Read, Write struct {
					Iops  float64
					Total float64 `json:"total_ios"`
				}
			}
		}
		if err := json.Unmarshal([]byte(out[max(0, strings.Index(out, "{")):]), &result); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		j := result.Jobs[0]
		if j.Read.Total+j.Write.Total == 0 {
			t.Fatalf("fio did nothing: %s", out)
		}
		return j.Read.Iops + j.Write.Iops, j.Read.Total + j.Write.Total
	}
	for _, cell := range []struct {
		rw, bs string
		depth  int
	}{
		{"randread", "4k", 1}, {"randwrite", "4k", 1}, {"randread", "4k", 32}, {"randwrite", "4k", 32},
		{"read", "1M", 8}, {"write", "1M", 8},
	} {
		t.Run(fmt.Sprintf("%s %s depth %d", cell.rw, cell.bs, cell.depth), func(t *testing.T) {
			type side struct{ iops, cpu []float64 }
			var us, them side
			one := func(s *side, sock string, pid int) {
				before := cpuTime(t, pid)
				iops, ios := measure(sock, cell.rw, cell.bs, cell.depth)
				s.iops = append(s.iops, iops)
				s.cpu = append(s.cpu, float64((cpuTime(t, pid)-before).Microseconds())/ios)
			}
			for range *compareRounds {
				one(&us, ours, os.Getpid())
				one(&them, theirs, cmd.Process.Pid)
			}
			for _, l := range [][]float64{us.iops, us.cpu, them.iops, them.cpu} {
				slices.Sort(l)
			}
			m := (*compareRounds - 1) / 2
			t.Logf("%7.0f : %7.0f IOPS, ratio %.2f; best of each %.2f; CPU %.1f : %.1f us/op", us.iops[m], them.iops[m],
				us.iops[m]/them.iops[m], us.iops[2*m]/them.iops[2*m], us.cpu[m], them.cpu[m])
		})
	}
}

// cpuTime is what a process has used, in steps of 10 ms.
func cpuTime(t testing.TB, pid int) time.Duration {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		t.Fatal(err)
	}
	f := strings.Fields(string(b[bytes.LastIndexByte(b, ')')+2:])) // from the third field on
	var ticks int64
	for _, s := range f[11:13] {
		n, err := strconv.ParseInt(s, 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		ticks += n
	}
	return time.Duration(ticks) * 10 * time.Millisecond
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
