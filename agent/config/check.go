package config

import (
	"fmt"
	"maps"
	"net/netip"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/hawser-ha/hawser/replicator/control"
)

var nameShape = regexp.MustCompile(`^[A-Za-z0-9._-]{1,64}$`)

// CheckName says what is wrong with the name of a resource or node; "" is
// nothing.
func CheckName(name string) string {
	switch {
	case !nameShape.MatchString(name):
		return fmt.Sprintf("%q is no name", name)
	case name == "all" || strings.Trim(name, ".") == "":
		return fmt.Sprintf("%q has a meaning of its own", name)
	}
	return ""
}

const nameHint = "1 to 64 of A-Z a-z 0-9 . _ -, and not all"

// checkPath says what is wrong with an absolute path.
func checkPath(p string) string {
	switch {
	case !strings.HasPrefix(p, "/"):
		return fmt.Sprintf("%q is no absolute path", p)
	case filepath.Clean(p) != p:
		return fmt.Sprintf("%q should be written %s", p, filepath.Clean(p))
	case len(p) > 4095 || strings.ContainsFunc(p, func(r rune) bool { return r < ' ' || r == 0x7f }):
		return fmt.Sprintf("%q is no usable path", p)
	}
	return ""
}

// parseAddress reads IP:port. anywhere allows 0.0.0.0 and ::.
func parseAddress(s string, anywhere bool) (netip.AddrPort, string) {
	a, err := netip.ParseAddrPort(s)
	if err != nil {
		return a, fmt.Sprintf("%q is no address: write IP:port, as 10.1.0.1:7789 or [fd00::1]:7789; names are not resolved", s)
	}
	switch {
	case a.Port() == 0:
		return a, fmt.Sprintf("%q: the port is outside 1 to 65535", s)
	case a.Addr().IsMulticast() || a.Addr().IsUnspecified() && !anywhere:
		return a, fmt.Sprintf("%q: a peer cannot connect to this address", s)
	}
	return netip.AddrPortFrom(a.Addr().Unmap(), a.Port()), ""
}

// Check says everything that is wrong with a resource, joined. Parse has done it.
func (r *Resource) Check() error {
	c := complaints{file: r.File, at: r.at}
	r.check(&c)
	return c.err()
}

func (r *Resource) check(c *complaints) {
	if r.Name == "" {
		c.add("resource", "the resource has no name", "resource: r0")
	} else if why := CheckName(r.Name); why != "" {
		c.add("resource", why, nameHint)
	}
	if len(r.Volumes) == 0 {
		c.add("volumes", "the resource has no volume", "volumes: [{disk: /dev/vg/r0}]")
	}
	if len(r.Nodes) == 0 {
		c.add("nodes", "the resource has no node", "nodes: [{name: alpha, address: 10.1.0.1:7789}, ...]")
	}
	r.checkNodes(c)
	checkVolumes(c, "volumes", r.Volumes)
	r.checkNodeVolumes(c)
	r.checkConnections(c)
	checkOptions(c, "net", r.Net, inNet)
	checkOptions(c, "disk", r.Disk, inDisk, inResync)
	checkOptions(c, "options", r.Options, inOptions)
	checkOptions(c, "nbd", r.NBD, inNBD)
	r.checkHandlers(c)
	r.checkLinks(c)
	r.checkNBD(c)
	r.checkServices(c)
	r.checkHA(c)
}

// checkOptions looks at names and values on their own.
func checkOptions(c *complaints, path string, opts Options, in ...section) {
	for _, o := range opts {
		at := step(path, o.Name)
		spec := findOption(o.Name, in...)
		if spec == nil {
			why, isKnown := refused[o.Name]
			other := findOption(o.Name, inNet, inDisk, inResync, inOptions)
			switch {
			case isKnown:
				c.add(at, "hawser does not have this option: "+why, "remove it")
			case other != nil:
				c.add(at, "does not belong here", placeOf(other.section))
			default:
				c.add(at, "unknown option", didYouMean(o.Name, optionNames(in...)))
			}
			continue
		}
		v, why := spec.parse(o.Value)
		if no, is := spec.refuse[v.s]; is && why == "" {
			c.add(at, fmt.Sprintf("hawser does not have %s: %s", v.s, no), "leave it at "+spec.def)
			continue
		}
		if why != "" {
			hint := ""
			if spec.kind == kindEnum {
				if n := nearest(o.Value, spec.enum); n != "" {
					hint = "did you mean " + n + "?"
				}
			}
			c.add(at, why, hint)
		}
	}
}

