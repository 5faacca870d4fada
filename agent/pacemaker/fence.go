package pacemaker

import (
	"fmt"

	"github.com/hawser-ha/hawser/replicator/control"
)

// What a fence-peer handler answers. Anything else is: nobody knows.
const (
	PeerUnknown      = 1
	PeerInconsistent = 3
	PeerOutdated     = 4
	PeerUnreachable  = 5
	PeerPrimary      = 6
	PeerStonithed    = 7
)

// FenceView is what the handler sees in one look.
type FenceView struct {
	Me, Peer, Clone string
	Quorum          bool
	Stonith         bool // the cluster fences nodes
	NeedStonith     bool // the resource's option fencing is resource-and-stonith
	Node            NodeState
	MePromoted      bool // as far as Pacemaker knows
	PeerPromoted    bool
	Bans            []Ban
	Confirmed       bool // the peer's own copy of the CIB shows our ban
	SawUnclean      bool // in an earlier look of this run the peer had to be fenced
	Inconsistent    bool // the replicator knows that the peer's data is not whole
}

// Next is what to do after a look.
type Next int

// What to do: write the ban and look again, look again after a while, or answer.
const (
	Answer Next = iota
	Write
	Wait
)

// FenceStep is a decision.
type FenceStep struct {
	Next Next
	Code int // of Answer; of Wait when there is no more time
	Why  string
}

// DecideFence says what to do after one look.
func DecideFence(v FenceView) FenceStep {
	answer := func(code int, format string, args ...any) FenceStep {
		return FenceStep{Answer, code, fmt.Sprintf(format, args...)}
	}
	wait := func(format string, args ...any) FenceStep {
		return FenceStep{Wait, PeerUnknown, fmt.Sprintf(format, args...)}
	}
	banned := false
	for _, b := range v.Bans {
		switch {
		case b.Clone != v.Clone:
		case b.Banned == v.Me:
			return answer(PeerPrimary, "%s may not be promoted: constraint %s, by %s", v.Me, b.ID, b.Owner)
		case b.Banned == v.Peer:
			banned = true
		}
	}
	if v.PeerPromoted && v.Node.Online && !v.MePromoted {
		return answer(PeerPrimary, "%s is promoted, says Pacemaker", v.Peer)
	}
	if !v.Quorum {
		return wait("this partition of the cluster has no quorum")
	}
	if !banned {
		return FenceStep{Next: Write, Why: "the constraint is not there yet"}
	}
	switch {
	case v.Inconsistent:
		return answer(PeerInconsistent, "the data of %s is not whole, and it is kept from being promoted", v.Peer)
	case v.Confirmed && !v.PeerPromoted:
		return answer(PeerOutdated, "%s knows that it may not be promoted", v.Peer)
	case v.Node.Unclean:
		return wait("%s is lost, and not fenced yet", v.Peer)
	case v.Node.Online || v.Node.Pending:
		return wait("%s is in the cluster, and does not confirm that it knows the constraint", v.Peer)
	case !v.Stonith && v.NeedStonith:
		return answer(PeerUnknown, "%s is gone, and nobody fences it: stonith-enabled is false, while fencing is resource-and-stonith", v.Peer)
	case v.SawUnclean:
		return answer(PeerStonithed, "%s was fenced", v.Peer)
	}
	return answer(PeerUnreachable, "%s is not in the cluster", v.Peer)
}

// Removable tells whether node me, with that status of the resource, may remove a ban, and why not.
//
// Only the node that asked for the ban relies on it, so only that one may remove it, or the Primary, since then
// nobody else relies on it. And only when the data of the banned node is as good as any.
func Removable(b Ban, me string, st *control.Status) (bool, string) {
	if b.Owner != me && st.Role != primary {
		return false, fmt.Sprintf("%s asked for it, and %s is not Primary", b.Owner, me)
	}
	if b.Banned == me {
		if b.Owner == me {
			return true, "" // nobody bans itself: made by hand
		}
		for _, v := range st.Volumes {
			if v.DiskState != upToDate {
				return false, fmt.Sprintf("volume %d of %s is %s", v.Number, me, v.DiskState)
			}
		}
		if p := st.Peer(b.Owner); p != nil && p.Connection != connected {
			return false, fmt.Sprintf("%s is not connected to %s", me, b.Owner)
		}
		return true, ""
	}
	p := st.Peer(b.Banned)
	if p == nil {
		return true, "" // it holds no volume any more
	}
	if p.Connection != connected {
		return false, fmt.Sprintf("%s is not connected", b.Banned)
	}
	for _, v := range p.Volumes {
		if v.DiskState != upToDate || v.Replication != established {
			return false, fmt.Sprintf("volume %d of %s is %s, %s", v.Number, b.Banned, v.DiskState, v.Replication)
		}
	}
	return true, ""
}
