// Package export says how a front end (NBD, FUSE, ...) sees a replicated volume.
// The front ends are its children; the volume behind is the replicator's.
package export

import (
	"errors"

	"github.com/hawser-ha/hawser/replicator/iobuf"
)

// Op is what a Request does.
type Op uint8

// The operations of a volume.
const (
	Read        Op = iota
	Write          // Buf holds the data
	Flush          // everything acknowledged before is on stable storage afterwards
	Trim           // contents undefined afterwards
	WriteZeroes    // reads back as zeroes
)

// Errors of requests. A front end translates them once, at its edge.
var (
	ErrNotPrimary = errors.New("volume is not primary")             // NBD: ESHUTDOWN
	ErrIO         = errors.New("no good copy of the data in reach") // NBD: EIO
	ErrNoSpace    = errors.New("no space left on the backing stores")
)

// Request is one I/O request of a front end. The front end owns it, and pools it;
// a volume keeps it between Submit and Done only.
type Request struct {
	Op     Op
	FUA    bool       // stable before Done; for Write, Trim and WriteZeroes
	NoHole bool       // WriteZeroes must allocate
	Off    int64      // bytes, multiple of the minimum block size
	Len    int64      // bytes, multiple of the minimum block size
	Buf    *iobuf.Buf // Read, Write: len(Buf.B) == Len. Page aligned. The volume Retains it if it needs it beyond Done.

	// Err is the outcome, set before Done is called: nil or one of the errors above, possibly wrapped.
	Err error
	// Done is called exactly once, on any goroutine, also from within Submit. It must not block and must not
	// call Submit; replies are to be queued and sent in Kick.
	Done func(*Request)
	// Kick, if not nil, is called after a batch of Dones for which it is the same, on the same goroutine, with no
	// lock held: the place to send queued replies with one system call. (Set it per connection.)
	Kick Kicker

	// Private is the volume's, from Submit to Done.
	Private any
}

// Kicker flushes what Done has queued.
type Kicker interface{ Kick() }

// Extent is one run of equal allocation status.
type Extent struct {
	Len  int64 // bytes
	Hole bool
	Zero bool
}

// Limits are the block sizes of a volume, in bytes.
type Limits struct {
	MinBlock   int // smallest unit of Off and Len: 512 or 4096
	Preferred  int
	MaxIO      int // largest Read or Write
	Rotational bool
	FastZero   bool // WriteZeroes is certainly faster than Write
}

// Volume is one replicated volume as a front end sees it. Safe for concurrent use.
type Volume interface {
	// Size is the present size in bytes.
	Size() int64
	Limits() Limits
	// Open says whether a session may start: nil, or ErrNotPrimary wrapped with a reason for people ("r0/0 is
	// Secondary: hawser primary r0 makes it writable"). closed is called once when the session must end (demotion);
	// resized is called after the size changed. Both must not block.
	Open(closed func(reason error), resized func(size int64)) (Session, error)
	// Extents appends the allocation status of [off, off+length), at most max extents; never empty on success.
	Extents(out []Extent, off, length int64, max int) ([]Extent, error)
}

// Session is one opener of a volume: an NBD connection, a mounted FUSE file.
type Session interface {
	// Submit starts the requests of a batch in order and returns without waiting for more than a disk; a batch of
	// one on an idle volume is run to completion on the caller's goroutine. Every request gets its Done, whatever happens.
	// The slice is the caller's again when Submit returns. A volume that completes a long batch within Submit kicks
	// every few requests, so that the client works beside it.
	Submit(batch []*Request)
	// Close ends the session after its requests are done; it does not wait. No Submit runs then or follows.
	Close()
}
