package sim

import (
	"flag"
	"fmt"
	"testing"

	"github.com/hawser-ha/hawser/replicator/wire"
)

var (
	seedFlag  = flag.Uint64("seed", 0, "play this seed only")
	seedsFlag = flag.Int("seeds", 60, "how many seeds to play")
	fromFlag  = flag.Uint64("from", 1, "the first seed to play")
)

// fault does something bad, then perhaps repairs it. The operator never promotes a node that may lack acknowledged writes.
func (w *world) fault() {
	p := w.primary
	if p < 0 {
		w.recover()
		return
	}
	s := 1 - p
	prim, sec := w.nodes[p], w.nodes[s]
	switch w.rng.IntN(12) {
	case 0, 1: // the primary dies
		good := sec.up() && w.replicated(p)
		power := good && w.rng.IntN(3) == 0
		w.logf("crash of primary %s (power %v), secondary good: %v", prim.name, power, good)
		w.good = [2]bool{}
		w.good[s], w.good[p] = good, !power
		prim.crash(power)
		w.run(w.rng.IntN(400), nil)
		w.recover()
	case 2, 3: // the secondary dies
		if !sec.up() {
			sec.start()
			return
		}
		w.logf("crash of secondary %s", sec.name)
		// The only good copy may lose what nobody flushed: like any disk. The other one must not lose anything.
		sec.crash(w.view(p).Volumes[0].Disk == wire.UpToDate && w.rng.IntN(2) == 0)
		w.run(w.rng.IntN(600), nil)
		sec.start()
	case 4, 5: // the network breaks
		if w.conn != nil {
			w.logf("network cut")
			w.conn.cut()
		}
		if w.rng.IntN(2) == 0 { // and stays away for a while
			for _, n := range w.nodes {
				n.want = false
			}
		}
		w.run(w.rng.IntN(800), nil)
		w.reconnectAll()
	case 6: // the network stalls
		if w.conn != nil && !w.conn.dead {
			w.logf("network stalls")
			c := w.conn
			c.stall = true
			w.run(w.rng.IntN(2000), nil)
			c.stall = false
		}
	case 7: // a read error on the primary
		prim.disk.failRead = 1
	case 8: // a write error somewhere
		n := w.nodes[w.rng.IntN(2)]
		if n.up() && w.replicated(p) {
			w.logf("write error on %s", n.name)
			n.disk.fail = 1
			w.run(500, nil)
			n.disk.fail = 0
			w.reattach()
		}
	case 9: // switchover
		if w.replicated(p) && sec.up() && w.demote() && sec.up() {
			if !w.promote(s, false) {
				w.promote(p, false)
			}
		}
	case 10: // change of protocol
		if prim.up() {
			n := w.net
			n.Protocol = uint32(1 + w.rng.IntN(3))
			if n.Protocol == 1 { // A may lose acknowledged writes in a failover
				n.Protocol = 3
			}
			w.net = n // the file that both nodes start from
			if sec.up() && !w.replicated(p) {
				sec.m.SetNet(w.now, 0, n, nil)
				sec.effects()
			}
			prim.m.SetNet(w.now, 0, n, nil)
			prim.effects()
		}
	case 11: // verify
		prim.m.Verify(w.now, 0, 0, 0, 0, func(error) {})
		prim.effects()
	}
}

// reconnectAll makes up for a network that was away.
func (w *world) reconnectAll() {
	for _, n := range w.nodes {
		if n.up() && n.link == nil && w.view(n.id).Peers[0].Conn == wire.WFConnection {
			n.want = true
		}
	}
}

// reattach gives detached disks back.
func (w *world) reattach() {
	w.run(2000, func() bool { return len(w.nodes[0].tasks)+len(w.nodes[1].tasks) == 0 })
	for _, n := range w.nodes {
		if n.up() && w.view(n.id).Volumes[0].Disk == wire.Diskless && !n.closing() {
			n.attach(nil)
			n.effects()
		}
	}
}

// recover promotes a node that has all data, starting it if need be.
func (w *world) recover() {
	order := []int{0, 1}
	if w.rng.IntN(2) == 0 {
		order = []int{1, 0}
	}
	for _, i := range order {
		n := w.nodes[i]
		if !w.good[i] {
			continue
		}
		if !n.up() {
			n.start()
			w.run(200, nil)
		}
		if w.promote(i, false) {
			break
		}
	}
	w.run(w.rng.IntN(500), nil)
	for _, n := range w.nodes {
		if !n.up() {
			n.start()
		}
	}
	w.reconnectAll()
}

func play(seed uint64) *world {
	w := newWorld(seed, 3)
	if !w.setup() {
		for i := range w.nodes {
			w.logf("%+v", w.view(i))
		}
		w.fail("setup did not end")
		return w
	}
	for range 6 + w.rng.IntN(10) {
		w.run(200+w.rng.IntN(2000), nil)
		if w.err != nil {
			return w
		}
		w.fault()
		if w.err != nil {
			return w
		}
	}
	w.heal()
	if w.err == nil {
		w.check()
	}
	return w
}

func TestSeeds(t *testing.T) {
	first, n := *fromFlag, uint64(*seedsFlag)
	if *seedFlag != 0 {
		first, n = *seedFlag, 1
	}
	acked, reads := 0, 0
	for seed := first; seed < first+n; seed++ {
		func() {
			defer func() {
				if r := recover(); r != nil {
					fmt.Printf("seed %d panics\n", seed)
					panic(r)
				}
			}()
			w := play(seed)
			acked += w.acked
			reads += w.reads
			if w.err != nil {
				t.Fatalf("%v\n%s\nreplay: go test ./test/sim -run TestSeeds -seed=%d", w.err, w.tail(), seed)
			}
		}()
	}
	t.Logf("%d writes acknowledged, %d reads checked", acked, reads)
}
