package disk

import (
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// againMax is how often the kernel may say EAGAIN for one request before that is its error.
const againMax = 16

// uring drives one io_uring: any goroutine submits, one reaps. Completions wake the reaper
// through an eventfd in the runtime's poller, so that no thread sits in the kernel.
type uring struct {
	s      *store
	r      *ring
	event  *os.File
	raw    syscall.RawConn // of event
	aux    *workers
	halt   atomic.Bool
	reaper sync.WaitGroup
}

func newUring(s *store, depth int) (engine, error) {
	r, err := newRing(uint32(depth + 1)) // every slot and the flush have an entry: push never fails
	if err != nil {
		return nil, err
	}
	fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("eventfd: %w", err), r.close())
	}
	event := os.NewFile(uintptr(fd), "eventfd")
	raw, err := event.SyscallConn()
	if err == nil {
		err = r.registerEventfd(fd)
	}
	if err != nil {
		return nil, errors.Join(err, event.Close(), r.close())
	}
	e := &uring{s: s, r: r, event: event, raw: raw, aux: newWorkers(s, auxWorkersMax, depth)}
	e.reaper.Go(e.reap)
	return e, nil
}

func (e *uring) name() string { return "uring" }

func (e *uring) push(sl *slot) {
	q := ringSQE{fd: int32(e.s.f.fd), userData: uint64(sl.index)}
	if !e.s.f.local {
		q.flags = ringAsync // may block where it must not: in enter, which would defeat every timeout
	}
	switch sl.op {
	case Read, Write:
		q.opcode = ringOpRead
		if sl.op == Write {
			q.opcode = ringOpWrite
			if sl.dsync {
				q.opFlags = rwfDsync
			}
		}
		// The slot keeps buf, and heap memory does not move.
		q.addr, q.len = uint64(uintptr(unsafe.Pointer(unsafe.SliceData(sl.buf)))), uint32(min(len(sl.buf), 1<<30)) // longer: the rest follows
		q.off = uint64(sl.off)
	case Flush:
		q.opcode, q.opFlags = ringOpFsync, ringFsyncDatasync
	default:
		e.aux.work <- sl
		return
	}
	if !e.r.push(q) {
		panic("disk: io_uring has fewer entries than slots")
	}
}

func (e *uring) kick() {
	for n := e.r.queued(); n > 0; n = e.r.queued() {
		err := e.r.enter(n)
		if err != nil && err != unix.EINTR { //nolint:errorlint // raw errno of a system call
			// Out of memory or the like (EAGAIN, EBUSY): nothing was lost, the entries stay queued.
			e.s.log.Warn("io_uring refuses requests for now", "path", e.s.f.path, "err", err)
			time.Sleep(time.Millisecond)
		}
	}
}

func (e *uring) reap() {
	count := new([8]byte)
	var errno unix.Errno
	read := func(fd uintptr) bool { // does not block: the runtime waits when it says EAGAIN
		_, _, errno = unix.RawSyscall(unix.SYS_READ, fd, uintptr(unsafe.Pointer(count)), uintptr(len(count)))
		return errno != unix.EAGAIN && errno != unix.EINTR
	}
	for {
		err := e.raw.Read(read)
		if err == nil && errno != 0 {
			err = errno
		}
		if e.halt.Load() {
			return
		}
		if err != nil {
			e.s.log.Error("io_uring eventfd is gone", "path", e.s.f.path, "err", err)
			return
		}
		e.r.notify(false)
		e.drain()
		e.r.notify(true)
		e.drain() // what came in between gave no signal
	}
}

// drain ends all requests whose completions are there.
func (e *uring) drain() {
	for !e.r.empty() {
		var out reqList
		e.s.mu.Lock()
		for c, ok := e.r.reap(); ok; c, ok = e.r.reap() {
			e.completion(c, &out)
		}
		e.s.mu.Unlock()
		e.kick()
		if e.s.batch == nil {
			e.s.deliver(&out)
			continue
		}
		e.s.batch(true)
		e.s.deliver(&out)
		e.s.batch(false)
	}
}

// completion ends a slot, or pushes what is left of it. store.mu is held.
func (e *uring) completion(c ringCQE, out *reqList) {
	s := e.s
	sl := &s.flush
	if int(c.userData) < len(s.slots) {
		sl = &s.slots[c.userData]
	}
	var err error
	if c.res < 0 {
		errno := unix.Errno(-c.res)
		if (errno == unix.EINTR || errno == unix.EAGAIN) && sl.tries < againMax {
			sl.tries++
			e.push(sl)
			return
		}
		if errno == unix.ECANCELED {
			// Not executed: the kernel gives up what waits for a worker thread that it cannot make, for which
			// signals at the wrong moments are enough. That is nothing about the disk: do it here.
			e.s.log.Warn("io_uring gave a request back, executing it", "path", e.s.f.path, "op", sl.op)
			e.aux.work <- sl
			return
		}
		err = mapErr(errno)
	} else if sl.op != Flush && int(c.res) < len(sl.buf) {
		if c.res > 0 {
			sl.buf, sl.off = sl.buf[c.res:], sl.off+int64(c.res)
			e.push(sl)
			return
		}
		if err = io.ErrUnexpectedEOF; sl.op == Write {
			err = io.ErrShortWrite
		}
	}
	s.complete(sl, err, out)
}

func (e *uring) stop() {
	e.aux.stop()
	e.halt.Store(true)
	one := [8]byte{1}
	_, _ = e.event.Write(one[:]) // fails only if the counter is near overflow, and then it wakes as well
	e.reaper.Wait()
	if err := errors.Join(e.event.Close(), e.r.close()); err != nil {
		e.s.log.Error("io_uring did not close cleanly", "path", e.s.f.path, "err", err)
	}
}
