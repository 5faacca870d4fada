package coord

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/hawser-ha/hawser/replicator/control"
)

// statusTries is how often a status is written that somebody has changed: it is ours alone, but may have run out.
const statusTries = 3

// Promotion is a term that was won.
type Promotion struct {
	Term   uint64
	Seq    uint64
	InSync []control.Member
}

// Reason is what the history says of a change.
type Reason struct {
	Text string
	Data json.RawMessage
}

func (s *Store) key(r *Resource, what string) string {
	return s.prefix + keyResources + r.Name + "/" + what
}

// entry is the operation that adds to the history of a resource, and those that cut its oldest end off.
func (s *Store) entry(r *Resource, e Entry, op string) []Op {
	e.Time, e.Node, e.Op = cmpTime(e.Time), cmp.Or(e.Node, s.node), op
	ops := []Op{put(fmt.Sprintf("%s%020d-%s", s.key(r, keyHistory), e.Time.UnixNano(), op), e, 0)}
	for i := range min(len(r.History)-historyMax+1, 8) {
		ops = append(ops, Op{Key: r.History[i].Key, Delete: true})
	}
	return ops
}

func cmpTime(t time.Time) time.Time {
	if t.IsZero() {
		return time.Now()
	}
	return t
}

func checkReadable(r *Resource) error {
	if r.Problem != "" {
		return fmt.Errorf("%w: resource %s: %s", ErrRefused, r.Name, r.Problem)
	}
	return nil
}

// Promote makes this node primary if nobody is, it is in the in-sync set with these disks, and the set is as r says. A switchover to
// this node is over with it.
func (s *Store) Promote(ctx context.Context, r *Resource, me control.Member, why Reason) (*Promotion, error) {
	what := "promote " + r.Name
	if err := checkReadable(r); err != nil {
		return nil, fmt.Errorf("%s: %w", what, err)
	}
	if r.Primary != nil {
		return nil, fmt.Errorf("%s: %w: %s holds it", what, ErrConflict, r.Primary.Node)
	}
	if m := r.InSync.Member(s.node); m == nil || !m.Same(me) || me.Node != s.node {
		return nil, fmt.Errorf("%s: %w: node %s with disks %v", what, ErrNotInSync, s.node, me.Disks)
	}
	return s.promote(ctx, what, r, r.InSync.Members, Entry{Kind: EntryPromote, Text: why.Text, Data: why.Data})
}

// Force makes this node primary if nobody is, and the only member of the in-sync set. It breaks the chain of acknowledged writes on purpose.
func (s *Store) Force(ctx context.Context, r *Resource, me control.Member, why Reason) (*Promotion, error) {
	what := "promote " + r.Name + " by force"
	if r.Primary != nil {
		return nil, fmt.Errorf("%s: %w: %s holds it", what, ErrConflict, r.Primary.Node)
	}
	if me.Node != s.node {
		return nil, fmt.Errorf("%s: %w: %s is not this node", what, ErrRefused, me.Node)
	}
	return s.promote(ctx, what, r, []control.Member{me}, Entry{Kind: EntryForce, Text: why.Text, Data: why.Data})
}

func (s *Store) promote(ctx context.Context, what string, r *Resource, members []control.Member, e Entry) (*Promotion, error) {
	lease, guard, err := s.lease()
	if err != nil {
		return nil, fmt.Errorf("%s: %w", what, err)
	}
	op, seq := s.op(), uint64(0)
	if r.InSync != nil {
		seq = r.InSync.Seq
	}
	p := Primary{Node: s.node, Why: e.Text, Since: time.Now(), Forced: e.Kind == EntryForce, Op: op}
	t := Txn{
		If: []Compare{{s.key(r, keyPrimary), Mod, 0}, {s.key(r, keyInSync), Mod, seq}, guard},
		Then: append([]Op{
			put(s.key(r, keyPrimary), p, lease),
			put(s.key(r, keyInSync), InSync{Members: members, Op: op}, 0),
		}, s.entry(r, e, op)...),
	}
	if sw := r.Switchover; sw != nil && (sw.To == s.node || sw.To == "" && sw.From != s.node) {
		t.If = append(t.If, Compare{s.key(r, keySwitchover), Mod, sw.Mod})
		t.Then = append(t.Then, Op{Key: s.key(r, keySwitchover), Delete: true})
	}
	term, err := s.change(ctx, what, t, s.key(r, keyPrimary), op)
	if err != nil {
		return nil, err
	}
	return &Promotion{Term: term, Seq: term, InSync: members}, nil
}

