package ha

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/hawser-ha/hawser/agent/coord"
	"github.com/hawser-ha/hawser/replicator/control"
)

// Manager keeps the loop of every coordinated resource of this node. Safe for concurrent use.
type Manager struct {
	o       Options
	started int64
	wg      sync.WaitGroup

	mu      sync.Mutex // guards what follows
	ctx     context.Context
	view    *coord.View
	viewErr error
	workers map[string]*worker
	specs   map[string]uint64 // revision of the definitions written to the folder
	changed chan struct{}     // closed at the next change of the view
}

// New makes a Manager. Run starts it.
func New(o Options) *Manager {
	if o.Clock == nil {
		o.Clock = coord.BootTime
	}
	return &Manager{o: o, started: o.Clock(), workers: map[string]*worker{}, specs: map[string]uint64{}, changed: make(chan struct{})}
}

// Run is the loop until ctx ends. Replicators, services and the lease stay as they are.
func (m *Manager) Run(ctx context.Context) {
	ctx, cancel := context.WithCancel(ctx)
	defer m.wg.Wait()
	defer cancel()
	m.mu.Lock()
	m.ctx = ctx
	m.mu.Unlock()
	updates := m.o.Store.Follow(ctx, m.o.Follow)
	m.wg.Go(func() { m.o.Session.Run(ctx) })
	for {
		select {
		case u, ok := <-updates:
			if !ok {
				return
			}
			m.update(u)
		case <-m.o.Session.Changed():
			m.wakeAll()
		}
	}
}

// update takes a new view and wakes those whom it concerns.
func (m *Manager) update(u coord.Update) {
	m.mu.Lock()
	old, oldErr := m.view, m.viewErr
	m.viewErr = u.Err
	if u.View != nil {
		m.view = u.View
	}
	v := m.view
	close(m.changed)
	m.changed = make(chan struct{})
	all := oldErr != nil || u.Err != nil || old == nil || v == nil || !sameNodes(old, v) || old.Maintenance.Mod != v.Maintenance.Mod || !maps.Equal(old.Fencing, v.Fencing)
	var wake []*worker
	for name, w := range m.workers {
		if all || old.Resources[name] != v.Resources[name] {
			wake = append(wake, w)
		}
	}
	var specs []*coord.Resource
	if v != nil {
		for name, r := range v.Resources {
			if r.Spec != nil && m.specs[name] != r.Spec.Mod {
				specs = append(specs, r)
			}
		}
	}
	m.mu.Unlock()
	if oldErr == nil && u.Err != nil {
		m.o.Log.Warn("etcd does not answer", "err", u.Err)
	} else if oldErr != nil && u.Err == nil {
		m.o.Log.Info("etcd answers again")
	}
	slices.SortFunc(specs, func(a, b *coord.Resource) int { return cmp.Compare(a.Name, b.Name) })
	for _, r := range specs {
		m.spec(r)
	}
	for _, w := range wake {
		w.wake()
	}
}

func sameNodes(a, b *coord.View) bool {
	return maps.EqualFunc(a.Nodes, b.Nodes, func(x, y *coord.Node) bool { return x.Lease == y.Lease })
}

// spec hands a definition from etcd to whoever writes it to the folder.
func (m *Manager) spec(r *coord.Resource) {
	if m.o.Spec == nil {
		return
	}
	if err := m.o.Spec(r.Name, r.Spec); err != nil {
		m.o.Log.Error("definition from etcd not taken", "resource", r.Name, "err", err)
		m.note(r.Name, "definition-refused", err.Error())
	}
	m.mu.Lock()
	m.specs[r.Name] = r.Spec.Mod // it is tried again when it changes, or when the agent starts
	m.mu.Unlock()
}

func (m *Manager) note(resource, name, text string) {
	if m.o.Note != nil {
		m.o.Note(resource, name, text)
	}
}

// Know makes the loop look after a resource from now on; one that is gone from its file is let go by its worker.
func (m *Manager) Know(name string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if w := m.workers[name]; w != nil {
		w.wake()
		return
	}
	if m.ctx == nil || m.ctx.Err() != nil {
		return
	}
	w := newWorker(m, name)
	m.workers[name] = w
	m.wg.Go(func() { w.run(m.ctx) })
}

// Wake makes the worker of a resource look: its replicator or services changed.
func (m *Manager) Wake(name string) {
	m.mu.Lock()
	w := m.workers[name]
	m.mu.Unlock()
	if w != nil {
		w.wake()
	}
}

func (m *Manager) wakeAll() {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, w := range m.workers {
		w.wake()
	}
}

// look gives the newest view, and what speaks against trusting it.
func (m *Manager) look() (*coord.View, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	switch {
	case m.view == nil:
		return nil, cmp.Or(m.viewErr, fmt.Errorf("nothing was heard from it yet"))
	case m.viewErr != nil:
		return m.view, m.viewErr
	}
	if age := time.Duration(m.o.Clock() - m.view.Seen); age > 3*m.o.Follow.ConfirmEvery+m.o.Follow.RPCTimeout {
		return m.view, fmt.Errorf("what is known is %s old", age.Round(100*time.Millisecond))
	}
	return m.view, nil
}

// View is the newest view of the cluster, nil before the first; err says why it may be out of date.
func (m *Manager) View() (v *coord.View, err error) { return m.look() }

// Wait gives a channel that is closed at the next change of the view.
func (m *Manager) Wait() <-chan struct{} {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.changed
}

// worker finds the worker of a resource.
func (m *Manager) worker(name string) (*worker, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if w := m.workers[name]; w != nil {
		return w, nil
	}
	return nil, control.Errorf(control.NotFound, "etcd does not coordinate it on this node").On(name, control.All, "").
		WithHint("its file needs options: coordination: etcd, and hawser.yaml an etcd")
}
