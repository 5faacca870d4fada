package service

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/hawser-ha/hawser/agent/config"
)

// wanted is what the owner said.
type wanted int

const (
	undecided wanted = iota // nothing since the agent started: watch, change nothing
	wantDown
	wantUp
)

const (
	backoffMax   = time.Minute
	escalateWait = 2 * time.Minute // what the owner gets to do what it is asked
	recordPause  = time.Second     // between attempts to write the record
	unclearPause = 2 * time.Second // between attempts to ask what could not be asked, when nothing else says when
)

// chain is the services of one resource and role. One goroutine, that of run, does everything to them; the fields
// below are guarded by the group's mutex, and written by that goroutine except those that say otherwise.
type chain struct {
	r    *Runner
	host *host
	file string

	defs         []config.ServiceSpec // written by Update
	want         wanted               // written by Start and Stop
	stack        []*instance
	past         map[string]*past
	asks         Level
	why          string                  // of asks
	cancel       context.CancelCauseFunc // of the operation under way, when it may be cancelled
	cancels      string                  // start or monitor
	blind        bool                    // maintenance kept adopt from asking what runs
	lost         string                  // the record could not be written: nothing is started
	told         State                   // the last state in an event
	toldAsks     Level
	toldServices map[string]State
	kick         chan struct{}
}

// what is to be done next.
type action int

const (
	doWait action = iota
	doStop
	doStart
	doMonitor
)

// step is one action: on stack[index], or for doStart on spec. A wait ends at until, if it is set.
type step struct {
	action action
	index  int
	spec   config.ServiceSpec
	until  time.Time
}

// view is all that decides.
type view struct {
	now         time.Time
	maintenance bool
	want        wanted
	hold        hold
	users       bool // others still use what would be stopped
	stack       []*instance
	defs        []config.ServiceSpec
	past        map[string]*past
	lost        bool
}

// decide is the rule of this package, see its comment.
func decide(v view) step {
	wait := step{action: doWait}
	earlier := func(t time.Time) {
		if wait.until.IsZero() || t.Before(wait.until) {
			wait.until = t
		}
	}
	if v.maintenance {
		return wait
	}
	target := v.defs
	if v.want == wantDown || v.hold == noRun {
		target = nil
	}
	if v.want != undecided || v.hold == noRun {
		keep := 0
		for keep < len(v.stack) && keep < len(target) && !v.stack[keep].Failed && v.stack[keep].Spec.SameService(&target[keep]) {
			keep++
		}
		if top := len(v.stack) - 1; top >= keep {
			switch in := v.stack[top]; {
			case v.users:
				return wait
			case in.retry.After(v.now):
				earlier(in.retry)
				return wait
			}
			return step{action: doStop, index: top}
		}
	}
	due := -1
	for i, in := range v.stack {
		if in.Failed || in.Spec.Monitor == 0 && in.State != Unknown && in.exited == "" {
			continue
		}
		if in.due.IsZero() { // it was just started, or something happened to it
			return step{action: doMonitor, index: i}
		}
		if due < 0 || in.due.Before(v.stack[due].due) {
			due = i
		}
		earlier(in.due)
	}
	if v.want == wantUp && v.hold == free && len(target) > len(v.stack) && !v.lost {
		spec := target[len(v.stack)]
		p := v.past[spec.Name]
		switch {
		case p != nil && p.GaveUp != "":
		case p != nil && p.Next.After(v.now):
			earlier(p.Next)
		default:
			return step{action: doStart, spec: spec} // before monitors that are due: slow ones must not hold it up
		}
	}
	if due >= 0 && !v.stack[due].due.After(v.now) {
		return step{action: doMonitor, index: due}
	}
	return wait
}

// failure notes that a service failed and says whether it is given up here.
func failure(p *past, spec *config.ServiceSpec, a answer, now time.Time, base time.Duration) {
	p.Failures = slices.DeleteFunc(p.Failures, func(t time.Time) bool { return now.Sub(t) > spec.RestartWindow })
	p.Failures = append(p.Failures, now)
	p.Reason = a.reason
	pause := base
	for i := 1; i < len(p.Failures) && pause < backoffMax; i++ {
		pause *= 2
	}
	p.Next = now.Add(min(pause, backoffMax))
	switch {
	case a.is == refused || a.is == nowhere:
		p.GaveUp, p.Nowhere = Refused, a.is == nowhere
	case len(p.Failures) > spec.Restart:
		p.GaveUp = Failed
	}
}

