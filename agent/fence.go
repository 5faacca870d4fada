package agent

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/hawser-ha/hawser/agent/coord"
	"github.com/hawser-ha/hawser/agent/decide"
	"github.com/hawser-ha/hawser/agent/ha"
	"github.com/hawser-ha/hawser/fencing"
	"github.com/hawser-ha/hawser/fencing/exec"
	"github.com/hawser-ha/hawser/fencing/watchdog"
	"github.com/hawser-ha/hawser/replicator/control"
)

const (
	guardEvery  = time.Second // between looks at what this node leads
	guardAnswer = time.Second // a replicator that does not answer in this time counts as leading
)

// fences is what this node has to fence others, and itself.
type fences struct {
	fencer *fencing.Fencer
	dog    *watchdog.Dog

	mu      sync.Mutex                // guards what follows
	records map[string]*coord.Fencing // of fencings that run
	session *coord.Session            // nil: this node has no etcd
	held    map[string]bool           // coordinated resources that this node leads, as far as it knows
}

// FencingStatus is what hawser fence list shows.
type FencingStatus struct {
	fencing.Snapshot
	Watchdog watchdog.Status `json:"watchdog"`
	Timing   []string        `json:"timing"`
}

// FenceArgs ask for a fencing.
type FenceArgs struct {
	Node   string         `json:"node"`
	By     string         `json:"by,omitempty"`
	Why    string         `json:"why,omitempty"`
	Action fencing.Action `json:"action,omitempty"` // off, on, reboot; "": as each device is set up
	DryRun bool           `json:"dry-run,omitempty"`
	Force  bool           `json:"force,omitempty"`
}

// FenceAnswer is the result, or with DryRun the plan.
type FenceAnswer struct {
	Plan   []string        `json:"plan,omitempty"`
	Result *fencing.Result `json:"result,omitempty"`
}

// startFencing sets up devices and watchdog. A device that cannot be set up is shown as broken; it is no reason to
// keep volumes down.
func (a *Agent) startFencing(ctx context.Context) error {
	n := a.cfg.Node
	f := &fences{records: map[string]*coord.Fencing{}, held: map[string]bool{}}
	a.fence = f
	specs := make([]fencing.Spec, len(n.Fencing.Devices))
	var wg sync.WaitGroup
	for i := range n.Fencing.Devices {
		c := &n.Fencing.Devices[i]
		wg.Go(func() {
			o := exec.Options{Name: c.Name, Agent: c.Agent, Params: c.Params, Plugs: map[string]string{}}
			for _, p := range c.Plugs {
				o.Plugs[p.Node] = p.Plug
			}
			if c.PasswordFile != "" || c.PasswordEnv != "" {
				o.Secrets = append(o.Secrets, exec.Secret{File: c.PasswordFile, Env: c.PasswordEnv})
			}
			for _, s := range c.Secrets {
				o.Secrets = append(o.Secrets, exec.Secret{Param: s.Param, File: s.File, Env: s.Env})
			}
			specs[i] = c.Spec()
			d, err := exec.New(ctx, o)
			if err != nil {
				specs[i].Problem = err.Error()
				a.log.Error("fence device refused", "device", c.Name, "err", err)
				return
			}
			specs[i].Device = d
		})
	}
	wg.Wait()
	o := fencing.Options{Self: n.Node, Devices: specs, Levels: n.Fencing.Topology(), Deadline: n.Fencing.Deadline, MonitorAt: n.Fencing.MonitorEvery,
		Delays:  fencing.Delays{Random: n.Fencing.Delay.Random, NoService: n.Fencing.Delay.WithoutServices},
		Brake:   fencing.Brake{Times: n.Fencing.Brake.Times, Within: n.Fencing.Brake.Within},
		History: filepath.Join(n.StateDir, "fencing.json"), Log: a.log}
	if n.Coordinated() {
		o.Recorder = recorder{a}
	}
	var err error
	if f.fencer, err = fencing.New(o); err != nil {
		return err
	}
	f.dog, err = watchdog.New(watchdog.Options{Mode: watchdog.Mode(n.Watchdog.Mode), Path: n.Watchdog.Device, Timeout: n.Watchdog.Timeout,
		Marker: filepath.Join(n.RunDir, "watchdog.json"), Log: a.log})
	if err != nil {
		return err
	}
	if n.Watchdog.Mode != string(watchdog.Off) {
		a.selfFence = func(_ context.Context, why string) error { return f.dog.Die(why) }
	}
	a.wg.Go(func() { f.fencer.Run(ctx) })
	a.wg.Go(func() {
		if err := f.dog.Run(ctx); err != nil {
			a.log.Error("watchdog", "err", err)
		}
	})
	return nil
}

// holding is told by the HA loop when this node begins to lead a resource: the watchdog is armed before anything else.
// Its end is seen by guard, which looks whether nothing leads any more.
func (a *Agent) holding(resource string, holds bool) {
	if !holds {
		return
	}
	f := a.fence
	f.mu.Lock()
	f.held[resource] = true
	s := f.session
	f.mu.Unlock()
	if s == nil {
		return
	}
	if err := f.dog.Arm(time.Duration(s.State().Until)); err != nil {
		a.log.Error("watchdog not armed", "resource", resource, "err", err)
	}
}

