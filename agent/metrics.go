package agent

import (
	"context"

	"github.com/hawser-ha/hawser/agent/metrics"
)

// snapshot is what a scrape tells.
func (a *Agent) snapshot(ctx context.Context) metrics.Snapshot {
	st := a.status(ctx, "")
	s := metrics.Snapshot{Node: st.Node, Version: st.Version}
	for i := range st.Resources {
		r := &st.Resources[i]
		s.Resources = append(s.Resources, metrics.Resource{Name: r.Name, State: r.State, Restarts: r.Restarts, Status: r.Status})
	}
	return s
}
