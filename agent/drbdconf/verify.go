package drbdconf

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
)

// VerifyOptions say for whom a configuration is judged.
type VerifyOptions struct {
	Host string // the name of this node, "" for nobody in particular
	// Local tells which addresses are of this node; nil does not check that, and floating hosts are then known by name
	// only.
	Local func(netip.Addr) bool
	// Module is the version of the kernel module, "" for none. "any" satisfies whatever a file requires.
	Module string
}

// verifier holds what resources take from each other.
type verifier struct {
	cfg       *Config
	opt       VerifyOptions
	errs      []*Error
	used      map[string]Pos // by host: minors, devices, disks
	addresses map[string]*Resource
	within    string // the resource that is looked at
}

func (v *verifier) add(pos Pos, stage Stage, reason, hint string) {
	v.errs = append(v.errs, &Error{Pos: pos, Stage: stage, Code: 10, Resource: v.within, Reason: reason, Hint: hint})
}

// Verify looks at what the parts of a configuration say together, and gives node ids to hosts that have none.
// Warnings are among the errors it joins.
func Verify(cfg *Config, opt VerifyOptions) error {
	v := &verifier{cfg: cfg, opt: opt, used: map[string]Pos{}, addresses: map[string]*Resource{}}
	for _, q := range cfg.Requires {
		v.require(q)
	}
	for _, r := range cfg.Resources {
		v.within = r.Name
		v.resource(r)
	}
	for _, r := range cfg.Resources {
		v.within = r.Name
		v.claims(r)
		v.resyncAfter(r)
		v.errs = append(v.errs, r.Conflicts()...)
	}
	return join(v.errs)
}

func (v *verifier) require(q Require) {
	switch v.opt.Module {
	case "any":
		v.add(q.Pos, Warn, "the version of the kernel module is not checked: there is none", "")
		return
	case "":
		v.add(q.Pos, Check, "a kernel module of version "+q.Op+" "+q.Version+" is required, and none is loaded", "remove the statement")
		return
	}
	c := compareVersions(v.opt.Module, q.Version)
	ok := map[string]bool{"eq": c == 0, "ne": c != 0, "gt": c > 0, "ge": c >= 0, "lt": c < 0, "le": c <= 0}[q.Op]
	if !ok {
		v.add(q.Pos, Check, fmt.Sprintf("a kernel module of version %s %s is required, it is %s", q.Op, q.Version, v.opt.Module), "")
	}
}

func compareVersions(a, b string) int {
	x, y := strings.Split(a, "."), strings.Split(b, ".")
	for i := range max(len(x), len(y)) {
		var m, n int
		if i < len(x) {
			m, _ = strconv.Atoi(x[i])
		}
		if i < len(y) {
			n, _ = strconv.Atoi(y[i])
		}
		if m != n {
			return m - n
		}
	}
	return 0
}

func (v *verifier) resource(r *Resource) {
	if len(r.Hosts) == 0 {
		v.add(r.Pos, Hosts, "resource "+r.Name+" has no host section", "on NAME { ... }")
		return
	}
	v.stacked(r)
	explicit := len(r.Connections) > 0 || r.Mesh != nil
	if len(r.Hosts) > 2 && !explicit {
		v.add(r.Pos, Check, fmt.Sprintf("resource %s has %d hosts and no connection", r.Name, len(r.Hosts)), "with more than two, name them: connection-mesh { hosts ...; }")
	}
	v.ids(r, explicit)
	v.volumes(r)
	v.endpoints(r)
	for _, h := range r.Hosts {
		if h.Address == nil && !connected(r, h) {
			v.add(h.Pos, Check, fmt.Sprintf("in resource %s, %s has no address", r.Name, h.who()), "address IP:PORT;")
		}
	}
	v.proxies(r)
	v.splitBrain(r)
	v.local(r)
}

// connected reports whether each connection that names a host gives its address, and there is one.
func connected(r *Resource, h *Host) bool {
	found := false
	if r.Mesh != nil && slices.ContainsFunc(r.Mesh.Hosts, h.named) {
		return false
	}
	for _, c := range r.Connections {
		for _, path := range c.AllPaths() {
			for _, e := range path.Endpoints {
				if h.named(e.Host) {
					if e.Address == nil {
						return false
					}
					found = true
				}
			}
		}
	}
	return found
}

// named reports whether a connection means the host by a name.
func (h *Host) named(name string) bool {
	if h.Kind == Floating {
		return name == h.Address.String() || name == h.Name() || name == h.Address.Text
	}
	return h.Name() == name || slices.ContainsFunc(h.Names, func(n string) bool { return MatchHost(n, name) })
}

