package core

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/hawser-ha/hawser/replicator/bitmap"
	"github.com/hawser-ha/hawser/replicator/pace"
	"github.com/hawser-ha/hawser/replicator/wire"
)

// syncExtent is the boundary that no resync request crosses (drbd-wire.md 21.2).
const syncExtent = 16 << 20

// tickEvery is the period of the resync controller.
const tickEvery = Now(100e6)

// syncRetriesMax is how often blocks are asked for again that the source could not read.
const syncRetriesMax = 5

// resync is a running resync or verify of one volume with one peer.
type resync struct {
	ctl       *pace.Controller
	started   Now
	total     int64 // bits to do at the start
	failed    int64 // bits that could not be copied
	cursor    int64 // next bit to look at
	inFlight  int64 // sectors requested
	in        int64 // sectors arrived in this tick
	budget    int64 // sectors that may be requested before the next tick
	nextTick  Now
	mayBeDone bool  // source: the target may have ended without our knowing
	peerDone  bool  // source: the target has all blocks; our own disk still writes some of them
	ending    bool  // the fence before the end is out, or the superblock is being written
	retries   int   // rounds over blocks that failed
	same      int64 // bits found equal by checksum
	moved     int64 // bytes received or sent
	reqs      int   // requests in flight

	// verify
	start, stop int64 // bytes
	outOfSync   int64 // bits found different
	done        int64 // bytes verified
	throttle    *pace.Throttle
	served      int64 // sectors served in this tick, as source
	app         int64 // application bytes at the last tick
	backlog     []*Request
	allow       int64
}

func (l *link) resetSync() {
	l.rs, l.doubt, l.syncID = resync{}, nil, 0
	l.gotPeerBitmap, l.bmSent, l.starting = false, false, false
	l.bmPos, l.bmScratch = 0, nil // a new link, a new stream
}

// sendBitmap sends ours, once for each exchange.
func (m *Machine) sendBitmap(l *link) {
	l.bmSent = true
	m.emit(SendBitmap, l.v.num, l.p.idx)
}

// Bitmap gives the caller the bitmap to send for a SendBitmap effect.
func (m *Machine) Bitmap(vol, peer int) *bitmap.Bitmap { return m.volume(vol).pv[peer].bm }

// BitmapSlots gives the bitmaps of a volume by peer index, for writing them to disk; nil where a peer has none.
func (m *Machine) BitmapSlots(vol int) []*bitmap.Bitmap {
	v := m.volume(vol)
	out := make([]*bitmap.Bitmap, len(v.pv))
	for i, l := range v.pv {
		out[i] = l.bm
	}
	return out
}

// peerBitmap handles a piece of the peer's bitmap: it is ORed into ours (section 20). The pieces carry no position, so a
// transfer is followed to its end even if its exchange was called off; then its bits go nowhere.
func (m *Machine) peerBitmap(l *link, pkt *wire.Packet, data []byte) error {
	takes := l.starting || l.conn >= wire.WFBitMapS && l.conn <= wire.SyncTarget || l.conn == wire.PausedSyncT
	if l.bmPos == 0 {
		l.bmWhole = true
	}
	into := l.bm
	if into == nil || !takes {
		if l.bmScratch == nil {
			l.bmScratch = bitmap.New(l.v.bits())
		}
		into, l.bmWhole = l.bmScratch, false
	}
	bits := into.Bits()
	last := false
	if pkt.Cmd == wire.CompressedBitmap {
		next, err := into.OrRLE(data, l.bmPos)
		if err != nil {
			return err
		}
		l.bmPos = next
		last = l.bmPos >= bits
	} else {
		words := (bits + 63) / 64
		at := l.bmPos / 64
		switch {
		case len(data)&7 != 0 || int64(len(data)/8) > words-at:
			return errors.New("bitmap of a wrong length")
		case len(data) == 0 && l.bmPos < bits:
			return errors.New("bitmap ends too early")
		}
		last = len(data) == 0
		for i := 0; i+8 <= len(data); i += 8 {
			into.OrWord(int(at)+i/8, binary.LittleEndian.Uint64(data[i:]))
		}
		l.bmPos = (at + int64(len(data)/8)) * 64
	}
	if !last {
		return nil
	}
	l.bmPos, l.bmScratch = 0, nil
	if !l.bmWhole {
		return nil
	}
	l.gotPeerBitmap = true
	m.bitmapMerged(l)
	return nil
}

