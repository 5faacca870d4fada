package compat

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/hawser-ha/hawser/agent/drbdconf"
)

// Quote writes an argument as a shell reads it, as drbdadm -d does.
func Quote(arg string) string {
	var b strings.Builder
	for _, r := range arg {
		if !strings.ContainsRune("-_./:=@+%", r) && (r < '0' || r > '9') && (r < 'A' || r > 'Z') && (r < 'a' || r > 'z') && r < 0x80 {
			b.WriteByte('\\')
		}
		b.WriteRune(r)
	}
	return b.String()
}

// Plan is one resource of a drbd.conf as a node runs it: what drbdadm would say to drbdsetup.
type Plan struct {
	R     *drbdconf.Resource // expanded
	Self  *drbdconf.Host
	Minor func(resource string, volume int) int // of volumes that have no device /dev/drbdN
	Conf  *drbdconf.Config                      // for resync-after
}

// PlanOf looks for the node's part of a resource; false: it has none.
func PlanOf(cfg *drbdconf.Config, name string, who drbdconf.VerifyOptions, minor func(string, int) int) (*Plan, bool) {
	r := cfg.Resource(name)
	if r == nil || r.Self(who) == nil {
		return nil, false
	}
	r = r.Expand()
	self := r.Self(who)
	return &Plan{R: r, Self: self, Minor: minor, Conf: cfg}, self != nil
}

// Volume is a volume of the node.
func (p *Plan) Volume(number int) drbdconf.Volume { return p.R.On(p.Self, number) }

// Numbers lists the volumes of the node.
func (p *Plan) Numbers() []int { return p.R.Numbers(p.Self) }

// MinorOf is the minor of a volume of the node.
func (p *Plan) MinorOf(number int) int {
	if d := p.Volume(number).Device; d != nil && d.Minor >= 0 {
		return d.Minor
	}
	if p.Minor != nil {
		return p.Minor(p.R.Name, number)
	}
	return number
}

// Peer is the other end of a connection.
type Peer struct {
	Host  *drbdconf.Host
	Conn  *drbdconf.Connection
	Paths [][2]*drbdconf.Address // ours, theirs
}

// ID is the peer's node id.
func (p *Peer) ID() int { return p.Host.NodeID }

// Name is how drbdsetup calls the peer.
func (p *Peer) Name() string { return strings.ReplaceAll(p.Host.Name(), ":", "_") }

// Peers lists the connections of the node.
func (p *Plan) Peers() []Peer {
	var out []Peer
	for _, c := range p.R.ResolvedConnections() {
		var peer Peer
		for _, path := range c.AllPaths() {
			if len(path.Endpoints) != 2 {
				continue
			}
			a, b := path.Endpoints[0], path.Endpoints[1]
			ha, hb := p.R.Host(a.Host), p.R.Host(b.Host)
			if hb == p.Self {
				a, b, ha, hb = b, a, hb, ha
			}
			if ha != p.Self || hb == nil {
				continue
			}
			peer.Host, peer.Conn = hb, c
			ours, theirs := endpoint(a, ha), endpoint(b, hb)
			if proxy := cmp.Or(a.Proxy, ha.Proxy); proxy != nil && proxy.Inside != nil {
				theirs = proxy.Inside // of the proxy on this node
			}
			peer.Paths = append(peer.Paths, [2]*drbdconf.Address{ours, theirs})
		}
		if peer.Host != nil {
			out = append(out, peer)
		}
	}
	slices.SortStableFunc(out, func(a, b Peer) int { return cmp.Compare(a.ID(), b.ID()) })
	return out
}

func endpoint(e drbdconf.Endpoint, h *drbdconf.Host) *drbdconf.Address {
	if e.Address != nil {
		return e.Address
	}
	if h.Address == nil {
		return &drbdconf.Address{Family: "ipv4"}
	}
	return h.Address
}

func addr(a *drbdconf.Address) string {
	if a.Family == "ipv6" {
		return "ipv6:[" + a.Text + "]:" + a.Port
	}
	return a.Family + ":" + a.Text + ":" + a.Port
}

