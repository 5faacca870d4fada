package ha

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/hawser-ha/hawser/agent/coord"
	"github.com/hawser-ha/hawser/agent/decide"
	"github.com/hawser-ha/hawser/replicator/control"
)

// Cluster is the whole cluster as etcd has it.
type Cluster struct {
	Fresh       bool                   `json:"fresh"` // etcd answers
	Problem     string                 `json:"problem,omitempty"`
	Age         time.Duration          `json:"age"` // of what is told here
	Revision    uint64                 `json:"revision"`
	Nodes       []NodeLine             `json:"nodes"`
	Resources   []ResourceLine         `json:"resources"`
	Maintenance string                 `json:"maintenance,omitempty"` // of the cluster: by whom and why
	Unreadable  []string               `json:"unreadable,omitempty"`
	Paused      map[string]coord.Pause `json:"paused-resources,omitempty"`
}

// NodeLine is one node.
type NodeLine struct {
	Name        string    `json:"name"`
	Alive       bool      `json:"alive"`
	Since       time.Time `json:"since,omitzero"`
	Version     string    `json:"version,omitempty"`
	Drained     bool      `json:"drained,omitempty"`
	Maintenance bool      `json:"maintenance,omitempty"`
	Fencing     string    `json:"fencing,omitempty"`
}

// ResourceLine is one resource.
type ResourceLine struct {
	Name       string      `json:"name"`
	Holder     string      `json:"holder"` // "": nobody
	Term       uint64      `json:"term"`
	InSync     []string    `json:"in-sync"`
	Maintained bool        `json:"maintenance,omitempty"`
	Switchover string      `json:"switchover,omitempty"`
	OneLoss    string      `json:"one-loss"` // what the loss of one more node would do
	LastEvent  string      `json:"last-event,omitempty"`
	Nodes      []NodeState `json:"nodes"`
	Problem    string      `json:"problem,omitempty"`
}

// NodeState is the resource on one node.
type NodeState struct {
	Node     string          `json:"node"`
	Stale    bool            `json:"stale"` // the node says nothing any more, or etcd does not answer
	Age      time.Duration   `json:"age"`
	Role     string          `json:"role"`
	Disk     string          `json:"disk"`
	InSync   bool            `json:"in-sync"`
	Right    string          `json:"right,omitempty"`   // by which a Primary serves
	Licence  time.Duration   `json:"licence,omitempty"` // left when it was written, less the age
	Frozen   []string        `json:"suspended,omitempty"`
	Services string          `json:"services,omitempty"`
	Rule     decide.Reason   `json:"rule"`
	Detail   string          `json:"detail,omitempty"`
	Status   *control.Status `json:"status,omitempty"`
}

// Survey makes it of a view; verr says why the view may be out of date, now is CLOCK_BOOTTIME in ns.
func Survey(v *coord.View, verr error, now int64, wall time.Time) *Cluster {
	c := &Cluster{Fresh: verr == nil, Nodes: []NodeLine{}, Resources: []ResourceLine{}}
	if verr != nil {
		c.Problem = verr.Error()
	}
	if v == nil {
		return c
	}
	c.Age, c.Revision, c.Unreadable = max(time.Duration(now-v.Seen), 0), v.Revision, v.Problems
	if p := v.Maintenance.Cluster; p != nil {
		c.Maintenance = strings.TrimSpace("by " + orNobody(p.By) + " " + p.Why)
	}
	for name, p := range v.Maintenance.Resources {
		if c.Paused == nil {
			c.Paused = map[string]coord.Pause{}
		}
		c.Paused[name] = *p
	}
	names := map[string]bool{}
	for n := range v.Nodes {
		names[n] = true
	}
	for _, r := range v.Resources {
		for n := range r.Status {
			names[n] = true
		}
		if r.InSync != nil {
			for _, m := range r.InSync.Members {
				names[m.Node] = true
			}
		}
	}
	for n := range v.Maintenance.Drained {
		names[n] = true
	}
	for _, name := range slices.Sorted(maps.Keys(names)) {
		l := NodeLine{Name: name, Drained: v.Maintenance.Drained[name] != nil, Maintenance: v.Maintenance.Nodes[name] != nil}
		if n := v.Nodes[name]; n != nil {
			l.Alive, l.Since, l.Version = true, n.Since, n.Version
		}
		if f := v.Fencing[name]; f != nil {
			l.Fencing = string(f.State)
		}
		c.Nodes = append(c.Nodes, l)
	}
	for _, name := range slices.Sorted(maps.Keys(v.Resources)) {
		c.Resources = append(c.Resources, resourceLine(v, v.Resources[name], verr != nil, c.Age, wall))
	}
	return c
}

