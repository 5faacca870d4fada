package pacemaker

import (
	"bytes"
	"context"
	"encoding/xml"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

var (
	keep   = flag.Bool("keep", false, "keep folders and logs")
	hawser string // the program, built once
)

// long asks for everything, not only what runs always.
var long = os.Getenv("HAWSER_TEST_PACEMAKER") == "long"

func TestMain(m *testing.M) {
	flag.Parse()
	os.Exit(run(m))
}

func run(m *testing.M) int {
	if os.Geteuid() != 0 {
		return m.Run()
	}
	dir, err := os.MkdirTemp("/var/tmp", "hawser-pm-bin-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	hawser = filepath.Join(dir, "hawser")
	cmd := exec.CommandContext(context.Background(), "go", "build", "-o", hawser, "./cmd/hawser")
	cmd.Dir = "../.."
	if out, err := cmd.CombinedOutput(); err != nil {
		fmt.Fprintf(os.Stderr, "build hawser: %v\n%s", err, out)
		return 1
	}
	return m.Run()
}

// labs counts those of this process: each has a name and a network of its own.
var labs atomic.Int32

const commandLimit = 3 * time.Minute

// lab is a cluster of Pacemaker nodes.
type lab struct {
	t     testing.TB
	dir   string // folder of everything, on a real disk
	env   []string
	name  string
	net   string // first three bytes of the addresses
	nodes []string
}

// newLab starts n nodes with Pacemaker and their power switches. binds are more SRC:DST that are mounted in each node, boot
// is a program that each runs when it boots.
func newLab(t testing.TB, n int, binds []string, boot string) *lab {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("namespaces need root")
	}
	for _, p := range []string{"pacemakerd", "corosync", "crm", "pcs", "fence_ipmilan", "ipmi_sim", "nft", "xmllint"} {
		if _, err := exec.LookPath(p); err != nil {
			t.Fatalf("%s is not installed: make deps", p)
		}
	}
	dir, err := os.MkdirTemp("/var/tmp", "hawser-pm-")
	if err != nil {
		t.Fatal(err)
	}
	ocf, err := filepath.Abs("../../ocf/hawser")
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range []string{"data", "res"} {
		if err := os.Mkdir(filepath.Join(dir, d), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	id := labs.Add(1)
	// Interface and namespace names carry the name: several processes of this test do not meet.
	l := &lab{t: t, dir: dir, name: fmt.Sprintf("hp%d%d", os.Getpid()%10000, id), net: fmt.Sprintf("10.%d.%d", 80+id, os.Getpid()%250)}
	l.env = append(os.Environ(), "LAB="+l.name, "LAB_DIR="+dir, "LAB_NET="+l.net, "LAB_TOKEN=1000", "LAB_POST=6", "LAB_OCF="+ocf+":hawser",
		"LAB_BOOT="+boot, "LAB_BIND="+strings.Join(append([]string{hawser + ":/usr/local/sbin/hawser", dir + "/res:/etc/hawser/resources.d", dir + "/data:/data"}, binds...), " "))
	for i := range n {
		l.nodes = append(l.nodes, fmt.Sprintf("n%d", i+1))
	}
	t.Cleanup(l.remove)
	l.must("cluster", "up", fmt.Sprint(n))
	l.must("ipmi", "up")
	return l
}

func (l *lab) remove() {
	if l.t.Failed() {
		l.t.Logf("what the nodes logged:\n%s", l.logs())
	}
	if _, err := l.script("cluster", "down"); err != nil {
		l.t.Error(err)
	}
	if out, err := exec.CommandContext(context.Background(), "ip", "netns").Output(); err != nil || bytes.Contains(out, []byte(l.name+"-")) {
		l.t.Errorf("namespaces are left: %v %s", err, out)
	}
	if *keep {
		l.t.Logf("kept: %s", l.dir)
		return
	}
	if err := os.RemoveAll(l.dir); err != nil {
		l.t.Error(err)
	}
}

// logs are the last words of every node's daemons.
func (l *lab) logs() string {
	var b strings.Builder
	for _, n := range l.nodes {
		for _, f := range []string{"pacemaker/pacemaker.log", "hawser-agent.log"} {
			data, err := os.ReadFile(filepath.Join(l.dir, l.name, "nodes", n, "log", f))
			if err != nil {
				continue
			}
			lines := strings.Split(strings.TrimSpace(string(data)), "\n")
			fmt.Fprintf(&b, "--- %s %s\n%s\n", n, f, strings.Join(lines[max(0, len(lines)-60):], "\n"))
		}
	}
	return b.String()
}

// script runs one of the lab's scripts.
func (l *lab) script(name string, args ...string) (string, error) {
	return l.feed("", name, args...)
}

// feed is script with something on stdin.
func (l *lab) feed(stdin, name string, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(l.t.Context()), commandLimit)
	defer cancel()
	cmd := exec.CommandContext(ctx, "./lab/"+name, args...)
	cmd.Env = l.env
	cmd.Stdin = strings.NewReader(stdin)
	cmd.WaitDelay = time.Second
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil {
		return out.String(), fmt.Errorf("%s %s: %w: %s", name, strings.Join(args, " "), err, strings.TrimSpace(errs.String()))
	}
	return out.String(), nil
}

// must is script that has to work.
func (l *lab) must(name string, args ...string) string {
	l.t.Helper()
	out, err := l.script(name, args...)
	if err != nil {
		l.t.Fatalf("%v\n%s", err, out)
	}
	return out
}

// try runs a command in a node.
func (l *lab) try(node string, command ...string) (string, error) {
	return l.script("cluster", append([]string{"exec", node, "--"}, command...)...)
}

// on runs a command in a node, which has to work.
func (l *lab) on(node string, command ...string) string {
	l.t.Helper()
	out, err := l.try(node, command...)
	if err != nil {
		l.t.Fatalf("%v\n%s", err, out)
	}
	return out
}

// alive lists the nodes that have power.
func (l *lab) alive() (list []string) {
	for _, n := range l.nodes {
		if _, err := l.root(n); err == nil {
			list = append(list, n)
		}
	}
	return list
}

// root is the file system of a node, seen from here; it is another one after each boot.
func (l *lab) root(node string) (string, error) {
	data, err := os.ReadFile(filepath.Join(l.dir, l.name, "nodes", node, "pid"))
	if err != nil {
		return "", err
	}
	pid, _, _ := strings.Cut(string(data), " ")
	root := "/proc/" + pid + "/root"
	if _, err := os.Stat(root + "/run"); err != nil {
		return "", fmt.Errorf("%s is off: %w", node, err)
	}
	return root, nil
}

// fencings counts how often a node was fenced, by the history that the cluster keeps, which begins with the oldest node
// that is up. What the power switches were told would count repeated packets twice.
func (l *lab) fencings(node string) int {
	l.t.Helper()
	for _, n := range l.alive() {
		out, err := l.try(n, "crm_mon", "-1", "-m", "3", "--output-as=xml")
		if err != nil {
			continue
		}
		count := 0
		elements(out, func(name string, attr map[string]string) {
			if name == "fence_event" && attr["target"] == node && attr["status"] == "success" {
				count++
			}
		})
		return count
	}
	l.t.Fatal("nobody tells about fencings")
	return 0
}

// elements calls f for each element of an XML text, as far as it goes.
func elements(text string, f func(name string, attr map[string]string)) {
	d := xml.NewDecoder(strings.NewReader(text))
	for {
		tok, err := d.Token()
		if err != nil {
			return
		}
		e, ok := tok.(xml.StartElement)
		if !ok {
			continue
		}
		attr := map[string]string{}
		for _, a := range e.Attr {
			attr[a.Name.Local] = a.Value
		}
		f(e.Name.Local, attr)
	}
}

// switched tells whether the power switch of a node was ever used.
func (l *lab) switched(node string) bool {
	data, err := os.ReadFile(filepath.Join(l.dir, l.name, "bmc", node, "hook.log"))
	return err == nil && bytes.Contains(data, []byte(" set "))
}

// until polls a condition.
func (l *lab) until(what string, limit time.Duration, ok func() bool) time.Duration {
	l.t.Helper()
	began := time.Now()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for !ok() {
		select {
		case <-tick.C:
		case <-l.t.Context().Done():
			l.t.Fatalf("%s: the test ends", what)
		}
		if time.Since(began) > limit {
			l.t.Fatalf("%s: not within %s\n%s", what, limit, l.picture())
		}
	}
	return time.Since(began)
}

// picture is the cluster as each node sees it.
func (l *lab) picture() string {
	var b strings.Builder
	for _, n := range l.alive() {
		out, err := l.try(n, "sh", "-c", "timeout 10 crmadmin -q -S $(timeout 10 crmadmin -q -D); timeout 10 crm_mon -1rAf -m 3; timeout 10 hawser status; timeout 5 cibadmin -Q -o constraints")
		fmt.Fprintf(&b, "--- %s %v\n%s\n", n, err, out)
	}
	return b.String()
}
