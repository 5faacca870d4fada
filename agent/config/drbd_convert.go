package config

import (
	"fmt"
	"net/netip"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/hawser-ha/hawser/agent/drbdconf"
)

// converter makes resources of those of a drbd.conf.
type converter struct {
	o        DRBDOptions
	warnings []Warning
	seen     map[string]bool // what was warned about
	common   map[drbdconf.Pos]bool

	res   *drbdconf.Resource
	names map[*drbdconf.Host]string // of the hosts of res, as nodes
	at    map[string]pos
	errs  []*Error
}

func (c *converter) warn(at drbdconf.Pos, option, text string, note bool) {
	w := Warning{File: at.File, Line: at.Line, Option: option, Text: text, Note: note}
	if c.res != nil && !c.common[at] {
		w.Resource = c.res.Name
	}
	key := fmt.Sprint(at, option, text)
	if !c.seen[key] {
		c.seen[key] = true
		c.warnings = append(c.warnings, w)
	}
}

func (c *converter) fail(at drbdconf.Pos, reason, hint string) {
	c.errs = append(c.errs, &Error{File: at.File, Line: at.Line, Col: at.Col, Path: "resource " + c.res.Name, Reason: reason, Hint: hint})
}

// outside looks at what belongs to no resource.
func (c *converter) outside(cfg *drbdconf.Config) {
	if cfg.Global != nil {
		c.each("global", cfg.Global.Options)
	}
	c.common = map[drbdconf.Pos]bool{}
	for _, section := range []string{"options", "net", "disk", "startup", "proxy", "handlers"} {
		for _, o := range cfg.Common.Get(section) {
			c.common[o.Pos] = true
		}
	}
	if cfg.Common != nil {
		c.each("startup", cfg.Common.Get("startup"))
		c.proxy(cfg.Common.Proxy)
	}
}

// each warns about the options of a section none of which hawser has.
func (c *converter) each(section string, list drbdconf.Options) {
	for _, o := range list {
		c.lacking(section, o)
	}
}

func (c *converter) proxy(s *drbdconf.Section) {
	if s == nil {
		return
	}
	c.each("proxy", s.Options)
	if len(s.Plugins) > 0 {
		c.lacking("proxy", drbdconf.Option{Name: "plugin", Value: s.Plugins[0], Pos: s.Pos})
	}
}

// lacking warns about an option that hawser does not have.
func (c *converter) lacking(section string, o drbdconf.Option) {
	x, ok := insteadOf[section+" "+o.Name]
	if !ok { // a test proves that there is none such
		c.warn(o.Pos, o.Name, "hawser does not have this option", false)
		return
	}
	c.warn(o.Pos, strings.TrimSpace(o.Name+" "+o.Value), x.text, slices.Contains(x.same, o.Value))
}

// sectionsOf says where the options of a section of drbd.conf stand here.
var sectionsOf = map[string][]section{"net": {inNet}, "disk": {inDisk, inResync}, "options": {inOptions}}

