package sim

import (
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/hawser-ha/hawser/replicator/core"
	"github.com/hawser-ha/hawser/replicator/genid"
	"github.com/hawser-ha/hawser/replicator/pace"
	"github.com/hawser-ha/hawser/replicator/wire"
)

// world is two nodes, the network between them, and a client.
type world struct {
	rng            *rand.Rand
	now            core.Now
	blocks         int64
	nodes          [2]*node
	conn           *conn
	net            core.NetConfig
	pace           pace.Params
	strict         bool // epochs as a kernel peer wants them
	err            error
	protocolErrors int
	log            []string

	next    uint64 // next value to write
	hist    map[int64]*blockHist
	open    []*clientOp
	clock   int64 // orders client events
	primary int   // the node that clients use; -1: none
	acked   int
	reads   int
	good    [2]bool // may be promoted: has all acknowledged writes
	trace   int64   // a block whose story is logged; -1: none
	quiet   bool    // no more faults: the end
}

// blockHist is what a block may hold.
type blockHist struct {
	writes []*clientOp // from the oldest that may still show, in order of their start
}

// clientOp is one request of the client.
type clientOp struct {
	w          *world
	kind       core.Kind
	off, n     int64 // blocks
	vals       []uint64
	start, end int64
	done       bool // answered
	ok         bool
	stable     bool // known to be on stable storage
	p          *payload
	allowed    []map[uint64]bool // reads: what each block may show
	node       int
}

func (w *world) fail(format string, args ...any) {
	if w.err == nil {
		w.err = fmt.Errorf(format, args...)
	}
}

func (w *world) logf(format string, args ...any) {
	w.log = append(w.log, fmt.Sprintf("%d: ", w.now/1e6)+fmt.Sprintf(format, args...))
	if w.trace < 0 && len(w.log) > 4000 {
		w.log = w.log[2000:]
	}
}

func (w *world) tail() string {
	if w.trace >= 0 {
		return strings.Join(w.log, "\n")
	}
	return strings.Join(w.log[max(0, len(w.log)-80):], "\n")
}

