package main

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// job is one kind of work.
type job struct {
	name  string
	lines string
	write bool
	depth int
	small bool // 4 KiB
}

var jobs = []job{
	{"randwrite-qd1", "rw=randwrite\nbs=4k\niodepth=1", true, 1, true},
	{"randwrite-qd32", "rw=randwrite\nbs=4k\niodepth=32", true, 32, true},
	{"randread-qd1", "rw=randread\nbs=4k\niodepth=1", false, 1, true},
	{"randread-qd32", "rw=randread\nbs=4k\niodepth=32", false, 32, true},
	{"flush-qd1", "rw=randwrite\nbs=4k\niodepth=1\nfsync=1", true, 1, true},
	{"flush-qd16", "rw=randwrite\nbs=4k\niodepth=16\nfsync=1", true, 16, true},
	{"seqwrite", "rw=write\nbs=1m\niodepth=8", true, 8, false},
	{"seqread", "rw=read\nbs=1m\niodepth=8", false, 8, false},
}

// fioStat is one direction of a job in fio's report.
type fioStat struct {
	IOs  int64   `json:"total_ios"`
	IOPS float64 `json:"iops"`
	BW   float64 `json:"bw_bytes"`
	Lat  struct {
		Mean float64 `json:"mean"`
	} `json:"lat_ns"`
	CLat struct {
		Percentile map[string]float64 `json:"percentile"`
	} `json:"clat_ns"`
}

// fio runs a job against a peer.
func (w *world) fio(p *peer, j job) (result, error) {
	var b strings.Builder
	fmt.Fprintf(&b, "[global]\ntime_based\nruntime=%dms\nsize=%dm\nrandseed=1\nallrandrepeat=1\n", w.o.length.Milliseconds(), dataMiB)
	if strings.HasPrefix(p.target, "nbd") {
		fmt.Fprintf(&b, "ioengine=nbd\nuri=%s\n", p.target)
	} else {
		fmt.Fprintf(&b, "ioengine=libaio\ndirect=1\nfilename=%s\n", p.target)
	}
	fmt.Fprintf(&b, "[%s]\n%s\n", j.name, j.lines)
	file := filepath.Join(w.shm, "job.fio")
	if err := os.WriteFile(file, []byte(b.String()), 0o600); err != nil {
		return result{}, err
	}
	before, err := cpu(p.pids)
	if err != nil {
		return result{}, fmt.Errorf("a daemon is gone: %w%s", err, w.lastLog())
	}
	cmd := exec.CommandContext(w.ctx, "fio", "--output-format=json", file)
	cmd.Dir = w.shm // fio leaves state files behind
	text, err := w.output(cmd)
	if err != nil {
		return result{}, fmt.Errorf("%w%s", err, w.lastLog())
	}
	after, err := cpu(p.pids)
	if err != nil {
		return result{}, fmt.Errorf("a daemon is gone: %w%s", err, w.lastLog())
	}
	if i := strings.IndexByte(text, '{'); i > 0 { // warnings come first
		text = text[i:]
	}
	var report struct {
		Jobs []struct {
			Error       int
			Read, Write fioStat
		}
	}
	if err := json.Unmarshal([]byte(text), &report); err != nil || len(report.Jobs) != 1 {
		return result{}, fmt.Errorf("fio's report: %w", err)
	}
	s := report.Jobs[0].Read
	if j.write {
		s = report.Jobs[0].Write
	}
	if report.Jobs[0].Error != 0 || s.IOs == 0 { // fio does not fail when the server is gone
		return result{}, fmt.Errorf("fio did %d operations, error %d%s", s.IOs, report.Jobs[0].Error, w.lastLog())
	}
	r := result{value: s.IOPS, unit: "op/s", lat: s.Lat.Mean / 1000, p99: s.CLat.Percentile["99.000000"] / 1000,
		cpu: float64((after - before).Nanoseconds()) / 1000 / float64(s.IOs)}
	if !j.small {
		r.value, r.unit = s.BW/1e6, "MB/s"
	}
	if j.small && j.depth == 1 && strings.HasPrefix(j.name, "flush") {
		r.lat = 1e6 / s.IOPS // write and flush
	}
	return r, nil
}
