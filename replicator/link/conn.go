package link

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"sync"

	"github.com/hawser-ha/hawser/replicator/wire"
)

// Socket is one of the two sockets of a connection.
type Socket uint8

// The two sockets.
const (
	DataSocket Socket = iota
	MetaSocket
)

func (s Socket) String() string {
	if s == MetaSocket {
		return "meta"
	}
	return "data"
}

// Handler gets what a Conn receives. Data and DataTail run on the goroutine of
// the data socket, Meta on that of the meta socket, each in order of arrival; the
// two run concurrently. An error from any of them ends the connection with it.
// The packet is valid until the method (for a packet with a tail: DataTail)
// returns; its Ext may be kept.
type Handler interface {
	// Data is called for each packet of the data socket. If p.Tail is not zero it
	// returns a buffer of at least p.Tail bytes, into which digest and data are
	// read before DataTail is called with it.
	Data(p *wire.Packet) (tail []byte, err error)
	// DataTail completes the packet that Data announced. tail is p.Tail bytes long.
	DataTail(p *wire.Packet, tail []byte) error
	// Meta is called for each packet of the meta socket.
	Meta(p *wire.Packet) error
	// Idle is called on the socket's goroutine when everything received has been
	// handled and the next read would block, and once a full buffer (data: 256 KiB) if it never would:
	// the moment to flush batched replies and to submit what was gathered. It may
	// come within a tail too. Never twice without a byte in between.
	Idle(s Socket)
	// Down is called once, after the last call of any other method and when the
	// link no longer holds any payload. err is the first reason.
	Down(err error)
}

// Conn is an established connection. Its methods are safe for concurrent use
// unless they say otherwise, and none of them blocks.
type Conn struct {
	Version          int    // agreed protocol version
	Features         uint32 // agreed features
	ResolveConflicts bool   // we accepted the meta socket (section 3)
	Local, Remote    net.Addr

	log        *slog.Logger
	data, meta queue
	rdata      reader
	rmeta      reader
	h          Handler

	mu      sync.Mutex // guards the next three
	started bool
	closed  bool
	err     error         // first reason to close
	closing chan struct{} // closed by Close
	ended   chan struct{} // closed after Down
}

// newConn takes over two sockets that are past the handshake.
func newConn(log *slog.Logger, version int, features uint32, resolve bool, data, meta net.Conn) *Conn {
	c := &Conn{
		Version: version, Features: features, ResolveConflicts: resolve,
		Local: data.LocalAddr(), Remote: data.RemoteAddr(),
		log: log, closing: make(chan struct{}), ended: make(chan struct{}),
	}
	c.data.init(c, DataSocket, data)
	c.meta.init(c, MetaSocket, meta)
	c.rdata.init(c, DataSocket, data, 256<<10)
	c.rmeta.init(c, MetaSocket, meta, 32<<10)
	return c
}

// Start begins to receive. It is called exactly once, and before the first Flush.
func (c *Conn) Start(h Handler) {
	c.mu.Lock()
	if c.started {
		panic("link: Conn started twice")
	}
	c.started, c.h = true, h
	c.mu.Unlock()
	var wg sync.WaitGroup
	wg.Go(c.data.background)
	wg.Go(c.meta.background)
	wg.Go(func() { c.Close(c.rdata.loop()) })
	wg.Go(func() { c.Close(c.rmeta.loop()) })
	go func() { // waited for through ended
		wg.Wait()
		c.data.drain()
		c.meta.drain()
		c.data.conn.Close()
		c.meta.conn.Close()
		h.Down(c.reason())
		close(c.ended)
	}()
}

// Close ends the connection for the given reason; the first one counts. It
// returns at once, Handler.Down tells when all has ended. Queued packets that the
// kernel has not taken are dropped, and their sent functions never called.
func (c *Conn) Close(err error) {
	if err == nil {
		err = ErrClosed
	}
	c.mu.Lock()
	first := !c.closed
	if first {
		c.closed, c.err = true, err
	}
	started := c.started
	c.mu.Unlock()
	if !first {
		return
	}
	c.data.stop()
	c.meta.stop()
	close(c.closing)
	if !started {
		c.data.conn.Close()
		c.meta.conn.Close()
	}
}

// Done is closed after Handler.Down has returned.
func (c *Conn) Done() <-chan struct{} { return c.ended }

func (c *Conn) reason() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err
}

// SendData queues one packet for the data socket, in the order of the calls: the
// fixed part of p, then digest and payload. It sets p.Tail. p and digest may be
// reused after the return; payload is referenced until sent is called or the
// connection is down. sent, if not nil, is called with owner once the kernel has
// taken all bytes of the packet, on whatever goroutine is writing, and must not
// block. Call FlushData after the last packet of a batch.
func (c *Conn) SendData(p *wire.Packet, digest, payload []byte, sent func(owner any), owner any) {
	p.Tail = uint32(len(digest) + len(payload))
	c.data.add(p, digest, payload, sent, owner)
}

// SendMeta queues one packet for the meta socket.
func (c *Conn) SendMeta(p *wire.Packet) { c.meta.add(p, nil, nil, nil, nil) }

// FlushData starts to send what is queued for the data socket. The caller may
// become the writer for a few system calls that do not block.
func (c *Conn) FlushData() { c.data.flush() }

// FlushMeta does the same for the meta socket.
func (c *Conn) FlushMeta() { c.meta.flush() }

// QueuedBytes is how much of the data socket's queue the kernel has not taken yet.
func (c *Conn) QueuedBytes() int { return int(c.data.queued.Load()) }

// Unsent is how many bytes the kernel holds for the data socket that the peer has
// not acknowledged, and the size of its send buffer. Both 0 when not known.
func (c *Conn) Unsent() (used, size int) { return sendBuffer(c.data.tcp) }

// StalledSince is when (as by Now) the kernel last took bytes from a queue that is
// not empty, or, if later, when that queue ceased to be empty. 0: it is empty.
func (c *Conn) StalledSince(s Socket) int64 {
	q := &c.data
	if s == MetaSocket {
		q = &c.meta
	}
	if q.queued.Load() == 0 {
		return 0
	}
	return q.progress.Load()
}

// LastRecv is when (as by Now) bytes last arrived on a socket.
func (c *Conn) LastRecv(s Socket) int64 {
	if s == MetaSocket {
		return c.rmeta.last.Load()
	}
	return c.rdata.last.Load()
}

// SetRecvDigest sets the length in bytes of the digests the peer puts before its
// data from the next packet on. Call it in Handler.Data, when P_PROTOCOL or
// P_PROTOCOL_UPDATE tells the peer's integrity algorithm.
func (c *Conn) SetRecvDigest(size int) { c.rdata.digest = size }

// broken wraps an error of a socket.
func broken(s Socket, err error) error {
	if errors.Is(err, io.EOF) {
		return fmt.Errorf("%s socket: %w", s, ErrPeerClosed)
	}
	return fmt.Errorf("%s socket: %w: %w", s, ErrNetwork, err)
}
