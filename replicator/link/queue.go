package link

import (
	"net"
	"sync"
	"sync/atomic"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/hawser-ha/hawser/replicator/wire"
)

const (
	copyMax   = 2048      // payloads up to this many bytes are copied into the queue
	iovMax    = 128       // pieces of one system call
	roundsMax = 4         // batches an inline writer sends before it hands over
	joinMax   = 256 << 10 // bytes of one write where pieces must be joined
	keepHead  = 256 << 10 // larger buffers are not kept for the next batch
)

// record is a point in a batch where a payload stands or somebody wants to know.
type record struct {
	end     int // the bytes of head before it
	payload []byte
	sent    func(any)
	owner   any
}

// batch is a run of packets: head holds everything that was copied, and the
// payload of each record belongs behind head[:end].
type batch struct {
	head []byte
	recs []record
}

func (b *batch) reset() {
	clear(b.recs)
	b.recs = b.recs[:0]
	if cap(b.head) > keepHead {
		b.head = nil
	}
	b.head = b.head[:0]
}

// queue is the sending side of one socket. Packets gather in one batch while the
// other is being written by whoever holds writing.
type queue struct {
	c    *Conn
	kind Socket
	conn net.Conn
	tcp  *net.TCPConn    // below conn; nil in memory
	raw  syscall.RawConn // nil: only blocking writes are possible (TLS, memory)
	wake chan struct{}   // hands the writing to background

	queued   atomic.Int64 // bytes the kernel has not taken
	progress atomic.Int64 // when it last took some, or queued ceased to be 0

	mu      sync.Mutex // guards the next four
	quiet   sync.Cond  // writing became false
	fill    *batch
	writing bool
	stopped bool

	// The rest belongs to the writer.
	send    *batch
	rec     int // first record not sent completely
	headAt  int // bytes of head sent
	payAt   int // bytes of the payload of rec sent
	joined  []byte
	iov     [iovMax]unix.Iovec
	msg     unix.Msghdr
	size    int // bytes of msg
	n       int
	err     error
	try     func(fd uintptr) bool // one attempt
	persist func(fd uintptr) bool // waits while the socket is full
}

func (q *queue) init(c *Conn, kind Socket, conn net.Conn) {
	q.c, q.kind, q.conn = c, kind, conn
	q.tcp, q.raw = underTCP(conn)
	q.wake = make(chan struct{}, 1)
	q.quiet.L = &q.mu
	q.fill, q.send = new(batch), new(batch)
	q.try = func(fd uintptr) bool { q.sendmsg(fd); return true }
	q.persist = func(fd uintptr) bool {
		q.sendmsg(fd)
		return q.err != unix.EAGAIN //nolint:errorlint // raw errno of a system call
	}
}

func (q *queue) add(p *wire.Packet, digest, payload []byte, sent func(any), owner any) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.stopped {
		return
	}
	b := q.fill
	before := len(b.head)
	b.head = wire.Append(b.head, q.c.Version, q.c.Features, p)
	b.head = append(b.head, digest...)
	if len(payload) <= copyMax {
		b.head = append(b.head, payload...)
		payload = nil
	}
	if payload != nil || sent != nil {
		b.recs = append(b.recs, record{len(b.head), payload, sent, owner})
	}
	n := int64(len(b.head) - before + len(payload))
	if q.queued.Add(n) == n {
		q.progress.Store(Now())
	}
}

func (q *queue) flush() {
	q.mu.Lock()
	if q.writing || q.stopped || len(q.fill.head) == 0 {
		q.mu.Unlock()
		return
	}
	q.writing = true
	if q.raw == nil {
		q.wake <- struct{}{} // has room: only the holder of writing sends
		q.mu.Unlock()
		return
	}
	q.swap()
	q.mu.Unlock()
	q.run(false)
}

// swap makes the gathered batch the one to be sent.
func (q *queue) swap() {
	q.fill, q.send = q.send, q.fill
	q.rec, q.headAt, q.payAt = 0, 0, 0
}

