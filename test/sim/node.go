package sim

import (
	"errors"
	"fmt"

	"github.com/hawser-ha/hawser/replicator/actlog"
	"github.com/hawser-ha/hawser/replicator/bitmap"
	"github.com/hawser-ha/hawser/replicator/core"
	"github.com/hawser-ha/hawser/replicator/wire"
)

// node is one computer: its process may die, its disk stays.
type node struct {
	w        *world
	id       int
	name     string
	disk     *store
	volume   core.VolumeConfig
	capacity int64 // blocks that the disk offers
	m        *core.Machine
	life     int     // counts restarts: effects of a former life are void
	tasks    []task  // disk work under way, of this life
	meta     []task  // metadata work, in order
	want     []bool  // connect is wanted (Connect effect out), by peer
	links    []*conn // by peer
	buf      []core.Effect
	state    wire.Disk // of the disk, before the last event
	detached bool      // by command: nobody attaches it again

	undoing  bool             // between UndoBegin and UndoEnd
	undo     map[int64]uint64 // the undo log: blocks that were overwritten, with what they held
	net      *core.NetConfig  // its own options; nil: as all have
	handlers map[string]int   // how often a handler was run

	coordinated
}

// task is work that finishes at a moment the world chooses.
type task struct {
	run func()
	req *core.Request
}

// payload is the Tag of requests: the values of their blocks.
type payload struct {
	vals []uint64
	op   *clientOp
	term uint64 // that the sender had told before it sent them
	seen uint64 // the highest that the receiver knew when they came
}

var errPlanted = errors.New("planted error")

func (n *node) up() bool { return n.m != nil }

// index is the peer index of another node.
func (n *node) index(o *node) int {
	if o.id < n.id {
		return o.id
	}
	return o.id - 1
}

// peer is the node with a peer index.
func (n *node) peer(k int) *node {
	if k < n.id {
		return n.w.nodes[k]
	}
	return n.w.nodes[k+1]
}

func (n *node) start() {
	w := n.w
	n.life++
	peers := w.opt.nodes - 1
	n.tasks, n.meta, n.want, n.links = nil, nil, make([]bool, peers), make([]*conn, peers)
	n.undoing, n.detached = false, false
	if n.handlers == nil {
		n.handlers, n.undo = map[string]int{}, map[int64]uint64{}
	}
	cfg := core.Config{Rand: func() uint64 { return w.rng.Uint64() | 1<<40 }}
	cfg.Volumes = []core.VolumeConfig{n.volume}
	for k := range peers {
		cfg.Peers = append(cfg.Peers, core.PeerConfig{Name: "peer", NodeID: n.peer(k).id, Net: w.net, Pace: w.pace})
	}
	if w.etcd != nil {
		n.coordinate(&cfg)
	}
	n.m = core.New(cfg)
	n.attach(nil)
	for k := range peers {
		n.m.Connect(n.now(), k, false, nil)
	}
	n.effects()
}

// attach does what a replicator does: replay the activity log, read the bitmaps.
func (n *node) attach(cmd any) {
	d := n.disk
	active, err := n.activeExtents()
	if err != nil {
		n.w.fail("%s: activity log: %v", n.name, err)
		return
	}
	var maps []*bitmap.Bitmap
	for _, b := range d.bits {
		c := bitmap.New(n.capacity)
		for i := range c.Words() {
			c.LoadWord(i, b.Words()[i])
		}
		if d.super.PrimaryInd && !n.w.bug("the activity log is not applied") {
			for _, e := range active {
				c.Set(int64(e)*1024, int64(e)*1024+1023)
			}
		}
		maps = append(maps, c)
	}
	for i := range d.ring {
		actlog.InitBlock(&d.ring[i])
	}
	for i, m := range maps { // as apply-al does: the bits are on disk before the log is emptied
		for w, word := range m.Words() {
			d.bits[i].LoadWord(w, word)
		}
	}
	sup := d.super
	sup.Bitmap = append([]uint64(nil), sup.Bitmap...)
	sup.Peers = append([]core.SuperPeer(nil), sup.Peers...)
	n.m.Attach(n.now(), 0, core.DiskInfo{Capacity: n.capacity * block, Super: sup, Bitmaps: maps, ALSlots: 67, ALBlocks: 8, Discards: true, Device: d.device}, cmd)
}

