package coord

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/hawser-ha/hawser/replicator/control"
)

// View is the cluster at one revision. It is never changed after it was given out.
type View struct {
	Header
	// Seen is when, on CLOCK_BOOTTIME in ns, the read was sent after which nothing newer was found.
	Seen        int64
	Nodes       map[string]*Node
	Resources   map[string]*Resource
	Fencing     map[string]*Fencing // by node
	Maintenance Maintenance
	Problems    []string // keys that this version cannot read
}

// Resource gives the resource, one without anything if there is none.
func (v *View) Resource(name string) *Resource {
	if r := v.Resources[name]; r != nil {
		return r
	}
	return &Resource{Name: name}
}

// Node is a node whose lease stands.
type Node struct {
	NodeInfo
	Lease LeaseID `json:"-"`
	Mod   uint64  `json:"-"`
}

// NodeInfo is what a node says of itself.
type NodeInfo struct {
	Name    string          `json:"node"`
	Machine string          `json:"machine"` // /etc/machine-id
	Boot    string          `json:"boot"`    // of the kernel: another one after a reboot
	Version string          `json:"version,omitempty"`
	API     string          `json:"api,omitempty"` // address of the agent's TCP listener
	Since   time.Time       `json:"since"`
	Data    json.RawMessage `json:"data,omitempty"` // of the caller
	Op      string          `json:"op"`
}

// Resource is all that is known of one, as read at one revision. Changes are decided on it and compare its revisions.
type Resource struct {
	Name       string
	Spec       *Spec
	Primary    *Primary // nil: nobody holds it
	InSync     *InSync  // nil: it was never coordinated
	Switchover *Switchover
	History    []Entry // oldest first
	Status     map[string]*Status
	Problem    string // a key cannot be read by this version: nothing may be decided
}

// Holder is the node that holds the term, "" nobody.
func (r *Resource) Holder() string {
	if r.Primary == nil {
		return ""
	}
	return r.Primary.Node
}

// Spec is the definition as `hawser apply` stored it.
type Spec struct {
	Text  string    `json:"text"` // the file
	By    string    `json:"by,omitempty"`
	Since time.Time `json:"since"`
	Op    string    `json:"op"`
	Mod   uint64    `json:"-"`
}

// Primary is who may write.
type Primary struct {
	Node   string    `json:"node"`
	Why    string    `json:"why,omitempty"`
	Since  time.Time `json:"since"`
	Forced bool      `json:"forced,omitempty"`
	Op     string    `json:"op"`
	Term   uint64    `json:"-"` // create revision of the key
	Mod    uint64    `json:"-"`
	Lease  LeaseID   `json:"-"`
}

// InSync names who has every acknowledged write.
type InSync struct {
	Members []control.Member `json:"members"`
	Term    uint64           `json:"term,omitempty"` // that wrote it; read as Seq where the promotion itself did
	Op      string           `json:"op"`
	Seq     uint64           `json:"-"` // mod revision
}

// Member finds a node in the set, nil: it is not in it.
func (s *InSync) Member(node string) *control.Member {
	if s == nil {
		return nil
	}
	for i := range s.Members {
		if s.Members[i].Node == node {
			return &s.Members[i]
		}
	}
	return nil
}

// Switchover is a move that a person asked for.
type Switchover struct {
	To    string    `json:"to,omitempty"` // "": anybody but the holder
	From  string    `json:"from"`
	At    time.Time `json:"at,omitzero"` // zero: now
	By    string    `json:"by,omitempty"`
	Why   string    `json:"why,omitempty"`
	Since time.Time `json:"since"`
	Op    string    `json:"op"`
	Mod   uint64    `json:"-"`
}

// Kinds of history entries that the Store writes itself.
const (
	EntryPromote = "promote"
	EntryForce   = "force"
	EntryRelease = "release"
	EntryRemove  = "remove" // from the in-sync set
	EntryAdd     = "add"
	EntryCreate  = "create"
)

