package core

import (
	"bytes"
	"errors"

	"github.com/hawser-ha/hawser/replicator/wire"
)

var errBadWrite = errors.New("write of a size or place that cannot be")

// hold queues the packets of the data socket while a drain is under way: they stay in order with the writes.
func (p *peer) hold(pkt *wire.Packet, tag any, data []byte) {
	p.inq = append(p.inq, queued{*pkt, tag, bytes.Clone(data)})
}

// ungate goes on with the packets that waited for a drain.
func (m *Machine) ungate(p *peer) {
	if p.termGate {
		return
	}
	p.gate = false
	for len(p.inq) > 0 && !p.gate && p.up {
		q := p.inq[0]
		p.inq = p.inq[1:]
		keep, err := m.packet(p, &q.pkt, q.tag, q.data)
		if !keep && q.tag != nil {
			m.dropTag(p, q.tag)
		}
		if err != nil {
			m.lost(p, wire.ProtocolError, err)
			return
		}
	}
}

// dropTag gives a buffer back that became part of no request.
func (m *Machine) dropTag(p *peer, tag any) {
	r := m.NewRequest(PeerWrite)
	r.Peer, r.Tag = p.idx, tag
	m.release(r)
}

func (p *peer) current() *rcvEpoch {
	if len(p.repoch) == 0 {
		p.repoch = append(p.repoch, rcvEpoch{})
	}
	return &p.repoch[len(p.repoch)-1]
}

// barrier handles P_BARRIER: the current epoch is complete.
func (m *Machine) barrier(p *peer, nr uint32) error {
	e := p.current()
	if e.total == 0 {
		return errors.New("barrier of an empty epoch")
	}
	e.nr, e.closed = nr, true
	p.repoch = append(p.repoch, rcvEpoch{})
	if !p.relaxed() {
		p.gate = true // what follows waits until this epoch is stable
	}
	m.epochs(p)
	return nil
}

// epochs makes the epochs stable that are complete, and then acknowledges them. One flush covers all that were complete
// when it began.
func (m *Machine) epochs(p *peer) {
	if p.flushing > 0 || !p.up {
		return
	}
	n := 0
	for n < len(p.repoch) && p.repoch[n].closed && p.repoch[n].pending == 0 {
		n++
	}
	if n == 0 {
		return
	}
	p.flushUpTo = n
	for _, v := range m.vols {
		if v.stable < v.wrote && v.disk >= wire.Inconsistent {
			m.epochFlush(p, v)
		}
	}
	if p.flushing == 0 {
		m.epochsStable(p)
	}
}

func (m *Machine) epochFlush(p *peer, v *volume) {
	r := m.newPeerRequest(EpochFlush, v.pv[p.idx])
	r.Op = OpFlush
	p.flushing++
	m.toDisk(r)
}

func (m *Machine) epochFlushed(r *Request) {
	p, v, err, stale := m.peers[r.Peer], r.v, r.localErr, m.stale(r)
	m.releasePeer(r)
	if err != nil {
		m.diskFailed(v, err)
		if !stale && p.up {
			// Acknowledged writes may be lost: the peer must take them for dirty. Without the barrier acknowledgement it does.
			m.lost(p, wire.ProtocolError, err)
		}
		return
	}
	if stale {
		return
	}
	p.flushing--
	if p.flushing == 0 {
		m.epochsStable(p)
	}
}

func (m *Machine) epochsStable(p *peer) {
	n := p.flushUpTo
	for i := range n {
		pkt := m.send(p, -1, wire.BarrierAck)
		pkt.Barrier, pkt.SetSize = p.repoch[i].nr, p.repoch[i].total
	}
	p.repoch = p.repoch[:copy(p.repoch, p.repoch[n:])]
	p.rbase += uint32(n)
	p.flushUpTo = 0
	if p.drain {
		m.drainedHere(p)
		return
	}
	if p.gate && p.seqHold == nil && len(p.repoch) == 1 && !p.repoch[0].closed {
		m.ungate(p)
	}
	m.epochs(p)
}

