package core

import (
	"errors"
	"time"

	"github.com/hawser-ha/hawser/replicator/actlog"
	"github.com/hawser-ha/hawser/replicator/bitmap"
	"github.com/hawser-ha/hawser/replicator/genid"
	"github.com/hawser-ha/hawser/replicator/pace"
	"github.com/hawser-ha/hawser/replicator/wire"
)

// Now is a moment on a monotonic clock, in nanoseconds. Every event carries one; they never go back.
type Now int64

// Errors of requests and commands. The text is for people; callers ask with errors.Is.
var (
	ErrNotPrimary    = errors.New("not primary")
	ErrNoData        = errors.New("no good copy of the data in reach")
	ErrNoSpace       = errors.New("no space left on the backing stores")
	ErrIO            = errors.New("i/o error on every copy of the data")
	ErrOutOfRange    = errors.New("beyond the end of the volume")
	ErrNotUpToDate   = errors.New("needs an UpToDate disk")
	ErrPeerPrimary   = errors.New("the peer is primary and two primaries are not allowed")
	ErrRefusedByPeer = errors.New("refused by the peer")
	ErrNoConnection  = errors.New("needs a connection")
	ErrNoDisk        = errors.New("needs a local disk")
	ErrBusy          = errors.New("a resync or verify is running")
	ErrTwice         = errors.New("another change is under way")
	ErrLinkLost      = errors.New("the connection was lost meanwhile")
	ErrPrimary       = errors.New("is primary")
	ErrAlgorithm     = errors.New("no algorithm is configured")
	// ErrUndo is what the caller gives DiskDone when the undo log could not take the blocks a request would overwrite.
	ErrUndo     = errors.New("the undo log cannot take what would be overwritten")
	ErrTooSmall = errors.New("the disk is smaller than the volume")
	// ErrPeerUnknown: the handler fence-peer does not say what a lost peer does.
	ErrPeerUnknown = errors.New("the peer is not fenced")
	ErrNoLicence   = errors.New("no licence to write")
	ErrStale       = errors.New("something newer is known")
	ErrDeposed     = errors.New("deposed")
)

// Kind says what a Request is.
type Kind uint8

// Request kinds: the first five come from front ends through Submit, the others are made by the Machine.
const (
	AppRead Kind = iota
	AppWrite
	AppFlush
	AppTrim
	AppZero
	PeerWrite   // P_DATA, P_TRIM, P_ZEROES of a peer; Op says which
	PeerRead    // P_DATA_REQUEST: read here, sent as P_DATA_REPLY
	SyncRead    // source: P_RS_DATA_REQUEST (or thin or checksum request): read here, sent as P_RS_DATA_REPLY
	SyncWrite   // target: our request and, later, its P_RS_DATA_REPLY written here
	VerifyRead  // target of a verify: read, digest sent as P_OV_REPLY
	VerifyCheck // source of a verify: request, then own read compared with the peer's digest
	EpochFlush  // a flush of the disk because an epoch ended
	HealWrite   // a block read from a peer after a local read error, written back
)

// Op is what happens on a disk.
type Op uint8

// Disk operations.
const (
	OpRead Op = iota
	OpWrite
	OpFlush
	OpDiscard
	OpZero
)

// Request is one piece of I/O, from whoever it comes. The Machine makes and recycles them
// (NewRequest, Effect Release); the caller hangs its buffers on Tag.
type Request struct {
	Kind    Kind
	Op      Op
	Vol     int   // volume number
	Off     int64 // bytes
	Len     int64 // bytes
	FUA     bool
	NoUnmap bool
	Peer    int // index of the peer it came from or goes to; -1 for requests of front ends
	Tag     any // the caller's, untouched by the Machine

	// Set by the caller before DiskDone of a SyncRead that compares digests or of a VerifyCheck: the digests are equal.
	Match bool
	// Set by the caller before DiskDone of a SyncRead with Thin: the data read is all zeroes.
	AllZero bool

	// Compare tells the caller what a disk read is for beside its data:
	Compare bool // compute the digest (csums-alg or verify-alg) and compare it with the one that came in the request or reply (Match)
	Thin    bool // find out whether all is zero (AllZero)
	Digest  bool // compute the digest (csums-alg for SyncWrite, verify-alg for VerifyRead): it is sent in place of the data
	Undo    bool // SyncWrite: what is on the disk goes to the undo log, durably, before it is overwritten

	reqState
}

