package genid

import "fmt"

// Policy says who loses after a split brain. The numbers are those of P_PROTOCOL.
type Policy uint32

// The policies, with their numbers on the wire (section 8.3).
const (
	Disconnect Policy = iota
	DiscardYoungerPrimary
	DiscardOlderPrimary
	DiscardZeroChanges
	DiscardLeastChanges
	DiscardLocal
	DiscardRemote
	Consensus
	DiscardSecondary
	CallPriLostAfterSB
	ViolentlyAs0P
)

var policyNames = [...]string{"disconnect", "discard-younger-primary", "discard-older-primary",
	"discard-zero-changes", "discard-least-changes", "discard-local", "discard-remote", "consensus",
	"discard-secondary", "call-pri-lost-after-sb", "violently-as0p"}

// String is the name in drbd.conf.
func (p Policy) String() string {
	if int(p) < len(policyNames) {
		return policyNames[p]
	}
	return fmt.Sprintf("policy-%d", uint32(p))
}

// ParsePolicy finds a policy by its name in drbd.conf.
func ParsePolicy(name string) (Policy, error) {
	for i, n := range policyNames {
		if n == name {
			return Policy(i), nil
		}
	}
	return 0, fmt.Errorf("unknown after-split-brain policy %q", name)
}

// Allowed reports whether p may stand in the slot for that many Primaries: 0, 1
// or 2.
func (p Policy) Allowed(primaries int) bool {
	switch primaries {
	case 0:
		return p <= DiscardRemote
	case 1:
		return p == Disconnect || p >= Consensus && p <= ViolentlyAs0P
	case 2:
		return p == Disconnect || p == CallPriLostAfterSB || p == ViolentlyAs0P
	}
	return false
}

// Mirror is the policy the peer must have configured: discard-local meets
// discard-remote, every other one meets itself.
func (p Policy) Mirror() Policy {
	switch p {
	case DiscardLocal:
		return DiscardRemote
	case DiscardRemote:
		return DiscardLocal
	}
	return p
}

// Policies are the after-sb options of one connection.
type Policies struct {
	SB0, SB1, SB2 Policy // by the number of Primaries: none, one, two
	AlwaysASBP    bool   // use them even when the ancestor is only in the history
}

// Match reports whether two nodes may connect with these policies (section 6).
func (p Policies) Match(peer Policies) bool {
	return p.SB0 == peer.SB0.Mirror() && p.SB1 == peer.SB1.Mirror() && p.SB2 == peer.SB2.Mirror()
}

// Resolution is the way out of a split brain.
type Resolution struct {
	// Result is TargetBits, TargetFull (I lose), SourceBits, SourceFull (the peer
	// loses) or Unsolved.
	Result Result
	// ByPolicy: an after-sb policy decided, not an operator's discard-my-data.
	ByPolicy bool
	// DemoteFirst: I am Primary and must become Secondary before I may lose
	// (call-pri-lost-after-sb). If that is impossible run the handler
	// pri-lost-after-sb and take the result as Unsolved.
	DemoteFirst bool
}

// Resolve settles a comparison that ended in SplitBrain or SplitLong (steps 3 to
// 5 of section 18): first the policies, then discard-my-data. Where the common
// ancestor is only in the history the result is a full sync, since the bitmaps
// need not reach back that far. Other results pass through.
func Resolve(in Input, r Result, p Policies) Resolution {
	if r != SplitBrain && r != SplitLong {
		return Resolution{Result: r}
	}
	res := Resolution{Result: Unsolved}
	if r == SplitBrain || p.AlwaysASBP {
		res = AfterSplitBrain(in, p)
	}
	if res.Result == Unsolved && in.Self.DiscardMyData != in.Peer.DiscardMyData {
		res = Resolution{Result: SourceBits}
		if in.Self.DiscardMyData {
			res.Result = TargetBits
		}
	}
	if r == SplitLong && res.Result.Decided() {
		res.Result *= 2 // the same direction, but all blocks
	}
	return res
}

// AfterSplitBrain applies the after-sb policy for the number of Primaries
// (section 19): TargetBits discards my changes, SourceBits the peer's, Unsolved
// neither.
func AfterSplitBrain(in Input, p Policies) Resolution {
	res := Resolution{Result: Unsolved}
	me, peer := in.Self.Primary, in.Peer.Primary
	policy := p.SB0
	switch {
	case me && peer:
		policy = p.SB2
	case me || peer:
		policy = p.SB1
	}
	switch {
	case !me && !peer:
		res.Result = noPrimary(in, policy)
	case policy == ViolentlyAs0P:
		res.Result = noPrimary(in, p.SB0)
	case policy == CallPriLostAfterSB:
		res.Result = noPrimary(in, p.SB0)
		res.DemoteFirst = res.Result == TargetBits && me
	case me && peer:
	case policy == DiscardSecondary:
		res.Result = winnerIf(me)
	case policy == Consensus:
		if r := noPrimary(in, p.SB0); r == winnerIf(me) {
			res.Result = r
		}
	}
	res.ByPolicy = res.Result != Unsolved
	return res
}

func winnerIf(me bool) Result {
	if me {
		return SourceBits
	}
	return TargetBits
}

// noPrimary is the table of after-sb-0pri.
func noPrimary(in Input, p Policy) Result {
	mine, theirs := in.Self.DirtyBits, in.Peer.DirtyBits
	meThen, peerThen := in.Self.Bitmap&1 != 0, in.Peer.Bitmap&1 != 0 // Primary when the split began
	switch p {
	case DiscardLocal:
		return TargetBits
	case DiscardRemote:
		return SourceBits
	case DiscardYoungerPrimary:
		if meThen != peerThen {
			return winnerIf(meThen)
		}
	case DiscardOlderPrimary:
		if meThen != peerThen {
			return winnerIf(peerThen)
		}
	case DiscardZeroChanges, DiscardLeastChanges:
	default:
		return Unsolved
	}
	switch {
	case mine == theirs && (mine == 0 || p != DiscardZeroChanges):
		return winnerIf(!in.ResolveConflicts)
	case theirs == 0:
		return SourceBits
	case mine == 0:
		return TargetBits
	case p == DiscardZeroChanges:
		return Unsolved
	}
	return winnerIf(mine > theirs)
}
