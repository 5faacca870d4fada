package replicator

import (
	"log/slog"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/hawser-ha/hawser/replicator/control"
	"github.com/hawser-ha/hawser/replicator/disk"
	"github.com/hawser-ha/hawser/replicator/disk/faulty"
	"github.com/hawser-ha/hawser/replicator/export"
)

// faults are the disks of one node, wrapped as they are opened.
type faults struct {
	mu   sync.Mutex
	last *faulty.Store
}

func (f *faults) open(log *slog.Logger, o disk.Options) (disk.Store, error) {
	s, err := disk.Open(log, o)
	if err != nil {
		return nil, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.last = faulty.New(s, faulty.Options{})
	return f.last, nil
}

func (f *faults) inject(x faulty.Fault) func() {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.last.Inject(x)
}

func (f *faults) release() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.last.Clear()
	f.last.Release()
}

// faultyPair is upPair with faults under both nodes.
func faultyPair(t *testing.T) (a, b *node, fa, fb *faults) {
	t.Helper()
	da, db := pairDefinitions(t, nil)
	createMD(t, &da)
	createMD(t, &db)
	fa, fb = &faults{}, &faults{}
	a, b = startWith(t, da, fa.open), startWith(t, db, fb.open)
	must(t, a.Up(ctxFor(t)))
	must(t, b.Up(ctxFor(t)))
	a.until(t, "connection", func(s *control.Status) bool { return s.Peers[0].Connection == "Connected" })
	must(t, a.Promote(ctxFor(t), true))
	a.until(t, "sync", upToDate)
	b.until(t, "sync", upToDate)
	return a, b, fa, fb
}

func diskState(want string) func(*control.Status) bool {
	return func(s *control.Status) bool { return s.Volumes[0].DiskState == want }
}

func TestWriteErrorDetachesThePrimary(t *testing.T) {
	a, b, fa, _ := faultyPair(t)
	c := a.open(t)
	c.write(0, fill(1, 4096))
	fa.inject(faulty.Fault{Ops: []disk.Op{disk.Write}, Off: 8192, Len: 4096, Times: 1, Err: syscall.EIO})
	c.write(8192, fill(2, 4096)) // the peer has it
	a.until(t, "detach", diskState("Diskless"))
	c.expect(0, fill(1, 4096))
	c.expect(8192, fill(2, 4096))
	must(t, a.Attach(ctxFor(t), 0))
	a.until(t, "resync", upToDate)
	c.s.Close()
	must(t, a.Down(ctxFor(t), false))
	must(t, b.Down(ctxFor(t), false))
	sameData(t, a, b)
}

func TestReadErrorIsHealedByThePeer(t *testing.T) {
	a, _, fa, _ := faultyPair(t)
	c := a.open(t)
	c.write(4096, fill(9, 4096))
	fa.inject(faulty.Fault{Ops: []disk.Op{disk.Read}, Off: 4096, Len: 4096, Times: 1, Err: syscall.EIO})
	c.expect(4096, fill(9, 4096))
	c.expect(4096, fill(9, 4096))
}

func TestWriteErrorOfTheSecondaryStopsNobody(t *testing.T) {
	a, b, _, fb := faultyPair(t)
	c := a.open(t)
	fb.inject(faulty.Fault{Ops: []disk.Op{disk.Write}, Off: 1 << 20, Len: 4096, Times: 1, Err: syscall.EIO})
	c.write(1<<20, fill(3, 4096))
	b.until(t, "detach", diskState("Diskless"))
	c.write(2<<20, fill(4, 4096))
	must(t, b.Attach(ctxFor(t), 0))
	a.until(t, "resync", upToDate)
	c.s.Close()
	must(t, a.Down(ctxFor(t), false))
	must(t, b.Down(ctxFor(t), false))
	sameData(t, a, b)
}

// TestMetadataErrorDetaches: a superblock or activity log that cannot be written takes the disk out of use.
func TestMetadataErrorDetaches(t *testing.T) {
	a, _, fa, _ := faultyPair(t)
	c := a.open(t)
	// The activity log lies before the superblock at the end of the disk.
	fa.inject(faulty.Fault{Ops: []disk.Op{disk.Write}, Off: 64<<20 - 64<<10, Len: 64 << 10, Times: 1, Err: syscall.EIO})
	c.write(48<<20, fill(6, 4096))
	a.until(t, "detach", diskState("Diskless"))
	c.expect(48<<20, fill(6, 4096))
}

// TestHungDisk: with the disk of the Primary hung in the kernel, a forced detach answers what waits, I/O goes on through the
// peer, and the process can end.
func TestHungDisk(t *testing.T) {
	a, _, fa, _ := faultyPair(t)
	c := a.open(t)
	c.write(0, fill(1, 8192)) // its extent is in the activity log
	fa.inject(faulty.Fault{Stall: true})
	answered := make(chan error, 1)
	go func() { answered <- c.do(export.Write, 0, fill(5, 4096), false) }()
	a.until(t, "request on the disk", func(s *control.Status) bool { return s.Volumes[0].LowerPending > 0 })
	detached := make(chan error, 1)
	go func() { detached <- a.Detach(ctxFor(t), 0, true) }()
	a.until(t, "requests answered", func(s *control.Status) bool { return s.Volumes[0].UpperPending == 0 })
	c2 := a.open(t)
	c2.write(4096, fill(7, 4096))
	c2.expect(4096, fill(7, 4096))
	begun := time.Now()
	a.cancel()
	if err := <-a.ended; err == nil {
		t.Error("nobody was told that I/O hangs")
	}
	close(a.ended)
	if d := time.Since(begun); d > closeTimeout+3*time.Second {
		t.Errorf("the end took %s", d)
	}
	fa.release()
	<-answered
	<-detached
}

func startWith(t testing.TB, def control.Definition, open func(*slog.Logger, disk.Options) (disk.Store, error)) *node {
	t.Helper()
	dir := filepath.Dir(def.Volumes[0].Disk)
	return startOpts(t, def, Options{DeviceDir: filepath.Join(dir, "dev"), RunDir: filepath.Join(dir, "run"), OpenDisk: open})
}
