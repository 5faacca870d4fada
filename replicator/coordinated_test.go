package replicator

import (
	"errors"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/hawser-ha/hawser/replicator/control"
	"github.com/hawser-ha/hawser/replicator/export"
)

const testTTL = 1500 * time.Millisecond

// arbiter plays the agents and etcd for two nodes: it knows who holds the term and who is in sync.
type arbiter struct {
	t     *testing.T
	nodes []*node
	term  uint64
	seq   uint64
	set   []control.Member
	who   string
}

// memberOf is a node as the in-sync set names it.
func memberOf(n *node) control.Member {
	m := control.Member{Node: n.def.Node, Disks: map[int]control.UUID{}}
	for _, v := range n.Status().Volumes {
		m.Disks[v.Number] = v.GI.DeviceUUID
	}
	return m
}

// grant tells a node how things are, with a lease of so much for the holder.
func (a *arbiter) grant(n *node, lease time.Duration, answers uint64) error {
	g := &control.Grant{Term: a.term, Seq: a.seq, InSync: a.set, Holder: a.who, Answers: answers}
	if n.def.Node == a.who {
		g.Until = int64(now()) + int64(lease)
	}
	return n.Grant(ctxFor(a.t), g)
}

// coordinatedPair are two nodes in sync, a licensed and Primary.
func coordinatedPair(t *testing.T, lease time.Duration) (a, b *node, arb *arbiter) {
	t.Helper()
	da, db := pairDefinitions(t, nil)
	nodes := make([]*node, 0, 2)
	for _, d := range []*control.Definition{&da, &db} {
		d.Coordination, d.TTL, d.Margin = control.CoordinationEtcd, testTTL, 100*time.Millisecond
		createMD(t, d)
		n := startOpts(t, *d, Options{StateDir: t.TempDir()})
		must(t, n.Up(ctxFor(t)))
		nodes = append(nodes, n)
	}
	a, b = nodes[0], nodes[1]
	for _, n := range nodes {
		n.until(t, "connection", func(s *control.Status) bool { return s.Peers[0].Connection == "Connected" })
		if s := n.Status(); !s.Volumes[0].Unvouched || !s.Peers[0].TermEnforced || s.Coordination != control.CoordinationEtcd {
			t.Fatalf("a new node: %+v", s)
		}
	}
	if err := a.Promote(ctxFor(t), true); !errors.Is(err, control.NoLicence) {
		t.Fatalf("promotion without a grant: %v, want %v", err, control.NoLicence)
	}
	arb = &arbiter{t: t, nodes: nodes, term: 7, seq: 10, who: "a", set: []control.Member{memberOf(a)}}
	must(t, arb.grant(a, lease, 0))
	must(t, a.Promote(ctxFor(t), true))
	a.until(t, "candidate", func(s *control.Status) bool { return len(s.Write.Candidates) > 0 })
	if c := a.Status().Write.Candidates; len(c) != 1 || !c[0].Same(memberOf(b)) {
		t.Fatalf("candidates %v, want %v", c, memberOf(b))
	}
	arb.set, arb.seq = append(arb.set, memberOf(b)), 11
	for _, n := range nodes {
		must(t, arb.grant(n, lease, 0))
	}
	return a, b, arb
}

func suspended(why string) func(*control.Status) bool {
	return func(s *control.Status) bool { return slices.Contains(s.Suspended, why) }
}

// writeLater submits a write and gives its outcome later.
func (c *client) writeLater(off int64, data []byte) <-chan error {
	done := make(chan error, 1)
	go func() { done <- c.do(export.Write, off, data, false) }()
	return done
}

