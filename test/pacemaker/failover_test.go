package pacemaker

import (
	"slices"
	"strings"
	"testing"
	"time"
)

// floor adds what costs nothing to fail over: Pacemaker's own example of a promotable clone, promoted where r0 is.
func (v *volume) floor() {
	v.t.Helper()
	_, err := v.feed(`primitive floor ocf:pacemaker:Stateful op monitor interval=10s role=Promoted timeout=20s op monitor interval=11s role=Unpromoted timeout=20s
clone floor-clone floor meta promotable=true
colocation floor-beside-r0 inf: floor-clone:Promoted r0-clone:Promoted
commit
`, "cluster", "exec", "n1", "--", "crm", "configure")
	if err != nil {
		v.t.Fatal(err)
	}
}

// failover does something to the Primary and waits until another node is; it gives that one.
func (v *volume) failover(what string, do func(old string)) string {
	v.t.Helper()
	old := v.settled()
	v.until(what+": the floor is promoted beside the volume", soon, func() bool {
		return slices.Equal(v.promoted(old, "floor-clone"), []string{old}) && v.idle(old)
	})
	began := time.Now()
	do(old)
	heir, volume, floor := "", time.Duration(0), time.Duration(0)
	v.until(what+": another node is promoted", 2*soon, func() bool {
		for _, n := range v.nodes {
			if n == old {
				continue
			}
			if st, err := v.status(n); err == nil && st.Role == "Primary" && volume == 0 {
				heir, volume = n, time.Since(began)
			}
			if root, err := v.root(n); err == nil && floor == 0 && statefulIs(root, "promoted", "master") {
				floor = time.Since(began)
			}
		}
		return volume != 0 && (floor != 0 || time.Since(began) > volume+10*time.Second)
	})
	if floor == 0 {
		v.t.Errorf("%s: the floor did not follow within 10 s", what)
	}
	v.acks(50)
	v.t.Logf("%s: %s -> %s: the volume was Primary after %.1f s, ocf:pacemaker:Stateful beside it after %.1f s; writes went on after %.1f s",
		what, old, heir, volume.Seconds(), floor.Seconds(), time.Since(began).Seconds())
	return heir
}

// replicationLost cuts the replication only. The cluster's own network is there, so nobody has to be fenced: the Primary
// bans its peer, and goes on.
func (v *volume) replicationLost() {
	v.t.Helper()
	p := v.settled()
	peer := v.other(p)
	v.undisturbed("replication lost", func() {
		v.cutReplication(p)
		v.until("the peer is banned, on both nodes", soon, func() bool { return len(v.bans(p)) == 1 && len(v.bans(peer)) == 1 })
	})
	if text := v.on(p, "hawser", "status", "r0"); !strings.Contains(text, "fenced: "+peer+" may not be promoted, says "+p) {
		v.t.Errorf("hawser status does not tell that %s is banned:\n%s", peer, text)
	}
	v.healReplication(p)
	if now := v.settled(); now != p {
		v.t.Errorf("the volume moved from %s to %s because the replication was lost", p, now)
	}
	v.until("the ban goes when the peer is UpToDate", soon, func() bool { return len(v.bans(p)) == 0 })
}

// cutReplication drops what the replicators of one node say and hear.
func (v *volume) cutReplication(node string) {
	v.t.Helper()
	_, err := v.feed(`table inet cut {
	chain in { type filter hook input priority 0; tcp dport 7789 drop; tcp sport 7789 drop; }
	chain out { type filter hook output priority 0; tcp dport 7789 drop; tcp sport 7789 drop; }
}
`, "cluster", "exec", node, "--", "nft", "-f", "-")
	if err != nil {
		v.t.Fatal(err)
	}
}

func (v *volume) healReplication(node string) {
	v.t.Helper()
	v.on(node, "nft", "delete", "table", "inet", "cut")
}

// What must always hold, in the life of one cluster.
func TestLifeOfACluster(t *testing.T) {
	v := start(t, setup{})
	v.floor()
	v.write()

	v.failover("standby", func(old string) { v.on(old, "crm_attribute", "--node", old, "--name", "standby", "--update", "on") })
	for _, n := range v.nodes {
		v.on(n, "crm_attribute", "--node", n, "--name", "standby", "--delete")
	}
	p := v.settled()

	v.undisturbed("agent killed", func() {
		v.on(p, "sh", "-c", "kill -9 $(cat /run/hawser/agent.pid)")
		v.until("Pacemaker starts the agent again", soon, func() bool {
			out, err := v.try(p, "hawser", "pacemaker", "agent-state")
			return err == nil && strings.HasPrefix(out, "up ")
		})
	})
	if now := v.settled(); now != p {
		t.Errorf("the volume moved from %s to %s because the agent died", p, now)
	}

	v.undisturbed("Pacemaker restarted under maintenance", func() {
		v.on(p, "crm_attribute", "--name", "maintenance-mode", "--update", "true")
		v.on(p, "systemctl", "stop", "pacemaker")
		v.acks(50)
		v.on(p, "systemctl", "start", "pacemaker")
		v.must("cluster", "wait", "90")
		v.until("it sees the volume", soon, func() bool { return len(v.promoted(p, "r0-clone")) == 1 && v.idle(p) })
		v.on(p, "crm_attribute", "--name", "maintenance-mode", "--delete")
		v.until("it is idle", soon, func() bool { return v.idle(p) })
	})
	if now := v.settled(); now != p {
		t.Errorf("the volume moved from %s to %s because Pacemaker was restarted", p, now)
	}

	v.on(p, "sh", "-c", "kill -9 $(cat /run/hawser/replicator/r0.pid)")
	v.until("the volume is Primary again after its replicator was killed", 2*soon, func() bool { return v.primary() != "" })
	v.acks(50)

	v.replicationLost()

	v.failover("power loss", func(old string) {
		v.expect(old)
		v.must("cluster", "kill", old)
	})

	old := v.settled()
	v.must("cluster", "cut", old)
	v.expect(v.other(old))
	v.until("partition: the Secondary is fenced", soon, func() bool { return v.fencings(v.other(old)) == v.fenced[v.other(old)] })
	v.must("cluster", "heal")
	v.acks(50)
	if now := v.settled(); now != old {
		t.Errorf("the volume moved from %s to %s because the other node was cut off", old, now)
	}
	v.finish()
}

// Tools that people use to load a configuration.
func TestConfigurationsLoad(t *testing.T) {
	if !long {
		t.Skip("HAWSER_TEST_PACEMAKER=long: crm is loaded by TestLifeOfACluster, pcs and cib here")
	}
	for _, format := range []string{"pcs", "cib"} {
		t.Run(format, func(t *testing.T) {
			v := start(t, setup{format: format})
			v.floor()
			v.write()
			v.failover("power loss", func(old string) {
				v.expect(old)
				v.must("cluster", "kill", old)
			})
			v.finish()
		})
	}
}