// activeExtents is what the activity log on the disk says.
func (n *node) activeExtents() ([]uint32, error) {
	d := n.disk
	blocks := make([][]byte, len(d.ring))
	for i := range d.ring {
		blocks[i] = d.ring[i][:]
	}
	return actlog.Replay(blocks)
}

// crash ends the process. power: what was not flushed is lost, block by block, as chance has it.
func (n *node) crash(power bool) {
	for _, t := range n.tasks { // writes under way may have reached the disk, whole or in part
		if t.req == nil || t.req.Op == core.OpRead || t.req.Op == core.OpFlush {
			continue
		}
		if n.w.rng.IntN(2) == 0 {
			n.apply(t.req, n.w.rng.IntN(int(t.req.Len/block)+1), false)
		}
	}
	if power {
		n.disk.powerCut(n.w.rng.IntN)
	}
	n.m = nil
	n.life++
	n.stopped = false
	n.tasks, n.meta = nil, nil
	clear(n.want)
	for _, c := range n.links {
		if c != nil {
			c.cut()
		}
	}
	n.w.crashed(n)
}

// apply writes the first blocks of a request to the disk's cache.
func (n *node) apply(r *core.Request, blocks int, fua bool) {
	w := n.w
	var vals []uint64
	if p, ok := r.Tag.(*payload); ok {
		vals = p.vals
	} else if h, ok := r.Tag.(*core.Request); ok { // a heal writes the data of the read
		vals = h.Tag.(*payload).vals
	}
	for i := range int64(blocks) {
		b := r.Off/block + i
		v := uint64(0)
		if r.Op == core.OpWrite {
			v = vals[i]
		}
		if _, ok := n.undo[b]; w.split[b] && !ok {
			switch {
			case !r.Undo && r.Peer >= 0:
				w.fail("%s: block %d of the loser is overwritten without the undo log by kind %d", n.name, b, r.Kind)
			case r.Undo && !n.undoing:
				w.fail("%s: block %d is for the undo log, but there is none", n.name, b)
			}
		}
		if _, ok := n.undo[b]; r.Undo && !ok && !w.bug("the undo log is not written") {
			n.undo[b] = n.disk.now[b]
		}
		n.disk.write(b, v, fua)
		if b == w.trace {
			w.logf("TRACE %s: block %d := %d by kind %d (FUA %v)", n.name, b, v, r.Kind, fua)
		}
	}
}

// effects carries out what the machine asks for.
func (n *node) effects() {
	for n.m != nil {
		n.buf = n.m.Take(n.buf)
		if len(n.buf) == 0 {
			break
		}
		list := append([]core.Effect(nil), n.buf...)
		for i := range list {
			n.effect(&list[i])
			if n.m == nil {
				return
			}
		}
	}
	if n.m != nil {
		n.state = n.m.View().Volumes[0].Disk
	}
}

func (n *node) effect(e *core.Effect) {
	w := n.w
	w.note(n.id, e.Kind, e.Peer, e.Pkt.Cmd, e.Pkt.Sector, e.Pkt.BlockID, e.Pkt.Size, e.Pkt.Seq, e.Note, e.Err)
	switch e.Kind {
	case core.Send:
		n.send(e)
	case core.SendBitmap:
		if c := n.links[e.Peer]; c != nil {
			n.sendBitmap(c, n.m.Bitmap(0, e.Peer))
		}
	case core.Disk:
		n.diskTask(e.Req)
	case core.Complete:
		e.Req.Tag.(*payload).op.complete(e.Err)
	case core.Release:
		if p, ok := e.Req.Tag.(*payload); ok && p.op != nil && e.Req.Kind != core.HealWrite {
			p.op.released = true
		}
		n.m.Recycle(e.Req)
	case core.WriteSuper:
		n.superTask(e)
	case core.WriteAL:
		n.logTask(e)
	case core.Connect:
		n.want[e.Peer] = true
	case core.FlushLink:
		if c := n.links[e.Peer]; c != nil {
			c.flushed[c.end(n)] = true
		}
	case core.CloseLink:
		n.want[e.Peer] = false
		if c := n.links[e.Peer]; c != nil {
			n.links[e.Peer] = nil
			c.close(c.end(n))
		}
	case core.CloseDisk:
		n.tasks = append(n.tasks, task{run: func() { n.m.DiskClosed(n.now(), 0) }})
	case core.Result:
		if f, ok := e.Cmd.(func(error)); ok {
			f(e.Err)
		}
	case core.WriteRecord:
		n.recordTask(e)
	case core.RunHandler:
		n.handlers[e.Note]++
	case core.SizeChanged:
		if n.id == w.primary {
			w.blocks = e.Off / block
		}
	case core.UndoBegin:
		n.undoing = true
	case core.UndoEnd:
		n.undoing = false
	case core.Event:
		w.logf("%s: %s %v", n.name, e.Note, e.Err)
		if e.Note == "disk Failed: detaching" && errors.Is(e.Err, errPlanted) && n.state == wire.UpToDate {
			w.lastCopy(n)
		}
	}
}

