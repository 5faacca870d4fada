package kernelpeer

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/hawser-ha/hawser/agent"
	"github.com/hawser-ha/hawser/replicator/control"
	"github.com/hawser-ha/hawser/test/check"
	"github.com/hawser-ha/hawser/test/check/nbdclient"
	"github.com/hawser-ha/hawser/test/vm"
)

const (
	resource   = "r0"
	machine    = "dp"
	kernelIP   = "10.77.0.21"
	hawserIP   = "10.77.0.31"
	stateLimit = 60 * time.Second  // for a change of state: the machine is emulated
	syncLimit  = 180 * time.Second // for a resync
	cliLimit   = 60 * time.Second
	opTimeout  = 60 * time.Second // of a request to a volume
	diskBytes  = 32 << 20         // of each disk, unless a test says more
)

// pair is hawser and a kernel, of which a test makes a pair by fresh.
type pair struct {
	t      *testing.T // the one that runs now
	lab    *vm.Lab
	dir    string
	bin    string
	ns     string
	log    *os.File
	agent  *exec.Cmd
	direct *control.Client
	o      setup
	disks  []string // images of the machine's disks

	volatile bool // the machine's disks lose what was not flushed when it is killed
}

// setup says how the two are configured. Options that both have stand in both files.
type setup struct {
	net        map[string]string // of both
	hawserNet  map[string]string
	kernelNet  map[string]string
	hawserDisk map[string]string
	kernelDisk map[string]string
	size       int64 // bytes of hawser's volume; 0: diskBytes
	volumes    int   // 0: one
	apart      bool  // do not connect
}

// newPair boots the machine; hawser's agent runs beside it.
func newPair(t *testing.T) *pair {
	t.Helper()
	lab := vm.New(t, "kp")
	p := &pair{t: t, lab: lab, ns: "hawser-kp-h"}
	p.dir = t.TempDir()
	p.bin = filepath.Join(p.dir, "hawser")
	lab.Build(p.dir, "github.com/hawser-ha/hawser/cmd/hawser")
	p.disks = []string{lab.Disk("a.img"), lab.Disk("b.img")}
	lab.Script("vm", "netns", p.ns, hawserIP)
	p.boot()
	var err error
	if p.log, err = os.Create(filepath.Join(p.dir, "log")); err != nil {
		t.Fatal(err)
	}
	p.direct = control.NewClient(p.sock(), "replicator")
	p.startAgent()
	t.Cleanup(p.end)
	return p
}

// boot starts the machine, with the disks it had.
func (p *pair) boot() {
	p.t.Helper()
	kind := "--disk"
	if p.volatile {
		kind = "--volatile"
	}
	p.lab.Script("vm", "start", machine, "--ip", kernelIP, "--mods", "drbd,ext4,crc32c_generic,sha1_generic,sha256_generic,md5,hmac",
		kind, p.disks[0]+":200M", kind, p.disks[1]+":200M")
}

func (p *pair) runDir() string { return filepath.Join(p.dir, "run") }
func (p *pair) sock() string   { return filepath.Join(p.runDir(), "replicator", resource+".sock") }
func (p *pair) disk(volume int) string {
	return filepath.Join(p.dir, fmt.Sprintf("disk%d.img", volume))
}

func (p *pair) startAgent() {
	p.t.Helper()
	p.agent = exec.Command("nsenter", "--net=/run/netns/"+p.ns, p.bin, "agent", "--node", "host", "--run-dir", p.runDir(),
		"--state-dir", filepath.Join(p.dir, "state"), "--resources-dir", p.resources())
	p.agent.Stdout, p.agent.Stderr = p.log, p.log
	p.agent.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := os.MkdirAll(p.resources(), 0o755); err != nil {
		p.t.Fatal(err)
	}
	if err := p.agent.Start(); err != nil {
		p.t.Fatal(err)
	}
	a := control.NewClient(filepath.Join(p.runDir(), "agent.sock"), "agent")
	defer a.Close()
	p.until("agent", stateLimit, func() bool { return a.Get(p.t.Context(), "version", nil, new(agent.Version)) == nil })
}

func (p *pair) resources() string { return filepath.Join(p.dir, "resources.d") }

