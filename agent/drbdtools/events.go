package drbdtools

import (
	"context"
	"errors"
	"io"
	"time"

	"github.com/hawser-ha/hawser/agent/compat"
	"github.com/hawser-ha/hawser/replicator/control"
)

// events2 prints what there is and then what changes.
func (t *tool) events2(ctx context.Context, at place, a arguments) int {
	e := compat.NewEvents(t.Stdout, compat.EventOptions{Timestamps: a.has("timestamps"), Statistics: a.has("statistics"), Full: a.has("full"),
		Diff: a.has("diff"), V84: t.v84})
	rs, err := t.all(ctx, at.res)
	if err != nil {
		return t.refuse("events2", err)
	}
	if err := e.Start(t.Now(), rs); err != nil {
		return t.wrote(err)
	}
	now, poll := a.has("now"), a.has("poll")
	if now && !poll {
		return 0
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	happened := make(chan control.Event)
	if !now {
		go func() { // ends with ctx
			for t.stream(ctx, at.res, happened) {
			}
		}()
	}
	asked := make(chan bool) // false: no more
	if poll {
		go t.readPolls(ctx, asked)
	}
	for {
		statistics := false
		select {
		case <-ctx.Done():
			return 0
		case ev := <-happened:
			if ev.Kind == control.EventHandler {
				if err := e.Helper(t.Now(), ev.Resource, ev.Peer, ev.Volume, ev.Name, nil); err != nil {
					return t.wrote(err)
				}
			}
		case more := <-asked:
			if !more {
				return 0
			}
			statistics = true
		}
		rs, err := t.all(ctx, at.res)
		if err != nil {
			if ctx.Err() != nil {
				return 0
			}
			t.errorf("events2: %v\n", err)
			continue
		}
		if err := e.Update(t.Now(), rs, statistics); err != nil {
			return t.wrote(err)
		}
		if statistics && now {
			if err := e.Bare("exists -"); err != nil {
				return t.wrote(err)
			}
		}
	}
}

// stream hands on the agent's events until the stream breaks, and waits a moment. false: ctx has ended.
func (t *tool) stream(ctx context.Context, name string, to chan<- control.Event) bool {
	c := t.c
	if name != "" {
		c = t.sub(name)
	}
	send := func(e control.Event) error {
		select {
		case to <- e:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	err := c.Events(ctx, 0, send)
	if !errors.Is(err, control.NotFound) && !errors.Is(err, control.NotRunning) {
		_ = send(control.Event{Kind: control.EventLost}) // what is up may have changed; it fails only with ctx
	}
	select {
	case <-ctx.Done():
		return false
	case <-time.After(retryEvery):
		return true
	}
}

// readPolls reads the letters n that ask for news.
func (t *tool) readPolls(ctx context.Context, asked chan<- bool) {
	b := make([]byte, 1)
	for {
		n, err := t.Stdin.Read(b)
		if n == 0 && err == nil || n == 1 && b[0] == '\n' {
			continue
		}
		more := n == 1 && b[0] == 'n' && (err == nil || errors.Is(err, io.EOF))
		select {
		case asked <- more:
		case <-ctx.Done():
			return
		}
		if !more {
			return
		}
	}
}
