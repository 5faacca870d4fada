package drbdconf

import (
	"fmt"
	"slices"
)

// ResolvedConnections are the connections of a resource as they are used: the two hosts of a resource without any, the
// pairs of a mesh, each with its paths and addresses. An endpoint without an address has none anywhere.
func (r *Resource) ResolvedConnections() []*Connection {
	var out []*Connection
	if len(r.Connections) == 0 && r.Mesh == nil && len(r.Hosts) == 2 {
		out = append(out, r.pair(r.Hosts[0], r.Hosts[1], r.Pos, nil))
	}
	for _, c := range r.Connections {
		n := *c
		n.Endpoints, n.Paths = nil, nil
		for _, p := range c.AllPaths() {
			q := Path{Pos: p.Pos}
			for _, e := range p.Endpoints {
				if h := r.Host(e.Host); h != nil {
					if e.Address == nil {
						e.Address = h.Address
					}
					if e.Address != nil && e.Port != "" {
						e.Address, e.Port = e.Address.with(e.Port), ""
					}
					if e.Proxy == nil {
						e.Proxy = h.Proxy
					}
				}
				q.Endpoints = append(q.Endpoints, e)
			}
			n.Paths = append(n.Paths, q)
		}
		out = append(out, &n)
	}
	if m := r.Mesh; m != nil {
		for i, a := range m.Hosts {
			for _, b := range m.Hosts[i+1:] {
				x, y := r.Host(a), r.Host(b)
				if x != nil && y != nil && x != y {
					out = append(out, r.pair(x, y, m.Pos, m.Net))
				}
			}
		}
	}
	return out
}

// pair is the connection of two hosts with their own addresses.
func (r *Resource) pair(a, b *Host, at Pos, net *Section) *Connection {
	end := func(h *Host) Endpoint {
		name := h.Name()
		if h.Kind == On && len(h.Names) > 1 {
			name = h.Names[0] // of several that share a section, as drbdadm says it
		}
		return Endpoint{Pos: h.Pos, Host: name, Address: h.Address, Proxy: h.Proxy}
	}
	c := &Connection{Pos: at, Implicit: true}
	if net != nil { // options are copied one by one, to the front
		c.Net = &Section{Pos: net.Pos, Options: inherit(nil, net.Options, anyOption)}
	}
	c.Paths = []Path{{Pos: at, Endpoints: []Endpoint{end(a), end(b)}}}
	return c
}

// inherit puts what a more general section says in front of what own says, the last of it first: drbdadm's order. what
// says which options pass.
func inherit(own, general Options, what func(Option) bool) Options {
	for _, o := range general {
		if !what(o) {
			continue
		}
		if _, has := own.Get(o.Name); !has {
			own = append(Options{o}, own...)
		}
	}
	return own
}

func anyOption(Option) bool { return true }

func isPeer(o Option) bool {
	s := Find("disk", o.Name)
	return s != nil && (s.Peer || s.Name == "bitmap")
}

func notPeer(o Option) bool { return !isPeer(o) }

func optionsOf(s *Section) Options {
	if s == nil {
		return nil
	}
	return s.Options
}

// conflict is a contradiction between sections of equal rank. Like hawser, Expand goes on with the more specific one.
type conflicts struct {
	res  *Resource
	errs []*Error
	seen map[string]bool
}

func (c *conflicts) look(specific, general *Section) {
	for _, o := range optionsOf(specific) {
		g, ok := optionsOf(general).Get(o.Name)
		if !ok || g.Value == o.Value {
			continue
		}
		key := fmt.Sprint(o.Name, o.Pos, g.Pos)
		if c.seen[key] {
			continue
		}
		if c.seen == nil {
			c.seen = map[string]bool{}
		}
		c.seen[key] = true
		c.errs = append(c.errs, &Error{Pos: o.Pos, Stage: Expand, Code: 10, Resource: c.res.Name,
			Reason: fmt.Sprintf("in resource %s, ambiguous inheritance for option %s: it should be %s (here) and %s (%s) at the same time", c.res.Name, o.Name, o.Value, g.Value, g.Pos),
			Hint:   "hawser takes what is written here, which is more specific"})
	}
}

// Conflicts lists contradicting values of sections that have the same rank, as drbdadm complains about them on every
// verb but dump.
func (r *Resource) Conflicts() []*Error {
	c := &conflicts{res: r}
	for _, v := range r.Volumes {
		c.look(v.Options, r.Disk)
	}
	if r.Mesh != nil {
		c.look(r.Mesh.Net, r.Net)
	}
	return c.errs
}

// Expand is the configuration with all resources expanded.
func (c *Config) Expand() *Config {
	n := *c
	n.expanded = true
	n.Resources = nil
	for _, r := range c.Resources {
		n.Resources = append(n.Resources, r.Expand())
	}
	return &n
}

