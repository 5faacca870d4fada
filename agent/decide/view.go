package decide

import (
	"slices"
	"time"

	"github.com/hawser-ha/hawser/replicator/control"
)

// View is everything that a decision is made of: one resource, as one node sees it at one moment.
type View struct {
	Now      int64  `json:"now"` // CLOCK_BOOTTIME in ns
	Self     string `json:"self"`
	Resource string `json:"resource"`
	Policy   Policy `json:"policy"`
	Truth    Truth  `json:"truth"`
	Local    Local  `json:"local"`
	Memory   Memory `json:"memory"`
}

// Policy is what the resource's file says.
type Policy struct {
	Nodes        []string      `json:"nodes"` // those that hold its volumes, in the order of the file
	Auto         bool          `json:"auto-promote"`
	Preferred    string        `json:"preferred-node,omitempty"`
	Failback     bool          `json:"failback"` // to the preferred node as soon as it is in sync
	TwoPrimaries bool          `json:"allow-two-primaries"`
	Fencing      bool          `json:"fencing"` // a node that may still run services is fenced before another starts them
	BootWait     time.Duration `json:"boot-wait"`
	TTL          time.Duration `json:"ttl"`
}

// Truth is what etcd says.
type Truth struct {
	Fresh       bool              `json:"fresh"` // etcd answers
	Why         string            `json:"why,omitempty"`
	Holder      *Holder           `json:"holder,omitempty"`  // nil: nobody
	Last        *Last             `json:"last,omitempty"`    // who held it before; nil: nobody ever did
	InSync      *InSync           `json:"in-sync,omitempty"` // nil: there was no promotion yet
	Nodes       map[string]Node   `json:"nodes"`
	Maintenance bool              `json:"maintenance"` // of the cluster or of this resource
	Stopped     string            `json:"stopped,omitempty"`
	Switch      *Switchover       `json:"switchover,omitempty"`
	Reports     map[string]Report `json:"reports,omitempty"` // what the other nodes say of themselves
}

// Holder is who holds the key that says who may write.
type Holder struct {
	Node string `json:"node"`
	Term uint64 `json:"term"`
	Mine bool   `json:"mine"` // by the lease of this agent
	// Released: this node has begun to give it back. Nothing else may come of it.
	Released bool `json:"released,omitempty"`
}

// Last is who held it before.
type Last struct {
	Node  string `json:"node"`
	Clean bool   `json:"clean"` // it gave the key back, when its services had stopped and it was Secondary
}

// InSync are the nodes with every acknowledged write.
type InSync struct {
	Seq     uint64           `json:"seq"`
	Members []control.Member `json:"members"`
}

// Node is what etcd says of a node.
type Node struct {
	Alive       bool  `json:"alive"` // its lease stands
	Drained     bool  `json:"drained,omitempty"`
	Maintenance bool  `json:"maintenance,omitempty"`
	Fence       Fence `json:"fence,omitempty"`
}

// Fence is how far the fencing of a node is.
type Fence string

// States of fencing.
const (
	FenceNone      Fence = ""
	FencePending   Fence = "pending"
	FenceConfirmed Fence = "confirmed" // it is off, for sure
	FenceUncertain Fence = "uncertain" // nobody knows; it counts as running
)

// Switchover is the wish of a person that another node takes over.
type Switchover struct {
	To   string `json:"to,omitempty"`   // "": the best one
	From string `json:"from,omitempty"` // who held it
	// Due: its time has come. Late: the node it names has not taken over for too long, and any other may.
	Due  bool   `json:"due"`
	Late bool   `json:"late,omitempty"`
	By   string `json:"by,omitempty"`
}

// Report is what another node says of itself.
type Report struct {
	Ready bool   `json:"ready"` // the resource is up there, the disks are good, nothing failed
	Why   string `json:"why,omitempty"`
	Role  string `json:"role,omitempty"`
}

// Services are the states that matter of the services on the volume.
type Services string

// States of services of the Primary.
const (
	ServicesNone    Services = ""        // the resource has none
	ServicesStopped Services = "stopped" // every one is, for sure
	ServicesRunning Services = "running" // wanted: they run, or are being started
	ServicesLeaving Services = "stopping"
	ServicesUnseen  Services = "not-looked-after" // an earlier agent's, since nobody has said what should be
)

// up reports whether something may run.
func (s Services) up() bool {
	return s == ServicesRunning || s == ServicesLeaving || s == ServicesUnseen
}

