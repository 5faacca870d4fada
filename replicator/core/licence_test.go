package core

import (
	"errors"
	"slices"
	"testing"

	"github.com/hawser-ha/hawser/replicator/wire"
)

const (
	testTTL    = Now(3e9)
	testMargin = Now(100e6)
)

func coordinatedConfig(c *Config) {
	c.Coordinated, c.TTL, c.Margin, c.NodeID = true, testTTL, testMargin, 0
	c.Record = Record{Term: 5, Disks: map[int]uint64{0: ownDisk}}
	c.Peers[0].NodeID = 1
}

// coordinatedRig is a node whose disk is good and known, of a coordinated resource.
func coordinatedRig(t testing.TB, change func(*Config)) *rig {
	r := newRigWith(t, testNet(), func(c *Config) {
		coordinatedConfig(c)
		if change != nil {
			change(c)
		}
	})
	r.peerTerm = wire.TermBody{Term: 5, Holder: wire.NoHolder}
	return r
}

var us, them = map[int]uint64{0: ownDisk}, map[int]uint64{0: peerDisk}

func (r *rig) grant(g Grant) error {
	if g.Members == nil {
		g.Members = []map[int]uint64{nil}
	}
	delete(r.results, "grant")
	r.m.Grant(r.now, &g, "grant")
	r.run()
	err, ok := r.results["grant"]
	if !ok {
		r.t.Fatal("a grant was not answered")
	}
	return err
}

// leader is a licensed Primary of term 7 that is connected to its only peer; both are in sync.
func leader(t testing.TB, change func(*Config)) *rig {
	r := coordinatedRig(t, change)
	r.linkUp()
	must(t, r.grant(Grant{Term: 7, Seq: 10, Holder: Self, Until: r.now + testTTL, Self: us, Members: []map[int]uint64{them}}))
	r.primary()
	if v := r.m.View(); v.InSync || v.Licence.Expired || !v.Peers[0].Awaited {
		t.Fatalf("not a licensed Primary: %+v %+v", v, v.Licence)
	}
	return r
}

func (r *rig) linkUp() { r.link(testNet(), wire.FeatureTerm|FeatureRelaxedEpochs, true) }

func (r *rig) tick(d Now) {
	r.now += d
	r.m.Tick(r.now)
	r.run()
}

// promised answers the newest request for a promise.
func (r *rig) promised(d Now) {
	r.t.Helper()
	b := *r.last(wire.PromiseRequest).Ext.(*wire.PromiseBody)
	b.Duration = uint64(d)
	must(r.t, r.packet(wire.Packet{Cmd: wire.Promise, Ext: &b}))
}

// acked finishes a write on both disks.
func (r *rig) acked(q *Request) bool {
	for i := len(r.sent) - 1; i >= 0; i-- {
		if e := r.sent[i]; e.Pkt.Cmd == wire.Data && e.Pkt.Sector == uint64(q.Off)>>9 {
			must(r.t, r.ack(wire.WriteAck, &e.Pkt))
			break
		}
	}
	r.finishDisk(nil)
	return r.completed(q) && r.done[q] == nil
}

// Without a grant nobody is promoted, whatever the disks say.
func TestPromotionNeedsAGrant(t *testing.T) {
	for _, c := range []struct {
		rule string
		g    *Grant
		want error
	}{
		{"no grant", nil, ErrNoLicence},
		{"the peer holds the term", &Grant{Term: 7, Seq: 1, Holder: 0, Self: us}, ErrNoLicence},
		{"nobody holds it", &Grant{Term: 7, Seq: 1, Holder: Nobody, Self: us}, ErrNoLicence},
		{"not in the in-sync set", &Grant{Term: 7, Seq: 1, Holder: Self, Until: forever}, ErrNoLicence},
		{"with another disk", &Grant{Term: 7, Seq: 1, Holder: Self, Until: forever, Self: map[int]uint64{0: 9}}, ErrNoLicence},
		{"the lease is over", &Grant{Term: 7, Seq: 1, Holder: Self, Until: 1, Self: us, Members: []map[int]uint64{them}}, ErrNoLicence},
		{"alone in the set it needs no lease", &Grant{Term: 7, Seq: 1, Holder: Self, Self: us}, nil},
		{"with a lease", &Grant{Term: 7, Seq: 1, Holder: Self, Until: forever, Self: us, Members: []map[int]uint64{them}}, nil},
		{"beside the holder", &Grant{Term: 7, Seq: 1, Holder: 0, CoPrimary: true, Self: us, Members: []map[int]uint64{them}}, nil},
	} {
		t.Run(c.rule, func(t *testing.T) {
			r := coordinatedRig(t, nil)
			if c.g != nil {
				must(t, r.grant(*c.g))
			}
			for _, force := range []bool{false, true} {
				r.m.Promote(r.now, force, "cmd")
				r.run()
				if err := r.results["cmd"]; !errors.Is(err, c.want) || c.want == nil && err != nil {
					t.Errorf("force %v: %v, want %v", force, err, c.want)
				}
			}
		})
	}
}

