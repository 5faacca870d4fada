package netns

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync/atomic"
	"testing"
)

var networks atomic.Int64 // made so far by this process

// network is a switch and one namespace for each node.
type network struct {
	t      testing.TB
	prefix string
	nodes  []string
}

// sh runs a command line of words without spaces.
func sh(line string) error {
	words := strings.Fields(line)
	out, err := exec.Command(words[0], words[1:]...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("%s: %w: %s", line, err, strings.TrimSpace(string(out)))
	}
	return nil
}

func (n *network) must(format string, args ...any) {
	n.t.Helper()
	if err := sh(fmt.Sprintf(format, args...)); err != nil {
		n.t.Fatal(err)
	}
}

// newNetwork makes the namespaces and removes them at the end of the test.
func newNetwork(t testing.TB, nodes []string) *network {
	t.Helper()
	for _, tool := range []string{"ip", "tc", "nft", "nsenter"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Fatalf("install %s (packages iproute2, nftables, util-linux; make deps)", tool)
		}
	}
	n := &network{t: t, prefix: fmt.Sprintf("hawser-%d-%d", os.Getpid(), networks.Add(1)), nodes: nodes}
	if err := sh("ip netns add " + n.ns("sw")); err != nil {
		t.Skipf("this machine gives no network namespaces: %v", err)
	}
	t.Cleanup(func() { _ = sh("ip netns del " + n.ns("sw")) }) // the interfaces go with it
	sw := n.ns("sw")
	n.must("ip -n %s link add br0 type bridge", sw)
	n.must("ip -n %s link set br0 up", sw)
	for i, name := range nodes {
		ns := n.ns(name)
		n.must("ip netns add %s", ns)
		t.Cleanup(func() { _ = sh("ip netns del " + ns) })
		n.must("ip -n %s link add p%d type veth peer name eth0 netns %s", sw, i+1, ns)
		n.must("ip -n %s link set p%d master br0 up", sw, i+1)
		n.must("ip -n %s addr add %s/24 dev eth0", ns, n.addr(name))
		n.must("ip -n %s link set eth0 up", ns)
		n.must("ip -n %s link set lo up", ns)
	}
	return n
}

func (n *network) ns(name string) string { return n.prefix + "-" + name }

func (n *network) index(name string) int {
	for i, x := range n.nodes {
		if x == name {
			return i + 1
		}
	}
	n.t.Fatalf("no node %s", name)
	return 0
}

// addr is the address of a node.
func (n *network) addr(name string) string { return fmt.Sprintf("10.77.0.%d", n.index(name)) }

// cut takes a node off the switch; what is sent to it and from it vanishes.
func (n *network) cut(name string) {
	n.t.Helper()
	n.must("ip -n %s link set p%d nomaster", n.ns("sw"), n.index(name))
}

// heal connects it again.
func (n *network) heal(name string) {
	n.t.Helper()
	n.must("ip -n %s link set p%d master br0", n.ns("sw"), n.index(name))
}

// deafen makes a node hear nothing; what it sends arrives.
func (n *network) deafen(name string) {
	n.t.Helper()
	ns := n.ns(name)
	n.must("ip netns exec %s nft add table inet cut", ns)
	n.must("ip netns exec %s nft add chain inet cut input { type filter hook input priority 0 ; policy drop ; }", ns)
}

// hear undoes deafen.
func (n *network) hear(name string) {
	n.t.Helper()
	n.must("ip netns exec %s nft delete table inet cut", n.ns(name))
}

// shape limits what a node sends, for example to 10mbit; "" ends it.
func (n *network) shape(name, rate string) {
	n.t.Helper()
	if rate == "" {
		n.must("tc -n %s qdisc del dev eth0 root", n.ns(name))
		return
	}
	n.must("tc -n %s qdisc replace dev eth0 root tbf rate %s burst 64kb latency 100ms", n.ns(name), rate)
}
