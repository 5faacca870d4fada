package nbd

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"slices"
	"testing"
	"time"

	"github.com/hawser-ha/hawser/replicator/export"
)

// TestErrors sends one bad request: it must get its error, and the connection must go on.
func TestErrors(t *testing.T) {
	const size = 64 << 20
	data := func(n int) []byte { return make([]byte, n) }
	for _, tc := range []struct {
		name   string
		bytes  []byte
		want   uint32
		set    func(v *memVolume)
		closes bool
	}{
		{"unknown command", command(0, 9, 1, 0, 512), eInval, nil, false},
		{"RESIZE is not negotiated", command(0, 8, 1, 512, 0), eInval, nil, false},
		{"unknown flag on READ", command(1<<9, cmdRead, 1, 0, 512), eInval, nil, false},
		{"NO_HOLE on READ", command(cflagNoHole, cmdRead, 1, 0, 512), eInval, nil, false},
		{"DF without structured replies", command(cflagDF, cmdRead, 1, 0, 512), eInval, nil, false},
		{"FUA on READ is accepted", cat(command(cflagFUA, cmdRead, 1, 0, 0)), eOK, nil, false},
		{"unknown flag on WRITE, its payload is consumed", cat(command(1<<9, cmdWrite, 1, 0, 512), data(512)), eInval, nil, false},
		{"FAST_ZERO on TRIM", command(cflagFastZero, cmdTrim, 1, 0, 512), eInval, nil, false},
		{"REQ_ONE on FLUSH", command(cflagReqOne, cmdFlush, 1, 0, 0), eInval, nil, false},
		{"FLUSH with an offset", command(0, cmdFlush, 1, 512, 0), eInval, nil, false},
		{"FLUSH with a length", command(0, cmdFlush, 1, 0, 512), eInval, nil, false},
		{"FLUSH with FUA", command(cflagFUA, cmdFlush, 1, 0, 0), eOK, nil, false},
		{"CACHE", command(0, cmdCache, 1, 0, 512), eOK, nil, false},
		{"CACHE of more than a payload", command(0, cmdCache, 1, 0, size), eOK, nil, false},
		{"CACHE beyond the end", command(0, cmdCache, 1, size, 512), eInval, nil, false},
		{"READ beyond the end", command(0, cmdRead, 1, size, 512), eInval, nil, false},
		{"READ across the end", command(0, cmdRead, 1, size-512, 1024), eInval, nil, false},
		{"READ at an offset whose sum overflows", command(0, cmdRead, 1, 1<<64-512, 1024), eInval, nil, false},
		{"READ at a negative offset", command(0, cmdRead, 1, 1<<63, 512), eInval, nil, false},
		{"WRITE beyond the end, its payload is consumed", cat(command(0, cmdWrite, 1, size, 512), data(512)), eNoSpace, nil, false},
		{"WRITE across the end", cat(command(0, cmdWrite, 1, size-512, 1024), data(1024)), eNoSpace, nil, false},
		{"WRITE_ZEROES across the end", command(0, cmdWriteZeroes, 1, size-512, 1024), eNoSpace, nil, false},
		{"TRIM across the end", command(0, cmdTrim, 1, size-512, 1024), eInval, nil, false},
		{"unaligned READ offset", command(0, cmdRead, 1, 1, 512), eInval, nil, false},
		{"unaligned READ length", command(0, cmdRead, 1, 0, 511), eInval, nil, false},
		{"unaligned WRITE, its payload is consumed", cat(command(0, cmdWrite, 1, 0, 513), data(513)), eInval, nil, false},
		{"unaligned TRIM", command(0, cmdTrim, 1, 100, 512), eInval, nil, false},
		{"READ of more than the maximum", command(0, cmdRead, 1, 0, payloadMax+512), eInval, nil, false},
		{"WRITE of more than the maximum, its payload is consumed", cat(command(0, cmdWrite, 1, 0, payloadMax+512), data(payloadMax+512)), eInval, nil, false},
		{"WRITE of far more costs the connection", command(0, cmdWrite, 1, 0, discardMax+512), eNoSpace, nil, true},
		{"BLOCK_STATUS without a context", command(0, cmdBlockStatus, 1, 0, 512), eInval, nil, false},
		{"READ of nothing", command(0, cmdRead, 1, 0, 0), eOK, nil, false},
		{"READ of nothing at the end", command(0, cmdRead, 1, size, 0), eOK, nil, false},
		{"WRITE of nothing", command(0, cmdWrite, 1, 0, 0), eOK, nil, false},
		{"TRIM of nothing", command(0, cmdTrim, 1, 0, 0), eOK, nil, false},
		{"WRITE_ZEROES of nothing", command(0, cmdWriteZeroes, 1, 0, 0), eOK, nil, false},
		{"WRITE_ZEROES of all", command(cflagFUA|cflagNoHole, cmdWriteZeroes, 1, 0, size), eOK, nil, false},
		{"FAST_ZERO where it is fast", command(cflagFastZero, cmdWriteZeroes, 1, 0, 512), eOK, nil, false},
		{"FAST_ZERO where it is not", command(cflagFastZero, cmdWriteZeroes, 1, 0, 512), eNotSup,
			func(v *memVolume) { v.limits.FastZero = false }, false},
		{"a 4 KiB volume refuses 512 bytes", command(0, cmdRead, 1, 0, 512), eInval,
			func(v *memVolume) { v.limits.MinBlock = 4096 }, false},
		{"no longer primary", command(0, cmdRead, 1, 0, 512), eShutdown,
			func(v *memVolume) { v.fail = fmt.Errorf("%w: r0/0", export.ErrNotPrimary) }, false},
		{"no space left", cat(command(0, cmdWrite, 1, 0, 512), data(512)), eNoSpace,
			func(v *memVolume) { v.fail = fmt.Errorf("r0/0: %w", export.ErrNoSpace) }, false},
		{"no good copy", command(0, cmdFlush, 1, 0, 0), eIO, func(v *memVolume) { v.fail = export.ErrIO }, false},
		{"an error nobody knows", command(0, cmdTrim, 1, 0, 512), eIO,
			func(v *memVolume) { v.fail = errors.New("strange") }, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			v := newMemVolume(size)
			if tc.set != nil {
				tc.set(v)
			}
			_, nc := serve(t, Config{}, v)
			c := newClient(t, nc)
			c.goExport("v")
			c.send(tc.bytes)
			if no, cookie := c.simple(); no != tc.want || cookie != 1 {
				t.Errorf("error %d, cookie %d; want %d", no, cookie, tc.want)
			}
			if tc.closes {
				c.closed()
				return
			}
			c.send(command(0, cmdCache, 2, 0, 4096))
			if no, cookie := c.simple(); no != eOK || cookie != 2 {
				t.Errorf("next request: error %d, cookie %d", no, cookie)
			}
		})
	}
}

