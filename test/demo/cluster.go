package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/hawser-ha/hawser/agent"
	"github.com/hawser-ha/hawser/replicator/control"
)

const (
	resource    = "demo"
	settleLimit = 2 * time.Minute // for a resync of the demo's volume
)

// host is one node of the cluster: an agent of its own, in folders of its own.
type host struct {
	name string
	dir  string
	log  *os.File
	cmd  *exec.Cmd
	dead atomic.Bool // it was killed: errors of its device are what is expected
}

// cluster is the three nodes.
type cluster struct {
	ctx    context.Context
	hawser string
	dir    string
	size   int64
	data   []*host // n1, n2
	all    []*host
	undo   []func() // in reverse order
}

func newCluster(ctx context.Context, hawser string, size int64) (*cluster, error) {
	dir, err := os.MkdirTemp("", "hawser-demo-")
	if err != nil {
		return nil, err
	}
	c := &cluster{ctx: ctx, hawser: hawser, dir: dir, size: size}
	for _, name := range []string{"n1", "n2", "n3"} {
		h := &host{name: name, dir: filepath.Join(dir, name)}
		if err := os.MkdirAll(filepath.Join(h.dir, "resources.d"), 0o755); err != nil {
			return c, err
		}
		if h.log, err = os.Create(filepath.Join(h.dir, "log")); err != nil {
			return c, err
		}
		c.all = append(c.all, h)
	}
	c.data = c.all[:2]
	ports, err := freePorts(2)
	if err != nil {
		return c, err
	}
	for _, h := range c.all {
		if err := os.WriteFile(filepath.Join(h.dir, "resources.d", resource+".yaml"), []byte(c.definition(ports)), 0o600); err != nil {
			return c, err
		}
	}
	return c, nil
}

func (c *cluster) definition(ports []int) string {
	device := "none"
	if os.Geteuid() == 0 {
		device = "fuse"
	}
	var b strings.Builder
	fmt.Fprintf(&b, "resource: %s\nnodes:\n", resource)
	for i, h := range c.data {
		fmt.Fprintf(&b, "  - name: %s\n    address: 127.0.0.1:%d\n    volumes:\n      - volume: 0\n        disk: %s\n", h.name, ports[i], h.image())
	}
	fmt.Fprintf(&b, "volumes:\n  - volume: 0\n    device: %s\n    size: %dM\n", device, c.size>>20)
	// A small activity log, so that this small volume shows what a large one does: only what was written lately is resynced.
	b.WriteString("disk:\n  al-extents: 67\n")
	b.WriteString("net:\n  protocol: C\n  cram-hmac-alg: sha256\n  shared-secret: hawser-demo\n  verify-alg: crc32c\n  ping-timeout: 500ms\n")
	return b.String()
}

// freePorts asks the kernel for ports that nobody listens on.
func freePorts(n int) ([]int, error) {
	var ports []int
	var held []net.Listener
	for range n {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return nil, err
		}
		ports = append(ports, l.Addr().(*net.TCPAddr).Port)
		held = append(held, l)
	}
	var errs []error
	for _, l := range held { // only now: each port is another one
		errs = append(errs, l.Close())
	}
	return ports, errors.Join(errs...)
}

func (h *host) image() string  { return filepath.Join(h.dir, "disk.img") }
func (h *host) runDir() string { return filepath.Join(h.dir, "run") }
func (h *host) device() string { return filepath.Join(h.runDir(), "dev", resource, "0") }
func (h *host) nbd() string    { return filepath.Join(h.runDir(), "nbd", resource+".sock") }
func (h *host) mnt() string    { return filepath.Join(h.dir, "mnt") }
func (h *host) sock() string   { return filepath.Join(h.runDir(), "replicator", resource+".sock") }
func (h *host) agent() *control.Client {
	return control.NewClient(filepath.Join(h.runDir(), "agent.sock"), "the agent of "+h.name)
}

// start starts the agent of a node and waits until it answers.
func (c *cluster) start(h *host) error {
	h.cmd = exec.Command(c.hawser, "agent", "--node", h.name, "--run-dir", h.runDir(), "--state-dir", filepath.Join(h.dir, "state"),
		"--resources-dir", filepath.Join(h.dir, "resources.d"))
	h.cmd.Stdout, h.cmd.Stderr = h.log, h.log
	h.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // ^C is for us: we end it in order
	if err := h.cmd.Start(); err != nil {
		return err
	}
	h.dead.Store(false)
	a := h.agent()
	defer a.Close()
	return c.until("agent of "+h.name, 10*time.Second, func() bool { return a.Get(c.ctx, "version", nil, new(agent.Version)) == nil })
}

// until waits for a condition.
func (c *cluster) until(what string, limit time.Duration, ok func() bool) error {
	deadline := time.Now().Add(limit)
	for !ok() {
		if time.Now().After(deadline) {
			return fmt.Errorf("%s: not within %s", what, limit)
		}
		select {
		case <-time.After(2 * time.Millisecond):
		case <-c.ctx.Done():
			return context.Cause(c.ctx)
		}
	}
	return nil
}

