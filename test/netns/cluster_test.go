package netns

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hawser-ha/hawser/replicator/control"
	"github.com/hawser-ha/hawser/test/check"
)

const (
	resource   = "r0"
	stateLimit = 30 * time.Second // for a change of state that should take a moment
	syncLimit  = 30 * time.Second // for a resync
)

// setup says what cluster is wanted. Two nodes n1 and n2 hold the data, n3 is a witness.
type setup struct {
	size     int64            // of the volume; 0: 64 MiB
	sizes    map[string]int64 // of a node's disk, where it differs
	net      map[string]string
	disk     map[string]string
	options  map[string]string
	handlers map[string]string
	fault    []string              // nodes whose disk is a faultfs
	diskless string                // a node that has none
	fresh    bool                  // only create-md and up: the test brings up the rest
	device   string                // of the volume; "": none
	mounts   bool                  // each node has a mount namespace of its own, with its own /dev/hawser
	services func(*cluster) string // what the resource file says of services
}

// cluster is three nodes with resource r0.
type cluster struct {
	t          testing.TB
	net        *network
	dir        string
	o          setup
	n1, n2, n3 *node
	nodes      []*node
	history    *check.History
	opTimeout  time.Duration // of a request of the checker; then it gives its connection up
}

// start makes a cluster, connected and in sync with both nodes Secondary, and removes it at the end of the test.
func start(t *testing.T, o setup) *cluster {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("network namespaces need root")
	}
	t.Parallel()
	slots <- struct{}{}
	t.Cleanup(func() { <-slots })
	if o.size == 0 {
		o.size = 64 << 20
	}
	c := &cluster{t: t, o: o, history: check.NewHistory(nil), opTimeout: 30 * time.Second}
	names := []string{"n1", "n2", "n3"}
	c.net = newNetwork(t, names)
	dir, err := os.MkdirTemp("/var/tmp", c.net.prefix+"-")
	if err != nil {
		t.Fatal(err)
	}
	c.dir = dir
	t.Cleanup(func() {
		if *keep {
			t.Logf("kept: %s", dir)
			return
		}
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	for _, name := range names {
		c.nodes = append(c.nodes, newNode(c, name))
	}
	c.n1, c.n2, c.n3 = c.nodes[0], c.nodes[1], c.nodes[2]
	t.Cleanup(c.audit)
	for _, name := range o.fault {
		c.node(name).startFaults()
	}
	c.define()
	for _, n := range c.nodes {
		if o.mounts {
			n.ownMounts()
		}
		n.startAgent()
	}
	for _, n := range c.data() {
		if !n.isDiskless() {
			n.cli("create-md", "--force", resource)
		}
		n.cli("up", resource)
	}
	if o.fresh {
		return c
	}
	c.connected()
	if o.diskless == "" {
		c.n1.cli("new-current-uuid", "--clear-bitmap", "--force", resource)
		c.inSync()
	}
	return c
}

func (c *cluster) data() []*node { return c.nodes[:2] }

func (c *cluster) node(name string) *node {
	for _, n := range c.nodes {
		if n.name == name {
			return n
		}
	}
	c.t.Fatalf("no node %s", name)
	return nil
}

// define writes the resource file of every node.
func (c *cluster) define() {
	c.t.Helper()
	for _, n := range c.nodes {
		path := filepath.Join(n.dir, "resources.d", resource+".yaml")
		if err := os.WriteFile(path, []byte(c.definition()), 0o600); err != nil {
			c.t.Fatal(err)
		}
	}
}

func (c *cluster) definition() string {
	var b strings.Builder
	fmt.Fprintf(&b, "resource: %s\nnodes:\n", resource)
	for _, n := range c.data() {
		fmt.Fprintf(&b, "  - name: %s\n    address: %s:7789\n", n.name, c.net.addr(n.name))
		if n.isDiskless() {
			b.WriteString("    diskless: true\n")
			continue
		}
		fmt.Fprintf(&b, "    volumes:\n      - volume: 0\n        disk: %s\n", n.disk)
		if s := c.o.sizes[n.name]; s != 0 {
			fmt.Fprintf(&b, "        size: %dK\n", s>>10)
		}
	}
	fmt.Fprintf(&b, "volumes:\n  - volume: 0\n    device: %s\n", cmp.Or(c.o.device, "none"))
	fmt.Fprintf(&b, "    size: %dK\n", c.o.size>>10)
	net := map[string]string{"protocol": "C", "verify-alg": "crc32c", "connect-int": "2", "ping-int": "2", "timeout": "1500ms", "ko-count": "3"}
	maps.Copy(net, c.o.net)
	for _, s := range []struct {
		name string
		opts map[string]string
	}{{"net", net}, {"disk", c.o.disk}, {"options", c.o.options}, {"handlers", c.o.handlers}} {
		if len(s.opts) == 0 {
			continue
		}
		fmt.Fprintf(&b, "%s:\n", s.name)
		for _, k := range slices.Sorted(maps.Keys(s.opts)) {
			fmt.Fprintf(&b, "  %s: %s\n", k, s.opts[k])
		}
	}
	if c.o.services != nil {
		b.WriteString(c.o.services(c))
	}
	return b.String()
}

// until waits for a condition.
func (c *cluster) until(what string, limit time.Duration, ok func() bool) {
	c.t.Helper()
	if !c.within(limit, ok) {
		c.t.Fatalf("%s: not within %s\n%s", what, limit, c.state())
	}
}

// within polls a condition.
func (c *cluster) within(limit time.Duration, ok func() bool) bool {
	deadline := time.Now().Add(limit)
	for !ok() {
		if time.Now().After(deadline) || c.t.Context().Err() != nil {
			return false
		}
		<-time.After(5 * time.Millisecond)
	}
	return true
}

// state is what every node says, for messages.
func (c *cluster) state() string {
	var b strings.Builder
	for _, n := range c.data() {
		st, err := n.status()
		if err != nil {
			fmt.Fprintf(&b, "%s: %v\n", n.name, err)
			continue
		}
		fmt.Fprintf(&b, "%s: %s", n.name, st.Role)
		if len(st.Suspended) > 0 {
			fmt.Fprintf(&b, " suspended %v", st.Suspended)
		}
		for _, v := range st.Volumes {
			fmt.Fprintf(&b, ", disk %s %s %s", v.DiskState, v.GI.Current, v.LastError)
		}
		for _, p := range st.Peers {
			fmt.Fprintf(&b, "; to %s: %s %s %s", p.Name, p.Connection, p.Role, p.LastError)
			for _, v := range p.Volumes {
				fmt.Fprintf(&b, " %s %s out-of-sync %d", v.Replication, v.DiskState, v.OutOfSync)
			}
		}
		b.WriteString("\n")
	}
	return b.String()
}

// connected waits until the data nodes are.
func (c *cluster) connected() {
	c.t.Helper()
	for _, n := range c.data() {
		n.wait("connected", stateLimit, func(st *control.Status) bool { return st.Peers[0].Connection == "Connected" })
	}
}

// synced says whether a node sees nothing left to do.
func synced(st *control.Status) bool {
	p := st.Peers[0]
	return st.Volumes[0].DiskState == "UpToDate" && p.Connection == "Connected" && p.Volumes[0].Replication == "Established" &&
		p.Volumes[0].DiskState == "UpToDate" && p.Volumes[0].OutOfSync == 0
}

// inSync waits until both nodes see both disks UpToDate.
func (c *cluster) inSync() {
	c.t.Helper()
	for _, n := range c.data() {
		n.wait("in sync", syncLimit, synced)
	}
}

// load starts a workload on the nodes, tried in that order.
func (c *cluster) load(o check.Options, nodes ...*node) *check.Workload {
	c.t.Helper()
	o.History, o.Size = c.history, c.size()
	if o.Seed == 0 {
		o.Seed = *seed
	}
	for _, n := range nodes {
		o.Targets = append(o.Targets, n.target())
	}
	w, err := check.Start(c.t.Context(), o)
	if err != nil {
		c.t.Fatal(err)
	}
	c.t.Cleanup(func() { w.Stop() })
	return w
}

// size of the volume as the nodes agreed on it.
func (c *cluster) size() int64 {
	c.t.Helper()
	for _, n := range c.data() {
		if st, err := n.status(); err == nil && st.Volumes[0].Size > 0 {
			return st.Volumes[0].Size
		}
	}
	c.t.Fatal("no node knows the size of the volume")
	return 0
}

// acks waits for n more successful writes.
func (c *cluster) acks(w *check.Workload, n int64) {
	c.t.Helper()
	goal := w.Stats().Writes + n
	c.until(fmt.Sprintf("%d more acknowledged writes (%+v)", n, w.Stats()), 60*time.Second, func() bool { return w.Stats().Writes >= goal })
}

// quiet stops a workload of which no request may have failed and no session broken.
func (c *cluster) quiet(w *check.Workload) check.Stats {
	c.t.Helper()
	st := w.Stop()
	if st.Failures() > 0 || st.Broken > 0 {
		c.t.Errorf("the application saw it: %+v, first %v", st, st.FirstError)
	}
	return st
}

// verdict brings the resource down on both nodes, reads both disks and judges.
func (c *cluster) verdict(rules check.Rules) *check.Verdict {
	c.t.Helper()
	size := c.size()
	for _, n := range c.data() {
		if _, err := n.try("secondary", resource); err != nil {
			n.cli("secondary", "--force", resource)
		}
	}
	for _, n := range c.data() {
		n.cli("down", resource)
	}
	rules.Size = size
	return c.judge(rules, c.data()...)
}

// judge reads the disks of nodes that are down, or quiet.
func (c *cluster) judge(rules check.Rules, nodes ...*node) *check.Verdict {
	c.t.Helper()
	var replicas []check.Replica
	for _, n := range nodes {
		f, err := os.Open(n.backing)
		if err != nil {
			c.t.Fatal(err)
		}
		defer f.Close()
		replicas = append(replicas, check.Replica{Name: n.name, ReaderAt: f})
	}
	ctx, cancel := context.WithTimeout(c.t.Context(), time.Minute)
	defer cancel()
	v, err := check.Verify(ctx, c.history, replicas, rules)
	if err != nil {
		c.t.Fatal(err)
	}
	c.t.Log(v)
	if err := v.Err(); err != nil {
		c.t.Error(err)
	}
	if v.Acked == 0 {
		c.t.Error("the verdict is about nothing")
	}
	return v
}

// identical is the verdict of nodes that ended in sync.
func (c *cluster) identical() *check.Verdict {
	c.t.Helper()
	c.inSync()
	return c.verdict(check.Rules{Identical: true})
}

// audit looks for what no test may leave behind, and ends the nodes.
func (c *cluster) audit() {
	failed := c.t.Failed()
	for _, n := range c.nodes {
		n.end()
	}
	for _, n := range c.nodes {
		data, err := os.ReadFile(filepath.Join(n.dir, "log"))
		if err != nil {
			c.t.Error(err)
			continue
		}
		lines := strings.Split(strings.TrimSpace(string(data)), "\n")
		for i, l := range lines {
			if strings.Contains(l, "panic:") || strings.Contains(l, "DATA RACE") || strings.Contains(l, "fatal error:") {
				c.t.Errorf("%s:\n%s", n.name, strings.Join(lines[i:min(i+40, len(lines))], "\n"))
				break
			}
		}
		if failed {
			c.t.Logf("log of %s, its end:\n%s", n.name, strings.Join(lines[max(0, len(lines)-40):], "\n"))
		}
	}
}

// bounded fails when do takes longer than limit.
func (c *cluster) bounded(what string, limit time.Duration, do func()) {
	c.t.Helper()
	began := time.Now()
	do()
	if d := time.Since(began); d > limit {
		c.t.Errorf("%s took %s, more than %s", what, d, limit)
	}
}

// lastSync is the last resync that a node saw the end of.
func (n *node) lastSync() *control.Progress {
	n.c.t.Helper()
	p := n.now().Peers[0].Volumes[0].LastSync
	if p == nil {
		n.c.t.Fatalf("%s saw no resync", n.name)
	}
	return p
}

// written is how many different blocks were written since the operation from.
func (c *cluster) written(from int) int64 {
	blocks := map[int64]bool{}
	for _, o := range c.history.Ops()[from:] {
		if o.Kind == check.OpWrite {
			blocks[o.Block] = true
		}
	}
	return int64(len(blocks))
}
