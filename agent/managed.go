package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/hawser-ha/hawser/replicator/control"
)

const (
	wantedSuffix  = ".json"  // beside the socket: the definition a resource was brought up with
	handledSuffix = ".event" // beside it: id of the last handler event that was answered

	backoffMin   = 500 * time.Millisecond
	backoffMax   = 30 * time.Second
	backoffReset = time.Minute // a replicator that lived that long starts anew at backoffMin
	pollEvery    = 20 * time.Millisecond
	askTimeout   = 3 * time.Second // a status or definition is there at once, or the replicator hangs
	attachTime   = time.Minute     // for attach and connect after a start
)

// managed is the replicator of one resource, as the agent looks after it.
type managed struct {
	a      *Agent
	name   string
	sock   string
	log    *slog.Logger
	client *control.Client
	kick   chan struct{} // capacity 1: look again
	op     chan struct{} // capacity 1: the token of up, down, adjust and restart

	mu       sync.Mutex // guards what follows
	role     string     // the last one heard of
	exit     <-chan error
	spawned  time.Time
	restarts int
	message  string // what is wrong, for status
	last     uint64 // id of the last event seen
}

func newManaged(a *Agent, name string) *managed {
	sock := a.cfg.Node.ReplicatorSocket(name)
	m := &managed{a: a, name: name, sock: sock, log: a.log.With("resource", name), client: control.NewClient(sock, "the replicator of "+name),
		kick: make(chan struct{}, 1), op: make(chan struct{}, 1)}
	m.last = m.readHandled()
	return m
}

func (m *managed) path(suffix string) string { return strings.TrimSuffix(m.sock, ".sock") + suffix }

// wake makes run look again.
func (m *managed) wake() {
	select {
	case m.kick <- struct{}{}:
	default:
	}
}

// lock takes the token of commands that start or stop the process.
func (m *managed) lock(ctx context.Context) (unlock func(), err error) {
	select {
	case m.op <- struct{}{}:
		return func() { <-m.op }, nil
	case <-ctx.Done():
		return nil, control.Errorf(control.Busy, "another up, down or adjust is under way").On(m.name, control.All, "")
	}
}

// wanted gives the definition the resource was brought up with; nil: it is to be down.
func (m *managed) wanted() (*control.Definition, error) {
	data, err := os.ReadFile(m.path(wantedSuffix))
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	def := new(control.Definition)
	if err := json.Unmarshal(data, def); err != nil {
		return nil, fmt.Errorf("%s: %w", m.path(wantedSuffix), err)
	}
	return def, nil
}

// want remembers that the resource is to be up, by that definition; nil: to be down.
func (m *managed) want(def *control.Definition) error {
	path := m.path(wantedSuffix)
	if def == nil {
		if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
		return nil
	}
	data, err := json.Marshal(def) // it holds the shared secret
	if err != nil {
		return err
	}
	return writeFile(path, data)
}

// writeFile replaces a file at once.
func writeFile(path string, data []byte) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	tmp := path + ".new"
	if err := os.WriteFile(tmp, data, 0o600); err != nil {
		return err
	}
	return os.Rename(tmp, path)
}

func (m *managed) readHandled() uint64 {
	data, err := os.ReadFile(m.path(handledSuffix))
	if err != nil {
		return control.FromStart
	}
	var id uint64
	if _, err := fmt.Sscan(string(data), &id); err != nil {
		return control.FromStart
	}
	return max(id, control.FromStart)
}

func (m *managed) setMessage(text string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.message = text
}

// run looks after the replicator until ctx ends.
func (m *managed) run(ctx context.Context) {
	defer m.client.Close()
	for ctx.Err() == nil {
		if _, served := control.Served(m.sock); served {
			if err := m.follow(ctx); err != nil && ctx.Err() == nil {
				m.log.Debug("event stream ended", "err", err)
			}
			m.pause(ctx, pollEvery)
			continue
		}
		def, err := m.wanted()
		if err != nil {
			m.setMessage(err.Error())
		}
		if def == nil {
			select {
			case <-m.kick:
			case <-ctx.Done():
			}
			continue
		}
		m.restart(ctx)
	}
}

func (m *managed) pause(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-m.kick:
	case <-ctx.Done():
	}
}

