package exec

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	osexec "os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hawser-ha/hawser/fencing"
	"github.com/hawser-ha/hawser/fencing/params"
)

// Folders are where fence agents are looked for.
var Folders = []string{"/usr/sbin", "/usr/local/sbin", "/sbin"}

const (
	metadataTimeout = 15 * time.Second // a Python program on a busy machine
	outputMax       = 64 << 10         // bytes kept of what a program prints
	pipesAfter      = 500 * time.Millisecond
)

// Secret is a parameter whose value is elsewhere: in a file, or in a variable of our environment.
type Secret struct {
	Param string // "" is the agent's password
	File  string
	Env   string
}

// Options of a Device.
type Options struct {
	Name    string            // for errors
	Agent   string            // fence_ipmilan, or a path
	Params  map[string]string // the case of names does not matter
	Secrets []Secret
	Plugs   map[string]string // node -> its name at the device
	Getenv  func(string) string
}

// Device is a fence agent with its parameters. Safe for concurrent use.
type Device struct {
	o     Options
	path  string
	agent *params.Agent
	lines map[string]string // of the program's standard input, without secrets and target
	plug  string            // parameter that names the target
}

// AgentError says how one fence agent failed.
type AgentError struct {
	Agent, Target string
	Action        fencing.Action
	Code          int    // exit status; -1 when a signal ended it
	Stderr        string // last line only
	Cause         error  // why it was killed, nil if it was not
}

// Error is one line.
func (e *AgentError) Error() string {
	text := fmt.Sprintf("%s %s", e.Agent, e.Action)
	if e.Target != "" {
		text += " " + e.Target
	}
	switch {
	case e.Cause != nil:
		text += ": killed: " + e.Cause.Error()
	case e.Code < 0:
		text += ": ended by a signal"
	default:
		text += fmt.Sprintf(": exit status %d", e.Code)
	}
	if e.Stderr != "" {
		text += ": " + e.Stderr
	}
	return text
}

// Unwrap gives what killed it.
func (e *AgentError) Unwrap() error { return e.Cause }

// New finds the agent, reads its metadata and checks every parameter. The error joins all complaints.
func New(ctx context.Context, o Options) (*Device, error) {
	if o.Getenv == nil {
		o.Getenv = os.Getenv
	}
	d := &Device{o: o}
	var err error
	if d.path, err = find(o.Agent); err != nil {
		return nil, fmt.Errorf("device %s: %w", o.Name, err)
	}
	ctx, cancel := context.WithTimeout(ctx, metadataTimeout)
	defer cancel()
	out, err := d.run(ctx, "metadata", "", []string{"action=metadata"}, nil)
	if err != nil {
		return nil, fmt.Errorf("device %s: its metadata: %w", o.Name, err)
	}
	if d.agent, err = params.Parse(out); err != nil {
		return nil, fmt.Errorf("device %s: %s: %w", o.Name, d.path, err)
	}
	if err := d.check(); err != nil {
		return nil, fmt.Errorf("device %s: %w", o.Name, err)
	}
	return d, nil
}

// ValidName tells whether a name may be that of a fence agent.
func ValidName(agent string) bool {
	return filepath.IsAbs(agent) && filepath.Clean(agent) == agent || regexp.MustCompile(`^fence_[a-z0-9_]+$`).MatchString(agent)
}

func find(agent string) (string, error) {
	if !ValidName(agent) {
		return "", fmt.Errorf("%q is neither fence_... nor a path", agent)
	}
	if filepath.IsAbs(agent) {
		if _, err := os.Stat(agent); err != nil {
			return "", err
		}
		return agent, nil
	}
	for _, dir := range Folders {
		path := filepath.Join(dir, agent)
		if st, err := os.Stat(path); err == nil && st.Mode().IsRegular() && st.Mode()&0o111 != 0 {
			return path, nil
		}
	}
	return "", fmt.Errorf("there is no fence agent %s in %s (install fence-agents)", agent, strings.Join(Folders, ", "))
}