// run drives the chain until ctx ends. Then what runs goes on running.
func (c *chain) run(ctx context.Context) {
	for _, in := range c.stack { // commands that an agent before us started
		if in.Main != nil {
			c.watch(ctx, in, nil)
		}
	}
	for ctx.Err() == nil {
		c.r.g.mu.Lock()
		if c.blind && !c.r.maintenance {
			c.r.g.mu.Unlock()
			if c.adopt(ctx) != nil {
				return // ctx ended
			}
			continue
		}
		now := time.Now()
		hold, _ := c.hold()
		s := decide(view{now: now, maintenance: c.r.maintenance, want: c.want, hold: hold, users: c.users(), stack: c.stack, defs: c.defs,
			past: c.past, lost: c.lost != ""})
		c.tell(now)
		c.r.g.mu.Unlock()
		c.r.g.deliver()
		switch s.action {
		case doStop:
			c.stop(ctx, s.index)
		case doStart:
			c.start(ctx, s.spec)
		case doMonitor:
			c.monitor(ctx, s.index)
		case doWait:
			if c.lost != "" { // written by us alone
				if again := now.Add(recordPause); s.until.IsZero() || again.Before(s.until) {
					s.until = again
				}
			}
			c.wait(ctx, s.until)
			if c.lost != "" && !time.Now().Before(now.Add(recordPause)) {
				c.update(func() {})
			}
		}
	}
}

// wait until something changed, or for until.
func (c *chain) wait(ctx context.Context, until time.Time) {
	var timer <-chan time.Time
	if !until.IsZero() {
		t := time.NewTimer(time.Until(until))
		defer t.Stop()
		timer = t.C
	}
	select {
	case <-c.kick:
	case <-timer:
	case <-ctx.Done():
	}
}

// cancellable gives the context of an operation that a later order may cut short; cut tells whether one already did.
func (c *chain) cancellable(ctx context.Context, act string, still func() bool) (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	c.r.g.mu.Lock()
	defer c.r.g.mu.Unlock()
	if !still() {
		cancel(ErrSuperseded)
	}
	c.cancel, c.cancels = cancel, act
	return ctx, func() {
		c.r.g.mu.Lock()
		c.cancel, c.cancels = nil, ""
		c.r.g.mu.Unlock()
		cancel(nil)
	}
}

// order is called with the mutex held when something was ordered: what is under way may be superseded.
func (c *chain) order(interrupt bool) {
	if interrupt && c.cancel != nil {
		c.cancel(ErrSuperseded)
	}
	select {
	case c.kick <- struct{}{}:
	default:
	}
}

// update changes an instance, or the chain, and writes the record.
func (c *chain) update(change func()) {
	c.r.g.mu.Lock()
	change()
	data := c.encode()
	c.tell(time.Now())
	c.r.g.mu.Unlock()
	c.r.g.deliver()
	err := writeFile(c.file, data)
	c.r.g.mu.Lock()
	defer c.r.g.mu.Unlock()
	c.lost = ""
	if err != nil {
		c.lost = fmt.Sprintf("the record cannot be written, so nothing is started: %v", err)
		c.host.log.Error("record of services not written", "err", err)
	}
}

// handle connects a driver to an instance for one operation.
func (c *chain) handle(ctx context.Context, in *instance, act string, limit time.Duration) *handle {
	note := func(change func(p *process)) func(*process) error {
		return func(p *process) error {
			c.update(func() { change(p) })
			c.r.g.mu.Lock()
			defer c.r.g.mu.Unlock()
			if c.lost != "" {
				return fmt.Errorf("%s", c.lost)
			}
			return nil
		}
	}
	c.r.g.mu.Lock()
	main, exited := in.Main, in.exited
	c.r.g.mu.Unlock()
	h := &handle{main: main, exited: exited, recorded: func(*process) error { return nil }}
	if act != "monitor" {
		deadline := time.Now().Add(limit)
		h.recorded = note(func(p *process) { in.Op = &operation{act, *p, deadline} })
	}
	h.started = note(func(p *process) { in.Main, in.exited = p, "" })
	h.ended = func(ended <-chan error) { c.watch(ctx, in, ended) }
	return h
}

// watch learns when the main process of a command ends: from its parent, us, or by a descriptor when an agent before us
// started it.
func (c *chain) watch(ctx context.Context, in *instance, ended <-chan error) {
	ctx, cancel := context.WithCancel(ctx)
	c.r.g.mu.Lock()
	main := in.Main
	in.unwatch = cancel
	c.r.g.mu.Unlock()
	gone := func(how string) {
		c.r.g.mu.Lock()
		defer c.r.g.mu.Unlock()
		if in.Main == main {
			in.exited, in.due = how, time.Time{}
			c.order(false)
		}
	}
	c.r.wg.Go(func() {
		defer cancel()
		if ended == nil {
			main.watch(ctx, func() { gone("ended") })
			return
		}
		select {
		case err := <-ended:
			gone(fmt.Sprintf("ended with exit code %d", exitCode(err)))
		case <-ctx.Done():
		}
	})
}

