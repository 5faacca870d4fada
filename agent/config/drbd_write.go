package config

import (
	"bytes"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/hawser-ha/hawser/agent/drbdconf"
)

// MarshalDRBD writes resources in the syntax of drbd.conf, version 9. The warnings name what drbd.conf cannot say.
func MarshalDRBD(rs []Resource) ([]byte, []Warning) {
	cfg, warnings := ToDRBD(rs)
	var b bytes.Buffer
	_ = drbdconf.Print(&b, cfg, drbdconf.PrintOptions{Style: drbdconf.Lossless}) // to memory: it cannot fail
	return b.Bytes(), warnings
}

// ToDRBD makes a drbd.conf of resources that were checked. ReadDRBD of it gives them back, but for what the warnings name.
func ToDRBD(rs []Resource) (*drbdconf.Config, []Warning) {
	w := &drbdWriter{minors: map[int]bool{}}
	for _, r := range rs {
		for _, n := range r.Nodes {
			for _, v := range r.Volumes {
				if minor, ok := minorOf(n.merge(v)); ok {
					w.minors[minor] = true
				}
			}
		}
	}
	cfg := &drbdconf.Config{}
	for i := range rs {
		cfg.Resources = append(cfg.Resources, w.resource(&rs[i]))
	}
	return cfg, w.warnings
}

type drbdWriter struct {
	minors   map[int]bool // in use
	warnings []Warning
	res      *Resource
}

func (w *drbdWriter) warn(option, text string) {
	w.warnings = append(w.warnings, Warning{File: w.res.File, Line: w.res.at[""].line, Resource: w.res.Name, Option: option, Text: text})
}

// minorOf is the minor number that the device name of a volume has.
func minorOf(v Volume) (int, bool) {
	_, link, _ := parseDevice(v.Device)
	n, err := strconv.Atoi(strings.TrimPrefix(link, "/dev/drbd"))
	return n, err == nil && n >= 0 && n < 1<<20 && link == fmt.Sprintf("/dev/drbd%d", n)
}

func (w *drbdWriter) resource(r *Resource) *drbdconf.Resource {
	w.res = r
	out := &drbdconf.Resource{Name: r.Name}
	for _, v := range r.Volumes {
		out.Volumes = append(out.Volumes, w.volume(v, true))
	}
	for i, n := range r.Nodes {
		h := &drbdconf.Host{Kind: drbdconf.On, Names: []string{n.Name}, NodeID: r.id(i), Address: addressOf(n.Address)}
		for _, v := range r.Volumes {
			if own := slices.IndexFunc(n.Volumes, func(x Volume) bool { return x.Number == v.Number }); own >= 0 {
				h.Volumes = append(h.Volumes, w.volume(n.Volumes[own], false))
			}
			if n.Diskless {
				x := &drbdconf.Volume{Number: v.Number}
				if len(h.Volumes) > 0 && h.Volumes[len(h.Volumes)-1].Number == v.Number {
					x = h.Volumes[len(h.Volumes)-1]
				} else {
					h.Volumes = append(h.Volumes, x)
				}
				x.Disk = drbdconf.None
			}
		}
		if len(n.NBD) > 0 {
			w.warn("nbd", "drbd.conf has no NBD server: what node "+n.Name+" has is left out")
		}
		out.Hosts = append(out.Hosts, h)
	}
	out.Net = w.section("net", r.Net)
	out.Disk = w.section("disk", r.Disk)
	out.Options = w.section("options", r.Options)
	out.Handlers = w.section("handlers", r.Handlers)
	if len(r.NBD) > 0 {
		w.warn("nbd", "drbd.conf has no NBD server: it is left out")
	}
	if s := r.Services; len(s.After)+len(s.Primary)+len(s.Secondary)+len(s.Always) > 0 {
		w.warn("services", "drbd.conf has no services: they are left out")
	}
	if len(r.Connections) > 0 || len(r.Nodes) > 2 {
		w.connections(out, r)
	}
	return out
}

// connections writes every pair, as drbd.conf wants it.
func (w *drbdWriter) connections(out *drbdconf.Resource, r *Resource) {
	for i, a := range r.Nodes {
		for _, b := range r.Nodes[i+1:] {
			c := &drbdconf.Connection{}
			ends := []Node{a, b}
			for _, conn := range r.Connections {
				if conn.Nodes != [2]string{a.Name, b.Name} && conn.Nodes != [2]string{b.Name, a.Name} {
					continue
				}
				c.Net, c.Disk = w.section("net", conn.Net), w.section("disk", conn.Disk)
				for j := range ends {
					if text, ok := conn.Addresses.Get(ends[j].Name); ok {
						ends[j].Address = text
					}
				}
			}
			for _, n := range ends {
				c.Endpoints = append(c.Endpoints, drbdconf.Endpoint{Host: n.Name, Address: addressOf(n.Address)})
			}
			out.Connections = append(out.Connections, c)
		}
	}
}

