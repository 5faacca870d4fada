package sim

import (
	"fmt"

	"github.com/hawser-ha/hawser/replicator/actlog"
	"github.com/hawser-ha/hawser/replicator/bitmap"
	"github.com/hawser-ha/hawser/replicator/core"
	"github.com/hawser-ha/hawser/replicator/wire"
)

const block = bitmap.BlockSize

// store is a disk: what it holds now, and what it would hold after a power cut.
type store struct {
	now      map[int64]uint64 // block number to value
	stable   map[int64]uint64
	super    core.Super
	bits     []*bitmap.Bitmap // on disk, by peer
	ring     [][actlog.BlockSize]byte
	fail     int // how many of the next writes fail
	failRead int
}

func newStore(blocks int64, peers int) *store {
	s := &store{now: map[int64]uint64{}, stable: map[int64]uint64{}, ring: make([][actlog.BlockSize]byte, 8)}
	s.super.Current = 4
	s.super.Bitmap = make([]uint64, peers)
	s.super.Peers = make([]core.SuperPeer, peers)
	for range peers {
		b := bitmap.New(blocks)
		b.SetAll()
		s.bits = append(s.bits, b)
	}
	for i := range s.ring {
		actlog.InitBlock(&s.ring[i])
	}
	return s
}

func (s *store) flush() {
	clear(s.stable)
	for k, v := range s.now {
		s.stable[k] = v
	}
}

// node is one computer: its process may die, its disk stays.
type node struct {
	w           *world
	id          int
	name        string
	disk        *store
	m           *core.Machine
	life        int    // counts restarts: effects of a former life are void
	tasks       []task // disk and metadata work under way, of this life
	meta        []task // metadata work, in order
	want        bool   // connect is wanted (Connect effect out)
	link        *conn
	buf         []core.Effect
	resyncBytes int64
}

// task is work that finishes at a moment the world chooses.
type task struct {
	run func()
	req *core.Request
}

// payload is the Tag of requests: the values of their blocks.
type payload struct {
	vals     []uint64
	op       *clientOp
	peerVals []uint64 // to be compared with
}

func (n *node) up() bool { return n.m != nil }

func (n *node) start() {
	n.life++
	n.tasks, n.meta, n.want, n.link = nil, nil, false, nil
	rng := n.w.rng
	cfg := core.Config{Rand: func() uint64 { return rng.Uint64() | 1<<40 }}
	cfg.Volumes = []core.VolumeConfig{{Number: 0, OnIOError: "detach", ALUpdates: true, MaxBio: 64 << 10}}
	cfg.Peers = []core.PeerConfig{{Name: "peer", Net: n.w.net, Pace: n.w.pace}}
	n.m = core.New(cfg)
	n.attach(nil)
	n.m.Connect(n.w.now, 0, false, nil)
	n.effects()
}

// attach does what a replicator does: replay the activity log, read the bitmaps.
func (n *node) attach(cmd any) {
	d := n.disk
	blocks := make([][]byte, len(d.ring))
	for i := range d.ring {
		blocks[i] = d.ring[i][:]
	}
	active, err := actlog.Replay(blocks)
	if err != nil {
		n.w.fail("%s: activity log: %v", n.name, err)
		return
	}
	var maps []*bitmap.Bitmap
	for _, b := range d.bits {
		c := bitmap.New(n.w.blocks)
		for i, word := range b.Words() {
			c.LoadWord(i, word)
		}
		if d.super.PrimaryInd {
			for _, e := range active {
				c.Set(int64(e)*1024, int64(e)*1024+1023)
			}
		}
		maps = append(maps, c)
	}
	for i := range d.ring {
		actlog.InitBlock(&d.ring[i])
	}
	for i := range maps { // as apply-al does: the bits are on disk before the log is emptied
		for w, word := range maps[i].Words() {
			d.bits[i].LoadWord(w, word)
		}
	}
	sup := d.super
	sup.Bitmap = append([]uint64(nil), sup.Bitmap...)
	sup.Peers = append([]core.SuperPeer(nil), sup.Peers...)
	n.m.Attach(n.w.now, 0, core.DiskInfo{Capacity: n.w.blocks * block, Super: sup, Bitmaps: maps, ALSlots: 67, ALBlocks: 8, Discards: true}, cmd)
}

