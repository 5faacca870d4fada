package decide

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

const (
	preferGrace  = 500 * time.Millisecond // a preferred node that is ready has so long to go first
	fenceGrace   = 2 * time.Second        // a holder that is only cut off takes this node out of the in-sync set meanwhile
	failbackWait = 10 * time.Second       // the preferred node stays ready for so long before anything moves
)

// Decide says what to do about one resource on this node, and why.
func Decide(v *View) Plan {
	switch {
	case !slices.Contains(v.Policy.Nodes, v.Self):
		return Plan{Why: NotHere}
	case !v.Truth.Fresh:
		return Plan{Why: EtcdSilent, Detail: v.Truth.Why}
	case v.Local.Maybe:
		return Plan{Why: Silent, Detail: v.Local.Why}
	}
	h := v.Truth.Holder
	switch {
	case h == nil:
		return nobody(v)
	case h.Node != v.Self:
		return another(v)
	case !h.Mine:
		return earlier(v)
	}
	return mine(v)
}

func plan(why Reason, detail string, actions ...Action) Plan {
	return Plan{Actions: actions, Why: why, Detail: detail}
}

// mine: this node holds the key.
func mine(v *View) Plan {
	l := &v.Local
	if v.Truth.Holder.Released && l.Role != Primary {
		return plan(StepBack, "", Action{Kind: Release})
	}
	if p, ok := guard(v); ok {
		return p
	}
	if v.frozen() {
		return Plan{Why: Maintenance}
	}
	if !l.Up {
		if l.Services.up() {
			return plan(ReplicatorGone, l.Why, Action{Kind: StopServices})
		}
		return plan(ReplicatorGone, l.Why, Action{Kind: Release})
	}
	why, detail, until := leave(v)
	stays := why == SwitchRefused || why == DrainRefused || why == Braked || why == SwitchDone
	if l.Role != Primary {
		if stays {
			why = ""
		}
		switch {
		case l.Services.up():
			return plan(Cleanup, l.ServText, Action{Kind: StopServices})
		case why != "":
			return plan(StepBack, reasonText(why, detail), Action{Kind: Release})
		case v.Truth.InSync.Member(v.Self) == nil:
			return plan(StepBack, NotInSync.Text(), Action{Kind: Release})
		case v.Memory.Brake > v.Now:
			return plan(StepBack, v.Memory.BrakeWhy, Action{Kind: Release})
		}
		return plan(Elected, fmt.Sprintf("term %d", v.Truth.Holder.Term), Action{Kind: BecomePrimary})
	}
	switch {
	case stays:
		// It stays, and says why.
	case why != "" && l.Services.up():
		return plan(why, detail, Action{Kind: StopServices})
	case why != "":
		return plan(why, detail, Action{Kind: Demote}, Action{Kind: Release})
	}
	var extra []Action
	if why == SwitchRefused || why == SwitchDone {
		extra = append(extra, Action{Kind: DropSwitch})
	}
	if l.Services == ServicesStopped || l.Services == ServicesUnseen {
		return plan(StartServices, "", append(extra, Action{Kind: RunServices})...)
	}
	if why != "" {
		return Plan{Actions: extra, Why: why, Detail: detail, Until: until}
	}
	return Plan{Why: Steady, Until: until}
}

func reasonText(r Reason, detail string) string {
	if detail == "" {
		return r.Text()
	}
	return r.Text() + " (" + detail + ")"
}

// leave says why this holder should not be Primary (any more); "": nothing speaks against it.
func leave(v *View) (why Reason, detail string, until int64) {
	t, l := &v.Truth, &v.Local
	if v.Memory.Down {
		return GoingDown, "", 0
	}
	if t.Stopped != "" && !v.Memory.Asked {
		return Stopped, t.Stopped, 0
	}
	if l.Role == Primary && v.Memory.Brake > v.Now && (t.Switch != nil && t.Switch.Due || t.Nodes[v.Self].Drained) {
		return Braked, v.Memory.BrakeWhy, v.Memory.Brake
	}
	if s := t.Switch; s != nil && s.Due {
		to := s.To
		if to == v.Self || to == "" && s.From != v.Self {
			return SwitchDone, "", 0
		}
		if to == "" {
			to = v.successor()
		}
		if why, ok := v.ready(to); !ok {
			if to == "" {
				why = "nobody is in sync and ready"
			}
			return SwitchRefused, strings.TrimPrefix(to+": "+why, ": "), 0
		}
		return Switching, "to " + to, 0
	}
	if t.Nodes[v.Self].Drained && !v.Memory.Asked {
		if to := v.successor(); to != "" {
			return Draining, "to " + to, 0
		}
		return DrainRefused, v.whyNobody(), 0
	}
	if l.AskMove {
		if to := v.successor(); to != "" {
			return ServicesFailed, l.ServText + "; to " + to, 0
		}
	}
	if p := v.Policy.Preferred; v.Policy.Failback && p != "" && p != v.Self && l.Role == Primary {
		if _, ok := v.ready(p); ok && v.Memory.Steady != 0 {
			due := v.Memory.Steady + int64(failbackWait)
			if due <= v.Now {
				return FailingBack, "to " + p, 0
			}
			return "", "", due
		}
	}
	return "", "", 0
}