func TestGrantsAreCompared(t *testing.T) {
	r := coordinatedRig(t, nil)
	must(t, r.grant(Grant{Term: 7, Seq: 10, Holder: Self, Until: r.now + 100, Self: us}))
	for _, g := range []Grant{{Term: 6, Seq: 99}, {Term: 7, Seq: 9, Holder: Self}} {
		if err := r.grant(g); !errors.Is(err, ErrStale) {
			t.Errorf("%+v: %v, want %v", g, err, ErrStale)
		}
	}
	must(t, r.grant(Grant{Term: 7, Seq: 10, Holder: Self, Until: r.now + 50, Self: us}))
	if got := r.m.View().Licence.Lease; got != r.now+100 {
		t.Errorf("the lease ends at %d: the later end counts, whatever came last", got)
	}
	must(t, r.grant(Grant{Term: 8, Seq: 10, Holder: 0}))
	if w := r.m.View().Licence; w.Term != 8 || w.Holder != 0 || w.Lease != 0 {
		t.Errorf("after a higher term: %+v", w)
	}
}

// A term is durable before a grant of it is answered, before it allows a promotion, and before anything that a peer sends after it
// is looked at.
func TestTermsAreDurableFirst(t *testing.T) {
	t.Run("grant", func(t *testing.T) {
		r := coordinatedRig(t, nil)
		r.late = true
		g := &Grant{Term: 7, Seq: 1, Holder: Self, Self: us, Members: []map[int]uint64{nil}}
		r.m.Grant(r.now, g, "grant")
		r.m.Promote(r.now, false, "cmd")
		r.run()
		if _, ok := r.results["grant"]; ok || !errors.Is(r.results["cmd"], ErrNoLicence) {
			t.Fatalf("answered %v, promoted %v before the term was durable", ok, r.results["cmd"])
		}
		for _, e := range r.records {
			r.m.RecordDone(r.now, e.Token, nil)
		}
		r.run()
		if err, ok := r.results["grant"]; !ok || err != nil {
			t.Fatalf("not answered: %v", err)
		}
	})
	t.Run("a state file that cannot be written", func(t *testing.T) {
		r := coordinatedRig(t, nil)
		r.late = true
		r.m.Grant(r.now, &Grant{Term: 7, Seq: 1, Holder: Self, Self: us, Members: []map[int]uint64{nil}}, "grant")
		r.run()
		full := errors.New("no space")
		for _, e := range r.records {
			r.m.RecordDone(r.now, e.Token, full)
		}
		r.run()
		r.m.Promote(r.now, false, "cmd")
		r.run()
		if !errors.Is(r.results["grant"], full) || !errors.Is(r.results["cmd"], ErrNoLicence) {
			t.Fatalf("grant %v, promotion %v", r.results["grant"], r.results["cmd"])
		}
	})
	t.Run("a peer's writes", func(t *testing.T) {
		r := coordinatedRig(t, nil)
		r.late = true
		r.peerTerm = wire.TermBody{Term: 7, Holder: 1, Primary: true}
		r.linkUp()
		if r.m.View().Peers[0].Conn == wire.Connected {
			t.Fatal("what came after the term was handled before it was durable")
		}
		rec := r.records[len(r.records)-1]
		if got := rec.Cmd.(*Record); got.Term != 7 || got.Disks[0] != ownDisk {
			t.Fatalf("record: %+v", got)
		}
		r.m.RecordDone(r.now, rec.Token, nil)
		r.run()
		if r.m.View().Peers[0].Conn != wire.Connected {
			t.Fatal("it does not go on")
		}
	})
}

