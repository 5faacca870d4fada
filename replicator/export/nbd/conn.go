package nbd

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hawser-ha/hawser/replicator/export"
	"github.com/hawser-ha/hawser/replicator/iobuf"
)

const (
	readBuffer     = 64 << 10 // bytes
	directRead     = 16 << 10 // payloads from here on are read straight into their buffer
	unixSendBuffer = 1 << 20  // bytes
	pollMax        = 4        // reads before the reader sleeps in the middle of a request
	gatherMax      = 16       // a batch of so many is submitted without looking for more
	gatherTry      = 16       // looks in vain before gathering is given up, and batches until it is tried again
	batchMax       = 64       // requests in one Submit
	inflightMax    = 1024     // requests of one connection
	drainGrace     = 500 * time.Millisecond
	drainMax       = 10 * time.Second // for replies to go out when a connection ends
)

// errProtocol is wrapped by everything that costs a client its connection.
var errProtocol = errors.New("protocol violation")

// conn is one client. The reader goroutine owns what is not marked otherwise.
type conn struct {
	srv  *Server
	log  *slog.Logger
	base net.Conn // below TLS: for deadlines and the last close
	nc   net.Conn

	// The input buffer: in[r:w] is read but not used.
	in   []byte
	r, w int

	handshake
	exp        *exported
	limits     export.Limits
	maxIO      int
	structured bool
	size       atomic.Int64 // bytes; a resize changes it
	sess       export.Session

	batch       []*export.Request
	local       bool // replies were queued by the reader itself
	freeList    *request
	issued      int64
	issuedBytes int64
	doneSeen    int64 // answered, as last looked up
	doneBytes   int64 // answeredBytes, as last looked up
	extents     []export.Extent
	graceUntil  time.Time // non-zero: the volume has ended the session

	down atomic.Bool // the session has to end
	dead atomic.Bool // the socket is of no use any more

	mu            sync.Mutex // guards the fields down to waiting
	cond          sync.Cond
	reason        error    // why down
	head, tail    *request // replies to send
	sending       bool     // somebody owns the sender's fields
	free          *request // requests to use again
	answered      int64    // requests dealt with
	answeredBytes int64
	waiting       bool // the reader waits on cond

	// The sender's, that is who has set sending.
	list       *request // taken from head
	cur        *request // the one being sent, with part: -1 before its header
	part       int
	out        []byte // small replies
	outSent    int
	big        []byte // sent after out, not copied
	sent       *request
	sentTail   *request
	sentN      int64
	freeBytes  int64
	writeUntil time.Time
	handover   chan struct{} // capacity 1

	eager    int // looks of gather still to be had; negative: batches since
	readFunc func(uintptr) bool
	waitFunc func(uintptr) bool
	readTo   []byte
	readN    int
	readErr  error

	raw     syscall.RawConn // nil: TLS, or no socket at all
	rawFunc func(uintptr) bool
	rawWait bool
	rawN    int
	rawErr  error
	iov     [2]unix.Iovec
}

func newConn(s *Server, nc net.Conn) *conn {
	c := &conn{srv: s, log: s.cfg.Log, base: nc, nc: nc, in: make([]byte, readBuffer), handover: make(chan struct{}, 1)}
	c.cond.L = &c.mu
	if u, ok := nc.(*net.UnixConn); ok { // these do not tune themselves: 1 MiB reads are 1.6 times as fast with it
		_ = u.SetWriteBuffer(unixSendBuffer)
	}
	return c
}

// shut asks the connection to end and does not wait. Requests in flight and those that follow are answered with
// ESHUTDOWN for a while.
func (c *conn) shut(reason error) {
	c.mu.Lock()
	if c.reason == nil {
		c.reason = reason
	}
	c.down.Store(true)
	if c.waiting {
		c.cond.Signal()
	}
	c.mu.Unlock()
	_ = c.base.SetReadDeadline(time.Unix(1, 0))
	c.srv.budget.wake()
}

// stopping is what waits for memory ask.
func (c *conn) stopping() bool { return c.down.Load() || c.dead.Load() }

// noticeDown closes the session once shut was called.
func (c *conn) noticeDown() {
	if !c.graceUntil.IsZero() || !c.down.Load() {
		return
	}
	c.graceUntil = time.Now().Add(drainGrace)
	_ = c.base.SetReadDeadline(c.graceUntil)
	c.submit()
	c.sess.Close()
}

