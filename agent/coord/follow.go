package coord

import (
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sync/errgroup"
)

// FollowOptions of Follow.
type FollowOptions struct {
	ConfirmEvery time.Duration // how often the store is asked whether there is anything newer
	RPCTimeout   time.Duration // of a read; a stream that is behind for longer is given up
}

// Update is a new view, or what is wrong with the old one.
type Update struct {
	View *View // the newest; nil: there was none yet
	Err  error // why it may be out of date; nil: it is not
}

// Follow reads the cluster and follows its changes until ctx ends, then the channel is closed. A reader that is slow misses views, never the
// last one. There is one Follow at a time that the session of this node hears of: the last one.
func (s *Store) Follow(ctx context.Context, o FollowOptions) <-chan Update {
	f := &follower{s: s, o: o, out: make(chan Update, 1)}
	go f.run(ctx) // ends by closing out, which the caller waits for
	return f.out
}

type follower struct {
	s   *Store
	o   FollowOptions
	out chan Update
	cur Update
}

func (f *follower) publish() {
	select {
	case <-f.out: // nobody has read it: this one is newer
	default:
	}
	f.out <- f.cur // we are the only writer, so there is room
}

func (f *follower) run(ctx context.Context) {
	defer close(f.out)
	for pause := retryMin; ; pause = min(2*pause, retryMax) {
		was := f.cur.View
		err := f.stream(ctx)
		if ctx.Err() != nil {
			return
		}
		if f.cur.View != was {
			pause = retryMin
		}
		if !errors.Is(err, ErrCompacted) { // that one is nothing that people should know
			f.s.log.Debug("changes are not followed", "err", err)
			f.cur.Err = err
			f.publish()
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(pause):
		}
	}
}

// head is what the store said, or did not, when it was asked for something newer.
type head struct {
	sent int64
	rev  uint64
	err  error
}

// stream reads everything and then follows the changes, until that fails.
func (f *follower) stream(ctx context.Context) error {
	read, cancel := context.WithTimeout(ctx, f.o.RPCTimeout)
	b, err := f.s.snapshot(read)
	cancel()
	if err != nil {
		return err
	}
	f.show(b.last)
	g, gctx := errgroup.WithContext(ctx)
	w, err := f.s.b.Watch(gctx, f.s.prefix, b.last.Revision)
	if err != nil {
		return fmt.Errorf("follow changes: %w", err)
	}
	defer w.Close()
	changes, heads := make(chan Changes), make(chan head)
	g.Go(func() error {
		for {
			c, err := w.Next(gctx)
			if err != nil {
				return fmt.Errorf("follow changes: %w", err)
			}
			select {
			case changes <- c:
			case <-gctx.Done():
				return gctx.Err()
			}
		}
	})
	g.Go(func() error { return f.ask(gctx, heads) })
	g.Go(func() error { return f.merge(gctx, b, w, changes, heads) })
	return g.Wait()
}

// ask asks the store where it is, now and then.
func (f *follower) ask(ctx context.Context, heads chan<- head) error {
	t := time.NewTicker(f.o.ConfirmEvery)
	defer t.Stop()
	for {
		select {
		case <-t.C:
		case <-ctx.Done():
			return ctx.Err()
		}
		h := head{sent: f.s.clock()}
		read, cancel := context.WithTimeout(ctx, f.o.RPCTimeout)
		got, err := f.s.b.Head(read)
		cancel()
		h.rev, h.err = got.Revision, err
		select {
		case heads <- h:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func (f *follower) merge(ctx context.Context, b *builder, w Watcher, changes <-chan Changes, heads <-chan head) error {
	pos := b.last.Revision
	var want head // not yet reached by the stream
	late := time.NewTimer(time.Hour)
	defer late.Stop()
	late.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-late.C:
			return fmt.Errorf("follow changes: the stream is at revision %d, the store at %d: %w", pos, want.rev, ErrStale)
		case c := <-changes:
			pos = max(pos, c.Revision)
			if len(c.List) > 0 {
				f.show(b.apply(c))
			}
		case h := <-heads:
			if h.err != nil {
				f.cur.Err = h.err
				f.publish()
				continue
			}
			if want.sent == 0 && h.rev > pos {
				if err := w.Poke(ctx); err != nil {
					return fmt.Errorf("follow changes: %w", err)
				}
				late.Reset(f.o.RPCTimeout)
				want = h
			} else if h.rev <= pos {
				f.confirm(b, h.sent)
			}
		}
		if want.sent != 0 && want.rev <= pos {
			late.Stop()
			f.confirm(b, want.sent)
			want = head{}
		}
	}
}

// confirm notes that there was nothing newer than the view at that time.
func (f *follower) confirm(b *builder, sent int64) {
	v := *b.last
	v.Seen = max(v.Seen, sent)
	f.show(&v)
	b.last = &v
}

func (f *follower) show(v *View) {
	f.cur = Update{View: v}
	f.publish()
	f.s.mu.Lock()
	x := f.s.session
	f.s.mu.Unlock()
	if x != nil {
		x.observe(v)
	}
}
