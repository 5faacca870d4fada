package agent

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/hawser-ha/hawser/agent/config"
	"github.com/hawser-ha/hawser/agent/coord"
	"github.com/hawser-ha/hawser/agent/decide"
	"github.com/hawser-ha/hawser/agent/etcd"
	"github.com/hawser-ha/hawser/agent/ha"
	"github.com/hawser-ha/hawser/replicator/control"
)

const (
	downSuffix   = ".down" // beside the socket: a person has taken the coordinated resource down on this node
	knowEvery    = 5 * time.Second
	confirmEvery = time.Second
)

// coordinate starts the HA loop, if this node has an etcd. The returned function gives up what it holds open.
func (a *Agent) coordinate(ctx context.Context) (func(), error) {
	n := a.cfg.Node
	if !n.Coordinated() {
		return func() {}, nil
	}
	cfg, err := etcd.FromNode(n, a.log)
	if err != nil {
		return nil, err
	}
	client, err := etcd.Open(cfg)
	if err != nil {
		return nil, err
	}
	store := coord.New(coord.Options{Backend: client, Prefix: coord.Prefix(n.Cluster), Node: n.Node, Log: a.log})
	session := store.Hold(coord.SessionOptions{File: n.SessionFile(), TTL: n.Lease.TTL, RenewEvery: n.Lease.RenewEvery, RPCTimeout: n.Lease.RPCTimeout, Margin: n.Lease.Margin,
		Info: coord.NodeInfo{Machine: machineID(n), Boot: bootID(), Version: a.cfg.Version, API: n.Listen}})
	if err := a.startServices(); err != nil {
		return nil, errors.Join(err, client.Close())
	}
	a.store = store
	a.ha = ha.New(ha.Options{Node: n.Node, Store: store, Session: session, Log: a.log,
		Follow:   coord.FollowOptions{ConfirmEvery: confirmEvery, RPCTimeout: n.Lease.RPCTimeout},
		Resource: a.coordinated, Replica: func(name string) ha.Replica { return &replica{a: a, m: a.managed(name)} },
		Services: a.servicePort(), Spec: a.takeSpec, Fencer: a.fencers(), Holding: a.holding, Note: func(resource, name, text string) {
			a.publish(control.Event{Resource: resource, Kind: control.EventNote, Volume: control.All, Name: name, Text: text})
		}})
	a.wg.Go(func() { a.ha.Run(ctx) })
	a.wg.Go(func() { a.guard(ctx, session) })
	a.wg.Go(func() { a.know(ctx) })
	return func() {
		if err := client.Close(); err != nil {
			a.log.Debug("etcd client not closed", "err", err)
		}
	}, nil
}

// know tells the loop which resources there are, and wakes it when something of theirs changes.
func (a *Agent) know(ctx context.Context) {
	a.wg.Go(func() {
		for e := range a.hub.Subscribe(ctx, 0) {
			if e.Resource != "" && e.Kind != control.EventSync && !strings.HasPrefix(e.Name, "ha-") {
				a.ha.Wake(e.Resource)
			}
		}
	})
	t := time.NewTicker(knowEvery)
	defer t.Stop()
	for {
		a.knowAll()
		select {
		case <-t.C:
		case <-ctx.Done():
			return
		}
	}
}

// knowAll reads the folder and tells the loop.
func (a *Agent) knowAll() {
	set, _ := config.LoadFor(a.cfg.Node.ResourcesDir, a.cfg.Node.Node) // what is wrong in it is in the status
	if set == nil {
		return
	}
	known := map[string]*config.Resource{}
	for _, name := range set.Names() {
		if r, ok := set.Resource(name); ok && r.Coordinated() {
			known[name] = r
		}
	}
	a.haMu.Lock()
	a.coordinatedNow = known
	a.haMu.Unlock()
	for name := range known {
		a.ha.Know(name)
	}
}

