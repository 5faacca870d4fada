package etcd

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/hawser-ha/hawser/agent/coord"
)

// attempt is how one attempt at one endpoint went.
type attempt[T any] struct {
	ep    *endpoint
	value T
	err   error
}

// hedge calls f for one endpoint after the other: the next one when the last one failed, or has not answered after stagger. The first good answer
// counts, and ends the other attempts. lost is what it is when there is none.
func hedge[T any](ctx context.Context, c *Client, stagger time.Duration, lost error, f func(context.Context, *endpoint) (T, error)) (T, error) {
	var none T
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	eps := c.order()
	if len(eps) == 0 {
		return none, fmt.Errorf("%w: %w", lost, errClosed)
	}
	results := make(chan attempt[T], len(eps)) // nobody waits to write
	start := func(ep *endpoint) {
		if !c.begin() {
			results <- attempt[T]{ep, none, fmt.Errorf("%w: %w", lost, errClosed)}
			return
		}
		go func() {
			defer c.wg.Done()
			one, done := context.WithTimeout(ctx, c.cfg.RPCTimeout)
			defer done()
			v, err := try(one, c, ep, lost, f)
			results <- attempt[T]{ep, v, err}
		}()
	}
	var errs []attempt[T]
	next := time.NewTimer(0)
	defer next.Stop()
	for started := 0; len(errs) < len(eps); {
		select {
		case <-ctx.Done():
			if started == 0 {
				return none, fmt.Errorf("%w: %w", lost, context.Cause(ctx))
			}
			return none, verdict(lost, append(errs, attempt[T]{err: fmt.Errorf("%w: %w", lost, context.Cause(ctx))}))
		case <-next.C:
			if started < len(eps) {
				start(eps[started])
				started++
				next.Reset(stagger)
			}
		case r := <-results:
			if r.err == nil {
				c.answered(r.ep)
				return r.value, nil
			}
			errs = append(errs, r)
			next.Reset(0)
		}
	}
	return none, verdict(lost, errs)
}

// verdict says what several failed attempts come to. One that is not certain makes all so; a lease that one misses is missed.
func verdict[T any](lost error, errs []attempt[T]) error {
	var all []error
	kind := error(nil)
	for _, e := range errs {
		err := e.err
		if e.ep != nil {
			err = fmt.Errorf("%s: %w", e.ep.url, err)
		}
		all = append(all, err)
		if errors.Is(e.err, lost) {
			kind = lost
		}
	}
	joined := errors.Join(all...)
	if kind == nil || errors.Is(kind, coord.ErrUnavailable) { // a definite no says more than silence
		if kind == nil {
			kind = coord.ErrUnavailable
		}
		for _, is := range []error{coord.ErrLeaseGone, coord.ErrCompacted, coord.ErrRefused} {
			if errors.Is(joined, is) {
				kind = is
				break
			}
		}
	}
	return &callError{kind, joined}
}

// callError is a verdict: what it is, and what each endpoint said.
type callError struct{ kind, all error }

func (e *callError) Error() string { return fmt.Sprintf("etcd: %v: %s", e.kind, oneLine(e.all)) }

// Is tells its kind. That of single attempts is only told where it explains a silence.
func (e *callError) Is(target error) bool {
	if errors.Is(e.kind, target) {
		return true
	}
	return (target == coord.ErrStale || target == ErrUnsettled) && errors.Is(e.all, target) || //nolint:errorlint // sentinels that are asked for
		(target == context.DeadlineExceeded || target == context.Canceled) && errors.Is(e.all, target) //nolint:errorlint // the same
}

func oneLine(err error) string {
	s := ""
	for _, e := range unjoin(err) {
		if s != "" {
			s += "; "
		}
		s += e.Error()
	}
	return s
}

func unjoin(err error) []error {
	if j, ok := err.(interface{ Unwrap() []error }); ok { //nolint:errorlint // it is our own Join
		return j.Unwrap()
	}
	return []error{err}
}

// try is one attempt, and a second one with a new token if the first had none that is good.
func try[T any](ctx context.Context, c *Client, ep *endpoint, lost error, f func(context.Context, *endpoint) (T, error)) (T, error) {
	token := c.auth.current()
	v, err := f(ctx, ep)
	if needsToken(err) && c.auth.user != "" {
		if aerr := c.auth.renew(ctx, ep, token); aerr != nil {
			return v, classify(aerr, coord.ErrUnavailable) // the call was refused, so nothing was done
		}
		v, err = f(ctx, ep)
	}
	return v, classify(err, lost)
}

// known makes sure that the endpoint is of our cluster before it is told to change anything.
func (c *Client) known(ctx context.Context, ep *endpoint) error {
	ep.mu.Lock()
	known := ep.known
	ep.mu.Unlock()
	if known {
		return nil
	}
	_, err := c.head(ctx, ep)
	return err
}
