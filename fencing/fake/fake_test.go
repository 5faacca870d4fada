package fake

import (
	"testing"
	"time"

	"github.com/hawser-ha/hawser/fencing"
	"github.com/hawser-ha/hawser/fencing/conformance"
)

var _ fencing.Device = (*Switch)(nil)

func TestConformance(t *testing.T) {
	conformance.Run(t, func(*testing.T) conformance.Rig {
		s := New()
		return conformance.Rig{Device: s, Node: "n1", IsOff: func() bool { return s.IsOff("n1") }, Cuts: func() int { return s.Cuts("n1") },
			Dead: func() { s.Break(Faults{Stuck: true}) }, Limit: 5 * time.Second}
	})
}
