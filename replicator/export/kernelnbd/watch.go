package kernelnbd

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/mdlayher/genetlink"
)

// watcher listens for LINK_DEAD, which the kernel sends within milliseconds after a socket died. Only then it
// takes a new one.
type watcher struct {
	conn *genetlink.Conn
	once sync.Once
}

// newWatcher joins the group before anything happens, so that no message is missed.
func newWatcher() (*watcher, error) {
	c, f, err := dial()
	if err != nil {
		return nil, err
	}
	for _, g := range f.Groups {
		if g.Name == groupName {
			if err := c.JoinGroup(g.ID); err != nil {
				return nil, errors.Join(err, c.Close())
			}
			return &watcher{conn: c}, nil
		}
	}
	return nil, errors.Join(errors.New("the nbd family has no multicast group"), c.Close())
}

// run wakes d's relink for every LINK_DEAD of its device, until close.
func (w *watcher) run(d *Device) {
	stop := context.AfterFunc(d.ctx, w.close)
	defer stop()
	for {
		msgs, _, err := w.conn.Receive()
		if err != nil {
			if d.ctx.Err() == nil { // the ticker of relink does without us
				d.log.Warn("nbd events not received", "err", err)
			}
			return
		}
		for _, m := range msgs {
			if m.Header.Command != cmdLinkDead {
				continue
			}
			if n, err := indexOf(m.Data); err != nil || n != d.index {
				continue
			}
			d.log.Debug("kernel reports a dead link", "device", d.Path())
			select {
			case d.wake <- struct{}{}:
			default:
			}
		}
	}
}

// close ends run. The deadline comes first: a descriptor must not be closed, and its number given to the next
// socket, while a goroutine is still receiving on it.
func (w *watcher) close() {
	w.once.Do(func() {
		_ = w.conn.SetReadDeadline(time.Unix(1, 0))
		_ = w.conn.Close()
	})
}