// run writes until nothing is queued. The caller holds writing and loses it.
func (q *queue) run(wait bool) {
	for round := 1; ; round++ {
		for q.rec < len(q.send.recs) || q.headAt < len(q.send.head) {
			if err := q.write(wait); err == unix.EAGAIN { //nolint:errorlint // raw errno of a system call
				q.handOver()
				return
			} else if err != nil {
				q.release()
				q.c.Close(broken(q.kind, err))
				return
			}
		}
		q.mu.Lock()
		q.send.reset()
		q.rec, q.headAt = 0, 0
		if len(q.fill.head) == 0 || q.stopped {
			q.writing = false
			q.quiet.Broadcast()
			q.mu.Unlock()
			return
		}
		if !wait && round == roundsMax {
			q.mu.Unlock()
			q.handOver()
			return
		}
		q.swap()
		q.mu.Unlock()
	}
}

// handOver passes writing to the background goroutine.
func (q *queue) handOver() {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.stopped {
		q.writing = false
		q.quiet.Broadcast()
		return
	}
	q.wake <- struct{}{}
}

func (q *queue) release() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.writing = false
	q.quiet.Broadcast()
}

// background writes what an inline writer could not.
func (q *queue) background() {
	for {
		select {
		case <-q.wake:
			q.run(true)
		case <-q.c.closing:
			select {
			case <-q.wake:
				q.release()
			default:
			}
			return
		}
	}
}

// write makes one system call and accounts for what it took.
func (q *queue) write(wait bool) error {
	var err error
	if q.raw == nil {
		q.join()
		q.n, q.err = q.conn.Write(q.joined)
	} else {
		q.gather()
		f := q.try
		if wait {
			f = q.persist
		}
		err = q.raw.Write(f)
	}
	if err == nil {
		err = q.err
	}
	if q.n > 0 {
		q.progress.Store(Now())
		q.queued.Add(int64(-q.n))
		q.advance(q.n)
	}
	return err
}

// pieces calls f for what is unsent, in order, until f has had enough.
func (q *queue) pieces(f func(b []byte) (more bool)) {
	head, pay := q.headAt, q.payAt
	for i := q.rec; i < len(q.send.recs); i++ {
		r := &q.send.recs[i]
		if len(r.payload) == 0 {
			continue // its bytes are in head, together with what follows
		}
		if head < r.end {
			if !f(q.send.head[head:r.end]) {
				return
			}
			head = r.end
		}
		if !f(r.payload[pay:]) {
			return
		}
		pay = 0
	}
	if head < len(q.send.head) {
		f(q.send.head[head:])
	}
}

// gather describes the next system call.
func (q *queue) gather() {
	n := 0
	q.size = 0
	q.pieces(func(b []byte) bool {
		q.size += len(b)
		q.iov[n].Base = &b[0]
		q.iov[n].SetLen(len(b))
		n++
		return n < iovMax
	})
	q.msg.Iov = &q.iov[0]
	q.msg.SetIovlen(n)
}

// join copies what the next blocking write sends.
func (q *queue) join() {
	q.joined = q.joined[:0]
	q.pieces(func(b []byte) bool {
		b = b[:min(len(b), joinMax-len(q.joined))]
		q.joined = append(q.joined, b...)
		return len(q.joined) < joinMax
	})
}

func (q *queue) sendmsg(fd uintptr) {
	q.n, q.err = sendmsg(fd, &q.msg, q.size)
}

// advance accounts for n bytes sent and tells the owners of finished packets.
func (q *queue) advance(n int) {
	for q.rec < len(q.send.recs) {
		r := &q.send.recs[q.rec]
		if q.headAt < r.end {
			d := min(n, r.end-q.headAt)
			q.headAt += d
			n -= d
		}
		d := min(n, len(r.payload)-q.payAt)
		q.payAt += d
		n -= d
		if q.headAt < r.end || q.payAt < len(r.payload) {
			return
		}
		if r.sent != nil {
			r.sent(r.owner)
		}
		*r = record{}
		q.payAt = 0
		q.rec++
	}
	q.headAt += n
}

// stop makes the socket useless for both sides, which wakes everybody who waits
// for it, and refuses further packets.
func (q *queue) stop() {
	q.mu.Lock()
	q.stopped = true
	q.mu.Unlock()
	if q.tcp != nil {
		shutdown(q.tcp) // closed in Start's last goroutine: closing now would wait for the reader that calls us
		return
	}
	q.conn.Close()
}

// drain waits for the last writer and forgets all payloads.
func (q *queue) drain() {
	q.mu.Lock()
	defer q.mu.Unlock()
	for q.writing {
		q.quiet.Wait()
	}
	q.fill, q.send = new(batch), new(batch)
	clear(q.iov[:])
	q.joined = nil
	q.queued.Store(0)
}
