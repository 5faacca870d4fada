package config

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
)

// Parse reads the resources in one file: one YAML document each. file is only
// for messages. With an error, which joins everything that is wrong, the
// resources are those that are right.
func Parse(file string, data []byte) ([]Resource, error) {
	var good []Resource
	var list []*Error
	dec := yaml.NewDecoder(bytes.NewReader(data))
	for {
		var doc yaml.Node
		err := dec.Decode(&doc)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			list = append(list, syntaxError(file, err))
			break
		}
		if len(doc.Content) == 0 || doc.Content[0].Kind == yaml.ScalarNode && doc.Content[0].Tag == "!!null" {
			continue
		}
		p := parser{complaints{file: file, at: map[string]pos{}}}
		r := p.resource(doc.Content[0])
		r.File, r.at = file, p.at
		if doc.Content[0].Kind == yaml.MappingNode {
			r.check(&p.complaints)
		}
		if len(p.list) == 0 {
			good = append(good, *r)
		}
		list = append(list, p.list...)
	}
	return good, join(list)
}

var syntaxLine = regexp.MustCompile(`^yaml: (?:[a-z ]*)?line (\d+): (.*)`)

func syntaxError(file string, err error) *Error {
	e := &Error{File: file, Reason: strings.TrimPrefix(err.Error(), "yaml: ")}
	if m := syntaxLine.FindStringSubmatch(err.Error()); m != nil {
		e.Line, _ = strconv.Atoi(m[1])
		e.Col, e.Reason = 1, m[2]
	}
	e.Reason = "no valid YAML: " + e.Reason
	return e
}

// parser turns nodes into a Resource and remembers where everything stood.
type parser struct{ complaints }

// mapping calls f for each key of a map. known are the keys allowed; nil allows
// all that f takes.
func (p *parser) mapping(n *yaml.Node, path string, known []string, f func(key, path string, v *yaml.Node)) {
	if n.Kind != yaml.MappingNode {
		p.add(path, "must be a map of keys and values, but is "+kindName(n), "")
		return
	}
	seen := map[string]int{}
	for i := 0; i+1 < len(n.Content); i += 2 {
		k, v := n.Content[i], n.Content[i+1]
		if k.Kind != yaml.ScalarNode || k.Tag == "!!null" {
			p.at[path+"?"] = pos{k.Line, k.Column}
			p.also(path+"?", "a key must be a word", "")
			delete(p.at, path+"?")
			continue
		}
		key := k.Value
		at := step(path, key)
		if line, twice := seen[key]; twice {
			old := p.at[at]
			p.at[at] = pos{k.Line, k.Column}
			p.also(at, fmt.Sprintf("stands here a second time, the first is in line %d", line), "")
			p.at[at] = old
			continue
		}
		seen[key] = k.Line
		p.at[at] = pos{k.Line, k.Column}
		if known != nil && !slices.Contains(known, key) {
			p.add(at, "unknown key", p.wrongKey(key, known))
			continue
		}
		p.at[at] = pos{v.Line, v.Column}
		f(key, at, v)
	}
}

func step(path, key string) string {
	if path == "" {
		return key
	}
	return path + "." + key
}

// wrongKey guesses what an unknown key should have been.
func (p *parser) wrongKey(key string, known []string) string {
	if o := findOption(key, inNet, inDisk, inResync, inOptions); o != nil && slices.Contains(known, o.section.String()) {
		return "it belongs under " + o.section.String()
	}
	return didYouMean(key, known)
}

func kindName(n *yaml.Node) string {
	switch {
	case n.Kind == yaml.MappingNode:
		return "a map"
	case n.Kind == yaml.SequenceNode:
		return "a list"
	case n.Kind == yaml.AliasNode:
		return "an alias"
	case n.Tag == "!!null":
		return "empty"
	}
	return "the value " + strconv.Quote(n.Value)
}

func (p *parser) sequence(n *yaml.Node, path string, f func(path string, v *yaml.Node)) {
	if n.Kind != yaml.SequenceNode {
		p.add(path, "must be a list, but is "+kindName(n), "begin each entry with - ")
		return
	}
	for i, v := range n.Content {
		at := fmt.Sprintf("%s[%d]", path, i)
		p.at[at] = pos{v.Line, v.Column}
		f(at, v)
	}
}

func (p *parser) scalar(n *yaml.Node, path string) string {
	if n.Kind != yaml.ScalarNode || n.Tag == "!!null" {
		p.add(path, "must be a single value, but is "+kindName(n), "")
		return ""
	}
	return n.Value
}

