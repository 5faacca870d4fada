package service

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/hawser-ha/hawser/agent/config"
)

// hold is how far a chain may go.
type hold int

const (
	free    hold = iota
	noStart      // what runs may stay, nothing more is started
	noRun        // what runs stops too
)

// hold says what must happen before a chain may start, and how hard that is; the mutex is held.
func (c *chain) hold() (hold, string) {
	switch c.host.role {
	case Secondary:
		if len(c.r.chains[Primary].stack) > 0 {
			return noStart, "the primary services are not stopped yet"
		}
	case Primary:
		if len(c.r.chains[Secondary].stack) > 0 {
			return noStart, "the secondary services are not stopped yet"
		}
		for _, name := range c.r.after {
			other := c.r.g.runners[name]
			if other == nil || !other.adopted {
				return noStart, "after " + name + ": nothing is known of its services on this node"
			}
			o := other.chains[Primary]
			switch why := fmt.Sprintf("after %s: its primary services are %s", name, o.told); {
			case o.want == wantDown:
				return noRun, why
			case o.up():
			case c.want == undecided || o.want == undecided:
				return noStart, why
			default:
				return noRun, why
			}
		}
	}
	return free, ""
}

// up reports whether all of a chain runs.
func (c *chain) up() bool {
	return len(c.defs) > 0 && len(c.stack) == len(c.defs) && !slices.ContainsFunc(c.stack, func(in *instance) bool {
		return in.Failed || in.State != Running && in.State != Degraded && in.State != Unknown
	})
}

// users reports whether chains that come after this one still run: they stop first. One whose stop failed holds up
// nobody, it has asked its owner itself.
func (c *chain) users() bool {
	if c.host.role != Primary {
		return false
	}
	for _, r := range c.r.g.runners {
		if r == c.r || !slices.Contains(r.after, c.r.name) || r.maintenance || !r.live {
			continue
		}
		o := r.chains[Primary]
		if len(o.stack) > 0 && !slices.ContainsFunc(o.stack, func(in *instance) bool { return in.State == StopFailed }) {
			return true
		}
	}
	return false
}

func (r *Runner) status() Status {
	s := Status{Resource: r.name, Maintenance: r.maintenance, Chains: []ChainStatus{}}
	for _, role := range Roles {
		if c := r.chains[role]; len(c.defs) > 0 || len(c.stack) > 0 {
			s.Chains = append(s.Chains, c.status())
		}
	}
	return s
}