// bitmapMerged: the peer's whole bitmap is in ours.
func (m *Machine) bitmapMerged(l *link) {
	switch l.conn {
	case wire.WFBitMapT:
		// Until it has our bitmap the source sends no data: what the handler does, a snapshot perhaps, sees one moment.
		if m.cfg.BeforeTarget && !l.hooked {
			if l.hook == 0 {
				m.hooks++
				l.hook = m.hooks
				e := m.emit(RunHandler, l.v.num, l.p.idx)
				e.Note, e.Token = "before-resync-target", l.hook
			}
			return
		}
		m.sendBitmap(l)
		m.setConn(l, wire.WFSyncUUID)
	case wire.WFBitMapS:
		m.startSource(l)
	}
}

// HandlerDone tells the exit code of a handler that was asked for with a token; -1: it did not end by itself. The code of
// one that nobody waits for any more is ignored.
func (m *Machine) HandlerDone(now Now, vol, peer int, token uint64, code int) {
	m.tick(now)
	if token == 0 || vol < 0 {
		if token != 0 {
			m.fenceDone(token, code)
		}
		return
	}
	l := m.volume(vol).pv[peer]
	if l.hook != token {
		return
	}
	l.hook = 0
	switch {
	case !l.p.up || l.conn != wire.WFBitMapT:
	case code != 0:
		m.standAlone(l.p, fmt.Errorf("volume %d: the handler before-resync-target refuses the resync (exit code %d)", vol, code))
	default:
		l.hooked = true
		m.bitmapMerged(l)
	}
}

// startSource makes this node the source of a resync whose blocks are known (17.3).
func (m *Machine) startSource(l *link) {
	v := l.v
	id := l.syncID
	if id == 0 || v.sup.Bitmap[l.p.idx] != id { // after Ahead it is the same resync: the history must not grow past what the target has
		s := v.set(l.p.idx)
		id = s.SourceStart(m.cfg.Rand())
		v.setUUIDs(l.p.idx, s)
		l.syncID = id
	}
	gen := l.p.gen
	m.setConn(l, wire.SyncSource)
	l.rs = resync{started: m.now, total: l.count(), nextTick: m.now + tickEvery, throttle: pace.NewThrottle(l.p.cfg.MinRate), allow: -1, app: v.reads + v.writes}
	m.runHandler(v.num, l.p.idx, "before-resync-source")
	m.writeSuper(v, false, false, false, func(err error) {
		if err != nil || l.p.gen != gen || !l.p.up || l.conn != wire.SyncSource && l.conn != wire.PausedSyncS {
			return
		}
		m.send(l.p, v.num, wire.SyncUUID).UUID = id
	})
}

// syncUUID handles P_SYNC_UUID: the resync of which we are the target begins.
func (m *Machine) syncUUID(l *link, id uint64) error {
	v := l.v
	if l.conn != wire.WFSyncUUID && l.conn != wire.Behind && l.conn != wire.StartingSyncT {
		return errors.New("start of a resync that nobody waits for")
	}
	if v.disk < wire.Inconsistent {
		return nil
	}
	s := v.set(l.p.idx)
	s.TargetStart(id, m.role == wire.Primary)
	v.setUUIDs(l.p.idx, s)
	n := &l.p.cfg.Net
	params := l.p.cfg.Pace
	if params.MaxInFlight == 0 {
		params.MaxInFlight = n.MaxBuffers * 8 / 2
	}
	l.rs = resync{started: m.now, total: l.count(), ctl: pace.New(params), nextTick: m.now + tickEvery}
	if l.undo {
		m.emit(UndoBegin, v.num, l.p.idx)
	}
	if !l.hooked {
		m.runHandler(v.num, l.p.idx, "before-resync-target")
	}
	l.hooked = false
	for _, o := range v.pv { // from one source at a time
		if o != l && (o.conn == wire.SyncTarget || o.conn == wire.PausedSyncT) {
			l.afterPause = true
		}
	}
	m.setConn(l, wire.SyncTarget)
	gen := l.p.gen
	// The source forgets a block when it is in our cache. Should that be lost in a power cut, our own bitmap must know.
	m.writeSuper(v, false, true, false, func(err error) {
		if err != nil || l.p.gen != gen || l.conn != wire.SyncTarget && l.conn != wire.PausedSyncT {
			return
		}
		m.sendState(l)
		l.rs.budget = int64(l.rs.ctl.Step(0, 0))
		m.syncMore(l)
	})
	return nil
}

