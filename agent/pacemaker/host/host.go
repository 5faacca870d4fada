package host

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/hawser-ha/hawser/agent/config"
	"github.com/hawser-ha/hawser/agent/pacemaker"
	"github.com/hawser-ha/hawser/replicator/control"
)

const (
	pollEvery   = 100 * time.Millisecond
	askDefault  = 5 * time.Second // a status is there at once, or its process hangs
	agentWait   = 20 * time.Second
	goneTimeout = 3 * time.Second // a process that was killed ends, unless the kernel holds it
)

// Runner runs a program and gives its output and exit code; err says why there is none.
type Runner func(ctx context.Context, name string, args ...string) (out []byte, code int, err error)

// Run is the Runner that really does it.
func Run(ctx context.Context, name string, args ...string) ([]byte, int, error) {
	cmd := exec.CommandContext(ctx, name, args...)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = time.Second
	err := cmd.Run()
	if exit, ok := errors.AsType[*exec.ExitError](err); ok && exit.Exited() && ctx.Err() == nil {
		text := strings.TrimSpace(errs.String())
		return out.Bytes(), exit.ExitCode(), fmt.Errorf("%s: exit code %d: %s", name, exit.ExitCode(), text[strings.LastIndexByte(text, '\n')+1:])
	}
	if err != nil {
		return out.Bytes(), -1, fmt.Errorf("%s: %w", name, err)
	}
	return out.Bytes(), 0, nil
}

// Host is this node.
type Host struct {
	Node config.NodeConfig
	Log  *slog.Logger
	Run  Runner
	Ask  time.Duration // within which a process answers, or it hangs; 0: some seconds
}

func (h *Host) ask() time.Duration {
	if h.Ask > 0 {
		return h.Ask
	}
	return askDefault
}

// Resource is one resource on this node.
type Resource struct {
	h      *Host
	name   string
	sock   string
	agent  *control.Client // its part of the agent's API
	direct *control.Client // its replicator
}

// Resource gives the resource of that name. Close ends its connections.
func (h *Host) Resource(name string) *Resource {
	sock := h.Node.ReplicatorSocket(name)
	agent := control.NewClient(h.Node.AgentSocket(), "the agent ("+h.Node.AgentSocket()+")")
	return &Resource{h: h, name: name, sock: sock, agent: agent.Sub("resources/" + name), direct: control.NewClient(sock, "the replicator of "+name)}
}

// Close closes idle connections.
func (r *Resource) Close() { r.agent.Close(); r.direct.Close() }

// wanted is the agent's note that the resource is to be up.
func (r *Resource) wanted() string { return strings.TrimSuffix(r.sock, ".sock") + ".json" }

// Status is the truth about the role: the replicator itself tells it. NotRunning means that it surely does not run.
func (r *Resource) Status(ctx context.Context) (*control.Status, error) {
	if _, served := control.Served(r.sock); !served {
		if _, err := os.Stat(r.wanted()); err == nil && r.agentIsThere() {
			return nil, control.Errorf(control.Unknown, "its replicator ended, and the agent starts it again").On(r.name, control.All, "")
		}
		return nil, control.Errorf(control.NotRunning, "it is down").On(r.name, control.All, "")
	}
	ctx, cancel := context.WithTimeout(ctx, r.h.ask())
	defer cancel()
	st, err := r.direct.Status(ctx)
	switch {
	case err == nil:
		return st, nil
	case errors.Is(err, control.NotRunning): // it listens, and has no definition yet; or it ended just now
		return nil, control.Errorf(control.Unknown, "its replicator is starting or ending").On(r.name, control.All, "")
	}
	return nil, control.Errorf(control.Unknown, "its replicator does not answer: %w", err).On(r.name, control.All, "")
}

func (r *Resource) agentIsThere() bool {
	_, served := control.Served(r.h.Node.AgentSocket())
	return served
}

// Start brings the resource up as Secondary and waits, at most wait, until it knows what its peers have.
func (r *Resource) Start(ctx context.Context, wait time.Duration) error {
	if err := r.up(ctx); err != nil {
		return err
	}
	until := time.Now().Add(wait)
	for {
		st, err := r.Status(ctx)
		switch {
		case err == nil && st.Role == "Primary":
			if err := r.Demote(ctx, 60*time.Second); err != nil { // it was up before Pacemaker asked for it
				return err
			}
		case err == nil && (pacemaker.Assess(st, pacemaker.DefaultScores()).Settled || time.Now().After(until)):
			return nil
		case err != nil && time.Now().After(until):
			return err
		}
		if err := pause(ctx); err != nil {
			return err
		}
	}
}

