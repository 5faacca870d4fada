package coord

import (
	"context"
	"fmt"
	"maps"
	"time"
)

// FencingState says how far the fencing of a node is.
type FencingState string

// Values of FencingState.
const (
	FencingRunning    FencingState = "running"    // By is at it
	FencingConfirmed  FencingState = "confirmed"  // it is off, or was since
	FencingFailed     FencingState = "failed"     // nothing worked; the node counts as alive
	FencingUnreadable FencingState = "unreadable" // written by another version: counts as running
)

// Fencing is what is done about a node that does not answer.
type Fencing struct {
	Node  string       `json:"node"`
	State FencingState `json:"state"`
	By    string       `json:"by"`
	Why   string       `json:"why,omitempty"`
	Since time.Time    `json:"since"`
	// Lease and Boot are those that the node had when it began: what is confirmed is the death of that life.
	Lease LeaseID `json:"lease,omitempty"`
	Boot  string  `json:"boot,omitempty"`
	// Poison: the node is to end itself as soon as it reads this. Taken: it is about to.
	Poison bool      `json:"poison,omitempty"`
	Taken  bool      `json:"taken,omitempty"`
	Method string    `json:"method,omitempty"` // what confirmed it, or failed
	Ended  time.Time `json:"ended,omitzero"`
	Op     string    `json:"op"`
	Mod    uint64    `json:"-"`
}

// BeginFencing says that this node fences another one, if nobody else does, and nobody fences this node. v is what it was decided on.
func (s *Store) BeginFencing(ctx context.Context, v *View, node, why string, poison bool) (*Fencing, error) {
	what := "begin to fence " + node
	_, guard, err := s.lease()
	if err != nil {
		return nil, fmt.Errorf("%s: %w", what, err)
	}
	f := &Fencing{Node: node, State: FencingRunning, By: s.node, Why: why, Since: time.Now(), Poison: poison, Op: s.op()}
	if n := v.Nodes[node]; n != nil {
		f.Lease, f.Boot = n.Lease, n.Boot
	}
	var was uint64
	if old := v.Fencing[node]; old != nil {
		if old.State == FencingRunning && old.By != s.node && v.Nodes[old.By] != nil {
			return nil, fmt.Errorf("%s: %w: %s is at it", what, ErrConflict, old.By)
		}
		was = old.Mod
		if f.Lease == 0 { // its key has run out meanwhile: it is the same life
			f.Lease, f.Boot = old.Lease, old.Boot
		}
	}
	var mine uint64
	if me := v.Fencing[s.node]; me != nil {
		if me.State != FencingFailed {
			return nil, fmt.Errorf("%s: %w: %s fences this node (%s)", what, ErrConflict, me.By, me.State)
		}
		mine = me.Mod
	}
	return s.putFencing(ctx, what, f, was, guard, Compare{s.prefix + keyFencing + s.node, Mod, mine})
}

// EndFencing says how it ended. After FencingConfirmed the keys of the node's life can be taken from it: Evict.
func (s *Store) EndFencing(ctx context.Context, f *Fencing, state FencingState, method string) (*Fencing, error) {
	g := *f
	g.State, g.Method, g.Ended, g.Op = state, method, time.Now(), s.op()
	return s.putFencing(ctx, fmt.Sprintf("fencing of %s: %s", f.Node, state), &g, f.Mod)
}

// TakePoison says that this node has read that it is to end itself, and will.
func (s *Store) TakePoison(ctx context.Context, f *Fencing) (*Fencing, error) {
	if f.Node != s.node {
		return nil, fmt.Errorf("take the poison of %s: %w: it is not this node", f.Node, ErrRefused)
	}
	g := *f
	g.Taken, g.Op = true, s.op()
	return s.putFencing(ctx, "take the poison", &g, f.Mod)
}

func (s *Store) putFencing(ctx context.Context, what string, f *Fencing, was uint64, more ...Compare) (*Fencing, error) {
	key := s.prefix + keyFencing + f.Node
	t := Txn{If: append([]Compare{{key, Mod, was}}, more...), Then: []Op{put(key, f, 0)}}
	var err error
	f.Mod, err = s.change(ctx, what, t, key, f.Op)
	if err != nil {
		return nil, err
	}
	return f, nil
}

// ClearFencing removes the record: the node is back, or a person says that it is well.
func (s *Store) ClearFencing(ctx context.Context, f *Fencing) error {
	return s.remove(ctx, "clear the fencing of "+f.Node, s.prefix+keyFencing+f.Node, f.Mod)
}

// Evict ends the lease of a node whose death is confirmed, and with it all that the node held. A node that has started again has another lease
// and keeps it.
func (s *Store) Evict(ctx context.Context, f *Fencing) error {
	if f.State != FencingConfirmed {
		return fmt.Errorf("evict %s: %w: its death is not confirmed (%s)", f.Node, ErrRefused, f.State)
	}
	if f.Lease == 0 {
		return nil // nothing was held when it began
	}
	if err := s.b.Revoke(ctx, f.Lease); err != nil {
		return fmt.Errorf("evict %s: %w", f.Node, err)
	}
	return nil
}

// ChangeMaintenance changes what v says of it.
func (s *Store) ChangeMaintenance(ctx context.Context, v *View, edit func(*Maintenance)) error {
	m := v.Maintenance
	m.Nodes, m.Resources, m.Drained = maps.Clone(m.Nodes), maps.Clone(m.Resources), maps.Clone(m.Drained)
	for _, to := range []*map[string]*Pause{&m.Nodes, &m.Resources, &m.Drained} {
		if *to == nil {
			*to = map[string]*Pause{}
		}
	}
	edit(&m)
	m.Op = s.op()
	key := s.prefix + keyMaintenance
	_, err := s.change(ctx, "maintenance", Txn{If: []Compare{{key, Mod, v.Maintenance.Mod}}, Then: []Op{put(key, m, 0)}}, key, m.Op)
	return err
}
