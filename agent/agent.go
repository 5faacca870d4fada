package agent

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/hawser-ha/hawser/agent/config"
	"github.com/hawser-ha/hawser/agent/coord"
	"github.com/hawser-ha/hawser/agent/ha"
	"github.com/hawser-ha/hawser/agent/metrics"
	"github.com/hawser-ha/hawser/replicator/control"
)

// Config is what an Agent needs.
type Config struct {
	Node    config.NodeConfig
	Version string
	// Replicator starts the command line of a replicator process: program and first arguments, to which Spawn adds the
	// name of the resource and flags.
	Replicator []string
	// Etcd is the whole command line of this node's member of etcd; nil: it runs none.
	Etcd []string
	Log  *slog.Logger
}

// Agent is the agent of one node. Safe for concurrent use.
type Agent struct {
	cfg     Config
	log     *slog.Logger
	started time.Time
	hub     control.Hub
	metrics *metrics.Exporter
	wg      sync.WaitGroup
	ctx     context.Context // ends with Run; commands outlive the request that brought them, but not the agent

	ha        *ha.Manager  // nil: this node has no etcd
	store     *coord.Store // the same
	services  *servicePort // the same
	selfFence func(ctx context.Context, why string) error
	fence     *fences

	haMu           sync.Mutex // guards coordinatedNow
	coordinatedNow map[string]*config.Resource

	mu  sync.Mutex // guards res
	res map[string]*managed
}