func resourceLine(v *coord.View, r *coord.Resource, stale bool, age time.Duration, wall time.Time) ResourceLine {
	l := ResourceLine{Name: r.Name, Holder: r.Holder(), InSync: []string{}, Maintained: v.Maintenance.Resources[r.Name] != nil, Nodes: []NodeState{}, Problem: r.Problem}
	if r.InSync != nil {
		l.Term = r.InSync.Term
		for _, m := range r.InSync.Members {
			l.InSync = append(l.InSync, m.Node)
		}
	}
	if r.Primary != nil {
		l.Term = r.Primary.Term
	}
	if sw := r.Switchover; sw != nil {
		switch {
		case sw.To == ToNobody:
			l.Switchover = "stopped by command"
		case sw.At.After(wall):
			l.Switchover = "to " + cmp.Or(sw.To, "the best node") + " at " + sw.At.Format(time.DateTime)
		default:
			l.Switchover = "to " + cmp.Or(sw.To, "the best node")
		}
	}
	if n := len(r.History); n > 0 {
		e := r.History[n-1]
		l.LastEvent = fmt.Sprintf("%s %s on %s: %s", e.Time.Format(time.DateTime), e.Kind, e.Node, e.Text)
	}
	l.OneLoss = oneLoss(v, r)
	known := map[string]bool{}
	for n := range r.Status {
		known[n] = true
	}
	for _, n := range l.InSync {
		known[n] = true
	}
	for _, name := range slices.Sorted(maps.Keys(known)) {
		s := NodeState{Node: name, Stale: true, Role: "Unknown", Disk: "DUnknown", InSync: r.InSync.Member(name) != nil}
		if st := r.Status[name]; st != nil {
			var rep Report
			if err := json.Unmarshal(st.Data, &rep); err != nil {
				s.Detail = "its status cannot be read"
			} else {
				s.Stale, s.Age = stale || v.Nodes[name] == nil, max(wall.Sub(rep.Time), age)
				s.Role, s.Disk, s.Rule, s.Detail, s.Status = rep.Local.Role, cmp.Or(rep.Local.DiskText, "Diskless"), rep.Rule, rep.Detail, rep.Status
				s.Frozen, s.Services = rep.Local.Frozen, string(rep.Local.Services)
				if !rep.Local.Up {
					s.Role, s.Disk = "Unknown", "DUnknown"
				}
				if w := rep.Local.Write; w != nil && rep.Local.Role == decide.Primary {
					s.Right = w.Right
					if w.Until > 0 && w.Right != control.RightUnlimited {
						// The report is not written again for each renewal: the lease of the node says more than the report's own time.
						s.Licence = max(time.Duration(w.Until-rep.Now), 0)
					}
				}
			}
		}
		l.Nodes = append(l.Nodes, s)
	}
	return l
}

