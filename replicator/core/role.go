package core

import (
	"errors"
	"fmt"

	"github.com/hawser-ha/hawser/replicator/pace"
	"github.com/hawser-ha/hawser/replicator/wire"
)

// roleChange is a promotion or demotion under way.
type roleChange struct {
	cmd     any
	force   bool
	asked   []*link // consents still to be asked for, the first one is out
	granted bool    // all peers agreed: the superblock says Primary
	open    int     // superblocks that are not durable yet
	closed  bool    // demotion: no new requests
	err     error

	waits    int   // answers of the handler fence-peer, or of the disk, that come first
	fenceErr error // what the handler said of a peer that is not fenced
}

// Promote makes this node Primary on all volumes, with the consent of the connected peers.
func (m *Machine) Promote(now Now, force bool, cmd any) {
	m.tick(now)
	switch {
	case m.role == wire.Primary && m.demoting == nil:
		m.result(cmd, nil)
		return
	case m.promoting != nil || m.demoting != nil:
		m.result(cmd, ErrTwice)
		return
	}
	for _, v := range m.vols {
		if err := m.mayLead(v, force); err != nil && (v.disk != wire.Consistent || !m.mayFence(v)) {
			m.result(cmd, fmt.Errorf("volume %d: %w", v.num, err))
			return
		}
	}
	if m.cfg.Coordinated {
		if err := m.mayLeadNow(); err != nil {
			m.result(cmd, err)
			return
		}
	}
	pr := &roleChange{cmd: cmd, force: force}
	m.promoting = pr
	m.tellTerm() // and that we want to lead
	if !m.vouchFirst(pr) && !m.fenceFirst(pr) {
		m.promoteAsk(pr)
	}
}

// mayFence says whether there is a lost peer which, once it is fenced, leaves this data as the newest.
func (m *Machine) mayFence(v *volume) bool {
	for _, l := range v.pv {
		if m.fences(l.p) && m.unknown(l.p) {
			return true
		}
	}
	return false
}

// promoteAsk asks the connected peers for their consent.
func (m *Machine) promoteAsk(pr *roleChange) {
	for _, v := range m.vols {
		if err := m.mayLead(v, pr.force); err != nil {
			m.promoteFailed(pr, fmt.Errorf("volume %d: %w", v.num, err))
			return
		}
	}
	for _, p := range m.peers {
		if p.state != wire.Connected {
			continue
		}
		for _, v := range m.vols {
			pr.asked = append(pr.asked, v.pv[p.idx])
		}
	}
	m.promoteNext(pr)
}

// mayLead says why a volume cannot be Primary here.
func (m *Machine) mayLead(v *volume, force bool) error {
	switch { // a connected peer that is Primary refuses by itself: it knows better than we
	case v.disk == wire.UpToDate || m.otherCopy(v):
		return nil
	case v.disk == wire.Attaching || v.disk == wire.Negotiating:
		return fmt.Errorf("%w: it is %s", ErrNotUpToDate, v.disk)
	case force && v.disk >= wire.Inconsistent:
		for _, l := range v.pv {
			if l.conn > wire.Connected {
				return fmt.Errorf("%w: the disk is %s", ErrBusy, v.disk)
			}
		}
		return nil
	case v.disk < wire.Inconsistent:
		return fmt.Errorf("%w: no disk and no connected peer has good data", ErrNotUpToDate)
	}
	return fmt.Errorf("%w: the disk is %s and no connected peer has good data", ErrNotUpToDate, v.disk)
}

// promoteNext asks the next peer, or promotes when all agreed.
func (m *Machine) promoteNext(pr *roleChange) {
	for len(pr.asked) > 0 && pr.asked[0].p.state != wire.Connected {
		pr.asked = pr.asked[1:]
	}
	if len(pr.asked) == 0 {
		for _, p := range m.peers {
			if !p.up && p.io > 0 {
				return // a dead peer's last writes come first: releasePeer calls again
			}
		}
		m.promote(pr)
		return
	}
	l := pr.asked[0]
	mask, val := maskRole, wire.State(wire.Primary)
	if pr.force && l.v.disk < wire.UpToDate && l.v.disk >= wire.Inconsistent {
		mask |= maskDisk
		val |= wire.State(wire.UpToDate) << 9
	}
	m.askPeer(l.p, l.v.num, mask, val, func(err error) {
		if m.promoting != pr {
			return
		}
		switch {
		case errors.Is(err, ErrLinkLost) || errors.Is(err, ErrNoConnection):
			// A peer that is gone has no say. The data must still do.
			if err := m.mayLead(l.v, pr.force); err != nil {
				m.promoteFailed(pr, fmt.Errorf("volume %d: %w", l.v.num, err))
				return
			}
		case err != nil:
			m.promoteFailed(pr, fmt.Errorf("volume %d: peer %s: %w", l.v.num, l.p.cfg.Name, err))
			return
		}
		pr.asked = pr.asked[1:]
		m.promoteNext(pr)
	})
}

