package sim

import (
	"github.com/hawser-ha/hawser/replicator/core"
	"github.com/hawser-ha/hawser/replicator/wire"
)

// fault is one kind of trouble in a life with one primary (p) and its secondary (s).
type fault struct {
	name string
	run  func(w *world, p, s *node)
}

// secondary picks a node that is not the primary.
func (w *world) secondary(p *node) *node {
	i := w.rng.IntN(len(w.nodes) - 1)
	if i >= p.id {
		i++
	}
	return w.nodes[i]
}

// strike does something bad, then perhaps repairs it. The operator never promotes a node that may lack acknowledged writes.
func (w *world) strike(faults []fault) {
	if w.etcd != nil {
		f := faults[w.rng.IntN(len(faults))]
		w.logf("-- and %s", f.name)
		f.run(w, nil, nil)
		return
	}
	if w.primary < 0 {
		w.recover(-1, acked, false)
		return
	}
	p := w.nodes[w.primary]
	s := w.secondary(p)
	f := faults[w.rng.IntN(len(faults))]
	w.logf("-- %s", f.name)
	f.run(w, p, s)
}

// basicFaults are those that any two nodes meet sooner or later.
var basicFaults = []fault{
	{"the primary dies", primaryDies}, {"the primary dies", primaryDies},
	{"the secondary dies", secondaryDies}, {"the secondary dies", secondaryDies},
	{"network cut", networkCut}, {"network cut", networkCut},
	{"network stalls", networkStalls},
	{"read error on the primary", func(_ *world, p, _ *node) { p.disk.fails[access{kind: core.AppRead, op: core.OpRead}]++ }},
	{"write error somewhere", writeError},
	{"switchover", switchover},
	{"restart of the primary", restart},
	{"alone and dead", aloneAndDead},
	{"power cut after a resync", cutAfterResync},
	{"change of protocol", changeProtocol},
	{"verify", func(w *world, p, _ *node) {
		p.m.Verify(w.now, 0, w.rng.IntN(len(p.links)), 0, 0, func(error) {})
		p.effects()
	}},
}

func primaryDies(w *world, p, s *node) {
	clear(w.good)
	replicated := false
	for _, o := range w.nodes {
		if o != p && w.replicated(p.id, o.id) {
			w.good[o.id], replicated = true, true
		}
	}
	power := replicated && w.rng.IntN(3) == 0
	w.good[p.id] = !power
	w.logf("power cut: %v, copies elsewhere: %v", power, replicated)
	p.crash(power)
	w.run(w.rng.IntN(400), nil)
	if w.net.Protocol == 1 {
		w.recover(p.id, lossFlight, true)
	} else {
		w.recover(-1, acked, false)
	}
}

// bothLosePower cuts the power of all nodes at once. What was flushed must be on any that had everything.
func bothLosePower(w *world, p, s *node) {
	if w.net.Protocol != 3 {
		primaryDies(w, p, s)
		return
	}
	clear(w.good)
	w.good[p.id] = true
	for _, o := range w.nodes {
		w.good[o.id] = o == p || w.replicated(p.id, o.id)
	}
	for _, n := range w.nodes {
		if n.up() {
			n.crash(true)
		} else {
			n.disk.powerCut(w.rng.IntN)
		}
	}
	w.recover(-1, lossPower, false)
}

func secondaryDies(w *world, p, s *node) {
	if !s.up() {
		s.start()
		return
	}
	// The only good copy may lose what nobody flushed: like any disk. The other one must not lose anything.
	s.crash(w.disk(p.id) == wire.UpToDate && w.rng.IntN(2) == 0)
	w.run(w.rng.IntN(600), nil)
	if !s.up() {
		s.start()
	}
}

func networkCut(w *world, p, s *node) {
	if c := w.conns[p.id][s.id]; c != nil {
		c.cut()
	}
	if w.rng.IntN(2) == 0 { // and stays away for a while
		for _, n := range w.nodes {
			clear(n.want)
		}
	}
	w.run(w.rng.IntN(800), nil)
	w.reconnectAll()
}

