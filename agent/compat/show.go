package compat

import (
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	"github.com/hawser-ha/hawser/agent/drbdconf"
)

// Shown is a resource that is up, with its part of the configuration.
type Shown struct {
	R    Resource
	Plan *Plan // nil: no file defines it
}

// setting is one option as show prints it.
type setting struct {
	name, value string
	byDefault   bool
	kind        drbdconf.Kind
}

// settings are the options of a section that have not the value they have by default, or all of them.
func settings(section string, opts drbdconf.Options, want func(*drbdconf.Spec) bool, defaults, v84 bool) []setting {
	var out []setting
	for _, spec := range drbdconf.Specs() {
		if spec.Section != section || !want(&spec) || !of(&spec, v84) {
			continue
		}
		o, said := opts.Get(spec.Name)
		byDefault := !said || o.Value == spec.Default
		if byDefault && !defaults {
			continue
		}
		s := setting{spec.Name, o.Value, byDefault, spec.Kind}
		if byDefault {
			s.value = spec.Default
		}
		if spec.Kind == drbdconf.Number && !byDefault {
			s.value = unit(&spec, s.value)
		}
		out = append(out, s)
	}
	return out
}

// of tells whether that version has the option.
func of(s *drbdconf.Spec, v84 bool) bool {
	if v84 {
		return s.Since == ""
	}
	return s.Until == ""
}

// unit writes a number as the driver has it: rates as 4096k, sizes as 2048s.
func unit(s *drbdconf.Spec, text string) string {
	n, why := s.Number(text)
	if why != "" {
		return text
	}
	switch s.Base {
	case drbdconf.KiB:
		return strconv.FormatUint(n, 10) + "k"
	case drbdconf.Sector:
		return strconv.FormatUint(n, 10) + "s"
	}
	return strconv.FormatUint(n, 10)
}

type shower struct {
	b        strings.Builder
	defaults bool
	v84      bool
}

func (s *shower) line(depth int, format string, args ...any) {
	s.b.WriteString(strings.Repeat("    ", depth))
	fmt.Fprintf(&s.b, format, args...)
	s.b.WriteByte('\n')
}

func (s *shower) section(depth int, name string, list []setting) {
	s.line(depth, "%s {", name)
	for _, o := range list {
		value := o.value
		if o.kind == drbdconf.Text || o.kind == drbdconf.Command {
			value = `"` + value + `"`
		}
		tail := ""
		if o.byDefault {
			tail = " # default"
		}
		s.line(depth+1, "%-16s\t%s;%s", o.name, value, tail)
	}
	s.line(depth, "}")
}

// Show prints the configuration of resources that are up, as drbdsetup show does.
func Show(w io.Writer, list []Shown, defaults, v84 bool) error {
	if len(list) == 0 && !v84 {
		_, err := io.WriteString(w, None)
		return err
	}
	s := &shower{defaults: defaults, v84: v84}
	for i := range list {
		if v84 {
			s.resource84(&list[i])
		} else {
			s.resource(&list[i])
		}
	}
	_, err := io.WriteString(w, s.b.String())
	return err
}

func (x *Shown) options(section string) drbdconf.Options {
	if x.Plan == nil {
		return nil
	}
	return x.Plan.R.Get(section)
}

func (x *Shown) disk(volume int) drbdconf.Options {
	if x.Plan == nil {
		return nil
	}
	if v := x.Plan.Self.Volume(volume); v != nil && v.Options != nil {
		return v.Options.Options
	}
	return nil
}

func (x *Shown) peer(id int) *Peer {
	if x.Plan == nil {
		return nil
	}
	for _, p := range x.Plan.Peers() {
		if p.ID() == id {
			return &p
		}
	}
	return nil
}

func (p *Peer) net() drbdconf.Options {
	if p == nil || p.Conn.Net == nil {
		return nil
	}
	return p.Conn.Net.Options
}

func (p *Peer) disk(volume int) drbdconf.Options {
	if p == nil {
		return nil
	}
	for _, v := range p.Conn.Volumes {
		if v.Number == volume && v.Disk != nil {
			return v.Disk.Options
		}
	}
	return nil
}

