package sim

import (
	"errors"
	"maps"
	"slices"
	"time"

	"github.com/hawser-ha/hawser/replicator/core"
	"github.com/hawser-ha/hawser/replicator/wire"
)

const (
	simTTL    = core.Now(time.Second)
	simMargin = core.Now(60 * time.Millisecond)
	simDrift  = 20 // per mille, at most, that a clock is wrong
)

// coordinated is what a node has beside its replicator in a coordinated resource.
type coordinated struct {
	agent        *agent
	rate         core.Now // of its clock, per mille too fast
	skew         core.Now // and how far it is ahead
	stopped      bool     // the replicator's process is stopped
	stoppedAt    core.Now // for a planted bug: how long it was
	stoppedAgent bool
	record       core.Record // the state file
	noRecord     bool        // it is gone
	told         uint64      // the last term told to peers
}

// now is the time on the node's own clock.
func (n *node) now() core.Now {
	if n.stoppedAt != 0 && n.w.bug("time stands still for a stopped process") {
		return n.at(n.w.now) - n.stoppedAt
	}
	return n.at(n.w.now)
}

// at is a moment on the node's clock.
func (n *node) at(t core.Now) core.Now { return t + t*n.rate/1000 + n.skew }

// agent decides for one node, with the means that a real one has: etcd, and the control API of its replicator. It does one thing
// at a time.
type agent struct {
	n     *node
	life  int
	waits bool // for etcd
	cmd   bool // for the replicator
	cut   bool // it does not reach etcd

	lease     uint64
	known     bool     // the lease was made
	until     core.Now // end of the lease on the node's clock
	renewAt   core.Now
	lookAt    core.Now
	seen      snapshot
	fresh     bool // seen is of after the last failure
	bound     core.Now
	leave     bool // give the term up: a switchover
	answers   uint64
	answerSet uint64 // the revision that answers
}

// coordinate makes the world one with etcd.
func (w *world) coordinate() {
	w.etcd = &etcd{w: w, leases: map[uint64]core.Now{}, rev: 100}
	w.cuts = map[[2]int]bool{}
	w.both, w.strict = true, false // only hawser's own nodes know of terms
	w.net.PingInt, w.net.PingTimeout, w.net.Timeout, w.net.KOCount = time.Second, 200*time.Millisecond, 300*time.Millisecond, 3
	for _, n := range w.nodes {
		n.rate = core.Now(w.rng.IntN(2*simDrift+1) - simDrift)
		n.skew = core.Now(w.rng.Int64N(1e12))
		n.agent = &agent{n: n}
		n.stopped = false
	}
}

// coordinate adds what the node remembers.
func (n *node) coordinate(c *core.Config) {
	w := n.w
	c.Coordinated, c.TTL, c.Margin, c.NodeID = true, simTTL, simMargin, n.id
	c.FailUnlicensed = w.opt.failUnlicensed
	n.stoppedAt = 0
	if !n.noRecord && n.record.Term > 0 {
		c.Record = core.Record{Term: n.record.Term, Disks: maps.Clone(n.record.Disks)}
		c.Bound = n.now() + simTTL
	}
	n.noRecord = false
	n.agent.start()
}

// start begins a new life of the agent; what the old one asked for may still happen.
func (a *agent) start() {
	w := a.n.w
	life := a.life + 1
	*a = agent{n: a.n, life: life, cut: a.cut, lease: w.rng.Uint64(), until: 0}
}

// recordTask writes the state file.
func (n *node) recordTask(e *core.Effect) {
	rec := *e.Cmd.(*core.Record)
	token := e.Token
	n.meta = append(n.meta, task{run: func() {
		n.record = core.Record{Term: rec.Term, Disks: maps.Clone(rec.Disks)}
		n.m.RecordDone(n.now(), token, nil)
	}})
}

// checkTerm fails when a peer's write is executed that was sent in a term that was over here.
func (n *node) checkTerm(r *core.Request) {
	if p, ok := r.Tag.(*payload); ok && r.Kind == core.PeerWrite && p.term < p.seen {
		n.w.fail("%s executes a write of term %d, though %d is known", n.name, p.term, p.seen)
	}
}

