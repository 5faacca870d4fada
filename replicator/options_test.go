package replicator

import (
	"encoding/binary"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/hawser-ha/hawser/replicator/control"
	"github.com/hawser-ha/hawser/replicator/disk"
	"github.com/hawser-ha/hawser/replicator/disk/faulty"
	"github.com/hawser-ha/hawser/replicator/export"
	"github.com/hawser-ha/hawser/replicator/wire"
)

// begin starts a request whose end comes by the channel.
func (c *client) begin(op export.Op, off int64, data []byte) <-chan error {
	done := make(chan error, 1)
	r := &export.Request{Op: op, Off: off, Len: int64(len(data))}
	if op == export.Read || op == export.Write {
		r.Buf = c.pool.Get(len(data))
		copy(r.Buf.B, data)
	}
	r.Done = func(r *export.Request) {
		err := r.Err
		if r.Buf != nil {
			r.Buf.Release()
		}
		done <- err
	}
	go c.s.Submit([]*export.Request{r}) // a lone request may run on this goroutine, and hang with the disk
	return done
}

func connection(want string) func(*control.Status) bool {
	return func(s *control.Status) bool { return s.Peers[0].Connection == want }
}

func notConnected(s *control.Status) bool { return s.Peers[0].Connection != "Connected" }

// stallWrites holds the writes of data of b's disk in its kernel.
func (x *trial) stallWrites() {
	x.fb.inject(faulty.Fault{Ops: []disk.Op{disk.Write}, Len: 32 << 20, Stall: true})
}

func TestProtocolSaysWhenAWriteIsDone(t *testing.T) {
	for _, proto := range []string{"A", "B", "C"} {
		t.Run(proto, func(t *testing.T) {
			x := try(t, netOpts(func(n *control.NetOpts) { n.Protocol = proto }))
			c := x.a.open(t)
			c.write(0, fill(1, 4096)) // the extent is active now
			x.stallWrites()
			done := c.begin(export.Write, 0, fill(2, 4096))
			x.b.until(t, "write on the disk", func(s *control.Status) bool { return s.Volumes[0].LowerPending > 0 })
			if proto != "C" {
				must(t, <-done) // the peer's disk never answered
				x.fb.release()
				return
			}
			select {
			case err := <-done:
				t.Errorf("a write ended before the peer wrote it: %v", err)
			default:
			}
			x.fb.release()
			must(t, <-done)
		})
	}
}

// TestKOCount: a peer that does not write for timeout x ko-count is dropped, and the application goes on; with 0 never.
func TestKOCount(t *testing.T) {
	for _, ko := range []int{2, 0} {
		t.Run(fmt.Sprint(ko), func(t *testing.T) {
			x := try(t, netOpts(func(n *control.NetOpts) { n.Timeout, n.KOCount = 200*time.Millisecond, ko }))
			c := x.a.open(t)
			c.write(0, fill(1, 4096))
			x.stallWrites()
			begun := time.Now()
			done := c.begin(export.Write, 0, fill(2, 4096))
			if ko > 0 {
				must(t, <-done)
				if d := time.Since(begun); d < 400*time.Millisecond || d > 5*time.Second {
					t.Errorf("given up after %s", d)
				}
				x.a.until(t, "lost peer", notConnected)
			} else {
				select {
				case err := <-done:
					t.Errorf("ended with %v", err)
				case <-time.After(time.Second):
				}
			}
			x.fb.release()
			if ko == 0 {
				must(t, <-done)
			}
		})
	}
}

// TestPing: a link through which nothing comes is given up ping-timeout after a ping, which goes out every ping-int.
func TestPing(t *testing.T) {
	x := try(t, netOpts(func(n *control.NetOpts) { n.PingInt, n.PingTimeout = time.Second, 300*time.Millisecond }))
	before := x.tap.seen(wire.Ping)
	x.a.until(t, "ping of an idle link", func(*control.Status) bool { return x.tap.seen(wire.Ping) > before })
	begun := time.Now()
	x.tap.shut()
	x.a.until(t, "lost peer", notConnected)
	if d := time.Since(begun); d < 200*time.Millisecond || d > 4*time.Second {
		t.Errorf("noticed after %s", d)
	}
	x.tap.open()
	x.synced(t)
}

