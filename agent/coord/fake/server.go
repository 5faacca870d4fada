package fake

import (
	"cmp"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/hawser-ha/hawser/agent/coord"
)

// Options of a Server.
type Options struct {
	Seed  uint64
	Clock func() int64 // ns; nil: package time, and leases run out by themselves
	// RPCTimeout is how long a call that nobody answers takes; 0: two seconds. With Clock it takes no time.
	RPCTimeout time.Duration
}

// Server is the store. Safe for concurrent use.
type Server struct {
	clock   func() int64
	timed   bool
	timeout time.Duration

	mu      sync.Mutex // guards what follows
	rng     *rand.Rand
	rev     uint64
	term    uint64
	kvs     map[string]coord.KV
	log     []coord.Change // in order of Mod
	floor   uint64         // changes up to here are compacted
	leases  map[coord.LeaseID]*lease
	next    coord.LeaseID
	late    []func() // transactions whose answer was lost, and that are still under way
	waiting map[*watcher]bool
	timers  []*time.Timer
}

type lease struct {
	ttl time.Duration
	end int64
}

// New makes an empty store. Close stops its timers.
func New(o Options) *Server {
	start := time.Now()
	s := &Server{clock: o.Clock, timeout: cmp.Or(o.RPCTimeout, 2*time.Second), rng: rand.New(rand.NewPCG(o.Seed, 0)), rev: 1, term: 2, kvs: map[string]coord.KV{}, leases: map[coord.LeaseID]*lease{},
		waiting: map[*watcher]bool{}}
	if s.clock == nil {
		s.timed = true
		s.clock = func() int64 { return int64(time.Since(start)) }
	}
	return s
}

// Close stops what would happen by itself.
func (s *Server) Close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, t := range s.timers {
		t.Stop()
	}
}

// Tick makes leases run out.
func (s *Server) Tick() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.expire()
}

// Settle does the transactions that are still under way.
func (s *Server) Settle() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.settle(1)
}

// Elect has the store elect a leader: a higher raft term.
func (s *Server) Elect() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.term++
}

// Compact forgets the changes so far, and ends the streams that have not read them.
func (s *Server) Compact() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.floor, s.log = s.rev, nil
	s.wake()
}

// Dump lists what is stored, by key.
func (s *Server) Dump() []coord.KV {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.expire()
	return s.scan("")
}

// Log lists every change since the last Compact.
func (s *Server) Log() []coord.Change {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.log)
}

func (s *Server) header() coord.Header {
	return coord.Header{Cluster: 1, Revision: s.rev, RaftTerm: s.term}
}

func (s *Server) scan(prefix string) []coord.KV {
	var list []coord.KV
	for _, key := range slices.Sorted(maps.Keys(s.kvs)) {
		if strings.HasPrefix(key, prefix) {
			list = append(list, s.kvs[key])
		}
	}
	return list
}

// expire ends the leases whose time is over.
func (s *Server) expire() {
	now := s.clock()
	for _, id := range slices.Sorted(maps.Keys(s.leases)) {
		if s.leases[id].end <= now {
			s.revoke(id)
		}
	}
}

func (s *Server) revoke(id coord.LeaseID) {
	delete(s.leases, id)
	var gone []string
	for key, kv := range s.kvs {
		if kv.Lease == id {
			gone = append(gone, key)
		}
	}
	if len(gone) == 0 {
		return
	}
	slices.Sort(gone)
	s.rev++
	for _, key := range gone {
		s.remove(key)
	}
	s.wake()
}

func (s *Server) remove(key string) {
	delete(s.kvs, key)
	s.log = append(s.log, coord.Change{KV: coord.KV{Key: key, Mod: s.rev}, Deleted: true})
}

// later makes leases run out though nobody asks.
func (s *Server) later(d time.Duration) {
	if s.timed {
		s.timers = append(s.timers, time.AfterFunc(d+time.Millisecond, s.Tick))
	}
}

// settle does each transaction under way with that probability.
func (s *Server) settle(p float64) {
	var still []func()
	for _, f := range s.late {
		if s.rng.Float64() < p {
			f()
		} else {
			still = append(still, f)
		}
	}
	s.late = still
}

// txn does a transaction.
func (s *Server) txn(t coord.Txn) (coord.Result, error) {
	s.expire()
	for _, c := range t.If {
		kv := s.kvs[c.Key]
		have := kv.Mod
		switch c.What {
		case coord.Create:
			have = kv.Create
		case coord.Lease:
			have = uint64(kv.Lease)
		}
		if have != c.Value {
			r := coord.Result{Header: s.header()}
			for _, key := range t.Read {
				if kv, ok := s.kvs[key]; ok {
					r.KVs = append(r.KVs, kv)
				}
			}
			return r, nil
		}
	}
	seen := map[string]bool{}
	for _, op := range t.Then {
		if seen[op.Key] {
			return coord.Result{}, fmt.Errorf("%w: key %s twice in one transaction", coord.ErrRefused, op.Key)
		}
		seen[op.Key] = true
		if !op.Delete && op.Lease != 0 && s.leases[op.Lease] == nil {
			return coord.Result{}, fmt.Errorf("%w: lease %x", coord.ErrLeaseGone, int64(op.Lease))
		}
	}
	rev, changed := s.rev+1, false
	for _, op := range t.Then {
		old, there := s.kvs[op.Key]
		if op.Delete && !there {
			continue
		}
		if !changed {
			s.rev, changed = rev, true
		}
		if op.Delete {
			s.remove(op.Key)
			continue
		}
		kv := coord.KV{Key: op.Key, Value: slices.Clone(op.Value), Create: rev, Mod: rev, Lease: op.Lease}
		if there {
			kv.Create = old.Create
		}
		s.kvs[op.Key] = kv
		s.log = append(s.log, coord.Change{KV: kv})
	}
	if changed {
		s.wake()
	}
	return coord.Result{Header: s.header(), Done: true}, nil
}

func (s *Server) wake() {
	for w := range s.waiting {
		w.wake()
	}
}
