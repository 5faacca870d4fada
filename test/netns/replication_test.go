package netns

import (
	"os"
	"slices"
	"testing"
	"time"

	"github.com/hawser-ha/hawser/replicator/control"
	"github.com/hawser-ha/hawser/test/check"
)

// R03: the protocol changes under load, at an epoch boundary: no error, no reconnect.
func TestR03FlipProtocol(t *testing.T) {
	c := start(t, setup{})
	c.n1.primary()
	events := c.n1.record()
	w := c.load(check.Options{}, c.n1)
	for _, p := range []string{"A", "C", "B", "A", "B", "C"} {
		c.acks(w, 150)
		c.n1.cli("protocol", resource, p)
		c.n1.wait("protocol "+p, stateLimit, func(st *control.Status) bool { return st.Peers[0].Protocol == p })
	}
	c.acks(w, 150)
	c.quiet(w)
	if got := events.states(control.FieldConnection); len(got) > 0 {
		t.Errorf("the connection changed: %v", got)
	}
	c.identical()
}

// R04: a link that is too slow makes protocol A go ahead of the peer instead of waiting, and it comes back by a resync.
func TestR04AheadBehind(t *testing.T) {
	c := start(t, setup{net: map[string]string{"protocol": "A", "on-congestion": "pull-ahead", "congestion-fill": "1M", "sndbuf-size": "256K"}})
	c.n1.primary()
	events := c.n1.record()
	c.net.shape("n1", "10mbit")
	w := c.load(check.Options{Runs: 32, Rate: 3000}, c.n1)
	c.until("Ahead", stateLimit, func() bool { return slices.Contains(events.states(control.FieldReplication), "Ahead") })
	c.acks(w, 300)
	c.quiet(w)
	c.inSync()
	ahead := 0
	for _, s := range events.states(control.FieldReplication) {
		if s == "Ahead" {
			ahead++
		}
	}
	if ahead > 10 {
		t.Errorf("Ahead %d times: a loop", ahead)
	}
	t.Logf("states %v", events.states(control.FieldReplication))
	c.identical()
}

// R06: a Primary without disk, and its only server fails.
func TestR06DisklessPrimary(t *testing.T) {
	for policy, fault := range map[string]string{"io-error": "eio all", "suspend-io": "eio write"} {
		suspend := policy == "suspend-io"
		t.Run(policy, func(t *testing.T) {
			c := start(t, setup{diskless: "n1", fault: []string{"n2"}, options: map[string]string{"on-no-data-accessible": policy}})
			c.n2.cli("primary", "--force", resource)
			c.n2.cli("secondary", resource)
			c.n1.primary()
			w := c.load(check.Options{}, c.n1)
			c.acks(w, 300)
			if st := w.Stats(); st.Failures() > 0 {
				t.Errorf("without a fault: %+v", st)
			}
			c.n2.faults.do(fault)
			if suspend {
				c.n1.wait("suspended", stateLimit, func(st *control.Status) bool { return slices.Contains(st.Suspended, "no-data") })
			} else {
				c.until("errors", stateLimit, func() bool { return w.Stats().Failures() > 0 })
			}
			// It is the only copy, so n2 does not give it up by itself.
			c.n2.faults.do("clear")
			c.n2.cli("detach", "--force", resource)
			c.n2.cli("attach", resource)
			c.n2.wait("attached", stateLimit, func(st *control.Status) bool { return st.Volumes[0].DiskState == "UpToDate" })
			c.acks(w, 200)
			if suspend {
				c.quiet(w)
			} else {
				w.Stop()
			}
			c.n1.cli("secondary", "--force", resource)
			c.n2.cli("down", resource)
			c.judge(check.Rules{Size: c.o.size}, c.n2)
		})
	}
}

// R07: a second Primary is refused while the first is in sight; where both exist already, they do not talk.
func TestR07TwoPrimariesRefused(t *testing.T) {
	c := start(t, setup{})
	c.n1.primary()
	c.n2.refuse("rimary", "primary", resource)
	c.n2.refuse("rimary", "primary", "--force", resource)
	w := c.load(check.Options{}, c.n1)
	c.acks(w, 100)
	c.n1.cli("disconnect", resource)
	c.n2.cli("disconnect", resource)
	c.acks(w, 100)
	c.quiet(w)
	c.n2.cli("primary", "--force", resource)
	received := func() int64 { return c.n2.now().Peers[0].Volumes[0].Received }
	before, written := received(), c.n2.now().Volumes[0].Written
	c.n1.cli("connect", resource)
	c.n2.cli("connect", resource)
	for _, n := range c.data() {
		n.wait("StandAlone", stateLimit, func(st *control.Status) bool { return st.Peers[0].Connection == "StandAlone" && st.Role == "Primary" })
	}
	if got := received(); got != before || c.n2.now().Volumes[0].Written != written {
		t.Errorf("n2 received %d bytes", got-before)
	}
	for _, n := range c.data() {
		n.cli("down", "--force", resource)
	}
	c.judge(check.Rules{Size: c.o.size}, c.n1)
}

