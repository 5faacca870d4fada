package pacemaker

import (
	"bytes"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
)

// element is a piece of XML as it is; the schema of the CIB changed over the years, its names did not.
type element struct {
	XMLName  xml.Name
	Attrs    []xml.Attr `xml:",any,attr"`
	Children []element  `xml:",any"`
}

func (e *element) attr(name string) string {
	for _, a := range e.Attrs {
		if a.Name.Local == name {
			return a.Value
		}
	}
	return ""
}

// each calls f for e and all below it.
func (e *element) each(f func(*element)) {
	f(e)
	for i := range e.Children {
		e.Children[i].each(f)
	}
}

// under lists the elements of that name, at any depth.
func (e *element) under(names ...string) []*element {
	var list []*element
	e.each(func(x *element) {
		if slices.Contains(names, x.XMLName.Local) {
			list = append(list, x)
		}
	})
	return list
}

const depthMax = 64 // of elements in each other

func parseXML(data []byte) (*element, error) {
	depth := 0
	for d := xml.NewDecoder(bytes.NewReader(data)); ; {
		tok, err := d.Token()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, err
		}
		switch tok.(type) {
		case xml.StartElement:
			if depth++; depth > depthMax {
				return nil, fmt.Errorf("more than %d elements in each other", depthMax)
			}
		case xml.EndElement:
			depth--
		}
	}
	root := new(element)
	if err := xml.Unmarshal(data, root); err != nil {
		return nil, err
	}
	return root, nil
}

// CIB is what matters here of a cluster's configuration and state.
type CIB struct {
	Quorum      bool
	Stonith     bool     // stonith-enabled, which is the default
	NewRoles    bool     // the schema knows the role Promoted; older ones call it Master
	Nodes       []string // names
	clones      []clone
	constraints []*element
}

type clone struct {
	id, resource string // of the clone; drbd_resource of the primitive in it
}

// ParseCIB reads what cibadmin --query prints, or a part of it.
func ParseCIB(data []byte) (*CIB, error) {
	root, err := parseXML(data)
	if err != nil {
		return nil, fmt.Errorf("CIB: %w", err)
	}
	c := &CIB{Quorum: root.attr("have-quorum") == "1", Stonith: true, NewRoles: knowsPromoted(root.attr("validate-with"))}
	for _, set := range root.under("cluster_property_set") {
		for _, nv := range set.under("nvpair") {
			if nv.attr("name") == "stonith-enabled" {
				c.Stonith = isTrue(nv.attr("value"))
			}
		}
	}
	for _, list := range root.under("nodes") {
		for _, n := range list.under("node") {
			if name := n.attr("uname"); name != "" {
				c.Nodes = append(c.Nodes, name)
			}
		}
	}
	for _, x := range root.under("clone", "master") {
		if x.XMLName.Local == "clone" && !promotable(x) {
			continue
		}
		for _, nv := range x.under("nvpair") {
			if nv.attr("name") == "drbd_resource" && nv.attr("value") != "" {
				c.clones = append(c.clones, clone{x.attr("id"), nv.attr("value")})
			}
		}
	}
	c.constraints = root.under("rsc_location")
	return c, nil
}

// promotable looks at the meta attributes of the clone itself, not of what is in it.
func promotable(x *element) bool {
	for i := range x.Children {
		if m := &x.Children[i]; m.XMLName.Local == "meta_attributes" {
			for _, nv := range m.under("nvpair") {
				if nv.attr("name") == "promotable" {
					return isTrue(nv.attr("value"))
				}
			}
		}
	}
	return false
}

func isTrue(s string) bool {
	return slices.Contains([]string{"true", "on", "yes", "y", "1"}, strings.ToLower(s))
}

// knowsPromoted tells whether a schema (pacemaker-3.9) has the role Promoted: from 3.7 on.
func knowsPromoted(schema string) bool {
	version, ok := strings.CutPrefix(schema, "pacemaker-")
	if !ok {
		return false
	}
	major, minor, _ := strings.Cut(version, ".")
	a, err := strconv.Atoi(major)
	if err != nil {
		return false
	}
	b, err := strconv.Atoi(minor)
	return err == nil && (a > 3 || a == 3 && b >= 7)
}

// Clone gives the id of the promotable clone whose primitive has drbd_resource=res.
func (c *CIB) Clone(res string) (string, error) {
	var ids []string
	for _, x := range c.clones {
		if x.resource == res && !slices.Contains(ids, x.id) {
			ids = append(ids, x.id)
		}
	}
	switch len(ids) {
	case 1:
		return ids[0], nil
	case 0:
		return "", fmt.Errorf("no promotable clone of the cluster has drbd_resource=%s (hawser pacemaker config %s prints one)", res, res)
	}
	return "", fmt.Errorf("several clones of the cluster have drbd_resource=%s: %s", res, strings.Join(ids, ", "))
}

