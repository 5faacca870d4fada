package nbd

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"testing"
	"time"
)

// client is the other end of a connection, byte by byte.
type client struct {
	t testing.TB
	net.Conn
}

// newClient reads the server's hello and answers it with both flags.
func newClient(t testing.TB, nc net.Conn) *client {
	t.Helper()
	c := &client{t, nc}
	nc.SetDeadline(time.Now().Add(2 * time.Minute))
	hello := c.recv(18)
	if binary.BigEndian.Uint64(hello) != magicServer || binary.BigEndian.Uint64(hello[8:]) != magicOption {
		t.Fatalf("hello %x", hello)
	}
	if f := binary.BigEndian.Uint16(hello[16:]); f != flagFixedNewstyle|flagNoZeroes {
		t.Fatalf("handshake flags %#x", f)
	}
	c.send(be32(flagFixedNewstyle | flagNoZeroes))
	return c
}

func (c *client) send(parts ...[]byte) {
	c.t.Helper()
	var all []byte
	for _, p := range parts {
		all = append(all, p...)
	}
	if _, err := c.Write(all); err != nil {
		c.t.Fatal(err)
	}
}

func (c *client) recv(n int) []byte {
	c.t.Helper()
	b := make([]byte, n)
	if _, err := io.ReadFull(c, b); err != nil {
		c.t.Fatalf("reading %d bytes: %v", n, err)
	}
	return b
}

// closed waits for the server to close the connection; nothing more may come.
func (c *client) closed() {
	c.t.Helper()
	n, err := c.Read(make([]byte, 1))
	var ne net.Error
	if n != 0 || err == nil || errors.As(err, &ne) && ne.Timeout() {
		c.t.Fatalf("connection is not closed: %d bytes, %v", n, err)
	}
}

func be16(v uint16) []byte { return binary.BigEndian.AppendUint16(nil, v) }
func be32(v uint32) []byte { return binary.BigEndian.AppendUint32(nil, v) }
func be64(v uint64) []byte { return binary.BigEndian.AppendUint64(nil, v) }
func str(s string) []byte  { return append(be32(uint32(len(s))), s...) }

func cat(parts ...[]byte) (all []byte) {
	for _, p := range parts {
		all = append(all, p...)
	}
	return all
}

// option is an option with its data.
func option(opt uint32, data []byte) []byte {
	return cat(be64(magicOption), be32(opt), be32(uint32(len(data))), data)
}

type optReply struct {
	typ  uint32
	data []byte
}

func (r optReply) String() string {
	if r.typ >= 1<<31 {
		return fmt.Sprintf("error %d %q", r.typ-1<<31, r.data)
	}
	return fmt.Sprintf("%d %q", r.typ, r.data)
}

// replies reads option replies up to the final one.
func (c *client) replies(opt uint32) (all []optReply) {
	c.t.Helper()
	for {
		h := c.recv(20)
		if binary.BigEndian.Uint64(h) != magicOptReply || binary.BigEndian.Uint32(h[8:]) != opt {
			c.t.Fatalf("option reply header %x, option %d", h, opt)
		}
		r := optReply{binary.BigEndian.Uint32(h[12:]), c.recv(int(binary.BigEndian.Uint32(h[16:])))}
		all = append(all, r)
		if r.typ == repAck || r.typ >= 1<<31 {
			return all
		}
	}
}

// opt sends an option and returns its final reply and those before it.
func (c *client) opt(opt uint32, data []byte) (optReply, []optReply) {
	c.t.Helper()
	c.send(option(opt, data))
	all := c.replies(opt)
	return all[len(all)-1], all[:len(all)-1]
}

func (c *client) mustAck(opt uint32, data []byte) []optReply {
	c.t.Helper()
	last, all := c.opt(opt, data)
	if last.typ != repAck {
		c.t.Fatalf("option %d: %v", opt, last)
	}
	return all
}

// goExport enters the transmission phase and returns the size and the transmission flags.
func (c *client) goExport(name string) (uint64, uint16) {
	c.t.Helper()
	for _, r := range c.mustAck(optGo, cat(str(name), be16(0))) {
		if r.typ == repInfo && binary.BigEndian.Uint16(r.data) == infoExport {
			return binary.BigEndian.Uint64(r.data[2:]), binary.BigEndian.Uint16(r.data[10:])
		}
	}
	c.t.Fatal("GO without INFO_EXPORT")
	return 0, 0
}

// simple reads a simple reply and returns its error and cookie.
func (c *client) simple() (uint32, uint64) {
	c.t.Helper()
	h := c.recv(simpleSize)
	if binary.BigEndian.Uint32(h) != magicSimple {
		c.t.Fatalf("simple reply %x", h)
	}
	return binary.BigEndian.Uint32(h[4:]), binary.BigEndian.Uint64(h[8:])
}

// chunk reads a structured chunk; all of ours are the last of their reply.
func (c *client) chunk() (typ uint16, cookie uint64, data []byte) {
	c.t.Helper()
	h := c.recv(chunkSize)
	if binary.BigEndian.Uint32(h) != magicStructured || binary.BigEndian.Uint16(h[4:]) != chunkDone {
		c.t.Fatalf("chunk %x", h)
	}
	return binary.BigEndian.Uint16(h[6:]), binary.BigEndian.Uint64(h[8:]), c.recv(int(binary.BigEndian.Uint32(h[16:])))
}