// read reads once from the client. A deadline that only says "look at down" is not an error.
func (c *conn) read(p []byte) (int, error) {
	for {
		n, err := c.readOnce(p)
		if n > 0 {
			return n, nil
		}
		if err == nil {
			continue
		}
		if c.sess == nil || !errors.Is(err, os.ErrDeadlineExceeded) || !c.down.Load() {
			return 0, err
		}
		c.noticeDown()
		if !time.Now().Before(c.graceUntil) {
			return 0, err
		}
		_ = c.base.SetReadDeadline(c.graceUntil) // shut may have set its own after ours
	}
}

// need makes n bytes available at in[r:]; n fits in the buffer. What has been parsed is submitted before waiting.
func (c *conn) need(n int) error {
	if c.w-c.r >= n {
		return nil
	}
	if c.r == c.w {
		c.r, c.w = 0, 0
	} else if c.r+n > len(c.in) || len(c.in)-c.w < len(c.in)/4 {
		c.w = copy(c.in, c.in[c.r:c.w])
		c.r = 0
	}
	for c.gather() {
		if c.w-c.r >= n {
			return nil
		}
	}
	c.submit()
	for c.w-c.r < n {
		if c.w > c.r && c.poll(pollMax) { // clients send header and payload one after the other: do not sleep between
			continue
		}
		k, err := c.read(c.in[c.w:])
		if err != nil {
			if errors.Is(err, io.EOF) && c.w > c.r {
				err = io.ErrUnexpectedEOF
			}
			return err
		}
		c.w += k
	}
	return nil
}

// gather looks for more input before a small batch is submitted, as long as that has been worth it lately: a client
// that sends its requests one by one, but does not wait for the replies, is served in larger batches so.
func (c *conn) gather() bool {
	if n := len(c.batch); n == 0 || n >= gatherMax {
		return false
	}
	if c.eager--; c.eager < 0 && c.eager%gatherTry != 0 {
		return false
	}
	if !c.poll(1) {
		return false
	}
	c.eager = gatherTry
	return true
}

// poll looks up to tries times for more input without sleeping.
func (c *conn) poll(tries int) bool {
	if c.raw == nil {
		return false
	}
	for range tries {
		if err := c.raw.Read(c.readFunc); err != nil {
			return false
		}
		if c.readN > 0 {
			c.w += c.readN
			return true
		}
		if c.readErr != unix.EAGAIN { //nolint:errorlint // raw errno of a system call
			return false
		}
	}
	return false
}

// rawRead is the system call of poll, in the shape syscall.RawConn asks for.
func (c *conn) rawRead(fd uintptr) bool {
	c.readN, c.readErr = sockRead(fd, c.in[c.w:])
	return true
}

// rawAwait is the system call of read, in the same shape: false has the runtime wait until there is something.
func (c *conn) rawAwait(fd uintptr) bool {
	c.readN, c.readErr = sockRead(fd, c.readTo)
	return c.readErr != unix.EAGAIN //nolint:errorlint // raw errno of a system call
}

// readOnce reads what there is, and waits until there is something.
func (c *conn) readOnce(p []byte) (int, error) {
	if c.raw == nil {
		return c.nc.Read(p)
	}
	c.readTo = p
	err := c.raw.Read(c.waitFunc)
	c.readTo = nil
	switch {
	case err != nil:
		return 0, err
	case c.readErr != nil:
		return 0, c.readErr
	case c.readN == 0 && len(p) > 0:
		return 0, io.EOF
	}
	return c.readN, nil
}

// readFull fills p, first from the buffer.
func (c *conn) readFull(p []byte) error {
	k := copy(p, c.in[c.r:c.w])
	c.r += k
	for k < len(p) {
		n, err := c.read(p[k:])
		if err != nil {
			return err
		}
		k += n
	}
	return nil
}

// discard skips n bytes of input.
func (c *conn) discard(n int64) error {
	for n > 0 {
		if c.r == c.w {
			if err := c.need(1); err != nil {
				return err
			}
		}
		k := min(n, int64(c.w-c.r))
		c.r += int(k)
		n -= k
	}
	return nil
}

// transmit serves the transmission phase until the client leaves, the session ends or the protocol is violated.
func (c *conn) transmit() error {
	for {
		if c.down.Load() {
			c.noticeDown()
		}
		if err := c.need(requestSize); err != nil {
			return err
		}
		h := c.in[c.r : c.r+requestSize]
		if binary.BigEndian.Uint32(h) != magicRequest {
			return fmt.Errorf("%w: bad request magic", errProtocol)
		}
		flags := binary.BigEndian.Uint16(h[4:])
		cmd := binary.BigEndian.Uint16(h[6:])
		off := binary.BigEndian.Uint64(h[16:])
		length := binary.BigEndian.Uint32(h[24:])
		if cmd == cmdDisc {
			return nil
		}
		r, err := c.request()
		if err != nil {
			return err
		}
		r.cmd, r.cookie = cmd, binary.BigEndian.Uint64(h[8:])
		r.start, r.Off, r.Len = off, int64(off), int64(length)
		r.FUA, r.NoHole = flags&cflagFUA != 0, flags&cflagNoHole != 0
		c.r += requestSize

		no := c.check(r, flags)
		if no == eOK && c.down.Load() {
			no = eShutdown
		}
		if err := c.begin(r, no, flags); err != nil {
			return err
		}
		if len(c.batch) >= batchMax {
			c.submit()
		}
	}
}

