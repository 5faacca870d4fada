package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// world is the working folders, the two hosts, and every process that was started.
type world struct {
	ctx   context.Context
	o     *options
	disk  string // folder on the real disk
	shm   string
	log   *os.File
	hosts bool // the network namespaces exist
	port  int
	undo  []func() error
}

// addresses of the hosts a and b; they exist in their namespaces only.
const (
	addrA     = "10.231.1.1"
	addrB     = "10.231.1.2"
	addrQuick = "10.231.1.12" // b's, by a route with quickack
)

func newWorld(ctx context.Context, o *options) (*world, error) {
	w := &world{ctx: ctx, o: o, port: 10900}
	var err error
	if w.disk, err = os.MkdirTemp(o.dir, "hawser-bench-"); err != nil {
		return nil, err
	}
	if w.shm, err = os.MkdirTemp(o.shm, "hawser-bench-"); err != nil {
		return nil, errors.Join(err, os.RemoveAll(w.disk))
	}
	if w.log, err = os.Create(filepath.Join(w.disk, "log")); err != nil {
		return nil, errors.Join(err, os.RemoveAll(w.disk), os.RemoveAll(w.shm))
	}
	return w, nil
}

func (w *world) say(format string, args ...any) {
	fmt.Fprintf(os.Stderr, "bench: "+format+"\n", args...)
}

// close ends everything that is left, in reverse order.
func (w *world) close() error {
	var errs []error
	for i := len(w.undo) - 1; i >= 0; i-- {
		errs = append(errs, w.undo[i]())
	}
	errs = append(errs, w.log.Close())
	if w.o.keep {
		w.say("kept: %s %s", w.disk, w.shm)
		return errors.Join(errs...)
	}
	return errors.Join(append(errs, os.RemoveAll(w.disk), os.RemoveAll(w.shm))...)
}

// down ends one peer.
func (w *world) down(p *peer) error {
	var errs []error
	for i := len(p.undo) - 1; i >= 0; i-- {
		errs = append(errs, p.undo[i]())
	}
	p.undo = nil
	return errors.Join(errs...)
}

// namespace is the name of the network namespace of a host; several benchmarks may run at a time.
func namespace(host string) string { return fmt.Sprintf("hawser-bench-%d%s", os.Getpid(), host) }

// network makes the hosts a and b and the bridge between them, once.
func (w *world) network() error {
	if w.hosts {
		return nil
	}
	w.hosts = true
	w.undo = append(w.undo, func() error {
		var errs []error
		for _, h := range []string{"a", "b", "s"} {
			errs = append(errs, w.command("ip", "netns", "del", namespace(h)))
		}
		return errors.Join(errs...)
	})
	s := namespace("s")
	lines := []string{"netns add " + s, "-n " + s + " link add br0 up type bridge"}
	for h, addr := range map[string]string{"a": addrA, "b": addrB} {
		n := namespace(h)
		lines = append(lines, "netns add "+n, "-n "+n+" link add eth0 type veth peer name p"+h+" netns "+s, "-n "+s+" link set p"+h+" master br0 up",
			"-n "+n+" link set lo up", "-n "+n+" link set eth0 up", "-n "+n+" addr add "+addr+"/24 dev eth0")
	}
	// QEMU's NBD server leaves Nagle's algorithm on before 8.0: without quickack its replies at depth > 1 wait 40 ms.
	lines = append(lines, "-n "+namespace("b")+" addr add "+addrQuick+"/32 dev eth0", "-n "+namespace("a")+" route add "+addrQuick+" dev eth0 quickack 1")
	for _, l := range lines {
		if err := w.command("ip", strings.Fields(l)...); err != nil {
			return err
		}
	}
	return nil
}

// nextPort gives a TCP port that nobody else here uses. They are the hosts', but for those of a single node.
func (w *world) nextPort() int {
	w.port++
	return w.port
}

// command runs a program to its end.
func (w *world) command(name string, args ...string) error {
	_, err := w.output(exec.Command(name, args...))
	return err
}

// output runs a program to its end and returns what it printed.
func (w *world) output(cmd *exec.Cmd) (string, error) {
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("%s: %w: %s", strings.Join(cmd.Args, " "), err, strings.TrimSpace(errs.String()))
	}
	return out.String(), nil
}