// flags are options as arguments.
func (p *Plan) flags(section string, opts drbdconf.Options, want func(*drbdconf.Spec) bool) []string {
	var out []string
	for _, o := range opts {
		spec := drbdconf.Find(section, o.Name)
		if spec != nil && !want(spec) || o.Void {
			continue
		}
		value := o.Value
		if o.Name == "resync-after" {
			name, number, cut := strings.Cut(value, "/")
			volume := 0
			if cut {
				volume, _ = strconv.Atoi(number)
			}
			if r := p.Conf.Resource(name); r != nil {
				for _, h := range r.Hosts {
					if slices.Contains(h.Names, p.Self.Name()) {
						if d := r.On(h, volume).Device; d != nil {
							value = strconv.Itoa(d.Minor)
						}
					}
				}
			}
		}
		switch {
		case o.Flag && value == "":
			out = append(out, "--"+o.Name)
		default:
			out = append(out, "--"+o.Name+"="+value)
		}
	}
	return out
}

func isPeer(s *drbdconf.Spec) bool  { return s.Peer }
func isLocal(s *drbdconf.Spec) bool { return !s.Peer && !isDevice(s) }
func isDevice(s *drbdconf.Spec) bool {
	return slices.Contains([]string{"discard-granularity", "block-size", "max-bio-size"}, s.Name)
}
func isAny(*drbdconf.Spec) bool { return true }

// Command is one line: a program and its arguments, unquoted.
type Command []string

// String is the line, for a shell.
func (c Command) String() string {
	words := make([]string, len(c))
	for i, w := range c {
		words[i] = Quote(w)
	}
	return strings.Join(words, " ")
}

func command(words ...any) Command {
	c := make(Command, 0, len(words))
	for _, w := range words {
		if list, ok := w.([]string); ok {
			c = append(c, list...)
		} else {
			c = append(c, fmt.Sprint(w))
		}
	}
	return c
}

// NewResource makes a resource.
func (p *Plan) NewResource() []Command {
	return []Command{command("drbdsetup", "new-resource", p.R.Name, p.Self.NodeID, p.flags("options", p.R.Get("options"), isAny))}
}

// NewMinor makes its volumes.
func (p *Plan) NewMinor() []Command {
	var out []Command
	for _, n := range p.Numbers() {
		c := command("drbdsetup", "new-minor", p.R.Name, p.MinorOf(n), n)
		if d := p.Volume(n).Disk; d == "" || d == drbdconf.None {
			c = append(c, "--diskless")
		}
		c = append(c, p.diskFlags(n, isDevice)...)
		out = append(out, c)
	}
	return out
}

// NewPeer makes its connections.
func (p *Plan) NewPeer() []Command {
	var out []Command
	for _, peer := range p.Peers() {
		out = append(out, command("drbdsetup", "new-peer", p.R.Name, peer.ID(), "--_name="+peer.Name(), p.netFlags(peer)))
	}
	return out
}

func (p *Plan) netFlags(peer Peer) []string {
	if peer.Conn.Net == nil {
		return nil
	}
	return p.flags("net", peer.Conn.Net.Options, isAny)
}

// NewPath makes the paths of its connections.
func (p *Plan) NewPath() []Command {
	var out []Command
	for _, peer := range p.Peers() {
		for _, path := range peer.Paths {
			out = append(out, command("drbdsetup", "new-path", p.R.Name, peer.ID(), addr(path[0]), addr(path[1])))
		}
	}
	return out
}

// PeerDeviceOptions sets the options of volumes on connections.
func (p *Plan) PeerDeviceOptions() []Command {
	var out []Command
	for _, peer := range p.Peers() {
		for _, v := range peer.Conn.Volumes {
			var f []string
			if v.Disk != nil {
				f = p.flags("disk", v.Disk.Options, isPeer)
			}
			theirs := p.R.On(peer.Host, v.Number)
			if theirs.Disk == drbdconf.None {
				f = append(f, "--bitmap=no")
			}
			if theirs.Tiebreaker != nil && theirs.Tiebreaker.Value == "no" {
				f = append(f, "--peer-tiebreaker=no")
			}
			if len(f) > 0 {
				out = append(out, command("drbdsetup", "peer-device-options", p.R.Name, peer.ID(), v.Number, f))
			}
		}
	}
	return out
}

// MetaDisk is where the metadata of a volume is, as drbdmeta and as drbdsetup attach are told.
func MetaDisk(v *drbdconf.Volume) (device, meta, attach string) {
	switch m := v.MetaDisk; {
	case m == nil || m.Path == drbdconf.Internal:
		return v.Disk, "internal", "internal"
	case m.Index < 0:
		return m.Path, "flex-external", "flexible"
	default:
		n := strconv.Itoa(m.Index)
		return m.Path, n, n
	}
}

