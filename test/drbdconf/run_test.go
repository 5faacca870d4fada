package drbdconf

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/hawser-ha/hawser/agent"
	"github.com/hawser-ha/hawser/replicator/control"
)

// conf is an 8.3 file on one line, as it stands on two machines a and b with a disk /dev/sdc each.
const conf = `resource r { protocol C; on a {device /dev/drbd0; disk /dev/sdc; address 192.168.90.17:7790; meta-disk internal;} on b {device /dev/drbd0; disk /dev/sdc; address 192.168.90.18:7790; meta-disk internal;} disk { on-io-error detach; } syncer { rate 40M; al-extents 257; } startup { degr-wfc-timeout 120; } }
`

const (
	resource = "r"
	diskSize = 64 << 20
	limit    = time.Minute
)

// bin is the program, built once.
var bin string

func TestMain(m *testing.M) {
	os.Exit(run(m))
}

func run(m *testing.M) int {
	if os.Geteuid() == 0 {
		dir, err := os.MkdirTemp("/var/tmp", "hawser-drbdconf-bin-")
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		defer os.RemoveAll(dir)
		bin = filepath.Join(dir, "hawser")
		build := exec.CommandContext(context.Background(), "go", "build", "-o", bin, "./cmd/hawser")
		build.Dir = "../.."
		if out, err := build.CombinedOutput(); err != nil {
			fmt.Fprintf(os.Stderr, "build: %v\n%s", err, out)
			return 1
		}
	}
	return m.Run()
}

// machine is a node with a name, an address and a /dev of its own.
type machine struct {
	t       *testing.T
	name    string
	dir     string
	log     *os.File
	holder  *exec.Cmd // keeps the namespaces
	agent   *exec.Cmd
	control *control.Client // of the replicator
}

// ownDev is run in the machine's new namespaces. Its /dev holds links to the real one, and what the machine alone has.
const ownDev = `
mkdir -p "$1/real" "$1/dev"
mount --rbind /dev "$1/real"
mount -t tmpfs tmpfs "$1/dev"
ln -s -t "$1/dev" "$1"/real/*
for i in $(seq 0 255); do echo "$1/real/loop$i"; done | xargs ln -sf -t "$1/dev" # those that come later too
rm -rf "$1/dev/hawser" "$1/dev/sdc"
rm -f "$1"/dev/drbd*
ln -s "$1/disk.img" "$1/dev/sdc"
mount --move "$1/dev" /dev
ip link set lo up
echo ready
exec sleep infinity
`

func newMachine(t *testing.T, dir, name string) *machine {
	t.Helper()
	m := &machine{t: t, name: name, dir: filepath.Join(dir, name)}
	if err := os.MkdirAll(filepath.Join(m.dir, "resources.d"), 0o755); err != nil {
		t.Fatal(err)
	}
	disk, err := os.Create(filepath.Join(m.dir, "disk.img"))
	if err == nil {
		err = errors.Join(disk.Truncate(diskSize), disk.Close())
	}
	if err != nil {
		t.Fatal(err)
	}
	if m.log, err = os.Create(filepath.Join(m.dir, "log")); err != nil {
		t.Fatal(err)
	}
	m.holder = exec.Command("unshare", "--net", "--mount", "sh", "-ec", ownDev, "machine", m.dir)
	out, err := m.holder.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	m.holder.Stderr = m.log
	if err := m.holder.Start(); err != nil {
		t.Fatal(err)
	}
	m.control = control.NewClient(filepath.Join(m.dir, "run", "replicator", resource+".sock"), "replicator of "+name)
	t.Cleanup(m.end)
	if _, err := io.ReadFull(out, make([]byte, len("ready"))); err != nil {
		t.Fatalf("namespaces of %s: %v\n%s", name, err, m.said())
	}
	return m
}

// said is the log, for messages.
func (m *machine) said() string {
	data, err := os.ReadFile(m.log.Name())
	if err != nil {
		return err.Error()
	}
	return string(data)
}

// inside is a command on the machine.
func (m *machine) inside(argv ...string) *exec.Cmd {
	ns := fmt.Sprintf("/proc/%d/ns/", m.holder.Process.Pid)
	return exec.Command("nsenter", append([]string{"--net=" + ns + "net", "--mount=" + ns + "mnt", "--"}, argv...)...)
}

func (m *machine) run(argv ...string) (string, error) {
	cmd := m.inside(argv...)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil {
		return out.String(), fmt.Errorf("on %s: %s: %w: %s", m.name, strings.Join(argv, " "), err, strings.TrimSpace(errs.String()))
	}
	return out.String(), nil
}