func placeOf(s section) string {
	switch s {
	case inNet:
		return "it belongs under net of the resource or of a connection"
	case inDisk:
		return "it belongs under disk of the resource or disk-options of a volume"
	case inResync:
		return "it belongs under disk of the resource or of a connection"
	}
	return "it belongs under " + s.String()
}

func (r *Resource) checkNodes(c *complaints) {
	names, addresses, ids := map[string]string{}, map[netip.AddrPort]string{}, map[int]string{}
	withID, data := 0, 0
	for _, n := range r.Nodes {
		if n.ID >= 0 {
			withID++
		}
		if !n.Diskless {
			data++
		}
	}
	if len(r.Nodes) > nodeIDMax+1 {
		c.add("nodes", fmt.Sprintf("%d nodes, at most %d are possible", len(r.Nodes), nodeIDMax+1), "")
	}
	for i, n := range r.Nodes {
		at := fmt.Sprintf("nodes[%d]", i)
		if n.Name == "" {
			c.add(at+".name", "the node has no name", "the name uname -n prints there")
		} else if why := CheckName(n.Name); why != "" {
			c.add(at+".name", why, nameHint)
		} else if other, twice := names[n.Name]; twice {
			c.add(at+".name", fmt.Sprintf("node %s stands already in %s", n.Name, other), "")
		} else {
			names[n.Name] = at
		}
		if n.Address == "" {
			c.add(at+".address", "the node has no address", "address: IP:port")
		} else if a, why := parseAddress(n.Address, false); why != "" {
			c.add(at+".address", why, "")
		} else if other, twice := addresses[a]; twice {
			c.add(at+".address", fmt.Sprintf("%s is already the address of %s", n.Address, other), "each node needs its own")
		} else {
			addresses[a] = n.Name
		}
		switch other, twice := ids[n.ID]; {
		case n.ID < 0 && withID > 0:
			c.add(at, "has no node-id, but other nodes have", "give every node a node-id, or none")
		case n.ID > nodeIDMax:
			c.add(at+".node-id", fmt.Sprintf("%d is outside 0 to %d", n.ID, nodeIDMax), "")
		case n.ID >= 0 && twice:
			c.add(at+".node-id", fmt.Sprintf("%d is already the id of %s", n.ID, other), "")
		default:
			ids[n.ID] = n.Name
		}
	}
	if len(r.Nodes) > 0 && data == 0 {
		c.add("nodes", "every node is diskless", "somebody must hold the data")
	}
}

// checkVolumes looks at each volume on its own.
func checkVolumes(c *complaints, path string, list []Volume) {
	numbers := map[int]bool{}
	for i, v := range list {
		at := fmt.Sprintf("%s[%d]", path, i)
		switch {
		case v.Number < 0 || v.Number > volumeMax:
			c.add(at+".volume", fmt.Sprintf("%d is outside 0 to %d", v.Number, volumeMax), "")
		case numbers[v.Number]:
			c.add(at+".volume", fmt.Sprintf("volume %d stands here twice", v.Number), "")
		}
		numbers[v.Number] = true
		if _, _, why := parseDevice(v.Device); why != "" {
			c.add(at+".device", why, "auto, nbd, fuse or none, then perhaps a name like /dev/drbd0")
		}
		if v.Disk != "" && v.Disk != none {
			if why := checkPath(v.Disk); why != "" {
				c.add(at+".disk", why, "")
			}
		}
		if _, _, why := parseMetaDisk(v.MetaDisk); why != "" {
			c.add(at+".meta-disk", why, "internal, /path, or /path[3]")
		}
		if v.Size != "" {
			if _, why := parseSize(v.Size); why != "" {
				c.add(at+".size", why, "for example 10G; 2048s are sectors")
			}
		}
		checkOptions(c, at+".disk-options", v.Options, inDisk)
	}
}