func TestRequestMagicDropsTheClient(t *testing.T) {
	v := newMemVolume(1 << 20)
	_, nc := serve(t, Config{}, v)
	c := newClient(t, nc)
	c.goExport("v")
	c.send(command(0, cmdCache, 1, 0, 512), make([]byte, requestSize))
	if no, cookie := c.simple(); no != eOK || cookie != 1 { // what was begun is answered
		t.Errorf("error %d, cookie %d", no, cookie)
	}
	c.closed()
	waitFor(t, "session closed", func() bool { return v.open() == 0 })
}

func TestStructuredReplies(t *testing.T) {
	v := newMemVolume(1 << 20)
	copy(v.data[4096:], "hello")
	_, nc := serve(t, Config{}, v)
	c := newClient(t, nc)
	c.mustAck(optStructuredReply, nil)
	c.mustAck(optSetMetaContext, cat(str("v"), be32(1), str(contextAllocation)))
	if _, flags := c.goExport("v"); flags&tflagDF == 0 {
		t.Error("DF is not offered")
	}
	c.send(command(cflagDF, cmdRead, 7, 4096, 512))
	if typ, cookie, data := c.chunk(); typ != chunkOffsetData || cookie != 7 || !bytes.Equal(data, cat(be64(4096), v.data[4096:4608])) {
		t.Errorf("read: chunk %d, cookie %d, %d bytes", typ, cookie, len(data))
	}
	c.send(command(0, cmdRead, 7, 0, 0))
	if typ, cookie, data := c.chunk(); typ != chunkNone || cookie != 7 || len(data) != 0 {
		t.Errorf("empty read: chunk %d, cookie %d, %d bytes", typ, cookie, len(data))
	}
	c.send(command(0, cmdRead, 8, 1<<20, 512))
	if typ, cookie, data := c.chunk(); typ != chunkError || cookie != 8 || !bytes.Equal(data, cat(be32(eInval), be16(0))) {
		t.Errorf("read beyond the end: chunk %d, cookie %d, %x", typ, cookie, data)
	}
	v.mu.Lock()
	v.fail = export.ErrIO
	v.mu.Unlock()
	c.send(command(0, cmdRead, 9, 0, 512))
	text := export.ErrIO.Error()
	if typ, _, data := c.chunk(); typ != chunkError || !bytes.Equal(data, cat(be32(eIO), be16(uint16(len(text))), []byte(text))) {
		t.Errorf("failed read: chunk %d, %q", typ, data)
	}
	v.mu.Lock()
	v.fail = nil
	v.mapped[1], v.mapped[2], v.mapped[5] = true, true, true
	v.mu.Unlock()
	for _, tc := range []struct {
		flags    uint16
		off, len int
		want     []byte
	}{
		{0, 0, 32768, cat(be32(4096), be32(3), be32(8192), be32(0), be32(8192), be32(3), be32(4096), be32(0), be32(8192), be32(3))},
		{cflagReqOne, 4096, 32768, cat(be32(8192), be32(0))},
		{cflagReqOne, 4096, 512, cat(be32(512), be32(0))},
		{0, 512, 512, cat(be32(3584), be32(3))}, // the last one may overshoot
		{cflagReqOne, 512, 512, cat(be32(512), be32(3))},
		{0, 1<<20 - 512, 512, cat(be32(512), be32(3))},
	} {
		c.send(command(tc.flags, cmdBlockStatus, 3, uint64(tc.off), uint32(tc.len)))
		if typ, _, data := c.chunk(); typ != chunkBlockStatus || !bytes.Equal(data, cat(be32(contextAllocationID), tc.want)) {
			t.Errorf("block status %d+%d: chunk %d, %x", tc.off, tc.len, typ, data)
		}
	}
	c.send(command(0, cmdBlockStatus, 3, 0, 0))
	if no, _ := c.simple(); no != eInval {
		t.Errorf("block status of nothing: error %d", no)
	}
}

