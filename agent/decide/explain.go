package decide

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/hawser-ha/hawser/replicator/control"
)

// Explanation is a decision with all that led to it.
type Explanation struct {
	View    View     `json:"view"`
	Plan    Plan     `json:"plan"`
	Rule    string   `json:"rule"`
	Inputs  []Input  `json:"inputs"`
	Changes []Change `json:"changes"`
}

// Input is one thing that was looked at.
type Input struct {
	Name  string `json:"name"`
	Value string `json:"value"`
}

// Change is what would make another decision of it.
type Change struct {
	If      string   `json:"if"`
	Then    string   `json:"then"`
	Why     Reason   `json:"why"`
	Actions []string `json:"actions"`
}

// Explain decides, and says on what and what would change it. The changes are found by asking Decide again.
func Explain(v View) Explanation {
	p := Decide(&v)
	e := Explanation{View: v, Plan: p, Rule: p.Why.Text(), Inputs: inputs(&v), Changes: []Change{}}
	for _, w := range whatIfs {
		c := v.clone()
		text := w(&c)
		if text == "" {
			continue
		}
		q := Decide(&c)
		if q.Why == p.Why && slices.Equal(kinds(q), kinds(p)) {
			continue
		}
		e.Changes = append(e.Changes, Change{text, q.Why.Text(), q.Why, kinds(q)})
	}
	return e
}

func kinds(p Plan) []string {
	list := []string{}
	for _, a := range p.Actions {
		list = append(list, string(a.Kind))
	}
	return list
}

func (v *View) clone() View {
	c := *v
	c.Truth.Nodes, c.Truth.Reports = maps.Clone(v.Truth.Nodes), maps.Clone(v.Truth.Reports)
	if c.Truth.Nodes == nil {
		c.Truth.Nodes = map[string]Node{}
	}
	if v.Truth.InSync != nil {
		s := *v.Truth.InSync
		s.Members = slices.Clone(s.Members)
		c.Truth.InSync = &s
	}
	if v.Local.Write != nil {
		w := *v.Local.Write
		c.Local.Write = &w
	}
	return c
}

func (v *View) setNode(name string, change func(*Node)) {
	n := v.Truth.Nodes[name]
	change(&n)
	v.Truth.Nodes[name] = n
}

