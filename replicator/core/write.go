package core

import (
	"errors"

	"github.com/hawser-ha/hawser/replicator/bitmap"
	"github.com/hawser-ha/hawser/replicator/wire"
)

// Submit takes one request of a front end. Complete, then Release follow, whatever happens.
func (m *Machine) Submit(now Now, r *Request) {
	m.tick(now)
	v := m.volume(r.Vol)
	if v == nil {
		panic("core: submit to an unknown volume")
	}
	r.v = v
	switch {
	case m.role != wire.Primary || m.demoting != nil && m.demoting.closed:
		m.refuse(r, ErrNotPrimary)
		return
	case r.Off < 0 || r.Len < 0 || r.Off > v.size-r.Len:
		m.refuse(r, ErrOutOfRange)
		return
	}
	v.appBusy++
	m.enter(r)
}

// enter admits a request, or lets it wait.
func (m *Machine) enter(r *Request) {
	if m.suspended() || m.watch && m.mustWait(r) {
		if m.failing() {
			m.fail(r, nil, ErrNoLicence)
			return
		}
		m.frozen = append(m.frozen, r)
		return
	}
	m.admit(r)
}

func (m *Machine) refuse(r *Request, err error) {
	e := m.emit(Complete, r.Vol, -1)
	e.Req, e.Err = r, err
	m.release(r)
}

func (m *Machine) suspended() bool { return m.suspUser || m.suspNoD }

func (m *Machine) admit(r *Request) {
	switch r.Kind {
	case AppRead:
		r.Op = OpRead
		m.read(r)
	case AppFlush:
		r.Op = OpFlush
		m.flush(r)
	case AppWrite, AppTrim, AppZero:
		switch r.Kind {
		case AppWrite:
			r.Op = OpWrite
		case AppTrim:
			r.Op = OpDiscard
		default:
			r.Op = OpZero
		}
		if r.Len == 0 || r.Kind == AppTrim && !m.trims() {
			m.finish(r, nil)
			return
		}
		if !m.servable(r.v) {
			m.noData(r)
			return
		}
		if r.v.list(r) {
			m.begin(r)
		}
	}
}

// trims says whether all connected peers understand a discard. Where one does not, a discard, which is a hint, is not done
// anywhere: the disks stay equal.
func (m *Machine) trims() bool {
	for _, p := range m.peers {
		if p.state == wire.Connected && p.li.Features&wire.FeatureTrim == 0 {
			return false
		}
	}
	return true
}

// thaw lets the requests go on that were held back.
func (m *Machine) thaw() {
	if m.suspended() {
		return
	}
	q := m.frozen
	m.frozen = nil
	for _, r := range q {
		m.enter(r)
	}
}

// logWrite: a write that overlaps no other in flight gets its extents into the activity log.
func (m *Machine) logWrite(r *Request) {
	if m.alBegin(r) {
		m.sendAndWrite(r)
	}
}

// sendAndWrite sends the write to the peers and starts it on the local disk, in this order, so that both work at once.
func (m *Machine) sendAndWrite(r *Request) {
	v := r.v
	r.begun = true
	for i, l := range v.pv {
		m.sendWrite(r, l, &r.parts[i])
	}
	switch {
	case v.disk >= wire.Inconsistent:
		m.toDisk(r)
	case v.disk == wire.Negotiating: // the disk will be in use, but misses this write
		for _, l := range v.pv {
			l.dirty(r.Off, r.Len)
		}
	}
	m.advance(r)
}

// servable says whether a write has a good copy to go to. A disk that is behind is none: what is written there alone is
// overwritten by the resync it needs.
func (m *Machine) servable(v *volume) bool { return v.disk == wire.UpToDate || m.otherCopy(v) }

// replicates says whether writes go to the peer as data (drbd-wire.md 10.4).
func (l *link) replicates() bool {
	if l.conn < wire.Connected || l.p.state != wire.Connected {
		return false
	}
	return l.disk == wire.UpToDate && l.conn != wire.WFBitMapS && l.conn != wire.Ahead ||
		l.disk >= wire.Inconsistent && l.conn >= wire.WFBitMapT && l.conn < wire.Ahead
}

// reports says whether the peer is told of writes that it does not get.
func (l *link) reports() bool {
	return (l.conn == wire.WFBitMapS || l.conn == wire.Ahead) && l.p.state == wire.Connected
}

