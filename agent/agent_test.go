package agent

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"log/slog"

	"github.com/hawser-ha/hawser/agent/config"
	"github.com/hawser-ha/hawser/replicator/control"
)

const resourceFile = `resource: r0
nodes:
  - name: n1
    address: 127.0.0.1:%d
  - name: n2
    address: 127.0.0.1:7790
volumes:
  - volume: 0
    device: none
    disk: %s
    size: 16M
net:
  ping-int: %d
handlers:
  before-resync-target: "echo $DRBD_RESOURCE $DRBD_PEER $DRBD_VOLUME >> %s; exit 4"
`

// node is one node of the tests: its folders, and the agent that runs now.
type node struct {
	t      *testing.T
	cfg    config.NodeConfig
	dir    string
	cancel context.CancelFunc
	ended  chan error
}

func newNode(t *testing.T, name string) *node {
	t.Helper()
	t.Setenv(asReplicator, "1")
	dir := t.TempDir()
	n := &node{t: t, dir: dir, cfg: config.DefaultNode()}
	n.cfg.Node, n.cfg.RunDir, n.cfg.StateDir = name, filepath.Join(dir, "run"), filepath.Join(dir, "state")
	n.cfg.ResourcesDir = filepath.Join(dir, "res")
	n.cfg.Timeout.Down = 5 * time.Second
	for _, d := range []string{n.cfg.RunDir, n.cfg.ResourcesDir} {
		if err := os.MkdirAll(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	n.define(7789, 10)
	n.start()
	t.Cleanup(func() {
		n.stop()
		for _, sock := range glob(t, filepath.Join(n.cfg.RunDir, "replicator", "*.sock")) {
			if pid, served := control.Served(sock); served {
				_ = syscall.Kill(pid, syscall.SIGKILL) // it is ours, or gone
			}
		}
	})
	return n
}

func glob(t *testing.T, pattern string) []string {
	t.Helper()
	files, err := filepath.Glob(pattern)
	if err != nil {
		t.Fatal(err)
	}
	return files
}

func (n *node) define(port, ping int) {
	n.t.Helper()
	text := fmt.Sprintf(resourceFile, port, filepath.Join(n.dir, "disk"), ping, filepath.Join(n.dir, "handled"))
	n.write(filepath.Join("res", "r0.yaml"), text)
}

func (n *node) write(name, text string) {
	n.t.Helper()
	if err := os.WriteFile(filepath.Join(n.dir, name), []byte(text), 0o600); err != nil {
		n.t.Fatal(err)
	}
}

func (n *node) start() {
	n.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	n.cancel, n.ended = cancel, make(chan error, 1)
	go func() {
		n.ended <- Run(ctx, Config{Node: n.cfg, Version: "test", Replicator: []string{os.Args[0]}, Log: slog.New(slog.NewTextHandler(n.t.Output(), nil))})
	}()
	n.until("the agent answers", func() bool { return n.client().Get(n.t.Context(), "version", nil, new(Version)) == nil })
}

func (n *node) stop() {
	n.t.Helper()
	n.cancel()
	if err := <-n.ended; err != nil {
		n.t.Errorf("agent: %v", err)
	}
	n.ended <- nil // a second stop finds it ended
}

func (n *node) client() *control.Client { return control.NewClient(n.cfg.AgentSocket(), "the agent") }

// r0 is the part of the API that is about r0.
func (n *node) r0() *control.Client { return n.client().Sub("resources/r0") }

// until waits for a condition.
func (n *node) until(what string, ok func() bool) {
	n.t.Helper()
	deadline := time.After(60 * time.Second)
	for !ok() {
		select {
		case <-time.After(5 * time.Millisecond):
		case <-deadline:
			n.t.Fatalf("in vain: %s", what)
		}
	}
}

func (n *node) status() ResourceStatus {
	n.t.Helper()
	var rs ResourceStatus
	if err := n.r0().Get(context.Background(), "status", nil, &rs); err != nil {
		n.t.Fatal(err)
	}
	return rs
}

func (n *node) must(err error) {
	n.t.Helper()
	if err != nil {
		n.t.Fatal(err)
	}
}

func (n *node) up() (Done, error) {
	var d Done
	err := n.r0().Call(n.t.Context(), "up", struct{}{}, &d)
	return d, err
}

func (n *node) down(force bool) (Done, error) {
	var d Done
	err := n.r0().Call(n.t.Context(), "down", control.Args{Volume: control.All, Force: force}, &d)
	return d, err
}

func TestUpAttachesAndConnectsAndDownEndsTheProcess(t *testing.T) {
	n := newNode(t, "n1")
	if rs := n.status(); rs.State != StateDown {
		t.Fatalf("before up: %s", rs.State)
	}
	if err := n.r0().Do(t.Context(), "primary", control.Args{}); !errors.Is(err, control.NotRunning) || control.ExitCode(err) != control.ExitAbsent {
		t.Errorf("a command to a resource that is down: %v", err)
	}
	d, err := n.up()
	n.must(err)
	rs := n.status()
	if !d.Changed || rs.State != StateUp || rs.Status.Volume(0).DiskState != "UpToDate" || rs.Status.Peer("n2").Connection != "Connecting" {
		t.Fatalf("after up: %+v", rs)
	}
	if d, err = n.up(); err != nil || d.Changed {
		t.Errorf("a second up: %v, %v; want nothing to do", d, err)
	}
	n.must(n.r0().Do(t.Context(), "primary", control.Args{}))
	if _, err := n.down(false); !errors.Is(err, control.InUse) {
		t.Errorf("down while in use: %v, want %v", err, control.InUse)
	}
	if rs := n.status(); rs.State != StateUp {
		t.Errorf("after a refused down: %s", rs.State)
	}
	d, err = n.down(true)
	n.must(err)
	if rs := n.status(); rs.State != StateDown || !d.Changed {
		t.Errorf("after down: %s", rs.State)
	}
	if syscall.Kill(rs.Status.PID, 0) == nil {
		t.Errorf("process %d is still there", rs.Status.PID)
	}
	if d, err = n.down(false); err != nil || d.Changed {
		t.Errorf("a second down: %v, %v; want nothing to do", d, err)
	}
}

func TestRestartOfTheAgentKeepsTheReplicator(t *testing.T) {
	n := newNode(t, "n1")
	_, err := n.up()
	n.must(err)
	n.must(n.r0().Do(t.Context(), "primary", control.Args{}))
	before := n.status()
	n.stop()
	if syscall.Kill(before.Status.PID, 0) != nil {
		t.Fatal("the replicator ended with the agent")
	}
	n.start()
	after := n.status()
	if after.State != StateUp || after.Status.PID != before.Status.PID || after.Status.Role != "Primary" {
		t.Errorf("before %+v, after %+v", before.Status, after.Status)
	}
	// The new agent follows it: a crash is seen and mended.
	n.must(syscall.Kill(after.Status.PID, syscall.SIGKILL))
	n.until("it runs again", func() bool { rs := n.status(); return rs.State == StateUp && rs.Status.PID != after.Status.PID })
}

func TestReplicatorThatDiedIsStartedAgainAsSecondary(t *testing.T) {
	n := newNode(t, "n1")
	_, err := n.up()
	n.must(err)
	first := n.status().Status.PID
	notes := make(chan control.Event, 1)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	ready, promoted := make(chan struct{}), make(chan struct{})
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = n.client().Events(ctx, 0, func(e control.Event) error { // it ends with ctx
			if e.Kind == control.EventStatus {
				close(ready)
			}
			if e.Field == control.FieldRole && e.To == "Primary" {
				close(promoted)
			}
			if e.Name == "restarted" {
				notes <- e
			}
			return nil
		})
	}()
	<-ready
	n.must(n.r0().Do(t.Context(), "primary", control.Args{}))
	<-promoted // the agent has heard of it
	n.must(syscall.Kill(first, syscall.SIGKILL))
	e := <-notes
	if !strings.Contains(e.Text, "signal: killed") || !strings.Contains(e.Text, "was Primary and is started again as Secondary") {
		t.Errorf("note: %q", e.Text)
	}
	cancel()
	<-ended
	rs := n.status()
	if rs.State != StateUp || rs.Status.Role != "Secondary" || rs.Restarts != 1 || rs.Status.Volume(0).DiskState != "UpToDate" || rs.Status.Peer("n2").Connection != "Connecting" {
		t.Errorf("after the restart: %+v %+v", rs, rs.Status)
	}
}

func TestAgentThatDiedWithTheReplicatorStartsItAgain(t *testing.T) {
	n := newNode(t, "n1")
	_, err := n.up()
	n.must(err)
	pid := n.status().Status.PID
	n.stop()
	n.must(syscall.Kill(pid, syscall.SIGKILL))
	n.until("it is dead", func() bool { _, served := control.Served(n.cfg.ReplicatorSocket("r0")); return !served })
	n.start()
	n.until("it is up", func() bool { return n.status().State == StateUp })
}

func TestUpThatFailsLeavesNothingBehind(t *testing.T) {
	n := newNode(t, "n1")
	n.write("run/no-metadata", "")
	if _, err := n.up(); !errors.Is(err, control.NoMetadata) {
		t.Errorf("up without metadata: %v, want %v", err, control.NoMetadata)
	}
	if rs := n.status(); rs.State != StateDown {
		t.Errorf("after it: %s", rs.State)
	}
	n.write("run/refuse", "")
	if _, err := n.up(); !errors.Is(err, control.DiskInUse) {
		t.Errorf("a process that cannot start: %v, want %v", err, control.DiskInUse)
	}
	if rs := n.status(); rs.State != StateDown {
		t.Errorf("after it: %s", rs.State)
	}
}

func TestDownIsBounded(t *testing.T) {
	n := newNode(t, "n1")
	_, err := n.up()
	n.must(err)
	n.write("run/hang", "")
	if _, err := n.down(false); !errors.Is(err, control.Unknown) {
		t.Errorf("a down that hangs: %v, want %v", err, control.Unknown)
	}
	if rs := n.status(); rs.State != StateUp {
		t.Errorf("after it: %s", rs.State)
	}
	_, err = n.down(true)
	n.must(err)
	if rs := n.status(); rs.State != StateDown {
		t.Errorf("after down by force: %s", rs.State)
	}
}

func TestHandlersRunOnceAndAreAnswered(t *testing.T) {
	n := newNode(t, "n1")
	_, err := n.up()
	n.must(err)
	n.must(n.r0().Do(t.Context(), "disconnect", control.Args{}))
	n.until("the exit code arrives", func() bool { return len(glob(t, filepath.Join(n.cfg.RunDir, "answered-42-4-1"))) == 1 })
	n.until("it is remembered", func() bool { return len(glob(t, filepath.Join(n.cfg.RunDir, "replicator", "r0.event"))) == 1 })
	text, err := os.ReadFile(filepath.Join(n.dir, "handled"))
	n.must(err)
	if string(text) != "r0 n2 0\n" {
		t.Errorf("the handler's environment: %q", text)
	}
	n.stop()
	// What is asked for while no agent runs is done by the next one; what was answered is not done again.
	n.must(control.NewClient(n.cfg.ReplicatorSocket("r0"), "r0").Do(t.Context(), "disconnect", control.Args{}))
	n.start()
	n.until("the second answer arrives", func() bool { return len(glob(t, filepath.Join(n.cfg.RunDir, "answered-42-4-2"))) == 1 })
	if files := glob(t, filepath.Join(n.cfg.RunDir, "answered-*")); len(files) != 2 {
		t.Errorf("answers: %v", files)
	}
}

func TestAdjustTakesTheFewestSteps(t *testing.T) {
	n := newNode(t, "n1")
	adjust := func(dry bool) []Step {
		t.Helper()
		var steps []Step
		n.must(n.r0().Call(t.Context(), "adjust", AdjustArgs{DryRun: dry}, &steps))
		return steps
	}
	verbs := func(steps []Step) string {
		var v []string
		for _, s := range steps {
			v = append(v, strings.TrimSpace(s.Verb+" "+s.Target))
		}
		return strings.Join(v, ", ")
	}
	if got := verbs(adjust(true)); got != "up" {
		t.Errorf("down: %q", got)
	}
	if n.status().State != StateDown {
		t.Error("a dry run did something")
	}
	adjust(false)
	pid := n.status().Status.PID
	if got := adjust(false); len(got) != 0 {
		t.Errorf("nothing changed, and yet: %v", got)
	}
	n.define(7789, 20)
	if got := verbs(adjust(false)); got != "change" || n.status().Status.PID != pid {
		t.Errorf("ping-int changed: %q", got)
	}
	var def control.Definition
	n.must(control.NewClient(n.cfg.ReplicatorSocket("r0"), "r0").Get(t.Context(), "definition", nil, &def))
	if def.Peers[0].Net.PingInt != 20*time.Second {
		t.Errorf("ping-int is %v after the change", def.Peers[0].Net.PingInt)
	}
	n.define(7700, 20)
	if got := verbs(adjust(false)); got != "disconnect n2, change, connect n2" {
		t.Errorf("address changed: %q", got)
	}
	n.must(os.Remove(filepath.Join(n.dir, "res", "r0.yaml")))
	if got := verbs(adjust(false)); got != "down" {
		t.Errorf("file removed: %q", got)
	}
}

func TestBrokenAndForeignResourcesAreRefused(t *testing.T) {
	n := newNode(t, "n3")
	if rs := n.status(); rs.State != StateWitness || len(rs.Nodes) != 2 {
		t.Errorf("a node that the file does not list: %+v", rs)
	}
	if _, err := n.up(); !errors.Is(err, control.Refused) {
		t.Errorf("up on a witness: %v, want %v", err, control.Refused)
	}
	n.write("res/bad.yaml", "resource: bad\nnodez: []\n")
	var st NodeStatus
	n.must(n.client().Get(t.Context(), "status", nil, &st))
	if !strings.Contains(strings.Join(st.Problems, "\n"), "bad.yaml:2") {
		t.Errorf("problems: %q", st.Problems)
	}
	err := n.client().Sub("resources/bad").Call(t.Context(), "up", struct{}{}, nil)
	if !errors.Is(err, control.BadDefinition) || !strings.Contains(err.Error(), "nodez") {
		t.Errorf("up of a broken file: %v", err)
	}
	n.must(os.Remove(filepath.Join(n.dir, "res", "bad.yaml")))
	if err := n.client().Sub("resources/none").Call(t.Context(), "up", struct{}{}, nil); !errors.Is(err, control.NotFound) {
		t.Errorf("up of nothing: %v, want %v", err, control.NotFound)
	}
	if err := n.client().Sub("resources/..%2Fx").Call(t.Context(), "up", struct{}{}, nil); !errors.Is(err, control.Usage) {
		t.Errorf("a name that is a path: %v, want %v", err, control.Usage)
	}
}

func TestTasksOfAResourceThatIsDown(t *testing.T) {
	n := newNode(t, "n1")
	var did []control.CreateMDResult
	n.must(n.r0().Call(t.Context(), "create-md", control.CreateMDOptions{Volume: control.All}, &did))
	if len(did) != 1 || !did[0].Created || did[0].DiskSize <= 16<<20 {
		t.Errorf("create-md: %+v; want room for metadata behind 16 MiB", did)
	}
	var b strings.Builder
	n.must(n.r0().DumpMD(t.Context(), 0, &b))
	if b.String() != "version \"v09\";\n" {
		t.Errorf("dump-md: %q", b.String())
	}
	if _, err := n.r0().ShowGI(t.Context(), 0); !errors.Is(err, control.NoMetadata) {
		t.Errorf("show-gi: %v, want %v", err, control.NoMetadata)
	}
	_, err := n.up()
	n.must(err)
	if err := n.r0().Call(t.Context(), "create-md", control.CreateMDOptions{Volume: control.All}, nil); !errors.Is(err, control.Running) {
		t.Errorf("create-md while up: %v, want %v", err, control.Running)
	}
}

func TestOnlyOneAgentPerRunDir(t *testing.T) {
	n := newNode(t, "n1")
	err := Run(t.Context(), Config{Node: n.cfg, Replicator: []string{os.Args[0]}, Log: slog.New(slog.DiscardHandler)})
	if !errors.Is(err, control.Running) {
		t.Errorf("second agent: %v, want %v", err, control.Running)
	}
}
