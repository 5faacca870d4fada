package disk

import (
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hawser-ha/hawser/replicator/iobuf"
)

const (
	depthDefault  = 128
	closeWaitMax  = 30 * time.Second // for Close without a Timeout
	bounceMax     = 64 << 20         // bytes of bounce buffers of submitted requests
	tickFraction  = 8                // ticks in one Timeout
	workersMax    = 16
	auxWorkersMax = 4 // for what io_uring does not do itself: discards and the like
)

// slot is one request in the kernel's hands. It outlives its request when that times out.
type slot struct {
	req  *Request // nil: free, a flush, or timed out
	op   Op
	busy bool
	late bool // the request has timed out; the kernel has not come back
	// dsync writes stably; join takes part in a flush after the write.
	dsync, join, noUnmap bool
	tries                int
	buf                  []byte // what the kernel uses, shrinking as it comes back short
	off, len             int64
	mem                  *iobuf.Buf // held until the kernel is done
	bounce               bool       // mem is ours, not the request's
	index                uint32
}

// engine carries slots to the kernel. push is called with store.mu held and must not block; kick,
// without it, starts what was pushed. The engine answers through store.complete. stop ends its
// goroutines, once nothing is in flight, and waits for them.
type engine interface {
	push(s *slot)
	kick()
	stop()
	name() string
}

type store struct {
	f       *file
	log     *slog.Logger
	timeout time.Duration
	noFlush bool
	inline  bool // Submit does the work itself
	cheap   bool
	batch   func(begin bool) // may be nil
	eng     engine
	size    atomic.Int64
	closed  atomic.Bool
	refs    atomic.Int64  // one for being open, one for each request or slot in flight
	gone    chan struct{} // closed when the descriptor is
	once    sync.Once
	halt    chan struct{} // ends the ticker
	ticker  sync.WaitGroup
	tick    atomic.Uint32
	lost    atomic.Pointer[error] // why flushes fail for good
	bounce  *iobuf.Pool           // of submitted requests
	scratch *iobuf.Pool           // of requests run inline: as many as callers
	waiters sync.Pool

	mu       sync.Mutex // guards what follows, and engine.push; never held over a system call
	slots    []slot
	free     []uint32
	pending  reqList // for want of a slot or a bounce buffer
	flushing bool
	covered  reqList // by the running flush
	joining  reqList // the next flush
	fuaBusy  int     // stable writes in the kernel
	flush    slot
}

// Open opens the disk of o.Path for exclusive use.
func Open(log *slog.Logger, o Options) (Store, error) {
	for _, c := range []struct{ name, value, allowed string }{
		{"direct", o.Direct, "auto yes no"}, {"engine", o.Engine, "auto uring threads inline"},
	} {
		if !oneOf(c.value, c.allowed) {
			return nil, fmt.Errorf("open disk %s: %s is %q, not one of: %s", o.Path, c.name, c.value, c.allowed)
		}
	}
	if o.Timeout < 0 || o.QueueDepth < 0 || o.QueueDepth > 4096 {
		return nil, fmt.Errorf("open disk %s: timeout or queue depth out of range", o.Path)
	}
	if o.Engine == "inline" && o.Timeout > 0 {
		return nil, fmt.Errorf("open disk %s: the inline engine cannot keep a timeout", o.Path)
	}
	f, err := openFile(&o)
	if err != nil {
		return nil, err
	}
	size, err := f.readSize()
	if err != nil {
		return nil, errors.Join(err, f.close())
	}
	s := &store{f: f, log: log, timeout: o.Timeout, noFlush: o.NoFlush, batch: o.Batch, gone: make(chan struct{}), halt: make(chan struct{}),
		bounce: iobuf.NewPool(bounceMax), scratch: iobuf.NewPool(1 << 46)}
	s.size.Store(size)
	s.refs.Store(1)
	s.cheap = f.memory || (!f.direct && o.Timeout == 0)
	s.waiters.New = func() any { return newWaiter() }
	depth := o.QueueDepth
	if depth == 0 {
		depth = depthDefault
	}
	s.slots, s.free = make([]slot, depth), make([]uint32, depth)
	for i := range s.slots {
		s.slots[i].index, s.free[i] = uint32(i), uint32(depth-1-i)
	}
	s.flush = slot{op: Flush, index: uint32(depth)}
	if s.eng, err = s.newEngine(o.Engine, depth); err != nil {
		return nil, errors.Join(err, f.close())
	}
	_, s.inline = s.eng.(*inlineEngine)
	if s.timeout > 0 && !s.inline {
		s.ticker.Go(s.tickLoop)
	}
	log.Info("disk opened", "path", o.Path, "bytes", size, "block", f.block, "direct", f.direct, "engine", s.eng.name())
	return s, nil
}

