package netns

import (
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hawser-ha/hawser/replicator/control"
	"github.com/hawser-ha/hawser/test/check"
)

// outOfSync is what a node still misses towards its peer, bytes; ok is false while it does not know.
func (n *node) outOfSync() int64 {
	st, err := n.status()
	if err != nil {
		return -1
	}
	return st.Peers[0].Volumes[0].OutOfSync
}

// syncing waits until a resync from n runs and has at most left bytes to go.
func (n *node) syncing(left int64) {
	n.c.t.Helper()
	n.wait(fmt.Sprintf("resync with %d bytes to go", left), stateLimit, func(st *control.Status) bool {
		v := st.Peers[0].Volumes[0]
		return v.Replication == "SyncSource" && v.OutOfSync <= left
	})
}

// S02: a full resync under full load ends, and the application waits for nothing long.
func TestS02ResyncUnderLoad(t *testing.T) {
	size := int64(128 << 20)
	if *long {
		size = 2 << 30
	}
	c := start(t, setup{size: size})
	c.n1.primary()
	w := c.load(check.Options{Depth: 8}, c.n1)
	c.acks(w, 200)
	c.n2.cli("invalidate", "--force", resource)
	c.n1.syncing(size)
	c.inSync()
	st := c.quiet(w)
	if st.MaxLatency > 3*time.Second {
		t.Errorf("a request took %s", st.MaxLatency)
	}
	p := c.n1.lastSync()
	t.Logf("%d bytes in %s, slowest request %s", p.Total, p.Ended.Sub(p.Started), st.MaxLatency)
	c.identical()
}

// S03: the link breaks in any phase of a resync, each time another way. It goes on where it was, and is never forgotten.
func TestS03CutDuringResync(t *testing.T) {
	n := 8
	if *long {
		n = 60
	}
	c := start(t, setup{size: 128 << 20})
	c.n1.primary()
	rng := rand.New(rand.NewPCG(*seed, 3))
	w := c.load(check.Options{Rate: 500}, c.n1)
	c.acks(w, 50)
	for round := range n {
		c.net.shape("n1", "400mbit")
		c.n2.cli("invalidate", "--force", resource)
		left := rng.Int64N(c.o.size)
		if rng.IntN(4) == 0 {
			left = rng.Int64N(1 << 20) // the last moments
		}
		how := rng.IntN(4)
		c.within(stateLimit, func() bool {
			got := c.n1.outOfSync()
			return got >= 0 && got <= left
		})
		t.Logf("round %d: %d with %d bytes to go", round, how, c.n1.outOfSync())
		switch how {
		case 0:
			c.n2.cli("disconnect", resource)
			c.n2.cli("connect", resource)
		case 1:
			c.n2.killReplicator()
		case 2:
			c.net.cut("n2")
			c.n1.wait("alone", stateLimit, func(st *control.Status) bool { return st.Peers[0].Connection != "Connected" })
			c.net.heal("n2")
		case 3:
			c.n2.cli("detach", "--force", resource)
			c.n2.cli("attach", resource)
		}
		c.net.shape("n1", "")
		c.inSync()
	}
	c.quiet(w)
	c.identical()
}

// S05: the Secondary goes away in good order, the Primary writes, the Secondary returns: exactly those blocks are copied.
func TestS05ExactResync(t *testing.T) {
	c := start(t, setup{})
	c.n1.primary()
	w := c.load(check.Options{}, c.n1)
	c.acks(w, 200)
	c.quiet(w)
	if err := c.n1.open().Flush(); err != nil { // what the peer has not confirmed to be stable would count as missing
		t.Fatal(err)
	}
	c.n2.cli("disconnect", resource)
	c.n2.cli("down", resource)
	from := len(c.history.Ops())
	w = c.load(check.Options{Seed: *seed + 1}, c.n1)
	c.acks(w, 300)
	c.quiet(w)
	want := c.written(from) * check.BlockSize
	if got := c.n1.outOfSync(); got != want {
		t.Errorf("%d bytes marked, %d were written", got, want)
	}
	c.n2.cli("up", resource)
	c.inSync()
	if got := c.n1.lastSync().Total; got != want {
		t.Errorf("%d bytes resynced, %d were written", got, want)
	}
	c.identical()
}

