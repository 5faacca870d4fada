package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"time"
)

// measureResync copies a whole volume from host a to host b: as a full resync of hawser, and by nbdcopy between two
// nbdkit servers. Disks on tmpfs, page cache on both sides: what is compared is the copying, not a disk.
func (w *world) measureResync(res *results) error {
	for _, t := range []string{"nbdkit", "nbdcopy"} {
		if _, err := exec.LookPath(t); err != nil {
			w.say("resync is left out: %s is not installed", t)
			return nil
		}
	}
	h := &peer{name: "hawser-resync", dir: w.shm}
	if err := startHawser(w, h, w.o.hawser, "C"); err != nil {
		return err
	}
	n := &peer{name: "nbdcopy", dir: w.shm}
	src, dst, err := nbdkitPair(w, n)
	if err != nil {
		return err
	}
	for turn := 1; turn <= w.o.runs; turn++ {
		if err := w.settle(); err != nil {
			return err
		}
		if err := scribble(h.a, turn); err != nil { // so that something has to be copied, and is seen to have been
			return err
		}
		before, err := cpu(h.pids)
		if err != nil {
			return err
		}
		rate, err := h.cluster.resync()
		if err != nil {
			return err
		}
		after, err := cpu(h.pids)
		if err != nil {
			return err
		}
		res.add(result{group: "resync", cell: "resync", peer: "hawser-c", turn: turn, value: rate, unit: "MB/s",
			cpu: float64((after - before).Microseconds()) / diskMiB})
		if err := h.compare(); err != nil {
			return err
		}

		if before, err = cpu(n.pids); err != nil {
			return err
		}
		began := time.Now()
		args := inside("a", "nbdcopy", "--flush", src, dst)
		if _, err := w.output(exec.CommandContext(w.ctx, args[0], args[1:]...)); err != nil {
			return err
		}
		took := time.Since(began)
		if after, err = cpu(n.pids); err != nil {
			return err
		}
		res.add(result{group: "resync", cell: "resync", peer: "nbdcopy", turn: turn, value: float64(diskMiB<<20) / 1e6 / took.Seconds(), unit: "MB/s",
			cpu: float64((after - before).Microseconds()) / diskMiB}) // of the servers; nbdcopy itself comes on top
		if err := n.compare(); err != nil {
			return err
		}
	}
	w.say("resync done")
	return errors.Join(w.down(n), w.down(h))
}

// resync has the first node copy everything to the second, and returns MB/s.
func (c *cluster) resync() (rate float64, err error) {
	a := c.nodes[0]
	if err := c.do(a, "invalidate-remote --force "+resource, "wait-sync --timeout 1m "+resource); err != nil {
		return 0, err
	}
	st, err := c.status(a)
	if err != nil {
		return 0, err
	}
	p := st.Peer(c.nodes[1].name)
	if p == nil || p.Volume(0) == nil || p.Volume(0).LastSync == nil {
		return 0, fmt.Errorf("%s tells of no resync", a.name)
	}
	s := p.Volume(0).LastSync
	if s.Done < dataMiB<<20 {
		return 0, fmt.Errorf("only %d bytes were resynced", s.Done)
	}
	return float64(s.Done) / 1e6 / s.Ended.Sub(s.Started).Seconds(), nil
}

// scribble changes every block of the data part of a disk behind everybody's back.
func scribble(path string, salt int) error {
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	block := make([]byte, 1<<20)
	for i := range dataMiB {
		for j := 0; j < len(block); j += 8 {
			v := uint64(i<<20+j)*0x9e3779b97f4a7c15 + uint64(salt)
			for k := range 8 {
				block[j+k] = byte(v >> (8 * k))
			}
		}
		if _, err := f.Write(block); err != nil {
			return errors.Join(err, f.Close())
		}
	}
	return f.Close()
}

// nbdkitPair serves a full disk on host a and an empty one on host b.
func nbdkitPair(w *world, p *peer) (src, dst string, err error) {
	if p.a, err = p.disk(w, ".a"); err != nil {
		return "", "", err
	}
	if p.b, err = p.disk(w, ".b"); err != nil {
		return "", "", err
	}
	if err := scribble(p.a, 0); err != nil {
		return "", "", err
	}
	sock := filepath.Join(w.shm, p.name+".sock")
	a, err := w.daemon(p, "a", "nbdkit", "-f", "-U", sock, "file", p.a)
	if err != nil {
		return "", "", err
	}
	b, err := w.daemon(p, "b", "nbdkit", "-f", "-i", addrB, "-p", "10809", "file", p.b)
	if err != nil {
		return "", "", err
	}
	p.pids = []int{a.Process.Pid, b.Process.Pid}
	src, dst = "nbd+unix:///?socket="+sock, "nbd://"+addrB+":10809"
	for _, uri := range []string{src, dst} {
		args := inside("a", "nbdinfo", "--size", uri)
		if err := w.until("nbdkit at "+uri, func() bool { return exec.Command(args[0], args[1:]...).Run() == nil }); err != nil {
			return "", "", err
		}
	}
	return src, dst, nil
}

var allocLine = regexp.MustCompile(`(?m)^Benchmark(\S+?)(?:-\d+)?\s.*?(\d+) allocs/op`)

// measureAllocs runs the replicator's own benchmarks for the allocations of a request.
func (w *world) measureAllocs(res *results) error {
	cmd := exec.CommandContext(w.ctx, "go", "test", "-run", "^$", "-bench", "^Benchmark(Standalone|Replicated)$", "-benchmem", "-benchtime", "20000x", "./replicator")
	out, err := w.output(cmd)
	if err != nil {
		return err
	}
	found := allocLine.FindAllStringSubmatch(out, -1)
	if len(found) == 0 {
		return fmt.Errorf("no figures in: %s", out)
	}
	for _, m := range found {
		n, err := strconv.ParseFloat(m[2], 64)
		if err != nil {
			return err
		}
		res.add(result{group: "allocs", cell: strings.ReplaceAll(m[1], "/", "-"), peer: "hawser", turn: 1, value: n, unit: "allocs/op"})
	}
	return nil
}
