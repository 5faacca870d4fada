package faulty

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/hawser-ha/hawser/replicator/disk"
)

// ErrCrashed is what a store says after Crash.
var ErrCrashed = errors.New("disk has crashed")

// Fault says which requests fail and how. Zero fields do not restrict.
type Fault struct {
	Ops         []disk.Op // none: every operation
	Off, Len    int64     // bytes; a request that overlaps matches. Len 0: everywhere, and flushes
	Skip        int       // so many matching requests pass first
	Times       int       // strike so often, then vanish; 0: until removed
	Probability float64   // of striking, for each match beyond Skip; 0 is 1

	Err   error         // fail with this; nothing reaches the disk
	Stall bool          // wait for Release, then go on (with Err, if set)
	Delay time.Duration // wait, then go on
}

// Options of New.
type Options struct {
	Seed     uint64
	Volatile bool // model a volatile write cache
}

// CrashMode says what a crash leaves of unflushed writes.
type CrashMode int

// The crash modes.
const (
	DropAll CrashMode = iota // nothing
	Tear                     // of each block any state since the last flush, by the seed
	KeepAll                  // everything: only the process died
)

// Store is a faulty disk.
type Store struct {
	disk.Store
	volatile bool

	mu      sync.Mutex // guards the rest; with a volatile cache also held over I/O
	rng     *rand.Rand
	faults  []*fault
	held    []*held
	before  map[int64][][]byte // block -> contents since the last flush, oldest first
	lost    error              // a flush failed
	crashed bool
	closed  bool
}

type fault struct {
	Fault
	seen, struck int
}

// held is a request that waits.
type held struct {
	r     *disk.Request
	err   error
	stall bool
	end   func(*disk.Request)
	timer *time.Timer
}

// New wraps base. Closing the wrapper closes base; after a crash base may be wrapped anew.
func New(base disk.Store, o Options) *Store {
	return &Store{Store: base, volatile: o.Volatile, rng: rand.New(rand.NewPCG(o.Seed, 0)), before: map[int64][][]byte{}}
}

// Inject adds a fault; several may match, the first one injected strikes. remove takes it away.
func (s *Store) Inject(f Fault) (remove func()) {
	p := &fault{Fault: f}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.faults = append(s.faults, p)
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.faults = slices.DeleteFunc(s.faults, func(q *fault) bool { return q == p })
	}
}

// Clear removes all faults; stalled requests stay stalled.
func (s *Store) Clear() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.faults = nil
}

// Stalled is the number of requests that wait for Release.
func (s *Store) Stalled() (n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, h := range s.held {
		if h.stall {
			n++
		}
	}
	return n
}

// Release lets all stalled requests go on, in the order of their arrival.
func (s *Store) Release() {
	s.mu.Lock()
	var freed []*held
	s.held = slices.DeleteFunc(s.held, func(h *held) bool {
		if h.stall {
			freed = append(freed, h)
		}
		return h.stall
	})
	s.mu.Unlock()
	for _, h := range freed {
		s.goOn(h)
	}
}

// strike finds the fault for r. mu is held.
func (s *Store) strike(r *disk.Request) *fault {
	for i, f := range s.faults {
		if len(f.Ops) > 0 && !slices.Contains(f.Ops, r.Op) {
			continue
		}
		if f.Len > 0 && (r.Op == disk.Flush || r.Off >= f.Off+f.Len || f.Off >= r.Off+length(r)) {
			continue
		}
		if f.seen++; f.seen <= f.Skip || (f.Probability > 0 && s.rng.Float64() >= f.Probability) {
			continue
		}
		if f.struck++; f.Times > 0 && f.struck >= f.Times {
			s.faults = slices.Delete(s.faults, i, i+1)
		}
		return f
	}
	return nil
}

func length(r *disk.Request) int64 {
	if r.Op == disk.Read || r.Op == disk.Write {
		return int64(len(r.Buf))
	}
	return r.Len
}

// Submit starts the requests that no fault holds back.
func (s *Store) Submit(batch []*disk.Request) {
	through := make([]*disk.Request, 0, len(batch))
	for _, r := range batch {
		end := func(r *disk.Request) { r.Done(r) }
		switch wait, err := s.admit(r, end); {
		case wait:
		case err != nil:
			r.Err = err
			r.Done(r)
		case s.volatile:
			s.run(r)
			r.Done(r)
		default:
			through = append(through, r)
		}
	}
	if len(through) > 0 {
		s.Store.Submit(through)
	}
}

// Do runs r; a stalled request blocks the caller.
func (s *Store) Do(r *disk.Request) {
	done := make(chan struct{})
	switch wait, err := s.admit(r, func(*disk.Request) { close(done) }); {
	case wait:
		<-done
	case err != nil:
		r.Err = err
	default:
		s.run(r)
	}
}

