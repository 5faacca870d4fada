package genid

import "fmt"

// Side is what one node brings to the comparison.
type Side struct {
	Set
	Crashed       bool   // it was Primary when it crashed (P_UUIDS flag 2)
	Primary       bool   // its role now
	DiscardMyData bool   // the operator told it to give way (P_UUIDS flag 1)
	DirtyBits     uint64 // set bits as sent in P_UUIDS
}

// Input is both nodes' view and what was agreed between them.
type Input struct {
	Self, Peer       Side
	ResolveConflicts bool // exactly one of the two nodes has this role (section 3)
	Version          int  // agreed protocol version
	WSame            bool // feature WSAME agreed
}

// Mirror is the same situation as the peer sees it.
func (in Input) Mirror() Input {
	in.Self, in.Peer = in.Peer, in.Self
	in.ResolveConflicts = !in.ResolveConflicts
	return in
}

// Result says who has to copy to whom.
type Result int

// The results of section 18. Positive ones make this node the source.
const (
	Equal      Result = 0
	SourceBits Result = 1    // I am source, the bitmap tells the blocks
	TargetBits Result = -1   // I am target, the bitmap tells the blocks
	SourceFull Result = 2    // I am source of everything
	TargetFull Result = -2   // I am target of everything
	SplitBrain Result = 100  // both went on from the same generation
	SplitLong  Result = -100 // both went on, their common past is only in the history
	Unrelated  Result = -1000
	NeedsNewer Result = -1091     // cannot be told with the agreed version; Verdict.Need says what is missing
	Unsolved   Result = SplitLong // no policy and no operator decided
)

// Decided reports whether the result names a source and a target, or equality.
func (r Result) Decided() bool { return r >= TargetFull && r <= SourceFull }

func (r Result) String() string {
	switch r {
	case Equal:
		return "equal"
	case SourceBits:
		return "source, by bitmap"
	case TargetBits:
		return "target, by bitmap"
	case SourceFull:
		return "source, full sync"
	case TargetFull:
		return "target, full sync"
	case SplitBrain:
		return "split brain"
	case SplitLong:
		return "split brain, ancestor only in the history"
	case Unrelated:
		return "unrelated data"
	case NeedsNewer:
		return "peer too old to tell"
	}
	return fmt.Sprintf("Result(%d)", int(r))
}

// Verdict is the outcome of Compare.
type Verdict struct {
	Result Result
	Rule   int // number in the table of section 18
	// Self and Peer are the identifiers after the corrections of rules 34, 35, 51
	// and 71. The caller stores Self when it differs from what it holds, and uses
	// Peer for TargetDone.
	Self, Peer  Set
	NeedVersion int // with NeedsNewer: the protocol version that would do
}

// Versions from which parts of the table are usable.
const (
	versionMissedEnd   = 91 // rules 34 to 37 and the corrections
	versionMissedStart = 96 // the +K test of rules 51 and 71
	versionWSame       = 101
)

// Compare applies the table of section 18; its first matching row decides. Only
// two disks whose current identifiers are both 0 make both nodes compute the
// same direction, and contradictory histories can (see Contradictory).
func Compare(in Input) Verdict {
	s, p := in.Self.Set, in.Peer.Set
	v := Verdict{Self: s, Peer: p}
	c, cp := id(s.Current), id(p.Current)
	none := func(x uint64) bool { return x == 0 || x == JustCreated }
	switch {
	case c == JustCreated && cp == JustCreated:
		v.Result, v.Rule = Equal, 10
	case none(c) && cp != JustCreated:
		v.Result, v.Rule = TargetFull, 20
	case c != JustCreated && none(cp):
		v.Result, v.Rule = SourceFull, 30
	case c == cp:
		v.sameCurrent(in)
	default:
		v.otherCurrent(in)
	}
	return v
}

func (v *Verdict) needs(version int) {
	v.Result, v.NeedVersion = NeedsNewer, version
}

// sameCurrent is the rows 34 to 41.
func (v *Verdict) sameCurrent(in Input) {
	s, p := &v.Self, &v.Peer
	switch {
	case p.Bitmap == 0 && s.Bitmap != 0:
		v.Result, v.Rule = SourceBits, 36
		if id(s.Bitmap) == id(p.History1) && id(s.History1) == id(p.History2) {
			v.Rule = 34
		}
	case s.Bitmap == 0 && p.Bitmap != 0:
		v.Result, v.Rule = TargetBits, 37
		if id(s.History1) == id(p.Bitmap) && id(s.History2) == id(p.History1) {
			v.Rule = 35
		}
	default:
		v.crashed(in)
		return
	}
	if in.Version < versionMissedEnd {
		v.needs(versionMissedEnd)
		return
	}
	switch v.Rule {
	case 34: // I was source and missed the end
		s.Rotate()
	case 35: // the peer was source and missed the end
		p.Rotate()
	}
}

