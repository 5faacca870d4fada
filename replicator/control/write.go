package control

import (
	"context"
	"time"
)

// Values of Definition.Coordination.
const (
	CoordinationNone = "none" // Pacemaker or a person decides: the licence is unlimited
	CoordinationEtcd = "etcd" // the agent decides through etcd, and grants licences
)

// Member is a node of the in-sync set with the disks that are meant: a disk that was made anew is another one.
type Member struct {
	Node  string       `json:"node"`
	Disks map[int]UUID `json:"disks"` // device UUID by volume number
}

// Same reports whether both name the same node with the same disks.
func (m Member) Same(o Member) bool {
	if m.Node != o.Node || len(m.Disks) != len(o.Disks) {
		return false
	}
	for v, id := range m.Disks {
		if got, ok := o.Disks[v]; !ok || got != id {
			return false
		}
	}
	return true
}

// Grant is what the agent knows of who may write (docs/adr/0006). It may be sent again, and out of order: what is older
// than what the replicator knows, by Term, then Seq, is refused as Stale.
type Grant struct {
	Term   uint64   `json:"term"`    // the promotion this is about; made durable before it is answered
	Seq    uint64   `json:"seq"`     // of InSync: the revision of its key
	InSync []Member `json:"in-sync"` // who has every acknowledged write
	Holder string   `json:"holder"`  // the node that holds the term; "": nobody
	// Until ends the lease of this node on CLOCK_BOOTTIME in ns, the margin taken off; 0: it has none. With the same term
	// the latest one counts.
	Until int64 `json:"until"`
	// CoPrimary: this node may be Primary beside Holder.
	CoPrimary bool `json:"co-primary,omitempty"`
	// Answers is the newest question that the agent had seen before it began the transaction that wrote Seq. Open
	// questions up to it whose peer is not in InSync are closed: nobody waits for that peer any more.
	Answers uint64 `json:"answers,omitempty"`
}

// Member finds a node of the in-sync set, nil: it is not in it.
func (g *Grant) Member(node string) *Member {
	for i := range g.InSync {
		if g.InSync[i].Node == node {
			return &g.InSync[i]
		}
	}
	return nil
}

// Deposed says that somebody else holds Term, or nobody does any more. A Primary of a term up to it fails the requests that wait
// and becomes Secondary, as by secondary --force.
type Deposed struct {
	Term uint64 `json:"term"`
}

// Candidacy asks whether this node may run for primary: a promise not to, given to a primary over the replication link, binds.
type Candidacy struct {
	For  time.Duration `json:"for"`            // for so long no promise is given, if the node is free; 0: only ask
	Dead bool          `json:"dead,omitempty"` // the primary is confirmed dead: promises to it bind no more
}

// CandidacyAnswer answers it.
type CandidacyAnswer struct {
	Bound time.Duration `json:"bound"` // the node must not run for primary before so much time has passed; 0: it is free
}

// Question is one that only the arbiter can answer: may I/O go on without that peer, or without the own disk? Under etcd a
// Grant answers (Answers), otherwise the handler fence-peer. Writes wait meanwhile.
type Question struct {
	ID    uint64    `json:"id"`             // grows within the life of a replicator
	Peer  string    `json:"peer,omitempty"` // "": the own disk
	Why   string    `json:"why"`            // for people
	Seq   uint64    `json:"seq"`            // of the in-sync set when it was opened: the answer has a higher one
	Since time.Time `json:"since"`
	// NotBefore is when it can be answered, CLOCK_BOOTTIME in ns: a second primary was promised so; 0: at once.
	NotBefore int64 `json:"not-before,omitempty"`
	// Promotion: the question is asked before a promotion, I/O does not wait for it.
	Promotion bool `json:"promotion,omitempty"`
}

// Rights by which a Primary serves I/O.
const (
	RightNone      = "none"      // it may not serve, or is not Primary
	RightUnlimited = "unlimited" // coordination none, or no other member is in sync
	RightLease     = "lease"
	RightFailsafe  = "failsafe" // every other member has promised not to run for primary
)

// WriteStatus is who may write, as this replicator knows it.
type WriteStatus struct {
	Term      uint64   `json:"term"`    // the highest seen, durable
	Holder    string   `json:"holder"`  // who holds it; "" nobody, or not known
	Seq       uint64   `json:"seq"`     // of InSync
	InSync    []Member `json:"in-sync"` // of the newest grant
	CoPrimary bool     `json:"co-primary,omitempty"`
	Right     string   `json:"right"`              // none, unlimited, lease, failsafe
	Until     int64    `json:"until,omitempty"`    // end of the licence, CLOCK_BOOTTIME in ns; 0: none or unlimited
	Lease     int64    `json:"lease,omitempty"`    // end of the lease of the newest grant, the same clock
	Failsafe  int64    `json:"failsafe,omitempty"` // end of the earliest promise of the other members
	Now       int64    `json:"now"`                // the same clock, at this status
	// Waits are the peers whose acknowledgement a write needs: the members of InSync, and others that have everything.
	Waits []string `json:"waits"`
	// Candidates have everything and are waited for, but are not in InSync: the agent may add them.
	Candidates []Member `json:"candidates"`
	// Bound is until when this node has promised not to run for primary, CLOCK_BOOTTIME in ns; 0: it is free.
	Bound int64 `json:"bound,omitempty"`
}

// Grant tells the replicator who may write. It is answered once the term is durable.
func (c *Client) Grant(ctx context.Context, g *Grant) error { return c.Call(ctx, "do/grant", g, nil) }

// Deposed tells the replicator that it holds that term no more; answered once it is Secondary.
func (c *Client) Deposed(ctx context.Context, d Deposed) error {
	return c.Call(ctx, "do/deposed", d, nil)
}

// Candidacy asks whether this node may run for primary.
func (c *Client) Candidacy(ctx context.Context, q Candidacy) (*CandidacyAnswer, error) {
	a := new(CandidacyAnswer)
	if err := c.Call(ctx, "do/candidacy", q, a); err != nil {
		return nil, err
	}
	return a, nil
}