func (m *Machine) sendWrite(r *Request, l *link, pt *part) {
	p := l.p
	if !l.replicates() {
		m.missed(r, l)
		return
	}
	if m.congested(l) {
		m.missed(r, l)
		return
	}
	cmd, need := wire.Data, uint32(0)
	flags := wire.Flags(0)
	switch r.Op {
	case OpDiscard:
		cmd, need, flags = wire.Trim, wire.FeatureTrim, wire.FlagDiscard
	case OpZero:
		cmd, need, flags = wire.Zeroes, wire.FeatureWZeroes, wire.FlagZeroes
		if !r.NoUnmap {
			flags |= wire.FlagDiscard
		}
	}
	if r.Op == OpZero && !p.zeroes() && r.Len <= wire.MaxData {
		cmd, need, flags = wire.Data, 0, 0 // the replicator sends zeroes
	}
	if p.li.Features&need != need || cmd != wire.Data && r.Len > maxDiscard(p) {
		m.missed(r, l) // the peer cannot do it: a resync will
		return
	}
	m.beforeWrite(p)
	proto := p.cfg.Net.Protocol
	if m.twoPrimaries(p) || r.v.disk != wire.UpToDate {
		proto = 3
	}
	switch proto {
	case 2:
		flags |= wire.FlagSendReceiveAck
		pt.want = wire.RecvAck
	case 3:
		flags |= wire.FlagSendWriteAck
		pt.want = wire.WriteAck
	default:
		pt.want = 0
	}
	if l.conn == wire.SyncSource || l.conn == wire.SyncTarget || l.conn == wire.PausedSyncS || l.conn == wire.PausedSyncT {
		flags |= wire.FlagMaySetInSync | wire.FlagSendWriteAck
	}
	if r.FUA || r.v.disk != wire.UpToDate { // the peer's is the only good copy: its power may fail and we go on
		flags |= wire.FlagFUA
	}
	if p.flushNext {
		flags |= wire.FlagFlush
		p.flushNext = false
	}
	l.seq++
	pkt := m.send(p, r.Vol, cmd)
	pkt.Sector, pkt.BlockID, pkt.Size = uint64(r.Off)>>9, r.blockID(), uint32(r.Len)
	pkt.Seq, pkt.Flags = l.seq, flags
	if cmd == wire.Data {
		pkt.Tail = uint32(r.Len) + uint32(p.cfg.Net.IntegritySize)
		m.out[len(m.out)-1].Req = r
	}
	pt.state, pt.epoch, pt.sent = partSent, p.epoch, m.now
	pt.ok, pt.neg, pt.same, pt.next = false, false, false, nil
	if p.epochCount == 0 {
		p.epochOpen = m.now
	}
	p.epochCount++
	p.tlCount++
	p.inflight += r.Len
	p.sentBytes += r.Len
	if p.tlTail != nil {
		p.tlTail.parts[p.idx].next = r
	} else {
		p.tlHead = r
	}
	p.tlTail = r
	if int(p.epochCount) >= p.cfg.Net.MaxEpochSize {
		m.closeEpoch(p)
	}
}

// zeroes says whether the peer understands P_ZEROES. A kernel does not when there is a data-integrity-alg: it waits for a digest
// that does not come (drbd-wire.md 12).
func (p *peer) zeroes() bool {
	return p.li.Features&wire.FeatureWZeroes != 0 && (p.cfg.Net.IntegritySize == 0 || p.relaxed())
}

func maxDiscard(p *peer) int64 {
	if p.li.Features&wire.FeatureWSame != 0 {
		return 128 << 20
	}
	return 4 << 20
}

// missed marks a write that the peer does not get.
func (m *Machine) missed(r *Request, l *link) {
	l.dirty(r.Off, r.Len)
	if !l.reports() {
		return
	}
	if l.doubt != nil && l.conn == wire.Ahead {
		l.doubt.Set(r.Off/bitmap.BlockSize, (r.Off+r.Len-1)/bitmap.BlockSize)
	}
	m.sendOutOfSync(l, r)
}

func (m *Machine) sendOutOfSync(l *link, r *Request) {
	pkt := m.send(l.p, r.Vol, wire.OutOfSync)
	pkt.Sector, pkt.Size = uint64(r.Off)>>9, uint32(r.Len)
}

func (m *Machine) twoPrimaries(p *peer) bool { return p.cfg.Net.TwoPrimaries && p.twoPrim }

