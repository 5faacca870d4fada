package coord_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hawser-ha/hawser/agent/coord"
	"github.com/hawser-ha/hawser/agent/coord/fake"
	"github.com/hawser-ha/hawser/replicator/control"
)

const prefix = "/hawser/test/"

var quiet = slog.New(slog.DiscardHandler)

// node is one node of a cluster in a synctest bubble.
type node struct {
	*coord.Store
	*coord.Session
	client *fake.Client
	stop   func()
}

func member(name string) control.Member {
	return control.Member{Node: name, Disks: map[int]control.UUID{0: control.UUID(len(name) + int(name[len(name)-1]))}}
}

func sessionOptions(name string) coord.SessionOptions {
	return coord.SessionOptions{TTL: 10 * time.Second, RenewEvery: 2 * time.Second, RPCTimeout: 2 * time.Second, Margin: time.Second,
		Info: coord.NodeInfo{Machine: "machine-" + name, Boot: "boot"}}
}

// start starts a node and waits until it has its lease.
func start(t *testing.T, s *fake.Server, name string, o coord.SessionOptions) *node {
	t.Helper()
	n := bare(t, s, name, o)
	synctest.Wait()
	if n.Lease() == 0 {
		t.Fatal(n.State().Err)
	}
	return n
}

func bare(t *testing.T, s *fake.Server, name string, o coord.SessionOptions) *node {
	c := s.Client(name)
	n := &node{Store: coord.New(coord.Options{Backend: c, Prefix: prefix, Node: name, Log: quiet, Clock: clock}), client: c}
	n.Session = n.Hold(o)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { n.Run(ctx); close(done) }()
	n.stop = func() { cancel(); <-done }
	t.Cleanup(n.stop)
	return n
}

func clock() int64 { return time.Now().UnixNano() } // of the bubble

func world(t *testing.T, f func(t *testing.T, s *fake.Server)) {
	synctest.Test(t, func(t *testing.T) {
		s := fake.New(fake.Options{})
		t.Cleanup(s.Close)
		f(t, s)
	})
}

