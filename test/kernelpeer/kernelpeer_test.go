package kernelpeer

import (
	"fmt"
	"testing"
	"time"

	"github.com/hawser-ha/hawser/replicator/control"
	"github.com/hawser-ha/hawser/test/check"
)

const idle = 30 * time.Second

// TestKernelPeer runs every case with the same machine.
func TestKernelPeer(t *testing.T) {
	p := newPair(t)
	p.run("stays connected", setup{}, func(*testing.T) {
		for end := time.Now().Add(idle); time.Now().Before(end); <-time.After(time.Second) {
			if c := p.now().Peers[0].Connection; c != "Connected" {
				p.t.Fatalf("the connection became %s\n%s", c, p.state())
			}
		}
		p.connected()
		p.unbroken()
	})
	p.run("full sync from hawser", setup{}, func(*testing.T) {
		p.cli("primary", "--force", resource)
		p.hawserWrites(200, check.Options{})
		p.same()
	})
	p.run("full sync from the kernel", setup{}, func(*testing.T) {
		p.kernel("drbdadm primary --force r0")
		p.kernel(kernelWrites(0, 4096, 1))
		p.same()
	})
	p.run("skip the initial sync by hawser", setup{}, func(*testing.T) {
		p.cli("new-current-uuid", "--clear-bitmap", "--force", resource)
		p.same()
		p.turns()
	})
	p.run("skip the initial sync by the kernel", setup{}, func(*testing.T) {
		p.skipSync()
		p.turns()
	})
	for _, protocol := range []string{"A", "B", "C"} {
		p.run("writes with protocol "+protocol, setup{net: map[string]string{"protocol": protocol}}, func(*testing.T) {
			p.skipSync()
			p.turns()
		})
	}
	p.run("roles", setup{}, func(*testing.T) {
		p.skipSync()
		p.cli("primary", resource)
		p.kernelRefuses("drbdadm primary r0")
		p.cli("secondary", resource)
		p.kernel("drbdadm primary r0")
		p.peerRole("Primary")
		if _, err := p.try("primary", resource); err == nil {
			p.t.Error("hawser became a second Primary")
		}
		p.kernel("drbdadm secondary r0")
		p.peerRole("Secondary")
	})
	testResyncs(p)
	testOptions(p)
	testFailures(p)
}

// skipSync declares the empty disks equal.
func (p *pair) skipSync() {
	p.t.Helper()
	p.kernel("drbdadm new-current-uuid --clear-bitmap r0/0")
	for v := 1; v < p.o.volumes; v++ {
		p.kernel(fmt.Sprintf("drbdadm new-current-uuid --clear-bitmap r0/%d", v))
	}
	p.inSync()
}

// turns writes with hawser as Primary, then the kernel, twice, and compares each time.
func (p *pair) turns() {
	p.t.Helper()
	for round := range 2 {
		p.cli("primary", resource)
		p.hawserWrites(300, check.Options{Seed: uint64(round), Flushes: 10})
		p.settled()
		p.cli("secondary", resource)
		p.kernel("drbdadm primary r0")
		for v := range p.o.volumes {
			p.kernel(kernelWrites(v, 3072, round))
		}
		p.settled()
		p.kernel("drbdadm secondary r0")
	}
	p.same()
}

// settled is same; with protocols A and B, what was acknowledged may be on its way for a moment.
func (p *pair) settled() {
	p.t.Helper()
	p.inSync()
	if p.common()["protocol"] != "C" {
		p.until("the same data", stateLimit, func() bool { return p.differ() == "" })
	}
	p.equal()
}

// peerRole waits for the kernel's role as hawser sees it.
func (p *pair) peerRole(role string) {
	p.t.Helper()
	p.wait("peer "+role, stateLimit, func(st *control.Status, _ int) bool { return st.Peers[0].Role == role }, nil)
}