// Release gives a term of this node back, whoever's lease it has. That it is gone already is no error.
func (s *Store) Release(ctx context.Context, r *Resource, term uint64, why Reason) error {
	if r.Primary != nil && r.Primary.Term == term && r.Primary.Node != s.node {
		return fmt.Errorf("release %s: %w: %s holds term %d", r.Name, ErrRefused, r.Primary.Node, term)
	}
	key := s.key(r, keyPrimary)
	_, err := s.send(ctx, Txn{
		If:   []Compare{{key, Create, term}},
		Then: append([]Op{{Key: key, Delete: true}}, s.entry(r, Entry{Kind: EntryRelease, Term: term, Text: why.Text, Data: why.Data}, s.op())...),
	})
	if err != nil {
		return fmt.Errorf("release %s: %w", r.Name, err)
	}
	return nil // not done: the term is over
}

// RemoveMember takes a node out of the in-sync set, if this node holds the term that r says. A node that is not in it makes it be written
// once more, unchanged: an addition still under way fails then. The last member stays.
func (s *Store) RemoveMember(ctx context.Context, r *Resource, node string, why Reason) (*InSync, error) {
	return s.members(ctx, r, Entry{Kind: EntryRemove, Text: why.Text, Data: why.Data}, node, func(list []control.Member) []control.Member {
		return slices.DeleteFunc(list, func(m control.Member) bool { return m.Node == node })
	})
}

// AddMember puts a node with these disks into the in-sync set, in place of what it says of the node, if this node holds the term that r says. The replicator
// must wait for the node already.
func (s *Store) AddMember(ctx context.Context, r *Resource, member control.Member, why Reason) (*InSync, error) {
	return s.members(ctx, r, Entry{Kind: EntryAdd, Text: why.Text, Data: why.Data}, member.Node, func(list []control.Member) []control.Member {
		list = slices.DeleteFunc(list, func(m control.Member) bool { return m.Node == member.Node })
		list = append(list, member)
		slices.SortFunc(list, func(a, b control.Member) int { return cmp.Compare(a.Node, b.Node) })
		return list
	})
}

func (s *Store) members(ctx context.Context, r *Resource, e Entry, node string, edit func([]control.Member) []control.Member) (*InSync, error) {
	what := fmt.Sprintf("%s %s in the in-sync set of %s", e.Kind, node, r.Name)
	if err := checkReadable(r); err != nil {
		return nil, fmt.Errorf("%s: %w", what, err)
	}
	if r.Holder() != s.node {
		return nil, fmt.Errorf("%s: %w: this node does not hold it (holder: %q)", what, ErrConflict, r.Holder())
	}
	if r.InSync == nil {
		return nil, fmt.Errorf("%s: %w: there is none", what, ErrConflict)
	}
	list := edit(slices.Clone(r.InSync.Members))
	if len(list) == 0 {
		return nil, fmt.Errorf("%s: %w: it is the last member", what, ErrRefused)
	}
	op := s.op()
	set := &InSync{Members: list, Term: r.Primary.Term, Op: op}
	e.Term = r.Primary.Term
	e.Text = cmp.Or(e.Text, node)
	t := Txn{
		If:   []Compare{{s.key(r, keyPrimary), Create, r.Primary.Term}, {s.key(r, keyInSync), Mod, r.InSync.Seq}},
		Then: append([]Op{put(s.key(r, keyInSync), set, 0)}, s.entry(r, e, op)...),
	}
	var err error
	set.Seq, err = s.change(ctx, what, t, s.key(r, keyInSync), op)
	if err != nil {
		return nil, err
	}
	return set, nil
}

