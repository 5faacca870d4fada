package nbdclient

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"strings"
	"sync"
	"syscall"
	"time"
)

// How a request ended without an answer.
var (
	ErrLost    = errors.New("nbd connection lost")   // the server ended the connection: nothing of it happens later
	ErrTimeout = errors.New("nbd request timed out") // the connection was given up: the request may still happen
)

// Errno is an error the server answered, in the protocol's numbers.
type Errno uint32

// Error names it.
func (e Errno) Error() string { return "nbd: " + syscall.Errno(e).Error() }

// Errors of the protocol.
const (
	EIO       Errno = 5
	EINVAL    Errno = 22
	ENOSPC    Errno = 28
	ESHUTDOWN Errno = 108
)

const (
	magic       = 0x4e42444d41474943
	optMagic    = 0x49484156454f5054
	replyMagic  = 0x3e889045565a9
	reqMagic    = 0x25609513
	simpleMagic = 0x67446698

	optGo    = 7
	repAck   = 1
	repInfo  = 3
	infoSize = 0 // NBD_INFO_EXPORT

	cmdRead, cmdWrite, cmdDisc, cmdFlush, cmdTrim, cmdZero = 0, 1, 2, 3, 4, 6
	flagFUA                                                = 1

	optionReplyMax = 1 << 16 // bytes
	requestMax     = 32 << 20
)

// URI says where an export is: nbd://HOST:PORT/EXPORT or nbd+unix:///EXPORT?socket=PATH.
type URI struct{ Network, Address, Export string }

// ParseURI reads one.
func ParseURI(text string) (URI, error) {
	u, err := url.Parse(text)
	if err != nil {
		return URI{}, err
	}
	out := URI{Export: strings.TrimPrefix(u.Path, "/")}
	switch u.Scheme {
	case "nbd":
		out.Network, out.Address = "tcp", u.Host
		if u.Port() == "" {
			out.Address = net.JoinHostPort(u.Hostname(), "10809")
		}
	case "nbd+unix":
		out.Network, out.Address = "unix", u.Query().Get("socket")
	default:
		return URI{}, fmt.Errorf("%s: an nbd:// or nbd+unix:// URI is wanted", text)
	}
	if out.Address == "" {
		return URI{}, fmt.Errorf("%s: no address", text)
	}
	return out, nil
}

// Client is one connection. Safe for concurrent use.
type Client struct {
	conn    net.Conn
	size    int64
	flags   uint16
	timeout time.Duration

	wmu sync.Mutex // one request on the wire at a time

	mu     sync.Mutex // guards what follows
	next   uint64
	wait   map[uint64]*call
	err    error // the connection is over, and why
	closed chan struct{}
}

type call struct {
	buf  []byte // of a read
	done chan error
}

// Dial connects and negotiates the export. timeout bounds the handshake and each request; after it the
// connection is given up.
func Dial(ctx context.Context, u URI, timeout time.Duration) (*Client, error) {
	d := net.Dialer{Timeout: timeout}
	conn, err := d.DialContext(ctx, u.Network, u.Address)
	if err != nil {
		return nil, err
	}
	c := &Client{conn: conn, timeout: timeout, wait: map[uint64]*call{}, closed: make(chan struct{})}
	r := bufio.NewReaderSize(conn, 256<<10)
	if err := conn.SetDeadline(time.Now().Add(timeout)); err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	if err := c.handshake(r, u.Export); err != nil {
		return nil, errors.Join(fmt.Errorf("nbd handshake: %w", err), conn.Close())
	}
	if err := conn.SetDeadline(time.Time{}); err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	go c.receive(r) // ends when the connection does; Close waits for it
	return c, nil
}

func (c *Client) handshake(r *bufio.Reader, export string) error {
	var hello [18]byte
	if _, err := io.ReadFull(r, hello[:]); err != nil {
		return err
	}
	if binary.BigEndian.Uint64(hello[:]) != magic || binary.BigEndian.Uint64(hello[8:]) != optMagic {
		return fmt.Errorf("magic %x", hello[:16])
	}
	flags := binary.BigEndian.Uint16(hello[16:])
	if flags&1 == 0 {
		return errors.New("the server does not speak fixed newstyle")
	}
	b := binary.BigEndian.AppendUint32(nil, uint32(flags&3))
	b = binary.BigEndian.AppendUint64(b, optMagic)
	b = binary.BigEndian.AppendUint32(b, optGo)
	b = binary.BigEndian.AppendUint32(b, uint32(4+len(export)+2))
	b = binary.BigEndian.AppendUint32(b, uint32(len(export)))
	b = append(b, export...)
	b = append(b, 0, 0) // no information asked for
	if _, err := c.conn.Write(b); err != nil {
		return err
	}
	for {
		var head [20]byte
		if _, err := io.ReadFull(r, head[:]); err != nil {
			return err
		}
		kind, length := binary.BigEndian.Uint32(head[12:]), binary.BigEndian.Uint32(head[16:])
		if binary.BigEndian.Uint64(head[:]) != replyMagic || length > optionReplyMax {
			return fmt.Errorf("option reply %x", head)
		}
		body := make([]byte, length)
		if _, err := io.ReadFull(r, body); err != nil {
			return err
		}
		switch {
		case kind == repAck:
			if c.size == 0 {
				return errors.New("the server did not tell the size")
			}
			return nil
		case kind == repInfo && len(body) >= 12 && binary.BigEndian.Uint16(body) == infoSize:
			c.size = int64(binary.BigEndian.Uint64(body[2:]))
			c.flags = binary.BigEndian.Uint16(body[10:])
		case kind&(1<<31) != 0:
			return fmt.Errorf("export %q: the server answers %#x: %s", export, kind, body)
		}
	}
}