// check applies the rules that need no volume.
func (c *conn) check(r *request, flags uint16) uint32 {
	if r.cmd >= cmdCount || flags&^legalFlags[r.cmd] != 0 {
		return eInval
	}
	if flags&cflagDF != 0 && !c.structured {
		return eInval
	}
	if r.cmd == cmdFlush {
		if r.start != 0 || r.Len != 0 {
			return eInval
		}
		return eOK
	}
	if size := c.size.Load(); r.start > uint64(size) || r.Len > size-r.Off {
		if r.cmd == cmdWrite || r.cmd == cmdWriteZeroes {
			return eNoSpace
		}
		return eInval
	}
	if mask := int64(c.limits.MinBlock - 1); (r.Off|r.Len)&mask != 0 {
		return eInval
	}
	switch r.cmd {
	case cmdRead, cmdWrite:
		if r.Len > payloadMax {
			return eInval
		}
	case cmdWriteZeroes:
		if flags&cflagFastZero != 0 && !c.limits.FastZero {
			return eNotSup
		}
	case cmdBlockStatus:
		if !c.allocation {
			return eInval
		}
	}
	return eOK
}

// begin answers a request at once, or adds it to the batch.
func (c *conn) begin(r *request, no uint32, flags uint16) (err error) {
	if no != eOK {
		if r.cmd == cmdWrite {
			if r.Len > discardMax {
				c.answer(r, no)
				return fmt.Errorf("%w: write of %d bytes", errProtocol, r.Len)
			}
			err = c.discard(r.Len)
		}
		c.answer(r, no)
		return err
	}
	if r.Len == 0 && r.cmd != cmdFlush {
		if r.cmd == cmdBlockStatus {
			no = eInval
		}
		c.answer(r, no)
		return nil
	}
	switch r.cmd {
	case cmdRead:
		r.Op = export.Read
		return c.beginData(r)
	case cmdWrite:
		r.Op = export.Write
		return c.beginData(r)
	case cmdFlush:
		r.Op = export.Flush
	case cmdTrim:
		r.Op = export.Trim
	case cmdWriteZeroes:
		r.Op = export.WriteZeroes
	case cmdCache: // a hint, and the volume has no use for it
		c.answer(r, eOK)
		return nil
	case cmdBlockStatus:
		c.blockStatus(r, flags&cflagReqOne != 0)
		return nil
	}
	c.batch = append(c.batch, &r.Request)
	return nil
}

// answer queues a reply without the volume.
func (c *conn) answer(r *request, no uint32) {
	r.encode(no)
	c.push(r)
	c.local = true
}

func (c *conn) blockStatus(r *request, one bool) {
	c.submit()
	limit := extentsMax
	if one {
		limit = 1
	}
	exts, err := c.exp.volume.Extents(c.extents[:0], r.Off, r.Len, limit)
	c.extents = exts[:0]
	no := errno(err)
	if no == eOK && !r.encodeExtents(exts, one, c.size.Load(), c.limits.MinBlock) {
		no = eIO
	}
	if no != eOK {
		r.extra = r.extra[:0]
		r.encode(no)
	}
	c.push(r)
	c.local = true
}

// beginData lends a READ or WRITE its buffers, reads the payload, and adds the request to the batch.
func (c *conn) beginData(r *request) error {
	n := int(r.Len)
	cost := charge(n)
	if n > c.maxIO {
		cost = int64(n/c.maxIO)*charge(c.maxIO) + charge(n%c.maxIO)
	}
	if !c.reserve(cost) {
		var err error
		if r.cmd == cmdWrite {
			err = c.discard(r.Len)
		}
		c.answer(r, eShutdown)
		return err
	}
	r.cost = cost
	if n <= c.maxIO {
		r.Buf = c.buffer(n)
		if err := c.payload(r.Op, r.Buf); err != nil {
			c.answer(r, eIO) // nobody reads it, but it is accounted for
			return err
		}
		c.batch = append(c.batch, &r.Request)
		return nil
	}
	return c.beginParts(r, n)
}

