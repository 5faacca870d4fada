package core

import (
	"slices"

	"github.com/hawser-ha/hawser/replicator/actlog"
	"github.com/hawser-ha/hawser/replicator/bitmap"
	"github.com/hawser-ha/hawser/replicator/wire"
)

// View is a snapshot of a Machine for people and monitors.
type View struct {
	Role      wire.Role
	Suspended bool // by command
	NoData    bool // suspended because no good copy is in reach
	Fencing   bool // suspended until the handler fence-peer has answered
	InSync    bool // writes wait for an answer of the arbiter
	Licence   *LicenceView
	Questions []QuestionView
	Volumes   []VolumeView
	Peers     []PeerView
}

// VolumeView is one volume.
type VolumeView struct {
	Number                  int
	Size                    int64 // bytes
	Disk                    wire.Disk
	UUIDs                   Super
	Unvouched               bool // the node does not remember the disk
	AL                      actlog.Stats
	Read, Written, ALWrites int64      // bytes, bytes, transactions
	Pending                 int        // application requests in flight
	OnDisk                  int        // requests on the local disk
	Links                   []LinkView // by peer index
}

// LinkView is one volume towards one peer.
type LinkView struct {
	Conn                 wire.Conn // replication state
	Role                 wire.Role // the peer's
	Disk                 wire.Disk // the peer's
	OutOfSync            int64     // bytes
	Total, Done          int64     // bytes of the running resync or verify
	Failed               int64     // bytes that could not be copied
	Same                 int64     // bytes found equal by checksum
	Moved                int64     // bytes sent or received by the resync
	Since                Now       // start of the resync or verify
	Found                int64     // bytes a verify found different
	UserPause, PeerPause bool
	Undo                 bool
	Device               uint64 // device UUID of the peer's disk, if it told
}

// PeerView is one peer.
type PeerView struct {
	Name           string
	Conn           wire.Conn
	Why            error // of the last loss
	Protocol       uint32
	Version        int
	Features       uint32
	Sent, Received int64 // bytes of data
	Unacked        int   // writes without barrier acknowledgement
	InFlight       int64 // bytes of those
	TwoPrimaries   bool
	Terms          bool   // it enforces them
	Term           uint64 // the last it told
	Awaited        bool
	Qualified      bool // it has everything
	Member         bool // of the in-sync set
	Promised       Now
}

// View takes a snapshot.
func (m *Machine) View() View {
	w := View{Role: m.role, Suspended: m.suspUser, NoData: m.suspNoD, Fencing: m.fencing()}
	if m.cfg.Coordinated {
		w.Licence, w.InSync = m.licenceView(), m.undecided()
	}
	for _, q := range m.questions {
		w.Questions = append(w.Questions, q.view())
	}
	for _, v := range m.vols {
		vv := VolumeView{Number: v.num, Size: v.size, Disk: v.disk, UUIDs: v.sup, Read: v.reads, Written: v.writes, ALWrites: v.alWrites,
			Pending: v.appBusy, OnDisk: v.local}
		vv.Unvouched = m.cfg.Coordinated && v.device != 0 && !v.vouched
		vv.UUIDs.Bitmap = slices.Clone(v.sup.Bitmap)
		vv.UUIDs.Peers = slices.Clone(v.sup.Peers)
		if v.al != nil {
			vv.AL = v.al.Stats()
		}
		for _, l := range v.pv {
			vv.Links = append(vv.Links, LinkView{Conn: l.conn, Role: l.role, Disk: l.disk, OutOfSync: min(l.count()*bitmap.BlockSize, v.size),
				Total: l.rs.total * bitmap.BlockSize, Done: l.syncedBytes(), Failed: l.rs.failed * bitmap.BlockSize,
				Same: l.rs.same * bitmap.BlockSize, Moved: l.rs.moved, Since: l.rs.started, Found: l.rs.outOfSync * bitmap.BlockSize,
				UserPause: l.userPause, PeerPause: l.peerPause, Undo: l.undo, Device: l.device})
		}
		w.Volumes = append(w.Volumes, vv)
	}
	for _, p := range m.peers {
		w.Peers = append(w.Peers, PeerView{Name: p.cfg.Name, Conn: p.state, Why: p.why, Protocol: p.cfg.Net.Protocol, Version: p.li.Version,
			Features: p.li.Features, Sent: p.sentBytes, Received: p.rcvdBytes, Unacked: p.tlCount, InFlight: p.inflight, TwoPrimaries: p.twoPrim,
			Terms: m.cfg.Coordinated && p.up && p.terms(), Term: p.term, Awaited: p.awaited, Qualified: m.cfg.Coordinated && m.qualified(p),
			Member: m.member(p), Promised: p.promised})
	}
	return w
}
