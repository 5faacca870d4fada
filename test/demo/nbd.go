package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"time"
)

const blockSize = 64 << 10 // bytes of a piece

// NBD numbers, from its protocol document.
const (
	nbdMagic       = 0x4e42444d41474943
	nbdOptMagic    = 0x49484156454f5054
	nbdOptReply    = 0x3e889045565a9
	nbdOptGo       = 7
	nbdRepAck      = 1
	nbdRepInfo     = 3
	nbdRequest     = 0x25609513
	nbdSimpleReply = 0x67446698
	nbdRead        = 0
	nbdWrite       = 1
	nbdFlush       = 3
	nbdFlagFUA     = 1
)

// nbdConn is a client of one export, one request at a time.
type nbdConn struct {
	c      net.Conn
	cookie uint64
}

func dialNBD(path, export string) (*nbdConn, error) {
	c, err := net.DialTimeout("unix", path, 5*time.Second)
	if err != nil {
		return nil, err
	}
	n := &nbdConn{c: c}
	if err := n.handshake(export); err != nil {
		c.Close()
		return nil, fmt.Errorf("nbd handshake: %w", err)
	}
	return n, nil
}

func (n *nbdConn) handshake(export string) error {
	if err := n.c.SetDeadline(time.Now().Add(20 * time.Second)); err != nil {
		return err
	}
	var hello struct {
		Magic, Opt uint64
		Flags      uint16
	}
	if err := binary.Read(n.c, binary.BigEndian, &hello); err != nil {
		return err
	}
	if hello.Magic != nbdMagic || hello.Opt != nbdOptMagic {
		return fmt.Errorf("magic %x %x", hello.Magic, hello.Opt)
	}
	var b bytes.Buffer
	put := func(v any) { _ = binary.Write(&b, binary.BigEndian, v) } // a buffer takes everything
	put(uint32(hello.Flags & 3))
	put(uint64(nbdOptMagic))
	put(uint32(nbdOptGo))
	put(uint32(4 + len(export) + 2))
	put(uint32(len(export)))
	b.WriteString(export)
	put(uint16(0))
	if _, err := n.c.Write(b.Bytes()); err != nil {
		return err
	}
	for {
		var r struct {
			Magic        uint64
			Option, Type uint32
			Length       uint32
		}
		if err := binary.Read(n.c, binary.BigEndian, &r); err != nil {
			return err
		}
		if r.Magic != nbdOptReply || r.Length > 1<<16 {
			return fmt.Errorf("option reply %x", r.Magic)
		}
		text := make([]byte, r.Length)
		if _, err := io.ReadFull(n.c, text); err != nil {
			return err
		}
		switch r.Type {
		case nbdRepAck:
			return nil
		case nbdRepInfo:
		default:
			return fmt.Errorf("the server answers %x: %s", r.Type, text)
		}
	}
}

// do runs one request: data is written for a write and filled by a read.
func (n *nbdConn) do(kind, flags uint16, off int64, data []byte) error {
	if err := n.c.SetDeadline(time.Now().Add(20 * time.Second)); err != nil {
		return err
	}
	n.cookie++
	req := make([]byte, 0, 28+len(data))
	req = binary.BigEndian.AppendUint32(req, nbdRequest)
	req = binary.BigEndian.AppendUint16(req, flags)
	req = binary.BigEndian.AppendUint16(req, kind)
	req = binary.BigEndian.AppendUint64(req, n.cookie)
	req = binary.BigEndian.AppendUint64(req, uint64(off))
	req = binary.BigEndian.AppendUint32(req, uint32(len(data)))
	if kind == nbdWrite {
		req = append(req, data...)
	}
	if _, err := n.c.Write(req); err != nil {
		return err
	}
	var head [16]byte
	if _, err := io.ReadFull(n.c, head[:]); err != nil {
		return err
	}
	magic, code := binary.BigEndian.Uint32(head[:]), binary.BigEndian.Uint32(head[4:])
	if magic != nbdSimpleReply || binary.BigEndian.Uint64(head[8:]) != n.cookie {
		return fmt.Errorf("reply %x", head)
	}
	if code != 0 {
		return fmt.Errorf("the server answers error %d", code)
	}
	if kind == nbdRead {
		_, err := io.ReadFull(n.c, data)
		return err
	}
	return nil
}

