package netns

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/hawser-ha/hawser/replicator/control"
	"github.com/hawser-ha/hawser/test/check"
)

const extent = 4 << 20 // of the activity log, bytes

// C01: a Primary with the smallest activity log dies under writes all over the volume. What is copied afterwards is what the
// log names, and what was written meanwhile.
func TestC01PrimaryCrash(t *testing.T) {
	const extents = 67
	for name, promote := range map[string]bool{"the peer takes over": true, "it comes back alone": false} {
		t.Run(name, func(t *testing.T) {
			c := start(t, setup{size: 1 << 30, disk: map[string]string{"al-extents": fmt.Sprint(extents)}})
			c.n1.primary()
			w := c.load(check.Options{Runs: 256, Depth: 8}, c.n1, c.n2)
			c.acks(w, 1000)
			c.n1.crash()
			meanwhile := int64(0)
			if promote {
				c.n2.primary()
				from := len(c.history.Ops())
				c.acks(w, 200)
				w.Stop()
				meanwhile = c.written(from)
			} else {
				w.Retarget(c.n2.target()) // which is not there
				w.Stop()
			}
			c.n1.startAgent()
			c.inSync()
			got := c.n1.lastSync()
			// One more extent may have been on its way into the log.
			if limit := int64((extents+1)*extent) + meanwhile*check.BlockSize; got.Total > limit || got.Total == 0 {
				t.Errorf("%d bytes resynced, the activity log allows %d", got.Total, limit)
			}
			t.Logf("%d bytes resynced", got.Total)
			c.identical()
		})
	}
}

// C03: the Primary loses power, and with it what its disk had not yet written.
func TestC03PowerLoss(t *testing.T) {
	for name, promote := range map[string]bool{"the peer takes over": true, "it comes back alone": false} {
		t.Run(name, func(t *testing.T) {
			c := start(t, setup{fault: []string{"n1"}})
			c.n1.faults.do("volatile on")
			c.n1.primary()
			w := c.load(check.Options{}, c.n1, c.n2)
			c.acks(w, 500)
			c.n1.crash()
			c.n1.faults.do("drop-unsynced")
			rules := check.Rules{Identical: true}
			if promote {
				c.n2.primary()
				c.acks(w, 200)
			} else {
				// The crashed Primary's copy wins, and its disk may have lost what nobody flushed.
				rules.FlushedOnly = true
				w.Retarget(c.n2.target())
			}
			w.Stop()
			c.n1.startAgent()
			c.inSync()
			c.n1.faults.do("volatile off")
			c.verdict(rules)
		})
	}
}

// Both nodes die at random moments, again and again, under load; the survivor takes over or the dead one comes back.
func TestKillAtRandom(t *testing.T) {
	n := *rounds
	if n == 0 {
		n = 5
		if *long {
			n = 40
		}
	}
	c := start(t, setup{disk: map[string]string{"al-extents": "67"}})
	rng := rand.New(rand.NewPCG(*seed, 0))
	at := c.n1
	at.primary()
	for round := range n {
		w := c.load(check.Options{Seed: *seed + uint64(round)*1000, Depth: 1 + rng.IntN(8), Writers: 1 + rng.IntN(3)}, c.n1, c.n2)
		c.acks(w, int64(20+rng.IntN(400)))
		what := rng.IntN(5)
		t.Logf("round %d: %d, Primary is %s", round, what, at.name)
		switch what {
		case 0: // the Secondary's replicator; its agent starts another
			at.peer().killReplicator()
			c.acks(w, 50)
		case 1: // the Secondary
			at.peer().crash()
			c.acks(w, int64(rng.IntN(200)))
			at.peer().startAgent()
		case 2: // the Primary, and the peer takes over
			at.crash()
			at = at.peer()
			at.primary()
			c.acks(w, int64(rng.IntN(200)))
			at.peer().startAgent()
		case 3: // the Primary, which comes back and is promoted again
			at.crash()
			at.startAgent()
			at.primary()
			c.acks(w, 50)
		case 4: // both
			at.crash()
			at.peer().crash()
			c.n1.startAgent()
			c.n2.startAgent()
			c.inSync()
			at.primary()
			c.acks(w, 50)
		}
		// Sometimes the next crash comes before the resync has ended.
		if rng.IntN(3) == 0 && what < 2 && at.peer().pid() != 0 {
			at.peer().killReplicator()
		}
		c.inSync()
		w.Stop()
		c.history.Settle()
		at.wait("idle", stateLimit, func(st *control.Status) bool { return st.Volumes[0].UpperPending == 0 && synced(st) })
		if v := c.judge(check.Rules{Size: c.o.size, Identical: true}, c.data()...); v.Err() != nil {
			t.Fatalf("round %d; replay: -run %s -seed %d -rounds %d", round, t.Name(), *seed, n)
		} else {
			c.history.Rebase(v)
		}
	}
}
