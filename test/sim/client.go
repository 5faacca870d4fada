package sim

import (
	"errors"
	"maps"
	"slices"

	"github.com/hawser-ha/hawser/replicator/core"
	"github.com/hawser-ha/hawser/replicator/wire"
)

// never is the end of a write of which nobody knows whether it happened: it may show until something newer is acknowledged.
const never = int64(1) << 62

// blockHist is what a block may hold.
type blockHist struct {
	writes []*clientOp // in order of their start
}

// clientOp is one request of a client.
type clientOp struct {
	w          *world
	kind       core.Kind
	off, n     int64 // blocks
	vals       []uint64
	start, end int64 // of the clients' clock
	done       bool  // answered
	ok         bool  // without error
	stable     bool  // known to survive a power cut
	seen       bool  // a read showed it, so it has happened (coordinated lives)
	safe       bool  // submitted under protocol C: a flush holds for all copies
	released   bool  // the node has forgotten it: nothing of it is in flight
	p          *payload
	before     []map[uint64]bool // reads: what each block may show at the start
	node       int
}

func (op *clientOp) isWrite() bool {
	return op.kind == core.AppWrite || op.kind == core.AppZero || op.kind == core.AppTrim
}

func (op *clientOp) val(b int64) uint64 {
	if op.kind != core.AppWrite {
		return 0
	}
	return op.vals[b-op.off]
}

// over says whether op can show no more once all of by is there: a write that began after op had ended.
func (h *blockHist) over(op *clientOp, counts func(*clientOp) bool) bool {
	for _, o := range h.writes {
		if o.start > op.end && counts(o) {
			return true
		}
	}
	return false
}

func acked(o *clientOp) bool { return o.done && o.ok || o.seen }

// values is what a block may hold if only the writes that count are sure.
func (w *world) values(b int64, counts func(*clientOp) bool) map[uint64]bool {
	out := map[uint64]bool{}
	h := w.hist[b]
	if h == nil {
		out[0] = true
		return out
	}
	sure := false
	for _, op := range h.writes {
		sure = sure || counts(op)
		end := op.end
		if !op.done {
			op.end = never
		}
		if !h.over(op, counts) {
			out[op.val(b)] = true
		}
		op.end = end
	}
	if !sure {
		out[0] = true
	}
	return out
}

func (w *world) shown(b int64) map[uint64]bool { return w.values(b, acked) }

// mayShow says whether a block may hold a value now.
func (w *world) mayShow(b int64, got uint64) bool {
	if h := w.hist[b]; h == nil {
		return got == 0
	}
	return w.shown(b)[got]
}

// submit gives a client request to a node.
func (w *world) submit(i int, op *clientOp) {
	n := w.nodes[i]
	op.w, op.node, op.safe = w, i, w.net.Protocol == 3
	w.clock++
	op.start = w.clock
	r := n.m.NewRequest(op.kind)
	r.Vol, r.Off, r.Len = 0, op.off*block, op.n*block
	op.p = &payload{vals: op.vals, op: op}
	r.Tag = op.p
	switch {
	case op.isWrite():
		for b := op.off; b < op.off+op.n; b++ {
			h := w.hist[b]
			if h == nil {
				h = &blockHist{}
				w.hist[b] = h
			}
			h.writes = append(h.writes, op)
			for _, o := range w.open { // reads under way may show it as well
				if o.before != nil && o.off <= b && b < o.off+o.n {
					o.before[b-o.off][op.val(b)] = true
				}
			}
		}
		r.FUA = w.rng.IntN(8) == 0
		op.stable = r.FUA && op.safe
	case op.kind == core.AppRead && !w.blind:
		for b := op.off; b < op.off+op.n; b++ {
			op.before = append(op.before, w.shown(b))
		}
	}
	w.open = append(w.open, op)
	n.m.Submit(n.now(), r)
	n.effects()
}

func (op *clientOp) complete(err error) {
	w := op.w
	if op.done {
		w.fail("request answered twice")
		return
	}
	w.clock++
	op.done, op.ok, op.end = true, err == nil, w.clock
	if w.trace >= op.off && w.trace < op.off+op.n {
		w.logf("TRACE %s: kind %d %d+%d %v answered: %v", w.nodes[op.node].name, op.kind, op.off, op.n, op.p.vals, err)
	}
	if i := slices.Index(w.open, op); i >= 0 {
		w.open = slices.Delete(w.open, i, i+1)
	}
	if err != nil {
		op.stable = false
		if errors.Is(err, core.ErrOutOfRange) {
			w.fail("request for blocks %d+%d is out of range", op.off, op.n)
		}
		return
	}
	switch op.kind {
	case core.AppRead:
		w.reads++
		if w.blind {
			return
		}
		for i := range op.n {
			got := op.p.vals[i]
			if op.before[i][got] {
				if w.etcd != nil {
					w.saw(op.off+i, got)
				}
				continue
			}
			w.fail("read of block %d on %s: %d, allowed %v", op.off+i, w.nodes[op.node].name, got, op.before[i])
		}
	case core.AppFlush:
		w.flushed(op)
	default:
		w.acked++
		if op.stable {
			w.forget(op.off, op.n)
		}
	}
}