// syncMore requests as many blocks as the controller allows, or ends the resync.
func (m *Machine) syncMore(l *link) {
	v, rs := l.v, &l.rs
	if l.conn != wire.SyncTarget || rs.ending || rs.ctl == nil || v.disk < wire.Inconsistent {
		return
	}
	window := int64(rs.ctl.Window())
	for rs.budget > 0 && rs.inFlight < window {
		bit := l.bm.NextSet(rs.cursor)
		if bit < 0 {
			break
		}
		off := bit * bitmap.BlockSize
		length := m.syncExtentAt(l, bit)
		csum := l.p.cfg.Net.CsumsAlg != "" && (!l.p.cfg.Net.CsumsAfterCrashOnly || v.crashed)
		if csum {
			length = min(length, csumExtent)
		}
		r := m.newPeerRequest(SyncWrite, l)
		r.Off, r.Len, r.Op = off, length, OpWrite
		r.csum = csum
		r.Undo = l.undo
		rs.cursor = (off + length + bitmap.BlockSize - 1) / bitmap.BlockSize
		rs.inFlight += length >> 9
		rs.budget -= length >> 9
		rs.reqs++
		if v.list(r) {
			m.begin(r)
		}
		if rs.ending || l.conn != wire.SyncTarget {
			return
		}
	}
	if rs.reqs > 0 {
		return
	}
	switch {
	case l.count() == 0:
		m.targetFence(l)
	case l.bm.NextSet(rs.cursor) >= 0:
	case rs.failed == 0:
		rs.cursor = 0 // bits that were set behind us, or cancelled
	case rs.retries < syncRetriesMax:
		rs.retries++ // in the next tick once more: a read error may pass
		rs.cursor, rs.failed, rs.budget = 0, 0, 0
	default:
		m.targetFence(l) // what is left has failed
	}
}

// syncExtentAt says how far a request that starts at bit reaches (21.2).
func (m *Machine) syncExtentAt(l *link, bit int64) int64 {
	off := bit * bitmap.BlockSize
	limit := l.v.cfg.MaxBio
	if limit <= 0 || limit > maxBio {
		limit = maxBio
	}
	if g := l.v.cfg.ThinGranularity; g > 0 && l.p.li.Features&wire.FeatureThinResync != 0 {
		limit = min(limit, g)
	}
	length := int64(bitmap.BlockSize)
	align := int64(8192)
	for length+bitmap.BlockSize <= limit {
		next := bit + length/bitmap.BlockSize
		if next >= l.bm.Bits() || !l.bm.Test(next) || (off+length)%syncExtent == 0 {
			break
		}
		if length+bitmap.BlockSize > align/2 && off&(align-1) != 0 && length >= align/2 {
			break
		}
		length += bitmap.BlockSize
		for length > align {
			align *= 2
		}
		if off&(align-1) != 0 && length > align/2 {
			length -= bitmap.BlockSize
			break
		}
	}
	return min(length, l.v.size-off)
}

// beginSyncWrite: first the request goes out, and when the reply is here its data goes to disk.
func (m *Machine) beginSyncWrite(r *Request) {
	l := r.v.pv[r.Peer]
	if m.stale(r) || r.v.disk < wire.Inconsistent {
		m.syncWriteOver(r)
		return
	}
	if r.armed {
		r.Compare, r.Digest = false, false
		m.toDisk(r)
		return
	}
	r.begun = true
	if r.csum {
		r.Op, r.Digest = OpRead, true
		m.toDisk(r)
		return
	}
	m.sendSyncRequest(l, r)
}

// csumExtent is what one checksum is for, bytes: where one block of it differs, all of it is sent.
const csumExtent = 32 << 10

func (m *Machine) sendSyncRequest(l *link, r *Request) {
	cmd := wire.RSDataRequest
	if g := l.v.cfg.ThinGranularity; g > 0 && r.Len == g && l.p.li.Features&wire.FeatureThinResync != 0 {
		cmd = wire.RSThinReq
	}
	if r.csum {
		cmd = wire.CsumRSRequest
	}
	pkt := m.send(l.p, l.v.num, cmd)
	pkt.Sector, pkt.BlockID, pkt.Size = uint64(r.Off)>>9, wire.IDSyncer, uint32(r.Len)
	if r.csum {
		pkt.Tail = uint32(l.p.cfg.Net.CsumsSize)
		m.out[len(m.out)-1].Req = r
	}
}

