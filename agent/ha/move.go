package ha

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/hawser-ha/hawser/agent/coord"
	"github.com/hawser-ha/hawser/replicator/control"
)

// Move is a switchover that is asked for.
type Move struct {
	To     string    `json:"to,omitempty"` // "": the best node
	At     time.Time `json:"at,omitzero"`  // zero: now
	By     string    `json:"by,omitempty"`
	DryRun bool      `json:"dry-run,omitempty"`
	Cancel bool      `json:"cancel,omitempty"` // take the one that stands back
}

// Moved is what came, or would come, of it.
type Moved struct {
	From string        `json:"from"`
	To   string        `json:"to"`
	Term uint64        `json:"term,omitempty"` // of the new Primary
	Took time.Duration `json:"took,omitempty"` // from the wish to the new term
	Text string        `json:"text"`
}

// Plan says where a switchover would go, and refuses one that cannot be.
func (m *Manager) planMove(name string, mv Move) (*coord.Resource, *Moved, error) {
	v, err := m.look()
	if err != nil {
		return nil, nil, control.Errorf(control.Unknown, "etcd does not answer: %w", err).On(name, control.All, "")
	}
	r := v.Resource(name)
	if r.Primary == nil {
		return r, nil, control.Errorf(control.Refused, "nobody is Primary").On(name, control.All, "").WithHint("hawser explain " + name)
	}
	t := truth(v, r, r.Primary.Node, 0, time.Now())
	var why []string
	to := ""
	for _, n := range candidates(r, mv.To) {
		reason := ""
		switch st := t.Nodes[n]; {
		case n == r.Primary.Node:
			reason = "it is Primary already"
		case r.InSync.Member(n) == nil:
			reason = "it is not in sync"
		case !st.Alive:
			reason = "its agent is not there"
		case st.Drained:
			reason = "it is drained"
		case st.Maintenance:
			reason = "it is in maintenance"
		case !t.Reports[n].Ready:
			reason = t.Reports[n].Why
			if reason == "" {
				reason = "it says nothing about the resource"
			}
		default:
			to = n
		}
		if to != "" {
			break
		}
		why = append(why, n+": "+reason)
	}
	if to == "" {
		if len(why) == 0 {
			why = []string{"no other node is in sync"}
		}
		return r, nil, control.Errorf(control.Refused, "nobody can take over (%s)", join(why)).On(name, control.All, "").
			WithRule("only a node in the in-sync set takes over").WithHint("hawser status " + name)
	}
	if t.Maintenance {
		return r, nil, control.Errorf(control.Refused, "maintenance is on: nothing is moved").On(name, control.All, "").WithHint("hawser maintenance off")
	}
	if mv.To == "" {
		if w, err := m.worker(name); err == nil {
			if def, ok := m.o.Resource(w.name); ok && def.Policy.Preferred != "" && def.Policy.Preferred != r.Primary.Node {
				p := Move{To: def.Policy.Preferred}
				if _, moved, err := m.planMove(name, p); err == nil {
					return r, moved, nil
				}
			}
		}
	}
	return r, &Moved{From: r.Primary.Node, To: to, Text: fmt.Sprintf("%s is demoted, its services stop first; then %s is promoted", r.Primary.Node, to)}, nil
}

// candidates are those that a move could go to.
func candidates(r *coord.Resource, to string) []string {
	if to != "" {
		return []string{to}
	}
	var list []string
	if r.InSync != nil {
		for _, x := range r.InSync.Members {
			if x.Node != r.Holder() {
				list = append(list, x.Node)
			}
		}
	}
	return list
}

func join(list []string) string {
	s := ""
	for i, x := range list {
		if i > 0 {
			s += "; "
		}
		s += x
	}
	return s
}

