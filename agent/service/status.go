package service

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// Role names a chain.
type Role string

// The chains of a resource.
const (
	Primary   Role = "primary"
	Secondary Role = "secondary"
	Always    Role = "always"
)

// Roles are all chains.
var Roles = []Role{Primary, Secondary, Always}

// State of a service or chain.
type State string

// States. A chain is waiting for other resources, or for the opposite chain to stop; only a service is degraded,
// unknown, refused or backing-off.
const (
	Stopped    State = "stopped"
	Waiting    State = "waiting"
	Starting   State = "starting"
	Running    State = "running"
	Degraded   State = "degraded"    // it runs, and its agent says that it is about to fail
	Unknown    State = "unknown"     // nobody could be asked whether it still runs
	Stopping   State = "stopping"    //
	BackingOff State = "backing-off" // it failed and is tried again
	Failed     State = "failed"      // it failed too often
	Refused    State = "refused"     // it cannot run here, or nowhere
	StopFailed State = "stop-failed" // it may still run
)

// Level is what a chain asks of its owner.
type Level string

// Levels, each worse than the one before.
const (
	AskNothing     Level = ""
	AskMove        Level = "move"         // the services should run on another node
	AskForceDemote Level = "force-demote" // the volume should fail its users, so that they end
	AskFence       Level = "fence"        // nothing but the end of this node ends the service
)

// Escalation is a request to the owner.
type Escalation struct {
	Resource string `json:"resource"`
	Role     Role   `json:"role"`
	Service  string `json:"service"`
	Level    Level  `json:"level"`
	Reason   string `json:"reason"`
	Nowhere  bool   `json:"nowhere,omitempty"` // its agent says that it can run on no node: moving does not help
}

// Event says that the state of a service or, with Service "", of a chain changed.
type Event struct {
	Time     time.Time `json:"time"`
	Resource string    `json:"resource"`
	Role     Role      `json:"role"`
	Service  string    `json:"service,omitempty"`
	From     State     `json:"from"`
	To       State     `json:"to"`
	Reason   string    `json:"reason,omitempty"`
}

// Status is the services of one resource on this node.
type Status struct {
	Resource    string        `json:"resource"`
	Maintenance bool          `json:"maintenance,omitempty"` // nothing is started, stopped or monitored
	Chains      []ChainStatus `json:"chains"`
}

// Chain gives the status of a role, nil when it has no services.
func (s *Status) Chain(role Role) *ChainStatus {
	for i := range s.Chains {
		if s.Chains[i].Role == role {
			return &s.Chains[i]
		}
	}
	return nil
}

// ChainStatus is one chain.
type ChainStatus struct {
	Role     Role            `json:"role"`
	State    State           `json:"state"`
	Wanted   *bool           `json:"wanted,omitempty"` // absent: the owner has not said it since the agent started
	Reason   string          `json:"reason,omitempty"`
	Asks     Level           `json:"asks,omitempty"`
	Nowhere  bool            `json:"nowhere,omitempty"`
	Services []ServiceStatus `json:"services"`
}

// ServiceStatus is one service.
type ServiceStatus struct {
	Name     string    `json:"name"`
	Run      string    `json:"run"`
	State    State     `json:"state"`
	Reason   string    `json:"reason,omitempty"`
	Since    time.Time `json:"since,omitzero"`
	Failures int       `json:"failures,omitempty"` // within its window
	NextTry  time.Time `json:"next-try,omitzero"`
	Checked  time.Time `json:"checked,omitzero"` // the last monitor
	PID      int       `json:"pid,omitempty"`    // of a command
	Warning  string    `json:"warning,omitempty"`
	Removed  bool      `json:"removed,omitempty"` // it runs, and is no longer in the definition, or is defined otherwise now
}

// ErrSuperseded says that what was waited for is no longer wanted.
var ErrSuperseded = errors.New("superseded by a later order")

// ErrMaintenance says that nothing is started or stopped while maintenance is on.
var ErrMaintenance = errors.New("maintenance is on: no service is started or stopped")

// ChainError says how a chain did not get where it should.
type ChainError struct {
	Resource string
	Chain    ChainStatus
}

func (e *ChainError) Error() string {
	return fmt.Sprintf("%s services of %s: %s: %s", e.Chain.Role, e.Resource, e.Chain.State, e.Chain.Reason)
}

// Escalate asks the owner of the services. It returns when the owner has done what it will, which for AskFence may be
// never; it must not wait for Start or Stop of the same resource.
type Escalate func(context.Context, Escalation) error