// must runs a command that has to work.
func (m *machine) must(argv ...string) string {
	m.t.Helper()
	out, err := m.run(argv...)
	if err != nil {
		m.t.Fatalf("%v\n%s", err, m.said())
	}
	return out
}

func (m *machine) hawserArgs(args ...string) []string {
	return append([]string{bin, "--node", m.name, "--run-dir", filepath.Join(m.dir, "run"), "--state-dir", filepath.Join(m.dir, "state"),
		"--resources-dir", filepath.Join(m.dir, "resources.d")}, args...)
}

func (m *machine) hawser(args ...string) string {
	m.t.Helper()
	return m.must(m.hawserArgs(args...)...)
}

func (m *machine) startAgent() {
	m.t.Helper()
	argv := m.hawserArgs("agent")
	m.agent = m.inside(argv...)
	m.agent.Stdout, m.agent.Stderr = m.log, m.log
	m.agent.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := m.agent.Start(); err != nil {
		m.t.Fatal(err)
	}
	a := control.NewClient(filepath.Join(m.dir, "run", "agent.sock"), "agent of "+m.name)
	defer a.Close()
	m.until("the agent answers", func() bool { return a.Get(m.t.Context(), "version", nil, new(agent.Version)) == nil })
}

// until waits for a condition.
func (m *machine) until(what string, ok func() bool) {
	m.t.Helper()
	deadline := time.Now().Add(limit)
	for !ok() {
		if time.Now().After(deadline) || m.t.Context().Err() != nil {
			out, _ := m.run(m.hawserArgs("status")...)
			m.t.Fatalf("%s: %s: not within %s\n%s%s", m.name, what, limit, out, m.said())
		}
		<-time.After(10 * time.Millisecond)
	}
}

func (m *machine) wait(what string, ok func(*control.Status) bool) {
	m.t.Helper()
	m.until(what, func() bool {
		st, err := m.control.Status(m.t.Context())
		return err == nil && len(st.Volumes) == 1 && len(st.Peers) == 1 && len(st.Peers[0].Volumes) == 1 && ok(st)
	})
}

func (m *machine) end() {
	if m.agent != nil {
		_, _ = m.run(m.hawserArgs("down", "--force", resource)...) // what is left is killed below
		_ = m.agent.Process.Signal(syscall.SIGTERM)
		_ = m.agent.Wait()
	}
	if pid, served := control.Served(filepath.Join(m.dir, "run", "replicator", resource+".sock")); served {
		_ = syscall.Kill(pid, syscall.SIGKILL)
	}
	_ = m.holder.Process.Kill()
	_ = m.holder.Wait() // "signal: killed"
	m.control.Close()
	_ = m.log.Close()
}

func host(t *testing.T, argv ...string) {
	t.Helper()
	if out, err := exec.Command(argv[0], argv[1:]...).CombinedOutput(); err != nil {
		t.Fatalf("%s: %v: %s", strings.Join(argv, " "), err, out)
	}
}

// pair makes the machines a and b, connected.
func pair(t *testing.T) (a, b *machine) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("namespaces need root")
	}
	dir, err := os.MkdirTemp("/var/tmp", "hawser-drbdconf-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	a, b = newMachine(t, dir, "a"), newMachine(t, dir, "b")
	link := fmt.Sprintf("hd%d", a.holder.Process.Pid)
	host(t, "ip", "link", "add", link+"a", "type", "veth", "peer", "name", link+"b")
	for m, x := range map[*machine]struct{ dev, addr string }{a: {link + "a", "192.168.90.17/24"}, b: {link + "b", "192.168.90.18/24"}} {
		host(t, "ip", "link", "set", x.dev, "netns", fmt.Sprint(m.holder.Process.Pid))
		m.must("ip", "addr", "add", x.addr, "dev", x.dev)
		m.must("ip", "link", "set", x.dev, "up")
	}
	return a, b
}

