package wire

import "fmt"

// Limits of the protocol in bytes (section 1).
const (
	BlockSize       = 512       // every size is a multiple of it
	MaxData         = 1 << 20   // version 100 and up
	MaxData95       = 128 << 10 // 95..99
	MaxData94       = 32 << 10  // 94 and below
	MaxDiscard      = 128 << 20 // with FeatureWSame
	MaxDiscardOld   = 4 << 20   // without
	MaxString       = 63        // algorithm names and secrets, without the NUL
	MaxDigest       = 64        // the longest digest: sha512
	MaxBitmapPacket = 4096      // a bitmap packet including its header

	ChallengeSize    = 64  // bytes of a P_AUTH_CHALLENGE of ours
	ChallengeSizeMax = 128 // bytes that are accepted

	maxSector  = 1 << 54    // so that a byte position fits 63 bits
	maxPromise = 3600 * 1e9 // ns; leases are of seconds
)

// DataLimit is the largest data block of a version, in bytes.
func DataLimit(version int) uint32 {
	switch {
	case version >= 100:
		return MaxData
	case version >= 95:
		return MaxData95
	}
	return MaxData94
}

// DiscardLimit is the largest P_TRIM or P_ZEROES under the agreed features, in bytes.
func DiscardLimit(features uint32) uint32 {
	if features&FeatureWSame != 0 {
		return MaxDiscard
	}
	return MaxDiscardOld
}

type socket uint8

const (
	onData socket = 1 << iota
	onMeta
)

// layout of one command (section 7).
type layout struct {
	name  string
	fixed uint8
	tail  bool
	socks socket // 0: the command does not exist
}

// layouts is indexed by command; P_WSAME is left out on purpose (section 4).
var layouts = [0x40]layout{
	Data:             {"P_DATA", 24, true, onData},
	DataReply:        {"P_DATA_REPLY", 24, true, onData},
	RSDataReply:      {"P_RS_DATA_REPLY", 24, true, onData},
	Barrier:          {"P_BARRIER", 8, false, onData},
	Bitmap:           {"P_BITMAP", 0, true, onData},
	UnplugRemote:     {"P_UNPLUG_REMOTE", 0, false, onData},
	DataRequest:      {"P_DATA_REQUEST", 24, false, onData},
	RSDataRequest:    {"P_RS_DATA_REQUEST", 24, false, onData},
	SyncParam:        {"P_SYNC_PARAM", 0, true, onData},
	Protocol:         {"P_PROTOCOL", 24, true, onData},
	UUIDs:            {"P_UUIDS", 48, false, onData},
	Sizes:            {"P_SIZES", 32, false, onData},
	StateReport:      {"P_STATE", 4, false, onData},
	SyncUUID:         {"P_SYNC_UUID", 8, false, onData},
	AuthChallenge:    {"P_AUTH_CHALLENGE", 0, true, onData},
	AuthResponse:     {"P_AUTH_RESPONSE", 0, true, onData},
	StateChgReq:      {"P_STATE_CHG_REQ", 8, false, onData},
	Ping:             {"P_PING", 0, false, onMeta},
	PingAck:          {"P_PING_ACK", 0, false, onMeta},
	RecvAck:          {"P_RECV_ACK", 24, false, onMeta},
	WriteAck:         {"P_WRITE_ACK", 24, false, onMeta},
	RSWriteAck:       {"P_RS_WRITE_ACK", 24, false, onMeta},
	Superseded:       {"P_SUPERSEDED", 24, false, onMeta},
	NegAck:           {"P_NEG_ACK", 24, false, onMeta},
	NegDReply:        {"P_NEG_DREPLY", 24, false, onMeta},
	NegRSDReply:      {"P_NEG_RS_DREPLY", 24, false, onMeta},
	BarrierAck:       {"P_BARRIER_ACK", 8, false, onMeta},
	StateChgReply:    {"P_STATE_CHG_REPLY", 4, false, onMeta},
	OVRequest:        {"P_OV_REQUEST", 24, false, onData},
	OVReply:          {"P_OV_REPLY", 24, true, onData},
	OVResult:         {"P_OV_RESULT", 24, false, onMeta},
	CsumRSRequest:    {"P_CSUM_RS_REQUEST", 24, true, onData},
	RSIsInSync:       {"P_RS_IS_IN_SYNC", 24, false, onMeta},
	SyncParam89:      {"P_SYNC_PARAM89", 0, true, onData},
	CompressedBitmap: {"P_COMPRESSED_BITMAP", 0, true, onData},
	DelayProbe:       {"P_DELAY_PROBE", 8, false, onData | onMeta},
	OutOfSync:        {"P_OUT_OF_SYNC", 16, false, onData},
	RSCancel:         {"P_RS_CANCEL", 24, false, onMeta},
	ConnStChgReq:     {"P_CONN_ST_CHG_REQ", 8, false, onData},
	ConnStChgReply:   {"P_CONN_ST_CHG_REPLY", 4, false, onMeta},
	RetryWrite:       {"P_RETRY_WRITE", 24, false, onMeta},
	ProtocolUpdate:   {"P_PROTOCOL_UPDATE", 24, true, onData},
	Trim:             {"P_TRIM", 28, false, onData},
	RSThinReq:        {"P_RS_THIN_REQ", 24, false, onData},
	RSDeallocated:    {"P_RS_DEALLOCATED", 16, false, onData},
	Zeroes:           {"P_ZEROES", 28, false, onData},
	Term:             {"P_TERM", 16, false, onData},
	DiskID:           {"P_DISK_ID", 16, false, onData},
	PromiseRequest:   {"P_PROMISE_REQUEST", 24, false, onMeta},
	Promise:          {"P_PROMISE", 24, false, onMeta},
}

