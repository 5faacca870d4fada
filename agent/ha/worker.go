package ha

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"reflect"
	"slices"
	"sync"
	"time"

	"github.com/hawser-ha/hawser/agent/coord"
	"github.com/hawser-ha/hawser/agent/decide"
	"github.com/hawser-ha/hawser/replicator/control"
)

const (
	statusTimeout = 2 * time.Second  // a status is there at once, or the replicator hangs
	stepTimeout   = 30 * time.Second // of one action
	lookEvery     = 2 * time.Second  // though nothing is said to have changed
	quickMax      = 20               // so many steps in a row are one change; more are going in circles
	againMin      = 50 * time.Millisecond
	againMax      = 2 * time.Second
	brakeMin      = time.Second
	brakeMax      = 2 * time.Minute
	brakeReset    = 10 * time.Minute // without a failure the brake begins anew
	publishEvery  = time.Second      // for what changes all the time, as the progress of a resync
)

// worker is the loop of one resource. Its goroutine owns the fields without a mutex.
type worker struct {
	m    *Manager
	name string
	log  *slog.Logger
	kick chan struct{} // capacity 1

	replica  Replica
	override *coord.Resource // what our own transactions made of it, until the view has caught up
	overRev  uint64
	released uint64   // the term that is being given back, or was: it is never used again
	lifted   uint64   // revision of a stop by command that a promotion by command has lifted
	answers  []answer // newest last: what sets answered which questions
	pid      int      // of the replicator that the questions belong to
	sent     control.Grant
	sentPID  int
	memory   decide.Memory
	fails    int
	failed   int64 // when, on the boot clock
	again    int   // rounds in a row that did the same
	quick    int   // rounds in a row that did something
	upFailed int64
	upTries  int
	did      decide.Plan

	mu    sync.Mutex // guards what follows
	asked *ask
	last  *decide.Explanation
	local *control.Status
	pub   *Report // not yet written
}

// ask is a person's wish that this node becomes Primary.
type ask struct {
	force bool
	why   string
	done  chan error // capacity 1
}

type answer struct{ seq, question uint64 }

func newWorker(m *Manager, name string) *worker {
	w := &worker{m: m, name: name, log: m.o.Log.With("resource", name), kick: make(chan struct{}, 1), replica: m.o.Replica(name)}
	w.memory.Booted = m.started
	return w
}

func (w *worker) wake() {
	select {
	case w.kick <- struct{}{}:
	default:
	}
}

// run looks, decides and does until ctx ends.
func (w *worker) run(ctx context.Context) {
	told := make(chan struct{}, 1)
	var wg sync.WaitGroup
	defer wg.Wait()
	wg.Go(func() { w.publish(ctx, told) })
	for ctx.Err() == nil {
		pause := w.round(ctx, told)
		t := time.NewTimer(pause)
		select {
		case <-ctx.Done():
		case <-w.kick:
		case <-t.C:
		}
		t.Stop()
	}
}

// round is one look, one decision and what follows from it. It says when to look again at the latest.
func (w *worker) round(ctx context.Context, told chan<- struct{}) time.Duration {
	def, known := w.m.o.Resource(w.name)
	if !known {
		return w.gone(ctx)
	}
	if !def.Here {
		return lookEvery
	}
	view, verr := w.m.look()
	status, serr := w.status(ctx)
	if status == nil && serr == nil && def.Wanted {
		w.bringUp(ctx)
		status, serr = w.status(ctx)
	}
	v, r := w.see(def, view, verr, status, serr)
	if status != nil && view != nil && verr == nil {
		if err := w.grant(ctx, &v, r, status, def); err != nil {
			w.log.Warn("replicator not told who may write", "err", err)
		}
	}
	w.secondaryServices(&v)
	e := decide.Explain(v)
	w.note(&e)
	ok, reason := ready(&v)
	w.tell(told, &Report{Time: time.Now(), Now: v.Now, Ready: ok, Why: reason, Local: v.Local, Rule: e.Plan.Why, Detail: e.Plan.Detail,
		Lease: w.m.o.Session.State().Until, Status: status, Policy: v.Policy, Memory: w.memory})
	err := w.act(ctx, &v, r, view, e.Plan)
	w.settle(&v, &e, err)
	if ctx.Err() != nil {
		return 0
	}
	return w.pause(&v, e.Plan, err)
}