// option converts one option; false when hawser does not have it, which was then said.
func (c *converter) option(section string, o drbdconf.Option) (Option, bool) {
	spec := findOption(o.Name, sectionsOf[section]...)
	if _, lacks := insteadOf[section+" "+o.Name]; lacks || spec == nil {
		c.lacking(section, o)
		return Option{}, false
	}
	theirs := drbdconf.Find(section, o.Name)
	value := o.Value
	switch {
	case theirs != nil && theirs.Kind == drbdconf.Number:
		n, why := theirs.Number(value)
		if why != "" {
			c.fail(o.Pos, o.Name+" "+value+" "+why, "")
			return Option{}, false
		}
		if raw, _ := drbdconf.ParseNumber(value, theirs.Base); raw != n {
			c.warn(o.Pos, o.Name+" "+value, fmt.Sprintf("%d is used, as DRBD does", n), true)
			value = strconv.FormatUint(n, 10)
		}
		if spec.kind == kindTime { // a suffix is not a unit of time
			value = strconv.FormatUint(n, 10)
		}
		if n64 := int64(n); spec.kind != kindTime && (n64 < spec.min || n64 > spec.max) {
			n64 = min(max(n64, spec.min), spec.max)
			c.warn(o.Pos, o.Name+" "+value, fmt.Sprintf("hawser takes %d to %d, %d is used", spec.min, spec.max, n64), false)
			value = strconv.FormatInt(n64, 10)
		}
	case o.Name == "protocol":
		value = strings.ToUpper(value)
	}
	if x, ok := otherValue[o.Name][value]; ok {
		c.warn(o.Pos, o.Name+" "+value, x.use+" is used: "+x.why, false)
		value = x.use
	}
	if v, why := spec.parse(value); why != "" {
		without, isAlg := withoutAlg[o.Name]
		if !isAlg {
			c.fail(o.Pos, o.Name+": "+why, "")
			return Option{}, false
		}
		c.warn(o.Pos, o.Name, why+": "+without, false)
		return Option{}, false
	} else if no, is := spec.refuse[v.s]; is {
		c.warn(o.Pos, o.Name+" "+value, spec.def+" is used: "+no, false)
		value = spec.def
	}
	return Option{o.Name, value}, true
}

// list converts the options of a section.
func (c *converter) list(section string, opts drbdconf.Options, what func(*option) bool) Options {
	var out Options
	for _, o := range opts {
		if o.Name == "size" && section == "disk" {
			continue // it is a field of the volume
		}
		got, ok := c.option(section, o)
		if !ok || what != nil && !what(findOption(o.Name, sectionsOf[section]...)) {
			continue
		}
		if _, twice := out.Get(got.Name); !twice {
			out = append(out, got)
		}
	}
	return sorted(out)
}

func isLocal(o *option) bool  { return o.section == inDisk }
func isResync(o *option) bool { return o.section == inResync }

// resource converts one that was verified.
func (c *converter) resource(cfg *drbdconf.Config, r *drbdconf.Resource) (*Resource, []*Error) {
	c.res, c.errs, c.at = r, nil, map[string]pos{}
	defer func() { c.res = nil }()
	full := r.Expand()
	out := &Resource{Name: r.Name, File: r.Pos.File, at: c.at}
	c.at[""] = pos{r.Pos.Line, r.Pos.Col}
	c.at["resource"] = c.at[""]
	c.names = map[*drbdconf.Host]string{}
	for _, h := range full.Hosts {
		c.names[h] = c.nodeName(h)
	}
	c.each("startup", full.Get("startup"))
	c.proxy(full.Proxy)
	for i, h := range full.Hosts {
		out.Nodes = append(out.Nodes, c.node(h, i))
	}
	out.Handlers = c.handlers(full.Get("handlers"))
	out.Options = c.list("options", c.ownOptions(full), nil)
	c.volumes(out, full)
	c.links(out, full)
	c.unsaid(r)
	c.checkText(out)
	if len(c.errs) == 0 {
		check := complaints{file: out.File, at: out.at}
		out.check(&check)
		c.errs = append(c.errs, check.list...)
	}
	return out, c.errs
}

// checkText refuses bytes that are no text: drbd.conf takes any, a definition has to be YAML and JSON too.
func (c *converter) checkText(r *Resource) {
	bad := func(what, text string) {
		if !utf8.ValidString(text) {
			c.fail(c.res.Pos, fmt.Sprintf("%s: %q is not UTF-8", what, text), "save the file as UTF-8")
		}
	}
	volumes := slices.Clone(r.Volumes)
	for _, n := range r.Nodes {
		bad("node", n.Name)
		volumes = append(volumes, n.Volumes...)
	}
	for _, v := range volumes {
		bad("disk", v.Disk)
		bad("meta-disk", v.MetaDisk)
	}
	lists := []Options{r.Handlers, r.Net, r.Disk, r.Options}
	for _, conn := range r.Connections {
		lists = append(lists, conn.Net)
	}
	for _, list := range lists {
		for _, o := range list {
			bad(o.Name, o.Value)
		}
	}
}

