package core

import (
	"errors"
	"fmt"

	"github.com/hawser-ha/hawser/replicator/bitmap"
	"github.com/hawser-ha/hawser/replicator/pace"
	"github.com/hawser-ha/hawser/replicator/wire"
)

// Verify starts an online verify of [start, stop) with the peer (drbd-wire.md 23). stop 0 is the end.
func (m *Machine) Verify(now Now, vol, peer int, start, stop int64, cmd any) {
	m.tick(now)
	v := m.volume(vol)
	l := v.pv[peer]
	start &^= bitmap.BlockSize - 1
	if stop <= 0 || stop > v.size {
		stop = v.size
	}
	switch {
	case l.p.cfg.Net.VerifyAlg == "":
		m.result(cmd, fmt.Errorf("verify-alg: %w", ErrAlgorithm))
		return
	case l.p.state != wire.Connected:
		m.result(cmd, ErrNoConnection)
		return
	case l.conn != wire.Connected:
		m.result(cmd, ErrBusy)
		return
	case v.disk != wire.UpToDate || l.disk != wire.UpToDate:
		m.result(cmd, ErrNotUpToDate)
		return
	case start >= stop:
		m.result(cmd, ErrOutOfRange)
		return
	}
	m.askPeer(l.p, vol, maskConn, wire.State(wire.VerifyS)<<4, func(err error) {
		m.result(cmd, err)
		if err != nil {
			return
		}
		params := l.p.cfg.Pace
		if params.MaxInFlight == 0 {
			params.MaxInFlight = l.p.cfg.Net.MaxBuffers * 8 / 2
		}
		l.rs = resync{started: m.now, total: bitmap.BitsFor(stop - start), cursor: start / bitmap.BlockSize, start: start, stop: stop,
			ctl: pace.New(params), nextTick: m.now + tickEvery}
		m.setConn(l, wire.VerifyS)
		l.rs.budget = int64(l.rs.ctl.Step(0, 0))
		m.verifyMore(l)
	})
}

// verifyMore asks for the digests of as many blocks as the controller allows.
func (m *Machine) verifyMore(l *link) {
	rs := &l.rs
	if l.conn != wire.VerifyS || rs.ctl == nil {
		return
	}
	window := int64(rs.ctl.Window())
	for rs.budget > 0 && rs.inFlight < window {
		off := rs.cursor * bitmap.BlockSize
		if off >= rs.stop {
			break
		}
		length := min(bitmap.BlockSize, rs.stop-off)
		r := m.newPeerRequest(VerifyCheck, l)
		r.Off, r.Len, r.Op = off, length, OpRead
		rs.cursor++
		rs.inFlight += length >> 9
		rs.budget -= length >> 9
		rs.reqs++
		if l.v.list(r) {
			m.begin(r)
		}
	}
	if rs.reqs == 0 && rs.cursor*bitmap.BlockSize >= rs.stop {
		m.event(l.v.num, l.p.idx, fmt.Sprintf("verify done: %d bytes out of sync", rs.outOfSync*bitmap.BlockSize), nil)
		if rs.outOfSync > 0 {
			m.runHandler(l.v.num, l.p.idx, "out-of-sync")
		}
		m.verifyDone(l)
		m.sendState(l)
	}
}

// verifyDone goes back to normal replication; what was found is in the bitmap.
func (m *Machine) verifyDone(l *link) {
	found, total := l.rs.outOfSync, l.rs.total
	m.stopSync(l)
	l.rs.outOfSync, l.rs.total = found, total
	m.setConn(l, wire.Connected)
	if found > 0 {
		m.writeSuper(l.v, false, true, false, nil)
	}
}

func (m *Machine) beginVerifyCheck(r *Request) {
	l := r.v.pv[r.Peer]
	if m.stale(r) {
		m.verifyOver(r)
		return
	}
	if r.armed {
		r.Compare = true
		m.toDisk(r)
		return
	}
	r.begun = true
	pkt := m.send(l.p, l.v.num, wire.OVRequest)
	pkt.Sector, pkt.BlockID, pkt.Size = uint64(r.Off)>>9, wire.IDSyncer, uint32(r.Len)
}