// whatIfs each change one thing and say which; "": it does not apply.
var whatIfs = []func(*View) string{
	func(v *View) string {
		if v.Truth.Fresh {
			return ""
		}
		v.Truth.Fresh = true
		return "etcd answers again"
	},
	func(v *View) string {
		if !v.frozen() {
			return ""
		}
		v.Truth.Maintenance = false
		v.setNode(v.Self, func(n *Node) { n.Maintenance = false })
		return "maintenance ends"
	},
	func(v *View) string {
		if v.Local.Up {
			return ""
		}
		v.Local.Up, v.Local.Maybe, v.Local.Role = true, false, Secondary
		return "the resource is up here"
	},
	func(v *View) string {
		m := v.Truth.InSync.Member(v.Self)
		if v.Truth.InSync == nil || m != nil && v.me() || len(v.Local.Disks) == 0 {
			return ""
		}
		v.Local.DiskGood, v.Local.UpToDate, v.Local.Unvouch = true, true, false
		set := v.Truth.InSync
		set.Members = slices.DeleteFunc(set.Members, func(m control.Member) bool { return m.Node == v.Self })
		set.Members = append(set.Members, control.Member{Node: v.Self, Disks: v.Local.Disks})
		return "a resync to this node ends and the Primary adds it to the in-sync set"
	},
	func(v *View) string {
		if h := v.Truth.Holder; h == nil || h.Node == v.Self {
			return ""
		}
		v.Truth.Last = &Last{Node: v.Truth.Holder.Node, Clean: true}
		text := v.Truth.Holder.Node + " gives the key back"
		v.Truth.Holder, v.Memory.Vacant, v.Memory.SeenHolder = nil, v.Now-int64(time.Hour), true
		return text
	},
	func(v *View) string {
		h := v.Truth.Holder
		if h == nil || h.Node == v.Self {
			return ""
		}
		v.setNode(h.Node, func(n *Node) { n.Alive = false })
		v.Truth.Last = &Last{Node: h.Node}
		v.Truth.Holder, v.Memory.Vacant, v.Memory.SeenHolder = nil, v.Now-int64(time.Hour), true
		return h.Node + " dies and its lease ends"
	},
	func(v *View) string {
		if v.Truth.Holder == nil || v.Truth.Holder.Node != v.Self {
			return ""
		}
		v.Truth.Holder = nil
		return "the lease of this node ends"
	},
	func(v *View) string {
		last := v.Truth.Last
		if last == nil || last.Clean || last.Node == v.Self || v.Truth.Holder != nil {
			return ""
		}
		v.setNode(last.Node, func(n *Node) { n.Fence = FenceConfirmed })
		return last.Node + " is fenced for sure (hawser fence confirm " + last.Node + ")"
	},
	func(v *View) string {
		if v.Policy.Auto {
			return ""
		}
		v.Policy.Auto = true
		return "auto-promote is on"
	},
	func(v *View) string {
		if v.Truth.Stopped == "" {
			return ""
		}
		v.Truth.Stopped = ""
		return "the stop is lifted (hawser primary " + v.Resource + ")"
	},
	func(v *View) string {
		if !v.Truth.Nodes[v.Self].Drained {
			return ""
		}
		v.setNode(v.Self, func(n *Node) { n.Drained = false })
		return "this node is not drained any more (hawser drain --undo " + v.Self + ")"
	},
	func(v *View) string {
		s := v.Truth.Switch
		if s == nil || v.Truth.Fresh && !s.Due {
			return ""
		}
		v.Truth.Switch = nil
		return "the switchover is cancelled"
	},
	func(v *View) string {
		if len(v.Local.Question) == 0 {
			return ""
		}
		v.Local.Question, v.Local.Frozen = nil, nil
		return "the peer that does not answer comes back"
	},
	func(v *View) string {
		at := Decide(v).Until
		if at <= v.Now {
			return ""
		}
		text := fmt.Sprintf("%s pass", seconds(at-v.Now))
		v.Now = at
		return text
	},
	func(v *View) string {
		if v.Truth.Holder != nil && v.Truth.Holder.Node == v.Self {
			return ""
		}
		v.Memory.Asked = true
		return "a person says hawser primary " + v.Resource
	},
	func(v *View) string {
		if v.Truth.Holder != nil || v.me() || len(v.Local.Disks) == 0 {
			return ""
		}
		v.Memory.Asked, v.Memory.Force = true, true
		return "a person says hawser primary --force " + v.Resource + " (what only other nodes have may be lost)"
	},
}

// seconds writes a time of the boot clock as people read it.
func seconds(ns int64) string {
	d := time.Duration(ns)
	if d > 10*time.Second || d < -10*time.Second {
		return d.Round(time.Second).String()
	}
	return d.Round(100 * time.Millisecond).String()
}

func yes(b bool) string {
	if b {
		return "yes"
	}
	return "no"
}

func or(s, empty string) string {
	if s == "" {
		return empty
	}
	return s
}