// TestMaxEpochSize: an epoch ends after so many writes.
func TestMaxEpochSize(t *testing.T) {
	barriers := func(size int) int {
		x := try(t, netOpts(func(n *control.NetOpts) { n.MaxEpochSize = size }))
		c := x.a.open(t)
		before := x.tap.seen(wire.Barrier)
		for i := range 60 {
			c.write(int64(i)*4096, fill(1, 4096))
		}
		must(t, x.a.Down(ctxFor(t), true))
		return x.tap.seen(wire.Barrier) - before
	}
	if few, many := barriers(2048), barriers(3); many < 15 || few > 5 {
		t.Errorf("%d barriers with epochs of 2048, %d with 3", few, many)
	}
}

// TestMaxBuffers: half of them is what a resync has in flight.
func TestMaxBuffers(t *testing.T) {
	x := try(t, netOpts(func(n *control.NetOpts) { n.MaxBuffers = 128 })) // 512 KiB
	var asked, most, answered atomic.Int64
	x.tap.watch(func(cmd wire.Command, p []byte) {
		switch cmd {
		case wire.RSDataRequest:
			n := asked.Add(int64(binary.BigEndian.Uint32(p[16:]))) - answered.Load()
			most.Store(max(most.Load(), n))
		case wire.RSDataReply:
			answered.Add(int64(len(p) - 24))
		}
	})
	must(t, x.b.Invalidate(ctxFor(t), 0, "a"))
	x.b.until(t, "resync", func(s *control.Status) bool { return upToDate(s) && asked.Load() >= 60<<20 })
	if n := most.Load(); n == 0 || n > 256<<10+wire.MaxData {
		t.Errorf("%d bytes in flight", n)
	}
}

func TestAllowTwoPrimaries(t *testing.T) {
	for _, allow := range []bool{false, true} {
		x := try(t, netOpts(func(n *control.NetOpts) { n.AllowTwoPrimaries = allow }))
		if err := x.b.Promote(ctxFor(t), false); (err == nil) != allow {
			t.Errorf("allow-two-primaries %v: %v", allow, err)
		}
	}
}

// TestSharedSecret: nodes with one secret meet, nodes with two do not.
func TestSharedSecret(t *testing.T) {
	x := try(t, netOpts(func(n *control.NetOpts) { n.CramHMACAlg, n.SharedSecret = "sha256", "one" }))
	if x.tap.seen(wire.AuthChallenge) == 0 {
		t.Error("nobody asked for the secret")
	}
	def := *x.b.Definition()
	def.Peers = []control.PeerDef{def.Peers[0]}
	def.Peers[0].Net.SharedSecret = "other"
	must(t, x.b.Adjust(ctxFor(t), &def))
	x.tap.cut()
	x.b.until(t, "refusal", connection("StandAlone"))
}

// TestDataIntegrity: a byte that is changed on the way is noticed, the block is not lost, and the nodes go on.
func TestDataIntegrity(t *testing.T) {
	x := try(t, netOpts(func(n *control.NetOpts) { n.DataIntegrityAlg = "crc32c" }))
	c := x.a.open(t)
	var once sync.Once
	x.tap.watch(func(cmd wire.Command, p []byte) {
		if cmd == wire.Data {
			once.Do(func() { p[len(p)-100] ^= 1 })
		}
	})
	c.write(8192, fill(7, 4096))
	x.b.until(t, "complaint", func(s *control.Status) bool {
		return strings.Contains(s.Peers[0].LastError, "digest") || strings.Contains(s.Peers[0].LastError, "integrity")
	})
	c.write(16384, fill(8, 4096))
	x.synced(t)
	c.s.Close()
	must(t, x.a.Down(ctxFor(t), false))
	must(t, x.b.Down(ctxFor(t), false))
	sameData(t, x.a, x.b)
}

