package drbdtools

import (
	"context"
	"errors"
	"strconv"
	"time"

	"github.com/hawser-ha/hawser/agent/compat"
	"github.com/hawser-ha/hawser/replicator/control"
)

// retryEvery is how long after a lost connection to the agent it is tried again.
const retryEvery = time.Second

// follow calls look with the state of a resource (nil: it is down), and again whenever something happened to it, until
// look says that it is enough, or ctx ends.
func (t *tool) follow(ctx context.Context, name string, look func(r *compat.Resource) bool) error {
	enough := errors.New("enough")
	ask := func() error {
		r, err := t.up(ctx, name)
		if err != nil {
			return err
		}
		if look(r) {
			return enough
		}
		return nil
	}
	for {
		err := t.sub(name).Events(ctx, 0, func(control.Event) error { return ask() })
		if errors.Is(err, enough) {
			return nil
		}
		if err := ask(); errors.Is(err, enough) { // there may be no stream: it is down, or the agent is
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(retryEvery):
		}
	}
}

// timeout is how long a wait may last; 0 is for ever.
func timeout(a arguments, r *compat.Resource) (time.Duration, error) {
	name := "wfc-timeout"
	if r != nil && len(r.Devices) > 0 && r.Devices[0].Disk == "Outdated" && a.has("outdated-wfc-timeout") {
		name = "outdated-wfc-timeout"
	} else if !a.has(name) {
		name = "degr-wfc-timeout"
	}
	text, ok := a.options[name]
	if !ok {
		return 0, nil
	}
	n, err := strconv.ParseUint(text, 10, 31)
	return time.Duration(n) * time.Second, err
}

func (t *tool) wait(ctx context.Context, at place, a arguments, enough func(r *compat.Resource) bool) int {
	r, code := t.needUp(ctx, at, "wait")
	if r == nil {
		return code
	}
	limit, err := timeout(a, r)
	if err != nil {
		t.errorf("%s: a timeout is a number of seconds: %v\n", t.name, err)
		return compat.ExitTrouble
	}
	outer := ctx
	if limit > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, limit)
		defer cancel()
	}
	gone := false
	err = t.follow(ctx, at.res, func(r *compat.Resource) bool {
		gone = r == nil
		return gone || enough(r)
	})
	switch {
	case err == nil && gone:
		t.errorf("%s: it went down meanwhile\n", at.text)
		return compat.ExitError
	case err == nil:
		return 0
	case outer.Err() != nil:
		return compat.ExitTrouble
	}
	return compat.ExitTimeout
}

func (t *tool) waitConnect(ctx context.Context, at place, a arguments) int {
	return t.wait(ctx, at, a, func(r *compat.Resource) bool {
		for i := range r.Connections {
			c := &r.Connections[i]
			if at.peer >= 0 && c.PeerNodeID != at.peer || c.State == "Connected" || c.State == "StandAlone" && !a.has("wait-after-sb") {
				continue
			}
			return false
		}
		return true
	})
}

func (t *tool) waitSync(ctx context.Context, at place, a arguments) int {
	return t.wait(ctx, at, a, func(r *compat.Resource) bool {
		for i := range r.Connections {
			c := &r.Connections[i]
			if at.peer >= 0 && c.PeerNodeID != at.peer || c.State == "StandAlone" && !a.has("wait-after-sb") {
				continue
			}
			if c.State != "Connected" {
				return false
			}
			for j := range c.PeerDevices {
				p := &c.PeerDevices[j]
				if (at.volume == control.All || p.Volume == at.volume) && p.Replication != "Established" && p.Replication != "VerifyS" && p.Replication != "VerifyT" {
					return false
				}
			}
		}
		return true
	})
}
