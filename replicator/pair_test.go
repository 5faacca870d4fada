package replicator

import (
	"bytes"
	"context"
	"log/slog"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"runtime/pprof"
	"sync"
	"testing"
	"time"

	"github.com/hawser-ha/hawser/replicator/control"
	"github.com/hawser-ha/hawser/replicator/export"
	"github.com/hawser-ha/hawser/replicator/iobuf"
)

// node is one end of a pair under test.
type node struct {
	*Resource
	def    control.Definition
	cancel context.CancelFunc
	ended  chan error
}

func freePort(t testing.TB) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

func testNet() control.NetOpts {
	return control.NetOpts{
		Protocol: "C", Timeout: 6 * time.Second, PingInt: 10 * time.Second, PingTimeout: 500 * time.Millisecond, ConnectInt: time.Second,
		SocketCheckTimeout: 20 * time.Millisecond, KOCount: 7, MaxEpochSize: 2048, MaxBuffers: 2048, AfterSB0Pri: "disconnect",
		AfterSB1Pri: "disconnect", AfterSB2Pri: "disconnect", RRConflict: "disconnect", OnCongestion: "block", UseRLE: true, Fencing: "dont-care",
	}
}

// definition is a resource of one volume in dir.
func definition(dir, name string, id int) control.Definition {
	return control.Definition{
		Name: "r0", Node: name, NodeID: id,
		Volumes: []control.VolumeDef{{
			Number: 0, Device: "none", Disk: filepath.Join(dir, name+".img"), MetaDisk: "internal", MetaIndex: -1, Size: 64 << 20,
			Opts: control.DiskOpts{OnIOError: "detach", DiskFlushes: true, MDFlushes: true, ALExtents: 1237, ALUpdates: true, DirectIO: "auto"},
		}},
	}
}

var resyncOpts = control.ResyncOpts{ResyncRate: 102400, CPlanAhead: 20, CDelayTarget: 10, CFillTarget: 0, CMaxRate: 0, CMinRate: 250}

// pairDefinitions are two nodes that replicate to each other.
func pairDefinitions(t testing.TB, change func(*control.NetOpts)) (a, b control.Definition) {
	dir := t.TempDir()
	a, b = definition(dir, "a", 0), definition(dir, "b", 1)
	pa, pb := freePort(t), freePort(t)
	n := testNet()
	if change != nil {
		change(&n)
	}
	a.Peers = []control.PeerDef{{Name: "b", NodeID: 1, Local: pa, Remote: pb, Net: n, Resync: resyncOpts}}
	b.Peers = []control.PeerDef{{Name: "a", NodeID: 0, Local: pb, Remote: pa, Net: n, Resync: resyncOpts}}
	return a, b
}

func testLog(t testing.TB, name string) *slog.Logger {
	if os.Getenv("HAWSER_TEST_LOG") == "" {
		return slog.New(slog.DiscardHandler)
	}
	return slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelDebug})).With("node", name)
}

func ctxFor(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), 60*time.Second)
	t.Cleanup(cancel)
	return ctx
}

func createMD(t testing.TB, def *control.Definition) {
	t.Helper()
	if _, err := CreateMD(testLog(t, def.Node), def, control.CreateMDOptions{Volume: control.All}); err != nil {
		t.Fatal(err)
	}
}

// start runs a node and attaches its disk.
func start(t testing.TB, def control.Definition) *node {
	t.Helper()
	return startWith(t, def, nil)
}

func startOpts(t testing.TB, def control.Definition, o Options) *node {
	t.Helper()
	r, err := New(testLog(t, def.Node), def, o)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	n := &node{Resource: r, def: def, cancel: cancel, ended: make(chan error, 1)}
	go func() { n.ended <- r.Run(ctx) }()
	t.Cleanup(func() { n.stop(t) })
	return n
}