// CreateInSync makes the first in-sync set of a resource that was never coordinated.
func (s *Store) CreateInSync(ctx context.Context, r *Resource, members []control.Member, why Reason) (*InSync, error) {
	what := "make the in-sync set of " + r.Name
	if len(members) == 0 {
		return nil, fmt.Errorf("%s: %w: it would be empty", what, ErrRefused)
	}
	op := s.op()
	set := &InSync{Members: members, Op: op}
	t := Txn{
		If:   []Compare{{s.key(r, keyPrimary), Mod, 0}, {s.key(r, keyInSync), Mod, 0}},
		Then: append([]Op{put(s.key(r, keyInSync), set, 0)}, s.entry(r, Entry{Kind: EntryCreate, Text: why.Text, Data: why.Data}, op)...),
	}
	seq, err := s.change(ctx, what, t, s.key(r, keyInSync), op)
	if err != nil {
		return nil, err
	}
	set.Seq, set.Term = seq, seq
	return set, nil
}

// AppendHistory adds a line.
func (s *Store) AppendHistory(ctx context.Context, r *Resource, e Entry) error {
	op := s.op()
	ops := s.entry(r, e, op)
	_, err := s.change(ctx, "history of "+r.Name, Txn{If: []Compare{{ops[0].Key, Mod, 0}}, Then: ops}, ops[0].Key, op)
	return err
}

// PutStatus says what this node knows of a resource; it goes with the node's lease.
func (s *Store) PutStatus(ctx context.Context, resource string, data json.RawMessage) error {
	lease, guard, err := s.lease()
	if err != nil {
		return fmt.Errorf("status of %s: %w", resource, err)
	}
	if !json.Valid(data) {
		return fmt.Errorf("coord: status of %s is not JSON", resource)
	}
	key := s.prefix + keyResources + resource + "/" + keyStatus + s.node
	for range statusTries {
		s.mu.Lock()
		was := s.status[resource]
		s.mu.Unlock()
		// Compared, so that one still under way in a slow member does not come after a newer one.
		t := Txn{If: []Compare{guard, {key, Mod, was}}, Then: []Op{{Key: key, Value: data, Lease: lease}}, Read: []string{guard.Key, key}}
		res, err := s.send(ctx, t)
		if err != nil {
			return fmt.Errorf("status of %s: %w", resource, err)
		}
		mod := res.Revision
		if !res.Done {
			if kv, _ := res.find(guard.Key); kv.Lease != lease {
				return fmt.Errorf("status of %s: %w", resource, t.conflict(&res))
			}
			kv, there := res.find(key)
			mod = kv.Mod
			res.Done = there && kv.Lease == lease && bytes.Equal(kv.Value, data) // it went through before
		}
		s.mu.Lock()
		s.status[resource] = mod
		s.mu.Unlock()
		if res.Done {
			return nil
		}
	}
	return fmt.Errorf("status of %s: %w: another agent of this node writes it too", resource, ErrConflict)
}

// DeleteStatus takes it back, when the resource is gone from this node.
func (s *Store) DeleteStatus(ctx context.Context, resource string) error {
	_, err := s.send(ctx, Txn{Then: []Op{{Key: s.prefix + keyResources + resource + "/" + keyStatus + s.node, Delete: true}}})
	return err
}

