package service

import (
	"context"
	"fmt"
	"log/slog"
	"path/filepath"

	"github.com/hawser-ha/hawser/agent/config"
)

// verdict is what a driver found out.
type verdict int

const (
	notRunning verdict = iota // surely: it was stopped cleanly, or was never there
	running
	degraded // it runs, for now
	broken   // it failed, or half of it runs: it must be stopped before anything else
	unclear  // nobody could be asked; that says nothing about the service
	refused  // it cannot run on this node
	nowhere  // it can run on no node as it is defined
)

// answer is a verdict with its reason. With err, which is errLeft or ErrSuperseded, nothing was found out.
type answer struct {
	is     verdict
	reason string
	err    error
}

// host is what drivers share: one chain on one node.
type host struct {
	node, resource string
	role           Role
	ocfRoot        string
	dir            string // for output files
	log            *slog.Logger
}

// outFile is where the programs of a service write. There is one at a time, and each truncates it.
func (h *host) outFile(name string) string {
	return filepath.Join(h.dir, h.resource+"."+string(h.role)+"."+name+".out")
}

// handle is what a driver needs to know about a running service beside its definition. Drivers change it only through
// the functions.
type handle struct {
	main     *process             // of a command
	recorded func(*process) error // notes the program that is about to run for this operation
	started  func(*process) error // notes the main process of a command
	exited   string               // how the main process ended, "" when it did not or nobody saw it
	ended    func(<-chan error)   // takes over waiting for the main process
}

// driver knows one kind of service. start and stop return when the service has done so or has not; a monitor with probe
// asks whether something runs that should perhaps not. Each keeps to the limits of the definition.
type driver interface {
	start(ctx context.Context, s *config.ServiceSpec, h *handle) answer
	stop(ctx context.Context, s *config.ServiceSpec, h *handle) answer
	monitor(ctx context.Context, s *config.ServiceSpec, h *handle, probe bool) answer
	warn(ctx context.Context, s *config.ServiceSpec) string // about how it is set up
}

func newDriver(h *host, kind string) driver {
	switch kind {
	case config.ServiceOCF:
		return &ocf{h}
	case config.ServiceSystemd:
		return &systemd{h}
	case config.ServiceExec:
		return &command{h}
	}
	panic(fmt.Sprintf("service: kind %q", kind)) // config checked it
}