// whyNobody says of each other node why it cannot take over.
func (v *View) whyNobody() string {
	var list []string
	for _, n := range v.Policy.Nodes {
		if why, ok := v.ready(n); !ok && n != v.Self {
			list = append(list, n+": "+why)
		}
	}
	return strings.Join(list, "; ")
}

// guard answers questions and adds candidates: who may write, in maintenance too.
func guard(v *View) (Plan, bool) {
	l, set := &v.Local, v.Truth.InSync
	if !l.Up || l.Role != Primary || set == nil {
		return Plan{}, false
	}
	var gone, asked []string
	answers, self := uint64(0), false
	for i := range l.Question {
		q := &l.Question[i]
		if q.Promotion {
			continue
		}
		answers = max(answers, q.ID)
		name := q.Peer
		if name == "" {
			name, self = v.Self, true
		}
		asked = append(asked, name)
		if set.Member(name) != nil {
			gone = append(gone, name)
		}
	}
	// Answered already: the replicator waits for its own promise to end, or has not said yet that it does not.
	done := l.Write != nil && l.Write.Seq >= set.Seq && len(gone) == 0 && v.Memory.Answered >= answers
	switch {
	case len(asked) == 0:
	case len(gone) == len(set.Members):
		return Plan{Why: LastCopy, Detail: "in sync: " + strings.Join(set.names(), ", ")}, true
	case done:
		return Plan{Why: Promised, Until: l.notBefore()}, true
	case self:
		return plan(DiskGone, strings.Join(asked, ", "), Action{Kind: Narrow, Nodes: gone, Answers: answers}), true
	default:
		return plan(PeerGone, strings.Join(asked, ", "), Action{Kind: Narrow, Nodes: gone, Answers: answers}), true
	}
	var add []string
	if l.Write != nil {
		for _, c := range l.Write.Candidates {
			if m := set.Member(c.Node); (m == nil || !m.Same(c)) && slices.Contains(v.Policy.Nodes, c.Node) {
				add = append(add, c.Node)
			}
		}
	}
	if len(add) > 0 {
		return plan(Caught, strings.Join(add, ", "), Action{Kind: Widen, Nodes: add}), true
	}
	return Plan{}, false
}

func (l *Local) notBefore() int64 {
	until := int64(0)
	for _, q := range l.Question {
		until = max(until, q.NotBefore)
	}
	return until
}

// earlier: the key names this node, and is not of this agent's lease.
func earlier(v *View) Plan {
	l := &v.Local
	if l.Role == Primary && v.Truth.InSync.Member(v.Self) != nil {
		return plan(Adopt, fmt.Sprintf("term %d", v.Truth.Holder.Term), Action{Kind: TakeOver})
	}
	// Its lease ends by itself, and then nobody holds it; that a service still runs is found then, too.
	return Plan{Why: StepBack, Detail: "the key of an earlier agent of this node ends with its lease"}
}

// another: another node holds the key.
func another(v *View) Plan {
	l, h := &v.Local, v.Truth.Holder
	held := fmt.Sprintf("%s, term %d", h.Node, h.Term)
	if l.Up && l.Role == Primary {
		if v.Policy.TwoPrimaries && v.Truth.InSync.Member(v.Self) != nil {
			return Plan{Why: CoPrimary, Detail: held}
		}
		if l.Services.up() {
			return plan(Deposed, held, Action{Kind: Depose}, Action{Kind: StopServices})
		}
		return plan(Deposed, held, Action{Kind: Depose})
	}
	if v.frozen() {
		return Plan{Why: Maintenance, Detail: held}
	}
	if l.Services.up() {
		return plan(Cleanup, l.ServText, Action{Kind: StopServices})
	}
	f := v.Truth.Nodes[h.Node].Fence
	free := v.clone() // what was promised to a node binds while it lives
	if free.Local.Write != nil {
		free.Local.Write.Bound = 0
	}
	mayRun, _, _ := eligible(&free)
	switch {
	case f == FenceConfirmed && mayRun:
		return plan(HolderFenced, held, Action{Kind: BreakHolder, Nodes: []string{h.Node}})
	case v.Policy.Fencing && mayRun && v.Memory.Unlinked != 0 && f == FenceNone:
		due := v.Memory.Unlinked + int64(fenceGrace)
		if due > v.Now {
			return Plan{Why: Following, Detail: held + "; it does not answer, and is fenced if that lasts", Until: due}
		}
		return plan(FenceHolder, held, Action{Kind: FenceNode, Nodes: []string{h.Node}})
	}
	return Plan{Why: Following, Detail: held}
}

