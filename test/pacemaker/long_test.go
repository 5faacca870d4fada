package pacemaker

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

// onlyLong skips what takes long, and says how to run it.
func onlyLong(t *testing.T) {
	t.Helper()
	if !long {
		t.Skip("runs with HAWSER_TEST_PACEMAKER=long (make test-pacemaker)")
	}
}

// A node whose processes all hang, and whose kernel still answers TCP.
func TestNodeThatHangs(t *testing.T) {
	onlyLong(t)
	v := start(t, setup{})
	v.floor()
	v.write()
	v.failover("hung node", func(old string) {
		v.expect(old)
		v.must("cluster", "freeze", old)
	})
	v.finish()
}

// The replicator hangs: what the resource agent asks for ends in time all the same, and no node is fenced for it.
func TestReplicatorThatHangs(t *testing.T) {
	onlyLong(t)
	v := start(t, setup{})
	v.write()
	for _, what := range []string{"r0", "agent"} {
		p := v.settled()
		file := map[string]string{"r0": "/run/hawser/replicator/r0.pid", "agent": "/run/hawser/agent.pid"}[what]
		v.on(p, "sh", "-c", "kill -STOP $(cat "+file+")")
		v.on(p, "crm_attribute", "--node", p, "--name", "standby", "--update", "on")
		began := time.Now()
		v.until("another node is Primary", 2*soon, func() bool { n := v.primary(); return n != "" && n != p })
		took := time.Since(began)
		v.t.Logf("%s stopped: another node was Primary after %s", what, took.Round(100*time.Millisecond))
		if took > 90*time.Second {
			t.Errorf("demote and stop took %s", took)
		}
		v.on(p, "crm_attribute", "--node", p, "--name", "standby", "--delete")
		v.on(p, "sh", "-c", "kill -CONT $(cat "+file+") 2>/dev/null || :")
		v.acks(50)
		v.on(v.primary(), "crm_resource", "--cleanup")
	}
	v.finish()
}

// A power switch that does not answer: nobody is promoted, and no write acknowledged, until somebody is sure.
func TestPowerSwitchIsDead(t *testing.T) {
	onlyLong(t)
	v := start(t, setup{})
	v.write()
	old := v.settled()
	peer := v.other(old)
	v.must("ipmi", "kill", old)
	v.must("cluster", "kill", old)
	v.until("the peer knows that it has to fence", soon, func() bool {
		out, err := v.try(peer, "crm_mon", "-1")
		return err == nil && strings.Contains(out, "UNCLEAN")
	})
	after := time.Now()
	v.until("20 s go by", soon, func() bool {
		if p := v.primary(); p != "" {
			t.Fatalf("%s was promoted while nobody knows what %s does", p, old)
		}
		return time.Since(after) > 20*time.Second
	})
	v.must("ipmi", "up", old)
	v.expect(old)
	v.until("it is fenced, and the peer promoted", 3*soon, func() bool { return v.primary() == peer })
	v.acks(50)
	v.finish()
}

// A full resync takes its time. As long as it runs the peer stays banned, and it is not promoted when the Primary dies.
func TestFullResyncWhileFenced(t *testing.T) {
	onlyLong(t)
	v := start(t, setup{more: "disk: {c-plan-ahead: 0, resync-rate: 2M}\n"})
	v.write()
	p := v.settled()
	peer := v.other(p)
	v.cutReplication(p)
	v.until("the peer is banned", soon, func() bool { return len(v.bans(p)) == 1 })
	v.on(peer, "hawser", "invalidate", "--force", "r0")
	v.healReplication(p)
	syncing := func() bool {
		st, err := v.status(p)
		return err == nil && st.Peers[0].Connection == "Connected" && st.Peers[0].Volumes[0].Replication == "SyncSource"
	}
	v.until("a resync runs", soon, syncing)
	looks := 0
	v.until("it ends", 2*soon, func() bool {
		bans := len(v.bans(p))
		if !syncing() {
			return true
		}
		if looks++; bans != 1 {
			t.Fatalf("%d constraints while the peer is Inconsistent", bans)
		}
		return false
	})
	if looks < 3 {
		t.Errorf("the resync was seen %d times", looks)
	}
	if now := v.settled(); now != p {
		t.Errorf("the volume moved from %s to %s", p, now)
	}
	v.finish()
}

// The Primary dies while its peer is banned: nobody may be promoted, whatever Pacemaker would like, until it is back.
func TestPrimaryDiesWhileItsPeerIsOld(t *testing.T) {
	onlyLong(t)
	v := start(t, setup{})
	v.write()
	p := v.settled()
	peer := v.other(p)
	v.cutReplication(p)
	v.until("the peer is banned", soon, func() bool { return len(v.bans(peer)) == 1 })
	v.acks(100) // which the peer does not have
	v.expect(p)
	v.must("cluster", "kill", p)
	v.until("the Primary was fenced, boots, and is promoted again", 2*soon, func() bool {
		if st, err := v.status(peer); err == nil && st.Role == "Primary" {
			t.Fatalf("%s was promoted with old data", peer)
		}
		return v.primary() == p
	})
	v.finish()
}