// Size of the export, bytes.
func (c *Client) Size() int64 { return c.size }

// Close ends the connection; requests in flight end with ErrTimeout, since they may still happen.
func (c *Client) Close() error {
	c.wmu.Lock()
	var req [28]byte
	putHeader(req[:], cmdDisc, 0, 0, 0, 0)
	_ = c.conn.SetWriteDeadline(time.Now().Add(time.Second)) // the connection may be gone: then nobody needs to be told
	_, _ = c.conn.Write(req[:])
	c.wmu.Unlock()
	c.fail(ErrTimeout)
	<-c.closed
	return nil
}

// fail ends every request with err, unless the connection is over already.
func (c *Client) fail(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err != nil {
		return
	}
	c.err = err
	for _, w := range c.wait {
		w.done <- err
	}
	c.wait = nil
	_ = c.conn.Close() // for its effect on the goroutines that use it
}

func (c *Client) receive(r *bufio.Reader) {
	defer close(c.closed)
	for {
		var head [16]byte
		if _, err := io.ReadFull(r, head[:]); err != nil {
			c.fail(fmt.Errorf("%w: %w", ErrLost, err))
			return
		}
		cookie := binary.BigEndian.Uint64(head[8:])
		c.mu.Lock()
		w := c.wait[cookie]
		delete(c.wait, cookie)
		c.mu.Unlock()
		if binary.BigEndian.Uint32(head[:]) != simpleMagic || w == nil {
			c.fail(fmt.Errorf("%w: reply %x", ErrLost, head))
			if w != nil {
				w.done <- ErrLost
			}
			return
		}
		if code := binary.BigEndian.Uint32(head[4:]); code != 0 {
			w.done <- Errno(code)
			continue
		}
		if w.buf != nil {
			if _, err := io.ReadFull(r, w.buf); err != nil {
				err = fmt.Errorf("%w: %w", ErrLost, err)
				w.done <- err
				c.fail(err)
				return
			}
		}
		w.done <- nil
	}
}

func putHeader(b []byte, kind, flags uint16, cookie, off uint64, length uint32) {
	binary.BigEndian.PutUint32(b, reqMagic)
	binary.BigEndian.PutUint16(b[4:], flags)
	binary.BigEndian.PutUint16(b[6:], kind)
	binary.BigEndian.PutUint64(b[8:], cookie)
	binary.BigEndian.PutUint64(b[16:], off)
	binary.BigEndian.PutUint32(b[24:], length)
}

// do runs one request. data is sent by a write and filled by a read.
func (c *Client) do(kind, flags uint16, off int64, length int, data []byte) error {
	if length > requestMax {
		return fmt.Errorf("nbd: request of %d bytes", length)
	}
	w := &call{done: make(chan error, 2)} // 2: nobody ever waits to tell how it ended
	if kind == cmdRead {
		w.buf = data
	}
	c.mu.Lock()
	if c.err != nil {
		c.mu.Unlock()
		return c.err
	}
	c.next++
	cookie := c.next
	c.wait[cookie] = w
	c.mu.Unlock()
	var head [28]byte
	putHeader(head[:], kind, flags, cookie, uint64(off), uint32(length))
	bufs := net.Buffers{head[:]}
	if kind == cmdWrite {
		bufs = append(bufs, data)
	}
	t := time.NewTimer(c.timeout)
	defer t.Stop()
	c.wmu.Lock()
	_ = c.conn.SetWriteDeadline(time.Now().Add(c.timeout)) // it fails only on a closed connection, as Write does
	_, err := bufs.WriteTo(c.conn)
	c.wmu.Unlock()
	if errors.Is(err, syscall.EPIPE) || errors.Is(err, syscall.ECONNRESET) {
		err = nil // the reader learns it too, after what the server answered before
	}
	if err != nil {
		c.fail(fmt.Errorf("%w: %w", ErrTimeout, err))
	}
	select {
	case err := <-w.done:
		return err
	case <-t.C:
		c.fail(ErrTimeout)
		<-c.closed // the reader lets go of the buffer
		return <-w.done
	}
}

// ReadAt fills p from off.
func (c *Client) ReadAt(p []byte, off int64) (int, error) {
	if err := c.do(cmdRead, 0, off, len(p), p); err != nil {
		return 0, err
	}
	return len(p), nil
}

// WriteAt stores p at off; with fua it is on stable storage before the answer.
func (c *Client) WriteAt(p []byte, off int64, fua bool) error {
	flags := uint16(0)
	if fua {
		flags = flagFUA
	}
	return c.do(cmdWrite, flags, off, len(p), p)
}

// Flush makes all answered writes stable.
func (c *Client) Flush() error { return c.do(cmdFlush, 0, 0, 0, nil) }

// Trim says that a range is not needed.
func (c *Client) Trim(off, length int64) error { return c.do(cmdTrim, 0, off, int(length), nil) }

// Zero makes a range read as zeroes.
func (c *Client) Zero(off, length int64) error { return c.do(cmdZero, 0, off, int(length), nil) }