// word is a scalar that may not be empty.
func (p *parser) word(n *yaml.Node, path string) string {
	s := p.scalar(n, path)
	if s == "" {
		p.add(path, "is empty", "leave the key out, or give it a value")
	}
	return s
}

func (p *parser) integer(n *yaml.Node, path string, most int) int {
	s := p.scalar(n, path)
	i, err := strconv.ParseUint(s, 10, 31)
	switch {
	case err != nil:
		p.add(path, fmt.Sprintf("%q is no number", s), "")
	case int(i) > most:
		p.add(path, fmt.Sprintf("%s is outside 0 to %d", s, most), "")
	}
	return int(i)
}

const (
	nodeIDMax = 31
	volumeMax = 65534
)

func (p *parser) resource(n *yaml.Node) *Resource {
	r := &Resource{}
	p.at[""] = pos{n.Line, n.Column}
	known := []string{"resource", "nodes", "volumes", "connections", "net", "disk", "options", "nbd", "handlers", "services"}
	p.mapping(n, "", known, func(key, path string, v *yaml.Node) {
		switch key {
		case "resource":
			r.Name = p.word(v, path)
		case "nodes":
			p.sequence(v, path, func(path string, v *yaml.Node) { r.Nodes = append(r.Nodes, p.node(v, path)) })
		case "volumes":
			r.Volumes = p.volumes(v, path)
		case "connections":
			p.sequence(v, path, func(path string, v *yaml.Node) { r.Connections = append(r.Connections, p.connection(v, path)) })
		case "net":
			r.Net = p.options(v, path)
		case "disk":
			r.Disk = p.options(v, path)
		case "options":
			r.Options = p.options(v, path)
		case "nbd":
			r.NBD = p.options(v, path)
		case "handlers":
			r.Handlers = p.options(v, path)
		case "services":
			r.Services = p.services(v, path)
		}
	})
	return r
}

func (p *parser) node(n *yaml.Node, path string) Node {
	node := Node{ID: -1}
	known := []string{"name", "node-id", "address", "diskless", "volumes", "nbd"}
	p.mapping(n, path, known, func(key, path string, v *yaml.Node) {
		switch key {
		case "name":
			node.Name = p.word(v, path)
		case "node-id":
			node.ID = p.integer(v, path, nodeIDMax)
		case "address":
			node.Address = p.word(v, path)
		case "diskless":
			b, why := (&option{kind: kindBool}).parse(p.word(v, path))
			if why != "" {
				p.add(path, why, "")
			}
			node.Diskless = b.b
		case "volumes":
			node.Volumes = p.volumes(v, path)
			node.Diskless = node.Diskless || v.Kind == yaml.SequenceNode && len(v.Content) == 0
		case "nbd":
			node.NBD = p.options(v, path)
		}
	})
	return node
}

func (p *parser) volumes(n *yaml.Node, path string) []Volume {
	var list []Volume
	p.sequence(n, path, func(path string, v *yaml.Node) {
		vol := Volume{Number: len(list)}
		known := []string{"volume", "device", "disk", "meta-disk", "size", "disk-options"}
		p.mapping(v, path, known, func(key, path string, v *yaml.Node) {
			switch key {
			case "volume":
				vol.Number = p.integer(v, path, volumeMax)
			case "device":
				vol.Device = p.word(v, path)
			case "disk":
				vol.Disk = p.word(v, path)
			case "meta-disk":
				vol.MetaDisk = p.word(v, path)
			case "size":
				vol.Size = p.word(v, path)
			case "disk-options":
				vol.Options = p.options(v, path)
			}
		})
		list = append(list, vol)
	})
	return list
}

func (p *parser) connection(n *yaml.Node, path string) Connection {
	var c Connection
	p.mapping(n, path, []string{"nodes", "addresses", "net", "disk"}, func(key, path string, v *yaml.Node) {
		switch key {
		case "nodes":
			i := 0
			p.sequence(v, path, func(path string, v *yaml.Node) {
				if name := p.word(v, path); i < 2 {
					c.Nodes[i] = name
				}
				i++
			})
			if i != 2 && v.Kind == yaml.SequenceNode {
				p.add(path, "must name two nodes", "nodes: [alpha, beta]")
			}
		case "addresses":
			c.Addresses = p.options(v, path)
		case "net":
			c.Net = p.options(v, path)
		case "disk":
			c.Disk = p.options(v, path)
		}
	})
	return c
}

// options reads a map of scalars; check judges the names and values.
func (p *parser) options(n *yaml.Node, path string) Options {
	var o Options
	p.mapping(n, path, nil, func(key, path string, v *yaml.Node) {
		o = append(o, Option{key, p.scalar(v, path)})
	})
	return o
}