// Local is what this node's replicator and services say. It is also what the node tells the others.
type Local struct {
	Up       bool                 `json:"up"`    // its replicator answers
	Maybe    bool                 `json:"maybe"` // it may run, and does not answer
	Why      string               `json:"why,omitempty"`
	Role     string               `json:"role"` // Primary, Secondary
	Disks    map[int]control.UUID `json:"disks,omitempty"`
	DiskGood bool                 `json:"disk-good"` // every volume is UpToDate or Consistent here
	DiskText string               `json:"disk,omitempty"`
	UpToDate bool                 `json:"up-to-date"` // every volume is UpToDate
	Unvouch  bool                 `json:"unvouched,omitempty"`
	Links    map[string]bool      `json:"links,omitempty"` // to each peer: connected
	Frozen   []string             `json:"suspended,omitempty"`
	Question []control.Question   `json:"questions,omitempty"`
	Write    *control.WriteStatus `json:"write,omitempty"`
	Services Services             `json:"services,omitempty"`
	AskMove  bool                 `json:"ask-move,omitempty"` // one failed too often here
	ServText string               `json:"services-text,omitempty"`
}

// Memory is what the loop remembers from before.
type Memory struct {
	Asked      bool   `json:"asked,omitempty"`  // a person asks this node to become Primary
	Force      bool   `json:"force,omitempty"`  // though it is not in sync
	Down       bool   `json:"down,omitempty"`   // a person takes the resource down on this node
	Brake      int64  `json:"brake,omitempty"`  // after a failure nothing is tried before
	Braked     int64  `json:"braked,omitempty"` // when that was
	BrakeWhy   string `json:"brake-why,omitempty"`
	Booted     int64  `json:"booted,omitempty"`   // when this agent began to look
	Answered   uint64 `json:"answered,omitempty"` // the newest question that a grant answers
	SeenHolder bool   `json:"seen-holder,omitempty"`
	Vacant     int64  `json:"vacant,omitempty"`   // since when nobody holds the key
	Unlinked   int64  `json:"unlinked,omitempty"` // since when the link to the holder is lost; 0: it stands
	Steady     int64  `json:"steady,omitempty"`   // since when the preferred node is ready
}

// Roles, as the replicator says them.
const (
	Primary   = "Primary"
	Secondary = "Secondary"
)

// Member finds a node of the set, nil: it is not in it.
func (s *InSync) Member(node string) *control.Member {
	if s == nil {
		return nil
	}
	for i := range s.Members {
		if s.Members[i].Node == node {
			return &s.Members[i]
		}
	}
	return nil
}

// names lists the members.
func (s *InSync) names() []string {
	var list []string
	if s != nil {
		for _, m := range s.Members {
			list = append(list, m.Node)
		}
	}
	return list
}

// frozen reports whether nothing but who may write is decided: maintenance.
func (v *View) frozen() bool { return v.Truth.Maintenance || v.Truth.Nodes[v.Self].Maintenance }

// me is this node's entry of the in-sync set, if it names the disks that are here.
func (v *View) me() bool {
	m := v.Truth.InSync.Member(v.Self)
	return m != nil && v.Local.DiskGood && !v.Local.Unvouch && m.Same(control.Member{Node: v.Self, Disks: v.Local.Disks})
}

// ready reports whether another node could take over now, and if not, why.
func (v *View) ready(node string) (string, bool) {
	n, known := v.Truth.Nodes[node]
	r, told := v.Truth.Reports[node]
	switch {
	case node == v.Self:
		return "it is this node", false
	case !slices.Contains(v.Policy.Nodes, node):
		return "it does not hold the volumes", false
	case !known || !n.Alive:
		return "its agent is not there", false
	case n.Drained:
		return "it is drained", false
	case n.Maintenance:
		return "it is in maintenance", false
	case v.Truth.InSync.Member(node) == nil:
		return "it is not in sync", false
	case !told:
		return "it says nothing about the resource", false
	case !r.Ready:
		return r.Why, false
	}
	return "", true
}

// successor is the node that would take over: the preferred one, or the first that could.
func (v *View) successor() string {
	if _, ok := v.ready(v.Policy.Preferred); ok {
		return v.Policy.Preferred
	}
	for _, n := range v.Policy.Nodes {
		if _, ok := v.ready(n); ok {
			return n
		}
	}
	return ""
}

// missing lists the in-sync nodes, other than this one, whose agent is not there.
func (v *View) missing() []string {
	var list []string
	for _, n := range v.Truth.InSync.names() {
		if n != v.Self && !v.Truth.Nodes[n].Alive {
			list = append(list, n)
		}
	}
	return list
}
