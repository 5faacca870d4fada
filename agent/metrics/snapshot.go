package metrics

import (
	"time"

	"github.com/hawser-ha/hawser/replicator/control"
)

// Snapshot is one consistent look at a node.
type Snapshot struct {
	Node      string
	Version   string
	Resources []Resource
	Fences    []FenceDevice
}

// Resource is one resource on the node.
type Resource struct {
	Name     string
	State    string          // up, down, witness, broken, not-responding
	Restarts int             // of a replicator that ended unexpectedly
	Status   *control.Status // nil: its replicator does not run or answer
	Licence  *Licence        // nil: not coordinated, or nothing is known
	Services []Service
}

// Licence is by which right the node may write, and who else has the data.
type Licence struct {
	Term    uint64
	Left    time.Duration // of a right that ends
	Right   string        // lease, failsafe, unlimited, none
	InSync  []string      // nodes
	Holder  string        // node, "": nobody
	Waiting int           // open questions: peers that went and are still in the in-sync set
}

// Service is one entry of a chain on the node.
type Service struct {
	Name   string
	State  string
	Failed bool
}

// FenceDevice is one fence device as its last monitor found it.
type FenceDevice struct {
	Name    string
	OK      bool
	Checked time.Time // zero: never
}
