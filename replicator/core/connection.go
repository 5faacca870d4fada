package core

import (
	"errors"
	"fmt"

	"github.com/hawser-ha/hawser/replicator/genid"
	"github.com/hawser-ha/hawser/replicator/wire"
)

const (
	maxBio  = 1 << 20 // bytes of one data block, protocol 100 and up
	protoVL = 101     // the version hawser speaks at most
)

// Connect starts to connect to the peer; the answer to cmd comes at once: connecting may take for ever.
func (m *Machine) Connect(now Now, peer int, discardMyData bool, cmd any) {
	m.tick(now)
	p := m.peers[peer]
	switch {
	case discardMyData && m.role == wire.Primary:
		m.result(cmd, fmt.Errorf("discard-my-data: this node %w", ErrPrimary))
		return
	case discardMyData && p.up:
		m.result(cmd, fmt.Errorf("discard-my-data: %w: the nodes are connected, so there is nothing to decide", ErrTwice))
		return
	case p.state != wire.StandAlone:
		p.discard = p.discard || discardMyData
		m.result(cmd, nil) // it tries already, or is connected
		return
	}
	p.discard = discardMyData
	p.setState(m, wire.Unconnected, "connect")
	p.retryConnect = true
	if p.io == 0 {
		m.reconnect(p)
	}
	m.result(cmd, nil)
}

// reconnect starts the link again when nothing of its former life is left.
func (m *Machine) reconnect(p *peer) {
	if !p.retryConnect || p.io > 0 {
		return
	}
	p.retryConnect = false
	p.setState(m, wire.WFConnection, "")
	m.emit(Connect, -1, p.idx)
}

func (p *peer) setState(m *Machine, s wire.Conn, why string) {
	if p.state == s {
		return
	}
	p.state = s
	note := "connection " + s.String()
	if why != "" {
		note += ": " + why
	}
	m.event(-1, p.idx, note, nil)
}

// LinkUp says that the link is established: features and authentication are done.
func (m *Machine) LinkUp(now Now, peer int, li LinkInfo) {
	m.tick(now)
	p := m.peers[peer]
	if p.state != wire.WFConnection {
		return // CloseLink is on its way
	}
	p.li, p.up = li, true
	p.gotProtocol, p.peerDiscard = false, false
	p.epoch, p.epochCount = uint32(m.cfg.Rand()), 0
	p.repoch, p.rbase = nil, 0
	p.gate, p.drain, p.seqHold, p.flushing, p.flushUpTo = false, false, nil, 0, 0
	p.pingSent, p.stall, p.lastData = 0, 0, now
	p.why = nil
	p.unfenced = false
	p.term, p.leads, p.termGate, p.failed, p.upSince = 0, false, false, false, now
	p.setState(m, wire.WFReportParams, "")
	n := &p.cfg.Net
	m.send(p, -1, wire.Protocol).Ext = m.protocolBody(p)
	m.sendTerm(p)
	for _, v := range m.vols {
		l := v.pv[p.idx]
		l.seq, l.peerSeq = 0, 0
		l.uuids, l.device, l.vouched = nil, 0, false
		l.conn = wire.WFReportParams
		l.resetSync()
		m.sendSyncParam(l, n)
		m.sendSizes(l, 0)
		m.sendDisk(l)
		m.sendUUIDs(l)
		m.sendStateAs(l, wire.WFConnection)
	}
}

func (m *Machine) protocolBody(p *peer) *wire.ProtocolBody {
	n := &p.cfg.Net
	return &wire.ProtocolBody{Protocol: n.Protocol, AfterSB0: uint32(n.Policies.SB0), AfterSB1: uint32(n.Policies.SB1),
		AfterSB2: uint32(n.Policies.SB2), DiscardMyData: p.discard, TwoPrimaries: n.TwoPrimaries, IntegrityAlg: n.IntegrityAlg}
}

