package agent

import (
	"context"
	"time"

	"github.com/hawser-ha/hawser/agent/metrics"
	"github.com/hawser-ha/hawser/agent/service"
	"github.com/hawser-ha/hawser/fencing"
	"github.com/hawser-ha/hawser/replicator/control"
)

// snapshot is what a scrape tells.
func (a *Agent) snapshot(ctx context.Context) metrics.Snapshot {
	st := a.status(ctx, "")
	s := metrics.Snapshot{Node: st.Node, Version: st.Version}
	for i := range st.Resources {
		r := &st.Resources[i]
		s.Resources = append(s.Resources, metrics.Resource{Name: r.Name, State: r.State, Restarts: r.Restarts, Status: r.Status,
			Licence: licenceOf(r.Status), Services: a.serviceMetrics(r.Name)})
	}
	if a.fence != nil {
		for _, d := range a.fence.fencer.Snapshot().Devices {
			if d.Health != fencing.NoWay && d.Health != fencing.NotAsked { // nothing is known of those
				s.Fences = append(s.Fences, metrics.FenceDevice{Name: d.Name, OK: d.Health == fencing.Working, Checked: d.Asked})
			}
		}
	}
	return s
}

// licenceOf is who may write, as the replicator says it; nil where nobody coordinates.
func licenceOf(st *control.Status) *metrics.Licence {
	if st == nil || st.Write == nil {
		return nil
	}
	w := st.Write
	l := &metrics.Licence{Term: w.Term, Right: w.Right, Holder: w.Holder, Left: max(time.Duration(w.Until-w.Now), 0)}
	for _, m := range w.InSync {
		l.InSync = append(l.InSync, m.Node)
	}
	for _, q := range st.Questions {
		if !q.Promotion { // I/O does not wait for that one
			l.Waiting++
		}
	}
	return l
}

func (a *Agent) serviceMetrics(resource string) (out []metrics.Service) {
	if a.services == nil {
		return nil
	}
	a.services.mu.Lock()
	run := a.services.runners[resource]
	a.services.mu.Unlock()
	if run == nil {
		return nil
	}
	st := run.Status()
	for _, c := range st.Chains {
		for _, s := range c.Services {
			failed := s.State == service.Failed || s.State == service.Refused || s.State == service.StopFailed
			out = append(out, metrics.Service{Name: s.Name, State: string(s.State), Failed: failed})
		}
	}
	return out
}