// lastCopy: an error took a good disk out of use. There must be another good copy.
func (w *world) lastCopy(n *node) {
	for _, o := range w.nodes {
		if o != n && o.up() && o.state == wire.UpToDate {
			return
		}
	}
	w.fail("%s gave up the last good copy after an error", n.name)
}

func (n *node) send(e *core.Effect) {
	w := n.w
	c := n.links[e.Peer]
	if c == nil {
		return
	}
	pk := packet{p: e.Pkt, term: n.told}
	if b, ok := e.Pkt.Ext.(*wire.TermBody); ok {
		n.told = b.Term
	}
	if e.Pkt.Tail > 0 {
		if e.Req == nil {
			w.fail("%s: packet %s has a tail and no request", n.name, e.Pkt.Cmd)
			return
		}
		pk.vals = append([]uint64(nil), e.Req.Tag.(*payload).vals...)
	}
	if b := int64(pk.p.Sector) / 8; w.trace >= b && w.trace < b+int64(pk.p.Size)/block && pk.p.Size > 0 {
		dirty := false
		if bm := n.m.Bitmap(0, e.Peer); bm != nil {
			dirty = bm.Test(w.trace)
		}
		w.logf("TRACE %s: sends %v %d+%d vals %v, bit %v", n.name, pk.p.Cmd, b, pk.p.Size/block, pk.vals, dirty)
	}
	c.send(n, pk)
}

// snapshot copies the bitmaps as they are now: the words of some extents, or all.
func (n *node) snapshot(extents []uint32) func() {
	type piece struct {
		peer, at int
		words    []uint64
	}
	var pieces []piece
	for k := range n.links {
		src := n.m.Bitmap(0, k)
		if src == nil {
			continue
		}
		words := src.Words()
		if extents == nil {
			pieces = append(pieces, piece{k, 0, append([]uint64(nil), words...)})
			continue
		}
		for _, e := range extents {
			from := min(int(e)*16, len(words))
			pieces = append(pieces, piece{k, from, append([]uint64(nil), words[from:min(from+16, len(words))]...)})
		}
	}
	return func() {
		for _, p := range pieces {
			for i, word := range p.words {
				n.disk.bits[p.peer].LoadWord(p.at+i, word)
			}
		}
	}
}

// superTask writes the superblock.
func (n *node) superTask(e *core.Effect) {
	w := n.w
	sup, token, flush, bits := *e.Super, e.Token, e.Flush, func() {}
	if e.Bitmap {
		bits = n.snapshot(nil)
	}
	done := func(err error) { n.m.SuperDone(n.now(), 0, token, err) }
	early := w.bug("a superblock is called durable before it is")
	if early {
		life := n.life
		n.tasks = append(n.tasks, task{run: func() {
			if n.life == life {
				done(nil)
			}
		}})
	}
	var write func()
	write = func() {
		if early && w.rng.IntN(60) > 0 { // it takes its time, but nobody waits
			n.meta = append([]task{{run: write}}, n.meta...)
			return
		}
		if n.disk.failing(access{meta: "super"}) {
			done(errPlanted)
			return
		}
		if flush && !w.bug("no flush before the bitmap") {
			n.disk.flush()
		}
		if w.rng.IntN(2) == 0 || !w.bug("the bitmap is not written") {
			bits()
		}
		n.disk.super = sup
		if !early {
			done(nil)
		}
	}
	n.meta = append(n.meta, task{run: write})
}

// logTask writes a transaction of the activity log.
func (n *node) logTask(e *core.Effect) {
	w := n.w
	tx := *e.Tx
	bits := func() {}
	if len(e.Tx.Evicted) > 0 {
		bits = n.snapshot(append([]uint32(nil), e.Tx.Evicted...))
	}
	n.meta = append(n.meta, task{run: func() {
		if n.disk.failing(access{meta: "log"}) {
			n.m.ALDone(n.now(), 0, errPlanted)
			return
		}
		if len(tx.Evicted) > 0 {
			if !w.bug("no flush before an extent leaves the activity log") {
				n.disk.flush()
			}
			if !w.bug("no bitmap before an extent leaves the activity log") {
				bits()
			}
		}
		var b [actlog.BlockSize]byte
		tx.Encode(&b)
		if !w.bug("the activity log is not written") {
			n.disk.ring[tx.Block(1, 8)] = b
		}
		n.m.ALDone(n.now(), 0, nil)
	}})
}