func (s *store) newEngine(name string, depth int) (engine, error) {
	switch {
	case name == "inline" || (name != "uring" && name != "threads" && s.f.memory):
		return &inlineEngine{s: s}, nil
	case name == "threads" || (name != "uring" && !s.f.local):
		return newThreads(s, depth), nil
	}
	e, err := newUring(s, depth)
	switch {
	case err == nil:
		return e, nil
	case name == "uring":
		return nil, fmt.Errorf("open disk %s: io_uring: %w", s.f.path, err)
	}
	s.log.Info("io_uring is not available, using threads", "path", s.f.path, "err", err)
	return newThreads(s, depth), nil
}

func (s *store) Cheap() bool       { return s.cheap }
func (s *store) Size() int64       { return s.size.Load() }
func (s *store) LogicalBlock() int { return s.f.block }
func (s *store) Discards() bool    { return s.f.discards }
func (s *store) Rotational() bool  { return s.f.rotates }

// enter counts a request in, unless the store is closed.
func (s *store) enter() bool {
	s.refs.Add(1)
	if s.closed.Load() {
		s.leave()
		return false
	}
	return true
}

// leave counts a request or slot out. The last one after Close takes the store down, on
// a goroutine of its own because it may be the engine's that calls.
func (s *store) leave() {
	if s.refs.Add(-1) == 0 {
		s.once.Do(func() { go s.teardown() })
	}
}

func (s *store) teardown() {
	close(s.halt)
	s.ticker.Wait()
	s.eng.stop()
	s.bounce.Close()
	s.scratch.Close()
	if err := s.f.close(); err != nil {
		s.log.Error("disk did not close cleanly", "path", s.f.path, "err", err)
	}
	close(s.gone)
}

func (s *store) Close() error {
	if s.closed.Swap(true) {
		return ErrClosed
	}
	s.leave()
	wait := closeWaitMax
	if s.timeout > 0 {
		wait = s.timeout + 3*s.timeout/tickFraction // the requests expire first
	}
	t := time.NewTimer(wait)
	defer t.Stop()
	select {
	case <-s.gone:
		return nil
	case <-t.C:
	}
	n := s.expire(true)
	s.log.Error("disk closed with requests in the kernel", "path", s.f.path, "requests", n)
	return fmt.Errorf("close disk %s: %w", s.f.path, ErrTimeout)
}

// check validates r and says whether there is nothing to do. Both results false and nil: do it.
func (s *store) check(r *Request) (done bool, err error) {
	if r.Op == Flush {
		if s.noFlush || s.f.readOnly {
			return true, nil
		}
		return false, s.flushLost()
	}
	if r.Op == Read || r.Op == Write {
		r.Len = int64(len(r.Buf))
	}
	if r.Op > ZeroOut {
		return false, fmt.Errorf("disk: unknown %v", r.Op)
	}
	if mask := int64(s.f.block) - 1; (r.Off|r.Len)&mask != 0 {
		return false, ErrUnaligned
	}
	if size := s.size.Load(); r.Off < 0 || r.Len < 0 || r.Off > size || r.Len > size-r.Off {
		return false, ErrRange
	}
	if r.Op != Read {
		if s.f.readOnly {
			return false, ErrReadOnly
		}
		if s.stable(r) {
			if err := s.flushLost(); err != nil {
				return false, err
			}
		}
	}
	return r.Len == 0 && !s.stable(r), nil
}

func (s *store) stable(r *Request) bool { return r.FUA && r.Op != Read && !s.noFlush }

func (s *store) flushLost() error {
	if err := s.lost.Load(); err != nil {
		return *err
	}
	return nil
}

// loseFlush records that written data may be lost, and returns what flushes now say.
func (s *store) loseFlush(cause error) error {
	err := fmt.Errorf("%w: %w", ErrFlushLost, cause)
	if s.lost.CompareAndSwap(nil, &err) {
		s.log.Error("flush failed: the disk cannot be trusted any more", "path", s.f.path, "err", cause)
	}
	return *s.lost.Load()
}

