package core

import (
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/hawser-ha/hawser/replicator/wire"
)

var errDisk = errors.New("bad sector")

// A write is complete when disk and peer have done what the protocol asks of them (drbd-wire.md 10.2).
func TestAcknowledgements(t *testing.T) {
	for _, c := range []struct {
		name     string
		protocol uint32
		acks     []wire.Command // of the peer, after the disk
		complete bool
	}{
		{"A needs the disk only", 1, nil, true},
		{"B waits for the peer", 2, nil, false},
		{"B takes the receipt", 2, []wire.Command{wire.RecvAck}, true},
		{"C waits for the peer", 3, nil, false},
		{"C takes the peer's disk", 3, []wire.Command{wire.WriteAck}, true},
		{"C does not take the receipt", 3, []wire.Command{wire.RecvAck}, false},
		{"a negative answer completes too: our disk has it", 3, []wire.Command{wire.NegAck}, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			n := testNet()
			n.Protocol = c.protocol
			r := connected(t, n, 0, false).primary()
			q := r.submit(AppWrite, 4096, 8192)
			data := r.last(wire.Data)
			if r.completed(q) {
				t.Fatal("complete before the disk has it")
			}
			r.finishDisk(nil)
			for _, a := range c.acks {
				if err := r.ack(a, data); err != nil {
					t.Fatal(err)
				}
			}
			if r.completed(q) != c.complete {
				t.Fatalf("complete: %v", r.completed(q))
			}
			dirty := r.m.Bitmap(0, 0).Count()
			if want := map[bool]int64{true: 2}[slices.Contains(c.acks, wire.NegAck)]; dirty != want {
				t.Fatalf("%d blocks are marked, want %d", dirty, want)
			}
			r.m.LinkDown(r.now, 0, errDisk, false)
			r.run()
			if !r.completed(q) || r.m.Bitmap(0, 0).Count() != 2 {
				t.Fatal("a write without barrier acknowledgement is not marked when the link dies")
			}
		})
	}
}