func TestExtentsAreMergedAndClipped(t *testing.T) {
	const gib = 1 << 30
	for _, tc := range []struct {
		name string
		in   []export.Extent
		one  bool
		want []byte
	}{
		{"equal neighbours become one", []export.Extent{{Len: 512}, {Len: 512}, {Len: 512, Zero: true}}, false,
			cat(be32(1024), be32(0), be32(512), be32(2))},
		{"the first run only", []export.Extent{{Len: 512}, {Len: 512}, {Len: 512, Zero: true}}, true, cat(be32(1024), be32(0))},
		{"empty ones are dropped", []export.Extent{{Len: 0, Hole: true}, {Len: 512}}, false, cat(be32(512), be32(0))},
		{"32 bits are enough", []export.Extent{{Len: 3 * gib}, {Len: 3 * gib}, {Len: 512, Hole: true}}, false,
			cat(be32(4*gib-512), be32(0))},
		{"nothing past the volume", []export.Extent{{Len: 8 * gib, Hole: true}}, true, cat(be32(2*gib), be32(1))},
		{"none at all", nil, false, nil},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r := newRequest(&conn{})
			r.Len = 2 * gib
			ok := r.encodeExtents(tc.in, tc.one, 7*gib, 512)
			if ok != (tc.want != nil) || ok && !bytes.Equal(r.extra[4:], tc.want) {
				t.Errorf("%v %x, want %x", ok, r.extra, tc.want)
			}
		})
	}
}