// writeErr judges the error of a stable write: it may have consumed the kernel's one report of a
// lost earlier write, unless it is plainly about this request.
func (s *store) writeErr(err error, dsync bool) error {
	if !dsync || err == nil || errors.Is(err, ErrNoSpace) || err == unix.EINVAL || err == unix.EOPNOTSUPP { //nolint:errorlint // raw errno of a system call
		return err
	}
	return s.loseFlush(err)
}

func (s *store) Submit(batch []*Request) {
	if s.inline {
		for _, r := range batch {
			s.Do(r)
			r.Done(r)
		}
		return
	}
	if !s.enter() { // held to the end: kick must find the engine alive
		for _, r := range batch {
			r.Err = ErrClosed
			r.Done(r)
		}
		return
	}
	s.refs.Add(int64(len(batch)))
	var out reqList
	now := s.tick.Load()
	s.mu.Lock()
	for _, r := range batch {
		done, err := s.check(r)
		r.tick, r.pinned = now, nil
		switch {
		case done || err != nil:
			r.Err = err
			out.push(r)
		case r.Op == Flush:
			s.joining.push(r)
		case s.pending.head != nil || !s.start(r):
			s.pending.push(r)
		}
	}
	s.startFlush(&out)
	s.mu.Unlock()
	s.eng.kick()
	s.deliver(&out)
	s.leave()
}

// start gives r a slot and pushes it; false when it has to wait. mu is held.
func (s *store) start(r *Request) bool {
	if len(s.free) == 0 {
		return false
	}
	sl := &s.slots[s.free[len(s.free)-1]]
	sl.mem, sl.bounce = r.Mem, false
	if r.Op == Read || r.Op == Write {
		sl.buf = r.Buf
		if len(r.Buf) > 0 && ((s.timeout > 0 && r.Mem == nil) || !s.f.aligned(r.Buf)) {
			if sl.mem = s.bounce.TryGet(len(r.Buf)); sl.mem == nil {
				return false // in flight requests hold bounce buffers; one will come back
			}
			sl.bounce, sl.buf = true, sl.mem.B
			if r.Op == Write {
				copy(sl.buf, r.Buf)
			}
		}
	}
	if sl.mem != nil && !sl.bounce {
		sl.mem.Retain()
	}
	s.free = s.free[:len(s.free)-1]
	sl.req, sl.op, sl.busy, sl.late, sl.tries = r, r.Op, true, false, 0
	sl.off, sl.len, sl.noUnmap = r.Off, r.Len, r.NoUnmap
	sl.dsync, sl.join = false, false
	if s.stable(r) {
		// One stable write alone is cheapest as such; several share a flush, unless the device has FUA.
		if r.Op == Write && s.f.dsync.Load() && (s.f.fua || (s.fuaBusy == 0 && !s.flushing)) {
			sl.dsync = true
			s.fuaBusy++
		} else {
			sl.join = true
		}
	}
	s.eng.push(sl)
	return true
}

// startFlush starts a flush for those who wait, if none runs. mu is held.
func (s *store) startFlush(out *reqList) {
	if s.flushing || s.joining.head == nil {
		return
	}
	if err := s.flushLost(); err != nil {
		failAll(&s.joining, err, out)
		return
	}
	s.covered.move(&s.joining)
	s.flushing = true
	s.refs.Add(1)
	s.eng.push(&s.flush)
}

// endFlush ends the running flush and starts the next. mu is held.
func (s *store) endFlush(err error, out *reqList) {
	if err != nil {
		err = s.loseFlush(err)
	}
	s.flushing = false
	failAll(&s.covered, err, out)
	s.startFlush(out)
}

func failAll(l *reqList, err error, out *reqList) {
	for r := l.head; r != nil; r = r.next {
		r.Err = err
	}
	out.move(l)
}

// complete ends a slot's time in the kernel and appends the request, if that is its end, to
// out. mu is held; the caller then unlocks, kicks and delivers.
func (s *store) complete(sl *slot, err error, out *reqList) {
	if sl == &s.flush {
		s.endFlush(err, out)
		s.leave()
		return
	}
	if sl.dsync {
		s.fuaBusy--
		if err == unix.EOPNOTSUPP { //nolint:errorlint // raw errno of a system call
			s.f.dsync.Store(false)
			sl.dsync, sl.join = false, true
			s.eng.push(sl)
			return
		}
	}
	err = s.writeErr(err, sl.dsync)
	r := sl.req
	if r != nil && err == nil && sl.bounce && sl.op == Read {
		r.pinned, sl.mem = sl.mem, nil // copied by deliver, outside the lock
	}
	if sl.mem != nil {
		sl.mem.Release()
	}
	late, join := sl.late, sl.join
	sl.req, sl.buf, sl.mem, sl.busy, sl.late = nil, nil, nil, false, false
	s.free = append(s.free, sl.index)
	switch {
	case late:
		s.leave()
	case err == nil && join:
		s.joining.push(r)
		s.startFlush(out)
	default:
		r.Err = err
		out.push(r)
	}
	s.startPending()
}