// verifyRequest handles P_OV_REQUEST.
func (m *Machine) verifyRequest(l *link, pkt *wire.Packet) error {
	v := l.v
	off, length := int64(pkt.Sector)<<9, int64(pkt.Size)
	if !v.inside(off, length) || length > maxBio {
		return errors.New("verify request of a wrong size")
	}
	if l.conn != wire.VerifyT || v.disk != wire.UpToDate {
		m.ack(l, wire.NegRSDReply, pkt.Sector, wire.IDSyncer, pkt.Size)
		return nil
	}
	if l.rs.total == 0 {
		l.rs.start, l.rs.stop = off, v.size
		l.rs.total = bitmap.BitsFor(v.size - off)
		l.rs.started = m.now
	}
	r := m.newPeerRequest(VerifyRead, l)
	r.Off, r.Len, r.Op, r.Digest = off, length, OpRead, true
	if v.list(r) {
		m.begin(r)
	}
	return nil
}

func (m *Machine) verifyReadDone(r *Request) {
	l := r.v.pv[r.Peer]
	v, err := r.v, r.localErr
	if !m.stale(r) {
		if err != nil {
			m.ack(l, wire.NegRSDReply, uint64(r.Off)>>9, wire.IDSyncer, uint32(r.Len))
		} else {
			pkt := m.send(l.p, v.num, wire.OVReply)
			pkt.Sector, pkt.BlockID, pkt.Size = uint64(r.Off)>>9, wire.IDSyncer, uint32(r.Len)
			pkt.Tail = uint32(l.p.cfg.Net.VerifySize)
			m.out[len(m.out)-1].Req = r
		}
	}
	m.releasePeer(r)
	if err != nil {
		m.diskFailed(v, err)
	}
}

// verifyPending finds the check that an answer belongs to.
func (m *Machine) verifyPending(l *link, sector uint64) *Request {
	off := int64(sector) << 9
	for r := l.v.head; r != nil; r = r.nxt {
		if r.Kind == VerifyCheck && r.Peer == l.p.idx && r.begun && !r.armed && r.Off == off && !m.stale(r) {
			return r
		}
	}
	return nil
}

// verifyReply handles P_OV_REPLY: compare the peer's digest with our block.
func (m *Machine) verifyReply(l *link, pkt *wire.Packet, tag any) (keep bool, err error) {
	r := m.verifyPending(l, pkt.Sector)
	if r == nil {
		if l.conn != wire.VerifyS {
			return false, nil
		}
		return false, errors.New("verify reply to no request")
	}
	if l.v.disk != wire.UpToDate {
		m.verifyAnswer(l, r, true)
		return false, nil
	}
	l.rs.in += r.Len >> 9
	l.v.clock++
	r.armed, r.armedAt, r.begun, r.Tag = true, l.v.clock, false, tag
	if l.v.mayStart(r) {
		m.begin(r)
	}
	return true, nil
}

func (m *Machine) verifyCheckDone(r *Request) {
	l := r.v.pv[r.Peer]
	v, err := r.v, r.localErr
	if m.stale(r) {
		m.verifyOver(r)
	} else {
		m.verifyAnswer(l, r, err != nil || r.Match)
	}
	if err != nil {
		m.diskFailed(v, err)
	}
}

// verifyAnswer tells the peer the outcome for one block and goes on.
func (m *Machine) verifyAnswer(l *link, r *Request, same bool) {
	id := wire.IDInSync
	if !same {
		id = wire.IDOutOfSync
		l.dirty(r.Off, r.Len)
		l.rs.outOfSync += bitmap.BitsFor(r.Len)
		m.event(l.v.num, l.p.idx, fmt.Sprintf("verify: out of sync at byte %d", r.Off), nil)
	}
	m.ack(l, wire.OVResult, uint64(r.Off)>>9, id, uint32(r.Len))
	m.verifyOver(r)
	m.verifyMore(l)
}

func (m *Machine) verifyOver(r *Request) {
	l := r.v.pv[r.Peer]
	if !m.stale(r) {
		l.rs.inFlight -= r.Len >> 9
		l.rs.done += r.Len
		l.rs.reqs--
	}
	m.releasePeer(r)
}

// verifyRefused: the peer could not read a block.
func (m *Machine) verifyRefused(l *link, pkt *wire.Packet) error {
	if r := m.verifyPending(l, pkt.Sector); r != nil {
		m.verifyOver(r)
		m.verifyMore(l)
	}
	return nil
}

// verifyResult handles P_OV_RESULT at the target.
func (m *Machine) verifyResult(l *link, pkt *wire.Packet) error {
	off, n := int64(pkt.Sector)<<9, int64(pkt.Size)
	if !l.v.inside(off, n) {
		return errors.New("verify result beyond the end")
	}
	l.rs.done += n
	if pkt.BlockID == wire.IDOutOfSync {
		l.dirty(off, n)
		l.rs.outOfSync += bitmap.BitsFor(n)
	}
	return nil
}