// TestPipelinedRequestsAreOneBatch sends many requests in one segment, cut at odd places.
func TestPipelinedRequestsAreOneBatch(t *testing.T) {
	v := newMemVolume(1 << 20)
	_, nc := serve(t, Config{}, v)
	c := newClient(t, nc)
	c.goExport("v")
	var all []byte
	for i := range 10 {
		all = append(all, command(cflagFUA, cmdWrite, uint64(i), uint64(i)*512, 512)...)
		all = append(all, bytes.Repeat([]byte{byte(i + 1)}, 512)...)
	}
	c.send(all)
	for range 10 {
		if no, _ := c.simple(); no != eOK {
			t.Fatalf("error %d", no)
		}
	}
	v.mu.Lock()
	if !slices.Equal(v.submits, []int{10}) {
		t.Errorf("batches of %v", v.submits)
	}
	v.mu.Unlock()
	if v.fua.Load() != 10 {
		t.Errorf("%d writes with FUA", v.fua.Load())
	}
	for cut := 1; cut < len(all); cut += 97 {
		c.send(all[:cut])
		c.send(all[cut:])
		for range 10 {
			if no, _ := c.simple(); no != eOK {
				t.Fatalf("error %d", no)
			}
		}
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	for i := range 10 {
		if v.data[i*512] != byte(i+1) || v.data[i*512+511] != byte(i+1) {
			t.Errorf("block %d has %d", i, v.data[i*512])
		}
	}
}

// TestContents writes and reads at random, with requests completed out of order and a client that has many in flight.
func TestContents(t *testing.T) {
	for _, tc := range []struct {
		name       string
		structured bool
		maxIO      int
		largest    int
		tls        bool
	}{
		{"simple replies", false, payloadMax, 64 << 10, false},
		{"structured replies", true, payloadMax, 64 << 10, false},
		{"large payloads", true, payloadMax, 2 << 20, false},
		{"requests in parts", true, 64 << 10, 512 << 10, false},
		{"requests in parts, simple replies", false, 4096, 128 << 10, false},
		{"TLS", true, 1 << 20, 2 << 20, true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			const size = 16 << 20
			rng := rand.New(rand.NewPCG(1, 2))
			v := newMemVolume(size)
			v.limits.MaxIO = tc.maxIO
			v.shuffle = rand.New(rand.NewPCG(3, 4))
			s, nc := serve(t, Config{}, v)
			if tc.tls {
				nc = tlsPair(t, s)
			}
			c := newClient(t, nc)
			if tc.tls {
				c = startTLS(t, c)
			}
			if tc.structured {
				c.mustAck(optStructuredReply, nil)
			}
			c.goExport("v")
			model := make([]byte, size)
			for round := range 30 {
				op := uint16(cmdRead)
				if round%2 == 0 {
					op = cmdWrite
				}
				type sent struct{ off, n int }
				var reqs []sent
				for off, i := rng.IntN(8)*512, 0; i < 40; i++ { // no overlap within a round
					n := (1 + rng.IntN(tc.largest/512)) * 512
					if off+n > size {
						break
					}
					reqs = append(reqs, sent{off, n})
					off += n + rng.IntN(8)*512
				}
				rng.Shuffle(len(reqs), func(i, j int) { reqs[i], reqs[j] = reqs[j], reqs[i] })
				var out []byte
				for i, r := range reqs {
					out = append(out, command(0, op, uint64(i), uint64(r.off), uint32(r.n))...)
					if op == cmdWrite {
						for j := r.off; j < r.off+r.n; j += 512 {
							binary.LittleEndian.PutUint64(model[j:], rng.Uint64())
						}
						out = append(out, model[r.off:r.off+r.n]...)
					}
				}
				failed := make(chan error, 1)
				go func() { _, err := c.Write(out); failed <- err }()
				for range reqs {
					var cookie uint64
					var data []byte
					if op == cmdRead && tc.structured {
						typ, ck, d := c.chunk()
						if typ != chunkOffsetData || ck >= uint64(len(reqs)) || binary.BigEndian.Uint64(d) != uint64(reqs[ck].off) {
							t.Fatalf("chunk %d cookie %d", typ, ck)
						}
						cookie, data = ck, d[8:]
					} else {
						no, ck := c.simple()
						if no != eOK || ck >= uint64(len(reqs)) {
							t.Fatalf("error %d cookie %d", no, ck)
						}
						if cookie = ck; op == cmdRead {
							data = c.recv(reqs[ck].n)
						}
					}
					r := reqs[cookie]
					if op == cmdRead && !bytes.Equal(data, model[r.off:r.off+r.n]) {
						t.Fatalf("round %d: %d bytes at %d are wrong", round, r.n, r.off)
					}
				}
				if err := <-failed; err != nil {
					t.Fatal(err)
				}
			}
			v.wg.Wait()
		})
	}
}

