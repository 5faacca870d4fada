package agent

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/hawser-ha/hawser/agent/config"
	"github.com/hawser-ha/hawser/agent/coord"
	"github.com/hawser-ha/hawser/agent/ha"
	"github.com/hawser-ha/hawser/agent/pacemaker/host"
	"github.com/hawser-ha/hawser/replicator/control"
)

// commandTimeout bounds what changes a resource; each step inside has a shorter one.
const commandTimeout = 3 * time.Minute

// States of a resource on this node.
const (
	StateUp      = "up"
	StateDown    = "down"
	StateWitness = "witness"        // its file does not list this node: nothing runs here
	StateBroken  = "broken"         // its file is not right
	StateSilent  = "not-responding" // its replicator runs and does not answer
)

// NodeStatus is what the agent knows.
type NodeStatus struct {
	Node      string           `json:"node"`
	Version   string           `json:"version"`
	PID       int              `json:"pid"`
	Started   time.Time        `json:"started"`
	Resources []ResourceStatus `json:"resources"`
	Problems  []string         `json:"problems,omitempty"` // what is wrong in the resource files
	Cluster   *ha.Cluster      `json:"cluster,omitempty"`  // what etcd says of all nodes; nil: this node has none
}

// ResourceStatus is one resource on this node.
type ResourceStatus struct {
	Name     string          `json:"name"`
	State    string          `json:"state"`
	Message  string          `json:"message,omitempty"`  // what a person should know
	Restarts int             `json:"restarts,omitempty"` // of a replicator that ended unexpectedly
	Nodes    []string        `json:"nodes,omitempty"`    // those that hold its volumes
	Volumes  []int           `json:"volumes,omitempty"`  // as its file has them
	Status   *control.Status `json:"status,omitempty"`   // of the replicator
	Fenced   []host.Record   `json:"fenced,omitempty"`   // peers that this node keeps from being promoted, under Pacemaker
}

// Done answers a command that may have found nothing to do.
type Done struct {
	Changed bool `json:"changed"`
}

// Version answers GET /v1/version.
type Version struct {
	Version string `json:"version"`
	Node    string `json:"node"`
}

// serve answers on l until ctx ends.
func (a *Agent) serve(ctx context.Context, l net.Listener) error {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /v1/version", func(w http.ResponseWriter, _ *http.Request) {
		control.WriteJSON(w, Version{a.cfg.Version, a.cfg.Node.Node})
	})
	mux.HandleFunc("GET /v1/status", func(w http.ResponseWriter, r *http.Request) { control.WriteJSON(w, a.status(r.Context(), "")) })
	mux.Handle("GET /metrics", a.metrics)
	mux.HandleFunc("GET /v1/events", func(w http.ResponseWriter, r *http.Request) { a.events(w, r, r.URL.Query().Get("resource")) })
	mux.HandleFunc("GET /v1/resources/{name}/status", a.getStatus)
	mux.HandleFunc("GET /v1/resources/{name}/events", func(w http.ResponseWriter, r *http.Request) { a.events(w, r, r.PathValue("name")) })
	mux.HandleFunc("GET /v1/resources/{name}/file", a.getFile)
	mux.HandleFunc("GET /v1/resources/{name}/definition", a.getDefinition)
	mux.HandleFunc("GET /v1/resources/{name}/{what...}", a.inspect)
	mux.HandleFunc("POST /v1/resources/{name}/create-md", a.postCreateMD)
	mux.HandleFunc("POST /v1/resources/{name}/convert-md", a.postConvertMD)
	mux.HandleFunc("POST /v1/resources/{name}/up", a.postUp)
	mux.HandleFunc("POST /v1/resources/{name}/down", a.postDown)
	mux.HandleFunc("POST /v1/resources/{name}/adjust", a.postAdjust)
	mux.HandleFunc("POST /v1/resources/{name}/do/{command}", a.postCommand)
	a.haRoutes(mux)
	a.fenceRoutes(mux)
	srv := &http.Server{Handler: mux, ReadHeaderTimeout: 10 * time.Second, ErrorLog: slog.NewLogLogger(a.log.Handler(), slog.LevelWarn)}
	ended := make(chan error, 1)
	go func() { ended <- srv.Serve(l) }()
	select {
	case err := <-ended:
		return err
	case <-ctx.Done():
	}
	grace, cancel := context.WithTimeout(context.WithoutCancel(ctx), 3*time.Second)
	defer cancel()
	err := srv.Shutdown(grace)
	if errors.Is(err, context.DeadlineExceeded) {
		err = srv.Close()
	}
	if e := <-ended; !errors.Is(e, http.ErrServerClosed) {
		err = errors.Join(err, e)
	}
	return err
}