// pause says how long nothing need be done.
func (w *worker) pause(v *decide.View, p decide.Plan, err error) time.Duration {
	same := reflect.DeepEqual(w.did, p)
	w.did = p
	if len(p.Actions) == 0 {
		w.again, w.quick = 0, 0
		if p.Until > v.Now {
			return min(max(time.Duration(p.Until-w.m.o.Clock()), time.Millisecond), lookEvery)
		}
		return lookEvery
	}
	w.quick++
	if err == nil && !same && w.quick < quickMax {
		w.again = 0
		return 0 // look again at once
	}
	w.again++
	return min(againMin<<min(w.again-1, 10), againMax)
}

func (w *worker) status(ctx context.Context) (*control.Status, error) {
	ctx, cancel := context.WithTimeout(ctx, statusTimeout)
	defer cancel()
	return w.replica.Status(ctx)
}

// bringUp starts the replicator, with a growing pause between attempts that fail. It never holds up the node's boot.
func (w *worker) bringUp(ctx context.Context) {
	now := w.m.o.Clock()
	if w.upTries > 0 && now < w.upFailed+int64(min(time.Second<<min(w.upTries-1, 6), time.Minute)) {
		return
	}
	if err := w.replica.Up(ctx); err != nil {
		w.upTries, w.upFailed = w.upTries+1, w.m.o.Clock()
		w.log.Error("resource not brought up", "err", err)
		if w.upTries == 1 {
			w.m.note(w.name, "up-failed", err.Error())
		}
		return
	}
	w.upTries = 0
}

// see builds the view that is decided on.
func (w *worker) see(def Resource, view *coord.View, verr error, status *control.Status, serr error) (decide.View, *coord.Resource) {
	now := w.m.o.Clock()
	v := decide.View{Now: now, Self: w.m.o.Node, Resource: w.name, Policy: def.Policy}
	var services ServiceState
	if w.m.o.Services != nil {
		services = w.m.o.Services.State(w.name)
	}
	v.Local = local(status, serr, services)
	if status != nil && status.PID != w.pid { // ids of questions belong to one life
		w.pid, w.answers = status.PID, nil
	}
	r := &coord.Resource{Name: w.name}
	if view != nil {
		r = view.Resource(w.name)
		if w.override != nil && view.Revision >= w.overRev {
			w.override = nil
		}
		if w.override != nil {
			r = w.override
		}
		if sw := r.Switchover; sw != nil && sw.Mod == w.lifted {
			c := *r
			c.Switchover = nil
			r = &c
		}
		v.Truth = truth(view, r, w.m.o.Node, w.m.o.Session.Lease(), time.Now())
		if h := v.Truth.Holder; h != nil && h.Term == w.released {
			h.Released = true
		}
	}
	switch {
	case verr != nil:
		v.Truth.Why = verr.Error()
	case r.Problem != "":
		v.Truth.Why = r.Problem
	default:
		v.Truth.Fresh = true
	}
	if f := w.m.o.Fencer; f != nil && v.Policy.Fencing {
		if h := v.Truth.Holder; h != nil && h.Node != v.Self {
			v.Policy.Fencing = f.Ready(h.Node)
		} else if l := v.Truth.Last; h == nil && l != nil && l.Node != v.Self {
			v.Policy.Fencing = f.Ready(l.Node)
		}
	} else {
		v.Policy.Fencing = false
	}
	w.remember(&v)
	w.memory.Answered = 0
	if n := len(w.answers); n > 0 {
		w.memory.Answered = w.answers[n-1].question
	}
	w.memory.Down = !def.Wanted
	v.Memory = w.memory
	w.mu.Lock()
	if w.asked != nil {
		v.Memory.Asked, v.Memory.Force = true, w.asked.force
	}
	w.mu.Unlock()
	return v, r
}