// syncRequest handles the target's requests.
func (m *Machine) syncRequest(l *link, pkt *wire.Packet, tag any) (keep bool, err error) {
	v := l.v
	off, length := int64(pkt.Sector)<<9, int64(pkt.Size)
	if !v.inside(off, length) || length > maxBio {
		return false, errors.New("resync request of a wrong size")
	}
	if l.conn != wire.SyncSource && l.conn != wire.PausedSyncS || v.disk != wire.UpToDate {
		no := wire.NegRSDReply
		if l.conn == wire.Ahead {
			no = wire.RSCancel
		}
		m.ack(l, no, pkt.Sector, wire.IDSyncer, pkt.Size)
		return false, nil
	}
	r := m.newPeerRequest(SyncRead, l)
	r.Off, r.Len, r.Op, r.Tag = off, length, OpRead, tag
	r.Thin = pkt.Cmd == wire.RSThinReq
	r.csum = pkt.Cmd == wire.CsumRSRequest
	r.Compare = r.csum
	r.cmd = pkt.Cmd
	if l.rs.allow >= 0 && l.rs.served >= l.rs.allow {
		l.rs.backlog = append(l.rs.backlog, r) // the application goes first
		return true, nil
	}
	l.rs.served += length >> 9
	if v.list(r) {
		m.begin(r)
	}
	return true, nil
}

// syncReadDone: the source has read what the target asked for.
func (m *Machine) syncReadDone(r *Request) {
	v := r.v
	l := v.pv[r.Peer]
	err := r.localErr
	if !m.stale(r) {
		sector, size := uint64(r.Off)>>9, uint32(r.Len)
		switch {
		case err != nil:
			m.ack(l, wire.NegRSDReply, sector, wire.IDSyncer, size)
			l.rs.failed += bitmap.BitsFor(r.Len)
		case r.csum && r.Match:
			n := l.clean(r.Off, r.Len)
			l.rs.same += n
			m.ack(l, wire.RSIsInSync, sector, wire.IDSyncer, size)
		case r.Thin && r.AllZero:
			pkt := m.send(l.p, v.num, wire.RSDeallocated)
			pkt.Sector, pkt.Size = sector, size
		default:
			pkt := m.send(l.p, v.num, wire.RSDataReply)
			pkt.Sector, pkt.BlockID, pkt.Size = sector, wire.IDSyncer, size
			pkt.Tail = size + uint32(l.p.cfg.Net.IntegritySize)
			m.out[len(m.out)-1].Req = r
			l.rs.moved += r.Len
			l.p.sentBytes += r.Len
		}
	}
	m.releasePeer(r)
	if err != nil {
		m.diskFailed(v, err)
	}
}

// syncPending finds the request that a reply of the source belongs to.
func (m *Machine) syncPending(l *link, sector uint64, size uint32, whole bool) *Request {
	off := int64(sector) << 9
	for r := l.v.head; r != nil; r = r.nxt {
		if r.Kind == SyncWrite && r.Peer == l.p.idx && !r.armed && r.Off == off && (!whole || r.Len == int64(size)) && !m.stale(r) && r.begun {
			return r
		}
	}
	return nil
}

// ReplyBuffer gives the request whose buffer the tail of a data reply may be read into directly; nil if there is none.
func (m *Machine) ReplyBuffer(peer int, pkt *wire.Packet) *Request {
	v := m.volume(int(pkt.Vol))
	if v == nil || pkt.Cmd != wire.DataReply {
		return nil
	}
	r := m.byBlockID(pkt.BlockID)
	if r == nil || r.Kind != AppRead || r.v != v || int64(pkt.Size) != r.Len {
		return nil
	}
	for _, o := range m.peers[peer].reads {
		if o == r {
			return r
		}
	}
	return nil
}

// syncReply handles P_RS_DATA_REPLY and P_RS_DEALLOCATED.
func (m *Machine) syncReply(l *link, pkt *wire.Packet, tag any) (keep bool, err error) {
	r := m.syncPending(l, pkt.Sector, pkt.Size, true)
	if r == nil {
		if l.conn != wire.SyncTarget && l.conn != wire.PausedSyncT {
			return false, nil // the resync was stopped meanwhile
		}
		return false, errors.New("resync reply to no request")
	}
	l.rs.in += r.Len >> 9
	l.rs.inFlight -= r.Len >> 9
	r.armed, r.armedAt = true, l.v.clock+1
	l.v.clock++
	r.begun, r.local = false, localNone
	if pkt.Cmd == wire.RSDeallocated {
		r.Op = OpZero
	} else {
		r.Op = OpWrite
		l.rs.moved += r.Len
		l.p.rcvdBytes += r.Len
		if r.Tag == nil {
			r.Tag, keep = tag, true
		} else {
			r.Tag, keep = m.swapTag(l.p, r.Tag, tag), true
		}
	}
	if l.v.mayStart(r) {
		m.begin(r)
	}
	return keep, nil
}

