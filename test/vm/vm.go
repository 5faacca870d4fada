package vm

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"
)

// Enable is the environment variable that turns these tests on: they take minutes, and the first run downloads
// Debian packages.
const Enable = "HAWSER_TEST_VM"

// Lab is one set of machines with a network of its own. Labs of different names run side by side.
type Lab struct {
	t    testing.TB
	dir  string
	env  []string
	disk string
}

// New prepares a lab and removes it at the end of the test. It skips the test unless Enable is set. The name
// is part of a network namespace's: keep it short.
func New(t testing.TB, name string) *Lab {
	t.Helper()
	if os.Getenv(Enable) == "" {
		t.Skipf("boots virtual machines for minutes: set %s=1", Enable)
	}
	if os.Geteuid() != 0 {
		t.Skip("bridges and taps need root")
	}
	if _, err := exec.LookPath("qemu-system-x86_64"); err != nil {
		t.Fatal("install qemu-system-x86 (make deps)")
	}
	_, file, _, _ := runtime.Caller(0)
	disk, err := os.MkdirTemp("/dev/shm", "hawser-vm-"+name+"-")
	if err != nil {
		t.Fatal(err)
	}
	l := &Lab{t: t, dir: filepath.Dir(file), disk: disk, env: append(os.Environ(),
		"HAWSER_VM_RUN=/run/hawser-vm-"+name, "HAWSER_VM_NS=hawser-vm-"+name, "HAWSER_VM_DISKS="+disk)}
	t.Cleanup(func() {
		l.Script("vm", "down")
		_ = os.RemoveAll(disk)
	})
	l.Script("setup")
	l.Script("vm", "down") // what an interrupted run left
	return l
}

// Disk is a path for a disk image, removed with the lab.
func (l *Lab) Disk(name string) string { return filepath.Join(l.disk, name) }

// Script runs one of the folder's scripts (setup, vm, drbd-pair, drbd-peer) and returns what it said; a failure
// ends the test.
func (l *Lab) Script(name string, args ...string) string {
	l.t.Helper()
	out, err := l.script(10*time.Minute, name, args...)
	if err != nil {
		l.t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, out)
	}
	return out
}

// script writes to a file, not a pipe: qemu in the background would keep a pipe open.
func (l *Lab) script(limit time.Duration, name string, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	f, err := os.CreateTemp("", "hawser-vm-")
	if err != nil {
		return "", err
	}
	defer func() { _ = f.Close(); _ = os.Remove(f.Name()) }()
	cmd := exec.CommandContext(ctx, filepath.Join(l.dir, name), args...)
	cmd.Env, cmd.Stdout, cmd.Stderr = l.env, f, f
	err = cmd.Run()
	out, rerr := os.ReadFile(f.Name())
	if err == nil {
		err = rerr
	}
	return string(out), err
}

// TryExec runs a shell command in a machine.
func (l *Lab) TryExec(machine, command string) (string, error) {
	return l.script(3*time.Minute, "vm", "exec", machine, "--", command)
}

// Exec is TryExec for a command that must succeed.
func (l *Lab) Exec(machine, command string) string {
	l.t.Helper()
	out, err := l.TryExec(machine, command)
	if err != nil {
		console, _ := l.script(time.Minute, "vm", "exec", machine, "--", "dmesg | tail -n 25")
		l.t.Fatalf("%s: %s: %v\n%s\n%s", machine, command, err, out, console)
	}
	return out
}

// Wait repeats a command in a machine until it succeeds.
func (l *Lab) Wait(machine string, limit time.Duration, command string) {
	l.t.Helper()
	l.Exec(machine, fmt.Sprintf("n=%d; until %s; do n=$((n-1)); [ $n -gt 0 ] || exit 1; sleep 0.1; done", limit/(100*time.Millisecond), command))
}

// Build compiles a package of this module, statically, into a folder that can be shared with a machine.
func (l *Lab) Build(dir, pkg string) {
	l.t.Helper()
	cmd := exec.Command("go", "build", "-o", dir+"/", pkg)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		l.t.Fatalf("go build %s: %v\n%s", pkg, err, out)
	}
}
