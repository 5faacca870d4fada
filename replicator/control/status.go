package control

import (
	"fmt"
	"strconv"
	"time"
)

// UUID is a generation identifier or a device's; in JSON it is a string of 16 hexadecimal digits, as DRBD prints it.
type UUID uint64

// String gives the 16 digits.
func (u UUID) String() string { return fmt.Sprintf("%016X", uint64(u)) }

// MarshalText gives the 16 digits.
func (u UUID) MarshalText() ([]byte, error) { return []byte(u.String()), nil }

// UnmarshalText reads what MarshalText wrote.
func (u *UUID) UnmarshalText(text []byte) error {
	v, err := strconv.ParseUint(string(text), 16, 64)
	*u = UUID(v)
	return err
}

// Status is everything there is to know of a resource on this node, at one moment.
type Status struct {
	Resource string    `json:"resource"`
	Node     string    `json:"node"`
	NodeID   int       `json:"node-id"`
	PID      int       `json:"pid"`     // of the replicator
	Started  time.Time `json:"started"` // when the replicator opened the resource
	Role     string    `json:"role"`    // Primary, Secondary, Unknown
	// Suspended says why I/O is frozen: user, no-data, fencing (the handler fence-peer has not said yes), insync (a question
	// to the arbiter is open; only writes wait), licence (it has run out). Empty: it flows.
	Suspended    []string       `json:"suspended"`
	LastEvent    uint64         `json:"last-event"`          // id of the last event that this status contains
	Volumes      []VolumeStatus `json:"devices"`             // by number
	Peers        []PeerStatus   `json:"connections"`         // in the order of the definition
	Coordination string         `json:"coordination"`        // none, etcd
	Write        *WriteStatus   `json:"write,omitempty"`     // who may write; nil with coordination none
	Questions    []Question     `json:"questions,omitempty"` // open ones
	Witness      bool           `json:"witness,omitempty"`   // this node holds no volume of the resource
	NBD          []string       `json:"nbd,omitempty"`       // addresses (unix:PATH, tcp:IP:PORT) that answer now: only while Primary
}

// VolumeStatus is one volume on this node.
type VolumeStatus struct {
	Number       int    `json:"volume"`
	Device       string `json:"device,omitempty"`     // path of the block device, if there is one now
	Backing      string `json:"backing-dev"`          // path of the disk; "" is diskless
	DiskState    string `json:"disk-state"`           // Diskless, Attaching, Failed, Negotiating, Inconsistent, Outdated, Consistent, UpToDate
	Client       bool   `json:"client"`               // diskless on purpose
	Size         int64  `json:"size"`                 // bytes; 0: not known yet
	Read         int64  `json:"read"`                 // bytes read from the local disk
	Written      int64  `json:"written"`              // bytes written to the local disk
	ALWrites     int64  `json:"al-writes"`            // transactions of the activity log
	BMWrites     int64  `json:"bm-writes"`            // bitmap blocks written
	UpperPending int64  `json:"upper-pending"`        // requests of front ends not yet completed
	LowerPending int64  `json:"lower-pending"`        // requests handed to the local disk
	GI           GI     `json:"gi"`                   // generation identifiers and flags
	LastError    string `json:"last-error,omitempty"` // why the disk was lost or the device is missing
	Undo         int    `json:"undo,omitempty"`       // undo logs kept for this volume
	// Unvouched: the node does not remember this disk: it was made anew, or the state file is gone. It is not in sync,
	// whatever it says, until a resync under a term has ended.
	Unvouched bool        `json:"unvouched,omitempty"`
	Front     []FrontStat `json:"front-ends,omitempty"` // who has it open
}

// FrontStat is one user of a volume.
type FrontStat struct {
	Kind   string `json:"kind"`             // nbd, fuse, loop, kernel-nbd
	Client string `json:"client,omitempty"` // address of an NBD client
}

// GI are the generation identifiers of a volume, as drbdadm show-gi names them.
type GI struct {
	Current        UUID     `json:"current-uuid"`
	Bitmap         []PeerGI `json:"bitmap-uuids"`
	History        []UUID   `json:"history-uuids"`
	DeviceUUID     UUID     `json:"device-uuid"`
	Consistent     bool     `json:"consistent"`
	WasUpToDate    bool     `json:"was-up-to-date"`
	PrimaryInd     bool     `json:"primary-ind"`
	CrashedPrimary bool     `json:"crashed-primary"`
	ALClean        bool     `json:"al-clean"`
	ALDisabled     bool     `json:"al-disabled"`
	Size           int64    `json:"la-size"` // last agreed size, bytes
}