// swapTag releases the buffer of a checksum read in favour of the one with the data.
func (m *Machine) swapTag(p *peer, old, tag any) any {
	m.dropTag(p, old)
	return tag
}

// syncWriteDone: the target has read its block for the checksum, or written what came.
func (m *Machine) syncWriteDone(r *Request) {
	v := r.v
	l := v.pv[r.Peer]
	err := r.localErr
	if m.stale(r) {
		m.syncWriteOver(r)
		return
	}
	sector, size := uint64(r.Off)>>9, uint32(r.Len)
	if !r.armed { // the checksum
		r.Digest = false
		if err != nil {
			r.csum = false // then without
		} else {
			r.Digest = true
		}
		m.sendSyncRequest(l, r)
		r.Digest = false
		return
	}
	switch {
	case errors.Is(err, ErrUndo):
		m.syncWriteOver(r)
		m.undoFailed(l, err)
		return
	case err != nil:
		l.rs.failed += bitmap.BitsFor(r.Len)
		m.ack(l, wire.NegAck, sector, wire.IDSyncer, size)
		m.syncWriteOver(r)
		m.diskFailed(v, err)
		return
	}
	l.clean(r.Off, r.Len)
	m.ack(l, wire.RSWriteAck, sector, wire.IDSyncer, size)
	m.syncWriteOver(r)
	m.syncMore(l)
}

// syncWriteOver forgets a target's request.
func (m *Machine) syncWriteOver(r *Request) {
	l := r.v.pv[r.Peer]
	if !m.stale(r) {
		if !r.armed {
			l.rs.inFlight -= r.Len >> 9
		}
		l.rs.reqs--
	}
	m.releasePeer(r)
}

// undoFailed stops a resync that would lose the loser's data for good.
func (m *Machine) undoFailed(l *link, err error) {
	m.standAlone(l.p, err)
}

// syncAnswer handles the answers without data: P_NEG_RS_DREPLY, P_RS_CANCEL, P_RS_IS_IN_SYNC.
func (m *Machine) syncAnswer(l *link, pkt *wire.Packet) error {
	if pkt.Cmd == wire.NegRSDReply && (l.conn == wire.VerifyS || l.conn == wire.Connected) {
		return m.verifyRefused(l, pkt)
	}
	r := m.syncPending(l, pkt.Sector, pkt.Size, true)
	if r == nil {
		return nil
	}
	l.rs.in += r.Len >> 9
	switch pkt.Cmd {
	case wire.NegRSDReply:
		l.rs.failed += bitmap.BitsFor(r.Len)
	case wire.RSIsInSync:
		l.rs.same += l.clean(r.Off, r.Len)
	}
	m.syncWriteOver(r)
	m.syncMore(l)
	return nil
}

// syncAcked: the source hears what became of a block it sent.
func (m *Machine) syncAcked(l *link, pkt *wire.Packet) error {
	off, n := int64(pkt.Sector)<<9, int64(pkt.Size)
	if !l.v.inside(off, n) {
		return errors.New("resync acknowledgement beyond the end")
	}
	switch pkt.Cmd {
	case wire.RSWriteAck:
		if !m.doubted(l, off, n) {
			m.inSync(l, off, n)
		}
	case wire.NegAck:
		l.rs.failed += bitmap.BitsFor(n)
	}
	return nil
}

// inSync clears the bits of blocks that were copied completely.
func (m *Machine) inSync(l *link, off, length int64) {
	if l.clean(off, length) == 0 {
		return
	}
	switch {
	case l.conn == wire.SyncTarget && l.rs.reqs == 0:
		m.syncMore(l)
	case l.rs.peerDone && l.count() <= l.rs.failed:
		m.sourceDone(l)
	}
}

// targetFence: all blocks are here. The source must have heard of all of them before it hears of the end (21.5).
func (m *Machine) targetFence(l *link) {
	l.rs.ending = true
	gen := l.p.gen
	m.ping(l.p, func() {
		if l.p.gen == gen && l.conn == wire.SyncTarget && l.rs.ending {
			m.targetDone(l)
		}
	})
}

