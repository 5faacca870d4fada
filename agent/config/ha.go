package config

import (
	"fmt"
	"time"

	"github.com/hawser-ha/hawser/replicator/control"
)

// HA is what a resource's file says of who decides, and where it should run.
type HA struct {
	Coordination  string        // none, etcd
	AutoPromote   bool          // the agents promote without being asked
	PreferredNode string        // "": none
	Failback      bool          // to the preferred node as soon as it is in sync
	BootWait      time.Duration // a node that has just started gives other nodes in sync so long to appear
}

// HA resolves these options; the resource has passed Check.
func (r *Resource) HA() HA {
	var ha HA
	resolve(target{res: &control.ResourceOpts{}, ha: &ha}, r.Options, inOptions)
	return ha
}

// Coordinated reports whether etcd decides who may write.
func (r *Resource) Coordinated() bool { return r.HA().Coordination == control.CoordinationEtcd }

// onlyCoordinated are options that mean nothing where somebody else decides.
var onlyCoordinated = []string{"on-no-quorum", "auto-promote", "preferred-node", "failback", "boot-wait"}

func (r *Resource) checkHA(c *complaints) {
	coordinated := false
	if how, ok := r.Options.Get("coordination"); ok {
		coordinated = how == control.CoordinationEtcd
	}
	for _, name := range onlyCoordinated {
		if _, ok := r.Options.Get(name); ok && !coordinated {
			c.add("options."+name, "nothing would come of it: coordination is none", "coordination: etcd, or remove it")
		}
	}
	preferred, named := r.Options.Get("preferred-node")
	if named && !r.hasNode(preferred) {
		c.add("options.preferred-node", fmt.Sprintf("node %s is not part of resource %s", preferred, r.Name), didYouMean(preferred, r.nodeNames()))
	}
	for _, n := range r.Nodes {
		if named && n.Name == preferred && n.Diskless {
			c.add("options.preferred-node", "node "+preferred+" holds no copy", "name one with a disk")
		}
	}
	if how, ok := r.Options.Get("failback"); ok && how == "auto" && !named {
		c.add("options.failback", "there is no preferred-node to go back to", "add preferred-node")
	}
}
