package coord

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"time"
)

// SessionOptions of a Session. TTL > RenewEvery + 2*RPCTimeout + Margin: two attempts must fit before anybody may doubt us.
type SessionOptions struct {
	File       string // remembers the lease; "": nothing does
	TTL        time.Duration
	RenewEvery time.Duration // from send to send
	RPCTimeout time.Duration // of one renewal
	Margin     time.Duration // what clocks may drift apart in a TTL
	Info       NodeInfo
}

// SessionState is what there is to know of a session.
type SessionState struct {
	Lease   LeaseID       `json:"lease"`
	TTL     time.Duration `json:"ttl"`
	Until   int64         `json:"until"`   // end of the lease less the margin, CLOCK_BOOTTIME in ns; 0: none
	Renewed int64         `json:"renewed"` // when the last renewal that was answered was sent, the same clock
	Resumed bool          `json:"resumed"` // the lease is that of the agent before this one
	Err     error         `json:"-"`       // of the last attempt; nil: it went well
}

// Session keeps the lease of this node. Everything in the store that has it goes when it ends.
type Session struct {
	s       *Store
	o       SessionOptions
	log     *slog.Logger
	look    chan struct{} // capacity 1: look whether the key of the node is still ours
	changed chan struct{} // capacity 1: the state changed

	mu         sync.Mutex // guards what follows
	st         SessionState
	registered uint64 // mod revision of the node's key
}

// Hold makes the session of this node; Run keeps it. A Store has one.
func (s *Store) Hold(o SessionOptions) *Session {
	o.Info.Name = s.node
	x := &Session{s: s, o: o, log: s.log, look: make(chan struct{}, 1), changed: make(chan struct{}, 1)}
	x.st.Err = errors.New("not yet asked for")
	s.mu.Lock()
	s.session = x
	s.mu.Unlock()
	if f, err := x.read(); err == nil {
		s.b.Expect(f.Seen)
	}
	return x
}

// Lease is the lease that stands, 0 none.
func (x *Session) Lease() LeaseID {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.registered == 0 {
		return 0
	}
	return x.st.Lease
}

// State is the session now.
func (x *Session) State() SessionState {
	x.mu.Lock()
	defer x.mu.Unlock()
	st := x.st
	if x.registered == 0 {
		st.Lease, st.Until = 0, 0
	}
	return st
}

// Changed gets a value after each change of the state: for one reader.
func (x *Session) Changed() <-chan struct{} { return x.changed }

