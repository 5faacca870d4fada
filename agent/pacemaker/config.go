package pacemaker

import (
	"fmt"
	"net/netip"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// How the node's agent is kept running.
const (
	AgentOCF     = "ocf"     // a clone of ocf:hawser:agent
	AgentSystemd = "systemd" // a clone of systemd:hawser-agent
	AgentNone    = "none"    // not by Pacemaker: systemd starts it before, or another resource's configuration has it
)

// ConfigOptions say what a configuration is to contain.
type ConfigOptions struct {
	Resource string
	Nodes    []string // that hold a volume, in the order of the resource file
	Agent    string   // AgentOCF, ...
	Fences   []Fence
	Mounts   []Mount
	IPs      []string // ADDRESS/BITS
	// FenceDelay is for two nodes that lose each other: Pacemaker waits that long before it fences the node with the
	// promoted volume, so that this one wins. It is also added to a failover after the promoted node died.
	FenceDelay string // seconds with unit s; "0s": none
}

// Fence is the device that powers one node.
type Fence struct {
	Node, Agent string
	Params      []Param
}

// Mount is a file system on a volume.
type Mount struct {
	Volume    int
	Dir, Type string
}

// Param is a name with a value.
type Param struct{ Name, Value string }

var word = regexp.MustCompile(`^[A-Za-z0-9_./:@%+=-]+$`)

// ParseFence reads NODE=AGENT,NAME=VALUE,...
func ParseFence(text string) (Fence, error) {
	node, rest, ok := strings.Cut(text, "=")
	agent, params, _ := strings.Cut(rest, ",")
	if !ok || node == "" || !strings.HasPrefix(agent, "fence_") {
		return Fence{}, fmt.Errorf("fence device %q is not NODE=fence_AGENT,NAME=VALUE,..., for example n1=fence_ipmilan,ip=10.0.0.101,username=admin", text)
	}
	f := Fence{Node: node, Agent: agent}
	for p := range strings.SplitSeq(params, ",") {
		if p == "" {
			continue
		}
		name, value, ok := strings.Cut(p, "=")
		if !ok || name == "" || !word.MatchString(p) {
			return Fence{}, fmt.Errorf("fence device %q: %q is not NAME=VALUE of plain characters", text, p)
		}
		f.Params = append(f.Params, Param{name, value})
	}
	if !word.MatchString(node) || !word.MatchString(agent) {
		return Fence{}, fmt.Errorf("fence device %q: only plain characters are possible here", text)
	}
	return f, nil
}

// ParseMount reads [VOLUME:]/DIR[:TYPE].
func ParseMount(text string) (Mount, error) {
	m := Mount{Type: "ext4"}
	rest := text
	if number, after, ok := strings.Cut(text, ":"); ok && !strings.HasPrefix(text, "/") {
		n, err := strconv.ParseUint(number, 10, 16)
		if err != nil {
			return m, fmt.Errorf("mount %q is not [VOLUME:]/DIRECTORY[:TYPE]", text)
		}
		m.Volume, rest = int(n), after
	}
	dir, kind, ok := strings.Cut(rest, ":")
	if ok {
		m.Type = kind
	}
	m.Dir = dir
	if !strings.HasPrefix(dir, "/") || !word.MatchString(dir) || !word.MatchString(m.Type) {
		return m, fmt.Errorf("mount %q is not [VOLUME:]/DIRECTORY[:TYPE]", text)
	}
	return m, nil
}

// Plan is a configuration, in no tool's words.
type Plan struct {
	Primitives  []Primitive
	Clones      []Clone
	Groups      []Group
	Locations   []Location
	Orders      []Order
	Colocations []Colocation
	Properties  []Param
	Remarks     []string // for the reader; without two dashes in a row, which XML and crmsh refuse in comments
}

// Primitive is one resource.
type Primitive struct {
	ID, Class string // ocf:hawser:volume, stonith:fence_ipmilan, systemd:hawser-agent
	Params    []Param
	Meta      []Param
	Ops       []Op
	Group     string // that it is in
}

// Op is one operation.
type Op struct {
	Name, Timeout  string
	Interval, Role string // "": once; any role
}

// Clone runs a primitive on several nodes.
type Clone struct {
	ID, Primitive string
	Promotable    bool
	Meta          []Param
}

// Group runs primitives together, in that order.
type Group struct {
	ID      string
	Members []string
	Meta    []Param
}

// Location keeps a resource off a node, or off all nodes but some.
type Location struct {
	ID, Resource string
	Never        string   // this node
	Only         []string // these nodes
}

// Order is what comes before what.
type Order struct {
	ID, First, FirstAction, Then, ThenAction string
	Optional                                 bool // only where both change at once
}

// Colocation puts a resource where a clone is promoted.
type Colocation struct{ ID, Resource, With string }

// NewPlan makes the configuration of one resource.
func NewPlan(o ConfigOptions) (*Plan, error) {
	if len(o.Nodes) < 2 {
		return nil, fmt.Errorf("resource %s has %d node that holds it: a cluster has two or three", o.Resource, len(o.Nodes))
	}
	vol, clone := o.Resource, o.Resource+"-clone"
	p := &Plan{}
	switch o.Agent {
	case AgentOCF:
		p.Primitives = append(p.Primitives, Primitive{ID: "hawser-agent", Class: "ocf:hawser:agent", Ops: []Op{
			{Name: "start", Timeout: "60s"}, {Name: "stop", Timeout: "60s"}, {Name: "monitor", Timeout: "30s", Interval: "15s"}}})
	case AgentSystemd:
		p.Primitives = append(p.Primitives, Primitive{ID: "hawser-agent", Class: "systemd:hawser-agent", Ops: []Op{
			{Name: "start", Timeout: "100s"}, {Name: "stop", Timeout: "100s"}, {Name: "monitor", Timeout: "100s", Interval: "15s"}}})
	case AgentNone:
	default:
		return nil, fmt.Errorf("agent %q is none of ocf, systemd, none", o.Agent)
	}
	p.Primitives = append(p.Primitives, Primitive{ID: vol, Class: "ocf:hawser:volume", Params: []Param{{"drbd_resource", o.Resource}},
		Meta: []Param{{"priority", "10"}}, Ops: []Op{
			{Name: "start", Timeout: "240s"}, {Name: "promote", Timeout: "90s"}, {Name: "demote", Timeout: "90s"}, {Name: "stop", Timeout: "100s"},
			{Name: "notify", Timeout: "90s"}, {Name: "monitor", Timeout: "30s", Interval: "10s", Role: "Promoted"},
			{Name: "monitor", Timeout: "30s", Interval: "11s", Role: "Unpromoted"}}})
	if o.Agent != AgentNone {
		p.Clones = append(p.Clones, Clone{ID: "hawser-agent-clone", Primitive: "hawser-agent", Meta: []Param{{"interleave", "true"}}})
		// Optional: an agent that Pacemaker restarts must not take the volumes down with it.
		p.Orders = append(p.Orders, Order{ID: "hawser-agent-before-" + vol, First: "hawser-agent-clone", FirstAction: "start", Then: clone, ThenAction: "start", Optional: true})
	}
	p.Clones = append(p.Clones, Clone{ID: clone, Primitive: vol, Promotable: true, Meta: []Param{{"promoted-max", "1"}, {"promoted-node-max", "1"},
		{"clone-max", strconv.Itoa(len(o.Nodes))}, {"clone-node-max", "1"}, {"notify", "true"}, {"interleave", "true"}}})
	p.Locations = append(p.Locations, Location{ID: vol + "-where-it-is", Resource: clone, Only: o.Nodes})
	if err := p.services(o, clone); err != nil {
		return nil, err
	}
	if err := p.fences(o); err != nil {
		return nil, err
	}
	return p, nil
}

// services are what runs on the promoted volume.
func (p *Plan) services(o ConfigOptions, clone string) error {
	var members []string
	group := o.Resource + "-services"
	add := func(x Primitive) {
		x.Group = group
		members = append(members, x.ID)
		p.Primitives = append(p.Primitives, x)
	}
	for _, m := range o.Mounts {
		id := fmt.Sprintf("%s-fs%d", o.Resource, m.Volume)
		if slices.Contains(members, id) {
			return fmt.Errorf("volume %d is mounted twice", m.Volume)
		}
		add(Primitive{ID: id, Class: "ocf:heartbeat:Filesystem", Params: []Param{{"device", fmt.Sprintf("/dev/hawser/%s/%d", o.Resource, m.Volume)},
			{"directory", m.Dir}, {"fstype", m.Type}}, Ops: []Op{{Name: "start", Timeout: "60s"}, {Name: "stop", Timeout: "60s"}, {Name: "monitor", Timeout: "40s", Interval: "20s"}}})
	}
	for i, ip := range o.IPs {
		pre, err := netip.ParsePrefix(ip)
		if err != nil {
			return fmt.Errorf("address %q is not ADDRESS/BITS, for example 10.0.0.100/24", ip)
		}
		id := o.Resource + "-ip"
		if i > 0 {
			id += strconv.Itoa(i + 1)
		}
		add(Primitive{ID: id, Class: "ocf:heartbeat:IPaddr2", Params: []Param{{"ip", pre.Addr().String()}, {"cidr_netmask", strconv.Itoa(pre.Bits())}},
			Ops: []Op{{Name: "start", Timeout: "20s"}, {Name: "stop", Timeout: "20s"}, {Name: "monitor", Timeout: "20s", Interval: "10s"}}})
	}
	if len(members) == 0 {
		p.Remarks = append(p.Remarks, "Nothing runs on the volume yet: the flags mount and ip add a file system and an address, with order and colocation.")
		return nil
	}
	p.Groups = append(p.Groups, Group{ID: group, Members: members, Meta: []Param{{"resource-stickiness", "100"}}})
	p.Orders = append(p.Orders, Order{ID: o.Resource + "-then-services", First: clone, FirstAction: "promote", Then: group, ThenAction: "start"})
	p.Colocations = append(p.Colocations, Colocation{ID: o.Resource + "-with-services", Resource: group, With: clone})
	return nil
}

func (p *Plan) fences(o ConfigOptions) error {
	p.Properties = append(p.Properties, Param{"stonith-enabled", "true"})
	nodes := slices.Clone(o.Nodes)
	for _, f := range o.Fences { // also of a node that only votes
		if !slices.Contains(nodes, f.Node) {
			nodes = append(nodes, f.Node)
		}
	}
	if len(nodes) == 2 && o.FenceDelay != "" && o.FenceDelay != "0s" {
		p.Properties = append(p.Properties, Param{"priority-fencing-delay", o.FenceDelay})
	}
	seen := map[string]int{}
	for _, f := range o.Fences {
		id := "fence-" + f.Node
		if seen[f.Node]++; seen[f.Node] > 1 {
			id += "-" + strconv.Itoa(seen[f.Node])
		}
		params := append(slices.Clone(f.Params), Param{"pcmk_host_list", f.Node})
		p.Primitives = append(p.Primitives, Primitive{ID: id, Class: "stonith:" + f.Agent, Params: params, Ops: []Op{{Name: "monitor", Timeout: "60s", Interval: "60s"}}})
		p.Locations = append(p.Locations, Location{ID: id + "-elsewhere", Resource: id, Never: f.Node})
	}
	for _, n := range o.Nodes {
		if seen[n] == 0 {
			p.Remarks = append(p.Remarks, fmt.Sprintf("No device fences %s: until there is one, nothing starts after it was lost (with no device at all, nothing starts). "+
				"The flag fence adds one: %s=fence_ipmilan,ip=ADDRESS,username=NAME,password_script=/path,lanplus=1", n, n))
		}
	}
	return nil
}