// Switchover asks the holder to hand over to another node. It returns when that is written in etcd, not when it is done.
func (m *Manager) Switchover(ctx context.Context, name string, mv Move) (*Moved, error) {
	if mv.Cancel {
		v, err := m.look()
		if err != nil {
			return nil, control.Errorf(control.Unknown, "etcd does not answer: %w", err).On(name, control.All, "")
		}
		r := v.Resource(name)
		if r.Switchover == nil {
			return nil, control.Errorf(control.NotFound, "no switchover is asked for").On(name, control.All, "")
		}
		return &Moved{From: r.Switchover.From, To: r.Switchover.To, Text: "the switchover is cancelled"}, m.o.Store.CancelSwitchover(ctx, r)
	}
	for range 3 {
		r, moved, err := m.planMove(name, mv)
		if err != nil || mv.DryRun {
			return moved, err
		}
		sw := coord.Switchover{To: moved.To, At: mv.At, By: mv.By}
		if !mv.At.IsZero() {
			sw.To = mv.To // who is best is found when its time has come
		}
		_, err = m.o.Store.SetSwitchover(ctx, r, sw)
		if err == nil {
			return moved, nil
		}
		if !errors.Is(err, coord.ErrConflict) {
			return nil, err
		}
		select {
		case <-m.Wait():
		case <-time.After(time.Second):
		case <-ctx.Done():
			return nil, err
		}
	}
	return nil, control.Errorf(control.Busy, "it changes all the time").On(name, control.All, "")
}

// Finish waits until a switchover that was asked for is done, or given up.
func (m *Manager) Finish(ctx context.Context, name string, moved *Moved) (*Moved, error) {
	began, since := time.Now(), m.o.Clock()
	done := *moved
	err := m.until(ctx, name, func(r *coord.Resource) (bool, error) {
		if p := r.Primary; p != nil && p.Node != moved.From {
			done.To, done.Term, done.Took = p.Node, p.Term, time.Since(began)
			done.Text = fmt.Sprintf("%s is Primary", p.Node)
			return true, nil
		}
		if r.Switchover == nil && r.Holder() == moved.From {
			return false, control.Errorf(control.Refused, "%s stays Primary: the switchover was given up", moved.From).On(name, control.All, "").WithHint("hawser history " + name)
		}
		return false, m.stuck(name, since)
	})
	if err != nil {
		return nil, err
	}
	return &done, nil
}

// Scope is where maintenance is: a node, a resource, or with neither the cluster.
type Scope struct {
	Node     string `json:"node,omitempty"`
	Resource string `json:"resource,omitempty"`
}

// SetMaintenance turns it on or off.
func (m *Manager) SetMaintenance(ctx context.Context, where Scope, on bool, by, why string) error {
	return m.maintenance(ctx, func(c *coord.Maintenance) {
		p := &coord.Pause{By: by, Why: why, Since: time.Now()}
		switch {
		case where.Node != "":
			set(c.Nodes, where.Node, p, on)
		case where.Resource != "":
			set(c.Resources, where.Resource, p, on)
		case on:
			c.Cluster = p
		default:
			c.Cluster = nil
		}
	})
}

// Drain makes a node hand everything over, or lets it hold things again.
func (m *Manager) Drain(ctx context.Context, node string, on bool, by, why string) error {
	return m.maintenance(ctx, func(c *coord.Maintenance) {
		set(c.Drained, node, &coord.Pause{By: by, Why: why, Since: time.Now()}, on)
	})
}

func set(in map[string]*coord.Pause, key string, p *coord.Pause, on bool) {
	if on {
		in[key] = p
	} else {
		delete(in, key)
	}
}

func (m *Manager) maintenance(ctx context.Context, edit func(*coord.Maintenance)) error {
	for {
		changed := m.Wait()
		v, err := m.look()
		if err != nil {
			return control.Errorf(control.Unknown, "etcd does not answer: %w", err)
		}
		if err = m.o.Store.ChangeMaintenance(ctx, v, edit); !errors.Is(err, coord.ErrConflict) {
			return err
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return err
		}
	}
}

// Held lists the resources that a node holds.
func (m *Manager) Held(node string) ([]string, error) {
	v, err := m.look()
	if err != nil {
		return nil, err
	}
	var list []string
	for name, r := range v.Resources {
		if r.Holder() == node {
			list = append(list, name)
		}
	}
	slices.Sort(list)
	return list, nil
}