var (
	layoutInitialMeta = layout{"P_INITIAL_META", 0, false, onMeta}
	layoutInitialData = layout{"P_INITIAL_DATA", 0, false, onData}
	layoutFeatures    = layout{"P_CONNECTION_FEATURES", 72, false, onData}
	layoutNone        layout
)

func layoutOf(c Command) *layout {
	switch {
	case int(c) < len(layouts):
		return &layouts[c]
	case c == InitialMeta:
		return &layoutInitialMeta
	case c == InitialData:
		return &layoutInitialData
	case c == ConnectionFeatures:
		return &layoutFeatures
	}
	return &layoutNone
}

// String is DRBD's name of the packet, P_DATA for instance.
func (c Command) String() string {
	if l := layoutOf(c); l.socks != 0 {
		return l.name
	}
	return fmt.Sprintf("command 0x%02x", uint16(c))
}

// OnData reports whether the command is legal on the data socket.
func (c Command) OnData() bool { return layoutOf(c).socks&onData != 0 }

// OnMeta reports whether the command is legal on the meta socket.
func (c Command) OnMeta() bool { return layoutOf(c).socks&onMeta != 0 }

// FixedSize is the length of a command's fixed part in bytes and whether a tail
// may follow it; ok is false for a command that does not exist at that version.
func FixedSize(version int, features uint32, cmd Command) (n int, tailAllowed, ok bool) {
	l := layoutOf(cmd)
	switch {
	case l.socks == 0:
		return 0, false, false
	case cmd == Sizes && features&FeatureWSame != 0:
		return 56, false, true
	case cmd == SyncParam && version >= 89, cmd == SyncParam89 && version < 89:
		return 0, false, false
	case cmd >= Term && cmd <= Promise && features&FeatureTerm == 0:
		return 0, false, false
	case cmd == Protocol && version < 87:
		return 24, false, true
	}
	return int(l.fixed), l.tail, true
}

// BodySize checks a header and says how many payload bytes Parse wants: the
// fixed part, or all length bytes for commands whose tail is text (P_PROTOCOL,
// P_PROTOCOL_UPDATE, P_SYNC_PARAM*). It is never more than 152.
func BodySize(version int, features uint32, cmd Command, length uint32) (int, error) {
	fixed, tail, ok := FixedSize(version, features, cmd)
	if !ok {
		return 0, &PacketError{cmd, length, ErrCommand}
	}
	n, good := uint32(fixed), true
	switch cmd {
	case Data, DataReply, RSDataReply:
		good = length >= n && length-n <= DataLimit(version)+MaxDigest
	case OVReply, CsumRSRequest:
		good = length > n && length-n <= MaxDigest
	case Bitmap:
		good = length <= uint32(MaxBitmapPacket-HeaderSize(version)) && length%8 == 0
	case CompressedBitmap:
		good = length > 1 && length <= uint32(MaxBitmapPacket-HeaderSize(version))
	case AuthChallenge:
		good = length >= ChallengeSize && length <= ChallengeSizeMax
	case AuthResponse:
		good = length > 0 && length <= MaxDigest
	case Protocol, ProtocolUpdate:
		good = length == n || tail && length > n && length <= n+MaxString+1
		good = good && (length > n) == (version >= 87)
		n = length
	case SyncParam89:
		good = length == syncParamSize(version)
		n = length
	case SyncParam:
		good = length == 4 || version == 88 && length > 4 && length <= 4+MaxString+1
		n = length
	default:
		good = length == n
	}
	if !good {
		return 0, &PacketError{cmd, length, ErrLength}
	}
	return int(n), nil
}

// syncParamSize is the length of P_SYNC_PARAM89, which has no variable part.
func syncParamSize(version int) uint32 {
	if version >= 95 {
		return 148
	}
	return 132
}