// command gives the context of something that must not stop half done because the client went away.
func (a *Agent) command() (context.Context, context.CancelFunc) {
	return context.WithTimeout(a.ctx, commandTimeout)
}

// status of one resource, or with name "" of all.
func (a *Agent) status(ctx context.Context, name string) *NodeStatus {
	st := &NodeStatus{Node: a.cfg.Node.Node, Version: a.cfg.Version, PID: os.Getpid(), Started: a.started, Resources: []ResourceStatus{}}
	set, err := config.LoadFor(a.cfg.Node.ResourcesDir, a.cfg.Node.Node)
	for _, e := range config.Errors(err) {
		st.Problems = append(st.Problems, e.Error())
	}
	if set == nil {
		set = &config.Set{}
	}
	names := set.Names()
	for _, m := range a.everyManaged() {
		if !slices.Contains(names, m.name) {
			if want, err := m.wanted(); want != nil || err != nil {
				names = append(names, m.name)
			} else if _, served := control.Served(m.sock); served {
				names = append(names, m.name)
			}
		}
	}
	if name != "" {
		names = slices.DeleteFunc(names, func(n string) bool { return n != name })
	}
	st.Resources = make([]ResourceStatus, len(names))
	var wg sync.WaitGroup
	for i, n := range names { // side by side: one that hangs holds up the answer only once
		wg.Go(func() { st.Resources[i] = a.resourceStatus(ctx, set, n) })
	}
	wg.Wait()
	if a.ha != nil {
		v, err := a.ha.View()
		st.Cluster = ha.Survey(v, err, coord.BootTime(), time.Now())
	}
	return st
}

func (a *Agent) resourceStatus(ctx context.Context, set *config.Set, name string) ResourceStatus {
	rs := ResourceStatus{Name: name, State: StateDown, Fenced: (&host.Host{Node: a.cfg.Node}).Records(name)}
	res, defined := set.Resource(name)
	mine := false
	if defined {
		for _, n := range res.Nodes {
			rs.Nodes = append(rs.Nodes, n.Name)
			mine = mine || n.Name == a.cfg.Node.Node
		}
		for _, v := range res.Volumes {
			rs.Volumes = append(rs.Volumes, v.Number)
		}
	}
	a.mu.Lock()
	m := a.res[name]
	a.mu.Unlock()
	if m != nil {
		m.mu.Lock()
		rs.Message, rs.Restarts = m.message, m.restarts
		m.mu.Unlock()
		_, served := control.Served(m.sock)
		if served {
			status, err := m.status(ctx)
			if err == nil {
				rs.State, rs.Status = StateUp, status
			} else {
				rs.State, rs.Message = StateSilent, err.Error()
			}
		} else if want, err := m.wanted(); want != nil || err != nil {
			rs.State = StateSilent // it is being started again
		}
	}
	switch {
	case rs.State != StateDown:
		if !defined {
			rs.Message = "it is up, and no resource file defines it"
		}
	case !defined:
		rs.State = StateBroken
	case !mine:
		rs.State = StateWitness
	}
	return rs
}

func (a *Agent) getStatus(w http.ResponseWriter, r *http.Request) {
	name := r.PathValue("name")
	st := a.status(r.Context(), name)
	if len(st.Resources) == 0 {
		_, _, err := a.definition(name)
		if err == nil { // it came just now
			err = control.Errorf(control.NotFound, "no such resource").On(name, control.All, "")
		}
		control.WriteError(w, err)
		return
	}
	control.WriteJSON(w, st.Resources[0])
}

func (a *Agent) getFile(w http.ResponseWriter, r *http.Request) {
	res, _, err := a.definition(r.PathValue("name"))
	if res == nil {
		control.WriteError(w, err)
		return
	}
	w.Header().Set("Content-Type", "application/yaml")
	_, _ = w.Write(config.Marshal(*res)) // the client has gone: nobody to tell
}

func (a *Agent) getDefinition(w http.ResponseWriter, r *http.Request) {
	_, def, err := a.definition(r.PathValue("name"))
	if err != nil {
		control.WriteError(w, err)
		return
	}
	control.WriteJSON(w, def)
}

// running gives the replicator of a resource that is up, or the error that says how to bring it up.
func (a *Agent) running(name string) (*managed, error) {
	if why := config.CheckName(name); why != "" {
		return nil, control.Errorf(control.Usage, "resource name %q: %s", name, why)
	}
	if _, served := control.Served(a.cfg.Node.ReplicatorSocket(name)); served {
		return a.managed(name), nil
	}
	if _, _, err := a.definition(name); err != nil {
		return nil, err
	}
	return nil, control.Errorf(control.NotRunning, "it is down").On(name, control.All, "").WithHint("hawser up " + name)
}