func (n *node) view(t *testing.T) *coord.View {
	t.Helper()
	v, err := n.Snapshot(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if len(v.Problems) > 0 {
		t.Fatal(v.Problems)
	}
	return v
}

func (n *node) r0(t *testing.T) *coord.Resource { t.Helper(); return n.view(t).Resource("r0") }

func (n *node) must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func reason(text string) coord.Reason { return coord.Reason{Text: text} }

func TestOneLifeOfAResource(t *testing.T) {
	world(t, func(t *testing.T, s *fake.Server) {
		ctx := t.Context()
		n1, n2, n3 := start(t, s, "n1", sessionOptions("n1")), start(t, s, "n2", sessionOptions("n2")), start(t, s, "n3", sessionOptions("n3"))
		fresh := n1.r0(t)
		if _, err := n1.Promote(ctx, fresh, member("n1"), reason("")); !errors.Is(err, coord.ErrNotInSync) {
			t.Fatalf("a resource without an in-sync set was promoted: %v", err)
		}
		set, err := n1.CreateInSync(ctx, fresh, []control.Member{member("n1"), member("n2")}, reason("new"))
		n1.must(t, err)
		if _, err := n2.CreateInSync(ctx, fresh, []control.Member{member("n2")}, reason("new")); !errors.Is(err, coord.ErrConflict) {
			t.Fatalf("made twice: %v", err)
		}
		before := n2.r0(t)
		if before.InSync.Seq != set.Seq || before.InSync.Term != set.Seq {
			t.Fatalf("%+v, %+v", before.InSync, set)
		}
		if _, err := n3.Promote(ctx, before, member("n3"), reason("")); !errors.Is(err, coord.ErrNotInSync) {
			t.Fatalf("a node outside the set: %v", err)
		}
		if _, err := n2.Promote(ctx, before, control.Member{Node: "n2", Disks: map[int]control.UUID{0: 99}}, reason("")); !errors.Is(err, coord.ErrNotInSync) {
			t.Fatalf("a disk that was replaced: %v", err)
		}
		p, err := n1.Promote(ctx, before, member("n1"), reason("first"))
		n1.must(t, err)
		r := n1.r0(t)
		if r.Holder() != "n1" || r.Primary.Term != p.Term || r.InSync.Seq != p.Seq || r.InSync.Term != p.Term || r.Primary.Lease != n1.Lease() {
			t.Fatalf("%+v, %+v, %+v", p, r.Primary, r.InSync)
		}
		if _, err := n2.Promote(ctx, before, member("n2"), reason("")); !errors.Is(err, coord.ErrConflict) {
			t.Fatalf("two primaries: %v", err)
		}
		if _, err := n2.RemoveMember(ctx, r, "n1", reason("")); !errors.Is(err, coord.ErrConflict) {
			t.Fatalf("the set was changed by another than the holder: %v", err)
		}
		alone, err := n1.RemoveMember(ctx, r, "n2", reason("lost"))
		n1.must(t, err)
		if alone.Member("n2") != nil || alone.Member("n1") == nil || alone.Seq <= p.Seq || alone.Term != p.Term {
			t.Fatalf("%+v", alone)
		}
		if _, err := n1.AddMember(ctx, r, member("n3"), reason("")); !errors.Is(err, coord.ErrConflict) {
			t.Fatalf("decided on a set that is over: %v", err)
		}
		if _, err := n1.RemoveMember(ctx, n1.r0(t), "n1", reason("")); !errors.Is(err, coord.ErrRefused) {
			t.Fatalf("the last member went: %v", err)
		}
		same, err := n1.RemoveMember(ctx, n1.r0(t), "n2", reason("again"))
		n1.must(t, err)
		if len(same.Members) != 1 || same.Seq <= alone.Seq {
			t.Fatalf("not written once more: %+v", same)
		}
		more, err := n1.AddMember(ctx, n1.r0(t), member("n3"), reason("resynced"))
		n1.must(t, err)
		if more.Member("n3") == nil || len(more.Members) != 2 {
			t.Fatalf("%+v", more)
		}
		sw, err := n2.SetSwitchover(ctx, n2.r0(t), coord.Switchover{To: "n3", By: "root"})
		n2.must(t, err)
		if r := n1.r0(t); r.Switchover == nil || r.Switchover.From != "n1" || r.Switchover.Mod != sw.Mod {
			t.Fatalf("%+v", r.Switchover)
		}
		if err := n2.Release(ctx, n2.r0(t), p.Term, reason("")); !errors.Is(err, coord.ErrRefused) {
			t.Fatalf("released by another: %v", err)
		}
		n1.must(t, n1.Release(ctx, n1.r0(t), p.Term, reason("switchover")))
		n1.must(t, n1.Release(ctx, n1.r0(t), p.Term, reason("again")))
		q, err := n3.Promote(ctx, n3.r0(t), member("n3"), reason("switchover"))
		n3.must(t, err)
		r = n1.r0(t)
		if r.Switchover != nil || r.Holder() != "n3" || q.Term <= p.Term {
			t.Fatalf("after the switchover: %+v", r)
		}
		n1.must(t, n1.Release(ctx, r, p.Term, reason("late"))) // of a term that is over: nothing
		if n1.r0(t).Holder() != "n3" {
			t.Fatal("a late release ended another's term")
		}
		n3.must(t, n3.Release(ctx, n3.r0(t), q.Term, reason("")))
		f, err := n2.Force(ctx, n2.r0(t), member("n2"), coord.Reason{Text: "last hope", Data: json.RawMessage(`{"lost":1}`)})
		n2.must(t, err)
		r = n2.r0(t)
		if !r.Primary.Forced || len(r.InSync.Members) != 1 || r.InSync.Member("n2") == nil || r.Primary.Term != f.Term {
			t.Fatalf("forced: %+v %+v", r.Primary, r.InSync)
		}
		kinds := ""
		for _, e := range r.History {
			kinds += e.Kind + " "
		}
		if want := "create promote remove remove add release promote release force "; kinds != want {
			t.Errorf("history %s, want %s", kinds, want)
		}
		if e := r.History[len(r.History)-1]; e.Term != f.Term || e.Node != "n2" || e.Text != "last hope" || string(e.Data) != `{"lost":1}` {
			t.Errorf("%+v", e)
		}
	})
}

func TestHistoryHasAnEnd(t *testing.T) {
	world(t, func(t *testing.T, s *fake.Server) {
		n := start(t, s, "n1", sessionOptions("n1"))
		for i := range 60 {
			n.must(t, n.AppendHistory(t.Context(), n.r0(t), coord.Entry{Kind: "note", Text: fmt.Sprint(i)}))
			time.Sleep(time.Second)
		}
		h := n.r0(t).History
		if len(h) != 50 || h[49].Text != "59" || h[0].Text != "10" {
			t.Errorf("%d entries, %q to %q", len(h), h[0].Text, h[len(h)-1].Text)
		}
	})
}

// TestALateTransactionIsHarmless: a promotion without an answer must not come true after somebody else was primary.
func TestALateTransactionIsHarmless(t *testing.T) {
	world(t, func(t *testing.T, s *fake.Server) {
		n1, n2 := start(t, s, "n1", sessionOptions("n1")), start(t, s, "n2", sessionOptions("n2"))
		_, err := n1.CreateInSync(t.Context(), n1.r0(t), []control.Member{member("n1"), member("n2")}, reason(""))
		n1.must(t, err)
		r := n1.r0(t)
		n1.client.SetFaults(fake.Faults{Late: 1})
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := n1.Promote(ctx, r, member("n1"), reason("")); !errors.Is(err, coord.ErrUncertain) {
			t.Fatal(err)
		}
		n1.client.SetFaults(fake.Faults{})
		v, err := n2.Snapshot(t.Context()) // which lets some of what is under way through, in some order
		n2.must(t, err)
		r = v.Resource("r0")
		if r.Primary == nil {
			p, err := n2.Promote(t.Context(), r, member("n2"), reason(""))
			if err == nil {
				n2.must(t, n2.Release(t.Context(), n2.r0(t), p.Term, reason("")))
				s.Settle()
				if h := n2.r0(t).Holder(); h != "" {
					t.Errorf("%s holds it by a promotion from before another's", h)
				}
				return
			}
		}
		s.Settle()
		if h := n2.r0(t).Holder(); h != "n1" { // it came true before anything else
			t.Errorf("holder %q", h)
		}
	})
}

// TestALateStatusIsNotTheLastWord: one that was under way in a slow member does not come after a newer one.
func TestALateStatusIsNotTheLastWord(t *testing.T) {
	for seed := range uint64(10) {
		synctest.Test(t, func(t *testing.T) {
			s := fake.New(fake.Options{Seed: seed})
			t.Cleanup(s.Close)
			o := sessionOptions("n1")
			o.TTL = 24 * time.Hour
			n := start(t, s, "n1", o)
			for i := range 8 {
				n.client.SetFaults(fake.Faults{Late: 0.4, LoseAnswer: 0.2})
				n.must(t, n.PutStatus(t.Context(), "r0", json.RawMessage(fmt.Sprint(i))))
			}
			n.client.SetFaults(fake.Faults{})
			s.Settle()
			if got := string(n.r0(t).Status["n1"].Data); got != "7" {
				t.Errorf("seed %d: status %s after 7 was written", seed, got)
			}
		})
	}
}

// TestMarks: an answer that is lost does not make a change happen twice, nor be taken for somebody else's.
func TestMarks(t *testing.T) {
	for seed := range uint64(20) {
		synctest.Test(t, func(t *testing.T) {
			s := fake.New(fake.Options{Seed: seed})
			t.Cleanup(s.Close)
			o := sessionOptions("n1")
			o.TTL = 24 * time.Hour // what is tested here is not the lease
			n := start(t, s, "n1", o)
			ctx := t.Context()
			do := func(what string, want error, f func(r *coord.Resource) error) {
				t.Helper()
				n.client.SetFaults(fake.Faults{})
				r := n.r0(t)
				n.client.SetFaults(fake.Faults{LoseAnswer: 0.4, LoseRequest: 0.2, Late: 0.2})
				if err := f(r); !errors.Is(err, want) {
					t.Fatalf("seed %d: %s: %v", seed, what, err)
				}
			}
			do("create", nil, func(r *coord.Resource) error {
				_, err := n.CreateInSync(ctx, r, []control.Member{member("n1"), member("n2")}, reason(""))
				return err
			})
			var p *coord.Promotion
			do("promote", nil, func(r *coord.Resource) (err error) { p, err = n.Promote(ctx, r, member("n1"), reason("")); return err })
			do("remove", nil, func(r *coord.Resource) error {
				if r.Primary.Term != p.Term || r.InSync.Seq != p.Seq {
					t.Errorf("seed %d: told %+v, there is %+v %+v", seed, p, r.Primary, r.InSync)
				}
				set, err := n.RemoveMember(ctx, r, "n2", reason(""))
				if err == nil && n.client.Seen().Revision < set.Seq {
					t.Errorf("seed %d: %+v", seed, set)
				}
				return err
			})
			do("add what is decided on an old set", coord.ErrConflict, func(r *coord.Resource) error {
				old := *r
				old.InSync = &coord.InSync{Members: r.InSync.Members, Seq: r.InSync.Seq - 1}
				_, err := n.AddMember(ctx, &old, member("n2"), reason(""))
				return err
			})
			do("release", nil, func(*coord.Resource) error { return n.Release(ctx, &coord.Resource{Name: "r0"}, p.Term, reason("")) })
			n.client.SetFaults(fake.Faults{})
			s.Settle()
			count := map[string]int{}
			for _, e := range n.r0(t).History {
				count[e.Kind]++
			}
			if fmt.Sprint(count) != "map[create:1 promote:1 release:1 remove:1]" {
				t.Errorf("seed %d: %v", seed, count)
			}
		})
	}
}

func TestLeaseCountsFromBeforeTheRenewalIsSent(t *testing.T) {
	world(t, func(t *testing.T, s *fake.Server) {
		n := start(t, s, "n1", sessionOptions("n1"))
		n.client.SetFaults(fake.Faults{DelayMax: 1900 * time.Millisecond})
		for range 50 {
			time.Sleep(777 * time.Millisecond)
			st := n.State()
			if st.Until-st.Renewed != int64(9*time.Second) {
				t.Fatalf("%+v", st)
			}
			kv := s.Dump() // a lease that we believe in stands in the store
			if clock() < st.Until && len(kv) != 1 {
				t.Fatalf("at %d: %+v, stored %v", clock(), st, kv)
			}
			if clock() >= st.Until {
				t.Fatalf("a slow store cost the lease: %+v", st)
			}
		}
		n.client.Cut(true)
		time.Sleep(9 * time.Second)
		if st := n.State(); clock() < st.Until || st.Err == nil || len(s.Dump()) != 1 {
			t.Errorf("cut off for 9s, the lease is believed in until %d, now %d (%v); stored %v", st.Until, clock(), st.Err, s.Dump())
		}
		time.Sleep(3 * time.Second)
		if len(s.Dump()) != 0 {
			t.Error("the store keeps it")
		}
		n.client.SetFaults(fake.Faults{})
		n.client.Cut(false)
		time.Sleep(5 * time.Second)
		if st := n.State(); st.Err != nil || st.Until <= clock() || len(s.Dump()) != 1 {
			t.Errorf("back: %+v", st)
		}
	})
}

func TestANewAgentResumesTheLease(t *testing.T) {
	world(t, func(t *testing.T, s *fake.Server) {
		o := sessionOptions("n1")
		o.File = filepath.Join(t.TempDir(), "run", "session.json")
		n := start(t, s, "n1", o)
		_, err := n.CreateInSync(t.Context(), n.r0(t), []control.Member{member("n1")}, reason(""))
		n.must(t, err)
		p, err := n.Promote(t.Context(), n.r0(t), member("n1"), reason(""))
		n.must(t, err)
		id := n.Lease()
		s.Elect()
		time.Sleep(5 * time.Second)
		n.stop()
		seen := n.client.Seen()
		next := start(t, s, "n1", o)
		if next.Lease() != id || !next.State().Resumed || next.r0(t).Primary.Term != p.Term {
			t.Errorf("%+v, was %d", next.State(), id)
		}
		if got := next.client.Seen(); got.RaftTerm < seen.RaftTerm {
			t.Errorf("what was seen is forgotten: %+v, %+v", got, seen)
		}
		next.stop()
		o.Info.Boot = "another" // the machine was rebooted, the folder is still there
		rebooted := start(t, s, "n1", o)
		if rebooted.Lease() == id || rebooted.State().Resumed {
			t.Errorf("resumed over a reboot: %+v", rebooted.State())
		}
		// The term of the life before is still there; this node may give it back.
		if r := rebooted.r0(t); r.Primary == nil || r.Primary.Lease != id {
			t.Errorf("%+v", r.Primary)
		}
		rebooted.must(t, rebooted.Release(t.Context(), rebooted.r0(t), p.Term, reason("rebooted")))
		q, err := rebooted.Promote(t.Context(), rebooted.r0(t), member("n1"), reason(""))
		if err != nil || q.Term <= p.Term {
			t.Error(q, err)
		}
	})
}

func TestALeaseThatIsGoneEndsAtOnce(t *testing.T) {
	for name, take := range map[string]func(*fake.Server, *node){
		"revoked": func(s *fake.Server, n *node) {
			if err := s.Client("x").Revoke(context.Background(), n.Lease()); err != nil {
				panic(err)
			}
		},
		"another agent": func(s *fake.Server, n *node) {
			_, err := s.Client("x").Txn(context.Background(), coord.Txn{Then: []coord.Op{{Key: prefix + "nodes/n1", Value: []byte(`{"node":"n1","machine":"machine-n1"}`)}}})
			if err != nil {
				panic(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			world(t, func(t *testing.T, s *fake.Server) {
				n := start(t, s, "n1", sessionOptions("n1"))
				ctx, cancel := context.WithCancel(t.Context())
				updates := n.Follow(ctx, coord.FollowOptions{ConfirmEvery: 2 * time.Second, RPCTimeout: 2 * time.Second})
				defer func() { // ends when its channel closes
					cancel()
					for range updates {
					}
				}()
				synctest.Wait()
				time.Sleep(500 * time.Millisecond) // between two renewals: only the changes can tell
				id := n.Lease()
				take(s, n)
				synctest.Wait()
				if n.Lease() == id {
					t.Error("still believed in")
				}
				time.Sleep(3 * time.Second)
				if now := n.Lease(); now == 0 || now == id {
					t.Errorf("no new lease: %+v", n.State())
				}
			})
		})
	}
}

func TestADoubtfulDenialCountsUntilTheNextRenewal(t *testing.T) {
	world(t, func(t *testing.T, s *fake.Server) {
		n := start(t, s, "n1", sessionOptions("n1"))
		id := n.Lease()
		n.client.DenyLeases(true)
		time.Sleep(2100 * time.Millisecond)
		if st := n.State(); st.Until != 0 || st.Lease != id {
			t.Errorf("denied: %+v", st)
		}
		n.client.DenyLeases(false)
		time.Sleep(2 * time.Second)
		if st := n.State(); st.Until <= clock() || st.Lease != id || st.Err != nil {
			t.Errorf("it was a sick member: %+v", st)
		}
	})
}

func TestANameIsOneMachines(t *testing.T) {
	world(t, func(t *testing.T, s *fake.Server) {
		first := start(t, s, "n1", sessionOptions("n1"))
		o := sessionOptions("n1")
		o.Info.Machine = "clone"
		second := bare(t, s, "n1", o)
		time.Sleep(20 * time.Second)
		if st := second.State(); st.Lease != 0 || !errors.Is(st.Err, coord.ErrNameTaken) {
			t.Errorf("%+v", st)
		}
		if first.Lease() == 0 {
			t.Error("the first one lost its lease")
		}
		first.stop()
		time.Sleep(15 * time.Second)
		if second.Lease() == 0 {
			t.Errorf("the name is free: %v", second.State().Err)
		}
	})
}

func TestFollow(t *testing.T) {
	world(t, func(t *testing.T, s *fake.Server) {
		n1, n2 := start(t, s, "n1", sessionOptions("n1")), start(t, s, "n2", sessionOptions("n2"))
		ctx, cancel := context.WithCancel(t.Context())
		updates := n2.Follow(ctx, coord.FollowOptions{ConfirmEvery: 2 * time.Second, RPCTimeout: 2 * time.Second})
		var last coord.Update
		latest := func(why string) *coord.View {
			t.Helper()
			for {
				synctest.Wait()
				select {
				case last = <-updates:
					continue
				default:
				}
				break
			}
			want := n1.view(t)
			got, _ := json.Marshal(last.View.Resources)
			have, _ := json.Marshal(want.Resources)
			if string(got) != string(have) || len(last.View.Nodes) != len(want.Nodes) {
				t.Fatalf("%s: followed %s %v\nthere is %s %v", why, got, last.View.Nodes, have, want.Nodes)
			}
			return last.View
		}
		latest("start")
		_, err := n1.CreateInSync(ctx, n1.r0(t), []control.Member{member("n1"), member("n2")}, reason(""))
		n1.must(t, err)
		v := latest("a change")
		was := v.Resource("r0")
		p, err := n1.Promote(ctx, n1.r0(t), member("n1"), reason(""))
		n1.must(t, err)
		n1.must(t, n1.PutStatus(ctx, "r0", json.RawMessage(`{"role":"Primary"}`)))
		latest("more changes")
		if was.Primary != nil {
			t.Error("a view that was given out has changed")
		}
		n2.client.SetFaults(fake.Faults{BreakWatch: 1})
		n1.must(t, n1.PutStatus(ctx, "r0", json.RawMessage(`{"role":"Secondary"}`)))
		time.Sleep(time.Second)
		latest("a stream that broke")
		n2.client.SetFaults(fake.Faults{})
		n2.client.Deafen(true)
		n1.must(t, n1.Release(ctx, n1.r0(t), p.Term, reason("")))
		time.Sleep(5 * time.Second) // asked, behind, given up, read anew
		if v := latest("a stream that went silent"); v.Seen < clock()-int64(6*time.Second) {
			t.Errorf("seen %d, now %d", v.Seen, clock())
		}
		n2.client.Deafen(false)
		n2.client.Deafen(true)
		n1.must(t, n1.PutStatus(ctx, "r1", json.RawMessage(`1`)))
		s.Compact()
		n2.client.Deafen(false)
		time.Sleep(time.Second)
		latest("compaction")
		n2.client.Cut(true)
		time.Sleep(10 * time.Second)
		for drained := false; !drained; {
			synctest.Wait()
			select {
			case last = <-updates:
			default:
				drained = true
			}
		}
		if last.Err == nil || last.View == nil || clock()-last.View.Seen < int64(7*time.Second) {
			t.Errorf("cut off: %v, seen %d, now %d", last.Err, last.View.Seen, clock())
		}
		n2.client.Cut(false)
		time.Sleep(10 * time.Second)
		latest("back")
		if last.Err != nil {
			t.Error(last.Err)
		}
		cancel()
		for range updates { // ends
		}
	})
}

func TestFencing(t *testing.T) {
	world(t, func(t *testing.T, s *fake.Server) {
		ctx := t.Context()
		n1, n2, n3 := start(t, s, "n1", sessionOptions("n1")), start(t, s, "n2", sessionOptions("n2")), start(t, s, "n3", sessionOptions("n3"))
		_, err := n1.CreateInSync(ctx, n1.r0(t), []control.Member{member("n1"), member("n2")}, reason(""))
		n1.must(t, err)
		p, err := n1.Promote(ctx, n1.r0(t), member("n1"), reason(""))
		n1.must(t, err)
		v := n2.view(t)
		f, err := n2.BeginFencing(ctx, v, "n1", "silent", true)
		n2.must(t, err)
		if f.Lease != n1.Lease() || f.Boot != "boot" {
			t.Errorf("%+v", f)
		}
		if _, err := n1.BeginFencing(ctx, v, "n2", "silent", false); !errors.Is(err, coord.ErrConflict) {
			t.Errorf("both fence each other: %v", err)
		}
		if _, err := n3.BeginFencing(ctx, n3.view(t), "n1", "silent", false); !errors.Is(err, coord.ErrConflict) {
			t.Errorf("two fence one: %v", err)
		}
		if err := n2.Evict(ctx, f); !errors.Is(err, coord.ErrRefused) {
			t.Errorf("evicted before it is confirmed: %v", err)
		}
		if _, err := n2.TakePoison(ctx, f); !errors.Is(err, coord.ErrRefused) {
			t.Errorf("another's poison: %v", err)
		}
		taken, err := n1.TakePoison(ctx, n1.view(t).Fencing["n1"])
		n1.must(t, err)
		if _, err := n2.EndFencing(ctx, f, coord.FencingConfirmed, "ipmi"); !errors.Is(err, coord.ErrConflict) {
			t.Errorf("decided on an old record: %v", err)
		}
		f, err = n2.EndFencing(ctx, taken, coord.FencingConfirmed, "poison")
		n2.must(t, err)
		n1.stop()
		n2.must(t, n2.Evict(ctx, f))
		v = n2.view(t)
		if v.Nodes["n1"] != nil || v.Resource("r0").Primary != nil {
			t.Errorf("still there: %+v", v.Resource("r0").Primary)
		}
		q, err := n2.Promote(ctx, v.Resource("r0"), member("n2"), reason("n1 is dead"))
		if err != nil || q.Term <= p.Term {
			t.Fatal(q, err)
		}
		back := start(t, s, "n1", sessionOptions("n1"))
		back.must(t, back.Evict(ctx, f)) // the old life: harmless
		if back.view(t).Nodes["n1"] == nil {
			t.Error("the new life was evicted")
		}
		back.must(t, back.ClearFencing(ctx, back.view(t).Fencing["n1"]))
		if len(back.view(t).Fencing) != 0 {
			t.Error("still recorded")
		}
	})
}

func TestWhatPeopleAskFor(t *testing.T) {
	world(t, func(t *testing.T, s *fake.Server) {
		ctx := t.Context()
		n1, n2 := start(t, s, "n1", sessionOptions("n1")), start(t, s, "n2", sessionOptions("n2"))
		v := n1.view(t)
		n1.must(t, n1.ChangeMaintenance(ctx, v, func(m *coord.Maintenance) { m.Nodes["n2"] = &coord.Pause{By: "root"} }))
		if err := n2.ChangeMaintenance(ctx, v, func(m *coord.Maintenance) { m.Cluster = &coord.Pause{} }); !errors.Is(err, coord.ErrConflict) {
			t.Errorf("over another's change: %v", err)
		}
		n2.must(t, n2.ChangeMaintenance(ctx, n2.view(t), func(m *coord.Maintenance) { m.Drained["n1"] = &coord.Pause{} }))
		if m := n1.view(t).Maintenance; m.Nodes["n2"] == nil || m.Drained["n1"] == nil || m.Cluster != nil {
			t.Errorf("%+v", m)
		}
		spec, err := n1.PutSpec(ctx, n1.r0(t), "resource: r0\n", "root")
		n1.must(t, err)
		if _, err := n2.PutSpec(ctx, &coord.Resource{Name: "r0"}, "other", ""); !errors.Is(err, coord.ErrConflict) {
			t.Errorf("over another's definition: %v", err)
		}
		if r := n2.r0(t); r.Spec.Text != "resource: r0\n" || r.Spec.Mod != spec.Mod {
			t.Errorf("%+v", r.Spec)
		}
		_, err = n1.CreateInSync(ctx, n1.r0(t), []control.Member{member("n1")}, reason(""))
		n1.must(t, err)
		old := n1.r0(t)
		p, err := n1.Promote(ctx, old, member("n1"), reason(""))
		n1.must(t, err)
		if err := n1.DeleteResource(ctx, old); !errors.Is(err, coord.ErrConflict) {
			t.Errorf("deleted though it is held: %v", err)
		}
		sw, err := n1.SetSwitchover(ctx, n1.r0(t), coord.Switchover{To: "n2"})
		n1.must(t, err)
		if _, err := n2.SetSwitchover(ctx, &coord.Resource{Name: "r0", Primary: n1.r0(t).Primary}, coord.Switchover{To: "n1"}); !errors.Is(err, coord.ErrConflict) {
			t.Errorf("over another's switchover %+v: %v", sw, err)
		}
		r := n1.r0(t)
		n1.must(t, n1.CancelSwitchover(ctx, r))
		n1.must(t, n1.CancelSwitchover(ctx, r))
		n1.must(t, n1.Release(ctx, n1.r0(t), p.Term, reason("")))
		n1.must(t, n1.DeleteResource(ctx, n1.r0(t)))
		if len(n1.view(t).Resources) != 0 {
			t.Errorf("%+v", n1.r0(t))
		}
	})
}

func TestWhatCannotBeReadStopsDecisions(t *testing.T) {
	world(t, func(t *testing.T, s *fake.Server) {
		n := start(t, s, "n1", sessionOptions("n1"))
		for key, value := range map[string]string{"resources/r0/insync": "{", "resources/r1/primary": `{"node":""}`, "fencing/n2": "[]", "maintenance": "?"} {
			_, err := n.client.Txn(t.Context(), coord.Txn{Then: []coord.Op{{Key: prefix + key, Value: []byte(value)}}})
			n.must(t, err)
		}
		v, err := n.Snapshot(t.Context())
		n.must(t, err)
		if v.Resource("r0").Problem == "" || v.Resource("r1").Problem == "" || v.Fencing["n2"].State != coord.FencingUnreadable || v.Maintenance.Cluster == nil || len(v.Problems) != 3 {
			t.Errorf("%+v", v.Problems)
		}
		if _, err := n.Promote(t.Context(), v.Resource("r0"), member("n1"), reason("")); !errors.Is(err, coord.ErrRefused) {
			t.Error(err)
		}
	})
}

func TestWatermark(t *testing.T) {
	var w coord.Watermark
	w.Expect(coord.Header{Cluster: 7, Revision: 10, RaftTerm: 3})
	since := w.Seen()
	for name, c := range map[string]struct {
		h  coord.Header
		ok bool
	}{
		"same":                   {coord.Header{Cluster: 7, Revision: 10, RaftTerm: 3}, true},
		"newer":                  {coord.Header{Cluster: 7, Revision: 11, RaftTerm: 4}, true},
		"older revision":         {coord.Header{Cluster: 7, Revision: 9, RaftTerm: 4}, false},
		"older term":             {coord.Header{Cluster: 7, Revision: 11, RaftTerm: 2}, false},
		"another cluster":        {coord.Header{Cluster: 8, Revision: 11, RaftTerm: 4}, false},
		"a renewal: no revision": {coord.Header{Cluster: 7, RaftTerm: 3}, true},
	} {
		if err := w.Admit(c.h, since); (err == nil) != c.ok || err != nil && !errors.Is(err, coord.ErrStale) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if s := w.Seen(); s.Revision != 11 || s.RaftTerm != 4 {
		t.Errorf("%+v", s)
	}
}
