package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"
)

const (
	dataMiB = 256 // MiB that every peer serves and fio uses
	diskMiB = 264 // MiB of a backing file: what hawser's internal metadata needs comes on top
)

// options are the command line.
type options struct {
	hawser string
	beside string // another build
	dir    string // on a real disk
	shm    string // on tmpfs
	tsv    string
	runs   int
	length time.Duration
	peers  []string
	cells  []string
	quiet  time.Duration // how long to wait for a quiet machine, in all
	keep   bool
}

func main() {
	if len(os.Args) == 3 && (os.Args[1] == "echo" || os.Args[1] == "ping") {
		if err := roundTripMain(os.Args[1], os.Args[2]); err != nil {
			fmt.Fprintln(os.Stderr, "bench:", err)
			os.Exit(1)
		}
		return
	}
	o, err := parse()
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	missed, err := run(ctx, o)
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
	if missed > 0 {
		fmt.Printf("\n%d figures miss their target: see docs/performance.md\n", missed)
	}
}

func parse() (*options, error) {
	o := &options{}
	var peers, cells string
	var long bool
	flag.StringVar(&o.hawser, "hawser", "bin/hawser", "the program to measure")
	flag.StringVar(&o.beside, "beside", "", "another build of it, measured in the same turns")
	flag.StringVar(&o.dir, "dir", "/var/tmp", "folder on a real disk; 4 GiB are used below it")
	flag.StringVar(&o.shm, "shm", "/dev/shm", "folder on tmpfs; 2 GiB are used below it")
	flag.StringVar(&o.tsv, "tsv", "", "file for every single run, tab separated")
	flag.IntVar(&o.runs, "runs", 0, "turns in each cell (default 3, with -long 7)")
	flag.DurationVar(&o.length, "time", 0, "length of a run (default 700ms, with -long 2s)")
	flag.StringVar(&peers, "peers", "", "only these, separated by blanks: "+strings.Join(peerNames(), " "))
	flag.StringVar(&cells, "cells", "", "only these, separated by blanks: a group (tmpfs disk pair resync allocs), a cell (randwrite-qd1), or both (disk/seqread)")
	flag.BoolVar(&long, "long", false, "more and longer runs")
	flag.DurationVar(&o.quiet, "quiet", time.Minute, "how long to wait in all, before turns, for other processes to leave the processors alone")
	flag.BoolVar(&o.keep, "keep", false, "leave the working folders, with the logs")
	flag.Parse()
	o.peers, o.cells = strings.Fields(peers), strings.Fields(cells)
	if o.runs == 0 {
		o.runs = 3
		if long {
			o.runs = 7
		}
	}
	if o.length == 0 {
		o.length = 700 * time.Millisecond
		if long {
			o.length = 2 * time.Second
		}
	}
	for _, p := range o.peers {
		if !slices.Contains(peerNames(), p) {
			return nil, fmt.Errorf("unknown peer %q, not one of: %s", p, strings.Join(peerNames(), " "))
		}
	}
	abs, err := filepath.Abs(o.hawser)
	if err != nil {
		return nil, err
	}
	o.hawser = abs
	if o.beside != "" {
		if o.beside, err = filepath.Abs(o.beside); err != nil {
			return nil, err
		}
	}
	if os.Geteuid() != 0 {
		return nil, errors.New("network namespaces need root")
	}
	return o, nil
}

// wants says whether a cell of a group was asked for.
func (o *options) wants(group, cell string) bool {
	return len(o.cells) == 0 || slices.ContainsFunc(o.cells, func(c string) bool {
		return c == group || c == cell || c == group+"/"+cell
	})
}

func (o *options) wantsPeer(p string) bool { return len(o.peers) == 0 || slices.Contains(o.peers, p) }

// run measures everything that was asked for and returns how many targets were missed.
func run(ctx context.Context, o *options) (missed int, err error) {
	w, err := newWorld(ctx, o)
	if err != nil {
		return 0, err
	}
	defer func() {
		if e := w.close(); e != nil {
			err = errors.Join(err, e)
		}
	}()
	res := &results{}
	for _, g := range groups {
		if err := w.measureGroup(g, res); err != nil {
			return 0, err
		}
	}
	if o.wants("resync", "resync") {
		if err := w.measureResync(res); err != nil {
			return 0, fmt.Errorf("resync: %w", err)
		}
	}
	if o.wants("allocs", "allocs") {
		if err := w.measureAllocs(res); err != nil {
			return 0, fmt.Errorf("allocations: %w", err)
		}
	}
	if o.tsv != "" {
		if err := res.writeTSV(o.tsv); err != nil {
			return 0, err
		}
	}
	return res.print(os.Stdout), nil
}

// measureGroup starts the peers of a group, measures each cell in turns, and compares the replicas.
func (w *world) measureGroup(g group, res *results) error {
	var cells []job
	for _, j := range jobs {
		if w.o.wants(g.name, j.name) {
			cells = append(cells, j)
		}
	}
	if len(cells) == 0 {
		return nil
	}
	began := time.Now()
	var peers []*peer
	for _, s := range w.besides(g.peers) {
		if !w.o.wantsPeer(s.name) {
			continue
		}
		if tool := s.missing(); tool != "" {
			w.say("%s/%s is left out: %s is not installed", g.name, s.name, tool)
			continue
		}
		p := &peer{name: s.name, dir: g.folder(w)}
		if err := s.up(w, p); err != nil {
			return fmt.Errorf("%s/%s: %w", g.name, s.name, err)
		}
		peers = append(peers, p)
	}
	for _, j := range cells {
		for turn := 1; turn <= w.o.runs; turn++ {
			if err := w.settle(); err != nil {
				return err
			}
			for _, p := range peers {
				r, err := w.fio(p, j)
				if err != nil {
					return fmt.Errorf("%s/%s on %s: %w", g.name, j.name, p.name, err)
				}
				r.group, r.cell, r.peer, r.turn = g.name, j.name, p.name, turn
				res.add(r)
			}
			if g.roundTrip && j.name == "randwrite-qd1" {
				us, err := w.roundTrip()
				if err != nil {
					return fmt.Errorf("round trip: %w", err)
				}
				res.add(result{group: g.name, cell: j.name, peer: "tcp-round-trip", turn: turn, value: us, unit: "us", lat: us})
			}
		}
		w.say("%s/%s done", g.name, j.name)
	}
	for _, p := range peers {
		if err := p.compare(); err != nil {
			return fmt.Errorf("%s/%s: %w", g.name, p.name, err)
		}
	}
	for i := len(peers) - 1; i >= 0; i-- {
		if err := w.down(peers[i]); err != nil {
			return fmt.Errorf("%s/%s: %w", g.name, peers[i].name, err)
		}
	}
	w.say("%s took %.0f s", g.name, time.Since(began).Seconds())
	return nil
}