// beginParts is beginData for a request larger than the volume's MaxIO. Only these cost allocations.
func (c *conn) beginParts(r *request, n int) error {
	r.pending.Store(1) // ours: it must not finish before all is submitted
	var failed error
	for done := 0; done < n; {
		k := min(n-done, c.maxIO)
		p := newRequest(c)
		p.whole, p.Op, p.FUA = r, r.Op, r.FUA
		p.Off, p.Len = r.Off+int64(done), int64(k)
		p.Buf = c.buffer(k)
		r.parts = append(r.parts, p)
		done += k
		if failed = c.payload(p.Op, p.Buf); failed != nil {
			r.Err = export.ErrIO
			break
		}
		r.pending.Add(1)
		if c.batch = append(c.batch, &p.Request); len(c.batch) >= batchMax {
			c.submit()
		}
	}
	c.submit()
	if r.pending.Add(-1) == 0 {
		r.gather()
		c.local = true
	}
	return failed
}

// payload reads what belongs to a WRITE.
func (c *conn) payload(op export.Op, b *iobuf.Buf) error {
	if op != export.Write {
		return nil
	}
	n := len(b.B)
	if n < directRead {
		if err := c.need(n); err != nil {
			return err
		}
		copy(b.B, c.in[c.r:c.r+n])
		c.r += n
		return nil
	}
	if c.w-c.r < n {
		c.submit()
	}
	return c.readFull(b.B)
}

// buffer lends n bytes. The budget has them; still the volume may hold others beyond its Done.
func (c *conn) buffer(n int) *iobuf.Buf {
	if b := c.srv.pool.TryGet(n); b != nil {
		return b
	}
	c.submit()
	return c.srv.pool.Get(n)
}

// reserve takes n bytes from the connection's share and from the server's budget, and waits for them. It returns
// false when the connection is to end.
func (c *conn) reserve(n int64) bool {
	if c.issuedBytes-c.doneBytes+n > c.srv.share {
		c.submit()
		c.await(func() bool { return c.issuedBytes-c.answeredBytes+n <= c.srv.share || c.stopping() })
		if c.stopping() {
			return false
		}
	}
	if !c.srv.budget.try(n) {
		c.submit()
		if !c.srv.budget.take(n, c.stopping) {
			return false
		}
	}
	c.issuedBytes += n
	return true
}

// await waits until ok, which is called with mu held. It looks up what has been answered.
func (c *conn) await(ok func() bool) {
	c.mu.Lock()
	for !ok() {
		c.waiting = true
		c.cond.Wait()
	}
	c.waiting = false
	c.doneSeen, c.doneBytes = c.answered, c.answeredBytes
	c.mu.Unlock()
}

// request takes a request from the free list. It waits while too many are in flight.
func (c *conn) request() (*request, error) {
	if c.freeList == nil {
		c.mu.Lock()
		c.freeList, c.free = c.free, nil
		c.doneSeen, c.doneBytes = c.answered, c.answeredBytes
		c.mu.Unlock()
	}
	r := c.freeList
	if r == nil {
		if c.issued-c.doneSeen >= inflightMax {
			c.submit()
			c.await(func() bool { return c.free != nil || c.dead.Load() })
			if c.dead.Load() {
				return nil, io.ErrClosedPipe
			}
			return c.request()
		}
		r = newRequest(c)
	} else {
		c.freeList = r.next
	}
	c.issued++
	r.next, r.Err, r.Buf, r.cost, r.data = nil, nil, nil, 0, false
	r.extra = r.extra[:0]
	r.parts = nil
	return r, nil
}

// submit hands the batch to the volume and sends what the reader has answered itself.
func (c *conn) submit() {
	if len(c.batch) > 0 {
		if c.graceUntil.IsZero() {
			c.sess.Submit(c.batch)
		} else {
			for _, q := range c.batch {
				q.Err = export.ErrNotPrimary
				q.Done(q)
			}
			c.local = true
		}
		clear(c.batch)
		c.batch = c.batch[:0]
	}
	if c.local {
		c.local = false
		c.Kick()
	}
}

// finish ends the transmission phase: everything begun is answered, for as long as the client takes it and at most for
// drainMax, then the session is closed.
func (c *conn) finish() {
	c.submit()
	if c.graceUntil.IsZero() {
		c.sess.Close()
	}
	timer := time.AfterFunc(drainMax, func() { c.fail(errors.New("replies not taken in time")) })
	c.await(func() bool { return c.answered == c.issued && !c.sending })
	timer.Stop()
}

// charge is what a buffer of n bytes counts for in the pool.
func charge(n int) int64 {
	for _, size := range [...]int{4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20} {
		if n <= size {
			return int64(size)
		}
	}
	return (int64(n) + 4095) &^ 4095
}
