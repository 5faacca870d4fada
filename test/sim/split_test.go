package sim

import (
	"fmt"
	"maps"
	"slices"
	"testing"

	"github.com/hawser-ha/hawser/replicator/core"
	"github.com/hawser-ha/hawser/replicator/genid"
	"github.com/hawser-ha/hawser/replicator/wire"
)

// splitCase is one way out of a split brain.
type splitCase struct {
	name     string
	policies [2]genid.Policies // by node
	primary  [2]bool           // who is still Primary at the reconnect
	discard  int               // the node that discards its data by command; -1: none
	two      bool              // two primaries are allowed
	writes   [2]bool           // who wrote
	loser    int               // -1: both stop; -2: as chance has it; -3: only the first stops
}

func same(p genid.Policies) [2]genid.Policies { return [2]genid.Policies{p, p} }

var splitCases = []splitCase{
	{name: "no policy: both stop", discard: -1, writes: [2]bool{true, true}, loser: -1},
	{name: "no policy, one primary: both stop", discard: -1, primary: [2]bool{true, false}, writes: [2]bool{true, true}, loser: -1},
	{name: "discard my data", discard: 1, writes: [2]bool{true, true}, loser: 1},
	{name: "discard my data beside a primary", discard: 1, primary: [2]bool{true, false}, writes: [2]bool{true, true}, loser: 1},
	{name: "discard-zero-changes", policies: same(genid.Policies{SB0: genid.DiscardZeroChanges}), discard: -1, writes: [2]bool{true, false}, loser: 1},
	{name: "discard-zero-changes, both wrote", policies: same(genid.Policies{SB0: genid.DiscardZeroChanges}), discard: -1, writes: [2]bool{true, true}, loser: -1},
	{name: "discard-least-changes", policies: same(genid.Policies{SB0: genid.DiscardLeastChanges}), discard: -1, writes: [2]bool{true, true}, loser: -2},
	{name: "discard-younger-primary", policies: same(genid.Policies{SB0: genid.DiscardYoungerPrimary}), discard: -1, writes: [2]bool{true, true}, loser: 1},
	{name: "discard-older-primary", policies: same(genid.Policies{SB0: genid.DiscardOlderPrimary}), discard: -1, writes: [2]bool{true, true}, loser: 0},
	{name: "discard-local and discard-remote", policies: [2]genid.Policies{{SB0: genid.DiscardLocal}, {SB0: genid.DiscardRemote}}, discard: -1, writes: [2]bool{true, true}, loser: 0},
	{name: "discard-secondary", policies: same(genid.Policies{SB1: genid.DiscardSecondary}), discard: -1, primary: [2]bool{false, true}, writes: [2]bool{true, true}, loser: 0},
	{name: "consensus: the secondary wrote nothing", policies: same(genid.Policies{SB0: genid.DiscardZeroChanges, SB1: genid.Consensus}), discard: -1, primary: [2]bool{true, false}, writes: [2]bool{true, false}, loser: 1},
	{name: "consensus: the primary would lose", policies: same(genid.Policies{SB0: genid.DiscardZeroChanges, SB1: genid.Consensus}), discard: -1, primary: [2]bool{true, false}, writes: [2]bool{false, true}, loser: -1},
	{name: "call-pri-lost-after-sb demotes an unused primary", policies: same(genid.Policies{SB0: genid.DiscardZeroChanges, SB1: genid.CallPriLostAfterSB}), discard: -1, primary: [2]bool{true, false}, writes: [2]bool{false, true}, loser: 0},
	{name: "violently-as0p with a losing primary: it stops", policies: same(genid.Policies{SB0: genid.DiscardZeroChanges, SB1: genid.ViolentlyAs0P}), discard: -1, primary: [2]bool{true, false}, writes: [2]bool{false, true}, loser: -3},
	{name: "two primaries, disconnect", two: true, discard: -1, primary: [2]bool{true, true}, writes: [2]bool{true, true}, loser: -1},
	{name: "two primaries, call-pri-lost-after-sb", two: true, policies: same(genid.Policies{SB0: genid.DiscardZeroChanges, SB2: genid.CallPriLostAfterSB}), discard: -1, primary: [2]bool{true, true}, writes: [2]bool{true, false}, loser: 1},
}

