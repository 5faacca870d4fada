package link

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hawser-ha/hawser/replicator/wire"
)

const features = wire.FeatureTrim | wire.FeatureThinResync | wire.FeatureWSame | wire.FeatureWZeroes

func quiet() *slog.Logger { return slog.New(slog.DiscardHandler) }

// recorder is a Handler that hands everything to the test.
type recorder struct {
	data  func(p *wire.Packet, tail []byte) error // nil: ignore
	meta  func(p *wire.Packet) error
	idle  func(s Socket)
	buf   []byte
	downs atomic.Int32
	down  chan error
}

func newRecorder() *recorder {
	return &recorder{buf: make([]byte, wire.MaxData+wire.MaxDigest), down: make(chan error, 2)}
}

func (r *recorder) Data(p *wire.Packet) ([]byte, error) {
	if p.Tail > 0 {
		return r.buf, nil
	}
	return nil, r.DataTail(p, nil)
}

func (r *recorder) DataTail(p *wire.Packet, tail []byte) error {
	if r.data == nil {
		return nil
	}
	return r.data(p, tail)
}

func (r *recorder) Meta(p *wire.Packet) error {
	if r.meta == nil {
		return nil
	}
	return r.meta(p)
}

func (r *recorder) Idle(s Socket) {
	if r.idle != nil {
		r.idle(s)
	}
}

func (r *recorder) Down(err error) {
	r.downs.Add(1)
	r.down <- err
}

// tcpPair is two Conns over real sockets, past the handshake.
func tcpPair(t testing.TB) (a, b *Conn) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	socket := func() (x, y net.Conn) {
		x, err := net.Dial("tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		if y, err = l.Accept(); err != nil {
			t.Fatal(err)
		}
		return x, y
	}
	dataA, dataB := socket()
	metaA, metaB := socket()
	return newConn(quiet(), 101, features, true, dataA, metaA), newConn(quiet(), 101, features, false, dataB, metaB)
}

// shut ends both and waits, so that no goroutine survives the test.
func shut(a, b *Conn) {
	a.Close(nil)
	<-a.Done()
	b.Close(nil)
	<-b.Done()
}

// tlsPair is the same under TLS.
func tlsPair(t testing.TB) (a, b *Conn) {
	t.Helper()
	issue := authority(t)
	a, b = tcpPair(t)
	wrap := func(x, y net.Conn) (net.Conn, net.Conn) {
		conf := issue()
		conf.ServerName = "127.0.0.1"
		client, server := tls.Client(x, conf), tls.Server(y, issue())
		done := make(chan error, 1)
		go func() { done <- server.Handshake() }()
		if err := errors.Join(client.Handshake(), <-done); err != nil {
			t.Fatal(err)
		}
		return client, server
	}
	dataA, dataB := wrap(a.data.conn, b.data.conn)
	metaA, metaB := wrap(a.meta.conn, b.meta.conn)
	return newConn(quiet(), 101, features, true, dataA, metaA), newConn(quiet(), 101, features, false, dataB, metaB)
}

// kinds are the ways a Conn can be carried.
var kinds = map[string]func(t testing.TB) (a, b *Conn){
	"tcp": tcpPair,
	"tls": tlsPair,
	"memory": func(testing.TB) (a, b *Conn) {
		a, b, _ = Pipe(quiet(), PipeOptions{Version: 101, Features: features})
		return a, b
	},
}

