package ha

import (
	"github.com/hawser-ha/hawser/agent/decide"
	"github.com/hawser-ha/hawser/replicator/control"
)

// Explain is the last decision about a resource, with all that led to it.
func (m *Manager) Explain(name string) (*decide.Explanation, error) {
	w, err := m.worker(name)
	if err != nil {
		return nil, err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.last == nil {
		return nil, control.Errorf(control.Busy, "nothing is decided yet").On(name, control.All, "")
	}
	e := *w.last
	return &e, nil
}