func (m *Machine) sendSyncParam(l *link, n *NetConfig) {
	pc := &l.p.cfg.Pace
	m.send(l.p, l.v.num, wire.SyncParam89).Ext = &wire.SyncParamBody{ResyncRate: uint32(pc.ResyncRate), VerifyAlg: n.VerifyAlg,
		CsumsAlg: n.CsumsAlg, CPlanAhead: uint32(pc.PlanAhead), CDelayTarget: uint32(pc.DelayTarget),
		CFillTarget: uint32(pc.FillTarget), CMaxRate: uint32(pc.MaxRate)}
}

func (m *Machine) sendUUIDs(l *link) {
	v := l.v
	if v.disk < wire.Negotiating {
		return
	}
	s := v.set(l.p.idx)
	b := &wire.UUIDsBody{Current: s.Current, Bitmap: s.Bitmap, History1: s.History1, History2: s.History2, DirtyBits: uint64(l.count())}
	if l.p.discard {
		b.Flags |= wire.UUIDDiscardMyData
	}
	if v.crashed {
		b.Flags |= wire.UUIDCrashedPrimary
	}
	if v.disk == wire.Negotiating && !v.sup.Consistent {
		b.Flags |= wire.UUIDInconsistent
	}
	m.send(l.p, v.num, wire.UUIDs).Ext = b
}

// stateWord is our view of the volume towards this peer.
func (m *Machine) stateWord(l *link, conn wire.Conn) wire.State {
	var bits wire.State
	for _, b := range [...]struct {
		on  bool
		bit wire.State
	}{{m.suspUser, wire.Susp}, {m.suspNoD, wire.SuspNoD}, {m.undecided() || m.co.expired, wire.SuspFen}, {l.userPause, wire.UserISP}, {l.afterPause, wire.AftrISP}, {l.peerPause, wire.PeerISP}} {
		if b.on {
			bits |= b.bit
		}
	}
	return wire.MakeState(m.role, l.role, conn, l.v.disk, l.disk, bits)
}

func (m *Machine) sendState(l *link) { m.sendStateAs(l, l.conn) }

func (m *Machine) sendStateAs(l *link, conn wire.Conn) {
	if !l.p.up {
		return
	}
	m.send(l.p, l.v.num, wire.StateReport).State = m.stateWord(l, conn)
}

// report tells all peers our state of a volume.
func (m *Machine) report(v *volume) {
	for _, l := range v.pv {
		if l.p.up && l.conn >= wire.Connected {
			m.sendState(l)
		}
	}
}

func (m *Machine) reportAll() {
	for _, v := range m.vols {
		m.report(v)
	}
}

// Packet handles one packet. See Machine's users for tag and data.
func (m *Machine) Packet(now Now, peer int, pkt *wire.Packet, tag any, data []byte) (keep bool, err error) {
	m.tick(now)
	p := m.peers[peer]
	if !p.up {
		return false, nil // what is still in the buffers of a dead link
	}
	if p.gate && !pkt.Cmd.OnMeta() {
		p.hold(pkt, tag, data)
		return true, nil
	}
	return m.packet(p, pkt, tag, data)
}

func (m *Machine) packet(p *peer, pkt *wire.Packet, tag any, data []byte) (keep bool, err error) {
	switch pkt.Cmd {
	case wire.Data, wire.Trim, wire.Zeroes, wire.Barrier:
		if !p.ready() {
			return false, errors.New("write before the parameters were exchanged")
		}
		if pkt.Cmd == wire.Barrier {
			return false, m.barrier(p, pkt.Barrier)
		}
		return m.peerWrite(p, pkt, tag)
	case wire.BarrierAck:
		return false, m.barrierAck(p, pkt.Barrier, pkt.SetSize)
	case wire.Ping:
		m.mayEnd(p)
		m.send(p, -1, wire.PingAck)
		return false, nil
	case wire.PingAck:
		m.pingAnswered(p)
		return false, nil
	case wire.Protocol:
		return false, m.protocol(p, pkt.Ext.(*wire.ProtocolBody))
	case wire.ProtocolUpdate:
		m.protocolUpdate(p, pkt.Ext.(*wire.ProtocolBody))
		return false, nil
	case wire.ConnStChgReq:
		m.connStateRequest(p, pkt)
		return false, nil
	case wire.StateChgReply, wire.ConnStChgReply:
		m.consent(p, pkt)
		return false, nil
	case wire.Term:
		return false, m.peerTerm(p, pkt.Ext.(*wire.TermBody))
	case wire.PromiseRequest:
		m.promiseRequest(p, pkt.Ext.(*wire.PromiseBody))
		return false, nil
	case wire.Promise:
		return false, m.promise(p, pkt.Ext.(*wire.PromiseBody))
	case wire.UnplugRemote, wire.DelayProbe:
		return false, nil
	}
	v := m.volume(int(pkt.Vol))
	if v == nil {
		switch pkt.Cmd {
		case wire.SyncParam, wire.SyncParam89, wire.Sizes, wire.UUIDs, wire.StateReport, wire.DiskID:
			return false, nil // a volume that only the peer has (section 6)
		}
		return false, errors.New("packet for an unknown volume")
	}
	return m.volumePacket(v.pv[p.idx], pkt, tag, data)
}