func networkStalls(w *world, p, s *node) {
	if c := w.conns[p.id][s.id]; c != nil && !c.dead {
		c.stall = true
		began := w.now // two primaries must not lose each other: that would be a split brain
		w.run(w.rng.IntN(2000), func() bool { return w.both && w.now > began+200e6 })
		c.stall = false
	}
}

func writeError(w *world, p, s *node) {
	n := p
	if w.rng.IntN(2) == 0 {
		n = s
	}
	if !n.up() || !w.replicated(p.id, s.id) {
		return
	}
	kind := core.AppWrite
	if n == s {
		kind = core.PeerWrite
	}
	n.disk.fails[access{kind: kind, op: core.OpWrite}] = 1
	w.run(500, nil)
	clear(n.disk.fails)
	w.reattach()
}

func switchover(w *world, p, s *node) {
	if w.replicated(p.id, s.id) && w.demote() && s.up() {
		if !w.promote(s.id, false) && w.err == nil && p.up() {
			w.promote(p.id, false)
		}
	}
}

// restart stops the primary in good order and starts it again, whatever the others do meanwhile.
func restart(w *world, p, s *node) {
	if !w.demote() || !p.up() {
		return
	}
	p.crash(false)
	p.start()
	if !w.promote(p.id, false) && w.err == nil {
		w.primary = -1
		clear(w.good)
		w.good[p.id] = true
	}
}

// aloneAndDead: the primary goes on alone for a while and crashes, before the others are back.
func aloneAndDead(w *world, p, s *node) {
	for _, o := range w.nodes {
		if o != p && o.up() {
			o.crash(false)
		}
	}
	w.run(1500, nil)
	if !p.up() || w.disk(p.id) != wire.UpToDate {
		return
	}
	clear(w.good)
	w.good[p.id] = true
	p.crash(false)
	w.recover(p.id, acked, false)
}

// cutAfterResync cuts the power of the secondary when its resync has just ended.
func cutAfterResync(w *world, p, s *node) {
	if c := w.conns[p.id][s.id]; c != nil {
		c.cut()
	}
	w.run(300, nil)
	if !w.run(20000, func() bool { return w.replicated(p.id, s.id) }) || !s.up() {
		return
	}
	s.crash(true)
	w.run(w.rng.IntN(300), nil)
	if !s.up() {
		s.start()
	}
}

func changeProtocol(w *world, p, s *node) {
	n := w.net
	n.Protocol = uint32(2 + w.rng.IntN(2)) // A may lose acknowledged writes in a failover
	w.net = n                              // the file that the nodes start from
	for _, o := range w.nodes {
		if o != p && o.up() && !w.replicated(p.id, o.id) {
			o.m.SetNet(w.now, o.index(p), n, nil)
			o.effects()
		}
	}
	for k := range p.links {
		p.m.SetNet(w.now, k, n, nil)
	}
	p.effects()
}

// reconnectAll makes up for a network that was away.
func (w *world) reconnectAll() {
	for _, n := range w.nodes {
		for k := range n.links {
			if n.up() && n.links[k] == nil && w.view(n.id).Peers[k].Conn == wire.WFConnection {
				n.want[k] = true
			}
		}
	}
}

// reattach gives detached disks back.
func (w *world) reattach() {
	w.run(4000, func() bool {
		for _, n := range w.nodes {
			if len(n.tasks)+len(n.meta) > 0 {
				return false
			}
		}
		return true
	})
	for _, n := range w.nodes {
		if n.up() && !n.detached && w.disk(n.id) == wire.Diskless && w.view(n.id).Volumes[0].OnDisk == 0 {
			n.attach(nil)
			n.effects()
		}
	}
}

// recover promotes a node that has all data that must be there, starting it if need be. The dead one has all that was
// acknowledged.
func (w *world) recover(dead int, must loss, ordered bool) {
	for _, i := range w.rng.Perm(len(w.nodes)) {
		n := w.nodes[i]
		if !w.good[i] {
			continue
		}
		if !n.up() {
			n.start()
			w.run(200, nil)
		}
		count, order := must, ordered
		if i == dead {
			count, order = acked, false
		}
		if w.promoteAfter(i, false, count, order) {
			break
		}
	}
	w.run(w.rng.IntN(500), nil)
	for _, n := range w.nodes {
		if !n.up() {
			n.start()
		}
	}
	w.reconnectAll()
}