func (p *peer) relaxed() bool { return p.li.Features&FeatureRelaxedEpochs != 0 }

// closeEpoch ends the current epoch; its barrier goes out before the next write, or by sendBarrier.
func (m *Machine) closeEpoch(p *peer) {
	if p.epochCount == 0 {
		return
	}
	p.unacked = append(p.unacked, sentEpoch{nr: p.epoch, count: p.epochCount, at: m.now})
	p.epoch++
	p.epochCount = 0
}

// sendBarrier sends the barriers of all closed epochs.
func (m *Machine) sendBarrier(p *peer) {
	if !p.up || p.state != wire.Connected {
		return
	}
	for i := range p.unacked {
		e := &p.unacked[i]
		if !e.sent {
			e.sent = true
			m.send(p, -1, wire.Barrier).Barrier = e.nr
		}
	}
}

// beforeWrite sends what must precede a write or read of the current epoch.
func (m *Machine) beforeWrite(p *peer) {
	if n := len(p.unacked); n > 0 && !p.unacked[n-1].sent {
		m.sendBarrier(p)
	}
}

// answered: an application request was completed. With strict epochs that ends the epoch of its write.
func (m *Machine) answered(r *Request) {
	for i := range r.parts {
		pt := &r.parts[i]
		if pt.state == partNone || pt.state == partDone {
			continue
		}
		p := m.peers[i]
		if p.relaxed() || pt.epoch != p.epoch {
			continue
		}
		m.closeEpoch(p)
	}
}

// writesLost: the peer's disk is gone, and with it perhaps what was sent and not acknowledged as stable. That is marked at
// once: a negative acknowledgement may come only after our bitmap went out for the next resync.
func (l *link) writesLost() {
	for r := l.p.tlHead; r != nil; r = r.parts[l.p.idx].next {
		if r.v == l.v {
			l.dirty(r.Off, r.Len)
		}
	}
}

// barrierAck handles P_BARRIER_ACK.
func (m *Machine) barrierAck(p *peer, nr, size uint32) error {
	if len(p.unacked) == 0 || !p.unacked[0].sent || p.unacked[0].nr != nr {
		return errors.New("barrier acknowledgement of another epoch than the oldest")
	}
	e := p.unacked[0]
	if e.count != size && !e.odd {
		return errors.New("barrier acknowledgement with another number of writes")
	}
	p.unacked = p.unacked[:copy(p.unacked, p.unacked[1:])]
	for r := p.tlHead; r != nil && r.parts[p.idx].epoch == nr; r = p.tlHead {
		pt := &r.parts[p.idx]
		m.tlPop(p)
		if pt.want == 0 && !pt.neg {
			pt.ok = true
		}
		if pt.want == wire.WriteAck && pt.state == partSent {
			return errors.New("barrier acknowledgement before a write of its epoch was")
		}
		m.partOver(r, pt)
	}
	for len(p.flushWait) > 0 && int32(p.flushWait[0].parts[p.idx].epoch-nr) <= 0 {
		r := p.flushWait[0]
		p.flushWait = p.flushWait[1:]
		r.parts[p.idx].state, r.parts[p.idx].ok = partDone, true
		m.advance(r)
		m.retire(r) // if it was answered before
	}
	m.drainOver(p)
	return nil
}

// drained asks the peer to make everything stable that it was sent. True: then runs when it has, or when it is lost.
func (m *Machine) drained(p *peer, then func()) bool {
	if !p.up || p.tlHead == nil && len(p.unacked) == 0 {
		return false
	}
	m.closeEpoch(p)
	m.sendBarrier(p)
	p.drains = append(p.drains, drain{p.epoch - 1, then})
	return true
}

// drainOver runs what waited for the peer to have everything that was sent until then; what was sent later does not count.
func (m *Machine) drainOver(p *peer) {
	for len(p.drains) > 0 && (len(p.unacked) == 0 || int32(p.unacked[0].nr-p.drains[0].nr) > 0) {
		then := p.drains[0].then
		p.drains = p.drains[1:]
		then()
	}
}

// tlPop takes the oldest write out of the transfer log.
func (m *Machine) tlPop(p *peer) {
	r := p.tlHead
	p.tlHead = r.parts[p.idx].next
	if p.tlHead == nil {
		p.tlTail = nil
	}
	r.parts[p.idx].next = nil
	p.tlCount--
	p.inflight -= r.Len
}

