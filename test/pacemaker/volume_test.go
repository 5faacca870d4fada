package pacemaker

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hawser-ha/hawser/replicator/control"
	"github.com/hawser-ha/hawser/test/check"
	"github.com/hawser-ha/hawser/test/check/nbdclient"
)

const (
	volumeSize = 32 << 20
	opTimeout  = 30 * time.Second // of a request of the workload
	soon       = 60 * time.Second // for what should take some seconds
)

// volume is resource r0 in a lab.
type volume struct {
	*lab
	nodes   []string // that hold it
	history *check.History
	load    *check.Workload
	stop    func()     // of the audit
	mu      sync.Mutex // guards what follows
	twice   string     // when two nodes were Primary at once
	fenced  map[string]int
}

// setup is what a test wants to be different.
type setup struct {
	nodes   int             // of the cluster; 0: 2
	holders int             // that hold the volume; 0: all
	before  func(v *volume) // what the nodes need before the configuration is loaded
	device  string          // "": none, only NBD
	format  string          // of the configuration; "": crm
	extra   []string
	binds   []string                   // more SRC:DST in each node
	boot    string                     // program that each node runs when it boots
	edit    func(config string) string // of what is printed
	net     map[string]string          // options
	more    string                     // at the end of the resource file
}

// start makes a cluster with r0, loads its configuration as it is printed, and waits until it is promoted.
func start(t *testing.T, s setup) *volume {
	t.Helper()
	if s.nodes == 0 {
		s.nodes = 2
	}
	if s.device == "" {
		s.device = "none"
	}
	l := newLab(t, s.nodes, s.binds, s.boot)
	v := &volume{lab: l, nodes: l.nodes, history: check.NewHistory(nil), fenced: map[string]int{}}
	if s.holders > 0 {
		v.nodes = l.nodes[:s.holders]
	}
	v.define(s)
	if s.before != nil {
		s.before(v)
	}
	for _, n := range v.nodes {
		l.on(n, "sh", "-c", `hawser agent >/var/log/first-agent.log 2>&1 & pid=$!
			until hawser version --json | grep -q agent; do sleep 0.1; done
			hawser create-md --force r0 && kill $pid; wait $pid; :`)
	}
	v.configure(s)
	l.until("the volume is up on every node", soon, func() bool {
		return !slices.ContainsFunc(v.nodes, func(n string) bool {
			st, err := v.status(n)
			return err != nil || slices.ContainsFunc(st.Peers, func(p control.PeerStatus) bool { return p.Connection != "Connected" })
		})
	})
	if v.primary() != "" {
		t.Fatal("a volume that was never in sync was promoted")
	}
	l.on(v.nodes[0], "hawser", "new-current-uuid", "--clear-bitmap", "--force", "r0")
	v.settled()
	v.watch()
	return v
}

func (v *volume) define(s setup) {
	v.t.Helper()
	var b strings.Builder
	b.WriteString("resource: r0\nnodes:\n")
	for i, n := range v.nodes {
		fmt.Fprintf(&b, "  - name: %s\n    address: %s.%d:7789\n    volumes: [{volume: 0, disk: /data/%s.img}]\n", n, v.net, i+1, n)
	}
	fmt.Fprintf(&b, "volumes:\n  - {volume: 0, device: %s, size: %dK}\n", s.device, volumeSize>>10)
	b.WriteString("net: {protocol: C, connect-int: 2, ping-int: 2, timeout: 1500ms, fencing: resource-and-stonith")
	for k, x := range s.net {
		fmt.Fprintf(&b, ", %s: %s", k, x)
	}
	b.WriteString("}\nhandlers: {fence-peer: hawser pacemaker fence-peer, unfence-peer: hawser pacemaker unfence-peer}\n" + s.more)
	if err := os.WriteFile(filepath.Join(v.dir, "res", "r0.yaml"), []byte(b.String()), 0o600); err != nil {
		v.t.Fatal(err)
	}
}

// fences are the flags for the power switches.
func (v *volume) fences() (args []string) {
	for i, n := range v.lab.nodes {
		args = append(args, "--fence", fmt.Sprintf("%s=fence_ipmilan,ip=%s.20%d,username=admin,password=secret,lanplus=1,cipher=3,power_wait=0", n, v.net, i+1))
	}
	return args
}

// configure loads what hawser pacemaker config prints.
func (v *volume) configure(s setup) {
	v.t.Helper()
	if s.format == "" {
		s.format = "crm"
	}
	args := append([]string{"hawser", "pacemaker", "config", "r0", "--format", s.format, "--fence-delay", "2s"}, v.fences()...)
	text := v.on("n1", append(args, s.extra...)...)
	if s.edit != nil {
		text = s.edit(text)
	}
	file := filepath.Join(v.dir, v.name, "share", "r0."+s.format) // /lab in every node
	if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
		v.t.Fatal(err)
	}
	load := map[string][]string{
		"crm": {"crm", "configure", "load", "update", "/lab/r0.crm"},
		"pcs": {"sh", "/lab/r0.pcs"},
		"cib": {"cibadmin", "-M", "-c", "-o", "configuration", "-x", "/lab/r0.cib"},
	}[s.format]
	v.t.Logf("%s", v.on("n1", load...))
	v.on("n1", "crm_verify", "--live-check")
}