// parseDevice splits KIND, PATH or "KIND PATH".
func parseDevice(s string) (kind, link, why string) {
	kind, link, both := strings.Cut(s, " ")
	if !both && strings.HasPrefix(s, "/") {
		kind, link = "auto", s
	}
	switch kind {
	case "":
		kind = "auto"
	case "auto", "nbd", "fuse", "none":
	default:
		return "", "", fmt.Sprintf("%q is no kind of device", kind)
	}
	if link == "" {
		return kind, "", ""
	}
	if why := checkPath(link); why != "" {
		return "", "", why
	}
	switch {
	case !strings.HasPrefix(link, "/dev/"):
		return "", "", fmt.Sprintf("%q is not below /dev", link)
	case strings.HasPrefix(link, "/dev/hawser/"):
		return "", "", "names below /dev/hawser are made anyway"
	case kind == "none":
		return "", "", "there is no device that " + link + " could name"
	}
	return kind, link, ""
}

var indexed = regexp.MustCompile(`^(.*)\[([0-9]{1,4})\]$`)

// parseMetaDisk splits internal, path or path[index]; index -1 is none.
func parseMetaDisk(s string) (path string, index int, why string) {
	if s == "" || s == "internal" {
		return "internal", -1, ""
	}
	index = -1
	path = s
	if m := indexed.FindStringSubmatch(s); m != nil {
		path = m[1]
		index, _ = strconv.Atoi(m[2])
	}
	return path, index, checkPath(path)
}

// users is who uses which path, device name or address on one node.
type users map[string]string

// claim notes a use and returns who had it before, "" for nobody.
func (u users) claim(what, who string) string {
	if old, ok := u[what]; ok {
		return old
	}
	u[what] = who
	return ""
}

// checkNodeVolumes looks at the volumes as each node has them.
func (r *Resource) checkNodeVolumes(c *complaints) {
	for i, n := range r.Nodes {
		at := fmt.Sprintf("nodes[%d].volumes", i)
		if n.Diskless && len(n.Volumes) > 0 {
			for j, v := range n.Volumes {
				if v.Disk != "" && v.Disk != none {
					c.add(fmt.Sprintf("%s[%d].disk", at, j), "the node is diskless, but has a disk here", "remove one of them")
				}
			}
		}
		checkVolumes(c, at, n.Volumes)
		for j, v := range n.Volumes {
			if len(r.Volumes) > 0 && !slices.ContainsFunc(r.Volumes, func(w Volume) bool { return w.Number == v.Number }) {
				c.add(fmt.Sprintf("%s[%d]", at, j), fmt.Sprintf("volume %d is not among the volumes of the resource", v.Number),
					"every node has the same volumes: name it there, and here what differs")
			}
		}
	}
	for i, v := range r.Volumes {
		disks := 0
		for _, n := range r.Nodes {
			if m := n.merge(v); m.Disk != "" && m.Disk != none {
				disks++
			} else if m.Disk == "" && !n.Diskless {
				c.add(fmt.Sprintf("volumes[%d]", i), fmt.Sprintf("volume %d has no disk on node %s", v.Number, n.Name),
					"disk: /dev/..., here or for the node; disk: none makes it diskless there")
			}
		}
		if disks == 0 && len(r.Nodes) > 0 {
			c.add(fmt.Sprintf("volumes[%d]", i), fmt.Sprintf("volume %d has no disk on any node", v.Number), "")
		}
	}
	for _, n := range r.Nodes {
		r.claims(c, n, users{}, users{})
	}
}