// nodeName is what hawser calls a host.
func (c *converter) nodeName(h *drbdconf.Host) string {
	self := (&drbdconf.Resource{Hosts: []*drbdconf.Host{h}}).Self(drbdconf.VerifyOptions{Host: c.o.Node, Local: c.o.Local}) != nil
	switch h.Kind {
	case drbdconf.Stacked:
		c.fail(h.Pos, "hawser does not stack resources on each other", "make the third node a third replica: on NAME { ... }, with connection-mesh")
		return h.Name()
	case drbdconf.Floating:
		if self && c.o.Node != "" {
			c.warn(h.Pos, "floating", "hawser knows nodes by their names: this one is "+c.o.Node+", and its peers call it by its address", false)
			return c.o.Node
		}
		return strings.NewReplacer(":", "-", "%", "-").Replace(h.Address.Text)
	}
	if len(h.Names) > 1 {
		c.warn(h.Pos, "on "+strings.Join(h.Names, " "), "hawser runs it on one of them at a time, and does not look whether another has it: see to that", false)
	}
	if self {
		return c.o.Node
	}
	return h.Names[0]
}

func (c *converter) node(h *drbdconf.Host, i int) Node {
	n := Node{Name: c.names[h], ID: h.NodeID}
	c.at[fmt.Sprintf("nodes[%d]", i)] = pos{h.Pos.Line, h.Pos.Col}
	if h.Address != nil {
		n.Address = c.address(h.Address)
		c.at[fmt.Sprintf("nodes[%d].address", i)] = pos{h.Address.Pos.Line, h.Address.Pos.Col}
	}
	n.Diskless = len(h.Volumes) > 0 && !slices.ContainsFunc(h.Volumes, func(v *drbdconf.Volume) bool { return v.Disk != drbdconf.None })
	return n
}

// address is one that both sides can use.
func (c *converter) address(a *drbdconf.Address) string {
	switch a.Family {
	case "sdp", "ssocks":
		c.warn(a.Pos, "address "+a.Family, "connections are TCP, to the same address", false)
	}
	port, err := strconv.ParseUint(a.Port, 10, 16)
	if err != nil {
		c.fail(a.Pos, "port "+a.Port+" is out of range", "")
	}
	return netip.AddrPortFrom(a.IP, uint16(port)).String()
}

// ownOptions are the options of the resource, with those that this node's host section has in their place.
func (c *converter) ownOptions(r *drbdconf.Resource) drbdconf.Options {
	all := r.Get("options")
	for _, h := range r.Hosts {
		if h.Options == nil {
			continue
		}
		if c.names[h] != c.o.Node {
			for _, o := range h.Options.Options {
				if _, ok := c.option("options", o); !ok {
					continue
				}
				c.warn(o.Pos, o.Name, "options of one host are taken on that host only, from its own import", true)
			}
			continue
		}
		mine := slices.Clone(h.Options.Options)
		for _, o := range all {
			if _, has := mine.Get(o.Name); !has {
				mine = append(mine, o)
			}
		}
		all = mine
	}
	return all
}

func (c *converter) handlers(list drbdconf.Options) Options {
	var out Options
	for _, o := range list {
		name := o.Name
		if name == "outdate-peer" {
			name = "fence-peer"
			c.warn(o.Pos, o.Name, "is fence-peer now", true)
		}
		switch _, twice := out.Get(name); {
		case twice:
			c.warn(o.Pos, o.Name, "the handler "+name+" is there already, this one is not run", false)
		case !slices.Contains(handlers, name):
			c.lacking("handlers", drbdconf.Option{Name: o.Name, Pos: o.Pos})
		case strings.TrimSpace(o.Value) == "":
			c.warn(o.Pos, o.Name, "is empty, nothing is run", true)
		default:
			c.at["handlers."+name] = pos{o.Pos.Line, o.Pos.Col}
			out = append(out, Option{name, o.Value})
		}
	}
	return out
}