// SetSwitchover asks for a move, if the one that stands is as r says and the holder is still the same.
func (s *Store) SetSwitchover(ctx context.Context, r *Resource, sw Switchover) (*Switchover, error) {
	what := "switchover of " + r.Name
	if r.Primary == nil {
		return nil, fmt.Errorf("%s: %w: nobody holds it", what, ErrConflict)
	}
	sw.Op, sw.Since, sw.From = s.op(), cmpTime(sw.Since), r.Primary.Node
	t := Txn{
		If:   []Compare{{s.key(r, keySwitchover), Mod, r.switchoverMod()}, {s.key(r, keyPrimary), Create, r.Primary.Term}},
		Then: []Op{put(s.key(r, keySwitchover), sw, 0)},
	}
	var err error
	sw.Mod, err = s.change(ctx, what, t, s.key(r, keySwitchover), sw.Op)
	if err != nil {
		return nil, err
	}
	return &sw, nil
}

func (r *Resource) switchoverMod() uint64 {
	if r.Switchover == nil {
		return 0
	}
	return r.Switchover.Mod
}

// CancelSwitchover takes back the one that r says. That it is gone already is no error.
func (s *Store) CancelSwitchover(ctx context.Context, r *Resource) error {
	if r.Switchover == nil {
		return nil
	}
	return s.remove(ctx, "cancel the switchover of "+r.Name, s.key(r, keySwitchover), r.Switchover.Mod)
}

// remove deletes a key that has this revision.
func (s *Store) remove(ctx context.Context, what, key string, mod uint64) error {
	t := Txn{If: []Compare{{key, Mod, mod}}, Then: []Op{{Key: key, Delete: true}}, Read: []string{key}}
	res, err := s.send(ctx, t)
	if err == nil && !res.Done {
		if _, there := res.find(key); there {
			err = t.conflict(&res)
		}
	}
	if err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	return nil
}

// PutSpec stores a definition, in place of the one that r says.
func (s *Store) PutSpec(ctx context.Context, r *Resource, text, by string) (*Spec, error) {
	spec := &Spec{Text: text, By: by, Since: time.Now(), Op: s.op()}
	was := uint64(0)
	if r.Spec != nil {
		was = r.Spec.Mod
	}
	key := s.key(r, keySpec)
	var err error
	spec.Mod, err = s.change(ctx, "store the definition of "+r.Name, Txn{If: []Compare{{key, Mod, was}}, Then: []Op{put(key, spec, 0)}}, key, spec.Op)
	if err != nil {
		return nil, err
	}
	return spec, nil
}

// DeleteResource removes everything that is known of a resource, if nobody holds it and definition and in-sync set are as r says.
func (s *Store) DeleteResource(ctx context.Context, r *Resource) error {
	what := "delete " + r.Name
	if r.Primary != nil {
		return fmt.Errorf("%s: %w: %s holds it", what, ErrConflict, r.Primary.Node)
	}
	mods := map[string]uint64{keyPrimary: 0, keySpec: 0, keyInSync: 0, keySwitchover: r.switchoverMod()}
	if r.Spec != nil {
		mods[keySpec] = r.Spec.Mod
	}
	if r.InSync != nil {
		mods[keyInSync] = r.InSync.Seq
	}
	var t Txn
	for _, k := range []string{keyPrimary, keySpec, keyInSync, keySwitchover} {
		key := s.key(r, k)
		t.If, t.Read = append(t.If, Compare{key, Mod, mods[k]}), append(t.Read, key)
		if k != keyPrimary {
			t.Then = append(t.Then, Op{Key: key, Delete: true})
		}
	}
	for _, e := range r.History {
		if len(t.Then) < TxnOpsMax {
			t.Then = append(t.Then, Op{Key: e.Key, Delete: true})
		}
	}
	res, err := s.send(ctx, t)
	if err == nil && !res.Done && len(res.KVs) > 0 {
		err = t.conflict(&res)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	return nil
}

// Conflicts tells whether err says that the change was decided on what is not so any more: look, and decide again.
func Conflicts(err error) bool { return errors.Is(err, ErrConflict) || errors.Is(err, ErrNotInSync) }