// end ends hawser; the lab ends the machine.
func (p *pair) end() {
	_, _ = p.try("down", "--force", resource)
	_ = p.agent.Process.Signal(syscall.SIGTERM)
	_ = p.agent.Wait()
	if pid, served := control.Served(p.sock()); served && pid > 0 {
		_ = syscall.Kill(pid, syscall.SIGKILL)
	}
	p.direct.Close()
	_ = p.log.Close()
}

// run makes a subtest of a pair of its own.
func (p *pair) run(name string, o setup, test func(t *testing.T)) {
	outer := p.t
	outer.Run(name, func(t *testing.T) {
		p.t = t
		defer func() { p.t = outer }()
		began, at := time.Now(), p.logSize()
		t.Cleanup(func() { p.audit(t, at) })
		p.fresh(o)
		test(t)
		t.Logf("%s", time.Since(began).Round(100*time.Millisecond))
	})
}

func (p *pair) logSize() int64 {
	if st, err := p.log.Stat(); err == nil {
		return st.Size()
	}
	return 0
}

// audit looks for what may never be, and explains a failure.
func (p *pair) audit(t *testing.T, from int64) {
	data, err := os.ReadFile(p.log.Name())
	if err != nil {
		t.Error(err)
		return
	}
	said := string(data[from:])
	for _, bad := range []string{"panic:", "fatal error:", "DATA RACE"} {
		if i := strings.Index(said, bad); i >= 0 {
			t.Errorf("hawser: %.3000s", said[i:])
			return
		}
	}
	kernel, err := p.lab.TryExec(machine, "dmesg | tail -n 70")
	if err == nil && strings.Contains(kernel, "ASSERT") {
		t.Errorf("the kernel found a contradiction:\n%s", kernel)
	}
	if t.Failed() {
		t.Logf("%s\nlog of hawser:\n%s\nlog of the kernel:\n%s", p.state(), said[max(0, len(said)-9000):], kernel)
	}
}

// fresh makes new metadata on empty disks on both sides, and connects.
func (p *pair) fresh(o setup) {
	p.t.Helper()
	p.o = o
	if p.o.volumes == 0 {
		p.o.volumes = 1
	}
	if p.o.size == 0 {
		p.o.size = diskBytes
	}
	_, _ = p.try("down", "--force", resource) // of the first case: nothing is up
	p.kernel("umount /mnt 2>/dev/null; drbdsetup down r0 2>/dev/null; rmmod drbd; modprobe drbd; dmesg -c >/dev/null; for d in vda vdb; do blkdiscard -z /dev/$d; done")
	p.configure()
	for v := range p.o.volumes {
		if err := os.Remove(p.disk(v)); err != nil && !errors.Is(err, os.ErrNotExist) {
			p.t.Fatal(err)
		}
	}
	p.kernel("yes | drbdadm create-md --force r0 >/dev/null 2>&1 && drbdadm up r0")
	p.cli("create-md", "--force", resource)
	if p.o.apart {
		p.kernel("drbdadm disconnect r0")
	}
	p.cli("up", resource)
	if p.o.apart {
		p.cli("disconnect", resource)
		return
	}
	p.connected()
}

// configure writes the files of both sides.
func (p *pair) configure() {
	p.t.Helper()
	if err := os.WriteFile(filepath.Join(p.resources(), resource+".yaml"), []byte(p.yaml()), 0o600); err != nil {
		p.t.Fatal(err)
	}
	p.kernel("rm -rf /etc/drbd.d; cat >/etc/drbd.conf <<'END'\n" + p.drbdConf() + "END")
}

// common are the options of both sides.
func (p *pair) common() map[string]string {
	net := map[string]string{"protocol": "C", "verify-alg": "crc32c", "connect-int": "3", "ping-int": "3", "timeout": "29", "ping-timeout": "20"}
	maps.Copy(net, p.o.net)
	return net
}

