package service

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/hawser-ha/hawser/agent/config"
)

// insideEnv says that the test runs in namespaces of its own, and which part.
const insideEnv = "HAWSER_TEST_SERVICE_INSIDE"

// TestRealAgents runs Debian's resource agents, and systemd on a real D-Bus, each part in a network, mount and process
// namespace of its own: nothing of it is left when that ends.
func TestRealAgents(t *testing.T) {
	if os.Getenv(insideEnv) != "" {
		t.Skip("this is the inside")
	}
	if os.Geteuid() != 0 {
		t.Skip("namespaces need root")
	}
	for _, part := range []string{"Filesystem", "IPaddr2", "Portblock", "Exportfs", "Systemd"} {
		t.Run(part, func(t *testing.T) {
			t.Parallel()
			cmd := exec.CommandContext(t.Context(), "unshare", "--net", "--mount", "--pid", "--fork", "--mount-proc", "--kill-child", os.Args[0],
				"-test.run", "^TestInside"+part+"$", "-test.v", "-test.timeout", "3m")
			cmd.Env = append(os.Environ(), insideEnv+"="+part)
			out, err := cmd.CombinedOutput()
			if err != nil || !strings.Contains(string(out), "--- PASS: TestInside"+part) {
				t.Errorf("%v\n%s", err, out)
			}
		})
	}
}

// inside prepares the namespaces.
func inside(t *testing.T, part string) *bench {
	t.Helper()
	if os.Getenv(insideEnv) != part {
		t.Skip("run by TestRealAgents, in namespaces of its own")
	}
	sh(t, "mount -t tmpfs tmpfs /run && mkdir -p /run/resource-agents /run/lock && ip link set lo up")
	b := newBench(t)
	for _, name := range []string{"lib", "resource.d/heartbeat"} {
		if err := os.Symlink(filepath.Join(DefaultOCFRoot, name), filepath.Join(b.dir, "ocf", name)); err != nil {
			t.Fatal(err)
		}
	}
	return b
}

// sh runs a line that must work.
func sh(t *testing.T, line string) string {
	t.Helper()
	out, err := exec.Command("/bin/sh", "-c", line).CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %v\n%s", line, err, out)
	}
	return strings.TrimSpace(string(out))
}

func agentSpec(name, agent string, params map[string]string) config.ServiceSpec {
	return config.ServiceSpec{Name: name, Kind: config.ServiceOCF, What: "heartbeat:" + agent, Params: params, Monitor: 500 * time.Millisecond, MonitorTimeout: 20 * time.Second,
		StartTimeout: 20 * time.Second, StopTimeout: 20 * time.Second, Restart: 2, RestartWindow: time.Minute}
}

func TestInsideFilesystem(t *testing.T) {
	b := inside(t, "Filesystem")
	image := filepath.Join(b.disk(), "image")
	sh(t, "truncate -s 32M "+image+" && mke2fs -q -t ext4 "+image)
	loop := sh(t, "losetup --find --show "+image)
	t.Cleanup(func() { sh(t, "losetup --detach "+loop) })
	mnt := b.path("mnt")
	d := primary("r0", agentSpec("fs", "Filesystem", map[string]string{"device": loop, "directory": mnt, "fstype": "ext4"}))
	b.boot(d)
	b.start()
	mounted := func() bool {
		data, err := os.ReadFile("/proc/self/mounts")
		return err == nil && strings.Contains(string(data), " "+mnt+" ext4 ")
	}
	if !mounted() {
		t.Fatal("it is not mounted")
	}
	b.end()
	b.boot(d)
	if s := b.service("fs"); s.State != Running || !mounted() {
		t.Errorf("adopted: %+v", s)
	}
	b.start()
	sh(t, "umount "+mnt)
	b.until("mounted again", func() bool { return mounted() && b.service("fs").State == Running && b.service("fs").Failures == 1 })
	user := exec.Command("sleep", "1000") // the agent ends who uses it
	user.Dir = mnt
	if err := user.Start(); err != nil {
		t.Fatal(err)
	}
	b.stop()
	if mounted() {
		t.Error("it is mounted")
	}
	_ = user.Wait() // "signal: terminated", or it would not return
	gone := agentSpec("fs", "Filesystem", map[string]string{"device": b.path("no-such-device"), "directory": mnt, "fstype": "ext4"})
	b.r.Update(primary("r0", gone))
	err := b.r.Start(b.ctx(), Primary)
	var ce *ChainError
	if !errors.As(err, &ce) || ce.Chain.State != Refused || !strings.Contains(err.Error(), "no-such-device") {
		t.Errorf("a device that is not there: %v", err)
	}
}