func (m *Machine) promoteFailed(pr *roleChange, err error) {
	m.promoting = nil
	m.dropQuestions("not promoted")
	m.tellTerm()
	m.secondaryNow()
	for _, v := range m.vols {
		m.report(v) // peers that agreed hear that we are Secondary still
	}
	m.result(pr.cmd, err)
}

// promote: all peers agreed. The superblocks say so durably before the first write.
func (m *Machine) promote(pr *roleChange) {
	pr.granted = true
	pr.open = len(m.vols)
	for _, v := range m.vols {
		forced := false
		if pr.force && v.disk >= wire.Inconsistent && v.disk < wire.UpToDate && !m.otherCopy(v) {
			v.disk, forced = wire.UpToDate, true
			m.event(v.num, -1, "disk UpToDate: forced", nil)
		}
		if v.disk >= wire.Inconsistent {
			m.generationOfPrimary(v, forced)
			v.sup.Current |= 1
		}
		m.writeSuper(v, false, false, false, func(err error) {
			pr.open--
			if err != nil && pr.err == nil {
				pr.err = fmt.Errorf("volume %d: metadata: %w", v.num, err)
			}
			if pr.open == 0 {
				m.promoted(pr)
			}
		})
	}
}

// generationOfPrimary starts a new generation where the peer's data will stay behind (17.2).
func (m *Machine) generationOfPrimary(v *volume, forced bool) {
	if v.disk != wire.UpToDate || m.cfg.Coordinated && !forced {
		return // coordinated: who stays behind is asked first (startWaiting)
	}
	behind := false
	for _, l := range v.pv {
		if l.bm == nil {
			continue
		}
		if forced && v.sup.Current&^1 == 4 {
			l.bm.SetAll() // nobody has this data
		}
		if l.conn < wire.Connected || l.disk < wire.Inconsistent || forced {
			behind = true
		}
	}
	if !behind {
		return
	}
	old := v.sup.Current
	fresh := m.cfg.Rand() | 1
	if fresh&^1 == 0 || fresh&^1 == 4 {
		fresh ^= 0x5bd1e99500000000
	}
	changed := false
	for i, l := range v.pv {
		if l.bm == nil || v.sup.Bitmap[i] != 0 && !forced {
			continue
		}
		if len(m.peers) > 1 && l.replicates() && !forced {
			continue // it comes along
		}
		if v.sup.Bitmap[i] != 0 {
			v.sup.History[1], v.sup.History[0] = v.sup.History[0], v.sup.Bitmap[i]
		}
		v.sup.Bitmap[i] = old
		changed = true
	}
	if changed {
		v.sup.Current = fresh
	}
}

func (m *Machine) promoted(pr *roleChange) {
	m.promoting = nil
	if pr.err != nil {
		if m.cfg.Coordinated {
			for _, v := range m.vols {
				m.writeSuper(v, false, false, false, nil) // it says Primary
			}
		}
		m.result(pr.cmd, pr.err)
		m.secondaryNow()
		return
	}
	m.role = wire.Primary
	m.event(-1, -1, "role Primary", nil)
	for _, v := range m.vols {
		for _, l := range v.pv {
			if !l.p.up || l.conn < wire.Connected {
				continue
			}
			m.sendUUIDs(l)
			m.sendState(l)
			if pr.force && l.conn == wire.Connected && v.disk == wire.UpToDate && l.disk == wire.Inconsistent && l.uuids != nil {
				_ = m.decide(l) // our data is good now: the other node gets it
			}
		}
	}
	m.emit(RoleChanged, -1, -1)
	if m.cfg.Coordinated {
		m.startWaiting()
	}
	m.review()
	for _, p := range m.peers {
		m.unfence(p)
	}
	m.result(pr.cmd, nil)
}

// Demote makes this node Secondary when the requests in flight are done. force fails those that cannot end.
func (m *Machine) Demote(now Now, force bool, cmd any) {
	m.tick(now)
	switch {
	case m.role != wire.Primary && m.promoting == nil:
		m.result(cmd, nil)
		return
	case m.promoting != nil || m.demoting != nil && !force:
		m.result(cmd, ErrTwice)
		return
	case m.demoting != nil:
		m.demoting.force = true
		m.result(cmd, ErrTwice)
	default:
		m.demoting = &roleChange{cmd: cmd, force: force, closed: true}
	}
	if force {
		m.suspNoD = false
		q := m.frozen
		m.frozen = nil
		for _, r := range q {
			m.fail(r, nil, m.whyNotPrimary())
		}
		m.failHeld(m.whyNotPrimary())
	}
	m.demoteIfIdle()
}

