package sim

import (
	"errors"
	"maps"
	"slices"

	"github.com/hawser-ha/hawser/replicator/core"
)

// etcd is a linearizable store with leases, as the agents see it: answers may be late or lost, and a request whose answer was
// lost may still be carried out later.
type etcd struct {
	w      *world
	rev    uint64
	leases map[uint64]core.Now // by id: when it ends, on the clock of the world
	owner  *primaryKey
	set    *insyncKey
	queue  []*etcdOp
	down   bool // no member answers
}

// primaryKey is resources/R/primary.
type primaryKey struct {
	node   int
	lease  uint64
	create uint64 // its revision: the term
}

// insyncKey is resources/R/insync.
type insyncKey struct {
	members map[int]uint64 // device UUID by node
	rev     uint64
}

// snapshot is what a linearizable read gives. It is not changed afterwards.
type snapshot struct {
	owner *primaryKey
	set   *insyncKey
}

var errUncertain = errors.New("no answer from etcd")

// etcdOp is a request on its way.
type etcdOp struct {
	from  *agent
	life  int
	since core.Now
	run   func(e *etcd) bool                   // nil: it was carried out
	ok    bool                                 // what run said
	seen  snapshot                             // after run
	then  func(s snapshot, ok bool, err error) // nil: the agent does not wait any more
}

// ask sends a request.
func (a *agent) ask(run func(e *etcd) bool, then func(s snapshot, ok bool, err error)) {
	e := a.n.w.etcd
	a.waits = true
	e.queue = append(e.queue, &etcdOp{from: a, life: a.life, since: e.w.now, run: run, then: func(s snapshot, ok bool, err error) {
		a.waits = false
		then(s, ok, err)
	}})
}

// work lets one request make a step: to the store, back to the agent, or nowhere.
func (e *etcd) work(i int) {
	op := e.queue[i]
	drop := func() { e.queue = slices.Delete(e.queue, i, i+1) }
	live := op.then != nil && op.from.life == op.life && op.from.n.up()
	cut := e.down || op.from.cut
	switch {
	case op.from.n.stoppedAgent:
		return
	case live && (cut || e.w.rng.IntN(40) == 0) && e.w.now > op.since+core.Now(simTTL/4):
		then := op.then // its deadline has passed. What is not carried out yet may be later
		op.then = nil
		then(snapshot{}, false, errUncertain)
		op.from.n.effects()
		return
	case cut:
		if op.then == nil && e.w.rng.IntN(3) == 0 {
			drop()
		}
		return
	case op.run != nil:
		if op.then == nil && e.w.rng.IntN(2) == 0 {
			drop() // it never arrived
			return
		}
		op.ok = op.run(e)
		op.run = nil
		op.seen = e.read()
		return
	}
	drop()
	if live {
		op.then(op.seen, op.ok, nil)
		op.from.n.effects()
	}
}

func (e *etcd) read() snapshot {
	var s snapshot
	if e.owner != nil {
		o := *e.owner
		s.owner = &o
	}
	if e.set != nil {
		s.set = &insyncKey{maps.Clone(e.set.members), e.set.rev}
	}
	return s
}

// expire drops the keys whose lease is over. Never before its time.
func (e *etcd) expire() {
	if e.down {
		return
	}
	for _, id := range slices.Sorted(maps.Keys(e.leases)) {
		if e.w.now < e.leases[id] {
			continue
		}
		delete(e.leases, id)
		if e.owner != nil && e.owner.lease == id {
			e.w.logf("etcd: the lease of %s is over, term %d", e.w.nodes[e.owner.node].name, e.owner.create)
			e.owner = nil
			e.rev++
		}
	}
}

// keepAlive renews a lease, or makes it.
func (e *etcd) keepAlive(id uint64, known bool) bool {
	if _, there := e.leases[id]; known && !there {
		return false // it is over
	}
	e.leases[id] = e.w.now + simTTL
	return true
}

func unchanged(a, b *insyncKey) bool {
	return a == nil && b == nil || a != nil && b != nil && a.rev == b.rev
}

// take is the transaction of a promotion: nobody holds the term, or the same node does, and the in-sync set is unchanged.
func (e *etcd) take(node int, lease uint64, seen snapshot) bool {
	if e.owner != nil && (seen.owner == nil || e.owner.create != seen.owner.create || e.owner.node != node) || !unchanged(e.set, seen.set) {
		return false
	}
	if _, there := e.leases[lease]; !there {
		return false
	}
	e.rev++
	e.owner = &primaryKey{node, lease, e.rev}
	e.w.logf("etcd: %s holds term %d", e.w.nodes[node].name, e.rev)
	return true
}

// change writes the in-sync set: the term is still held, and the set unchanged.
func (e *etcd) change(term uint64, seen *insyncKey, members map[int]uint64) bool {
	if e.owner == nil || e.owner.create != term || !unchanged(e.set, seen) {
		return false
	}
	e.rev++
	e.set = &insyncKey{maps.Clone(members), e.rev}
	e.w.logf("etcd: in sync %v, revision %d", members, e.rev)
	return true
}

// release gives a term back.
func (e *etcd) release(term uint64) bool {
	if e.owner == nil || e.owner.create != term {
		return false
	}
	e.owner = nil
	e.rev++
	return true
}
