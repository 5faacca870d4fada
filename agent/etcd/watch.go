package etcd

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/hawser-ha/hawser/agent/coord"
)

func isLeaseGone(err error) bool {
	return err != nil && errors.Is(rpctypes.Error(err), rpctypes.ErrLeaseNotFound)
}

// Watch follows the changes below prefix, at the endpoint that answered first the last time.
func (c *Client) Watch(ctx context.Context, prefix string, after uint64) (coord.Watcher, error) {
	eps := c.order()
	if len(eps) == 0 {
		return nil, fmt.Errorf("%w: %w", coord.ErrUnavailable, errClosed)
	}
	w := &watcher{c: c, ep: eps[0], token: c.auth.current()}
	w.ctx, w.cancel = context.WithCancel(clientv3.WithRequireLeader(ctx)) // a member without a leader ends the stream
	if !c.begin() {
		w.cancel()
		return nil, fmt.Errorf("%w: %w", coord.ErrUnavailable, errClosed)
	}
	made := make(chan clientv3.WatchChan, 1)
	go func() { // Watch does not return before the member has answered, or the context ends
		defer c.wg.Done()
		made <- w.ep.c.Watch(w.ctx, prefix, clientv3.WithPrefix(), clientv3.WithRev(int64(after)+1))
	}()
	t := time.NewTimer(c.cfg.RPCTimeout)
	defer t.Stop()
	select {
	case w.ch = <-made:
		return w, nil
	case <-t.C:
	case <-ctx.Done():
	}
	w.cancel()
	return nil, fmt.Errorf("%w: %s does not begin the stream", coord.ErrUnavailable, w.ep.url)
}

type watcher struct {
	c      *Client
	ep     *endpoint
	token  string
	ctx    context.Context //nolint:containedctx // the client tells streams apart by it
	cancel context.CancelFunc
	ch     clientv3.WatchChan
}

// Next waits for changes.
func (w *watcher) Next(ctx context.Context) (coord.Changes, error) {
	for {
		var r clientv3.WatchResponse
		var open bool
		select {
		case <-ctx.Done():
			return coord.Changes{}, ctx.Err()
		case r, open = <-w.ch:
		}
		if !open {
			return coord.Changes{}, fmt.Errorf("%w: %s ended the stream", coord.ErrUnavailable, w.ep.url)
		}
		if err := r.Err(); err != nil {
			return coord.Changes{}, w.failed(ctx, err)
		}
		if r.Created {
			continue
		}
		h := header(r.Header)
		if err := w.c.admit(coord.Header{Cluster: h.Cluster}, coord.Header{}); err != nil {
			return coord.Changes{}, err
		}
		out := coord.Changes{Header: h}
		for _, e := range r.Events {
			out.List = append(out.List, coord.Change{KV: pair(e.Kv), Deleted: e.Type == mvccpb.DELETE})
		}
		return out, nil
	}
}

// failed says why the stream ended, and gets a new token for the next one if that was it.
func (w *watcher) failed(ctx context.Context, err error) error {
	if (needsToken(err) || errors.Is(rpctypes.Error(err), rpctypes.ErrPermissionDenied)) && w.c.auth.user != "" {
		one, cancel := context.WithTimeout(ctx, w.c.cfg.RPCTimeout)
		defer cancel()
		if aerr := w.c.auth.renew(one, w.ep, w.token); aerr != nil {
			err = errors.Join(err, aerr)
		}
		return fmt.Errorf("%w: %s: %w", coord.ErrUnavailable, w.ep.url, err)
	}
	return fmt.Errorf("%s: %w", w.ep.url, classify(err, coord.ErrUnavailable))
}

// Poke asks where the stream is.
func (w *watcher) Poke(ctx context.Context) error {
	// The client takes the context for the name of the stream: it must be of the same kind as that of Watch.
	one, cancel := context.WithTimeout(clientv3.WithRequireLeader(ctx), w.c.cfg.RPCTimeout)
	defer cancel()
	if err := w.ep.c.RequestProgress(one); err != nil {
		return fmt.Errorf("%w: %s: %w", coord.ErrUnavailable, w.ep.url, err)
	}
	return nil
}

// Close ends the stream.
func (w *watcher) Close() { w.cancel() }
