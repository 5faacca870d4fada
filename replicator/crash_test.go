package replicator

import (
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/hawser-ha/hawser/replicator/control"
	"github.com/hawser-ha/hawser/replicator/export"
)

// TestSecondaryComesAndGoesUnderLoad: the Primary answers every write whatever happens to the peer, and in the end both disks
// are the same.
func TestSecondaryComesAndGoesUnderLoad(t *testing.T) {
	for _, proto := range []string{"A", "C"} {
		t.Run(proto, func(t *testing.T) {
			a, b := upPair(t, func(n *control.NetOpts) { n.Protocol = proto })
			c := a.open(t)
			var wg sync.WaitGroup
			var stop atomic.Bool
			for w := range 8 {
				wg.Go(func() {
					rng := rand.New(rand.NewPCG(uint64(w), 7))
					for !stop.Load() {
						if err := c.do(export.Write, rng.Int64N(4000)*4096, fill(byte(rng.Uint32()), 4096*(1+rng.IntN(16))), false); err != nil {
							t.Error(err)
							return
						}
					}
				})
			}
			for range 4 {
				b.stop(t)
				a.until(t, "lost peer", func(s *control.Status) bool { return s.Peers[0].Connection != "Connected" })
				b = start(t, b.def)
				must(t, b.Up(ctxFor(t)))
				a.until(t, "resync", upToDate)
			}
			stop.Store(true)
			wg.Wait()
			c.s.Close()
			must(t, a.Down(ctxFor(t), false))
			must(t, b.Down(ctxFor(t), false))
			sameData(t, a, b)
		})
	}
}