// ready says whether the parameters were exchanged; a peer that says goodbye may still send.
func (p *peer) ready() bool { return p.state == wire.Connected || p.state == wire.TearDown }

func (m *Machine) volumePacket(l *link, pkt *wire.Packet, tag any, data []byte) (keep bool, err error) {
	if !l.p.ready() {
		switch pkt.Cmd {
		case wire.SyncParam, wire.SyncParam89, wire.Sizes, wire.UUIDs, wire.StateReport, wire.DiskID:
			if !l.p.gotProtocol {
				return false, errors.New("volume parameters before the protocol")
			}
		default:
			return false, fmt.Errorf("packet %#x before the parameters were exchanged", uint16(pkt.Cmd))
		}
	}
	switch pkt.Cmd {
	case wire.RecvAck, wire.WriteAck, wire.RSWriteAck, wire.NegAck, wire.Superseded, wire.RetryWrite:
		m.sawSeq(l, pkt.Seq)
		if pkt.BlockID == wire.IDSyncer {
			err = m.syncAcked(l, pkt)
		} else {
			err = m.writeAcked(l, pkt)
		}
		m.seqArrived(l)
		return false, err
	case wire.SyncParam, wire.SyncParam89:
		return false, m.syncParam(l, pkt.Ext.(*wire.SyncParamBody))
	case wire.Sizes:
		return false, m.sizes(l, pkt.Ext.(*wire.SizesBody))
	case wire.UUIDs:
		return false, m.uuids(l, pkt.Ext.(*wire.UUIDsBody))
	case wire.StateReport:
		return false, m.peerState(l, pkt.State)
	case wire.DiskID:
		m.peerDisk(l, pkt.Ext.(*wire.DiskIDBody))
		return false, nil
	case wire.StateChgReq:
		m.stateRequest(l, pkt)
		return false, nil
	case wire.SyncUUID:
		return false, m.syncUUID(l, pkt.UUID)
	case wire.Bitmap, wire.CompressedBitmap:
		return false, m.peerBitmap(l, pkt, data)
	case wire.OutOfSync:
		off, n := int64(pkt.Sector)<<9, int64(pkt.Size)
		if !l.v.inside(off, n) {
			return false, errors.New("out of sync range beyond the end")
		}
		l.dirty(off, n)
		return false, nil
	case wire.DataRequest:
		return false, m.peerRead(l, pkt)
	case wire.DataReply:
		return false, m.dataReply(l, pkt)
	case wire.NegDReply:
		m.sawSeq(l, pkt.Seq)
		m.seqArrived(l)
		return false, m.negDReply(l, pkt)
	case wire.RSDataRequest, wire.RSThinReq, wire.CsumRSRequest:
		return m.syncRequest(l, pkt, tag)
	case wire.RSDataReply, wire.RSDeallocated:
		return m.syncReply(l, pkt, tag)
	case wire.NegRSDReply, wire.RSCancel, wire.RSIsInSync:
		m.sawSeq(l, pkt.Seq)
		m.seqArrived(l)
		return false, m.syncAnswer(l, pkt)
	case wire.OVRequest:
		return false, m.verifyRequest(l, pkt)
	case wire.OVReply:
		return m.verifyReply(l, pkt, tag)
	case wire.OVResult:
		m.sawSeq(l, pkt.Seq)
		m.seqArrived(l)
		return false, m.verifyResult(l, pkt)
	}
	return false, fmt.Errorf("packet %#x is not expected here", uint16(pkt.Cmd))
}