// stop is a crash as far as the peer can see: links and disks just close.
func (n *node) stop(t testing.TB) {
	t.Helper()
	n.cancel()
	select {
	case err, ok := <-n.ended:
		if ok {
			if err != nil {
				t.Errorf("node %s: %v", n.def.Node, err)
			}
			close(n.ended)
		}
	case <-time.After(60 * time.Second):
		_ = pprof.Lookup("goroutine").WriteTo(t.Output(), 2)
		t.Fatalf("node %s does not end", n.def.Node)
	}
}

// until waits for a condition of a node's status.
func (n *node) until(t testing.TB, what string, ok func(s *control.Status) bool) {
	t.Helper()
	end := time.Now().Add(60 * time.Second)
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for !ok(n.Status()) {
		if time.Now().After(end) {
			s := n.Status()
			t.Fatalf("node %s: no %s: role %s, disk %+v, peers %+v", n.def.Node, what, s.Role, s.Volumes, s.Peers)
		}
		<-tick.C
	}
}

func upToDate(s *control.Status) bool {
	return s.Volumes[0].DiskState == "UpToDate" && s.Peers[0].Connection == "Connected" &&
		s.Peers[0].Volumes[0].DiskState == "UpToDate" && s.Peers[0].Volumes[0].Replication == "Established"
}

// must is for steps that may not fail.
func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// client is an opener of a volume.
type client struct {
	t    testing.TB
	pool *iobuf.Pool
	s    export.Session
}

func (n *node) open(t testing.TB) *client {
	t.Helper()
	s, err := n.vols[0].Open(nil, nil)
	must(t, err)
	return &client{t, iobuf.NewPool(256 << 20), s}
}

// do runs one request.
func (c *client) do(op export.Op, off int64, data []byte, fua bool) error {
	done := make(chan error, 1)
	r := &export.Request{Op: op, Off: off, Len: int64(len(data)), FUA: fua, Done: func(r *export.Request) { done <- r.Err }}
	if op == export.Read || op == export.Write {
		r.Buf = c.pool.Get(len(data))
		defer r.Buf.Release()
		copy(r.Buf.B, data)
	}
	c.s.Submit([]*export.Request{r})
	select {
	case err := <-done:
		if op == export.Read {
			copy(data, r.Buf.B)
		}
		return err
	case <-time.After(90 * time.Second):
		c.t.Fatalf("request %d at %d does not end", op, off)
		return nil
	}
}

func (c *client) write(off int64, data []byte) {
	c.t.Helper()
	must(c.t, c.do(export.Write, off, data, false))
}

func (c *client) expect(off int64, want []byte) {
	c.t.Helper()
	got := make([]byte, len(want))
	must(c.t, c.do(export.Read, off, got, false))
	if !bytes.Equal(got, want) {
		c.t.Fatalf("read at %d: wrong data", off)
	}
}

func fill(b byte, n int) []byte { return bytes.Repeat([]byte{b}, n) }

// sameData compares the data area of two disks that are closed.
func sameData(t testing.TB, a, b *node) {
	t.Helper()
	x, err := os.ReadFile(a.def.Volumes[0].Disk)
	must(t, err)
	y, err := os.ReadFile(b.def.Volumes[0].Disk)
	must(t, err)
	n := len(x) - 1<<20 // metadata is within the last MiB
	for i := 0; i < n; i += 4096 {
		if !bytes.Equal(x[i:i+4096], y[i:i+4096]) {
			t.Fatalf("block %d differs", i/4096)
		}
	}
}

// upPair starts two nodes in sync, the first one Primary.
func upPair(t testing.TB, change func(*control.NetOpts)) (a, b *node) {
	t.Helper()
	da, db := pairDefinitions(t, change)
	createMD(t, &da)
	createMD(t, &db)
	a, b = start(t, da), start(t, db)
	must(t, a.Up(ctxFor(t)))
	must(t, b.Up(ctxFor(t)))
	connected := func(s *control.Status) bool { return s.Peers[0].Connection == "Connected" }
	a.until(t, "connection", connected)
	b.until(t, "connection", connected)
	must(t, a.Promote(ctxFor(t), true))
	a.until(t, "initial sync", upToDate)
	b.until(t, "initial sync", upToDate)
	return a, b
}

