package main

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/hawser-ha/hawser/agent"
	"github.com/hawser-ha/hawser/agent/config"
	"github.com/hawser-ha/hawser/replicator"
	"github.com/hawser-ha/hawser/replicator/control"
)

const (
	definitionTimeout = 2 * time.Minute  // a replicator that nobody gives a definition ends
	downTimeout       = 15 * time.Second // of a down by signal, gentle and then by force: each
)

func replicatorCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "replicator RES", Short: "Run one resource (the agent starts it)", GroupID: groupDaemon, Args: oneResource,
		Long: `Run one resource: its disks, connections and devices. The agent starts this and gives
it the definition; with --definition it stands alone, attaches and connects by itself.
SIGTERM takes the resource down, within a bounded time.`,
		RunE: func(cmd *cobra.Command, args []string) error {
			f := cmd.Flags()
			task, err := f.GetBool("task")
			if err != nil {
				return err
			}
			fd, err := f.GetInt("report-fd")
			if err != nil {
				return err
			}
			var report *os.File
			if fd >= 0 {
				syscall.CloseOnExec(fd)
				report = os.NewFile(uintptr(fd), "report")
			}
			log, err := newLog(cmd.ErrOrStderr(), f.Lookup("log-level").Value.String(), f.Lookup("log-format").Value.String())
			if err != nil {
				return err
			}
			signal.Ignore(syscall.SIGPIPE, syscall.SIGHUP)
			if task {
				err := runTask(cmd.Context(), log, cmd.InOrStdin(), cmd.OutOrStdout())
				if report == nil {
					return err
				}
				if rerr := agent.Report(report, err); rerr != nil {
					return rerr
				}
				return err
			}
			p := &process{name: args[0], log: log.With("resource", args[0]), base: log, runDir: f.Lookup("run-dir").Value.String(),
				stateDir: f.Lookup("state-dir").Value.String(), report: report}
			return p.run(cmd.Context(), f.Lookup("definition").Value.String())
		},
	}
	cmd.Flags().String("definition", "", "a definition as JSON, to run without an agent")
	cmd.Flags().Bool("task", false, "do what standard input says for a resource that is down, and end")
	cmd.Flags().Int("report-fd", -1, "descriptor on which to say that it is ready, or why not")
	return cmd
}

// process is a replicator process.
type process struct {
	name     string
	log      *slog.Logger
	base     *slog.Logger // without the name of the resource, which package replicator adds
	runDir   string
	stateDir string
	report   *os.File
	wg       sync.WaitGroup
	ended    chan error // of the resource; capacity 1
}

// run serves until the resource is down, or takes it down when ctx ends.
func (p *process) run(ctx context.Context, definition string) (err error) {
	p.ended = make(chan error, 1)
	sock, srv, err := p.listen()
	if p.report != nil {
		if rerr := agent.Report(p.report, err); rerr != nil && err == nil {
			p.log.Warn("nobody hears that it is ready", "err", rerr)
		}
	}
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, closeSocket(sock)) }()
	serving, stop := context.WithCancel(context.WithoutCancel(ctx))
	served := make(chan error, 1)
	go func() { served <- srv.Serve(serving, sock) }()
	defer func() {
		stop()
		err = errors.Join(err, <-served)
	}()
	p.log.Info("replicator started", "pid", os.Getpid(), "version", versionString())
	if definition != "" {
		if err := p.standAlone(ctx, srv, definition); err != nil {
			return errors.Join(err, p.down(srv))
		}
	}
	nobody := time.NewTimer(definitionTimeout)
	defer nobody.Stop()
	for {
		select {
		case <-srv.Done():
			return p.wait()
		case err := <-p.ended:
			if err == nil {
				p.log.Info("resource closed")
			}
			return err
		case <-ctx.Done():
			p.log.Info("signal: going down")
			return p.down(srv)
		case <-nobody.C:
			if srv.Resource() == nil {
				return control.Errorf(control.Failed, "no definition came within %s", definitionTimeout).On(p.name, control.All, "")
			}
		}
	}
}