// peerWrite handles P_DATA, P_TRIM and P_ZEROES.
func (m *Machine) peerWrite(p *peer, pkt *wire.Packet, tag any) (keep bool, err error) {
	v := m.volume(int(pkt.Vol))
	if v == nil {
		return false, errors.New("write to an unknown volume")
	}
	l := v.pv[p.idx]
	off, length := int64(pkt.Sector)<<9, int64(pkt.Size)
	if !v.inside(off, length) || pkt.Cmd == wire.Data && length > maxBio || pkt.Cmd != wire.Data && length > 128<<20 {
		return false, errBadWrite
	}
	if m.oldTerm(p) {
		m.refuseTerm(p)
		return false, nil
	}
	if m.twoPrimaries(p) && p.li.ResolveConflicts && pkt.Seq != l.peerSeq+1 && int32(pkt.Seq-l.peerSeq) > 0 {
		// Acknowledgements sent before this write are still on the meta socket: whether it conflicts is known after them. What
		// follows on the data socket stays behind it.
		if p.seqHold == nil {
			p.seqSince = m.now
		}
		p.seqHold, p.gate = l, true
		p.inq = append([]queued{{*pkt, tag, nil}}, p.inq...)
		return true, nil
	}
	e := p.current()
	if pkt.Flags&wire.FlagFlush != 0 && (e.total > 0 || len(p.repoch) > 1) {
		// The writer flushed before this one: what came before must be stable first.
		m.drainFor(p, pkt, tag)
		return true, nil
	}
	m.sawSeq(l, pkt.Seq)
	r := m.newPeerRequest(PeerWrite, l)
	r.Off, r.Len, r.Tag = off, length, tag
	r.peerID, r.pflags, r.cmd = pkt.BlockID, pkt.Flags, pkt.Cmd
	r.FUA = pkt.Flags&wire.FlagFUA != 0
	switch pkt.Cmd {
	case wire.Trim:
		r.Op = OpDiscard
	case wire.Zeroes:
		r.Op = OpZero
		r.NoUnmap = pkt.Flags&wire.FlagDiscard == 0
	default:
		r.Op = OpWrite
	}
	p.rcvdBytes += length
	if l.disk < wire.Inconsistent {
		r.diskless = true
		l.dirty(off, length)
	}
	e.total++
	e.pending++
	r.repoch = p.rbase + uint32(len(p.repoch)) - 1
	if r.pflags&wire.FlagSendReceiveAck != 0 {
		m.ackWrite(r, wire.RecvAck)
	}
	if m.role == wire.Primary && m.conflict(l, r) {
		return true, nil
	}
	m.listPeer(v, r)
	return true, nil
}

// listPeer lists a peer's write before own requests that it conflicts with and that have not begun. Behind them it could wait
// for own writes that wait for the peer, where the same happens the other way round: chains of partial overlaps would stop both.
func (m *Machine) listPeer(v *volume, r *Request) {
	var behind []*Request
	if m.role == wire.Primary && v.waiting > 0 {
		for o := v.head; o != nil; o = o.nxt {
			if o.isApp() && o.waits && !o.begun && o.overlaps(r) && conflicts(o, r) {
				behind = append(behind, o)
			}
		}
		for _, o := range behind {
			v.unlink(o)
		}
	}
	start := v.list(r)
	for _, o := range behind {
		v.link(o)
	}
	if start {
		m.begin(r)
	}
	if behind != nil {
		m.wake(v) // who waited for those that moved
	}
}

// drainFor holds the packets of the data stream, this one first, until everything received is stable.
func (m *Machine) drainFor(p *peer, pkt *wire.Packet, tag any) {
	q := *pkt
	q.Flags &^= wire.FlagFlush
	p.gate = true
	p.drain = true
	p.inq = append([]queued{{q, tag, nil}}, p.inq...)
	m.drainedHere(p)
}

// drainedHere goes on after drainFor once nothing is pending: an internal flush without an epoch end.
func (m *Machine) drainedHere(p *peer) {
	if !p.drain {
		return
	}
	for i := range p.repoch {
		if p.repoch[i].pending > 0 {
			return
		}
	}
	if p.flushing > 0 {
		return // epochsStable comes back here
	}
	p.drain = false
	p.flushUpTo = 0
	for n := 0; n < len(p.repoch) && p.repoch[n].closed; n++ {
		p.flushUpTo = n + 1
	}
	for _, v := range m.vols {
		if v.stable < v.wrote && v.disk >= wire.Inconsistent {
			m.epochFlush(p, v)
		}
	}
	if p.flushing == 0 {
		m.epochsStable(p)
	}
}

func (m *Machine) sawSeq(l *link, seq uint32) {
	if int32(seq-l.peerSeq) > 0 {
		l.peerSeq = seq
	}
}

// seqArrived goes on with the data stream if the write at its head was waiting for this.
func (m *Machine) seqArrived(l *link) {
	p := l.p
	if p.seqHold != l || int32(p.inq[0].pkt.Seq-l.peerSeq) > 1 {
		return
	}
	p.seqHold = nil
	m.ungate(p)
}

