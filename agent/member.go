package agent

import (
	"context"
	"os"
	"os/exec"
	"syscall"
	"time"

	"github.com/hawser-ha/hawser/agent/etcdmember/pidfile"
)

const memberPoll = time.Second // between looks at a member of etcd that another agent started

// keepMember keeps a member of etcd running on this node. Like a replicator it goes on without the agent, and the next agent takes it over.
func (a *Agent) keepMember(ctx context.Context) {
	file := a.cfg.Node.EtcdPIDFile()
	backoff := backoffMin
	for {
		pid, err := pidfile.Running(file)
		switch {
		case err != nil:
			a.log.Warn("cannot tell whether the etcd member runs", "err", err)
		case pid != 0:
			a.log.Info("etcd member adopted", "pid", pid)
			for pid != 0 && err == nil {
				if !pause(ctx, memberPoll) {
					return
				}
				pid, err = pidfile.Running(file)
			}
			a.log.Warn("etcd member has ended", "err", err)
			continue
		default:
			since := time.Now()
			if !a.runMember(ctx) {
				return
			}
			if time.Since(since) > backoffReset {
				backoff = backoffMin
			}
		}
		if !pause(ctx, backoff) {
			return
		}
		backoff = min(2*backoff, backoffMax)
	}
}

// pause waits; false: ctx ended.
func pause(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-t.C:
		return true
	}
}

// runMember starts the member and waits for its end; false: the agent ends first.
func (a *Agent) runMember(ctx context.Context) bool {
	cmd := exec.Command(a.cfg.Etcd[0], a.cfg.Etcd[1:]...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true} // signals to our group and terminal do not reach it
	cmd.Stdout, cmd.Stderr = os.Stderr, os.Stderr        // descriptors, not pipes to us: it must outlive the agent
	cmd.Dir = "/"
	if err := cmd.Start(); err != nil {
		a.log.Error("etcd member not started", "err", err)
		return true
	}
	a.log.Info("etcd member started", "pid", cmd.Process.Pid)
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }() // ends with the child, which may outlive the agent; then init takes it over
	select {
	case <-ctx.Done():
		return false
	case err := <-ended:
		a.log.Warn("etcd member has ended", "pid", cmd.Process.Pid, "err", err)
		return true
	}
}