func (d *Device) check() error {
	set := maps.Clone(d.o.Params)
	if set == nil {
		set = map[string]string{}
	}
	var errs []error
	for n := range maps.Keys(d.o.Params) {
		if params.Secret(n) {
			errs = append(errs, fmt.Errorf("parameter %s is a secret: it belongs in a file or in the environment (password-file, password-env, secrets)", n))
		}
	}
	secrets, err := d.secrets()
	if err != nil {
		errs = append(errs, err)
	}
	for n := range secrets {
		set[n] = "x" // its value is checked where it is used
	}
	for i := range d.o.Secrets { // one that cannot be read now is set all the same
		if n, err := d.secretName(d.o.Secrets[i]); err == nil {
			set[n] = "x"
		}
	}
	d.plug = d.agent.PlugName()
	if len(d.o.Plugs) > 0 && d.plug == "" {
		errs = append(errs, fmt.Errorf("%s has no parameter plug, and plugs are given", d.agent.Name))
	}
	for node, p := range d.o.Plugs {
		if strings.ContainsAny(p, "\n\r\x00") || p == "" {
			errs = append(errs, fmt.Errorf("plug of node %s: %q", node, p))
		}
	}
	errs = append(errs, d.agent.Check(set, len(d.o.Plugs) > 0)...)
	d.lines = map[string]string{}
	for n, v := range d.o.Params {
		if p := d.agent.Find(n); p != nil {
			d.lines[p.Name] = v
		}
	}
	return errors.Join(errs...)
}

func (d *Device) secretName(s Secret) (string, error) {
	if s.Param != "" {
		if p := d.agent.Find(s.Param); p != nil {
			return p.Name, nil
		}
		return s.Param, nil
	}
	for _, n := range []string{"password", "passwd"} {
		if d.agent.Find(n) != nil {
			return n, nil
		}
	}
	return "", fmt.Errorf("%s takes no password", d.agent.Name)
}

// secrets reads them anew: they change without a restart.
func (d *Device) secrets() (map[string]string, error) {
	got := map[string]string{}
	var errs []error
	for _, s := range d.o.Secrets {
		name, err := d.secretName(s)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		var v string
		switch {
		case s.File != "":
			st, err := os.Stat(s.File)
			if err != nil {
				errs = append(errs, fmt.Errorf("%s: %w", name, err))
				continue
			}
			if st.Mode().Perm()&0o007 != 0 {
				errs = append(errs, fmt.Errorf("%s: everybody may open %s: chmod 600 %s", name, s.File, s.File))
				continue
			}
			data, err := os.ReadFile(s.File)
			if err != nil {
				errs = append(errs, fmt.Errorf("%s: %w", name, err))
				continue
			}
			v = strings.TrimRight(string(data), "\r\n")
			if v == "" {
				errs = append(errs, fmt.Errorf("%s: %s is empty", name, s.File))
			}
		default:
			if v = d.o.Getenv(s.Env); v == "" {
				errs = append(errs, fmt.Errorf("%s: the environment has no %s", name, s.Env))
			}
		}
		if strings.ContainsAny(v, "\n\r\x00") {
			errs = append(errs, fmt.Errorf("%s: more than one line", name))
			continue
		}
		got[name] = v
	}
	return got, errors.Join(errs...)
}

// Can implements fencing.Device.
func (d *Device) Can(a fencing.Action) bool {
	switch a {
	case fencing.Off, fencing.On, fencing.Reboot, fencing.Status, fencing.Monitor:
		return d.agent.Can(string(a)) || (a == fencing.Monitor && d.agent.Can("status"))
	}
	return false
}

// Do implements fencing.Device.
func (d *Device) Do(ctx context.Context, a fencing.Action, node string) error {
	if !d.Can(a) || a == fencing.Status {
		return fmt.Errorf("%s: %w", a, fencing.ErrUnsupported)
	}
	name := a
	if a == fencing.Monitor && !d.agent.Can("monitor") {
		name = fencing.Status
	}
	_, err := d.call(ctx, name, node)
	if e, ok := errors.AsType[*AgentError](err); ok && name == fencing.Status && e.Cause == nil && e.Code == statusOff {
		return nil
	}
	return err
}

// Exit status of the action status.
const statusOff = 2

// Power implements fencing.Device.
func (d *Device) Power(ctx context.Context, node string) (fencing.Power, error) {
	if !d.agent.Can("status") {
		return fencing.PowerUnknown, fmt.Errorf("status: %w", fencing.ErrUnsupported)
	}
	_, err := d.call(ctx, fencing.Status, node)
	if err == nil {
		return fencing.PowerOn, nil
	}
	if e, ok := errors.AsType[*AgentError](err); ok && e.Cause == nil && e.Code == statusOff {
		return fencing.PowerOff, nil
	}
	return fencing.PowerUnknown, err
}

