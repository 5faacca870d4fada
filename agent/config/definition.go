package config

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/hawser-ha/hawser/replicator/control"
)

// resolve writes the options of some sections, defaults included, to t. It
// reports false when a value is wrong.
func resolve(t target, opts Options, in ...section) bool {
	for i := range table {
		o := &table[i]
		if !slices.Contains(in, o.section) {
			continue
		}
		text, ok := opts.Get(o.name)
		if !ok {
			if text = o.def; text == "" {
				continue
			}
		}
		v, why := o.parse(text)
		if why != "" {
			return false
		}
		o.set(t, v)
	}
	if _, ok := opts.Get("c-min-rate"); !ok && t.resync != nil && t.resync.CMaxRate > 0 {
		t.resync.CMinRate = min(t.resync.CMinRate, t.resync.CMaxRate) // the default gives way
	}
	return true
}

// Definition is the resource as node runs it. The error joins what is wrong with
// the resource, or says that node is not part of it.
func (r *Resource) Definition(node string) (control.Definition, error) {
	if err := r.Check(); err != nil {
		return control.Definition{}, err
	}
	self := r.find(node)
	if self < 0 {
		c := complaints{file: r.File, at: r.at}
		c.add("nodes", fmt.Sprintf("node %s is not part of resource %s", node, r.Name), didYouMean(node, r.nodeNames()))
		return control.Definition{}, c.err()
	}
	me := r.Nodes[self]
	d := control.Definition{Name: r.Name, Node: me.Name, NodeID: r.id(self)}
	d.NBD.Unix = "/run/hawser/nbd/" + r.Name + ".sock"
	var ha HA
	resolve(target{res: &d.Options, ha: &ha}, r.Options, inOptions)
	if ha.Coordination == control.CoordinationEtcd {
		d.Coordination = ha.Coordination
	}
	resolve(target{nbd: &d.NBD}, overlay(r.NBD, me.NBD), inNBD)
	for _, h := range r.Handlers {
		d.Handlers = append(d.Handlers, h.Name)
	}
	slices.Sort(d.Handlers)
	for _, v := range r.Volumes {
		d.Volumes = append(d.Volumes, r.volume(me.merge(v)))
	}
	slices.SortFunc(d.Volumes, func(a, b control.VolumeDef) int { return cmp.Compare(a.Number, b.Number) })
	for i := range r.Nodes {
		if i != self {
			d.Peers = append(d.Peers, r.peer(self, i))
		}
	}
	slices.SortFunc(d.Peers, func(a, b control.PeerDef) int { return cmp.Compare(a.NodeID, b.NodeID) })
	slot := 0
	for i := range d.Peers {
		d.Peers[i].BitmapSlot = -1
		if !d.Peers[i].Diskless {
			d.Peers[i].BitmapSlot = slot
			slot++
		}
	}
	return d, nil
}

// find is the index of a node, -1 for none. Like drbdadm it does not mind case,
// and a domain that only one of the two names has.
func (r *Resource) find(node string) int {
	if i := slices.IndexFunc(r.Nodes, func(n Node) bool { return n.Name == node }); i >= 0 {
		return i
	}
	found := -1
	for i, n := range r.Nodes {
		a, domainA, hasA := strings.Cut(strings.ToLower(n.Name), ".")
		b, domainB, hasB := strings.Cut(strings.ToLower(node), ".")
		if a != b || hasA && hasB && domainA != domainB {
			continue
		}
		if found >= 0 {
			return -1
		}
		found = i
	}
	return found
}

func (r *Resource) id(i int) int {
	if id := r.Nodes[i].ID; id >= 0 {
		return id
	}
	return i
}

func (r *Resource) volume(v Volume) control.VolumeDef {
	d := control.VolumeDef{Number: v.Number, MetaIndex: -1}
	d.Device, d.DevLink, _ = parseDevice(v.Device)
	if v.Disk != none {
		d.Disk = v.Disk
		d.MetaDisk, d.MetaIndex, _ = parseMetaDisk(v.MetaDisk)
	}
	if v.Size != "" {
		d.Size, _ = parseSize(v.Size)
	}
	resolve(target{disk: &d.Opts}, overlay(r.Disk, v.Options), inDisk)
	return d
}

// diskless reports whether no volume has a disk on the node.
func (r *Resource) diskless(n Node) bool {
	for _, v := range r.Volumes {
		if n.merge(v).Disk != none {
			return false
		}
	}
	return true
}

func (r *Resource) peer(self, i int) control.PeerDef {
	me, n := r.Nodes[self], r.Nodes[i]
	p := control.PeerDef{Name: n.Name, NodeID: r.id(i), Diskless: r.diskless(n), Local: me.Address, Remote: n.Address}
	net, disk := r.Net, r.Disk
	for _, conn := range r.Connections {
		if conn.Nodes != [2]string{me.Name, n.Name} && conn.Nodes != [2]string{n.Name, me.Name} {
			continue
		}
		net, disk = overlay(net, conn.Net), overlay(disk, conn.Disk)
		if a, ok := conn.Addresses.Get(me.Name); ok {
			p.Local = a
		}
		if a, ok := conn.Addresses.Get(n.Name); ok {
			p.Remote = a
		}
	}
	resolve(target{net: &p.Net}, net, inNet)
	resolve(target{resync: &p.Resync}, disk, inResync)
	switch p.Net.AfterSB0Pri {
	case discardNode + me.Name:
		p.Net.AfterSB0Pri = "discard-local"
	case discardNode + n.Name:
		p.Net.AfterSB0Pri = "discard-remote"
	default:
		if strings.HasPrefix(p.Net.AfterSB0Pri, discardNode) {
			p.Net.AfterSB0Pri = "disconnect" // it names a third node
		}
	}
	return p
}
