package drbdconf

import (
	"bytes"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
)

// Style is a way to write a configuration.
type Style uint8

// Styles.
const (
	V9       Style = iota // drbdadm dump of 9.34; it leaves some things out
	V84                   // the same of 8.4
	Lossless              // as V9, but all of it, and nothing that was not written
)

// PrintOptions say how and for whom.
type PrintOptions struct {
	VerifyOptions // who is asking: for the comments on resources
	Style         Style
	Only          []string // resources, nil for all; then neither global nor common
}

// Print writes a configuration that was verified.
func Print(w io.Writer, cfg *Config, opt PrintOptions) error {
	p := &printer{opt: opt}
	if len(opt.Only) == 0 {
		if opt.Style != Lossless {
			p.line(0, "# "+cfg.File)
		}
		for _, q := range cfg.Requires {
			if opt.Style == Lossless {
				p.line(0, requirePrefix+q.Op+" "+q.Version+";")
			}
		}
		p.global(cfg.Global, cfg.expanded)
		if cfg.Common != nil {
			p.line(0, "common {")
			p.sections(4, cfg.Common)
			p.line(0, "}", "")
		}
	}
	for _, r := range cfg.Resources {
		if len(opt.Only) == 0 || slices.Contains(opt.Only, r.Name) {
			p.resource(cfg, r)
		}
	}
	_, err := w.Write(p.b.Bytes())
	return err
}

type printer struct {
	b   bytes.Buffer
	opt PrintOptions
}

func (p *printer) line(indent int, lines ...string) {
	for _, l := range lines {
		if l != "" {
			p.b.WriteString(strings.Repeat(" ", indent))
		}
		p.b.WriteString(l)
		p.b.WriteByte('\n')
	}
}

// column is where values begin.
const column = 24

// pad is a name filled up to the column, for a line with this indent.
func pad(indent int, name string) string {
	return fmt.Sprintf("%-*s", max(0, column-indent), name)
}

// quote puts quotes where a word needs them.
func quote(s string) string {
	if s != "" && (len(s) <= 128 || len(s) > stringMax) && !strings.ContainsFunc(s, func(r rune) bool { return r >= 0x80 || !isWordByte(byte(r)) }) {
		return s
	}
	return `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(s) + `"`
}

func (p *printer) option(indent int, o Option) {
	switch {
	case o.Flag:
		p.line(indent, o.Name+";")
	default:
		v := quote(o.Value)
		if s := findNames(o.Name); s {
			v = quoteAll(strings.Fields(o.Value))
		}
		if p.opt.Style == V84 && o.Name == "protocol" {
			v = strings.ToUpper(v)
		}
		p.line(indent, fmt.Sprintf("%s %3s;", pad(indent, o.Name), v))
	}
}

func findNames(name string) bool { return name == "become-primary-on" }

func quoteAll(words []string) string {
	out := make([]string, len(words))
	for i, w := range words {
		out[i] = quote(w)
	}
	return strings.Join(out, " ")
}

// unset are the two timeouts of 8.4 that its dump shows though nobody set them.
var unset84 = map[string]string{"cmd-timeout-medium": "600", "cmd-timeout-long": "0"}

// global prints the section, even without content when it must be there.
func (p *printer) global(s *Section, always bool) {
	if s == nil && always {
		s = &Section{}
	}
	if s == nil {
		return
	}
	if p.opt.Style == Lossless {
		p.line(0, "global {")
		for _, o := range s.Options {
			p.option(4, o)
		}
		p.line(0, "}", "")
		return
	}
	var lines []string
	for _, name := range []string{"disable-ip-verification", "minor-count", "dialog-refresh", "usage-count", "udev-always-use-vnr",
		"cmd-timeout-short", "cmd-timeout-medium", "cmd-timeout-long"} {
		o, ok := s.Options.Get(name)
		if p.opt.Style == V84 && !ok {
			o.Name, o.Value = name, unset84[name]
			ok = o.Value != ""
		}
		if !ok {
			continue
		}
		n, why := ParseNumber(o.Value, One)
		switch spec := Find("global", name); {
		case name != "minor-count" && why == "" && strconv.FormatUint(n, 10) == spec.Default, o.Value == "ask", name == "udev-always-use-vnr",
			p.opt.Style == V9 && strings.HasPrefix(name, "cmd-"):
			continue
		}
		if o.Flag {
			lines = append(lines, name+";")
			continue
		}
		lines = append(lines, name+" "+o.Value+";")
	}
	if len(lines) == 0 && !always {
		return
	}
	p.line(0, "global {")
	p.line(4, lines...)
	p.line(0, "}", "")
}

// shown are the options of a section as the style has them.
func (p *printer) shown(name string, s *Sections) Options {
	return shownIn(p.opt.Style, name, s)
}

