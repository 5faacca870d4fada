package replicator

import (
	"fmt"
	"slices"

	"github.com/hawser-ha/hawser/replicator/core"
	"github.com/hawser-ha/hawser/replicator/disk"
	"github.com/hawser-ha/hawser/replicator/export"
	"github.com/hawser-ha/hawser/replicator/iobuf"
	"github.com/hawser-ha/hawser/replicator/link"
	"github.com/hawser-ha/hawser/replicator/wire"
)

// now is the clock of the Machine; the links stamp what they receive with the same.
func now() core.Now { return core.Now(link.Now()) }

// sum is a digest; n is 0 while there is none.
type sum struct {
	n uint8 // bytes
	b [wire.MaxDigest]byte
}

func (s *sum) set(d wire.Digest, data []byte) { s.n = uint8(len(d.Sum(s.b[:0], data))) }
func (s *sum) bytes() []byte                  { return s.b[:s.n] }

// ioreq is what the replicator knows of a core.Request: it hangs on Request.Tag.
type ioreq struct {
	refs  int // guarded by Resource.mu: the Request's, and a receiver's while it reads into buf
	buf   *iobuf.Buf
	data  []byte // the payload in buf, page aligned
	app   *export.Request
	kick  export.Kicker
	split *split // app comes in pieces

	got   sum // the digest that came with a packet in place of data
	own   sum // of our data, to be sent or compared
	integ sum // data-integrity digest of our data, by integBy
	by    wire.Digest

	// What is needed of the Request while it is on the disk.
	req     *core.Request
	vol     *volume
	store   disk.Store
	disk    disk.Request
	kind    core.Kind
	peer    int
	compare bool
	thin    bool
	digest  bool
	undo    bool
	onDisk  bool
	noFlush bool   // a flush that disk-flushes no makes a matter of course
	next    *ioreq // in completions
}

// newIO takes an ioreq from the free list, with one reference. r.mu is held.
func (r *Resource) newIO() *ioreq {
	if n := len(r.freeIO); n > 0 {
		io := r.freeIO[n-1]
		r.freeIO = r.freeIO[:n-1]
		io.refs = 1
		return io
	}
	io := &ioreq{refs: 1}
	io.disk.Owner = io
	io.disk.Done = diskDone
	return io
}

// unref drops a reference; the last one gives the buffer and the ioreq back. r.mu is held.
func (r *Resource) unref(io *ioreq) {
	if io.refs--; io.refs > 0 {
		return
	}
	if io.buf != nil {
		io.buf.Release()
	}
	io.buf, io.data, io.app, io.kick, io.by, io.req, io.vol, io.store = nil, nil, nil, nil, nil, nil, nil, nil
	io.got.n, io.own.n, io.integ.n = 0, 0, 0
	io.disk.Buf, io.disk.Mem = nil, nil
	r.freeIO = append(r.freeIO, io)
}

// integrity gives the digest of the data by d, computed before the mutex was taken if all went well.
func (io *ioreq) integrity(d wire.Digest, data []byte) []byte {
	if io.integ.n == 0 || io.by != d {
		io.integ.set(d, data)
		io.by = d
	}
	return io.integ.bytes()
}

// turn is one pass through the Machine: the effects taken, and what is to be done once the mutex is free.
type turn struct {
	eff    []core.Effect
	disk   []*ioreq
	batch  []*disk.Request
	done   []answer
	kicks  []export.Kicker
	flush  []*link.Conn
	meta   []*metaOp
	after  []func()
	inline bool // an only disk request may be executed on this goroutine
	direct bool // and there is only one, on an idle disk
	lone   bool // the only thing to do is an activity log transaction
	undone int  // packets handled since the last run
}

// answer is a completed request of a front end.
type answer struct {
	app  *export.Request
	kick export.Kicker
}

// lock begins a turn.
func (r *Resource) lock() *turn {
	t, _ := r.turns.Get().(*turn)
	if t == nil {
		t = &turn{}
	}
	t.inline = false
	r.mu.Lock()
	return t
}

