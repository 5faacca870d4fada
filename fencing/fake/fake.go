package fake

import (
	"context"
	"errors"
	"slices"
	"sync"

	"github.com/hawser-ha/hawser/fencing"
)

// ErrUnreachable is what a switch says that cannot be reached.
var ErrUnreachable = errors.New("fake: the switch does not answer")

// Faults are what is wrong with a Switch. The zero value is a good one.
type Faults struct {
	Stuck   bool // no call returns before its context ends
	Refuses bool // every call fails, and does nothing
	Lies    bool // Off and Reboot claim to be done and do nothing
	Mute    bool // the status is not known
	Deaf    bool // Off is carried out, and then said to have failed
	Slow    int  // so many questions after Off are still answered with on
	Cannot  []fencing.Action
}

// Switch is a fencing.Device. Nodes that it has not heard of are on.
type Switch struct {
	mu     sync.Mutex // guards what follows
	faults Faults
	off    map[string]bool
	slow   map[string]int
	cuts   map[string]int
	calls  []string
}

// New makes a switch that works.
func New() *Switch {
	return &Switch{off: map[string]bool{}, slow: map[string]int{}, cuts: map[string]int{}}
}

// Break makes it misbehave from now on.
func (s *Switch) Break(f Faults) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.faults = f
}

// Cuts tells how often the node's power was cut.
func (s *Switch) Cuts(node string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.cuts[node]
}

// IsOff tells the truth.
func (s *Switch) IsOff(node string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.off[node]
}

// Calls lists what was asked, as "off n1".
func (s *Switch) Calls() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.calls)
}

// Can implements fencing.Device.
func (s *Switch) Can(a fencing.Action) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Contains([]fencing.Action{fencing.Off, fencing.On, fencing.Reboot, fencing.Status, fencing.Monitor}, a) && !slices.Contains(s.faults.Cannot, a)
}

// Do implements fencing.Device.
func (s *Switch) Do(ctx context.Context, a fencing.Action, node string) error {
	if !s.Can(a) || a == fencing.Status {
		return fencing.ErrUnsupported
	}
	s.mu.Lock()
	s.calls = append(s.calls, string(a)+" "+node)
	f := s.faults
	switch {
	case f.Stuck:
		s.mu.Unlock()
		<-ctx.Done()
		return context.Cause(ctx)
	case f.Refuses:
		s.mu.Unlock()
		return ErrUnreachable
	}
	defer s.mu.Unlock()
	if err := context.Cause(ctx); err != nil {
		return err
	}
	switch a {
	case fencing.Off, fencing.Reboot:
		if f.Lies {
			return nil
		}
		if !s.off[node] {
			s.cuts[node]++
		}
		s.off[node] = a == fencing.Off
		s.slow[node] = f.Slow
		if f.Deaf {
			return ErrUnreachable
		}
	case fencing.On:
		delete(s.off, node)
	}
	return nil
}

// Power implements fencing.Device.
func (s *Switch) Power(ctx context.Context, node string) (fencing.Power, error) {
	s.mu.Lock()
	s.calls = append(s.calls, "status "+node)
	f := s.faults
	if f.Stuck {
		s.mu.Unlock()
		<-ctx.Done()
		return fencing.PowerUnknown, context.Cause(ctx)
	}
	defer s.mu.Unlock()
	switch {
	case f.Refuses || f.Mute:
		return fencing.PowerUnknown, ErrUnreachable
	case s.slow[node] > 0:
		s.slow[node]--
		return fencing.PowerOn, nil
	case s.off[node]:
		return fencing.PowerOff, nil
	}
	return fencing.PowerOn, nil
}