// up waits for an agent that is just starting.
func (r *Resource) up(ctx context.Context) error {
	until := time.Now().Add(agentWait)
	for {
		err := r.agent.Call(ctx, "up", struct{}{}, nil)
		if errors.Is(err, control.Running) { // by an older definition
			return r.agent.Call(ctx, "adjust", struct{}{}, nil)
		}
		if !errors.Is(err, control.NotRunning) || r.agentIsThere() && time.Now().After(until) {
			return err
		}
		if time.Now().After(until) {
			return control.Errorf(control.Failed, "the agent does not run").On(r.name, control.All, "").
				WithHint("systemctl start hawser-agent, or let ocf:hawser:agent start it before the volumes")
		}
		if err := pause(ctx); err != nil {
			return err
		}
	}
}

// Promote makes it Primary, within a time. It asks again while that may help: a peer that is just being demoted, a
// connection that is just being made. With once it does not while a peer is Primary.
func (r *Resource) Promote(ctx context.Context, within time.Duration, once bool) error {
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	for {
		err := r.agent.Do(ctx, "primary", control.Args{Volume: control.All})
		if err == nil {
			st, serr := r.Status(ctx)
			if serr == nil && st.Role == "Primary" {
				return nil
			}
			err = errors.Join(control.Errorf(control.Unknown, "it said that it is promoted, and is not").On(r.name, control.All, ""), serr)
		}
		again := false
		switch control.AsError(err).Code {
		case control.Busy, control.LinkLost, control.Unknown, control.NoConnection:
			again = true
		case control.PeerPrimary:
			again = !once
		case control.NotUpToDate, control.Refused, control.RefusedByPeer:
			st, serr := r.Status(ctx)
			again = serr == nil && !pacemaker.Assess(st, pacemaker.DefaultScores()).Settled
		}
		if !again || ctx.Err() != nil {
			return err
		}
		if perr := pauseFor(ctx, time.Second); perr != nil {
			return err
		}
	}
}

// Demote returns when nothing can be written here any more: it asks, then insists, then kills the replicator. NotRunning:
// there was nothing to demote.
func (r *Resource) Demote(ctx context.Context, within time.Duration) error {
	st, err := r.Status(ctx)
	if err == nil && st.Role != "Primary" || errors.Is(err, control.NotRunning) {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	if r.hangs(ctx) {
		return errors.Join(r.kill(), control.Errorf(control.NotRunning, "its replicator did not answer and had to be killed").On(r.name, control.All, ""))
	}
	for _, step := range []struct {
		share float64 // of the time
		force bool
		what  string
	}{{0.5, false, "it does not become Secondary, insisting: its users see errors"}, {0.25, true, "it does not become Secondary, killing its replicator"}} {
		err := r.bounded(ctx, time.Duration(float64(within)*step.share), func(ctx context.Context) error {
			return r.secondary(ctx, step.force)
		})
		if err == nil {
			return nil
		}
		r.h.Log.Warn(step.what, "err", err)
	}
	if err := r.kill(); err != nil {
		return err
	}
	return control.Errorf(control.NotRunning, "its replicator had to be killed").On(r.name, control.All, "")
}

// secondary asks until it is done, the time is over, or asking again cannot help.
func (r *Resource) secondary(ctx context.Context, force bool) error {
	for {
		args := control.Args{Volume: control.All, Force: force}
		err := r.bounded(ctx, r.h.ask(), func(ctx context.Context) error { return r.direct.Do(ctx, "secondary", args) })
		if st, serr := r.Status(ctx); serr == nil && st.Role != "Primary" || errors.Is(serr, control.NotRunning) {
			return nil
		}
		if err == nil {
			err = control.Errorf(control.Unknown, "it is Primary still").On(r.name, control.All, "")
		}
		if perr := pauseFor(ctx, 500*time.Millisecond); perr != nil {
			return err
		}
	}
}

// Stop returns when the resource is down. What is not there is down: also without a resource file, or without an agent.
func (r *Resource) Stop(ctx context.Context, within time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	if r.hangs(ctx) {
		return r.killForGood(ctx)
	}
	for _, step := range []struct {
		share float64
		force bool
		what  string
	}{{0.4, false, "it does not go down, insisting: its users see errors"}, {0.3, true, "it does not go down, killing its replicator"}} {
		if _, ok := r.h.AgentPID(ctx); !ok {
			r.h.Log.Warn("there is no agent that answers, asking the replicator itself")
			break
		}
		err := r.bounded(ctx, time.Duration(float64(within)*step.share), func(ctx context.Context) error { return r.down(ctx, step.force) })
		if err == nil {
			return nil
		}
		r.h.Log.Warn(step.what, "err", err)
	}
	// Without the note no agent starts it again.
	if err := os.Remove(r.wanted()); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	if pid, served := control.Served(r.sock); served {
		err := r.bounded(ctx, time.Duration(float64(within)*0.15), func(ctx context.Context) error {
			if err := r.direct.Down(ctx, true); err != nil {
				return err
			}
			return r.gone(ctx, pid)
		})
		if err == nil {
			return nil
		}
		r.h.Log.Warn("the replicator does not end, killing it", "err", err)
	}
	return r.killForGood(ctx)
}

// killForGood kills the replicator, and has nobody start it again.
func (r *Resource) killForGood(ctx context.Context) error {
	// Without the note no agent starts it again.
	if err := os.Remove(r.wanted()); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	if err := r.kill(); err != nil {
		return err
	}
	// An agent that was asked before may have put its note back.
	err := r.bounded(ctx, goneTimeout, func(ctx context.Context) error { return r.down(ctx, true) })
	if err == nil {
		return nil
	}
	if err := os.Remove(r.wanted()); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}

// hangs tells whether the replicator runs, and does not answer however long one waits: asking it for anything is lost time.
func (r *Resource) hangs(ctx context.Context) bool {
	for range 2 {
		if _, served := control.Served(r.sock); !served {
			return false
		}
		err := r.bounded(ctx, r.h.ask(), func(ctx context.Context) error {
			_, err := r.direct.Status(ctx)
			return err
		})
		if !errors.Is(err, context.DeadlineExceeded) {
			return false
		}
	}
	r.h.Log.Error("the replicator hangs: killing it", "resource", r.name)
	return true
}

// down asks the agent, until it is done or the time is over.
func (r *Resource) down(ctx context.Context, force bool) error {
	for {
		err := r.agent.Call(ctx, "down", control.Args{Volume: control.All, Force: force}, nil)
		_, served := control.Served(r.sock)
		if !served && (err == nil || errors.Is(err, control.NotFound) || errors.Is(err, control.Refused) || errors.Is(err, control.BadDefinition)) {
			return nil // with no file, or not for this node, there is nothing to be down
		}
		if err == nil {
			err = control.Errorf(control.Unknown, "its replicator is there still").On(r.name, control.All, "")
		}
		if perr := pauseFor(ctx, 500*time.Millisecond); perr != nil {
			return err
		}
	}
}

// kill ends the replicator: SIGKILL is always a safe last step.
func (r *Resource) kill() error {
	pid, served := control.Served(r.sock)
	if !served {
		return nil
	}
	p, err := os.FindProcess(pid) // a handle, where the kernel has pidfds
	if err != nil {
		return err
	}
	if again, served := control.Served(r.sock); !served || again != pid {
		return nil
	}
	if err := p.Signal(syscall.SIGKILL); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("kill replicator %d: %w", pid, err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), goneTimeout)
	defer cancel()
	if err := r.gone(ctx, pid); err != nil {
		return control.Errorf(control.Unknown, "process %d was killed and does not end: it hangs in the kernel", pid).On(r.name, control.All, "").
			WithHint("only a reboot of this node helps")
	}
	return nil
}

