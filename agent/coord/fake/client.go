package fake

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/hawser-ha/hawser/agent/coord"
)

// Faults are probabilities, by the call.
type Faults struct {
	LoseRequest float64       // nothing is done, no answer
	LoseAnswer  float64       // it is done, no answer
	Late        float64       // of transactions: no answer, and it is done at some time later
	BreakWatch  float64       // by the change: the stream ends
	DelayMax    time.Duration // each call takes up to this; not with Options.Clock
}

// Client is the store as one node reaches it: a coord.Backend.
type Client struct {
	s    *Server
	Name string

	mu    sync.Mutex // guards what follows
	f     Faults
	cut   bool
	hang  bool // a call that nobody answers takes its time
	deaf  bool // streams are silent
	liars bool // renewals are answered: there is no such lease
	mark  coord.Watermark
}

// Client makes one.
func (s *Server) Client(name string) *Client { return &Client{s: s, Name: name, hang: s.timed} }

// SetFaults changes what goes wrong from now on.
func (c *Client) SetFaults(f Faults) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.f = f
}

// Cut cuts the node off from the store, or not.
func (c *Client) Cut(cut bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.cut = cut
}

// Deafen makes streams go silent without an end, as those of a member that was cut off, or lets them go on.
func (c *Client) Deafen(deaf bool) {
	c.mu.Lock()
	c.deaf = deaf
	c.mu.Unlock()
	c.s.mu.Lock()
	defer c.s.mu.Unlock()
	c.s.wake()
}

// DenyLeases makes renewals be answered as if there was no such lease.
func (c *Client) DenyLeases(deny bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.liars = deny
}

func (c *Client) chance(p float64) bool {
	if p <= 0 {
		return false
	}
	c.s.mu.Lock()
	defer c.s.mu.Unlock()
	return c.s.rng.Float64() < p
}

// call does f in the store, unless a fault prevents it. lost is the error when there is no answer.
func (c *Client) call(ctx context.Context, lost error, f func() error) error {
	c.mu.Lock()
	faults, cut := c.f, c.cut
	c.mu.Unlock()
	if cut || ctx.Err() != nil || c.chance(faults.LoseRequest) {
		return c.silence(ctx, lost)
	}
	if faults.DelayMax > 0 && c.s.timed {
		c.s.mu.Lock()
		d := time.Duration(c.s.rng.Int64N(int64(faults.DelayMax)))
		c.s.mu.Unlock()
		select {
		case <-time.After(d):
		case <-ctx.Done():
			return c.silence(ctx, lost)
		}
	}
	c.s.mu.Lock()
	c.s.expire()
	err := f()
	c.s.settle(0.2)
	c.s.mu.Unlock()
	if c.chance(faults.LoseAnswer) {
		return c.silence(ctx, lost)
	}
	return err
}

// silence is a call that nobody answers.
func (c *Client) silence(ctx context.Context, lost error) error {
	if c.hang {
		select {
		case <-ctx.Done():
		case <-time.After(c.s.timeout):
		}
	}
	return fmt.Errorf("%s: %w", c.Name, lost)
}

func (c *Client) admit(h coord.Header) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.mark.Admit(h, c.mark.Seen())
}

// Seen is the newest answer.
func (c *Client) Seen() coord.Header {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.mark.Seen()
}

// Expect sets it higher.
func (c *Client) Expect(h coord.Header) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.mark.Expect(h)
}

// Range reads everything below prefix.
func (c *Client) Range(ctx context.Context, prefix string) (p coord.Page, err error) {
	err = c.call(ctx, coord.ErrUnavailable, func() error {
		p = coord.Page{Header: c.s.header(), KVs: c.s.scan(prefix)}
		return c.admit(p.Header)
	})
	return p, err
}

// Head reads nothing.
func (c *Client) Head(ctx context.Context) (h coord.Header, err error) {
	err = c.call(ctx, coord.ErrUnavailable, func() error {
		h = c.s.header()
		return c.admit(h)
	})
	return h, err
}

// Txn does a transaction.
func (c *Client) Txn(ctx context.Context, t coord.Txn) (r coord.Result, err error) {
	c.mu.Lock()
	late := c.f.Late
	c.mu.Unlock()
	if c.chance(late) {
		c.s.mu.Lock()
		c.s.late = append(c.s.late, func() { _, _ = c.s.txn(t) }) // nobody hears of it
		c.s.mu.Unlock()
		return r, c.silence(ctx, coord.ErrUncertain)
	}
	err = c.call(ctx, coord.ErrUncertain, func() error {
		var err error
		if r, err = c.s.txn(t); err != nil {
			return err
		}
		return c.admit(r.Header)
	})
	return r, err
}

