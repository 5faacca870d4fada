package agent

import (
	"reflect"
	"testing"
	"time"

	"github.com/hawser-ha/hawser/agent/metrics"
	"github.com/hawser-ha/hawser/replicator/control"
)

func TestLicenceInMetrics(t *testing.T) {
	members := []control.Member{{Node: "n1"}, {Node: "n2"}}
	for _, c := range []struct {
		name string
		st   *control.Status
		want *metrics.Licence
	}{
		{"down", nil, nil},
		{"nobody coordinates", &control.Status{}, nil},
		{"a lease", &control.Status{Write: &control.WriteStatus{Term: 7, Holder: "n1", InSync: members, Right: control.RightLease, Now: 5e9, Until: 8e9}},
			&metrics.Licence{Term: 7, Holder: "n1", InSync: []string{"n1", "n2"}, Right: "lease", Left: 3 * time.Second}},
		{"a lease that ran out", &control.Status{Write: &control.WriteStatus{Term: 7, Right: control.RightNone, Now: 9e9, Until: 8e9}},
			&metrics.Licence{Term: 7, Right: "none"}},
		{"a peer that went", &control.Status{Write: &control.WriteStatus{Right: control.RightUnlimited},
			Questions: []control.Question{{ID: 1, Peer: "n2"}, {ID: 2, Peer: "n3", Promotion: true}}},
			&metrics.Licence{Right: "unlimited", Waiting: 1}},
	} {
		if got := licenceOf(c.st); !reflect.DeepEqual(got, c.want) {
			t.Errorf("%s: %+v, want %+v", c.name, got, c.want)
		}
	}
}