// call makes the lines for one action and runs the program.
func (d *Device) call(ctx context.Context, a fencing.Action, node string) ([]byte, error) {
	secrets, err := d.secrets()
	if err != nil {
		return nil, fmt.Errorf("device %s: %w", d.o.Name, err)
	}
	set := maps.Clone(d.lines)
	maps.Copy(set, secrets)
	if len(d.o.Plugs) > 0 {
		if p, ok := d.o.Plugs[node]; ok {
			set[d.plug] = p
		} else if node != "" {
			return nil, fmt.Errorf("device %s has no plug for node %s", d.o.Name, node)
		}
	}
	lines := []string{"action=" + string(a)}
	for _, n := range slices.Sorted(maps.Keys(set)) {
		lines = append(lines, n+"="+quote(set[n]))
	}
	return d.run(ctx, a, node, lines, slices.Collect(maps.Values(secrets)))
}

// quote protects what the library of the fence agents would strip: blanks at the ends, and quotes around a value.
func quote(v string) string {
	if v != strings.TrimSpace(v) || (len(v) > 1 && v[0] == '"' && v[len(v)-1] == '"') {
		return `"` + v + `"`
	}
	return v
}

// tail keeps the last bytes of what is written to it.
type tail struct{ b []byte }

func (t *tail) Write(p []byte) (int, error) {
	t.b = append(t.b, p...)
	if n := len(t.b) - outputMax; n > 0 {
		t.b = append(t.b[:0], t.b[n:]...)
	}
	return len(p), nil
}

func (d *Device) run(ctx context.Context, a fencing.Action, node string, lines, secrets []string) ([]byte, error) {
	if err := context.Cause(ctx); err != nil {
		return nil, &AgentError{Agent: filepath.Base(d.path), Target: node, Action: a, Code: -1, Cause: err}
	}
	cmd := osexec.CommandContext(ctx, d.path)
	cmd.Env = []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL=C", "HOME=/", "PYTHONWARNINGS=ignore"}
	cmd.Dir = "/"
	cmd.Stdin = strings.NewReader(strings.Join(lines, "\n") + "\n")
	var stderr tail
	var stdout bytes.Buffer
	cmd.Stdout, cmd.Stderr = &limited{&stdout}, &stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return kill(cmd.Process.Pid) }
	cmd.WaitDelay = pipesAfter // a grandchild in a group of its own may hold the pipes open
	err := cmd.Start()
	if err == nil {
		ended(cmd.Process.Pid)
		// While it has not been reaped, its number is nobody else's: end what it has left behind in its group.
		_ = kill(cmd.Process.Pid) // mostly there is nothing
		err = cmd.Wait()
	}
	if err == nil || (errors.Is(err, osexec.ErrWaitDelay) && ctx.Err() == nil) {
		return stdout.Bytes(), nil
	}
	e := &AgentError{Agent: filepath.Base(d.path), Target: node, Action: a, Code: -1, Cause: context.Cause(ctx), Stderr: lastLine(stderr.b, secrets)}
	if x, ok := errors.AsType[*osexec.ExitError](err); ok {
		e.Code = x.ExitCode()
		if e.Code >= 0 {
			e.Cause = nil // it had ended by itself
		}
		return nil, e
	}
	e.Cause = cmp.Or(e.Cause, err)
	return nil, e
}

// ended returns when a child has ended, and does not reap it.
func ended(pid int) {
	for {
		if err := unix.Waitid(unix.P_PID, pid, nil, unix.WEXITED|unix.WNOWAIT, nil); !errors.Is(err, unix.EINTR) {
			return // or it is no child of ours any more: then Wait says so
		}
	}
}

// kill ends a process group; one that has gone is no error.
func kill(pid int) error {
	if err := syscall.Kill(-pid, syscall.SIGKILL); err != nil && !errors.Is(err, syscall.ESRCH) {
		return err
	}
	return nil
}

// limited lets a program print as much as it likes, and keeps the beginning.
type limited struct{ b *bytes.Buffer }

func (l *limited) Write(p []byte) (int, error) {
	if room := 2<<20 - l.b.Len(); room > 0 {
		l.b.Write(p[:min(len(p), room)])
	}
	return len(p), nil
}

const lineMax = 300 // bytes

func lastLine(out []byte, secrets []string) string {
	text := string(out)
	for _, s := range secrets {
		if s != "" {
			text = strings.ReplaceAll(text, s, "***")
		}
	}
	last := ""
	for line := range strings.Lines(text) {
		if line = strings.TrimSpace(line); line != "" {
			last = line
		}
	}
	if len(last) > lineMax {
		last = last[:lineMax] + "..."
	}
	return strings.ToValidUTF8(last, "?")
}