// direct asks the replicator of a node.
func (v *volume) direct(node string, ask func(ctx context.Context, c *control.Client) error) error {
	root, err := v.root(node)
	if err != nil {
		return err
	}
	c := control.NewClient(root+"/run/hawser/replicator/r0.sock", "replicator of "+node)
	defer c.Close()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(v.t.Context()), 2*time.Second)
	defer cancel()
	return ask(ctx, c)
}

func (v *volume) status(node string) (st *control.Status, err error) {
	err = v.direct(node, func(ctx context.Context, c *control.Client) error {
		st, err = c.Status(ctx)
		return err
	})
	return st, err
}

// primary is the node that says so itself, "" for none.
func (v *volume) primary() string {
	for _, n := range v.nodes {
		if st, err := v.status(n); err == nil && st.Role == "Primary" {
			return n
		}
	}
	return ""
}

// other is a node that is not n.
func (v *volume) other(n string) string {
	for _, x := range v.nodes {
		if x != n {
			return x
		}
	}
	return ""
}

// isSettled tells whether one node is Primary, and all are connected and UpToDate.
func (v *volume) isSettled() bool {
	primaries := 0
	for _, n := range v.nodes {
		st, err := v.status(n)
		if err != nil || st.Volumes[0].DiskState != "UpToDate" || len(st.Suspended) > 0 {
			return false
		}
		for _, p := range st.Peers {
			if p.Connection != "Connected" || len(p.Volumes) == 0 || p.Volumes[0].DiskState != "UpToDate" || p.Volumes[0].Replication != "Established" {
				return false
			}
		}
		if st.Role == "Primary" {
			primaries++
		}
	}
	return primaries == 1
}

// settled waits for that, and for Pacemaker to have nothing left to do, and gives the Primary.
func (v *volume) settled() string {
	v.t.Helper()
	v.until("one Primary, all UpToDate", 2*soon, v.isSettled)
	p := v.primary()
	v.until("Pacemaker knows who is promoted, and is idle", soon, func() bool {
		return slices.Equal(v.promoted(p, "r0-clone"), []string{p}) && v.idle(p)
	})
	return p
}

// idle tells whether the cluster has no action under way.
func (v *volume) idle(node string) bool {
	out, err := v.try(node, "sh", "-c", `crmadmin -q -S "$(crmadmin -q -D)"`)
	return err == nil && strings.TrimSpace(out) == "S_IDLE"
}

// promoted lists where a node believes a clone to be promoted.
func (v *volume) promoted(node, clone string) (list []string) {
	out, err := v.try(node, "crm_mon", "-1", "-r", "--output-as=xml")
	if err != nil {
		return nil
	}
	var in, role string
	elements(out, func(name string, attr map[string]string) {
		switch {
		case name == "clone":
			in = attr["id"]
		case name == "node_attributes" || name == "node_history": // the resources end here
			in = ""
		case name == "resource":
			role = attr["role"]
		case name == "node" && in == clone && role == "Promoted":
			list = append(list, attr["name"])
		}
	})
	return list
}

// target is the volume as a node serves it, whichever boot of it.
func (v *volume) target(node string) check.Target {
	return func(ctx context.Context) (check.Device, error) {
		root, err := v.root(node)
		if err != nil {
			return nil, err
		}
		return nbdclient.Dial(ctx, nbdclient.URI{Network: "unix", Address: root + "/run/hawser/nbd/r0.sock", Export: "r0/0"}, opTimeout)
	}
}

// write starts the workload on whoever is Primary.
func (v *volume) write() {
	v.t.Helper()
	st, err := v.status(v.primary())
	if err != nil {
		v.t.Fatal(err)
	}
	o := check.Options{History: v.history, Size: st.Volumes[0].Size, Seed: 1, Rate: 400}
	for _, n := range v.nodes {
		o.Targets = append(o.Targets, v.target(n))
	}
	if v.load, err = check.Start(v.t.Context(), o); err != nil {
		v.t.Fatal(err)
	}
	v.t.Cleanup(func() { v.load.Stop() })
	v.acks(100)
}

// acks waits for n more acknowledged writes.
func (v *volume) acks(n int64) {
	v.t.Helper()
	goal := v.load.Stats().Writes + n
	v.until(fmt.Sprintf("%d more acknowledged writes (%+v)", n, v.load.Stats()), soon, func() bool { return v.load.Stats().Writes >= goal })
}

// undisturbed runs do and asks that the workload noticed nothing.
func (v *volume) undisturbed(what string, do func()) {
	v.t.Helper()
	before := v.load.Stats()
	do()
	v.acks(50)
	after := v.load.Stats()
	if after.Failures() != before.Failures() || after.Broken != before.Broken {
		v.t.Errorf("%s: the application saw it: %d failed requests, %d lost sessions, first %v", what,
			after.Failures()-before.Failures(), after.Broken-before.Broken, after.FirstError)
	}
}