// inside puts a command into the network of a host; "" is our own.
func inside(host string, args ...string) []string {
	if host == "" {
		return args
	}
	return append([]string{"nsenter", "--net=/run/netns/" + namespace(host)}, args...)
}

// daemon starts a process of p on a host, to be ended with p.
func (w *world) daemon(p *peer, host string, args ...string) (*exec.Cmd, error) {
	args = inside(host, args...)
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Stdout, cmd.Stderr = w.log, w.log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // ^C is for us: we end it in order
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	w.defers(p, func() error {
		_ = cmd.Process.Signal(syscall.SIGTERM) // it may have ended
		timer := time.AfterFunc(10*time.Second, func() { _ = cmd.Process.Kill() })
		defer timer.Stop()
		_ = cmd.Wait() // "terminated" is what we wanted
		return nil
	})
	return cmd, nil
}

// defers has f called once, when p or everything ends.
func (w *world) defers(p *peer, f func() error) {
	called := false
	once := func() error {
		if called {
			return nil
		}
		called = true
		return f()
	}
	p.undo = append(p.undo, once)
	w.undo = append(w.undo, once)
}

// until waits for a condition.
func (w *world) until(what string, ok func() bool) error {
	deadline := time.Now().Add(20 * time.Second)
	for !ok() {
		if time.Now().After(deadline) {
			return fmt.Errorf("%s: not within 20 s%s", what, w.lastLog())
		}
		select {
		case <-time.After(20 * time.Millisecond):
		case <-w.ctx.Done():
			return context.Cause(w.ctx)
		}
	}
	return nil
}

// lastLog is the end of what the daemons said.
func (w *world) lastLog() string {
	data, err := os.ReadFile(w.log.Name())
	if err != nil {
		return ""
	}
	lines := strings.Split(strings.TrimSpace(string(data)), "\n")
	return "\n" + strings.Join(lines[max(0, len(lines)-8):], "\n")
}

// blank makes a backing file of zeroes that are really there.
func blank(path string) error {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	zero := make([]byte, 1<<20)
	for range diskMiB {
		if _, err := f.Write(zero); err != nil {
			return errors.Join(err, f.Close())
		}
	}
	return errors.Join(f.Sync(), f.Close())
}

// cpu is the CPU time that processes have used so far.
func cpu(pids []int) (time.Duration, error) {
	var ticks int64
	for _, pid := range pids {
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		if err != nil {
			return 0, err
		}
		f := strings.Fields(string(text[bytes.LastIndexByte(text, ')')+1:]))
		for _, i := range []int{11, 12} { // utime and stime
			n, err := strconv.ParseInt(f[i], 10, 64)
			if err != nil {
				return 0, err
			}
			ticks += n
		}
	}
	return time.Duration(ticks) * time.Second / 100, nil // USER_HZ is 100 on every architecture of Go's
}

// settle waits until the machine has been idle for a moment, so that a turn does not begin in the middle of somebody
// else's work. All waiting together is bounded.
func (w *world) settle() error {
	const look = 100 * time.Millisecond
	for began := time.Now(); w.o.quiet > 0; began = time.Now() {
		busy, all, err := machineTime()
		if err != nil {
			return err
		}
		select {
		case <-time.After(look):
		case <-w.ctx.Done():
			return context.Cause(w.ctx)
		}
		busy2, all2, err := machineTime()
		if err != nil {
			return err
		}
		if all2 > all && float64(busy2-busy)/float64(all2-all) < 0.1 {
			return nil
		}
		w.o.quiet -= time.Since(began)
	}
	return nil
}

// machineTime is what all processors together have worked, and have been there, in ticks.
func machineTime() (busy, all int64, err error) {
	text, err := os.ReadFile("/proc/stat")
	if err != nil {
		return 0, 0, err
	}
	line, _, _ := strings.Cut(string(text), "\n")
	for i, f := range strings.Fields(line)[1:] {
		n, err := strconv.ParseInt(f, 10, 64)
		if err != nil {
			return 0, 0, err
		}
		if i >= 8 { // guest time is part of user time
			break
		}
		all += n
		if i != 3 && i != 4 { // idle, waiting for a disk
			busy += n
		}
	}
	return busy, all, nil
}