func TestBarriers(t *testing.T) {
	t.Run("no barrier for an empty epoch", func(t *testing.T) {
		r := connected(t, testNet(), 0, false).primary()
		r.submit(AppFlush, 0, 0)
		r.finishDisk(nil)
		r.submit(AppFlush, 0, 0)
		r.m.Tick(r.now + 1e9)
		r.run()
		if slices.Contains(r.commands(), wire.Barrier) {
			t.Fatalf("sent %v", r.commands())
		}
	})
	t.Run("a barrier stands between a completed write and the next one", func(t *testing.T) {
		r := connected(t, testNet(), 0, false).primary()
		r.submit(AppWrite, 0, 4096)
		r.submit(AppWrite, 8192, 4096)
		first := *r.last(wire.Data)
		r.finishDisk(nil)
		r.ack(wire.WriteAck, &first)
		r.submit(AppWrite, 16384, 4096)
		if got := r.commands(); !slices.Equal(got, []wire.Command{wire.Data, wire.Data, wire.Barrier, wire.Data}) {
			t.Fatalf("sent %v", got)
		}
	})
	t.Run("an acknowledgement with another count is refused", func(t *testing.T) {
		r := connected(t, testNet(), 0, false).primary()
		r.submit(AppWrite, 0, 4096)
		r.finishDisk(nil)
		r.ack(wire.WriteAck, r.last(wire.Data))
		r.m.Tick(r.now + 1e6)
		r.run()
		b := *r.last(wire.Barrier)
		if err := r.packet(wire.Packet{Cmd: wire.BarrierAck, Barrier: b.Barrier, SetSize: 2}); err == nil {
			t.Fatal("accepted")
		}
	})
	t.Run("an acknowledgement of another epoch is refused", func(t *testing.T) {
		r := connected(t, testNet(), 0, false).primary()
		r.submit(AppWrite, 0, 4096)
		if err := r.packet(wire.Packet{Cmd: wire.BarrierAck, Barrier: 5, SetSize: 1}); err == nil {
			t.Fatal("accepted")
		}
	})
	t.Run("the receiver acknowledges an epoch after its writes and a flush", func(t *testing.T) {
		r := connected(t, testNet(), 0, false)
		for i := range uint64(2) {
			r.packet(wire.Packet{Cmd: wire.Data, Sector: 8 * i, BlockID: 77 + i, Size: 4096, Seq: uint32(i + 1), Flags: wire.FlagSendWriteAck})
		}
		r.packet(wire.Packet{Cmd: wire.Barrier, Barrier: 0xabcd})
		writes := r.disk
		r.disk = nil
		for _, q := range writes {
			if slices.Contains(r.commands(), wire.BarrierAck) {
				t.Fatal("acknowledged before its writes were done")
			}
			r.m.DiskDone(r.now, q, nil)
			r.run()
		}
		if len(r.disk) != 1 || r.disk[0].Op != OpFlush || slices.Contains(r.commands(), wire.BarrierAck) {
			t.Fatalf("no flush before the acknowledgement: %v", r.commands())
		}
		r.finishDisk(nil)
		if b := r.last(wire.BarrierAck); b.Barrier != 0xabcd || b.SetSize != 2 {
			t.Fatalf("acknowledged %#x with %d writes", b.Barrier, b.SetSize)
		}
	})
	t.Run("a flush covers only what was on the disk when it began", func(t *testing.T) {
		r := connected(t, testNet(), FeatureRelaxedEpochs, false)
		r.packet(wire.Packet{Cmd: wire.Data, Sector: 0, BlockID: 1, Size: 4096, Seq: 1})
		r.packet(wire.Packet{Cmd: wire.Barrier, Barrier: 1})
		r.packet(wire.Packet{Cmd: wire.Data, Sector: 8, BlockID: 2, Size: 4096, Seq: 2})
		r.packet(wire.Packet{Cmd: wire.Barrier, Barrier: 2})
		one, two := r.disk[0], r.disk[1]
		r.disk = nil
		r.m.DiskDone(r.now, one, nil)
		r.run() // the flush for epoch 1 is under way
		flush := r.disk[0]
		r.disk = nil
		r.m.DiskDone(r.now, two, nil)
		r.run()
		r.m.DiskDone(r.now, flush, nil)
		r.run()
		if b := r.last(wire.BarrierAck); b.Barrier != 1 {
			t.Fatalf("epoch %d was acknowledged without a flush of its own", b.Barrier)
		}
		r.finishDisk(nil)
		if b := r.last(wire.BarrierAck); b.Barrier != 2 {
			t.Fatalf("epoch 2 was not acknowledged, but %d", b.Barrier)
		}
	})
	t.Run("the barrier of an empty epoch is refused", func(t *testing.T) {
		r := connected(t, testNet(), 0, false)
		if err := r.packet(wire.Packet{Cmd: wire.Barrier, Barrier: 1}); err == nil {
			t.Fatal("accepted")
		}
	})
	t.Run("with sequence numbers a barrier does not overtake a write that waits", func(t *testing.T) {
		n := testNet()
		n.TwoPrimaries = true
		r := connected(t, n, 0, true).primary()
		r.packet(wire.Packet{Cmd: wire.Data, Sector: 0, BlockID: 1, Size: 4096, Seq: 2})
		if err := r.packet(wire.Packet{Cmd: wire.Barrier, Barrier: 1}); err != nil || len(r.disk) > 0 {
			t.Fatalf("%v, %d on the disk", err, len(r.disk))
		}
		r.packet(wire.Packet{Cmd: wire.OVResult, Sector: 0, Size: 4096, Seq: 1, BlockID: wire.IDInSync})
		if len(r.disk) != 1 {
			t.Fatal("the write does not go on when its turn has come")
		}
	})
}

// A peer's write is answered as its flags ask, whatever the protocol.
func TestReceiverFollowsFlags(t *testing.T) {
	for _, c := range []struct {
		name  string
		flags wire.Flags
		fail  bool
		want  []wire.Command
	}{
		{"A: nothing", 0, false, nil},
		{"B: receipt", wire.FlagSendReceiveAck, false, []wire.Command{wire.RecvAck}},
		{"C: written", wire.FlagSendWriteAck, false, []wire.Command{wire.WriteAck}},
		{"A fails: negative all the same", 0, true, []wire.Command{wire.NegAck}},
		{"B fails: negative after the receipt", wire.FlagSendReceiveAck, true, []wire.Command{wire.RecvAck, wire.NegAck}},
		{"C fails", wire.FlagSendWriteAck, true, []wire.Command{wire.NegAck}},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := connected(t, testNet(), 0, false)
			r.packet(wire.Packet{Cmd: wire.Data, Sector: 8, BlockID: 7, Size: 4096, Seq: 1, Flags: c.flags})
			var err error
			if c.fail {
				err = errDisk
			}
			r.finishDisk(err)
			got := slices.DeleteFunc(r.commands(), func(c wire.Command) bool { return c == wire.StateReport })
			if !slices.Equal(got, c.want) {
				t.Fatalf("answered %v", got)
			}
		})
	}
}

