package core

import (
	"errors"
	"fmt"
	"testing"

	"github.com/hawser-ha/hawser/replicator/wire"
)

func fenced(mode string) NetConfig {
	n := testNet()
	n.Fencing = mode
	return n
}

// handler answers the handler of this name that was asked for last; false: it was not.
func (r *rig) handler(name string, code int) bool {
	for i := len(r.asked) - 1; i >= 0; i-- {
		if r.asked[i].Note == name {
			e := r.asked[i]
			r.asked = append(r.asked[:i:i], r.asked[i+1:]...)
			r.m.HandlerDone(r.now, e.Vol, e.Peer, e.Token, code)
			r.run()
			return true
		}
	}
	return false
}

// answered is the request that was completed for what the application waits for: another may have taken its place.
func (r *rig) answered(q *Request) *Request {
	for o := range r.done {
		if o.Off == q.Off && o.Kind == q.Kind {
			return o
		}
	}
	return q
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func (r *rig) lose() {
	r.m.LinkDown(r.now, 0, errors.New("cut"), false)
	r.run()
}

// A Primary that loses its peer, by exit code of fence-peer and by option (F01).
func TestFencePeerAfterALoss(t *testing.T) {
	const unknown, outdated, inconsistent = wire.DUnknown, wire.Outdated, wire.Inconsistent
	for _, c := range []struct {
		mode   string
		code   int
		peer   wire.Disk
		frozen bool // after the answer
		fresh  bool // a new generation was begun
	}{
		{"dont-care", 0, unknown, false, true}, // nobody is asked
		{"resource-only", 3, inconsistent, false, true},
		{"resource-only", 4, outdated, false, true},
		{"resource-only", 5, outdated, false, true},
		{"resource-only", 6, unknown, false, true},
		{"resource-only", 7, outdated, false, true},
		{"resource-only", 1, unknown, false, true},
		{"resource-only", -1, unknown, false, true},
		{"resource-and-stonith", 3, inconsistent, false, true},
		{"resource-and-stonith", 4, outdated, false, true},
		{"resource-and-stonith", 5, outdated, false, true},
		{"resource-and-stonith", 6, unknown, true, false},
		{"resource-and-stonith", 7, outdated, false, true},
		{"resource-and-stonith", 1, unknown, true, false},
		{"resource-and-stonith", 20, unknown, true, false},
		{"resource-and-stonith", -1, unknown, true, false},
	} {
		t.Run(fmt.Sprintf("%s %d", c.mode, c.code), func(t *testing.T) {
			r := connected(t, fenced(c.mode), 0, true).primary()
			before := r.m.vols[0].sup.Current
			w := r.submit(AppWrite, 0, 4096)
			r.finishDisk(nil)
			r.lose()
			stonith := c.mode == "resource-and-stonith"
			if v := r.m.View(); v.Fencing != stonith || (len(v.Questions) > 0) != (c.mode != "dont-care") {
				t.Fatalf("before the answer: %+v", v)
			}
			late, read := r.submit(AppWrite, 8192, 4096), r.submit(AppRead, 16384, 4096)
			r.finishDisk(nil)
			if got := r.completed(w); got == stonith {
				t.Fatalf("the write in flight is answered: %v", got)
			}
			if stonith && (r.m.vols[0].sup.Current != before || r.completed(late) || r.completed(read)) {
				t.Fatal("not frozen, or a new generation before the answer")
			}
			if asked := r.handler("fence-peer", c.code); asked != (c.mode != "dont-care") {
				t.Fatalf("fence-peer asked: %v", asked)
			}
			r.finishDisk(nil)
			v := r.m.View()
			if got := v.Volumes[0].Links[0].Disk; got != c.peer {
				t.Errorf("the peer's disk is %s, want %s", got, c.peer)
			}
			if got := r.m.vols[0].sup.Current != before; got != c.fresh {
				t.Errorf("a new generation: %v, want %v", got, c.fresh)
			}
			for name, q := range map[string]*Request{"in flight": w, "late": late, "read": read} {
				if r.completed(q) == c.frozen || r.completed(q) && r.done[q] != nil {
					t.Errorf("%s: answered %v, %v", name, r.completed(q), r.done[q])
				}
			}
			if v.Fencing != c.frozen {
				t.Errorf("suspended: %v", v.Fencing)
			}
			if r.m.vols[0].sup.Peers[0].OutDated != (c.peer == outdated || c.peer == inconsistent) {
				t.Error("the superblock does not remember what the peer is")
			}
		})
	}
}

// I/O that a handler's failure froze goes on by command, with a new generation, or with the peer, without one (F02).
func TestFrozenByFencing(t *testing.T) {
	freeze := func(t *testing.T) (*rig, *Request, uint64) {
		r := connected(t, fenced("resource-and-stonith"), 0, true).primary()
		before := r.m.vols[0].sup.Current
		w := r.submit(AppWrite, 0, 4096)
		r.finishDisk(nil)
		r.lose()
		r.handler("fence-peer", 77)
		r.m.Tick(r.now + 3600e9)
		r.run()
		if r.completed(w) || !r.m.View().Fencing || r.m.vols[0].sup.Current != before {
			t.Fatal("not frozen")
		}
		return r, w, before
	}
	t.Run("resume-io", func(t *testing.T) {
		r, w, before := freeze(t)
		r.m.Resume(r.now, nil)
		r.run()
		if !r.completed(w) || r.m.View().Fencing || r.m.vols[0].sup.Current == before {
			t.Fatal("it does not go on, or without a new generation")
		}
	})
	t.Run("the peer is back", func(t *testing.T) {
		r, w, before := freeze(t)
		r.link(fenced("resource-and-stonith"), FeatureRelaxedEpochs, true)
		if !r.completed(w) || r.m.View().Fencing || len(r.m.View().Questions) > 0 || r.m.vols[0].sup.Current != before {
			t.Fatalf("not as it was: %+v", r.m.View())
		}
		if l := r.m.vols[0].pv[0]; l.conn != wire.WFBitMapS {
			t.Fatalf("the write that the peer missed is not resynced: %s", l.conn)
		}
	})
	t.Run("a kernel peer is back", func(t *testing.T) {
		r, w, before := freeze(t)
		running := r.submit(AppWrite, 65536, 4096) // frozen at the door
		r.sent = nil
		r.link(fenced("resource-and-stonith"), 0, true)
		if l := r.m.vols[0].pv[0]; l.conn != wire.Connected || r.m.vols[0].sup.Current != before {
			t.Fatalf("%s, generation %x", l.conn, r.m.vols[0].sup.Current)
		}
		if r.completed(w) || r.completed(running) {
			t.Fatal("answered before the peer has it")
		}
		r.finishDisk(nil)
		for _, e := range r.sent {
			if e.Pkt.Cmd == wire.Data {
				must(t, r.ack(wire.WriteAck, &e.Pkt))
			}
		}
		if err, ok := r.done[r.answered(w)]; !ok || err != nil || !r.completed(running) {
			t.Fatalf("not answered: %v, %v", err, r.completed(running))
		}
	})
	t.Run("the answer of a handler comes when the peer is back", func(t *testing.T) {
		r := connected(t, fenced("resource-and-stonith"), 0, true).primary()
		r.lose()
		asked := r.asked[len(r.asked)-1]
		r.link(fenced("resource-and-stonith"), 0, true)
		r.m.HandlerDone(r.now, asked.Vol, asked.Peer, asked.Token, 4)
		r.run()
		if got := r.m.vols[0].pv[0].disk; got != wire.UpToDate {
			t.Fatalf("the peer's disk is %s", got)
		}
	})
	t.Run("secondary --force", func(t *testing.T) {
		r, w, before := freeze(t)
		late := r.submit(AppWrite, 8192, 4096)
		r.m.Demote(r.now, true, nil)
		r.run()
		if r.m.Role() != wire.Secondary || !errors.Is(r.done[w], ErrNotPrimary) || !errors.Is(r.done[late], ErrNotPrimary) {
			t.Fatalf("role %s, requests answered %v and %v", r.m.Role(), r.done[w], r.done[late])
		}
		if len(r.m.View().Questions) > 0 || r.m.vols[0].sup.Current != before&^1 {
			t.Fatal("a Secondary asks, or has a generation of its own")
		}
	})
}

// Before a promotion the handler is asked about a peer of which nobody knows what it does.
func TestFencePeerBeforeAPromotion(t *testing.T) {
	for _, c := range []struct {
		name  string
		mode  string
		good  bool // our data is known to be the newest
		code  int
		force bool
		want  error
		disk  wire.Disk // ours, after it
	}{
		{"dont-care asks nobody", "dont-care", true, 0, false, nil, wire.UpToDate},
		{"outdated", "resource-only", false, 4, false, nil, wire.UpToDate},
		{"inconsistent", "resource-only", false, 3, false, nil, wire.UpToDate},
		{"shot", "resource-and-stonith", false, 7, false, nil, wire.UpToDate},
		{"out of reach, and our data may be old", "resource-and-stonith", false, 5, false, ErrPeerUnknown, wire.Consistent},
		{"out of reach, and our data is good", "resource-and-stonith", true, 5, false, nil, wire.UpToDate},
		{"the peer is Primary", "resource-only", true, 6, false, ErrPeerPrimary, wire.Outdated},
		{"junk", "resource-only", true, 99, false, ErrPeerUnknown, wire.UpToDate},
		{"no handler", "resource-and-stonith", false, -1, false, ErrPeerUnknown, wire.Consistent},
		{"junk, forced", "resource-and-stonith", false, 99, true, nil, wire.UpToDate},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := newRig(t, fenced(c.mode))
			if got := r.m.vols[0].disk; c.mode != "dont-care" && got != wire.Consistent {
				t.Fatalf("attached %s: the peer may have newer data", got)
			}
			if c.good {
				r.m.vols[0].disk = wire.UpToDate
			}
			r.m.Promote(r.now, c.force, "cmd")
			r.run()
			if c.mode != "dont-care" && (r.m.Role() == wire.Primary || !r.m.View().Questions[0].Promotion) {
				t.Fatal("Primary before the answer")
			}
			if asked := r.handler("fence-peer", c.code); asked != (c.mode != "dont-care") {
				t.Fatalf("fence-peer asked: %v", asked)
			}
			if err := r.results["cmd"]; !errors.Is(err, c.want) || (c.want == nil) != (err == nil) {
				t.Fatalf("answer %v, want %v", err, c.want)
			}
			if (r.m.Role() == wire.Primary) != (c.want == nil) || r.m.vols[0].disk != c.disk {
				t.Fatalf("role %s, disk %s", r.m.Role(), r.m.vols[0].disk)
			}
			if len(r.m.View().Questions) > 0 || r.m.View().Fencing {
				t.Fatalf("questions are left: %+v", r.m.View().Questions)
			}
		})
	}
	t.Run("a peer that comes back meanwhile is asked itself", func(t *testing.T) {
		n := fenced("resource-and-stonith")
		r := newRig(t, n)
		r.m.Promote(r.now, false, "cmd")
		r.run()
		r.link(n, 0, true)
		if _, over := r.results["cmd"]; over {
			t.Fatalf("answered: %v", r.results["cmd"])
		}
		r.packet(wire.Packet{Cmd: wire.StateChgReply, Code: 1})
		if err, over := r.results["cmd"]; !over || err != nil || r.m.Role() != wire.Primary {
			t.Fatalf("answered %v %v, role %s", over, err, r.m.Role())
		}
	})
	t.Run("what was known is not asked again", func(t *testing.T) {
		r := newRig(t, fenced("resource-and-stonith"))
		r.m.vols[0].disk, r.m.vols[0].pv[0].disk = wire.UpToDate, wire.Outdated
		r.m.Promote(r.now, false, "cmd")
		r.run()
		if len(r.asked) > 0 || r.m.Role() != wire.Primary {
			t.Fatalf("asked %v, role %s", r.asked, r.m.Role())
		}
	})
}

