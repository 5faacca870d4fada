package pacemaker

import (
	"fmt"
	"slices"
	"strings"
)

// Formats of a configuration.
var Formats = []string{"crm", "pcs", "cib"}

// Render prints the plan for a tool: crm for crmsh, pcs for a shell, cib for cibadmin.
func (p *Plan) Render(format string) (string, error) {
	switch format {
	case "crm":
		return p.crm(), nil
	case "pcs":
		return p.pcs(), nil
	case "cib":
		return p.cib(), nil
	}
	return "", fmt.Errorf("format %q is none of %s", format, strings.Join(Formats, ", "))
}

// lines joins what it is given, each a line.
type lines struct{ strings.Builder }

func (l *lines) add(format string, args ...any) {
	fmt.Fprintf(&l.Builder, format, args...)
	l.WriteByte('\n')
}

func (l *lines) remarks(p *Plan) {
	for _, r := range p.Remarks {
		l.add("# %s", r)
	}
}

func pairs(list []Param) string {
	var s strings.Builder
	for _, x := range list {
		fmt.Fprintf(&s, " %s=%s", x.Name, x.Value)
	}
	return s.String()
}

// crm is for: crm configure load update FILE.
func (p *Plan) crm() string {
	var l lines
	l.add("# Load with: crm configure load update FILE")
	l.remarks(p)
	for _, x := range p.Primitives {
		s := fmt.Sprintf("primitive %s %s", x.ID, x.Class)
		if len(x.Params) > 0 {
			s += " \\\n    params" + pairs(x.Params)
		}
		if len(x.Meta) > 0 {
			s += " \\\n    meta" + pairs(x.Meta)
		}
		for _, op := range x.Ops {
			s += " \\\n    op " + op.Name + op.words(true)
		}
		l.add("%s", s)
	}
	for _, g := range p.Groups {
		l.add("group %s %s \\\n    meta%s", g.ID, strings.Join(g.Members, " "), pairs(g.Meta))
	}
	for _, c := range p.Clones {
		l.add("clone %s %s \\\n    meta%s", c.ID, c.Primitive, pairs(c.meta()))
	}
	for _, x := range p.Locations {
		if x.Never != "" {
			l.add("location %s %s -inf: %s", x.ID, x.Resource, x.Never)
		} else {
			l.add("location %s %s rule -inf: %s", x.ID, x.Resource, nowhereElse(x.Only))
		}
	}
	for _, o := range p.Orders {
		kind := "Mandatory"
		if o.Optional {
			kind = "Optional"
		}
		l.add("order %s %s: %s:%s %s:%s", o.ID, kind, o.First, o.FirstAction, o.Then, o.ThenAction)
	}
	for _, c := range p.Colocations {
		l.add("colocation %s inf: %s %s:Promoted", c.ID, c.Resource, c.With)
	}
	l.add("property cib-bootstrap-options:%s", pairs(p.Properties))
	return l.String()
}

// words are the parts of an operation; interval says to name also that of one that runs once.
func (o Op) words(interval bool) string {
	var s string
	if o.Interval != "" {
		s += " interval=" + o.Interval
	} else if interval {
		s += " interval=0"
	}
	s += " timeout=" + o.Timeout
	if o.Role != "" {
		s += " role=" + o.Role
	}
	return s
}

func (c Clone) meta() []Param {
	if c.Promotable {
		return append([]Param{{"promotable", "true"}}, c.Meta...)
	}
	return c.Meta
}

func nowhereElse(nodes []string) string {
	var parts []string
	for _, n := range nodes {
		parts = append(parts, "#uname ne "+n)
	}
	return strings.Join(parts, " and ")
}

// pcs is for: sh FILE.
func (p *Plan) pcs() string {
	var l lines
	l.add("#!/bin/sh")
	l.add("# Run it on one node of the cluster, as root: all of it takes effect at once, or nothing.")
	l.remarks(p)
	l.add("set -eu")
	l.add(`dir=$(mktemp -d)`)
	l.add(`trap 'rm -rf "$dir"' EXIT`)
	l.add(`pcs cluster cib "$dir/old"`)
	l.add(`cp "$dir/old" "$dir/new"`)
	l.add(`p() { pcs -f "$dir/new" "$@"; }`)
	for _, x := range p.Primitives {
		kind, class, end := "resource", x.Class, ""
		if agent, ok := strings.CutPrefix(class, "stonith:"); ok {
			kind, class = "stonith", agent
		}
		if x.Group != "" {
			end = " --group " + x.Group
		}
		s := fmt.Sprintf("p %s create %s %s%s", kind, x.ID, class, pairs(x.Params))
		if len(x.Ops) > 0 {
			s += " op"
		}
		for _, op := range x.Ops {
			s += " " + op.Name + op.words(false)
		}
		if len(x.Meta) > 0 {
			s += " meta" + pairs(x.Meta)
		}
		for _, c := range p.Clones {
			if c.Primitive != x.ID {
				continue
			}
			if c.Promotable {
				s += " promotable " + c.ID + pairs(c.Meta)
			} else {
				s += " clone " + c.ID + pairs(c.Meta)
			}
		}
		l.add("%s%s", s, end)
	}
	for _, g := range p.Groups {
		l.add("p resource meta %s%s", g.ID, pairs(g.Meta))
	}
	for _, x := range p.Locations {
		if x.Never != "" {
			l.add("p constraint location %s avoids %s", x.Resource, x.Never)
		} else {
			l.add("p constraint location %s rule id=%s score=-INFINITY %s", x.Resource, x.ID, strings.ReplaceAll(nowhereElse(x.Only), "#uname", `\#uname`))
		}
	}
	for _, o := range p.Orders {
		kind := "Mandatory"
		if o.Optional {
			kind = "Optional"
		}
		l.add("p constraint order %s %s then %s %s kind=%s id=%s", o.FirstAction, o.First, o.ThenAction, o.Then, kind, o.ID)
	}
	for _, c := range p.Colocations {
		l.add("p constraint colocation add %s with Promoted %s INFINITY id=%s", c.Resource, c.With, c.ID)
	}
	l.add("p property set%s", pairs(p.Properties))
	l.add(`pcs cluster cib-push "$dir/new" diff-against="$dir/old"`)
	return l.String()
}