// start probes and starts the next service.
func (c *chain) start(ctx context.Context, spec config.ServiceSpec) {
	ctx2, done := c.cancellable(ctx, "start", func() bool {
		hold, _ := c.hold()
		return c.want == wantUp && !c.r.maintenance && hold == free
	})
	defer done()
	d := c.r.g.drivers(c.host, spec.Kind)
	in := &instance{Spec: spec, State: Starting, Since: time.Now()}
	a := d.monitor(ctx2, &spec, c.handle(ctx, in, "monitor", spec.MonitorTimeout), true)
	if a.err != nil {
		return
	}
	switch a.is {
	case running, degraded:
		c.update(func() { c.push(in); c.runs(in, a) })
		return
	case refused, nowhere:
		c.fail(ctx, nil, &spec, a)
		return
	case broken: // half of it may be there
		c.update(func() { c.push(in) })
		c.fail(ctx, in, &spec, a)
		return
	case unclear:
		c.fail(ctx, nil, &spec, a)
		return
	}
	c.update(func() { c.push(in) })
	a = d.start(ctx2, &spec, c.handle(ctx, in, "start", spec.StartTimeout))
	switch {
	case a.err == errLeft: //nolint:errorlint // set by us, never wrapped
		return
	case a.err != nil:
		c.update(func() { in.Op, in.Failed, in.Reason = nil, true, "its start was cut short by a later order" })
	case a.is == running:
		c.update(func() { c.runs(in, a); in.due = time.Time{} })
	default:
		c.fail(ctx, in, &spec, a)
	}
}

// push is called with the mutex held.
func (c *chain) push(in *instance) { c.stack = append(c.stack, in) }

// runs notes, with the mutex held, that a service runs.
func (c *chain) runs(in *instance, a answer) {
	now := time.Now()
	state := Running
	if a.is == degraded {
		state = Degraded
	}
	if in.State != state {
		in.Since = now
	}
	in.State, in.Reason, in.Ran, in.Op = state, a.reason, true, nil
	in.checked, in.due = now, now.Add(in.Spec.Monitor)
}

// fail notes a failure; in is nil when nothing can have been started.
func (c *chain) fail(ctx context.Context, in *instance, spec *config.ServiceSpec, a answer) {
	now := time.Now()
	var e *Escalation
	c.update(func() {
		p := c.past[spec.Name]
		if p == nil {
			p = &past{}
			c.past[spec.Name] = p
		}
		before := p.GaveUp
		failure(p, spec, a, now, c.r.g.o.Backoff)
		if in != nil {
			in.State, in.Reason, in.Since, in.Failed, in.Op = Failed, a.reason, now, true, nil
			in.Refused = a.is == refused || a.is == nowhere
		}
		if p.GaveUp != "" && before == "" {
			c.asks, c.why = max2(c.asks, AskMove), spec.Name+": "+p.Reason
			e = &Escalation{Resource: c.r.name, Role: c.host.role, Service: spec.Name, Level: AskMove, Reason: p.Reason, Nowhere: p.Nowhere}
		}
	})
	c.host.log.Warn("service failed", "service", spec.Name, "why", a.reason)
	if e != nil {
		c.escalate(ctx, *e)
	}
}

// max2 is the worse level.
func max2(a, b Level) Level {
	order := []Level{AskNothing, AskMove, AskForceDemote, AskFence}
	if slices.Index(order, a) > slices.Index(order, b) {
		return a
	}
	return b
}

// escalate asks the owner. AskMove is not waited for: until the owner says otherwise, the rest of the chain goes on.
func (c *chain) escalate(ctx context.Context, e Escalation) {
	c.host.log.Error("services ask their owner", "level", string(e.Level), "service", e.Service, "why", e.Reason)
	if c.r.g.o.Escalate == nil {
		return
	}
	ask := func() {
		ctx, cancel := context.WithTimeout(ctx, escalateWait)
		defer cancel()
		if err := c.r.g.o.Escalate(ctx, e); err != nil {
			c.host.log.Error("the owner of services did not do what they ask", "level", string(e.Level), "err", err)
		}
	}
	done := make(chan struct{})
	c.r.wg.Go(func() { defer close(done); ask() })
	if e.Level != AskMove {
		select {
		case <-done:
		case <-ctx.Done():
		}
	}
}

