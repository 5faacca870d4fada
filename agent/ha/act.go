package ha

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/hawser-ha/hawser/agent/coord"
	"github.com/hawser-ha/hawser/agent/decide"
	"github.com/hawser-ha/hawser/replicator/control"
)

// act does what was planned, until something fails.
func (w *worker) act(ctx context.Context, v *decide.View, r *coord.Resource, view *coord.View, p decide.Plan) error {
	for _, a := range p.Actions {
		step, cancel := context.WithTimeout(ctx, stepTimeout)
		err := w.do(step, v, r, view, p, a)
		cancel()
		if err == nil {
			continue
		}
		if ctx.Err() != nil {
			return err
		}
		err = fmt.Errorf("%s: %w", a.Kind, err)
		if coord.Conflicts(err) { // somebody was faster: nothing went wrong
			w.log.Info("overtaken", "do", string(a.Kind), "err", err)
			return err
		}
		w.log.Warn("not done", "do", string(a.Kind), "why", string(p.Why), "err", err)
		return err
	}
	return nil
}

// do is one action. What changes etcd is remembered until the view has it.
func (w *worker) do(ctx context.Context, v *decide.View, r *coord.Resource, view *coord.View, p decide.Plan, a decide.Action) error {
	s := w.m.o.Store
	if w.override != nil {
		r = w.override
	}
	switch a.Kind {
	case decide.Run:
		return w.runFor(ctx, v, r, p, a)
	case decide.BecomePrimary:
		return w.become(ctx, v, false)
	case decide.TakeOver:
		if r.Primary == nil {
			return nil
		}
		w.released = r.Primary.Term
		return s.Release(ctx, r, r.Primary.Term, coord.Reason{Text: p.Why.Text()})
	case decide.BreakHolder:
		f := view.Fencing[a.Nodes[0]]
		if f == nil {
			return fmt.Errorf("%w: the record of its fencing is gone", coord.ErrConflict)
		}
		return s.Evict(ctx, f)
	case decide.Narrow:
		return w.narrow(ctx, r, a)
	case decide.Widen:
		for _, c := range v.Local.Write.Candidates {
			if !slices.Contains(a.Nodes, c.Node) {
				continue
			}
			set, err := s.AddMember(ctx, r, c, coord.Reason{Text: c.Node + " has every write"})
			if err != nil {
				return err
			}
			r = w.expect(r, func(n *coord.Resource) { n.InSync = set }, set.Seq)
		}
		return nil
	case decide.RunServices:
		w.m.o.Services.Role(w.name, decide.Primary)
		return nil
	case decide.StopServices:
		w.m.o.Services.Role(w.name, "")
		return nil
	case decide.Demote:
		if err := w.replica.Demote(ctx, false); err != nil {
			if errors.Is(err, control.InUse) {
				w.brake("its device is in use: " + err.Error())
				if r.Switchover != nil { // a person asked for it, and hears of this
					err = errors.Join(err, s.CancelSwitchover(ctx, r))
				}
			}
			return err
		}
		return nil
	case decide.Release:
		if r.Primary == nil {
			return nil
		}
		w.released = r.Primary.Term
		w.hold(false)
		return s.Release(ctx, r, r.Primary.Term, coord.Reason{Text: reason(p)})
	case decide.Depose:
		d := control.Deposed{}
		if v.Truth.InSync != nil {
			d.Term = r.InSync.Term
		}
		if h := v.Truth.Holder; h != nil {
			d.Term = h.Term
		}
		if w := v.Local.Write; w != nil {
			d.Term = max(d.Term, w.Term)
		}
		w.hold(false)
		return w.replica.Deposed(ctx, d)
	case decide.FenceNode:
		return w.m.o.Fencer.Fence(ctx, view, a.Nodes[0], fmt.Sprintf("it held %s and does not answer", w.name))
	case decide.DropSwitch:
		if err := s.CancelSwitchover(ctx, r); err != nil {
			return err
		}
		w.m.note(w.name, "switchover-ended", reason(p))
		return nil
	}
	return fmt.Errorf("ha: unknown action %q", a.Kind)
}

func reason(p decide.Plan) string {
	if p.Detail == "" {
		return p.Why.Text()
	}
	return p.Why.Text() + " (" + p.Detail + ")"
}

// expect remembers what our own change made of the resource. Without it the next round would decide on what was before. rev is
// a revision that contains it.
func (w *worker) expect(r *coord.Resource, edit func(*coord.Resource), rev uint64) *coord.Resource {
	n := *r
	edit(&n)
	w.override, w.overRev = &n, rev
	return &n
}

// PromotionData is what the history keeps of a promotion besides who, when and why.
type PromotionData struct {
	// Loss is what the failover may have lost: "none" under protocol C.
	Loss   string   `json:"loss"`
	Rule   string   `json:"rule"`
	InSync []string `json:"in-sync"`
	// Vacant is for how long nobody held the term, as far as this node saw.
	VacantMS int64 `json:"vacant-ms,omitempty"`
}