// PeerGI is the part of the generation identifiers that is about one peer.
type PeerGI struct {
	Peer      string `json:"peer"`
	NodeID    int    `json:"node-id"`
	UUID      UUID   `json:"bitmap-uuid"`
	Connected bool   `json:"connected"`
	Outdated  bool   `json:"outdated"`
	FullSync  bool   `json:"full-sync"`
}

// PeerStatus is the connection to one peer.
type PeerStatus struct {
	Name        string `json:"name"`
	NodeID      int    `json:"peer-node-id"`
	Address     string `json:"address"`              // the peer's
	Connection  string `json:"connection-state"`     // StandAlone ... Connected
	Role        string `json:"peer-role"`            // Primary, Secondary, Unknown
	Protocol    string `json:"protocol"`             // A, B, C
	WireVersion int    `json:"wire-version"`         // agreed protocol version, 0: none
	TLS         bool   `json:"tls"`                  // the sockets are encrypted
	Congested   bool   `json:"congested"`            // the send buffer is full
	InFlight    int64  `json:"ap-in-flight"`         // bytes of application writes not yet acknowledged
	LastError   string `json:"last-error,omitempty"` // why the link went down last
	// TermEnforced: the peer refuses writes of a lower term than it has seen. Without (a DRBD kernel, an older hawser, a
	// resource that is not coordinated there) only the lease keeps two writers apart.
	TermEnforced bool               `json:"term-enforced"`
	Term         uint64             `json:"peer-term,omitempty"` // the last it told
	Promised     int64              `json:"promised,omitempty"`  // until when it has promised this Primary not to run, CLOCK_BOOTTIME in ns
	Volumes      []PeerVolumeStatus `json:"peer-devices"`        // by number
}

// PeerVolumeStatus is one volume as seen over one connection.
type PeerVolumeStatus struct {
	Number      int       `json:"volume"`
	Replication string    `json:"replication-state"`     // Off, Established, SyncSource, ...
	DiskState   string    `json:"peer-disk-state"`       // DUnknown while nobody knows
	OutOfSync   int64     `json:"out-of-sync"`           // bytes marked in the bitmap
	DeviceUUID  UUID      `json:"device-uuid,omitempty"` // of the peer's disk, where terms are enforced
	Paused      []string  `json:"resync-suspended"`      // user, peer, dependency; empty: not paused
	Sent        int64     `json:"sent"`                  // bytes
	Received    int64     `json:"received"`              // bytes
	Pending     int64     `json:"pending"`               // requests to the peer not yet answered
	Unacked     int64     `json:"unacked"`               // requests of the peer that we have not answered
	Sync        *Progress `json:"sync,omitempty"`        // of the resync or verify that runs
	LastSync    *Progress `json:"last-sync,omitempty"`
}

// Progress is how far a resync or a verify is.
type Progress struct {
	Kind       string    `json:"kind"` // resync, verify
	Total      int64     `json:"total"`
	Done       int64     `json:"done"`
	Percent    float64   `json:"percent"`     // 0..100
	Rate       int64     `json:"rate"`        // bytes/s, over the last seconds
	ETA        float64   `json:"eta-seconds"` // -1: unknown
	Stalled    bool      `json:"stalled"`
	Started    time.Time `json:"started"`
	Ended      time.Time `json:"ended,omitzero"`        // zero: still running
	Mismatches int64     `json:"mismatches,omitempty"`  // bytes that a verify found different
	SameCsum   int64     `json:"same-csum,omitempty"`   // bytes that a checksum resync did not have to send
	VerifyPos  int64     `json:"verify-pos,omitempty"`  // byte that a verify has reached
	VerifyStop int64     `json:"verify-stop,omitempty"` // byte at which it ends
}

// Volume gives the volume with that number, nil if there is none.
func (s *Status) Volume(number int) *VolumeStatus {
	for i := range s.Volumes {
		if s.Volumes[i].Number == number {
			return &s.Volumes[i]
		}
	}
	return nil
}

// Peer gives the peer of that name, nil if there is none.
func (s *Status) Peer(name string) *PeerStatus {
	for i := range s.Peers {
		if s.Peers[i].Name == name {
			return &s.Peers[i]
		}
	}
	return nil
}

// Volume gives that volume on this connection, nil if there is none.
func (p *PeerStatus) Volume(number int) *PeerVolumeStatus {
	for i := range p.Volumes {
		if p.Volumes[i].Number == number {
			return &p.Volumes[i]
		}
	}
	return nil
}