// gone waits until the replicator of that pid does not serve any more.
func (r *Resource) gone(ctx context.Context, pid int) error {
	for {
		if again, served := control.Served(r.sock); !served || again != pid {
			return nil
		}
		if err := pause(ctx); err != nil {
			return err
		}
	}
}

func (r *Resource) bounded(ctx context.Context, d time.Duration, do func(ctx context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, d)
	defer cancel()
	return do(ctx)
}

func pause(ctx context.Context) error { return pauseFor(ctx, pollEvery) }

func pauseFor(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// AgentPID gives the pid of the agent. ok: it answers; pid 0: it surely does not run.
func (h *Host) AgentPID(ctx context.Context) (pid int, ok bool) {
	sock := h.Node.AgentSocket()
	pid, served := control.Served(sock)
	if !served {
		return 0, false
	}
	c := control.NewClient(sock, "the agent")
	defer c.Close()
	ctx, cancel := context.WithTimeout(ctx, h.ask())
	defer cancel()
	var v struct{}
	return pid, c.Get(ctx, "version", nil, &v) == nil
}

// folder is where records and locks of this package are.
func (h *Host) folder() string { return filepath.Join(h.Node.StateDir, "pacemaker") }

// AboutPeer tells what the handlers need to know of a peer: the option fencing, and whether its data is known not to be whole.
func (r *Resource) AboutPeer(ctx context.Context, peer string) (fencing string, inconsistent bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, r.h.ask())
	defer cancel()
	def, err := r.direct.Definition(ctx)
	if err != nil {
		return "", false, err
	}
	for _, p := range def.Peers {
		if p.Name == peer {
			fencing = p.Net.Fencing
		}
	}
	st, err := r.direct.Status(ctx)
	if err != nil {
		return "", false, err
	}
	if p := st.Peer(peer); p != nil {
		for _, v := range p.Volumes {
			inconsistent = inconsistent || v.DiskState == "Inconsistent"
		}
	}
	return fencing, inconsistent, nil
}
