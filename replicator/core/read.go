package core

import (
	"errors"

	"github.com/hawser-ha/hawser/replicator/wire"
)

// readable says whether the local disk holds the present data of [off, off+length).
func (m *Machine) readable(v *volume, off, length int64) bool {
	switch {
	case v.disk == wire.UpToDate:
		return true
	case v.disk != wire.Inconsistent:
		return false
	}
	// A sync target has the blocks whose bits are clear. Outside a resync the bits of an Inconsistent disk say nothing.
	target := false
	for _, l := range v.pv {
		if l.conn == wire.SyncTarget || l.conn == wire.PausedSyncT {
			target = true
			if l.isDirty(off, length) {
				return false
			}
		}
	}
	return target
}

// read serves an application read from the local disk or from a peer.
func (m *Machine) read(r *Request) {
	if r.Len == 0 {
		m.finish(r, nil)
		return
	}
	if m.readable(r.v, r.Off, r.Len) {
		if i := m.balance(r); i >= 0 {
			m.readFrom(r, i)
			return
		}
		m.toDisk(r)
		return
	}
	m.readRemote(r)
}

// canRead says whether the peer has the present data of r and was not asked for it yet.
func (l *link) canRead(i int, r *Request) bool {
	if r.retry&(1<<i) != 0 || l.p.state != wire.Connected || l.conn < wire.Connected || l.disk != wire.UpToDate {
		return false
	}
	// Where our disk is good, a set bit is a block that the peer missed.
	return l.v.disk != wire.UpToDate || !l.isDirty(r.Off, r.Len)
}

// readFrom asks one peer.
func (m *Machine) readFrom(r *Request, i int) {
	l := r.v.pv[i]
	r.retry |= 1 << i
	r.Peer = i
	m.closeEpoch(l.p) // a read request ends the epoch (10.1)
	m.beforeWrite(l.p)
	pkt := m.send(l.p, r.Vol, wire.DataRequest)
	pkt.Sector, pkt.BlockID, pkt.Size = uint64(r.Off)>>9, r.blockID(), uint32(r.Len)
	r.parts[i].sent = m.now
	l.p.reads = append(l.p.reads, r)
}

// readRemote asks a peer that was not asked yet.
func (m *Machine) readRemote(r *Request) {
	for i, l := range r.v.pv {
		if l.canRead(i, r) {
			m.readFrom(r, i)
			return
		}
	}
	r.Peer = -1
	m.dropHeal(r)
	switch {
	case r.localErr != nil:
		m.finish(r, ioErr(r.localErr))
	case r.remoteErr:
		m.finish(r, ErrIO)
	default:
		m.noData(r)
	}
}

// readDone: the local disk answered a read.
func (m *Machine) readDone(r *Request) {
	if r.ended {
		m.retire(r)
		return
	}
	if r.localErr == nil {
		m.finish(r, nil)
		return
	}
	m.event(r.Vol, -1, "read error, trying a peer", r.localErr)
	if r.v.disk < wire.Inconsistent || m.otherPrimary(r.v) {
		m.readRemote(r) // a heal beside the peer's own writes could wait for them, and they for it
		return
	}
	// What the peer gives is written over the bad block: most disks then give it a new place. Nothing else may write there
	// between the peer's reading and our writing, so the heal takes its place among the writes before it asks.
	h := m.NewRequest(HealWrite)
	h.Vol, h.Off, h.Len, h.Op, h.v, h.Tag = r.Vol, r.Off, r.Len, OpWrite, r.v, r
	h.FUA = true
	r.heal = h
	if r.v.list(h) {
		m.begin(h)
	}
}

// dropHeal gives up writing over a bad block.
func (m *Machine) dropHeal(r *Request) {
	if h := r.heal; h != nil {
		r.heal = nil
		m.unlist(h)
		m.release(h)
	}
}