// stop stops the top of the stack.
func (c *chain) stop(ctx context.Context, index int) {
	in := c.stack[index] // nobody else changes the stack
	spec := in.Spec
	c.update(func() {
		if in.State != StopFailed {
			in.State, in.Since = Stopping, time.Now()
		}
	})
	d := c.r.g.drivers(c.host, spec.Kind)
	a := d.stop(ctx, &spec, c.handle(ctx, in, "stop", spec.StopTimeout))
	if a.err != nil {
		return // the next agent goes on
	}
	if a.is != notRunning {
		if in.Refused && !in.Ran && (a.is == refused || a.is == nowhere) { // neither start nor stop can do anything here
			c.host.log.Info("service not stopped: it could not be started either", "service", spec.Name, "why", a.reason)
			a = answer{is: notRunning}
		} else if m := d.monitor(ctx, &spec, c.handle(ctx, in, "monitor", spec.MonitorTimeout), true); m.err != nil {
			return
		} else if m.is == notRunning {
			c.host.log.Warn("stop failed, and the service is stopped", "service", spec.Name, "why", a.reason)
			a = m
		}
	}
	if a.is == notRunning {
		c.update(func() {
			c.stack = slices.Delete(c.stack, index, index+1)
			if in.unwatch != nil {
				in.unwatch()
			}
			if !slices.ContainsFunc(c.stack, func(o *instance) bool { return o.Stops > 0 }) && (c.asks == AskForceDemote || c.asks == AskFence) {
				c.asks, c.why = AskNothing, ""
			}
		})
		return
	}
	c.stopFailed(ctx, in, a)
}

// stopFailed escalates: only the primary chain holds the volume, so only it can ask for more than patience.
func (c *chain) stopFailed(ctx context.Context, in *instance, a answer) {
	now := time.Now()
	var e *Escalation
	c.update(func() {
		in.State, in.Reason, in.Since, in.Failed, in.Op = StopFailed, a.reason, now, true, nil
		in.Stops++
		pause := c.r.g.o.Backoff
		for i := 1; i < in.Stops && pause < backoffMax; i++ {
			pause *= 2
		}
		in.retry = now.Add(min(pause, backoffMax))
		if c.host.role != Primary {
			return
		}
		level := AskForceDemote
		if in.Stops > 1 {
			level = AskFence
		} else {
			in.retry = time.Time{} // at once: after a forced demotion its users get errors and can end
		}
		if in.Stops <= 2 {
			e = &Escalation{Resource: c.r.name, Role: c.host.role, Service: in.Spec.Name, Level: level, Reason: a.reason}
		}
		c.asks, c.why = level, in.Spec.Name+": "+a.reason
	})
	c.host.log.Error("service not stopped", "service", in.Spec.Name, "why", a.reason)
	if e != nil {
		c.escalate(ctx, *e)
	}
}

// monitor asks one service.
func (c *chain) monitor(ctx context.Context, index int) {
	in := c.stack[index]
	spec := c.specOf(in)
	ctx2, done := c.cancellable(ctx, "monitor", func() bool { return c.want != wantDown && !c.r.maintenance })
	defer done()
	a := c.r.g.drivers(c.host, spec.Kind).monitor(ctx2, &spec, c.handle(ctx, in, "monitor", spec.MonitorTimeout), false)
	if a.err != nil {
		return
	}
	if a.is == notRunning && !in.Ran { // it was unknown until now, and never ran
		c.update(func() { c.stack = slices.Delete(c.stack, index, index+1) })
		return
	}
	switch a.is {
	case running, degraded:
		warning := c.warning(ctx2, in, &spec)
		c.update(func() { c.runs(in, a); in.warning = warning })
	case unclear:
		c.update(func() {
			if in.State != Unknown {
				in.Since = time.Now()
			}
			in.State, in.Reason, in.checked = Unknown, a.reason, time.Now()
			in.due = in.checked.Add(max(spec.Monitor, unclearPause))
		})
	default:
		if a.is == notRunning && a.reason == "" {
			a.reason = "it does not run any more"
		}
		c.fail(ctx, in, &spec, a)
	}
}

// warning looks once how a service is set up, when the chain has nothing more urgent to do.
func (c *chain) warning(ctx context.Context, in *instance, spec *config.ServiceSpec) string {
	c.r.g.mu.Lock()
	look := !in.warned && c.up()
	in.warned = in.warned || look
	old := in.warning
	c.r.g.mu.Unlock()
	if !look {
		return old
	}
	return c.r.g.drivers(c.host, spec.Kind).warn(ctx, spec)
}

// specOf is how a running service is watched: by its definition of today, if there is one.
func (c *chain) specOf(in *instance) config.ServiceSpec {
	c.r.g.mu.Lock()
	defer c.r.g.mu.Unlock()
	for i := range c.defs {
		if c.defs[i].SameService(&in.Spec) {
			spec := c.defs[i]
			in.Spec = spec
			return spec
		}
	}
	return in.Spec
}