// startPending starts what can be started. mu is held.
func (s *store) startPending() {
	for s.pending.head != nil {
		r := s.pending.head
		next := r.next
		if !s.start(r) {
			return
		}
		if s.pending.head = next; next == nil {
			s.pending.tail = nil
		}
		r.next = nil
	}
}

// deliver calls Done for all of l. mu is not held.
func (s *store) deliver(l *reqList) {
	for l.head != nil {
		r := l.pop()
		if b := r.pinned; b != nil {
			copy(r.Buf, b.B)
			r.pinned = nil
			b.Release()
			s.mu.Lock()
			s.startPending() // may have waited for just that buffer
			s.mu.Unlock()
			s.eng.kick()
		}
		r.Done(r)
		s.leave()
	}
}

func (s *store) tickLoop() {
	t := time.NewTicker(max(s.timeout/tickFraction, time.Millisecond))
	defer t.Stop()
	for {
		select {
		case <-s.halt:
			return
		case <-t.C:
			// Ticks are counted, not time: a process that was stopped does not time everything out.
			s.tick.Add(1)
			s.expire(false)
		}
	}
}

// expire fails the requests that are too old, or all. It returns how many are in the kernel.
func (s *store) expire(all bool) int {
	var out reqList
	now, stuck := s.tick.Load(), 0
	old := func(r *Request) bool { return all || now-r.tick > tickFraction }
	s.mu.Lock()
	for i := range s.slots {
		sl := &s.slots[i]
		if sl.busy {
			stuck++
		}
		if r := sl.req; r != nil && old(r) {
			sl.req, sl.late = nil, true
			s.refs.Add(1)
			r.Err = ErrTimeout
			out.push(r)
		}
	}
	if s.flushing {
		stuck++
	}
	for _, l := range []*reqList{&s.pending, &s.covered, &s.joining} {
		var keep reqList
		for l.head != nil {
			if r := l.pop(); old(r) {
				r.Err = ErrTimeout
				out.push(r)
			} else {
				keep.push(r)
			}
		}
		*l = keep
	}
	s.mu.Unlock()
	if out.head != nil {
		s.log.Warn("disk requests timed out", "path", s.f.path, "stuck", stuck)
	}
	s.deliver(&out)
	return stuck
}

func (s *store) Extents(off, length int64, limit int) ([]Extent, error) {
	if !s.enter() {
		return nil, ErrClosed
	}
	defer s.leave()
	if mask := int64(s.f.block) - 1; (off|length)&mask != 0 {
		return nil, ErrUnaligned
	}
	if size := s.size.Load(); off < 0 || length < 0 || off > size || length > size-off {
		return nil, ErrRange
	}
	return s.f.extents(off, length, limit)
}

func (s *store) Grow(size int64) error {
	if !s.enter() {
		return ErrClosed
	}
	defer s.leave()
	now, err := s.Resize()
	switch {
	case err != nil:
		return err
	case size <= now:
		return nil
	case s.f.readOnly:
		return ErrReadOnly
	case s.f.blockDev:
		return fmt.Errorf("grow %s to %d bytes: the device has %d: %w", s.f.path, size, now, ErrRange)
	}
	if err := unix.Ftruncate(s.f.fd, size); err != nil {
		return fmt.Errorf("grow %s to %d bytes: %w", s.f.path, size, mapErr(err))
	}
	_, err = s.Resize()
	return err
}

func (s *store) Resize() (int64, error) {
	if !s.enter() {
		return 0, ErrClosed
	}
	defer s.leave()
	n, err := s.f.readSize()
	if err != nil {
		return 0, err
	}
	s.size.Store(n)
	return n, nil
}

func oneOf(value, allowed string) bool {
	for len(allowed) > 0 {
		var word string
		for i := 0; ; i++ {
			if i == len(allowed) {
				word, allowed = allowed, ""
				break
			}
			if allowed[i] == ' ' {
				word, allowed = allowed[:i], allowed[i+1:]
				break
			}
		}
		if value == word {
			return true
		}
	}
	return value == ""
}