// merge is a volume as the node has it.
func (n Node) merge(v Volume) Volume {
	for _, own := range n.Volumes {
		if own.Number != v.Number {
			continue
		}
		for _, f := range []struct{ to, from *string }{{&v.Device, &own.Device}, {&v.Disk, &own.Disk},
			{&v.MetaDisk, &own.MetaDisk}, {&v.Size, &own.Size}} {
			if *f.from != "" {
				*f.to = *f.from
			}
		}
		v.Options = overlay(v.Options, own.Options)
	}
	if n.Diskless {
		v.Disk = none
	}
	return v
}

// overlay is base with the settings of top over it.
func overlay(base, top Options) Options {
	out := slices.Clone(top)
	for _, o := range base {
		if _, has := top.Get(o.Name); !has {
			out = append(out, o)
		}
	}
	return out
}

// volumePath is the place where a node's volume gets a field from.
func (r *Resource) volumePath(n Node, number int, field string) string {
	for i := range r.Nodes {
		if r.Nodes[i].Name != n.Name {
			continue
		}
		for j, own := range n.Volumes {
			if at := fmt.Sprintf("nodes[%d].volumes[%d].%s", i, j, field); own.Number == number {
				if _, ok := r.at[at]; ok {
					return at
				}
			}
		}
	}
	for j, v := range r.Volumes {
		if v.Number == number {
			return fmt.Sprintf("volumes[%d].%s", j, field)
		}
	}
	return "volumes"
}

// claims notes which disks and device names node n uses for r, and complains
// about what is taken.
func (r *Resource) claims(c *complaints, n Node, disks, devices users) {
	for _, v := range r.Volumes {
		v = n.merge(v)
		me := fmt.Sprintf("volume %d of %s", v.Number, r.Name)
		complain := func(field, what, who string) {
			c.add(r.volumePath(n, v.Number, field), fmt.Sprintf("%s is used by %s on node %s too", what, who, n.Name), "each needs its own")
		}
		if _, link, _ := parseDevice(v.Device); link != "" {
			if who := devices.claim(link, me); who != "" {
				complain("device", link, who)
			}
		}
		if v.Disk == "" || v.Disk == none {
			continue
		}
		if who := disks.claim(v.Disk, me); who != "" {
			complain("disk", v.Disk, who)
		}
		path, index, _ := parseMetaDisk(v.MetaDisk)
		switch {
		case path == "internal":
			continue
		case index < 0:
			if who := disks.claim(path, "the metadata of "+me); who != "" {
				complain("meta-disk", path, who)
			}
			continue
		}
		// Indexed: several share the path, each with its own index.
		const shared = "indexed metadata"
		if who := disks.claim(path, shared); who != "" && who != shared {
			complain("meta-disk", path, who)
		}
		slot := fmt.Sprintf("%s[%d]", path, index)
		if who := disks.claim(slot, "the metadata of "+me); who != "" {
			complain("meta-disk", slot, who)
		}
	}
}

func (r *Resource) hasNode(name string) bool {
	return slices.ContainsFunc(r.Nodes, func(n Node) bool { return n.Name == name })
}

func (r *Resource) nodeNames() []string {
	var names []string
	for _, n := range r.Nodes {
		names = append(names, n.Name)
	}
	return names
}

func (r *Resource) checkConnections(c *complaints) {
	pairs := map[[2]string]bool{}
	for i, conn := range r.Connections {
		at := fmt.Sprintf("connections[%d]", i)
		if conn.Nodes[0] == "" || conn.Nodes[1] == "" {
			c.add(at+".nodes", "must name two nodes", "nodes: [alpha, beta]")
		} else {
			for j, name := range conn.Nodes {
				if !r.hasNode(name) {
					c.add(fmt.Sprintf("%s.nodes[%d]", at, j), fmt.Sprintf("%s is no node of this resource", name), didYouMean(name, r.nodeNames()))
				}
			}
			pair := conn.Nodes
			slices.Sort(pair[:])
			switch {
			case pair[0] == pair[1]:
				c.add(at+".nodes", "a node does not connect to itself", "")
			case pairs[pair]:
				c.add(at+".nodes", fmt.Sprintf("%s and %s have a connection above", pair[0], pair[1]), "")
			}
			pairs[pair] = true
		}
		for _, a := range conn.Addresses {
			path := at + ".addresses." + a.Name
			if a.Name != conn.Nodes[0] && a.Name != conn.Nodes[1] {
				c.add(path, fmt.Sprintf("%s is not one of the two nodes", a.Name), "")
			} else if _, why := parseAddress(a.Value, false); why != "" {
				c.add(path, why, "")
			}
		}
		if n := len(conn.Addresses); n == 1 {
			c.add(at+".addresses", "names one node only", "both ends need an address in the same network")
		}
		checkOptions(c, at+".net", conn.Net, inNet)
		checkOptions(c, at+".disk", conn.Disk, inResync)
	}
}