// whyNotPrimary is what requests fail with that a demotion ends.
func (m *Machine) whyNotPrimary() error {
	if m.co.deposed {
		return ErrDeposed
	}
	return ErrNotPrimary
}

func (m *Machine) demoteIfIdle() {
	d := m.demoting
	if d == nil || d.granted {
		return
	}
	for _, v := range m.vols {
		if v.appBusy > 0 {
			return
		}
	}
	if !d.force { // what was acknowledged is to be on the peers' disks: one of them may lead next
		for _, p := range m.peers {
			if m.drained(p, m.demoteIfIdle) {
				return
			}
		}
	}
	d.granted = true
	m.role = wire.Secondary
	m.leftPrimary()
	d.open = len(m.vols)
	for _, v := range m.vols {
		v.sup.Current &^= 1
		v.crashed = false
		// What the peers have is what is on the disk: the bitmap on disk says so before the flag of the Primary goes.
		m.writeSuper(v, true, true, false, func(err error) {
			if err != nil && d.err == nil {
				d.err = fmt.Errorf("volume %d: metadata: %w", v.num, err)
			}
			d.open--
			if d.open > 0 {
				return
			}
			m.demoting = nil
			m.event(-1, -1, "role Secondary", nil)
			m.reportAll()
			m.emit(RoleChanged, -1, -1)
			m.result(d.cmd, d.err)
			m.secondaryNow()
		})
	}
}

// leftPrimary: nothing is waited for any more.
func (m *Machine) leftPrimary() {
	m.dropQuestions("Secondary now")
	if m.cfg.Coordinated {
		m.stopWaiting()
	}
}

// Opened tells how many openers the front ends have; a Primary in use is not demoted by a split-brain policy.
func (m *Machine) Opened(openers int) { m.openers = openers }

// demoteForSplit makes this node Secondary at once, to become the target of a resync. False: it is in use.
func (m *Machine) demoteForSplit() bool {
	if m.openers > 0 {
		return false
	}
	for _, v := range m.vols {
		if v.appBusy > 0 {
			return false
		}
	}
	m.role = wire.Secondary
	m.leftPrimary()
	for _, v := range m.vols {
		v.sup.Current &^= 1
		m.writeSuper(v, true, true, false, nil)
	}
	m.event(-1, -1, "role Secondary: the peer's data wins", nil)
	m.emit(RoleChanged, -1, -1)
	m.reportAll()
	return true
}

// Suspend holds all application requests back.
func (m *Machine) Suspend(now Now, cmd any) {
	m.tick(now)
	m.suspUser = true
	m.reportAll()
	m.result(cmd, nil)
}

// Resume ends Suspend.
func (m *Machine) Resume(now Now, cmd any) {
	m.tick(now)
	m.suspUser = false
	if m.suspNoD { // the operator has looked at it: what cannot be served fails
		m.suspNoD = false
	}
	for _, p := range m.peers { // and knows what the lost peer does
		if q := m.about(p); q != nil && m.fences(p) && !q.promotion {
			m.closeQuestion(q, "resumed by command")
		}
	}
	m.reportAll()
	m.goOn()
	m.result(cmd, nil)
}

// NewCurrentUUID starts a new generation. With clear, two freshly created disks are declared equal and the initial
// sync is skipped (17.5).
func (m *Machine) NewCurrentUUID(now Now, vol int, clearBitmap bool, cmd any) {
	m.tick(now)
	v := m.volume(vol)
	if v.disk < wire.Inconsistent {
		m.result(cmd, ErrNoDisk)
		return
	}
	if !clearBitmap {
		m.newCurrent(v)
		m.result(cmd, nil)
		return
	}
	for i, l := range v.pv {
		if l.bm == nil {
			continue
		}
		s := v.set(i)
		if l.conn != wire.Connected || v.disk != wire.Inconsistent || l.disk != wire.Inconsistent {
			m.result(cmd, fmt.Errorf("skip the initial sync: %w to a peer whose disk was just created too", ErrNoConnection))
			return
		}
		announce, ok := s.SkipInitialSync(m.cfg.Rand(), m.role == wire.Primary)
		if !ok {
			m.result(cmd, fmt.Errorf("skip the initial sync: the disk was not just created"))
			return
		}
		l.bm.ClearAll()
		m.send(l.p, vol, wire.UUIDs).Ext = &wire.UUIDsBody{Current: announce.Current, Bitmap: announce.Bitmap, History1: announce.History1,
			History2: announce.History2, Flags: wire.UUIDSkipInitialSync}
		v.setUUIDs(i, s)
		v.disk, l.disk, l.skipped = wire.UpToDate, wire.UpToDate, true
		m.sendState(l) // an older report may be on its way
	}
	m.event(vol, -1, "initial sync skipped", nil)
	m.writeSuper(v, false, true, false, func(err error) { m.result(cmd, err) })
}

