package agent

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"syscall"
	"time"

	"github.com/hawser-ha/hawser/replicator/control"
)

const (
	readyTimeout = 20 * time.Second // a new process answers on its socket after this, or is killed
	reportMax    = 64 << 10         // bytes of what a child reports
)

// Task is what a short-lived replicator process does for a resource that is down: the agent touches no disk itself.
type Task struct {
	Verb       string                   `json:"verb"` // create-md, convert-md, show-gi, dump-md, undo-list, undo-export
	Definition control.Definition       `json:"definition"`
	Create     control.CreateMDOptions  `json:"create"`
	Convert    control.ConvertMDOptions `json:"convert"`
	Volume     int                      `json:"volume"`
	Undo       string                   `json:"undo"`
}

// Tasks that a replicator process knows.
const (
	TaskCreateMD   = "create-md"
	TaskConvertMD  = "convert-md"
	TaskShowGI     = "show-gi"
	TaskDumpMD     = "dump-md"
	TaskUndoList   = "undo-list"
	TaskUndoExport = "undo-export"
)

// ReportFD is the descriptor on which a replicator process says how it went: nothing, which is good, or an error as
// JSON; then it closes it.
const ReportFD = 3

// Report writes err, if there is one, to the descriptor ReportFD and closes it.
func Report(report *os.File, err error) error {
	if err == nil {
		_, err := io.WriteString(report, "{}")
		return errors.Join(err, report.Close())
	}
	data, merr := json.Marshal(control.AsError(err))
	if merr != nil {
		return errors.Join(merr, report.Close())
	}
	_, werr := report.Write(data)
	return errors.Join(werr, report.Close())
}

// readReport reads what Report wrote. A child that wrote nothing died before it could.
func readReport(r io.Reader) error {
	data, err := io.ReadAll(io.LimitReader(r, reportMax))
	if err != nil {
		return err
	}
	if len(data) == 0 {
		return control.Errorf(control.Failed, "the replicator process ended before it was ready (its log says why)")
	}
	e := new(control.Error)
	if err := json.Unmarshal(data, e); err != nil {
		return fmt.Errorf("report of the replicator process: %w", err)
	}
	if e.Code == "" {
		return nil
	}
	return e
}

// replicator is the command line of a replicator process. It gets a session of its own: signals to the agent's group and
// its terminal do not reach it.
func (a *Agent) replicator(name string, flags ...string) *exec.Cmd {
	n := a.cfg.Node
	args := append(a.cfg.Replicator[1:len(a.cfg.Replicator):len(a.cfg.Replicator)], name, "--run-dir", n.RunDir, "--state-dir", n.StateDir,
		"--log-level", n.Log.Level, "--log-format", n.Log.Format)
	cmd := exec.Command(a.cfg.Replicator[0], append(args, flags...)...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	cmd.Stderr = os.Stderr // a descriptor, not a pipe to us: it must outlive the agent
	cmd.Dir = "/"
	return cmd
}

// spawn starts the replicator of a resource and waits until it listens. The returned channel gives how it ended.
func (a *Agent) spawn(ctx context.Context, name string) (pid int, ended <-chan error, err error) {
	r, w, err := os.Pipe()
	if err != nil {
		return 0, nil, err
	}
	defer r.Close()
	cmd := a.replicator(name, "--report-fd", fmt.Sprint(ReportFD))
	cmd.Stdout = os.Stderr
	cmd.ExtraFiles = []*os.File{w}
	if err := cmd.Start(); err != nil {
		return 0, nil, errors.Join(control.Errorf(control.Failed, "start the replicator process: %w", err), w.Close())
	}
	if err := w.Close(); err != nil {
		a.log.Warn("pipe not closed", "err", err)
	}
	// This goroutine ends with the child, which may outlive the agent; then init takes it over.
	exit := make(chan error, 1)
	go func() { exit <- cmd.Wait() }()
	deadline := time.Now().Add(readyTimeout)
	if d, ok := ctx.Deadline(); ok && d.Before(deadline) {
		deadline = d
	}
	if err := r.SetReadDeadline(deadline); err != nil {
		a.log.Warn("no deadline on the pipe", "err", err)
	}
	if err := readReport(r); err != nil {
		_ = cmd.Process.Kill() // it may be gone already
		return 0, nil, control.AsError(err).On(name, control.All, "")
	}
	return cmd.Process.Pid, exit, nil
}

// task runs one Task in a process of its own; what it has to give goes to out.
func (a *Agent) task(ctx context.Context, t *Task, out io.Writer) error {
	name := t.Definition.Name
	input, err := json.Marshal(t)
	if err != nil {
		return err
	}
	r, w, err := os.Pipe()
	if err != nil {
		return err
	}
	defer r.Close()
	cmd := a.replicator(name, "--task", "--report-fd", fmt.Sprint(ReportFD))
	cmd.Stdin = bytes.NewReader(input)
	cmd.Stdout = out
	cmd.ExtraFiles = []*os.File{w}
	if err := cmd.Start(); err != nil {
		return errors.Join(control.Errorf(control.Failed, "start the replicator process: %w", err), w.Close())
	}
	closeErr := w.Close()
	stop := context.AfterFunc(ctx, func() { _ = cmd.Process.Kill() }) // it may be gone already
	defer stop()
	reported := readReport(r)
	if err := cmd.Wait(); err != nil && reported == nil {
		reported = err
	}
	if ctx.Err() != nil {
		return control.Errorf(control.Unknown, "%s: %w", t.Verb, context.Cause(ctx)).On(name, control.All, "")
	}
	if reported != nil {
		if e, ok := errors.AsType[*control.Error](reported); ok {
			if e.Resource == "" {
				e.Resource = name
			}
			return e
		}
		return control.Errorf(control.Failed, "%w", reported).On(name, control.All, "")
	}
	return closeErr
}