func kick(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// Run keeps the lease until ctx ends, and leaves it as it is: the next agent resumes it.
func (x *Session) Run(ctx context.Context) {
	for {
		sent := x.s.clock()
		step, cancel := context.WithTimeout(ctx, x.o.RPCTimeout)
		var err error
		if x.Lease() == 0 {
			err = x.establish(step)
		} else {
			err = x.renew(step)
		}
		cancel()
		if ctx.Err() != nil {
			return
		}
		x.outcome(err)
		wait := x.o.RenewEvery - time.Duration(x.s.clock()-sent)
		if x.Lease() == 0 {
			wait = max(x.o.RenewEvery/4, retryMin)
		}
		t := time.NewTimer(max(wait, 0))
		select {
		case <-ctx.Done():
			t.Stop()
			return
		case <-x.look:
			t.Stop()
			step, cancel := context.WithTimeout(ctx, x.o.RPCTimeout)
			if err := x.verify(step); err != nil && ctx.Err() == nil {
				x.outcome(err)
			}
			cancel()
		case <-t.C:
		}
	}
}

// outcome notes how an attempt went.
func (x *Session) outcome(err error) {
	x.mu.Lock()
	was := x.st.Err
	x.st.Err = err
	x.mu.Unlock()
	switch {
	case err != nil && (was == nil || was.Error() != err.Error()):
		x.log.Warn("lease not renewed", "err", err)
	case err == nil && was != nil:
		x.log.Info("lease held", "lease", fmt.Sprintf("%x", int64(x.Lease())))
	}
	kick(x.changed)
}

// establish resumes the lease of the agent before this one, or makes one, and registers the node with it.
func (x *Session) establish(ctx context.Context) error {
	x.mu.Lock()
	id, ttl := x.st.Lease, x.o.TTL // a lease of ours that is not registered yet is used again
	x.mu.Unlock()
	resumed := false
	if f, err := x.read(); id == 0 && err == nil {
		id, resumed = f.Lease, true
	} else if id == 0 && !errors.Is(err, fs.ErrNotExist) {
		x.log.Warn("lease of the last agent is not known", "err", err)
	}
	sent := x.s.clock()
	if id != 0 {
		left, err := x.s.b.KeepAlive(ctx, id)
		switch {
		case errors.Is(err, ErrLeaseGone):
			x.forget()
			id, resumed = 0, false
		case err != nil:
			return fmt.Errorf("resume lease %x: %w", int64(id), err)
		default:
			ttl = min(ttl, left)
		}
	}
	if id == 0 {
		sent = x.s.clock()
		var granted time.Duration
		var err error
		if id, granted, err = x.s.b.Grant(ctx, x.o.TTL); err != nil { // one that was made without our knowing holds nothing
			return fmt.Errorf("make a lease: %w", err)
		}
		ttl = min(ttl, granted)
	}
	x.mu.Lock()
	x.st.Lease = id
	x.mu.Unlock()
	rev, err := x.register(ctx, id)
	if err != nil {
		return err
	}
	if err := x.write(id); err != nil {
		x.log.Warn("lease is not remembered: an agent that starts now makes a new one", "err", err)
	}
	x.mu.Lock()
	x.registered = rev
	x.st = SessionState{Lease: id, TTL: ttl, Until: sent + int64(ttl-x.o.Margin), Renewed: sent, Resumed: resumed}
	x.mu.Unlock()
	return nil
}

// forget drops the lease, in memory and in the file.
func (x *Session) forget() {
	x.mu.Lock()
	x.st.Lease, x.st.Until, x.registered = 0, 0, 0
	x.mu.Unlock()
	if x.o.File != "" {
		if err := os.Remove(x.o.File); err != nil && !errors.Is(err, fs.ErrNotExist) {
			x.log.Warn("file of the lease stays", "err", err)
		}
	}
}

func (x *Session) key() string { return x.s.prefix + keyNodes + x.s.node }

// own reads the key of this node.
func (x *Session) own(ctx context.Context) (kv KV, there bool, err error) {
	res, err := x.s.b.Txn(ctx, Txn{If: []Compare{{x.key(), Mod, ^uint64(0) >> 1}}, Read: []string{x.key()}}) // never true: only a read
	if err != nil {
		return KV{}, false, fmt.Errorf("read %s: %w", x.key(), err)
	}
	kv, there = res.find(x.key())
	return kv, there, nil
}

// register puts the key of this node, with that lease.
func (x *Session) register(ctx context.Context, id LeaseID) (rev uint64, err error) {
	kv, there, err := x.own(ctx)
	if err != nil {
		return 0, err
	}
	info := x.o.Info
	info.Op, info.Since = x.s.op(), time.Now()
	if there {
		var have NodeInfo
		if decode(&kv, &have) == nil {
			switch {
			case have.Machine != info.Machine && kv.Lease != id:
				return 0, fmt.Errorf("%w: %s is machine %s, this one is %s; give each its own, or wait until that one's lease has run out",
					ErrNameTaken, x.s.node, have.Machine, info.Machine)
			case kv.Lease == id && have.Boot == info.Boot:
				info.Since = have.Since
			}
		}
	}
	return x.s.change(ctx, "register "+x.s.node, Txn{If: []Compare{{x.key(), Mod, kv.Mod}}, Then: []Op{put(x.key(), info, id)}}, x.key(), info.Op)
}

func (x *Session) renew(ctx context.Context) error {
	id, sent := x.Lease(), x.s.clock()
	ttl, err := x.s.b.KeepAlive(ctx, id)
	if errors.Is(err, ErrLeaseGone) { // said by one that may be sick: until it is known, we have none
		x.mu.Lock()
		x.st.Until = 0
		x.mu.Unlock()
		kick(x.changed)
		if verr := x.verify(ctx); verr != nil {
			return errors.Join(err, verr)
		}
		return err
	}
	if err != nil {
		return fmt.Errorf("renew the lease: %w", err)
	}
	x.mu.Lock()
	ttl = min(ttl, x.o.TTL)
	x.st.TTL, x.st.Renewed = ttl, sent
	x.st.Until = sent + int64(ttl-x.o.Margin)
	x.mu.Unlock()
	if err := x.write(id); err != nil {
		x.log.Debug("lease is not remembered", "err", err)
	}
	return nil
}

// verify reads whether the node's key is still there with our lease; if not, the session is over.
func (x *Session) verify(ctx context.Context) error {
	id := x.Lease()
	if id == 0 {
		return nil
	}
	kv, there, err := x.own(ctx)
	if err != nil {
		return err
	}
	if there && kv.Lease == id {
		return nil
	}
	x.forget()
	kick(x.changed)
	if there {
		return fmt.Errorf("%w: another agent has registered as %s", ErrNoSession, x.s.node)
	}
	return fmt.Errorf("%w: the lease has run out or was taken away", ErrNoSession)
}

// observe is called with each view: the node's key may have gone.
func (x *Session) observe(v *View) {
	x.mu.Lock()
	id, rev := x.st.Lease, x.registered
	x.mu.Unlock()
	if rev == 0 || v.Revision < rev {
		return
	}
	if n := v.Nodes[x.s.node]; n == nil || n.Lease != id {
		kick(x.look)
	}
}

// End gives the lease back, and with it all that this node holds: only when nothing here is primary any more.
func (x *Session) End(ctx context.Context) error {
	x.mu.Lock()
	id := x.st.Lease
	x.mu.Unlock()
	if id == 0 {
		return nil
	}
	if err := x.s.b.Revoke(ctx, id); err != nil {
		return fmt.Errorf("end the session: %w", err)
	}
	x.forget()
	return nil
}

// sessionFile is what the next agent needs.
type sessionFile struct {
	Node  string  `json:"node"`
	Boot  string  `json:"boot"`
	Lease LeaseID `json:"lease"`
	Seen  Header  `json:"seen"`
}

func (x *Session) read() (sessionFile, error) {
	var f sessionFile
	if x.o.File == "" {
		return f, fs.ErrNotExist
	}
	data, err := os.ReadFile(x.o.File)
	if err != nil {
		return f, err
	}
	if err := json.Unmarshal(data, &f); err != nil {
		return f, fmt.Errorf("%s: %w", x.o.File, err)
	}
	if f.Node != x.s.node || f.Boot != x.o.Info.Boot {
		return f, fmt.Errorf("%s is of another node or boot: %w", x.o.File, fs.ErrNotExist)
	}
	return f, nil
}

func (x *Session) write(id LeaseID) error {
	if x.o.File == "" {
		return nil
	}
	data, err := json.Marshal(sessionFile{x.s.node, x.o.Info.Boot, id, x.s.b.Seen()})
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(x.o.File), 0o755); err != nil {
		return err
	}
	if err := os.WriteFile(x.o.File+".new", data, 0o600); err != nil {
		return err
	}
	return os.Rename(x.o.File+".new", x.o.File)
}