// S11: with csums-alg a full resync of disks that differ in 1 % sends about that.
func TestS11ChecksumResync(t *testing.T) {
	c := start(t, setup{net: map[string]string{"csums-alg": "sha1"}})
	c.n1.primary()
	w := c.load(check.Options{}, c.n1)
	c.acks(w, 500)
	c.quiet(w)
	f, err := os.OpenFile(c.n2.backing, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	noise := []byte(strings.Repeat("wrong", check.BlockSize))[:check.BlockSize]
	blocks := c.o.size / check.BlockSize
	for b := int64(0); b < blocks; b += 400 { // four together: what is sent is a multiple of the checksum's extent
		for i := range int64(4) {
			if _, err := f.WriteAt(noise, (b+i)*check.BlockSize); err != nil {
				t.Fatal(err)
			}
		}
	}
	before := c.n1.now().Peers[0].Volumes[0].Sent
	c.n2.cli("invalidate", "--force", resource)
	c.n1.wait("resynced", syncLimit, func(st *control.Status) bool {
		return synced(st) && st.Peers[0].Volumes[0].LastSync != nil
	})
	p, sent := c.n1.lastSync(), c.n1.now().Peers[0].Volumes[0].Sent-before
	if differ := p.Total - p.SameCsum; p.Total != c.o.size || differ > c.o.size/25 || sent > c.o.size/25 {
		t.Errorf("of %d bytes %d differed and %d were sent; 1 %% is %d", p.Total, differ, sent, c.o.size/100)
	}
	t.Logf("of %d bytes %d were equal, %d sent", p.Total, p.SameCsum, sent)
	c.identical()
}

// S12: a verify finds the block that was changed behind its back, and nothing else, also under load.
func TestS12Verify(t *testing.T) {
	c := start(t, setup{})
	c.n1.primary()
	w := c.load(check.Options{Runs: 64, Rate: 3000}, c.n1)
	c.acks(w, 500)
	for range 3 {
		c.n1.cli("verify", "--wait", resource)
	}
	c.acks(w, 50)
	c.quiet(w)
	const at = 33 << 20 // between the places that the workload uses
	c.n2.flip(at + 700<<10)
	c.n1.refuse("4.0KiB differ", "verify", "--wait", resource)
	if got := c.n1.outOfSync(); got != check.BlockSize {
		t.Errorf("%d bytes marked, one block differs", got)
	}
	c.n1.cli("disconnect", resource)
	c.n1.cli("connect", resource)
	c.inSync()
	if got := c.n1.lastSync().Total; got != check.BlockSize {
		t.Errorf("%d bytes resynced, one block differs", got)
	}
	c.n1.cli("verify", "--wait", resource)
	c.identical()
}

// S14: the link goes down again and again during a resync. It never begins anew.
func TestS14FlappingLink(t *testing.T) {
	c := start(t, setup{size: 256 << 20})
	c.n1.primary()
	w := c.load(check.Options{Runs: 64}, c.n1)
	c.acks(w, 100)
	c.quiet(w)
	c.net.shape("n1", "300mbit")
	c.n2.cli("invalidate", "--force", resource)
	var seen []int64
	last := c.o.size
	for i := 1; i <= 4; i++ {
		c.n1.syncing(c.o.size * int64(5-i) / 5)
		c.net.cut("n2")
		c.n1.wait("alone", stateLimit, func(st *control.Status) bool { return st.Peers[0].Connection != "Connected" })
		left := c.n1.outOfSync()
		seen = append(seen, left)
		if left > last {
			t.Errorf("%d bytes to go, before it were %d", left, last)
		}
		last = left
		c.net.heal("n2")
		c.connected()
	}
	c.inSync()
	t.Logf("bytes to go at each cut: %v", seen)
	if !slices.IsSortedFunc(seen, func(a, b int64) int { return int(b - a) }) {
		t.Errorf("not monotone: %v", seen)
	}
	c.identical()
}