func TestWriteThatFailsOnTheSourceIsAnError(t *testing.T) {
	r := connected(t, testNet(), 0, false).primary()
	l := r.m.vols[0].pv[0]
	l.disk, l.conn = wire.Inconsistent, wire.SyncSource
	q := r.submit(AppWrite, 0, 4096)
	r.ack(wire.RSWriteAck, r.last(wire.Data))
	r.finishDisk(errDisk)
	if !errors.Is(r.done[q], ErrIO) {
		t.Fatalf("answered %v, though the only copy that stays lacks it", r.done[q])
	}
	r.last(wire.OutOfSync)
	if !l.isDirty(0, 4096) || r.m.View().Volumes[0].Disk != wire.UpToDate {
		t.Fatal("the block is not marked, or the last good copy was given up")
	}
}

func TestTimeouts(t *testing.T) {
	t.Run("no answer to a ping", func(t *testing.T) {
		r := connected(t, testNet(), 0, false)
		r.now += Now(10 * time.Second)
		r.m.Tick(r.now)
		r.run()
		r.last(wire.Ping)
		if r.now += Now(499 * time.Millisecond); r.down {
			t.Fatal("lost too early")
		}
		r.m.Tick(r.now)
		r.run()
		if r.down {
			t.Fatal("lost too early")
		}
		r.now += Now(2 * time.Millisecond)
		r.m.Tick(r.now)
		r.run()
		if !r.down {
			t.Fatal("not lost")
		}
	})
	t.Run("ko-count times timeout for a request, though pings are answered", func(t *testing.T) {
		r := connected(t, testNet(), 0, false).primary()
		q := r.submit(AppWrite, 0, 4096)
		r.finishDisk(nil)
		for range 43 {
			r.m.peers[0].li.LastReceived = func() (Now, Now) { return 0, r.now }
			r.m.Tick(r.now)
			r.run()
			if r.down {
				break
			}
			r.now += Now(time.Second)
		}
		if !r.down || r.now < 42e9 || !r.completed(q) {
			t.Fatalf("down %v at %v, completed %v", r.down, r.now, r.completed(q))
		}
	})
}

// The paths of reads and writes allocate nothing once they are warm.
func TestNoAllocations(t *testing.T) {
	r := connected(t, testNet(), FeatureRelaxedEpochs, false).primary()
	r.keep = false
	var off int64
	write := func() {
		off = (off + 4096) % (1 << 20)
		r.sent = r.sent[:0]
		q := r.m.NewRequest(AppWrite)
		q.Off, q.Len = off, 4096
		r.m.Submit(r.now, q)
		r.run()
		d := r.sent[len(r.sent)-1].Pkt
		for len(r.disk) > 0 {
			q := r.disk[len(r.disk)-1]
			r.disk = r.disk[:len(r.disk)-1]
			r.m.DiskDone(r.now, q, nil)
			r.run()
		}
		d.Cmd = wire.WriteAck
		_, _ = r.m.Packet(r.now, 0, &d, nil, nil)
		r.run()
		if p := r.m.peers[0]; p.tlCount > 64 {
			r.m.closeEpoch(p)
			r.m.sendBarrier(p)
			e := p.unacked[0]
			r.packet(wire.Packet{Cmd: wire.BarrierAck, Barrier: e.nr, SetSize: e.count})
		}
	}
	read := func() {
		q := r.m.NewRequest(AppRead)
		q.Off, q.Len = off, 4096
		r.m.Submit(r.now, q)
		r.run()
		for len(r.disk) > 0 {
			q := r.disk[len(r.disk)-1]
			r.disk = r.disk[:len(r.disk)-1]
			r.m.DiskDone(r.now, q, nil)
			r.run()
		}
	}
	for range 2000 {
		write()
		read()
	}
	if n := testing.AllocsPerRun(1000, read); n > 0 {
		t.Errorf("a read makes %v allocations", n)
	}
	if n := testing.AllocsPerRun(1000, write); n > 0.5 {
		t.Errorf("a write makes %v allocations", n)
	}
}