func (r *Resource) checkHandlers(c *complaints) {
	for _, h := range r.Handlers {
		at := "handlers." + h.Name
		switch why, isKnown := refusedHandlers[h.Name]; {
		case isKnown:
			c.add(at, "hawser does not run this handler: "+why, "remove it")
		case !slices.Contains(handlers, h.Name):
			c.add(at, "unknown handler", didYouMean(h.Name, handlers))
		case strings.TrimSpace(h.Value) == "":
			c.add(at, "is empty", "the command is run by sh -c")
		}
	}
	disk := []Options{r.Disk}
	paths := []string{"disk"}
	for i, v := range r.Volumes {
		disk, paths = append(disk, v.Options), append(paths, fmt.Sprintf("volumes[%d].disk-options", i))
	}
	for i, n := range r.Nodes {
		for j, v := range n.Volumes {
			disk, paths = append(disk, v.Options), append(paths, fmt.Sprintf("nodes[%d].volumes[%d].disk-options", i, j))
		}
	}
	for i, opts := range disk {
		if v, _ := opts.Get("on-io-error"); v == "call-local-io-error" {
			r.needHandler(c, paths[i]+".on-io-error", v, "local-io-error")
		}
	}
}

func (r *Resource) needHandler(c *complaints, path, value, handler string) {
	if _, ok := r.Handlers.Get(handler); !ok {
		c.add(path, fmt.Sprintf("%s needs the handler %s", value, handler), "handlers: {"+handler+": COMMAND}")
	}
}

// checkLinks looks at combinations, for the options of the resource and again as
// each connection has them.
func (r *Resource) checkLinks(c *complaints) {
	r.checkLink(c, "net", "disk", r.Net, r.Net, r.Disk, r.Disk)
	for i, conn := range r.Connections {
		at := fmt.Sprintf("connections[%d]", i)
		r.checkLink(c, at+".net", at+".disk", conn.Net, overlay(r.Net, conn.Net), conn.Disk, overlay(r.Disk, conn.Disk))
	}
}