// oneLoss says what the loss of one more node would do.
func oneLoss(v *coord.View, r *coord.Resource) string {
	var others []string
	if r.InSync != nil {
		for _, m := range r.InSync.Members {
			if m.Node != r.Holder() && v.Nodes[m.Node] != nil {
				others = append(others, m.Node)
			}
		}
	}
	switch {
	case r.InSync == nil:
		return "it was never Primary: nothing runs"
	case r.Primary == nil && len(others) == 0:
		return "nothing runs, and no node in sync is there"
	case r.Primary == nil:
		return "nothing runs; in sync and there: " + strings.Join(others, ", ")
	case len(others) == 0:
		return fmt.Sprintf("without %s nothing runs: it has the only complete copy", r.Holder())
	}
	return fmt.Sprintf("without %s it goes on on %s", r.Holder(), strings.Join(others, " or "))
}

// HistoryLine is an entry of a resource's history.
type HistoryLine struct {
	Time time.Time `json:"time"`
	Node string    `json:"node"`
	Kind string    `json:"kind"`
	Term uint64    `json:"term,omitempty"`
	Why  string    `json:"why,omitempty"`
	Loss string    `json:"loss,omitempty"` // of a promotion: what may have been lost
	Took string    `json:"took,omitempty"` // how long nobody held the term
}

// HistoryOf makes the lines, oldest first.
func HistoryOf(r *coord.Resource) []HistoryLine {
	list := []HistoryLine{}
	for _, e := range r.History {
		l := HistoryLine{Time: e.Time, Node: e.Node, Kind: e.Kind, Term: e.Term, Why: e.Text}
		var d PromotionData
		if len(e.Data) > 0 && json.Unmarshal(e.Data, &d) == nil {
			l.Loss = d.Loss
			if d.VacantMS > 0 {
				l.Took = (time.Duration(d.VacantMS) * time.Millisecond).String()
			}
		}
		list = append(list, l)
	}
	return list
}

// History is that of a resource.
func (m *Manager) History(name string) ([]HistoryLine, error) {
	v, err := m.look()
	if v == nil {
		return nil, control.Errorf(control.Unknown, "etcd does not answer: %w", err).On(name, control.All, "")
	}
	r, ok := v.Resources[name]
	if !ok {
		return nil, control.Errorf(control.NotFound, "etcd knows nothing of it").On(name, control.All, "")
	}
	return HistoryOf(r), nil
}

// Left waits until this node holds a resource no more, after it was told to leave.
func (m *Manager) Left(ctx context.Context, name string) error {
	w, err := m.worker(name)
	if err != nil {
		return nil //nolint:nilerr // nobody looks after it: it is not held
	}
	since := m.o.Clock()
	w.wake()
	return m.until(ctx, name, func(r *coord.Resource) (bool, error) {
		st, err := w.status(ctx)
		if err == nil && (st == nil || st.Role != decide.Primary) && r.Holder() != m.o.Node {
			return true, nil
		}
		return false, m.stuck(name, since)
	})
}

// AwaitDrained waits until a drained node holds nothing that another could take. It lists what stays.
func (m *Manager) AwaitDrained(ctx context.Context, node string) ([]string, error) {
	tick := time.NewTicker(200 * time.Millisecond)
	defer tick.Stop()
	for {
		changed := m.Wait()
		held, err := m.Held(node)
		if err == nil {
			moving := false
			for _, name := range held {
				_, _, err := m.planMove(name, Move{})
				moving = moving || err == nil
			}
			if !moving {
				return held, nil
			}
		}
		select {
		case <-changed:
		case <-tick.C:
		case <-ctx.Done():
			return held, control.Errorf(control.Unknown, "%s still holds %s: %w", node, strings.Join(held, ", "), context.Cause(ctx)).WithHint("hawser explain RES on " + node)
		}
	}
}

// Apply stores a definition in etcd; every agent writes it to its folder.
func (m *Manager) Apply(ctx context.Context, name, text, by string) error {
	for {
		changed := m.Wait()
		v, err := m.look()
		if err != nil {
			return control.Errorf(control.Unknown, "etcd does not answer: %w", err).On(name, control.All, "")
		}
		_, err = m.o.Store.PutSpec(ctx, v.Resource(name), text, by)
		if !errors.Is(err, coord.ErrConflict) {
			return err
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return err
		}
	}
}