// EffectKind says what an Effect asks for.
type EffectKind uint8

// Effects. In brackets: the event that answers.
const (
	// Send Pkt to Peer. If Pkt.Tail > 0 the tail is the data of Req (or its digest where Req.Digest or Compare says so and
	// the command carries a digest); the integrity digest is the caller's business. Never waits.
	Send EffectKind = iota
	// Disk does Req.Op on the local disk of Req.Vol. [DiskDone]
	Disk
	// Complete answers the front end: Err is the outcome. The Request lives on until Release.
	Complete
	// Release: the Machine has forgotten Req, its buffers are free: give it back with Recycle. Always the last effect of a Request.
	Release
	// WriteSuper makes Super of Vol durable; if Flush is set the data disk is flushed first, and if Bitmap is set then
	// all changed bitmap blocks are written between the two. [SuperDone with Token]
	WriteSuper
	// WriteAL writes the bitmap blocks (of all peers) that cover Tx.Evicted, data flushed before them, then Tx itself, durably. [ALDone]
	WriteAL
	// Connect starts to establish the link to Peer (again and again until it succeeds). [LinkUp]
	Connect
	// CloseLink ends the link to Peer, or the attempts; Err says why. LinkDown must not be called for it afterwards.
	CloseLink
	// FlushLink: hand what is queued for Peer to the network before going on (before CloseLink after a graceful goodbye).
	FlushLink
	// SendBitmap sends our bitmap of (Vol, Peer) as drbd-wire.md section 20 says, from a copy taken now, in order with other packets.
	SendBitmap
	// CloseDisk releases the backing store of Vol (after its I/O has ended or failed). [DiskClosed]
	CloseDisk
	// RoleChanged: the role is now Primary or Secondary (see Machine.Role): front ends open or close.
	RoleChanged
	// SizeChanged: Vol has a new size: Off.
	SizeChanged
	// Result answers the command Cmd with Err.
	Result
	// Event is something worth telling: Note says what, Vol and Peer where (-1: not applicable). About a question Cmd is its
	// *QuestionView.
	Event
	// RunHandler runs the user's handler named Note (split-brain, pri-lost, local-io-error, before-resync-target, ...).
	// With a Token the Machine waits for the outcome. [HandlerDone with Token]
	RunHandler
	// UndoBegin and UndoEnd bracket a resync whose overwritten blocks go to the undo log of Vol (Peer won).
	UndoBegin
	UndoEnd
	// WriteRecord makes the *Record in Cmd durable. [RecordDone with Token]
	WriteRecord
	// Deposed: another node holds a higher term: devices are to be taken away by force. The demotion is under way.
	Deposed
)

// Effect is one thing the Machine wants done. A flat struct, so that the data path allocates nothing.
type Effect struct {
	Kind   EffectKind
	Vol    int
	Peer   int
	Req    *Request
	Pkt    wire.Packet
	Err    error
	Super  *Super
	Token  uint64
	Flush  bool
	Bitmap bool
	Off    int64
	Tx     *actlog.Transaction
	Cmd    any
	Note   string
}

// Super is what the Machine keeps durable of a volume: the part of the superblock that changes.
type Super struct {
	Size                                                            int64 // agreed size in bytes, 0: never agreed
	Current                                                         uint64
	Bitmap                                                          []uint64 // by peer index
	History                                                         [2]uint64
	Consistent, WasUpToDate, PrimaryInd, CrashedPrimary, ALDisabled bool
	Peers                                                           []SuperPeer // by peer index
}