// volumes fills in volumes, and what differs between nodes.
func (c *converter) volumes(out *Resource, r *drbdconf.Resource) {
	var lists [][]Options // disk options by host and volume
	for _, h := range r.Hosts {
		var of []Options
		for _, v := range h.Volumes {
			var opts drbdconf.Options
			if v.Options != nil {
				opts = v.Options.Options
			}
			for _, o := range opts {
				c.at["disk."+o.Name] = pos{o.Pos.Line, o.Pos.Col}
			}
			got := c.list("disk", opts, isLocal)
			if v, _ := got.Get("on-io-error"); v == "call-local-io-error" {
				if _, ok := out.Handlers.Get("local-io-error"); !ok {
					o, _ := opts.Get("on-io-error")
					c.warn(o.Pos, "on-io-error call-local-io-error", "detach is used: there is no handler local-io-error", false)
					got = replace(got, "on-io-error", "detach")
				}
			}
			if v.Disk == drbdconf.None {
				got = nil
			}
			of = append(of, got)
		}
		lists = append(lists, of)
	}
	at := 0
	if i := slices.IndexFunc(r.Hosts, func(h *drbdconf.Host) bool {
		return !slices.ContainsFunc(h.Volumes, func(v *drbdconf.Volume) bool { return v.Disk == drbdconf.None })
	}); i >= 0 {
		at = i // the model for all others
	}
	holders := func(i int) (list []Options) {
		for j, h := range r.Hosts {
			if h.Volumes[i].Disk != drbdconf.None {
				list = append(list, lists[j][i])
			}
		}
		return list
	}
	var everywhere []Options
	for i := range r.Hosts[at].Volumes {
		everywhere = append(everywhere, holders(i)...)
	}
	out.Disk = inAll(everywhere)
	for i, v := range r.Hosts[at].Volumes {
		model := c.volume(v)
		model.Options = minus(inAll(holders(i)), out.Disk)
		c.at[fmt.Sprintf("volumes[%d]", i)] = pos{v.Pos.Line, v.Pos.Col}
		out.Volumes = append(out.Volumes, model)
		for j, h := range r.Hosts {
			own := c.volume(h.Volumes[i])
			own.Options = minus(minus(lists[j][i], out.Disk), model.Options)
			if own.Disk == none {
				own.MetaDisk, own.Size = model.MetaDisk, model.Size
			}
			diff := Volume{Number: own.Number, Options: own.Options}
			for _, f := range []struct {
				to         *string
				own, model string
			}{{&diff.Device, own.Device, model.Device}, {&diff.Disk, own.Disk, model.Disk}, {&diff.MetaDisk, own.MetaDisk, model.MetaDisk}, {&diff.Size, own.Size, model.Size}} {
				if f.own != f.model {
					*f.to = f.own
				}
			}
			if own.Size == "" && model.Size != "" {
				c.fail(h.Volumes[i].Pos, "volume "+strconv.Itoa(own.Number)+" has a size on one host only", "set size for all")
			}
			if n := &out.Nodes[j]; !n.Diskless && (diff.Device != "" || diff.Disk != "" || diff.MetaDisk != "" || diff.Size != "" || len(diff.Options) > 0) {
				n.Volumes = append(n.Volumes, diff)
			}
		}
	}
}

// volume is a volume of one host, without options.
func (c *converter) volume(v *drbdconf.Volume) Volume {
	out := Volume{Number: v.Number, Disk: v.Disk, MetaDisk: drbdconf.Internal}
	if v.Device != nil {
		out.Device = v.Device.Path()
		if out.Device != fmt.Sprintf("/dev/drbd%d", v.Device.Minor) {
			c.warn(v.Device.Pos, "device "+out.Device, fmt.Sprintf("this name is made, and not /dev/drbd%d beside it", v.Device.Minor), false)
		}
	}
	if v.Disk != drbdconf.None {
		out.Disk = filepath.Clean(v.Disk)
	}
	if m := v.MetaDisk; m != nil && m.Path != drbdconf.Internal {
		out.MetaDisk = filepath.Clean(m.Path)
		if m.Index >= 0 {
			out.MetaDisk += fmt.Sprintf("[%d]", m.Index)
		}
	}
	if v.Tiebreaker != nil {
		c.lacking("disk", *v.Tiebreaker)
	}
	if v.Options != nil {
		if o, ok := v.Options.Options.Get("size"); ok {
			n, _ := drbdconf.ParseNumber(o.Value, drbdconf.Sector)
			if n > 0 {
				out.Size = o.Value
				if strings.Trim(out.Size, "0123456789") == "" {
					out.Size += "s" // plain numbers are sectors there, and nothing here
				}
			}
		}
	}
	return out
}