// inputs lists what the decision was made of.
func inputs(v *View) []Input {
	t, l, m := &v.Truth, &v.Local, &v.Memory
	var in []Input
	add := func(name, format string, args ...any) { in = append(in, Input{name, fmt.Sprintf(format, args...)}) }
	etcd := "answers"
	if !t.Fresh {
		etcd = "does not answer: " + or(t.Why, "nothing is known yet")
	}
	add("etcd", "%s", etcd)
	switch h := t.Holder; {
	case h == nil && t.Last == nil:
		add("holder", "nobody, nor ever was")
	case h == nil && t.Last.Clean:
		add("holder", "nobody; %s gave it back", t.Last.Node)
	case h == nil:
		add("holder", "nobody; the lease of %s ended", t.Last.Node)
	case h.Node == v.Self && !h.Mine:
		add("holder", "this node, by the lease of an earlier agent, term %d", h.Term)
	case h.Node == v.Self:
		add("holder", "this node, term %d", h.Term)
	default:
		add("holder", "%s, term %d", h.Node, h.Term)
	}
	if t.InSync == nil {
		add("in-sync set", "none: there was no promotion yet")
	} else {
		add("in-sync set", "%s (%d)", strings.Join(t.InSync.names(), ", "), t.InSync.Seq)
	}
	switch {
	case l.Maybe:
		add("replicator", "does not answer: %s", l.Why)
	case !l.Up:
		add("replicator", "down%s", prefixed(": ", l.Why))
	default:
		add("replicator", "up, %s, disk %s", l.Role, or(l.DiskText, "none"))
	}
	if l.Up {
		add("in sync here", "%s", yes(v.me()))
	}
	if l.Unvouch {
		add("disk remembered", "no")
	}
	if len(l.Frozen) > 0 {
		add("I/O", "frozen: %s", strings.Join(l.Frozen, ", "))
	}
	for _, q := range l.Question {
		add("open question", "%d, about %s: %s", q.ID, or(q.Peer, "the own disk"), q.Why)
	}
	if w := l.Write; w != nil {
		if len(w.Candidates) > 0 {
			var names []string
			for _, c := range w.Candidates {
				names = append(names, c.Node)
			}
			add("candidates", "%s", strings.Join(names, ", "))
		}
		if l.Role == Primary {
			switch {
			case w.Right == control.RightUnlimited:
				add("licence", "unlimited: no other node is in sync")
			case w.Until > v.Now:
				add("licence", "%s more, by %s", seconds(w.Until-v.Now), w.Right)
			default:
				add("licence", "none")
			}
		}
		if w.Bound > v.Now {
			add("promise", "not to run for primary for %s", seconds(w.Bound-v.Now))
		}
	}
	if l.Services != ServicesNone {
		add("services", "%s%s", l.Services, prefixed(": ", l.ServText))
	}
	for _, n := range v.Policy.Nodes {
		if n == v.Self {
			continue
		}
		st := t.Nodes[n]
		var words []string
		if st.Alive {
			words = append(words, "there")
		} else {
			words = append(words, "not there")
		}
		if linked, ok := l.Links[n]; ok && linked {
			words = append(words, "link up")
		} else if l.Up {
			words = append(words, "link down")
		}
		if st.Drained {
			words = append(words, "drained")
		}
		if st.Maintenance {
			words = append(words, "maintenance")
		}
		if st.Fence != FenceNone {
			words = append(words, "fencing "+string(st.Fence))
		}
		if why, ok := v.ready(n); ok {
			words = append(words, "could take over")
		} else {
			words = append(words, "could not take over: "+why)
		}
		add("node "+n, "%s", strings.Join(words, ", "))
	}
	if v.frozen() {
		add("maintenance", "on")
	}
	if t.Nodes[v.Self].Drained {
		add("drained", "this node")
	}
	if t.Stopped != "" {
		add("stopped", "%s", t.Stopped)
	}
	if s := t.Switch; s != nil {
		due := "due"
		if !s.Due {
			due = "not due yet"
		}
		add("switchover", "to %s, %s%s", or(s.To, "any other"), due, prefixed(", by ", s.By))
	}
	if m.Brake > v.Now {
		add("brake", "%s more: %s", seconds(m.Brake-v.Now), m.BrakeWhy)
	}
	policy := "auto-promote " + yes(v.Policy.Auto)
	if v.Policy.Preferred != "" {
		policy += ", preferred-node " + v.Policy.Preferred + ", failback " + yes(v.Policy.Failback)
	}
	if v.Policy.Fencing {
		policy += ", fencing"
	}
	add("policy", "%s", policy)
	return in
}

func prefixed(with, s string) string {
	if s == "" {
		return ""
	}
	return with + s
}

// Print writes the explanation for people.
func (e *Explanation) Print(w io.Writer) {
	fmt.Fprintf(w, "%s on %s\n\n", e.View.Resource, e.View.Self)
	wide := 0
	for _, i := range e.Inputs {
		wide = max(wide, len(i.Name))
	}
	for _, i := range e.Inputs {
		fmt.Fprintf(w, "  %-*s  %s\n", wide, i.Name, i.Value)
	}
	fmt.Fprintf(w, "\nrule     %s: %s\n", e.Plan.Why, e.Rule)
	if e.Plan.Detail != "" {
		fmt.Fprintf(w, "         %s\n", e.Plan.Detail)
	}
	fmt.Fprintf(w, "does     %s\n", or(strings.Join(kinds(e.Plan), ", then "), "nothing"))
	if e.Plan.Until > e.View.Now {
		fmt.Fprintf(w, "until    %s from now\n", seconds(e.Plan.Until-e.View.Now))
	}
	if len(e.Changes) > 0 {
		fmt.Fprintf(w, "\nwhat would change that\n")
	}
	for _, c := range e.Changes {
		fmt.Fprintf(w, "  if %s:\n     %s: %s", c.If, c.Why, c.Then)
		if len(c.Actions) > 0 {
			fmt.Fprintf(w, "; %s", strings.Join(c.Actions, ", then "))
		}
		fmt.Fprintln(w)
	}
}
