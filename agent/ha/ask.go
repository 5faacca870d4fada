package ha

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/hawser-ha/hawser/agent/coord"
	"github.com/hawser-ha/hawser/agent/decide"
	"github.com/hawser-ha/hawser/replicator/control"
)

// settle answers a person who waits for a promotion.
func (w *worker) settle(v *decide.View, e *decide.Explanation, err error) {
	w.mu.Lock()
	a := w.asked
	w.mu.Unlock()
	if a == nil {
		return
	}
	var answer error
	switch why := e.Plan.Why; {
	case err != nil && coord.Conflicts(err):
		return
	case err != nil && errors.Is(err, control.Bound):
		return // promises end by themselves: the loop tries again
	case err != nil:
		answer = err
	case v.Local.Role == decide.Primary && (why == decide.Steady || why == decide.StartServices || why == decide.CoPrimary || why == decide.Caught || why == decide.PeerGone):
	case len(e.Plan.Actions) > 0 || why == decide.Promised || why == decide.EtcdSilent || why == decide.NotFenced:
		return
	default:
		code := control.Refused
		switch why {
		case decide.NotUp:
			code = control.NotRunning
		case decide.Following:
			code = control.PeerPrimary
		}
		text := why.Text()
		if e.Plan.Detail != "" {
			text += ": " + e.Plan.Detail
		}
		answer = control.Errorf(code, "%s", text).On(w.name, control.All, "").WithRule(string(why)).WithHint("hawser explain " + w.name)
	}
	w.mu.Lock()
	if w.asked == a {
		w.asked = nil
	}
	w.mu.Unlock()
	select {
	case a.done <- answer:
	default:
	}
}

// Promote makes this node Primary, because a person asks for it. force: though it may lack writes that others have.
func (m *Manager) Promote(ctx context.Context, name string, force bool, why string) error {
	w, err := m.worker(name)
	if err != nil {
		return err
	}
	v, err := m.look()
	if err != nil {
		return control.Errorf(control.Unknown, "etcd does not answer: %w", err).On(name, control.All, "")
	}
	r := v.Resource(name)
	if p := r.Primary; p != nil && p.Node != m.o.Node {
		if r.InSync.Member(m.o.Node) != nil {
			if def, ok := m.o.Resource(name); ok && def.Policy.TwoPrimaries {
				return w.replica.Promote(ctx, false)
			}
		}
		return control.Errorf(control.PeerPrimary, "%s is Primary (term %d)", p.Node, p.Term).On(name, control.All, p.Node).
			WithHint(fmt.Sprintf("hawser switchover %s --to %s", name, m.o.Node))
	}
	a := &ask{force: force, why: why, done: make(chan error, 1)}
	w.mu.Lock()
	if w.asked != nil {
		w.mu.Unlock()
		return control.Errorf(control.Busy, "another promotion is under way").On(name, control.All, "")
	}
	w.asked = a
	w.mu.Unlock()
	w.wake()
	select {
	case err := <-a.done:
		return err
	case <-ctx.Done():
		w.mu.Lock()
		if w.asked == a {
			w.asked = nil
		}
		w.mu.Unlock()
		return control.Errorf(control.Unknown, "no outcome yet: %w", context.Cause(ctx)).On(name, control.All, "").WithHint("hawser explain " + name)
	}
}

// Demote makes the resource Primary nowhere until somebody is promoted by command.
func (m *Manager) Demote(ctx context.Context, name, by string) error {
	v, err := m.look()
	if err != nil {
		return control.Errorf(control.Unknown, "etcd does not answer: %w", err).On(name, control.All, "")
	}
	r := v.Resource(name)
	if r.Holder() != m.o.Node {
		w, err := m.worker(name)
		if err != nil {
			return err
		}
		return w.replica.Demote(ctx, false) // the second of two primaries, or none at all
	}
	began := m.o.Clock()
	if _, err := m.o.Store.SetSwitchover(ctx, r, coord.Switchover{To: ToNobody, By: by}); err != nil {
		return err
	}
	return m.until(ctx, name, func(r *coord.Resource) (bool, error) {
		if r.Holder() == "" {
			return true, nil
		}
		return false, m.stuck(name, began)
	})
}

// stuck is why a holder that should leave does not.
func (m *Manager) stuck(name string, since int64) error {
	w, err := m.worker(name)
	if err != nil {
		return err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if e := w.last; e != nil && e.View.Memory.Braked > since {
		return control.Errorf(control.InUse, "%s", e.View.Memory.BrakeWhy).On(name, control.All, "")
	}
	return nil
}

// until waits for the resource to be as it should.
func (m *Manager) until(ctx context.Context, name string, done func(*coord.Resource) (bool, error)) error {
	tick := time.NewTicker(200 * time.Millisecond)
	defer tick.Stop()
	for {
		changed := m.Wait()
		if v, err := m.look(); err == nil {
			if ok, err := done(v.Resource(name)); ok || err != nil {
				return err
			}
		}
		select {
		case <-changed:
		case <-tick.C:
		case <-ctx.Done():
			return control.Errorf(control.Unknown, "no outcome yet: %w", context.Cause(ctx)).On(name, control.All, "").WithHint("hawser explain " + name)
		}
	}
}
