package disk

import (
	"errors"
	"fmt"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"
)

// What of io_uring's ABI is used here; the numbers are the kernel's (linux/io_uring.h).
const (
	ringOpFsync = 3
	ringOpRead  = 22 // needs Linux 5.6
	ringOpWrite = 23

	ringFsyncDatasync = 1
	ringAsync         = 1 << 4 // IOSQE_ASYNC: a kernel worker, never the submitter

	ringSetupSubmitAll   = 1 << 7 // go on after an entry that fails; 5.18
	ringSetupCoopTaskrun = 1 << 8 // no interrupt for a completion; 5.19

	ringOffSQ, ringOffCQ, ringOffSQEs = 0, 0x8000000, 0x10000000

	ringRegisterEventfd    = 4
	ringCQEventfdDisabled  = 1
	ringFeatureSingleMmap  = 1 << 0
	ringFeatureNoDrop      = 1 << 1
	ringFeatureRWCurPos    = 1 << 3 // came with OP_READ in 5.6
	ringFeaturesWeNeed     = ringFeatureSingleMmap | ringFeatureNoDrop | ringFeatureRWCurPos
	sqeSize, cqeSize       = 64, 16
	ringParamsSize         = 120
	ringOffsetsStructBytes = 40
)

type ringSQE struct {
	opcode, flags uint8
	ioprio        uint16
	fd            int32
	off, addr     uint64
	len, opFlags  uint32
	userData      uint64
	_             [3]uint64
}

type ringCQE struct {
	userData uint64
	res      int32
	flags    uint32
}

type ringSQOffsets struct {
	head, tail, mask, entries, flags, dropped, array, _ uint32
	_                                                   uint64
}

type ringCQOffsets struct {
	head, tail, mask, entries, overflow, cqes, flags, _ uint32
	_                                                   uint64
}

type ringParams struct {
	sqEntries, cqEntries, flags, threadCPU, threadIdle, features, wqFD uint32
	_                                                                  [3]uint32
	sq                                                                 ringSQOffsets
	cq                                                                 ringCQOffsets
}

// The kernel would read garbage otherwise.
var (
	_ [sqeSize]byte                = [unsafe.Sizeof(ringSQE{})]byte{}
	_ [cqeSize]byte                = [unsafe.Sizeof(ringCQE{})]byte{}
	_ [ringParamsSize]byte         = [unsafe.Sizeof(ringParams{})]byte{}
	_ [ringOffsetsStructBytes]byte = [unsafe.Sizeof(ringSQOffsets{})]byte{}
	_ [ringOffsetsStructBytes]byte = [unsafe.Sizeof(ringCQOffsets{})]byte{}
)

// ring is the bare io_uring. One goroutine at a time may push, one may reap; any may enter.
type ring struct {
	fd              int
	rings, sqes     []byte
	sqHead, sqTail  *uint32
	sqMask          uint32
	cqHead, cqTail  *uint32
	cqMask, entries uint32
	cqFlags         *uint32 // nil before 5.8
	sq              []ringSQE
	cq              []ringCQE
}

