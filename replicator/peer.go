package replicator

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"

	"github.com/hawser-ha/hawser/replicator/control"
	"github.com/hawser-ha/hawser/replicator/core"
	"github.com/hawser-ha/hawser/replicator/iobuf"
	"github.com/hawser-ha/hawser/replicator/link"
	"github.com/hawser-ha/hawser/replicator/wire"
)

const (
	turnPackets = 64   // packets of a link handled before what they led to is carried out
	tailRoom    = 4096 // bytes before received data, where its digest lands, so that the data is page aligned
)

// ErrIntegrity says that the digest that came with data is not that of the data. The connection ends, and the resync that follows
// copies the block again.
var ErrIntegrity = errors.New("data integrity digest does not match")

// digestBox makes a Digest storable in an atomic pointer.
type digestBox struct{ wire.Digest }

// peer is one other node. conn, cancel, attempt, integ are guarded by Resource.mu.
type peer struct {
	r   *Resource
	idx int
	log *slog.Logger

	conn    *link.Conn
	queue   *sendQueue         // of conn
	cancel  context.CancelFunc // ends the attempts to connect
	attempt uint64             // counts links and attempts: what an older one reports is void
	integ   wire.Digest        // data-integrity-alg of what we send; nil: none

	def         atomic.Pointer[control.PeerDef]
	integDigest atomic.Pointer[digestBox] // integ, for those without the mutex
	csums       atomic.Pointer[digestBox]
	verify      atomic.Pointer[digestBox]
	lastErr     atomic.Pointer[error]
}

// digestOf finds a digest; an unknown or empty name is none (the definition was checked).
func digestOf(alg string) wire.Digest {
	if alg == "" {
		return nil
	}
	d, err := wire.NewDigest(alg)
	if err != nil {
		return nil
	}
	return d
}

func boxOf(d wire.Digest) *digestBox {
	if d == nil {
		return nil
	}
	return &digestBox{d}
}

func sizeOf(alg string) int {
	if d := digestOf(alg); d != nil {
		return d.Size()
	}
	return 0
}

// configure takes the options that are acted on outside the Machine.
func (p *peer) configure(d control.PeerDef) {
	p.def.Store(&d)
	p.csums.Store(boxOf(digestOf(d.Net.CsumsAlg)))
	p.verify.Store(boxOf(digestOf(d.Net.VerifyAlg)))
}

// sendQueue holds the buffers whose data waits in the queue of a link, in order: links send and report in order.
type sendQueue struct {
	mu   sync.Mutex // guards bufs and head
	bufs []*iobuf.Buf
	head int // first in use
}

func (q *sendQueue) push(b *iobuf.Buf) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.head > 0 && len(q.bufs) == cap(q.bufs) {
		n := copy(q.bufs, q.bufs[q.head:])
		clear(q.bufs[n:])
		q.bufs, q.head = q.bufs[:n], 0
	}
	q.bufs = append(q.bufs, b)
}

// payloadSent is called by a link when the kernel has taken the oldest payload.
func payloadSent(owner any) {
	q := owner.(*sendQueue)
	q.mu.Lock()
	b := q.bufs[q.head]
	q.bufs[q.head] = nil
	if q.head++; q.head == len(q.bufs) {
		q.bufs, q.head = q.bufs[:0], 0
	}
	q.mu.Unlock()
	b.Release()
}

// drop releases what will never be sent: the link is down and holds no payload any more.
func (q *sendQueue) drop() {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, b := range q.bufs[q.head:] {
		b.Release()
	}
	q.bufs, q.head = nil, 0
}

// connect starts to establish the link. r.mu is held.
func (r *Resource) connect(p *peer) {
	if r.closing {
		return
	}
	p.attempt++
	attempt := p.attempt
	ctx, cancel := context.WithCancel(r.ctx)
	if p.cancel != nil {
		p.cancel()
	}
	p.cancel = cancel
	cfg := p.linkConfig()
	r.wg.Go(func() {
		defer cancel()
		c, err := link.Establish(ctx, p.log, cfg)
		t := r.lock()
		if p.attempt != attempt || r.closing {
			r.unlock(t)
			if c != nil {
				c.Close(nil)
			}
			return
		}
		if err != nil {
			if ctx.Err() == nil {
				p.setErr(err)
				r.m.LinkDown(now(), p.idx, err, true)
			}
			r.unlock(t)
			return
		}
		r.linkUp(p, c)
		r.unlock(t)
	})
}

func (p *peer) setErr(err error) { p.lastErr.Store(&err) }