// guard moves the end of the watchdog's licence with those of the resources that this node leads, and disarms it when
// there are none, for sure.
func (a *Agent) guard(ctx context.Context, session *coord.Session) {
	a.fence.mu.Lock()
	a.fence.session = session
	a.fence.mu.Unlock()
	t := time.NewTicker(guardEvery)
	defer t.Stop()
	for {
		a.guardOnce(ctx, session.State().Until)
		select {
		case <-t.C:
		case <-session.Changed():
		case <-ctx.Done():
			return
		}
	}
}

func (a *Agent) guardOnce(ctx context.Context, lease int64) {
	f := a.fence
	a.haMu.Lock()
	var names []string
	for name := range a.coordinatedNow {
		names = append(names, name)
	}
	a.haMu.Unlock()
	v, verr := a.ha.View()
	f.mu.Lock()
	for name := range f.held { // its file may have gone; its replicator has not
		if !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	f.mu.Unlock()
	until, leads := int64(0), false
	for _, name := range names {
		st, err := a.askRole(ctx, name)
		if ctx.Err() != nil {
			return
		}
		f.mu.Lock()
		// An old view says nothing: a node that lost etcd, stepped down in good order and was reset because of what etcd
		// said last would be one reset too many.
		holder := ""
		if v != nil && verr == nil {
			if p := v.Resource(name).Primary; p != nil {
				holder = p.Node
			}
		}
		h := holder == a.cfg.Node.Node || (err == nil && st != nil && st.Role == decide.Primary) || (err != nil && f.held[name])
		f.held[name] = h
		if !h {
			delete(f.held, name)
		}
		f.mu.Unlock()
		if !h {
			continue
		}
		end := lease
		if st != nil {
			end = max(end, licence(st, a.cfg.Node.Lease.TTL))
		}
		if !leads || end < until {
			until = end
		}
		leads = true
	}
	var err error
	if leads {
		err = f.dog.Arm(time.Duration(until))
	} else {
		err = f.dog.Disarm()
	}
	if err != nil && !errors.Is(err, watchdog.ErrTooLate) {
		a.log.Warn("watchdog", "err", err)
	}
}

// licence is until when a replicator may serve although the lease may have run out: the others promised not to take over,
// or there is nobody who could.
func licence(st *control.Status, ttl time.Duration) int64 {
	if st.Write == nil {
		return 0
	}
	switch st.Write.Right {
	case control.RightFailsafe:
		return st.Write.Until
	case control.RightUnlimited:
		return coord.BootTime() + int64(ttl)
	}
	return 0
}

func (a *Agent) askRole(ctx context.Context, name string) (*control.Status, error) {
	ctx, cancel := context.WithTimeout(ctx, guardAnswer)
	defer cancel()
	return (&replica{a: a, m: a.managed(name)}).Status(ctx)
}

// fencePort is what the HA loop fences with.
type fencePort struct{ a *Agent }

// fencers gives it; nil where nothing is set up.
func (a *Agent) fencers() ha.Fencer {
	if len(a.fence.fencer.Nodes()) == 0 {
		return nil
	}
	return fencePort{a}
}

func (p fencePort) Ready(node string) bool {
	return node != p.a.cfg.Node.Node && slices.Contains(p.a.fence.fencer.Nodes(), node)
}

type viewKey struct{}

func (p fencePort) Fence(ctx context.Context, v *coord.View, node, why string) error {
	// The record in etcd decides who fences whom: there is no race, and no delay.
	_, err := p.a.fence.fencer.Fence(context.WithValue(ctx, viewKey{}, v), fencing.Request{Node: node, By: p.a.cfg.Node.Node, Why: why, Alone: true})
	return err
}

// recorder keeps fencings in etcd. What is confirmed takes the node's keys from it, so that a successor goes at once.
type recorder struct{ a *Agent }

func (r recorder) view(ctx context.Context) (*coord.View, error) {
	if v, ok := ctx.Value(viewKey{}).(*coord.View); ok && v != nil {
		return v, nil // what it was decided on
	}
	if r.a.ha == nil {
		return nil, errors.New("the agent has just started")
	}
	v, err := r.a.ha.View()
	if err != nil {
		return nil, err
	}
	if v == nil {
		return nil, errors.New("etcd has not answered yet")
	}
	return v, nil
}

func (r recorder) Begin(ctx context.Context, q fencing.Request) error {
	v, err := r.view(ctx)
	if err != nil {
		return err
	}
	rec, err := r.a.store.BeginFencing(ctx, v, q.Node, because(q), false)
	if err != nil {
		return err
	}
	r.a.fence.mu.Lock()
	r.a.fence.records[q.Node] = rec
	r.a.fence.mu.Unlock()
	return nil
}

func because(q fencing.Request) string {
	if q.Why == "" {
		return q.By + " asked for it"
	}
	return q.By + ": " + q.Why
}

func (r recorder) End(ctx context.Context, res fencing.Result) error {
	r.a.fence.mu.Lock()
	rec := r.a.fence.records[res.Node]
	delete(r.a.fence.records, res.Node)
	r.a.fence.mu.Unlock()
	if rec == nil {
		return errors.New("its beginning was not recorded")
	}
	if res.Outcome != fencing.Confirmed {
		_, err := r.a.store.EndFencing(ctx, rec, coord.FencingFailed, res.Outcome.String())
		return err
	}
	return r.a.confirmed(ctx, rec, fmt.Sprintf("level %d: %s", res.Level, res.Method))
}

// confirmed records a death, and ends what the dead node held.
func (a *Agent) confirmed(ctx context.Context, rec *coord.Fencing, method string) error {
	rec, err := a.store.EndFencing(ctx, rec, coord.FencingConfirmed, method)
	if err != nil {
		return err
	}
	return a.store.Evict(ctx, rec)
}

func (a *Agent) fencingStatus() FencingStatus {
	return FencingStatus{Snapshot: a.fence.fencer.Snapshot(), Watchdog: a.fence.dog.Status(), Timing: a.cfg.Node.Timing().Lines()}
}

func (a *Agent) fenceRoutes(mux *http.ServeMux) {
	mux.HandleFunc("GET /v1/fencing", func(w http.ResponseWriter, _ *http.Request) { control.WriteJSON(w, a.fencingStatus()) })
	mux.HandleFunc("POST /v1/fencing/monitor", func(w http.ResponseWriter, r *http.Request) {
		a.fence.fencer.MonitorAll(r.Context())
		control.WriteJSON(w, a.fencingStatus())
	})
	mux.HandleFunc("POST /v1/fencing/fence", a.postFence)
	mux.HandleFunc("POST /v1/fencing/confirm", a.haOnly(a.postConfirm))
}

func (a *Agent) postFence(w http.ResponseWriter, r *http.Request) {
	var args FenceArgs
	if err := control.ReadJSON(r, &args); err != nil {
		control.WriteError(w, err)
		return
	}
	req := fencing.Request{Node: args.Node, By: args.By, Why: args.Why, Action: args.Action, Alone: true, Force: args.Force}
	if args.DryRun {
		plan, err := a.fence.fencer.Plan(req)
		reply(w, FenceAnswer{Plan: plan}, fenceError(err))
		return
	}
	ctx, cancel := context.WithTimeout(a.ctx, a.cfg.Node.Fencing.Deadline+time.Minute) // the fencer keeps its own deadline
	defer cancel()
	res, err := a.fence.fencer.Fence(ctx, req)
	reply(w, FenceAnswer{Result: &res}, fenceError(err))
}

// fenceError gives an error of a fencing its code.
func fenceError(err error) error {
	for _, k := range []struct {
		is   error
		code control.Code
		hint string
	}{
		{fencing.ErrUncertain, control.Unknown, "look at the node; if it is surely off: hawser fence confirm NODE"},
		{fencing.ErrNotDone, control.Failed, "hawser fence list shows the devices"},
		{fencing.ErrNoDevice, control.NotFound, "set up fencing.devices in hawser.yaml"},
		{fencing.ErrBraked, control.Refused, "find out why it comes back ill; --force goes past this"},
		{fencing.ErrBusy, control.Busy, "hawser fence list"},
		{fencing.ErrRefused, control.Refused, ""},
	} {
		if errors.Is(err, k.is) {
			return control.Errorf(k.code, "%w", err).WithHint(k.hint)
		}
	}
	return err
}

// postConfirm takes a person's word that a node is off.
func (a *Agent) postConfirm(w http.ResponseWriter, r *http.Request) {
	var args FenceArgs
	if err := control.ReadJSON(r, &args); err != nil {
		control.WriteError(w, err)
		return
	}
	ctx, cancel := a.command()
	defer cancel()
	reply(w, struct{}{}, a.confirm(ctx, args))
}

func (a *Agent) confirm(ctx context.Context, args FenceArgs) error {
	v, err := recorder{a}.view(ctx)
	if err != nil {
		return control.Errorf(control.Unknown, "%s is not confirmed: %w", args.Node, err)
	}
	_, known := a.cfg.Node.ClusterNode(args.Node)
	rec := v.Fencing[args.Node]
	switch {
	case args.Node == a.cfg.Node.Node:
		return control.Errorf(control.Refused, "%s is this node, and it is not off", args.Node)
	case v.Nodes[args.Node] != nil && !args.Force:
		return control.Errorf(control.Refused, "%s is alive: etcd hears it", args.Node).WithRule("a death is confirmed only of a node that is not heard").
			WithHint("if it is surely off, wait until its lease has run out, or say --force")
	case !known && rec == nil && v.Nodes[args.Node] == nil:
		return control.Errorf(control.NotFound, "there is no node %s in hawser.yaml", args.Node)
	case rec != nil && rec.State == coord.FencingConfirmed:
		return nil
	}
	if rec == nil || rec.State == coord.FencingUnreadable {
		if rec, err = a.store.BeginFencing(ctx, v, args.Node, args.By+" says that it is off", false); err != nil {
			return err
		}
	}
	return a.confirmed(ctx, rec, "the word of "+args.By)
}