// TestOnCongestion: with protocol A the Primary goes ahead, or leaves, instead of waiting for a peer that is behind.
func TestOnCongestion(t *testing.T) {
	for _, k := range []struct {
		name, policy string
		fill         int64 // sectors
		extents      int
	}{{"pull-ahead by congestion-fill", "pull-ahead", 64, 1237}, {"pull-ahead by congestion-extents", "pull-ahead", 0, 3},
		{"disconnect", "disconnect", 64, 1237}, {"block", "block", 64, 3}} {
		t.Run(k.name, func(t *testing.T) {
			x := try(t, netOpts(func(n *control.NetOpts) {
				n.Protocol, n.OnCongestion, n.CongestionFill, n.CongestionExtents = "A", k.policy, k.fill, k.extents
			}))
			c := x.a.open(t)
			x.stallWrites()
			for i := range 40 {
				c.write(int64(i%14)<<22+int64(i)*4096, fill(byte(i), 4096))
			}
			s := x.a.Status().Peers[0]
			ahead, gone := s.Volumes[0].Replication == "Ahead", s.Connection == "StandAlone"
			if ahead != (k.policy == "pull-ahead") || gone != (k.policy == "disconnect") {
				t.Errorf("%s, %s", s.Connection, s.Volumes[0].Replication)
			}
			x.fb.release()
			if k.policy != "disconnect" {
				x.synced(t)
				c.s.Close()
				must(t, x.a.Down(ctxFor(t), false))
				must(t, x.b.Down(ctxFor(t), false))
				sameData(t, x.a, x.b)
			}
		})
	}
}

// TestChecksumsAfterACrashOnly: a target that was only away gets its blocks; one that crashed as Primary compares first.
func TestChecksumsAfterACrashOnly(t *testing.T) {
	x := try(t, netOpts(func(n *control.NetOpts) { n.CsumsAlg, n.CsumsAfterCrashOnly = "crc32c", true }))
	c := x.a.open(t)
	x.part(t)
	c.write(0, fill(1, 64<<10))
	x.meet(t)
	x.synced(t)
	if n := x.tap.seen(wire.CsumRSRequest); n > 0 {
		t.Errorf("%d checksums without a crash", n)
	}
	c.write(1<<20, fill(2, 64<<10))
	x.a.stop(t)
	x.b.until(t, "lost peer", notConnected)
	must(t, x.b.Promote(ctxFor(t), false))
	x.b.open(t).write(2<<20, fill(3, 4096))
	x.a = start(t, x.a.def)
	must(t, x.a.Up(ctxFor(t)))
	x.synced(t)
	if x.tap.seen(wire.CsumRSRequest) == 0 {
		t.Error("no checksums after a crash")
	}
}

func TestUseRLE(t *testing.T) {
	for _, use := range []bool{true, false} {
		x := try(t, netOpts(func(n *control.NetOpts) { n.UseRLE = use }))
		packed, plain := x.tap.seen(wire.CompressedBitmap), x.tap.seen(wire.Bitmap)
		if use && packed == 0 || !use && (packed > 0 || plain == 0) {
			t.Errorf("use-rle %v: %d packed, %d plain", use, packed, plain)
		}
	}
}

// TestOnIOError: what a write error on the Primary's disk leads to.
func TestOnIOError(t *testing.T) {
	for policy, want := range map[string]string{"detach": "Diskless", "call-local-io-error": "Diskless", "pass_on": "Inconsistent"} {
		t.Run(policy, func(t *testing.T) {
			x := try(t, diskOpts(func(o *control.DiskOpts) { o.OnIOError = policy }))
			events := x.a.Subscribe(ctxFor(t), control.FromStart)
			c := x.a.open(t)
			x.fa.inject(faulty.Fault{Ops: []disk.Op{disk.Write}, Off: 8192, Len: 4096, Times: 1, Err: syscall.EIO})
			c.write(8192, fill(2, 4096)) // the peer has it
			x.a.until(t, want, diskState(want))
			c.expect(8192, fill(2, 4096))
			if policy == "call-local-io-error" {
				awaitHandler(t, events, "local-io-error")
			}
		})
	}
}

// awaitHandler waits until the agent is asked to run a handler.
func awaitHandler(t *testing.T, events <-chan control.Event, name string) control.Event {
	t.Helper()
	end := time.After(60 * time.Second)
	for {
		select {
		case e, ok := <-events:
			if !ok {
				t.Fatalf("no %s: the events ended", name)
			}
			if e.Kind == control.EventHandler && e.Name == name {
				return e
			}
		case <-end:
			t.Fatalf("handler %s is not asked for", name)
		}
	}
}