// The file of an 8.3 pair runs as it stands, on both: initial sync, Primary, writes to /dev/drbd0, and the other way
// round.
func TestOldFileRunsAsItStands(t *testing.T) {
	a, b := pair(t)
	for _, m := range []*machine{a, b} {
		if err := os.WriteFile(filepath.Join(m.dir, "resources.d", "r.res"), []byte(conf), 0o644); err != nil {
			t.Fatal(err)
		}
		m.startAgent()
		m.hawser("create-md", resource)
		m.hawser("up", resource)
	}
	a.wait("connected", func(st *control.Status) bool { return st.Peers[0].Connection == "Connected" })

	def, err := a.control.Definition(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	peer, volume := def.Peers[0], def.Volumes[0]
	if peer.Net.Protocol != "C" || peer.Resync.ResyncRate != 40960 || volume.Opts.ALExtents != 257 || volume.Opts.OnIOError != "detach" ||
		volume.DevLink != "/dev/drbd0" || volume.Disk != "/dev/sdc" || def.NodeID != 0 || peer.NodeID != 1 {
		t.Errorf("what runs is not what the file says: %+v", def)
	}
	if !strings.Contains(a.said(), "degr-wfc-timeout 120: nothing waits for peers at boot") {
		t.Errorf("the agent does not name what it does in another way:\n%s", a.said())
	}

	a.hawser("primary", "--force", resource)
	for _, m := range []*machine{a, b} {
		m.wait("the initial sync is over", func(st *control.Status) bool {
			p := st.Peers[0].Volumes[0]
			return st.Volumes[0].DiskState == "UpToDate" && p.DiskState == "UpToDate" && p.Replication == "Established" && p.OutOfSync == 0
		})
	}
	a.must("test", "-L", "/dev/drbd0")
	a.must("test", "-b", "/dev/drbd0")
	if _, err := b.run("test", "-e", "/dev/drbd0"); err == nil {
		t.Error("a Secondary has /dev/drbd0 too")
	}
	size := strings.TrimSpace(a.must("blockdev", "--getsize64", "/dev/drbd0"))
	if n := fmt.Sprint(volumeSize(t, a)); size != n {
		t.Errorf("/dev/drbd0 has %s bytes, the volume %s", size, n)
	}
	a.must("mkfs.ext4", "-q", "/dev/drbd0")
	point := filepath.Join(a.dir, "mnt")
	a.must("mkdir", point)
	a.must("sh", "-ec", `mount /dev/drbd0 "$1"; echo "written on a" >"$1/file"; umount "$1"`, "sh", point)
	a.hawser("secondary", resource)
	if _, err := a.run("test", "-e", "/dev/drbd0"); err == nil {
		t.Error("a Secondary still has /dev/drbd0")
	}

	b.hawser("primary", resource)
	b.must("test", "-b", "/dev/drbd0")
	point = filepath.Join(b.dir, "mnt")
	b.must("mkdir", point)
	if got := b.must("sh", "-ec", `mount /dev/drbd0 "$1"; cat "$1/file"; echo more >"$1/more"; umount "$1"`, "sh", point); got != "written on a\n" {
		t.Errorf("b reads %q", got)
	}
	b.hawser("secondary", resource)

	// Back to drbd.conf: what the original makes of it is what it makes of the file.
	text := a.hawser("dump", "--format", "drbd", resource)
	for _, want := range []string{"al-extents       257;", "resync-rate      40M;", "/dev/drbd0 minor 0;", "address          ipv4 192.168.90.17:7790;", "on-io-error      detach;"} {
		if !strings.Contains(text, want) {
			t.Errorf("dump has no %q:\n%s", want, text)
		}
	}
	same(t, a, b, volumeSize(t, a))
}

// The same file, imported.
func TestOldFileIsImported(t *testing.T) {
	a, b := pair(t)
	file := filepath.Join(filepath.Dir(a.dir), "drbd.conf")
	if err := os.WriteFile(file, []byte(conf), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, m := range []*machine{a, b} {
		m.hawser("import", file)
		m.startAgent()
		m.hawser("create-md", resource)
		m.hawser("up", resource)
	}
	a.wait("connected", func(st *control.Status) bool { return st.Peers[0].Connection == "Connected" })
	def, err := b.control.Definition(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if def.Volumes[0].Opts.ALExtents != 257 || def.Peers[0].Resync.ResyncRate != 40960 || def.NodeID != 1 {
		t.Errorf("what runs is not what the file says: %+v", def)
	}
}

func volumeSize(t *testing.T, m *machine) int64 {
	t.Helper()
	st, err := m.control.Status(context.WithoutCancel(t.Context()))
	if err != nil {
		t.Fatal(err)
	}
	return st.Volumes[0].Size
}

// same compares the data of both disks.
func same(t *testing.T, a, b *machine, size int64) {
	t.Helper()
	var data [2][]byte
	for i, m := range []*machine{a, b} {
		m.hawser("down", resource)
		all, err := os.ReadFile(filepath.Join(m.dir, "disk.img"))
		if err != nil {
			t.Fatal(err)
		}
		data[i] = all[:size]
	}
	if !slices.Equal(data[0], data[1]) {
		t.Error("the disks differ")
	}
}