func newRing(entries uint32) (r *ring, err error) {
	var p ringParams
	fd := -1
	for _, flags := range []uint32{ringSetupCoopTaskrun | ringSetupSubmitAll, 0} {
		p = ringParams{flags: flags}
		n, _, e := unix.Syscall(unix.SYS_IO_URING_SETUP, uintptr(entries), uintptr(unsafe.Pointer(&p)), 0)
		if e == 0 {
			fd = int(n)
			break
		}
		if e != unix.EINVAL || flags == 0 {
			return nil, fmt.Errorf("setup: %w", e)
		}
	}
	r = &ring{fd: fd}
	defer func() {
		if err != nil {
			err = errors.Join(err, r.close())
		}
	}()
	if p.features&ringFeaturesWeNeed != ringFeaturesWeNeed {
		return r, fmt.Errorf("kernel too old (features %#x): %w", p.features, unix.ENOSYS)
	}
	size := max(int(p.sq.array+p.sqEntries*4), int(p.cq.cqes+p.cqEntries*cqeSize))
	const prot, shared = unix.PROT_READ | unix.PROT_WRITE, unix.MAP_SHARED | unix.MAP_POPULATE
	if r.rings, err = unix.Mmap(fd, ringOffSQ, size, prot, shared); err != nil {
		return r, fmt.Errorf("map rings: %w", err)
	}
	if r.sqes, err = unix.Mmap(fd, ringOffSQEs, int(p.sqEntries)*sqeSize, prot, shared); err != nil {
		return r, fmt.Errorf("map entries: %w", err)
	}
	word := func(off uint32) *uint32 { return (*uint32)(unsafe.Pointer(&r.rings[off])) }
	r.sqHead, r.sqTail, r.sqMask = word(p.sq.head), word(p.sq.tail), *word(p.sq.mask)
	r.cqHead, r.cqTail, r.cqMask = word(p.cq.head), word(p.cq.tail), *word(p.cq.mask)
	if p.cq.flags != 0 {
		r.cqFlags = word(p.cq.flags)
	}
	r.entries = p.sqEntries
	r.sq = unsafe.Slice((*ringSQE)(unsafe.Pointer(unsafe.SliceData(r.sqes))), p.sqEntries)
	r.cq = unsafe.Slice((*ringCQE)(unsafe.Pointer(&r.rings[p.cq.cqes])), p.cqEntries)
	array := unsafe.Slice(word(p.sq.array), p.sqEntries)
	for i := range array {
		array[i] = uint32(i) // entry i is always at index i
	}
	return r, nil
}

// push queues an entry; false when the ring is full.
func (r *ring) push(e ringSQE) bool {
	tail := *r.sqTail // only push writes it
	if tail-atomic.LoadUint32(r.sqHead) >= r.entries {
		return false
	}
	r.sq[tail&r.sqMask] = e
	atomic.StoreUint32(r.sqTail, tail+1)
	return true
}

// queued is the number of entries that the kernel has not taken.
func (r *ring) queued() uint32 {
	head := atomic.LoadUint32(r.sqHead) // first: a head read later could be ahead of the tail
	return atomic.LoadUint32(r.sqTail) - head
}

// enter hands n entries to the kernel, which takes fewer when fewer are there. It waits for nothing (what would wait
// goes to the kernel's own threads), so the runtime is not told of it, which would wake its monitor thread.
func (r *ring) enter(n uint32) error {
	if _, _, e := unix.RawSyscall6(unix.SYS_IO_URING_ENTER, uintptr(r.fd), uintptr(n), 0, 0, 0, 0); e != 0 {
		return e
	}
	return nil
}

// reap takes one completion.
func (r *ring) reap() (c ringCQE, ok bool) {
	head := *r.cqHead // only reap writes it
	if head == atomic.LoadUint32(r.cqTail) {
		return c, false
	}
	c = r.cq[head&r.cqMask]
	atomic.StoreUint32(r.cqHead, head+1)
	return c, true
}

func (r *ring) empty() bool { return *r.cqHead == atomic.LoadUint32(r.cqTail) }

func (r *ring) registerEventfd(fd int) error {
	n := int32(fd)
	if _, _, e := unix.Syscall6(unix.SYS_IO_URING_REGISTER, uintptr(r.fd), ringRegisterEventfd, uintptr(unsafe.Pointer(&n)), 1, 0, 0); e != 0 {
		return fmt.Errorf("register eventfd: %w", e)
	}
	return nil
}

// notify says whether completions signal the eventfd.
func (r *ring) notify(on bool) {
	if r.cqFlags == nil {
		return
	}
	v := uint32(ringCQEventfdDisabled)
	if on {
		v = 0
	}
	atomic.StoreUint32(r.cqFlags, v)
}

func (r *ring) close() error {
	var errs []error
	for _, m := range [][]byte{r.sqes, r.rings} {
		if m != nil {
			errs = append(errs, unix.Munmap(m))
		}
	}
	return errors.Join(append(errs, unix.Close(r.fd))...)
}