// A node that has seen a higher term refuses a Primary of a lower one: at the handshake, its wish, its writes and its reads.
func TestLowerTermsAreRefused(t *testing.T) {
	t.Run("at the handshake, a Primary", func(t *testing.T) {
		r := coordinatedRig(t, nil)
		must(t, r.grant(Grant{Term: 7, Seq: 1, Holder: Nobody}))
		r.peerTerm.Primary = true
		r.linkUp()
		if !r.down {
			t.Fatal("a Primary of term 5 is accepted where 7 is known")
		}
	})
	t.Run("at the handshake, a Secondary is told", func(t *testing.T) {
		r := coordinatedRig(t, nil)
		must(t, r.grant(Grant{Term: 7, Seq: 1, Holder: Nobody}))
		r.linkUp()
		if b := r.last(wire.Term).Ext.(*wire.TermBody); r.down || b.Term != 7 || b.Primary {
			t.Fatalf("told %+v, closed: %v", b, r.down)
		}
	})
	cmds := func(t *testing.T) *rig {
		r := coordinatedRig(t, nil)
		r.linkUp()
		must(t, r.grant(Grant{Term: 7, Seq: 1, Holder: Nobody}))
		return r
	}
	t.Run("a wish to be Primary", func(t *testing.T) {
		r := cmds(t)
		r.packet(wire.Packet{Cmd: wire.StateChgReq, Mask: maskRole, State: wire.State(wire.Primary)})
		if got := r.last(wire.StateChgReply).Code; got != codeRefused {
			t.Fatalf("answer %d", got)
		}
	})
	t.Run("a write", func(t *testing.T) {
		r := cmds(t)
		must(t, r.packet(wire.Packet{Cmd: wire.Data, Size: 4096, Seq: 1, Flags: wire.FlagSendWriteAck}))
		if len(r.disk) > 0 || !r.down {
			t.Fatalf("executed %d, closed: %v", len(r.disk), r.down)
		}
	})
	t.Run("a read", func(t *testing.T) {
		r := cmds(t)
		must(t, r.packet(wire.Packet{Cmd: wire.DataRequest, Size: 4096}))
		if len(r.disk) > 0 || !r.down {
			t.Fatalf("executed %d, closed: %v", len(r.disk), r.down)
		}
	})
	t.Run("after P_TERM a write is executed", func(t *testing.T) {
		r := cmds(t)
		must(t, r.packet(wire.Packet{Cmd: wire.Term, Ext: &wire.TermBody{Term: 7, Holder: 1, Primary: true}}))
		must(t, r.packet(wire.Packet{Cmd: wire.Data, Size: 4096, Seq: 1, Flags: wire.FlagSendWriteAck}))
		if len(r.disk) != 1 || r.down {
			t.Fatalf("executed %d, closed: %v", len(r.disk), r.down)
		}
	})
}

