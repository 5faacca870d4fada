package sim

import (
	"errors"

	"github.com/hawser-ha/hawser/replicator/core"
	"github.com/hawser-ha/hawser/replicator/wire"
)

// choice is one thing that could happen next.
type choice struct {
	weight int
	what   what
	n      *node
	c      *conn
	i, j   int
}

type what uint8

const (
	diskWork what = iota
	metaWork
	deliverData
	deliverMeta
	tellEnd
	joinEnds
	timePasses
	client
	etcdWork
	agentActs
)

// step lets one thing happen.
func (w *world) step() {
	cs := w.choices[:0]
	total := 0
	add := func(c choice) { cs = append(cs, c); total += c.weight }
	if w.etcd != nil {
		w.etcdChoices(add)
	}
	for _, n := range w.nodes {
		if !n.up() || n.stopped {
			continue
		}
		if k := len(n.tasks); k > 0 {
			add(choice{weight: 30, what: diskWork, n: n, i: w.rng.IntN(k)})
		}
		if len(n.meta) > 0 {
			add(choice{weight: 20, what: metaWork, n: n})
		}
		for k, c := range n.links {
			if c == nil {
				continue
			}
			e := c.end(n)
			if c.dead || c.eof(e) {
				if !c.gone[e] {
					add(choice{weight: 10, what: tellEnd, c: c, i: e})
				}
				continue
			}
			if c.stall {
				continue
			}
			if len(c.data[e]) > 0 {
				add(choice{weight: 30, what: deliverData, c: c, i: e})
			}
			if len(c.meta[e]) > 0 {
				add(choice{weight: 30, what: deliverMeta, c: c, i: e})
			}
			_ = k
		}
		for k, want := range n.want {
			if o := n.peer(k); want && o.id > n.id && o.up() && !o.stopped && o.want[o.index(n)] && !w.apart(n, o) {
				add(choice{weight: 10, what: joinEnds, i: n.id, j: o.id})
			}
		}
	}
	if w.etcd != nil {
		add(choice{weight: 12, what: timePasses}) // what matters takes seconds
	} else {
		add(choice{weight: 2, what: timePasses})
	}
	if (w.primary >= 0 || w.both) && len(w.open) < 24 && !w.quiet {
		weight := 40
		if w.etcd != nil {
			weight = 12
		}
		add(choice{weight: weight, what: client})
	}
	w.choices = cs
	pick := w.rng.IntN(total)
	for i := range cs {
		if pick < cs[i].weight {
			w.do(cs[i])
			return
		}
		pick -= cs[i].weight
	}
}

func (w *world) do(c choice) {
	switch n := c.n; c.what {
	case diskWork:
		t := n.tasks[c.i]
		n.tasks = append(n.tasks[:c.i:c.i], n.tasks[c.i+1:]...)
		t.run()
		n.effects()
	case metaWork:
		t := n.meta[0]
		n.meta = n.meta[1:]
		t.run()
		n.effects()
	case deliverData:
		c.c.deliver(c.i, false)
	case deliverMeta:
		c.c.deliver(c.i, true)
	case tellEnd:
		c.c.tell(c.i)
	case joinEnds:
		w.connect(c.i, c.j)
	case timePasses:
		w.passTime()
	case client:
		w.clientStep()
	case etcdWork:
		w.etcd.work(c.i)
	case agentActs:
		n.agent.act()
		n.effects()
	}
	if w.etcd != nil {
		w.checkLicences()
	}
}

// passTime moves the clock to the next moment anybody waits for.
func (w *world) passTime() {
	w.now += 1e6 + core.Now(w.rng.Int64N(20e6))
	for _, n := range w.nodes {
		if n.up() && !n.stopped {
			if d := n.m.Deadline(); d != 0 && d <= n.now() {
				n.m.Tick(n.now())
				n.effects()
			}
		}
	}
}

// quietNow says that nothing is under way anywhere.
func (w *world) quietNow() bool {
	for _, n := range w.nodes {
		if !n.up() {
			continue
		}
		if len(n.tasks)+len(n.meta) > 0 {
			return false
		}
		for _, c := range n.links {
			if c == nil {
				continue
			}
			if c.dead || c.eof(c.end(n)) {
				return false // the node does not know yet
			}
			if e := c.end(n); len(c.data[e])+len(c.meta[e]) > 0 {
				return false
			}
		}
	}
	return len(w.open) == 0
}

// idle says that nothing is under way and all is well.
func (w *world) idle() bool {
	if !w.quietNow() {
		return false
	}
	for i, n := range w.nodes {
		if !n.up() {
			return false
		}
		v := n.m.View()
		if v.Volumes[0].Disk != wire.UpToDate || v.Volumes[0].Pending > 0 {
			return false
		}
		for k, l := range v.Volumes[0].Links {
			if l.Conn != wire.Connected || v.Peers[k].Conn != wire.Connected || l.Disk != wire.UpToDate {
				return false
			}
		}
		_ = i
	}
	return true
}

// run lets steps happen until cond holds, or the limit is reached.
func (w *world) run(limit int, cond func() bool) bool {
	for k := range limit {
		if w.err != nil {
			return false
		}
		if cond != nil && (k < 16 || k%4 == 0) && cond() {
			return true
		}
		w.step()
	}
	return cond == nil
}