// R08: the smaller disk decides. It grows under load, and both nodes crash right after: the metadata is found at its new place.
func TestR08SizesAndGrowth(t *testing.T) {
	const small, large = 64 << 20, 96 << 20
	c := start(t, setup{size: large, sizes: map[string]int64{"n1": small}})
	if got := c.size(); got != small {
		t.Fatalf("size %d, want that of the smaller disk, %d", got, small)
	}
	c.n1.primary()
	w := c.load(check.Options{}, c.n1, c.n2)
	c.acks(w, 200)
	c.o.sizes = nil
	c.define()
	if err := os.Truncate(c.n1.backing, large+1<<20); err != nil {
		t.Fatal(err)
	}
	c.n1.cli("adjust", resource)
	c.n2.cli("adjust", resource)
	c.n2.wait("grown", stateLimit, func(st *control.Status) bool { return st.Volumes[0].Size == large })
	c.acks(w, 50)
	if st := w.Stats(); st.Failures() > 0 || st.Broken > 0 {
		t.Errorf("the application saw it: %+v", st)
	}
	c.n1.crash()
	c.n2.crash()
	c.n1.startAgent()
	c.n2.startAgent()
	c.inSync()
	c.n1.primary()
	c.acks(w, 100)
	w.Stop()
	for _, n := range c.data() {
		if got := n.now().Volumes[0].Size; got != large {
			t.Errorf("%s: size %d after the crash, want %d", n.name, got, large)
		}
	}
	c.identical()
}

// Two Primaries write to the same blocks at the same time: both disks end with the same of the two.
func TestDualPrimary(t *testing.T) {
	c := start(t, setup{net: map[string]string{"allow-two-primaries": "yes"}})
	c.n1.primary()
	c.n2.primary()
	o := check.Options{Shared: true, Runs: 4, RunLen: 4, Depth: 8}
	w1 := c.load(o, c.n1)
	o.Seed = *seed + 1
	w2 := c.load(o, c.n2)
	c.acks(w1, 1500)
	c.acks(w2, 1500)
	c.quiet(w1)
	c.quiet(w2)
	c.identical()
}

// The agent dies; I/O does not notice, and the next agent adopts the replicator.
func TestAgentRestart(t *testing.T) {
	c := start(t, setup{})
	c.n1.primary()
	w := c.load(check.Options{}, c.n1)
	for _, n := range c.data() {
		c.acks(w, 100)
		pid := n.pid()
		n.killAgent()
		c.acks(w, 200)
		n.startAgent()
		if got := n.pid(); got != pid {
			t.Errorf("%s: replicator %d after the agent's restart, before it was %d", n.name, got, pid)
		}
		n.cli("status", resource)
	}
	// An adopted replicator that dies is started again.
	c.n2.killReplicator()
	c.acks(w, 200)
	c.inSync()
	c.quiet(w)
	c.identical()
}

// The peer stops answering without closing its connection. The Primary gives it up after ko-count timeouts at the
// most, and goes on alone; down works while the peer hangs.
func TestPeerHangs(t *testing.T) {
	const bound = 15 * time.Second
	c := start(t, setup{})
	c.n1.primary()
	w := c.load(check.Options{}, c.n1)
	c.acks(w, 100)
	hang := func() { c.t.Helper(); c.n2.signalReplicator(stop) }
	hang()
	c.n1.wait("without the peer", bound, func(st *control.Status) bool { return st.Peers[0].Connection != "Connected" })
	c.acks(w, 200)
	c.n2.signalReplicator(cont)
	c.inSync()
	c.acks(w, 100)
	if st := c.quiet(w); st.MaxLatency > bound {
		t.Errorf("a request took %s", st.MaxLatency)
	}
	hang()
	c.bounded("down while the peer hangs", bound, func() { c.n1.cli("down", "--force", resource) })
	c.n2.signalReplicator(cont)
	c.n2.wait("alone", stateLimit, func(st *control.Status) bool { return st.Peers[0].Connection != "Connected" })
	c.n2.cli("down", resource)
	c.judge(check.Rules{Size: c.o.size, Identical: true}, c.data()...)
}

// A node that hears nothing but is heard, and one that is cut off: both ways the Primary goes on, and nothing is lost.
func TestLinkCuts(t *testing.T) {
	c := start(t, setup{})
	c.n1.primary()
	w := c.load(check.Options{}, c.n1)
	for _, f := range []struct{ cut, heal func(string) }{{c.net.cut, c.net.heal}, {c.net.deafen, c.net.hear}} {
		for _, n := range c.data() {
			c.acks(w, 100)
			f.cut(n.name)
			c.n1.wait("alone", stateLimit, func(st *control.Status) bool { return st.Peers[0].Connection != "Connected" })
			c.acks(w, 100)
			f.heal(n.name)
			c.inSync()
		}
	}
	if st := c.quiet(w); st.MaxLatency > 15*time.Second {
		t.Errorf("a request took %s", st.MaxLatency)
	}
	c.identical()
}
