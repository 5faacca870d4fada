package service

import (
	"context"
	"fmt"
	"os"
	"syscall"

	"github.com/hawser-ha/hawser/agent/config"
)

// command runs a line of shell that stays in the foreground, and watches it.
type command struct{ *host }

func (c *command) start(ctx context.Context, s *config.ServiceSpec, h *handle) answer {
	if ctx.Err() != nil {
		return answer{err: leftOr(ctx)}
	}
	env := environment("HAWSER_RESOURCE="+c.resource, "HAWSER_NODE="+c.node, "HAWSER_ROLE="+string(c.role))
	_, ended, err := spawn([]string{"/bin/sh", "-c", s.What}, env, os.Stderr, h.started)
	if err != nil {
		return answer{is: broken, reason: fmt.Sprintf("start: %v", err)}
	}
	h.ended(ended)
	return answer{is: running}
}

func (c *command) stop(ctx context.Context, s *config.ServiceSpec, h *handle) answer {
	if h.main == nil {
		return answer{is: notRunning}
	}
	h.main.signal(syscall.SIGTERM)
	if h.main.end(ctx, s.StopTimeout) {
		return answer{is: notRunning}
	}
	if ctx.Err() != nil {
		return answer{err: leftOr(ctx)}
	}
	c.log.Warn("command killed", "service", s.Name, "why", fmt.Sprintf("it did not end within %s after SIGTERM", s.StopTimeout))
	h.main.signal(syscall.SIGKILL)
	if h.main.end(ctx, killWait) {
		return answer{is: notRunning}
	}
	if ctx.Err() != nil {
		return answer{err: leftOr(ctx)}
	}
	return answer{is: broken, reason: fmt.Sprintf("stop: process group %d does not end when it is killed: it hangs in the kernel", h.main.PID)}
}

func (c *command) monitor(_ context.Context, _ *config.ServiceSpec, h *handle, _ bool) answer {
	switch {
	case h.main == nil:
		return answer{is: notRunning}
	case h.main.alive():
		return answer{is: running}
	}
	how := h.exited
	if how == "" {
		how = "ended"
	}
	if h.main.gone() {
		return answer{is: notRunning, reason: "the command " + how}
	}
	return answer{is: broken, reason: "the command " + how + ", and left processes behind"}
}

func (c *command) warn(context.Context, *config.ServiceSpec) string { return "" }
