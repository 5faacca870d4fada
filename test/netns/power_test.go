package netns

import (
	"math/rand/v2"
	"testing"

	"github.com/hawser-ha/hawser/replicator/control"
	"github.com/hawser-ha/hawser/test/check"
)

// power cuts the power of a node: its processes end, and its disk forgets what it had not written.
func (n *node) power() {
	n.c.t.Helper()
	n.crash()
	n.faults.do("drop-unsynced")
}

// settle makes what the disks hold last: what is judged now must be there after the next cut.
func (c *cluster) settle() {
	c.t.Helper()
	for _, n := range c.data() {
		n.faults.do("volatile off")
		n.faults.do("volatile on")
	}
}

// Power fails at random moments on disks with a volatile cache: on one node nothing that was acknowledged is lost, as long as
// the other goes on; on both at once nothing that was flushed.
func TestPowerAtRandom(t *testing.T) {
	n := *rounds
	if n == 0 {
		n = 4
		if *long {
			n = 40
		}
	}
	c := start(t, setup{fault: []string{"n1", "n2"}, disk: map[string]string{"al-extents": "67"}})
	c.settle()
	rng := rand.New(rand.NewPCG(*seed, 1))
	at := c.n1
	at.primary()
	for round := range n {
		w := c.load(check.Options{Seed: *seed + uint64(round)*1000, Depth: 1 + rng.IntN(8), Flushes: 1 + rng.IntN(20)}, c.n1, c.n2)
		c.acks(w, int64(20+rng.IntN(300)))
		what := rng.IntN(3)
		t.Logf("round %d: %d, Primary is %s", round, what, at.name)
		rules := check.Rules{Size: c.o.size, Identical: true}
		switch what {
		case 0:
			at.peer().power()
			c.acks(w, int64(rng.IntN(200)))
			at.peer().startAgent()
		case 1:
			at.power()
			at = at.peer()
			at.primary()
			c.acks(w, int64(rng.IntN(200)))
			at.peer().startAgent()
		case 2:
			rules.FlushedOnly = true
			at.crash()
			at.peer().crash()
			for _, n := range c.data() {
				n.faults.do("drop-unsynced")
				n.startAgent()
			}
			c.inSync()
			at.primary()
			c.acks(w, 20)
		}
		c.inSync()
		w.Stop()
		c.history.Settle()
		at.wait("idle", stateLimit, func(st *control.Status) bool { return st.Volumes[0].UpperPending == 0 && synced(st) })
		c.settle()
		v := c.judge(rules, c.data()...)
		if v.Err() != nil {
			t.Fatalf("round %d; replay: -run %s -seed %d -rounds %d", round, t.Name(), *seed, n)
		}
		c.history.Rebase(v)
	}
}

// R02: what each protocol promises when the Primary dies over a slow link: B and C lose nothing, A no more than what was
// under way.
func TestR02ProtocolsAtFailover(t *testing.T) {
	for _, p := range []string{"A", "B", "C"} {
		t.Run(p, func(t *testing.T) {
			c := start(t, setup{net: map[string]string{"protocol": p, "sndbuf-size": "128K"}})
			c.net.shape("n1", "80mbit")
			c.n1.primary()
			w := c.load(check.Options{Rate: 2000}, c.n1, c.n2)
			c.acks(w, 600)
			lag := c.n1.now().Peers[0].InFlight
			c.n1.crash()
			died := c.history.Now()
			c.n2.primary()
			c.acks(w, 200)
			w.Stop()
			rules := check.Rules{Identical: true}
			if p == "A" {
				const second = int64(1e9) // 10 MB/s empty every buffer on the way sooner
				rules.Lossy = []check.Interval{{From: died - second, To: died}}
				t.Logf("%d bytes were reported as under way", lag)
			}
			c.n1.startAgent()
			c.inSync()
			c.verdict(rules)
		})
	}
}