// crash ends the process. power: what was not flushed is lost, block by block, as chance has it.
func (n *node) crash(power bool) {
	for _, t := range n.tasks { // writes under way may have reached the disk, whole or in part
		if t.req == nil || t.req.Op == core.OpRead || t.req.Op == core.OpFlush {
			continue
		}
		if n.w.rng.IntN(2) == 0 {
			n.apply(t.req, n.w.rng.IntN(int(t.req.Len/block)+1))
		}
	}
	if power {
		d := n.disk
		for _, k := range sortedKeys(d.now) {
			if d.now[k] != d.stable[k] && n.w.rng.IntN(2) == 0 {
				d.now[k] = d.stable[k]
			}
		}
		d.flush()
	}
	n.m = nil
	n.life++
	n.tasks, n.meta, n.want = nil, nil, false
	if n.link != nil {
		n.link.cut()
	}
	n.w.crashed(n)
}

// apply writes the first blocks of a request to the disk's cache.
func (n *node) apply(r *core.Request, blocks int) {
	p, _ := r.Tag.(*payload)
	for i := range int64(blocks) {
		k := r.Off/block + i
		v := uint64(0)
		if r.Op == core.OpWrite {
			v = p.vals[i]
		}
		n.disk.now[k] = v
		if k == n.w.trace {
			n.w.logf("TRACE %s: block %d := %d by kind %d (FUA %v)", n.name, k, v, r.Kind, r.FUA)
		}
	}
	if r.FUA {
		for i := range int64(blocks) {
			k := r.Off/block + i
			n.disk.stable[k] = n.disk.now[k]
		}
	}
}

// effects carries out what the machine asks for.
func (n *node) effects() {
	for n.m != nil {
		n.buf = n.m.Take(n.buf)
		if len(n.buf) == 0 {
			return
		}
		list := append([]core.Effect(nil), n.buf...)
		for i := range list {
			n.effect(&list[i])
			if n.m == nil {
				return
			}
		}
	}
}

func (n *node) effect(e *core.Effect) {
	w := n.w
	switch e.Kind {
	case core.Send:
		if n.link == nil {
			return
		}
		pk := packet{p: e.Pkt}
		if e.Pkt.Tail > 0 {
			if e.Req == nil {
				w.fail("%s: packet %#x has a tail and no request", n.name, e.Pkt.Cmd)
				return
			}
			pl := e.Req.Tag.(*payload)
			pk.vals = append([]uint64(nil), pl.vals...)
		}
		if b := int64(pk.p.Sector) / 8; w.trace >= b && w.trace < b+int64(pk.p.Size)/block && pk.p.Size > 0 {
			dirty := false
			if bm := n.m.Bitmap(0, 0); bm != nil {
				dirty = bm.Test(w.trace)
			}
			w.logf("TRACE %s: sends %v %d+%d vals %v, bit %v", n.name, pk.p.Cmd, b, pk.p.Size/block, pk.vals, dirty)
		}
		n.link.send(n.id, pk)
	case core.SendBitmap:
		if n.link == nil {
			return
		}
		b := n.m.Bitmap(0, 0)
		n.sendBitmap(b)
	case core.Disk:
		n.diskTask(e.Req)
	case core.Complete:
		op := e.Req.Tag.(*payload).op
		op.complete(e.Err)
	case core.Release:
		n.m.Recycle(e.Req)
	case core.WriteSuper:
		sup, token, flush, bits := *e.Super, e.Token, e.Flush, e.Bitmap
		n.metaTask(func() {
			if flush {
				n.disk.flush()
			}
			if bits {
				n.writeBitmaps(nil)
			}
			n.disk.super = sup
			n.m.SuperDone(w.now, 0, token, nil)
		})
	case core.WriteAL:
		tx := *e.Tx
		evicted := append([]uint32(nil), e.Tx.Evicted...)
		n.metaTask(func() {
			if len(evicted) > 0 {
				n.disk.flush()
				n.writeBitmaps(evicted)
			}
			var b [actlog.BlockSize]byte
			tx.Encode(&b)
			n.disk.ring[tx.Block(1, 8)] = b
			n.m.ALDone(w.now, 0, nil)
		})
	case core.Connect:
		n.want = true
	case core.CloseLink:
		n.want = false
		if n.link != nil {
			l := n.link
			n.link = nil
			l.cut()
		}
	case core.CloseDisk:
		life := n.life
		n.tasks = append(n.tasks, task{run: func() {
			if life == n.life {
				n.m.DiskClosed(w.now, 0)
			}
		}})
	case core.Result:
		if f, ok := e.Cmd.(func(error)); ok {
			f(e.Err)
		}
	case core.Event:
		w.logf("%s: %s %v", n.name, e.Note, e.Err)
		if e.Note == "resync done" {
			n.resyncBytes += e.Off
		}
	}
}

