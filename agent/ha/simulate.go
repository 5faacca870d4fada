package ha

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/hawser-ha/hawser/agent/coord"
	"github.com/hawser-ha/hawser/agent/decide"
	"github.com/hawser-ha/hawser/replicator/control"
)

// Loss is what is lost in a play, and of which resource it is told.
type Loss struct {
	decide.Loss
	Resource string `json:"resource,omitempty"` // "": all
}

// Played is what would happen to one resource.
type Played struct {
	Resource string        `json:"resource"`
	Steps    []decide.Step `json:"steps"`
	Missing  []string      `json:"missing,omitempty"` // nodes that say nothing: they are not in the play
}

// Simulate plays a loss over what is known now. It touches nothing.
func (m *Manager) Simulate(l Loss) ([]Played, error) {
	v, err := m.look()
	if err != nil {
		return nil, control.Errorf(control.Unknown, "etcd does not answer: %w", err)
	}
	return Play(v, l, time.Now())
}

// Play is Simulate over a view.
func Play(v *coord.View, l Loss, wall time.Time) ([]Played, error) {
	names := slices.Sorted(maps.Keys(v.Resources))
	if l.Resource != "" {
		if v.Resources[l.Resource] == nil {
			return nil, control.Errorf(control.NotFound, "etcd knows nothing of it").On(l.Resource, control.All, "")
		}
		names = []string{l.Resource}
	}
	known := map[string]bool{}
	for n := range v.Nodes {
		known[n] = true
	}
	out := []Played{}
	for _, name := range names {
		r := v.Resources[name]
		p := Played{Resource: name}
		var views []decide.View
		for _, node := range slices.Sorted(maps.Keys(r.Status)) {
			known[node] = true
			var rep Report
			if err := json.Unmarshal(r.Status[node].Data, &rep); err != nil || v.Nodes[node] == nil {
				p.Missing = append(p.Missing, node)
				continue
			}
			d := decide.View{Now: rep.Now, Self: node, Resource: name, Policy: rep.Policy, Local: rep.Local, Memory: rep.Memory}
			d.Truth = truth(v, r, node, v.Nodes[node].Lease, wall)
			d.Truth.Fresh = true
			views = append(views, d)
		}
		p.Steps = decide.Simulate(views, l.Loss)
		out = append(out, p)
	}
	lost := slices.Clone(l.Nodes)
	for _, c := range l.Cuts {
		lost = append(lost, c[0], c[1])
	}
	for _, n := range lost {
		if !known[n] {
			return nil, control.Errorf(control.NotFound, "there is no node %s", n).WithHint(fmt.Sprintf("one of %v", slices.Sorted(maps.Keys(known))))
		}
	}
	return out, nil
}