// protocol checks P_PROTOCOL (section 6): every difference is final.
func (m *Machine) protocol(p *peer, b *wire.ProtocolBody) error {
	if p.gotProtocol {
		return errors.New("the protocol twice")
	}
	n := &p.cfg.Net
	theirs := genid.Policies{SB0: genid.Policy(b.AfterSB0), SB1: genid.Policy(b.AfterSB1), SB2: genid.Policy(b.AfterSB2)}
	var why string
	switch {
	case b.Protocol != n.Protocol:
		why = fmt.Sprintf("protocol is %s here and %s there", protoName(n.Protocol), protoName(b.Protocol))
	case !n.Policies.Match(theirs):
		why = "after-sb policies differ"
	case b.DiscardMyData && p.discard:
		why = "both nodes are to discard their data"
	case b.TwoPrimaries != n.TwoPrimaries:
		why = "allow-two-primaries differs"
	case b.IntegrityAlg != n.IntegrityAlg:
		why = fmt.Sprintf("data-integrity-alg is %q here and %q there", n.IntegrityAlg, b.IntegrityAlg)
	}
	if why != "" {
		m.standAlone(p, errors.New(why))
		return nil
	}
	p.gotProtocol = true
	p.twoPrim = n.TwoPrimaries
	p.peerDiscard = b.DiscardMyData
	return nil
}

func protoName(n uint32) string {
	if n >= 1 && n <= 3 {
		return string(rune('A' + n - 1))
	}
	return fmt.Sprint(n)
}

func (m *Machine) protocolUpdate(p *peer, b *wire.ProtocolBody) {
	n := &p.cfg.Net
	n.Protocol, n.TwoPrimaries = b.Protocol, b.TwoPrimaries
	p.twoPrim = b.TwoPrimaries
	n.Policies.SB0, n.Policies.SB1, n.Policies.SB2 = genid.Policy(b.AfterSB0).Mirror(), genid.Policy(b.AfterSB1).Mirror(), genid.Policy(b.AfterSB2).Mirror()
	m.event(-1, p.idx, "peer changed the protocol to "+protoName(b.Protocol), nil)
}

func (m *Machine) syncParam(l *link, b *wire.SyncParamBody) error {
	n := &l.p.cfg.Net
	if l.p.state != wire.Connected && (b.VerifyAlg != n.VerifyAlg || b.CsumsAlg != n.CsumsAlg) {
		m.standAlone(l.p, fmt.Errorf("verify-alg or csums-alg differ: %q and %q here, %q and %q there", n.VerifyAlg, n.CsumsAlg, b.VerifyAlg, b.CsumsAlg))
	}
	return nil
}

func (m *Machine) uuids(l *link, b *wire.UUIDsBody) error {
	l.uuids = b
	v := l.v
	if l.conn == wire.Connected && b.Flags&wire.UUIDSkipInitialSync != 0 {
		s := v.set(l.p.idx)
		if v.disk == wire.Inconsistent && s.AcceptSkip(b.Current, m.role == wire.Primary) {
			v.setUUIDs(l.p.idx, s)
			l.bm.ClearAll()
			v.disk, l.disk = wire.UpToDate, wire.UpToDate
			m.writeSuper(v, false, true, false, nil)
			m.sendState(l)
			m.event(v.num, l.p.idx, "initial sync skipped", nil)
		}
		return nil
	}
	if l.conn >= wire.Connected && v.disk < wire.Negotiating {
		v.exposed(b.Current)
	}
	switch l.conn {
	case wire.WFBitMapT, wire.WFSyncUUID, wire.SyncTarget, wire.PausedSyncT, wire.StartingSyncT, wire.Behind:
		if l.p.relaxed() {
			l.peerSet.Current = b.Current // the source has begun a new generation meanwhile: that is what this resync leads to
		}
	}
	m.adopt(l, b)
	return nil
}