func TestPacketsArriveInOrderAndWhole(t *testing.T) {
	for kind, pair := range kinds {
		t.Run(kind, func(t *testing.T) {
			a, b := pair(t)
			ha, hb := newRecorder(), newRecorder()
			const count = 2000
			rng := rand.New(rand.NewPCG(1, 2))
			noise := make([]byte, wire.MaxData)
			for i := range noise {
				noise[i] = byte(rng.Uint32())
			}
			payload := func(i int) []byte {
				r := rand.New(rand.NewPCG(uint64(i), 0))
				n := 512 * (1 + r.IntN(16))
				if i%50 == 0 {
					n = 512 * (1 + r.IntN(2048))
				}
				return noise[len(noise)-n:]
			}
			digest := func(i int) []byte { return []byte{byte(i), byte(i >> 8), 3, 4} }
			b.SetRecvDigest(4)
			got := 0
			arrived := make(chan struct{})
			hb.data = func(p *wire.Packet, tail []byte) error {
				want := payload(got)
				switch {
				case p.Cmd != wire.Data || p.Seq != uint32(got) || int(p.Size) != len(want):
					return fmt.Errorf("packet %d: %+v", got, p)
				case !bytes.Equal(tail[:4], digest(got)) || !bytes.Equal(tail[4:], want):
					return fmt.Errorf("packet %d: other bytes", got)
				}
				if got++; got == count {
					close(arrived)
				}
				return nil
			}
			a.Start(ha)
			b.Start(hb)
			var sent atomic.Int64
			last := -1
			for i := range count {
				p := wire.Packet{Cmd: wire.Data, Seq: uint32(i)}
				a.SendData(&p, digest(i), payload(i), func(owner any) {
					if owner.(int) != last+1 {
						t.Errorf("sent %v after %d", owner, last)
					}
					last = owner.(int)
					sent.Add(1)
				}, i)
				if i%7 == 0 {
					a.FlushData()
				}
			}
			a.FlushData()
			select {
			case <-arrived:
			case err := <-hb.down:
				t.Fatal(err)
			}
			shut(a, b)
			if sent.Load() != count {
				t.Errorf("%d of %d packets reported as sent", sent.Load(), count)
			}
			if n := a.QueuedBytes(); n != 0 {
				t.Errorf("%d bytes are still queued", n)
			}
			if ha.downs.Load() != 1 || hb.downs.Load() != 1 {
				t.Errorf("Down was called %d and %d times", ha.downs.Load(), hb.downs.Load())
			}
		})
	}
}

func TestManySendersKeepEachPacketWhole(t *testing.T) {
	a, b := tcpPair(t)
	hb := newRecorder()
	const senders, each = 8, 500
	next := [senders]uint32{}
	total := 0
	arrived := make(chan struct{})
	hb.data = func(p *wire.Packet, tail []byte) error {
		s := p.Sector
		if next[s] != p.Seq || len(tail) != 4096 || tail[0] != byte(s) || tail[4095] != byte(s) {
			return fmt.Errorf("sender %d: packet %d instead of %d", s, p.Seq, next[s])
		}
		next[s]++
		if total++; total == senders*each {
			close(arrived)
		}
		return nil
	}
	a.Start(newRecorder())
	b.Start(hb)
	var wg sync.WaitGroup
	for s := range senders {
		wg.Go(func() {
			payload := bytes.Repeat([]byte{byte(s)}, 4096)
			for i := range each {
				a.SendData(&wire.Packet{Cmd: wire.Data, Sector: uint64(s), Seq: uint32(i)}, nil, payload, nil, nil)
				a.FlushData()
			}
		})
	}
	wg.Wait()
	select {
	case <-arrived:
	case err := <-hb.down:
		t.Fatal(err)
	}
	shut(a, b)
}

func TestASlowPeerNeverBlocksTheSender(t *testing.T) {
	for kind, pair := range kinds {
		t.Run(kind, func(t *testing.T) {
			a, b := pair(t)
			a.Start(newRecorder())
			hb := newRecorder()
			release := make(chan struct{})
			got := 0
			const count = 64
			arrived := make(chan struct{})
			hb.data = func(*wire.Packet, []byte) error {
				<-release
				if got++; got == count {
					close(arrived)
				}
				return nil
			}
			b.Start(hb)
			payload := make([]byte, wire.MaxData)
			for range count { // far more than the socket buffers hold
				a.SendData(&wire.Packet{Cmd: wire.Data}, nil, payload, nil, nil)
				a.FlushData()
			}
			if a.QueuedBytes() == 0 {
				t.Error("nothing is queued")
			}
			if since := a.StalledSince(DataSocket); since == 0 || since > Now() {
				t.Errorf("stalled since %d", since)
			}
			close(release)
			<-arrived
			shut(a, b)
		})
	}
}

func TestCloseEndsAStalledConnection(t *testing.T) {
	reason := errors.New("ko-count reached")
	for kind, pair := range kinds {
		t.Run(kind, func(t *testing.T) {
			a, b := pair(t)
			ha, hb := newRecorder(), newRecorder()
			block := make(chan struct{})
			hb.data = func(*wire.Packet, []byte) error { <-block; return nil }
			a.Start(ha)
			b.Start(hb)
			for range 32 {
				a.SendData(&wire.Packet{Cmd: wire.Data}, nil, make([]byte, wire.MaxData), nil, nil)
			}
			a.FlushData()
			a.Close(reason)
			a.Close(errors.New("second"))
			if err := <-ha.down; !errors.Is(err, reason) {
				t.Errorf("down: %v", err)
			}
			close(block)
			shut(a, b)
			a.SendData(&wire.Packet{Cmd: wire.Data}, nil, make([]byte, 512), nil, nil)
			a.FlushData()
			if a.QueuedBytes() != 0 {
				t.Error("a closed connection queues")
			}
		})
	}
}