// coordinated says what the loop must know of a resource.
func (a *Agent) coordinated(name string) (ha.Resource, bool) {
	a.haMu.Lock()
	r := a.coordinatedNow[name]
	a.haMu.Unlock()
	if r == nil {
		return ha.Resource{}, false
	}
	o := r.HA()
	n := a.cfg.Node
	p := decide.Policy{Auto: o.AutoPromote, Preferred: o.PreferredNode, Failback: o.Failback, BootWait: o.BootWait, TTL: n.Lease.TTL, Fencing: true}
	p.Auto = p.Auto && a.fence.dog.MayLead() == nil
	here := false
	for _, node := range r.Nodes {
		here = here || node.Name == n.Node
		if !node.Diskless {
			p.Nodes = append(p.Nodes, node.Name)
		}
	}
	two, _ := r.Net.Get("allow-two-primaries")
	p.TwoPrimaries = two == "yes" || two == "true"
	return ha.Resource{Name: name, Policy: p, Margin: n.Lease.Margin, Here: here, Wanted: !a.takenDown(name)}, true
}

// isCoordinated says whether the HA loop decides about a resource.
func (a *Agent) isCoordinated(name string) bool {
	if a.ha == nil {
		return false
	}
	_, ok := a.coordinated(name)
	return ok
}

func (a *Agent) downFile(name string) string {
	return strings.TrimSuffix(a.cfg.Node.ReplicatorSocket(name), ".sock") + downSuffix
}

// takenDown: a person took it down on this node, and has not brought it up since. After a reboot it comes up.
func (a *Agent) takenDown(name string) bool {
	_, err := os.Stat(a.downFile(name))
	return err == nil
}

// wantDown remembers whether a person wants a coordinated resource to be down here.
func (a *Agent) wantDown(name string, down bool) error {
	if !down {
		if err := os.Remove(a.downFile(name)); err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
		return nil
	}
	return writeFile(a.downFile(name), []byte("hawser down\n"))
}

// replica is the replicator of a resource as the loop drives it.
type replica struct {
	a *Agent
	m *managed
}

func (r *replica) Status(ctx context.Context) (*control.Status, error) {
	if _, served := control.Served(r.m.sock); !served {
		return nil, nil
	}
	st, err := r.m.client.Status(ctx)
	if errors.Is(err, control.NotRunning) {
		return nil, nil
	}
	return st, err
}

func (r *replica) Up(ctx context.Context) error {
	_, def, err := r.a.definition(r.m.name)
	if err != nil {
		return err
	}
	_, err = r.m.up(ctx, def)
	if errors.Is(err, control.Running) {
		return nil
	}
	return err
}

func (r *replica) Grant(ctx context.Context, g *control.Grant) error { return r.m.client.Grant(ctx, g) }

func (r *replica) Deposed(ctx context.Context, d control.Deposed) error {
	return r.m.client.Deposed(ctx, d)
}

func (r *replica) Candidacy(ctx context.Context, q control.Candidacy) (*control.CandidacyAnswer, error) {
	return r.m.client.Candidacy(ctx, q)
}

func (r *replica) Promote(ctx context.Context, force bool) error {
	return r.m.client.Do(ctx, "primary", control.Args{Volume: control.All, Force: force})
}

func (r *replica) Demote(ctx context.Context, force bool) error {
	return r.m.client.Do(ctx, "secondary", control.Args{Volume: control.All, Force: force})
}

// takeSpec writes a definition from etcd to the folder, if it is another one than there, and has a resource that is up take it.
func (a *Agent) takeSpec(name string, s *coord.Spec) error {
	path := filepath.Join(a.cfg.Node.ResourcesDir, name+".yaml")
	if old, err := os.ReadFile(path); err == nil && string(old) == s.Text {
		return nil
	}
	list, err := config.Parse(path, []byte(s.Text))
	if err != nil {
		return err
	}
	if len(list) != 1 || list[0].Name != name {
		return fmt.Errorf("it does not define %s alone", name)
	}
	if set, _ := config.LoadFor(a.cfg.Node.ResourcesDir, a.cfg.Node.Node); set != nil {
		if r, ok := set.Resource(name); ok && r.File != path {
			return fmt.Errorf("%s defines it already: remove it there, or change it there", r.File)
		}
	}
	if err := writeFile(path, []byte(s.Text)); err != nil {
		return err
	}
	a.log.Info("definition taken from etcd", "resource", name, "by", s.By)
	a.knowAll()
	m := a.managed(name)
	if _, served := control.Served(m.sock); !served {
		return nil
	}
	ctx, cancel := a.command()
	defer cancel()
	steps, err := m.adjust(ctx, true)
	if err != nil {
		return err
	}
	for _, step := range steps {
		if step.Stops || step.Detaches {
			a.note(name, "adjust-needed", "the new definition needs hawser adjust "+name+": "+step.Text)
			return nil
		}
	}
	_, err = m.adjust(ctx, false)
	return err
}