// TestLostPeerIsAQuestion: the in-sync set decides who is waited for, and only a transaction of the agent ends the waiting.
func TestLostPeerIsAQuestion(t *testing.T) {
	a, b, arb := coordinatedPair(t, time.Minute)
	events := a.Subscribe(ctxFor(t), control.FromStart)
	c := a.open(t)
	c.write(0, fill(1, 4096))
	b.stop(t)
	a.until(t, "question", suspended("insync"))
	q := awaitQuestion(t, events, "opened")
	if q.Peer != "b" || q.Seq != 11 {
		t.Fatalf("question %+v", q)
	}
	done := c.writeLater(4096, fill(2, 4096))
	c.expect(0, fill(1, 4096)) // what was acknowledged can be read
	a.until(t, "waiting write", func(s *control.Status) bool { return s.Volumes[0].UpperPending == 1 })
	select {
	case err := <-done:
		t.Fatalf("acknowledged without b: %v", err)
	default:
	}
	arb.set, arb.seq = arb.set[:1], 12
	must(t, arb.grant(a, time.Minute, q.ID))
	must(t, <-done)
	if s := a.Status(); len(s.Suspended) > 0 || len(s.Questions) > 0 || s.Write.Right != control.RightUnlimited {
		t.Fatalf("after the answer: %v %v %+v", s.Suspended, s.Questions, s.Write)
	}
	// b comes back, and does so with what it remembers.
	n := startOpts(t, b.def, b.opts)
	if s := n.Status(); s.Write.Term != 7 || s.Write.Bound == 0 {
		t.Fatalf("a restarted node: %+v", s.Write)
	}
	must(t, n.Up(ctxFor(t)))
	a.until(t, "candidate", func(s *control.Status) bool { return len(s.Write.Candidates) == 1 })
	if n.Status().Volumes[0].Unvouched {
		t.Fatal("the disk of a node that remembers it is not known")
	}
}

// TestForgottenTerm: without its state file a node's disk is not in sync before a Primary says so, though it has everything.
func TestForgottenTerm(t *testing.T) {
	a, b, _ := coordinatedPair(t, time.Minute)
	path := recordPath(b.opts.StateDir, "r0")
	rec, found, err := readRecord(path)
	if err != nil || !found || rec.Term != 7 || rec.Disks[0] != b.Status().Volumes[0].GI.DeviceUUID || rec.TTL != testTTL {
		t.Fatalf("state file: %+v, %v, %v", rec, found, err)
	}
	b.stop(t)
	a.until(t, "question", suspended("insync"))
	must(t, os.WriteFile(path, []byte("{\n"), 0o600))
	n := startOpts(t, b.def, b.opts)
	must(t, n.Attach(ctxFor(t), control.All))
	if s := n.Status(); !s.Volumes[0].Unvouched || s.Write.Term != 0 {
		t.Fatalf("%+v", s.Write)
	}
	must(t, n.Connect(ctxFor(t), "", false))
	a.until(t, "flow", func(s *control.Status) bool { return len(s.Suspended) == 0 })
	if rec, _, err := readRecord(path); err != nil || rec.Term != 7 || rec.Disks[0] != memberOf(n).Disks[0] {
		t.Fatalf("in sync without being remembered: %+v, %v", rec, err)
	}
}