func shownIn(style Style, name string, s *Sections) Options {
	list := s.Get(name)
	switch {
	case style == V84 && name == "net":
		return filter(list, func(o Option) bool { return o.From != "disk" })
	case style == V84 && name == "disk":
		list = append(slices.Clone(list), filter(s.Get("net"), func(o Option) bool { return o.From == "disk" })...)
		slices.SortStableFunc(list, func(a, b Option) int { return a.seq - b.seq })
		return filter(list, func(o Option) bool { return !o.Void })
	case style == V84 && name == "handlers":
		list = slices.Clone(list)
		for i := range list {
			if list[i].Name == "outdate-peer" {
				list[i].Name = "fence-peer"
			}
		}
		return list
	}
	return ordered(style, name, list)
}

// ordered is a section in the order of the style: of disk the options of the device first.
func ordered(style Style, name string, list Options) Options {
	switch {
	case style == Lossless:
	case name == "startup":
		late := func(o Option) int {
			switch o.Name {
			case "become-primary-on":
				return 1
			case "stacked-timeouts":
				return 2
			}
			return 0
		}
		list = slices.Clone(list)
		slices.SortStableFunc(list, func(a, b Option) int { return late(a) - late(b) })
		if style == V9 {
			list = filter(list, func(o Option) bool { return o.Name != "become-primary-on" })
		}
		return list
	case name == "disk" && style != V84:
		peer := func(o Option) bool { s := Find("disk", o.Name); return s != nil && s.Peer }
		return append(filter(list, func(o Option) bool { return !peer(o) }), filter(list, peer)...)
	}
	return list
}

func (p *printer) sections(indent int, s *Sections) {
	for _, x := range s.named() {
		list := p.shown(x.name, s)
		var plugins []string
		if *x.at != nil {
			plugins = (*x.at).Plugins
		}
		if len(list) > 0 || len(plugins) > 0 {
			p.section(indent, x.name, list, plugins)
		}
	}
}

func (p *printer) section(indent int, name string, list Options, plugins []string) {
	p.line(indent, name+" {")
	for _, o := range list {
		p.option(indent+4, o)
	}
	if len(plugins) > 0 {
		p.line(indent+4, "plugin {")
		for _, l := range plugins {
			if p.opt.Style == Lossless {
				l = quoteAll(strings.Fields(l))
			}
			p.line(indent+8, l+";")
		}
		p.line(indent+4, "}")
	}
	p.line(indent, "}")
}

// part prints a section of options that is not one of Sections.
func (p *printer) part(indent int, name string, s *Section) {
	if s != nil {
		p.section(indent, name, ordered(p.opt.Style, name, s.Options), s.Plugins)
	}
}

func not(b bool) string {
	if b {
		return ""
	}
	return "not "
}

func (p *printer) resource(cfg *Config, r *Resource) {
	if p.opt.Style != Lossless {
		me := r.selfFor(p.opt.VerifyOptions, p.opt.Style)
		p.line(0, fmt.Sprintf("# resource %s on %s: %signored, %sstacked", r.Name, p.opt.Host, not(me == nil), not(me != nil && me.Kind == Stacked)))
		p.line(0, "# defined at "+r.Pos.String())
	}
	p.line(0, "resource "+quote(r.Name)+" {")
	if r.Template != "" {
		p.line(4, "template-file "+quote(r.Template)+";")
	}
	if p.opt.Style == Lossless {
		for _, name := range r.IgnoreOn {
			p.line(4, "ignore-on "+quote(name)+";")
		}
	}
	if p.opt.Style != V84 {
		p.volumes(4, r.Volumes)
	}
	for _, h := range r.Hosts {
		p.host(r, h)
	}
	for _, c := range r.Connections {
		p.connection(c)
	}
	if m := r.Mesh; m != nil {
		p.line(4, "connection-mesh {")
		p.line(8, strings.TrimSpace("hosts "+quoteAll(m.Hosts))+";")
		p.part(8, "net", m.Net)
		p.line(4, "}")
	}
	p.sections(4, &r.Sections)
	p.line(0, "}", "")
}

// selfFor is Self, but 8.4 wants the very name.
func (r *Resource) selfFor(opt VerifyOptions, style Style) *Host {
	h := r.Self(opt)
	if h != nil && style == V84 && h.Kind != Floating && !slices.Contains(h.Names, opt.Host) {
		return nil
	}
	return h
}

func (p *printer) volumes(indent int, list []*Volume) {
	if p.opt.Style != Lossless {
		list = slices.Clone(list)
		slices.SortStableFunc(list, func(a, b *Volume) int { return a.Number - b.Number })
	}
	for _, v := range list {
		at := indent
		if !v.Implicit {
			p.line(indent, fmt.Sprintf("volume %d {", v.Number))
			at += 4
		}
		p.part(at, "disk", v.Options)
		if d := v.Device; d != nil {
			text := "minor " + strconv.Itoa(d.Minor)
			if d.Name != "" {
				text = d.Name + " " + text
			}
			p.line(at, pad(at, "device")+" "+text+";")
		}
		if v.Disk != "" {
			p.line(at, pad(at, "disk")+" "+quote(v.Disk)+";")
		}
		if m := v.MetaDisk; m != nil {
			switch {
			case m.Path == Internal:
				p.line(at, pad(at, "meta-disk")+" internal;")
			case m.Index >= 0: // always 16 wide, whatever the indent
				p.line(at, fmt.Sprintf("meta-disk        %s [%d];", quote(m.Path), m.Index))
			default:
				p.line(at, fmt.Sprintf("meta-disk        %s;", quote(m.Path)))
			}
		}
		if v.Tiebreaker != nil {
			p.option(at, *v.Tiebreaker)
		}
		if !v.Implicit {
			p.line(indent, "}")
		}
	}
}

