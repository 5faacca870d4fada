package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"slices"
	"text/tabwriter"
)

// result is one run.
type result struct {
	group, cell, peer string
	turn              int
	value             float64
	unit              string
	lat               float64 // mean, microseconds
	p99               float64 // microseconds
	cpu               float64 // of the daemons, microseconds per operation
}

type results struct{ all []result }

func (r *results) add(x result) { r.all = append(r.all, x) }

func (r *results) writeTSV(path string) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	b := bufio.NewWriter(f)
	fmt.Fprintln(b, "group\tcell\tpeer\tturn\tvalue\tunit\tlat_us\tp99_us\tcpu_us_per_op")
	for _, x := range r.all {
		fmt.Fprintf(b, "%s\t%s\t%s\t%d\t%.2f\t%s\t%.2f\t%.2f\t%.2f\n", x.group, x.cell, x.peer, x.turn, x.value, x.unit, x.lat, x.p99, x.cpu)
	}
	return errors.Join(b.Flush(), f.Close())
}

// turns gives one figure of a peer in a cell for each turn.
func (r *results) turns(group, cell, peer string, of func(result) float64) []float64 {
	var v []float64
	for _, x := range r.all {
		if x.group == group && x.cell == cell && x.peer == peer {
			v = append(v, of(x))
		}
	}
	return v
}

func value(x result) float64 { return x.value }
func lat(x result) float64   { return x.lat }
func p99(x result) float64   { return x.p99 }
func cpuOf(x result) float64 { return x.cpu }

// median of v; NaN when there is none.
func median(v []float64) float64 {
	if len(v) == 0 {
		return math.NaN()
	}
	s := slices.Sorted(slices.Values(v))
	return (s[len(s)/2] + s[(len(s)-1)/2]) / 2
}

// pairwise is the median over the turns of f(a, b...).
func pairwise(f func(v ...float64) float64, lists ...[]float64) float64 {
	n := len(lists[0])
	for _, l := range lists {
		n = min(n, len(l))
	}
	var out []float64
	for i := range n {
		v := make([]float64, len(lists))
		for k, l := range lists {
			v[k] = l[i]
		}
		out = append(out, f(v...))
	}
	return median(out)
}

func quotient(v ...float64) float64 { return v[0] / v[1] }

func (r *results) ratio(group, cell, a, b string) float64 {
	return pairwise(quotient, r.turns(group, cell, a, value), r.turns(group, cell, b, value))
}

// verdict is one figure with its target.
type verdict struct {
	what        string
	got, target float64
	atMost      bool
}

func (v verdict) reached() bool {
	if v.atMost {
		return v.got <= v.target
	}
	return v.got >= v.target
}

// geomean of what is there.
func geomean(v []float64) float64 {
	sum, n := 0.0, 0
	for _, x := range v {
		if !math.IsNaN(x) {
			sum += math.Log(x)
			n++
		}
	}
	if n == 0 {
		return math.NaN()
	}
	return math.Exp(sum / float64(n))
}