func (n *node) writeBitmaps(extents []uint32) {
	src := n.m.Bitmap(0, 0)
	if src == nil {
		return
	}
	if extents == nil {
		for i, word := range src.Words() {
			n.disk.bits[0].LoadWord(i, word)
		}
		return
	}
	for _, e := range extents {
		for i := int(e) * 16; i < int(e)*16+16 && i < len(src.Words()); i++ {
			n.disk.bits[0].LoadWord(i, src.Words()[i])
		}
	}
}

func (n *node) sendBitmap(b *bitmap.Bitmap) {
	pos := int64(0)
	for pos < b.Bits() {
		if payload, next, ok := b.EncodeRLE(nil, pos, 4000); ok && n.w.rng.IntN(4) > 0 {
			n.link.send(n.id, packet{p: wire.Packet{Cmd: wire.CompressedBitmap, Tail: uint32(len(payload))}, data: payload})
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
		n.link.send(n.id, packet{p: wire.Packet{Cmd: wire.Bitmap, Tail: uint32(len(data))}, data: data})
		pos = (at + int64(len(words))) * 64
	}
	n.link.send(n.id, packet{p: wire.Packet{Cmd: wire.Bitmap}})
}

func (n *node) metaTask(f func()) { n.meta = append(n.meta, task{run: f}) }

// diskTask is one disk request; it happens when the world picks it.
func (n *node) diskTask(r *core.Request) {
	w := n.w
	n.tasks = append(n.tasks, task{req: r, run: func() {
		var err error
		switch r.Op {
		case core.OpRead:
			p, ok := r.Tag.(*payload)
			if !ok {
				p = &payload{}
				r.Tag = p
			}
			if n.disk.failRead > 0 {
				n.disk.failRead--
				err = fmt.Errorf("planted read error")
				break
			}
			vals := make([]uint64, r.Len/block)
			zero := true
			for i := range vals {
				vals[i] = n.disk.now[r.Off/block+int64(i)]
				zero = zero && vals[i] == 0
			}
			r.AllZero = zero
			if r.Compare {
				r.Match = equal(p.vals, vals)
				p.vals = vals
			} else {
				p.vals = vals
			}
		case core.OpFlush:
			n.disk.flush()
		default:
			if n.disk.fail > 0 {
				n.disk.fail--
				n.apply(r, w.rng.IntN(int(r.Len/block)+1))
				err = fmt.Errorf("planted write error")
				break
			}
			if h, ok := r.Tag.(*core.Request); ok { // a heal writes the data of the read
				saved := r.Tag
				r.Tag = h.Tag
				n.apply(r, int(r.Len/block))
				r.Tag = saved
				break
			}
			n.apply(r, int(r.Len/block))
		}
		n.m.DiskDone(w.now, r, err)
	}})
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