func TestDiscWaitsForRequestsInFlight(t *testing.T) {
	v := newMemVolume(1 << 20)
	v.hold = make(chan struct{})
	_, nc := serve(t, Config{}, v)
	c := newClient(t, nc)
	c.goExport("v")
	c.send(command(0, cmdWrite, 1, 0, 512), make([]byte, 512), command(0, cmdFlush, 2, 0, 0), command(0, cmdDisc, 3, 0, 0))
	waitFor(t, "requests submitted", func() bool { v.mu.Lock(); defer v.mu.Unlock(); return len(v.submits) > 0 })
	close(v.hold)
	for range 2 {
		if no, cookie := c.simple(); no != eOK || cookie > 2 {
			t.Errorf("error %d, cookie %d", no, cookie)
		}
	}
	c.closed()
	waitFor(t, "session closed", func() bool { return v.open() == 0 })
}

// TestDemotion: the requests in flight and those that follow get ESHUTDOWN, the session is closed at once, the
// connection soon after, and nobody comes in any more.
func TestDemotion(t *testing.T) {
	v := newMemVolume(1 << 20)
	hold := make(chan struct{})
	v.hold = hold
	s, nc := serve(t, Config{}, v)
	c := newClient(t, nc)
	c.goExport("v")
	c.send(command(0, cmdWrite, 1, 0, 512), make([]byte, 512), command(0, cmdTrim, 2, 0, 512))
	waitFor(t, "requests submitted", func() bool { v.mu.Lock(); defer v.mu.Unlock(); return len(v.submits) > 0 })
	v.demote("r0/0 lost its quorum")
	waitFor(t, "session closed", func() bool { return v.open() == 0 }) // with two requests in flight
	close(hold)
	for range 2 {
		if no, _ := c.simple(); no != eShutdown {
			t.Errorf("in flight: error %d", no)
		}
	}
	c.send(command(0, cmdWrite, 3, 0, 4096), make([]byte, 4096), command(0, cmdRead, 4, 0, 512))
	for want := uint64(3); want <= 4; want++ {
		if no, cookie := c.simple(); no != eShutdown || cookie != want {
			t.Errorf("later: error %d, cookie %d", no, cookie)
		}
	}
	c.closed()
	next := newClient(t, connect(t, s, s.ServeConn))
	if last, _ := next.opt(optGo, cat(str("v"), be16(0))); last.typ != repErrPolicy {
		t.Errorf("new session: %v", last)
	}
}

func TestDemotionInTheMiddleOfAPayload(t *testing.T) {
	for _, n := range []int{4096, 1 << 20} {
		v := newMemVolume(2 << 20)
		_, nc := serve(t, Config{}, v)
		c := newClient(t, nc)
		c.goExport("v")
		c.send(command(0, cmdWrite, 1, 0, uint32(n)), make([]byte, n/2))
		v.demote("gone")
		waitFor(t, "session closed", func() bool { return v.open() == 0 })
		c.send(make([]byte, n-n/2), command(0, cmdFlush, 2, 0, 0))
		for range 2 {
			if no, _ := c.simple(); no != eShutdown {
				t.Errorf("error %d", no)
			}
		}
		c.closed()
	}
}

func TestRemoveEndsSessions(t *testing.T) {
	v := newMemVolume(1 << 20)
	s, nc := serve(t, Config{}, v)
	c := newClient(t, nc)
	c.goExport("v")
	s.Remove("v")
	c.closed()
	waitFor(t, "session closed", func() bool { return v.open() == 0 })
	next := newClient(t, connect(t, s, s.ServeConn))
	if last, _ := next.opt(optGo, cat(str("v"), be16(0))); last.typ != repErrUnknown {
		t.Errorf("got %v", last)
	}
}

func TestResizeMovesTheBounds(t *testing.T) {
	v := newMemVolume(1 << 20)
	s, nc := serve(t, Config{}, v)
	c := newClient(t, nc)
	c.goExport("v")
	c.send(command(0, cmdTrim, 1, 1<<20, 512))
	if no, _ := c.simple(); no != eInval {
		t.Errorf("before: error %d", no)
	}
	v.resize(2 << 20)
	c.send(command(0, cmdTrim, 1, 1<<20, 512))
	if no, _ := c.simple(); no != eOK {
		t.Errorf("after: error %d", no)
	}
	if size, _ := newClient(t, connect(t, s, s.ServeConn)).goExport("v"); size != 2<<20 {
		t.Errorf("a new session sees %d", size)
	}
}