// exposed remembers the generation whose data a diskless node hands out.
func (v *volume) exposed(current uint64) { v.sup.Current = current }

// lost ends the link for a reason from which it recovers by itself.
func (m *Machine) lost(p *peer, state wire.Conn, why error) {
	if !p.up && p.state != wire.WFConnection {
		return
	}
	e := m.emit(CloseLink, -1, p.idx)
	e.Err = why
	m.down(p, state, why, false)
}

// standAlone ends the link and does not try again.
func (m *Machine) standAlone(p *peer, why error) {
	if p.state == wire.StandAlone {
		return
	}
	m.emit(FlushLink, -1, p.idx)
	e := m.emit(CloseLink, -1, p.idx)
	e.Err = why
	m.down(p, wire.Disconnecting, why, true)
}

// LinkDown says that the link has died. final: trying again is no use (wrong secret, no common version).
func (m *Machine) LinkDown(now Now, peer int, why error, final bool) {
	m.tick(now)
	p := m.peers[peer]
	if !p.up && p.state != wire.WFConnection {
		return
	}
	state := wire.NetworkFailure
	if p.state == wire.TearDown {
		state = wire.TearDown
	}
	m.down(p, state, why, final)
}

// down cleans up after a link (drbd-wire.md 28).
func (m *Machine) down(p *peer, state wire.Conn, why error, final bool) {
	p.up = false
	p.why = why
	p.gen++
	text := ""
	if why != nil {
		text = why.Error()
	}
	p.setState(m, state, text)
	m.review() // before anything is acknowledged that the peer may not have

	// What the peer was to do is not going to be done. First mark it, so that whatever is completed below is known as missing there.
	for r := p.tlHead; r != nil; r = r.parts[p.idx].next {
		r.v.pv[p.idx].dirty(r.Off, r.Len)
	}
	for _, v := range m.vols {
		m.linkGone(v.pv[p.idx])
	}
	for p.tlHead != nil {
		r := p.tlHead
		pt := &r.parts[p.idx]
		m.tlPop(p)
		pt.ok, pt.same = false, false // it may have it, but is out of reach
		m.partOver(r, pt)
	}
	p.unacked, p.epochCount, p.flushNext = p.unacked[:0], 0, false
	waits := p.flushWait
	p.flushWait = nil
	for _, r := range waits {
		r.parts[p.idx].state = partDone
		m.advance(r)
		m.retire(r)
	}
	reads := p.reads
	p.reads = nil
	for _, r := range reads {
		m.readAgain(r)
	}
	for _, q := range p.inq {
		if q.tag != nil {
			m.dropTag(p, q.tag)
		}
	}
	p.inq, p.gate, p.drain, p.seqHold, p.termGate = nil, false, false, nil, false
	p.repoch, p.rbase, p.flushing, p.flushUpTo = nil, 0, 0, 0
	p.pingSent, p.pingFence = 0, nil
	if a := p.ask; a != nil {
		p.ask = nil
		a.then(ErrLinkLost)
	}
	m.drainOver(p)
	if final {
		p.discard = false
		p.setState(m, wire.StandAlone, "")
		return
	}
	p.setState(m, wire.Unconnected, "")
	p.retryConnect = true
	if p.io == 0 {
		m.reconnect(p)
	}
}

// readAgain tries a read elsewhere whose peer is gone or could not read.
func (m *Machine) readAgain(r *Request) {
	r.Peer = -1
	if r.localErr == nil && m.readable(r.v, r.Off, r.Len) {
		m.toDisk(r)
		return
	}
	m.readRemote(r)
}