// nobody holds the key.
func nobody(v *View) Plan {
	l, set := &v.Local, v.Truth.InSync
	if l.Up && l.Role == Primary {
		switch {
		case set.Member(v.Self) != nil:
			return plan(Retake, "", Action{Kind: Run})
		case l.Services.up():
			return plan(LostPlace, "", Action{Kind: Depose}, Action{Kind: StopServices})
		}
		return plan(LostPlace, "", Action{Kind: Depose})
	}
	if v.frozen() {
		return Plan{Why: Maintenance}
	}
	if l.Services.up() {
		return plan(Cleanup, l.ServText, Action{Kind: StopServices})
	}
	ok, why, p := eligible(v)
	if !ok {
		p.Why = why
		return p
	}
	run := Action{Kind: Run, First: set == nil || why == Forced}
	if last := v.Truth.Last; last != nil && !last.Clean && last.Node != v.Self {
		switch f := v.Truth.Nodes[last.Node].Fence; {
		case f == FenceConfirmed:
			run.Dead = true
		case !v.Policy.Fencing || v.Truth.Nodes[last.Node].Alive:
			// Alive: it will find that it is deposed, and stops its services before its lease ends again.
		case f == FenceNone:
			return plan(NotFenced, last.Node, Action{Kind: FenceNode, Nodes: []string{last.Node}})
		case f == FenceUncertain:
			return Plan{Why: FenceFailed, Detail: last.Node}
		default:
			return Plan{Why: NotFenced, Detail: last.Node + " is being fenced"}
		}
	}
	return plan(why, p.Detail, run)
}

// lastIsDead: who held the term last is off for sure.
func (v *View) lastIsDead() bool {
	l := v.Truth.Last
	return v.Truth.Holder == nil && l != nil && l.Node != v.Self && v.Truth.Nodes[l.Node].Fence == FenceConfirmed
}

// eligible says whether this Secondary may run for primary, by which rule, and until when to wait if not.
func eligible(v *View) (ok bool, why Reason, p Plan) {
	l, m, t := &v.Local, &v.Memory, &v.Truth
	no := func(why Reason, detail string, until int64) (bool, Reason, Plan) {
		return false, why, Plan{Detail: detail, Until: until}
	}
	set, w := t.InSync.Member(v.Self), l.Write
	switch { // what nobody can overrule, or only --force
	case m.Down:
		return no(GoingDown, "", 0)
	case !l.Up:
		return no(NotUp, l.Why, 0)
	case w != nil && w.Bound > v.Now && !v.lastIsDead():
		return no(Promised, "", w.Bound)
	case m.Force && (set == nil || !v.me()):
		if len(l.Disks) == 0 {
			return no(BadDisk, l.DiskText, 0)
		}
		return true, Forced, Plan{}
	case t.InSync == nil && !m.Asked:
		return no(NeverPrimary, "hawser primary "+v.Resource, 0)
	case t.InSync == nil && !l.UpToDate:
		return no(NeverPrimary, "the disk is "+l.DiskText+": hawser primary --force "+v.Resource, 0)
	case t.InSync == nil:
	case set == nil:
		return no(NotInSync, "in sync: "+strings.Join(t.InSync.names(), ", "), 0)
	case !l.DiskGood:
		return no(BadDisk, l.DiskText, 0)
	case l.Unvouch:
		return no(Unvouched, l.DiskText, 0)
	case !v.me():
		return no(OtherDisk, "", 0)
	}
	if m.Asked {
		return true, Asked, Plan{}
	}
	sw := t.Switch
	switch { // what holds for what is done without being asked
	case t.Stopped != "":
		return no(Stopped, t.Stopped, 0)
	case m.Brake > v.Now:
		return no(Braked, m.BrakeWhy, m.Brake)
	case t.Nodes[v.Self].Drained:
		return no(Drained, "", 0)
	case l.AskMove && v.successor() != "":
		return no(ServicesFailed, l.ServText, 0)
	case sw != nil && sw.Due && sw.To == v.Self:
		return true, Switching, Plan{Detail: "to " + v.Self}
	case !v.Policy.Auto:
		return no(NotAutomatic, "hawser primary "+v.Resource, 0)
	}
	if sw != nil && sw.Due && !sw.Late && (sw.To != "" || sw.From == v.Self) {
		to := sw.To
		if to == "" {
			to = v.successor()
		}
		if _, ready := v.ready(to); ready {
			return no(SwitchWait, to, 0)
		}
	}
	if gone := v.missing(); len(gone) > 0 && !m.SeenHolder && m.Booted+int64(v.Policy.BootWait) > v.Now {
		return no(BootWait, strings.Join(gone, ", "), m.Booted+int64(v.Policy.BootWait))
	}
	if pref := v.Policy.Preferred; pref != "" && pref != v.Self && m.Vacant+int64(preferGrace) > v.Now {
		if _, ready := v.ready(pref); ready {
			return no(Prefers, pref, m.Vacant+int64(preferGrace))
		}
	}
	return true, Free, Plan{}
}
