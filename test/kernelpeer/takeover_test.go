package kernelpeer

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/hawser-ha/hawser/agent"
	"github.com/hawser-ha/hawser/replicator/control"
	"github.com/hawser-ha/hawser/test/vm"
)

const (
	takeoverMiB = 96
	wroteFiles  = 15 // at least, under each pair of programs
)

// takeover is two machines with a disk each, which go from the kernel's DRBD to hawser and back.
type takeover struct {
	*testing.T
	lab   *vm.Lab
	dir   string // shared with the machines
	acked string // lines of the files that the load's writer knows to be on the disk
	at    string // machine whose volume is mounted
}

var addresses = map[string]string{"da": "10.77.0.51", "db": "10.77.0.52"}

const takeoverConf = `global { usage-count no; }
common { net { protocol C; timeout 29; connect-int 3; ping-int 3; } }
resource r0 {
	device /dev/drbd0; disk /dev/vda; meta-disk internal;
	on da { address 10.77.0.51:7788; }
	on db { address 10.77.0.52:7788; }
}
`

// TestTakeOver is docs/migrate-from-drbd.md from start to end: a pair of kernels with a mounted file system under load
// becomes a pair of hawsers, node by node, and a pair of kernels again. Disks and metadata stay where they are; what
// the load was told is on the disk is there after every step, and no step copies everything.
func TestTakeOver(t *testing.T) {
	m := &takeover{T: t, lab: vm.New(t, "to"), dir: t.TempDir(), acked: filepath.Join(t.TempDir(), "acked")}
	m.lab.Build(m.dir, "github.com/hawser-ha/hawser/cmd/hawser")
	m.put("load.sh", string(must(os.ReadFile("load.sh"))))
	m.put("drbd.conf", takeoverConf)
	if err := os.WriteFile(m.acked, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for node, ip := range addresses {
		m.lab.Script("vm", "start", node, "--ip", ip, "--mem", "400", "--disk", fmt.Sprintf("%s:%dM", m.lab.Disk(node), takeoverMiB),
			"--share", m.dir, "--mods", "drbd,nbd,ext4,crc32c_generic")
		m.lab.Exec(node, "rm -rf /etc/drbd.d; cp /host/drbd.conf /etc/drbd.conf; cp /host/load.sh /run/; cp /host/hawser /usr/bin/; hostname "+node)
		m.lab.Exec(node, "yes | drbdadm create-md --force r0 >/dev/null 2>&1 && drbdadm up r0")
	}
	m.lab.Wait("da", stateLimit, "drbdadm cstate r0 | grep -q ^Connected")
	m.lab.Exec("da", "drbdadm primary --force r0 && mkfs.ext4 -q /dev/drbd0")
	m.kernelInSync("da")
	m.lab.Exec("da", "mount /dev/drbd0 /mnt")
	m.at = "da"
	m.load()

	m.step("the secondary becomes hawser", func() {
		m.lab.Exec("db", "drbdadm down r0 && rmmod drbd")
		m.toHawser("db")
		m.hawserInSync("db")
	})
	m.step("switch over to hawser", func() {
		m.unload()
		m.lab.Exec("da", "drbdadm secondary r0")
		m.hawser("db", "primary r0")
		m.mount("db")
	})
	m.step("the other becomes hawser", func() {
		m.lab.Exec("da", "drbdadm down r0 && rmmod drbd")
		m.toHawser("da")
		m.hawserInSync("da")
	})
	m.step("switch over between hawsers", func() {
		m.unload()
		m.hawser("db", "secondary r0")
		m.hawser("da", "primary r0")
		m.mount("da")
	})
	m.step("the Primary's replicator is killed", func() { // the load waits, and sees no error
		m.lab.Exec("da", fmt.Sprintf("kill -9 %d", m.status("da").PID))
		m.lab.Wait("da", stateLimit, "hawser primary r0 2>/dev/null")
		m.hawserInSync("da")
	})
	m.step("the secondary becomes the kernel's again", func() {
		m.toKernel("db")
		m.kernelInSync("db")
	})
	m.step("switch over to the kernel", func() {
		m.unload()
		m.hawser("da", "secondary r0")
		m.lab.Exec("db", "drbdadm primary r0")
		m.mount("db")
	})
	m.step("the other becomes the kernel's again", func() {
		m.toKernel("da")
		m.kernelInSync("da")
	})

	m.unload()
	for _, node := range []string{"db", "da"} {
		m.lab.Exec(node, "drbdadm down r0 && sync")
	}
	for node := range addresses {
		m.lab.Script("vm", "stop", node)
	}
	const data = takeoverMiB<<20 - 1<<20 // metadata is in the last MiB, and not the same
	a, b := must(os.ReadFile(m.lab.Disk("da"))), must(os.ReadFile(m.lab.Disk("db")))
	if !bytes.Equal(a[:data], b[:data]) {
		t.Error("the disks differ")
	}
	t.Logf("%d files written on the way", bytes.Count(must(os.ReadFile(m.acked)), []byte("\n")))
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

func (m *takeover) put(name, text string) {
	m.Helper()
	if err := os.WriteFile(filepath.Join(m.dir, name), []byte(text), 0o755); err != nil { //nolint:gosec // programs, among others
		m.Fatal(err)
	}
}

// step does one step of the recipe under load, which goes on afterwards.
func (m *takeover) step(what string, do func()) {
	m.Helper()
	began := time.Now()
	do()
	before := m.count()
	m.lab.Wait(m.at, stateLimit, fmt.Sprintf("test $(wc -l </run/acked) -ge %d || ! kill -0 $(cat /run/load.pid) 2>/dev/null", before+wroteFiles))
	if n := m.count(); n < before+wroteFiles {
		m.Fatalf("%s: the load ended with %d files\n%s", what, n, m.lab.Exec(m.at, "tail -n 5 /run/load.log; df /mnt; dmesg | tail -n 30"))
	}
	m.Logf("%s: %s", what, time.Since(began).Round(100*time.Millisecond))
}

func (m *takeover) count() (n int) {
	m.Helper()
	if _, err := fmt.Sscan(m.lab.Exec(m.at, "wc -l </run/acked"), &n); err != nil {
		m.Fatal(err)
	}
	return n
}

// load starts the writer where the volume is mounted.
func (m *takeover) load() {
	m.Helper()
	m.lab.Script("vm", "put", m.at, m.acked, "/run/acked")
	m.lab.Exec(m.at, "rm -f /run/stop; setsid sh /run/load.sh /mnt /run/acked </dev/null >/run/load.log 2>&1 & echo $! >/run/load.pid")
}

// unload ends the writer and unmounts.
func (m *takeover) unload() {
	m.Helper()
	m.lab.Exec(m.at, "touch /run/stop")
	m.lab.Wait(m.at, stateLimit, "! kill -0 $(cat /run/load.pid) 2>/dev/null")
	if err := os.WriteFile(m.acked, []byte(m.lab.Exec(m.at, "cat /run/acked")), 0o600); err != nil {
		m.Fatal(err)
	}
	m.lab.Exec(m.at, "umount /mnt")
}

// mount mounts the volume elsewhere, checks file system and files, and starts the load again.
func (m *takeover) mount(node string) {
	m.Helper()
	m.at = node
	m.lab.Wait(node, stateLimit, "test -b /dev/drbd0")
	m.lab.Exec(node, "e2fsck -fn /dev/drbd0 && mount /dev/drbd0 /mnt")
	m.lab.Script("vm", "put", node, m.acked, "/run/acked")
	m.lab.Exec(node, "cd /mnt && sha256sum -c /run/acked >/run/checked 2>&1 || { grep -v ': OK' /run/checked; exit 1; }")
	m.load()
}

func (m *takeover) hawser(node, args string) string {
	m.Helper()
	return m.lab.Exec(node, "hawser "+args)
}

// toHawser is what the recipe says for a node whose DRBD is down.
func (m *takeover) toHawser(node string) {
	m.Helper()
	m.Log(strings.TrimSpace(m.hawser(node, "import /etc/drbd.conf 2>&1")))
	m.lab.Exec(node, "setsid hawser agent </dev/null >/run/agent.log 2>&1 & echo $! >/run/agent.pid")
	m.lab.Wait(node, stateLimit, "test -S /run/hawser/agent.sock")
	m.Log(strings.TrimSpace(m.hawser(node, "convert-md r0")))
	m.hawser(node, "up r0")
}

// toKernel is the way back.
func (m *takeover) toKernel(node string) {
	m.Helper()
	m.hawser(node, "down r0")
	m.Log(strings.TrimSpace(m.hawser(node, "convert-md r0 --to v08")))
	m.lab.Exec(node, "kill $(cat /run/agent.pid); modprobe drbd && drbdadm up r0")
}

// kernelInSync waits for both disks to be UpToDate, as the kernel of a node sees it.
func (m *takeover) kernelInSync(node string) {
	m.Helper()
	m.lab.Wait(node, syncLimit, "grep -q 'cs:Connected .*ds:UpToDate/UpToDate' /proc/drbd")
	m.Log(strings.TrimSpace(m.lab.Exec(node, "dmesg | grep -a 'Resync done\\|bits set\\|Began resync' | tail -n 3")))
}

// status is what hawser says on a node; nil while its replicator does not answer.
func (m *takeover) status(node string) *control.Status {
	m.Helper()
	var all agent.NodeStatus
	if err := json.Unmarshal([]byte(m.hawser(node, "status --json")), &all); err != nil {
		m.Fatal(err)
	}
	if len(all.Resources) != 1 {
		return nil
	}
	return all.Resources[0].Status
}

// hawserInSync waits for both disks to be UpToDate, and looks how much was copied for it: the bitmap says what differs.
func (m *takeover) hawserInSync(node string) {
	m.Helper()
	var st *control.Status
	for deadline := time.Now().Add(syncLimit); ; <-time.After(200 * time.Millisecond) {
		if st = m.status(node); st != nil {
			p := st.Peers[0]
			if p.Connection == "Connected" && p.Volumes[0].Replication == "Established" && p.Volumes[0].DiskState == "UpToDate" && st.Volumes[0].DiskState == "UpToDate" {
				break
			}
		}
		if time.Now().After(deadline) {
			m.Fatalf("%s: not in sync: %+v\n%s", node, st, m.lab.Exec(node, "tail -n 40 /run/agent.log; tail -n 40 /run/hawser/replicator/*.log"))
		}
	}
	last := st.Peers[0].Volumes[0].LastSync
	if last == nil {
		m.Logf("%s: nothing to resync", node)
		return
	}
	m.Logf("%s: resync of %d KiB", node, last.Done>>10)
	if last.Total > takeoverMiB<<20/2 {
		m.Errorf("%s: resync of %d bytes: that is not what the bitmap says", node, last.Total)
	}
}
