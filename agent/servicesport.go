package agent

import (
	"context"
	"fmt"
	"sync"

	"github.com/hawser-ha/hawser/agent/config"
	"github.com/hawser-ha/hawser/agent/decide"
	"github.com/hawser-ha/hawser/agent/ha"
	"github.com/hawser-ha/hawser/agent/service"
	"github.com/hawser-ha/hawser/replicator/control"
)

// servicePort joins the HA loop and the service chains of this node.
type servicePort struct {
	a *Agent
	g *service.Group

	mu       sync.Mutex // guards what follows
	runners  map[string]*service.Runner
	starting map[string]bool
	paused   map[string]bool
}

func (a *Agent) startServices() error {
	p := &servicePort{a: a, runners: map[string]*service.Runner{}, starting: map[string]bool{}, paused: map[string]bool{}}
	g, err := service.NewGroup(service.Options{Node: a.cfg.Node.Node, RunDir: a.cfg.Node.RunDir, Log: a.log, Escalate: p.escalate, Notify: func(e service.Event) {
		name := e.Service
		if name == "" {
			name = "chain " + string(e.Role)
		}
		a.publish(control.Event{Time: e.Time, Resource: e.Resource, Kind: control.EventNote, Volume: control.All, Name: "service",
			Text: fmt.Sprintf("%s: %s -> %s %s", name, e.From, e.To, e.Reason)})
		a.ha.Wake(e.Resource)
	}})
	if err != nil {
		return err
	}
	p.g, a.services = g, p
	return nil
}

func (a *Agent) servicePort() ha.Services { return a.services }

// runner finds the chains of a resource; what an earlier agent left is looked at first, beside the loop.
func (p *servicePort) runner(name string) *service.Runner {
	p.a.haMu.Lock()
	r := p.a.coordinatedNow[name]
	p.a.haMu.Unlock()
	p.mu.Lock()
	defer p.mu.Unlock()
	if run := p.runners[name]; run != nil {
		return run
	}
	if r == nil || r.Services.Empty() || p.starting[name] {
		return nil
	}
	p.starting[name] = true
	p.a.wg.Go(func() { p.start(r) })
	return nil
}

func (p *servicePort) start(r *config.Resource) {
	ctx := p.a.ctx
	run, err := p.g.New(service.DefinitionOf(r))
	if err == nil {
		err = run.Adopt(ctx)
	}
	p.mu.Lock()
	if err == nil {
		p.runners[r.Name] = run
	}
	delete(p.starting, r.Name)
	p.mu.Unlock()
	if err != nil {
		p.a.log.Error("services not looked after", "resource", r.Name, "err", err)
		p.a.note(r.Name, "services", "they are not looked after: "+err.Error())
		return
	}
	run.Want(service.Always, true)
	p.a.ha.Wake(r.Name)
	if err := run.Run(ctx); err != nil && ctx.Err() == nil {
		p.a.log.Error("services are not looked after any more", "resource", r.Name, "err", err)
	}
}

// defined says whether the resource's file names services of the Primary.
func (p *servicePort) defined(name string) bool {
	p.a.haMu.Lock()
	defer p.a.haMu.Unlock()
	r := p.a.coordinatedNow[name]
	return r != nil && len(r.Services.Primary) > 0
}

// State implements ha.Services. While nobody has looked yet what runs, something may.
func (p *servicePort) State(name string) ha.ServiceState {
	run := p.runner(name)
	if run == nil {
		if p.defined(name) {
			return ha.ServiceState{State: decide.ServicesUnseen, Text: "nobody has looked yet what runs"}
		}
		return ha.ServiceState{}
	}
	st := run.Status()
	c := st.Chain(service.Primary)
	if c == nil {
		return ha.ServiceState{}
	}
	s := ha.ServiceState{Text: c.Reason, AskMove: c.Asks != service.AskNothing}
	switch {
	case c.Wanted == nil && c.State == service.Stopped:
		s.State = decide.ServicesStopped
	case c.Wanted == nil:
		s.State = decide.ServicesUnseen
	case *c.Wanted:
		s.State = decide.ServicesRunning
	case c.State == service.Stopped:
		s.State = decide.ServicesStopped
	default:
		s.State = decide.ServicesLeaving
	}
	return s
}

// Role implements ha.Services.
func (p *servicePort) Role(name, role string) {
	run := p.runner(name)
	if run == nil {
		return
	}
	switch role {
	case decide.Primary:
		run.Want(service.Primary, true)
	case decide.Secondary:
		run.Want(service.Primary, false)
		run.Want(service.Secondary, true)
	default:
		run.Want(service.Primary, false)
		run.Want(service.Secondary, false)
	}
}

// Maintenance implements ha.Services.
func (p *servicePort) Maintenance(name string, on bool) {
	run := p.runner(name)
	p.mu.Lock()
	same := p.paused[name] == on
	p.mu.Unlock()
	if run == nil || same {
		return
	}
	run.Maintenance(on)
	p.mu.Lock()
	p.paused[name] = on
	p.mu.Unlock()
}

// update gives a runner the definition of today.
func (p *servicePort) update(name string) {
	p.a.haMu.Lock()
	r := p.a.coordinatedNow[name]
	p.a.haMu.Unlock()
	p.mu.Lock()
	run := p.runners[name]
	p.mu.Unlock()
	if r != nil && run != nil {
		run.Update(service.DefinitionOf(r))
	}
}

// escalate does what a service that does not stop asks for: the volume fails its users, so that they can end.
func (p *servicePort) escalate(ctx context.Context, e service.Escalation) error {
	p.a.note(e.Resource, "service-"+string(e.Level), e.Service+": "+e.Reason)
	p.a.ha.Wake(e.Resource)
	switch e.Level {
	case service.AskForceDemote:
		return p.a.managed(e.Resource).client.Do(ctx, "secondary", control.Args{Volume: control.All, Force: true})
	case service.AskFence:
		if p.a.selfFence == nil {
			return control.Errorf(control.Refused, "%s does not stop, and this node has no way to end itself", e.Service).On(e.Resource, control.All, "").
				WithHint("set up fencing; now end the service by hand, or restart the node")
		}
		return p.a.selfFence(ctx, fmt.Sprintf("service %s of %s does not stop: %s", e.Service, e.Resource, e.Reason))
	}
	return nil
}
