package etcd_test

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"time"

	"github.com/hawser-ha/hawser/agent/coord"
	"github.com/hawser-ha/hawser/agent/coord/conformance"
	"github.com/hawser-ha/hawser/agent/etcd"
	"github.com/hawser-ha/hawser/agent/etcdmember/membertest"
	"github.com/hawser-ha/hawser/replicator/control"
)

var quiet = slog.New(slog.DiscardHandler)

const patience = 30 * time.Second

func within(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	t.Cleanup(cancel)
	return ctx
}

// eventually waits for a condition.
func eventually(t *testing.T, what string, f func() error) {
	t.Helper()
	var err error
	for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(20 * time.Millisecond) { // a poll, bounded by patience
		if err = f(); err == nil {
			return
		}
	}
	t.Fatalf("%s: %v", what, err)
}

// TestThreeMembers: a cluster takes seconds to start, so one is for all.
func TestThreeMembers(t *testing.T) {
	c := membertest.Start(t, 3, nil)
	t.Run("conformance", func(t *testing.T) {
		conformance.Run(t, conformance.Store{
			Client: func() coord.Backend { return c.Client(func(cfg *etcd.Config) { cfg.RPCTimeout = 5 * time.Second }) },
			Compact: func(uint64) {
				if _, err := c.Client(nil).Compact(within(t)); err != nil {
					t.Fatal(err)
				}
			},
			TTL: time.Second,
		})
	})
	t.Run("a sick member costs no lease", func(t *testing.T) { sickMember(t, c) })
	t.Run("members come and go", func(t *testing.T) { membersComeAndGo(t, c) })
	t.Run("a minority", func(t *testing.T) { minority(t, c) })
}

// agent is the store of one node, with its session and its views.
type agent struct {
	*coord.Store
	*coord.Session
	client  *etcd.Client
	updates <-chan coord.Update
	stop    func()
}

func member(node string) control.Member {
	return control.Member{Node: node, Disks: map[int]control.UUID{0: 7}}
}

// leaseTTL leaves a machine that is busy with other tests time for what a lease must outlive.
const leaseTTL = 8 * time.Second

func startAgent(t *testing.T, name string, cl *etcd.Client) *agent {
	t.Helper()
	a := &agent{Store: coord.New(coord.Options{Backend: cl, Prefix: coord.Prefix("test"), Node: name, Log: quiet}), client: cl}
	a.Session = a.Hold(coord.SessionOptions{TTL: leaseTTL, RenewEvery: 500 * time.Millisecond, RPCTimeout: 2 * time.Second, Margin: 500 * time.Millisecond,
		Info: coord.NodeInfo{Machine: name, Boot: "b"}})
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { a.Run(ctx); close(done) }()
	a.updates = a.Follow(ctx, coord.FollowOptions{ConfirmEvery: 500 * time.Millisecond, RPCTimeout: time.Second})
	a.stop = func() {
		cancel()
		<-done
		for range a.updates { // until it is closed
		}
	}
	t.Cleanup(a.stop)
	eventually(t, "lease of "+name, func() error {
		if a.Lease() == 0 {
			return a.State().Err
		}
		return nil
	})
	return a
}

// see waits for a view.
func (a *agent) see(t *testing.T, what string, ok func(*coord.View) bool) *coord.View {
	t.Helper()
	end := time.After(patience)
	for {
		select {
		case u := <-a.updates:
			if u.View != nil && ok(u.View) {
				return u.View
			}
		case <-end:
			t.Fatalf("%s: not seen", what)
		}
	}
}

func TestAgentsOverEtcd(t *testing.T) {
	c := membertest.Start(t, 1, nil)
	n1, n2 := startAgent(t, "n1", c.Client(nil)), startAgent(t, "n2", c.Client(nil))
	ctx := within(t)
	v := n1.see(t, "both nodes", func(v *coord.View) bool { return len(v.Nodes) == 2 })
	if _, err := n1.CreateInSync(ctx, v.Resource("r0"), []control.Member{member("n1"), member("n2")}, coord.Reason{}); err != nil {
		t.Fatal(err)
	}
	hasSet := func(v *coord.View) bool { return v.Resource("r0").InSync != nil }
	r1, r2 := n1.see(t, "the set", hasSet).Resource("r0"), n2.see(t, "the set", hasSet).Resource("r0")
	p, err := n1.Promote(ctx, r1, member("n1"), coord.Reason{Text: "first"})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := n2.Promote(ctx, r2, member("n2"), coord.Reason{}); !errors.Is(err, coord.ErrConflict) {
		t.Fatalf("two primaries: %v", err)
	}
	r1 = n1.see(t, "the primary", func(v *coord.View) bool { return v.Resource("r0").Holder() == "n1" }).Resource("r0")
	if r1.Primary.Term != p.Term || r1.InSync.Seq != p.Seq || r1.Primary.Lease != n1.Lease() {
		t.Errorf("told %+v, seen %+v %+v", p, r1.Primary, r1.InSync)
	}
	set, err := n1.RemoveMember(ctx, r1, "n2", coord.Reason{Text: "lost"})
	if err != nil {
		t.Fatal(err)
	}
	if err := n1.PutStatus(ctx, "r0", []byte(`{"role":"Primary"}`)); err != nil {
		t.Fatal(err)
	}
	n2.see(t, "set and status", func(v *coord.View) bool {
		r := v.Resource("r0")
		return r.InSync.Seq == set.Seq && r.Status["n1"] != nil && len(r.History) == 3
	})
	reader, closer, err := etcd.Read(etcd.Config{Endpoints: c.Endpoints(), Log: quiet}, "test")
	if err != nil {
		t.Fatal(err)
	}
	defer closer.Close()
	if v, err := reader.Snapshot(ctx); err != nil || v.Resource("r0").Holder() != "n1" {
		t.Errorf("from elsewhere: %v", err)
	}
	if _, err := reader.PutSpec(ctx, &coord.Resource{Name: "r1"}, "x", ""); !errors.Is(err, coord.ErrRefused) {
		t.Errorf("a reader wrote: %v", err)
	}
	n1.stop() // as if it was killed: the lease runs out
	r2 = n2.see(t, "the end of the lease", func(v *coord.View) bool { return v.Nodes["n1"] == nil }).Resource("r0")
	if r2.Primary != nil || len(r2.Status) != 0 {
		t.Errorf("left behind: %+v %v", r2.Primary, r2.Status)
	}
	if _, err := n2.Promote(ctx, r2, member("n2"), coord.Reason{}); !errors.Is(err, coord.ErrNotInSync) {
		t.Errorf("promoted without being in sync: %v", err)
	}
}