// Host finds the host section that a name means, nil for none.
func (r *Resource) Host(name string) *Host {
	for _, h := range r.Hosts {
		if h.named(name) {
			return h
		}
	}
	return nil
}

// MatchHost reports whether a host section is for a node, as version 9 sees it: without regard to case, and to the
// domain when one of them has none.
func MatchHost(section, node string) bool {
	a, domainA, hasA := strings.Cut(strings.ToLower(section), ".")
	b, domainB, hasB := strings.Cut(strings.ToLower(node), ".")
	return a == b && (!hasA || !hasB || domainA == domainB)
}

// stacked finds the hosts of the resource below.
func (v *verifier) stacked(r *Resource) {
	for _, h := range r.Hosts {
		if h.Kind != Stacked {
			continue
		}
		lower := v.cfg.Resource(h.Lower)
		if lower == nil || lower == r {
			v.add(h.Pos, Check, fmt.Sprintf("in resource %s, the resource %s below it is not defined", r.Name, h.Lower), "")
			continue
		}
		h.Names, h.below = nil, lower
		for _, l := range lower.Hosts {
			h.Names = append(h.Names, l.Names...)
		}
	}
}

func (v *verifier) ids(r *Resource, explicit bool) {
	have := 0
	seen := map[int]Pos{}
	for _, h := range r.Hosts {
		if h.Generated {
			h.NodeID, h.Generated = -1, false
		}
		if h.NodeID < 0 {
			continue
		}
		have++
		if old, twice := seen[h.NodeID]; twice {
			v.add(h.Pos, Check, fmt.Sprintf("conflicting use of node-id %d in resource %s: it was first used at %s", h.NodeID, r.Name, old), "each host needs its own")
		}
		seen[h.NodeID] = h.Pos
	}
	if have == 0 && !explicit && len(r.Hosts) == 2 {
		if !nodeIDs(r.Hosts[0], r.Hosts[1]) {
			e := &Error{Pos: r.Hosts[1].Pos, Stage: Check, Code: 20, Resource: r.Name, Reason: "both hosts of resource " + r.Name + " have the same address, which node ids are made of", Hint: "write node-id 0; and node-id 1;"}
			v.errs = append(v.errs, e)
		}
		return
	}
	for _, h := range r.Hosts {
		if h.NodeID < 0 {
			v.add(h.Pos, Check, fmt.Sprintf("in resource %s, %s has no node-id", r.Name, h.who()), "each host needs one, all or none")
		}
	}
}

// volumes looks whether all hosts have the same volumes, whole.
func (v *verifier) volumes(r *Resource) {
	kinds := map[bool]bool{}
	for _, x := range r.Volumes {
		kinds[x.Implicit] = true
	}
	for _, h := range r.Hosts {
		for _, x := range h.Volumes {
			kinds[x.Implicit] = true
		}
	}
	if len(kinds) == 2 {
		v.add(r.Pos, Check, "resource "+r.Name+" has volumes with and without volume N { }", "write it for all")
		return
	}
	first := r.Numbers(r.Hosts[0])
	for _, h := range r.Hosts {
		numbers := r.Numbers(h)
		if len(numbers) == 0 {
			v.add(h.Pos, Check, fmt.Sprintf("in resource %s, %s has no volume", r.Name, h.who()), "device, disk, meta-disk")
		}
		for _, n := range numbers {
			if !slices.Contains(first, n) {
				v.add(h.Pos, Check, fmt.Sprintf("in resource %s, volume %d is on %s, and not on %s", r.Name, n, h.who(), r.Hosts[0].who()), "")
			}
			x := r.On(h, n)
			if x.Device == nil {
				v.add(h.Pos, Check, fmt.Sprintf("in resource %s, volume %d of %s has no device", r.Name, n, h.who()), "device minor N;")
			}
			if x.Disk == "" && h.Kind != Stacked {
				v.add(h.Pos, Check, fmt.Sprintf("in resource %s, volume %d of %s has no disk", r.Name, n, h.who()), "disk none; is one without")
			}
		}
		for _, n := range first {
			if !slices.Contains(numbers, n) {
				v.add(h.Pos, Check, fmt.Sprintf("in resource %s, volume %d is on %s, and not on %s", r.Name, n, r.Hosts[0].who(), h.who()), "")
			}
		}
	}
}

