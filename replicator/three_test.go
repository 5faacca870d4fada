package replicator

import (
	"fmt"
	"testing"

	"github.com/hawser-ha/hawser/replicator/control"
)

// TestThreeNodes: a Primary with two peers, each with a bitmap slot of its own: one leaves, misses writes and gets just those.
func TestThreeNodes(t *testing.T) {
	dir := t.TempDir()
	names := []string{"a", "b", "c"}
	var defs []control.Definition
	addr := map[string]string{}
	for i, name := range names {
		defs = append(defs, definition(dir, name, i))
		for _, other := range names {
			if other != name {
				addr[name+other] = freePort(t)
			}
		}
	}
	var nodes []*node
	for i := range defs {
		slot := 0
		for j, other := range names {
			if i == j {
				continue
			}
			defs[i].Peers = append(defs[i].Peers, control.PeerDef{Name: other, NodeID: j, BitmapSlot: slot,
				Local: addr[names[i]+other], Remote: addr[other+names[i]], Net: testNet(), Resync: resyncOpts})
			slot++
		}
		createMD(t, &defs[i])
		nodes = append(nodes, start(t, defs[i]))
		must(t, nodes[i].Up(ctxFor(t)))
	}
	a, b := nodes[0], nodes[1]
	connected := func(s *control.Status) bool {
		return s.Peers[0].Connection == "Connected" && s.Peers[1].Connection == "Connected"
	}
	for _, n := range nodes {
		n.until(t, "connections", connected)
	}
	must(t, a.Promote(ctxFor(t), true))
	synced := func(s *control.Status) bool {
		for _, p := range s.Peers {
			if v := p.Volumes[0]; p.Connection != "Connected" || v.DiskState != "UpToDate" || v.Replication != "Established" {
				return false
			}
		}
		return true
	}
	a.until(t, "both peers in sync", synced)
	c := a.open(t)
	c.write(0, fill(1, 4096))
	b.stop(t)
	a.until(t, "lost peer", func(s *control.Status) bool { return s.Peers[0].Connection != "Connected" })
	for i := range 10 {
		c.write(int64(i)<<20, fill(byte(10+i), 4096))
	}
	if s := a.Status(); s.Peers[0].Volumes[0].OutOfSync != 10*4096 || s.Peers[1].Volumes[0].OutOfSync != 0 {
		t.Errorf("out of sync: %d and %d bytes", s.Peers[0].Volumes[0].OutOfSync, s.Peers[1].Volumes[0].OutOfSync)
	}
	b = start(t, defs[1])
	must(t, b.Up(ctxFor(t)))
	a.until(t, "both peers in sync again", synced)
	c.s.Close()
	for i, n := range []*node{a, b, nodes[2]} {
		if err := n.Down(ctxFor(t), true); err != nil {
			t.Error(fmt.Errorf("node %d: %w", i, err))
		}
	}
	sameData(t, a, b)
	sameData(t, a, nodes[2])
}