// TestLicence: a lease that runs out freezes, promises of the peers are as good, and a higher term ends it all.
func TestLicence(t *testing.T) {
	a, b, arb := coordinatedPair(t, time.Second)
	c := a.open(t)
	a.until(t, "promise", func(s *control.Status) bool { return s.Write.Failsafe > s.Write.Now })
	if b := b.Status().Write.Bound; b == 0 {
		t.Fatal("the peer has promised and is not bound")
	}
	ans, err := b.Candidacy(ctxFor(t), control.Candidacy{For: testTTL})
	if err != nil || ans.Bound <= 0 || ans.Bound > testTTL {
		t.Fatalf("candidacy of a bound node: %+v, %v", ans, err)
	}
	// A new term without a lease: the promises go on.
	arb.term, arb.seq = 8, 12
	must(t, arb.grant(a, 0, 0))
	must(t, arb.grant(b, 0, 0))
	a.until(t, "failsafe", func(s *control.Status) bool { return s.Write.Right == control.RightFailsafe && s.Write.Term == 8 })
	c.write(0, fill(1, 4096))
	// A candidate promises nothing more.
	ans, err = b.Candidacy(ctxFor(t), control.Candidacy{For: time.Minute, Dead: true})
	if err != nil || ans.Bound != 0 {
		t.Fatalf("%+v, %v", ans, err)
	}
	a.until(t, "freeze", suspended("licence"))
	if s := a.Status(); s.Write.Right != control.RightNone || s.Write.Now < s.Write.Failsafe {
		t.Fatalf("%+v", s.Write)
	}
	done := c.writeLater(4096, fill(2, 4096))
	a.until(t, "waiting write", func(s *control.Status) bool { return s.Volumes[0].UpperPending == 1 })
	// b is promoted: a hears of it over the link.
	arb.term, arb.who = 9, "b"
	must(t, arb.grant(b, time.Minute, 0))
	if err := <-done; err == nil {
		t.Fatal("a write without a licence was acknowledged")
	}
	a.until(t, "demotion", func(s *control.Status) bool {
		return s.Role == "Secondary" && s.Write.Term == 9 && s.Write.Holder == "b"
	})
	if err := arb.grantAs(a, 8); !errors.Is(err, control.Stale) {
		t.Fatalf("a grant of the old term: %v, want %v", err, control.Stale)
	}
	must(t, b.Promote(ctxFor(t), false))
	d := b.open(t)
	d.write(0, fill(3, 4096))
	if err := a.Promote(ctxFor(t), true); !errors.Is(err, control.NoLicence) {
		t.Fatalf("promotion of a deposed node: %v", err)
	}
	must(t, b.Deposed(ctxFor(t), control.Deposed{Term: 9}))
	if s := b.Status(); s.Role != "Secondary" {
		t.Fatalf("deposed by command: %s", s.Role)
	}
}

// grantAs sends a grant of another term.
func (a *arbiter) grantAs(n *node, term uint64) error {
	o := *a
	o.term = term
	return o.grant(n, time.Minute, 0)
}

// Only a coordinated resource takes grants, and it needs a place for its state file.
func TestCoordinationIsADefinition(t *testing.T) {
	def := definition(t.TempDir(), "a", 0)
	n := startOpts(t, def, Options{})
	if err := n.Grant(ctxFor(t), &control.Grant{Term: 1}); !errors.Is(err, control.Refused) {
		t.Errorf("grant: %v", err)
	}
	if err := n.Deposed(ctxFor(t), control.Deposed{Term: 1}); !errors.Is(err, control.Refused) {
		t.Errorf("deposed: %v", err)
	}
	if _, err := n.Candidacy(ctxFor(t), control.Candidacy{}); !errors.Is(err, control.Refused) {
		t.Errorf("candidacy: %v", err)
	}
	for name, change := range map[string]func(*control.Definition){
		"no state folder": func(d *control.Definition) { d.Coordination, d.TTL = control.CoordinationEtcd, testTTL },
		"no ttl":          func(d *control.Definition) { d.Coordination = control.CoordinationEtcd },
		"margin above the ttl": func(d *control.Definition) {
			d.Coordination, d.TTL, d.Margin = control.CoordinationEtcd, testTTL, testTTL
		},
		"unknown": func(d *control.Definition) { d.Coordination = "zookeeper" },
	} {
		d := def
		change(&d)
		if _, err := New(testLog(t, "a"), d, Options{}); !errors.Is(err, control.BadDefinition) {
			t.Errorf("%s: %v, want %v", name, err, control.BadDefinition)
		}
	}
	d := def
	d.Coordination, d.TTL = control.CoordinationEtcd, testTTL
	if err := n.Adjust(ctxFor(t), &d); !errors.Is(err, control.Refused) {
		t.Errorf("coordination changed online: %v", err)
	}
}
