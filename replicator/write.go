package replicator

import (
	"context"
	"time"

	"github.com/hawser-ha/hawser/replicator/control"
	"github.com/hawser-ha/hawser/replicator/core"
)

// coordinated says whether an arbiter grants licences here.
func (r *Resource) coordinated() error {
	if r.records == nil {
		return control.Errorf(control.Refused, "nobody grants licences here: coordination is none").On(r.name, control.All, "")
	}
	return nil
}

// holderOf is a node as the Machine names the holder of a term.
func (r *Resource) holderOf(node string) int {
	switch node {
	case "":
		return core.Nobody
	case r.Definition().Node:
		return core.Self
	}
	for _, p := range r.peers {
		if p.def.Load().Name == node {
			return p.idx
		}
	}
	return core.Stranger
}

// holderName is the reverse.
func (r *Resource) holderName(holder int) string {
	switch {
	case holder == core.Self:
		return r.Definition().Node
	case holder >= 0:
		return r.peerName(holder)
	}
	return ""
}

func disksOf(m *control.Member) map[int]uint64 {
	if m == nil {
		return nil
	}
	out := make(map[int]uint64, len(m.Disks))
	for v, id := range m.Disks {
		out[v] = uint64(id)
	}
	return out
}

// Grant takes what the agent knows of who may write.
func (r *Resource) Grant(ctx context.Context, g *control.Grant) error {
	if err := r.coordinated(); err != nil {
		return err
	}
	if g.Term == 0 {
		return control.Errorf(control.Usage, "a grant is about a term").On(r.name, control.All, "")
	}
	c := &core.Grant{Term: g.Term, Seq: g.Seq, Answers: g.Answers, Holder: r.holderOf(g.Holder), Until: core.Now(g.Until), CoPrimary: g.CoPrimary,
		Self: disksOf(g.Member(r.Definition().Node))}
	for _, p := range r.peers {
		c.Members = append(c.Members, disksOf(g.Member(p.def.Load().Name)))
	}
	return r.told(r.do(ctx, func(at core.Now, cmd *command) { r.m.Grant(at, c, cmd) }), control.All, "")
}

// Deposed makes a Primary of that term Secondary, and takes its devices away.
func (r *Resource) Deposed(ctx context.Context, d control.Deposed) error {
	if err := r.coordinated(); err != nil {
		return err
	}
	return r.told(r.do(ctx, func(at core.Now, cmd *command) { r.m.Depose(at, d.Term, cmd) }), control.All, "")
}

// Candidacy says whether a promise keeps this node from running for primary.
func (r *Resource) Candidacy(_ context.Context, q control.Candidacy) (*control.CandidacyAnswer, error) {
	if err := r.coordinated(); err != nil {
		return nil, err
	}
	if q.For < 0 {
		return nil, control.Errorf(control.Usage, "candidacy for %s", q.For).On(r.name, control.All, "")
	}
	t := r.lock()
	defer r.unlock(t)
	return &control.CandidacyAnswer{Bound: time.Duration(r.m.Candidacy(now(), core.Now(q.For), q.Dead))}, nil
}

// member is a node with its disks.
func member(node string, disks map[int]uint64) control.Member {
	m := control.Member{Node: node, Disks: make(map[int]control.UUID, len(disks))}
	for v, id := range disks {
		m.Disks[v] = control.UUID(id)
	}
	return m
}

// writeStatus is who may write. r.mu is held.
func (r *Resource) writeStatus(w *core.View) *control.WriteStatus {
	l := w.Licence
	if l == nil {
		return nil
	}
	self := r.Definition().Node
	s := &control.WriteStatus{Term: l.Term, Holder: r.holderName(l.Holder), Seq: l.Seq, CoPrimary: l.CoPrimary, Right: rightOf(l), Now: int64(now()),
		Lease: int64(l.Lease), Failsafe: int64(l.Failsafe), Bound: int64(l.Bound), InSync: []control.Member{}, Waits: []string{}, Candidates: []control.Member{}}
	if !l.Unlimited {
		s.Until = int64(l.Until)
	}
	if l.Self != nil {
		s.InSync = append(s.InSync, member(self, l.Self))
	}
	if l.SelfJoins {
		s.Candidates = append(s.Candidates, member(self, l.SelfDevice))
	}
	for i, p := range w.Peers {
		if i < len(l.Members) && l.Members[i] != nil {
			s.InSync = append(s.InSync, member(p.Name, l.Members[i]))
		}
		if p.Awaited {
			s.Waits = append(s.Waits, p.Name)
		}
		if r.candidate(w, i) {
			disks := map[int]uint64{}
			for j := range w.Volumes {
				disks[w.Volumes[j].Number] = w.Volumes[j].Links[i].Device
			}
			s.Candidates = append(s.Candidates, member(p.Name, disks))
		}
	}
	return s
}

// candidate says whether a peer may be added to the in-sync set.
func (r *Resource) candidate(w *core.View, i int) bool {
	p := &w.Peers[i]
	return p.Awaited && p.Qualified && !p.Member
}

// rightOf is by which right the licence holds.
func rightOf(l *core.LicenceView) string {
	switch {
	case l.Expired || l.Until == 0:
		return control.RightNone
	case l.Unlimited:
		return control.RightUnlimited
	case l.Until == l.Lease:
		return control.RightLease
	}
	return control.RightFailsafe
}
