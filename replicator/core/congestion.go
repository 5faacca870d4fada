package core

import (
	"errors"

	"github.com/hawser-ha/hawser/replicator/bitmap"
	"github.com/hawser-ha/hawser/replicator/wire"
)

// aheadCalm is how long after the last acknowledgement an Ahead node starts to resync (drbd-wire.md 24).
const aheadCalm = Now(1e9)

// congested acts on congestion before a write is sent: true if the write must not be sent as data.
func (m *Machine) congested(l *link) bool {
	p := l.p
	n := &p.cfg.Net
	if n.OnCongestion == "" || n.OnCongestion == "block" || n.Protocol != 1 || p.li.Version < 96 {
		return false
	}
	if l.conn != wire.Connected && l.conn != wire.SyncSource {
		return false
	}
	full := n.CongestionFill > 0 && p.inflight > n.CongestionFill
	if n.CongestionExtents > 0 && l.v.al != nil && l.v.al.Held() > n.CongestionExtents {
		full = true
	}
	if !full {
		return false
	}
	if n.OnCongestion == "disconnect" {
		m.standAlone(p, errors.New("congestion: on-congestion disconnect"))
		return true
	}
	m.becomeAhead(l)
	return true
}

func (m *Machine) becomeAhead(l *link) {
	m.closeEpoch(l.p)
	m.sendBarrier(l.p)
	if l.conn == wire.SyncSource {
		m.stopSource(l)
		if l.doubt == nil {
			l.doubt = bitmap.New(l.v.bits())
		}
	}
	m.setConn(l, wire.Ahead)
	l.aheadUntil = m.now + aheadCalm
	m.sendState(l)
}

// stopSource refuses what the target still asks for.
func (m *Machine) stopSource(l *link) {
	for r := l.v.head; r != nil; r = r.nxt {
		if r.Kind == SyncRead && r.Peer == l.p.idx && !r.cancelled {
			m.ack(l, wire.RSCancel, uint64(r.Off)>>9, wire.IDSyncer, uint32(r.Len))
		}
	}
	m.stopSync(l)
}

// becomeBehind follows a peer that is Ahead: it tells us what changes, and resyncs later.
func (m *Machine) becomeBehind(l *link) {
	if l.v.disk < wire.Inconsistent || l.bm == nil {
		return
	}
	if l.conn == wire.Connected {
		l.peerSet = l.v.set(l.p.idx)
	} else {
		m.stopSync(l) // the source is congested again: the rest comes later
	}
	m.setConn(l, wire.Behind)
}

// doubted says that an acknowledgement is of what blocks held before they were written again while Ahead: the peer has to
// fetch them once more. Such an answer comes at most once after we left Ahead.
func (m *Machine) doubted(l *link, off, n int64) bool {
	if l.doubt == nil {
		return false
	}
	first, last := off/bitmap.BlockSize, (off+n-1)/bitmap.BlockSize
	if l.doubt.CountRange(first, last) == 0 {
		return false
	}
	if l.conn != wire.Ahead {
		l.doubt.Clear(first, last)
	}
	pkt := m.send(l.p, l.v.num, wire.OutOfSync)
	pkt.Sector, pkt.Size = uint64(off)>>9, uint32(n)
	return true
}

// follows says whether the peer may be Ahead of us from here.
func (l *link) follows() bool {
	switch l.conn {
	case wire.Connected, wire.WFSyncUUID, wire.SyncTarget, wire.PausedSyncT:
		return true
	}
	return false
}

// tickAhead starts the resync after a congestion.
func (m *Machine) tickAhead(l *link) {
	if l.aheadUntil == 0 || m.now < l.aheadUntil {
		return
	}
	if l.conn != wire.Ahead {
		l.aheadUntil = 0
		return
	}
	if l.p.inflight > 0 || len(l.p.unacked) > 0 {
		l.aheadUntil = m.now + aheadCalm/10
		return
	}
	l.aheadUntil = 0
	l.conn = wire.StartingSyncS
	m.startSource(l)
}

// SetNet changes the net options of a connection. While connected the protocol changes at an epoch boundary (section 27).
func (m *Machine) SetNet(now Now, peer int, n NetConfig, cmd any) {
	m.tick(now)
	p := m.peers[peer]
	old := p.cfg.Net
	if n.TwoPrimaries && n.Protocol != 3 {
		m.result(cmd, errors.New("allow-two-primaries needs protocol C"))
		return
	}
	if p.state != wire.Connected {
		p.cfg.Net = n
		m.result(cmd, nil)
		return
	}
	if n.IntegrityAlg != old.IntegrityAlg || n.VerifyAlg != old.VerifyAlg || n.CsumsAlg != old.CsumsAlg {
		m.result(cmd, errors.New("a digest algorithm changes only while disconnected"))
		return
	}
	m.closeEpoch(p)
	m.sendBarrier(p)
	p.cfg.Net = n
	p.twoPrim = n.TwoPrimaries
	if p.li.Version >= 100 {
		m.send(p, -1, wire.ProtocolUpdate).Ext = m.protocolBody(p)
	}
	m.setPace(p)
	m.event(-1, peer, "protocol "+protoName(n.Protocol), nil)
	m.result(cmd, nil)
}

// syncedBytes is the progress of a resync.
func (l *link) syncedBytes() int64 {
	if l.conn == wire.VerifyS || l.conn == wire.VerifyT {
		return l.rs.done
	}
	return max(0, l.rs.total-l.count()) * bitmap.BlockSize
}
