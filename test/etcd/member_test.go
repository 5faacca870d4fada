package etcd

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/hawser-ha/hawser/agent/coord"
	"github.com/hawser-ha/hawser/agent/etcd"
	"github.com/hawser-ha/hawser/agent/etcdmember/pidfile"
)

const patience = 90 * time.Second // a busy machine

// node is one agent with its member.
type node struct {
	t     *testing.T
	bin   string
	name  string
	dir   string
	agent *exec.Cmd
	log   *os.File
}

func free(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return "http://" + l.Addr().String()
}

// cluster writes the settings of three nodes; w is a witness.
func cluster(t *testing.T, bin string) (nodes []*node, endpoints []string) {
	t.Helper()
	dir := t.TempDir()
	list := "nodes:\n"
	for _, name := range []string{"n1", "n2", "w"} {
		client := free(t)
		endpoints = append(endpoints, client)
		list += fmt.Sprintf("  - {name: %s, client-url: %q, peer-url: %q}\n", name, client, free(t))
		nodes = append(nodes, &node{t: t, bin: bin, name: name, dir: filepath.Join(dir, name)})
	}
	for _, n := range nodes {
		if err := os.MkdirAll(filepath.Join(n.dir, "resources.d"), 0o755); err != nil {
			t.Fatal(err)
		}
		text := fmt.Sprintf("node: %s\nrun-dir: %s/run\nstate-dir: %s/state\nresources-dir: %s/resources.d\n%s"+
			"etcd: {embedded: true, heartbeat: 50ms, election: 500ms, quota-mib: 16}\n"+
			"lease: {ttl: 4s, renew-every: 500ms, rpc-timeout: 1s, margin: 500ms}\n", n.name, n.dir, n.dir, n.dir, list)
		if err := os.WriteFile(n.config(), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		log, err := os.Create(filepath.Join(n.dir, "log"))
		if err != nil {
			t.Fatal(err)
		}
		n.log = log
		t.Cleanup(n.end)
	}
	return nodes, endpoints
}

func (n *node) config() string { return filepath.Join(n.dir, "hawser.yaml") }

func (n *node) pidFile() string { return filepath.Join(n.dir, "run", "etcd.pid") }

func (n *node) startAgent() {
	n.t.Helper()
	n.agent = exec.Command(n.bin, "agent", "--config", n.config())
	n.agent.Stderr = n.log
	if err := n.agent.Start(); err != nil {
		n.t.Fatal(err)
	}
}

func (n *node) stopAgent(sig syscall.Signal) {
	if n.agent == nil {
		return
	}
	if err := n.agent.Process.Signal(sig); err != nil {
		n.t.Error(err)
	}
	_ = n.agent.Wait() // how it ended was our will
	n.agent = nil
}

// end ends the agent, then the member, which does not end with it.
func (n *node) end() {
	n.stopAgent(syscall.SIGTERM)
	if pid := n.member(); pid != 0 {
		if err := syscall.Kill(pid, syscall.SIGTERM); err != nil && !errors.Is(err, syscall.ESRCH) {
			n.t.Error(err)
		}
		n.eventually("end of the member", func() error {
			if pid := n.member(); pid != 0 {
				return fmt.Errorf("process %d", pid)
			}
			return nil
		})
	}
	if err := n.log.Close(); err != nil {
		n.t.Error(err)
	}
	if n.t.Failed() {
		data, _ := os.ReadFile(n.log.Name())
		lines := strings.Split(string(data), "\n")
		n.t.Logf("log of %s:\n%s", n.name, strings.Join(lines[max(0, len(lines)-40):], "\n"))
	}
}

func (n *node) member() int {
	pid, err := pidfile.Running(n.pidFile())
	if err != nil {
		return 0 // it is about to write it
	}
	return pid
}

func (n *node) eventually(what string, f func() error) {
	n.t.Helper()
	var err error
	for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(50 * time.Millisecond) { // a poll, bounded by patience
		if err = f(); err == nil {
			return
		}
	}
	n.t.Fatalf("%s: %s: %v", n.name, what, err)
}

// run runs a command and gives what it printed, and its exit code.
func (n *node) run(args ...string) (string, int) {
	n.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	out, err := exec.CommandContext(ctx, n.bin, append(args, "--config", n.config())...).CombinedOutput()
	if e, ok := errors.AsType[*exec.ExitError](err); ok {
		return string(out), e.ExitCode()
	}
	if err != nil {
		n.t.Fatal(err)
	}
	return string(out), 0
}

type status struct {
	Members []etcd.MemberStatus
	Alarms  []etcd.Alarm
}

func (n *node) status() (s status, err error) {
	out, code := n.run("etcd", "status", "--json")
	if code != 0 {
		return s, fmt.Errorf("exit code %d: %s", code, out)
	}
	return s, json.Unmarshal([]byte(out), &s)
}

// healthy waits until so many members are well, and there are no others.
func (n *node) healthy(want int) {
	n.t.Helper()
	n.eventually(fmt.Sprintf("%d members that are well", want), func() error {
		s, err := n.status()
		if err != nil {
			return err
		}
		well := 0
		for _, m := range s.Members {
			if m.Healthy {
				well++
			}
		}
		if well != want || len(s.Members) != want {
			return fmt.Errorf("%+v", s.Members)
		}
		return nil
	})
}

func (n *node) logged(text string) error {
	data, err := os.ReadFile(n.log.Name())
	if err == nil && !strings.Contains(string(data), text) {
		return fmt.Errorf("the log does not say %q", text)
	}
	return err
}

func TestMembers(t *testing.T) {
	bin := filepath.Join(t.TempDir(), "hawser")
	build := exec.Command("go", "build", "-o", bin, "./cmd/hawser")
	build.Dir = "../.."
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	nodes, endpoints := cluster(t, bin)
	n1, n2, w := nodes[0], nodes[1], nodes[2]
	for _, n := range nodes {
		n.startAgent()
	}
	n1.healthy(3)

	// A store that goes on over everything that follows.
	cl, err := etcd.Open(etcd.Config{Endpoints: endpoints, RPCTimeout: time.Second, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	defer cl.Close()
	store := coord.New(coord.Options{Backend: cl, Prefix: coord.Prefix("hawser"), Log: slog.New(slog.DiscardHandler)})
	ctx, cancel := context.WithTimeout(t.Context(), 4*patience)
	defer cancel()
	write := func(text string) {
		t.Helper()
		v, err := store.Snapshot(ctx)
		if err != nil {
			t.Fatal(err)
		}
		if err := store.AppendHistory(ctx, v.Resource("r0"), coord.Entry{Node: "test", Kind: "note", Text: text}); err != nil {
			t.Fatal(err)
		}
	}
	write("one")

	t.Run("the agent restarts, the member goes on", func(t *testing.T) {
		pid := n1.member()
		n1.stopAgent(syscall.SIGKILL)
		n1.startAgent()
		n1.eventually("adoption", func() error { return n1.logged("etcd member adopted") })
		if now := n1.member(); now != pid || pid == 0 {
			t.Errorf("process %d, it was %d", now, pid)
		}
	})
	t.Run("a member is killed, the agent starts it again", func(t *testing.T) {
		pid := n2.member()
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		write("two")
		n2.eventually("a new member", func() error {
			if now := n2.member(); now == 0 || now == pid {
				return fmt.Errorf("process %d", now)
			}
			return nil
		})
		n1.healthy(3)
	})
	t.Run("restart", func(t *testing.T) {
		pid := w.member()
		if out, code := w.run("etcd", "restart"); code != 0 {
			t.Fatal(out)
		}
		w.eventually("a new member", func() error {
			if now := w.member(); now == 0 || now == pid {
				return fmt.Errorf("process %d", now)
			}
			return nil
		})
		n1.healthy(3)
	})
	t.Run("a member that is well is not replaced by mistake", func(t *testing.T) {
		if out, code := n1.run("etcd", "member", "replace", "n2"); code != 1 || !strings.Contains(out, "--force") {
			t.Errorf("%d %s", code, out)
		}
		if out, code := n1.run("etcd", "member", "replace", "nobody"); code != 4 {
			t.Errorf("%d %s", code, out)
		}
	})
	t.Run("a member that lost its data does not vote again until it is replaced", func(t *testing.T) {
		n2.stopAgent(syscall.SIGTERM)
		if out, code := n2.run("etcd", "restart"); code != 0 { // without an agent: it ends
			t.Fatal(out)
		}
		if err := os.RemoveAll(filepath.Join(n2.dir, "state", "etcd")); err != nil {
			t.Fatal(err)
		}
		write("three")
		n2.startAgent()
		n2.eventually("refusal", func() error { return n2.logged("hawser etcd member replace n2") })
		if out, code := n1.run("etcd", "member", "replace", "n2"); code != 0 || !strings.Contains(out, "is removed") || !strings.Contains(out, "is added") {
			t.Fatalf("%d %s", code, out)
		}
		n1.healthy(3)
	})
	t.Run("a member is removed and added, its old data does not come back", func(t *testing.T) {
		if out, code := n1.run("etcd", "member", "remove", "w", "--force"); code != 0 {
			t.Fatal(out)
		}
		n1.healthy(2)
		write("four")
		if out, code := n1.run("etcd", "member", "add", "w"); code != 0 {
			t.Fatal(out)
		}
		n1.healthy(3)
		w.eventually("old data", func() error { return w.logged("moved aside") })
	})
	t.Run("the database is full", func(t *testing.T) {
		full := []byte(strings.Repeat("x", 1<<20))
		var err error
		for !errors.Is(err, coord.ErrRefused) && ctx.Err() == nil { // a disk that is slow is no news
			_, err = cl.Txn(ctx, coord.Txn{Then: []coord.Op{{Key: "/filler", Value: full}}})
		}
		if !errors.Is(err, coord.ErrRefused) {
			t.Fatal(err)
		}
		out, code := n1.run("etcd", "status")
		if code != 0 || !strings.Contains(out, "alarm NOSPACE") || !strings.Contains(out, "leader") {
			t.Errorf("%d %s", code, out)
		}
		if out, code := n1.run("etcd", "defrag"); code != 0 {
			t.Fatal(out)
		}
		if out, code := n1.run("etcd", "disarm"); code != 0 {
			t.Fatal(out)
		}
		write("five")
		if s, err := n1.status(); err != nil || len(s.Alarms) != 0 {
			t.Errorf("%+v %v", s, err)
		}
	})
	v, err := store.Snapshot(ctx)
	if err != nil {
		t.Fatal(err)
	}
	var texts []string
	for _, e := range v.Resource("r0").History {
		texts = append(texts, e.Text)
	}
	if got := strings.Join(texts, " "); got != "one two three four five" {
		t.Errorf("stored %q", got)
	}
}