// disk is a folder that is on no tmpfs.
func (b *bench) disk() string {
	dir, err := os.MkdirTemp("/var/tmp", "hawser-service-")
	if err != nil {
		b.t.Fatal(err)
	}
	b.t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

func TestInsideIPaddr2(t *testing.T) {
	b := inside(t, "IPaddr2")
	sh(t, "ip link add d0 type veth peer name d1 && ip addr add 10.9.0.1/24 dev d0 && ip link set d0 up && ip link set d1 up")
	d := primary("r0", agentSpec("ip", "IPaddr2", map[string]string{"ip": "10.9.0.9", "cidr_netmask": "24", "nic": "d0", "arp_count": "1", "netmask_cidr": "24"}))
	b.boot(d)
	b.start()
	has := func() bool { return strings.Contains(sh(t, "ip -o addr show dev d0"), "10.9.0.9/24") }
	if !has() {
		t.Error("the address is not there")
	}
	b.until("a warning of the unknown parameter", func() bool {
		return b.service("ip").Warning == "parameter netmask_cidr: IPaddr2 has no such parameter (did you mean cidr_netmask?)" ||
			strings.HasPrefix(b.service("ip").Warning, "parameter netmask_cidr: IPaddr2 has no such parameter (known here: ")
	})
	sh(t, "ip addr del 10.9.0.9/24 dev d0")
	b.until("the address is there again", has)
	b.until("running", func() bool { return b.chain().State == Running })
	b.stop()
	if has() {
		t.Error("the address is still there")
	}
	// An address that no interface fits: the agent says why.
	b.r.Update(primary("r0", agentSpec("ip", "IPaddr2", map[string]string{"ip": "192.168.77.9"})))
	var ce *ChainError
	if err := b.r.Start(b.ctx(), Primary); !errors.As(err, &ce) || !strings.Contains(err.Error(), "exit code") {
		t.Errorf("%v", err)
	}
}

func TestInsidePortblock(t *testing.T) {
	b := inside(t, "Portblock")
	b.boot(primary("r0", agentSpec("block", "portblock", map[string]string{"action": "block", "protocol": "tcp", "portno": "5432", "ip": "10.9.0.9"})))
	b.start()
	if rules := sh(t, "iptables -S INPUT"); !strings.Contains(rules, "10.9.0.9") || !strings.Contains(rules, "5432") {
		t.Errorf("rules: %s", rules)
	}
	b.stop()
	if s := b.service("block"); s.State != Stopped {
		t.Errorf("%+v", s)
	}
}

// The kernel need not have an NFS server for that: exportfs writes the table that it would read.
func TestInsideExportfs(t *testing.T) {
	b := inside(t, "Exportfs")
	sh(t, "mount -t tmpfs tmpfs /var/lib/nfs && touch /var/lib/nfs/etab /var/lib/nfs/rmtab")
	dir := b.path("export")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	b.boot(primary("r0", agentSpec("export", "exportfs", map[string]string{"directory": dir, "clientspec": "10.9.0.0/24", "options": "rw", "fsid": "7"})))
	b.start()
	if table := sh(t, "cat /var/lib/nfs/etab"); !strings.Contains(table, dir) {
		t.Errorf("exports: %s", table)
	}
	b.stop()
	if table := sh(t, "cat /var/lib/nfs/etab"); strings.Contains(table, dir) {
		t.Errorf("exports: %s", table)
	}
}

// TestInsideSystemd has a systemd of its own, a user manager since this may not be process 1, on the dbus-daemon that
// it starts. The interface is the same as the system's.
func TestInsideSystemd(t *testing.T) {
	b := inside(t, "Systemd")
	sh(t, "mkdir -p /run/systemd/system /run/home/.config/systemd/user /run/user /run/home && chmod 700 /run/user")
	t.Setenv("XDG_RUNTIME_DIR", "/run/user")
	t.Setenv("HOME", "/run/home")
	t.Setenv("DBUS_SESSION_BUS_ADDRESS", "unix:path=/run/user/bus")
	t.Setenv("DBUS_SYSTEM_BUS_ADDRESS", "unix:path=/run/user/bus")
	t.Setenv("XDG_CONFIG_HOME", "/run/home/.config")
	unit := func(name, text string) {
		if err := os.WriteFile("/run/home/.config/systemd/user/"+name, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	unit("good.service", "[Service]\nExecStart=/bin/sleep 1000\n[Install]\nWantedBy=default.target\n")
	unit("bad.service", "[Service]\nType=oneshot\nExecStart=/bin/false\n")
	unit("slow.service", "[Service]\nType=oneshot\nRemainAfterExit=yes\nExecStart=/bin/sh -c 'while [ -e /run/slow ]; do sleep 0.05; done'\n")
	unit("stubborn.service", "[Service]\nExecStart=/bin/sh -c 'trap \"\" TERM; while :; do sleep 1; done'\nTimeoutStopSec=1000\n")
	log, err := os.Create(b.path("systemd.log"))
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	manager := exec.Command("/usr/lib/systemd/systemd", "--user", "--unit=basic.target", "--log-target=console")
	manager.Stdout, manager.Stderr = log, log
	if err := manager.Start(); err != nil { // it ends with the namespace
		t.Fatal(err)
	}
	systemctl := func(args ...string) string {
		out, _ := exec.Command("systemctl", append([]string{"--user"}, args...)...).CombinedOutput() // is-active says it by its exit code too
		return strings.TrimSpace(string(out))
	}
	deadline := time.Now().Add(testLimit)
	for systemctl("is-active", "basic.target") != "active" {
		if time.Now().After(deadline) {
			data, _ := os.ReadFile(log.Name())
			t.Fatalf("systemd does not start:\n%s", data)
		}
		<-time.After(20 * time.Millisecond)
	}

	spec := func(name string) config.ServiceSpec {
		return config.ServiceSpec{Name: name, Kind: config.ServiceSystemd, What: name + ".service", Monitor: 50 * time.Millisecond, MonitorTimeout: 10 * time.Second,
			StartTimeout: 20 * time.Second, StopTimeout: 20 * time.Second, Restart: 1, RestartWindow: time.Minute}
	}
	systemctl("enable", "good.service")
	d := primary("r0", spec("good"))
	b.boot(d)
	b.start()
	if got := systemctl("is-active", "good.service"); got != "active" {
		t.Errorf("the unit is %s", got)
	}
	b.until("a warning of the enabled unit", func() bool { return strings.Contains(b.service("good").Warning, "systemctl disable good.service") })
	pid := systemctl("show", "--property=MainPID", "--value", "good.service")
	b.end()
	b.boot(d)
	b.start()
	if again := systemctl("show", "--property=MainPID", "--value", "good.service"); again != pid {
		t.Errorf("main process %s, was %s", again, pid)
	}
	systemctl("kill", "--signal=KILL", "good.service")
	b.until("started again", func() bool { s := b.service("good"); return s.State == Running && s.Failures == 1 })
	b.stop()
	if got := systemctl("is-active", "good.service"); got != "inactive" {
		t.Errorf("the unit is %s", got)
	}

	// What does not work says why.
	for name, want := range map[string]string{"bad": "result exit-code", "none": "no such unit"} {
		b.r.Update(primary("r0", spec(name)))
		var ce *ChainError
		if err := b.r.Start(b.ctx(), Primary); !errors.As(err, &ce) || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", name, err, want)
		}
		b.stop()
	}

	// A start that is under way when the agent ends.
	if err := os.WriteFile("/run/slow", nil, 0o600); err != nil {
		t.Fatal(err)
	}
	b.r.Update(primary("r0", spec("slow")))
	b.r.Want(Primary, true)
	b.until("activating", func() bool { return systemctl("is-active", "slow.service") == "activating" })
	b.end()
	b.boot(primary("r0", spec("slow")))
	if s := b.service("slow"); s.State != Running {
		t.Errorf("%+v", s)
	}
	if err := os.Remove("/run/slow"); err != nil {
		t.Fatal(err)
	}
	b.start()
	b.stop()

	// A unit that does not end is killed when its time is up.
	stubborn := spec("stubborn")
	stubborn.StopTimeout = time.Second
	b.r.Update(primary("r0", stubborn))
	b.start()
	b.stop()
	if len(b.escalations()) != 2 { // bad and none could not be started
		t.Errorf("%+v", b.escalations())
	}

	// A bus that is away says nothing about a unit: it is not started anew.
	b.r.Update(primary("r0", spec("good")))
	b.start()
	systemctl("stop", "dbus.socket", "dbus.service")
	b.until("unknown", func() bool { return b.service("good").State == Unknown })
	if s := b.service("good"); !strings.Contains(s.Reason, "ask systemd") || b.chain().State != Running {
		t.Errorf("%+v", s)
	}
	systemctl("start", "dbus.socket")
	b.until("running", func() bool { return b.service("good").State == Running })
	if s := b.service("good"); s.Failures != 0 || systemctl("is-active", "good.service") != "active" {
		t.Errorf("%+v", s)
	}
}