// checkLink complains at an option of own (what stands at path), never at one
// that is inherited, so that each fault is named once.
func (r *Resource) checkLink(c *complaints, path, diskPath string, own, all, ownDisk, allDisk Options) {
	var net control.NetOpts
	var resync control.ResyncOpts
	t := target{net: &net, resync: &resync}
	if !resolve(t, all, inNet) || !resolve(t, allDisk, inResync) {
		return // values are wrong, which was said
	}
	// say names the first of the options that stands here.
	say := func(reason, hint string, names ...string) {
		for _, n := range names {
			if _, ok := own.Get(n); ok {
				c.add(path+"."+n, reason, hint)
				return
			}
		}
	}
	if net.AllowTwoPrimaries && net.Protocol != "C" {
		say("two Primaries need protocol C, not "+net.Protocol, "protocol: C, or allow-two-primaries: no", "allow-two-primaries", "protocol")
	}
	if net.CramHMACAlg != "" && net.SharedSecret == "" {
		say("there is no shared-secret to go with it", "shared-secret: SECRET", "cram-hmac-alg", "shared-secret")
	}
	if net.CramHMACAlg == "" && net.SharedSecret != "" {
		say("without cram-hmac-alg nobody asks for it", "cram-hmac-alg: sha256", "shared-secret", "cram-hmac-alg")
	}
	if net.Timeout >= net.PingInt {
		say(fmt.Sprintf("timeout %s is not below ping-int %s", net.Timeout, net.PingInt), "a peer must be missed before the next ping", "timeout", "ping-int")
	}
	if net.Timeout >= net.ConnectInt {
		say(fmt.Sprintf("timeout %s is not below connect-int %s", net.Timeout, net.ConnectInt), "", "timeout", "connect-int")
	}
	if net.OnCongestion != "block" && net.Protocol != "A" {
		say(net.OnCongestion+" needs protocol A, not "+net.Protocol, "with B and C every write waits for the peer anyway", "on-congestion", "protocol")
	}
	if net.OnCongestion == "block" {
		say("with on-congestion block it has no effect", "on-congestion: pull-ahead or disconnect", "congestion-fill", "congestion-extents")
	}
	if net.CsumsAfterCrashOnly && net.CsumsAlg == "" {
		say("without csums-alg it has no effect", "csums-alg: crc32c", "csums-after-crash-only", "csums-alg")
	}
	if a := net.AfterSB0Pri; a == "discard-local" || a == "discard-remote" {
		say(a+" is the other one on the peer, and both read the same file", "discard-node-NAME names the node that gives way", "after-sb-0pri")
	} else if name, ok := strings.CutPrefix(a, discardNode); ok && !r.hasNode(name) {
		say(fmt.Sprintf("%s is no node of this resource", name), didYouMean(name, r.nodeNames()), "after-sb-0pri")
	}
	for _, x := range []struct{ option, value, have, handler string }{
		{"after-sb-1pri", "call-pri-lost-after-sb", net.AfterSB1Pri, "pri-lost-after-sb"},
		{"after-sb-2pri", "call-pri-lost-after-sb", net.AfterSB2Pri, "pri-lost-after-sb"},
		{"rr-conflict", "call-pri-lost", net.RRConflict, "pri-lost"},
		{"fencing", "resource-only", net.Fencing, "fence-peer"},
		{"fencing", "resource-and-stonith", net.Fencing, "fence-peer"},
	} {
		if _, ok := own.Get(x.option); ok && x.have == x.value {
			r.needHandler(c, path+"."+x.option, x.value, x.handler)
		}
	}
	if resync.CMaxRate > 0 && resync.CMinRate > resync.CMaxRate {
		for _, n := range []string{"c-min-rate", "c-max-rate"} {
			if _, ok := ownDisk.Get(n); ok {
				c.add(diskPath+"."+n, fmt.Sprintf("c-min-rate %d KiB/s is above c-max-rate %d KiB/s", resync.CMinRate, resync.CMaxRate), "set both")
				break
			}
		}
	}
}

func (r *Resource) checkNBD(c *complaints) {
	r.checkTLS(c, "nbd", r.NBD, r.NBD)
	for i, n := range r.Nodes {
		at := fmt.Sprintf("nodes[%d].nbd", i)
		checkOptions(c, at, n.NBD, inNBD)
		r.checkTLS(c, at, n.NBD, overlay(r.NBD, n.NBD))
	}
}

func (r *Resource) checkTLS(c *complaints, path string, own, all Options) {
	have := map[string]bool{}
	for _, k := range []string{"tls-cert", "tls-key", "tls-ca"} {
		if v, _ := all.Get(k); v != "" {
			have[k] = true
		}
	}
	if len(have) == 0 || len(own) == 0 {
		return
	}
	if len(have) < 3 {
		c.add(path, "TLS needs tls-cert, tls-key and tls-ca, here is only "+strings.Join(slices.Sorted(maps.Keys(have)), " and "), "")
	} else if v, _ := all.Get("listen"); v == "" {
		c.add(path, "TLS is set, but listen is not", "listen: IP:10809; the Unix socket has no TLS")
	}
}