// cib is for: cibadmin --modify --allow-create --scope configuration --xml-file FILE.
func (p *Plan) cib() string {
	x := &xmlWriter{}
	x.add("<!-- Load with: cibadmin -M -c -o configuration -x FILE -->")
	for _, r := range p.Remarks {
		x.add("<!-- %s -->", escape(r))
	}
	x.in("configuration")
	x.in("crm_config")
	x.in("cluster_property_set", "id", "cib-bootstrap-options")
	x.nvpairs("cib-bootstrap-options", p.Properties)
	x.out("cluster_property_set")
	x.out("crm_config")
	x.in("resources")
	for _, g := range p.Groups {
		x.in("group", "id", g.ID)
		for _, prim := range p.Primitives {
			if prim.Group == g.ID {
				x.primitive(prim)
			}
		}
		x.set("meta_attributes", g.ID+"-meta", g.Meta)
		x.out("group")
	}
	for _, prim := range p.Primitives {
		i := slices.IndexFunc(p.Clones, func(c Clone) bool { return c.Primitive == prim.ID })
		switch {
		case prim.Group != "":
		case i < 0:
			x.primitive(prim)
		default:
			x.in("clone", "id", p.Clones[i].ID)
			x.primitive(prim)
			x.set("meta_attributes", p.Clones[i].ID+"-meta", p.Clones[i].meta())
			x.out("clone")
		}
	}
	x.out("resources")
	x.in("constraints")
	for _, c := range p.Locations {
		if c.Never != "" {
			x.empty("rsc_location", "id", c.ID, "rsc", c.Resource, "node", c.Never, "score", "-INFINITY")
			continue
		}
		x.in("rsc_location", "id", c.ID, "rsc", c.Resource)
		x.in("rule", "id", c.ID+"-rule", "score", "-INFINITY", "boolean-op", "and")
		for _, n := range c.Only {
			x.empty("expression", "id", c.ID+"-"+n, "attribute", "#uname", "operation", "ne", "value", n)
		}
		x.out("rule")
		x.out("rsc_location")
	}
	for _, o := range p.Orders {
		kind := "Mandatory"
		if o.Optional {
			kind = "Optional"
		}
		x.empty("rsc_order", "id", o.ID, "kind", kind, "first", o.First, "first-action", o.FirstAction, "then", o.Then, "then-action", o.ThenAction)
	}
	for _, c := range p.Colocations {
		x.empty("rsc_colocation", "id", c.ID, "score", "INFINITY", "rsc", c.Resource, "with-rsc", c.With, "with-rsc-role", "Promoted")
	}
	x.out("constraints")
	x.out("configuration")
	return x.String()
}

// xmlWriter writes indented elements.
type xmlWriter struct {
	lines
	depth int
}

func (x *xmlWriter) tag(end, name string, attributes []string) {
	var s strings.Builder
	attrs(&s, attributes...)
	x.add("%s<%s%s%s>", strings.Repeat("  ", x.depth), name, s.String(), end)
}

func (x *xmlWriter) in(name string, attributes ...string) { x.tag("", name, attributes); x.depth++ }
func (x *xmlWriter) empty(name string, attributes ...string) {
	x.tag("/", name, attributes)
}

func (x *xmlWriter) out(name string) {
	x.depth--
	x.add("%s</%s>", strings.Repeat("  ", x.depth), name)
}

func (x *xmlWriter) nvpairs(id string, list []Param) {
	for _, p := range list {
		x.empty("nvpair", "id", id+"-"+p.Name, "name", p.Name, "value", p.Value)
	}
}

func (x *xmlWriter) set(name, id string, list []Param) {
	if len(list) == 0 {
		return
	}
	x.in(name, "id", id)
	x.nvpairs(id, list)
	x.out(name)
}

func (x *xmlWriter) primitive(p Primitive) {
	class := strings.Split(p.Class, ":")
	a := []string{"id", p.ID, "class", class[0]}
	if len(class) == 3 {
		a = append(a, "provider", class[1])
	}
	x.in("primitive", append(a, "type", class[len(class)-1])...)
	x.set("instance_attributes", p.ID+"-params", p.Params)
	x.set("meta_attributes", p.ID+"-meta", p.Meta)
	if len(p.Ops) > 0 {
		x.in("operations")
		for _, o := range p.Ops {
			interval := o.Interval
			if interval == "" {
				interval = "0"
			}
			attr := []string{"id", p.ID + "-" + o.Name + "-" + interval, "name", o.Name, "interval", interval, "timeout", o.Timeout}
			if o.Role != "" {
				attr = append(attr, "role", o.Role)
			}
			x.empty("op", attr...)
		}
		x.out("operations")
	}
	x.out("primitive")
}