// SuperPeer is the part of Super that is about one peer.
type SuperPeer struct {
	Connected, OutDated, FullSync bool
}

// DiskInfo is the disk of a volume as the caller found it at attach.
type DiskInfo struct {
	Capacity int64 // bytes for data that the disk and its metadata allow (d_size)
	Super    Super
	Bitmaps  []*bitmap.Bitmap // by peer index, sized for Capacity, activity log already applied
	ALSlots  int              // al-extents
	ALBlocks int              // 4 KiB blocks in the ring of the activity log
	Discards bool
	Device   uint64 // device UUID
}

// Config is a resource. Slices are fixed for the life of a Machine.
type Config struct {
	Volumes []VolumeConfig
	Peers   []PeerConfig
	// Rand draws random bits: new UUIDs. Deterministic in the simulator.
	Rand            func() uint64
	SuspendOnNoData bool // on-no-data-accessible suspend-io
	BeforeTarget    bool // there is a handler before-resync-target
	// Coordinated: an arbiter grants licences to write (licence.go). Without, the option fencing of the peers counts.
	Coordinated    bool
	FailUnlicensed bool // on-no-quorum io-error: what has no licence fails, rather than to wait for one
	TTL, Margin    Now  // of promises, and of the clocks in that time
	NodeID         int
	Record         Record // what this node remembers
	Bound          Now    // what an earlier life promised may bind until then
}

// VolumeConfig is one volume.
type VolumeConfig struct {
	Number          int
	UserSize        int64  // size limit in bytes, 0: none
	OnIOError       string // detach, pass_on, call-local-io-error
	ALUpdates       bool
	ThinGranularity int64 // rs-discard-granularity in bytes, 0: off
	ReadBalancing   string
	// MaxBio is the largest resync request in bytes (at most 1 MiB).
	MaxBio int64
}

// PeerConfig is one peer and the options of its connection.
type PeerConfig struct {
	Name     string
	NodeID   int
	Diskless bool // it never has a disk: no bitmap for it
	Net      NetConfig
	Pace     pace.Params
	MinRate  int // c-min-rate in KiB/s: down to this a source gives way to the application
}

// NetConfig are the net options that the Machine acts on.
type NetConfig struct {
	Protocol            uint32        // 1 A, 2 B, 3 C
	Timeout             time.Duration // of a request; times KOCount it is deadly
	KOCount             int
	PingInt             time.Duration
	PingTimeout         time.Duration
	MaxEpochSize        int
	MaxBuffers          int // pages of 4 KiB
	TwoPrimaries        bool
	Policies            genid.Policies
	RRConflict          string
	IntegrityAlg        string
	IntegritySize       int // bytes of that digest
	CsumsAlg            string
	CsumsSize           int
	CsumsAfterCrashOnly bool
	VerifyAlg           string
	VerifySize          int
	OnCongestion        string
	CongestionFill      int64 // bytes
	CongestionExtents   int
	Fencing             string // dont-care, resource-only, resource-and-stonith
}

// LinkInfo is what the handshake of a link agreed on.
type LinkInfo struct {
	Version          int
	Features         uint32
	ResolveConflicts bool
	// LastReceived gives the moment at which anything last arrived on the data or meta socket.
	LastReceived func() (data, meta Now)
	// SendStalled gives since when the data socket takes no bytes though some are queued; 0: it does not stall.
	SendStalled func() Now
	// Queued gives the bytes queued for sending.
	Queued func() int
}

// FeatureRelaxedEpochs (hawser's own, drbd peers never offer it): a barrier asks that its epoch be made stable
// and acknowledged, but not that later writes wait for it; a write that must wait carries FLUSH.
const FeatureRelaxedEpochs = 1 << 28