// A peer is let go without a handler when it says that its data is old from then on (drbd-wire.md 26).
func TestDisconnectWithFencing(t *testing.T) {
	t.Run("the Primary asks its peer to", func(t *testing.T) {
		r := connected(t, fenced("resource-and-stonith"), 0, true).primary()
		r.m.Disconnect(r.now, 0, false, "cmd")
		r.run()
		q := r.last(wire.ConnStChgReq)
		if q.Mask != 0x1e1f0 || q.State != 0xa010 {
			t.Fatalf("asked %#x/%#x", q.Mask, q.State)
		}
		r.packet(wire.Packet{Cmd: wire.ConnStChgReply, Code: 1})
		if v := r.m.View(); r.results["cmd"] != nil || v.Peers[0].Conn != wire.StandAlone || v.Volumes[0].Links[0].Disk != wire.Outdated || v.Fencing {
			t.Fatalf("%v, %+v", r.results["cmd"], v)
		}
		if r.handler("fence-peer", 4) {
			t.Fatal("fence-peer was asked for a peer that is outdated")
		}
	})
	t.Run("a Secondary does so when it is refused", func(t *testing.T) {
		r := connected(t, fenced("resource-only"), 0, true)
		r.m.Disconnect(r.now, 0, false, "cmd")
		r.run()
		r.packet(wire.Packet{Cmd: wire.ConnStChgReply, Code: -7})
		q := r.last(wire.ConnStChgReq)
		if q.Mask != 0x1ff0 || q.State != 0xa10 {
			t.Fatalf("asked %#x/%#x", q.Mask, q.State)
		}
		r.packet(wire.Packet{Cmd: wire.ConnStChgReply, Code: 1})
		if v := r.m.View(); r.results["cmd"] != nil || v.Peers[0].Conn != wire.StandAlone || v.Volumes[0].Disk != wire.Outdated {
			t.Fatalf("%v, %+v", r.results["cmd"], v)
		}
	})
	t.Run("by force the handler is asked", func(t *testing.T) {
		r := connected(t, fenced("resource-and-stonith"), 0, true).primary()
		r.m.Disconnect(r.now, 0, true, "cmd")
		r.run()
		if !r.m.View().Fencing || !r.handler("fence-peer", 7) || r.m.View().Fencing {
			t.Fatalf("%+v", r.m.View())
		}
	})
}

// unfence-peer runs once the peer has everything again, on the node that fenced it or is Primary.
func TestUnfencePeer(t *testing.T) {
	n := fenced("resource-only")
	r := connected(t, n, 0, true)
	if len(r.asked) > 0 {
		t.Fatalf("a Secondary that fenced nobody ran %v", r.asked)
	}
	r.primary()
	if !r.handler("unfence-peer", 0) {
		t.Fatal("a Primary beside a good peer leaves what an earlier life may have left")
	}
	r.lose()
	if !r.handler("fence-peer", 4) {
		t.Fatal("fence-peer not asked")
	}
	r.m.Demote(r.now, false, nil)
	r.run()
	r.sent = nil
	r.link(n, 0, true)
	if r.m.vols[0].pv[0].conn != wire.Connected {
		if r.handler("unfence-peer", 0) {
			t.Fatal("unfenced in the middle of a resync")
		}
		r.packet(wire.Packet{Cmd: wire.CompressedBitmap})
	}
	if l := r.m.vols[0].pv[0]; l.conn == wire.Connected && !r.handler("unfence-peer", 0) {
		t.Fatal("the node that fenced does not unfence")
	}
}