// Ban is a location constraint that keeps the promoted role of a clone from one node.
type Ban struct {
	ID     string `json:"id"`     // of the constraint
	Clone  string `json:"clone"`  // that it is about
	Banned string `json:"banned"` // node that may not be promoted
	Owner  string `json:"owner"`  // node that asked for it
}

const (
	banPrefix  = "hawser-fence-"
	ownerInfix = "-rule-by-"
)

// banID is the same for both nodes of a pair: only one of them can ban the other.
func banID(res, clone, a, b string) string {
	if b < a {
		a, b = b, a
	}
	return fmt.Sprintf("%s%s-%s.%s.%s", banPrefix, res, clone, a, b)
}

// NewBan is the ban of node banned by owner.
func NewBan(res, clone, owner, banned string) Ban {
	return Ban{ID: banID(res, clone, owner, banned), Clone: clone, Banned: banned, Owner: owner}
}

// XML is the constraint, for cibadmin --create. newRoles says Promoted, as the schema of the CIB wants it.
func (b Ban) XML(newRoles bool) string {
	role := "Master"
	if newRoles {
		role = "Promoted"
	}
	var s strings.Builder
	s.WriteString(`<rsc_location`)
	attrs(&s, "id", b.ID, "rsc", b.Clone)
	s.WriteString(`><rule`)
	attrs(&s, "id", b.ID+ownerInfix+b.Owner, "role", role, "score", "-INFINITY")
	s.WriteString(`><expression`)
	attrs(&s, "id", b.ID+"-expr", "attribute", "#uname", "operation", "eq", "value", b.Banned)
	s.WriteString(`/></rule></rsc_location>`)
	return s.String()
}

// attrs writes pairs of name and value.
func attrs(s *strings.Builder, pairs ...string) {
	for i := 0; i+1 < len(pairs); i += 2 {
		fmt.Fprintf(s, ` %s="%s"`, pairs[i], escape(pairs[i+1]))
	}
}

func escape(text string) string {
	var b bytes.Buffer
	if err := xml.EscapeText(&b, []byte(text)); err != nil {
		panic("pacemaker: escape: " + err.Error()) // a Buffer takes everything
	}
	return b.String()
}

// Bans lists our constraints of a resource. Those of other tools, also DRBD's own handler's, are not ours.
func (c *CIB) Bans(res string) []Ban {
	var list []Ban
	for _, x := range c.constraints {
		id := x.attr("id")
		if !strings.HasPrefix(id, banPrefix+res+"-") {
			continue
		}
		b := Ban{ID: id, Clone: x.attr("rsc")}
		for _, r := range x.under("rule") {
			b.Owner = strings.TrimPrefix(r.attr("id"), id+ownerInfix)
		}
		for _, e := range x.under("expression") {
			if e.attr("attribute") == "#uname" {
				b.Banned = e.attr("value")
			}
		}
		if id == banID(res, b.Clone, b.Owner, b.Banned) { // of another resource, whose name begins the same, or made by hand
			list = append(list, b)
		}
	}
	return list
}

// NodeState is a node as crm_mon shows it.
type NodeState struct {
	Name    string
	Online  bool // a member of the cluster
	Unclean bool // it must be fenced before anybody can rely on it
	Pending bool // it is joining
}

// Monitor is what crm_mon shows.
type Monitor struct {
	nodes    []NodeState
	promoted []string // nodes with a promoted copy of the resource, as "clone\x00node"
}

// ParseMonitor reads crm_mon's XML, old (--as-xml) or new (--output-as=xml).
func ParseMonitor(data []byte) (*Monitor, error) {
	root, err := parseXML(data)
	if err != nil {
		return nil, fmt.Errorf("crm_mon: %w", err)
	}
	m := new(Monitor)
	for _, list := range root.under("nodes") {
		for _, n := range list.under("node") {
			if n.attr("name") == "" {
				continue
			}
			m.nodes = append(m.nodes, NodeState{n.attr("name"), isTrue(n.attr("online")), isTrue(n.attr("unclean")), isTrue(n.attr("pending"))})
		}
	}
	if len(m.nodes) == 0 {
		return nil, errors.New("crm_mon: it shows no nodes")
	}
	for _, c := range root.under("clone") {
		for _, r := range c.under("resource") {
			if role := r.attr("role"); role != "Promoted" && role != "Master" {
				continue
			}
			for _, n := range r.under("node") {
				m.promoted = append(m.promoted, c.attr("id")+"\x00"+n.attr("name"))
			}
		}
	}
	return m, nil
}

// Node gives the state of a node; ok is false when the cluster does not know it.
func (m *Monitor) Node(name string) (NodeState, bool) {
	for _, n := range m.nodes {
		if n.Name == name {
			return n, true
		}
	}
	return NodeState{}, false
}

// Promoted tells whether the clone is promoted on that node, as far as Pacemaker knows.
func (m *Monitor) Promoted(clone, node string) bool {
	return slices.Contains(m.promoted, clone+"\x00"+node)
}