func (p *pair) yaml() string {
	var b strings.Builder
	fmt.Fprintf(&b, "resource: %s\nnodes:\n", resource)
	fmt.Fprintf(&b, "  - name: %s\n    address: %s:7788\n", machine, kernelIP)
	fmt.Fprintf(&b, "  - name: host\n    address: %s:7788\n    nbd:\n      listen: %s:10809\nvolumes:\n", hawserIP, hawserIP)
	for v := range p.o.volumes {
		fmt.Fprintf(&b, "  - volume: %d\n    device: none\n    disk: %s\n    size: %dK\n", v, p.disk(v), p.o.size>>10)
	}
	net := p.common()
	maps.Copy(net, p.o.hawserNet)
	b.WriteString("net:\n")
	for _, k := range slices.Sorted(maps.Keys(net)) {
		fmt.Fprintf(&b, "  %s: %s\n", k, net[k])
	}
	if len(p.o.hawserDisk) > 0 {
		b.WriteString("disk:\n")
		for _, k := range slices.Sorted(maps.Keys(p.o.hawserDisk)) {
			fmt.Fprintf(&b, "  %s: %s\n", k, p.o.hawserDisk[k])
		}
	}
	fmt.Fprintf(&b, "options:\n  undo-log: %s\n", filepath.Join(p.dir, "undo"))
	return b.String()
}

func (p *pair) drbdConf() string {
	var b strings.Builder
	b.WriteString("global { usage-count no; }\nresource r0 {\n\tnet {")
	net := p.common()
	maps.Copy(net, p.o.kernelNet)
	for _, k := range slices.Sorted(maps.Keys(net)) {
		fmt.Fprintf(&b, " %s %s;", k, net[k])
	}
	b.WriteString(" }\n\tdisk {")
	for _, k := range slices.Sorted(maps.Keys(p.o.kernelDisk)) {
		fmt.Fprintf(&b, " %s %s;", k, p.o.kernelDisk[k])
	}
	b.WriteString(" }\n")
	for v := range p.o.volumes {
		fmt.Fprintf(&b, "\tvolume %d { device minor %d; disk /dev/vd%c; meta-disk internal; }\n", v, v, 'a'+v)
	}
	fmt.Fprintf(&b, "\ton %s { address %s:7788; }\n\ton host { address %s:7788; }\n}\n", machine, kernelIP, hawserIP)
	return b.String()
}

// kernel runs a command in the machine.
func (p *pair) kernel(command string) string {
	p.t.Helper()
	out, err := p.lab.TryExec(machine, command)
	if err != nil {
		p.t.Fatalf("kernel: %s: %v\n%s\n%s", command, err, out, p.state())
	}
	return out
}

// kernelRefuses runs a command in the machine that must not work.
func (p *pair) kernelRefuses(command string) {
	p.t.Helper()
	if out, err := p.lab.TryExec(machine, command); err == nil {
		p.t.Errorf("kernel: %s worked\n%s", command, out)
	}
}

// try runs the command line of hawser.
func (p *pair) try(args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(p.t.Context()), cliLimit)
	defer cancel()
	cmd := exec.CommandContext(ctx, p.bin, append([]string{"--run-dir", p.runDir(), "--resources-dir", p.resources(), "--node", "host"}, args...)...)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil {
		return out.String(), fmt.Errorf("hawser %s: %w: %s", strings.Join(args, " "), err, strings.TrimSpace(errs.String()))
	}
	return out.String(), nil
}

// cli is try for a command that must work.
func (p *pair) cli(args ...string) {
	p.t.Helper()
	if out, err := p.try(args...); err != nil {
		p.t.Fatalf("%v\n%s\n%s", err, out, p.state())
	}
}

// until waits for a condition.
func (p *pair) until(what string, limit time.Duration, ok func() bool) {
	p.t.Helper()
	for deadline := time.Now().Add(limit); !ok(); {
		if time.Now().After(deadline) {
			p.t.Fatalf("%s: not within %s\n%s", what, limit, p.state())
		}
		<-time.After(20 * time.Millisecond)
	}
}

func (p *pair) status() (*control.Status, error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(p.t.Context()), 5*time.Second)
	defer cancel()
	return p.direct.Status(ctx)
}

// now is hawser's status.
func (p *pair) now() *control.Status {
	p.t.Helper()
	st, err := p.status()
	if err != nil {
		p.t.Fatal(err)
	}
	return st
}