func (m *Machine) targetDone(l *link) {
	v := l.v
	if l.count() > l.rs.failed { // the peer reported more differences meanwhile
		l.rs.ending = false
		l.rs.cursor = 0
		m.syncMore(l)
		return
	}
	gen := l.p.gen
	if l.count() > 0 {
		m.event(v.num, l.p.idx, "resync ended with blocks that could not be copied", nil)
		m.setConn(l, wire.Connected)
		m.writeSuper(v, true, true, false, nil)
		m.sendState(l)
		m.resyncOver(l)
		return
	}
	s := v.set(l.p.idx)
	s.TargetDone(l.peerSet, m.role == wire.Primary)
	// The disk is UpToDate on paper only when its data and the cleared bits are stable.
	v.setUUIDs(l.p.idx, s)
	v.disk = wire.UpToDate
	m.writeSuper(v, true, true, false, func(err error) {
		if err != nil || l.p.gen != gen || v.disk < wire.Inconsistent {
			return
		}
		m.setConn(l, wire.Connected)
		m.event(v.num, -1, "disk UpToDate", nil)
		m.sendState(l)
		m.reportOthers(l)
		m.resyncOver(l)
		m.crashOver(v)
		m.review()
		m.runHandler(v.num, l.p.idx, "after-resync-target")
	})
}

// mayEnd notes, before a ping is answered, which targets may end their resync on the strength of the answer (21.5).
func (m *Machine) mayEnd(p *peer) {
	inFlight := p.inflight/bitmap.BlockSize + 2*int64(p.tlCount) // blocks whose acknowledgement was first, our own disk last
	for _, v := range m.vols {
		l := v.pv[p.idx]
		if (l.conn == wire.SyncSource || l.conn == wire.PausedSyncS) && l.count() <= l.rs.failed+inFlight {
			l.rs.mayBeDone = true
		}
	}
}

// sourceDone: the target says that it is UpToDate.
func (m *Machine) sourceDone(l *link) {
	v := l.v
	l.rs.peerDone = false
	l.disk = wire.UpToDate
	if l.count() > 0 {
		l.disk = wire.Inconsistent
	} else {
		s := v.set(l.p.idx)
		s.SourceDone()
		v.setUUIDs(l.p.idx, s)
	}
	m.setConn(l, wire.Connected)
	m.writeSuper(v, false, true, false, nil)
	m.resyncOver(l)
	m.crashOver(v)
	m.review()
}

func (m *Machine) resyncOver(l *link) {
	if l.undo {
		l.undo = false
		m.emit(UndoEnd, l.v.num, l.p.idx)
	}
	l.rs.ctl, l.doubt = nil, nil
	l.rs.ending = false
	m.unfence(l.p)
	e := m.emit(Event, l.v.num, l.p.idx)
	e.Note, e.Off = "resync done", l.rs.total*bitmap.BlockSize
	m.nextInLine(l.v)
}

// stopSync drops a resync or verify where it stands; the bits know what is missing.
func (m *Machine) stopSync(l *link) {
	v := l.v
	for again := true; again; {
		again = false
		for r := v.head; r != nil; r = r.nxt {
			if r.Peer != l.p.idx || r.cancelled {
				continue
			}
			switch r.Kind {
			case SyncWrite, VerifyCheck, SyncRead, VerifyRead:
			default:
				continue
			}
			r.cancelled = true
			if r.local == localRunning {
				continue // DiskDone ends it
			}
			m.releasePeer(r)
			again = true
			break
		}
	}
	backlog := l.rs.backlog
	l.rs.backlog = nil
	for _, r := range backlog {
		m.releasePeer(r)
	}
	if l.undo && l.rs.ctl != nil {
		m.emit(UndoEnd, v.num, l.p.idx)
	}
	if !l.p.up {
		l.undo = false
	}
	wasTarget := l.conn == wire.SyncTarget
	l.rs = resync{}
	l.gotPeerBitmap, l.starting = false, false
	if wasTarget {
		m.nextInLine(v)
	}
}

// setPeerPause follows the peer's pause flags.
func (l *link) setPeerPause(m *Machine, on bool) {
	if l.peerPause == on {
		return
	}
	l.peerPause = on
	m.setConn(l, l.conn)
	m.syncMore(l)
}

// nextInLine lets a resync from another source begin that waited for this one.
func (m *Machine) nextInLine(v *volume) {
	for _, l := range v.pv {
		if !l.afterPause {
			continue
		}
		l.afterPause = false
		if l.conn == wire.PausedSyncT {
			m.setConn(l, wire.SyncTarget)
			m.sendState(l)
			m.syncMore(l)
		}
		return
	}
}