// A Primary that hears of a higher term fails what waits, answers nothing more, and is Secondary.
func TestDeposed(t *testing.T) {
	for name, hear := range map[string]func(r *rig){
		"by a grant": func(r *rig) {
			r.m.Grant(r.now, &Grant{Term: 8, Seq: 11, Holder: 0, Members: []map[int]uint64{them}}, nil)
		},
		"by the peer": func(r *rig) {
			r.packet(wire.Packet{Cmd: wire.Term, Ext: &wire.TermBody{Term: 8, Holder: 1, Primary: true}})
		},
		"by command": func(r *rig) { r.m.Depose(r.now, 7, "deposed") },
	} {
		t.Run(name, func(t *testing.T) {
			r := leader(t, nil)
			before := r.m.vols[0].sup.Current
			onDisk := r.submit(AppWrite, 0, 4096)
			atPeer := r.submit(AppWrite, 65536, 4096)
			for _, q := range slices.Clone(r.disk) { // one is done here, and waits for the peer
				if q == atPeer {
					r.disk = slices.DeleteFunc(r.disk, func(o *Request) bool { return o == q })
					r.m.DiskDone(r.now, q, nil)
					r.run()
				}
			}
			hear(r)
			r.run()
			if err := r.done[atPeer]; !errors.Is(err, ErrDeposed) {
				t.Errorf("what waits for the peer: %v", err)
			}
			if r.completed(onDisk) {
				t.Error("answered while the disk may still write it")
			}
			late := r.submit(AppWrite, 8192, 4096)
			if !errors.Is(r.done[late], ErrNotPrimary) {
				t.Errorf("a write after it: %v", r.done[late])
			}
			r.finishDisk(nil)
			if err := r.done[onDisk]; !errors.Is(err, ErrDeposed) {
				t.Errorf("what was on the disk: %v", err)
			}
			if r.m.Role() != wire.Secondary || r.m.vols[0].sup.Current != before&^1 {
				t.Errorf("role %s, a new generation: %v", r.m.Role(), r.m.vols[0].sup.Current != before&^1)
			}
			if err, ok := r.results["deposed"]; name == "by command" && (!ok || err != nil) {
				t.Errorf("the command: answered %v, %v", ok, err)
			}
		})
	}
	t.Run("by an older word", func(t *testing.T) {
		r := leader(t, nil)
		r.m.Depose(r.now, 6, "deposed")
		r.run()
		if !errors.Is(r.results["deposed"], ErrStale) || r.m.Role() != wire.Primary {
			t.Fatalf("%v, %s", r.results["deposed"], r.m.Role())
		}
	})
	t.Run("not by a new term of our own", func(t *testing.T) {
		r := leader(t, nil)
		r.packet(wire.Packet{Cmd: wire.Term, Ext: &wire.TermBody{Term: 8, Holder: 0}})
		if w := r.m.View().Licence; r.m.Role() != wire.Primary || w.Term != 8 || w.Expired {
			t.Fatalf("%s, %+v", r.m.Role(), w)
		}
	})
}

// When the licence runs out nothing is admitted and nothing answered, and the time that counts is that of the event: after a stop
// of the process the timer need not come first.
func TestLicenceRunsOut(t *testing.T) {
	for _, fail := range []bool{false, true} {
		t.Run(map[bool]string{false: "suspend-io", true: "io-error"}[fail], func(t *testing.T) {
			r := leader(t, func(c *Config) { c.FailUnlicensed = fail })
			w, rd := r.submit(AppWrite, 0, 4096), r.submit(AppRead, 65536, 4096)
			r.now += testTTL // the process was stopped
			if r.acked(w) {
				t.Fatal("a write is acknowledged without a licence")
			}
			late := r.submit(AppRead, 131072, 4096)
			if !r.m.View().Licence.Expired {
				t.Fatal("it is not said")
			}
			for name, q := range map[string]*Request{"write": w, "read": rd, "late read": late} {
				if fail && !errors.Is(r.done[q], ErrNoLicence) || !fail && r.completed(q) {
					t.Errorf("%s: answered %v, %v", name, r.completed(q), r.done[q])
				}
			}
			must(t, r.grant(Grant{Term: 7, Seq: 10, Holder: Self, Until: r.now + testTTL, Self: us, Members: []map[int]uint64{them}}))
			r.finishDisk(nil)
			again := r.submit(AppRead, 196608, 4096)
			r.finishDisk(nil)
			for name, q := range map[string]*Request{"write": w, "read": rd, "late read": late, "new read": again} {
				if fail && q != again {
					continue
				}
				if err, ok := r.done[q]; !ok || err != nil {
					t.Errorf("%s, licensed again: answered %v, %v", name, ok, err)
				}
			}
		})
	}
	t.Run("the timer tells it", func(t *testing.T) {
		r := leader(t, nil)
		for !r.m.View().Licence.Expired {
			d := r.m.Deadline()
			if d == 0 || d > r.now+testTTL {
				t.Fatalf("the next look is at %d", d)
			}
			r.now = d
			r.tick(0)
		}
		if w := r.m.View().Licence; r.now < w.Lease || r.now > w.Lease+1 {
			t.Fatalf("said at %d, the lease ended at %d", r.now, w.Lease)
		}
	})
}

