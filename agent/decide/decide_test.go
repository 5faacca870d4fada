package decide

import (
	"testing"
	"time"

	"github.com/hawser-ha/hawser/replicator/control"
)

// space enumerates the product of small choices.
type space struct {
	sizes []int
	at    []int
}

// next gives the next choice of a dimension of n values, in the order of the calls in one round.
type chooser struct {
	s *space
	i int
}

func (c *chooser) of(n int) int {
	if c.i == len(c.s.at) {
		c.s.at, c.s.sizes = append(c.s.at, 0), append(c.s.sizes, n)
	}
	c.i++
	return c.s.at[c.i-1]
}

func (c *chooser) bool() bool { return c.of(2) == 1 }

// each calls f with every combination.
func each(f func(c *chooser)) int {
	s, rounds := &space{}, 0
	for {
		f(&chooser{s: s})
		rounds++
		i := len(s.at) - 1
		for i >= 0 && s.at[i]+1 == s.sizes[i] {
			i--
		}
		if i < 0 {
			return rounds
		}
		s.at[i]++
		s.at, s.sizes = s.at[:i+1], s.sizes[:i+1]
	}
}

var now = int64(time.Hour)

// small is a view of n1 among n1 and n2 that c chooses.
func small(c *chooser) View {
	v := View{Now: now, Self: "n1", Resource: "r0", Policy: Policy{Nodes: []string{"n1", "n2"}, TTL: 5 * time.Second, BootWait: time.Minute},
		Memory: Memory{SeenHolder: true, Booted: now - int64(time.Hour), Vacant: now - int64(time.Minute)}}
	v.Policy.Auto = c.bool()
	v.Truth.Fresh = c.bool()
	switch c.of(4) {
	case 1:
		v.Truth.Holder = &Holder{Node: "n1", Term: 7, Mine: true}
	case 2:
		v.Truth.Holder = &Holder{Node: "n1", Term: 7}
	case 3:
		v.Truth.Holder = &Holder{Node: "n2", Term: 7}
	}
	m1, m2 := control.Member{Node: "n1", Disks: map[int]control.UUID{0: 1}}, control.Member{Node: "n2", Disks: map[int]control.UUID{0: 2}}
	switch c.of(4) {
	case 1:
		v.Truth.InSync = &InSync{Seq: 8, Members: []control.Member{m1}}
	case 2:
		v.Truth.InSync = &InSync{Seq: 8, Members: []control.Member{m2}}
	case 3:
		v.Truth.InSync = &InSync{Seq: 8, Members: []control.Member{m1, m2}}
	}
	n1, n2 := Node{Alive: true}, Node{Alive: c.bool()}
	v.Truth.Maintenance = c.bool()
	switch c.of(4) {
	case 1:
		n1.Drained = true
	case 2:
		v.Truth.Switch = &Switchover{To: "n2", Due: true, From: "n1"}
	case 3:
		v.Truth.Stopped = "by a person"
	}
	v.Policy.Fencing = c.bool()
	v.Truth.Last = &Last{Node: "n2"}
	if v.Policy.Fencing {
		n2.Fence = []Fence{FenceNone, FenceConfirmed, FenceUncertain}[c.of(3)]
	}
	v.Truth.Nodes = map[string]Node{"n1": n1, "n2": n2}
	v.Truth.Reports = map[string]Report{"n2": {Ready: n2.Alive, Role: Secondary}}
	l := &v.Local
	l.Disks = map[int]control.UUID{0: 1}
	l.DiskGood, l.UpToDate, l.Role = true, true, Secondary
	l.Write = &control.WriteStatus{Seq: 7}
	switch c.of(6) {
	case 0:
		l.Up = true
	case 1:
		l.Up, l.Role = true, Primary
	case 2:
		l.Maybe = true
	case 3:
		l.Up, l.Disks = true, map[int]control.UUID{0: 9} // another disk
	case 4:
		l.Up, l.Unvouch = true, true
	case 5:
		l.Up, l.DiskGood, l.UpToDate = true, false, false
	}
	l.Services = []Services{ServicesStopped, ServicesRunning}[c.of(2)]
	open := 0
	if l.Role == Primary { // only a Primary asks and has candidates
		open = c.of(4)
	}
	switch open {
	case 1:
		l.Question = []control.Question{{ID: 3, Peer: "n2", Seq: 8}}
	case 2:
		l.Question = []control.Question{{ID: 3, Seq: 8}}
	case 3:
		l.Write.Candidates = []control.Member{m2}
	}
	switch c.of(4) {
	case 1:
		l.Write.Bound = now + 1
	case 2:
		v.Memory.Asked = true
	case 3:
		v.Memory.Brake = now + 1
	}
	return v
}

