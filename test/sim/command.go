package sim

import (
	"github.com/hawser-ha/hawser/replicator/core"
	"github.com/hawser-ha/hawser/replicator/wire"
)

// commandFaults are what operators do while clients work.
var commandFaults = []fault{
	{"invalidate", func(w *world, p, s *node) {
		if s.up() {
			w.order(s, func(m *core.Machine, cmd func(error)) { m.Invalidate(w.now, 0, s.index(p), cmd) })
		}
	}},
	{"invalidate-remote", func(w *world, p, s *node) {
		w.order(p, func(m *core.Machine, cmd func(error)) { m.InvalidateRemote(w.now, 0, p.index(s), cmd) })
	}},
	{"pause and resume", func(w *world, p, s *node) {
		n, k := p, p.index(s)
		if w.rng.IntN(2) == 0 {
			n, k = s, s.index(p)
		}
		if !n.up() {
			return
		}
		w.order(n, func(m *core.Machine, cmd func(error)) { m.PauseSync(w.now, 0, k, true, cmd) })
		if w.rng.IntN(2) == 0 && n == p && s.up() {
			w.order(s, func(m *core.Machine, cmd func(error)) { m.Invalidate(w.now, 0, s.index(p), cmd) })
		}
		w.run(w.rng.IntN(1500), nil)
		if n.up() {
			w.order(n, func(m *core.Machine, cmd func(error)) { m.PauseSync(w.now, 0, k, false, cmd) })
		}
	}},
	{"resize", resize},
	{"detach and attach", detach},
	{"disconnect and connect", disconnect},
	{"suspend and resume", func(w *world, p, s *node) {
		w.order(p, func(m *core.Machine, cmd func(error)) { m.Suspend(w.now, cmd) })
		if w.rng.IntN(2) == 0 {
			networkCut(w, p, s)
		}
		w.run(w.rng.IntN(500), nil)
		if p.up() {
			w.order(p, func(m *core.Machine, cmd func(error)) { m.Resume(w.now, cmd) })
		}
	}},
	{"switchover", switchover},
	{"verify", func(w *world, p, s *node) {
		w.order(p, func(m *core.Machine, cmd func(error)) { m.Verify(w.now, 0, p.index(s), 0, 0, cmd) })
	}},
	{"outdate", func(w *world, p, s *node) {
		if s.up() {
			w.order(s, func(m *core.Machine, cmd func(error)) { m.Outdate(w.now, 0, cmd) })
		}
	}},
	{"detach in the middle of an attach", func(w *world, p, s *node) {
		detach(w, p, s)
		if s.up() {
			w.order(s, func(m *core.Machine, cmd func(error)) { m.Detach(w.now, 0, w.rng.IntN(2) == 0, cmd) })
		}
		w.run(w.rng.IntN(300), nil)
		w.reattach()
	}},
}

// order gives a command; it may well be refused.
func (w *world) order(n *node, f func(m *core.Machine, cmd func(error))) bool {
	err := w.command(n, f)
	if err != nil {
		w.logf("%s: refused: %v", n.name, err)
	}
	return err == nil
}

func resize(w *world, p, s *node) {
	if p.capacity >= w.room {
		return
	}
	to := min(w.room, p.capacity+1+w.rng.Int64N(3000))
	for _, n := range w.nodes {
		if n != p && n.capacity < to {
			n.capacity = to
			if n.up() {
				w.order(n, func(m *core.Machine, cmd func(error)) { m.Resize(w.now, 0, to*block, -1, false, cmd) })
			}
		}
	}
	if p.up() {
		p.capacity = to
		w.order(p, func(m *core.Machine, cmd func(error)) { m.Resize(w.now, 0, to*block, -1, false, cmd) })
	}
}

func detach(w *world, p, s *node) {
	n := p
	if w.rng.IntN(2) == 0 {
		n = s
	}
	if !n.up() {
		return
	}
	n.detached = true
	ok := w.order(n, func(m *core.Machine, cmd func(error)) { m.Detach(w.now, 0, false, cmd) })
	if ok {
		w.run(w.rng.IntN(1500), nil)
	}
	n.detached = false
	w.reattach()
}

func disconnect(w *world, p, s *node) {
	n, o := p, s
	if w.rng.IntN(2) == 0 {
		n, o = s, p
	}
	if !n.up() {
		return
	}
	force := w.rng.IntN(3) == 0
	if w.order(n, func(m *core.Machine, cmd func(error)) { m.Disconnect(w.now, n.index(o), force, cmd) }) {
		w.run(w.rng.IntN(1500), nil)
	}
	if n.up() {
		w.order(n, func(m *core.Machine, cmd func(error)) { m.Connect(w.now, n.index(o), false, cmd) })
	}
}

// accesses are all kinds of access that a disk may fail.
var accesses = []access{
	{kind: core.AppRead, op: core.OpRead}, {kind: core.AppWrite, op: core.OpWrite}, {kind: core.AppFlush, op: core.OpFlush},
	{kind: core.AppTrim, op: core.OpDiscard}, {kind: core.AppZero, op: core.OpZero}, {kind: core.PeerWrite, op: core.OpWrite},
	{kind: core.PeerWrite, op: core.OpDiscard}, {kind: core.PeerWrite, op: core.OpZero}, {kind: core.PeerRead, op: core.OpRead},
	{kind: core.SyncRead, op: core.OpRead}, {kind: core.SyncWrite, op: core.OpRead}, {kind: core.SyncWrite, op: core.OpWrite},
	{kind: core.SyncWrite, op: core.OpZero}, {kind: core.VerifyRead, op: core.OpRead}, {kind: core.VerifyCheck, op: core.OpRead},
	{kind: core.EpochFlush, op: core.OpFlush}, {kind: core.HealWrite, op: core.OpWrite}, {meta: "super"}, {meta: "log"},
}

// diskError makes a kind of access fail on some node, with what leads to such accesses.
func diskError(w *world, p, s *node) {
	n := p
	if w.rng.IntN(2) == 0 {
		n = s
	}
	a := accesses[w.rng.IntN(len(accesses))]
	n.disk.fails[a] = 1 + w.rng.IntN(3)
	w.logf("%s: error at kind %d op %d %s", n.name, a.kind, a.op, a.meta)
	switch a.kind {
	case core.SyncRead, core.SyncWrite:
		if s.up() {
			w.order(s, func(m *core.Machine, cmd func(error)) { m.Invalidate(w.now, 0, s.index(p), cmd) })
		}
	case core.VerifyRead, core.VerifyCheck:
		w.order(p, func(m *core.Machine, cmd func(error)) { m.Verify(w.now, 0, p.index(s), 0, 0, cmd) })
	case core.PeerRead:
		if w.disk(p.id) == wire.UpToDate {
			p.disk.fails[access{kind: core.AppRead, op: core.OpRead}]++
		}
	}
	w.run(500+w.rng.IntN(1500), nil)
	clear(n.disk.fails)
	w.reattach()
}