func TestStandalone(t *testing.T) {
	def := definition(t.TempDir(), "a", 0)
	createMD(t, &def)
	a := start(t, def)
	must(t, a.Up(ctxFor(t)))
	if _, err := a.vols[0].Open(nil, nil); err == nil {
		t.Fatal("a Secondary was opened")
	}
	must(t, a.Promote(ctxFor(t), true))
	c := a.open(t)
	c.write(8192, fill(7, 4096))
	c.expect(8192, fill(7, 4096))
	must(t, c.do(export.Write, 0, fill(3, 8192), true))
	must(t, c.do(export.Flush, 0, nil, false))
	c.write(1<<20, fill(9, 3<<20)) // more than one packet
	c.expect(1<<20, fill(9, 3<<20))
	if err := c.do(export.Write, 64<<20, fill(1, 4096), false); err == nil {
		t.Error("a write past the end succeeded")
	}
	c.s.Close()
	must(t, a.Demote(ctxFor(t), false))
	must(t, a.Down(ctxFor(t), false))
	b := start(t, def)
	must(t, b.Up(ctxFor(t)))
	must(t, b.Promote(ctxFor(t), false))
	c = b.open(t)
	c.expect(8192, fill(7, 4096))
	c.expect(1<<20, fill(9, 3<<20))
}

func TestInitialSyncAndWrites(t *testing.T) {
	for _, proto := range []string{"A", "B", "C"} {
		t.Run(proto, func(t *testing.T) {
			a, b := upPair(t, func(n *control.NetOpts) { n.Protocol = proto })
			c := a.open(t)
			var wg sync.WaitGroup
			for w := range 4 {
				wg.Go(func() {
					rng := rand.New(rand.NewPCG(uint64(w), 1))
					for range 100 {
						off := int64(w)<<23 + rng.Int64N(2000)*4096
						if err := c.do(export.Write, off, fill(byte(rng.Uint32()), 4096*(1+rng.IntN(8))), false); err != nil {
							t.Error(err)
						}
					}
				})
			}
			wg.Wait()
			must(t, c.do(export.Flush, 0, nil, false))
			c.s.Close()
			must(t, a.Down(ctxFor(t), false))
			must(t, b.Down(ctxFor(t), false))
			sameData(t, a, b)
		})
	}
}

func TestFailoverReconnectResync(t *testing.T) {
	a, b := upPair(t, nil)
	c := a.open(t)
	c.write(0, fill(1, 4096))
	b.stop(t)
	a.until(t, "lost peer", func(s *control.Status) bool { return s.Peers[0].Connection != "Connected" })
	for i := range 20 {
		c.write(int64(i)<<20, fill(byte(2+i), 64<<10))
	}
	b = start(t, b.def)
	must(t, b.Up(ctxFor(t)))
	a.until(t, "resync", upToDate)
	b.until(t, "resync", upToDate)
	c.s.Close()
	must(t, a.Demote(ctxFor(t), false))
	must(t, b.Promote(ctxFor(t), false))
	d := b.open(t)
	for i := range 20 {
		d.expect(int64(i)<<20, fill(byte(2+i), 64<<10))
	}
	d.write(5<<20, fill(0xaa, 4096))
	a.stop(t)
	d.write(6<<20, fill(0xbb, 4096))
	a = start(t, a.def)
	must(t, a.Up(ctxFor(t)))
	a.until(t, "resync", upToDate)
	d.s.Close()
	must(t, b.Down(ctxFor(t), false))
	must(t, a.Promote(ctxFor(t), false))
	c = a.open(t)
	c.expect(5<<20, fill(0xaa, 4096))
	c.expect(6<<20, fill(0xbb, 4096))
}