// meta is where a volume's metadata is: internal, or a device and an index or flexible.
func (x *Shown) meta(volume int) (device, index string) {
	if x.Plan == nil {
		return "internal", ""
	}
	v := x.Plan.Volume(volume)
	dev, _, attach := MetaDisk(&v)
	if attach == "internal" {
		return "internal", ""
	}
	return dev, attach
}

func (s *shower) volume(depth int, x *Shown, d *Device, disk []setting) {
	s.line(depth, "volume %d {", d.Volume)
	s.line(depth+1, "device\t\t\tminor %d;", d.Minor)
	if d.Backing != "" {
		s.line(depth+1, "disk\t\t\t%q;", d.Backing)
		switch dev, index := x.meta(d.Volume); index {
		case "":
			s.line(depth+1, "meta-disk\t\t\t%s;", dev)
		case "flexible":
			s.line(depth+1, "meta-disk\t\t\t%q;", dev)
		default:
			s.line(depth+1, "meta-disk\t\t\t%q [ %s ];", dev, index)
		}
		s.section(depth+1, "disk", disk)
	}
	s.line(depth, "}")
}

func (s *shower) resource(x *Shown) {
	s.line(0, "resource %q {", x.R.Name)
	s.section(1, "options", settings("options", x.options("options"), isAny, s.defaults, false))
	s.line(1, "_this_host {")
	s.line(2, "node-id\t\t\t%d;", x.R.NodeID)
	for i := range x.R.Devices {
		d := &x.R.Devices[i]
		s.volume(2, x, d, settings("disk", x.disk(d.Volume), func(o *drbdconf.Spec) bool { return !o.Peer }, s.defaults, false))
	}
	s.line(1, "}")
	for i := range x.R.Connections {
		c := &x.R.Connections[i]
		peer := x.peer(c.PeerNodeID)
		s.line(1, "connection {")
		s.line(2, "_peer_node_id %d;", c.PeerNodeID)
		for _, p := range c.Paths {
			s.line(2, "path {")
			s.line(3, "_this_host %s;", confAddress(p.Local))
			s.line(3, "_remote_host %s;", confAddress(p.Peer))
			s.line(2, "}")
		}
		s.line(2, "_cstate %s;", c.State)
		s.section(2, "net", append(settings("net", peer.net(), isAny, s.defaults, false), setting{name: "_name", value: c.Name, kind: drbdconf.Text}))
		for j := range c.PeerDevices {
			v := c.PeerDevices[j].Volume
			s.line(2, "volume %d {", v)
			s.section(3, "disk", settings("disk", peer.disk(v), isPeer, s.defaults, false))
			s.line(2, "}")
		}
		s.line(1, "}")
	}
	s.line(0, "}")
	s.b.WriteByte('\n')
}

func confAddress(a Address) string {
	if a.Family == "ipv6" {
		return fmt.Sprintf("ipv6 [%s]:%d", a.IP, a.Port)
	}
	return fmt.Sprintf("%s %s:%d", a.Family, a.IP, a.Port)
}

// resource84 is the older layout: one peer, resync options among those of the disk.
func (s *shower) resource84(x *Shown) {
	s.line(0, "resource %s {", x.R.Name)
	s.section(1, "options", settings("options", x.options("options"), isAny, s.defaults, true))
	var peer *Peer
	var path *Path
	if len(x.R.Connections) > 0 {
		c := &x.R.Connections[0]
		peer = x.peer(c.PeerNodeID)
		if c.State != "StandAlone" && len(c.Paths) > 0 {
			path = &c.Paths[0]
			s.section(1, "net", settings("net", peer.net(), isAny, s.defaults, true))
			s.line(1, "_remote_host {")
			s.line(2, "address\t\t\t%s;", confAddress(path.Peer))
			s.line(1, "}")
		}
	}
	s.line(1, "_this_host {")
	if path != nil {
		s.line(2, "address\t\t\t%s;", confAddress(path.Local))
	}
	for i := range x.R.Devices {
		d := &x.R.Devices[i]
		opts := slices.Concat(x.disk(d.Volume), peer.disk(d.Volume))
		s.volume(2, x, d, settings("disk", opts, isAny, s.defaults, true))
	}
	s.line(1, "}")
	s.line(0, "}")
}
