package netns

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/hawser-ha/hawser/agent"
	"github.com/hawser-ha/hawser/replicator/control"
	"github.com/hawser-ha/hawser/test/check"
	"github.com/hawser-ha/hawser/test/check/nbdclient"
)

const (
	cliTimeout  = 60 * time.Second
	downTimeout = 8 * time.Second // of the agents: a replicator that does not end is killed after this
)

const (
	stop = syscall.SIGSTOP
	cont = syscall.SIGCONT
)

// node is one machine of the cluster.
type node struct {
	c       *cluster
	name    string
	dir     string
	disk    string // the path in the resource file
	backing string // where its bytes are
	log     *os.File
	agent   *exec.Cmd
	mounts  *exec.Cmd // holds the node's mount namespace; nil: it is the machine's
	faults  *faults
	direct  *control.Client // to the replicator
}

func newNode(c *cluster, name string) *node {
	n := &node{c: c, name: name, dir: filepath.Join(c.dir, name)}
	n.disk = filepath.Join(n.dir, "disk.img")
	n.backing = n.disk
	if err := os.MkdirAll(filepath.Join(n.dir, "resources.d"), 0o755); err != nil {
		c.t.Fatal(err)
	}
	var err error
	if n.log, err = os.Create(filepath.Join(n.dir, "log")); err != nil {
		c.t.Fatal(err)
	}
	n.direct = control.NewClient(n.sock(), "replicator of "+name)
	return n
}

func (n *node) isDiskless() bool { return n.c.o.diskless == n.name }
func (n *node) runDir() string   { return filepath.Join(n.dir, "run") }
func (n *node) sock() string     { return filepath.Join(n.runDir(), "replicator", resource+".sock") }
func (n *node) peer() *node {
	if n == n.c.n1 {
		return n.c.n2
	}
	return n.c.n1
}

// target is the volume as the node exports it.
func (n *node) target() check.Target {
	u := nbdclient.URI{Network: "unix", Address: filepath.Join(n.runDir(), "nbd", resource+".sock"), Export: resource + "/0"}
	return func(ctx context.Context) (check.Device, error) { return nbdclient.Dial(ctx, u, n.c.opTimeout) }
}

// open opens the volume once.
func (n *node) open() check.Device {
	n.c.t.Helper()
	d, err := n.target()(n.c.t.Context())
	if err != nil {
		n.c.t.Fatal(err)
	}
	n.c.t.Cleanup(func() { d.Close() })
	return d
}

// inside is a command in the node's namespaces.
func (n *node) inside(argv ...string) *exec.Cmd {
	args := []string{"--net=/run/netns/" + n.c.net.ns(n.name)}
	if n.mounts != nil {
		args = append(args, fmt.Sprintf("--mount=/proc/%d/ns/mnt", n.mounts.Process.Pid))
	}
	return exec.Command("nsenter", append(append(args, "--"), argv...)...)
}

// ownMounts gives the node a mount namespace, which lasts as long as the process that holds it.
func (n *node) ownMounts() {
	t := n.c.t
	t.Helper()
	n.mounts = exec.Command("unshare", "--mount", "sh", "-ec", "mkdir -p /dev/hawser /run/resource-agents $1/dev; mount --bind $1/dev /dev/hawser; "+
		"mount -t tmpfs tmpfs /run/resource-agents; echo ready; exec sleep infinity", "mounts", n.runDir())
	out, err := n.mounts.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	n.mounts.Stderr = n.log
	if err := n.mounts.Start(); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(out, make([]byte, len("ready"))); err != nil {
		t.Fatalf("mount namespace of %s: %v", n.name, err)
	}
}

// startAgent starts the agent in the node's namespace and waits until it answers.
func (n *node) startAgent() {
	n.c.t.Helper()
	n.agent = n.inside(binaries.hawser, "agent", "--node", n.name,
		"--run-dir", n.runDir(), "--state-dir", filepath.Join(n.dir, "state"), "--resources-dir", filepath.Join(n.dir, "resources.d"))
	n.agent.Env = append(os.Environ(), "HAWSER_TIMEOUT_DOWN="+downTimeout.String())
	n.agent.Stdout, n.agent.Stderr = n.log, n.log
	n.agent.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := n.agent.Start(); err != nil {
		n.c.t.Fatal(err)
	}
	a := control.NewClient(filepath.Join(n.runDir(), "agent.sock"), "agent of "+n.name)
	defer a.Close()
	n.c.until("agent of "+n.name, stateLimit, func() bool { return a.Get(n.c.t.Context(), "version", nil, new(agent.Version)) == nil })
}

