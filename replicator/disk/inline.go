package disk

import "golang.org/x/sys/unix"

// waiter turns the end of a submitted request into a return.
type waiter struct {
	req   Request
	batch [1]*Request
	done  chan struct{}
}

func newWaiter() *waiter {
	w := &waiter{done: make(chan struct{}, 1)}
	w.batch[0] = &w.req
	return w
}

func wake(r *Request) { r.Owner.(*waiter).done <- struct{}{} }

// submitAndWait is Do by way of Submit: for what must be bounded in time or share a flush.
func (s *store) submitAndWait(r *Request) {
	w := s.waiters.Get().(*waiter)
	w.req = Request{Op: r.Op, FUA: r.FUA, NoUnmap: r.NoUnmap, Off: r.Off, Len: r.Len, Buf: r.Buf, Mem: r.Mem, Done: wake, Owner: w}
	s.Submit(w.batch[:])
	<-w.done
	r.Err, r.Len = w.req.Err, w.req.Len
	w.req = Request{}
	s.waiters.Put(w)
}

func (s *store) Do(r *Request) {
	if s.timeout > 0 && !s.inline {
		s.submitAndWait(r)
		return
	}
	if !s.enter() {
		r.Err = ErrClosed
		return
	}
	done, err := s.check(r)
	if !done && err == nil {
		err = s.run(r)
	}
	r.Err = err
	s.leave()
}

func (s *store) run(r *Request) (err error) {
	switch r.Op {
	case Read:
		if !s.f.aligned(r.Buf) {
			return s.readBounced(r)
		}
		return s.f.read(r.Buf, r.Off)
	case Write:
		buf := r.Buf
		if !s.f.aligned(buf) {
			b := s.scratch.Get(len(buf))
			defer b.Release()
			copy(b.B, buf)
			buf = b.B
		}
		if s.stable(r) && s.f.dsync.Load() {
			err := s.f.write(buf, r.Off, true)
			if err != unix.EOPNOTSUPP { //nolint:errorlint // raw errno of a system call
				return s.writeErr(err, true)
			}
		}
		err = s.f.write(buf, r.Off, false)
	case Discard:
		err = s.f.discard(r.Off, r.Len)
	case ZeroOut:
		err = s.f.zeroOut(r.Off, r.Len, r.NoUnmap, s.scratch)
	case Flush:
		return s.flushInline()
	}
	if err == nil && s.stable(r) {
		err = s.flushInline()
	}
	return err
}

func (s *store) readBounced(r *Request) error {
	b := s.scratch.Get(len(r.Buf))
	defer b.Release()
	if err := s.f.read(b.B, r.Off); err != nil {
		return err
	}
	copy(r.Buf, b.B)
	return nil
}

// flushInline flushes on this goroutine, or waits for the next common flush when one is running.
func (s *store) flushInline() error {
	s.mu.Lock()
	if s.flushing {
		w := s.waiters.Get().(*waiter)
		w.req = Request{Op: Flush, Done: wake, Owner: w, tick: s.tick.Load()}
		s.refs.Add(1) // deliver counts it out
		s.joining.push(&w.req)
		s.mu.Unlock()
		<-w.done
		err := w.req.Err
		w.req = Request{}
		s.waiters.Put(w)
		return err
	}
	if err := s.flushLost(); err != nil {
		s.mu.Unlock()
		return err
	}
	s.flushing = true
	s.mu.Unlock()
	err := s.f.flush()
	var out reqList
	s.mu.Lock()
	s.endFlush(err, &out)
	s.mu.Unlock()
	s.eng.kick()
	s.deliver(&out)
	if err != nil {
		err = s.flushLost()
	}
	return err
}

func (s *store) ReadAt(p []byte, off int64) (int, error) { return s.sync(Read, p, off) }

func (s *store) WriteAt(p []byte, off int64) (int, error) { return s.sync(Write, p, off) }

func (s *store) Sync() error {
	_, err := s.sync(Flush, nil, 0)
	return err
}

func (s *store) sync(op Op, p []byte, off int64) (int, error) {
	r := Request{Op: op, Buf: p, Off: off}
	s.Do(&r)
	if r.Err != nil {
		return 0, r.Err
	}
	return len(p), nil
}

// inlineEngine has no goroutine of its own: only a flush that others wait for while the flusher has
// gone needs one, and gets it for that long.
type inlineEngine struct{ s *store }

func (e *inlineEngine) name() string { return "inline" }
func (e *inlineEngine) kick()        {}
func (e *inlineEngine) stop()        {}
func (e *inlineEngine) push(sl *slot) {
	go func() { e.s.finish(sl, e.s.exec(sl)) }() // ends before the slot's reference does
}

// exec does what sl says; it blocks.
func (s *store) exec(sl *slot) error {
	switch sl.op {
	case Read:
		return s.f.read(sl.buf, sl.off)
	case Write:
		return s.f.write(sl.buf, sl.off, sl.dsync)
	case Flush:
		return s.f.flush()
	case Discard:
		return s.f.discard(sl.off, sl.len)
	default:
		return s.f.zeroOut(sl.off, sl.len, sl.noUnmap, s.scratch)
	}
}

// finish is complete for one slot, and all that follows it.
func (s *store) finish(sl *slot, err error) {
	var out reqList
	s.mu.Lock()
	s.complete(sl, err, &out)
	s.mu.Unlock()
	s.eng.kick()
	s.deliver(&out)
}