// TestWhatMayNeverHappen looks at every small view.
func TestWhatMayNeverHappen(t *testing.T) {
	fails := 0
	fail := func(v *View, p Plan, what string) {
		if fails++; fails < 5 {
			e := Explain(*v)
			e.Print(t.Output())
			t.Errorf("%s: %+v", what, p)
		}
	}
	seen := map[Reason]int{}
	rounds := each(func(c *chooser) {
		v := small(c)
		p := Decide(&v)
		seen[p.Why]++
		set, l := v.Truth.InSync, &v.Local
		if p.Why == "" || p.Why.Text() == "" {
			fail(&v, p, "no reason")
		}
		if !v.Truth.Fresh && len(p.Actions) > 0 {
			fail(&v, p, "acts on what etcd said long ago")
		}
		demoted, stopped := l.Role != Primary || !l.Up, !l.Services.up()
		for _, a := range p.Actions {
			switch a.Kind {
			case Run:
				switch {
				case v.Truth.Holder != nil:
					fail(&v, p, "runs while somebody holds the key")
				case a.First && !v.Memory.Asked:
					fail(&v, p, "makes an in-sync set unasked")
				case a.First && set != nil && !v.Memory.Force:
					fail(&v, p, "throws an in-sync set away")
				case !a.First && set.Member("n1") == nil:
					fail(&v, p, "runs and is not in sync")
				case a.First && !l.UpToDate && !v.Memory.Force:
					fail(&v, p, "takes a disk for good that is not")
				case !a.First && l.Role != Primary && (!l.DiskGood || l.Unvouch || l.Disks[0] != 1):
					fail(&v, p, "runs with a bad disk")
				case l.Role != Primary && l.Write.Bound > v.Now && !a.Dead:
					fail(&v, p, "breaks its promise")
				case l.Role != Primary && v.frozen():
					fail(&v, p, "is promoted in maintenance")
				case l.Role != Primary && !v.Memory.Asked && (!v.Policy.Auto || v.Truth.Nodes["n1"].Drained || v.Truth.Stopped != "" || v.Memory.Brake > v.Now):
					fail(&v, p, "is promoted though it should not")
				case l.Role != Primary && v.Policy.Fencing && !v.Truth.Nodes["n2"].Alive && v.Truth.Nodes["n2"].Fence != FenceConfirmed:
					fail(&v, p, "runs before the last Primary is fenced")
				case a.Dead && v.Truth.Nodes["n2"].Fence != FenceConfirmed:
					fail(&v, p, "takes for dead what is not")
				}
			case BreakHolder:
				if v.Truth.Nodes["n2"].Fence != FenceConfirmed || v.Truth.Holder.Node != "n2" || v.frozen() {
					fail(&v, p, "removes the key of a node that may live")
				}
			case Narrow:
				switch {
				case !v.Truth.Holder.Mine:
					fail(&v, p, "changes the set without holding the key")
				case len(a.Nodes) >= len(set.Members):
					fail(&v, p, "empties the set")
				}
			case Widen:
				if !v.Truth.Holder.Mine || l.Role != Primary || len(l.Write.Candidates) == 0 || len(l.Question) > 0 {
					fail(&v, p, "adds what has not everything")
				}
			case BecomePrimary:
				if !v.Truth.Holder.Mine || set.Member("n1") == nil || l.Role == Primary || v.frozen() {
					fail(&v, p, "becomes Primary without right")
				}
			case RunServices:
				if l.Role != Primary || !v.Truth.Holder.Mine || v.frozen() {
					fail(&v, p, "starts services without right")
				}
			case StopServices:
				stopped = true
				if v.frozen() && !p.Has(Depose) {
					fail(&v, p, "stops services in maintenance")
				}
				if l.Role == Primary && v.Truth.Holder != nil && v.Truth.Holder.Mine && !p.Has(Depose) && !v.frozen() {
					if _, ok := v.ready("n2"); !ok && v.Truth.Stopped == "" {
						fail(&v, p, "stops what nobody else can run")
					}
				}
			case Demote:
				if !stopped {
					fail(&v, p, "demotes under running services")
				}
				demoted = true
			case Release:
				if !demoted || !stopped || !v.Truth.Holder.Mine {
					fail(&v, p, "gives the key back before it has stepped down")
				}
				if v.frozen() {
					fail(&v, p, "gives the key back in maintenance")
				}
			case Depose:
				if l.Role != Primary || v.Truth.Holder != nil && v.Truth.Holder.Node == "n1" {
					fail(&v, p, "deposes itself")
				}
			case FenceNode:
				for _, n := range a.Nodes {
					if n == "n1" || !v.Policy.Fencing || v.frozen() || v.Truth.Nodes[n].Fence != FenceNone {
						fail(&v, p, "fences without reason")
					}
				}
			case TakeOver, DropSwitch:
			default:
				fail(&v, p, "unknown action "+string(a.Kind))
			}
		}
		if p.Has(Run) && !v.Memory.Asked { // each of these alone keeps it from running
			for _, spoil := range []func(*View){
				func(v *View) { v.Truth.Holder = &Holder{Node: "n2", Term: 9} },
				func(v *View) { v.Truth.Fresh = false },
				func(v *View) { v.Truth.InSync = &InSync{Seq: 9, Members: []control.Member{{Node: "n2"}}} },
			} {
				w := v.clone()
				spoil(&w)
				if q := Decide(&w); q.Has(Run) {
					fail(&w, q, "still runs")
				}
			}
		}
		// A Primary of another's term must be told, always.
		if v.Truth.Fresh && l.Up && l.Role == Primary && v.Truth.Holder != nil && v.Truth.Holder.Node == "n2" && !p.Has(Depose) {
			fail(&v, p, "leaves two Primaries")
		}
		// Frozen writes are answered, if the set allows it.
		if v.Truth.Fresh && l.Up && l.Role == Primary && v.Truth.Holder != nil && v.Truth.Holder.Mine && len(l.Question) > 0 && set != nil && p.Why != LastCopy && !p.Has(Narrow) {
			fail(&v, p, "leaves a question open")
		}
	})
	t.Logf("%d views, %d reasons", rounds, len(seen))
	if rounds < 250000 {
		t.Errorf("only %d views: the space is not what it was", rounds)
	}
	for _, r := range []Reason{EtcdSilent, Maintenance, Steady, Following, Deposed, LostPlace, Retake, Adopt, PeerGone, DiskGone, LastCopy, Caught, StartServices, Stopped,
		Switching, SwitchRefused, Draining, DrainRefused, Elected, StepBack, Cleanup, NeverPrimary, NotInSync, BadDisk, Unvouched, OtherDisk, NotAutomatic, Drained,
		Braked, NotFenced, FenceFailed, HolderFenced, Asked, Free, Promised} {
		if seen[r] == 0 {
			t.Errorf("no view gives %s", r)
		}
	}
}
