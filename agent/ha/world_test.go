package ha

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hawser-ha/hawser/agent/coord"
	"github.com/hawser-ha/hawser/agent/coord/fake"
	"github.com/hawser-ha/hawser/agent/decide"
	"github.com/hawser-ha/hawser/replicator/control"
)

const (
	ttl    = 5 * time.Second
	margin = 500 * time.Millisecond
)

// world is a cluster of fakes in a synctest bubble: a store, and nodes with an agent, a replicator and services each.
type world struct {
	t     *testing.T
	start time.Time
	store *fake.Server
	nodes []*node
	mu    sync.Mutex // guards the replicas and policies of all nodes
	cut   map[[2]string]bool
	peaks int // most nodes that were licensed Primaries at once
}

// node is one machine.
type node struct {
	w        *world
	name     string
	client   *fake.Client
	m        *Manager
	policy   decide.Policy
	replicas map[string]*replica
	services *services
	stop     func()
	dead     bool
	notes    []string
	fencer   Fencer
}

// replica is a replicator as docs/adr/0006 has it: enough of it to see who may write.
type replica struct {
	n          *node
	name       string
	up         bool
	pid        int
	role       string
	disk       control.UUID
	good       bool
	fresh      bool // it has every write
	grant      control.Grant
	questions  []control.Question
	nextID     uint64
	bound      int64
	promises   map[string]int64 // given to us
	failing    error            // promotions fail
	inUse      error
	promotions []time.Duration
}

func newWorld(t *testing.T, names []string, resources ...string) *world {
	w := &world{t: t, start: time.Now(), cut: map[[2]string]bool{}}
	w.store = fake.New(fake.Options{Seed: 1})
	for i, name := range names {
		n := &node{w: w, name: name, replicas: map[string]*replica{}, policy: decide.Policy{Nodes: names, Auto: true, TTL: ttl, BootWait: 5 * time.Second}}
		n.client = w.store.Client(name)
		n.services = &services{n: n, want: map[string]string{}, run: map[string]bool{}, ask: map[string]bool{}}
		for _, r := range resources {
			n.replicas[r] = &replica{n: n, name: r, up: true, pid: 1, role: decide.Secondary, disk: control.UUID(i + 1), good: true, fresh: true, promises: map[string]int64{}}
		}
		w.nodes = append(w.nodes, n)
	}
	for _, n := range w.nodes {
		n.startAgent()
	}
	return w
}

func (w *world) clock() int64 { return int64(time.Since(w.start)) + int64(time.Hour) }

func (w *world) node(name string) *node {
	i := slices.IndexFunc(w.nodes, func(n *node) bool { return n.name == name })
	return w.nodes[i]
}

func (n *node) startAgent() {
	w := n.w
	log := slog.New(slog.DiscardHandler)
	store := coord.New(coord.Options{Backend: n.client, Prefix: coord.Prefix("c"), Node: n.name, Log: log, Clock: w.clock})
	session := store.Hold(coord.SessionOptions{TTL: ttl, RenewEvery: time.Second, RPCTimeout: time.Second, Margin: margin, Info: coord.NodeInfo{Machine: n.name, Boot: "b"}})
	n.m = New(Options{Node: n.name, Store: store, Session: session, Follow: coord.FollowOptions{ConfirmEvery: time.Second, RPCTimeout: time.Second}, Log: log, Clock: w.clock,
		Resource: func(name string) (Resource, bool) {
			w.mu.Lock()
			defer w.mu.Unlock()
			return Resource{Name: name, Policy: n.policy, Margin: margin, Here: true, Wanted: true}, n.replicas[name] != nil
		},
		Replica: func(name string) Replica { return n.replicas[name] }, Services: n.services, Fencer: n.fencer,
		Note: func(resource, name, text string) {
			w.mu.Lock()
			defer w.mu.Unlock()
			n.notes = append(n.notes, name+": "+text)
		}})
	ctx, cancel := context.WithCancel(w.t.Context())
	done := make(chan struct{})
	go func() { defer close(done); n.m.Run(ctx) }()
	n.stop = func() { cancel(); <-done }
	synctest.Wait()
	for name := range n.replicas {
		n.m.Know(name)
	}
}

// die ends a node at once: agent, replicators, services.
func (n *node) die() {
	n.stop()
	n.w.mu.Lock()
	defer n.w.mu.Unlock()
	n.dead = true
	for _, r := range n.replicas {
		r.up, r.role = false, decide.Secondary
		r.n.services.run[r.name] = false
	}
	n.w.links()
}

// boot starts it again: its data is old until a resync has ended.
func (n *node) boot() {
	n.w.mu.Lock()
	n.dead = false
	for _, r := range n.replicas {
		r.up, r.pid, r.questions, r.grant, r.fresh, r.bound = true, r.pid+1, nil, control.Grant{}, false, 0
	}
	n.w.links()
	n.w.mu.Unlock()
	n.startAgent()
}