// kernelVolume is a volume as /proc/drbd shows it.
type kernelVolume struct{ conn, roles, disks, protocol, oos string }

var procLine = regexp.MustCompile(`(?s) (\d): cs:(\S+)(?: ro:(\S+) ds:(\S+) (\S) .*? oos:(\d+))?`)

func (p *pair) proc() (out []kernelVolume) {
	text, err := p.lab.TryExec(machine, "cat /proc/drbd")
	if err != nil {
		return nil
	}
	for _, m := range procLine.FindAllStringSubmatch(text, -1) {
		out = append(out, kernelVolume{m[2], m[3], m[4], m[5], m[6]})
	}
	return out
}

// wait waits for states on both sides; for all volumes.
func (p *pair) wait(what string, limit time.Duration, hawser func(st *control.Status, v int) bool, kernel func(v kernelVolume) bool) {
	p.t.Helper()
	p.until("hawser: "+what, limit, func() bool {
		st, err := p.status()
		if err != nil || len(st.Volumes) < p.o.volumes || len(st.Peers) == 0 || len(st.Peers[0].Volumes) < p.o.volumes {
			return false
		}
		for v := range p.o.volumes {
			if hawser != nil && !hawser(st, v) {
				return false
			}
		}
		return true
	})
	p.until("kernel: "+what, limit, func() bool {
		vols := p.proc()
		for _, v := range vols {
			if kernel != nil && !kernel(v) {
				return false
			}
		}
		return len(vols) >= p.o.volumes
	})
}

// connected waits until both are.
func (p *pair) connected() {
	p.t.Helper()
	p.wait("connected", stateLimit, func(st *control.Status, _ int) bool { return st.Peers[0].Connection == "Connected" },
		func(v kernelVolume) bool {
			return !slices.Contains([]string{"StandAlone", "Unconnected", "WFConnection", "WFReportParams"}, v.conn)
		})
}

// inSync waits until nothing is left to do.
func (p *pair) inSync() {
	p.t.Helper()
	p.wait("in sync", syncLimit, func(st *control.Status, v int) bool {
		peer := st.Peers[0].Volumes[v]
		return st.Volumes[v].DiskState == "UpToDate" && st.Peers[0].Connection == "Connected" && peer.Replication == "Established" &&
			peer.DiskState == "UpToDate" && peer.OutOfSync == 0
	}, func(v kernelVolume) bool {
		return v.conn == "Connected" && v.disks == "UpToDate/UpToDate" && v.oos == "0"
	})
}

// standAlone waits until both have given up.
func (p *pair) standAlone() {
	p.t.Helper()
	p.wait("StandAlone", stateLimit, func(st *control.Status, _ int) bool { return st.Peers[0].Connection == "StandAlone" },
		func(v kernelVolume) bool { return v.conn == "StandAlone" || v.conn == "WFConnection" })
}

// state is what both say, for messages.
func (p *pair) state() string {
	var b strings.Builder
	if st, err := p.status(); err != nil {
		fmt.Fprintf(&b, "hawser: %v\n", err)
	} else {
		fmt.Fprintf(&b, "hawser: %s %v", st.Role, st.Suspended)
		for _, v := range st.Volumes {
			fmt.Fprintf(&b, ", disk %s %s %s", v.DiskState, v.GI.Current, v.LastError)
		}
		for _, l := range st.Peers {
			fmt.Fprintf(&b, "; to %s: %s %s %s", l.Name, l.Connection, l.Role, l.LastError)
			for _, v := range l.Volumes {
				fmt.Fprintf(&b, ", %s %s out-of-sync %d %+v", v.Replication, v.DiskState, v.OutOfSync, v.Sync)
			}
		}
		b.WriteString("\n")
	}
	out, err := p.lab.TryExec(machine, "cat /proc/drbd; drbdsetup show-gi 0 2>&1 | tail -n 3")
	fmt.Fprintf(&b, "kernel: %s %v\n", out, err)
	return b.String()
}

// same compares every byte of both disks.
func (p *pair) same() {
	p.t.Helper()
	p.inSync()
	p.equal()
}

