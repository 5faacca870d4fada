package agent

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"

	"github.com/hawser-ha/hawser/replicator/control"
)

const handlerOutputMax = 16 << 10 // bytes of a handler's output that are kept

// handle runs the user's handler that a replicator asks for and posts its exit code.
func (m *managed) handle(ctx context.Context, e control.Event) {
	code := m.runHandler(ctx, e)
	if ctx.Err() != nil {
		return // the next agent runs it again
	}
	if e.Handler != 0 {
		answer, cancel := context.WithTimeout(ctx, askTimeout)
		defer cancel()
		if err := m.client.Do(answer, "handler-result", control.Args{Volume: control.All, Handler: e.Handler, Code: code}); err != nil {
			m.log.Error("handler's result not posted", "handler", e.Name, "err", err)
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.readHandled() < e.ID {
		if err := writeFile(m.path(handledSuffix), fmt.Appendf(nil, "%d\n", e.ID)); err != nil {
			m.log.Error("cannot remember which handlers ran", "err", err)
		}
	}
}

// runHandler gives the exit code, -1: there is none, it could not be started, or it took too long.
func (m *managed) runHandler(ctx context.Context, e control.Event) int {
	res, def, err := m.a.definition(m.name)
	if err != nil {
		m.log.Error("handler not run", "handler", e.Name, "err", err)
		return -1
	}
	line, ok := res.Handlers.Get(e.Name)
	if !ok {
		m.log.Debug("no such handler is configured", "handler", e.Name)
		return -1
	}
	limit := m.a.cfg.Node.Timeout.Handler
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	out := &tail{max: handlerOutputMax}
	cmd := exec.CommandContext(ctx, "/bin/sh", "-c", line)
	cmd.Env = append(os.Environ(), handlerEnv(def, e)...)
	cmd.Stdout, cmd.Stderr = out, out
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = time.Second
	began := time.Now()
	err = cmd.Run()
	log := m.log.With("handler", e.Name, "peer", e.Peer, "dur", time.Since(began).Round(time.Millisecond), "output", out.lastLine())
	if exit, ok := errors.AsType[*exec.ExitError](err); err == nil || ok && exit.Exited() {
		code := cmd.ProcessState.ExitCode()
		log.Info("handler ran", "code", code)
		return code
	}
	log.Error("handler failed", "err", err)
	return -1
}

// handlerEnv is what DRBD's handlers find in their environment.
func handlerEnv(def *control.Definition, e control.Event) []string {
	env := []string{"DRBD_RESOURCE=" + def.Name, "DRBD_NODE_ID_" + fmt.Sprint(def.NodeID) + "=" + def.Node,
		fmt.Sprintf("DRBD_MY_NODE_ID=%d", def.NodeID), "HAWSER_RESOURCE=" + def.Name, "HAWSER_NODE=" + def.Node, "HAWSER_HANDLER=" + e.Name}
	if e.Volume >= 0 {
		env = append(env, fmt.Sprintf("DRBD_VOLUME=%d", e.Volume), fmt.Sprintf("HAWSER_VOLUME=%d", e.Volume))
		for _, v := range def.Volumes {
			if v.Number == e.Volume {
				env = append(env, "DRBD_LL_DISK="+v.Disk, "DRBD_BACKING_DEV="+v.Disk)
				if minor, ok := strings.CutPrefix(v.DevLink, "/dev/drbd"); ok {
					env = append(env, "DRBD_MINOR="+minor)
				}
			}
		}
	}
	for _, p := range def.Peers {
		env = append(env, fmt.Sprintf("DRBD_NODE_ID_%d=%s", p.NodeID, p.Name))
		if p.Name == e.Peer || e.Peer == "" && len(def.Peers) == 1 {
			env = append(env, fmt.Sprintf("DRBD_PEER_NODE_ID=%d", p.NodeID), "DRBD_PEER="+p.Name, "DRBD_PEERS="+p.Name, "HAWSER_PEER="+p.Name)
			env = append(env, addressEnv("DRBD_PEER", p.Remote)...)
			env = append(env, addressEnv("DRBD_MY", p.Local)...)
		}
	}
	return env
}

// addressEnv is PREFIX_ADDRESS and PREFIX_AF.
func addressEnv(prefix, address string) []string {
	a, err := netip.ParseAddrPort(address)
	if err != nil {
		return nil
	}
	family := "ipv4"
	if a.Addr().Is6() {
		family = "ipv6"
	}
	return []string{prefix + "_ADDRESS=" + a.Addr().String(), prefix + "_AF=" + family}
}

// tail keeps the end of what is written.
type tail struct {
	max int
	buf []byte
}

func (t *tail) Write(p []byte) (int, error) {
	t.buf = append(t.buf, p...)
	if n := len(t.buf) - t.max; n > 0 {
		t.buf = append(t.buf[:0], t.buf[n:]...)
	}
	return len(p), nil
}

func (t *tail) lastLine() string {
	b := bytes.TrimSpace(t.buf)
	return string(b[bytes.LastIndexByte(b, '\n')+1:])
}
