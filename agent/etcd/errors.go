package etcd

import (
	"context"
	"errors"
	"fmt"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/hawser-ha/hawser/agent/coord"
)

// ErrUnsettled means: etcd changes its members only once all that are up have been in touch for 5s.
var ErrUnsettled = errors.New("the members of etcd have not settled yet")

// classify says what an error of one attempt means; lost is what silence means, and everything that is not known to be a plain no.
func classify(err, lost error) error {
	if err == nil {
		return nil
	}
	for _, is := range []error{coord.ErrStale, coord.ErrUncertain, coord.ErrUnavailable, coord.ErrRefused, coord.ErrLeaseGone, coord.ErrCompacted} {
		if errors.Is(err, is) {
			if is == coord.ErrStale && !errors.Is(err, lost) { //nolint:errorlint // the sentinel itself
				return fmt.Errorf("%w: %w", lost, err) // it did answer, but it does not count
			}
			return err
		}
	}
	kind := lost
	switch e := rpctypes.Error(err); {
	case errors.Is(e, rpctypes.ErrLeaseNotFound):
		kind = coord.ErrLeaseGone
	case errors.Is(e, rpctypes.ErrCompacted):
		kind = coord.ErrCompacted
	case errors.Is(e, rpctypes.ErrUnhealthy):
		return fmt.Errorf("%w: %w: %w", coord.ErrRefused, ErrUnsettled, err)
	case errors.Is(e, rpctypes.ErrNoSpace):
		kind = coord.ErrRefused
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
	default:
		switch codeOf(err) {
		case codes.InvalidArgument, codes.PermissionDenied, codes.Unauthenticated, codes.Unimplemented:
			kind = coord.ErrRefused
		}
	}
	return fmt.Errorf("%w: %w", kind, err)
}

func codeOf(err error) codes.Code {
	if e, ok := errors.AsType[rpctypes.EtcdError](err); ok {
		return e.Code()
	}
	return status.Code(err)
}

// needsToken tells whether etcd did nothing because it does not know who we are.
func needsToken(err error) bool {
	if err == nil {
		return false
	}
	e := rpctypes.Error(err)
	return errors.Is(e, rpctypes.ErrUserEmpty) || errors.Is(e, rpctypes.ErrInvalidAuthToken) || errors.Is(e, rpctypes.ErrAuthOldRevision) ||
		codeOf(err) == codes.Unauthenticated
}