// equal is same without waiting.
func (p *pair) equal() {
	p.t.Helper()
	if p.volatile {
		p.kernel("for d in vda vdb; do dd if=/dev/null of=/dev/$d conv=fsync,notrunc 2>/dev/null; done")
	}
	if d := p.differ(); d != "" {
		p.t.Errorf("%s\n%s", d, p.state())
	}
}

// differ says what is different on the disks.
func (p *pair) differ() string {
	p.t.Helper()
	st := p.now()
	for v := range p.o.volumes {
		size := st.Volumes[v].Size
		if size <= 0 {
			p.t.Fatalf("volume %d has no size", v)
		}
		ours, theirs := p.read(p.disk(v), size), p.read(p.disks[v], size)
		if bytes.Equal(ours, theirs) {
			continue
		}
		var differ []int
		for off := 0; off < len(ours); off += 4096 {
			if end := min(off+4096, len(ours)); !bytes.Equal(ours[off:end], theirs[off:end]) {
				differ = append(differ, off/4096)
			}
		}
		return fmt.Sprintf("volume %d: %d of %d blocks differ: %v", v, len(differ), size/4096, differ[:min(len(differ), 20)])
	}
	return ""
}

func (p *pair) read(path string, size int64) []byte {
	p.t.Helper()
	f, err := os.Open(path)
	if err != nil {
		p.t.Fatal(err)
	}
	defer f.Close()
	b := make([]byte, size)
	if _, err := f.ReadAt(b, 0); err != nil {
		p.t.Fatal(err)
	}
	return b
}

// plant changes bytes of an image behind its owner's back.
func (p *pair) plant(path string, off int64) {
	p.t.Helper()
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		p.t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.WriteAt([]byte("planted"), off); err != nil {
		p.t.Fatal(err)
	}
}

// target is a volume as hawser exports it.
func (p *pair) target(volume int) check.Target {
	u := nbdclient.URI{Network: "unix", Address: filepath.Join(p.runDir(), "nbd", resource+".sock"), Export: fmt.Sprintf("%s/%d", resource, volume)}
	return func(ctx context.Context) (check.Device, error) { return nbdclient.Dial(ctx, u, opTimeout) }
}

// load writes to hawser's volume until stop; it must be Primary.
func (p *pair) load(volume int, o check.Options) *check.Workload {
	p.t.Helper()
	if o.History == nil {
		o.History = check.NewHistory(nil)
	}
	o.Targets = []check.Target{p.target(volume)}
	w, err := check.Start(p.t.Context(), o)
	if err != nil {
		p.t.Fatal(err)
	}
	p.t.Cleanup(func() { w.Stop() })
	return w
}

// hawserWrites writes n requests to every volume, and reports errors that the application saw.
func (p *pair) hawserWrites(n int64, o check.Options) {
	p.t.Helper()
	for v := range p.o.volumes {
		o.Seed++
		w := p.load(v, o)
		p.acks(w, n)
		p.quiet(w)
	}
}

// acks waits for more acknowledged writes.
func (p *pair) acks(w *check.Workload, n int64) {
	p.t.Helper()
	goal := w.Stats().Writes + n
	p.until(fmt.Sprintf("%d acknowledged writes", n), syncLimit, func() bool { return w.Stats().Writes >= goal })
}

// quiet stops a workload that may not have seen anything.
func (p *pair) quiet(w *check.Workload) {
	p.t.Helper()
	if st := w.Stop(); st.Failures() > 0 || st.Broken > 0 {
		p.t.Errorf("the application saw it: %+v", st)
	}
}

// kernelWrites is a command that writes random data of many sizes, with flushes, to the kernel's device.
func kernelWrites(volume int, kib int, seed int) string {
	return fmt.Sprintf("fio --name=w --filename=/dev/drbd%d --rw=randwrite --ioengine=libaio --iodepth=8 --direct=1 --refill_buffers "+
		"--bssplit=512/5:4k/60:12k/10:64k/15:256k/8:1m/2 --blockalign=512 --fsync=16 --io_size=%dk --randseed=%d --norandommap >/run/fio.log 2>&1 || { cat /run/fio.log; false; }",
		volume, kib, seed)
}