// splitBrain makes both nodes write apart from each other and brings them together again.
func splitBrain(seed uint64, c splitCase, bug string) *world {
	w := newWorld(seed, options{bug: bug, blocks: 4 << 10, tune: func(w *world) { w.net.TwoPrimaries = c.two }})
	if !w.setup() || !w.run(1000, nil) {
		return w
	}
	w.quiet = true
	if !w.run(100000, func() bool { return w.quietNow() && w.view(0).Peers[0].Unacked == 0 }) {
		w.fail("no rest before the split")
		return w
	}
	w.blind = true
	for _, n := range w.nodes {
		if err := w.command(n, func(m *core.Machine, cmd func(error)) { m.Disconnect(w.now, 0, true, cmd) }); err != nil {
			w.fail("disconnect: %v", err)
		}
	}
	if err := w.command(w.nodes[1], func(m *core.Machine, cmd func(error)) { m.Promote(w.now, true, cmd) }); err != nil {
		w.fail("the second promotion: %v", err)
		return w
	}
	for i, wrote := range c.writes {
		if wrote {
			w.primary, w.quiet = i, false
			w.run(300+w.rng.IntN(600), nil)
		}
	}
	w.quiet, w.primary = true, -1
	if !w.run(100000, w.quietNow) {
		w.fail("no rest after the split")
		return w
	}
	for i, n := range w.nodes {
		if !c.primary[i] {
			if err := w.command(n, func(m *core.Machine, cmd func(error)) { m.Demote(w.now, false, cmd) }); err != nil {
				w.fail("demote: %v", err)
			}
		}
	}
	w.run(100000, w.quietNow)
	old := [2][]uint64{slices.Clone(w.nodes[0].disk.now), slices.Clone(w.nodes[1].disk.now)}
	w.split = map[int64]bool{}
	for b := range w.blocks {
		if old[0][b] != old[1][b] {
			w.split[b] = true
		}
	}
	nets := [2]core.NetConfig{w.net, w.net}
	for i, n := range w.nodes {
		nets[i].Policies = c.policies[i]
		n.net = &nets[i]
		n.m.SetNet(w.now, 0, nets[i], nil)
		n.m.Connect(w.now, 0, c.discard == i, nil)
		n.effects()
	}
	if c.loser == -2 {
		c.loser = 1
		if c0, c1 := w.nodes[0].m.Bitmap(0, 0).Count(), w.nodes[1].m.Bitmap(0, 0).Count(); c0 < c1 {
			c.loser = 0
		} else if c0 == c1 {
			return w
		}
	}
	if c.loser == -1 || c.loser == -3 {
		stopped := func() bool { return w.standAlone(0) && (c.loser == -3 || w.standAlone(1)) }
		if !w.run(100000, stopped) {
			w.status()
			w.fail("a split brain did not stop both nodes")
		}
		w.run(2000, nil)
		for i, n := range w.nodes {
			if !slices.Equal(n.disk.now, old[i]) {
				w.fail("%s: a split brain without a way out changed data", n.name)
			}
		}
		return w
	}
	if !w.run(1000000, w.idle) {
		w.status()
		w.fail("no resync after a split brain")
		return w
	}
	winner, loser := w.nodes[1-c.loser], w.nodes[c.loser]
	for i, n := range w.nodes {
		if !slices.Equal(n.disk.now, old[1-c.loser]) {
			w.fail("%s does not hold the data of the winner %s (node %d)", n.name, winner.name, i)
			return w
		}
	}
	for _, b := range slices.Sorted(maps.Keys(w.split)) {
		if v, ok := loser.undo[b]; !ok || v != old[c.loser][b] {
			w.fail("block %d: the undo log has %d (%v), the loser had %d", b, v, ok, old[c.loser][b])
			return w
		}
	}
	for _, b := range slices.Sorted(maps.Keys(loser.undo)) {
		if loser.undo[b] != old[c.loser][b] {
			w.fail("block %d: the undo log has %d, the loser had %d", b, loser.undo[b], old[c.loser][b])
		}
	}
	if len(winner.undo) > 0 {
		w.fail("the winner has an undo log")
	}
	if loser.undoing {
		w.fail("the undo log was not closed")
	}
	return w
}

func (w *world) standAlone(i int) bool { return w.view(i).Peers[0].Conn == wire.StandAlone }

func TestSplitBrain(t *testing.T) {
	for _, c := range splitCases {
		t.Run(c.name, func(t *testing.T) {
			each(t, seeds(1, 4), func(seed uint64) *world { return splitBrain(seed, c, "") })
		})
	}
}

func TestUndoLogIsChecked(t *testing.T) {
	w := splitBrain(1, splitCases[2], "the undo log is not written")
	if w.err == nil {
		t.Fatal("a missing undo log was not noticed")
	}
	t.Log(fmt.Sprint(w.err))
}
