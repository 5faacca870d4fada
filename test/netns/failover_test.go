package netns

import (
	"testing"

	"github.com/hawser-ha/hawser/replicator/control"
	"github.com/hawser-ha/hawser/test/check"
)

// The Primary dies under load; the other takes over, the dead one comes back, and nothing acknowledged is lost.
func TestFailover(t *testing.T) {
	c := start(t, setup{})
	c.n1.primary()
	w := c.load(check.Options{}, c.n1, c.n2)
	c.acks(w, 500)
	c.n1.crash()
	c.n2.primary()
	c.acks(w, 500)
	c.n1.startAgent()
	c.inSync()
	c.acks(w, 200)
	w.Stop()
	if st := c.n2.now(); st.Role != "Primary" || st.Peers[0].Role != "Secondary" {
		t.Errorf("roles %s and %s", st.Role, st.Peers[0].Role)
	}
	c.identical()
}

// R01: the Primary moves round under load. Nothing is resynced, because nothing was ever missing.
func TestR01MovePrimary(t *testing.T) {
	c := start(t, setup{})
	events := []*recorder{c.n1.record(), c.n2.record()}
	c.n1.primary()
	w := c.load(check.Options{}, c.n1, c.n2)
	at := c.n1
	for range 5 {
		c.acks(w, 200)
		at.cli("secondary", "--force", resource)
		at = at.peer()
		at.cli("primary", resource)
	}
	c.acks(w, 200)
	w.Stop()
	c.inSync()
	for i, r := range events {
		if got := r.find(func(e control.Event) bool { return e.Kind == control.EventSync }); len(got) > 0 {
			t.Errorf("n%d resynced: %+v", i+1, got)
		}
		if got := r.states(control.FieldConnection); len(got) > 0 {
			t.Errorf("n%d: the connection changed: %v", i+1, got)
		}
	}
	c.identical()
}
