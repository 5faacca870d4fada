package service

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/hawser-ha/hawser/agent/config"
)

// Options are what all services of a node share.
type Options struct {
	Node     string
	RunDir   string // records are in its folder services
	OCFRoot  string // "" is DefaultOCFRoot
	Log      *slog.Logger
	Escalate Escalate      // nil: the status alone says what is asked
	Notify   func(Event)   // called with each change, in order; it must not block
	Backoff  time.Duration // before the first restart, doubled with each; 0 is one second
}

// Definition is the services of a resource.
type Definition struct {
	Resource string
	After    []string // resources whose primary chain runs on this node before ours
	Chains   map[Role][]config.ServiceSpec
}

// DefinitionOf reads it from a resource file that has passed its checks.
func DefinitionOf(r *config.Resource) Definition {
	d := Definition{Resource: r.Name, After: slices.Clone(r.Services.After), Chains: map[Role][]config.ServiceSpec{}}
	for _, role := range Roles {
		d.Chains[role] = r.ServiceChain(string(role))
	}
	return d
}

// Group is the services of all resources of a node.
type Group struct {
	o    Options
	dir  string
	boot string

	mu      sync.Mutex // guards the fields below and those of runners and chains; never held over I/O
	runners map[string]*Runner
	drivers func(*host, string) driver // newDriver, but for tests
	changed chan struct{}              // closed and replaced at each change
	pending []Event                    // not yet delivered

	notify sync.Mutex // keeps events in order; held while Notify is called
}

// deliver hands out events, without the mutex: who gets them may hold locks of its own that it takes before ours.
func (g *Group) deliver() {
	g.notify.Lock()
	defer g.notify.Unlock()
	g.mu.Lock()
	events := g.pending
	g.pending = nil
	g.mu.Unlock()
	for _, e := range events {
		g.o.Notify(e)
	}
}

// NewGroup starts nothing.
func NewGroup(o Options) (*Group, error) {
	if o.OCFRoot == "" {
		o.OCFRoot = DefaultOCFRoot
	}
	if o.Backoff == 0 {
		o.Backoff = time.Second
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	g := &Group{o: o, dir: filepath.Join(o.RunDir, "services"), boot: bootID(), runners: map[string]*Runner{}, drivers: newDriver, changed: make(chan struct{})}
	if err := os.MkdirAll(g.dir, 0o700); err != nil {
		return nil, err
	}
	return g, nil
}

// Runner runs the services of one resource.
type Runner struct {
	g    *Group
	name string
	wg   sync.WaitGroup // watchers and questions to the owner; Run waits for them

	// Guarded by the group's mutex.
	after       []string
	chains      map[Role]*chain
	maintenance bool
	adopted     bool
	live        bool // Run runs
}

// New adds the services of a resource. Nothing happens before Adopt and Run.
func (g *Group) New(d Definition) (*Runner, error) {
	if why := config.CheckName(d.Resource); why != "" {
		return nil, fmt.Errorf("services of resource %q: %s", d.Resource, why)
	}
	r := &Runner{g: g, name: d.Resource, after: d.After, chains: map[Role]*chain{}}
	for _, role := range Roles {
		h := &host{node: g.o.Node, resource: d.Resource, role: role, ocfRoot: g.o.OCFRoot, dir: g.dir,
			log: g.o.Log.With("resource", d.Resource, "role", string(role))}
		r.chains[role] = &chain{r: r, host: h, file: recordPath(g.dir, d.Resource, role), defs: d.Chains[role], past: map[string]*past{},
			told: Stopped, kick: make(chan struct{}, 1)}
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.runners[d.Resource] != nil {
		return nil, fmt.Errorf("services of resource %s: there is a runner already", d.Resource)
	}
	g.runners[d.Resource] = r
	return r, nil
}

// Runner finds the runner of a resource.
func (g *Group) Runner(resource string) (*Runner, bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	r, ok := g.runners[resource]
	return r, ok
}

// Status is that of all resources, sorted by name.
func (g *Group) Status() []Status {
	g.mu.Lock()
	defer g.mu.Unlock()
	var list []Status
	for _, r := range g.runners {
		list = append(list, r.status())
	}
	slices.SortFunc(list, func(a, b Status) int {
		if a.Resource < b.Resource {
			return -1
		}
		return 1
	})
	return list
}

// Remove forgets a resource whose Run has ended. Its record stays, in case something still runs.
func (g *Group) Remove(resource string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.runners, resource)
	g.wake()
}

// Adopt takes over what an agent before us left, and changes nothing. It may take as long as an operation that was
// under way. Run needs it.
func (r *Runner) Adopt(ctx context.Context) error {
	errs := make([]error, len(Roles))
	var wg sync.WaitGroup
	for i, role := range Roles {
		wg.Go(func() { errs[i] = r.chains[role].adopt(ctx) })
	}
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("adopt services of %s: %w", r.name, err)
	}
	r.g.mu.Lock()
	defer r.g.mu.Unlock()
	r.adopted = true
	r.g.wake()
	return nil
}

// Run drives the chains until ctx ends. It stops no service: the next agent adopts them.
func (r *Runner) Run(ctx context.Context) error {
	r.g.mu.Lock()
	adopted := r.adopted
	r.live = adopted
	r.g.mu.Unlock()
	if !adopted {
		return fmt.Errorf("services of %s: nobody has looked what runs (Adopt)", r.name)
	}
	var chains sync.WaitGroup
	for _, role := range Roles {
		chains.Go(func() { r.chains[role].run(ctx) })
	}
	chains.Wait()
	r.wg.Wait()
	r.g.mu.Lock()
	defer r.g.mu.Unlock()
	r.live = false
	return nil
}