// inspect forwards questions to the replicator; of a resource that is down a short-lived one looks at the disks.
func (a *Agent) inspect(w http.ResponseWriter, r *http.Request) {
	name, what := r.PathValue("name"), r.PathValue("what")
	m, err := a.running(name)
	if err == nil {
		a.forward(w, r, m, what)
		return
	}
	if !errors.Is(err, control.NotRunning) {
		control.WriteError(w, err)
		return
	}
	_, def, err := a.definition(name)
	if err != nil {
		control.WriteError(w, err)
		return
	}
	t := &Task{Definition: *def, Volume: control.All}
	if text := r.URL.Query().Get("volume"); text != "" {
		if t.Volume, err = strconv.Atoi(text); err != nil {
			control.WriteError(w, control.Errorf(control.Usage, "volume %q is no number", text))
			return
		}
	}
	undo, isUndo := strings.CutPrefix(what, "undo/")
	switch {
	case what == "show-gi":
		t.Verb = TaskShowGI
	case what == "dump-md":
		t.Verb = TaskDumpMD
	case what == "undo":
		t.Verb = TaskUndoList
	case isUndo:
		t.Verb, t.Undo = TaskUndoExport, undo
	default:
		control.WriteError(w, control.Errorf(control.NotFound, "there is no %q", what).On(name, control.All, ""))
		return
	}
	out := &counter{w: w}
	switch err := a.task(r.Context(), t, out); {
	case err == nil:
	case out.n > 0:
		panic(http.ErrAbortHandler) // net/http's way to cut a connection; it is not logged
	default:
		control.WriteError(w, err)
	}
}

type counter struct {
	w http.ResponseWriter
	n int
}

func (c *counter) Write(p []byte) (int, error) {
	c.n += len(p)
	return c.w.Write(p)
}

// forward hands a request to the replicator as it is.
func (a *Agent) forward(w http.ResponseWriter, r *http.Request, m *managed, path string) {
	proxy := &httputil.ReverseProxy{
		Rewrite: func(p *httputil.ProxyRequest) {
			p.Out.URL = &url.URL{Scheme: "http", Host: "hawser", Path: "/v1/" + path, RawQuery: p.In.URL.RawQuery}
		},
		Transport: m.client,
		ErrorHandler: func(w http.ResponseWriter, _ *http.Request, err error) {
			control.WriteError(w, m.client.Translate(err))
		},
		ErrorLog: slog.NewLogLogger(a.log.Handler(), slog.LevelWarn),
	}
	proxy.ServeHTTP(w, r)
}

func (a *Agent) postCommand(w http.ResponseWriter, r *http.Request) {
	m, err := a.running(r.PathValue("name"))
	if err != nil {
		control.WriteError(w, err)
		return
	}
	if a.isCoordinated(m.name) {
		switch r.PathValue("command") {
		case "primary":
			a.promote(w, r, m.name)
			return
		case "secondary":
			a.demote(w, r, m.name)
			return
		}
	}
	ctx, cancel := context.WithTimeout(r.Context(), commandTimeout)
	defer cancel()
	a.forward(w, r.WithContext(ctx), m, "do/"+r.PathValue("command"))
}

func (a *Agent) postCreateMD(w http.ResponseWriter, r *http.Request) {
	var o control.CreateMDOptions
	if err := control.ReadJSON(r, &o); err != nil {
		control.WriteError(w, err)
		return
	}
	out, err := a.onDisks(r.PathValue("name"), &Task{Verb: TaskCreateMD, Create: o, Volume: o.Volume})
	writeTask(w, out, err)
}

func (a *Agent) postConvertMD(w http.ResponseWriter, r *http.Request) {
	var o control.ConvertMDOptions
	if err := control.ReadJSON(r, &o); err != nil {
		control.WriteError(w, err)
		return
	}
	out, err := a.onDisks(r.PathValue("name"), &Task{Verb: TaskConvertMD, Convert: o, Volume: o.Volume})
	writeTask(w, out, err)
}