// Run is an agent until ctx ends. The replicators go on without it.
func Run(ctx context.Context, cfg Config) (err error) {
	a := &Agent{cfg: cfg, log: cfg.Log.With("node", cfg.Node.Node), started: time.Now(), res: map[string]*managed{}}
	l, err := control.Listen(cfg.Node.AgentSocket())
	if err != nil {
		return fmt.Errorf("agent: %w", err)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer func() {
		cancel()
		a.wg.Wait()
		a.hub.Close()
		_ = l.Close() // the server closed the listener; this gives up the lock
	}()
	a.ctx = ctx
	a.metrics = metrics.New(metrics.Options{Log: a.log, Look: a.snapshot, Programs: metrics.DefaultPrograms()})
	a.wg.Go(func() { a.metrics.Run(ctx) })
	if len(cfg.Etcd) > 0 {
		a.wg.Go(func() { a.keepMember(ctx) })
	}
	set, err := config.LoadFor(cfg.Node.ResourcesDir, cfg.Node.Node)
	for _, e := range config.Errors(err) {
		a.log.Error("resource file refused", "err", e)
	}
	if set == nil {
		a.log.Warn("no resource files", "err", err)
	} else {
		for _, w := range set.Warnings {
			if !w.Note {
				a.log.Warn("drbd.conf is done in another way", "why", w.String())
			}
		}
	}
	if err := a.adopt(); err != nil {
		return err
	}
	if err := a.startFencing(ctx); err != nil {
		return err
	}
	done, err := a.coordinate(ctx)
	if err != nil {
		return err
	}
	defer func() {
		cancel()
		a.wg.Wait() // the loop uses it to its end
		done()
	}()
	if err := a.listen(ctx); err != nil {
		return err
	}
	a.log.Info("agent started", "version", cfg.Version, "socket", cfg.Node.AgentSocket())
	err = a.serve(ctx, l)
	a.log.Info("agent ends, replicators go on")
	return err
}

// adopt takes over what runs, or ran when the last agent ended.
func (a *Agent) adopt() error {
	dir := filepath.Dir(a.cfg.Node.ReplicatorSocket("x"))
	entries, err := os.ReadDir(dir)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	for _, e := range entries {
		name, ok := strings.CutSuffix(e.Name(), wantedSuffix)
		if !ok {
			if name, ok = strings.CutSuffix(e.Name(), ".sock"); !ok {
				continue
			}
			if _, served := control.Served(a.cfg.Node.ReplicatorSocket(name)); !served {
				continue
			}
		}
		a.managed(name).wake()
	}
	return nil
}

// managed gives what the agent knows of a resource's process, and begins to look after it at the first call.
func (a *Agent) managed(name string) *managed {
	a.mu.Lock()
	defer a.mu.Unlock()
	m := a.res[name]
	if m == nil {
		m = newManaged(a, name)
		a.res[name] = m
		a.wg.Go(func() { m.run(a.ctx) })
	}
	return m
}

// everyManaged lists them by name.
func (a *Agent) everyManaged() []*managed {
	a.mu.Lock()
	defer a.mu.Unlock()
	var all []*managed
	for _, m := range a.res {
		all = append(all, m)
	}
	slices.SortFunc(all, func(x, y *managed) int { return cmp.Compare(x.name, y.name) })
	return all
}

// definition reads the resource's file anew and resolves it for this node.
func (a *Agent) definition(name string) (*config.Resource, *control.Definition, error) {
	if why := config.CheckName(name); why != "" {
		return nil, nil, control.Errorf(control.Usage, "resource name %q: %s", name, why)
	}
	set, err := config.LoadFor(a.cfg.Node.ResourcesDir, a.cfg.Node.Node)
	if set == nil {
		return nil, nil, control.Errorf(control.BadDefinition, "%w", err)
	}
	res, ok := set.Resource(name)
	if !ok {
		if err != nil { // it may be in the file that is not right
			return nil, nil, control.Errorf(control.BadDefinition, "%w", err).On(name, control.All, "").
				WithRule("a resource file must be right before anything is touched").WithHint("correct the file, then repeat the command")
		}
		return nil, nil, control.Errorf(control.NotFound, "no file in %s defines it", a.cfg.Node.ResourcesDir).On(name, control.All, "").
			WithHint("hawser status lists what is defined")
	}
	if !slices.ContainsFunc(res.Nodes, func(n config.Node) bool { return n.Name == a.cfg.Node.Node }) {
		return res, nil, control.Errorf(control.Refused, "node %s is a witness of it and holds no volume", a.cfg.Node.Node).On(name, control.All, "").
			WithRule("only a node listed in the resource file runs its volumes").WithHint("run the command on one of: " + nodeNames(res))
	}
	def, err := res.Definition(a.cfg.Node.Node)
	if err != nil {
		return res, nil, control.Errorf(control.BadDefinition, "%w", err).On(name, control.All, "")
	}
	a.relocate(&def)
	if def.Coordination == control.CoordinationEtcd {
		if !a.cfg.Node.Coordinated() {
			return res, nil, control.Errorf(control.Refused, "its file says coordination: etcd, and this node has no etcd").On(name, control.All, "").
				WithRule("who may write is decided by somebody").WithHint("set etcd in hawser.yaml, or coordination: none")
		}
		def.TTL, def.Margin = a.cfg.Node.Lease.TTL, a.cfg.Node.Lease.Margin
	}
	return res, &def, nil
}

func nodeNames(res *config.Resource) string {
	var names []string
	for _, n := range res.Nodes {
		names = append(names, n.Name)
	}
	return strings.Join(names, ", ")
}

// relocate moves default paths to this node's folders: several agents may share a machine.
func (a *Agent) relocate(def *control.Definition) {
	standard := config.DefaultNode()
	move := func(path *string, from, to string) {
		if rest, ok := strings.CutPrefix(*path, from+"/"); ok {
			*path = filepath.Join(to, rest)
		}
	}
	move(&def.NBD.Unix, standard.RunDir, a.cfg.Node.RunDir)
	move(&def.Options.UndoLog, standard.StateDir, a.cfg.Node.StateDir)
}

// publish puts an event of a replicator, or our own, into the stream of the node.
func (a *Agent) publish(e control.Event) { a.hub.Publish(e) }

// note tells about a resource what its replicator cannot tell.
func (a *Agent) note(resource, name, text string) {
	a.log.Warn(text, "resource", resource)
	a.publish(control.Event{Resource: resource, Kind: control.EventNote, Volume: control.All, Name: name, Text: text})
}
