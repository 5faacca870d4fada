package agent

import (
	"slices"
	"testing"

	"github.com/hawser-ha/hawser/replicator/control"
)

// What a handler written for DRBD finds in its environment.
func TestHandlerEnvironment(t *testing.T) {
	def := &control.Definition{Name: "r0", Node: "alpha", NodeID: 1,
		Volumes: []control.VolumeDef{{Number: 0, Disk: "/dev/vg/a"}, {Number: 3, Disk: "/dev/vg/b", DevLink: "/dev/drbd7"}},
		Peers: []control.PeerDef{{Name: "beta", NodeID: 0, Local: "[fd00::1]:7789", Remote: "[fd00::2]:7789"},
			{Name: "gamma", NodeID: 2, Local: "10.1.0.1:7789", Remote: "10.1.0.3:7789"}}}
	for _, k := range []struct {
		event control.Event
		want  []string
	}{
		{control.Event{Name: "before-resync-target", Volume: 3, Peer: "beta"}, []string{"DRBD_RESOURCE=r0", "DRBD_VOLUME=3", "DRBD_MINOR=7",
			"DRBD_LL_DISK=/dev/vg/b", "DRBD_BACKING_DEV=/dev/vg/b", "DRBD_NODE_ID_0=beta", "DRBD_NODE_ID_1=alpha", "DRBD_NODE_ID_2=gamma",
			"DRBD_MY_NODE_ID=1", "DRBD_PEER_NODE_ID=0", "DRBD_PEER=beta", "DRBD_PEERS=beta", "DRBD_PEER_ADDRESS=fd00::2", "DRBD_PEER_AF=ipv6",
			"DRBD_MY_ADDRESS=fd00::1", "DRBD_MY_AF=ipv6"}},
		{control.Event{Name: "split-brain", Volume: 0, Peer: "gamma"}, []string{"DRBD_VOLUME=0", "DRBD_LL_DISK=/dev/vg/a", "DRBD_PEER_NODE_ID=2",
			"DRBD_PEER_ADDRESS=10.1.0.3", "DRBD_PEER_AF=ipv4", "DRBD_MY_ADDRESS=10.1.0.1", "DRBD_MY_AF=ipv4"}},
	} {
		env := handlerEnv(def, k.event)
		for _, w := range k.want {
			if !slices.Contains(env, w) {
				t.Errorf("%s: no %s in %q", k.event.Name, w, env)
			}
		}
	}
}