func addressText(a *Address) string { return a.Family + " " + a.String() }

func (p *printer) host(r *Resource, h *Host) {
	switch {
	case h.Kind == Floating && p.opt.Style == V84:
		p.line(4, "floating "+addressText(h.Address)+" {")
	case h.Kind == Floating:
		p.line(4, "floating         "+addressText(h.Address)+" {")
	case h.Kind == Stacked:
		p.line(4, "stacked-on-top-of "+quote(h.Lower)+" {")
		if p.opt.Style != Lossless {
			p.line(8, "# on "+strings.Join(h.Names, " ")+" ")
		}
	default:
		p.line(4, "on "+quoteAll(h.Names)+" {")
	}
	if h.NodeID >= 0 && (p.opt.Style == V9 || p.opt.Style == Lossless && !h.Generated) {
		p.line(8, fmt.Sprintf("node-id %d;", h.NodeID))
	}
	p.part(8, "options", h.Options)
	switch {
	case p.opt.Style == V84:
		p.volumes(8, whole(r, h))
	case h.Kind != Stacked || p.opt.Style == Lossless || len(r.Volumes) == 0 && expanded(h):
		p.volumes(8, h.Volumes)
	}
	if h.Address != nil && h.Kind != Floating {
		p.line(8, pad(8, "address")+" "+addressText(h.Address)+";")
	}
	if h.Proxy != nil {
		p.line(8, "proxy "+p.proxyHead(h.Proxy))
		p.proxyBody(8, h.Proxy)
	}
	p.line(4, "}")
}

// expanded reports whether a stacked host comes from Expand: drbdadm shows its volumes then only.
func expanded(h *Host) bool {
	return slices.ContainsFunc(h.Volumes, func(v *Volume) bool { return v.MetaDisk != nil && v.Device != nil && v.Device.Name != "" })
}

// whole are the volumes of a host with what the resource says of them, as 8.4 prints them.
func whole(r *Resource, h *Host) []*Volume {
	var list []*Volume
	for _, n := range r.Numbers(h) {
		v := r.On(h, n)
		own, general := h.Volume(n), findVolume(r.Volumes, n)
		var opts Options
		if own != nil {
			opts = optionsOf(own.Options)
		}
		if general != nil {
			opts = append(opts[:len(opts):len(opts)], without(optionsOf(general.Options), opts)...)
		}
		v.Options = (&Section{Pos: v.Pos, Options: opts}).orNil()
		if h.Kind == Stacked {
			v.Disk, v.MetaDisk = "", nil
		}
		list = append(list, &v)
	}
	return list
}

func (p *printer) proxyHead(x *Proxy) string { return "on " + quoteAll(x.Hosts) + " {" }

func (p *printer) proxyBody(indent int, x *Proxy) {
	if x.Inside != nil {
		p.line(indent+4, "inside           "+addressText(x.Inside)+";")
	}
	if x.Outside != nil {
		p.line(indent+4, "outside          "+addressText(x.Outside)+";")
	}
	p.part(indent+4, "options", x.Options)
	p.line(indent, "}")
}

func (p *printer) connection(c *Connection) {
	head := "connection {"
	if c.Name != "" && p.opt.Style == Lossless {
		head = "connection " + quote(c.Name) + " {"
	}
	p.line(4, head)
	for _, e := range c.Endpoints {
		p.endpoint(8, e)
	}
	for _, path := range c.Paths {
		p.line(8, "path {")
		for _, e := range path.Endpoints {
			p.endpoint(12, e)
		}
		p.line(8, "}")
	}
	p.part(8, "net", c.Net)
	p.part(8, "disk", c.Disk)
	for _, v := range c.Volumes {
		p.line(8, fmt.Sprintf("volume %d {", v.Number))
		p.part(12, "disk", v.Disk)
		p.line(8, "}")
	}
	p.line(4, "}")
}

func (p *printer) endpoint(indent int, e Endpoint) {
	gap := " " + strings.Repeat(" ", indent)
	text := "host " + quote(e.Host)
	if e.Address != nil {
		text += gap + "address         " + addressText(e.Address)
	}
	if e.Port != "" {
		text += " port " + e.Port
	}
	switch {
	case e.Proxy != nil:
		p.line(indent, text+gap+"via proxy "+p.proxyHead(e.Proxy))
		p.proxyBody(indent, e.Proxy)
		return
	case e.Outside != nil:
		text += gap + "via outside-address " + addressText(e.Outside)
	}
	p.line(indent, text+";")
}
