package wire

// Command is a packet type (drbd-wire.md section 7).
type Command uint16

// The packet types of protocol 86..101.
const (
	Data               Command = 0x00
	DataReply          Command = 0x01
	RSDataReply        Command = 0x02
	Barrier            Command = 0x03
	Bitmap             Command = 0x04
	UnplugRemote       Command = 0x07
	DataRequest        Command = 0x08
	RSDataRequest      Command = 0x09
	SyncParam          Command = 0x0a
	Protocol           Command = 0x0b
	UUIDs              Command = 0x0c
	Sizes              Command = 0x0d
	StateReport        Command = 0x0e // P_STATE
	SyncUUID           Command = 0x0f
	AuthChallenge      Command = 0x10
	AuthResponse       Command = 0x11
	StateChgReq        Command = 0x12
	Ping               Command = 0x13
	PingAck            Command = 0x14
	RecvAck            Command = 0x15
	WriteAck           Command = 0x16
	RSWriteAck         Command = 0x17
	Superseded         Command = 0x18
	NegAck             Command = 0x19
	NegDReply          Command = 0x1a
	NegRSDReply        Command = 0x1b
	BarrierAck         Command = 0x1c
	StateChgReply      Command = 0x1d
	OVRequest          Command = 0x1e
	OVReply            Command = 0x1f
	OVResult           Command = 0x20
	CsumRSRequest      Command = 0x21
	RSIsInSync         Command = 0x22
	SyncParam89        Command = 0x23
	CompressedBitmap   Command = 0x24
	DelayProbe         Command = 0x27
	OutOfSync          Command = 0x28
	RSCancel           Command = 0x29
	ConnStChgReq       Command = 0x2a
	ConnStChgReply     Command = 0x2b
	RetryWrite         Command = 0x2c
	ProtocolUpdate     Command = 0x2d
	Trim               Command = 0x31
	RSThinReq          Command = 0x32
	RSDeallocated      Command = 0x33
	WSame              Command = 0x34
	Zeroes             Command = 0x36
	Term               Command = 0x3a // hawser's own from here, with FeatureTerm
	DiskID             Command = 0x3b
	PromiseRequest     Command = 0x3c
	Promise            Command = 0x3d
	InitialMeta        Command = 0xfff1
	InitialData        Command = 0xfff2
	ConnectionFeatures Command = 0xfffe
)

// Flags are the dp_flags of write packets (drbd-wire.md section 8.1).
type Flags uint32

// The dp_flags that are used.
const (
	FlagRWSync         Flags = 2
	FlagMaySetInSync   Flags = 4
	FlagFUA            Flags = 16
	FlagFlush          Flags = 32
	FlagDiscard        Flags = 64
	FlagSendReceiveAck Flags = 128
	FlagSendWriteAck   Flags = 256
	FlagZeroes         Flags = 1024
)

// Feature bits of P_CONNECTION_FEATURES (drbd-wire.md section 4).
const (
	FeatureTrim       = 1
	FeatureThinResync = 2
	FeatureWSame      = 4
	FeatureWZeroes    = 8
	// FeatureTerm is hawser's own: P_TERM, P_DISK_ID and promises (docs/adr/0006). A drbd peer never offers it.
	FeatureTerm = 1 << 27
)

// Block ids with a meaning of their own (drbd-wire.md section 8.2).
const (
	IDSyncer    uint64 = 0xffffffffffffffff // resync traffic
	IDInSync    uint64 = 4711               // P_OV_RESULT
	IDOutOfSync uint64 = 4712               // P_OV_RESULT
)

// Packet is one packet without its bulk data. It is one flat struct, not one
// type a command, so that the packets of the data path cost no allocation; the
// fields a command does not use are zero. Rare packets carry their body in Ext.
type Packet struct {
	Cmd     Command
	Vol     uint16
	Flags   Flags  // P_DATA, P_TRIM, P_ZEROES
	Sector  uint64 // first 512-byte sector
	BlockID uint64 // as read big endian; echoed, so its meaning is the sender's
	// Size is what the packet is about, in bytes: the data that follows (without
	// digest), the block requested or acknowledged, the range discarded.
	Size uint32
	Seq  uint32 // seq_num
	// Tail is the number of bytes behind the fixed part: digest and data, bitmap
	// words, challenge, ... The codec leaves them to the caller.
	Tail    uint32
	Barrier uint32 // P_BARRIER, P_BARRIER_ACK: opaque, echoed
	SetSize uint32 // P_BARRIER_ACK
	State   State  // P_STATE; val of the state requests
	Mask    State  // mask of the state requests
	Code    int32  // replies to state requests
	UUID    uint64 // P_SYNC_UUID
	Ext     any    // *ProtocolBody, *SyncParamBody, *SizesBody, *UUIDsBody, *FeaturesBody, *TermBody, *DiskIDBody, *PromiseBody
}

// NoHolder is the holder of a term that nobody holds, or nobody knows.
const NoHolder = -1

// TermBody is P_TERM: the highest term that the sender has seen. Every write on the connection carries the last one before it.
type TermBody struct {
	Term    uint64
	Holder  int32 // node id of who holds it, NoHolder
	Primary bool  // the sender is Primary, or about to be
}

// DiskIDBody is P_DISK_ID: the sender's disk of a volume.
type DiskIDBody struct {
	Device  uint64 // its device UUID; 0: it has none
	Vouched bool   // the sender remembers it, with the term
}

// PromiseBody is P_PROMISE_REQUEST and P_PROMISE: not to run for primary for a while.
type PromiseBody struct {
	ID       uint64 // of the request, echoed
	Term     uint64
	Duration uint64 // ns; 0 in a request gives the promise back, in an answer it is refused
}

// ProtocolBody is P_PROTOCOL and P_PROTOCOL_UPDATE.
type ProtocolBody struct {
	Protocol      uint32 // 1 A, 2 B, 3 C
	AfterSB0      uint32
	AfterSB1      uint32
	AfterSB2      uint32
	DiscardMyData bool // conn_flags 1
	DryRun        bool // conn_flags 2
	TwoPrimaries  bool
	IntegrityAlg  string
}

// SyncParamBody is P_SYNC_PARAM89 (and, with fewer fields, P_SYNC_PARAM).
type SyncParamBody struct {
	ResyncRate   uint32 // KiB/s
	VerifyAlg    string
	CsumsAlg     string
	CPlanAhead   uint32 // 0.1 s
	CDelayTarget uint32 // 0.1 s
	CFillTarget  uint32 // sectors
	CMaxRate     uint32 // KiB/s
}

// SizesBody is P_SIZES. Sizes are in sectors.
type SizesBody struct {
	DSize, USize, CSize                            uint64
	MaxBioSize                                     uint32 // bytes
	DDSFlags                                       uint16 // 1 forced, 2 no resync of the new space
	HasQueueLimits                                 bool   // the 24 further bytes of feature WSAME
	PhysBlock, LogBlock, AlignOffset, IOMin, IOOpt uint32
	DiscardEnabled, DiscardZeroes, WriteSame       uint8
}

// UUIDsBody is P_UUIDS.
type UUIDsBody struct {
	Current, Bitmap, History1, History2 uint64
	DirtyBits                           uint64
	Flags                               uint64 // UUIDDiscardMyData ...
}

// Flags of P_UUIDS.
const (
	UUIDDiscardMyData   = 1
	UUIDCrashedPrimary  = 2
	UUIDInconsistent    = 4
	UUIDSkipInitialSync = 8
)

// FeaturesBody is P_CONNECTION_FEATURES.
type FeaturesBody struct {
	ProtocolMin, Features, ProtocolMax uint32
}
