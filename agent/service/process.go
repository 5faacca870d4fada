package service

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const (
	killWait  = 2 * time.Second // what a killed process gets to go; one that hangs in the kernel does not
	outputMax = 256 << 10       // bytes of a program's output that are read
)

var errTimeout = errors.New("timeout")

// process is a process group that a program of ours leads. PIDs come again, the start time does not.
type process struct {
	PID     int    `json:"pid"`
	Started uint64 `json:"started"` // clock ticks after boot
}

// stat reads fields of /proc/PID/stat: state, process group and start time.
func stat(pid int) (state byte, group int, started uint64, err error) {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, 0, 0, err
	}
	fields := strings.Fields(string(data[bytes.LastIndexByte(data, ')')+1:]))
	if len(fields) < 20 {
		return 0, 0, 0, fmt.Errorf("/proc/%d/stat: %d fields", pid, len(fields))
	}
	group, err = strconv.Atoi(fields[2])
	if err != nil {
		return 0, 0, 0, err
	}
	started, err = strconv.ParseUint(fields[19], 10, 64)
	return fields[0][0], group, started, err
}

// alive reports whether the leader itself runs.
func (p *process) alive() bool {
	state, _, started, err := stat(p.PID)
	return err == nil && started == p.Started && state != 'Z' && state != 'X'
}

// gone reports whether no process of the group is left. While one is, its number is given to nobody else; when the
// number is another process's, the group is gone.
func (p *process) gone() bool {
	if _, _, started, err := stat(p.PID); err == nil && started != p.Started {
		return true
	}
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return false
	}
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		if state, group, _, err := stat(pid); err == nil && group == p.PID && state != 'Z' && state != 'X' {
			return false
		}
	}
	return true
}

// signal sends to the whole group, if it is still ours.
func (p *process) signal(s syscall.Signal) {
	if !p.gone() {
		_ = syscall.Kill(-p.PID, s) // it may have gone just now
	}
}

// end waits until the group is gone.
func (p *process) end(ctx context.Context, limit time.Duration) bool {
	deadline := time.NewTimer(limit)
	defer deadline.Stop()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for !p.gone() {
		select {
		case <-tick.C:
		case <-deadline.C:
			return p.gone()
		case <-ctx.Done():
			return p.gone()
		}
	}
	return true
}

// The child waits for one line before it becomes the program: what was recorded first is never forgotten, and what
// could not be recorded never runs.
const gate = `read -r _ <&3 || exit 125; exec 3<&-; exec "$@"`

// spawn starts a program that leads a session of its own. recorded is called before it runs. The channel gives its end;
// its goroutine ends with the process, which may outlive the agent.
func spawn(argv, env []string, out *os.File, recorded func(*process) error) (*process, <-chan error, error) {
	r, w, err := os.Pipe()
	if err != nil {
		return nil, nil, err
	}
	defer r.Close()
	defer w.Close()
	cmd := exec.Command("/bin/sh", append([]string{"-c", gate, "hawser"}, argv...)...)
	cmd.Env, cmd.Dir = env, "/"
	cmd.Stdout, cmd.Stderr = out, out // a descriptor, not a pipe: a daemon may keep it
	cmd.ExtraFiles = []*os.File{r}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return nil, nil, err
	}
	ended := make(chan error, 1)
	p := &process{PID: cmd.Process.Pid}
	_, _, p.Started, err = stat(p.PID)
	go func() { ended <- cmd.Wait() }()
	if err == nil {
		err = recorded(p)
	}
	if err == nil {
		_, err = w.WriteString("go\n")
	}
	if err != nil {
		w.Close() // the child reads the end and goes
		return nil, nil, fmt.Errorf("%w; the program was not run (exit code %d)", err, exitCode(<-ended))
	}
	return p, ended, nil
}

// errLeft: the agent ends; the program goes on and the next agent finds it in the record.
var errLeft = errors.New("the agent ends")