// linkUp takes a new connection. r.mu is held: packets that arrive wait for it.
func (r *Resource) linkUp(p *peer, c *link.Conn) {
	p.conn, p.queue, p.integ = c, &sendQueue{}, nil
	p.integDigest.Store(nil)
	h := &handler{r: r, p: p, c: c, attempt: p.attempt, queue: p.queue}
	r.linksUp.Add(1)
	c.Start(h)
	r.m.LinkUp(now(), p.idx, core.LinkInfo{
		Version: c.Version, Features: c.Features, ResolveConflicts: c.ResolveConflicts,
		LastReceived: func() (data, meta core.Now) {
			return core.Now(c.LastRecv(link.DataSocket)), core.Now(c.LastRecv(link.MetaSocket))
		},
		SendStalled: func() core.Now { return core.Now(c.StalledSince(link.DataSocket)) },
		Queued:      c.QueuedBytes,
	})
}

// closeLink ends the link or the attempts; nothing of it is reported afterwards. r.mu is held.
func (r *Resource) closeLink(p *peer, why error) {
	p.attempt++
	if p.cancel != nil {
		p.cancel()
		p.cancel = nil
	}
	if why != nil {
		p.setErr(why)
	}
	if p.conn != nil {
		p.conn.Close(why)
		p.conn, p.queue = nil, nil
	}
}

// linkConfig is how the link package gets the options.
func (p *peer) linkConfig() link.Config {
	d := p.def.Load()
	features := uint32(wire.FeatureTrim | wire.FeatureThinResync | wire.FeatureWSame | wire.FeatureWZeroes | core.FeatureRelaxedEpochs)
	if p.r.records != nil {
		features |= wire.FeatureTerm
	}
	return link.Config{
		Local: d.Local, Remote: d.Remote,
		ConnectInt: d.Net.ConnectInt, PingTimeout: d.Net.PingTimeout, SocketCheckTimeout: d.Net.SocketCheckTimeout,
		SndBuf: d.Net.SndbufSize, RcvBuf: d.Net.RcvbufSize,
		CramHMACAlg: d.Net.CramHMACAlg, SharedSecret: d.Net.SharedSecret,
		Features: features,
		TLS:      p.r.opts.TLS,
	}
}

// handler gets what one link receives. Its fields belong to the goroutine of the data socket, but for meta.
type handler struct {
	r       *Resource
	p       *peer
	c       *link.Conn
	attempt uint64
	queue   *sendQueue

	data turn // of the data socket's goroutine
	meta turn // of the meta socket's goroutine

	io     *ioreq // takes the tail that is being read
	lent   bool   // io belongs to a waiting Request
	copied bool   // the tail lands in spare, and goes to io afterwards
	spare  []byte
	small  [4096]byte
	peerIn wire.Digest // integrity algorithm of what the peer sends
}

var errStale = errors.New("connection was given up")

// Data handles a packet without tail, or says where its tail goes.
func (h *handler) Data(p *wire.Packet) ([]byte, error) {
	switch p.Cmd {
	case wire.Data, wire.DataReply, wire.RSDataReply:
		if p.Tail == 0 || uint32(p.Tail) < p.Size {
			return nil, fmt.Errorf("%w: %s without data", link.ErrProtocol, p.Cmd)
		}
		return h.place(p)
	case wire.Protocol, wire.ProtocolUpdate:
		if b, ok := p.Ext.(*wire.ProtocolBody); ok {
			h.peerIn = digestOf(b.IntegrityAlg)
			if h.peerIn == nil && b.IntegrityAlg != "" {
				return nil, fmt.Errorf("%w: data-integrity-alg %q is not known here", link.ErrProtocol, b.IntegrityAlg)
			}
			h.c.SetRecvDigest(sizeOf(b.IntegrityAlg))
		}
	}
	if p.Tail == 0 {
		return nil, h.packet(&h.data, p, nil, nil)
	}
	if int(p.Tail) > len(h.small) {
		return nil, fmt.Errorf("%w: %s with %d bytes", link.ErrProtocol, p.Cmd, p.Tail)
	}
	return h.small[:p.Tail], nil
}

// place finds the memory for the data of p: the buffer of the request that waits for it, or a new one.
func (h *handler) place(p *wire.Packet) ([]byte, error) {
	size, dig := int(p.Size), int(p.Tail-p.Size)
	h.io, h.lent, h.copied = nil, false, false
	if p.Cmd != wire.Data {
		h.r.mu.Lock()
		if req := h.r.m.ReplyBuffer(h.p.idx, p); req != nil {
			if io, ok := req.Tag.(*ioreq); ok && len(io.data) >= size {
				io.refs++
				h.io, h.lent = io, true
			}
		}
		h.r.mu.Unlock()
	}
	if h.lent {
		if dig == 0 {
			return h.io.data[:size], nil
		}
		h.copied = true
		if len(h.spare) < size+dig {
			h.spare = make([]byte, wire.MaxData+wire.MaxDigest)
		}
		return h.spare[:size+dig], nil
	}
	room := 0
	if dig > 0 {
		room = tailRoom
	}
	buf := h.r.links.TryGet(room + size)
	if buf == nil {
		h.run(&h.data) // what we hold back may be what others wait for
		buf = h.r.links.Get(room + size)
	}
	h.r.mu.Lock()
	h.io = h.r.newIO()
	h.r.mu.Unlock()
	h.io.buf, h.io.data = buf, buf.B[room:room+size]
	return buf.B[room-dig : room+size], nil
}