func (p *process) listen() (*control.Socket, *control.Server, error) {
	if why := config.CheckName(p.name); why != "" {
		return nil, nil, usage("resource name %q: %s", p.name, why)
	}
	sock, err := control.Listen(filepath.Join(p.runDir, "replicator", p.name+".sock"))
	if err != nil {
		return nil, nil, err
	}
	return sock, control.NewServer(p.name, p.log, p.open), nil
}

func closeSocket(s *control.Socket) error {
	if err := s.Close(); err != nil && !errors.Is(err, net.ErrClosed) { // the HTTP server closes the listener
		return err
	}
	return nil
}

// open makes the resource and begins to run it.
func (p *process) open(_ context.Context, def *control.Definition) (control.Resource, error) {
	res, err := replicator.New(p.base, *def, p.options())
	if err != nil {
		return nil, err
	}
	p.wg.Go(func() { p.ended <- res.Run(context.Background()) }) // it ends by Down
	return res, nil
}

// options keeps the devices of agents that share a machine apart.
func (p *process) options() replicator.Options {
	o := replicator.Options{RunDir: filepath.Join(p.runDir, "replicator"), StateDir: filepath.Join(p.stateDir, "replicator")}
	if p.runDir != config.DefaultNode().RunDir {
		o.DeviceDir = filepath.Join(p.runDir, "dev")
	}
	return o
}

// standAlone brings up a definition from a file.
func (p *process) standAlone(ctx context.Context, srv *control.Server, file string) error {
	data, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	def := new(control.Definition)
	if err := json.Unmarshal(data, def); err != nil {
		return control.Errorf(control.BadDefinition, "%s: %w", file, err)
	}
	if err := srv.Open(ctx, def); err != nil {
		return err
	}
	res := srv.Resource()
	if err := res.Attach(ctx, control.All); err != nil {
		return err
	}
	return res.Connect(ctx, "", false)
}

// down takes the resource down in good order, and by force if that is refused or takes too long.
func (p *process) down(srv *control.Server) error {
	var err error
	for _, force := range []bool{false, true} {
		ctx, cancel := context.WithTimeout(context.Background(), downTimeout)
		err = srv.Down(ctx, force)
		cancel()
		if err == nil {
			return p.wait()
		}
		p.log.Warn("not down", "force", force, "err", err)
	}
	return err
}

// wait waits for the resource to be closed, if it ran.
func (p *process) wait() error {
	done := make(chan struct{})
	go func() { p.wg.Wait(); close(done) }()
	select {
	case <-done:
	case <-time.After(downTimeout): // a disk that hangs in the kernel keeps its goroutine, not the process
		return control.Errorf(control.Failed, "the resource does not close").On(p.name, control.All, "")
	}
	select {
	case err := <-p.ended:
		return err
	default:
		return nil
	}
}

// runTask does what the agent wants of the disks of a resource that is down.
func runTask(ctx context.Context, log *slog.Logger, in io.Reader, out io.Writer) error {
	var t agent.Task
	if err := json.NewDecoder(in).Decode(&t); err != nil {
		return usage("task: %v", err)
	}
	if t.Verb == agent.TaskCreateMD {
		results, err := replicator.CreateMD(log, &t.Definition, t.Create)
		if err != nil {
			return err
		}
		return json.NewEncoder(out).Encode(results)
	}
	if t.Verb == agent.TaskConvertMD {
		results, err := replicator.ConvertMD(log, &t.Definition, t.Convert)
		if err != nil {
			return err
		}
		return json.NewEncoder(out).Encode(results)
	}
	res, err := replicator.New(log, t.Definition, replicator.Options{})
	if err != nil {
		return err
	}
	switch t.Verb {
	case agent.TaskShowGI:
		gi, err := res.ShowGI(ctx, t.Volume)
		if err != nil {
			return err
		}
		return json.NewEncoder(out).Encode(gi)
	case agent.TaskDumpMD:
		return res.DumpMD(ctx, t.Volume, out)
	case agent.TaskUndoList:
		logs, err := res.Undos(ctx, t.Volume)
		if err != nil {
			return err
		}
		return json.NewEncoder(out).Encode(logs)
	case agent.TaskUndoExport:
		return res.ExportUndo(ctx, t.Volume, t.Undo, out)
	}
	return usage("there is no task %q", t.Verb)
}
