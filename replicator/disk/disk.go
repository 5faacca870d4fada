package disk

import (
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hawser-ha/hawser/replicator/iobuf"
)

// Op is what a Request does.
type Op uint8

// The operations of a Store.
const (
	Read Op = iota
	Write
	Flush   // completed writes are on stable storage afterwards; concurrent flushes are grouped
	Discard // contents undefined afterwards
	ZeroOut // reads back as zeroes; may deallocate unless NoUnmap
)

func (op Op) String() string {
	if names := [...]string{"read", "write", "flush", "discard", "zero-out"}; int(op) < len(names) {
		return names[op]
	}
	return fmt.Sprintf("op %d", uint8(op))
}

// Errors of requests, beside the errno that the kernel gave.
var (
	ErrTimeout   = errors.New("disk did not answer in time")
	ErrClosed    = errors.New("disk is closed")
	ErrNoSpace   = errors.New("no space on the disk")
	ErrUnaligned = errors.New("request is not a multiple of the logical block")
	ErrRange     = errors.New("request reaches beyond the disk")
	ErrReadOnly  = errors.New("disk is opened read-only")
	ErrInUse     = errors.New("disk is in use")
	ErrFlushLost = errors.New("an earlier flush failed: written data may be lost")
)

var errNoSpace = fmt.Errorf("%w: %w", ErrNoSpace, unix.ENOSPC)

// Request is one disk request. The caller owns and pools it; from Submit until Done it belongs to
// the store.
type Request struct {
	Op      Op
	FUA     bool  // Write, Discard, ZeroOut: stable before Done
	NoUnmap bool  // ZeroOut must allocate
	Off     int64 // bytes, a multiple of LogicalBlock
	Len     int64 // bytes, a multiple of LogicalBlock; Read and Write: len(Buf)
	Buf     []byte
	// Mem is the pool buffer that Buf lies in, or nil. The store holds a reference to it until the
	// kernel no longer uses the memory, which after ErrTimeout is later than Done.
	Mem   *iobuf.Buf
	Err   error          // outcome, set before Done
	Done  func(*Request) // called exactly once, on any goroutine (also from Submit); must not block
	Owner any            // the caller's

	next   *Request   // queues of this package
	pinned *iobuf.Buf // bounce buffer of a finished read, to be copied to Buf
	tick   uint32     // when it was submitted, in ticks of the store
}

// Extent is a range of a disk, in bytes.
type Extent struct {
	Off, Len int64
	Hole     bool // reads as zeroes, nothing is allocated
}

// Options say how to open a disk. The zero value but for Path is a good start.
type Options struct {
	Path       string
	Direct     string        // O_DIRECT: auto (where it works and helps), yes, no; "" is auto
	Engine     string        // auto, uring, threads, inline; "" is auto
	Timeout    time.Duration // disk-timeout: a request without an answer for so long fails; 0 waits for ever
	ReadOnly   bool
	NoFlush    bool // flushes and FUA do nothing: the disk's cache survives a power loss
	QueueDepth int  // requests in the kernel at a time, beyond it they queue here; 0 is 128
	// Batch, if not nil, is called around the Dones of requests that ended together on a goroutine that is made for
	// that: with true before the first and false after the last, which may take as long as a Done. Dones may come
	// without it too, and from other goroutines at the same time.
	Batch func(begin bool)
}

// Store is an open disk. All methods are safe for concurrent use.
type Store interface {
	// Submit starts the requests. It never waits for the disk: what exceeds the queue depth waits in a
	// queue of the store. Done may be called before Submit returns, and may itself call Submit.
	Submit(batch []*Request)

	// Do runs r on the caller's goroutine, sets r.Err and does not call Done. Cheapest at depth 1.
	Do(r *Request)

	// Cheap reports that Do is the best at any depth: tmpfs or a page-cached file.
	Cheap() bool

	// Size is the number of usable bytes, a multiple of LogicalBlock.
	Size() int64

	// LogicalBlock is the unit of offsets and lengths, in bytes: 512 or 4096.
	LogicalBlock() int

	// Discards reports that Discard frees space.
	Discards() bool

	// Rotational reports a disk with moving heads. When it cannot be known, false.
	Rotational() bool

	// Extents lists up to max extents from off on, in order and without gaps; together they are shorter than
	// length when max was reached. A block device is one allocated extent.
	Extents(off, length int64, max int) ([]Extent, error)

	// Grow extends a file to size bytes; on a block device it only checks that the device has grown.
	Grow(size int64) error

	// Resize reads the size again after the device or file was changed from outside, and returns it.
	Resize() (int64, error)

	// Close refuses new requests (ErrClosed) and waits for those in flight, for Options.Timeout or
	// 30 s without one; those still in the kernel then get ErrTimeout, and so does Close. In
	// that case memory of requests without Mem must not be used again, and the lock on the disk stays
	// until the kernel has given up the last request. Not to be called from Done.
	Close() error

	// ReadAt, WriteAt and Sync are for metadata: p may lie anywhere in memory, off and len(p)
	// are multiples of LogicalBlock. WriteAt is durable only after Sync. n is 0 or len(p).
	ReadAt(p []byte, off int64) (n int, err error)
	WriteAt(p []byte, off int64) (n int, err error)
	Sync() error
}

// IsFlushLost reports whether err came from a flush that failed, now or earlier: what was
// acknowledged as written since the last good flush may be lost.
func IsFlushLost(err error) bool { return errors.Is(err, ErrFlushLost) }

// Section is a part of a store, for metadata. Its Sync is that of the whole store.
type Section struct {
	s        Store
	off, len int64
}

// NewSection returns the part of s of length bytes from off on; both multiples of the logical block.
func NewSection(s Store, off, length int64) (*Section, error) {
	block := int64(s.LogicalBlock())
	if off%block != 0 || length%block != 0 {
		return nil, fmt.Errorf("section of %d bytes at %d: %w", length, off, ErrUnaligned)
	}
	if off < 0 || length < 0 || off > s.Size() || length > s.Size()-off {
		return nil, fmt.Errorf("section of %d bytes at %d of %d: %w", length, off, s.Size(), ErrRange)
	}
	return &Section{s, off, length}, nil
}

// Size is the section's length in bytes.
func (s *Section) Size() int64 { return s.len }

// ReadAt is Store.ReadAt within the section.
func (s *Section) ReadAt(p []byte, off int64) (int, error) {
	if off < 0 || off > s.len || int64(len(p)) > s.len-off {
		return 0, ErrRange
	}
	return s.s.ReadAt(p, s.off+off)
}

// WriteAt is Store.WriteAt within the section.
func (s *Section) WriteAt(p []byte, off int64) (int, error) {
	if off < 0 || off > s.len || int64(len(p)) > s.len-off {
		return 0, ErrRange
	}
	return s.s.WriteAt(p, s.off+off)
}

// Sync is Store.Sync.
func (s *Section) Sync() error { return s.s.Sync() }

// reqList is a queue of requests, linked through them.
type reqList struct{ head, tail *Request }

func (l *reqList) push(r *Request) {
	r.next = nil
	if l.tail == nil {
		l.head = r
	} else {
		l.tail.next = r
	}
	l.tail = r
}

func (l *reqList) pop() *Request {
	r := l.head
	if l.head = r.next; l.head == nil {
		l.tail = nil
	}
	r.next = nil
	return r
}

// move appends all of from.
func (l *reqList) move(from *reqList) {
	if from.head == nil {
		return
	}
	if l.tail == nil {
		l.head = from.head
	} else {
		l.tail.next = from.head
	}
	l.tail = from.tail
	*from = reqList{}
}