// Entry is a line of a resource's history.
type Entry struct {
	Time time.Time       `json:"time"` // wall clock, for people
	Node string          `json:"node"` // that wrote it
	Kind string          `json:"kind"`
	Term uint64          `json:"term,omitempty"` // that it is about; read as Rev for promotions
	Text string          `json:"text,omitempty"` // why
	Data json.RawMessage `json:"data,omitempty"` // of the caller: what may be lost, and so on
	Op   string          `json:"op"`
	Rev  uint64          `json:"-"` // at which it was written
	Key  string          `json:"-"`
}

// Status is what a node says of a resource; what it says is the caller's.
type Status struct {
	Node  string
	Data  json.RawMessage
	Mod   uint64
	Lease LeaseID
}

// Maintenance says where nothing is decided.
type Maintenance struct {
	Cluster   *Pause            `json:"cluster,omitempty"`
	Nodes     map[string]*Pause `json:"nodes,omitempty"`
	Resources map[string]*Pause `json:"resources,omitempty"`
	Drained   map[string]*Pause `json:"drained,omitempty"` // nodes that are to hold nothing
	Op        string            `json:"op"`
	Mod       uint64            `json:"-"`
}

// Pause says who asked for it.
type Pause struct {
	By    string    `json:"by,omitempty"`
	Why   string    `json:"why,omitempty"`
	Since time.Time `json:"since"`
}

// keys below the prefix.
const (
	keyNodes       = "nodes/"
	keyResources   = "resources/"
	keyFencing     = "fencing/"
	keyMaintenance = "maintenance"
	keySpec        = "spec"
	keyPrimary     = "primary"
	keyInSync      = "insync"
	keySwitchover  = "switchover"
	keyStatus      = "status/"
	keyHistory     = "history/"
)

// builder turns keys into views, and keeps what did not change between two.
type builder struct {
	prefix string
	kvs    map[string]KV // by key without the prefix
	last   *View
}

func newBuilder(prefix string, p Page) *builder {
	b := &builder{prefix: prefix, kvs: map[string]KV{}}
	for _, kv := range p.KVs {
		b.kvs[strings.TrimPrefix(kv.Key, prefix)] = kv
	}
	v := &View{Header: p.Header, Nodes: map[string]*Node{}, Resources: map[string]*Resource{}, Fencing: map[string]*Fencing{}}
	dirty := map[string]bool{}
	for key, kv := range b.kvs {
		b.place(v, key, &kv, dirty)
	}
	b.finish(v, dirty)
	return b
}

// apply makes a new view of the last one and what changed.
func (b *builder) apply(c Changes) *View {
	v := new(*b.last)
	v.Revision, v.RaftTerm = max(v.Revision, c.Revision), max(v.RaftTerm, c.RaftTerm)
	v.Nodes, v.Resources, v.Fencing = maps.Clone(v.Nodes), maps.Clone(v.Resources), maps.Clone(v.Fencing)
	dirty := map[string]bool{}
	for _, ch := range c.List {
		key := strings.TrimPrefix(ch.Key, b.prefix)
		if ch.Deleted {
			delete(b.kvs, key)
			b.place(v, key, nil, dirty)
			continue
		}
		b.kvs[key] = ch.KV
		b.place(v, key, &ch.KV, dirty)
	}
	b.finish(v, dirty)
	return v
}

// place puts a key into the view; resources are only marked, finish makes them anew.
func (b *builder) place(v *View, key string, kv *KV, dirty map[string]bool) {
	if rest, ok := strings.CutPrefix(key, keyResources); ok {
		name, _, _ := strings.Cut(rest, "/")
		dirty[name] = true
		return
	}
	if name, ok := strings.CutPrefix(key, keyNodes); ok {
		delete(v.Nodes, name)
		if kv != nil {
			n := &Node{Lease: kv.Lease, Mod: kv.Mod}
			if decode(kv, &n.NodeInfo) != nil || n.Name != name {
				n.NodeInfo = NodeInfo{Name: name} // that it is there is known all the same
			}
			v.Nodes[name] = n
		}
		return
	}
	if name, ok := strings.CutPrefix(key, keyFencing); ok {
		delete(v.Fencing, name)
		if kv != nil {
			f := &Fencing{}
			if decode(kv, f) != nil {
				f = &Fencing{State: FencingUnreadable}
			}
			f.Node, f.Mod = name, kv.Mod
			v.Fencing[name] = f
		}
		return
	}
	if key == keyMaintenance {
		v.Maintenance = Maintenance{}
		if kv != nil {
			if err := decode(kv, &v.Maintenance); err != nil { // nothing is decided rather than something wrong
				v.Maintenance = Maintenance{Cluster: &Pause{Why: err.Error()}}
			}
			v.Maintenance.Mod = kv.Mod
		}
	}
}