// checkLicences fails when two nodes serve at the same moment.
func (w *world) checkLicences() {
	var who *node
	for _, n := range w.nodes {
		if !n.up() || n.m.Role() != wire.Primary || !n.m.Licensed(n.now()) {
			continue
		}
		if who != nil {
			w.fail("%s and %s are licensed at the same time, terms %d and %d", who.name, n.name, who.m.Term(), n.m.Term())
		}
		who = n
	}
}

// saw: a read has shown what nobody had acknowledged. It has happened then, and what was before does not show again.
func (w *world) saw(b int64, got uint64) {
	h := w.hist[b]
	if h == nil {
		return
	}
	for _, o := range h.writes {
		if o.kind == core.AppWrite && o.val(b) == got && !acked(o) {
			o.seen = true
			if !o.done || o.end > w.clock {
				o.end = w.clock
			}
		}
	}
}

// etcdChoices adds what may happen around etcd.
func (w *world) etcdChoices(add func(choice)) {
	w.etcd.expire()
	if k := len(w.etcd.queue); k > 0 {
		add(choice{weight: 20, what: etcdWork, i: w.rng.IntN(k)})
	}
	for _, n := range w.nodes {
		if a := n.agent; n.up() && !n.stoppedAgent && !n.stopped && !a.waits && !a.cmd && (n.now() >= min(a.lookAt, a.renewAt)) {
			add(choice{weight: 20, what: agentActs, n: n})
		}
	}
}

// apart says whether the network keeps two nodes apart.
func (w *world) apart(a, b *node) bool { return w.cuts[[2]int{min(a.id, b.id), max(a.id, b.id)}] }

// act does the next thing.
func (a *agent) act() {
	n := a.n
	now := n.now()
	if now >= a.renewAt {
		a.renewAt = now + simTTL/4
		sent, lease, known := now, a.lease, a.known
		a.ask(func(e *etcd) bool { return e.keepAlive(lease, known) }, func(s snapshot, ok bool, err error) {
			switch {
			case err != nil:
				return
			case !ok: // the lease is over, and with it the key
				a.lease, a.known = n.w.rng.Uint64(), false
				a.renewAt = n.now()
				return
			}
			a.known = true
			a.until = max(a.until, sent+simTTL-simMargin)
			a.look(s)
		})
		return
	}
	if now < a.lookAt {
		return
	}
	a.lookAt = now + core.Now(n.w.rng.Int64N(int64(simTTL/8)))
	if !a.fresh {
		a.ask(func(*etcd) bool { return true }, func(s snapshot, _ bool, err error) {
			if err == nil {
				a.look(s)
			}
		})
		return
	}
	a.fresh = false
	a.decide()
}

// look takes a reading.
func (a *agent) look(s snapshot) {
	a.seen, a.fresh = s, true
	a.grant()
}

// grant tells the replicator what is known.
func (a *agent) grant() {
	n, s := a.n, a.seen
	term := n.m.Term()
	g := &core.Grant{Term: term, Holder: core.Nobody, Members: make([]map[int]uint64, len(n.links))}
	if s.owner != nil {
		g.Term, g.Holder = s.owner.create, core.Self
		if s.owner.node != n.id {
			g.Holder = n.index(n.w.nodes[s.owner.node])
		} else if s.owner.lease == a.lease {
			g.Until = a.until
		}
	}
	if g.Term == 0 || s.set == nil {
		return
	}
	g.Seq = s.set.rev
	for id, device := range s.set.members {
		if id == n.id {
			g.Self = map[int]uint64{0: device}
		} else {
			g.Members[n.index(n.w.nodes[id])] = map[int]uint64{0: device}
		}
	}
	if a.answerSet != 0 && s.set.rev >= a.answerSet {
		g.Answers = a.answers
	}
	a.command(func(cmd func(error)) { n.m.Grant(n.now(), g, cmd) }, func(error) {})
}

// command gives the replicator a command; until it is answered the agent does nothing else.
func (a *agent) command(give func(cmd func(error)), then func(error)) {
	life := a.life
	a.cmd = true
	give(func(err error) {
		if a.life == life {
			a.cmd = false
			then(err)
		}
	})
}