func (w *world) close() {
	for _, n := range w.nodes {
		n.stop()
	}
	w.store.Close()
}

// links makes each Primary ask about the peers that are gone, and take back the question about one that is here again; mu is held.
func (w *world) links() {
	for _, n := range w.nodes {
		for _, r := range n.replicas {
			r.review()
		}
	}
	for _, n := range w.nodes {
		for name := range n.replicas {
			n.m.Wake(name)
		}
	}
}

func (w *world) linked(a, b *node) bool {
	return !a.dead && !b.dead && !w.cut[[2]string{a.name, b.name}] && !w.cut[[2]string{b.name, a.name}]
}

func (w *world) setCut(a, b string, cut bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.cut[[2]string{a, b}] = cut
	w.links()
}

// review opens questions of a Primary; mu is held.
func (r *replica) review() {
	if !r.up || r.role != decide.Primary {
		return
	}
	for _, m := range r.grant.InSync {
		if m.Node == r.n.name {
			continue
		}
		peer := r.n.w.node(m.Node)
		there := r.n.w.linked(r.n, peer) && peer.replicas[r.name].up && peer.replicas[r.name].fresh
		i := slices.IndexFunc(r.questions, func(q control.Question) bool { return q.Peer == m.Node })
		switch {
		case there && i >= 0:
			r.questions = slices.Delete(r.questions, i, i+1)
		case !there && i < 0:
			r.nextID++
			r.questions = append(r.questions, control.Question{ID: r.nextID, Peer: m.Node, Why: m.Node + " is not connected", Seq: r.grant.Seq})
		}
	}
}

// licensed says whether it serves now; mu is held.
func (r *replica) licensed() bool {
	if !r.up || r.role != decide.Primary || r.grant.Holder != r.n.name && r.grant.Holder != "" {
		return false
	}
	return r.n.w.clock() < max(r.grant.Until, r.failsafe())
}

func (r *replica) failsafe() int64 {
	until := int64(1) << 62
	for _, m := range r.grant.InSync {
		if m.Node != r.n.name {
			until = min(until, r.promises[m.Node])
		}
	}
	return until
}

// promise renews the promises to every Primary; mu is held.
func (w *world) promise() {
	for _, n := range w.nodes {
		for name, r := range n.replicas {
			if !r.up || r.role != decide.Primary {
				continue
			}
			for _, o := range w.nodes {
				p := o.replicas[name]
				if o == n || !p.up || !w.linked(n, o) || p.grant.Term > r.grant.Term {
					continue
				}
				p.bound = w.clock() + int64(ttl)
				r.promises[o.name] = w.clock() + int64(ttl-margin)
			}
		}
	}
	for name := range w.nodes[0].replicas {
		licensed := 0
		for _, n := range w.nodes {
			if n.replicas[name].licensed() {
				licensed++
			}
		}
		w.peaks = max(w.peaks, licensed)
	}
}

// live lets time pass, with promises every while, and checks that there are never two licences.
func (w *world) live(d time.Duration) {
	w.t.Helper()
	w.until(d, func() bool { return false })
}

// until lets time pass until a condition holds, at most d; it says how long that took.
func (w *world) until(d time.Duration, done func() bool) time.Duration {
	w.t.Helper()
	began := time.Now()
	for time.Since(began) < d {
		w.mu.Lock()
		w.promise()
		ok := done()
		w.mu.Unlock()
		if w.peaks > 1 {
			w.t.Fatal("two licences at once")
		}
		if ok {
			return time.Since(began)
		}
		time.Sleep(20 * time.Millisecond)
		synctest.Wait()
	}
	return d
}

// serves says whether the node serves I/O of the resource; mu is held.
func (w *world) serves(node, res string) bool {
	r := w.node(node).replicas[res]
	return r.licensed() && len(r.questions) == 0
}

// mustServe waits for it.
func (w *world) mustServe(node, res string, within time.Duration) time.Duration {
	w.t.Helper()
	d := w.until(within+20*time.Millisecond, func() bool { return w.serves(node, res) })
	if d > within {
		w.explain(res)
		w.t.Fatalf("%s does not serve %s after %s", node, res, within)
	}
	return d
}

func (w *world) explain(res string) {
	w.t.Helper()
	for _, n := range w.nodes {
		if e, err := n.m.Explain(res); err == nil && !n.dead {
			e.Print(w.t.Output())
		}
		w.mu.Lock()
		fmt.Fprintf(w.t.Output(), "%s: %+v\n%v\n", n.name, n.replicas[res].grant, n.notes)
		w.mu.Unlock()
	}
}