// alone is a Primary without peers on a disk of its own.
func alone(t *testing.T, size int64, o func(*control.DiskOpts), open func(d *control.Definition) *node) (*node, *client) {
	t.Helper()
	def := definition(t.TempDir(), "a", 0)
	def.Volumes[0].Size = size
	if o != nil {
		o(&def.Volumes[0].Opts)
	}
	createMD(t, &def)
	a := open(&def)
	must(t, a.Up(ctxFor(t)))
	must(t, a.Promote(ctxFor(t), true))
	return a, a.open(t)
}

// TestFlushOptions: what disk-flushes and md-flushes leave out, and that nothing is left out without them.
func TestFlushOptions(t *testing.T) {
	for _, k := range []struct{ data, md bool }{{true, true}, {false, true}, {false, false}} {
		disk := &counting{}
		_, c := alone(t, 64<<20, func(o *control.DiskOpts) { o.DiskFlushes, o.MDFlushes = k.data, k.md },
			func(d *control.Definition) *node { return startWith(t, *d, disk.open) })
		c.write(0, fill(1, 4096))
		disk.flushed()
		c.write(0, fill(2, 4096))
		must(t, c.do(export.Flush, 0, nil, false))
		must(t, c.do(export.Write, 0, fill(3, 4096), true))
		if n := disk.flushed(); (n >= 2) != k.data || !k.data && n > 0 {
			t.Errorf("disk-flushes %v: %d flushes for a flush and a FUA write", k.data, n)
		}
		c.write(32<<20, fill(4, 4096)) // another extent: a transaction of the activity log
		if n := disk.flushed(); (n > 0) != k.md {
			t.Errorf("md-flushes %v: %d flushes for a transaction", k.md, n)
		}
	}
}

// TestActivityLogOptions: a log of 67 extents forgets the first of 100, one of 1237 does not; without updates there is none.
func TestActivityLogOptions(t *testing.T) {
	for _, k := range []struct {
		extents int
		updates bool
	}{{67, true}, {1237, true}, {1237, false}, {65534, true}} {
		a, c := alone(t, 1<<30, func(o *control.DiskOpts) { o.ALExtents, o.ALUpdates = k.extents, k.updates },
			func(d *control.Definition) *node { return start(t, *d) })
		pass := func() int64 {
			before := a.Status().Volumes[0].ALWrites
			for i := range 100 {
				c.write(int64(i)<<22, fill(1, 4096))
			}
			return a.Status().Volumes[0].ALWrites - before
		}
		first, again := pass(), pass()
		if (first > 0) != k.updates || (again > 0) != (k.extents < 100) {
			t.Errorf("al-extents %d, al-updates %v: %d transactions, then %d", k.extents, k.updates, first, again)
		}
		if a.Status().Volumes[0].GI.ALDisabled == k.updates {
			t.Errorf("al-updates %v: the superblock says the opposite", k.updates)
		}
		a.mu.Lock()
		slots := a.vols[0].alSlots
		a.mu.Unlock()
		if k.extents == 65534 && (slots == 0 || slots >= 65534) {
			t.Errorf("%d extents in a ring of 32 KiB", slots)
		}
	}
}

// TestDiskOptionsReachTheDisk: disk-timeout and direct-io are the disk package's, which has tests of what they do.
func TestDiskOptionsReachTheDisk(t *testing.T) {
	d := &counting{}
	a, _ := alone(t, 64<<20, func(o *control.DiskOpts) { o.DiskTimeout, o.DirectIO, o.Rotational = 3*time.Second, "no", true },
		func(def *control.Definition) *node { return startWith(t, *def, d.open) })
	if d.opened.Timeout != 3*time.Second || d.opened.Direct != "no" {
		t.Errorf("opened with %+v", d.opened)
	}
	if !a.vols[0].Limits().Rotational {
		t.Error("rotational does not reach the front ends")
	}
}

