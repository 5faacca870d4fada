package ha

import (
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/hawser-ha/hawser/agent/coord"
	"github.com/hawser-ha/hawser/agent/decide"
	"github.com/hawser-ha/hawser/replicator/control"
)

// ToNobody as the target of a switchover says that the resource is to be Primary nowhere.
const ToNobody = "(nobody)"

// switchLate is how long the target of a switchover has to take over before any other node may.
const switchLate = 15 * time.Second

// truth makes of what etcd says what is decided on. session is the lease of this node, 0 none; wall the wall clock.
func truth(v *coord.View, r *coord.Resource, node string, session coord.LeaseID, wall time.Time) decide.Truth {
	t := decide.Truth{Nodes: map[string]decide.Node{}, Reports: map[string]decide.Report{}}
	if p := r.Primary; p != nil {
		t.Holder = &decide.Holder{Node: p.Node, Term: p.Term, Mine: p.Node == node && session != 0 && p.Lease == session}
	}
	if r.InSync != nil {
		t.InSync = &decide.InSync{Seq: r.InSync.Seq, Members: r.InSync.Members}
	}
	t.Last = last(r)
	m := &v.Maintenance
	t.Maintenance = m.Cluster != nil || m.Resources[r.Name] != nil
	see := func(name string) {
		n := decide.Node{Alive: v.Nodes[name] != nil, Drained: m.Drained[name] != nil, Maintenance: m.Nodes[name] != nil}
		if f := v.Fencing[name]; f != nil && (!n.Alive || f.Lease == v.Nodes[name].Lease) { // of this life, not of one before
			n.Fence = map[coord.FencingState]decide.Fence{coord.FencingRunning: decide.FencePending, coord.FencingConfirmed: decide.FenceConfirmed,
				coord.FencingFailed: decide.FenceUncertain, coord.FencingUnreadable: decide.FencePending}[f.State]
		}
		t.Nodes[name] = n
	}
	for name := range v.Nodes {
		see(name)
	}
	for name := range m.Drained {
		see(name)
	}
	for name := range v.Fencing {
		see(name)
	}
	for name, st := range r.Status {
		if name == node {
			continue
		}
		var rep Report
		if err := json.Unmarshal(st.Data, &rep); err != nil {
			t.Reports[name] = decide.Report{Why: "its status cannot be read"}
			continue
		}
		t.Reports[name] = decide.Report{Ready: rep.Ready, Why: rep.Why, Role: rep.Local.Role}
	}
	if sw := r.Switchover; sw != nil {
		due := sw.Since
		if !sw.At.IsZero() {
			due = sw.At
		}
		if sw.To == ToNobody {
			t.Stopped = fmt.Sprintf("by %s at %s", orNobody(sw.By), sw.Since.Format(time.DateTime))
		} else {
			t.Switch = &decide.Switchover{To: sw.To, From: sw.From, By: sw.By, Due: !wall.Before(due) || sw.At.IsZero(), Late: wall.After(due.Add(switchLate))}
		}
	}
	return t
}

func orNobody(by string) string {
	if by == "" {
		return "somebody"
	}
	return by
}

// last is who held the term last, and whether it gave it back.
func last(r *coord.Resource) *decide.Last {
	for i := len(r.History) - 1; i >= 0; i-- {
		switch e := &r.History[i]; e.Kind {
		case coord.EntryRelease:
			return &decide.Last{Node: e.Node, Clean: true}
		case coord.EntryPromote, coord.EntryForce, coord.EntryAdd, coord.EntryRemove:
			return &decide.Last{Node: e.Node}
		}
	}
	return nil
}

// local makes of what the replicator says what is decided on.
func local(st *control.Status, err error, s ServiceState) decide.Local {
	l := decide.Local{Services: s.State, AskMove: s.AskMove, ServText: s.Text, Role: decide.Secondary}
	switch {
	case err != nil:
		l.Maybe, l.Why = true, err.Error()
		return l
	case st == nil:
		l.Why = "its replicator does not run"
		return l
	}
	l.Up, l.Role, l.Frozen, l.Question, l.Write = true, st.Role, st.Suspended, st.Questions, st.Write
	l.Disks, l.DiskGood, l.UpToDate = map[int]control.UUID{}, len(st.Volumes) > 0, len(st.Volumes) > 0
	var states []string
	for i := range st.Volumes {
		v := &st.Volumes[i]
		if len(states) == 0 || states[len(states)-1] != v.DiskState {
			states = append(states, v.DiskState)
		}
		if v.GI.DeviceUUID != 0 {
			l.Disks[v.Number] = v.GI.DeviceUUID
		}
		l.UpToDate = l.UpToDate && v.DiskState == "UpToDate"
		l.DiskGood = l.DiskGood && (v.DiskState == "UpToDate" || v.DiskState == "Consistent")
		l.Unvouch = l.Unvouch || v.Unvouched
	}
	l.DiskText = strings.Join(states, ", ")
	l.Links = map[string]bool{}
	for i := range st.Peers {
		l.Links[st.Peers[i].Name] = st.Peers[i].Connection == "Connected"
	}
	return l
}

// member is this node as the in-sync set names it.
func member(node string, l *decide.Local) control.Member {
	return control.Member{Node: node, Disks: l.Disks}
}

// ready says whether this node could take over, as far as it knows itself.
func ready(v *decide.View) (bool, string) {
	l := &v.Local
	m := v.Truth.InSync.Member(v.Self)
	switch {
	case l.Maybe:
		return false, "its replicator does not answer"
	case !l.Up:
		return false, "the resource is down there"
	case m == nil:
		return false, "it is not in sync"
	case !l.DiskGood:
		return false, "its disk is " + l.DiskText
	case l.Unvouch:
		return false, "it does not remember its disk"
	case !m.Same(member(v.Self, l)):
		return false, "it has another disk than the in-sync set says"
	case l.AskMove:
		return false, "its services failed there"
	case v.Memory.Brake > v.Now:
		return false, "it failed there a moment ago"
	}
	return true, ""
}
