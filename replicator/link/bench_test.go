package link

import (
	"fmt"
	"testing"

	"github.com/hawser-ha/hawser/replicator/wire"
)

// A write and its ack, one at a time: what protocol C costs on the link.
func BenchmarkPingPong(b *testing.B) {
	for _, size := range []int{4096, 128 << 10} {
		b.Run(fmt.Sprint(size), func(b *testing.B) { roundTrips(b, size, 1) })
	}
}

// Writes with many in flight.
func BenchmarkStream(b *testing.B) {
	for _, c := range []struct{ size, depth int }{{4096, 32}, {64 << 10, 16}, {128 << 10, 16}, {1 << 20, 8}} {
		b.Run(fmt.Sprintf("%dx%d", c.size, c.depth), func(b *testing.B) { roundTrips(b, c.size, c.depth) })
	}
}

func roundTrips(b *testing.B, size, depth int) {
	x, y := tcpPair(b)
	hx, hy := newRecorder(), newRecorder()
	slots := make(chan struct{}, depth)
	hx.meta = func(*wire.Packet) error { <-slots; return nil }
	ack := wire.Packet{Cmd: wire.WriteAck, Size: uint32(size)}
	hy.data = func(*wire.Packet, []byte) error { y.SendMeta(&ack); return nil }
	hy.idle = func(s Socket) {
		if s == DataSocket {
			y.FlushMeta()
		}
	}
	x.Start(hx)
	y.Start(hy)
	payload := make([]byte, size)
	p := wire.Packet{Cmd: wire.Data}
	b.SetBytes(int64(size))
	b.ReportAllocs()
	for b.Loop() {
		select {
		case slots <- struct{}{}:
		default:
			x.FlushData()
			slots <- struct{}{}
		}
		x.SendData(&p, nil, payload, nil, nil)
		if depth == 1 || len(slots) == depth {
			x.FlushData()
		}
	}
	x.FlushData()
	for range depth {
		slots <- struct{}{}
	}
	b.StopTimer()
	shut(x, y)
}