// TestReadBalancing: where reads go while both copies are good, and that they go elsewhere when one is not.
func TestReadBalancing(t *testing.T) {
	for policy, share := range map[string][2]int{ // of 64 reads: least and most by the peer
		"prefer-local": {0, 0}, "prefer-remote": {64, 64}, "round-robin": {30, 34}, "least-pending": {0, 0},
		"32K-striping": {32, 32}, "64K-striping": {32, 32}, "128K-striping": {32, 32}, "256K-striping": {0, 0},
		"512K-striping": {0, 0}, "1M-striping": {0, 0},
	} {
		t.Run(policy, func(t *testing.T) {
			x := try(t, diskOpts(func(o *control.DiskOpts) { o.ReadBalancing = policy }))
			c := x.a.open(t)
			data := make([]byte, 256<<10)
			for i := range data {
				data[i] = byte(i >> 12)
			}
			c.write(0, data)
			before := x.tap.seen(wire.DataRequest)
			for i := range 64 {
				c.expect(int64(i)<<12, data[i<<12:][:4096])
			}
			if n := x.tap.seen(wire.DataRequest) - before; n < share[0] || n > share[1] {
				t.Errorf("%d of 64 reads by the peer, want %d to %d", n, share[0], share[1])
			}
			if policy == "512K-striping" || policy == "1M-striping" || policy == "256K-striping" {
				c.expect(1<<20+512<<10, fill(0, 4096))
				c.expect(1<<20+256<<10, fill(0, 4096))
				c.expect(1<<20, fill(0, 4096))
				if x.tap.seen(wire.DataRequest) == before {
					t.Error("the second stripe is not read from the peer")
				}
			}
			// The peer cannot read, then it is gone: the local disk answers.
			x.fb.inject(faulty.Fault{Ops: []disk.Op{disk.Read}, Off: 0, Len: 64 << 10, Err: syscall.EIO})
			c.expect(0, data[:4096])
			c.expect(32<<10, data[32<<10:][:4096])
			x.tap.shut()
			pending := []<-chan error{c.begin(export.Read, 64<<10, make([]byte, 4096)), c.begin(export.Read, 96<<10, make([]byte, 4096))}
			must(t, x.a.Disconnect(ctxFor(t), "b", true))
			for _, done := range pending {
				must(t, <-done)
			}
			c.expect(4096, data[4096:8192])
			x.tap.open()
		})
	}
}

// TestLeastPending: a read goes to the peer while the local disk has more to do.
func TestLeastPending(t *testing.T) {
	x := try(t, diskOpts(func(o *control.DiskOpts) { o.ReadBalancing = "least-pending" }))
	c := x.a.open(t)
	c.write(0, fill(1, 8192))
	x.fa.inject(faulty.Fault{Ops: []disk.Op{disk.Read}, Times: 1, Stall: true})
	slow := c.begin(export.Read, 0, make([]byte, 4096))
	x.a.until(t, "read on the disk", func(s *control.Status) bool { return s.Volumes[0].LowerPending > 0 })
	c.expect(4096, fill(1, 4096))
	if x.tap.seen(wire.DataRequest) != 1 {
		t.Error("the read waited for the busy disk")
	}
	x.fa.release()
	must(t, <-slow)
}

// TestReadsAvoidABlockThatThePeerMissed: bits that are set while both disks are UpToDate, found by a verify, keep reads here.
func TestReadsAvoidABlockThatThePeerMissed(t *testing.T) {
	x := try(t, both(func(d *control.Definition) {
		d.Volumes[0].Opts.ReadBalancing, d.Peers[0].Net.VerifyAlg = "prefer-remote", "crc32c"
	}))
	c := x.a.open(t)
	c.write(0, fill(1, 8192))
	damage(t, x.b, 40<<20, fill(9, 4096))
	c.expect(40<<20, fill(9, 4096)) // nobody knows
	must(t, x.a.Verify(ctxFor(t), 0, "b", 0, 0))
	x.a.until(t, "verify", func(s *control.Status) bool {
		return upToDate(s) && s.Peers[0].Volumes[0].OutOfSync == 4096
	})
	c.expect(40<<20, fill(0, 4096))
	c.expect(0, fill(1, 8192))
}