// DrbdMeta is a command of drbdmeta for each volume with a disk.
func (p *Plan) DrbdMeta(words ...string) []Command {
	var out []Command
	for _, n := range p.Numbers() {
		v := p.Volume(n)
		if v.Disk == "" || v.Disk == drbdconf.None {
			continue
		}
		dev, meta, _ := MetaDisk(&v)
		out = append(out, command("drbdmeta", p.MinorOf(n), "v09", dev, meta, words))
	}
	return out
}

// Attach opens the disks: first the metadata is repaired and the activity log replayed.
func (p *Plan) Attach() []Command {
	var out []Command
	for _, n := range p.Numbers() {
		v := p.Volume(n)
		if v.Disk == "" || v.Disk == drbdconf.None {
			continue
		}
		dev, meta, attach := MetaDisk(&v)
		minor := p.MinorOf(n)
		out = append(out, command("drbdmeta", minor, "v09", dev, meta, "repair-md"), command("drbdmeta", minor, "v09", dev, meta, "apply-al"),
			command("drbdsetup", "attach", minor, v.Disk, dev, attach, p.diskFlags(n, isLocal)))
	}
	return out
}

func (p *Plan) diskFlags(number int, want func(*drbdconf.Spec) bool) []string {
	v := p.Self.Volume(number)
	if v == nil || v.Options == nil {
		return nil
	}
	return p.flags("disk", v.Options.Options, want)
}

// EachPeer is a command for each connection: drbdsetup VERB RES ID ARGS.
func (p *Plan) EachPeer(verb string, args ...string) []Command {
	var out []Command
	for _, peer := range p.Peers() {
		out = append(out, command("drbdsetup", verb, p.R.Name, peer.ID(), args))
	}
	return out
}

// EachMinor is a command for each volume: drbdsetup VERB MINOR ARGS.
func (p *Plan) EachMinor(verb string, args ...string) []Command {
	var out []Command
	for _, n := range p.Numbers() {
		out = append(out, command("drbdsetup", verb, p.MinorOf(n), args))
	}
	return out
}

// EachPeerDevice is a command for each volume on each connection: drbdsetup VERB RES ID VOLUME ARGS.
func (p *Plan) EachPeerDevice(verb string, args ...string) []Command {
	var out []Command
	for _, peer := range p.Peers() {
		for _, n := range p.Numbers() {
			out = append(out, command("drbdsetup", verb, p.R.Name, peer.ID(), n, args))
		}
	}
	return out
}

// Whole is a command for the resource: drbdsetup VERB RES ARGS.
func (p *Plan) Whole(verb string, args ...string) []Command {
	return []Command{command("drbdsetup", verb, p.R.Name, args)}
}

// Up is all it takes to bring resources up, step by step for all of them.
func Up(plans []*Plan) []Command {
	var out []Command
	for _, step := range []func(*Plan) []Command{(*Plan).NewResource, (*Plan).NewMinor, (*Plan).NewPeer, (*Plan).NewPath,
		(*Plan).PeerDeviceOptions, (*Plan).Attach, func(p *Plan) []Command { return p.EachPeer("connect") }} {
		for _, p := range plans {
			out = append(out, step(p)...)
		}
	}
	return out
}

// DiskOptions sets options of disks that are attached.
func (p *Plan) DiskOptions() []Command {
	var out []Command
	for _, n := range p.Numbers() {
		out = append(out, command("drbdsetup", "disk-options", p.MinorOf(n), "--set-defaults", p.diskFlags(n, isLocal)))
	}
	return out
}

// NetOptions sets options of connections.
func (p *Plan) NetOptions() []Command {
	var out []Command
	for _, peer := range p.Peers() {
		out = append(out, command("drbdsetup", "net-options", p.R.Name, peer.ID(), "--set-defaults", p.netFlags(peer)))
	}
	return out
}

// ResourceOptions sets options of the resource.
func (p *Plan) ResourceOptions() []Command {
	return []Command{command("drbdsetup", "resource-options", p.R.Name, "--set-defaults", p.flags("options", p.R.Get("options"), isAny))}
}