// linkGone brings one volume to the state without this peer.
func (m *Machine) linkGone(l *link) {
	v := l.v
	was := l.disk
	if l.rs.mayBeDone && (l.conn == wire.SyncSource || l.conn == wire.PausedSyncS) {
		// The target has the answer to its last ping, so it may be UpToDate, and even be promoted. Then our generation is
		// its as well, and what is written here from now on must be another one.
		s := v.set(l.p.idx)
		s.SourceDone()
		v.setUUIDs(l.p.idx, s)
		was, l.disk = wire.UpToDate, wire.UpToDate
		m.writeSuper(v, false, true, false, nil)
	}
	m.stopSync(l)
	l.uuids, l.skipped = nil, false
	l.conn = l.p.state
	l.role, l.peerPause, l.afterPause = wire.RoleUnknown, false, false
	if l.disk < wire.Inconsistent || l.disk > wire.DUnknown {
		l.disk = wire.DUnknown
	}
	if l.negotiating || v.disk == wire.Negotiating {
		l.negotiating = false
		m.negotiated(v)
	}
	m.contactLost(v, l, was)
}

// contactLost starts a new generation if from now on our data moves away from the peer's (17.2).
func (m *Machine) contactLost(v *volume, l *link, was wire.Disk) {
	m.review()
	if m.undecided() {
		m.owed = true
		return // the answer comes first (goOn): it may be that the peer goes on, and this data stays behind
	}
	if v.disk != wire.UpToDate || was != wire.Inconsistent && was != wire.Consistent && was != wire.UpToDate {
		return
	}
	if l.disk >= wire.Inconsistent && l.disk != wire.DUnknown && (l.disk != wire.Outdated || l.conn > wire.Connected) {
		return
	}
	if m.role != wire.Primary && !m.otherPrimary(v) {
		return
	}
	for _, o := range v.pv { // a Primary that has a disk of its own names the generation, and tells us (adopt)
		if o != l && o.conn >= wire.Connected && o.role == wire.Primary && o.disk == wire.UpToDate && m.role != wire.Primary {
			return
		}
	}
	m.newCurrent(v)
}

// adopt follows a Primary that lost another peer into its new generation: our data is the same. Which blocks the lost peer
// misses is known to the Primary only, so from us it would get all of them: the old generation goes into the history.
func (m *Machine) adopt(l *link, b *wire.UUIDsBody) {
	v := l.v
	if len(m.peers) < 2 || l.conn != wire.Connected || l.role != wire.Primary || v.disk != wire.UpToDate || l.disk != wire.UpToDate ||
		b.Bitmap != 0 || b.Current&^1 == v.sup.Current&^1 || m.role == wire.Primary {
		return
	}
	v.sup.History[1], v.sup.History[0] = v.sup.History[0], v.sup.Current
	v.sup.Current = b.Current &^ 1
	m.writeSuper(v, false, false, false, nil)
}

func (m *Machine) otherPrimary(v *volume) bool {
	for _, l := range v.pv {
		if l.conn >= wire.Connected && l.role == wire.Primary {
			return true
		}
	}
	return false
}

// newCurrent starts a new data generation. What completes from now on waits until it is durable (promise I9).
func (m *Machine) newCurrent(v *volume) {
	old := v.sup.Current
	var fresh uint64
	for i, l := range v.pv {
		if l.bm == nil || l.replicates() || v.sup.Bitmap[i] != 0 {
			continue
		}
		if fresh == 0 {
			s := genid.Set{Current: old}
			s.NewCurrent(m.cfg.Rand(), m.role == wire.Primary || m.promoting != nil)
			fresh = s.Current
		}
		v.sup.Bitmap[i] = old
	}
	if fresh == 0 {
		return
	}
	v.sup.Current = fresh
	m.event(v.num, -1, "new data generation", nil)
	m.writeSuper(v, false, false, true, nil)
	for _, l := range v.pv {
		// A peer in the middle of the handshake was told the old one, and would end its resync with it.
		if l.p.up && (l.conn >= wire.Connected || l.conn == wire.WFReportParams && l.p.relaxed()) {
			m.sendUUIDs(l)
		}
	}
}
