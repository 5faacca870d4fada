package ha

import (
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/hawser-ha/hawser/agent"
	agentha "github.com/hawser-ha/hawser/agent/ha"
	"github.com/hawser-ha/hawser/replicator/control"
	"github.com/hawser-ha/hawser/test/check"
	"github.com/hawser-ha/hawser/test/check/nbdclient"
)

const (
	ttl        = 5 * time.Second
	stateLimit = 60 * time.Second // for what should take a moment, on a busy machine
	volume     = 16 << 20         // bytes
)

var (
	keep   = flag.Bool("keep", false, "keep folders and logs")
	binary string // hawser, built once
)

func TestMain(m *testing.M) {
	if os.Getenv("HAWSER_TEST_HA") == "" {
		fmt.Println("test/ha skipped: it has not passed yet; set HAWSER_TEST_HA=1 to run it")
		os.Exit(0)
	}
	flag.Parse()
	os.Exit(run(m))
}

func run(m *testing.M) int {
	if os.Geteuid() != 0 {
		return m.Run()
	}
	dir, err := os.MkdirTemp("/var/tmp", "hawser-ha-bin-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	binary = filepath.Join(dir, "hawser")
	cmd := exec.Command("go", "build", "-o", binary, "./cmd/hawser")
	cmd.Dir = filepath.Join("..", "..")
	if out, err := cmd.CombinedOutput(); err != nil {
		fmt.Fprintf(os.Stderr, "build: %v\n%s", err, out)
		return 1
	}
	return m.Run()
}

var clusters atomic.Int64

// cluster is three nodes; n1 and n2 hold the data.
type cluster struct {
	t         *testing.T
	dir       string
	prefix    string
	nodes     []*node
	resources []string
	history   *check.History
}

// node is one machine.
type node struct {
	c     *cluster
	name  string
	addr  string
	dir   string
	log   *os.File
	agent *exec.Cmd
}

func sh(line string) error {
	words := strings.Fields(line)
	if out, err := exec.Command(words[0], words[1:]...).CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w: %s", line, err, strings.TrimSpace(string(out)))
	}
	return nil
}

func (c *cluster) must(format string, args ...any) {
	c.t.Helper()
	if err := sh(fmt.Sprintf(format, args...)); err != nil {
		c.t.Fatal(err)
	}
}

// start makes a cluster with these resources, promoted for the first time on n1 and in sync. options are lines of the resources' options.
func start(t *testing.T, options string, resources ...string) *cluster {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("network namespaces need root")
	}
	c := &cluster{t: t, prefix: fmt.Sprintf("hwha%d-%d", os.Getpid()%100000, clusters.Add(1)), resources: resources, history: check.NewHistory(nil)}
	if err := sh("ip netns add " + c.prefix + "-sw"); err != nil {
		t.Skipf("this machine gives no network namespaces: %v", err)
	}
	dir, err := os.MkdirTemp("/var/tmp", c.prefix+"-")
	if err != nil {
		t.Fatal(err)
	}
	c.dir = dir
	t.Cleanup(func() {
		if *keep {
			t.Logf("kept: %s", dir)
		} else if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	sw := c.prefix + "-sw"
	t.Cleanup(func() { _ = sh("ip netns del " + sw) }) // what it joins goes with it
	c.must("ip -n %s link add br0 type bridge", sw)
	c.must("ip -n %s link set br0 up", sw)
	for i := range 3 {
		n := &node{c: c, name: fmt.Sprintf("n%d", i+1), addr: fmt.Sprintf("10.78.0.%d", i+1)}
		n.dir = filepath.Join(dir, n.name)
		if err := os.MkdirAll(filepath.Join(n.dir, "resources.d"), 0o755); err != nil {
			t.Fatal(err)
		}
		if n.log, err = os.Create(filepath.Join(n.dir, "log")); err != nil {
			t.Fatal(err)
		}
		c.nodes = append(c.nodes, n)
		c.must("ip netns add %s", n.ns())
		t.Cleanup(n.end)
		c.must("ip -n %s link add p%d type veth peer name eth0 netns %s", sw, i+1, n.ns())
		c.must("ip -n %s link set p%d master br0 up", sw, i+1)
		c.must("ip -n %s addr add %s/24 dev eth0", n.ns(), n.addr)
		c.must("ip -n %s link set eth0 up", n.ns())
		c.must("ip -n %s link set lo up", n.ns())
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Log(c.state())
		}
	})
	for _, n := range c.nodes {
		n.configure()
	}
	for _, n := range c.nodes {
		n.boot()
	}
	for i, r := range resources {
		file := filepath.Join(dir, r+".yaml")
		if err := os.WriteFile(file, []byte(c.definition(r, i, options)), 0o600); err != nil {
			t.Fatal(err)
		}
		c.until("etcd", stateLimit, func() error { _, err := c.nodes[2].try("apply", "-f", file); return err })
	}
	for _, n := range c.data() {
		for _, r := range resources {
			c.until("the definition of "+r+" on "+n.name, stateLimit, func() error {
				_, err := os.Stat(filepath.Join(n.dir, "resources.d", r+".yaml"))
				return err
			})
			n.cli("create-md", "--force", r)
			n.cli("up", r)
		}
	}
	for _, r := range resources {
		c.until("the first promotion", stateLimit, func() error { _, err := c.n(1).try("primary", "--force", r); return err })
	}
	for _, r := range resources {
		c.inSync(r, "n1", "n2")
	}
	return c
}

