package ha

import (
	"context"
	"log/slog"
	"time"

	"github.com/hawser-ha/hawser/agent/coord"
	"github.com/hawser-ha/hawser/agent/decide"
	"github.com/hawser-ha/hawser/replicator/control"
)

// Replica is the replicator of one resource on this node. Its methods are those of control.Client.
type Replica interface {
	// Status asks it. A nil status without an error: it is down, for sure. An error: nobody knows.
	Status(ctx context.Context) (*control.Status, error)
	// Up starts it as its file says; that it runs already is no error.
	Up(ctx context.Context) error
	Grant(ctx context.Context, g *control.Grant) error
	Deposed(ctx context.Context, d control.Deposed) error
	Candidacy(ctx context.Context, q control.Candidacy) (*control.CandidacyAnswer, error)
	Promote(ctx context.Context, force bool) error
	Demote(ctx context.Context, force bool) error
}

// Services are what runs on the volumes of one resource.
type Services interface {
	// State is that of the chain of the Primary.
	State(resource string) ServiceState
	// Role says that the chain of a role should run: Primary, Secondary, or "" none. It does not wait.
	Role(resource, role string)
	// Maintenance: nothing is started, stopped or watched.
	Maintenance(resource string, on bool)
}

// ServiceState is how the chain of the Primary is.
type ServiceState struct {
	State   decide.Services
	AskMove bool   // a service failed too often here
	Text    string // for people
}

// Fencer makes sure that a node is off. It returns nil only when it is certain.
type Fencer interface {
	// Ready says whether a node can be fenced at all.
	Ready(node string) bool
	Fence(ctx context.Context, v *coord.View, node, why string) error
}

// Resource is one that etcd coordinates.
type Resource struct {
	Name   string
	Policy decide.Policy
	Margin time.Duration
	// Here: this node holds its volumes; otherwise it is only shown.
	Here bool
	// Wanted: it is to be up here.
	Wanted bool
}

// Options of a Manager.
type Options struct {
	Node    string
	Store   *coord.Store
	Session *coord.Session
	Follow  coord.FollowOptions
	Log     *slog.Logger
	Clock   func() int64 // CLOCK_BOOTTIME in ns

	Resource func(name string) (Resource, bool) // as its file says now
	Replica  func(name string) Replica
	Services Services // nil: there are none
	Fencer   Fencer   // nil: there is none
	// Note tells people what happened: an event of the node.
	Note func(resource, name, text string)
	// Spec is told of a definition that was stored in etcd; it writes it to the folder and makes it known.
	Spec func(name string, s *coord.Spec) error
	// Holding is told when this node begins or ends to hold a term: whoever minds where etcd's leader is.
	Holding func(resource string, holds bool)
}

// Report is what a node says of a resource to the others, under resources/R/status/N.
type Report struct {
	Time   time.Time       `json:"time"`
	Now    int64           `json:"now"`   // the node's CLOCK_BOOTTIME in ns, for the times in Local
	Ready  bool            `json:"ready"` // it could take over, as far as it knows
	Why    string          `json:"why,omitempty"`
	Local  decide.Local    `json:"local"`
	Rule   decide.Reason   `json:"rule"`
	Detail string          `json:"detail,omitempty"`
	Lease  int64           `json:"lease,omitempty"` // end of the node's lease on its clock
	Status *control.Status `json:"status,omitempty"`
	Policy decide.Policy   `json:"policy"`
	Memory decide.Memory   `json:"memory"`
}