// restart starts a replicator that is to be up and is not: it died, or the last agent and it died together.
func (m *managed) restart(ctx context.Context) {
	unlock, err := m.lock(ctx)
	if err != nil {
		return
	}
	defer unlock()
	if _, served := control.Served(m.sock); served {
		return
	}
	def, err := m.wanted() // a down may have come in between
	if err != nil || def == nil {
		return
	}
	how := "it is to be up, and does not run"
	m.mu.Lock()
	role, exit := m.role, m.exit
	if time.Since(m.spawned) > backoffReset {
		m.restarts = 0
	}
	var wait time.Duration // the first time at once
	if m.restarts > 0 {
		wait = min(backoffMin<<min(m.restarts-1, 10), backoffMax)
	}
	m.restarts++
	m.mu.Unlock()
	if exit != nil {
		select {
		case err := <-exit:
			how = fmt.Sprintf("its replicator ended unexpectedly (%v)", err)
		default:
		}
	}
	m.pause(ctx, wait)
	if ctx.Err() != nil {
		return
	}
	if _, fresh, err := m.a.definition(m.name); err == nil {
		def = fresh
	} else {
		m.log.Warn("its file is not right, the definition of its last up serves", "err", err)
	}
	text := how + "; started again as Secondary"
	if role == "Primary" {
		text = how + "; it was Primary and is started again as Secondary"
	}
	if err := m.start(ctx, def, true); err != nil {
		m.setMessage(err.Error())
		m.a.note(m.name, "restart-failed", how+"; starting it again: "+err.Error())
		return
	}
	m.a.note(m.name, "restarted", text)
}

// start spawns, opens, attaches and connects; op is held. With keep a resource that cannot attach or connect all it should stays up as it is.
func (m *managed) start(ctx context.Context, def *control.Definition, keep bool) error {
	if err := os.Remove(m.path(handledSuffix)); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	pid, exit, err := m.a.spawn(ctx, m.name)
	if err != nil {
		return err
	}
	m.mu.Lock()
	m.exit, m.spawned, m.last, m.role, m.message = exit, time.Now(), control.FromStart, "Secondary", ""
	m.mu.Unlock()
	m.log.Info("replicator started", "pid", pid)
	if err := m.open(ctx, def); err != nil {
		return errors.Join(err, m.kill(ctx))
	}
	m.wake() // run begins to follow: attaching may take long, and call a handler
	ctx, cancel := context.WithTimeout(ctx, attachTime)
	defer cancel()
	err = m.client.Do(ctx, "attach", control.Args{Volume: control.All})
	if err != nil && !keep {
		return errors.Join(err, m.stop(ctx, true))
	}
	if err != nil {
		m.setMessage(err.Error())
	}
	if cerr := m.client.Do(ctx, "connect", control.Args{Volume: control.All}); cerr != nil {
		return errors.Join(err, cerr)
	}
	return err
}

// open gives a replicator its definition.
func (m *managed) open(ctx context.Context, def *control.Definition) error {
	ctx, cancel := context.WithTimeout(ctx, readyTimeout)
	defer cancel()
	if err := m.client.Open(ctx, def); err != nil {
		return err
	}
	return m.want(def)
}

// up brings the resource up, if it is not. It returns true if there was something to do.
func (m *managed) up(ctx context.Context, def *control.Definition) (bool, error) {
	unlock, err := m.lock(ctx)
	if err != nil {
		return false, err
	}
	defer unlock()
	if _, served := control.Served(m.sock); served {
		old, err := m.definition(ctx)
		switch {
		case err == nil && reflect.DeepEqual(old, def):
			return false, nil
		case err == nil:
			return false, control.Errorf(control.Running, "it is up already, by another definition").On(m.name, control.All, "").
				WithHint("hawser adjust " + m.name)
		case errors.Is(err, control.NotRunning): // it waits for its definition
			if err := m.open(ctx, def); err != nil {
				return false, err
			}
			return true, m.attachAndConnect(ctx)
		}
		return false, err
	}
	if err := m.a.checkDisks(def); err != nil {
		return false, err
	}
	return true, m.start(ctx, def, false)
}

func (m *managed) attachAndConnect(ctx context.Context) error {
	if err := m.client.Do(ctx, "attach", control.Args{Volume: control.All}); err != nil {
		return err
	}
	return m.client.Do(ctx, "connect", control.Args{Volume: control.All})
}

// down takes the resource down, if it is up. force closes and fails what is in use, and kills a process that hangs.
func (m *managed) down(ctx context.Context, force bool) (bool, error) {
	unlock, err := m.lock(ctx)
	if err != nil {
		return false, err
	}
	defer unlock()
	if _, served := control.Served(m.sock); !served {
		def, err := m.wanted()
		return def != nil || err != nil, m.want(nil)
	}
	return true, m.stop(ctx, force)
}

