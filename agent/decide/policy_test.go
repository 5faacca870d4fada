package decide

import (
	"testing"
	"time"

	"github.com/hawser-ha/hawser/replicator/control"
)

// vacant is a view of n1, in sync with n2 and n3, with nobody holding the term.
func vacant() View {
	var members []control.Member
	v := View{Now: now, Self: "n1", Resource: "r0", Policy: Policy{Nodes: []string{"n1", "n2", "n3"}, Auto: true, TTL: 5 * time.Second, BootWait: 20 * time.Second},
		Memory: Memory{SeenHolder: true, Booted: now - int64(time.Second), Vacant: now}}
	v.Truth = Truth{Fresh: true, Nodes: map[string]Node{}, Reports: map[string]Report{}, Last: &Last{Node: "n2"}}
	for i, n := range v.Policy.Nodes {
		members = append(members, control.Member{Node: n, Disks: map[int]control.UUID{0: control.UUID(i + 1)}})
		v.Truth.Nodes[n] = Node{Alive: true}
		v.Truth.Reports[n] = Report{Ready: true, Role: Secondary}
	}
	delete(v.Truth.Reports, "n1")
	v.Truth.InSync = &InSync{Seq: 10, Members: members}
	v.Local = Local{Up: true, Role: Secondary, Disks: map[int]control.UUID{0: 1}, DiskGood: true, UpToDate: true, DiskText: "UpToDate",
		Links: map[string]bool{"n2": true, "n3": true}, Services: ServicesStopped, Write: &control.WriteStatus{Seq: 10, Term: 9}}
	return v
}

// held is the same with n1 as Primary.
func held() View {
	v := vacant()
	v.Truth.Holder, v.Memory.Vacant = &Holder{Node: "n1", Term: 9, Mine: true}, 0
	v.Local.Role, v.Local.Services = Primary, ServicesRunning
	v.Local.Write.Right, v.Local.Write.Until = control.RightLease, now+int64(4*time.Second)
	return v
}

func expect(t *testing.T, v View, why Reason, kinds ...Kind) Plan {
	t.Helper()
	p := Decide(&v)
	got := []Kind{}
	for _, a := range p.Actions {
		got = append(got, a.Kind)
	}
	same := len(got) == len(kinds)
	for i := range got {
		same = same && got[i] == kinds[i]
	}
	if p.Why != why || !same {
		t.Errorf("%s %v (%s), want %s %v", p.Why, got, p.Detail, why, kinds)
	}
	return p
}

func TestAutoPromote(t *testing.T) {
	v := vacant()
	expect(t, v, Free, Run)
	v.Policy.Auto = false
	expect(t, v, NotAutomatic)
	v.Memory.Asked = true
	expect(t, v, Asked, Run)
}

func TestPreferredNodeGoesFirst(t *testing.T) {
	v := vacant()
	v.Policy.Preferred = "n2"
	p := expect(t, v, Prefers)
	v.Now = p.Until
	expect(t, v, Free, Run) // it had its time
	v = vacant()
	v.Policy.Preferred = "n2"
	v.Truth.Nodes["n2"] = Node{}
	expect(t, v, Free, Run)
	v = vacant()
	v.Policy.Preferred = "n1"
	expect(t, v, Free, Run)
}

func TestFailback(t *testing.T) {
	v := held()
	v.Policy.Preferred, v.Memory.Steady = "n2", now-int64(time.Minute)
	expect(t, v, Steady) // none is the default
	v.Policy.Failback = true
	expect(t, v, FailingBack, StopServices)
	v.Local.Services = ServicesStopped
	expect(t, v, FailingBack, Demote, Release)
	v.Memory.Steady = now - int64(time.Second) // it has only just come back
	expect(t, v, StartServices, RunServices)
	v = held()
	v.Policy.Preferred, v.Policy.Failback, v.Memory.Steady = "n2", true, now-int64(time.Minute)
	v.Truth.InSync.Members = v.Truth.InSync.Members[:1]
	expect(t, v, Steady)
}

func TestBootWait(t *testing.T) {
	v := vacant()
	v.Memory.SeenHolder = false
	expect(t, v, Free, Run) // everybody is there
	v.Truth.Nodes["n2"] = Node{}
	p := expect(t, v, BootWait)
	if want := v.Memory.Booted + int64(20*time.Second); p.Until != want {
		t.Errorf("until %d, want %d", p.Until, want)
	}
	v.Now = p.Until
	expect(t, v, Free, Run)
	v = vacant()
	v.Truth.Nodes["n2"] = Node{} // it has seen a Primary: this is a failover and no boot
	expect(t, v, Free, Run)
}

func TestSwitchoverOrder(t *testing.T) {
	v := held()
	v.Truth.Switch = &Switchover{To: "n3", From: "n1", Due: true}
	expect(t, v, Switching, StopServices)
	v.Local.Services = ServicesLeaving
	expect(t, v, Switching, StopServices)
	v.Local.Services = ServicesStopped
	expect(t, v, Switching, Demote, Release)
	v.Local.Role = Secondary
	expect(t, v, StepBack, Release)
	v.Truth.Holder, v.Truth.Last = nil, &Last{Node: "n1", Clean: true}
	expect(t, v, SwitchWait)
	v.Self, v.Local.Disks = "n3", map[int]control.UUID{0: 3}
	expect(t, v, Switching, Run)
	v.Self, v.Local.Disks = "n2", map[int]control.UUID{0: 2}
	v.Truth.Reports["n3"] = Report{Ready: true}
	expect(t, v, SwitchWait)
	v.Truth.Switch.Late = true
	expect(t, v, Free, Run)
	v = held()
	v.Truth.Switch = &Switchover{To: "n3", From: "n1", Due: true}
	v.Truth.Reports["n3"] = Report{Why: "its disk is Failed"}
	expect(t, v, SwitchRefused, DropSwitch)
}

func TestQuestionsAreAnsweredOnce(t *testing.T) {
	v := held()
	v.Local.Question = []control.Question{{ID: 4, Peer: "n2", Seq: 10}}
	p := expect(t, v, PeerGone, Narrow)
	if a := p.Actions[0]; a.Answers != 4 || len(a.Nodes) != 1 || a.Nodes[0] != "n2" {
		t.Errorf("%+v", a)
	}
	v.Truth.InSync.Members, v.Truth.InSync.Seq = v.Truth.InSync.Members[:1], 11
	expect(t, v, PeerGone, Narrow) // this agent has not answered it: nobody knows which transaction came first
	v.Memory.Answered, v.Local.Write.Seq = 4, 11
	expect(t, v, Promised)
}