// Numbers lists the volumes a host has, in order.
func (r *Resource) Numbers(h *Host) []int {
	var list []int
	for _, from := range [][]*Volume{r.Volumes, h.Volumes} {
		for _, v := range from {
			if !slices.Contains(list, v.Number) {
				list = append(list, v.Number)
			}
		}
	}
	slices.Sort(list)
	return list
}

// On is a volume as a host has it, without its options: what the host says before what the resource says. Of a stacked
// host the disk is the device of the resource below. Metadata is internal unless something else was said.
func (r *Resource) On(h *Host, number int) Volume {
	out := Volume{Number: number}
	for _, from := range []*Volume{h.Volume(number), findVolume(r.Volumes, number)} {
		if from == nil {
			continue
		}
		if out.Pos.Line == 0 {
			out.Pos, out.Implicit = from.Pos, from.Implicit
		}
		if out.Device == nil {
			out.Device = from.Device
		}
		if out.Disk == "" {
			out.Disk, out.DiskPos = from.Disk, from.DiskPos
		}
		if out.MetaDisk == nil {
			out.MetaDisk = from.MetaDisk
		}
		if out.Tiebreaker == nil {
			out.Tiebreaker = from.Tiebreaker
		}
	}
	if h.Kind == Stacked && out.Disk == "" && h.below != nil && len(h.below.Hosts) > 0 && out.Implicit {
		if n := h.below.Numbers(h.below.Hosts[0]); len(n) > 0 {
			if d := h.below.On(h.below.Hosts[0], n[0]).Device; d != nil {
				out.Disk = d.Path()
			}
		}
	}
	if out.MetaDisk == nil && out.Disk != None {
		out.MetaDisk = &MetaDisk{Pos: out.Pos, Path: Internal, Index: -1}
	}
	return out
}

func (v *verifier) endpoints(r *Resource) {
	if r.Mesh != nil {
		for _, name := range r.Mesh.Hosts {
			if r.Host(name) == nil {
				v.add(r.Mesh.Pos, Check, fmt.Sprintf("in resource %s, %s in connection-mesh has no host section", r.Name, name), "")
			}
		}
	}
	for _, c := range r.Connections {
		for _, p := range c.AllPaths() {
			for _, e := range p.Endpoints {
				if r.Host(e.Host) == nil {
					v.add(e.Pos, Check, fmt.Sprintf("in resource %s, %s in a connection has no host section", r.Name, e.Host), "")
				}
			}
			if len(p.Endpoints) == 2 && r.Host(p.Endpoints[0].Host) != nil && r.Host(p.Endpoints[0].Host) == r.Host(p.Endpoints[1].Host) {
				v.add(p.Pos, Check, fmt.Sprintf("in resource %s, a connection is from %s to itself", r.Name, p.Endpoints[0].Host), "")
			}
		}
		for _, x := range c.Volumes {
			if len(r.Hosts) > 0 && !slices.Contains(r.Numbers(r.Hosts[0]), x.Number) {
				v.add(x.Pos, Check, fmt.Sprintf("in resource %s, there is no volume %d for the options of a connection", r.Name, x.Number), "")
			}
		}
	}
}

func (v *verifier) proxies(r *Resource) {
	with := 0
	for _, h := range r.Hosts {
		if h.Proxy != nil {
			with++
		}
	}
	if with != 0 && with != len(r.Hosts) {
		v.add(r.Pos, Hosts, "in resource "+r.Name+" some host sections have a proxy and some have not", "all or none")
	}
	for _, c := range r.Connections {
		for _, p := range c.AllPaths() {
			if len(p.Endpoints) == 2 && (p.Endpoints[0].Proxy == nil) != (p.Endpoints[1].Proxy == nil) {
				v.add(p.Pos, Hosts, "in resource "+r.Name+" a connection has a proxy at one end only", "both or none")
			}
		}
	}
}

// splitBrain looks for hosts that after-sb-0pri names.
func (v *verifier) splitBrain(r *Resource) {
	sections := []*Section{r.Net}
	if c := r.Common(); c != nil {
		sections = append(sections, c.Net)
	}
	if r.Mesh != nil {
		sections = append(sections, r.Mesh.Net)
	}
	for _, c := range r.Connections {
		sections = append(sections, c.Net)
	}
	for _, s := range sections {
		if s == nil {
			continue
		}
		if o, ok := s.Options.Get("after-sb-0pri"); ok {
			if name, is := strings.CutPrefix(o.Value, discardNode); is && r.Host(name) == nil {
				v.add(o.Pos, Check, fmt.Sprintf("after-sb-0pri %s: %s is no host of resource %s", o.Value, name, r.Name), "")
			}
		}
	}
}