// Without etcd the promises of all others in the in-sync set are as good as a lease.
func TestFailsafe(t *testing.T) {
	r := leader(t, nil)
	r.m.Tick(r.now)
	r.run()
	// primary() forgets what was sent at the promotion: ask again.
	r.tick(testTTL / 3)
	sentAt := r.now
	r.now += 200e6 // on the way
	r.promised(testTTL)
	w := r.m.View().Licence
	if want := sentAt + testTTL - testMargin; w.Failsafe != want || w.Until != want {
		t.Fatalf("failsafe until %d, licence until %d, want %d: it counts from before the request, less the margin", w.Failsafe, w.Until, want)
	}
	for range 6 { // long after the lease
		r.tick(testTTL / 3)
		r.promised(testTTL)
	}
	if q := r.submit(AppWrite, 0, 4096); !r.acked(q) {
		t.Fatal("promised, and yet not answered")
	}
	r.tick(testTTL / 3)
	r.promised(0) // refused
	r.tick(testTTL)
	if q := r.submit(AppWrite, 8192, 4096); r.acked(q) || !r.m.View().Licence.Expired {
		t.Fatal("without a promise and a lease")
	}
	r.sent = nil
	r.m.Demote(r.now, true, nil)
	r.run()
	if b := r.last(wire.PromiseRequest).Ext.(*wire.PromiseBody); b.Duration != 0 {
		t.Fatalf("the promise is not given back: %+v", b)
	}
}

// What a member promises binds it, also after a restart, and a candidate promises nothing.
func TestPromisesBind(t *testing.T) {
	ask := func(r *rig, term uint64, d Now) Now {
		r.sent = nil
		must(t, r.packet(wire.Packet{Cmd: wire.PromiseRequest, Ext: &wire.PromiseBody{ID: 77, Term: term, Duration: uint64(d)}}))
		b := r.last(wire.Promise).Ext.(*wire.PromiseBody)
		if b.ID != 77 || b.Term != term {
			t.Fatalf("answer %+v", b)
		}
		return Now(b.Duration)
	}
	r := coordinatedRig(t, nil)
	r.peerTerm = wire.TermBody{Term: 7, Holder: 1, Primary: true}
	r.linkUp()
	if d := ask(r, 6, testTTL); d != 0 {
		t.Errorf("promised %d to a lower term", d)
	}
	if d := ask(r, 8, testTTL); d != 0 {
		t.Errorf("promised %d to a term that is not durable here", d)
	}
	if d := ask(r, 7, 100*testTTL); d != testTTL {
		t.Errorf("promised %d, at most %d", d, testTTL)
	}
	if b := r.m.Candidacy(r.now+1e9, 2e9, false); b != testTTL-1e9 {
		t.Errorf("bound for %d", b)
	}
	r.now += 1e9
	if d := ask(r, 7, testTTL); d != testTTL {
		t.Error("a candidate that was bound stops promising: the primary has lost its etcd only")
	}
	must(t, r.packet(wire.Packet{Cmd: wire.PromiseRequest, Ext: &wire.PromiseBody{ID: 78, Term: 7}}))
	if b := r.m.Candidacy(r.now, 2e9, false); b != 0 {
		t.Errorf("bound for %d by a promise that was given back", b)
	}
	if d := ask(r, 7, testTTL); d != 0 {
		t.Errorf("a candidate promises %d", d)
	}
	r.now += 2e9
	if d := ask(r, 7, testTTL); d != testTTL {
		t.Errorf("after the candidacy %d is promised", d)
	}
	if b := r.m.Candidacy(r.now, 2e9, true); b != 0 {
		t.Errorf("bound for %d to a primary that is dead", b)
	}

	r = coordinatedRig(t, func(c *Config) { c.Bound = 1e9 + testTTL })
	if b := r.m.Candidacy(r.now+1, 0, false); b != testTTL-1 {
		t.Errorf("after a restart bound for %d", b)
	}
	if b := r.m.Candidacy(r.now+testTTL, 0, false); b != 0 {
		t.Errorf("later bound for %d", b)
	}
}

