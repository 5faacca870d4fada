// Package control is how an agent and its replicators talk: the definition of a
// resource, commands, status and events as JSON over HTTP on a unix socket.
package control

import "time"

// Definition is one resource as this node's replicator needs it: every name
// resolved, every default filled in, every rule checked (agent/config does).
// Option names are drbd.conf's; units stand in the comments.
type Definition struct {
	Name    string       `json:"name"`
	Node    string       `json:"node"`    // this node's name
	NodeID  int          `json:"node-id"` // this node's id, 0..31
	Volumes []VolumeDef  `json:"volumes"`
	Peers   []PeerDef    `json:"peers"`
	Options ResourceOpts `json:"options"`
	// Handlers are the names of the handlers that the agent has a command for.
	Handlers []string `json:"handlers,omitempty"`
	// Coordination says who decides who may write: none or "" (Pacemaker, a person), etcd.
	Coordination string `json:"coordination,omitempty"`
	// TTL is that of a lease in etcd, and of a promise over the link. Margin is what clocks may drift apart in that time.
	TTL    time.Duration `json:"ttl,omitempty"`
	Margin time.Duration `json:"margin,omitempty"`
	// NBD says where the NBD server of this resource listens; the export is named RESOURCE/VOLUME.
	NBD NBDDef `json:"nbd"`
}

// VolumeDef is one volume on this node.
type VolumeDef struct {
	Number    int      `json:"number"`             // 0..65534
	Device    string   `json:"device"`             // auto, nbd, fuse, none
	DevLink   string   `json:"dev-link,omitempty"` // for example /dev/drbd0: a further symlink to the device
	Disk      string   `json:"disk"`               // path of a block device or file; "" is diskless
	MetaDisk  string   `json:"meta-disk"`          // "internal", or the path of a device or file (flexible external)
	MetaIndex int      `json:"meta-index"`         // indexed external: 0..; -1 is flexible
	Size      int64    `json:"size"`               // bytes for create-md of a file, or the size limit; 0 is the whole device
	Opts      DiskOpts `json:"disk-options"`
}

// DiskOpts are the disk options of drbd.conf(5) that act on the local store.
type DiskOpts struct {
	OnIOError            string        `json:"on-io-error"` // detach, pass_on, call-local-io-error
	DiskFlushes          bool          `json:"disk-flushes"`
	MDFlushes            bool          `json:"md-flushes"`
	ALExtents            int           `json:"al-extents"` // 67..65534
	ALUpdates            bool          `json:"al-updates"`
	DiskTimeout          time.Duration `json:"disk-timeout"` // 0 is never
	ReadBalancing        string        `json:"read-balancing"`
	RSDiscardGranularity int           `json:"rs-discard-granularity"` // bytes, 0 is off
	DirectIO             string        `json:"direct-io"`              // auto, yes, no
	Rotational           bool          `json:"rotational"`
}

// PeerDef is one other node of the resource and the link to it.
type PeerDef struct {
	Name       string     `json:"name"`
	NodeID     int        `json:"node-id"`
	Local      string     `json:"local-address"` // IP:port on which this node listens for this peer
	Remote     string     `json:"address"`       // IP:port
	Diskless   bool       `json:"diskless"`      // the peer has no disk: it gets no bitmap
	BitmapSlot int        `json:"bitmap-slot"`   // slot of this peer in the metadata
	Net        NetOpts    `json:"net"`
	Resync     ResyncOpts `json:"resync"`
}

// NetOpts are the net options of drbd.conf(5).
type NetOpts struct {
	Protocol            string        `json:"protocol"` // A, B, C
	Timeout             time.Duration `json:"timeout"`
	PingInt             time.Duration `json:"ping-int"`
	PingTimeout         time.Duration `json:"ping-timeout"`
	ConnectInt          time.Duration `json:"connect-int"`
	SocketCheckTimeout  time.Duration `json:"socket-check-timeout"`
	KOCount             int           `json:"ko-count"` // 0 is never
	MaxEpochSize        int           `json:"max-epoch-size"`
	MaxBuffers          int           `json:"max-buffers"` // pages of 4 KiB
	SndbufSize          int           `json:"sndbuf-size"` // bytes, 0 is automatic
	RcvbufSize          int           `json:"rcvbuf-size"` // bytes, 0 is automatic
	AllowTwoPrimaries   bool          `json:"allow-two-primaries"`
	CramHMACAlg         string        `json:"cram-hmac-alg"`
	SharedSecret        string        `json:"shared-secret"`
	AfterSB0Pri         string        `json:"after-sb-0pri"`
	AfterSB1Pri         string        `json:"after-sb-1pri"`
	AfterSB2Pri         string        `json:"after-sb-2pri"`
	AlwaysASBP          bool          `json:"always-asbp"`
	RRConflict          string        `json:"rr-conflict"`
	DataIntegrityAlg    string        `json:"data-integrity-alg"`
	OnCongestion        string        `json:"on-congestion"`   // block, pull-ahead, disconnect
	CongestionFill      int64         `json:"congestion-fill"` // sectors
	CongestionExtents   int           `json:"congestion-extents"`
	CsumsAlg            string        `json:"csums-alg"`
	CsumsAfterCrashOnly bool          `json:"csums-after-crash-only"`
	VerifyAlg           string        `json:"verify-alg"`
	UseRLE              bool          `json:"use-rle"`
	Fencing             string        `json:"fencing"` // dont-care, resource-only, resource-and-stonith
	// TLS between the nodes: PEM files, all three or none. The certificate names the node's address or its name, and is
	// good for a server and for a client.
	TLSCert string `json:"tls-cert,omitempty"`
	TLSKey  string `json:"tls-key,omitempty"`
	TLSCA   string `json:"tls-ca,omitempty"`
}

// ResyncOpts are the peer-device options of drbd.conf(5): the resync controller's.
type ResyncOpts struct {
	ResyncRate   int `json:"resync-rate"`    // KiB/s
	CPlanAhead   int `json:"c-plan-ahead"`   // 0.1 s; 0 is a fixed rate
	CDelayTarget int `json:"c-delay-target"` // 0.1 s
	CFillTarget  int `json:"c-fill-target"`  // sectors
	CMaxRate     int `json:"c-max-rate"`     // KiB/s
	CMinRate     int `json:"c-min-rate"`     // KiB/s
}

// ResourceOpts are the options of the options section of drbd.conf(5).
type ResourceOpts struct {
	OnNoDataAccessible string `json:"on-no-data-accessible"` // io-error, suspend-io
	OnNoQuorum         string `json:"on-no-quorum"`          // suspend-io, io-error: when the licence to write has run out
	UndoLog            string `json:"undo-log"`              // directory of the undo logs; "" is off
	UndoLogMax         int64  `json:"undo-log-max"`          // bytes
}

// NBDDef says where the NBD server listens.
type NBDDef struct {
	Unix    string `json:"unix"`     // path of the socket; "" is none
	Listen  string `json:"listen"`   // IP:port; "" is none
	TLSCert string `json:"tls-cert"` // PEM files; all three or none
	TLSKey  string `json:"tls-key"`
	TLSCA   string `json:"tls-ca"` // clients must show a certificate of this CA
}