// hawser runs the command line on a node, as a person would.
func (h *host) run(c *cluster, args ...string) (string, error) {
	cmd := exec.CommandContext(c.ctx, c.hawser, append([]string{"--run-dir", h.runDir()}, args...)...)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil {
		return out.String(), fmt.Errorf("on %s: hawser %s: %w\n%s", h.name, strings.Join(args, " "), err, strings.TrimSpace(errs.String()))
	}
	return out.String(), nil
}

// do runs several commands on a node.
func (h *host) do(c *cluster, lines ...string) error {
	for _, l := range lines {
		if _, err := h.run(c, strings.Fields(l)...); err != nil {
			return err
		}
	}
	return nil
}

// status is the replicator's, from the command line.
func (h *host) status(c *cluster) (*control.Status, error) {
	out, err := h.run(c, "status", "--json", resource)
	if err != nil {
		return nil, err
	}
	var st agent.NodeStatus
	if err := json.Unmarshal([]byte(out), &st); err != nil {
		return nil, err
	}
	if len(st.Resources) != 1 || st.Resources[0].Status == nil {
		return nil, fmt.Errorf("%s on %s is not up", resource, h.name)
	}
	return st.Resources[0].Status, nil
}

// kill ends agent and replicator of a node as a power cut would: both at once, with SIGKILL.
func (h *host) kill(c *cluster) (time.Time, error) {
	pid, served := control.Served(h.sock())
	if !served {
		return time.Time{}, fmt.Errorf("no replicator runs on %s", h.name)
	}
	h.dead.Store(true)
	at := time.Now()
	if err := errors.Join(syscall.Kill(h.cmd.Process.Pid, syscall.SIGKILL), syscall.Kill(pid, syscall.SIGKILL)); err != nil {
		return at, err
	}
	_ = h.cmd.Wait() // "signal: killed" is what we wanted
	h.cmd = nil
	return at, nil
}

// clear removes what a power cut would have removed: mounts and loop devices of a dead node. The order matters: what is
// on the loop device, the device, the FUSE file below it.
func (h *host) clear() {
	h.unmount("mnt")
	backing, err := filepath.Glob("/sys/block/loop*/loop/backing_file")
	if err != nil {
		return
	}
	for _, b := range backing {
		if file, err := os.ReadFile(b); err == nil && strings.HasPrefix(string(file), h.dir+"/") {
			_ = exec.Command("losetup", "-d", "/dev/"+strings.Split(b, "/")[3]).Run() // it may be gone already
		}
	}
	h.unmount("run")
}

// unmount takes away the mounts in and below a folder of the node, the last one first.
func (h *host) unmount(folder string) {
	mounts, err := os.ReadFile("/proc/self/mounts")
	if err != nil {
		return
	}
	lines := strings.Split(string(mounts), "\n")
	for i := len(lines) - 1; i >= 0; i-- {
		if f := strings.Fields(lines[i]); len(f) > 1 && strings.HasPrefix(f[1]+"/", filepath.Join(h.dir, folder)+"/") {
			_ = syscall.Unmount(f[1], syscall.MNT_DETACH) // it may be gone with its parent
		}
	}
}

// close ends and removes everything. With keep the folders stay.
func (c *cluster) close(keep bool) error {
	for i := len(c.undo) - 1; i >= 0; i-- {
		c.undo[i]()
	}
	var errs []error
	for _, h := range c.all {
		if h.cmd != nil {
			cmd := exec.Command(c.hawser, "--run-dir", h.runDir(), "down", "--force", resource)
			if h.name != "n3" {
				if out, err := cmd.CombinedOutput(); err != nil {
					errs = append(errs, fmt.Errorf("down on %s: %w: %s", h.name, err, bytes.TrimSpace(out)))
				}
			}
			errs = append(errs, h.cmd.Process.Signal(syscall.SIGTERM), h.cmd.Wait())
		}
		if pid, served := control.Served(h.sock()); served {
			errs = append(errs, syscall.Kill(pid, syscall.SIGKILL))
		}
		h.clear()
		errs = append(errs, h.log.Close())
	}
	if keep {
		fmt.Printf("kept: %s\n", c.dir)
		return errors.Join(errs...)
	}
	return errors.Join(append(errs, os.RemoveAll(c.dir))...)
}

// tailLogs prints the end of every node's log: what a person needs after a failure.
func (c *cluster) tailLogs() {
	for _, h := range c.all {
		data, err := os.ReadFile(filepath.Join(h.dir, "log"))
		if err != nil {
			continue
		}
		lines := strings.Split(strings.TrimSpace(string(data)), "\n")
		fmt.Fprintf(os.Stderr, "--- log of %s, last lines\n%s\n", h.name, strings.Join(lines[max(0, len(lines)-25):], "\n"))
	}
}

func parseSize(text string) (int64, error) {
	unit := int64(1)
	switch {
	case strings.HasSuffix(text, "G"):
		unit = 1 << 30
	case strings.HasSuffix(text, "M"):
		unit = 1 << 20
	}
	n, err := strconv.ParseInt(strings.TrimRight(text, "MG"), 10, 64)
	if err != nil || n*unit < 64<<20 || n*unit > 1<<40 {
		return 0, fmt.Errorf("--size %s: from 64M on, for example 512M or 2G", text)
	}
	return n * unit, nil
}