// promote and demote do for a coordinated resource what primary and secondary do.
func (a *Agent) promote(w http.ResponseWriter, r *http.Request, name string) {
	var args control.Args
	if err := control.ReadJSON(r, &args); err != nil {
		control.WriteError(w, err)
		return
	}
	ctx, cancel := a.command()
	defer cancel()
	if err := a.fence.dog.MayLead(); err != nil {
		control.WriteError(w, control.Errorf(control.Refused, "%w", err).On(name, control.All, "").
			WithRule("watchdog.mode is required: without a watchdog this node does not lead").WithHint("hawser fence list shows the watchdog"))
		return
	}
	why := "a person asked for it"
	if args.Force {
		why = "a person forced it"
	}
	reply(w, struct{}{}, a.ha.Promote(ctx, name, args.Force, why))
}

func (a *Agent) demote(w http.ResponseWriter, r *http.Request, name string) {
	var args control.Args
	if err := control.ReadJSON(r, &args); err != nil {
		control.WriteError(w, err)
		return
	}
	ctx, cancel := a.command()
	defer cancel()
	if args.Force {
		if err := a.managed(name).client.Do(ctx, "secondary", args); err != nil {
			control.WriteError(w, err)
			return
		}
	}
	reply(w, struct{}{}, a.ha.Demote(ctx, name, "hawser secondary on "+a.cfg.Node.Node))
}

// leave hands a coordinated resource over before it goes down here.
func (a *Agent) leave(ctx context.Context, name string, force bool) error {
	if !a.isCoordinated(name) {
		return nil
	}
	if err := a.wantDown(name, true); err != nil {
		return err
	}
	a.ha.Wake(name)
	if force {
		return nil
	}
	if err := a.ha.Left(ctx, name); err != nil {
		return errors.Join(err, a.wantDown(name, false))
	}
	return nil
}

// machineID tells machines apart that have the same node name. Several agents on one machine differ by their folder.
func machineID(n config.NodeConfig) string {
	data, err := os.ReadFile("/etc/machine-id")
	if err != nil {
		data = nil
	}
	return strings.TrimSpace(string(data)) + ":" + n.StateDir
}

func bootID() string {
	data, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(data))
}

// haOnly refuses what only the HA loop can do.
func (a *Agent) haOnly(h http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if a.ha == nil {
			control.WriteError(w, control.Errorf(control.Refused, "this node has no etcd").
				WithRule("who leads is decided through etcd").WithHint("set etcd in hawser.yaml, and coordination: etcd in the resource file"))
			return
		}
		h(w, r)
	}
}

// haRoutes are those of the HA loop.
func (a *Agent) haRoutes(mux *http.ServeMux) {
	mux.HandleFunc("GET /v1/cluster", a.haOnly(func(w http.ResponseWriter, _ *http.Request) {
		v, err := a.ha.View()
		control.WriteJSON(w, ha.Survey(v, err, coord.BootTime(), time.Now()))
	}))
	mux.HandleFunc("GET /v1/resources/{name}/explain", a.haOnly(func(w http.ResponseWriter, r *http.Request) {
		e, err := a.ha.Explain(r.PathValue("name"))
		reply(w, e, err)
	}))
	mux.HandleFunc("GET /v1/resources/{name}/history", a.haOnly(func(w http.ResponseWriter, r *http.Request) {
		h, err := a.ha.History(r.PathValue("name"))
		reply(w, h, err)
	}))
	mux.HandleFunc("POST /v1/resources/{name}/switchover", a.haOnly(a.postSwitchover))
	mux.HandleFunc("POST /v1/simulate", a.haOnly(func(w http.ResponseWriter, r *http.Request) {
		var s ha.Loss
		if err := control.ReadJSON(r, &s); err != nil {
			control.WriteError(w, err)
			return
		}
		out, err := a.ha.Simulate(s)
		reply(w, out, err)
	}))
	mux.HandleFunc("POST /v1/drain", a.haOnly(a.postDrain))
	mux.HandleFunc("POST /v1/maintenance", a.haOnly(a.postMaintenance))
	mux.HandleFunc("POST /v1/apply", a.haOnly(a.postApply))
	mux.HandleFunc("GET /v1/reboot-check", func(w http.ResponseWriter, r *http.Request) { control.WriteJSON(w, a.rebootCheck(r.Context())) })
}