// A write is acknowledged when everybody in the in-sync set has it, or was taken out by the arbiter.
func TestInSyncQuestion(t *testing.T) {
	lost := func(t *testing.T) (*rig, *Request) {
		r := leader(t, nil)
		w := r.submit(AppWrite, 0, 4096)
		r.finishDisk(nil)
		r.lose()
		if v := r.m.View(); !v.InSync || len(v.Questions) != 1 || v.Questions[0].Peer != 0 || v.Questions[0].Seq != 10 {
			t.Fatalf("no question: %+v", v)
		}
		if r.completed(w) {
			t.Fatal("acknowledged, and the peer does not have it")
		}
		return r, w
	}
	alone := func(r *rig, seq, answers uint64, members map[int]uint64) error {
		return r.grant(Grant{Term: 7, Seq: seq, Answers: answers, Holder: Self, Until: r.now + testTTL, Self: us, Members: []map[int]uint64{members}})
	}
	t.Run("answered", func(t *testing.T) {
		r, w := lost(t)
		before := r.m.vols[0].sup.Current
		read, dirty, late := r.submit(AppRead, 65536, 4096), r.submit(AppRead, 0, 4096), r.submit(AppWrite, 8192, 4096)
		r.finishDisk(nil)
		if !r.completed(read) || r.completed(dirty) || r.completed(late) {
			t.Fatalf("read %v, read of what is not acknowledged %v, write %v", r.completed(read), r.completed(dirty), r.completed(late))
		}
		id := r.m.View().Questions[0].ID
		for _, g := range []struct {
			why          string
			seq, answers uint64
			members      map[int]uint64
		}{
			{"a renewal", 10, 0, them},
			{"still a member", 11, id, them},
			{"begun before the question", 12, id - 1, nil},
		} {
			must(t, alone(r, g.seq, g.answers, g.members))
			if r.completed(w) || r.m.vols[0].sup.Current != before || !r.m.View().InSync {
				t.Fatalf("%s is taken for an answer", g.why)
			}
		}
		must(t, alone(r, 13, id, nil))
		r.finishDisk(nil)
		if r.m.View().InSync || r.m.vols[0].sup.Current == before {
			t.Fatalf("it does not go on, or in the same generation: %+v", r.m.View())
		}
		for name, q := range map[string]*Request{"write": w, "read": dirty, "late write": late} {
			if err, ok := r.done[q]; !ok || err != nil {
				t.Errorf("%s: answered %v, %v", name, ok, err)
			}
		}
	})
	t.Run("the peer is back and has everything", func(t *testing.T) {
		r, w := lost(t)
		before := r.m.vols[0].sup.Current
		r.m.vols[0].pv[0].bm.ClearAll() // as after a resync
		r.peerTerm = wire.TermBody{Term: 7, Holder: 0}
		r.linkUp()
		if v := r.m.View(); v.InSync || len(v.Questions) > 0 || !r.completed(w) || r.m.vols[0].sup.Current != before {
			t.Fatalf("%+v", v)
		}
	})
	t.Run("a peer that comes back is not in sync before it is resynced", func(t *testing.T) {
		r, w := lost(t)
		r.peerTerm = wire.TermBody{Term: 7, Holder: 0}
		r.linkUp()
		if v := r.m.View(); !v.InSync || r.completed(w) {
			t.Fatalf("%s, %+v", v.Volumes[0].Links[0].Conn, v)
		}
	})
	t.Run("a disk that the peer does not remember", func(t *testing.T) {
		r, w := lost(t)
		r.m.vols[0].pv[0].bm.ClearAll()
		r.peerTerm, r.peerUnvouched = wire.TermBody{Term: 7, Holder: 0}, true
		r.linkUp()
		if r.completed(w) {
			t.Fatal("counts as in sync")
		}
		must(t, r.packet(wire.Packet{Cmd: wire.DiskID, Ext: &wire.DiskIDBody{Device: peerDisk, Vouched: true}}))
		if !r.completed(w) {
			t.Fatal("does not count when it is vouched for")
		}
	})
	t.Run("another disk than the in-sync set names", func(t *testing.T) {
		r, w := lost(t)
		r.m.vols[0].pv[0].bm.ClearAll()
		r.peerTerm = wire.TermBody{Term: 7, Holder: 0}
		r.peerDevice = 0xb2
		r.linkUp()
		if v := r.m.View(); r.completed(w) || !v.InSync {
			t.Fatalf("%+v", v)
		}
		must(t, alone(r, 11, v(r), nil))
		if v := r.m.View(); !r.completed(w) || !v.Peers[0].Awaited || v.Peers[0].Member {
			t.Fatalf("when the old disk is out of the set the new one is no candidate: %+v", v.Peers[0])
		}
	})
	t.Run("our own disk", func(t *testing.T) {
		r := leader(t, nil)
		w := r.submit(AppWrite, 0, 4096)
		must(t, r.ack(wire.WriteAck, r.last(wire.Data)))
		r.finishDisk(errors.New("bad sector"))
		if v := r.m.View(); r.completed(w) || len(v.Questions) != 1 || v.Questions[0].Peer != -1 {
			t.Fatalf("answered %v, %+v", r.completed(w), v.Questions)
		}
		must(t, r.grant(Grant{Term: 7, Seq: 11, Answers: v(r), Holder: Self, Until: r.now + testTTL, Members: []map[int]uint64{them}}))
		if err, ok := r.done[w]; !ok || err != nil || r.m.View().InSync {
			t.Fatalf("answered %v, %v", ok, err)
		}
	})
	t.Run("a write that the peer could not do", func(t *testing.T) {
		r := leader(t, nil)
		w := r.submit(AppWrite, 0, 4096)
		r.finishDisk(nil)
		must(t, r.ack(wire.NegAck, r.last(wire.Data)))
		if v := r.m.View(); r.completed(w) || len(v.Questions) != 1 {
			t.Fatalf("answered %v, %+v", r.completed(w), v.Questions)
		}
		must(t, alone(r, 11, v(r), nil))
		if !r.completed(w) || !r.down {
			t.Fatalf("answered %v; the peer is to be resynced: %v", r.completed(w), r.down)
		}
	})
	t.Run("lost before the promotion", func(t *testing.T) {
		r := coordinatedRig(t, nil)
		before := r.m.vols[0].sup.Current
		must(t, alone(r, 10, 0, them))
		r.primary()
		w := r.submit(AppWrite, 0, 4096)
		r.finishDisk(nil)
		if r.completed(w) || r.m.vols[0].sup.Current&^1 != before {
			t.Fatal("a member that is away is not waited for, or a generation is begun without an answer")
		}
		must(t, alone(r, 11, v(r), nil))
		r.finishDisk(nil)
		if !r.completed(w) || r.m.vols[0].sup.Current&^1 == before {
			t.Fatal("after the answer it does not go on in a new generation")
		}
	})
}