// link is one pair of nodes, with all options.
type link struct {
	nodes     [2]string
	at        drbdconf.Pos
	addresses Options
	net, disk Options
}

// links fills in net and resync options, and connections where they differ.
func (c *converter) links(out *Resource, r *drbdconf.Resource) {
	var links []link
	for _, conn := range r.Connections {
		if l, ok := c.link(out, r, conn); ok {
			links = append(links, l)
		}
	}
	if len(c.errs) > 0 {
		return
	}
	for i, a := range out.Nodes {
		for _, b := range out.Nodes[i+1:] {
			if !slices.ContainsFunc(links, func(l link) bool {
				return l.nodes == [2]string{a.Name, b.Name} || l.nodes == [2]string{b.Name, a.Name}
			}) {
				c.warn(r.Pos, "connection", "there is none between "+a.Name+" and "+b.Name+"; hawser connects every two nodes", false)
			}
		}
	}
	if len(links) == 0 { // one host
		out.Net = c.fixNet(out, c.list("net", r.Get("net"), nil), r.Get("net"))
		out.Disk = append(out.Disk, fixRates(c, c.list("disk", r.Get("disk"), isResync), r.Get("disk"))...)
		return
	}
	if len(links) == 1 {
		for i := range out.Nodes {
			if a, ok := links[0].addresses.Get(out.Nodes[i].Name); ok {
				out.Nodes[i].Address = a
			}
		}
	}
	// A node without an address has that of its first connection.
	for i := range out.Nodes {
		n := &out.Nodes[i]
		for _, l := range links {
			if a, ok := l.addresses.Get(n.Name); ok && n.Address == "" {
				n.Address = a
			}
		}
		if n.Address == "" {
			c.fail(r.Pos, "node "+n.Name+" has no address", "address IP:PORT; in its host section, or a connection to it")
		}
	}
	var nets, disks []Options
	for _, l := range links {
		nets, disks = append(nets, l.net), append(disks, l.disk)
	}
	out.Net = sorted(inAll(nets))
	resync := inAll(disks)
	out.Disk = sorted(append(out.Disk, resync...))
	for _, l := range links {
		conn := Connection{Nodes: l.nodes, Net: sorted(minus(l.net, out.Net)), Disk: sorted(minus(l.disk, resync))}
		for _, n := range out.Nodes {
			if a, ok := l.addresses.Get(n.Name); ok && a != n.Address {
				conn.Addresses = l.addresses
			}
		}
		if len(conn.Addresses) > 0 || len(conn.Net) > 0 || len(conn.Disk) > 0 {
			c.at[fmt.Sprintf("connections[%d]", len(out.Connections))] = pos{l.at.Line, l.at.Col}
			out.Connections = append(out.Connections, conn)
		}
	}
}