// TestSlowReader: a client that asks for much and reads nothing neither blocks others nor the volume's goroutine; when it
// reads at last, it gets everything.
func TestSlowReader(t *testing.T) {
	v := newMemVolume(32 << 20)
	s, nc := serve(t, Config{Memory: 64 << 20}, v)
	slow := newClient(t, nc)
	slow.goExport("v")
	const count = 200
	var all []byte
	for i := range count {
		all = append(all, command(0, cmdRead, uint64(i), 0, 1<<20)...)
	}
	slow.send(all)
	waitFor(t, "requests submitted", func() bool { v.mu.Lock(); defer v.mu.Unlock(); return len(v.submits) > 0 })

	fast := newClient(t, connect(t, s, s.ServeConn))
	fast.goExport("v")
	for range 200 { // completed on its own goroutine, which is not to wait for the slow client
		fast.send(command(0, cmdRead, 1, 0, 64<<10))
		if no, _ := fast.simple(); no != eOK {
			t.Fatalf("error %d", no)
		}
		fast.recv(64 << 10)
	}
	if used := s.pool.InUse(); used > s.share {
		t.Errorf("the slow client holds %d bytes, its share is %d", used, s.share)
	}
	for i := range count {
		if no, cookie := slow.simple(); no != eOK || cookie != uint64(i) {
			t.Fatalf("reply %d: error %d, cookie %d", i, no, cookie)
		}
		slow.recv(1 << 20)
	}
}

func TestClientThatNeverReadsIsDropped(t *testing.T) {
	v := newMemVolume(32 << 20)
	_, nc := serve(t, Config{SendTimeout: 50 * time.Millisecond}, v)
	c := newClient(t, nc)
	c.goExport("v")
	for i := range 20 {
		c.send(command(0, cmdRead, uint64(i), 0, 1<<20))
	}
	waitFor(t, "session closed", func() bool { return v.open() == 0 })
}

func TestCloseIsBounded(t *testing.T) {
	v := newMemVolume(1 << 20)
	hold := make(chan struct{})
	v.hold = hold
	s, nc := serve(t, Config{}, v)
	c := newClient(t, nc)
	c.goExport("v")
	c.send(command(0, cmdRead, 1, 0, 512))
	waitFor(t, "request submitted", func() bool { v.mu.Lock(); defer v.mu.Unlock(); return len(v.submits) > 0 })
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if err := s.Close(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("close with a request that hangs: %v", err)
	}
	c.closed()
	close(hold)
	if err := s.Close(t.Context()); err != nil {
		t.Errorf("close after it ended: %v", err)
	}
	if _, err := io.ReadAll(connect(t, s, s.ServeConn)); err != nil {
		t.Errorf("connection to a closed server: %v", err)
	}
	if err := s.Start(); !errors.Is(err, ErrClosed) {
		t.Errorf("start after close: %v", err)
	}
}

func TestAbruptEnd(t *testing.T) {
	for _, tc := range []struct {
		name string
		data []byte
	}{
		{"between requests", nil},
		{"in a header", command(0, cmdRead, 1, 0, 512)[:11]},
		{"in a small payload", cat(command(0, cmdWrite, 1, 0, 4096), make([]byte, 100))},
		{"in a large payload", cat(command(0, cmdWrite, 1, 0, 1<<20), make([]byte, 100<<10))},
		{"in a payload in parts", cat(command(0, cmdWrite, 1, 0, 2<<20), make([]byte, 1500<<10))},
		{"with replies to come", bytes.Repeat(command(0, cmdRead, 1, 0, 1<<20), 30)},
	} {
		t.Run(tc.name, func(t *testing.T) {
			v := newMemVolume(4 << 20)
			v.limits.MaxIO = 1 << 20
			v.shuffle = rand.New(rand.NewPCG(0, 0))
			_, nc := serve(t, Config{}, v)
			c := newClient(t, nc)
			c.goExport("v")
			c.send(tc.data)
			nc.Close()
			waitFor(t, "session closed", func() bool { return v.open() == 0 })
		})
	}
}

func TestHalfClosedClientGetsItsReplies(t *testing.T) {
	_, nc := serve(t, Config{}, newMemVolume(1<<20))
	c := newClient(t, nc)
	c.goExport("v")
	c.send(command(0, cmdRead, 1, 0, 512))
	nc.(*net.UnixConn).CloseWrite()
	if no, _ := c.simple(); no != eOK {
		t.Errorf("error %d", no)
	}
	c.recv(512)
	c.closed()
}
