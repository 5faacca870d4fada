package config

import (
	"bytes"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
)

// Resource is a resource as written in its file. One that was built by hand
// needs Check before use; Parse and Load have done it.
type Resource struct {
	Name        string
	Nodes       []Node
	Volumes     []Volume
	Connections []Connection
	Net         Options
	Disk        Options // disk and resync options
	Options     Options
	NBD         Options
	Handlers    Options // name to shell command
	Services    Services

	File string         // where it was read from, "" for none
	at   map[string]pos // of each path in it
}

// Node is a node of the resource.
type Node struct {
	Name     string
	ID       int    // node-id; -1 is the place in the list
	Address  string // IP:port
	Diskless bool
	Volumes  []Volume // what differs on this node
	NBD      Options
}

// Volume is a volume, or what a node changes of it. Texts are as written; "" is
// not said.
type Volume struct {
	Number   int
	Device   string // KIND, PATH or "KIND PATH"; KIND is auto, nbd, fuse or none
	Disk     string // path or none
	MetaDisk string // internal, path or path[index]
	Size     string
	Options  Options
}

// Connection is what differs between two nodes.
type Connection struct {
	Nodes     [2]string
	Addresses Options // node name to IP:port: where this pair does not use the nodes' own addresses
	Net       Options
	Disk      Options // resync options
}

// Options are settings in the order of the file, values as written.
type Options []Option

// Option is one setting.
type Option struct{ Name, Value string }

// Get returns the value of name.
func (o Options) Get(name string) (string, bool) {
	for _, x := range o {
		if x.Name == name {
			return x.Value, true
		}
	}
	return "", false
}

// Marshal writes the resource as canonical YAML. Parse of it gives an equal
// Resource; comments are lost.
func Marshal(r Resource) []byte {
	doc := mapNode()
	put(doc, "resource", text(r.Name))
	nodes := seqNode()
	for _, n := range r.Nodes {
		m := mapNode()
		put(m, "name", text(n.Name))
		if n.ID >= 0 {
			put(m, "node-id", text(strconv.Itoa(n.ID)))
		}
		put(m, "address", text(n.Address))
		if n.Diskless {
			put(m, "diskless", text("true"))
		}
		put(m, "volumes", volumeNodes(n.Volumes))
		put(m, "nbd", n.NBD.node())
		nodes.Content = append(nodes.Content, m)
	}
	put(doc, "nodes", nodes)
	put(doc, "volumes", volumeNodes(r.Volumes))
	conns := seqNode()
	for _, c := range r.Connections {
		m := mapNode()
		pair := seqNode()
		pair.Style = yaml.FlowStyle
		pair.Content = []*yaml.Node{text(c.Nodes[0]), text(c.Nodes[1])}
		put(m, "nodes", pair)
		put(m, "addresses", c.Addresses.node())
		put(m, "net", c.Net.node())
		put(m, "disk", c.Disk.node())
		conns.Content = append(conns.Content, m)
	}
	put(doc, "connections", conns)
	put(doc, "net", r.Net.node())
	put(doc, "disk", r.Disk.node())
	put(doc, "options", r.Options.node())
	put(doc, "nbd", r.NBD.node())
	put(doc, "handlers", r.Handlers.node())
	put(doc, "services", r.Services.node())
	var b bytes.Buffer
	enc := yaml.NewEncoder(&b)
	enc.SetIndent(2)
	if err := enc.Encode(doc); err != nil {
		panic("config: marshal: " + err.Error()) // the tree holds only scalars, lists and maps
	}
	return b.Bytes()
}

func volumeNodes(list []Volume) *yaml.Node {
	seq := seqNode()
	for _, v := range list {
		m := mapNode()
		put(m, "volume", text(strconv.Itoa(v.Number)))
		put(m, "device", text(v.Device))
		put(m, "disk", text(v.Disk))
		put(m, "meta-disk", text(v.MetaDisk))
		put(m, "size", text(v.Size))
		put(m, "disk-options", v.Options.node())
		seq.Content = append(seq.Content, m)
	}
	return seq
}

func (o Options) node() *yaml.Node {
	m := mapNode()
	for _, x := range o {
		m.Content = append(m.Content, text(x.Name), text(x.Value))
	}
	return m
}

func mapNode() *yaml.Node { return &yaml.Node{Kind: yaml.MappingNode, Tag: "!!map"} }
func seqNode() *yaml.Node { return &yaml.Node{Kind: yaml.SequenceNode, Tag: "!!seq"} }

// put adds a key unless its value is empty.
func put(m *yaml.Node, key string, v *yaml.Node) {
	if v.Kind == yaml.ScalarNode && v.Value == "" || v.Kind != yaml.ScalarNode && len(v.Content) == 0 {
		return
	}
	m.Content = append(m.Content, text(key), v)
}

// text is a scalar: numbers and words plain, anything that YAML might read
// otherwise in quotes.
func text(s string) *yaml.Node {
	n := &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!str", Value: s}
	if isPlain(s) {
		n.Tag = ""
	} else {
		n.Style = yaml.DoubleQuotedStyle
	}
	return n
}

func isPlain(s string) bool {
	switch strings.ToLower(s) {
	case "", "null", "~":
		return false
	}
	for i, c := range []byte(s) {
		switch {
		case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c >= '0' && c <= '9', c == '/':
		case i > 0 && strings.IndexByte("._-+%", c) >= 0:
		case c == ':' && i > 0 && i+1 < len(s) && s[i+1] != ' ':
		case c == ' ' && i > 0 && i+1 < len(s) && s[i+1] != ' ' && s[i+1] != '#':
		default:
			return false
		}
	}
	return true
}