// remember keeps since when things are as they are.
func (w *worker) remember(v *decide.View) {
	m, t := &w.memory, &v.Truth
	if t.Fresh && t.Holder != nil {
		m.SeenHolder, m.Vacant = true, 0
	} else if t.Fresh && m.Vacant == 0 {
		m.Vacant = v.Now
	}
	linked := true
	if h := t.Holder; h != nil && h.Node != v.Self && v.Local.Up {
		linked = v.Local.Links[h.Node]
	}
	if linked {
		m.Unlinked = 0
	} else if m.Unlinked == 0 {
		m.Unlinked = v.Now
	}
	p := v.Policy.Preferred
	steady := p != "" && t.InSync.Member(p) != nil && t.Nodes[p].Alive && t.Reports[p].Ready
	if !steady {
		m.Steady = 0
	} else if m.Steady == 0 {
		m.Steady = v.Now
	}
	if w.fails > 0 && v.Now > w.failed+int64(brakeReset) {
		w.fails = 0
	}
}

// brake keeps this node from trying again at once what failed.
func (w *worker) brake(why string) {
	now := w.m.o.Clock()
	d := min(brakeMin<<min(w.fails, 10), brakeMax)
	w.fails++
	w.failed = now
	w.memory.Brake, w.memory.Braked, w.memory.BrakeWhy = now+int64(d), now, why
}

// grant tells the replicator what etcd says, if it does not know it yet.
func (w *worker) grant(ctx context.Context, v *decide.View, r *coord.Resource, st *control.Status, def Resource) error {
	g, ok := w.grantOf(v, r, def)
	if !ok || st.Coordination != control.CoordinationEtcd {
		return nil
	}
	if st.PID == w.sentPID && reflect.DeepEqual(g, w.sent) {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, statusTimeout)
	defer cancel()
	err := w.replica.Grant(ctx, &g)
	if errors.Is(err, control.Stale) { // it knows more than this view: the next one will, too
		w.log.Debug("grant is out of date", "err", err)
		return nil
	}
	if err == nil {
		w.sent, w.sentPID = g, st.PID
	}
	return err
}

// grantOf is what etcd says, as the replicator takes it.
func (w *worker) grantOf(v *decide.View, r *coord.Resource, def Resource) (control.Grant, bool) {
	if r.InSync == nil {
		return control.Grant{}, false
	}
	g := control.Grant{Term: r.InSync.Term, Seq: r.InSync.Seq, InSync: r.InSync.Members}
	if p := r.Primary; p != nil && p.Term != w.released {
		g.Term, g.Holder = p.Term, p.Node
		if s := w.m.o.Session.State(); p.Node == w.m.o.Node && s.Lease != 0 && p.Lease == s.Lease {
			g.Until = s.Until
		}
		g.CoPrimary = def.Policy.TwoPrimaries && p.Node != w.m.o.Node && r.InSync.Member(w.m.o.Node) != nil
	}
	for _, a := range w.answers {
		if a.seq <= g.Seq {
			g.Answers = max(g.Answers, a.question)
		}
	}
	return g, true
}

// secondaryServices lets the chain of the Secondary run where this node is one and nothing of the Primary runs.
func (w *worker) secondaryServices(v *decide.View) {
	s := w.m.o.Services
	if s == nil {
		return
	}
	maintenance := v.Truth.Fresh && (v.Truth.Maintenance || v.Truth.Nodes[v.Self].Maintenance)
	s.Maintenance(w.name, maintenance)
	if !v.Truth.Fresh || maintenance || v.Local.Maybe {
		return
	}
	switch h := v.Truth.Holder; {
	case !v.Local.Up:
		if v.Local.Services == decide.ServicesNone || v.Local.Services == decide.ServicesStopped {
			s.Role(w.name, "")
		}
	case v.Local.Role == decide.Secondary && (h == nil || h.Node != v.Self) && (v.Local.Services == decide.ServicesNone || v.Local.Services == decide.ServicesStopped):
		s.Role(w.name, decide.Secondary)
	}
}

