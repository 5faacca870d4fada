package ha

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hawser-ha/hawser/agent/coord"
	"github.com/hawser-ha/hawser/agent/decide"
	"github.com/hawser-ha/hawser/replicator/control"
)

// begin promotes r0 on n1 for the first time and waits until everybody is in sync.
func (w *world) begin(res ...string) {
	w.t.Helper()
	w.live(time.Second)
	for _, r := range res {
		done := make(chan error, 1)
		go func() { done <- w.node("n1").m.Promote(w.t.Context(), r, false, "test") }()
		w.mustServe("n1", r, 2*time.Second)
		if err := <-done; err != nil {
			w.t.Fatal(err)
		}
	}
	for _, r := range res {
		if w.until(5*time.Second, func() bool { return len(w.node("n1").replicas[r].grant.InSync) == len(w.nodes) }) == 5*time.Second {
			w.explain(r)
			w.t.Fatal("the others do not enter the in-sync set")
		}
	}
}

func TestTheHolderDies(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, []string{"n1", "n2"}, "r0")
		defer w.close()
		w.begin("r0")
		w.node("n1").die()
		took := w.mustServe("n2", "r0", ttl+time.Second)
		t.Logf("n2 serves after %s", took)
		if !w.node("n2").services.run["r0"] {
			w.live(100 * time.Millisecond)
			if !w.node("n2").services.run["r0"] {
				t.Error("its services do not run")
			}
		}
		if set := w.node("n2").replicas["r0"].grant.InSync; len(set) != 1 || set[0].Node != "n2" {
			t.Errorf("in sync: %v", set)
		}
		w.node("n1").boot()
		w.live(3 * time.Second)
		r := w.node("n1").replicas["r0"]
		w.mu.Lock()
		if r.role != decide.Secondary || r.grant.Member("n1") != nil {
			t.Errorf("n1 came back: %s, %v", r.role, r.grant)
		}
		r.fresh = true // the resync has ended
		w.links()
		w.mu.Unlock()
		if w.until(3*time.Second, func() bool { return r.grant.Member("n1") != nil }) == 3*time.Second {
			w.explain("r0")
			t.Error("n1 is not in sync again")
		}
	})
}

func TestFortyResourcesFailOverTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var names []string
		for i := range 40 {
			names = append(names, fmt.Sprintf("r%d", i))
		}
		w := newWorld(t, []string{"n1", "n2", "n3"}, names...)
		defer w.close()
		w.begin(names...)
		w.node("n1").die()
		took := w.until(ttl+time.Second, func() bool {
			for _, r := range names {
				if !w.serves("n2", r) && !w.serves("n3", r) {
					return false
				}
			}
			return true
		})
		if took >= ttl+time.Second {
			t.Fatal("not all serve")
		}
		t.Logf("all serve after %s", took)
	})
}

func TestSwitchover(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, []string{"n1", "n2", "n3"}, "r0")
		defer w.close()
		w.begin("r0")
		if _, err := w.node("n2").m.Switchover(t.Context(), "r0", Move{To: "n3"}); err != nil {
			t.Fatal(err)
		}
		took := w.mustServe("n3", "r0", 500*time.Millisecond)
		t.Logf("n3 serves after %s", took)
		w.live(2 * time.Second)
		if v, _ := w.node("n3").m.look(); v.Resource("r0").Switchover != nil {
			t.Error("the switchover stands still")
		}
		if w.node("n1").services.run["r0"] || !w.node("n3").services.run["r0"] {
			t.Error("services did not move")
		}
		w.node("n2").die()
		w.live(2 * time.Second)
		_, err := w.node("n1").m.Switchover(t.Context(), "r0", Move{To: "n2"})
		if !errors.Is(err, control.Refused) {
			t.Errorf("switchover to a dead node: %v", err)
		}
	})
}

func TestEtcdAloneStopsNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, []string{"n1", "n2"}, "r0")
		defer w.close()
		w.begin("r0")
		for _, n := range w.nodes {
			n.client.Cut(true)
		}
		frozen := w.until(3*ttl, func() bool { return !w.serves("n1", "r0") })
		if frozen != 3*ttl {
			t.Fatalf("frozen after %s without etcd", frozen)
		}
		for _, n := range w.nodes {
			n.client.Cut(false)
		}
		w.live(ttl)
		if !w.serves("n1", "r0") {
			w.explain("r0")
			t.Fatal("n1 does not serve when etcd is back")
		}
		if n := len(w.node("n2").replicas["r0"].promotions); n != 0 {
			t.Errorf("n2 was promoted %d times", n)
		}
	})
}

func TestAPrimaryCutOffFromEverythingEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, []string{"n1", "n2"}, "r0")
		defer w.close()
		w.begin("r0")
		w.node("n1").client.Cut(true)
		w.setCut("n1", "n2", true)
		w.mustServe("n2", "r0", 2*ttl)
		w.node("n1").client.Cut(false)
		w.setCut("n1", "n2", false)
		r := w.node("n1").replicas["r0"]
		if w.until(3*time.Second, func() bool { return r.role == decide.Secondary && !w.node("n1").services.run["r0"] }) == 3*time.Second {
			w.explain("r0")
			t.Error("n1 is still Primary")
		}
	})
}

func TestTheAgentStartsAnew(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, []string{"n1", "n2"}, "r0")
		defer w.close()
		w.begin("r0")
		n := w.node("n1")
		n.stop()
		w.live(2 * time.Second)
		n.startAgent()
		w.live(2 * ttl)
		if !w.serves("n1", "r0") || !n.services.run["r0"] {
			w.explain("r0")
			t.Error("n1 does not serve under its new agent")
		}
		if got := len(n.replicas["r0"].promotions); got != 1 {
			t.Errorf("promoted %d times", got)
		}
	})
}

func TestDrain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, []string{"n1", "n2"}, "r0")
		defer w.close()
		w.begin("r0")
		if err := w.node("n2").m.Drain(t.Context(), "n1", true, "test", ""); err != nil {
			t.Fatal(err)
		}
		w.mustServe("n2", "r0", time.Second)
		if err := w.node("n2").m.Drain(t.Context(), "n2", true, "test", ""); err != nil {
			t.Fatal(err)
		}
		w.live(3 * time.Second)
		if !w.serves("n2", "r0") {
			t.Error("n2 left though nobody can take over")
		}
		if err := w.node("n2").m.Drain(t.Context(), "n1", false, "test", ""); err != nil {
			t.Fatal(err)
		}
		w.mustServe("n1", "r0", time.Second)
	})
}

func TestMaintenanceDecidesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, []string{"n1", "n2"}, "r0")
		defer w.close()
		w.begin("r0")
		if err := w.node("n1").m.SetMaintenance(t.Context(), Scope{}, true, "test", ""); err != nil {
			t.Fatal(err)
		}
		w.live(time.Second)
		w.setCut("n1", "n2", true) // who may write is guarded all the same
		w.mustServe("n1", "r0", time.Second)
		w.setCut("n1", "n2", false)
		w.live(2 * time.Second)
		w.node("n1").die()
		w.live(3 * ttl)
		if n := len(w.node("n2").replicas["r0"].promotions); n != 0 {
			t.Errorf("n2 was promoted %d times in maintenance", n)
		}
		if err := w.node("n2").m.SetMaintenance(t.Context(), Scope{}, false, "test", ""); err != nil {
			t.Fatal(err)
		}
		w.mustServe("n2", "r0", 2*time.Second)
	})
}

func TestAFailedPromotionIsBraked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, []string{"n1", "n2", "n3"}, "r0")
		defer w.close()
		w.begin("r0")
		w.node("n2").replicas["r0"].failing = errors.New("the disk says no")
		w.node("n3").replicas["r0"].failing = errors.New("the disk says no")
		w.node("n1").die()
		w.live(time.Minute)
		terms := w.node("n2").replicas["r0"].grant.Term
		tries := 0
		for _, n := range w.node("n2").notes {
			if len(n) > 16 && n[:16] == "promotion-failed" {
				tries++
			}
		}
		if tries < 3 || tries > 8 {
			t.Errorf("%d attempts in a minute, term %d", tries, terms)
		}
		w.node("n3").replicas["r0"].failing = nil
		w.mustServe("n3", "r0", 3*time.Minute)
	})
}