func (a *Agent) postSwitchover(w http.ResponseWriter, r *http.Request) {
	var mv SwitchoverArgs
	if err := control.ReadJSON(r, &mv); err != nil {
		control.WriteError(w, err)
		return
	}
	ctx, cancel := a.command()
	defer cancel()
	name := r.PathValue("name")
	moved, err := a.ha.Switchover(ctx, name, mv.Move)
	if err == nil && !mv.DryRun && !mv.Cancel && mv.At.IsZero() {
		moved, err = a.ha.Finish(ctx, name, moved)
	}
	reply(w, moved, err)
}

// SwitchoverArgs are the arguments of a switchover.
type SwitchoverArgs struct{ ha.Move }

// DrainArgs are the arguments of a drain.
type DrainArgs struct {
	Node string `json:"node"`
	Undo bool   `json:"undo,omitempty"`
	By   string `json:"by,omitempty"`
	Why  string `json:"why,omitempty"`
}

// Drained answers it.
type Drained struct {
	Left []string `json:"left"` // what the node still holds: nobody else can take it
}

func (a *Agent) postDrain(w http.ResponseWriter, r *http.Request) {
	var args DrainArgs
	if err := control.ReadJSON(r, &args); err != nil {
		control.WriteError(w, err)
		return
	}
	ctx, cancel := a.command()
	defer cancel()
	if args.Node == "" {
		args.Node = a.cfg.Node.Node
	}
	if err := a.ha.Drain(ctx, args.Node, !args.Undo, args.By, args.Why); err != nil {
		control.WriteError(w, err)
		return
	}
	d := Drained{Left: []string{}}
	if !args.Undo {
		left, err := a.ha.AwaitDrained(ctx, args.Node)
		if err != nil {
			control.WriteError(w, err)
			return
		}
		d.Left = append(d.Left, left...)
	}
	control.WriteJSON(w, d)
}

// MaintenanceArgs are the arguments of maintenance.
type MaintenanceArgs struct {
	ha.Scope
	On  bool   `json:"on"`
	By  string `json:"by,omitempty"`
	Why string `json:"why,omitempty"`
}

func (a *Agent) postMaintenance(w http.ResponseWriter, r *http.Request) {
	var args MaintenanceArgs
	if err := control.ReadJSON(r, &args); err != nil {
		control.WriteError(w, err)
		return
	}
	ctx, cancel := a.command()
	defer cancel()
	reply(w, struct{}{}, a.ha.SetMaintenance(ctx, args.Scope, args.On, args.By, args.Why))
}

// ApplyArgs is a file of resources that the whole cluster is to have.
type ApplyArgs struct {
	Text string `json:"text"`
	By   string `json:"by,omitempty"`
}

func (a *Agent) postApply(w http.ResponseWriter, r *http.Request) {
	var args ApplyArgs
	if err := control.ReadJSON(r, &args); err != nil {
		control.WriteError(w, err)
		return
	}
	text := []byte(args.Text)
	list, err := config.Parse("the file", text)
	if err != nil {
		control.WriteError(w, control.Errorf(control.BadDefinition, "%w", err))
		return
	}
	ctx, cancel := a.command()
	defer cancel()
	names := []string{}
	for i := range list {
		body := string(text)
		if len(list) > 1 {
			body = string(config.Marshal(list[i]))
		}
		if err := a.ha.Apply(ctx, list[i].Name, body, args.By); err != nil {
			control.WriteError(w, err)
			return
		}
		names = append(names, list[i].Name)
	}
	slices.Sort(names)
	control.WriteJSON(w, names)
}
