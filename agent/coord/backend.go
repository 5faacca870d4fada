package coord

import (
	"context"
	"time"
)

// LeaseID names a lease; 0 is none.
type LeaseID int64

// Header says where an answer comes from.
type Header struct {
	Cluster  uint64 `json:"cluster"`   // of the store: another one is not ours
	Revision uint64 `json:"revision"`  // of the whole store
	RaftTerm uint64 `json:"raft-term"` // of the member that answered
}

// KV is a key as stored. Mod is the revision of the last change, Create that of the first since it was absent.
type KV struct {
	Key         string
	Value       []byte
	Create, Mod uint64
	Lease       LeaseID
}

// Page is what a prefix holds at Header.Revision.
type Page struct {
	Header
	KVs []KV
}

// What a Compare looks at.
type What uint8

// Values of What.
const (
	Mod    What = iota // mod revision; 0: the key is absent
	Create             // create revision; 0: the key is absent
	Lease              // lease of the key
)

// Compare is a condition: What of Key equals Value.
type Compare struct {
	Key   string
	What  What
	Value uint64
}

// Op puts or deletes a key.
type Op struct {
	Key    string
	Value  []byte
	Lease  LeaseID
	Delete bool
}

// TxnOpsMax is how many operations a transaction may have: etcd's default.
const TxnOpsMax = 128

// Txn does all of Then if all of If holds, and otherwise reads the keys Read.
type Txn struct {
	If   []Compare
	Then []Op
	Read []string
}

// Result is what a transaction came to. KVs are the keys that Read found, when it was not done.
type Result struct {
	Header
	Done bool
	KVs  []KV
}

// Change is one key that changed.
type Change struct {
	KV
	Deleted bool
}

// Changes are those up to Header.Revision; none: nothing has changed up to there.
type Changes struct {
	Header
	List []Change
}

// Backend is the port to the store. Safe for concurrent use. Methods return when they know, when ctx ends, or when all that can be tried has
// been; each attempt has its own deadline below that. Errors, asked with errors.Is:
//
//	ErrUncertain    Txn, Grant, Revoke: nobody answered, it may have been done or still be
//	ErrUnavailable  nobody answered, and nothing was changed
//	ErrRefused      the store answered that it does not do this
//	ErrLeaseGone    the lease does not exist
//	ErrCompacted    Watch: the revision is too old
type Backend interface {
	// Range reads everything below prefix. Linearizable: it includes everything that was answered before the call.
	Range(ctx context.Context, prefix string) (Page, error)
	// Head is a linearizable read of nothing.
	Head(ctx context.Context) (Header, error)
	Txn(ctx context.Context, t Txn) (Result, error)
	// Watch gives the changes below prefix after a revision.
	Watch(ctx context.Context, prefix string, after uint64) (Watcher, error)
	// Grant makes a lease; granted is at least ttl.
	Grant(ctx context.Context, ttl time.Duration) (id LeaseID, granted time.Duration, err error)
	// KeepAlive renews a lease; ttl is what it has from then on.
	KeepAlive(ctx context.Context, id LeaseID) (ttl time.Duration, err error)
	Revoke(ctx context.Context, id LeaseID) error
	// Seen is the newest answer ever seen. Older ones are ignored, also those older than what Expect told.
	Seen() Header
	Expect(Header)
}

// Watcher is a stream of changes, for one goroutine.
type Watcher interface {
	// Next waits for the next ones. An error ends the stream.
	Next(ctx context.Context) (Changes, error)
	// Poke asks for an answer of Next that says how far the stream is, though nothing changed.
	Poke(ctx context.Context) error
	Close()
}