func (c *cluster) n(i int) *node { return c.nodes[i-1] }
func (c *cluster) data() []*node { return c.nodes[:2] }

// definition is the file of a resource.
func (c *cluster) definition(name string, i int, options string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "resource: %s\nnodes:\n", name)
	for _, n := range c.data() {
		fmt.Fprintf(&b, "  - {name: %s, address: \"%s:%d\", volumes: [{volume: 0, disk: %s}]}\n", n.name, n.addr, 7789+i, filepath.Join(n.dir, name+".img"))
	}
	fmt.Fprintf(&b, "volumes:\n  - {volume: 0, size: %ds, device: none, meta-disk: internal}\n", volume/512)
	fmt.Fprintf(&b, "net: {protocol: C, timeout: 900ms, connect-int: 1s, ping-int: 1s}\noptions:\n  coordination: etcd\n%s", options)
	return b.String()
}

func (n *node) ns() string     { return n.c.prefix + "-" + n.name }
func (n *node) run() string    { return filepath.Join(n.dir, "run") }
func (n *node) config() string { return filepath.Join(n.dir, "hawser.yaml") }

// configure writes the node's settings.
func (n *node) configure() {
	var b strings.Builder
	fmt.Fprintf(&b, "node: %s\nrun-dir: %s\nstate-dir: %s\nresources-dir: %s\ncluster: test\nlisten: 0.0.0.0:8480\n", n.name, n.run(), filepath.Join(n.dir, "state"), filepath.Join(n.dir, "resources.d"))
	b.WriteString("nodes:\n")
	for _, o := range n.c.nodes {
		fmt.Fprintf(&b, "  - {name: %s, address: %s}\n", o.name, o.addr)
	}
	fmt.Fprintf(&b, "etcd: {embedded: true, heartbeat: 50ms, election: 500ms}\nlease: {ttl: %s, renew-every: 1s, rpc-timeout: 1s, margin: 500ms}\ntimeout: {down: 8s}\n", ttl)
	if err := os.WriteFile(n.config(), []byte(b.String()), 0o600); err != nil {
		n.c.t.Fatal(err)
	}
}

// boot starts the agent, which starts the member of etcd, and later the replicators.
func (n *node) boot() {
	n.c.t.Helper()
	if err := os.RemoveAll(n.run()); err != nil { // it is empty after a boot
		n.c.t.Fatal(err)
	}
	n.startAgent()
}

func (n *node) startAgent() {
	n.c.t.Helper()
	n.agent = exec.Command("ip", "netns", "exec", n.ns(), binary, "--config", n.config(), "agent")
	n.agent.Stdout, n.agent.Stderr = n.log, n.log
	n.agent.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := n.agent.Start(); err != nil {
		n.c.t.Fatal(err)
	}
	n.c.until("the agent of "+n.name, stateLimit, func() error {
		c := control.NewClient(filepath.Join(n.run(), "agent.sock"), "agent")
		defer c.Close()
		return c.Get(n.c.t.Context(), "version", nil, new(agent.Version))
	})
}

// pids are all processes of the node.
func (n *node) pids() []int {
	out, err := exec.Command("ip", "netns", "pids", n.ns()).Output()
	if err != nil {
		return nil
	}
	var list []int
	for _, f := range strings.Fields(string(out)) {
		if pid, err := strconv.Atoi(f); err == nil {
			list = append(list, pid)
		}
	}
	return list
}

// signal goes to every process of the node at once.
func (n *node) signal(s syscall.Signal) {
	for _, pid := range n.pids() {
		_ = syscall.Kill(pid, s) // it may have ended just now
	}
}

// die ends the node: agent, replicators, member of etcd.
func (n *node) die() {
	n.c.t.Helper()
	n.signal(syscall.SIGKILL)
	if n.agent != nil {
		_ = n.agent.Wait() // "signal: killed" is what we wanted
		n.agent = nil
	}
	n.c.until("the end of "+n.name, stateLimit, func() error {
		if p := n.pids(); len(p) > 0 {
			return fmt.Errorf("processes %v", p)
		}
		return nil
	})
}

func (n *node) end() {
	n.signal(syscall.SIGCONT)
	n.signal(syscall.SIGKILL)
	if n.agent != nil {
		_ = n.agent.Wait()
	}
	_ = n.log.Close()
	for range 100 {
		if len(n.pids()) == 0 {
			break
		}
		time.Sleep(20 * time.Millisecond)
	}
	_ = sh("ip netns del " + n.ns())
}