// Grant makes a lease.
func (c *Client) Grant(ctx context.Context, ttl time.Duration) (id coord.LeaseID, granted time.Duration, err error) {
	err = c.call(ctx, coord.ErrUncertain, func() error {
		c.s.next++
		id, granted = c.s.next, ttl
		c.s.leases[id] = &lease{ttl, c.s.clock() + int64(ttl)}
		c.s.later(ttl)
		return nil
	})
	return id, granted, err
}

// KeepAlive renews a lease.
func (c *Client) KeepAlive(ctx context.Context, id coord.LeaseID) (ttl time.Duration, err error) {
	c.mu.Lock()
	deny := c.liars
	c.mu.Unlock()
	err = c.call(ctx, coord.ErrUnavailable, func() error {
		l := c.s.leases[id]
		if l == nil || deny {
			return fmt.Errorf("%w: lease %x", coord.ErrLeaseGone, int64(id))
		}
		l.end, ttl = c.s.clock()+int64(l.ttl), l.ttl
		c.s.later(l.ttl)
		return nil
	})
	return ttl, err
}

// Revoke ends a lease; that it is gone is no error.
func (c *Client) Revoke(ctx context.Context, id coord.LeaseID) error {
	return c.call(ctx, coord.ErrUncertain, func() error {
		c.s.revoke(id)
		return nil
	})
}

// Watch follows the changes below prefix.
func (c *Client) Watch(ctx context.Context, prefix string, after uint64) (coord.Watcher, error) {
	w := &watcher{c: c, prefix: prefix, pos: after, more: make(chan struct{}, 1)}
	err := c.call(ctx, coord.ErrUnavailable, func() error {
		c.s.waiting[w] = true
		return nil
	})
	if err != nil {
		return nil, err
	}
	return w, nil
}

type watcher struct {
	c      *Client
	prefix string
	more   chan struct{} // capacity 1: look again
	pos    uint64        // of Next alone

	poked bool // guarded by c.s.mu
}

func (w *watcher) wake() {
	select {
	case w.more <- struct{}{}:
	default:
	}
}

// Next waits for changes.
func (w *watcher) Next(ctx context.Context) (coord.Changes, error) {
	for {
		c, err := w.look()
		if err != nil || c.Revision != 0 {
			return c, err
		}
		select {
		case <-ctx.Done():
			return coord.Changes{}, ctx.Err()
		case <-w.more:
		}
	}
}

// look gives what there is; a zero Revision: nothing.
func (w *watcher) look() (coord.Changes, error) {
	w.c.mu.Lock()
	silent, broken := w.c.deaf || w.c.cut, w.c.f.BreakWatch
	w.c.mu.Unlock()
	s := w.c.s
	s.mu.Lock()
	defer s.mu.Unlock()
	if silent {
		return coord.Changes{}, nil
	}
	if w.pos < s.floor {
		return coord.Changes{}, fmt.Errorf("%w: %d, the oldest is %d", coord.ErrCompacted, w.pos+1, s.floor+1)
	}
	out := coord.Changes{Header: s.header()}
	for _, ch := range s.log {
		if ch.Mod > w.pos && strings.HasPrefix(ch.Key, w.prefix) {
			out.List = append(out.List, ch)
		}
	}
	w.pos = s.rev
	if len(out.List) > 0 && broken > 0 && s.rng.Float64() < broken {
		return coord.Changes{}, fmt.Errorf("%s: stream broken: %w", w.c.Name, coord.ErrUnavailable)
	}
	if len(out.List) == 0 && !w.poked {
		return coord.Changes{}, nil
	}
	w.poked = false
	return out, nil
}

// Poke asks where the stream is.
func (w *watcher) Poke(context.Context) error {
	w.c.s.mu.Lock()
	w.poked = true
	w.c.s.mu.Unlock()
	w.wake()
	return nil
}

// Close ends the stream.
func (w *watcher) Close() {
	w.c.s.mu.Lock()
	defer w.c.s.mu.Unlock()
	delete(w.c.s.waiting, w)
}
