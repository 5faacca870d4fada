package drbdconf

import (
	"bytes"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
)

// PrintXML writes a configuration that was verified as drbdadm dump-xml does.
func PrintXML(w io.Writer, cfg *Config, opt PrintOptions) error {
	x := &xmlPrinter{style: opt.Style}
	x.open("config", "file", cfg.File)
	if len(opt.Only) == 0 {
		x.global(cfg.Global)
		if cfg.Common != nil {
			x.open("common")
			x.sections(cfg.Common)
			x.close("common")
		}
	}
	for _, r := range cfg.Resources {
		if len(opt.Only) == 0 || slices.Contains(opt.Only, r.Name) {
			x.resource(r)
		}
	}
	x.close("config")
	_, err := w.Write(x.b.Bytes())
	return err
}

type xmlPrinter struct {
	b     bytes.Buffer
	depth int
	style Style
}

var xmlEscape = strings.NewReplacer("&", "&amp;", "<", "&lt;", ">", "&gt;", `"`, "&quot;")

func (x *xmlPrinter) indent() { x.b.WriteString(strings.Repeat("    ", x.depth)) }

func tag(name string, attrs ...string) string {
	for i := 0; i+1 < len(attrs); i += 2 {
		name += fmt.Sprintf(` %s="%s"`, attrs[i], xmlEscape.Replace(attrs[i+1]))
	}
	return name
}

func (x *xmlPrinter) open(name string, attrs ...string) {
	x.indent()
	x.b.WriteString("<" + tag(name, attrs...) + ">\n")
	x.depth++
}

func (x *xmlPrinter) close(name string) {
	x.depth--
	x.indent()
	x.b.WriteString("</" + name + ">\n")
}

func (x *xmlPrinter) empty(name string, attrs ...string) {
	x.indent()
	x.b.WriteString("<" + tag(name, attrs...) + "/>\n")
}

func element(name, text string, attrs ...string) string {
	return "<" + tag(name, attrs...) + ">" + xmlEscape.Replace(text) + "</" + name + ">"
}

func (x *xmlPrinter) text(s string) {
	x.indent()
	x.b.WriteString(s + "\n")
}

func (x *xmlPrinter) global(s *Section) {
	if s == nil {
		return
	}
	attrs := map[string]string{"minor-count": "count", "dialog-refresh": "refresh"}
	var found []Option
	for _, name := range []string{"disable-ip-verification", "minor-count", "dialog-refresh"} {
		if o, ok := s.Options.Get(name); ok && (name != "dialog-refresh" || o.Value != "1") {
			found = append(found, o)
		}
	}
	if len(found) == 0 {
		return
	}
	x.open("global")
	for _, o := range found {
		if o.Flag {
			x.empty(o.Name)
		} else {
			x.empty(o.Name, attrs[o.Name], o.Value)
		}
	}
	x.close("global")
}

func (x *xmlPrinter) sections(s *Sections) {
	for _, n := range s.named() {
		var plugins []string
		if *n.at != nil {
			plugins = (*n.at).Plugins
		}
		x.section(n.name, shownIn(x.style, n.name, s), plugins)
	}
}

func (x *xmlPrinter) section(name string, list Options, plugins []string) {
	if len(list) == 0 && len(plugins) == 0 {
		return
	}
	x.open("section", "name", name)
	for _, o := range list {
		if o.Flag {
			x.empty("option", "name", o.Name)
		} else {
			x.empty("option", "name", o.Name, "value", o.Value)
		}
	}
	if len(plugins) > 0 {
		x.open("section", "name", "plugin")
		for _, l := range plugins {
			x.empty("option", "name", l)
		}
		x.close("section")
	}
	x.close("section")
}

func (x *xmlPrinter) part(name string, s *Section) {
	if s != nil {
		x.section(name, ordered(x.style, name, s.Options), s.Plugins)
	}
}

func (x *xmlPrinter) resource(r *Resource) {
	x.open("resource", "name", r.Name, "conf-file-line", r.Pos.String())
	if r.Template != "" {
		x.text("<" + tag("template", "file", r.Template) + ">") // never closed, as in the original
	}
	for _, h := range r.Hosts {
		x.host(r, h)
	}
	if x.style != V84 {
		for _, c := range r.ResolvedConnections() {
			x.connection(r, c)
		}
	}
	x.sections(&r.Sections)
	x.close("resource")
}

func addressXML(name string, a *Address) string {
	if a == nil {
		return element(name, "(null)", "family", "(null)", "port", "(null)") // as in the original
	}
	return element(name, a.Text, "family", a.Family, "port", a.Port)
}

func (x *xmlPrinter) host(r *Resource, h *Host) {
	if h.Kind == Floating {
		x.open("host", "floating", "1")
	} else {
		x.open("host", "name", strings.Join(h.Names, " "))
	}
	x.part("options", h.Options)
	for _, n := range r.Numbers(h) {
		v := r.On(h, n)
		x.open("volume", "vnr", strconv.Itoa(n))
		if own := h.Volume(n); own != nil {
			x.part("disk", own.Options)
		}
		if v.Device != nil {
			x.text(element("device", v.Device.Name, "minor", strconv.Itoa(v.Device.Minor)))
		}
		x.text(element("disk", v.Disk))
		if m := v.MetaDisk; m != nil {
			if m.Index >= 0 {
				x.text(element("meta-disk", m.Path, "index", strconv.Itoa(m.Index)))
			} else {
				x.text(element("meta-disk", m.Path))
			}
		}
		x.close("volume")
	}
	x.text(addressXML("address", h.Address))
	if x.style == V84 && h.Proxy != nil {
		x.proxy(h.Proxy)
	}
	x.close("host")
}

func (x *xmlPrinter) proxy(p *Proxy) {
	x.open("proxy", "hostname", strings.Join(p.Hosts, " "))
	x.text(addressXML("inside", p.Inside))
	x.text(addressXML("outside", p.Outside))
	x.part("options", p.Options)
	x.close("proxy")
}

func (x *xmlPrinter) connection(r *Resource, c *Connection) {
	x.open("connection")
	// Paths are shown as such only where they were written so.
	written := len(c.Paths) > 1
	for _, o := range r.Connections {
		written = written || o.Pos == c.Pos && len(o.Paths) > 0
	}
	for _, p := range c.Paths {
		if written {
			x.open("path")
		}
		for _, e := range p.Endpoints {
			x.endpoint(e)
		}
		if written {
			x.close("path")
		}
	}
	x.part("net", c.Net)
	x.part("disk", c.Disk)
	for _, v := range c.Volumes {
		x.open("volume", "vnr", strconv.Itoa(v.Number))
		x.part("disk", v.Disk)
		x.close("volume")
	}
	x.close("connection")
}

func (x *xmlPrinter) endpoint(e Endpoint) {
	if e.Proxy == nil {
		x.text("<" + tag("host", "name", e.Host) + ">" + addressXML("address", e.Address) + "</host>")
		return
	}
	x.open("host", "name", e.Host)
	x.text(addressXML("address", e.Address))
	x.proxy(e.Proxy)
	x.close("host")
}