func TestPreferredNodeAndFailback(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, []string{"n1", "n2", "n3"}, "r0")
		defer w.close()
		w.mu.Lock()
		for _, n := range w.nodes {
			n.policy.Preferred = "n3"
		}
		w.mu.Unlock()
		w.begin("r0")
		w.live(time.Minute)
		if !w.serves("n1", "r0") {
			t.Fatal("it moved though failback is none")
		}
		w.node("n1").die()
		w.mustServe("n3", "r0", ttl+time.Second)
		w.node("n1").boot()
		w.mu.Lock()
		w.node("n1").policy.Preferred, w.node("n2").policy.Preferred = "n1", "n1"
		w.node("n3").policy.Preferred, w.node("n3").policy.Failback = "n1", true
		w.mu.Unlock()
		w.live(15 * time.Second)
		if !w.serves("n3", "r0") {
			t.Fatal("it moved to a node that is not in sync")
		}
		w.mu.Lock()
		w.node("n1").replicas["r0"].fresh = true
		w.links()
		w.mu.Unlock()
		w.mustServe("n1", "r0", 15*time.Second)
	})
}

func TestStopAndStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, []string{"n1", "n2"}, "r0")
		defer w.close()
		w.begin("r0")
		n := w.node("n1")
		n.replicas["r0"].inUse = control.Errorf(control.InUse, "/dev/nbd0 is mounted")
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		err := n.m.Demote(ctx, "r0", "test")
		cancel()
		if err == nil {
			t.Fatal("demoted though it is in use")
		}
		n.replicas["r0"].inUse = nil
		if err := n.m.Demote(t.Context(), "r0", "test"); err != nil {
			t.Fatal(err)
		}
		w.live(3 * ttl)
		for _, n := range w.nodes {
			if n.replicas["r0"].role == decide.Primary {
				t.Errorf("%s is Primary though it was stopped", n.name)
			}
		}
		if err := w.node("n2").m.Promote(t.Context(), "r0", false, ""); err != nil {
			t.Fatal(err)
		}
		w.mustServe("n2", "r0", time.Second)
		err = n.m.Promote(t.Context(), "r0", false, "")
		if !errors.Is(err, control.PeerPrimary) {
			t.Errorf("second promotion: %v", err)
		}
	})
}

func TestServicesThatFailMoveTheResource(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, []string{"n1", "n2"}, "r0")
		defer w.close()
		w.begin("r0")
		w.mu.Lock()
		w.node("n1").services.ask["r0"] = true
		w.mu.Unlock()
		w.node("n1").m.Wake("r0")
		w.mustServe("n2", "r0", 2*time.Second)
	})
}

// fencer fences at once.
type fencer struct {
	w       *world
	by      *node
	certain bool
	fenced  []string
}

func (f *fencer) Ready(string) bool { return true }

func (f *fencer) Fence(ctx context.Context, v *coord.View, name, why string) error {
	store := f.by.m.o.Store
	rec, err := store.BeginFencing(ctx, v, name, why, false)
	if err != nil {
		return err
	}
	f.fenced = append(f.fenced, name)
	state := coord.FencingConfirmed
	if !f.certain {
		state = coord.FencingFailed
	}
	_, err = store.EndFencing(ctx, rec, state, "test")
	return err
}

func TestConfirmedFencingIsFaster(t *testing.T) {
	for _, certain := range []bool{true, false} {
		t.Run(fmt.Sprint(certain), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t, []string{"n1", "n2"}, "r0")
				defer w.close()
				f := &fencer{w: w, by: w.node("n2"), certain: certain}
				w.mu.Lock()
				for _, n := range w.nodes {
					n.policy.Fencing = true
				}
				w.node("n2").m.o.Fencer = f // read only after a policy was
				w.mu.Unlock()
				w.begin("r0")
				w.node("n1").die()
				if certain {
					took := w.mustServe("n2", "r0", 3*time.Second)
					t.Logf("n2 serves after %s", took)
					return
				}
				w.live(3 * ttl)
				if w.serves("n2", "r0") {
					t.Error("n2 serves though nobody knows whether n1 is off")
				}
				e, err := w.node("n2").m.Explain("r0")
				if err != nil || e.Plan.Why != decide.FenceFailed {
					t.Errorf("%v %v", e.Plan, err)
				}
				if len(f.fenced) != 1 {
					t.Errorf("fenced: %v", f.fenced)
				}
			})
		})
	}
}