func (n *node) sendBitmap(c *conn, b *bitmap.Bitmap) {
	pos := int64(0)
	for pos < b.Bits() {
		if payload, next, ok := b.EncodeRLE(nil, pos, 4000); ok && n.w.rng.IntN(4) > 0 {
			c.send(n, packet{p: wire.Packet{Cmd: wire.CompressedBitmap, Tail: uint32(len(payload))}, data: payload})
			pos = next
			if pos >= b.Bits() {
				return
			}
			continue
		}
		at := pos / 64
		words := b.Words()[at:min(at+510, int64(len(b.Words())))]
		var data []byte
		for _, w := range words {
			for i := range 8 {
				data = append(data, byte(w>>(8*i)))
			}
		}
		c.send(n, packet{p: wire.Packet{Cmd: wire.Bitmap, Tail: uint32(len(data))}, data: data})
		pos = (at + int64(len(words))) * 64
	}
	c.send(n, packet{p: wire.Packet{Cmd: wire.Bitmap}})
}

// diskTask is one disk request; it happens when the world picks it.
func (n *node) diskTask(r *core.Request) {
	w := n.w
	n.checkTerm(r)
	blocks := int(r.Len / block)
	write := r.Op == core.OpWrite || r.Op == core.OpZero || r.Op == core.OpDiscard
	if write && (r.Kind == core.PeerWrite && w.bug("a peer's write is acknowledged before the disk has it") ||
		r.Kind == core.AppWrite && w.bug("a write is completed before the disk has it")) {
		n.tasks = append(n.tasks, task{run: func() { n.late(r, blocks) }})
		return
	}
	n.tasks = append(n.tasks, task{req: r, run: func() {
		var err error
		switch {
		case n.disk.failing(access{kind: r.Kind, op: r.Op}):
			err = errPlanted
			if write {
				n.apply(r, w.rng.IntN(blocks+1), false)
			}
		case r.Op == core.OpRead:
			n.read(r)
		case r.Op == core.OpFlush:
			if r.Kind == core.EpochFlush && w.bug("no flush at the end of an epoch") || r.Kind == core.AppFlush && w.bug("no flush for a client") {
				break
			}
			n.disk.flush()
		case r.Kind == core.SyncWrite && w.rng.IntN(20) == 0 && w.bug("a resync write is lost"):
		case r.Kind == core.PeerWrite && r.Op != core.OpWrite && w.bug("a peer's discard is not done"):
		default:
			n.apply(r, blocks, r.FUA && !w.bug("FUA is ignored"))
		}
		n.m.DiskDone(n.now(), r, err)
	}})
}

// late answers a write at once and does it some time later.
func (n *node) late(r *core.Request, blocks int) {
	kept := *r
	if p, ok := r.Tag.(*payload); ok {
		kept.Tag = &payload{vals: append([]uint64(nil), p.vals...)}
	}
	n.tasks = append(n.tasks, task{run: func() { n.apply(&kept, blocks, kept.FUA) }})
	n.m.DiskDone(n.now(), r, nil)
}

func (n *node) read(r *core.Request) {
	p, ok := r.Tag.(*payload)
	if !ok {
		p = &payload{}
		r.Tag = p
	}
	vals := make([]uint64, r.Len/block)
	zero := true
	for i := range vals {
		b := r.Off/block + int64(i)
		vals[i] = n.disk.now[b]
		if r.Kind == core.AppRead && n.w.rng.IntN(10) == 0 && n.w.bug("a read shows what is stable only") {
			vals[i] = n.disk.stable[b]
		}
		zero = zero && vals[i] == 0
	}
	r.AllZero = zero
	if r.Compare {
		r.Match = equal(p.vals, vals) || n.w.bug("digests always match")
	}
	p.vals = vals
}

func equal(a, b []uint64) bool {
	if len(a) != len(b) {
		return false
	}
	for i := range a {
		if a[i] != b[i] {
			return false
		}
	}
	return true
}

// String is for messages.
func (n *node) String() string { return fmt.Sprintf("node %s", n.name) }