// decide does what the last reading asks for.
func (a *agent) decide() {
	n, s := a.n, a.seen
	v := n.m.View()
	primary := v.Role == wire.Primary
	// Where the only members have lost their memory somebody has to say that they may lead: the operator does, in the end.
	good := v.Volumes[0].Disk == wire.UpToDate && (!v.Volumes[0].Unvouched || n.w.forced)
	switch {
	case s.owner != nil && s.owner.node != n.id: // the grant has told it
	case s.owner != nil && !primary && (s.set == nil || s.set.members[n.id] != n.disk.device):
		a.giveBack() // another life of this node held it, with other data
	case s.owner != nil && s.owner.lease != a.lease: // from an earlier life
		a.take()
	case s.owner != nil && primary && a.leave:
		a.leave = false
		a.command(func(cmd func(error)) { n.m.Demote(n.now(), false, cmd) }, func(err error) {
			if err == nil {
				a.giveBack()
			}
		})
	case s.owner != nil && primary:
		a.members(&v)
	case s.owner != nil:
		a.promote()
	case s.set == nil: // the first promotion of all
		if n.id == 0 && a.known {
			a.take()
		}
	case primary: // the lease was lost, the promises were not
		a.take()
	case s.set.members[n.id] == n.disk.device && good && n.now() >= a.bound && (!a.leave || n.w.rng.IntN(4) == 0):
		a.leave = false
		if b := n.m.Candidacy(n.now(), simTTL/2, false); b > 0 {
			a.bound = n.now() + b
			return
		}
		a.take()
	}
}

func (a *agent) take() {
	n, s, lease := a.n, a.seen, a.lease
	a.ask(func(e *etcd) bool {
		first := e.set == nil
		if !e.take(n.id, lease, s) {
			return false
		}
		if first {
			e.rev++
			e.set = &insyncKey{map[int]uint64{n.id: n.disk.device}, e.rev}
		}
		return true
	}, func(s snapshot, ok bool, err error) {
		if err == nil {
			a.look(s)
		}
	})
}

// giveBack ends a term that nobody needs.
func (a *agent) giveBack() {
	term := a.seen.owner.create
	a.ask(func(e *etcd) bool { return e.release(term) }, func(s snapshot, _ bool, err error) {
		if err == nil {
			a.look(s)
		}
	})
}

// promote makes the replicator Primary.
func (a *agent) promote() {
	n := a.n
	first := len(a.seen.set.members) == 1 && n.disk.super.Current == 4
	a.command(func(cmd func(error)) { n.m.Promote(n.now(), first, cmd) }, func(err error) {
		if err != nil {
			n.w.logf("%s: not promoted: %v", n.name, err)
			if !errors.Is(err, core.ErrNoLicence) && n.w.rng.IntN(3) == 0 {
				a.giveBack()
			}
			return
		}
		n.w.blocks = n.m.View().Volumes[0].Size / block
		n.w.settle(n.id, acked, false)
	})
}

// members narrows the in-sync set where the replicator asks for it, and widens it where it offers.
func (a *agent) members(v *core.View) {
	n, s := a.n, a.seen
	to := maps.Clone(s.set.members)
	newest := uint64(0)
	for _, q := range v.Questions {
		newest = max(newest, q.ID)
		if q.Peer < 0 {
			delete(to, n.id)
		} else {
			delete(to, n.peer(q.Peer).id)
		}
	}
	for k, p := range v.Peers {
		if p.Awaited && p.Qualified && !p.Member {
			to[n.peer(k).id] = v.Volumes[0].Links[k].Device
		}
	}
	if newest == 0 {
		if v.Licence.SelfJoins {
			to[n.id] = n.disk.device
		}
		if maps.Equal(to, s.set.members) {
			return
		}
	}
	if len(to) == 0 {
		return // somebody has to have the data
	}
	term, set := s.owner.create, s.set
	a.ask(func(e *etcd) bool {
		return e.change(term, set, to)
	}, func(s snapshot, ok bool, err error) {
		switch {
		case err != nil:
		case ok:
			a.answers, a.answerSet = newest, s.set.rev
			a.look(s)
		default:
			a.look(s)
		}
	})
}

// nodesUp are the nodes that run, in order.
func (w *world) nodesUp() []*node {
	return slices.DeleteFunc(slices.Clone(w.nodes), func(n *node) bool { return !n.up() })
}
