package drbdtools

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// patience bounds every step: the machine may be busy.
const patience = 2 * time.Minute

var (
	programs string // folder with hawser, and drbdadm and the others as links to it
	bridge   string // what makes ocf:linbit:drbd run
)

func TestMain(m *testing.M) {
	os.Exit(run(m))
}

func run(m *testing.M) int {
	if os.Geteuid() != 0 {
		return m.Run()
	}
	dir, err := os.MkdirTemp("/var/tmp", "hawser-drbdtools-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	programs = dir
	cmd := exec.CommandContext(context.Background(), "go", "build", "-o", filepath.Join(dir, "hawser"), "./cmd/hawser")
	cmd.Dir = "../.."
	if out, err := cmd.CombinedOutput(); err != nil {
		fmt.Fprintf(os.Stderr, "build hawser: %v\n%s", err, out)
		return 1
	}
	for _, name := range []string{"drbdadm", "drbdsetup", "drbdadm-84", "drbdsetup-84"} {
		if err := os.Symlink("hawser", filepath.Join(dir, name)); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
	}
	if bridge, err = filepath.Abs("../../etc/pacemaker/linbit-drbd.sh"); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return m.Run()
}

// node is one of two on this machine, with an agent of its own.
type node struct {
	t     *testing.T
	name  string
	dir   string
	agent *exec.Cmd
	extra []string // environment
}

// pair is two nodes with the resource r0, whose file is YAML.
func pair(t *testing.T) (a, b *node, device string) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root: it makes block devices")
	}
	dir := t.TempDir()
	device = fmt.Sprintf("/dev/drbd%d", 500000+os.Getpid()%400000)
	text := fmt.Sprintf("resource: r0\nnodes:\n  - name: alpha\n    address: %s\n    volumes:\n      - {volume: 0, disk: %s/alpha.img}\n"+
		"  - name: beta\n    address: %s\n    volumes:\n      - {volume: 0, disk: %s/beta.img}\n"+
		"volumes:\n  - {volume: 0, device: auto %s, disk: %s/none.img, size: 16M}\nnet:\n  protocol: C\n  verify-alg: crc32c\n",
		free(t), dir, free(t), dir, device, dir)
	for _, n := range []**node{&a, &b} {
		name := "alpha"
		if n == &b {
			name = "beta"
		}
		*n = &node{t: t, name: name, dir: filepath.Join(dir, name)}
		if err := os.MkdirAll(filepath.Join((*n).dir, "resources.d"), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join((*n).dir, "resources.d", "r0.yaml"), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		(*n).start()
	}
	t.Cleanup(func() {
		for _, n := range []*node{a, b} {
			n.run("hawser", "down", "--force", "r0")
			n.stop(syscall.SIGTERM)
		}
	})
	for _, n := range []*node{a, b} {
		n.ok("drbdadm", "create-md", "r0")
		n.ok("drbdadm", "up", "r0")
	}
	a.ok("drbdsetup", "wait-connect-resource", "r0", "--wfc-timeout=100")
	a.ok("drbdadm", "new-current-uuid", "--clear-bitmap", "r0")
	return a, b, device
}

// free finds an address that nobody listens on.
func free(t *testing.T) string {
	t.Helper()
	var c net.ListenConfig
	l, err := c.Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

func (n *node) env() []string {
	return append(append(os.Environ(), "HAWSER_NODE="+n.name, "HAWSER_RUN_DIR="+filepath.Join(n.dir, "run"), "HAWSER_STATE_DIR="+filepath.Join(n.dir, "state"),
		"HAWSER_RESOURCES_DIR="+filepath.Join(n.dir, "resources.d"), "PATH="+programs+":"+os.Getenv("PATH")), n.extra...)
}

// start starts the agent; it is there when it answers.
func (n *node) start() {
	n.t.Helper()
	log, err := os.OpenFile(filepath.Join(n.dir, "log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		n.t.Fatal(err)
	}
	defer log.Close()
	n.agent = exec.CommandContext(context.Background(), filepath.Join(programs, "hawser"), "agent")
	n.agent.Env, n.agent.Stdout, n.agent.Stderr = n.env(), log, log
	if err := n.agent.Start(); err != nil {
		n.t.Fatal(err)
	}
	n.until("the agent answers", func() bool { _, code, _ := n.run("hawser", "status"); return code == 0 })
}

func (n *node) stop(sig syscall.Signal) {
	if n.agent == nil {
		return
	}
	if err := n.agent.Process.Signal(sig); err != nil {
		n.t.Error(err)
	}
	var exit *exec.ExitError
	if err := n.agent.Wait(); err != nil && !errors.As(err, &exit) {
		n.t.Error(err)
	}
	n.agent = nil
}

// until asks again and again, for what nothing tells.
func (n *node) until(what string, holds func() bool) {
	n.t.Helper()
	for deadline := time.Now().Add(patience); !holds(); time.Sleep(50 * time.Millisecond) {
		if time.Now().After(deadline) {
			n.t.Fatalf("%s: not true that %s\n%s", n.name, what, n.tail())
		}
	}
}

func (n *node) tail() string {
	data, err := os.ReadFile(filepath.Join(n.dir, "log"))
	if err != nil {
		return err.Error()
	}
	return string(data[max(0, len(data)-4000):])
}

// run runs a program with the node's settings and gives what it printed, its exit code and what it complained of.
func (n *node) run(name string, args ...string) (stdout string, code int, stderr string) {
	n.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if !strings.Contains(name, "/") {
		name = filepath.Join(programs, name)
	}
	cmd := exec.CommandContext(ctx, name, args...)
	var out, complaints bytes.Buffer
	cmd.Env, cmd.Stdout, cmd.Stderr = n.env(), &out, &complaints
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		n.t.Fatalf("%s %s: %v", name, strings.Join(args, " "), err)
	}
	return out.String(), cmd.ProcessState.ExitCode(), complaints.String()
}

// ok runs a program that must succeed.
func (n *node) ok(name string, args ...string) string {
	n.t.Helper()
	out, code, complaints := n.run(name, args...)
	if code != 0 {
		n.t.Fatalf("%s: %s %s: exit code %d\n%s%s\n%s", n.name, name, strings.Join(args, " "), code, out, complaints, n.tail())
	}
	return out
}