// status is called with the mutex held.
func (c *chain) status() ChainStatus {
	s := ChainStatus{Role: c.host.role, Services: []ServiceStatus{}, Asks: c.asks}
	if c.want != undecided {
		up := c.want == wantUp
		s.Wanted = &up
	}
	now := time.Now()
	allRun, stopFailed := len(c.stack) == len(c.defs), false
	var bad, slow *ServiceStatus
	for i := range c.defs {
		st := ServiceStatus{Name: c.defs[i].Name, Run: c.defs[i].Run(), State: Stopped}
		p := c.past[st.Name]
		if p != nil {
			st.Reason = p.Reason
			for _, t := range p.Failures {
				if now.Sub(t) <= c.defs[i].RestartWindow {
					st.Failures++
				}
			}
		}
		if j := slices.IndexFunc(c.stack, func(in *instance) bool { return in.Spec.Name == c.defs[i].Name }); j >= 0 {
			c.stack[j].fill(&st)
			st.Run, st.Removed = c.stack[j].Spec.Run(), !c.stack[j].Spec.SameService(&c.defs[i])
		} else if p != nil && p.GaveUp != "" {
			st.State = p.GaveUp
		} else if p != nil && p.Next.After(now) && c.want == wantUp {
			st.State, st.NextTry = BackingOff, p.Next
		}
		s.Services = append(s.Services, st)
	}
	for _, in := range c.stack {
		if !slices.ContainsFunc(c.defs, func(d config.ServiceSpec) bool { return d.Name == in.Spec.Name }) {
			st := ServiceStatus{Name: in.Spec.Name, Run: in.Spec.Run(), Removed: true}
			in.fill(&st)
			s.Services = append(s.Services, st)
		}
	}
	for i := range s.Services {
		st := &s.Services[i]
		stopFailed = stopFailed || st.State == StopFailed
		allRun = allRun && !st.Removed && (st.State == Running || st.State == Degraded || st.State == Unknown)
		switch st.State {
		case StopFailed:
			bad = st
		case Failed, Refused:
			if bad == nil {
				bad = st
			}
		case BackingOff, Starting, Stopping, Unknown, Degraded:
			if slow == nil {
				slow = st
			}
		}
	}
	gaveUp := State("")
	for _, p := range c.past {
		gaveUp = cmp.Or(gaveUp, p.GaveUp)
		s.Nowhere = s.Nowhere || p.Nowhere
	}
	say := func(st *ServiceStatus) {
		if st != nil && st.Reason != "" {
			s.Reason = st.Name + ": " + st.Reason
		} else if st != nil {
			s.Reason = st.Name + " is " + string(st.State)
		}
	}
	hold, holdWhy := free, ""
	if c.want == wantUp {
		hold, holdWhy = c.hold()
	}
	switch {
	case stopFailed:
		s.State = StopFailed
		say(bad)
	case c.lost != "":
		s.State, s.Reason = Failed, c.lost
	case c.want == wantUp && gaveUp != "":
		s.State = gaveUp
		say(bad)
	case c.want == wantDown && len(c.stack) == 0, c.want == undecided && len(c.stack) == 0:
		s.State = Stopped
	case c.want == wantDown, c.want == wantUp && len(c.defs) == 0 && len(c.stack) > 0:
		s.State = Stopping
		say(slow)
	case hold == noRun && len(c.stack) > 0:
		s.State, s.Reason = Stopping, holdWhy
	case hold == noRun || hold == noStart && len(c.stack) < len(c.defs):
		s.State, s.Reason = Waiting, holdWhy
	case allRun:
		s.State = Running
		say(slow)
	case c.want == undecided:
		s.State, s.Reason = Waiting, "the agent has started and not decided yet"
		say(bad)
	default:
		s.State = Starting
		say(cmp.Or(bad, slow))
	}
	if c.asks != AskNothing && s.Reason == "" {
		s.Reason = c.why
	}
	return s
}

func (in *instance) fill(st *ServiceStatus) {
	st.State, st.Since, st.Checked, st.Warning = in.State, in.Since, in.checked, in.warning
	if in.Reason != "" || in.State == Running {
		st.Reason = in.Reason
	}
	if in.Main != nil {
		st.PID = in.Main.PID
	}
	if in.State == StopFailed {
		st.NextTry = in.retry
	}
}

// tell notes events about what changed since the last call; the mutex is held. deliver hands them out.
func (c *chain) tell(now time.Time) {
	st := c.status()
	changed := false
	if c.toldServices == nil {
		c.toldServices = map[string]State{}
	}
	notify := func(service string, from, to State, reason string) {
		changed = true
		if c.r.g.o.Notify != nil {
			c.r.g.pending = append(c.r.g.pending, Event{Time: now, Resource: c.r.name, Role: c.host.role, Service: service, From: from, To: to, Reason: reason})
		}
	}
	for _, s := range st.Services {
		from := cmp.Or(c.toldServices[s.Name], Stopped)
		if from != s.State {
			c.toldServices[s.Name] = s.State
			notify(s.Name, from, s.State, s.Reason)
		}
	}
	for name, from := range c.toldServices { // it stopped, and is not defined any more
		if from != Stopped && !slices.ContainsFunc(st.Services, func(s ServiceStatus) bool { return s.Name == name }) {
			delete(c.toldServices, name)
			notify(name, from, Stopped, "")
		}
	}
	if from := c.told; from != st.State || c.toldAsks != st.Asks {
		c.told, c.toldAsks = st.State, st.Asks
		notify("", from, st.State, st.Reason)
	}
	if changed {
		c.r.g.wake()
	}
}