func TestCloseFromWithinEveryCallback(t *testing.T) {
	reason := errors.New("enough")
	for kind, pair := range kinds {
		for _, where := range []string{"data", "meta", "idle", "sent", "before start"} {
			t.Run(kind+"/"+where, func(t *testing.T) {
				a, b := pair(t)
				ha, hb := newRecorder(), newRecorder()
				end := func() { b.Close(reason) }
				switch where {
				case "data":
					hb.data = func(*wire.Packet, []byte) error { end(); return nil }
				case "meta":
					hb.meta = func(*wire.Packet) error { end(); return nil }
				case "idle":
					hb.idle = func(Socket) { end() }
				case "before start":
					end()
				}
				a.Start(ha)
				b.Start(hb)
				if where == "sent" {
					b.SendData(&wire.Packet{Cmd: wire.Barrier}, nil, nil, func(any) { end() }, nil)
					b.FlushData()
				}
				a.SendData(&wire.Packet{Cmd: wire.Data}, nil, make([]byte, 512), nil, nil)
				a.FlushData()
				a.SendMeta(&wire.Packet{Cmd: wire.Ping})
				a.FlushMeta()
				if err := <-hb.down; !errors.Is(err, reason) {
					t.Errorf("down: %v", err)
				}
				<-ha.down
				shut(a, b)
			})
		}
	}
}

func TestWhyAConnectionGoesDown(t *testing.T) {
	for _, c := range []struct {
		rule string
		do   func(data, meta net.Conn)
		want error
	}{
		{"the peer closes the data socket", func(d, _ net.Conn) { d.Close() }, ErrPeerClosed},
		{"the peer closes the meta socket", func(_, m net.Conn) { m.Close() }, ErrPeerClosed},
		{"the peer resets", func(d, _ net.Conn) { d.(*net.TCPConn).SetLinger(0); d.Close() }, ErrNetwork},
		{"bad magic", func(d, _ net.Conn) { d.Write(make([]byte, 16)) }, wire.ErrMagic},
		{"old header after the features", func(_, m net.Conn) { m.Write(append(wire.AppendHeader(nil, 80, wire.Ping, 0, 0), make([]byte, 8)...)) }, wire.ErrMagic},
		{"unknown command on the meta socket", func(_, m net.Conn) { m.Write(wire.AppendHeader(nil, 101, 0x77, 0, 0)) }, wire.ErrCommand},
		{"a ping on the data socket", func(d, _ net.Conn) { d.Write(wire.AppendHeader(nil, 101, wire.Ping, 0, 0)) }, wire.ErrCommand},
		{"data on the meta socket", func(_, m net.Conn) { m.Write(wire.AppendHeader(nil, 101, wire.Data, 0, 24+512)) }, wire.ErrCommand},
		{"wrong length on the meta socket", func(_, m net.Conn) { m.Write(wire.AppendHeader(nil, 101, wire.WriteAck, 0, 23)) }, wire.ErrLength},
		{"write of odd size", func(d, _ net.Conn) { d.Write(wire.Append(nil, 101, 0, &wire.Packet{Cmd: wire.Data, Tail: 513})) }, wire.ErrSize},
		{"features twice", func(d, _ net.Conn) {
			d.Write(wire.Append(nil, 101, 0, &wire.Packet{Cmd: wire.ConnectionFeatures, Ext: new(wire.FeaturesBody)}))
		}, ErrProtocol},
		{"the peer wants authentication and we do not", func(d, _ net.Conn) {
			d.Write(wire.Append(nil, 101, 0, &wire.Packet{Cmd: wire.AuthChallenge, Tail: 64}))
		}, ErrProtocol},
	} {
		t.Run(c.rule, func(t *testing.T) {
			a, b := tcpPair(t)
			h := newRecorder()
			a.Start(h)
			c.do(b.data.conn, b.meta.conn)
			if err := <-h.down; !errors.Is(err, c.want) {
				t.Errorf("down: %v, want %v", err, c.want)
			}
			b.Close(nil)
		})
	}
}

