package coord

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"
)

const (
	retryMin   = 20 * time.Millisecond
	retryMax   = 500 * time.Millisecond
	historyMax = 50 // entries kept of a resource
)

// Prefix is where the keys of a cluster are.
func Prefix(cluster string) string { return "/hawser/" + cluster + "/" }

// Options of a Store.
type Options struct {
	Backend Backend
	Prefix  string
	Node    string // this node; "": only reads and what a person does
	Log     *slog.Logger
	Clock   func() int64  // CLOCK_BOOTTIME in ns; nil: BootTime
	Op      func() string // a mark that nobody else makes; nil: a random one
}

// Store is the cluster as its agents know it. Safe for concurrent use.
type Store struct {
	b      Backend
	prefix string
	node   string
	log    *slog.Logger
	clock  func() int64
	op     func() string

	mu      sync.Mutex // guards what follows
	session *Session
	status  map[string]uint64 // mod revision of what this node said of a resource
}

// New makes a Store. It starts nothing.
func New(o Options) *Store {
	s := &Store{b: o.Backend, prefix: o.Prefix, node: o.Node, log: o.Log, clock: o.Clock, op: o.Op, status: map[string]uint64{}}
	if s.clock == nil {
		s.clock = BootTime
	}
	if s.op == nil {
		s.op = func() string {
			var b [12]byte
			_, _ = rand.Read(b[:]) // never fails since Go 1.24
			return hex.EncodeToString(b[:])
		}
	}
	return s
}

// Snapshot reads the cluster, linearizably.
func (s *Store) Snapshot(ctx context.Context) (*View, error) {
	b, err := s.snapshot(ctx)
	if err != nil {
		return nil, err
	}
	return b.last, nil
}

func (s *Store) snapshot(ctx context.Context) (*builder, error) {
	sent := s.clock()
	p, err := s.b.Range(ctx, s.prefix)
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", s.prefix, err)
	}
	b := newBuilder(s.prefix, p)
	b.last.Seen = sent
	return b, nil
}

// lease is that of this node's session, and the condition that it stands.
func (s *Store) lease() (LeaseID, Compare, error) {
	s.mu.Lock()
	x := s.session
	s.mu.Unlock()
	if x == nil {
		return 0, Compare{}, ErrNoSession
	}
	id := x.Lease()
	if id == 0 {
		return 0, Compare{}, fmt.Errorf("%w: %w", ErrNoSession, x.State().Err)
	}
	return id, Compare{s.prefix + keyNodes + s.node, Lease, uint64(id)}, nil
}

// send sends a transaction until its outcome is known or ctx ends. It may be sent several times: each one's comparisons must fail after
// one went through, and the caller sees by the mark in a key whether it was ours.
func (s *Store) send(ctx context.Context, t Txn) (Result, error) {
	if len(t.Then) > TxnOpsMax {
		return Result{}, fmt.Errorf("coord: a transaction of %d operations, %d are the most", len(t.Then), TxnOpsMax)
	}
	uncertain := false
	for pause := retryMin; ; pause = min(2*pause, retryMax) {
		res, err := s.b.Txn(ctx, t)
		if err == nil {
			return res, nil
		}
		uncertain = uncertain || errors.Is(err, ErrUncertain)
		if !uncertain && !errors.Is(err, ErrUnavailable) { // refused
			return Result{}, err
		}
		select {
		case <-ctx.Done():
			if uncertain && !errors.Is(err, ErrUncertain) {
				err = fmt.Errorf("%w (the last attempt: %w)", ErrUncertain, err)
			}
			return Result{}, err
		case <-time.After(pause):
		}
	}
}

// written finds the key among what a transaction read, if it has this mark: then the transaction went through before.
func (r *Result) written(key, op string) (KV, bool) {
	kv, ok := r.find(key)
	if !ok {
		return kv, false
	}
	var v struct {
		Op string `json:"op"`
	}
	return kv, json.Unmarshal(kv.Value, &v) == nil && v.Op == op
}

func (r *Result) find(key string) (KV, bool) {
	for _, kv := range r.KVs {
		if kv.Key == key {
			return kv, true
		}
	}
	return KV{}, false
}

// conflict says which condition did not hold.
func (t *Txn) conflict(res *Result) error {
	for _, c := range t.If {
		kv, there := res.find(c.Key)
		have := map[What]uint64{Mod: kv.Mod, Create: kv.Create, Lease: uint64(kv.Lease)}[c.What]
		switch {
		case have == c.Value && (there || c.Value == 0):
		case c.What == Lease:
			return fmt.Errorf("%w: key %s has lease %x, not %x", ErrNoSession, c.Key, have, c.Value)
		case !there:
			return fmt.Errorf("%w: key %s is gone (revision %d was expected)", ErrConflict, c.Key, c.Value)
		default:
			return fmt.Errorf("%w: key %s has revision %d, %d was expected", ErrConflict, c.Key, have, c.Value)
		}
	}
	return ErrConflict
}

// change sends a transaction that writes key with the mark op. It gives the revision at which that was done.
func (s *Store) change(ctx context.Context, what string, t Txn, key, op string) (uint64, error) {
	for _, c := range t.If {
		t.Read = append(t.Read, c.Key)
	}
	t.Read = append(t.Read, key)
	res, err := s.send(ctx, t)
	if err != nil {
		if errors.Is(err, ErrLeaseGone) {
			err = fmt.Errorf("%w: %w", ErrNoSession, err)
		}
		return 0, fmt.Errorf("%s: %w", what, err)
	}
	if res.Done {
		return res.Revision, nil
	}
	if kv, ours := res.written(key, op); ours {
		return kv.Mod, nil
	}
	return 0, fmt.Errorf("%s: %w", what, t.conflict(&res))
}

func put(key string, value any, lease LeaseID) Op {
	data, err := json.Marshal(value)
	if err != nil {
		panic(fmt.Sprintf("coord: %s: %v", key, err)) // our own types
	}
	return Op{Key: key, Value: data, Lease: lease}
}
