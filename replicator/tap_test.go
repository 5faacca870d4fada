package replicator

import (
	"io"
	"log/slog"
	"net"
	"os"
	"sync"
	"testing"

	"github.com/hawser-ha/hawser/replicator/control"
	"github.com/hawser-ha/hawser/replicator/disk"
	"github.com/hawser-ha/hawser/replicator/wire"
)

// tap stands between two nodes, reads along, and can change or hold back what passes.
type tap struct {
	mu     sync.Mutex // guards what follows
	count  map[wire.Command]int
	bytes  map[wire.Command]int                   // of payload
	mangle func(cmd wire.Command, payload []byte) // sees every packet
	hole   chan struct{}                          // not nil: nothing passes until it is closed
	conns  []net.Conn
}

func newTap() *tap { return &tap{count: map[wire.Command]int{}, bytes: map[wire.Command]int{}} }

// to gives an address behind which target is.
func (p *tap) to(t testing.TB, target string) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	var wg sync.WaitGroup
	t.Cleanup(func() {
		l.Close()
		p.open()
		p.cut()
		wg.Wait()
	})
	wg.Go(func() {
		for {
			in, err := l.Accept()
			if err != nil {
				return
			}
			out, err := net.Dial("tcp", target)
			if err != nil {
				in.Close()
				continue
			}
			p.mu.Lock()
			p.conns = append(p.conns, in, out)
			p.mu.Unlock()
			wg.Go(func() { p.pump(in, out) })
			wg.Go(func() { p.pump(out, in) })
		}
	})
	return l.Addr().String()
}

func (p *tap) pump(from, to net.Conn) {
	defer from.Close()
	defer to.Close()
	for {
		packet := make([]byte, wire.HeaderSize(wire.VersionHandshake), wire.HeaderMax)
		if _, err := io.ReadFull(from, packet); err != nil {
			return
		}
		version := wire.VersionHandshake
		if packet[0] == 0x86 { // the header of versions 100 and 101
			version = wire.VersionMax
			packet = packet[:wire.HeaderMax]
			if _, err := io.ReadFull(from, packet[8:]); err != nil {
				return
			}
		}
		cmd, _, length, err := wire.ParseHeader(version, packet)
		if err != nil {
			return
		}
		head := len(packet)
		packet = append(packet, make([]byte, length)...)
		if _, err := io.ReadFull(from, packet[head:]); err != nil {
			return
		}
		p.mu.Lock()
		p.count[cmd]++
		p.bytes[cmd] += int(length)
		if p.mangle != nil {
			p.mangle(cmd, packet[head:])
		}
		hole := p.hole
		p.mu.Unlock()
		if hole != nil {
			<-hole
		}
		if _, err := to.Write(packet); err != nil {
			return
		}
	}
}

// seen is how many packets of a command passed.
func (p *tap) seen(cmd wire.Command) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.count[cmd]
}

// watch has every packet shown to f.
func (p *tap) watch(f func(cmd wire.Command, payload []byte)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.mangle = f
}

// shut holds everything back, as a cable that was pulled.
func (p *tap) shut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.hole = make(chan struct{})
}

func (p *tap) open() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.hole != nil {
		close(p.hole)
		p.hole = nil
	}
}

// cut ends all connections.
func (p *tap) cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, c := range p.conns {
		c.Close()
	}
	p.conns = nil
}

// trial is a pair of nodes with a tap between them and faults below them.
type trial struct {
	a, b   *node
	fa, fb *faults
	tap    *tap
}

// definitions changes both definitions alike.
func both(f func(d *control.Definition)) func(a, b *control.Definition) {
	return func(a, b *control.Definition) { f(a); f(b) }
}

func netOpts(f func(n *control.NetOpts)) func(a, b *control.Definition) {
	return both(func(d *control.Definition) { f(&d.Peers[0].Net) })
}

func diskOpts(f func(o *control.DiskOpts)) func(a, b *control.Definition) {
	return both(func(d *control.Definition) { f(&d.Volumes[0].Opts) })
}

// try starts a pair in sync, the first one Primary.
func try(t *testing.T, change func(a, b *control.Definition)) *trial {
	t.Helper()
	da, db := pairDefinitions(t, nil)
	x := &trial{tap: newTap(), fa: &faults{}, fb: &faults{}}
	da.Peers[0].Remote = x.tap.to(t, db.Peers[0].Local)
	db.Peers[0].Remote = x.tap.to(t, da.Peers[0].Local)
	if change != nil {
		change(&da, &db)
	}
	createMD(t, &da)
	createMD(t, &db)
	x.a, x.b = startWith(t, da, x.fa.open), startWith(t, db, x.fb.open)
	must(t, x.a.Up(ctxFor(t)))
	must(t, x.b.Up(ctxFor(t)))
	connected := func(s *control.Status) bool { return s.Peers[0].Connection == "Connected" }
	x.a.until(t, "connection", connected)
	x.b.until(t, "connection", connected)
	must(t, x.a.Promote(ctxFor(t), true))
	x.synced(t)
	return x
}

func (x *trial) synced(t *testing.T) {
	t.Helper()
	x.a.until(t, "sync", upToDate)
	x.b.until(t, "sync", upToDate)
}

// part ends the connection on both sides; meet makes it again.
func (x *trial) part(t *testing.T) {
	t.Helper()
	must(t, x.a.Disconnect(ctxFor(t), "b", true))
	must(t, x.b.Disconnect(ctxFor(t), "a", true))
}

func (x *trial) meet(t *testing.T) {
	t.Helper()
	must(t, x.a.Connect(ctxFor(t), "b", false))
	must(t, x.b.Connect(ctxFor(t), "a", false))
}

// counting is a disk that counts what is asked of it.
type counting struct {
	disk.Store
	mu      sync.Mutex
	flushes int // flushes, and writes with FUA
	opened  disk.Options
}

func (c *counting) open(log *slog.Logger, o disk.Options) (disk.Store, error) {
	s, err := disk.Open(log, o)
	c.Store, c.opened = s, o
	return c, err
}

func (c *counting) look(r *disk.Request) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if r.Op == disk.Flush || r.FUA {
		c.flushes++
	}
}

func (c *counting) Submit(batch []*disk.Request) {
	for _, r := range batch {
		c.look(r)
	}
	c.Store.Submit(batch)
}

func (c *counting) Do(r *disk.Request) {
	c.look(r)
	c.Store.Do(r)
}

func (c *counting) Sync() error {
	c.look(&disk.Request{Op: disk.Flush})
	return c.Store.Sync()
}

// flushed gives the flushes since it was asked last.
func (c *counting) flushed() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := c.flushes
	c.flushes = 0
	return n
}

// damage changes the data of a disk behind its node's back.
func damage(t *testing.T, n *node, off int64, data []byte) {
	t.Helper()
	f, err := os.OpenFile(n.def.Volumes[0].Disk, os.O_WRONLY, 0)
	must(t, err)
	_, err = f.WriteAt(data, off)
	must(t, err)
	must(t, f.Sync())
	must(t, f.Close())
}