func (c *converter) link(out *Resource, r *drbdconf.Resource, conn *drbdconf.Connection) (link, bool) {
	l := link{at: conn.Pos}
	for i, p := range conn.Paths {
		if i > 0 {
			c.warn(p.Pos, "path", "a connection has one path, the first; bond the network interfaces to have two", false)
			continue
		}
		for j, e := range p.Endpoints {
			if e.Proxy != nil {
				c.fail(e.Proxy.Pos, "there is no proxy in hawser", "connect the nodes directly, with protocol A and on-congestion pull-ahead; or through a VPN")
				c.proxy(e.Proxy.Options)
				return l, false
			}
			h := r.Host(e.Host)
			if h == nil || j > 1 || e.Address == nil {
				c.fail(e.Pos, "the connection of "+e.Host+" has no address", "")
				return l, false
			}
			l.nodes[j] = c.names[h]
			a := e.Address
			if e.Outside != nil {
				if c.names[h] != c.o.Node {
					a = e.Outside
				}
				c.warn(e.Pos, "outside-address", "taken for the peers of "+c.names[h]+" and not for itself: the definition differs between nodes, import on each", false)
			}
			l.addresses = append(l.addresses, Option{c.names[h], c.address(a)})
		}
	}
	var net drbdconf.Options
	if conn.Net != nil {
		net = conn.Net.Options
	}
	for _, o := range net {
		c.at["net."+o.Name] = pos{o.Pos.Line, o.Pos.Col}
	}
	l.net = c.fixNet(out, c.list("net", net, nil), net)
	var first drbdconf.Options
	for i, v := range conn.Volumes {
		var opts drbdconf.Options
		if v.Disk != nil {
			opts = v.Disk.Options
		}
		got := fixRates(c, c.list("disk", opts, isResync), opts)
		if i == 0 {
			l.disk, first = got, opts
			continue
		}
		for _, o := range opts {
			if mine, _ := l.disk.Get(o.Name); findOption(o.Name, inResync) != nil && !slices.ContainsFunc(got, func(x Option) bool { return x == Option{o.Name, mine} }) {
				c.warn(o.Pos, o.Name+" "+o.Value, fmt.Sprintf("resync options are those of a connection: what volume %d has is used for volume %d too", conn.Volumes[0].Number, v.Number), false)
			}
		}
		for _, o := range first {
			if _, has := opts.Get(o.Name); !has && findOption(o.Name, inResync) != nil {
				c.warn(o.Pos, o.Name+" "+o.Value, fmt.Sprintf("resync options are those of a connection: volume %d has it too", v.Number), false)
			}
		}
	}
	return l, true
}

// fixNet changes what DRBD takes and hawser refuses: combinations that cannot work, or have no effect.
func (c *converter) fixNet(out *Resource, opts Options, theirs drbdconf.Options) Options {
	say := func(name, text string, note bool) {
		o, ok := theirs.Get(name)
		if !ok {
			o.Pos = c.res.Pos
		}
		c.warn(o.Pos, strings.TrimSpace(name+" "+o.Value), text, note)
	}
	get := func(name string) string {
		v, ok := opts.Get(name)
		if !ok {
			v = findOption(name, inNet).def
		}
		return v
	}
	drop := func(name, text string, note bool) {
		if _, ok := opts.Get(name); ok {
			say(name, text, note)
			opts = remove(opts, name)
		}
	}
	if get("protocol") != "C" && get("allow-two-primaries") == "yes" {
		drop("allow-two-primaries", "two Primaries need protocol C; the kernel refuses this combination too", false)
	}
	if get("shared-secret") != "" && get("cram-hmac-alg") == "" {
		drop("shared-secret", "without cram-hmac-alg nobody asks for it, in DRBD neither", false)
	}
	if a := get("on-congestion"); a != "block" && get("protocol") != "A" {
		say("on-congestion", "block is used: with protocol "+get("protocol")+" every write waits for the peer anyway", false)
		opts = replace(opts, "on-congestion", "block")
	}
	if get("on-congestion") == "block" {
		drop("congestion-fill", "with on-congestion block it has no effect", true)
		drop("congestion-extents", "with on-congestion block it has no effect", true)
	}
	if get("csums-alg") == "" {
		drop("csums-after-crash-only", "without csums-alg it has no effect", true)
	}
	for _, x := range []struct{ option, value, handler string }{
		{"after-sb-1pri", "call-pri-lost-after-sb", "pri-lost-after-sb"},
		{"after-sb-2pri", "call-pri-lost-after-sb", "pri-lost-after-sb"},
		{"rr-conflict", "call-pri-lost", "pri-lost"},
	} {
		if _, ok := out.Handlers.Get(x.handler); get(x.option) == x.value && !ok {
			say(x.option, "disconnect is used: there is no handler "+x.handler, false)
			opts = replace(opts, x.option, "disconnect")
		}
	}
	if name, ok := strings.CutPrefix(get("after-sb-0pri"), discardNode); ok {
		for h, node := range c.names {
			if slices.ContainsFunc(h.Names, func(n string) bool { return drbdconf.MatchHost(n, name) }) {
				opts = replace(opts, "after-sb-0pri", discardNode+node)
			}
		}
	}
	var net [3]time.Duration
	for i, name := range []string{"timeout", "ping-int", "connect-int"} {
		v, _ := findOption(name, inNet).parse(get(name))
		net[i] = v.dur
	}
	if least := min(net[1], net[2]); net[0] >= least {
		n := strconv.FormatInt(int64((least-tenth)/tenth), 10)
		say("timeout", n+" is used: it must be below ping-int and connect-int", false)
		opts = replace(opts, "timeout", n)
	}
	return opts
}