// local looks whether this host has its address.
func (v *verifier) local(r *Resource) {
	if v.cfg.Global != nil {
		if _, off := v.cfg.Global.Options.Get("disable-ip-verification"); off {
			return
		}
	}
	me := r.Self(v.opt)
	if me == nil || v.opt.Local == nil || me.Address == nil || me.Kind == Stacked {
		return
	}
	if !v.opt.Local(me.Address.IP) {
		v.add(me.Address.Pos, Local, fmt.Sprintf("in resource %s, %s: no network interface of this host has the address %s", r.Name, me.who(), me.Address.Text),
			"or disable-ip-verification in section global")
	}
}

// Self finds the host section for a node, nil for none: drbdadm then ignores the resource.
func (r *Resource) Self(opt VerifyOptions) *Host {
	for _, h := range r.Hosts {
		switch h.Kind {
		case Floating:
			if opt.Host == h.Address.Text || opt.Local != nil && opt.Local(h.Address.IP) {
				return h
			}
		default:
			if opt.Host != "" && slices.ContainsFunc(h.Names, func(n string) bool { return MatchHost(n, opt.Host) }) {
				return h
			}
		}
	}
	return nil
}

// claims notes what each host uses, and complains about what is taken.
func (v *verifier) claims(r *Resource) {
	claim := func(h *Host, what, key string, at Pos) {
		names := h.Names
		if h.Kind == Floating {
			names = []string{h.Address.Text}
		}
		for _, n := range names {
			k := what + " " + strings.ToLower(n) + " " + key
			if old, taken := v.used[k]; taken {
				v.add(at, Check, fmt.Sprintf("conflicting use of %s %s on %s: it was first used at %s", what, key, n, old), "each volume needs its own")
				return
			}
			v.used[k] = at
		}
	}
	for _, h := range r.Hosts {
		for _, n := range r.Numbers(h) {
			x := r.On(h, n)
			if x.Device != nil {
				claim(h, "minor", strconv.Itoa(x.Device.Minor), x.Device.Pos)
				if strings.HasPrefix(x.Device.Name, "/dev/drbd_") {
					claim(h, "device", x.Device.Name, x.Device.Pos)
				}
			}
			if x.Disk != "" && x.Disk != None {
				claim(h, "disk", x.Disk, x.DiskPos)
			}
			if m := x.MetaDisk; m != nil && m.Path != Internal && x.Disk != None {
				claim(h, "meta-disk", fmt.Sprintf("%s [%d]", m.Path, m.Index), m.Pos)
			}
		}
	}
	mine := map[string]bool{}
	address := func(a *Address) {
		if a == nil {
			return
		}
		port, _ := strconv.Atoi(a.Port)
		key := fmt.Sprintf("%s:%s:%d", a.Family, a.IP, port)
		if other := v.addresses[key]; other != nil && !mine[key] {
			v.add(a.Pos, Check, fmt.Sprintf("in resource %s, the address %s is also that of resource %s", r.Name, a, other.Name), "each resource needs its own port")
		}
		mine[key] = true
	}
	for _, c := range r.ResolvedConnections() {
		for _, p := range c.Paths {
			for _, e := range p.Endpoints {
				address(e.Address)
			}
		}
	}
	for key := range mine {
		if v.addresses[key] == nil {
			v.addresses[key] = r
		}
	}
}

// resyncAfter looks for what names nothing.
func (v *verifier) resyncAfter(r *Resource) {
	sections := []*Section{r.Disk}
	for _, x := range r.Volumes {
		sections = append(sections, x.Options)
	}
	for _, h := range r.Hosts {
		for _, x := range h.Volumes {
			sections = append(sections, x.Options)
		}
	}
	for _, s := range sections {
		i := slices.IndexFunc(optionsOf(s), func(o Option) bool { return o.Name == "resync-after" })
		if i < 0 {
			continue
		}
		o := &s.Options[i]
		name, number, numbered := strings.Cut(o.Value, "/")
		other := v.cfg.Resource(name)
		known := other != nil && len(other.Hosts) > 0
		if known && numbered {
			n, err := strconv.Atoi(number)
			known = err == nil && slices.Contains(other.Numbers(other.Hosts[0]), n)
		}
		if o.Void = !known; known {
			continue
		}
		v.add(o.Pos, Warn, fmt.Sprintf("in resource %s, resync-after %s names no resource that is known", r.Name, o.Value), "it has no effect")
	}
}