// note keeps the explanation, and tells people when the rule changed.
func (w *worker) note(e *decide.Explanation) {
	w.mu.Lock()
	old := w.last
	w.last = e
	w.mu.Unlock()
	if old != nil && old.Plan.Why == e.Plan.Why && old.Plan.Detail == e.Plan.Detail {
		return
	}
	w.log.Info("decided", "why", string(e.Plan.Why), "detail", e.Plan.Detail, "do", len(e.Plan.Actions))
	if old == nil || old.Plan.Why != e.Plan.Why {
		text := e.Rule
		if e.Plan.Detail != "" {
			text += " (" + e.Plan.Detail + ")"
		}
		w.m.note(w.name, "ha-"+string(e.Plan.Why), text)
	}
}

// tell hands the publisher what the others should know, if it is news.
func (w *worker) tell(told chan<- struct{}, rep *Report) {
	w.mu.Lock()
	w.local, w.pub = rep.Status, rep
	w.mu.Unlock()
	select {
	case told <- struct{}{}:
	default:
	}
}

// publish writes the status of this node to etcd: at once what decides, the rest now and then.
func (w *worker) publish(ctx context.Context, told <-chan struct{}) {
	var written Report
	var lease coord.LeaseID
	var at time.Time
	retry := time.NewTicker(publishEvery)
	defer retry.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-told:
		case <-retry.C:
		}
		w.mu.Lock()
		rep := w.pub
		w.mu.Unlock()
		now := w.m.o.Session.Lease()
		if rep == nil || now == 0 {
			continue
		}
		urgent := now != lease || brief(rep) != brief(&written)
		if !urgent && (time.Since(at) < publishEvery || sameReport(rep, &written)) {
			continue
		}
		data, err := json.Marshal(rep)
		if err != nil {
			w.log.Error("status not written", "err", err)
			return
		}
		step, cancel := context.WithTimeout(ctx, statusTimeout)
		err = w.m.o.Store.PutStatus(step, w.name, data)
		cancel()
		if err == nil {
			written, lease, at = *rep, now, time.Now()
		} else if ctx.Err() == nil {
			w.log.Debug("status not written", "err", err)
		}
	}
}

// brief is what of a report decides something elsewhere.
func brief(r *Report) [4]string {
	return [4]string{r.Why, r.Local.Role, string(r.Rule), r.Local.DiskText + r.Detail + string(r.Local.Services)}
}

// sameReport leaves out what always differs: clocks.
func sameReport(a, b *Report) bool {
	strip := func(r Report) Report {
		r.Time, r.Now, r.Lease = time.Time{}, 0, 0
		if r.Local.Write != nil {
			c := *r.Local.Write
			c.Now, c.Until, c.Lease, c.Failsafe, c.Bound = 0, 0, 0, 0, 0
			r.Local.Write = &c
		}
		if r.Status != nil {
			s := *r.Status
			s.Write, s.LastEvent = r.Local.Write, 0
			s.Peers = slices.Clone(s.Peers)
			for i := range s.Peers {
				s.Peers[i].Promised = 0
			}
			r.Status = &s
		}
		return r
	}
	return reflect.DeepEqual(strip(*a), strip(*b))
}

// gone: the file of the resource does not exist any more, or it is not coordinated. What is still known of it is taken back.
func (w *worker) gone(ctx context.Context) time.Duration {
	w.mu.Lock()
	had := w.pub != nil
	w.pub, w.last, w.local = nil, nil, nil
	w.mu.Unlock()
	if had {
		step, cancel := context.WithTimeout(ctx, statusTimeout)
		defer cancel()
		if err := w.m.o.Store.DeleteStatus(step, w.name); err != nil {
			w.log.Debug("status not removed", "err", err)
		}
	}
	return lookEvery
}