func (r *replica) Status(context.Context) (*control.Status, error) {
	w := r.n.w
	w.mu.Lock()
	defer w.mu.Unlock()
	if !r.up {
		return nil, nil
	}
	st := &control.Status{Resource: r.name, Node: r.n.name, PID: r.pid, Role: r.role, Coordination: control.CoordinationEtcd, Questions: slices.Clone(r.questions),
		Volumes: []control.VolumeStatus{{DiskState: "UpToDate", GI: control.GI{DeviceUUID: r.disk}}},
		Write:   &control.WriteStatus{Term: r.grant.Term, Seq: r.grant.Seq, Holder: r.grant.Holder, InSync: r.grant.InSync, Right: control.RightNone, Now: w.clock(), Bound: r.bound}}
	if !r.good {
		st.Volumes[0].DiskState = "Inconsistent"
	}
	if r.licensed() {
		st.Write.Right, st.Write.Until = control.RightLease, max(r.grant.Until, r.failsafe())
	}
	for _, o := range w.nodes {
		if o == r.n {
			continue
		}
		p := control.PeerStatus{Name: o.name, Connection: "Connecting"}
		if op := o.replicas[r.name]; w.linked(r.n, o) && op.up {
			p.Connection = "Connected"
			if r.role == decide.Primary && op.fresh && r.grant.Member(o.name) == nil {
				st.Write.Candidates = append(st.Write.Candidates, control.Member{Node: o.name, Disks: map[int]control.UUID{0: op.disk}})
			}
		}
		st.Peers = append(st.Peers, p)
	}
	return st, nil
}

func (r *replica) Up(context.Context) error { return nil }

func (r *replica) Grant(_ context.Context, g *control.Grant) error {
	w := r.n.w
	w.mu.Lock()
	defer w.mu.Unlock()
	if g.Term < r.grant.Term || g.Seq < r.grant.Seq {
		return control.Errorf(control.Stale, "term %d, %d is known", g.Term, r.grant.Term)
	}
	r.grant = *g
	if r.role == decide.Primary && g.Holder != r.n.name && g.Holder != "" {
		r.role, r.questions = decide.Secondary, nil
	}
	r.questions = slices.DeleteFunc(r.questions, func(q control.Question) bool {
		return q.ID <= g.Answers && g.Seq > q.Seq && g.Member(q.Peer) == nil
	})
	r.review()
	return nil
}

func (r *replica) Deposed(_ context.Context, d control.Deposed) error {
	w := r.n.w
	w.mu.Lock()
	defer w.mu.Unlock()
	if d.Term >= r.grant.Term {
		r.role, r.questions = decide.Secondary, nil
	}
	return nil
}

func (r *replica) Candidacy(_ context.Context, q control.Candidacy) (*control.CandidacyAnswer, error) {
	w := r.n.w
	w.mu.Lock()
	defer w.mu.Unlock()
	if left := r.bound - w.clock(); left > 0 && !q.Dead {
		return &control.CandidacyAnswer{Bound: time.Duration(left)}, nil
	}
	return &control.CandidacyAnswer{}, nil
}

func (r *replica) Promote(_ context.Context, force bool) error {
	w := r.n.w
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case r.failing != nil:
		return r.failing
	case r.grant.Holder != r.n.name || r.grant.Member(r.n.name) == nil:
		return control.Errorf(control.NoLicence, "term %d is held by %q", r.grant.Term, r.grant.Holder)
	}
	if force {
		r.good = true
	}
	r.role, r.promises = decide.Primary, map[string]int64{}
	r.promotions = append(r.promotions, time.Since(w.start))
	for _, o := range w.nodes { // writes go to whoever is linked; the others become old
		if o != r.n && !w.linked(r.n, o) {
			o.replicas[r.name].fresh = false
		}
	}
	r.review()
	return nil
}

func (r *replica) Demote(context.Context, bool) error {
	w := r.n.w
	w.mu.Lock()
	defer w.mu.Unlock()
	if r.inUse != nil {
		return r.inUse
	}
	r.role, r.questions = decide.Secondary, nil
	for _, o := range w.nodes {
		if w.linked(r.n, o) {
			o.replicas[r.name].bound = 0
		}
	}
	return nil
}

// services run at once.
type services struct {
	n     *node
	want  map[string]string
	run   map[string]bool
	ask   map[string]bool
	quiet bool
}

func (s *services) State(res string) ServiceState {
	s.n.w.mu.Lock()
	defer s.n.w.mu.Unlock()
	st := ServiceState{State: decide.ServicesStopped, AskMove: s.ask[res]}
	if s.run[res] {
		st.State = decide.ServicesRunning
	}
	return st
}

func (s *services) Role(res, role string) {
	s.n.w.mu.Lock()
	defer s.n.w.mu.Unlock()
	s.want[res], s.run[res] = role, role == decide.Primary
}

func (s *services) Maintenance(_ string, on bool) {
	s.n.w.mu.Lock()
	defer s.n.w.mu.Unlock()
	s.quiet = on
}