// unlock carries out everything that the events of the turn led to, and ends it.
func (r *Resource) unlock(t *turn) {
	r.collect(t)
	r.mu.Unlock()
	r.run(t)
	r.turns.Put(t)
}

// collect takes the effects of the Machine: those that must keep their order are carried out, the others are noted in t. r.mu
// is held.
func (r *Resource) collect(t *turn) {
	t.eff = r.m.Take(t.eff)
	for i := range t.eff {
		r.exec(t, &t.eff[i])
	}
	t.direct = t.inline && len(t.disk) == 1 && t.disk[0].vol.busy == 1
	t.lone = t.inline && len(t.meta) == 1 && len(t.disk) == 0 && t.meta[0].vol.metaBusy == 1
	if d := r.m.Deadline(); d != 0 && (r.timerAt == 0 || d < r.timerAt) {
		r.timerAt = d
		poke(r.timerKick)
	}
}

// poke wakes a goroutine that waits on a channel of capacity one.
func poke(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// run does what the mutex must not be held for, and feeds the outcome of inline disk requests back until there are no more.
func (r *Resource) run(t *turn) {
	for {
		t.undone = 0
		direct := r.submit(t)
		for i, c := range t.flush {
			c.FlushData()
			c.FlushMeta()
			t.flush[i] = nil
		}
		t.flush = t.flush[:0]
		r.reply(t)
		var alone *metaOp // to be done here
		for i, op := range t.meta {
			if t.lone && op.kind == metaAL {
				alone = op
			} else {
				op.vol.meta.push(op)
			}
			t.meta[i] = nil
		}
		t.meta = t.meta[:0]
		for i, f := range t.after {
			f()
			t.after[i] = nil
		}
		t.after = t.after[:0]
		if alone != nil {
			alone.vol.runMeta(alone, true)
		}
		if len(direct) == 0 {
			t.disk = t.disk[:0]
			return
		}
		for _, io := range direct {
			io.execute()
		}
		r.mu.Lock()
		at := now()
		for i, io := range direct {
			r.diskDone(at, io)
			direct[i] = nil
		}
		t.disk = t.disk[:0]
		r.collect(t)
		r.mu.Unlock()
	}
}

// reply answers the front ends.
func (r *Resource) reply(t *turn) {
	if len(t.done) == 0 {
		return
	}
	for i := range t.done {
		a := &t.done[i]
		if a.kick != nil && (len(t.kicks) == 0 || t.kicks[len(t.kicks)-1] != a.kick) {
			t.kicks = append(t.kicks, a.kick)
		}
		a.app.Done(a.app)
		*a = answer{}
	}
	t.done = t.done[:0]
	for i, k := range t.kicks {
		k.Kick()
		t.kicks[i] = nil
	}
	t.kicks = t.kicks[:0]
}

// exec carries out one effect. r.mu is held.
func (r *Resource) exec(t *turn, e *core.Effect) {
	switch e.Kind {
	case core.Send:
		r.send(t, e)
	case core.Disk:
		r.startDisk(t, e.Req)
	case core.Complete:
		io := e.Req.Tag.(*ioreq)
		a, err := io.app, e.Err
		io.app = nil
		if e.Req.Kind == core.AppWrite && !io.onDisk && io.buf != nil {
			io.buf.Release() // the Machine may remember the Request for a whole epoch
			io.buf, io.data = nil, nil
		}
		if sp := io.split; sp != nil {
			io.split = nil
			if sp.err == nil {
				sp.err = err
			}
			if sp.left--; sp.left > 0 {
				return
			}
			err = sp.err
		}
		if a != nil {
			a.Err = requestError(err)
			t.done = append(t.done, answer{a, io.kick})
		}
	case core.Release:
		if io, ok := e.Req.Tag.(*ioreq); ok {
			r.unref(io)
		}
		r.m.Recycle(e.Req)
	case core.WriteAL, core.WriteSuper:
		r.startMeta(t, e)
	case core.FlushLink:
		if c := r.peers[e.Peer].conn; c != nil {
			c.FlushData()
			c.FlushMeta()
		}
	case core.SendBitmap:
		r.sendBitmap(t, e)
	default:
		r.execRare(t, e)
	}
}

// requestError translates an error of the Machine for front ends.
func requestError(err error) error {
	if err == nil {
		return nil
	}
	return translateRequest(err)
}

// flushLater has the link flushed once the mutex is free.
func (t *turn) flushLater(c *link.Conn) {
	if !slices.Contains(t.flush, c) {
		t.flush = append(t.flush, c)
	}
}

// zeroes are what a peer gets that does not understand P_ZEROES.
var zeroes [wire.MaxData]byte

// send puts a packet into the queue of its link. r.mu is held.
func (r *Resource) send(t *turn, e *core.Effect) {
	p := r.peers[e.Peer]
	c := p.conn
	if c == nil {
		return
	}
	t.flushLater(c)
	if !e.Pkt.Cmd.OnData() {
		c.SendMeta(&e.Pkt)
		return
	}
	n := int(e.Pkt.Tail)
	if n == 0 {
		if b, ok := e.Pkt.Ext.(*wire.ProtocolBody); ok {
			p.integ = digestOf(b.IntegrityAlg) // from the next packet on
			p.integDigest.Store(boxOf(p.integ))
		}
		c.SendData(&e.Pkt, nil, nil, nil, nil)
		return
	}
	io := e.Req.Tag.(*ioreq)
	switch e.Pkt.Cmd {
	case wire.Data, wire.DataReply, wire.RSDataReply:
		if e.Req.Op == core.OpZero {
			var d sum
			zero := zeroes[:e.Pkt.Size]
			if p.integ != nil {
				d.set(p.integ, zero)
			}
			c.SendData(&e.Pkt, d.bytes(), zero, nil, nil)
			return
		}
		if len(io.data) < int(e.Pkt.Size) {
			c.Close(fmt.Errorf("%s of %d bytes at sector %d without its data", e.Pkt.Cmd, e.Pkt.Size, e.Pkt.Sector))
			return
		}
		data := io.data[:e.Pkt.Size]
		var digest []byte
		if p.integ != nil {
			digest = io.integrity(p.integ, data)
		}
		io.buf.Retain()
		p.queue.push(io.buf)
		c.SendData(&e.Pkt, digest, data, payloadSent, p.queue)
	default: // a digest in place of data
		for int(io.own.n) < n { // the read failed: it matches nothing
			io.own.b[io.own.n] = 0
			io.own.n++
		}
		c.SendData(&e.Pkt, io.own.b[:n], nil, nil, nil)
	}
}

// startDisk notes a disk request. r.mu is held.
func (r *Resource) startDisk(t *turn, req *core.Request) {
	var io *ioreq
	switch tag := req.Tag.(type) {
	case *ioreq:
		io = tag
	case *core.Request: // HealWrite: the data of that request; ours until fed back
		io = r.newIO()
		if of, ok := tag.Tag.(*ioreq); ok && of.buf != nil {
			of.buf.Retain()
			io.buf, io.data = of.buf, of.data
		}
	default:
		io = r.newIO()
		req.Tag = io
	}
	v := r.volume(req.Vol)
	io.req, io.vol, io.store = req, v, v.store
	io.kind, io.peer = req.Kind, req.Peer
	io.compare, io.thin, io.digest, io.undo = req.Compare, req.Thin, req.Digest, req.Undo
	d := &io.disk
	d.Off, d.Len, d.NoUnmap, d.Err = req.Off, req.Len, req.NoUnmap, nil
	d.FUA = req.FUA && v.flushes
	io.noFlush = req.Op == core.OpFlush && !v.flushes
	switch req.Op {
	case core.OpRead:
		d.Op = disk.Read
	case core.OpWrite:
		d.Op = disk.Write
	case core.OpFlush:
		d.Op = disk.Flush
	case core.OpDiscard:
		d.Op = disk.Discard
	case core.OpZero:
		d.Op = disk.ZeroOut
	}
	v.busy++
	io.onDisk = true
	t.disk = append(t.disk, io)
}

// submit hands the turn's disk requests to the disks and returns those that are to be executed on this goroutine.
func (r *Resource) submit(t *turn) (direct []*ioreq) {
	if len(t.disk) == 0 {
		return nil
	}
	n := 0
	for i, io := range t.disk {
		t.disk[i] = nil
		v := io.vol
		if !r.prepare(io) {
			continue
		}
		if t.direct || io.store.Cheap() {
			t.disk[n] = io
			n++
			continue
		}
		t.batch = append(t.batch, &io.disk)
		if i+1 == len(t.disk) || t.disk[i+1].vol != v {
			io.store.Submit(t.batch)
			clear(t.batch)
			t.batch = t.batch[:0]
		}
	}
	if len(t.batch) > 0 { // the last one of the loop was not for the disk
		t.batch[0].Owner.(*ioreq).store.Submit(t.batch)
		clear(t.batch)
		t.batch = t.batch[:0]
	}
	return t.disk[:n]
}

// prepare gives a read its buffer and sets the rest of the disk request. False: it goes another way.
func (r *Resource) prepare(io *ioreq) bool {
	d := &io.disk
	if io.store == nil { // it was closed under the Machine, because the resource goes down
		d.Err = disk.ErrClosed
		io.vol.done.push(io)
		return false
	}
	switch d.Op {
	case disk.Read, disk.Write:
		if io.buf == nil {
			io.buf = r.readBuffer(int(d.Len))
			io.data = io.buf.B
		}
		d.Buf, d.Mem = io.data[:d.Len], io.buf
	}
	if io.noFlush {
		io.vol.done.push(io)
		return false
	}
	if io.undo {
		io.vol.saveFirst(io)
		return false
	}
	return true
}

// readBuffer gives a buffer for a read that a peer asked for. How many there are is bounded by the window of the peer's
// requests, so this never waits: the goroutines that give buffers back come here too.
func (r *Resource) readBuffer(n int) *iobuf.Buf {
	if b := r.links.TryGet(n); b != nil {
		return b
	}
	return r.spare.Get(n)
}

// diskDone feeds the outcome of a disk request to the Machine. r.mu is held.
func (r *Resource) diskDone(at core.Now, io *ioreq) {
	v, kind := io.vol, io.kind
	v.busy--
	io.onDisk = false
	if err := io.disk.Err; err != nil {
		v.diskError(io, err)
	}
	r.m.DiskDone(at, io.req, io.disk.Err)
	if kind == core.HealWrite {
		r.unref(io)
	}
}

// execute runs the disk request on this goroutine.
func (io *ioreq) execute() {
	io.store.Do(&io.disk)
	io.finish()
}

// diskDone is Done of every submitted disk request.
func diskDone(d *disk.Request) {
	io := d.Owner.(*ioreq)
	io.vol.done.push(io)
}

// finish computes the digests that the Machine or the links want, with no mutex held.
func (io *ioreq) finish() {
	if io.disk.Op != disk.Read || io.kind == core.AppRead || io.buf == nil {
		return
	}
	if io.peer < 0 || io.peer >= len(io.vol.r.peers) {
		return
	}
	p := io.vol.r.peers[io.peer]
	data := io.disk.Buf
	ok := io.disk.Err == nil
	io.own.n = 0
	if io.digest || io.compare {
		d := p.verify.Load()
		if io.kind == core.SyncRead || io.kind == core.SyncWrite {
			d = p.csums.Load()
		}
		if ok && d != nil {
			io.own.set(d.Digest, data)
		}
		if io.compare {
			io.req.Match = ok && io.own.n > 0 && string(io.own.bytes()) == string(io.got.bytes())
		}
	}
	if io.thin {
		io.req.AllZero = ok && allZero(data)
	}
	if d := p.integDigest.Load(); ok && d != nil && (io.kind == core.PeerRead || io.kind == core.SyncRead && !io.req.Match) {
		io.integrity(d.Digest, data)
	}
}