// runProgram runs a program to its end. When ctx is cancelled with ErrSuperseded, or after limit, its process group is
// killed; when ctx ends in another way it is left alone. A process that the kernel does not let go is not waited for.
func runProgram(ctx context.Context, limit time.Duration, argv, env []string, outFile string, recorded func(*process) error) (code int, output string, err error) {
	if ctx.Err() != nil {
		return -1, "", leftOr(ctx)
	}
	out, err := os.OpenFile(outFile, os.O_CREATE|os.O_TRUNC|os.O_RDWR|os.O_APPEND, 0o600)
	if err != nil {
		return -1, "", err
	}
	defer out.Close()
	p, ended, err := spawn(argv, env, out, recorded)
	if err != nil {
		return -1, "", err
	}
	timer := time.NewTimer(limit)
	defer timer.Stop()
	var why error
	select {
	case err := <-ended:
		return exitCode(err), tailOf(out), nil
	case <-timer.C:
		why = errTimeout
	case <-ctx.Done():
		if why = leftOr(ctx); errors.Is(why, errLeft) {
			return -1, "", why
		}
	}
	p.signal(syscall.SIGKILL)
	if !p.end(context.WithoutCancel(ctx), killWait) {
		why = fmt.Errorf("%w, and process %d does not even end when it is killed: it hangs in the kernel", why, p.PID)
	}
	return -1, tailOf(out), why
}

// leftOr is why ctx ended.
func leftOr(ctx context.Context) error {
	if errors.Is(context.Cause(ctx), ErrSuperseded) {
		return ErrSuperseded
	}
	return errLeft
}

// exitCode is 128+n for a process that a signal ended.
func exitCode(err error) int {
	if err == nil {
		return 0
	}
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		if ws, ok := exit.Sys().(syscall.WaitStatus); ok && ws.Signaled() {
			return 128 + int(ws.Signal())
		}
		return exit.ExitCode()
	}
	return -1
}

func tailOf(f *os.File) string {
	info, err := f.Stat()
	if err != nil {
		return ""
	}
	data, err := io.ReadAll(io.NewSectionReader(f, max(0, info.Size()-outputMax), outputMax))
	if err != nil {
		return ""
	}
	return string(data)
}

// lastLine is the last line that says something.
func lastLine(s string) string {
	s = strings.TrimSpace(s)
	return strings.TrimSpace(s[strings.LastIndexByte(s, '\n')+1:])
}

// watch calls ended once when the process, which need not be a child, is gone. It returns when ctx ends.
func (p *process) watch(ctx context.Context, ended func()) {
	fd, err := unix.PidfdOpen(p.PID, unix.PIDFD_NONBLOCK)
	if err != nil || !p.alive() { // the descriptor is that of the process that alive saw, or of one that is gone
		if err == nil {
			_ = unix.Close(fd)
		}
		ended()
		return
	}
	f := os.NewFile(uintptr(fd), "pidfd")
	defer f.Close()
	conn, err := f.SyscallConn()
	if err != nil {
		return // monitors find out
	}
	stop := context.AfterFunc(ctx, func() { _ = f.SetReadDeadline(time.Unix(1, 0)) })
	defer stop()
	err = conn.Read(func(fd uintptr) bool {
		fds := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
		n, err := unix.Poll(fds, 0)
		return err == nil && n > 0
	})
	if err == nil && ctx.Err() == nil {
		ended()
	}
}

// bootID tells one boot from another: a record of another boot says nothing about processes.
func bootID() string {
	data, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(data))
}

// writeFile replaces a file as a whole. It is not synced: what it describes does not survive the machine either.
func writeFile(path string, data []byte) error {
	tmp, err := os.CreateTemp(filepath.Dir(path), ".tmp-*")
	if err != nil {
		return err
	}
	_, err = tmp.Write(data)
	err = errors.Join(err, tmp.Close())
	if err == nil {
		err = os.Rename(tmp.Name(), path)
	}
	if err != nil {
		_ = os.Remove(tmp.Name())
	}
	return err
}

// environment is what programs get: the agent's, without what is meant for the agent alone or is secret.
func environment(extra ...string) []string {
	var env []string
	for _, e := range os.Environ() {
		name, _, _ := strings.Cut(e, "=")
		switch {
		case strings.HasPrefix(name, "HAWSER_"), strings.HasPrefix(name, "OCF_"), strings.HasPrefix(name, "LISTEN_"), strings.HasPrefix(name, "WATCHDOG_"):
		case name == "NOTIFY_SOCKET", name == "INVOCATION_ID", name == "JOURNAL_STREAM", name == "MAINPID", name == "SYSTEMD_EXEC_PID",
			name == "RUNTIME_DIRECTORY", name == "STATE_DIRECTORY", name == "PATH":
		default:
			env = append(env, e)
		}
	}
	path := os.Getenv("PATH")
	for _, dir := range []string{"/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin"} {
		if !strings.Contains(":"+path+":", ":"+dir+":") {
			path = strings.TrimPrefix(path+":"+dir, ":")
		}
	}
	return append(append(env, "PATH="+path), extra...)
}
