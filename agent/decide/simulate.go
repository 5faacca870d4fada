package decide

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/hawser-ha/hawser/replicator/control"
)

// World is one resource as every node sees it, for playing what would happen. Nothing is touched.
type World struct {
	Views []View // of the nodes that say something, by name
	Wall  int64  // ns since the loss
	cut   map[[2]string]bool
	dead  map[string]bool
	etcd  bool
}

// Loss is what is lost.
type Loss struct {
	Nodes []string    `json:"nodes,omitempty"` // they die
	Etcd  bool        `json:"etcd,omitempty"`  // etcd does not answer anybody
	Cuts  [][2]string `json:"cuts,omitempty"`  // the replication link between two nodes
}

// Step is one thing that would happen.
type Step struct {
	After time.Duration `json:"after"` // since the loss
	Node  string        `json:"node"`
	Why   Reason        `json:"why"`
	Text  string        `json:"text"`
	Do    []string      `json:"do"`
}

// simulateRounds bounds the play; each round is one decision of each node.
const simulateRounds = 60

// Simulate plays the loss with the decision function itself, and says what would happen, one step after the other.
func Simulate(views []View, loss Loss) []Step {
	w := &World{cut: map[[2]string]bool{}, dead: map[string]bool{}, etcd: !loss.Etcd}
	for _, v := range views {
		w.Views = append(w.Views, v.clone())
	}
	for _, n := range loss.Nodes {
		w.dead[n] = true
	}
	for _, c := range loss.Cuts {
		w.cut[c], w.cut[[2]string{c[1], c[0]}] = true, true
	}
	w.Views = slices.DeleteFunc(w.Views, func(v View) bool { return w.dead[v.Self] })
	steps := []Step{}
	for range simulateRounds {
		w.settle()
		moved := false
		for i := range w.Views {
			v := &w.Views[i]
			p := Decide(v)
			steps = w.record(steps, v, p)
			if len(p.Actions) > 0 && w.apply(v, p) {
				moved = true
				break // look again, all of them: etcd lets one change happen at a time
			}
		}
		if !moved && !w.pass() {
			break
		}
	}
	for i := range w.Views {
		steps = append(steps, w.end(&w.Views[i]))
	}
	return steps
}

// record notes a decision, if the node did not decide just that before.
func (w *World) record(steps []Step, v *View, p Plan) []Step {
	for i := len(steps) - 1; i >= 0; i-- {
		if steps[i].Node == v.Self {
			if steps[i].Why == p.Why && slices.Equal(steps[i].Do, kinds(p)) {
				return steps
			}
			break
		}
	}
	text := p.Why.Text()
	if p.Detail != "" {
		text += " (" + p.Detail + ")"
	}
	return append(steps, Step{After: time.Duration(w.Wall), Node: v.Self, Why: p.Why, Text: text, Do: kinds(p)})
}

// end says how a node stands when nothing more happens.
func (w *World) end(v *View) Step {
	state := "the resource is down"
	switch l := &v.Local; {
	case !l.Up:
	case l.Role == Primary && len(l.Question) > 0:
		state = "Primary, and I/O is frozen"
	case l.Role == Primary && !w.etcd && !w.failsafe(v):
		state = "Primary, and I/O freezes when the lease ends: not every node in sync can promise to keep still"
	case l.Role == Primary && !w.etcd:
		state = "Primary, and serves by the promises of the other nodes in sync"
	case l.Role == Primary:
		state = "Primary, and serves"
	default:
		state = "Secondary"
	}
	if v.Truth.InSync != nil && v.Local.Role == Primary {
		state += "; in sync: " + strings.Join(v.Truth.InSync.names(), ", ")
	}
	return Step{After: time.Duration(w.Wall), Node: v.Self, Text: "in the end: " + state, Do: []string{}}
}

func (w *World) linked(a, b string) bool { return !w.dead[a] && !w.dead[b] && !w.cut[[2]string{a, b}] }

// failsafe says whether every other member of the set can promise this Primary to keep still.
func (w *World) failsafe(v *View) bool {
	for _, n := range v.Truth.InSync.names() {
		if n != v.Self && (!w.linked(v.Self, n) || !v.Local.Links[n]) {
			return false
		}
	}
	return true
}

// settle makes every view agree with the world.
func (w *World) settle() {
	for i := range w.Views {
		v := &w.Views[i]
		v.Truth.Fresh = w.etcd
		if !w.etcd {
			v.Truth.Why = "etcd is lost in this play"
		}
		for n := range w.dead {
			v.setNode(n, func(st *Node) { st.Alive = w.Wall < int64(v.Policy.TTL) })
		}
		links := map[string]bool{}
		for n, up := range v.Local.Links {
			links[n] = up && w.linked(v.Self, n)
			if up && !links[n] && v.Memory.Unlinked == 0 && v.Truth.Holder != nil && v.Truth.Holder.Node == n {
				v.Memory.Unlinked = v.Now
			}
		}
		v.Local.Links = links
		if v.Local.Role == Primary && v.Local.Up {
			w.ask(v, links)
		}
	}
}