// pendingRead takes the read that a peer answers out of the peer's list.
func (m *Machine) pendingRead(l *link, id, sector uint64) *Request {
	r := m.byBlockID(id)
	if r == nil || r.Kind != AppRead || r.v != l.v || uint64(r.Off)>>9 != sector {
		return nil
	}
	for i, o := range l.p.reads {
		if o == r {
			l.p.reads = append(l.p.reads[:i], l.p.reads[i+1:]...)
			return r
		}
	}
	return nil
}

// dataReply handles P_DATA_REPLY. The data is in r.Tag already.
func (m *Machine) dataReply(l *link, pkt *wire.Packet) error {
	r := m.pendingRead(l, pkt.BlockID, pkt.Sector)
	if r == nil || int64(pkt.Size) != r.Len {
		return errors.New("data reply to no read")
	}
	if h := r.heal; h != nil && r.v.disk >= wire.Inconsistent {
		m.toDisk(h) // the reader waits for it, since its buffer is what is written
		return nil
	}
	m.dropHeal(r)
	m.finish(r, nil)
	return nil
}

// healed: the block that could not be read was written again, or could not be.
func (m *Machine) healed(h *Request) {
	r := h.Tag.(*Request)
	err := h.localErr
	m.dropHeal(r)
	if err != nil {
		m.diskFailed(r.v, err)
	} else {
		m.event(r.Vol, r.Peer, "read error healed from peer", nil)
	}
	m.finish(r, nil)
}

// negDReply handles P_NEG_DREPLY: the peer could not read either.
func (m *Machine) negDReply(l *link, pkt *wire.Packet) error {
	r := m.pendingRead(l, pkt.BlockID, pkt.Sector)
	if r == nil {
		return errors.New("negative reply to no read")
	}
	r.remoteErr = true
	m.readAgain(r)
	return nil
}

// peerRead handles P_DATA_REQUEST.
func (m *Machine) peerRead(l *link, pkt *wire.Packet) error {
	v := l.v
	off, length := int64(pkt.Sector)<<9, int64(pkt.Size)
	if !v.inside(off, length) {
		return errors.New("read request beyond the end")
	}
	if m.oldTerm(l.p) {
		m.refuseTerm(l.p) // what it would show may be old
		return nil
	}
	if v.disk != wire.UpToDate {
		m.ack(l, wire.NegDReply, pkt.Sector, pkt.BlockID, pkt.Size)
		return nil
	}
	r := m.newPeerRequest(PeerRead, l)
	r.Off, r.Len, r.Op, r.peerID = off, length, OpRead, pkt.BlockID
	if v.list(r) { // the peer's writes before it come first, whatever was acknowledged of them
		m.begin(r)
	}
	return nil
}

func (m *Machine) peerReadDone(r *Request) {
	l := r.v.pv[r.Peer]
	if !m.stale(r) {
		if r.localErr != nil {
			m.ack(l, wire.NegDReply, uint64(r.Off)>>9, r.peerID, uint32(r.Len))
		} else {
			pkt := m.send(l.p, r.Vol, wire.DataReply)
			pkt.Sector, pkt.BlockID, pkt.Size = uint64(r.Off)>>9, r.peerID, uint32(r.Len)
			pkt.Tail = uint32(r.Len) + uint32(l.p.cfg.Net.IntegritySize)
			m.out[len(m.out)-1].Req = r
			l.p.sentBytes += r.Len
		}
	}
	err := r.localErr
	v := r.v
	m.releasePeer(r)
	if err != nil {
		m.diskFailed(v, err)
	}
}

// inside says whether the range is one a peer may name.
func (v *volume) inside(off, length int64) bool {
	return off >= 0 && length > 0 && length&511 == 0 && off <= v.size-length
}

// ack sends one of the 24-byte packets on the meta socket. They carry sequence numbers.
func (m *Machine) ack(l *link, cmd wire.Command, sector, id uint64, size uint32) {
	l.seq++
	pkt := m.send(l.p, l.v.num, cmd)
	pkt.Sector, pkt.BlockID, pkt.Size, pkt.Seq = sector, id, size, l.seq
}