// partOver: the peer has nothing more to say about the write.
func (m *Machine) partOver(r *Request, pt *part) {
	pt.state = partDone
	m.advance(r)
	m.retire(r)
}

// satisfied says whether the peer's part lets the write be acknowledged. sure asks for a definite answer.
func (pt *part) satisfied(sure bool) bool {
	switch pt.state {
	case partNone, partDone:
		return true
	case partAcked:
		return !sure || pt.want == wire.WriteAck || pt.neg
	}
	return pt.want == 0 && !sure
}

// advance completes an application request when disk and peers have done their part.
func (m *Machine) advance(r *Request) {
	if r.ended || !r.isApp() || r.local == localRunning && !r.failed {
		return
	}
	if m.co.deposed && r.Kind != AppRead {
		m.fail(r, nil, ErrDeposed) // nobody waits for the peers any more
		return
	}
	if r.postponed {
		m.resubmit(r)
		return
	}
	sure := r.local != localDone || r.localErr != nil || r.v.disk != wire.UpToDate
	remote := false
	for i := range r.parts {
		pt := &r.parts[i]
		if !pt.satisfied(sure) {
			if sure && pt.want != wire.WriteAck && r.Kind != AppFlush {
				p := m.peers[i] // only the barrier tells
				if pt.epoch == p.epoch {
					m.closeEpoch(p)
				}
				m.sendBarrier(p)
			}
			return
		}
		// A copy that is being resynced does not count: what is there and not here goes when the block is copied again.
		if pt.ok && !pt.neg && r.v.pv[i].disk == wire.UpToDate {
			remote = true
		}
	}
	v := r.v
	switch {
	case r.Kind == AppFlush:
		m.flushed(r, remote)
	case r.local == localDone && r.localErr == nil && v.disk == wire.UpToDate:
		m.finish(r, nil)
	case remote:
		if r.localErr != nil {
			m.localWriteFailed(r)
		}
		m.finish(r, nil)
	case r.localErr != nil:
		// No good copy took it: not this disk's fault alone, and it is the last one. It stays, and the application is told.
		m.localWriteFailed(r)
		m.finish(r, ioErr(r.localErr))
	default:
		m.noData(r)
	}
}

// ioErr is what an application sees of a disk's error.
func ioErr(err error) error {
	if errors.Is(err, ErrNoSpace) {
		return ErrNoSpace
	}
	return ErrIO
}

// localWriteFailed: a write failed here that a peer may have.
func (m *Machine) localWriteFailed(r *Request) {
	v := r.v
	for i, l := range v.pv {
		if !r.parts[i].ok || r.parts[i].neg {
			continue
		}
		l.dirty(r.Off, r.Len) // that peer can heal us
		if l.disk != wire.UpToDate && l.p.state == wire.Connected && l.conn > wire.Connected {
			// It is behind, so our block counts, whatever is in it: the peer has to fetch it once more.
			m.sendOutOfSync(l, r)
		}
	}
	m.diskFailed(v, r.localErr)
}

// noData: no copy is in reach. Hold the request back or fail it.
func (m *Machine) noData(r *Request) {
	if m.cfg.SuspendOnNoData && m.role == wire.Primary && (m.demoting == nil || !m.demoting.force) {
		if !m.suspNoD {
			m.suspNoD = true
			m.event(r.Vol, -1, "suspended: no data", nil)
			m.reportAll()
		}
		if r.logged() {
			r = m.successor(r) // a peer that refused it has it in its transfer log until the epoch is over
		} else {
			m.unlist(r)
			m.alPut(r)
			clear(r.parts)
			r.local, r.localErr, r.begun, r.retry = localNone, nil, false, 0
		}
		m.frozen = append(m.frozen, r)
		return
	}
	m.finish(r, ErrNoData)
}

// logged says whether a peer's transfer log, or its list of flushes, still holds the request.
func (r *Request) logged() bool {
	for i := range r.parts {
		if st := r.parts[i].state; st == partSent || st == partAcked {
			return true
		}
	}
	return false
}

// finish answers an application request, unless completions wait for a superblock, an answer or a licence.
func (m *Machine) finish(r *Request, err error) {
	r.ended = true
	wait := m.watch && !m.mayAnswer(r, err)
	switch {
	case wait && m.demoting != nil && m.demoting.force:
		m.fail(r, err, m.whyNotPrimary())
		return
	case wait && m.failing():
		m.fail(r, err, ErrNoLicence)
		return
	}
	if wait || r.v.hold > 0 && r.Kind != AppRead {
		r.v.held = append(r.v.held, heldCompletion{r, err})
		return
	}
	m.answer(r, err)
}