// Expand is the resource with everything inherited: each host with whole volumes and their options, each connection
// with its net options and one volume section of peer-device options for each volume. The order of options is that of
// drbdadm -v dump and of the commands it runs.
func (r *Resource) Expand() *Resource {
	common := r.Common()
	if common == nil {
		common = &Sections{}
	}
	n := &Resource{Name: r.Name, Template: r.Template, TemplateFor: r.TemplateFor, common: r.common, IgnoreOn: r.IgnoreOn}
	n.Pos = r.Pos
	mine, theirs, result := r.named(), common.named(), n.named()
	for i := range mine {
		own, general := optionsOf(*mine[i].at), optionsOf(*theirs[i].at)
		var s *Section
		if mine[i].name == "disk" {
			// Two lists: the options of the disk, and those of a disk and a peer.
			local := inherit(filter(own, notPeer), general, notPeer)
			s = &Section{Pos: r.Pos, Options: append(local, inherit(filter(own, isPeer), general, isPeer)...)}
		} else {
			s = &Section{Pos: r.Pos, Options: inherit(own[:len(own):len(own)], general, anyOption)}
		}
		if mine[i].name == "proxy" {
			for _, from := range []*Section{*mine[i].at, *theirs[i].at} {
				if from != nil && len(s.Plugins) == 0 {
					s.Plugins = from.Plugins
				}
			}
		}
		*result[i].at = s.orNil()
	}
	for _, h := range r.Hosts {
		m := *h
		m.Volumes, m.Proxy = nil, nil
		for _, number := range r.Numbers(h) {
			v := r.On(h, number)
			if v.Device != nil {
				v.Device = &Device{Pos: v.Device.Pos, Name: v.Device.Path(), Minor: v.Device.Minor}
			}
			if v.Disk == None {
				v.MetaDisk = nil
			}
			var own Options
			if x := h.Volume(number); x != nil {
				own = optionsOf(x.Options)
			}
			var whole Options
			for _, what := range []func(Option) bool{notPeer, isPeer} {
				got := filter(own, what)
				if x := findVolume(r.Volumes, number); x != nil {
					base := optionsOf(x.Options)
					got = inherit(got, overridden(optionsOf(n.Disk), base), what)
					got = inherit(got, base, what)
				} else {
					got = inherit(got, optionsOf(n.Disk), what)
				}
				whole = append(whole, got...)
			}
			v.Options = (&Section{Pos: v.Pos, Options: whole}).orNil()
			m.Volumes = append(m.Volumes, &v)
		}
		n.Hosts = append(n.Hosts, &m)
	}
	for _, c := range r.ResolvedConnections() {
		c.Net = (&Section{Pos: c.Pos, Options: inherit(optionsOf(c.Net), optionsOf(n.Net), anyOption)}).orNil()
		disk := filter(optionsOf(c.Disk), isPeer)
		var vols []*PeerVolume
		var numbers []int // those written in the connection first
		for _, x := range c.Volumes {
			numbers = append(numbers, x.Number)
		}
		for _, number := range r.Numbers(r.Hosts[0]) {
			if !slices.Contains(numbers, number) {
				numbers = append(numbers, number)
			}
		}
		for _, number := range numbers {
			var own Options
			for _, x := range c.Volumes {
				if x.Number == number {
					own = optionsOf(x.Disk)
				}
			}
			own = own[:len(own):len(own)]
			var base Options
			if x := findVolume(r.Volumes, number); x != nil {
				base = filter(optionsOf(x.Options), isPeer)
			}
			own = inherit(own, inherit(disk, overridden(filter(optionsOf(n.Disk), isPeer), base), isPeer), isPeer)
			own = inherit(own, base, isPeer)
			vols = append(vols, &PeerVolume{Pos: c.Pos, Number: number, Disk: (&Section{Pos: c.Pos, Options: own}).orNil()})
		}
		c.Volumes = vols
		for i := range c.Paths {
			for j := range c.Paths[i].Endpoints {
				if e := &c.Paths[i].Endpoints[j]; e.Proxy != nil {
					x := *e.Proxy
					x.Options = proxyOptions(x.Options, n.Proxy)
					e.Proxy = &x
				}
			}
		}
		n.Connections = append(n.Connections, c)
	}
	return n
}

// overridden is list with the values that base has: the place is that of the general section, as drbdadm has it where
// both say the same.
func overridden(list, base Options) Options {
	list = slices.Clone(list)
	for i, o := range list {
		if b, has := base.Get(o.Name); has {
			list[i] = b
		}
	}
	return list
}

func proxyOptions(own, general *Section) *Section {
	s := &Section{Options: inherit(optionsOf(own), optionsOf(general), anyOption)}
	for _, from := range []*Section{own, general} {
		if from != nil && len(s.Plugins) == 0 {
			s.Pos, s.Plugins = from.Pos, from.Plugins
		}
	}
	return s.orNil()
}

func filter(list Options, what func(Option) bool) Options {
	var out Options
	for _, o := range list {
		if what(o) {
			out = append(out, o)
		}
	}
	return out
}

// without is list without the options that other has.
func without(list, other Options) Options {
	return filter(list, func(o Option) bool { _, has := other.Get(o.Name); return !has })
}