// stop ends a replicator in good order, within a bounded time; op is held. Without force one that does not answer is
// left alone.
func (m *managed) stop(ctx context.Context, force bool) error {
	bounded, cancel := context.WithTimeout(context.WithoutCancel(ctx), m.a.cfg.Node.Timeout.Down)
	defer cancel()
	saved, _ := m.wanted()
	if err := m.want(nil); err != nil { // first: its end must not look like a crash
		return err
	}
	pid, _ := control.Served(m.sock)
	err := m.client.Down(bounded, force)
	if err == nil || errors.Is(err, control.NotRunning) || errors.Is(err, control.Unknown) && bounded.Err() == nil {
		if m.gone(bounded, pid) {
			return nil
		}
		err = control.Errorf(control.Unknown, "the replicator does not end within %s", m.a.cfg.Node.Timeout.Down)
	}
	if force {
		m.log.Warn("replicator does not go down, killed", "err", err)
		return m.kill(ctx)
	}
	if saved != nil {
		err = errors.Join(err, m.want(saved))
	}
	if errors.Is(err, control.Unknown) {
		return control.Errorf(control.Unknown, "going down takes longer than %s", m.a.cfg.Node.Timeout.Down).On(m.name, control.All, "").
			WithHint("wait, or hawser down --force " + m.name)
	}
	return err
}

// gone waits for the process to end: it gives up its socket just before.
func (m *managed) gone(ctx context.Context, pid int) bool {
	tick := time.NewTicker(pollEvery)
	defer tick.Stop()
	for {
		if _, served := control.Served(m.sock); !served && (pid <= 0 || errors.Is(syscall.Kill(pid, 0), syscall.ESRCH)) {
			return true
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return false
		}
	}
}

// kill ends the process: SIGKILL is always a safe last step.
func (m *managed) kill(ctx context.Context) error {
	pid, served := control.Served(m.sock)
	if !served {
		return nil
	}
	p, err := os.FindProcess(pid) // a handle where the kernel has pidfds
	if err != nil {
		return err
	}
	if again, served := control.Served(m.sock); !served || again != pid {
		return nil
	}
	if err := p.Signal(syscall.SIGKILL); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("kill replicator %d: %w", pid, err)
	}
	bounded, cancel := context.WithTimeout(context.WithoutCancel(ctx), m.a.cfg.Node.Timeout.Down)
	defer cancel()
	if !m.gone(bounded, pid) {
		return control.Errorf(control.Unknown, "process %d was killed and does not end: it hangs in the kernel", pid).On(m.name, control.All, "")
	}
	return nil
}

// definition asks the replicator what it runs by.
func (m *managed) definition(ctx context.Context) (*control.Definition, error) {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	return m.client.Definition(ctx)
}

// follow reads the replicator's events until the stream ends.
func (m *managed) follow(ctx context.Context) error {
	m.mu.Lock()
	after := m.last
	m.mu.Unlock()
	if err := m.adopt(ctx); err != nil {
		return err
	}
	var handlers sync.WaitGroup
	defer handlers.Wait()
	err := m.client.Events(ctx, after, func(e control.Event) error {
		m.seen(e)
		if e.Kind == control.EventHandler {
			handlers.Go(func() { m.handle(ctx, e) })
		}
		if e.Kind != control.EventStatus && e.Kind != control.EventLost {
			m.a.publish(e)
		}
		return nil
	})
	if errors.Is(err, io.EOF) {
		return nil
	}
	return err
}

// adopt looks at a replicator that this agent begins to follow.
func (m *managed) adopt(ctx context.Context) error {
	st, err := m.status(ctx)
	if err != nil {
		return err
	}
	m.mu.Lock()
	m.role = st.Role
	m.mu.Unlock()
	want, err := m.wanted()
	if err != nil {
		return err
	}
	if want != nil {
		return nil
	}
	def, err := m.definition(ctx)
	if err != nil {
		return err
	}
	m.log.Info("replicator adopted", "pid", st.PID, "role", st.Role)
	select { // a down that is under way has just removed it
	case m.op <- struct{}{}:
		defer func() { <-m.op }()
		return m.want(def)
	default:
		return nil
	}
}

// seen keeps what the agent must know when the replicator is gone.
func (m *managed) seen(e control.Event) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.last = e.ID
	switch {
	case e.Kind == control.EventStatus:
		m.role = e.Status.Role
	case e.Kind == control.EventState && e.Field == control.FieldRole:
		m.role = e.To
	case e.Kind == control.EventDown: // it was told to, by us or by a signal: no crash
		if err := m.want(nil); err != nil {
			m.log.Error("cannot remember that it is down", "err", err)
		}
	}
}

// status asks the replicator.
func (m *managed) status(ctx context.Context) (*control.Status, error) {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	return m.client.Status(ctx)
}