// try runs the command line of the node, as a person would; the error says the exit code.
func (n *node) try(args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(n.c.t.Context()), cliTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, binaries.hawser, append([]string{"--run-dir", n.runDir(), "--resources-dir", filepath.Join(n.dir, "resources.d"), "--node", n.name}, args...)...)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil {
		return out.String(), fmt.Errorf("%s: hawser %s: %w: %s", n.name, strings.Join(args, " "), err, strings.TrimSpace(errs.String()))
	}
	return out.String(), nil
}

// cli runs a command that must work.
func (n *node) cli(args ...string) string {
	n.c.t.Helper()
	out, err := n.try(args...)
	if err != nil {
		n.c.t.Fatalf("%v\n%s", err, n.c.state())
	}
	return out
}

// refuse runs a command that must not work, and wants to be told why.
func (n *node) refuse(why string, args ...string) {
	n.c.t.Helper()
	_, err := n.try(args...)
	if err == nil {
		n.c.t.Errorf("%s: hawser %s worked", n.name, strings.Join(args, " "))
	} else if !strings.Contains(err.Error(), why) {
		n.c.t.Errorf("%v: want %q", err, why)
	}
}

// status asks the replicator itself: that works without an agent too.
func (n *node) status() (*control.Status, error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(n.c.t.Context()), 5*time.Second)
	defer cancel()
	return n.direct.Status(ctx)
}

// now is the status of a replicator that must answer.
func (n *node) now() *control.Status {
	n.c.t.Helper()
	st, err := n.status()
	if err != nil {
		n.c.t.Fatal(err)
	}
	return st
}

// wait waits for a status.
func (n *node) wait(what string, limit time.Duration, ok func(*control.Status) bool) {
	n.c.t.Helper()
	n.c.until(n.name+": "+what, limit, func() bool {
		st, err := n.status()
		return err == nil && len(st.Volumes) > 0 && len(st.Peers) > 0 && len(st.Peers[0].Volumes) > 0 && ok(st)
	})
}

// primary promotes as soon as it is allowed.
func (n *node) primary() {
	n.c.t.Helper()
	var last error
	if !n.c.within(stateLimit, func() bool { _, last = n.try("primary", resource); return last == nil }) {
		n.c.t.Fatalf("promotion: %v\n%s", last, n.c.state())
	}
}

// pid of the replicator, 0: none.
func (n *node) pid() int {
	pid, served := control.Served(n.sock())
	if !served {
		return 0
	}
	return pid
}

func (n *node) signalReplicator(s syscall.Signal) {
	n.c.t.Helper()
	pid := n.pid()
	if pid == 0 {
		n.c.t.Fatalf("no replicator runs on %s", n.name)
	}
	if err := syscall.Kill(pid, s); err != nil {
		n.c.t.Fatal(err)
	}
}

// killReplicator lets the agent find out.
func (n *node) killReplicator() { n.c.t.Helper(); n.signalReplicator(syscall.SIGKILL) }

// killAgent ends the agent alone.
func (n *node) killAgent() {
	n.c.t.Helper()
	if err := n.agent.Process.Kill(); err != nil {
		n.c.t.Fatal(err)
	}
	_ = n.agent.Wait() // "signal: killed" is what we wanted
	n.agent = nil
}

// crash ends both at once, as far as signals can. What the disk has not got is not lost; see faults for that.
func (n *node) crash() {
	n.c.t.Helper()
	pid := n.pid()
	n.killAgent()
	if pid != 0 {
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
			n.c.t.Fatal(err)
		}
	}
	n.c.until("the end of "+n.name, stateLimit, func() bool { return n.pid() == 0 })
}

// record collects the events of the replicator from now on.
func (n *node) record() *recorder {
	n.c.t.Helper()
	r := &recorder{}
	ctx, cancel := context.WithCancel(context.WithoutCancel(n.c.t.Context()))
	done := make(chan struct{})
	ready := make(chan struct{})
	once := sync.OnceFunc(func() { close(ready) })
	go func() {
		defer close(done)
		_ = n.direct.Events(ctx, 0, func(e control.Event) error { // it ends with an error, always
			once()
			r.mu.Lock()
			defer r.mu.Unlock()
			r.events = append(r.events, e)
			return nil
		})
		once()
	}()
	n.c.t.Cleanup(func() { cancel(); <-done })
	<-ready
	return r
}