// writeTask answers with what a task printed.
func writeTask(w http.ResponseWriter, out []byte, err error) {
	if err != nil {
		control.WriteError(w, err)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(out) // the client has gone: nobody to tell
}

// onDisks has a task done on the disks of a resource that is down.
func (a *Agent) onDisks(name string, t *Task) ([]byte, error) {
	_, def, err := a.definition(name)
	if err != nil {
		return nil, err
	}
	ctx, cancel := a.command()
	defer cancel()
	unlock, err := a.managed(name).lock(ctx)
	if err != nil {
		return nil, err
	}
	defer unlock()
	if _, served := control.Served(a.cfg.Node.ReplicatorSocket(name)); served {
		return nil, control.Errorf(control.Running, "it is up").On(name, control.All, "").
			WithRule("metadata is made or converted only while a resource is down").WithHint("hawser down " + name)
	}
	if err := a.checkDisks(def); err != nil {
		return nil, err
	}
	if t.Verb == TaskCreateMD {
		growFiles(def)
	}
	t.Definition = *def
	var out strings.Builder
	if err := a.task(ctx, t, &out); err != nil {
		return nil, err
	}
	return []byte(out.String()), nil
}

func (a *Agent) postUp(w http.ResponseWriter, r *http.Request) {
	name := r.PathValue("name")
	_, def, err := a.definition(name)
	if err != nil {
		control.WriteError(w, err)
		return
	}
	ctx, cancel := a.command()
	defer cancel()
	if a.isCoordinated(name) {
		if err := a.wantDown(name, false); err != nil {
			control.WriteError(w, err)
			return
		}
	}
	changed, err := a.managed(name).up(ctx, def)
	reply(w, Done{changed}, err)
}

func (a *Agent) postDown(w http.ResponseWriter, r *http.Request) {
	var args control.Args
	if err := control.ReadJSON(r, &args); err != nil {
		control.WriteError(w, err)
		return
	}
	name := r.PathValue("name")
	if _, err := a.running(name); err != nil && !errors.Is(err, control.NotRunning) {
		control.WriteError(w, err)
		return
	}
	ctx, cancel := a.command()
	defer cancel()
	if err := a.leave(ctx, name, args.Force); err != nil {
		control.WriteError(w, err)
		return
	}
	changed, err := a.managed(name).down(ctx, args.Force)
	reply(w, Done{changed}, err)
}

// AdjustArgs are the arguments of an adjustment.
type AdjustArgs struct {
	DryRun bool `json:"dry-run"`
}

func (a *Agent) postAdjust(w http.ResponseWriter, r *http.Request) {
	var args AdjustArgs
	if err := control.ReadJSON(r, &args); err != nil {
		control.WriteError(w, err)
		return
	}
	name := r.PathValue("name")
	if why := config.CheckName(name); why != "" {
		control.WriteError(w, control.Errorf(control.Usage, "resource name %q: %s", name, why))
		return
	}
	ctx, cancel := a.command()
	defer cancel()
	steps, err := a.managed(name).adjust(ctx, args.DryRun)
	if err == nil && !args.DryRun && a.services != nil {
		a.knowAll()
		a.services.update(name)
	}
	reply(w, steps, err)
}

func reply(w http.ResponseWriter, v any, err error) {
	if err != nil {
		control.WriteError(w, err)
		return
	}
	control.WriteJSON(w, v)
}

// events streams what happens on this node, or to one resource. It begins with a status for each resource that is up.
func (a *Agent) events(w http.ResponseWriter, r *http.Request, name string) {
	after, err := control.LastEventID(r)
	if err != nil {
		control.WriteError(w, err)
		return
	}
	if name != "" {
		if st := a.status(r.Context(), name); len(st.Resources) == 0 {
			a.getStatus(w, r) // which says what is wrong
			return
		}
	}
	statuses := func() []control.Event {
		id := a.hub.Last()
		var events []control.Event
		for _, rs := range a.status(r.Context(), name).Resources {
			if rs.Status != nil {
				events = append(events, control.Event{ID: id, Time: time.Now(), Resource: rs.Name, Kind: control.EventStatus, Volume: control.All, Status: rs.Status})
			}
		}
		return events
	}
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	all := a.hub.Subscribe(ctx, after)
	events := all
	if name != "" {
		some := make(chan control.Event)
		events = some
		go func() { // ends with ctx, since all does
			defer close(some)
			for e := range all {
				if e.Resource == name || e.Kind == control.EventLost {
					select {
					case some <- e:
					case <-ctx.Done():
					}
				}
			}
		}()
	}
	control.ServeEvents(w, r, events, after == 0, statuses, a.ctx.Done())
}

// growFiles makes room for internal metadata in files that create-md is to make: size is that of the data.
func growFiles(def *control.Definition) {
	for i := range def.Volumes {
		v := &def.Volumes[i]
		if _, err := os.Stat(v.Disk); v.MetaDisk == "internal" && v.Size > 0 && errors.Is(err, os.ErrNotExist) {
			v.Size = fileSize(v.Size, len(def.Peers))
		}
	}
}

// fileSize is how large a file must be for that much data with internal metadata.
func fileSize(data int64, peers int) int64 {
	total := data
	for range 4 {
		total = (data + config.MetadataSize(total, peers) + 4095) / 4096 * 4096
	}
	return total
}