// command gives a node a command and waits for its answer, or its death.
func (w *world) command(n *node, f func(m *core.Machine, cmd func(error))) error {
	var res error
	done := false
	life := n.life
	f(n.m, func(err error) { res, done = err, true })
	n.effects()
	if !w.run(300000, func() bool { return done || n.life != life }) {
		w.status()
		w.fail("a command of %s has no end", n.name)
		return errors.New("no end")
	}
	return res
}

// promote makes a node Primary, as an operator would.
func (w *world) promote(i int, force bool) bool { return w.promoteAfter(i, force, acked, false) }

// promoteAfter makes a node Primary; it must have the writes that count.
func (w *world) promoteAfter(i int, force bool, must loss, ordered bool) bool {
	n := w.nodes[i]
	if err := w.command(n, func(m *core.Machine, cmd func(error)) { m.Promote(w.now, force, cmd) }); err != nil || w.err != nil {
		w.logf("promotion of %s: %v", n.name, err)
		return false
	}
	w.blocks = w.view(i).Volumes[0].Size / block
	w.settle(i, must, ordered)
	w.primary = i
	return w.err == nil
}

// demote makes the primary Secondary.
func (w *world) demote() bool {
	n := w.nodes[w.primary]
	w.primary = -1
	err := w.command(n, func(m *core.Machine, cmd func(error)) { m.Demote(w.now, false, cmd) })
	return err == nil && w.err == nil
}

// setup starts the nodes, gives them a common past and promotes the first.
func (w *world) setup() bool {
	for _, n := range w.nodes {
		n.start()
	}
	connected := func() bool {
		for i := range w.nodes {
			for j := range i {
				if !w.linked(j, i) {
					return false
				}
			}
		}
		return true
	}
	if !w.run(100000, connected) {
		w.fail("no connection")
		return false
	}
	initial := w.rng.IntN(4) == 0 || len(w.nodes) > 2 // to skip it is for two
	if initial {                                      // a real initial sync
		if !w.promote(0, true) {
			w.fail("first promotion refused")
			return false
		}
	} else {
		if err := w.command(w.nodes[0], func(m *core.Machine, cmd func(error)) { m.NewCurrentUUID(w.now, 0, true, cmd) }); err != nil {
			w.fail("skip: %v", err)
			return false
		}
		if !w.run(100000, func() bool { return w.disk(1) == wire.UpToDate }) {
			w.fail("initial sync not skipped")
			return false
		}
		if !w.promote(0, false) {
			w.fail("first promotion refused")
			return false
		}
	}
	ok := w.net.OnCongestion != "pull-ahead" && w.run(200000, w.allReplicated)
	w.quiet = true // under load it might be behind for ever
	ok = ok || w.run(400000, w.allReplicated)
	w.quiet = false
	if !ok {
		for i := range w.nodes {
			w.logf("%+v", w.view(i))
		}
		w.fail("setup did not end")
		return false
	}
	return true
}

// heal ends all faults and waits until all replicas are in sync.
func (w *world) heal() {
	for _, n := range w.nodes {
		clear(n.disk.fails)
		n.detached = false
		for _, c := range n.links {
			if c != nil {
				c.stall = false
			}
		}
		if !n.up() {
			n.start()
		}
		for k := range n.links {
			n.m.PauseSync(w.now, 0, k, false, nil)
		}
		n.m.Resume(w.now, nil)
		n.effects()
	}
	w.quiet = true
	if !w.run(3000000, w.mend) && w.err == nil {
		w.status()
		w.fail("not in sync in the end")
	}
}

// mend does what an operator does for nodes at rest, and says when all is well.
func (w *world) mend() bool {
	if !w.quietNow() {
		return false
	}
	for _, n := range w.nodes {
		v := n.m.View()
		d := v.Volumes[0]
		if d.Disk == wire.Diskless && d.OnDisk == 0 {
			n.attach(nil)
			n.effects()
			return false
		}
		for k, l := range d.Links {
			switch {
			case v.Peers[k].Conn == wire.StandAlone && v.Peers[k].Why != nil && v.Peers[k].Why.Error() != "disconnected by command":
				w.fail("%s ended StandAlone: %v", n.name, v.Peers[k].Why)
			case v.Peers[k].Conn == wire.StandAlone:
				n.m.Connect(w.now, k, false, nil)
				n.effects()
				return false
			case l.Conn == wire.Connected && (d.Disk == wire.Inconsistent || l.Disk == wire.Inconsistent || l.OutOfSync > 0) && n.links[k] != nil && !n.links[k].dead:
				n.links[k].cut() // found by a verify, or left by errors: a new connection resyncs it
				return false
			}
		}
	}
	return w.idle()
}

// status writes the state of everything to the log.
func (w *world) status() {
	for i, n := range w.nodes {
		if !n.up() {
			w.logf("%s: down", n.name)
			continue
		}
		v := w.view(i)
		for k, l := range v.Volumes[0].Links {
			w.logf("%s-%s: %s disk %s peer %s conn %s repl %s oos %d tasks %d meta %d open %d pending %d want %v", n.name, n.peer(k).name, v.Role,
				v.Volumes[0].Disk, l.Disk, v.Peers[k].Conn, l.Conn, l.OutOfSync, len(n.tasks), len(n.meta), len(w.open), v.Volumes[0].Pending, n.want)
		}
	}
}