// v is the newest question.
func v(r *rig) uint64 {
	q := r.m.View().Questions
	return q[len(q)-1].ID
}

// A promise to a second primary keeps the holder from going on without it.
func TestQuestionAboutACoPrimary(t *testing.T) {
	r := leader(t, nil)
	p := r.m.peers[0]
	p.cfg.Net.TwoPrimaries, p.twoPrim, p.leads = true, true, true
	must(t, r.packet(wire.Packet{Cmd: wire.PromiseRequest, Ext: &wire.PromiseBody{ID: 1, Term: 7, Duration: uint64(testTTL)}}))
	until := r.now + testTTL
	w := r.submit(AppWrite, 0, 4096)
	r.finishDisk(nil)
	r.now += 1e9
	r.lose()
	must(t, r.grant(Grant{Term: 7, Seq: 11, Answers: v(r), Holder: Self, Until: r.now + 10*testTTL, Self: us}))
	if q := r.m.View().Questions; len(q) != 1 || q[0].NotBefore != until || r.completed(w) {
		t.Fatalf("%+v", q)
	}
	if d := r.m.Deadline(); d > until || d == 0 {
		t.Fatalf("the next look is at %d, after %d", d, until)
	}
	r.now = until
	r.tick(0)
	if !r.completed(w) || len(r.m.View().Questions) > 0 {
		t.Fatal("it does not go on when the promise is over")
	}
}

