package link

import (
	"fmt"
	"io"
	"net"
	"sync/atomic"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/hawser-ha/hawser/replicator/wire"
)

// reader is the receiving side of one socket. All but last belongs to its goroutine.
type reader struct {
	c      *Conn
	kind   Socket
	conn   net.Conn
	raw    syscall.RawConn // nil: only blocking reads are possible (TLS, memory)
	digest int             // bytes of digest before the peer's data
	buf    []byte
	r, w   int // buf[r:w] was read and not parsed
	pkt    wire.Packet
	news   int          // bytes read since the last Idle
	last   atomic.Int64 // when bytes last arrived

	iov  [2]unix.Iovec
	iovs int
	want int // bytes needed now
	n    int
	err  error
	try  func(fd uintptr) bool
}

func (rd *reader) init(c *Conn, kind Socket, conn net.Conn, size int) {
	rd.c, rd.kind, rd.conn = c, kind, conn
	_, rd.raw = underTCP(conn)
	rd.buf = make([]byte, size)
	rd.last.Store(Now())
	rd.try = func(fd uintptr) bool {
		rd.n, rd.err = readv(fd, rd.iov[:rd.iovs], rd.want)
		if rd.err != unix.EAGAIN { //nolint:errorlint // raw errno of a system call
			return true
		}
		rd.idle()
		return false // the runtime waits until the socket is readable and calls again
	}
}

// loop receives until the connection ends, and says why it did.
func (rd *reader) loop() error {
	version, features := rd.c.Version, rd.c.Features
	size := wire.HeaderSize(version)
	for {
		if err := rd.need(size); err != nil {
			return err
		}
		cmd, vol, length, err := wire.ParseHeader(version, rd.buf[rd.r:rd.w])
		if err != nil {
			return fmt.Errorf("%s socket: %w: %w", rd.kind, ErrProtocol, err)
		}
		if rd.kind == DataSocket && !cmd.OnData() || rd.kind == MetaSocket && !cmd.OnMeta() {
			err := &wire.PacketError{Cmd: cmd, Length: length, Err: wire.ErrCommand}
			return fmt.Errorf("%s socket: %w: %w", rd.kind, ErrProtocol, err)
		}
		n, err := wire.BodySize(version, features, cmd, length)
		if err != nil {
			return fmt.Errorf("%s socket: %w: %w", rd.kind, ErrProtocol, err)
		}
		if err := rd.need(size + n); err != nil {
			return err
		}
		body := rd.buf[rd.r+size : rd.r+size+n]
		if err := wire.Parse(version, features, rd.digest, cmd, vol, length, body, &rd.pkt); err != nil {
			return fmt.Errorf("%s socket: %w: %w", rd.kind, ErrProtocol, err)
		}
		rd.r += size + n
		if err := rd.dispatch(); err != nil {
			return err
		}
	}
}

func (rd *reader) dispatch() error {
	switch rd.pkt.Cmd {
	case wire.InitialData, wire.InitialMeta, wire.ConnectionFeatures, wire.AuthChallenge, wire.AuthResponse:
		return fmt.Errorf("%s socket: %w: %s after the handshake", rd.kind, ErrProtocol, rd.pkt.Cmd)
	}
	if rd.kind == MetaSocket {
		return rd.c.h.Meta(&rd.pkt)
	}
	tail, err := rd.c.h.Data(&rd.pkt)
	if err != nil || rd.pkt.Tail == 0 {
		return err
	}
	tail = tail[:rd.pkt.Tail]
	if err := rd.full(tail); err != nil {
		return err
	}
	return rd.c.h.DataTail(&rd.pkt, tail)
}

// idle tells the handler that this is a moment to flush. Also a socket that never
// runs dry has such moments, or replies would wait for ever.
func (rd *reader) idle() {
	if rd.news > 0 {
		rd.news = 0
		rd.c.h.Idle(rd.kind)
	}
}

// need waits until the buffer holds n bytes.
func (rd *reader) need(n int) error {
	for rd.w-rd.r < n {
		rd.w = copy(rd.buf, rd.buf[rd.r:rd.w])
		rd.r = 0
		got, err := rd.read(nil)
		if err != nil {
			return err
		}
		rd.w += got
	}
	return nil
}

// full fills dst from the buffer and then straight from the socket.
func (rd *reader) full(dst []byte) error {
	n := copy(dst, rd.buf[rd.r:rd.w])
	rd.r += n
	for dst = dst[n:]; len(dst) > 0; {
		rd.r, rd.w = 0, 0
		got, err := rd.read(dst)
		if err != nil {
			return err
		}
		if got > len(dst) {
			rd.w, got = got-len(dst), len(dst)
		}
		dst = dst[got:]
	}
	return nil
}

// read waits for bytes and puts them into dst and, when that is full, behind w.
func (rd *reader) read(dst []byte) (n int, err error) {
	if rd.raw == nil || rd.news >= len(rd.buf) {
		rd.idle()
	}
	if rd.raw == nil {
		if len(dst) == 0 {
			dst = rd.buf[rd.w:]
		}
		n, err = rd.conn.Read(dst)
	} else {
		rd.iovs, rd.want = 0, len(dst)
		for _, b := range [...][]byte{dst, rd.buf[rd.w:]} {
			if len(b) > 0 {
				rd.iov[rd.iovs].Base = &b[0]
				rd.iov[rd.iovs].SetLen(len(b))
				rd.iovs++
			}
		}
		if err = rd.raw.Read(rd.try); err == nil {
			n, err = rd.n, rd.err
		}
		if n == 0 && err == nil {
			err = io.EOF
		}
	}
	if n > 0 {
		rd.news += n
		rd.last.Store(Now())
		return n, nil
	}
	if err == nil {
		return 0, nil
	}
	return 0, broken(rd.kind, err)
}