// fail answers a request whose outcome may not be told: with its own error if it has one.
func (m *Machine) fail(r *Request, err, why error) {
	if err == nil {
		err = why
	}
	r.ended = true
	m.answer(r, err)
}

// failHeld fails the requests whose outcome may not be told.
func (m *Machine) failHeld(why error) {
	for _, v := range m.vols {
		held := v.held
		v.held = nil
		for _, h := range held {
			if m.watch && !m.mayAnswer(h.r, h.err) {
				m.fail(h.r, h.err, why)
			} else {
				m.finish(h.r, h.err)
			}
		}
	}
}

func (m *Machine) answer(r *Request, err error) {
	e := m.emit(Complete, r.Vol, -1)
	e.Req, e.Err = r, err
	v := r.v
	if r.again && err == nil {
		m.madeUp(r)
	}
	v.appBusy--
	r.told = true
	m.answered(r)
	write := m.watch && r.isWrite()
	m.unlist(r)
	m.retire(r)
	if write {
		m.releaseHeld(v) // reads that may have shown it
	}
	if v.appBusy == 0 && m.demoting != nil {
		m.demoteIfIdle()
	}
}

// madeUp clears the bits of a write that was sent again: it is on both disks now.
func (m *Machine) madeUp(r *Request) {
	for i, l := range r.v.pv {
		if pt := &r.parts[i]; pt.ok && !pt.neg && pt.want == wire.WriteAck && r.v.disk == wire.UpToDate && r.localErr == nil {
			m.inSync(l, r.Off, r.Len)
		}
	}
}

// retire forgets an answered request that no disk and no peer has any more.
func (m *Machine) retire(r *Request) {
	if !r.told || r.local == localRunning || r.v == nil {
		return
	}
	for i := range r.parts {
		if st := r.parts[i].state; st == partSent || st == partAcked {
			return
		}
	}
	m.alPut(r)
	m.release(r)
}

// flushed answers a flush. Where the local one failed, a peer's disk has to hold everything that was acknowledged.
func (m *Machine) flushed(r *Request, remote bool) {
	v, err := r.v, r.localErr
	if err == nil {
		m.finish(r, nil)
		return
	}
	asked := r.retry != 0 && m.otherCopy(v) // a peer was asked, and had nothing that was not stable
	if remote || asked {
		m.diskFailed(v, err)
		m.finish(r, nil)
		return
	}
	if m.otherCopy(v) {
		m.diskFailed(v, err)
	}
	if v.disk == wire.UpToDate { // it stays, as the last good copy
		m.finish(r, ioErr(err))
		return
	}
	r.local, r.localErr, r.retry = localNone, nil, 1
	m.flush(r) // protocol A or B: now the peer is asked
}

// flush makes everything stable that was acknowledged: here, and on the peers with protocol C.
func (m *Machine) flush(r *Request) {
	v := r.v
	for i, l := range v.pv {
		p, pt := l.p, &r.parts[i]
		pt.state = partNone
		if !l.replicates() || p.tlHead == nil && len(p.unacked) == 0 {
			continue
		}
		m.closeEpoch(p)
		m.sendBarrier(p)
		if p.cfg.Net.Protocol != 3 && !m.twoPrimaries(p) && v.disk == wire.UpToDate {
			p.flushNext = p.relaxed()
			continue
		}
		if len(p.unacked) == 0 {
			continue
		}
		pt.state, pt.want, pt.epoch, pt.sent = partSent, wire.BarrierAck, p.unacked[len(p.unacked)-1].nr, m.now
		pt.ok, pt.neg = false, false
		p.flushWait = append(p.flushWait, r)
	}
	if v.disk >= wire.Inconsistent {
		r.begun = true
		r.local = localRunning
		v.local++
		r.covers = v.wrote
		m.emit(Disk, r.Vol, -1).Req = r
		return
	}
	if !m.otherCopy(v) {
		m.noData(r)
		return
	}
	m.advance(r)
}