// runFor asks for candidacy, takes the key, and becomes Primary with it.
func (w *worker) runFor(ctx context.Context, v *decide.View, r *coord.Resource, p decide.Plan, a decide.Action) error {
	s := w.m.o.Store
	c, err := w.replica.Candidacy(ctx, control.Candidacy{For: v.Policy.TTL, Dead: a.Dead})
	if err != nil {
		return err
	}
	if c.Bound > 0 {
		return control.Errorf(control.Bound, "a promise to another node binds for %s", c.Bound)
	}
	me := member(w.m.o.Node, &v.Local)
	w.mu.Lock()
	force := w.asked != nil && w.asked.force
	why := reason(p)
	if w.asked != nil && w.asked.why != "" {
		why = w.asked.why
	}
	w.mu.Unlock()
	data := PromotionData{Loss: w.loss(a, force), Rule: string(p.Why), InSync: []string{me.Node}}
	if v.Memory.Vacant != 0 {
		data.VacantMS = (w.m.o.Clock() - v.Memory.Vacant) / 1e6
	}
	if r.InSync != nil && !a.First {
		data.InSync = nil
		for _, m := range r.InSync.Members {
			data.InSync = append(data.InSync, m.Node)
		}
	}
	text, err := json.Marshal(data)
	if err != nil {
		return err
	}
	why2 := coord.Reason{Text: why, Data: text}
	var won *coord.Promotion
	switch {
	case a.First && (force || r.InSync != nil):
		won, err = s.Force(ctx, r, me, why2)
	case a.First:
		var set *coord.InSync
		if set, err = s.CreateInSync(ctx, r, []control.Member{me}, coord.Reason{Text: "first promotion"}); err != nil {
			return err
		}
		r = w.expect(r, func(n *coord.Resource) { n.InSync = set }, set.Seq)
		won, err = s.Promote(ctx, r, me, why2)
	default:
		won, err = s.Promote(ctx, r, me, why2)
	}
	if err != nil {
		return err
	}
	w.log.Info("term won", "term", won.Term, "why", why)
	w.hold(true)
	n := w.expect(r, func(n *coord.Resource) {
		n.Primary = &coord.Primary{Node: w.m.o.Node, Term: won.Term, Mod: won.Term, Lease: w.m.o.Session.Lease(), Forced: a.First}
		n.InSync = &coord.InSync{Members: won.InSync, Term: won.Term, Seq: won.Seq}
		if sw := n.Switchover; sw != nil && (sw.To == w.m.o.Node || sw.To == "" && sw.From != w.m.o.Node) {
			n.Switchover = nil
		}
	}, won.Seq)
	if sw := n.Switchover; sw != nil && sw.To == ToNobody && p.Why != decide.Retake {
		w.lifted = sw.Mod
		if err := s.CancelSwitchover(ctx, n); err != nil {
			w.log.Warn("the stop by command is still in etcd", "err", err)
		}
	}
	def, known := w.m.o.Resource(w.name)
	g, ok := w.grantOf(v, n, def)
	if !known || !ok {
		return fmt.Errorf("resource %s is gone", w.name)
	}
	if err := w.replica.Grant(ctx, &g); err != nil {
		return err
	}
	if v.Local.Role == decide.Primary {
		return nil
	}
	return w.become(ctx, v, force)
}

// loss says what a failover may lose.
func (w *worker) loss(a decide.Action, force bool) string {
	if force || a.First && force {
		return "unknown: it was forced"
	}
	w.mu.Lock()
	st := w.local
	w.mu.Unlock()
	weak := map[string]bool{}
	if st != nil {
		for i := range st.Peers {
			if p := st.Peers[i].Protocol; p == "A" || p == "B" {
				weak[p] = true
			}
		}
	}
	switch {
	case weak["A"]:
		return "what was in the send buffer (protocol A)"
	case weak["B"]:
		return "what was in the memory of the peer (protocol B)"
	}
	return "none"
}

// become makes the replicator Primary. After a failure this node waits before it tries again, and lets others go first.
func (w *worker) become(ctx context.Context, _ *decide.View, force bool) error {
	err := w.replica.Promote(ctx, force)
	if err == nil {
		w.m.note(w.name, "promoted", "it is Primary here")
		return nil
	}
	if !errors.Is(err, context.Canceled) {
		w.brake("promotion: " + err.Error())
		w.m.note(w.name, "promotion-failed", err.Error())
	}
	return err
}

// narrow takes nodes out of the in-sync set, or writes it once more; what that answers goes with the next grant.
func (w *worker) narrow(ctx context.Context, r *coord.Resource, a decide.Action) error {
	nodes := a.Nodes
	if len(nodes) == 0 {
		nodes = []string{""} // nobody: it is written unchanged
	}
	for _, n := range nodes {
		text := n + " does not answer"
		switch n {
		case "":
			text = "a node that was about to enter does not answer"
		case w.m.o.Node:
			text = "the disk of " + n + " is gone"
		}
		set, err := w.m.o.Store.RemoveMember(ctx, r, n, coord.Reason{Text: text})
		if err != nil {
			return err
		}
		r = w.expect(r, func(c *coord.Resource) { c.InSync = set }, set.Seq)
	}
	w.answers = append(w.answers, answer{r.InSync.Seq, a.Answers})
	if len(w.answers) > 64 {
		w.answers = w.answers[1:]
	}
	w.m.note(w.name, "in-sync", strings.Join(a.Nodes, ", ")+" left the in-sync set")
	return nil
}

func (w *worker) hold(holds bool) {
	if w.m.o.Holding != nil {
		w.m.o.Holding(w.name, holds)
	}
}
