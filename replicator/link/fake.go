package link

import (
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"os"
	"sync"
	"time"
)

// PipeOptions describe a connection in memory.
type PipeOptions struct {
	Version  int           // agreed protocol version
	Features uint32        // agreed features
	Seed     uint64        // decides the delays
	DelayMax time.Duration // each write arrives after up to that long, in order; 0: at once
	Buffer   int           // bytes in flight a direction before a writer waits; 0: 1 MiB
}

// Direction is one way through a Cable.
type Direction uint8

// Directions between the two ends that Pipe returns. They can be added.
const (
	AToB Direction = 1 << iota
	BToA
)

// Cable is what lies between the two ends of a Pipe. It fails as a network does:
// what a cut holds up is not lost but arrives after Heal, as with TCP. Its methods
// are safe for concurrent use.
type Cable struct {
	mu    sync.Mutex // guards rand
	rand  *rand.Rand
	delay time.Duration
	ways  map[Direction][]*lane
}

// Pipe is a connection in memory, past the handshake, for tests of what is built
// on a Conn. It is deterministic as far as goroutines are, and works in a synctest
// bubble. The end a resolves conflicts.
func Pipe(log *slog.Logger, o PipeOptions) (a, b *Conn, cable *Cable) {
	if o.Buffer == 0 {
		o.Buffer = 1 << 20
	}
	cable = &Cable{rand: rand.New(rand.NewPCG(o.Seed, 0)), delay: o.DelayMax, ways: map[Direction][]*lane{}}
	dataA, dataB := cable.conns(o.Buffer)
	metaA, metaB := cable.conns(o.Buffer)
	a = newConn(log, o.Version, o.Features, true, dataA, metaA)
	b = newConn(log, o.Version, o.Features, false, dataB, metaB)
	return a, b, cable
}

// conns adds one socket to the cable.
func (c *Cable) conns(buffer int) (a, b *memConn) {
	ab, ba := newLane(c, buffer), newLane(c, buffer)
	c.ways[AToB] = append(c.ways[AToB], ab)
	c.ways[BToA] = append(c.ways[BToA], ba)
	return &memConn{in: ba, out: ab}, &memConn{in: ab, out: ba}
}

// Cut stops the given directions in silence: both ends just do not hear any more.
func (c *Cable) Cut(d Direction) { c.each(d, func(l *lane) { l.cut = true }) }

// Heal ends all cuts, and what was held up arrives.
func (c *Cable) Heal() { c.each(AToB|BToA, func(l *lane) { l.cut = false }) }

// Reset breaks the connection so that both ends notice.
func (c *Cable) Reset() { c.each(AToB|BToA, func(l *lane) { l.reset = true }) }

func (c *Cable) each(d Direction, f func(*lane)) {
	for _, way := range [...]Direction{AToB, BToA} {
		if d&way == 0 {
			continue
		}
		for _, l := range c.ways[way] {
			l.mu.Lock()
			f(l)
			l.changed.Broadcast()
			l.mu.Unlock()
		}
	}
}

// arrival is when something written now gets through.
func (c *Cable) arrival(now time.Time) time.Time {
	if c.delay == 0 {
		return now
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return now.Add(time.Duration(c.rand.Int64N(int64(c.delay) + 1)))
}

// lane is one direction of one socket.
type lane struct {
	cable *Cable
	room  int // bytes that may be in flight

	mu      sync.Mutex // guards the rest
	changed sync.Cond
	flight  []parcel
	bytes   int       // sum of flight
	last    time.Time // arrival of the latest parcel
	cut     bool
	reset   bool
	closed  bool      // by the writer: the reader gets EOF after what is in flight
	deaf    bool      // by the reader
	readBy  time.Time // deadlines
	writeBy time.Time
}

type parcel struct {
	at   time.Time
	data []byte
}

func newLane(c *Cable, room int) *lane {
	l := &lane{cable: c, room: room}
	l.changed.L = &l.mu
	return l
}

// wakeAt has everybody look again at t. The caller holds mu.
func (l *lane) wakeAt(t time.Time) {
	if !t.IsZero() {
		time.AfterFunc(time.Until(t), func() {
			l.mu.Lock()
			defer l.mu.Unlock()
			l.changed.Broadcast()
		})
	}
}

func past(t time.Time) bool { return !t.IsZero() && !time.Now().Before(t) }

func (l *lane) read(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for {
		switch {
		case l.deaf:
			return 0, net.ErrClosed
		case l.reset:
			return 0, io.ErrClosedPipe
		case past(l.readBy):
			return 0, os.ErrDeadlineExceeded
		case len(b) == 0:
			return 0, nil
		case l.cut:
		case len(l.flight) > 0 && past(l.flight[0].at):
			p := &l.flight[0]
			n := copy(b, p.data)
			if p.data = p.data[n:]; len(p.data) == 0 {
				l.flight = l.flight[1:]
			}
			l.bytes -= n
			l.changed.Broadcast()
			return n, nil
		case len(l.flight) == 0 && l.closed:
			return 0, io.EOF
		}
		l.changed.Wait()
	}
}

func (l *lane) write(b []byte) (n int, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for {
		switch {
		case l.closed:
			return n, net.ErrClosed
		case l.reset, l.deaf:
			return n, io.ErrClosedPipe
		case past(l.writeBy):
			return n, os.ErrDeadlineExceeded
		case len(b) == 0:
			return n, nil
		case l.bytes < l.room:
			d := min(len(b), l.room-l.bytes)
			if l.last = maxTime(l.last, l.cable.arrival(time.Now())); l.last.After(time.Now()) {
				l.wakeAt(l.last)
			}
			l.flight = append(l.flight, parcel{l.last, append([]byte(nil), b[:d]...)})
			l.bytes += d
			l.changed.Broadcast()
			b, n = b[d:], n+d
			continue
		}
		l.changed.Wait()
	}
}

func maxTime(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// memConn is one end of a socket of a Cable.
type memConn struct{ in, out *lane }

func (c *memConn) Read(b []byte) (int, error)  { return c.in.read(b) }
func (c *memConn) Write(b []byte) (int, error) { return c.out.write(b) }

func (c *memConn) Close() error {
	c.in.set(&c.in.deaf)
	c.out.set(&c.out.closed)
	return nil
}

func (l *lane) set(flag *bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	*flag = true
	l.changed.Broadcast()
}

func (c *memConn) LocalAddr() net.Addr  { return memAddr{} }
func (c *memConn) RemoteAddr() net.Addr { return memAddr{} }

func (c *memConn) SetDeadline(t time.Time) error {
	_ = c.SetReadDeadline(t)
	return c.SetWriteDeadline(t)
}

func (c *memConn) SetReadDeadline(t time.Time) error {
	c.in.mu.Lock()
	defer c.in.mu.Unlock()
	c.in.readBy = t
	c.in.wakeAt(t)
	return nil
}

func (c *memConn) SetWriteDeadline(t time.Time) error {
	c.out.mu.Lock()
	defer c.out.mu.Unlock()
	c.out.writeBy = t
	c.out.wakeAt(t)
	return nil
}

// memAddr is the address of both ends of a memConn.
type memAddr struct{}

func (memAddr) Network() string { return "memory" }
func (memAddr) String() string  { return "memory" }