// admit decides on r: an error to fail with, or that it waits and end will be called.
func (s *Store) admit(r *disk.Request, end func(*disk.Request)) (wait bool, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.refuse(r); err != nil {
		return false, err
	}
	f := s.strike(r)
	switch {
	case f == nil:
		return false, nil
	case f.Stall:
		s.held = append(s.held, &held{r: r, err: f.Err, stall: true, end: end})
		return true, nil
	case f.Delay > 0:
		h := &held{r: r, err: f.Err, end: end}
		s.held = append(s.held, h)
		h.timer = time.AfterFunc(f.Delay, func() {
			s.mu.Lock()
			n := len(s.held)
			s.held = slices.DeleteFunc(s.held, func(q *held) bool { return q == h })
			mine := len(s.held) < n
			s.mu.Unlock()
			if mine {
				s.goOn(h)
			}
		})
		return true, nil
	}
	return false, s.fail(r, f.Err)
}

// refuse is why r cannot be served at all. mu is held.
func (s *Store) refuse(r *disk.Request) error {
	switch {
	case s.crashed:
		return ErrCrashed
	case s.closed:
		return disk.ErrClosed
	case s.lost != nil && (r.Op == disk.Flush || (r.FUA && r.Op != disk.Read)):
		return s.lost
	}
	return nil
}

// fail is the error that r gets for an injected one: as with a real disk, a failed flush is for
// good. mu is held.
func (s *Store) fail(r *disk.Request, err error) error {
	if err == nil || r.Op != disk.Flush || errors.Is(err, disk.ErrTimeout) {
		return err
	}
	s.lost = fmt.Errorf("%w: %w", disk.ErrFlushLost, err)
	return s.lost
}

// goOn ends a request that waited. It is no longer in held.
func (s *Store) goOn(h *held) {
	s.mu.Lock()
	err := s.refuse(h.r)
	if err == nil {
		err = s.fail(h.r, h.err)
	}
	s.mu.Unlock()
	if h.r.Err = err; err == nil {
		s.run(h.r)
	}
	h.end(h.r)
}

// run does r on the wrapped store, by way of the volatile cache if there is one. Injected errors are dealt with.
func (s *Store) run(r *disk.Request) {
	if !s.volatile {
		s.Store.Do(r)
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if r.Err = s.refuse(r); r.Err != nil {
		return
	}
	if r.Op == disk.Read || r.Op == disk.Flush {
		if s.Store.Do(r); r.Err == nil && r.Op == disk.Flush {
			clear(s.before)
		}
		return
	}
	block := int64(s.LogicalBlock())
	old := make([]byte, max(0, length(r)))
	_, err := s.Store.ReadAt(old, r.Off) // an invalid extent is for Do to refuse
	if s.Store.Do(r); r.Err != nil {
		return
	}
	if err != nil {
		r.Err = fmt.Errorf("previous contents: %w", err)
		return
	}
	for i := int64(0); i < int64(len(old)); i += block {
		if n := (r.Off + i) / block; r.FUA {
			delete(s.before, n)
		} else {
			s.before[n] = append(s.before[n], old[i:i+block])
		}
	}
}

// Crash is a power loss: unflushed writes meet their fate, waiting requests end with ErrCrashed, and so
// does everything after. The wrapped store stays open and holds what a restarted node would find.
func (s *Store) Crash(mode CrashMode) error {
	s.mu.Lock()
	s.crashed = true
	waiting := s.held
	s.held = nil
	blocks := make([]int64, 0, len(s.before))
	for n := range s.before {
		blocks = append(blocks, n)
	}
	slices.Sort(blocks) // the same seed, the same crash
	var errs []error
	for _, n := range blocks {
		states := s.before[n]
		pick := 0
		switch mode {
		case KeepAll:
			continue
		case Tear:
			if pick = s.rng.IntN(len(states) + 1); pick == len(states) {
				continue // the newest
			}
		}
		_, err := s.Store.WriteAt(states[pick], n*int64(s.LogicalBlock()))
		errs = append(errs, err)
	}
	clear(s.before)
	s.mu.Unlock()
	for _, h := range waiting {
		if h.timer != nil {
			h.timer.Stop()
		}
		h.r.Err = ErrCrashed
		h.end(h.r)
	}
	return errors.Join(errs...)
}

// Close ends waiting requests with disk.ErrClosed and closes the wrapped store.
func (s *Store) Close() error {
	s.mu.Lock()
	s.closed = true
	waiting := s.held
	s.held = nil
	s.mu.Unlock()
	for _, h := range waiting {
		if h.timer != nil {
			h.timer.Stop()
		}
		h.r.Err = disk.ErrClosed
		h.end(h.r)
	}
	return s.Store.Close()
}

// ReadAt is disk.Store's, with faults.
func (s *Store) ReadAt(p []byte, off int64) (int, error) { return s.sync(disk.Read, p, off) }

// WriteAt is disk.Store's, with faults.
func (s *Store) WriteAt(p []byte, off int64) (int, error) { return s.sync(disk.Write, p, off) }

// Sync is disk.Store's, with faults.
func (s *Store) Sync() error {
	_, err := s.sync(disk.Flush, nil, 0)
	return err
}

func (s *Store) sync(op disk.Op, p []byte, off int64) (int, error) {
	r := disk.Request{Op: op, Buf: p, Off: off}
	if s.Do(&r); r.Err != nil {
		return 0, r.Err
	}
	return len(p), nil
}