// flushed: what was acknowledged before the flush began is stable.
func (w *world) flushed(flush *clientOp) {
	if !flush.safe {
		return
	}
	for _, b := range slices.Sorted(maps.Keys(w.hist)) {
		h := w.hist[b]
		changed := false
		for _, o := range h.writes {
			if !o.stable && o.safe && acked(o) && o.end < flush.start {
				o.stable, changed = true, true
			}
		}
		if changed {
			w.forget(b, 1)
		}
	}
}

// forget drops what can never show again.
func (w *world) forget(off, n int64) {
	for b := off; b < off+n; b++ {
		h := w.hist[b]
		keep := h.writes[:0]
		for _, o := range h.writes {
			if !o.done || !h.over(o, func(o *clientOp) bool { return acked(o) && o.stable }) {
				keep = append(keep, o)
			}
		}
		h.writes = keep
	}
}

// crashed: the clients' requests to that node are in doubt for ever.
func (w *world) crashed(n *node) {
	for _, op := range slices.Clone(w.open) {
		if op.node == n.id {
			w.clock++
			op.done, op.ok, op.end, op.stable = true, false, never, false
		}
	}
	w.open = slices.DeleteFunc(w.open, func(op *clientOp) bool { return op.node == n.id })
	if w.primary == n.id {
		w.primary = -1
	}
}

// loss says which acknowledged writes a new primary must have.
type loss func(*clientOp) bool

// lossPower: both nodes lost their power: what was not flushed may be gone.
func lossPower(o *clientOp) bool { return acked(o) && o.stable }

// lossFlight: protocol A: what the dead primary still had in flight may be gone.
func lossFlight(o *clientOp) bool { return acked(o) && o.released }

// settle: a new primary serves. What was in doubt either shows from now on or never: the clients read every block they are
// unsure of and remember.
// ordered: of what is lost only the youngest may be.
func (w *world) settle(i int, must loss, ordered bool) {
	if w.blind {
		return
	}
	n := w.nodes[i]
	if w.disk(i) != wire.UpToDate { // it reads from its peer
		for j := range w.nodes {
			if w.disk(j) == wire.UpToDate {
				n = w.nodes[j]
			}
		}
	}
	lost := int64(0) // the end of the oldest acknowledged write that is gone
	shows := map[*clientOp]bool{}
	doubtful := map[*clientOp]bool{}
	w.clock += 2
	for _, b := range slices.Sorted(maps.Keys(w.hist)) {
		h := w.hist[b]
		got := n.disk.now[b]
		if !w.values(b, must)[got] {
			w.fail("block %d on the new primary %s holds %d, allowed %v", b, n.name, got, w.values(b, must))
			return
		}
		var found *clientOp
		for _, op := range h.writes {
			if op.val(b) == got {
				found = op
			}
		}
		doubt := false
		for _, op := range h.writes {
			if op.end == never {
				doubt, doubtful[op] = true, true
			}
			if acked(op) && (found == nil || op.start > found.end) && (lost == 0 || op.end < lost) {
				lost = op.end
			}
		}
		if found != nil && found.kind == core.AppWrite {
			shows[found] = true
		}
		if !doubt && w.mayShow(b, got) {
			continue
		}
		keep := &clientOp{w: w, kind: core.AppWrite, off: b, n: 1, vals: []uint64{got}, start: w.clock, end: w.clock, done: true, ok: true, released: true}
		h.writes = append(h.writes, keep)
	}
	for op := range doubtful {
		op.end = w.clock - 1
	}
	if !ordered || lost == 0 {
		return
	}
	for op := range shows {
		if op.start > lost {
			w.fail("a write that began at %d shows on %s, but one that was acknowledged at %d before is gone", op.start, n.name, lost)
		}
	}
}

// clientStep lets a client do something.
func (w *world) clientStep() {
	i := w.primary
	if w.both {
		i = w.rng.IntN(len(w.nodes))
		if !w.nodes[i].up() || w.nodes[i].stopped || w.nodes[i].m.Role() != wire.Primary {
			return
		}
	}
	w.submit(i, w.randomOp())
}

func (w *world) randomOp() *clientOp {
	kind := core.AppWrite
	switch w.rng.IntN(20) {
	case 0, 1, 2, 3, 4:
		kind = core.AppRead
	case 5:
		kind = core.AppFlush
	case 6:
		kind = core.AppZero
	case 7:
		kind = core.AppTrim
	}
	op := &clientOp{kind: kind}
	if kind != core.AppFlush {
		op.n = 1 + int64(w.rng.IntN(4))
		hot := min(w.blocks, 300)
		if w.both {
			hot = 24
		}
		op.off = w.rng.Int64N(hot)
		if !w.narrow && w.rng.IntN(2) == 0 {
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
	return op
}
