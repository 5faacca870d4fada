package sim

import (
	"testing"

	"github.com/hawser-ha/hawser/replicator/bitmap"
	"github.com/hawser-ha/hawser/replicator/core"
)

// After the crash of a primary that was in sync no more is copied than its activity log and the bitmaps say.
func TestResyncIsLimited(t *testing.T) {
	each(t, seeds(1, 2), func(seed uint64) *world {
		w := newWorld(seed, options{blocks: 120 << 10})
		w.narrow = true
		if !w.setup() || !w.run(1000+w.rng.IntN(2000), nil) {
			return w
		}
		if !w.run(100000, w.allReplicated) {
			w.fail("not replicated")
			return w
		}
		p := w.nodes[0]
		clear(w.good)
		w.good[0], w.good[1] = true, true
		p.crash(false)
		active, err := p.activeExtents()
		if err != nil {
			w.fail("activity log: %v", err)
			return w
		}
		limit := int64(0)
		logged := bitmap.New(w.blocks)
		for _, e := range active {
			limit += logged.Set(int64(e)*1024, int64(e)*1024+1023)
		}
		w.moved, w.quiet = 0, true
		w.recover(0, acked, false)
		for _, n := range w.nodes {
			if n.up() && n != p {
				limit += n.m.Bitmap(0, 0).Count()
			}
		}
		w.heal()
		if w.err == nil {
			w.check()
		}
		if w.moved > limit*block {
			w.fail("%d blocks were copied, the activity log and the bitmaps allow %d", w.moved/block, limit)
		}
		if limit >= w.blocks {
			w.fail("the limit says nothing: %d of %d blocks", limit, w.blocks)
		}
		return w
	})
}

// A verify under load finds what differs, and nothing else.
func TestVerifyFindsWhatDiffers(t *testing.T) {
	each(t, seeds(1, 2), func(seed uint64) *world {
		w := newWorld(seed, options{blocks: 3 << 10})
		if !w.setup() || !w.run(1000, nil) {
			return w
		}
		bad := map[int64]bool{}
		s := w.nodes[1].disk
		if w.rng.IntN(3) > 0 {
			w.quiet = true // what is planted must not be overwritten before it is found
			w.run(100000, w.quietNow)
			for range 1 + w.rng.IntN(5) {
				b := w.rng.Int64N(w.blocks)
				s.now[b] += 1 << 40
				bad[b] = true
			}
		}
		if err := w.command(w.nodes[w.rng.IntN(2)], func(m *core.Machine, cmd func(error)) { m.Verify(w.now, 0, 0, 0, 0, cmd) }); err != nil {
			w.fail("verify: %v", err)
			return w
		}
		if !w.run(400000, func() bool { return w.linked(0, 1) }) {
			w.fail("the verify has no end")
			return w
		}
		w.quiet = true
		w.run(100000, w.quietNow)
		for _, n := range w.nodes {
			bm := n.m.Bitmap(0, 0)
			if bm.Count() != int64(len(bad)) {
				w.fail("%s: %d blocks found, %d differ", n.name, bm.Count(), len(bad))
			}
			for b := range bad {
				if !bm.Test(b) {
					w.fail("%s: block %d differs and was not found", n.name, b)
				}
			}
		}
		w.heal()
		if w.err == nil {
			w.check()
		}
		return w
	})
}
