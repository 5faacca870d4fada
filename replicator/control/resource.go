package control

import (
	"context"
	"io"
	"time"
)

// All stands for every volume where a command takes a volume number; "" stands for every peer.
const All = -1

// Resource is what a Server drives: one resource, open in this process. All methods are safe for concurrent
// use. A command returns when it is done or refused (as *Error), or with the error of ctx, in which case its
// outcome is unknown to the caller and the command itself goes on.
type Resource interface {
	// Definition is what the resource runs by now.
	Definition() *Definition
	// Status never blocks on I/O.
	Status() *Status
	// Subscribe gives the events after the one with that id (0: only those to come), until ctx ends; then the
	// channel is closed. A subscriber that is too slow gets an event of kind EventLost in place of what it missed.
	// Hub implements it.
	Subscribe(ctx context.Context, after uint64) <-chan Event

	// Adjust makes the resource run by def: Name, Node and the set of volume numbers and of peer names may not change
	// (agent/config turns such changes into a down and an up). Options change online where DRBD changes them online.
	Adjust(ctx context.Context, def *Definition) error

	Attach(ctx context.Context, volume int) error
	Detach(ctx context.Context, volume int, force bool) error
	Connect(ctx context.Context, peer string, discardMyData bool) error
	Disconnect(ctx context.Context, peer string, force bool) error
	Promote(ctx context.Context, force bool) error
	// Demote waits for requests in flight and for users of the devices to close; force fails and closes them.
	Demote(ctx context.Context, force bool) error
	Outdate(ctx context.Context, volume int) error
	Invalidate(ctx context.Context, volume int, peer string) error
	InvalidateRemote(ctx context.Context, volume int, peer string) error
	// Verify starts an online verify of [start, stop) bytes; stop 0 is the end. It does not wait for its end.
	Verify(ctx context.Context, volume int, peer string, start, stop int64) error
	PauseSync(ctx context.Context, volume int, peer string) error
	ResumeSync(ctx context.Context, volume int, peer string) error
	// Resize takes what the backing disks have to give; size limits it (bytes), 0 lifts the limit. With
	// assumeClean the new part is not resynced.
	Resize(ctx context.Context, volume int, size int64, assumeClean bool) error
	// SetProtocol changes A, B or C online, at an epoch boundary.
	SetProtocol(ctx context.Context, peer, protocol string) error
	// NewCurrentUUID starts a new generation; with clearBitmap on connected, just created disks it skips the initial resync.
	NewCurrentUUID(ctx context.Context, volume int, clearBitmap bool) error
	Suspend(ctx context.Context) error
	Resume(ctx context.Context) error

	ShowGI(ctx context.Context, volume int) (*GI, error)
	// DumpMD writes the metadata of a volume as drbdmeta dump-md does.
	DumpMD(ctx context.Context, volume int, w io.Writer) error
	// Undos lists the undo logs of a volume (All: of every volume), oldest first.
	Undos(ctx context.Context, volume int) ([]UndoLog, error)
	// ExportUndo writes the blocks of one undo log: as sparse records (format "hawser-undo") that say offset and
	// length before each run of data.
	ExportUndo(ctx context.Context, volume int, id string, w io.Writer) error
	// HandlerResult answers the event of kind EventHandler with that Handler id. code is the exit code, -1: it did not
	// run or did not end in time.
	HandlerResult(ctx context.Context, id uint64, code int) error

	// Grant tells who may write (docs/adr/0006). It returns when the term is durable.
	Grant(ctx context.Context, g *Grant) error
	// Deposed makes a Primary of that term or a lower one Secondary, and fails the requests that wait.
	Deposed(ctx context.Context, d Deposed) error
	// Candidacy says whether a promise keeps this node from running for primary.
	Candidacy(ctx context.Context, q Candidacy) (*CandidacyAnswer, error)

	// Down demotes (refused while Primary and in use), disconnects and detaches everything. It is bounded in time. The
	// Resource is of no use afterwards; the process that serves it ends.
	Down(ctx context.Context, force bool) error
}

// UndoLog is one undo log: what a resync overwrote on the losing side of a split brain.
type UndoLog struct {
	ID       string    `json:"id"`
	Volume   int       `json:"volume"`
	Peer     string    `json:"peer"`     // the side that won
	Time     time.Time `json:"time"`     // when it was begun
	Bytes    int64     `json:"bytes"`    // data saved
	Extents  int64     `json:"extents"`  // runs of blocks
	Complete bool      `json:"complete"` // the resync that it belongs to ended
	Path     string    `json:"path"`
	Error    string    `json:"error,omitempty"` // it is damaged, or its limit was reached
}

// CreateMDOptions is how metadata is made on the disks of a resource that is down.
type CreateMDOptions struct {
	Volume int  `json:"volume"`  // All: every volume
	Force  bool `json:"force"`   // over what is there: metadata, a file system
	DryRun bool `json:"dry-run"` // only say what would happen
}

// ConvertMDOptions is how the metadata of a resource that is down changes its version.
type ConvertMDOptions struct {
	Volume int  `json:"volume"`  // All: every volume
	To     int  `json:"to"`      // 8 (DRBD 8.4 in the kernel) or 9
	DryRun bool `json:"dry-run"` // only say what would happen
}

// ConvertMDResult is what was, or would be, done to one volume.
type ConvertMDResult struct {
	Volume    int    `json:"volume"`
	Disk      string `json:"disk"`
	From      int    `json:"from"`         // version found
	To        int    `json:"to"`           // version asked for
	Current   UUID   `json:"current-uuid"` // generation, which stays
	Clean     bool   `json:"clean"`        // the activity log was replayed; else that is done at the next attach
	Converted bool   `json:"converted"`    // it was done
}

// CreateMDResult is what was, or would be, done to one volume.
type CreateMDResult struct {
	Volume   int    `json:"volume"`
	Disk     string `json:"disk"`
	MetaDisk string `json:"meta-disk"`
	DiskSize int64  `json:"disk-size"`        // bytes
	Size     int64  `json:"size"`             // bytes for data
	MetaSize int64  `json:"meta-size"`        // bytes for metadata
	MetaOff  int64  `json:"meta-off"`         // where the metadata begins on MetaDisk
	Found    string `json:"found,omitempty"`  // what would be lost: "v09 metadata, UpToDate, ...", "ext4 file system"
	Created  bool   `json:"created"`          // it was done
	File     bool   `json:"file,omitempty"`   // Disk is a file made by this
	Detail   string `json:"detail,omitempty"` // anything else worth saying
}