func TestIdleComesAfterEverythingReceived(t *testing.T) {
	for kind, pair := range kinds {
		t.Run(kind, func(t *testing.T) {
			a, b := pair(t)
			hb := newRecorder()
			handled, flushed := 0, 0
			const count = 1000
			done := make(chan struct{})
			hb.data = func(*wire.Packet, []byte) error { handled++; return nil }
			hb.idle = func(s Socket) { // same goroutine as data
				if s == DataSocket {
					if flushed < count && handled == count {
						close(done)
					}
					flushed = handled
				}
			}
			a.Start(newRecorder())
			b.Start(hb)
			for range count {
				a.SendData(&wire.Packet{Cmd: wire.Data}, nil, make([]byte, 4096), nil, nil)
				a.FlushData()
			}
			<-done
			shut(a, b)
		})
	}
}

func TestIdleAlsoComesWhenTheSocketNeverRunsDry(t *testing.T) {
	for kind, pair := range kinds {
		t.Run(kind, func(t *testing.T) {
			a, b := pair(t)
			hb := newRecorder()
			const count = 8000
			handled, since := 0, 0
			queued, done := make(chan struct{}), make(chan struct{})
			hb.data = func(_ *wire.Packet, tail []byte) error {
				if handled == 0 {
					<-queued // so that the rest is there already
				}
				if since += len(tail); since > 2*256<<10 {
					return fmt.Errorf("%d bytes without Idle", since)
				}
				if handled++; handled == count {
					close(done)
				}
				return nil
			}
			hb.idle = func(s Socket) {
				if s == DataSocket {
					since = 0
				}
			}
			a.Start(newRecorder())
			b.Start(hb)
			payload := make([]byte, 4096)
			for range count {
				a.SendData(&wire.Packet{Cmd: wire.Data}, nil, payload, nil, nil)
				a.FlushData()
			}
			close(queued)
			select {
			case <-done:
			case err := <-hb.down:
				t.Fatal(err)
			}
			shut(a, b)
		})
	}
}

func TestTimesAreTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b, cable := Pipe(quiet(), PipeOptions{Version: 101, Features: features, Seed: 1, DelayMax: time.Millisecond, Buffer: 4096})
		a.Start(newRecorder())
		b.Start(newRecorder())
		start := Now()
		time.Sleep(time.Second)
		if b.LastRecv(DataSocket) > start || a.StalledSince(DataSocket) != 0 {
			t.Error("an idle connection shows activity")
		}
		a.SendMeta(&wire.Packet{Cmd: wire.Ping})
		a.FlushMeta()
		time.Sleep(2 * time.Millisecond)
		if b.LastRecv(MetaSocket) <= start || b.LastRecv(DataSocket) > start {
			t.Error("the ping does not show on the meta socket alone")
		}
		cable.Cut(AToB)
		b.SendMeta(&wire.Packet{Cmd: wire.PingAck})
		b.FlushMeta()
		a.SendData(&wire.Packet{Cmd: wire.Data}, nil, make([]byte, 64<<10), nil, nil)
		a.FlushData()
		cut := Now()
		time.Sleep(10 * time.Second)
		if s := a.StalledSince(DataSocket); s == 0 || s > cut {
			t.Errorf("stalled since %d, cut at %d", s, cut)
		}
		if a.LastRecv(MetaSocket) < cut || b.LastRecv(DataSocket) > start {
			t.Error("a one-way cut must hold up one direction only")
		}
		cable.Heal()
		time.Sleep(time.Second)
		if a.StalledSince(DataSocket) != 0 || b.LastRecv(DataSocket) <= cut {
			t.Error("nothing arrives after the cut")
		}
		cable.Reset()
		synctest.Wait()
		<-a.Done()
		<-b.Done()
	})
}

func TestSteadySendingAllocatesNothing(t *testing.T) {
	a, b := tcpPair(t)
	hb := newRecorder()
	got := make(chan struct{}, 1)
	hb.data = func(*wire.Packet, []byte) error { b.SendMeta(&ackPacket); return nil }
	hb.idle = func(s Socket) {
		if s == DataSocket {
			b.FlushMeta()
		}
	}
	ha := newRecorder()
	ha.meta = func(*wire.Packet) error { got <- struct{}{}; return nil }
	a.Start(ha)
	b.Start(hb)
	payload := make([]byte, 4096)
	p := wire.Packet{Cmd: wire.Data}
	round := func() {
		a.SendData(&p, nil, payload, func(any) {}, nil)
		a.FlushData()
		<-got
	}
	for range 100 {
		round()
	}
	if n := testing.AllocsPerRun(1000, round); n > 0.1 {
		t.Errorf("%v allocations a round trip", n)
	}
	shut(a, b)
}

var ackPacket = wire.Packet{Cmd: wire.WriteAck, Size: 4096}

// deadline fails a test that would hang otherwise.
func deadline(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	t.Cleanup(cancel)
	return ctx
}