// fixRates lowers a least rate that is above the most.
func fixRates(c *converter, opts Options, theirs drbdconf.Options) Options {
	low, okLow := opts.Get("c-min-rate")
	high, okHigh := opts.Get("c-max-rate")
	if !okLow || !okHigh {
		return opts
	}
	a, _ := parseNumber(low, kindRate)
	if b, _ := parseNumber(high, kindRate); a > b && b > 0 {
		o, _ := theirs.Get("c-min-rate")
		c.warn(o.Pos, "c-min-rate "+o.Value, high+" is used: it cannot be above c-max-rate", false)
		return replace(opts, "c-min-rate", high)
	}
	return opts
}

// unsaid looks for what Expand leaves out.
func (c *converter) unsaid(r *drbdconf.Resource) {
	for _, name := range r.IgnoreOn {
		c.warn(r.Pos, "ignore-on "+name, "a node without host section does not run the resource anyway", true)
	}
	for _, h := range r.Hosts {
		for _, v := range h.Volumes {
			if v.Options == nil {
				continue
			}
			for _, o := range v.Options.Options {
				if findOption(o.Name, inResync) != nil {
					c.warn(o.Pos, o.Name+" "+o.Value, "resync options in a host section have no effect on any connection, in DRBD neither", false)
				}
			}
		}
	}
	for _, o := range r.Get("net") {
		if o.From == "disk" {
			c.warn(o.Pos, o.Name, "is an option of net now", true)
		}
	}
	for _, o := range append(slices.Clone(r.Get("disk")), r.Common().Get("disk")...) {
		if o.From == "syncer" && o.Name == "resync-rate" {
			c.warn(o.Pos, "rate "+o.Value, "is where the controller of the resync rate begins; c-plan-ahead 0 makes it a fixed rate, as it was in 8.3", false)
		}
	}
}

// sorted is in the order of the table: what drbd.conf inherits comes in an order of its own.
func sorted(list Options) Options {
	at := func(o Option) int { return slices.IndexFunc(table, func(t option) bool { return t.name == o.Name }) }
	list = slices.Clone(list)
	slices.SortStableFunc(list, func(a, b Option) int { return at(a) - at(b) })
	return list
}

// inAll are the options that all lists have, with the same value.
func inAll(lists []Options) Options {
	var out Options
	if len(lists) == 0 {
		return nil
	}
	for _, o := range lists[0] {
		if !slices.ContainsFunc(lists, func(l Options) bool { return !slices.Contains(l, o) }) {
			out = append(out, o)
		}
	}
	return out
}

// minus is list without what other has.
func minus(list, other Options) Options {
	var out Options
	for _, o := range list {
		if !slices.Contains(other, o) {
			out = append(out, o)
		}
	}
	return out
}

func remove(list Options, name string) Options {
	return slices.DeleteFunc(slices.Clone(list), func(o Option) bool { return o.Name == name })
}

// replace sets an option, in its place where it is there.
func replace(list Options, name, value string) Options {
	list = slices.Clone(list)
	for i := range list {
		if list[i].Name == name {
			list[i].Value = value
			return list
		}
	}
	return append(list, Option{name, value})
}
