package replicator

import (
	"fmt"
	"testing"

	"github.com/hawser-ha/hawser/replicator/control"
	"github.com/hawser-ha/hawser/replicator/export"
)

// window drives depth requests at a time without allocating.
type window struct {
	c     *client
	reqs  []*export.Request
	free  chan *export.Request
	batch []*export.Request
}

func newWindow(c *client, op export.Op, depth, size int) *window {
	w := &window{c: c, free: make(chan *export.Request, depth)}
	for range depth {
		r := &export.Request{Op: op, Len: int64(size), Buf: c.pool.Get(size)}
		r.Done = func(r *export.Request) { w.free <- r }
		w.free <- r
	}
	return w
}

// run does n requests; when several are free they go as one batch, as front ends do.
func (w *window) run(b *testing.B, n int, span int64) {
	off := uint64(1)
	for n > 0 {
		r := <-w.free
		w.batch = append(w.batch[:0], r)
		for len(w.batch) < n {
			select {
			case r := <-w.free:
				w.batch = append(w.batch, r)
				continue
			default:
			}
			break
		}
		for _, r := range w.batch {
			if r.Err != nil {
				b.Fatal(r.Err)
			}
			off = off*6364136223846793005 + 1442695040888963407
			r.Off = int64(off>>33) % (span / r.Len) * r.Len
		}
		n -= len(w.batch)
		w.c.s.Submit(w.batch)
	}
	for range cap(w.free) {
		w.reqs = append(w.reqs, <-w.free)
	}
	for _, r := range w.reqs {
		w.free <- r
	}
	w.reqs = w.reqs[:0]
}

func benchmark(b *testing.B, c *client) {
	for _, k := range []struct {
		name        string
		op          export.Op
		depth, size int
	}{
		{"write/4k/depth1", export.Write, 1, 4096}, {"write/4k/depth32", export.Write, 32, 4096}, {"write/128k/depth8", export.Write, 8, 128 << 10},
		{"read/4k/depth1", export.Read, 1, 4096}, {"read/4k/depth32", export.Read, 32, 4096},
	} {
		b.Run(k.name, func(b *testing.B) {
			w := newWindow(c, k.op, k.depth, k.size)
			w.run(b, 4*k.depth+2000, 32<<20)
			b.SetBytes(int64(k.size))
			b.ReportAllocs()
			b.ResetTimer()
			w.run(b, b.N, 32<<20)
			b.StopTimer()
			for range k.depth {
				(<-w.free).Buf.Release()
			}
		})
	}
}

func BenchmarkStandalone(b *testing.B) {
	def := definition(b.TempDir(), "a", 0)
	createMD(b, &def)
	a := start(b, def)
	must(b, a.Up(ctxFor(b)))
	must(b, a.Promote(ctxFor(b), true))
	benchmark(b, a.open(b))
}

func BenchmarkReplicated(b *testing.B) {
	for _, proto := range []string{"A", "C"} {
		b.Run(proto, func(b *testing.B) {
			a, _ := upPair(b, func(n *control.NetOpts) { n.Protocol = proto })
			benchmark(b, a.open(b))
		})
	}
}

// BenchmarkActivityLog writes at random over far more than the activity log covers: nearly every write waits for a transaction.
func BenchmarkActivityLog(b *testing.B) {
	def := definition(b.TempDir(), "a", 0)
	def.Volumes[0].Size = 4 << 30
	def.Volumes[0].Opts.ALExtents = 67
	createMD(b, &def)
	a := start(b, def)
	must(b, a.Up(ctxFor(b)))
	must(b, a.Promote(ctxFor(b), true))
	c := a.open(b)
	for _, depth := range []int{1, 32} {
		b.Run(fmt.Sprintf("depth%d", depth), func(b *testing.B) {
			w := newWindow(c, export.Write, depth, 4096)
			w.run(b, 500, 4<<30-64<<20)
			before := a.Status().Volumes[0].ALWrites
			b.ReportAllocs()
			b.ResetTimer()
			w.run(b, b.N, 4<<30-64<<20)
			b.StopTimer()
			b.ReportMetric(float64(a.Status().Volumes[0].ALWrites-before)/float64(b.N), "transactions/op")
			for range depth {
				(<-w.free).Buf.Release()
			}
		})
	}
}
