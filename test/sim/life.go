package sim

import (
	"github.com/hawser-ha/hawser/replicator/core"
	"github.com/hawser-ha/hawser/replicator/wire"
)

// step lets one thing happen.
func (w *world) step() {
	type choice struct {
		weight int
		run    func()
	}
	var cs []choice
	add := func(weight int, run func()) { cs = append(cs, choice{weight, run}) }
	for i, n := range w.nodes {
		if !n.up() {
			continue
		}
		if k := len(n.tasks); k > 0 {
			j := w.rng.IntN(k)
			add(30, func() {
				t := n.tasks[j]
				n.tasks = append(n.tasks[:j:j], n.tasks[j+1:]...)
				t.run()
				n.effects()
			})
		}
		if len(n.meta) > 0 {
			add(20, func() {
				t := n.meta[0]
				n.meta = n.meta[1:]
				t.run()
				n.effects()
			})
		}
		if c := n.link; c != nil && !c.dead && !c.stall {
			if len(c.data[i]) > 0 {
				add(30, func() { c.deliver(i, false) })
			}
			if len(c.meta[i]) > 0 {
				add(30, func() { c.deliver(i, true) })
			}
		}
		if c := n.link; c != nil && c.dead && !c.gone[i] {
			add(10, func() { c.tell(i) })
		}
	}
	a, b := w.nodes[0], w.nodes[1]
	if a.up() && b.up() && a.want && b.want {
		add(10, w.connect)
	}
	add(2, w.passTime)
	if w.primary >= 0 && len(w.open) < 24 && !w.quiet {
		add(40, w.clientStep)
	}
	total := 0
	for _, c := range cs {
		total += c.weight
	}
	pick := w.rng.IntN(total)
	for _, c := range cs {
		if pick < c.weight {
			c.run()
			return
		}
		pick -= c.weight
	}
}

// passTime moves the clock to the next moment anybody waits for.
func (w *world) passTime() {
	w.now += 1e6 + core.Now(w.rng.Int64N(20e6))
	for _, n := range w.nodes {
		if n.up() {
			if d := n.m.Deadline(); d != 0 && d <= w.now {
				n.m.Tick(w.now)
				n.effects()
			}
		}
	}
}

// idle says that nothing is under way.
func (w *world) idle() bool {
	for i, n := range w.nodes {
		if !n.up() || len(n.tasks)+len(n.meta) > 0 || n.link == nil || n.link.dead {
			return false
		}
		if len(n.link.data[i])+len(n.link.meta[i]) > 0 {
			return false
		}
		v := n.m.View()
		if v.Volumes[0].Links[0].Conn != wire.Connected || v.Peers[0].Conn != wire.Connected || v.Volumes[0].Disk != wire.UpToDate {
			return false
		}
	}
	return len(w.open) == 0
}

func (w *world) clientStep() {
	kind := core.AppWrite
	switch w.rng.IntN(20) {
	case 0, 1, 2, 3, 4:
		kind = core.AppRead
	case 5:
		kind = core.AppFlush
	case 6:
		kind = core.AppZero
	}
	op := &clientOp{kind: kind}
	if kind != core.AppFlush {
		op.n = 1 + int64(w.rng.IntN(4))
		hot := min(w.blocks, 300)
		op.off = w.rng.Int64N(hot)
		if w.rng.IntN(2) == 0 {
			op.off = w.rng.Int64N(w.blocks)
		}
		op.off = min(op.off, w.blocks-op.n)
	}
	if kind == core.AppWrite {
		for range op.n {
			op.vals = append(op.vals, w.next)
			w.next++
		}
	}
	w.submit(w.primary, op)
}

// run lets steps happen until cond holds, or the limit is reached.
func (w *world) run(limit int, cond func() bool) bool {
	for range limit {
		if w.err != nil {
			return false
		}
		if cond != nil && cond() {
			return true
		}
		w.step()
	}
	return cond == nil
}

// promote makes a node Primary, as an operator would, and waits for it.
func (w *world) promote(i int, force bool) bool {
	var res error
	done := false
	w.nodes[i].m.Promote(w.now, force, func(err error) { res, done = err, true })
	w.nodes[i].effects()
	if !w.run(200000, func() bool { return done || !w.nodes[i].up() }) || !w.nodes[i].up() {
		w.fail("promotion of %s has no end", w.nodes[i].name)
		return false
	}
	if res != nil {
		w.logf("promotion of %s: %v", w.nodes[i].name, res)
		return false
	}
	w.settle(i)
	w.primary = i
	return true
}

// demote makes the primary Secondary.
func (w *world) demote() bool {
	i := w.primary
	w.primary = -1
	done := false
	w.nodes[i].m.Demote(w.now, false, func(error) { done = true })
	w.nodes[i].effects()
	if !w.run(200000, func() bool { return done || !w.nodes[i].up() }) {
		w.fail("demotion of %s has no end", w.nodes[i].name)
		return false
	}
	return true
}

// setup starts both nodes, declares them equal and promotes one.
func (w *world) setup() bool {
	for _, n := range w.nodes {
		n.start()
	}
	connected := func() bool {
		for i := range w.nodes {
			if v := w.view(i); v.Peers[0].Conn != wire.Connected || v.Volumes[0].Links[0].Conn != wire.Connected {
				return false
			}
		}
		return true
	}
	if !w.run(100000, connected) {
		w.fail("no connection")
		return false
	}
	if w.rng.IntN(3) == 0 { // a real initial sync
		if !w.promote(0, true) {
			w.fail("first promotion refused")
			return false
		}
		return w.run(300000, func() bool { return w.view(1).Volumes[0].Disk == wire.UpToDate && w.replicated(0) })
	}
	done := false
	w.nodes[0].m.NewCurrentUUID(w.now, 0, true, func(err error) {
		done = true
		if err != nil {
			w.fail("skip: %v", err)
		}
	})
	w.nodes[0].effects()
	if !w.run(100000, func() bool { return done && w.view(1).Volumes[0].Disk == wire.UpToDate }) {
		return false
	}
	return w.promote(0, false)
}

// heal ends all faults and waits until both replicas are in sync.
func (w *world) heal() {
	for _, n := range w.nodes {
		n.disk.fail, n.disk.failRead = 0, 0
		if n.link != nil {
			n.link.stall = false
		}
		if !n.up() {
			n.start()
		}
		n.m.PauseSync(w.now, 0, 0, false, nil)
		n.effects()
	}
	w.quiet = true
	again := func() bool {
		for _, n := range w.nodes {
			v := n.m.View()
			if v.Volumes[0].Disk == wire.Diskless && v.Volumes[0].OnDisk == 0 && !n.closing() {
				n.attach(nil)
				n.effects()
			}
			if v.Peers[0].Conn == wire.StandAlone {
				w.fail("%s ended StandAlone: %v", n.name, v.Peers[0].Why)
			}
		}
		return w.idle()
	}
	if !w.run(5000000, again) && w.err == nil {
		for i, n := range w.nodes {
			v := w.view(i)
			w.logf("%s: %s disk %s conn %s repl %s oos %d tasks %d meta %d open %d", n.name, v.Role, v.Volumes[0].Disk, v.Peers[0].Conn, v.Volumes[0].Links[0].Conn, v.Volumes[0].Links[0].OutOfSync, len(n.tasks), len(n.meta), len(w.open))
		}
		w.fail("not in sync in the end")
	}
}

// closing says whether a disk is still being given up.
func (n *node) closing() bool { return len(n.tasks)+len(n.meta) > 0 }