// try runs the command line as a person on that node would.
func (n *node) try(args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(n.c.t.Context()), stateLimit)
	defer cancel()
	cmd := exec.CommandContext(ctx, "ip", append([]string{"netns", "exec", n.ns(), binary, "--config", n.config()}, args...)...)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil {
		return out.String(), fmt.Errorf("%s: hawser %s: %w: %s", n.name, strings.Join(args, " "), err, strings.TrimSpace(errs.String()))
	}
	return out.String(), nil
}

func (n *node) cli(args ...string) string {
	n.c.t.Helper()
	out, err := n.try(args...)
	if err != nil {
		n.c.t.Fatal(err)
	}
	return out
}

// until waits for something to be as it should.
func (c *cluster) until(what string, limit time.Duration, ok func() error) time.Duration {
	c.t.Helper()
	began := time.Now()
	for {
		err := ok()
		if err == nil {
			return time.Since(began)
		}
		if time.Since(began) > limit {
			c.t.Fatalf("%s: not within %s: %v", what, limit, err)
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// status is what the replicator of a resource says.
func (n *node) status(res string) (*control.Status, error) {
	c := control.NewClient(filepath.Join(n.run(), "replicator", res+".sock"), "replicator")
	defer c.Close()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(n.c.t.Context()), 5*time.Second)
	defer cancel()
	return c.Status(ctx)
}

// cluster is the whole cluster as a node tells it.
func (n *node) cluster() (*agentha.Cluster, error) {
	out, err := n.try("status", "--json")
	if err != nil {
		return nil, err
	}
	var st agent.NodeStatus
	if err := json.Unmarshal([]byte(out), &st); err != nil {
		return nil, err
	}
	if st.Cluster == nil {
		return nil, fmt.Errorf("%s knows nothing of the cluster", n.name)
	}
	return st.Cluster, nil
}

// inSync waits until the in-sync set is these nodes, as the witness sees it.
func (c *cluster) inSync(res string, nodes ...string) {
	c.t.Helper()
	c.until("in sync", stateLimit, func() error {
		cl, err := c.n(3).cluster()
		if err != nil {
			return err
		}
		for _, r := range cl.Resources {
			if r.Name == res && slices.Equal(r.InSync, nodes) && r.Holder != "" {
				return nil
			}
		}
		return fmt.Errorf("%+v", cl.Resources)
	})
}

// target is the volume as the node exports it.
func (n *node) target(res string) check.Target {
	u := nbdclient.URI{Network: "unix", Address: filepath.Join(n.run(), "nbd", res+".sock"), Export: res + "/0"}
	return func(ctx context.Context) (check.Device, error) { return nbdclient.Dial(ctx, u, 30*time.Second) }
}

// writes tries to write to the volume on that node.
func (n *node) writes(res string) error {
	ctx, cancel := context.WithTimeout(n.c.t.Context(), 2*time.Second)
	defer cancel()
	u := nbdclient.URI{Network: "unix", Address: filepath.Join(n.run(), "nbd", res+".sock"), Export: res + "/0"}
	d, err := nbdclient.Dial(ctx, u, 10*time.Second)
	if err != nil {
		return err
	}
	defer d.Close()
	return d.WriteAt(make([]byte, 4096), volume-4096, true)
}

// load writes to the volume through whichever node is Primary.
func (c *cluster) load(res string) *check.Workload {
	c.t.Helper()
	w, err := check.Start(c.t.Context(), check.Options{Targets: []check.Target{c.n(1).target(res), c.n(2).target(res)}, Size: volume - 1<<20, History: c.history})
	if err != nil {
		c.t.Fatal(err)
	}
	c.t.Cleanup(func() { w.Stop() })
	return w
}

// judge stops a workload and looks whether everything that was acknowledged is on both disks.
func (c *cluster) judge(w *check.Workload, res string) {
	c.t.Helper()
	w.Stop()
	c.inSync(res, "n1", "n2")
	for _, n := range c.data() {
		n.cli("down", res)
	}
	var replicas []check.Replica
	for _, n := range c.data() {
		f, err := os.Open(filepath.Join(n.dir, res+".img"))
		if err != nil {
			c.t.Fatal(err)
		}
		defer f.Close()
		replicas = append(replicas, check.Replica{Name: n.name, ReaderAt: f})
	}
	v, err := check.Verify(c.t.Context(), c.history, replicas, check.Rules{Identical: true})
	if err != nil {
		c.t.Fatal(err)
	}
	if err := v.Err(); err != nil {
		c.t.Error(err)
	}
	c.t.Log(v)
}

// state is what everybody says, for a test that failed.
func (c *cluster) state() string {
	var b strings.Builder
	for _, n := range c.nodes {
		for _, args := range [][]string{{"status"}, {"explain", c.resources[0]}, {"history", c.resources[0]}} {
			out, err := n.try(args...)
			fmt.Fprintf(&b, "--- %s %v %v\n%s", n.name, args, err, out)
		}
		data, err := os.ReadFile(n.log.Name())
		if err == nil {
			lines := bytes.Split(data, []byte("\n"))
			if len(lines) > 60 {
				lines = lines[len(lines)-60:]
			}
			fmt.Fprintf(&b, "--- log of %s\n%s\n", n.name, bytes.Join(lines, []byte("\n")))
		}
	}
	return b.String()
}
