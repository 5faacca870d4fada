package agent

import (
	"context"
	"fmt"
	"strings"

	"github.com/hawser-ha/hawser/agent/decide"
	"github.com/hawser-ha/hawser/replicator/control"
)

// RebootCheck says what the loss of this node would cost now.
type RebootCheck struct {
	Node string `json:"node"`
	// Only are the volumes whose only good copy in reach is here: nothing else can serve them while this node is away.
	Only []OnlyCopy `json:"only"`
	// Primary are the resources that this node leads.
	Primary []string `json:"primary"`
}

// OnlyCopy is a volume that no other node has complete.
type OnlyCopy struct {
	Resource string `json:"resource"`
	Volume   int    `json:"volume"`
	Why      string `json:"why"`
}

func (a *Agent) rebootCheck(ctx context.Context) *RebootCheck {
	c := &RebootCheck{Node: a.cfg.Node.Node, Only: []OnlyCopy{}, Primary: []string{}}
	for _, r := range a.status(ctx, "").Resources {
		st := r.Status
		if st == nil {
			continue
		}
		if st.Role == decide.Primary {
			c.Primary = append(c.Primary, r.Name)
		}
		for i := range st.Volumes {
			if why := a.onlyHere(st, &st.Volumes[i]); why != "" {
				c.Only = append(c.Only, OnlyCopy{Resource: r.Name, Volume: st.Volumes[i].Number, Why: why})
			}
		}
	}
	return c
}

// onlyHere says why nobody else has a volume complete; "": somebody has, or it is not complete here either.
func (a *Agent) onlyHere(st *control.Status, v *control.VolumeStatus) string {
	if v.DiskState != "UpToDate" && v.DiskState != "Consistent" {
		return ""
	}
	var why []string
	for i := range st.Peers {
		p := &st.Peers[i]
		pv := p.Volume(v.Number)
		switch {
		case p.Connection != "Connected":
			why = append(why, p.Name+" is not connected")
		case pv == nil || pv.DiskState != "UpToDate":
			state := "DUnknown"
			if pv != nil {
				state = pv.DiskState
			}
			why = append(why, fmt.Sprintf("%s is %s", p.Name, state))
		case a.isCoordinated(st.Resource) && !a.inSync(st.Resource, p.Name):
			why = append(why, p.Name+" is not in the in-sync set")
		default:
			return ""
		}
	}
	if len(st.Peers) == 0 {
		return "the resource has no other node"
	}
	return strings.Join(why, ", ")
}

func (a *Agent) inSync(resource, node string) bool {
	v, _ := a.ha.View() // an old one says what was so when etcd was last heard
	return v != nil && v.Resource(resource).InSync.Member(node) != nil
}
