package wire

// Role is DRBD's role (drbd-wire.md section 14).
type Role uint8

// Roles, with their numbers on the wire.
const (
	RoleUnknown Role = iota
	Primary
	Secondary
)

// Conn is the connection and replication state, one number on the 8.4 wire.
type Conn uint8

// Connection states, with their numbers on the wire.
const (
	StandAlone Conn = iota
	Disconnecting
	Unconnected
	Timeout
	BrokenPipe
	NetworkFailure
	ProtocolError
	TearDown
	WFConnection
	WFReportParams
	Connected
	StartingSyncS
	StartingSyncT
	WFBitMapS
	WFBitMapT
	WFSyncUUID
	SyncSource
	SyncTarget
	VerifyS
	VerifyT
	PausedSyncS
	PausedSyncT
	Ahead
	Behind
	connMask Conn = 31
)

// Disk is a disk state; the order has a meaning in comparisons.
type Disk uint8

// Disk states, with their numbers on the wire.
const (
	Diskless Disk = iota
	Attaching
	Failed
	Negotiating
	Inconsistent
	Outdated
	DUnknown
	Consistent
	UpToDate
)

// State is the state word of P_STATE and of state requests (drbd-wire.md section 14).
type State uint32

// Single-bit fields of the state word.
const (
	Susp    State = 1 << 17 // I/O suspended by the user
	AftrISP State = 1 << 18 // resync waits for another resource
	PeerISP State = 1 << 19 // resync paused by the peer
	UserISP State = 1 << 20 // resync paused by the user
	SuspNoD State = 1 << 21 // I/O suspended, no data
	SuspFen State = 1 << 22 // I/O suspended, fencing runs
)

// MakeState builds a state word from its fields.
func MakeState(role, peer Role, conn Conn, disk, pdsk Disk, bits State) State {
	return State(role)&3 | State(peer)&3<<2 | State(conn&connMask)<<4 | State(disk)&15<<9 | State(pdsk)&15<<13 | bits
}

// Role is the sender's role.
func (s State) Role() Role { return Role(s & 3) }

// Peer is the role of the other node as the sender knows it.
func (s State) Peer() Role { return Role(s >> 2 & 3) }

// Conn is the connection state.
func (s State) Conn() Conn { return Conn(s>>4) & connMask }

// Disk is the sender's disk state.
func (s State) Disk() Disk { return Disk(s >> 9 & 15) }

// PDsk is the other node's disk state as the sender knows it.
func (s State) PDsk() Disk { return Disk(s >> 13 & 15) }

// Has reports whether all of bits are set.
func (s State) Has(bits State) bool { return s&bits == bits }

var roleNames = [...]string{"Unknown", "Primary", "Secondary"}

func (r Role) String() string { return name(roleNames[:], int(r)) }

var connNames = [...]string{"StandAlone", "Disconnecting", "Unconnected", "Timeout", "BrokenPipe", "NetworkFailure",
	"ProtocolError", "TearDown", "WFConnection", "WFReportParams", "Connected", "StartingSyncS", "StartingSyncT",
	"WFBitMapS", "WFBitMapT", "WFSyncUUID", "SyncSource", "SyncTarget", "VerifyS", "VerifyT", "PausedSyncS",
	"PausedSyncT", "Ahead", "Behind"}

// String is the name as in the DRBD 8.4 kernel log.
func (c Conn) String() string { return name(connNames[:], int(c)) }

var diskNames = [...]string{"Diskless", "Attaching", "Failed", "Negotiating", "Inconsistent", "Outdated", "DUnknown",
	"Consistent", "UpToDate"}

func (d Disk) String() string { return name(diskNames[:], int(d)) }

func name(names []string, i int) string {
	if i < len(names) {
		return names[i]
	}
	return "?"
}