func (b *builder) finish(v *View, dirty map[string]bool) {
	byName := map[string][]string{}
	for key := range b.kvs {
		if rest, ok := strings.CutPrefix(key, keyResources); ok {
			if name, _, _ := strings.Cut(rest, "/"); dirty[name] {
				byName[name] = append(byName[name], key)
			}
		}
	}
	for name := range dirty {
		delete(v.Resources, name)
		if keys := byName[name]; len(keys) > 0 {
			slices.Sort(keys)
			v.Resources[name] = b.resource(name, keys)
		}
	}
	v.Problems = nil
	for _, name := range slices.Sorted(maps.Keys(v.Resources)) {
		if p := v.Resources[name].Problem; p != "" {
			v.Problems = append(v.Problems, p)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(v.Fencing)) {
		if v.Fencing[name].State == FencingUnreadable {
			v.Problems = append(v.Problems, fmt.Sprintf("key %s%s%s cannot be read", b.prefix, keyFencing, name))
		}
	}
	b.last = v
}

// resource makes one of its keys.
func (b *builder) resource(name string, keys []string) *Resource {
	r := &Resource{Name: name, Status: map[string]*Status{}}
	var bad error
	read := func(kv *KV, to any) {
		if err := decode(kv, to); err != nil {
			bad = errors.Join(bad, err)
		}
	}
	for _, key := range keys {
		kv := b.kvs[key]
		what := strings.TrimPrefix(key, keyResources+name+"/")
		node, status := strings.CutPrefix(what, keyStatus)
		switch {
		case what == keySpec:
			r.Spec = &Spec{}
			read(&kv, r.Spec)
			r.Spec.Mod = kv.Mod
		case what == keyPrimary:
			r.Primary = &Primary{}
			read(&kv, r.Primary)
			r.Primary.Term, r.Primary.Mod, r.Primary.Lease = kv.Create, kv.Mod, kv.Lease
			if r.Primary.Node == "" && bad == nil {
				bad = &BadValueError{kv.Key, errors.New("it names no node")}
			}
		case what == keyInSync:
			r.InSync = &InSync{}
			read(&kv, r.InSync)
			r.InSync.Seq = kv.Mod
			if r.InSync.Term == 0 {
				r.InSync.Term = kv.Mod
			}
		case what == keySwitchover:
			r.Switchover = &Switchover{}
			read(&kv, r.Switchover)
			r.Switchover.Mod = kv.Mod
		case status:
			r.Status[node] = &Status{Node: node, Data: kv.Value, Mod: kv.Mod, Lease: kv.Lease}
		case strings.HasPrefix(what, keyHistory):
			e := Entry{}
			if decode(&kv, &e) != nil {
				e = Entry{Kind: "?", Text: "this version cannot read it"} // not worth a stop
			}
			e.Rev, e.Key = kv.Create, kv.Key
			if e.Term == 0 && (e.Kind == EntryPromote || e.Kind == EntryForce) {
				e.Term = e.Rev
			}
			r.History = append(r.History, e)
		}
	}
	slices.SortStableFunc(r.History, func(a, b Entry) int { return cmp.Compare(a.Rev, b.Rev) }) // clocks of nodes differ
	if bad != nil {
		r.Problem = bad.Error()
	}
	return r
}

func decode(kv *KV, to any) error {
	if err := json.Unmarshal(kv.Value, to); err != nil {
		return &BadValueError{kv.Key, err}
	}
	return nil
}