// verdicts compares what was measured with the targets.
func (r *results) verdicts() []verdict {
	var out []verdict
	add := func(what string, got, target float64, atMost bool) {
		if !math.IsNaN(got) {
			out = append(out, verdict{what, got, target, atMost})
		}
	}
	for _, s := range []struct {
		group, peer string
		mean        float64
		smallOnly   bool
	}{{"tmpfs", "nbdkit", 1.3, true}, {"disk", "qemu-nbd", 1.2, false}} {
		var mean []float64
		for _, j := range jobs {
			x := r.ratio(s.group, j.name, "hawser", s.peer)
			add(fmt.Sprintf("standalone on %s, %s: ratio to %s", s.group, j.name, s.peer), x, 1, false)
			if j.small || !s.smallOnly {
				mean = append(mean, x)
			}
		}
		if len(mean) > 0 {
			add(fmt.Sprintf("standalone on %s: geometric mean", s.group), geomean(mean), s.mean, false)
		}
	}
	for _, j := range jobs {
		mine := r.turns("pair", j.name, "hawser-c", value)
		if !j.write {
			add("protocol C, "+j.name+": ratio to standalone", pairwise(quotient, mine, r.turns("pair", j.name, "hawser", value)), 0.95, false)
			continue
		}
		quorum, mirror := r.turns("pair", j.name, "qemu-quorum", value), r.turns("pair", j.name, "qemu-mirror", value)
		target := 1.5
		if j.depth == 32 {
			target = 2
		}
		best := func(v ...float64) float64 { return v[0] / max(v[1], v[2]) }
		add("protocol C, "+j.name+": ratio to the better of qemu's", pairwise(best, mine, quorum, mirror), target, false)
		add("protocol C, "+j.name+": ratio to GlusterFS", r.ratio("pair", j.name, "hawser-c", "gluster-sync"), 3, false)
	}
	added := pairwise(func(v ...float64) float64 { return (v[0] - v[1]) / v[2] }, r.turns("pair", "randwrite-qd1", "hawser-c", lat),
		r.turns("pair", "randwrite-qd1", "hawser", lat), r.turns("pair", "randwrite-qd1", "tcp-round-trip", lat))
	add("protocol C, depth 1: added latency in round trips", added, 2, true)
	add("protocol C, depth 32: CPU of all daemons, us per write", median(r.turns("pair", "randwrite-qd32", "hawser-c", cpuOf)), 60, true)
	add("resync: ratio to nbdcopy", r.ratio("resync", "resync", "hawser-c", "nbdcopy"), 0.9, false)
	for _, x := range r.all {
		if x.group == "allocs" {
			add("allocations per request, "+x.cell, x.value, 0, true)
		}
	}
	return out
}

// print writes the figures and what became of the targets, and returns how many were missed.
func (r *results) print(out io.Writer) (missed int) {
	t := tabwriter.NewWriter(out, 0, 8, 2, ' ', 0)
	fmt.Fprintln(t, "group\tcell\tpeer\tmedian\tunit\tmean us\tp99 us\tCPU us/op")
	seen := map[string]bool{}
	for _, x := range r.all {
		key := x.group + " " + x.cell + " " + x.peer
		if seen[key] || x.group == "allocs" {
			continue
		}
		seen[key] = true
		of := func(f func(result) float64) float64 { return median(r.turns(x.group, x.cell, x.peer, f)) }
		fmt.Fprintf(t, "%s\t%s\t%s\t%.0f\t%s\t%.0f\t%.0f\t%.1f\n", x.group, x.cell, x.peer, of(value), x.unit, of(lat), of(p99), of(cpuOf))
	}
	for _, g := range groups {
		for _, j := range jobs {
			for _, p := range []string{"hawser", "hawser-c"} {
				if x := r.ratio(g.name, j.name, p, p+"-beside"); !math.IsNaN(x) {
					c := pairwise(quotient, r.turns(g.name, j.name, p, cpuOf), r.turns(g.name, j.name, p+"-beside", cpuOf))
					fmt.Fprintf(t, "%s\t%s\t%s to beside\t%.3f\tratio\t\t\t%.3f\n", g.name, j.name, p, x, c)
				}
			}
		}
	}
	_ = t.Flush() // out is a terminal or a pipe; the table is all there is to lose
	fmt.Fprintln(out)
	t = tabwriter.NewWriter(out, 0, 8, 2, ' ', 0)
	fmt.Fprintln(t, "figure\tmeasured\ttarget\t")
	for _, v := range r.verdicts() {
		sign, word := ">=", "reached"
		if v.atMost {
			sign = "<="
		}
		if !v.reached() {
			word = "MISSED"
			missed++
		}
		fmt.Fprintf(t, "%s\t%.2f\t%s %g\t%s\n", v.what, v.got, sign, v.target, word)
	}
	_ = t.Flush()
	return missed
}