func addressOf(text string) *drbdconf.Address {
	a, err := netip.ParseAddrPort(text)
	if err != nil {
		return nil // a checked resource has none such
	}
	family := "ipv4"
	if a.Addr().Is6() && !a.Addr().Is4In6() {
		family = "ipv6"
	}
	ip := a.Addr().Unmap()
	return &drbdconf.Address{Family: family, Text: ip.String(), Port: strconv.Itoa(int(a.Port())), IP: ip}
}

// volume writes a volume; whole is the one of the resource, that must have a device.
func (w *drbdWriter) volume(v Volume, whole bool) *drbdconf.Volume {
	out := &drbdconf.Volume{Number: v.Number, Disk: v.Disk}
	kind, link, _ := parseDevice(v.Device)
	switch {
	case whole || link != "":
		out.Device = w.device(v, link)
	case v.Device != "":
		out.Device = nil
	}
	if kind != "auto" && v.Device != "" {
		w.warn("device "+v.Device, "drbd.conf has one kind of device: "+kind+" is left out")
	}
	if path, index, _ := parseMetaDisk(v.MetaDisk); v.MetaDisk != "" && v.Disk != none {
		out.MetaDisk = &drbdconf.MetaDisk{Path: path, Index: index}
	}
	opts := w.options("disk", v.Options)
	if v.Size != "" {
		if n, why := parseSize(v.Size); why == "" && n > 0 {
			text := v.Size
			if drbdconf.Find("disk", "size").Check(text) != "" { // 1T, 1GiB
				text = strconv.FormatInt(n/512, 10) + "s"
			}
			opts = append(drbdconf.Options{{Name: "size", Value: text}}, opts...)
		}
	}
	if len(opts) > 0 {
		out.Options = &drbdconf.Section{Options: opts}
	}
	return out
}

func (w *drbdWriter) device(v Volume, link string) *drbdconf.Device {
	if n, ok := minorOf(v); ok {
		return &drbdconf.Device{Name: link, Minor: n}
	}
	minor := 0
	for w.minors[minor] {
		minor++
	}
	w.minors[minor] = true
	d := &drbdconf.Device{Minor: minor}
	if strings.HasPrefix(link, "/dev/drbd_") {
		d.Name = link
	}
	w.warn(strings.TrimSpace("device "+v.Device), fmt.Sprintf("volume %d needs a minor number in drbd.conf: %d is chosen", v.Number, minor))
	return d
}

func (w *drbdWriter) section(name string, opts Options) *drbdconf.Section {
	if list := w.options(name, opts); len(list) > 0 {
		return &drbdconf.Section{Options: list}
	}
	return nil
}

func (w *drbdWriter) options(name string, opts Options) drbdconf.Options {
	var out drbdconf.Options
	for _, o := range opts {
		spec := drbdconf.Find(name, o.Name)
		if spec == nil || name == "options" && insteadOf[name+" "+o.Name].text != "" {
			w.warn(o.Name+" "+o.Value, "drbd.conf has no such option: it is left out")
			continue
		}
		value := o.Value
		if ours := findOption(o.Name, sectionsOf[name]...); ours != nil {
			v, _ := ours.parse(value)
			switch ours.kind {
			case kindBool:
				value = map[bool]string{true: "yes", false: "no"}[v.b]
			case kindEnum:
				value = v.s
			case kindTime:
				value = strconv.FormatInt(v.n, 10)
			case kindCount, kindBytes, kindSectors, kindRate:
				if spec.Check(value) != "" { // units that drbd.conf does not have
					value = strconv.FormatInt(v.n, 10)
				}
			}
		}
		if why := spec.Check(value); why != "" {
			w.warn(o.Name+" "+o.Value, "in drbd.conf this "+why+": it is left out")
			continue
		}
		if len(value) > 255 || strings.ContainsAny(value, "\n\x00") {
			w.warn(o.Name, "in drbd.conf a text has at most 255 bytes on one line: it is left out")
			continue
		}
		out = append(out, drbdconf.Option{Name: o.Name, Value: value})
	}
	return out
}
