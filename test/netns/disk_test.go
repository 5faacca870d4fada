package netns

import (
	"os"
	"strings"
	"testing"
	"time"

	"github.com/hawser-ha/hawser/replicator/control"
	"github.com/hawser-ha/hawser/test/check"
)

// flip inverts one bit of a node's disk.
func (n *node) flip(off int64) {
	n.c.t.Helper()
	f, err := os.OpenFile(n.backing, os.O_RDWR, 0)
	if err != nil {
		n.c.t.Fatal(err)
	}
	defer f.Close()
	b := make([]byte, 1)
	if _, err := f.ReadAt(b, off); err != nil {
		n.c.t.Fatal(err)
	}
	b[0] ^= 0x10
	if _, err := f.WriteAt(b, off); err != nil {
		n.c.t.Fatal(err)
	}
}

// C06: damage to the metadata is found when the disk is attached, and never answered by silence.
func TestC06DamagedMetadata(t *testing.T) {
	const superSize, alSize = 4096, 32 << 10 // at the end of the disk: activity log, superblock
	t.Run("superblock", func(t *testing.T) {
		c := start(t, setup{})
		c.n1.primary()
		w := c.load(check.Options{}, c.n1)
		c.acks(w, 200)
		c.n2.cli("down", resource)
		size, err := os.Stat(c.n2.backing)
		if err != nil {
			t.Fatal(err)
		}
		c.n2.flip(size.Size() - superSize + 64) // inside the fields
		if out, err := c.n2.try("up", resource); err == nil {
			st, _ := c.n2.status()
			if st == nil || st.Volumes[0].LastError == "" {
				t.Errorf("the damage is not told: %s %+v", out, st)
			}
		} else {
			t.Log(err)
		}
		if st, err := c.n2.status(); err == nil && st.Volumes[0].DiskState == "UpToDate" {
			t.Error("the disk is UpToDate")
		}
		c.quiet(w)
	})
	t.Run("activity log", func(t *testing.T) {
		c := start(t, setup{disk: map[string]string{"al-extents": "67"}})
		c.n1.primary()
		w := c.load(check.Options{}, c.n1, c.n2)
		c.acks(w, 300)
		c.n1.crash()
		c.n2.primary()
		c.acks(w, 100)
		w.Stop()
		size, err := os.Stat(c.n1.backing)
		if err != nil {
			t.Fatal(err)
		}
		for off := int64(0); off < alSize; off += 4096 { // every transaction
			c.n1.flip(size.Size() - superSize - alSize + off + 100)
		}
		c.n1.startAgent()
		c.until("the disk attached again or refused", stateLimit, func() bool {
			st, err := c.n1.status()
			return err == nil && (st.Volumes[0].LastError != "" || st.Volumes[0].DiskState == "UpToDate")
		})
		if st := c.n1.now(); st.Volumes[0].LastError != "" {
			t.Log(st.Volumes[0].LastError)
			c.judge(check.Rules{Size: c.o.size}, c.n2)
			return
		}
		c.inSync()
		if got := c.n1.lastSync().Total; got < c.o.size {
			t.Errorf("without its activity log a crashed Primary needs a full resync, not %d bytes", got)
		}
		c.identical()
	})
}

// C07: a disk stops answering. It is given up after disk-timeout, on the Primary and on the Secondary, and the application
// goes on with the other copy.
func TestC07DiskStalls(t *testing.T) {
	const bound = 12 * time.Second
	for _, name := range []string{"n1", "n2"} {
		for _, op := range []string{"write", "all"} {
			t.Run(name+" "+op, func(t *testing.T) {
				c := start(t, setup{fault: []string{name}, disk: map[string]string{"disk-timeout": "1s"}})
				bad := c.node(name)
				c.n1.primary()
				w := c.load(check.Options{}, c.n1)
				c.acks(w, 200)
				bad.faults.do("stall " + op)
				bad.wait("detached", bound, func(st *control.Status) bool { return st.Volumes[0].DiskState <= "Failed" })
				c.acks(w, 200)
				bad.faults.do("clear")
				bad.wait("Diskless", stateLimit, func(st *control.Status) bool { return st.Volumes[0].DiskState == "Diskless" })
				bad.cli("attach", resource)
				c.inSync()
				if st := c.quiet(w); st.MaxLatency > bound {
					t.Errorf("a request took %s", st.MaxLatency)
				}
				c.identical()
			})
		}
	}
}