// ask opens the question about each member that a Primary waits for and does not reach.
func (w *World) ask(v *View, links map[string]bool) {
	for _, n := range v.Truth.InSync.names() {
		if n == v.Self || links[n] || slices.ContainsFunc(v.Local.Question, func(q control.Question) bool { return q.Peer == n }) {
			continue
		}
		id := uint64(1)
		for _, q := range v.Local.Question {
			id = max(id, q.ID+1)
		}
		id = max(id, v.Memory.Answered+1)
		v.Local.Question = append(slices.Clone(v.Local.Question), control.Question{ID: id, Peer: n, Why: n + " is not connected", Seq: v.Truth.InSync.Seq})
	}
}

// apply does a plan to the world and says whether that changed anything.
func (w *World) apply(v *View, p Plan) bool {
	changed := false
	for _, a := range p.Actions {
		changed = w.do(v, a) || changed
	}
	return changed
}

// all changes what etcd says, in every view.
func (w *World) all(edit func(v *View)) bool {
	for i := range w.Views {
		edit(&w.Views[i])
	}
	return true
}

func (w *World) do(v *View, a Action) bool {
	self := v.Self
	switch a.Kind {
	case Run:
		term := uint64(1)
		if v.Truth.InSync != nil {
			term = v.Truth.InSync.Seq + 1
		}
		w.all(func(o *View) {
			o.Truth.Holder, o.Truth.Last = &Holder{Node: self, Term: term, Mine: o.Self == self}, &Last{Node: self}
			o.Memory.Vacant, o.Memory.SeenHolder = 0, true
			if o.Truth.InSync != nil {
				o.Truth.InSync.Seq = term
			}
		})
		return true
	case BecomePrimary:
		v.Local.Role = Primary
		v.Memory.Asked = false
		return true
	case TakeOver, Release, BreakHolder:
		clean := a.Kind == Release
		return w.all(func(o *View) {
			if o.Truth.Holder != nil {
				o.Truth.Last = &Last{Node: o.Truth.Holder.Node, Clean: clean}
			}
			o.Truth.Holder, o.Memory.Vacant = nil, o.Now
			if clean && o.Local.Write != nil {
				o.Local.Write.Bound = 0
			}
		})
	case Narrow:
		w.all(func(o *View) {
			s := o.Truth.InSync
			s.Seq++
			s.Members = slices.DeleteFunc(slices.Clone(s.Members), func(m control.Member) bool { return slices.Contains(a.Nodes, m.Node) })
		})
		v.Memory.Answered = a.Answers
		v.Local.Question = slices.DeleteFunc(slices.Clone(v.Local.Question), func(q control.Question) bool { return q.ID <= a.Answers })
		return true
	case Widen:
		var add []control.Member
		for _, c := range v.Local.Write.Candidates {
			if slices.Contains(a.Nodes, c.Node) {
				add = append(add, c)
			}
		}
		v.Local.Write.Candidates = nil
		return w.all(func(o *View) {
			s := o.Truth.InSync
			s.Seq++
			for _, c := range add {
				s.Members = append(slices.DeleteFunc(slices.Clone(s.Members), func(m control.Member) bool { return m.Node == c.Node }), c)
			}
		})
	case RunServices:
		v.Local.Services = ServicesRunning
		return true
	case StopServices:
		v.Local.Services = ServicesStopped
		return true
	case Demote, Depose:
		v.Local.Role, v.Local.Question, v.Local.Frozen = Secondary, nil, nil
		return true
	case FenceNode:
		return w.all(func(o *View) {
			o.setNode(a.Nodes[0], func(n *Node) { n.Fence, n.Alive = FenceConfirmed, false })
		})
	case DropSwitch:
		return w.all(func(o *View) { o.Truth.Switch = nil })
	}
	return false
}

// pass lets time pass until the next thing that time alone changes; false: there is none.
func (w *World) pass() bool {
	next := int64(0)
	for i := range w.Views {
		v := &w.Views[i]
		p := Decide(v)
		if p.Until > v.Now && (next == 0 || p.Until-v.Now < next) {
			next = p.Until - v.Now
		}
		if ttl := int64(v.Policy.TTL); len(w.dead) > 0 && w.Wall < ttl && (next == 0 || ttl-w.Wall < next) {
			next = ttl - w.Wall
		}
	}
	if next == 0 {
		return false
	}
	w.Wall += next
	for i := range w.Views {
		v := &w.Views[i]
		v.Now += next
		if h := v.Truth.Holder; h != nil && w.dead[h.Node] && w.Wall >= int64(v.Policy.TTL) && w.etcd {
			v.Truth.Last, v.Truth.Holder, v.Memory.Vacant = &Last{Node: h.Node}, nil, v.Now
		}
	}
	return true
}

// PrintSteps is for people.
func PrintSteps(steps []Step) string {
	var b strings.Builder
	for _, s := range steps {
		fmt.Fprintf(&b, "%6s  %-10s %s", "+"+s.After.Round(100*time.Millisecond).String(), s.Node, s.Text)
		if len(s.Do) > 0 {
			fmt.Fprintf(&b, ": %s", strings.Join(s.Do, ", then "))
		}
		b.WriteByte('\n')
	}
	return b.String()
}
