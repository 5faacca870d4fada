package replicator

import (
	"context"

	"github.com/hawser-ha/hawser/replicator/control"
)

// uncoordinated answers what only a coordinated resource can do.
func (r *Resource) uncoordinated() error {
	return control.Errorf(control.Refused, "nobody grants licences here: coordination is none").On(r.name, control.All, "")
}

// Grant takes what the agent knows of who may write.
func (r *Resource) Grant(context.Context, *control.Grant) error { return r.uncoordinated() }

// Deposed makes a Primary of that term Secondary.
func (r *Resource) Deposed(context.Context, control.Deposed) error { return r.uncoordinated() }

// Candidacy says whether a promise keeps this node from running for primary.
func (r *Resource) Candidacy(context.Context, control.Candidacy) (*control.CandidacyAnswer, error) {
	return nil, r.uncoordinated()
}