// down ends within its bound while a disk hangs for ever: the process is killed, and where the kernel does not let it die
// that is said. When the disk answers again, it is gone.
func TestDownWhileTheDiskHangs(t *testing.T) {
	c := start(t, setup{fault: []string{"n1"}})
	c.opTimeout = 5 * time.Second // the sockets of a process that hangs in the kernel stay open
	c.n1.primary()
	w := c.load(check.Options{}, c.n1)
	c.acks(w, 200)
	c.n1.faults.do("stall all")
	c.bounded("down", 2*downTimeout+4*time.Second, func() {
		if _, err := c.n1.try("down", "--force", resource); err != nil && !strings.Contains(err.Error(), "hangs in the kernel") {
			t.Error(err)
		}
	})
	c.n1.faults.do("clear")
	c.until("the end of the replicator", stateLimit, func() bool { return c.n1.pid() == 0 })
	w.Stop()
	c.n1.cli("up", resource)
	c.inSync()
	c.identical()
}

// C08: i/o errors, on each side, of each kind, with each policy.
func TestC08IOErrors(t *testing.T) {
	for _, tc := range []struct{ name, node, fault, policy, state string }{
		{"a write of the Primary fails, detach", "n1", "eio write", "detach", "Diskless"},
		{"a write of the Secondary fails, detach", "n2", "eio write", "detach", "Diskless"},
		{"a flush of the Primary fails, detach", "n1", "eio flush", "detach", "Diskless"},
		{"a flush of the Secondary fails, detach", "n2", "eio flush", "detach", "Diskless"},
		{"reads of the Primary fail and are healed, detach", "n1", "eio read", "detach", ""},
		{"some reads of the Primary fail, pass_on", "n1", "eio read 0 16777216", "pass_on", ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c := start(t, setup{fault: []string{tc.node}, disk: map[string]string{"on-io-error": tc.policy}})
			bad := c.node(tc.node)
			c.n1.primary()
			w := c.load(check.Options{}, c.n1)
			c.acks(w, 200)
			bad.faults.do(tc.fault)
			if tc.state != "" {
				bad.wait(tc.state, stateLimit, func(st *control.Status) bool { return st.Volumes[0].DiskState == tc.state })
			}
			c.acks(w, 200)
			bad.faults.do("clear")
			if tc.state == "Diskless" {
				bad.cli("attach", resource)
			}
			c.acks(w, 50)
			c.quiet(w)
			if tc.policy == "pass_on" && bad.now().Volumes[0].DiskState != "UpToDate" {
				t.Log(c.state())
				bad.cli("detach", "--force", resource)
				bad.cli("attach", resource)
			}
			c.identical()
		})
	}
}

// C09: the disk is full, on one side and on both.
func TestC09DiskFull(t *testing.T) {
	t.Run("one side", func(t *testing.T) {
		c := start(t, setup{fault: []string{"n2"}})
		c.n1.primary()
		w := c.load(check.Options{}, c.n1)
		c.acks(w, 200)
		c.n2.faults.do("enospc")
		c.n2.wait("detached", stateLimit, func(st *control.Status) bool { return st.Volumes[0].DiskState == "Diskless" })
		c.acks(w, 200)
		c.n2.faults.do("clear")
		c.n2.cli("attach", resource)
		c.inSync()
		c.quiet(w)
		c.identical()
	})
	t.Run("both sides", func(t *testing.T) {
		c := start(t, setup{fault: []string{"n1", "n2"}})
		c.n1.primary()
		w := c.load(check.Options{}, c.n1)
		c.acks(w, 200)
		for _, n := range c.data() { // only the data: the metadata has its place
			n.faults.do("enospc 0 67108864")
		}
		c.until("errors", stateLimit, func() bool { return w.Stats().Failures() > 0 })
		for _, n := range c.data() {
			n.faults.do("clear")
		}
		w.Stop()
		for _, n := range c.data() {
			if n.now().Volumes[0].DiskState == "Diskless" {
				n.cli("attach", resource)
			}
		}
		c.inSync()
		c.identical()
	})
}