// DataTail handles the packet that Data found memory for.
func (h *handler) DataTail(p *wire.Packet, tail []byte) error {
	switch p.Cmd {
	case wire.Data, wire.DataReply, wire.RSDataReply:
		io, lent := h.io, h.lent
		h.io = nil
		dig := len(tail) - int(p.Size)
		data := tail[dig:]
		if dig > 0 && h.peerIn != nil {
			var s sum
			s.set(h.peerIn, data)
			if string(s.bytes()) != string(tail[:dig]) {
				h.drop(io)
				return fmt.Errorf("%w: %s at sector %d, %d bytes", ErrIntegrity, p.Cmd, p.Sector, p.Size)
			}
		}
		if h.copied {
			copy(io.data, data)
		}
		p.Tail = p.Size
		return h.tagged(p, io, lent, nil)
	case wire.OVReply, wire.CsumRSRequest:
		h.r.mu.Lock()
		io := h.r.newIO()
		h.r.mu.Unlock()
		io.got.n = uint8(copy(io.got.b[:], tail))
		return h.tagged(p, io, false, nil)
	}
	return h.packet(&h.data, p, nil, tail)
}

func (h *handler) drop(io *ioreq) {
	h.r.mu.Lock()
	h.r.unref(io)
	h.r.mu.Unlock()
}

// tagged feeds a packet whose tail is in io.
func (h *handler) tagged(p *wire.Packet, io *ioreq, lent bool, data []byte) error {
	r := h.r
	r.mu.Lock()
	if h.p.attempt != h.attempt {
		r.unref(io)
		r.mu.Unlock()
		return errStale
	}
	keep, err := r.m.Packet(now(), h.p.idx, p, io, data)
	if lent || !keep {
		r.unref(io)
	}
	return h.leave(&h.data, err)
}

// packet feeds a packet whose tail, if any, is only looked at.
func (h *handler) packet(t *turn, p *wire.Packet, tag any, data []byte) error {
	r := h.r
	r.mu.Lock()
	if h.p.attempt != h.attempt {
		r.mu.Unlock()
		return errStale
	}
	_, err := r.m.Packet(now(), h.p.idx, p, tag, data)
	return h.leave(t, err)
}

// leave ends what packet and tagged began: r.mu is held.
func (h *handler) leave(t *turn, err error) error {
	h.r.collect(t)
	h.r.mu.Unlock()
	if t.undone++; t.undone >= turnPackets || err != nil {
		h.run(t)
	}
	return err
}

// run carries out what the packets of a turn led to.
func (h *handler) run(t *turn) { h.r.run(t) }

// Meta handles a packet of the meta socket.
func (h *handler) Meta(p *wire.Packet) error { return h.packet(&h.meta, p, nil, nil) }

// Idle carries out what the packets so far led to: nothing else is there to be received.
func (h *handler) Idle(s link.Socket) {
	t := &h.data
	if s == link.MetaSocket {
		t = &h.meta
	}
	// A write that came alone to an idle disk is executed here. Not on the meta socket: pings are answered there.
	if s == link.DataSocket && len(t.disk) == 1 && !h.reading() {
		h.r.mu.Lock()
		t.direct = t.disk[0].vol.busy == 1
		h.r.mu.Unlock()
	}
	if t.undone > 0 || len(t.disk) > 0 {
		h.run(t)
	}
	t.direct = false
}

// reading says that a tail is incomplete.
func (h *handler) reading() bool { return h.io != nil }

// Down tells the Machine that the link has ended by itself.
func (h *handler) Down(err error) {
	r := h.r
	defer r.linksUp.Done()
	h.run(&h.data)
	h.run(&h.meta)
	h.queue.drop()
	if h.io != nil {
		h.drop(h.io)
		h.io = nil
	}
	t := r.lock()
	if h.p.attempt == h.attempt && h.p.conn == h.c {
		h.p.conn, h.p.queue = nil, nil
		h.p.attempt++
		h.p.setErr(err)
		h.p.log.Info("connection lost", "why", err)
		r.m.LinkDown(now(), h.p.idx, err, false)
	}
	r.unlock(t)
}