// watch asks every node for its role, all the time. Two Primaries are two answers with an answer of the first between.
func (v *volume) watch() {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		tick := time.NewTicker(100 * time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
			case <-ctx.Done():
				return
			}
			is := func(n string) bool { st, err := v.status(n); return err == nil && st.Role == "Primary" }
			for i, a := range v.nodes {
				for _, b := range v.nodes[i+1:] {
					if is(a) && is(b) && is(a) {
						v.mu.Lock()
						v.twice = fmt.Sprintf("%s and %s were both Primary at %s", a, b, time.Now().Format(time.TimeOnly))
						v.mu.Unlock()
					}
				}
			}
		}
	}()
	v.stop = func() { cancel(); <-done }
	v.t.Cleanup(v.stop)
}

// expect says that a node was fenced, and that it was meant to be.
func (v *volume) expect(node string) { v.fenced[node]++ }

// account compares the fencings with those that were meant to be.
func (v *volume) account() {
	v.t.Helper()
	for _, n := range v.lab.nodes {
		if got := v.fencings(n); got != v.fenced[n] {
			v.t.Errorf("%s was fenced %d times, and had to be %d times", n, got, v.fenced[n])
		}
		if v.switched(n) != (v.fenced[n] > 0) {
			v.t.Errorf("%s had to be fenced %d times, and its power switch was used: %v", n, v.fenced[n], v.switched(n))
		}
	}
}

// bans lists our constraints in the configuration, as a node has it.
func (v *volume) bans(node string) []string {
	v.t.Helper()
	var list []string
	for part := range strings.SplitSeq(v.on(node, "cibadmin", "-Q", "-o", "constraints"), `"`) {
		if strings.HasPrefix(part, "hawser-fence-") && !strings.Contains(part, "-rule-by-") && !strings.HasSuffix(part, "-expr") {
			list = append(list, part)
		}
	}
	return list
}

// finish stops everything in good order and judges: no acknowledged write is lost, all copies are equal, there were never
// two Primaries, nobody was fenced without need, and nothing is left behind.
func (v *volume) finish() {
	v.t.Helper()
	st, err := v.status(v.settled())
	if err != nil {
		v.t.Fatal(err)
	}
	size := st.Volumes[0].Size
	v.load.Stop()
	v.stop()
	if v.twice != "" {
		v.t.Error(v.twice)
	}
	v.account()
	v.until("no constraint is left, and no record of one", soon, func() bool {
		return len(v.bans(v.nodes[0])) == 0 && !slices.ContainsFunc(v.nodes, func(n string) bool {
			out, err := v.try(n, "sh", "-c", "ls /var/lib/hawser/pacemaker/*.json 2>/dev/null || :")
			return err != nil || strings.TrimSpace(out) != ""
		})
	})
	v.on(v.nodes[0], "crm_resource", "--resource", "r0-clone", "--meta", "--set-parameter", "target-role", "--parameter-value", "Stopped")
	v.until("the volume is down everywhere", soon, func() bool {
		return !slices.ContainsFunc(v.nodes, func(n string) bool {
			out, err := v.try(n, "sh", "-c", "hawser pacemaker state r0 2>&1; echo $?")
			return err != nil || !strings.HasSuffix(strings.TrimSpace(out), "4")
		})
	})
	for _, n := range v.nodes {
		left := v.on(n, "sh", "-c", "find /run/hawser/replicator /var/lib/hawser/pacemaker ! -type d 2>/dev/null | grep -v -e lock$ -e pid$ -e event$ || :")
		if strings.TrimSpace(left) != "" {
			v.t.Errorf("%s: left behind: %s", n, left)
		}
	}
	v.must("cluster", append([]string{"kill"}, v.lab.nodes...)...)
	var replicas []check.Replica
	for _, n := range v.nodes {
		f, err := os.Open(filepath.Join(v.dir, "data", n+".img"))
		if err != nil {
			v.t.Fatal(err)
		}
		defer f.Close()
		replicas = append(replicas, check.Replica{Name: n, ReaderAt: f})
	}
	verdict, err := check.Verify(context.Background(), v.history, replicas, check.Rules{Size: size, Identical: true})
	if err != nil {
		v.t.Fatal(err)
	}
	v.t.Logf("%s", verdict)
	if err := verdict.Err(); err != nil {
		v.t.Error(err)
	}
	if verdict.Acked == 0 {
		v.t.Error("the verdict is about nothing")
	}
}

// statefulIs reads the state of ocf:pacemaker:Stateful, below the root of a node.
func statefulIs(root string, states ...string) bool {
	data, err := os.ReadFile(root + "/run/Stateful-floor.state")
	return err == nil && slices.Contains(states, strings.ToLower(strings.TrimSpace(string(data))))
}
