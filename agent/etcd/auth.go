package etcd

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"

	"github.com/hawser-ha/hawser/agent/coord"
)

// auth is the token that all connections show. It is a credentials.PerRPCCredentials.
type auth struct {
	user     string
	password func() (string, error)
	turn     chan struct{} // capacity 1: one asks for a token at a time

	mu     sync.Mutex // guards what follows
	token  string
	worked string // the password that worked last
}

func newAuth(user string, password func() (string, error)) *auth {
	return &auth{user: user, password: password, turn: make(chan struct{}, 1)}
}

// GetRequestMetadata puts the token into a call.
func (a *auth) GetRequestMetadata(context.Context, ...string) (map[string]string, error) {
	if t := a.current(); t != "" {
		return map[string]string{rpctypes.TokenFieldNameGRPC: t}, nil
	}
	return nil, nil
}

// RequireTransportSecurity is false: whether there is TLS is said by the endpoints.
func (a *auth) RequireTransportSecurity() bool { return false }

func (a *auth) current() string {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.token
}

// renew gets a token, unless somebody has since old was current.
func (a *auth) renew(ctx context.Context, ep *endpoint, old string) error {
	select {
	case a.turn <- struct{}{}:
	case <-ctx.Done():
		return ctx.Err()
	}
	defer func() { <-a.turn }()
	a.mu.Lock()
	token, worked := a.token, a.worked
	a.mu.Unlock()
	if token != old {
		return nil
	}
	var tried []string
	var all error
	read, err := a.password()
	if err != nil {
		all = fmt.Errorf("%w: password of etcd user %s: %w", coord.ErrRefused, a.user, err)
	} else {
		tried = append(tried, read)
	}
	if worked != "" && worked != read {
		tried = append(tried, worked)
	}
	for _, pw := range tried {
		a.set("", worked) // a token that is not good any more must not go along
		r, err := ep.c.Authenticate(ctx, a.user, pw)
		if err == nil {
			a.set(r.Token, pw)
			return nil
		}
		if errors.Is(err, rpctypes.ErrAuthNotEnabled) {
			return nil
		}
		all = errors.Join(all, fmt.Errorf("log in to etcd as %s: %w", a.user, err))
	}
	a.set(old, worked) // the next one tries again
	return all
}

func (a *auth) set(token, worked string) {
	a.mu.Lock()
	a.token, a.worked = token, worked
	a.mu.Unlock()
}