func sortedKeys(m map[int64]uint64) []int64 {
	keys := make([]int64, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}

var traceFlag = flag.Int64("block", -1, "log what happens to this block")

func newWorld(seed uint64, protocol uint32) *world {
	w := &world{rng: rand.New(rand.NewPCG(seed, 0)), now: 1e9, hist: map[int64]*blockHist{}, primary: -1, next: 1, trace: *traceFlag}
	w.blocks = 1024*int64(3+w.rng.IntN(150)) + int64(w.rng.IntN(1024))
	w.strict = w.rng.IntN(3) == 0
	w.net = core.NetConfig{Protocol: protocol, Timeout: 6 * time.Second, KOCount: 7, PingInt: 10 * time.Second, PingTimeout: 500 * time.Millisecond,
		MaxEpochSize: 1 + w.rng.IntN(20), MaxBuffers: 2048, OnCongestion: "block", Fencing: "dont-care", VerifyAlg: "crc32c", VerifySize: 4}
	if w.rng.IntN(2) == 0 {
		w.net.CsumsAlg, w.net.CsumsSize = "crc32c", 4
	}
	w.net.Policies = genid.Policies{}
	w.pace = pace.Params{ResyncRate: 1 << 20, PlanAhead: 20, DelayTarget: 10, FillTarget: 512, MaxRate: 4 << 20}
	for i := range w.nodes {
		w.nodes[i] = &node{w: w, id: i, name: string(rune('a' + i)), disk: newStore(w.blocks, 1)}
	}
	return w
}

// submit gives a client request to a node.
func (w *world) submit(i int, op *clientOp) {
	n := w.nodes[i]
	op.w, op.node = w, i
	w.clock++
	op.start = w.clock
	r := n.m.NewRequest(op.kind)
	r.Vol, r.Off, r.Len = 0, op.off*block, op.n*block
	op.p = &payload{vals: op.vals, op: op}
	r.Tag = op.p
	switch op.kind {
	case core.AppWrite, core.AppZero, core.AppTrim:
		for b := op.off; b < op.off+op.n; b++ {
			h := w.hist[b]
			if h == nil {
				h = &blockHist{}
				w.hist[b] = h
			}
			h.writes = append(h.writes, op)
		}
		r.FUA = w.rng.IntN(8) == 0
	case core.AppRead:
		for b := op.off; b < op.off+op.n; b++ {
			op.allowed = append(op.allowed, w.mayShow(b))
		}
	}
	w.open = append(w.open, op)
	n.m.Submit(w.now, r)
	n.effects()
}

// mayShow is the set of values a block may show to a read that starts now.
func (w *world) mayShow(b int64) map[uint64]bool {
	out := map[uint64]bool{}
	h := w.hist[b]
	if h == nil {
		out[0] = true
		return out
	}
	base := -1
	for i, op := range h.writes {
		if op.done && op.ok {
			base = i
		}
	}
	if base < 0 {
		out[0] = true
	}
	for i, op := range h.writes {
		// A write that ended before the last acknowledged one began is gone for good.
		if base >= 0 && i != base && op.done && op.end < h.writes[base].start {
			continue
		}
		if base >= 0 && i < base && op.done && op.ok && op.end < h.writes[base].start {
			continue
		}
		out[op.val(b)] = true
	}
	return out
}

func (op *clientOp) val(b int64) uint64 {
	if op.kind != core.AppWrite {
		return 0
	}
	return op.vals[b-op.off]
}

func (op *clientOp) complete(err error) {
	w := op.w
	if op.done {
		w.fail("request answered twice")
		return
	}
	w.clock++
	op.done, op.ok, op.end = true, err == nil, w.clock
	for i, o := range w.open {
		if o == op {
			w.open = slices.Delete(w.open, i, i+1)
			break
		}
	}
	if err != nil {
		return
	}
	switch op.kind {
	case core.AppRead:
		w.reads++
		for i := range op.n {
			got := op.p.vals[i]
			// Writes that began while the read was under way may show as well.
			if op.allowed[i][got] || w.mayShow(op.off + i)[got] || w.begunSince(op.off+i, op.start, got) {
				continue
			}
			w.fail("read of block %d on %s: %d, allowed %v", op.off+i, w.nodes[op.node].name, got, op.allowed[i])
		}
	case core.AppFlush:
	default:
		w.acked++
		for b := op.off; b < op.off+op.n; b++ { // forget what can show no more
			h := w.hist[b]
			h.writes = slices.DeleteFunc(h.writes, func(o *clientOp) bool {
				return o != op && o.done && o.end < op.start
			})
		}
	}
}

func (w *world) begunSince(b, start int64, got uint64) bool {
	for _, op := range w.hist[b].writes {
		if op.start > start && op.val(b) == got {
			return true
		}
	}
	return false
}

// crashed: the client's requests to that node are in doubt for ever.
func (w *world) crashed(n *node) {
	for _, op := range append([]*clientOp(nil), w.open...) {
		if op.node == n.id {
			w.clock++
			op.done, op.ok, op.end = true, false, 1<<62 // it may still show, until something newer is acknowledged
		}
	}
	w.open = slices.DeleteFunc(w.open, func(op *clientOp) bool { return op.node == n.id })
	if w.primary == n.id {
		w.primary = -1
	}
}

// settle: a new primary serves. What was in doubt either shows from now on or never: the client reads every block it is
// unsure of and remembers.
func (w *world) settle(i int) {
	n := w.nodes[i]
	if n.m.View().Volumes[0].Disk != wire.UpToDate { // it reads from its peer
		n = w.nodes[1-i]
	}
	for _, b := range slices.Sorted(maps.Keys(w.hist)) {
		h := w.hist[b]
		doubt := false
		for _, op := range h.writes {
			doubt = doubt || op.end == 1<<62
		}
		if !doubt {
			continue
		}
		got := n.disk.now[b]
		if !w.mayShow(b)[got] {
			w.fail("block %d on the new primary %s holds %d, allowed %v", b, n.name, got, w.mayShow(b))
			return
		}
		w.clock++
		keep := &clientOp{w: w, kind: core.AppWrite, off: b, n: 1, vals: []uint64{got}, start: w.clock, end: w.clock, done: true, ok: true}
		h.writes = append(slices.DeleteFunc(h.writes, func(o *clientOp) bool { return o.done }), keep)
	}
}

func (w *world) view(i int) core.View { return w.nodes[i].m.View() }

// has reports whether node i can lead: it has all acknowledged writes, as the primary sees it.
func (w *world) replicated(primary int) bool {
	v := w.view(primary)
	l := v.Volumes[0].Links[0]
	return v.Peers[0].Conn == wire.Connected && l.Conn == wire.Connected && l.Disk == wire.UpToDate
}

// check compares the replicas at the end.
func (w *world) check() {
	for i, n := range w.nodes {
		v := n.m.View().Volumes[0]
		if v.Disk != wire.UpToDate || v.Links[0].OutOfSync != 0 || v.Links[0].Conn != wire.Connected {
			w.fail("%s ended %s %s, %d bytes out of sync", n.name, v.Disk, v.Links[0].Conn, v.Links[0].OutOfSync)
			return
		}
		_ = i
	}
	seen := map[int64]uint64{}
	for k, v := range w.nodes[0].disk.now {
		seen[k] = v
	}
	for k := range w.nodes[1].disk.now {
		seen[k] = 0
	}
	for _, k := range sortedKeys(seen) {
		a, b := w.nodes[0].disk.now[k], w.nodes[1].disk.now[k]
		if a != b {
			w.fail("block %d: a has %d, b has %d", k, a, b)
			return
		}
		if !w.mayShow(k)[a] {
			w.fail("block %d holds %d, allowed %v", k, a, w.mayShow(k))
			return
		}
	}
}