// otherCopy says whether a connected peer has good data.
func (m *Machine) otherCopy(v *volume) bool {
	for _, l := range v.pv {
		if l.p.state == wire.Connected && l.conn >= wire.Connected && l.disk == wire.UpToDate {
			return true
		}
	}
	return false
}

// writeAcked handles the acknowledgements of our writes.
func (m *Machine) writeAcked(l *link, pkt *wire.Packet) error {
	r := m.byBlockID(pkt.BlockID)
	if r == nil || !r.isWrite() || r.v != l.v || uint64(r.Off)>>9 != pkt.Sector {
		return errors.New("acknowledgement of an unknown write")
	}
	pt := &r.parts[l.p.idx]
	if pt.state == partNone || pt.state == partDone {
		return errors.New("acknowledgement of a write that is not under way")
	}
	switch pkt.Cmd {
	case wire.RecvAck:
		if pt.want == wire.RecvAck {
			pt.state, pt.ok = partAcked, true
		}
	case wire.WriteAck:
		if pt.want != 0 {
			pt.state, pt.ok = partAcked, true
			pt.want = wire.WriteAck
		}
	case wire.RSWriteAck:
		if pt.want != 0 {
			pt.state, pt.ok = partAcked, true
			pt.want = wire.WriteAck
		}
		pt.same = true
		m.bothHave(r, l, pt)
	case wire.NegAck:
		pt.neg, pt.ok = true, false
		pt.state = partAcked
		before := l.count()
		l.dirty(r.Off, r.Len)
		if l.conn == wire.SyncSource || l.conn == wire.PausedSyncS {
			l.rs.failed += l.count() - before
		}
	case wire.Superseded:
		pt.state, pt.ok, pt.want = partAcked, true, wire.WriteAck
		m.markOdd(l.p, pt.epoch)
	case wire.RetryWrite:
		pt.state, pt.want, r.postponed = partAcked, wire.WriteAck, true
		m.markOdd(l.p, pt.epoch)
	}
	m.advance(r)
	return nil
}

// bothHave clears the bits of a write made during a resync once the peer and the local disk have it (10.5).
func (m *Machine) bothHave(r *Request, l *link, pt *part) {
	if pt.same && r.local == localDone && r.localErr == nil {
		pt.same = false
		if !m.doubted(l, r.Off, r.Len) {
			m.inSync(l, r.Off, r.Len)
		}
	}
}

func (m *Machine) markOdd(p *peer, epoch uint32) {
	for i := range p.unacked {
		if p.unacked[i].nr == epoch {
			p.unacked[i].odd = true
			return
		}
	}
	if epoch == p.epoch {
		m.closeEpoch(p)
		p.unacked[len(p.unacked)-1].odd = true
	}
}

// DiskDone says that the local disk has done what was asked, or why not.
func (m *Machine) DiskDone(now Now, r *Request, err error) {
	m.tick(now)
	v := r.v
	if v == nil || r.local != localRunning {
		panic("core: disk answer nobody waits for")
	}
	v.local--
	r.local = localDone
	if r.failed { // given up before; the answer came after all
		r.failed = false
		if err == nil && r.localErr != nil {
			err = r.localErr
		}
	}
	r.localErr = err
	switch {
	case r.Op == OpFlush && err == nil:
		v.stable = max(v.stable, r.covers)
	case r.Op == OpWrite || r.Op == OpDiscard || r.Op == OpZero:
		v.wrote++ // a flush that began before does not cover it
	}
	if v.waiting > 0 && (r.isWrite() || r.Kind == SyncWrite) {
		defer m.wake(v) // reads for a peer wait for the disk only
	}
	switch r.Kind {
	case AppRead:
		m.readDone(r)
	case AppWrite, AppTrim, AppZero, AppFlush:
		for i := range r.parts {
			m.bothHave(r, v.pv[i], &r.parts[i])
		}
		if r.v == nil {
			return // retired meanwhile
		}
		if r.ended {
			m.retire(r)
		} else {
			m.advance(r)
		}
	case HealWrite:
		m.healed(r)
	case PeerWrite:
		m.peerWriteDone(r)
	case PeerRead:
		m.peerReadDone(r)
	case SyncRead:
		m.syncReadDone(r)
	case SyncWrite:
		m.syncWriteDone(r)
	case VerifyRead:
		m.verifyReadDone(r)
	case VerifyCheck:
		m.verifyCheckDone(r)
	case EpochFlush:
		m.epochFlushed(r)
	}
	m.closeIfIdle(v)
}
