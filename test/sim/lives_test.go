package sim

import (
	"slices"
	"strings"
	"testing"

	"github.com/hawser-ha/hawser/replicator/core"
)

// powerFaults: the basic ones and a cut of the power everywhere.
var powerFaults = append([]fault{{"all lose power", bothLosePower}, {"all lose power", bothLosePower}, {"all lose power", bothLosePower}}, basicFaults...)

func TestPowerCutOfBoth(t *testing.T) {
	each(t, seeds(3, 4), func(seed uint64) *world { return live(newWorld(seed, options{}), powerFaults) })
}

func TestCommands(t *testing.T) {
	faults := append(slices.Clone(commandFaults), basicFaults[:6]...)
	each(t, seeds(1, 1), func(seed uint64) *world { return live(newWorld(seed, options{tune: grows}), faults) })
}

// grows gives the disks room to grow.
func grows(w *world) {
	w.room = w.blocks + 8000
	balance(w)
}

var balancing = []string{"", "prefer-remote", "round-robin", "least-pending", "32K-striping"}

func balance(w *world) { w.volume.ReadBalancing = balancing[w.rng.IntN(len(balancing))] }

func TestDiskErrors(t *testing.T) {
	faults := []fault{{"disk error", diskError}, {"disk error", diskError}, {"disk error", diskError}, {"disk error", diskError}}
	faults = append(faults, basicFaults...)
	each(t, seeds(1, 1), func(seed uint64) *world {
		return live(newWorld(seed, options{tune: func(w *world) {
			w.volume.OnIOError = []string{"detach", "pass_on", "call-local-io-error"}[w.rng.IntN(3)]
		}}), faults)
	})
}

// Protocol A: a failover loses at most what was in flight, and of that the youngest.
func TestProtocolA(t *testing.T) {
	faults := slices.DeleteFunc(slices.Clone(basicFaults), func(f fault) bool { return f.name == "change of protocol" })
	each(t, seeds(1, 2), func(seed uint64) *world {
		return live(newWorld(seed, options{tune: func(w *world) { w.net.Protocol = 1 }}), faults)
	})
}

func TestProtocolB(t *testing.T) {
	faults := slices.DeleteFunc(slices.Clone(basicFaults), func(f fault) bool { return f.name == "change of protocol" })
	each(t, seeds(1, 2), func(seed uint64) *world {
		return live(newWorld(seed, options{tune: func(w *world) { w.net.Protocol = 2 }}), faults)
	})
}

// A congested protocol A goes Ahead, comes back and ends in sync.
func TestAheadBehind(t *testing.T) {
	faults := slices.DeleteFunc(slices.Clone(basicFaults), func(f fault) bool { return f.name == "change of protocol" || f.name == "verify" })
	ahead := 0
	each(t, seeds(1, 2), func(seed uint64) *world {
		w := newWorld(seed, options{tune: func(w *world) {
			w.net.Protocol, w.net.OnCongestion = 1, "pull-ahead"
			if w.rng.IntN(2) == 0 {
				w.net.CongestionFill = block * int64(1+w.rng.IntN(10))
			} else {
				w.net.CongestionExtents = 1 + w.rng.IntN(5)
			}
		}})
		live(w, faults)
		for _, l := range w.log {
			if len(l) > 0 && strings.Contains(l, "replication Ahead") {
				ahead++
				break
			}
		}
		return w
	})
	if *seedFlag == 0 && !t.Failed() && ahead == 0 {
		t.Fatal("no life was ever congested")
	}
}

func TestTwoPrimaries(t *testing.T) {
	faults := []fault{
		{"network stalls", networkStalls},
		{"read error", func(_ *world, p, _ *node) { p.disk.fails[access{kind: core.AppRead, op: core.OpRead}]++ }},
	}
	each(t, seeds(1, 1), func(seed uint64) *world {
		w := newWorld(seed, options{tune: func(w *world) { w.net.TwoPrimaries = true; balance(w) }})
		if !w.setup() {
			w.fail("no setup")
			return w
		}
		if !w.order(w.nodes[1], func(m *core.Machine, cmd func(error)) { m.Promote(w.now, false, cmd) }) {
			w.fail("the second promotion was refused")
			return w
		}
		w.both = true
		for range 5 {
			w.run(1000+w.rng.IntN(2000), nil)
			w.strike(faults)
		}
		w.heal()
		if w.err == nil {
			w.check()
		}
		return w
	})
}

// Three nodes, as far as they go today: initial sync and replication to two secondaries. After the crash of one of them, or of
// the primary, nobody knows how the two others differ.
func TestThreeNodes(t *testing.T) {
	each(t, seeds(1, 2), func(seed uint64) *world {
		w := newWorld(seed, options{nodes: 3, blocks: 8 << 10})
		if !w.setup() || !w.run(2000+w.rng.IntN(2000), nil) {
			return w
		}
		w.quiet = true
		if !w.run(300000, func() bool { return w.quietNow() && w.allReplicated() }) {
			w.status()
			w.fail("no rest")
			return w
		}
		for b := range w.blocks {
			for _, n := range w.nodes {
				if got := n.disk.now[b]; !w.mayShow(b, got) || got != w.nodes[0].disk.now[b] {
					w.fail("%s: block %d holds %d, allowed %v", n.name, b, got, w.shown(b))
					return w
				}
			}
		}
		return w
	})
}