// blocks uses the volume through the NBD socket: numbered pieces at random places.
type blocks struct {
	c       *cluster
	rng     *rand.Rand
	version uint64
	want    map[int64][32]byte // place to sum of what was acknowledged
	pending map[int64]bool     // places whose last write was not answered: both contents are right
}

func newBlocks(c *cluster) *blocks {
	return &blocks{c: c, rng: rand.New(rand.NewPCG(1, 2)), want: map[int64][32]byte{}, pending: map[int64]bool{}}
}

// piece makes the next content: its number, and noise that nothing can compress.
func (b *blocks) piece() []byte {
	b.version++
	p := make([]byte, blockSize)
	r := rand.New(rand.NewPCG(b.version, 7))
	for i := 0; i < len(p); i += 8 {
		binary.LittleEndian.PutUint64(p[i:], r.Uint64())
	}
	binary.LittleEndian.PutUint64(p, b.version)
	return p
}

func (b *blocks) put(n *nbdConn, place int64) error {
	p := b.piece()
	b.pending[place] = true
	if err := n.do(nbdWrite, nbdFlagFUA, place*blockSize, p); err != nil {
		return err
	}
	delete(b.pending, place)
	b.want[place] = sha256.Sum256(p)
	return nil
}

func (b *blocks) dial(h *host) (*nbdConn, error) { return dialNBD(h.nbd(), resource+"/0") }

func (b *blocks) prepare(*host) error { return nil }

func (b *blocks) fill(h *host) (int64, string, error) {
	n, err := b.dial(h)
	if err != nil {
		return 0, "", err
	}
	defer n.c.Close()
	count := b.c.size / blockSize / 4
	for i := range count {
		if err := b.put(n, i*4); err != nil {
			return 0, "", err
		}
	}
	return count * blockSize, fmt.Sprintf("%d blocks through %s", count, h.nbd()), n.do(nbdFlush, 0, 0, nil)
}

func (b *blocks) write(h *host, stop <-chan struct{}) (acked int, err error) {
	n, err := b.dial(h)
	if err != nil {
		return 0, err
	}
	defer n.c.Close()
	for ; ; acked++ {
		select {
		case <-stop:
			return acked, nil
		case <-b.c.ctx.Done():
			return acked, context.Cause(b.c.ctx)
		case <-time.After(pieceEvery):
		}
		if err := b.put(n, b.rng.Int64N(b.c.size/blockSize)); err != nil {
			if h.dead.Load() {
				return acked, nil
			}
			return acked, err
		}
	}
}

func (b *blocks) resume(h *host) error {
	n, err := b.dial(h)
	if err != nil {
		return err
	}
	defer n.c.Close()
	return n.do(nbdWrite, nbdFlagFUA, b.c.size-blockSize, make([]byte, 4096)) // checked by nobody: all zero
}

func (b *blocks) check(h *host) (string, error) {
	n, err := b.dial(h)
	if err != nil {
		return "", err
	}
	defer n.c.Close()
	p := make([]byte, blockSize)
	for place, want := range b.want {
		if b.pending[place] || place == b.c.size/blockSize-1 {
			continue
		}
		if err := n.do(nbdRead, 0, place*blockSize, p); err != nil {
			return "", err
		}
		if sha256.Sum256(p) != want {
			return "", fmt.Errorf("the block at %d is not what was acknowledged", place*blockSize)
		}
	}
	return fmt.Sprintf("%d checksums match", len(b.want)), nil
}

func (b *blocks) leave(*host) error { return nil }