// recorder holds events.
type recorder struct {
	mu     sync.Mutex
	events []control.Event
}

// find gives the events for which ok holds.
func (r *recorder) find(ok func(control.Event) bool) (out []control.Event) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, e := range r.events {
		if ok(e) {
			out = append(out, e)
		}
	}
	return out
}

// states gives the values that a field took.
func (r *recorder) states(field string) (out []string) {
	for _, e := range r.find(func(e control.Event) bool { return e.Kind == control.EventState && e.Field == field }) {
		out = append(out, e.To)
	}
	return out
}

// end ends all of the node.
func (n *node) end() {
	if n.faults != nil {
		n.faults.end()
	}
	if n.agent != nil {
		_, _ = n.try("down", "--force", resource) // killed below if that does not work
		_ = n.agent.Process.Signal(syscall.SIGTERM)
		_ = n.agent.Wait()
		n.agent = nil
	}
	if pid := n.pid(); pid != 0 {
		_ = syscall.Kill(pid, syscall.SIGCONT)
		_ = syscall.Kill(pid, syscall.SIGKILL)
		n.c.within(stateLimit, func() bool { return n.pid() == 0 })
	}
	if n.faults != nil {
		n.faults.unmount()
	}
	if n.mounts != nil {
		_ = n.mounts.Process.Kill()
		_ = n.mounts.Wait() // "signal: killed"
	}
	n.direct.Close()
	if err := n.log.Close(); err != nil {
		n.c.t.Error(err)
	}
}

// faults is the node's disk on a faultfs, a process of its own.
type faults struct {
	n      *node
	dir    string
	socket string
	cmd    *exec.Cmd
}

// startFaults makes the disk of the node one that fails on command.
func (n *node) startFaults() {
	t := n.c.t
	t.Helper()
	size := n.c.o.size
	if s := n.c.o.sizes[n.name]; s != 0 {
		size = s
	}
	n.backing = filepath.Join(n.dir, "backing.img")
	f, err := os.Create(n.backing)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(f.Truncate(size+4<<20), f.Close()); err != nil { // room for the metadata
		t.Fatal(err)
	}
	fs := &faults{n: n, dir: filepath.Join(n.dir, "mnt"), socket: filepath.Join(n.dir, "faults.sock")}
	if err := os.MkdirAll(fs.dir, 0o755); err != nil {
		t.Fatal(err)
	}
	fs.cmd = exec.Command(binaries.faultfs, "--backing", n.backing, "--dir", fs.dir, "--socket", fs.socket)
	out, err := fs.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	fs.cmd.Stderr = n.log
	fs.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := fs.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(out, make([]byte, len("ready"))); err != nil {
		t.Fatalf("faultfs: %v", err)
	}
	n.disk = filepath.Join(fs.dir, "disk")
	n.faults = fs
}

// do gives faultfs a command.
func (f *faults) do(line string) string {
	f.n.c.t.Helper()
	out, err := f.command(line)
	if err != nil {
		f.n.c.t.Fatal(err)
	}
	return out
}

func (f *faults) command(line string) (string, error) {
	c, err := net.DialTimeout("unix", f.socket, stateLimit)
	if err != nil {
		return "", err
	}
	defer c.Close()
	if _, err := io.WriteString(c, line+"\n"); err != nil {
		return "", err
	}
	var answer bytes.Buffer
	for b := make([]byte, 1); ; {
		if _, err := c.Read(b); err != nil {
			return "", err
		}
		if b[0] == '\n' {
			break
		}
		answer.WriteByte(b[0])
	}
	out, ok := strings.CutPrefix(answer.String(), "ok")
	if !ok {
		return "", fmt.Errorf("faultfs: %s: %s", line, answer.String())
	}
	return strings.TrimSpace(out), nil
}

// end lets go of what stalls.
func (f *faults) end() { _, _ = f.command("clear") }

// unmount ends the process, when nobody uses the disk any more.
func (f *faults) unmount() {
	ended := make(chan struct{})
	go func() {
		_ = f.cmd.Wait()
		close(ended)
	}()
	_ = syscall.Unmount(f.dir, syscall.MNT_DETACH)
	_ = f.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-ended:
	case <-time.After(stateLimit): // a mount namespace made meanwhile has the mount too, and keeps it busy
		_ = f.cmd.Process.Kill()
		<-ended
	}
}
