package coord

import (
	"context"
	"fmt"
	"time"
)

// ReadOnly makes a Backend that changes nothing.
func ReadOnly(b Backend) Backend { return readOnly{b} }

type readOnly struct{ Backend }

func (r readOnly) Txn(ctx context.Context, t Txn) (Result, error) {
	if len(t.Then) > 0 {
		return Result{}, errReadOnly()
	}
	return r.Backend.Txn(ctx, t)
}

func (readOnly) Grant(context.Context, time.Duration) (LeaseID, time.Duration, error) {
	return 0, 0, errReadOnly()
}

func (readOnly) KeepAlive(context.Context, LeaseID) (time.Duration, error) { return 0, errReadOnly() }

func (readOnly) Revoke(context.Context, LeaseID) error { return errReadOnly() }

func errReadOnly() error { return fmt.Errorf("%w: it was opened for reading", ErrRefused) }