// Want says whether a chain should run, and returns at once. The primary and the secondary chain exclude each other:
// wanting one unwants the other, and it waits until that has stopped.
func (r *Runner) Want(role Role, up bool) {
	r.g.mu.Lock()
	defer r.g.mu.Unlock()
	r.set(role, up)
	opposite := map[Role]Role{Primary: Secondary, Secondary: Primary}[role]
	if up && opposite != "" {
		r.set(opposite, false)
	}
	r.g.wake()
}

// set is called with the mutex held.
func (r *Runner) set(role Role, up bool) {
	c := r.chains[role]
	want := wantDown
	if up {
		want = wantUp
	}
	if up && c.want == wantDown { // another attempt; what failed lately still counts
		c.pardon(false)
	}
	if !up && c.asks == AskMove {
		c.asks, c.why = AskNothing, ""
	}
	changed := c.want != want
	c.want = want
	c.order(changed && !up)
	if role != Primary || up {
		return
	}
	for _, o := range r.g.runners { // what comes after us stops first: it should not wait for its start
		if o := o.chains[Primary]; o.r != r && slices.Contains(o.r.after, r.name) {
			o.order(o.cancels == "start")
		}
	}
}

// pardon lets what was given up be tried again; the mutex is held.
func (c *chain) pardon(forget bool) {
	for name, p := range c.past {
		if forget {
			delete(c.past, name)
			continue
		}
		p.GaveUp, p.Nowhere, p.Next = "", false, time.Time{}
	}
	if c.asks == AskMove {
		c.asks, c.why = AskNothing, ""
	}
}

// Start wants a chain and waits until it runs. The error is a *ChainError when it does not get there by itself,
// ErrMaintenance, ErrSuperseded, or that of ctx, which ends only the waiting.
func (r *Runner) Start(ctx context.Context, role Role) error {
	r.Want(role, true)
	return r.await(ctx, role, wantUp)
}

// Stop wants a chain stopped and waits until nothing of it runs; errors as of Start.
func (r *Runner) Stop(ctx context.Context, role Role) error {
	r.Want(role, false)
	return r.await(ctx, role, wantDown)
}

func (r *Runner) await(ctx context.Context, role Role, want wanted) error {
	for {
		r.g.mu.Lock()
		c := r.chains[role]
		st := c.status()
		there := want == wantDown && len(c.stack) == 0 || want == wantUp && st.State == Running
		superseded := c.want != want
		maintenance := r.maintenance
		changed := r.g.changed
		r.g.mu.Unlock()
		switch {
		case superseded:
			return ErrSuperseded
		case there:
			return nil
		case maintenance:
			return ErrMaintenance
		case want == wantUp && (st.State == Failed || st.State == Refused), st.State == StopFailed && (st.Asks == AskFence || role != Primary):
			return &ChainError{r.name, st}
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return fmt.Errorf("%s services of %s, still %s: %w", role, r.name, st.State, context.Cause(ctx))
		}
	}
}

// Update changes the definition. What runs and is defined otherwise now is stopped, as it was started, and started
// anew with what follows it; how something is watched changes without that.
func (r *Runner) Update(d Definition) {
	r.g.mu.Lock()
	defer r.g.mu.Unlock()
	r.after = d.After
	for _, role := range Roles {
		c := r.chains[role]
		for i := range c.defs {
			old := &c.defs[i]
			if !slices.ContainsFunc(d.Chains[role], func(s config.ServiceSpec) bool { return s.SameService(old) }) {
				delete(c.past, old.Name)
			}
		}
		if c.asks == AskMove && !slices.ContainsFunc(sortedPast(c.past), func(p *past) bool { return p.GaveUp != "" }) {
			c.asks, c.why = AskNothing, ""
		}
		c.defs = d.Chains[role]
	}
	r.g.wake()
}

func sortedPast(m map[string]*past) []*past {
	var list []*past
	for _, p := range m {
		list = append(list, p)
	}
	return list
}

// Maintenance suspends everything, monitors too, or ends that; then each service is asked first.
func (r *Runner) Maintenance(on bool) {
	r.g.mu.Lock()
	defer r.g.mu.Unlock()
	if r.maintenance == on {
		return
	}
	r.maintenance = on
	for _, role := range Roles {
		c := r.chains[role]
		for _, in := range c.stack {
			in.due = time.Time{}
		}
		if on && c.cancels == "monitor" {
			c.order(true)
		}
	}
	r.g.wake()
}

// Reset forgets failures, so that what was given up is tried again: a person's order.
func (r *Runner) Reset() {
	r.g.mu.Lock()
	defer r.g.mu.Unlock()
	for _, role := range Roles {
		c := r.chains[role]
		c.pardon(true)
		for _, in := range c.stack {
			in.retry = time.Time{}
		}
	}
	r.g.wake()
}

// Status is what runs, and why not.
func (r *Runner) Status() Status {
	r.g.mu.Lock()
	defer r.g.mu.Unlock()
	return r.status()
}

// wake tells everybody that something changed; the mutex is held.
func (g *Group) wake() {
	close(g.changed)
	g.changed = make(chan struct{})
	for _, r := range g.runners {
		for _, c := range r.chains {
			c.order(false)
		}
	}
}

// Changed gives a channel that is closed at the next change of any state.
func (g *Group) Changed() <-chan struct{} {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.changed
}