// Invalidate makes the peer's data replace ours (21.6).
func (m *Machine) Invalidate(now Now, vol, peer int, cmd any) {
	m.invalidate(now, vol, peer, wire.StartingSyncT, cmd)
}

// InvalidateRemote makes our data replace the peer's.
func (m *Machine) InvalidateRemote(now Now, vol, peer int, cmd any) {
	m.invalidate(now, vol, peer, wire.StartingSyncS, cmd)
}

func (m *Machine) invalidate(now Now, vol, peer int, to wire.Conn, cmd any) {
	m.tick(now)
	v := m.volume(vol)
	l := v.pv[peer]
	target := to == wire.StartingSyncT
	switch {
	case target && m.role == wire.Primary:
		m.result(cmd, ErrPrimary)
	case v.disk < wire.Inconsistent || l.bm == nil:
		m.result(cmd, ErrNoDisk)
	case l.p.state != wire.Connected && target:
		// Alone: the data is declared bad, and the whole volume comes from the peer at the next connection.
		v.disk = wire.Inconsistent
		m.event(v.num, peer, "disk Inconsistent: invalidated", nil)
		m.setAllBits(l, func() {})
		l.bm.SetAll()
		m.writeSuper(v, false, true, false, func(err error) { m.result(cmd, err) })
	case l.p.state != wire.Connected:
		l.bm.SetAll()
		m.newCurrent(v)
		m.writeSuper(v, false, true, false, func(err error) { m.result(cmd, err) })
	case l.conn != wire.Connected:
		m.result(cmd, ErrBusy)
	case target && l.disk != wire.UpToDate || !target && v.disk != wire.UpToDate:
		m.result(cmd, ErrNotUpToDate)
	default:
		m.askPeer(l.p, vol, maskConn, wire.State(to)<<4, func(err error) {
			m.result(cmd, err)
			if err == nil {
				m.startFull(l, target)
			}
		})
	}
}

// startedByPeer: we consented to a resync or verify that the peer wishes.
func (m *Machine) startedByPeer(l *link, c wire.Conn) {
	switch c {
	case wire.StartingSyncT: // the peer wants to be the target
		m.startFull(l, false)
	case wire.StartingSyncS:
		m.startFull(l, true)
	case wire.VerifyS:
		l.rs = resync{started: m.now}
		m.setConn(l, wire.VerifyT)
	}
}

// startFull starts a resync of everything, without bitmap exchange.
func (m *Machine) startFull(l *link, target bool) {
	l.peerSet = l.v.set(l.p.idx)
	if l.uuids != nil {
		u := l.uuids
		l.peerSet.Current, l.peerSet.Bitmap, l.peerSet.History1, l.peerSet.History2 = u.Current, u.Bitmap, u.History1, u.History2
	}
	if target {
		// The source's current generation is ours as well: after the resync it is what we have.
		l.peerSet.Current = l.v.sup.Current
		m.setConn(l, wire.StartingSyncT)
		m.setAllBits(l, func() {
			if l.conn == wire.StartingSyncT {
				m.setConn(l, wire.WFSyncUUID)
			}
		})
		return
	}
	m.setConn(l, wire.StartingSyncS)
	m.setAllBits(l, func() {
		if l.conn == wire.StartingSyncS {
			m.startSource(l)
		}
	})
}

// PauseSync pauses a resync, or lets it go on; it also holds for the next ones.
func (m *Machine) PauseSync(now Now, vol, peer int, pause bool, cmd any) {
	m.tick(now)
	l := m.volume(vol).pv[peer]
	l.userPause = pause
	if l.conn >= wire.Connected {
		m.setConn(l, l.conn)
		m.sendState(l)
		m.syncMore(l)
	}
	m.result(cmd, nil)
}

// SetPace changes the options of the resync controller, also of a running resync.
func (m *Machine) SetPace(peer int, params pace.Params, minRate int) {
	p := m.peers[peer]
	p.cfg.Pace, p.cfg.MinRate = params, minRate
	m.setPace(p)
}

func (m *Machine) setPace(p *peer) {
	for _, v := range m.vols {
		l := v.pv[p.idx]
		if l.rs.ctl != nil {
			params := p.cfg.Pace
			if params.MaxInFlight == 0 {
				params.MaxInFlight = p.cfg.Net.MaxBuffers * 8 / 2
			}
			l.rs.ctl.SetParams(params)
		}
	}
}