// A new disk, or one whose state file is gone, is remembered when a Primary of the newest term has it in sync.
func TestVouching(t *testing.T) {
	unknown := func(c *Config) { c.Record = Record{} }
	r := coordinatedRig(t, unknown)
	if !r.m.View().Volumes[0].Unvouched {
		t.Fatal("a disk that nobody remembers is vouched for")
	}
	r.peerTerm = wire.TermBody{Term: 7, Holder: 1}
	r.linkUp()
	if !r.m.View().Volumes[0].Unvouched {
		t.Fatal("vouched for beside a Secondary")
	}
	r.packet(wire.Packet{Cmd: wire.Term, Ext: &wire.TermBody{Term: 7, Holder: 1, Primary: true}})
	r.sent = nil
	r.packet(wire.Packet{Cmd: wire.StateReport, State: wire.MakeState(wire.Primary, wire.Secondary, wire.Connected, wire.UpToDate, wire.UpToDate, 0)})
	if r.m.View().Volumes[0].Unvouched || !r.last(wire.DiskID).Ext.(*wire.DiskIDBody).Vouched {
		t.Fatal("not vouched for, or not told")
	}
	if rec := r.records[len(r.records)-1].Cmd.(*Record); rec.Term != 7 || rec.Disks[0] != ownDisk {
		t.Fatalf("remembered: %+v", rec)
	}

	r = coordinatedRig(t, unknown)
	must(t, r.grant(Grant{Term: 7, Seq: 1, Holder: Self, Self: us}))
	if !r.m.View().Volumes[0].Unvouched {
		t.Fatal("a grant alone vouches")
	}
	r.primary()
	if rec := r.records[len(r.records)-1].Cmd.(*Record); r.m.View().Volumes[0].Unvouched || rec.Disks[0] != ownDisk {
		t.Fatal("the first Primary does not remember its disk")
	}
}

// A peer without terms, a kernel for instance, gets no packet of ours, and counts with the lease alone.
func TestPeerWithoutTerms(t *testing.T) {
	r := coordinatedRig(t, nil)
	r.link(testNet(), 0, true)
	must(t, r.grant(Grant{Term: 7, Seq: 10, Holder: Self, Until: r.now + testTTL, Self: us, Members: []map[int]uint64{them}}))
	r.primary()
	r.tick(testTTL / 2)
	for _, e := range r.sent {
		if c := e.Pkt.Cmd; c >= wire.Term && c <= wire.Promise {
			t.Errorf("%s is sent to a peer that does not know it", c)
		}
	}
	if v := r.m.View(); v.Peers[0].Terms || !v.Peers[0].Awaited || v.Licence.Failsafe != 0 {
		t.Errorf("%+v %+v", v.Peers[0], v.Licence)
	}
	if q := r.submit(AppWrite, 0, 4096); !r.acked(q) {
		t.Error("not answered")
	}
}

// The data path allocates nothing for licences.
func TestLicensedWritesAllocateNothing(t *testing.T) {
	r := leader(t, nil)
	r.keep = false
	one := func() {
		q := r.m.NewRequest(AppWrite)
		q.Off, q.Len = 4096, 4096
		r.m.Submit(r.now, q)
		r.run()
		pkt := r.last(wire.Data)
		must(t, r.ack(wire.WriteAck, pkt))
		d := r.disk[0]
		r.disk = r.disk[:0]
		r.m.DiskDone(r.now, d, nil)
		r.run()
		r.sent = r.sent[:0]
		r.m.closeEpoch(r.m.peers[0])
		r.m.sendBarrier(r.m.peers[0])
		r.run()
		b := r.last(wire.Barrier)
		must(t, r.packet(wire.Packet{Cmd: wire.BarrierAck, Barrier: b.Barrier, SetSize: 1}))
		r.sent = r.sent[:0]
	}
	for range 64 {
		one()
	}
	if n := testing.AllocsPerRun(200, one); n > 0 {
		t.Errorf("%v allocations for a write", n)
	}
}
