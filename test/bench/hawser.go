package main

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/hawser-ha/hawser/agent"
	"github.com/hawser-ha/hawser/replicator/control"
)

const resource = "bench"

// node is one hawser agent.
type node struct {
	name string
	host string // "" is our own network
	dir  string
	disk string
}

// cluster is one or two of them.
type cluster struct {
	w     *world
	bin   string // the program
	port  int
	nodes []*node
}

func (n *node) run() string { return filepath.Join(n.dir, "run") }

// hawser runs the command line on a node.
func (c *cluster) hawser(n *node, line string) (string, error) {
	args := append([]string{"--run-dir", n.run()}, strings.Fields(line)...)
	out, err := c.w.output(exec.CommandContext(c.w.ctx, c.bin, args...))
	if err != nil {
		return "", fmt.Errorf("on %s: %w%s", n.name, err, c.w.lastLog())
	}
	return out, nil
}

func (c *cluster) do(n *node, lines ...string) error {
	for _, l := range lines {
		if _, err := c.hawser(n, l); err != nil {
			return err
		}
	}
	return nil
}

func (c *cluster) status(n *node) (*control.Status, error) {
	out, err := c.hawser(n, "status --json "+resource)
	if err != nil {
		return nil, err
	}
	var st agent.NodeStatus
	if err := json.Unmarshal([]byte(out), &st); err != nil {
		return nil, err
	}
	if len(st.Resources) != 1 || st.Resources[0].Status == nil {
		return nil, fmt.Errorf("%s is not up on %s", resource, n.name)
	}
	return st.Resources[0].Status, nil
}

func upHawser(w *world, p *peer) error { return startHawser(w, p, w.o.hawser, "") }

func upHawserPair(w *world, p *peer) error { return startHawser(w, p, w.o.hawser, "C") }

// besides adds the other build to the peers of a group.
func (w *world) besides(peers []spec) []spec {
	if w.o.beside == "" {
		return peers
	}
	var out []spec
	for _, s := range peers {
		out = append(out, s)
		switch s.name {
		case "hawser":
			out = append(out, spec{"hawser-beside", nil, func(w *world, p *peer) error { return startHawser(w, p, w.o.beside, "") }})
		case "hawser-c":
			out = append(out, spec{"hawser-c-beside", nil, func(w *world, p *peer) error { return startHawser(w, p, w.o.beside, "C") }})
		}
	}
	return out
}

// startHawser starts one node of the given build, or two with the given protocol, makes the first Primary and waits for the initial sync.
func startHawser(w *world, p *peer, bin, protocol string) error {
	c := &cluster{w: w, bin: bin, port: w.nextPort()}
	p.cluster = c
	hosts := []string{""}
	if protocol != "" {
		hosts = []string{"a", "b"}
		if err := w.network(); err != nil {
			return err
		}
	}
	for i, h := range hosts {
		n := &node{name: string(rune('a' + i)), host: h}
		var err error
		if n.disk, err = p.disk(w, "."+n.name); err != nil {
			return err
		}
		n.dir = filepath.Join(w.shm, p.name+"-"+n.name)
		w.defers(p, func() error { return os.RemoveAll(n.dir) })
		if err := os.MkdirAll(filepath.Join(n.dir, "resources.d"), 0o755); err != nil {
			return err
		}
		c.nodes = append(c.nodes, n)
	}
	for _, n := range c.nodes {
		if err := os.WriteFile(filepath.Join(n.dir, "resources.d", resource+".yaml"), c.definition(protocol), 0o600); err != nil {
			return err
		}
		cmd, err := w.daemon(p, n.host, c.bin, "agent", "--node", n.name, "--run-dir", n.run(), "--state-dir", filepath.Join(n.dir, "state"),
			"--resources-dir", filepath.Join(n.dir, "resources.d"), "--log-level", "warn")
		if err != nil {
			return err
		}
		p.pids = append(p.pids, cmd.Process.Pid)
		err = w.until("agent on "+n.name, func() bool {
			return exec.Command(c.bin, "--run-dir", n.run(), "version").Run() == nil && exists(filepath.Join(n.run(), "agent.sock"))
		})
		if err != nil {
			return err
		}
	}
	for _, n := range c.nodes {
		if err := c.do(n, "create-md --force "+resource, "up "+resource); err != nil {
			return err
		}
		w.defers(p, func() error { return c.do(n, "down --force "+resource) })
		st, err := c.status(n)
		if err != nil {
			return err
		}
		p.pids = append(p.pids, st.PID)
	}
	first := c.nodes[0]
	if len(c.nodes) > 1 {
		p.a, p.b = c.nodes[0].disk, c.nodes[1].disk
		if err := c.do(first, "wait-connect --timeout 20s "+resource); err != nil {
			return err
		}
	}
	if err := c.do(first, "primary --force "+resource); err != nil {
		return err
	}
	if len(c.nodes) > 1 {
		if err := c.do(first, "wait-sync --timeout 1m "+resource); err != nil {
			return err
		}
	}
	p.target = "nbd+unix:///" + resource + "/0?socket=" + filepath.Join(first.run(), "nbd", resource+".sock")
	return w.served(p)
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

func (c *cluster) definition(protocol string) []byte {
	var b strings.Builder
	fmt.Fprintf(&b, "resource: %s\nnodes:\n", resource)
	addrs := []string{addrA, addrB}
	if protocol == "" {
		addrs = []string{"127.0.0.1"}
	}
	for i, n := range c.nodes {
		fmt.Fprintf(&b, "  - name: %s\n    address: %s:%d\n    volumes:\n      - volume: 0\n        disk: %s\n", n.name, addrs[i], c.port, n.disk)
	}
	b.WriteString("volumes:\n  - volume: 0\n    device: none\n")
	if protocol != "" {
		fmt.Fprintf(&b, "net:\n  protocol: %s\n", protocol)
	}
	return []byte(b.String())
}
