package coord

import (
	"errors"
	"fmt"
	"strings"
)

var (
	// ErrConflict means: somebody else changed what the change was decided on. Nothing was done; look again.
	ErrConflict = errors.New("somebody else changed it")
	// ErrUncertain means: no answer. It may have been done, or may still be: read it back, or do the same again.
	ErrUncertain = errors.New("no answer, the outcome is not known")
	// ErrUnavailable means: nobody answered, and nothing was done.
	ErrUnavailable = errors.New("the store does not answer")
	// ErrRefused means: the store answered that it does not do this: access, space, a wrong request. Nothing was done.
	ErrRefused = errors.New("the store refuses")
	// ErrNoSession means: this node has no lease, or another agent has taken its place.
	ErrNoSession = errors.New("this node has no valid lease")
	// ErrNameTaken means: another machine uses this node's name.
	ErrNameTaken = errors.New("another machine has this node name")
	// ErrNotInSync means: this node's disks are not in the in-sync set.
	ErrNotInSync = errors.New("not in the in-sync set")
	// ErrLeaseGone means: the lease does not exist any more.
	ErrLeaseGone = errors.New("the lease is gone")
	// ErrCompacted means: changes since then are not kept any more.
	ErrCompacted = errors.New("that revision is compacted")
	// ErrStale means: an answer older than one that was seen before, or from another cluster.
	ErrStale = errors.New("the answer is out of date")
)

// BadValueError says that a key holds what this version cannot read.
type BadValueError struct {
	Key string
	Err error
}

func (e *BadValueError) Error() string { return fmt.Sprintf("key %s: %v", e.Key, e.Err) }
func (e *BadValueError) Unwrap() error { return e.Err }

// Watermark remembers the newest answer. It is not safe for concurrent use.
type Watermark struct{ seen Header }

// Seen is the newest answer.
func (w *Watermark) Seen() Header { return w.seen }

// Expect sets the mark higher, never lower.
func (w *Watermark) Expect(h Header) {
	if w.seen.Cluster == 0 {
		w.seen.Cluster = h.Cluster
	}
	if h.Cluster == w.seen.Cluster {
		w.seen.Revision, w.seen.RaftTerm = max(w.seen.Revision, h.Revision), max(w.seen.RaftTerm, h.RaftTerm)
	}
}

// Admit refuses an answer that cannot be linearizable: of another cluster, of an older raft term, or of a lower revision than before was the mark when the
// request was sent. since is that mark; a zero Revision of h is not judged (a renewal says where the member was before it asked the leader).
func (w *Watermark) Admit(h, since Header) error {
	var why []string
	switch {
	case w.seen.Cluster != 0 && h.Cluster != w.seen.Cluster:
		return fmt.Errorf("%w: it is of cluster %x, ours is %x", ErrStale, h.Cluster, w.seen.Cluster)
	case h.RaftTerm < since.RaftTerm:
		why = append(why, fmt.Sprintf("raft term %d, %d was seen", h.RaftTerm, since.RaftTerm))
	}
	if h.Revision != 0 && h.Revision < since.Revision {
		why = append(why, fmt.Sprintf("revision %d, %d was seen", h.Revision, since.Revision))
	}
	if why != nil {
		return fmt.Errorf("%w: %s", ErrStale, strings.Join(why, ", "))
	}
	w.Expect(h)
	return nil
}