// beginPeerWrite: no write in flight overlaps it.
func (m *Machine) beginPeerWrite(r *Request) {
	v := r.v
	if r.verdict != 0 {
		m.ackWrite(r, r.verdict)
		m.peerWriteOver(r)
		return
	}
	if v.disk < wire.Inconsistent {
		r.localErr = ErrNoDisk
		m.ackWrite(r, wire.NegAck)
		m.peerWriteOver(r)
		return
	}
	if r.diskless {
		// The peer writes without a disk: ours is the only log of what is in flight (10.6).
		if !m.alBegin(r) {
			return
		}
	}
	m.peerWriteToDisk(r)
}

func (m *Machine) peerWriteToDisk(r *Request) {
	l := r.v.pv[r.Peer]
	r.Undo = l.undo && l.isDirty(r.Off, r.Len)
	m.toDisk(r)
}

// ackWrite acknowledges a peer's write.
func (m *Machine) ackWrite(r *Request, cmd wire.Command) {
	if m.stale(r) {
		return
	}
	l := r.v.pv[r.Peer]
	m.ack(l, cmd, uint64(r.Off)>>9, r.peerID, uint32(r.Len))
}

func (m *Machine) peerWriteDone(r *Request) {
	v := r.v
	l := v.pv[r.Peer]
	err := r.localErr
	if errors.Is(err, ErrUndo) {
		m.undoFailed(l, err)
		m.peerWriteOver(r)
		return
	}
	if err != nil {
		l.dirty(r.Off, r.Len)
		m.ackWrite(r, wire.NegAck)
		m.peerWriteOver(r)
		m.diskFailed(v, err)
		return
	}
	syncing := l.conn == wire.SyncTarget || l.conn == wire.SyncSource || l.conn == wire.PausedSyncT || l.conn == wire.PausedSyncS
	if r.pflags&wire.FlagSendWriteAck != 0 {
		if r.pflags&wire.FlagMaySetInSync != 0 && syncing {
			m.ackWrite(r, wire.RSWriteAck)
			m.inSync(l, r.Off, r.Len)
		} else {
			m.ackWrite(r, wire.WriteAck)
		}
	}
	m.peerWriteOver(r)
}

// peerWriteOver counts the write in its epoch and forgets it.
func (m *Machine) peerWriteOver(r *Request) {
	p := m.peers[r.Peer]
	stale, at := m.stale(r), r.repoch
	m.releasePeer(r)
	if !stale {
		m.epochWriteOver(p, at)
	}
}

func (m *Machine) epochWriteOver(p *peer, at uint32) {
	p.repoch[at-p.rbase].pending--
	if p.drain {
		m.drainedHere(p)
		return
	}
	m.epochs(p)
}

// conflict decides about a peer's write that overlaps own writes in flight (drbd-wire.md 11.2). True: it was dealt with.
func (m *Machine) conflict(l *link, r *Request) bool {
	contained, hit := false, false
	for o := l.v.head; o != nil; o = o.nxt {
		if !o.isApp() || !o.isWrite() || o.Off >= r.Off+r.Len || r.Off >= o.Off+o.Len {
			continue
		}
		if !o.begun && o.waits {
			continue // not sent: it will follow this one
		}
		if o.begun && o.parts[l.p.idx].state != partSent {
			continue // the peer has acknowledged it before it sent this one, which therefore comes after it
		}
		hit = true
		if r.Off >= o.Off && r.Off+r.Len <= o.Off+o.Len {
			contained = true
		}
	}
	if !hit || !l.p.li.ResolveConflicts {
		// Without the role we wait: an own write leaves the list when the peer's verdict is here and it is on disk.
		return false
	}
	cmd := wire.RetryWrite
	if contained || l.p.li.Version < 100 {
		cmd = wire.Superseded
	}
	// The verdict is given when our own write is on the disk: until then a read here shows neither of the two.
	r.verdict = cmd
	if l.v.list(r) {
		m.begin(r)
	}
	return true
}

// resubmit sends a write again that lost a conflict, behind what is in flight now.
func (m *Machine) resubmit(r *Request) *Request {
	again := r.again
	n := m.successor(r)
	n.again = again
	if n.v.list(n) {
		m.begin(n)
	}
	return n
}

// successor takes over what the application waits for from a request that is spent.
func (m *Machine) successor(r *Request) *Request {
	n := m.NewRequest(r.Kind)
	n.v, n.Vol, n.Off, n.Len, n.Op, n.FUA, n.NoUnmap = r.v, r.Vol, r.Off, r.Len, r.Op, r.FUA, r.NoUnmap
	n.Tag, r.Tag = r.Tag, nil
	r.ended, r.told = true, true
	m.unlist(r)
	m.retire(r)
	return n
}