// Three nodes vote, two of them hold the volume.
func TestThirdNodeVotes(t *testing.T) {
	onlyLong(t)
	v := start(t, setup{nodes: 3, holders: 2})
	v.floor()
	v.write()
	v.failover("power loss", func(old string) {
		v.expect(old)
		v.must("cluster", "kill", old)
	})
	v.failover("the promoted node is cut off, and has no quorum", func(old string) {
		v.expect(old)
		v.must("cluster", "cut", old)
	})
	v.must("cluster", "heal")
	v.finish()
}

// O01: the resource agent of drbd-utils, as Debian has it, with hawser behind the names drbdadm and drbdsetup. The configuration is
// ours with the agent's name changed.
func TestStockAgent(t *testing.T) {
	onlyLong(t)
	linbit, err := filepath.Abs("lab/linbit")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat("/usr/lib/ocf/resource.d/linbit/drbd"); err != nil {
		t.Fatalf("drbd-utils is not installed: make deps: %v", err)
	}
	v := start(t, setup{device: "fuse /dev/drbd0", binds: []string{hawser + ":/usr/sbin/drbdadm", hawser + ":/usr/sbin/drbdsetup", linbit + ":/linbit"},
		boot: linbit + "/10-bash-env", edit: func(config string) string {
			return strings.ReplaceAll(config, "ocf:hawser:volume", "ocf:linbit:drbd")
		}})
	v.floor()
	v.write()
	v.failover("standby", func(old string) { v.on(old, "crm_attribute", "--node", old, "--name", "standby", "--update", "on") })
	for _, n := range v.nodes {
		v.on(n, "crm_attribute", "--node", n, "--name", "standby", "--delete")
	}
	v.failover("power loss", func(old string) {
		v.expect(old)
		v.must("cluster", "kill", old)
	})
	v.settled()
	// All actions stay far below the timeouts that the agent advertises: monitor 20 s, promote and demote 90 s, stop 100 s.
	for _, n := range v.nodes {
		out := v.on(n, "sh", "-c", "cibadmin -Q -o status | tr ' ' '\n' | sed -n 's/^exec-time=\"\\([0-9]*\\)\".*/\\1/p' | sort -n | tail -n 1")
		t.Logf("%s: the slowest action took %s ms", n, strings.TrimSpace(out))
		if ms, err := strconv.Atoi(strings.TrimSpace(out)); err != nil || ms > 60000 {
			t.Errorf("%s: the slowest action took %q ms", n, out)
		}
	}
	v.finish()
}

// A file system and an address where the volume is promoted, as people have it.
func TestServices(t *testing.T) {
	onlyLong(t)
	v := start(t, setup{device: "fuse", before: func(v *volume) {
		for _, n := range v.nodes {
			v.on(n, "mkdir", "-p", "/srv/data")
		}
	}})
	v.write()
	p := v.settled()
	v.load.Stop()
	v.on(p, "mkfs.ext4", "-q", "/dev/hawser/r0/0")
	v.configureAgain(fmt.Sprintf("%s.250/24", v.net))
	v.until("the services run", soon, func() bool { return v.serves(v.primary()) })
	p = v.primary()
	v.on(p, "sh", "-c", "echo written >/srv/data/file && sync /srv/data/file")
	other := v.other(p)
	v.on(p, "crm_attribute", "--node", p, "--name", "standby", "--update", "on")
	v.until("they moved", soon, func() bool { return v.primary() == other && v.serves(other) })
	if text := v.on(other, "cat", "/srv/data/file"); text != "written\n" {
		t.Errorf("the file holds %q", text)
	}
	v.on(other, "crm_attribute", "--node", p, "--name", "standby", "--delete")
	v.settled()
	v.on(other, "sh", "-c", "echo again >/srv/data/file && sync /srv/data/file")
	v.expect(other)
	v.must("cluster", "kill", other)
	v.until("they moved back", 2*soon, func() bool { return v.primary() == p && v.serves(p) })
	if text := v.on(p, "cat", "/srv/data/file"); text != "again\n" {
		t.Errorf("the file holds %q", text)
	}
	v.settled()
	v.account()
}

// serves tells whether a node has file system and address.
func (v *volume) serves(node string) bool {
	out, err := v.try(node, "sh", "-c", "grep -c ' /srv/data ' /proc/mounts; ip -o addr show | grep -c '"+v.net+".250/'")
	return err == nil && slices.Equal(strings.Fields(out), []string{"1", "1"})
}

// configureAgain loads a configuration with services over the one that is there.
func (v *volume) configureAgain(ip string) {
	v.t.Helper()
	v.configure(setup{extra: []string{"--mount", "/srv/data", "--ip", ip}})
}
