package etcd

import (
	"context"
	"fmt"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/hawser-ha/hawser/agent/coord"
)

func header(h *pb.ResponseHeader) coord.Header {
	return coord.Header{Cluster: h.GetClusterId(), Revision: uint64(h.GetRevision()), RaftTerm: h.GetRaftTerm()}
}

func pair(kv *mvccpb.KeyValue) coord.KV {
	return coord.KV{Key: string(kv.Key), Value: kv.Value, Create: uint64(kv.CreateRevision), Mod: uint64(kv.ModRevision), Lease: coord.LeaseID(kv.Lease)}
}

// soon is how long one endpoint is waited for before the next one is asked too.
func (c *Client) soon() time.Duration { return c.cfg.RPCTimeout / 8 }

// Range reads everything below prefix.
func (c *Client) Range(ctx context.Context, prefix string) (coord.Page, error) {
	return hedge(ctx, c, c.soon(), coord.ErrUnavailable, func(ctx context.Context, ep *endpoint) (coord.Page, error) {
		since := c.Seen()
		r, err := ep.c.Get(ctx, prefix, clientv3.WithPrefix())
		if err != nil {
			return coord.Page{}, err
		}
		p := coord.Page{Header: header(r.Header)}
		for _, kv := range r.Kvs {
			p.KVs = append(p.KVs, pair(kv))
		}
		return p, c.accept(ep, p.Header, since)
	})
}

// accept takes an answer, or not, and notes that the endpoint is of our cluster.
func (c *Client) accept(ep *endpoint, h, since coord.Header) error {
	if err := c.admit(h, since); err != nil {
		return err
	}
	ep.mu.Lock()
	ep.known = true
	ep.mu.Unlock()
	return nil
}

// Head reads nothing, linearizably.
func (c *Client) Head(ctx context.Context) (coord.Header, error) {
	return hedge(ctx, c, c.soon(), coord.ErrUnavailable, c.head)
}

func (c *Client) head(ctx context.Context, ep *endpoint) (coord.Header, error) {
	since := c.Seen()
	r, err := ep.c.Get(ctx, "/hawser/", clientv3.WithCountOnly()) // one key that is never there
	if err != nil {
		return coord.Header{}, classify(err, coord.ErrUnavailable)
	}
	h := header(r.Header)
	return h, c.accept(ep, h, since)
}

// Txn does a transaction.
func (c *Client) Txn(ctx context.Context, t coord.Txn) (coord.Result, error) {
	var conds []clientv3.Cmp
	for _, x := range t.If {
		switch x.What {
		case coord.Mod:
			conds = append(conds, clientv3.Compare(clientv3.ModRevision(x.Key), "=", int64(x.Value)))
		case coord.Create:
			conds = append(conds, clientv3.Compare(clientv3.CreateRevision(x.Key), "=", int64(x.Value)))
		case coord.Lease:
			conds = append(conds, clientv3.Compare(clientv3.LeaseValue(x.Key), "=", int64(x.Value)))
		}
	}
	var then, otherwise []clientv3.Op
	for _, op := range t.Then {
		if op.Delete {
			then = append(then, clientv3.OpDelete(op.Key))
		} else {
			then = append(then, clientv3.OpPut(op.Key, string(op.Value), clientv3.WithLease(clientv3.LeaseID(op.Lease))))
		}
	}
	for _, key := range t.Read {
		otherwise = append(otherwise, clientv3.OpGet(key))
	}
	return hedge(ctx, c, c.soon(), coord.ErrUncertain, func(ctx context.Context, ep *endpoint) (coord.Result, error) {
		if err := c.known(ctx, ep); err != nil {
			return coord.Result{}, err
		}
		since := c.Seen()
		r, err := ep.c.Txn(ctx).If(conds...).Then(then...).Else(otherwise...).Commit()
		if err != nil {
			return coord.Result{}, err
		}
		res := coord.Result{Header: header(r.Header), Done: r.Succeeded}
		if !res.Done {
			for _, one := range r.Responses {
				for _, kv := range one.GetResponseRange().GetKvs() {
					res.KVs = append(res.KVs, pair(kv))
				}
			}
		}
		return res, c.accept(ep, res.Header, since)
	})
}

type granted struct {
	id  coord.LeaseID
	ttl time.Duration
}

// Grant makes a lease. One endpoint is asked at a time: leases that nobody knows of are made otherwise.
func (c *Client) Grant(ctx context.Context, ttl time.Duration) (coord.LeaseID, time.Duration, error) {
	seconds := int64((ttl + time.Second - 1) / time.Second)
	g, err := hedge(ctx, c, c.cfg.RPCTimeout, coord.ErrUncertain, func(ctx context.Context, ep *endpoint) (granted, error) {
		if err := c.known(ctx, ep); err != nil {
			return granted{}, err
		}
		r, err := ep.c.Grant(ctx, seconds)
		if err != nil {
			return granted{}, err
		}
		return granted{coord.LeaseID(r.ID), time.Duration(r.TTL) * time.Second}, c.admit(coord.Header{Cluster: r.ClusterId, RaftTerm: r.RaftTerm}, coord.Header{})
	})
	return g.id, g.ttl, err
}

// KeepAlive renews a lease, through all endpoints at once.
func (c *Client) KeepAlive(ctx context.Context, id coord.LeaseID) (time.Duration, error) {
	return hedge(ctx, c, 0, coord.ErrUnavailable, func(ctx context.Context, ep *endpoint) (time.Duration, error) {
		since := c.Seen()
		// Not Lease.KeepAliveOnce: that one tries again and again without a pause, until ctx ends.
		s, err := pb.NewLeaseClient(ep.c.ActiveConnection()).LeaseKeepAlive(ctx)
		if err != nil {
			return 0, err
		}
		if err := s.Send(&pb.LeaseKeepAliveRequest{ID: int64(id)}); err != nil {
			if _, rerr := s.Recv(); rerr != nil { // the reason is there
				err = rerr
			}
			return 0, err
		}
		r, err := s.Recv()
		if err != nil {
			return 0, err
		}
		if r.TTL <= 0 {
			return 0, fmt.Errorf("%w: lease %x", coord.ErrLeaseGone, int64(id))
		}
		h := header(r.Header)
		h.Revision = 0 // it is from before the leader was asked
		return time.Duration(r.TTL) * time.Second, c.admit(h, since)
	})
}

// Revoke ends a lease; that it is gone is no error.
func (c *Client) Revoke(ctx context.Context, id coord.LeaseID) error {
	_, err := hedge(ctx, c, c.soon(), coord.ErrUncertain, func(ctx context.Context, ep *endpoint) (struct{}, error) {
		if err := c.known(ctx, ep); err != nil {
			return struct{}{}, err
		}
		_, err := ep.c.Revoke(ctx, clientv3.LeaseID(id))
		if isLeaseGone(err) {
			err = nil
		}
		return struct{}{}, err
	})
	return err
}