// crashed is the rows 40 and 41: equal data, unless one side died as Primary.
func (v *Verdict) crashed(in Input) {
	me, peer := in.Self, in.Peer
	v.Rule = 40
	switch {
	case !me.Crashed && !peer.Crashed:
		v.Result = Equal
	case me.Primary || peer.Primary:
		v.Rule = 41
		switch {
		case !in.WSame:
			v.needs(versionWSame)
		case me.Primary && peer.Primary:
			v.Result = SplitLong
		case me.Primary:
			v.Result = SourceBits
		default:
			v.Result = TargetBits
		}
	case !peer.Crashed:
		v.Result = SourceBits
	case !me.Crashed:
		v.Result = TargetBits
	case in.ResolveConflicts:
		v.Result = TargetBits
	default:
		v.Result = SourceBits
	}
}

// otherCurrent is the rows 50 to 100.
func (v *Verdict) otherCurrent(in Input) {
	s, p := &v.Self, &v.Peer
	c, cp := id(s.Current), id(p.Current)
	switch {
	case c == id(p.Bitmap):
		v.Result, v.Rule = TargetBits, 50
	case c == id(p.History1) && missedStart(in.Version, p, s):
		v.Result, v.Rule = TargetBits, 51
		v.undoStart(in.Version, p)
	case c == id(p.History1) || c == id(p.History2):
		v.Result, v.Rule = TargetFull, 60
	case id(s.Bitmap) == cp:
		v.Result, v.Rule = SourceBits, 70
	case id(s.History1) == cp && missedStart(in.Version, s, p):
		v.Result, v.Rule = SourceBits, 71
		v.undoStart(in.Version, s)
	case id(s.History1) == cp || id(s.History2) == cp:
		v.Result, v.Rule = SourceFull, 80
	case id(s.Bitmap) == id(p.Bitmap) && s.Bitmap != 0:
		v.Result, v.Rule = SplitBrain, 90
	case sharesHistory(*s, *p):
		v.Result, v.Rule = SplitLong, 100
	default:
		v.Result, v.Rule = Unrelated, 100
	}
}

// missedStart: the source began a resync of which the target never heard.
func missedStart(version int, source, target *Set) bool {
	if version < versionMissedStart {
		return id(target.History1) == id(source.History2)
	}
	return id(source.History1+syncStep) == id(source.Bitmap)
}

func (v *Verdict) undoStart(version int, source *Set) {
	if version < versionMissedEnd {
		v.needs(versionMissedEnd)
		return
	}
	source.Bitmap, source.History1 = source.History1, source.History2
}

func sharesHistory(s, p Set) bool {
	for _, a := range [...]uint64{s.History1, s.History2} {
		for _, b := range [...]uint64{p.History1, p.History2} {
			if id(a) == id(b) {
				return true
			}
		}
	}
	return false
}

// Contradictory reports that the peer, from the same values, does not come to
// the opposite of our result: each node's data looks older than the other's, or
// both currents are 0. No honest history leads there. DRBD follows the table all
// the same and both become target; two hawser nodes refuse to connect.
func Contradictory(in Input) bool {
	mine, theirs := Compare(in).Result, Compare(in.Mirror()).Result
	if mine.Decided() && mine != Equal {
		return mine != -theirs
	}
	return mine != theirs
}

// Leftover decides what to do when Compare says Equal and a side nevertheless
// has dirty bits, for instance after an online verify: equal identifiers are no
// proof of equal blocks. The Primary is the source; without one, the node with
// the resolve-conflicts role, because then either copy is as good. Two Primaries
// cannot be told apart. Equal means that no bit is set. Only for two hawser
// nodes: DRBD itself ignores these bits until its next resync.
func Leftover(in Input) Result {
	switch {
	case in.Self.DirtyBits == 0 && in.Peer.DirtyBits == 0:
		return Equal
	case in.Self.Primary && in.Peer.Primary:
		return SplitLong
	case in.Self.Primary:
		return SourceBits
	case in.Peer.Primary:
		return TargetBits
	case in.ResolveConflicts:
		return SourceBits
	}
	return TargetBits
}
