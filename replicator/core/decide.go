package core

import (
	"errors"
	"fmt"

	"github.com/hawser-ha/hawser/replicator/genid"
	"github.com/hawser-ha/hawser/replicator/wire"
)

// peerState handles P_STATE (drbd-wire.md 15.1).
func (m *Machine) peerState(l *link, s wire.State) error {
	v, p := l.v, l.p
	first := l.conn == wire.WFReportParams
	if first && !p.gotProtocol {
		return errors.New("state before the protocol")
	}
	was := l.disk
	if served := l.servesDiskless(); v.disk >= wire.Inconsistent {
		defer func() {
			if !served && l.servesDiskless() {
				m.writeSuper(v, false, false, false, nil)
			}
		}()
	}
	l.role = s.Role()
	pdsk := s.Disk()
	if pdsk == wire.Negotiating {
		pdsk = wire.Consistent
		if l.uuids != nil && l.uuids.Flags&wire.UUIDInconsistent != 0 {
			pdsk = wire.Inconsistent
		}
	}
	if l.skipped {
		// From before the peer heard of it: both disks as they were. Writes must not be kept from the peer for that.
		if pdsk == wire.Inconsistent && s.PDsk() == wire.Inconsistent {
			pdsk = wire.UpToDate
		} else {
			l.skipped = false
		}
	}
	// A target that calls itself UpToDate while its resync has not begun to end is not (15.1).
	if (l.conn == wire.SyncSource || l.conn == wire.PausedSyncS || l.conn == wire.WFBitMapS) && pdsk == wire.UpToDate &&
		s.Conn() > wire.Connected && s.Conn() < wire.WFSyncUUID {
		pdsk = wire.Inconsistent
	}
	if was > wire.Failed && pdsk <= wire.Failed {
		l.writesLost()
	}
	l.setPeerPause(m, s.Has(wire.AftrISP) || s.Has(wire.UserISP))
	if first {
		return m.firstState(l, s, pdsk)
	}
	if (l.conn == wire.SyncSource || l.conn == wire.PausedSyncS) && pdsk == wire.UpToDate && s.Conn() == wire.Connected {
		if l.count() <= l.rs.failed {
			m.sourceDone(l)
			return nil
		}
		l.rs.peerDone = true
		return nil
	}
	if (l.conn == wire.SyncSource || l.conn == wire.PausedSyncS) && pdsk == wire.Inconsistent && s.Conn() == wire.Connected && l.rs.failed > 0 {
		m.sourceDone(l) // the target gave up on blocks that cannot be read here
		return nil
	}
	if l.conn == wire.VerifyT && s.Conn() == wire.Connected {
		m.verifyDone(l)
	}
	if s.Conn() == wire.Ahead && l.follows() {
		l.disk = pdsk
		m.becomeBehind(l)
		return nil
	}
	attach := l.conn == wire.Connected && v.disk >= wire.Negotiating && s.Disk() >= wire.Negotiating &&
		(v.disk == wire.Negotiating || s.Disk() == wire.Negotiating || was < wire.Inconsistent && pdsk >= wire.Inconsistent)
	forced := l.conn == wire.Connected && v.disk == wire.Inconsistent && was == wire.Inconsistent && pdsk == wire.UpToDate && s.Role() == wire.Primary
	starts := l.conn == wire.Connected && s.Conn() >= wire.StartingSyncS && s.Conn() <= wire.WFBitMapT
	if !l.starting && (attach || forced || starts) && v.disk >= wire.Negotiating && s.Disk() >= wire.Negotiating && l.uuids != nil {
		answer := v.disk != wire.Negotiating && s.Disk() == wire.Negotiating
		l.disk = pdsk
		if answer {
			m.sendUUIDs(l)
			m.sendState(l)
		}
		return m.decide(l)
	}
	if l.conn > wire.Connected && l.conn != wire.Ahead && l.conn != wire.Behind && pdsk <= wire.Failed {
		l.disk = pdsk
		m.stopSync(l)
		m.setConn(l, wire.Connected)
	}
	if l.conn == wire.Connected && (pdsk == wire.Consistent || pdsk == wire.Outdated) && v.disk == wire.UpToDate && was == wire.UpToDate {
		pdsk = wire.UpToDate
	}
	l.disk = pdsk
	if was != pdsk {
		m.event(v.num, p.idx, "peer disk "+pdsk.String(), nil)
		m.contactLost(v, l, was)
	}
	m.review()
	m.dataBack()
	return nil
}

// firstState: the parameter exchange of this volume is complete.
func (m *Machine) firstState(l *link, s wire.State, pdsk wire.Disk) error {
	v, p := l.v, l.p
	if m.role == wire.Primary && s.Role() == wire.Primary && !m.twoPrimaries(p) && !m.haveSplit(l, s) {
		m.event(v.num, p.idx, "both nodes are primary", nil)
		m.standAlone(p, errors.New("both nodes are Primary and two primaries are not allowed"))
		return nil
	}
	l.disk = pdsk
	if !m.agreeSize(l) {
		return nil
	}
	if p.state != wire.Connected {
		p.setState(m, wire.Connected, "")
		m.result(p.cmdCon, nil)
		p.cmdCon = nil
		p.fenceAsked = false
	}
	l.conn = wire.Connected
	if v.disk < wire.Negotiating || s.Disk() < wire.Negotiating {
		return m.oneDisk(l, s)
	}
	if l.uuids == nil {
		return errors.New("state of a disk without its generation")
	}
	return m.decide(l)
}

// oneDisk: at most one of the two nodes has the data.
func (m *Machine) oneDisk(l *link, s wire.State) error {
	v := l.v
	if v.disk < wire.Negotiating && s.Disk() >= wire.Negotiating && l.uuids != nil {
		if m.role == wire.Primary && v.sup.Current != 0 && v.sup.Current&^1 != l.uuids.Current&^1 {
			m.standAlone(l.p, errors.New("the peer has another data generation than this diskless primary uses"))
			return nil
		}
		v.exposed(l.uuids.Current)
	}
	m.sanitize(l)
	m.sendState(l)
	if v.disk >= wire.Outdated && (s.Role() == wire.Primary || m.role == wire.Primary) && s.Disk() < wire.Inconsistent {
		m.newCurrent(v)
	}
	m.review()
	m.dataBack()
	return nil
}

// side is what this node brings into a comparison with the peer.
func (m *Machine) side(l *link) genid.Side {
	return genid.Side{Set: l.v.set(l.p.idx), Crashed: l.v.crashed, Primary: m.role == wire.Primary, DiscardMyData: l.p.discard, DirtyBits: uint64(l.count())}
}

// comparison is what decides between the data of both nodes.
func (m *Machine) comparison(l *link) genid.Input {
	u := l.uuids
	return genid.Input{Self: m.side(l), ResolveConflicts: l.p.li.ResolveConflicts, Version: l.p.li.Version, WSame: l.p.li.Features&wire.FeatureWSame != 0,
		Peer: genid.Side{Set: genid.Set{Current: u.Current, Bitmap: u.Bitmap, History1: u.History1, History2: u.History2},
			Crashed: u.Flags&wire.UUIDCrashedPrimary != 0, Primary: l.role == wire.Primary,
			DiscardMyData: l.p.peerDiscard || u.Flags&wire.UUIDDiscardMyData != 0, DirtyBits: u.DirtyBits}}
}

// haveSplit says whether both nodes wrote on their own: two Primaries that met again are told so, and after-sb-2pri decides.
func (m *Machine) haveSplit(l *link, s wire.State) bool {
	if l.uuids == nil || l.v.disk < wire.Negotiating || s.Disk() < wire.Negotiating {
		return false
	}
	r := genid.Compare(m.comparison(l)).Result
	return r == genid.SplitBrain || r == genid.SplitLong
}

// decide compares the data generations of both disks and starts what follows (drbd-wire.md 18).
func (m *Machine) decide(l *link) error {
	v, p := l.v, l.p
	in := m.comparison(l)
	verdict := genid.Compare(in)
	r := verdict.Result
	hawser := p.relaxed() // the peer is one of ours
	switch {
	case r == genid.Unrelated:
		return m.refuseData(l, "the data of the two nodes is unrelated")
	case r == genid.NeedsNewer:
		return m.refuseData(l, fmt.Sprintf("the peer's protocol is too old to compare: needs %d", verdict.NeedVersion))
	case hawser && genid.Contradictory(in):
		return m.refuseData(l, "the generations of the two nodes contradict each other")
	}
	if verdict.Self != in.Self.Set {
		v.setUUIDs(p.idx, verdict.Self)
		m.writeSuper(v, false, false, false, nil)
		in.Self.Set = verdict.Self
	}
	l.peerSet = verdict.Peer
	split := r == genid.SplitBrain || r == genid.SplitLong
	mine := v.disk == wire.Inconsistent || v.disk == wire.Negotiating && !v.sup.Consistent
	theirs := l.disk == wire.Inconsistent
	if mine != theirs {
		full := r == genid.SourceFull || r == genid.TargetFull || r == genid.SplitLong
		switch {
		case theirs && full:
			r = genid.SourceFull
		case theirs:
			r = genid.SourceBits
		case full:
			r = genid.TargetFull
		default:
			r = genid.TargetBits
		}
		split = false
	}
	if split {
		m.runHandler(v.num, p.idx, "initial-split-brain")
		res := genid.Resolve(in, r, p.cfg.Net.Policies)
		if res.DemoteFirst && !m.demoteForSplit() {
			m.runHandler(v.num, p.idx, "pri-lost-after-sb")
			res.Result = genid.Unsolved
		}
		r = res.Result
		if !r.Decided() {
			m.event(v.num, p.idx, "split brain detected, not resolved: dropping the connection", nil)
			m.runHandler(v.num, p.idx, "split-brain")
			return m.refuseData(l, "split brain: both nodes wrote since they last saw each other; decide whose data goes "+
				"(connect --discard-my-data there), nothing was changed")
		}
		how := "by policy"
		if !res.ByPolicy {
			how = "by discard-my-data"
		}
		m.event(v.num, p.idx, "split brain resolved "+how+": "+r.String(), nil)
	}
	if r == genid.Equal && hawser && (!mine || !theirs) {
		// Equal ids are no proof of equal blocks (promise I14): bits that are set mean a resync.
		if r = genid.Leftover(in); !r.Decided() {
			return m.refuseData(l, "both nodes are Primary and blocks differ")
		}
	}
	target := r == genid.TargetBits || r == genid.TargetFull
	source := r == genid.SourceBits || r == genid.SourceFull
	if source && mine {
		return m.refuseData(l, "this node would be the source of a resync, but its disk is inconsistent")
	}
	if target && m.role == wire.Primary && v.disk >= wire.Consistent {
		if p.cfg.Net.RRConflict == "call-pri-lost" {
			m.runHandler(v.num, p.idx, "pri-lost")
		}
		if p.cfg.Net.RRConflict != "violently" {
			return m.refuseData(l, "this node is Primary, but its data is older than the peer's (rr-conflict "+p.cfg.Net.RRConflict+")")
		}
	}
	l.undo = target && split
	p.discard = p.discard && !target
	l.gotPeerBitmap, l.bmSent = false, false
	l.hook, l.hooked = 0, false
	if r == genid.SourceFull || r == genid.TargetFull {
		l.starting = true
		m.setAllBits(l, func() { m.startBitmap(l, target, r) })
		return nil
	}
	m.startBitmap(l, target, r)
	return nil
}

// setAllBits marks everything as different, crash-safe: the flag FULL_SYNC stands for the bits until they are on disk.
func (m *Machine) setAllBits(l *link, then func()) {
	gen := l.p.gen
	l.fullSync = true
	m.writeSuper(l.v, false, false, false, func(err error) {
		if err != nil || l.bm == nil {
			return
		}
		l.bm.SetAll()
		m.writeSuper(l.v, false, true, false, func(err error) {
			if err != nil {
				return
			}
			l.fullSync = false
			m.writeSuper(l.v, false, false, false, nil)
			if l.p.up && l.p.gen == gen {
				then()
			}
		})
	})
}

// startBitmap enters the state that the decision asks for.
func (m *Machine) startBitmap(l *link, target bool, r genid.Result) {
	v := l.v
	attaching := v.disk == wire.Negotiating
	if attaching {
		m.leaveNegotiating(v)
	}
	l.negotiating, l.starting = false, false
	switch {
	case r == genid.Equal:
		m.setConn(l, wire.Connected)
		m.crashOver(v)
	case target:
		m.setConn(l, wire.WFBitMapT)
	default:
		m.setConn(l, wire.WFBitMapS)
	}
	if attaching {
		m.sendUUIDs(l)
	}
	m.sendState(l)
	switch {
	case l.conn == wire.WFBitMapS:
		m.sendBitmap(l)
	case l.conn == wire.WFBitMapT && l.gotPeerBitmap: // the source was faster
		m.bitmapMerged(l)
	}
	m.review()
	m.unfence(l.p)
	m.dataBack()
	if attaching {
		m.attached(v, nil)
	}
}

// crashOver: both disks are good and connected, the crash of a Primary is dealt with (17.6).
func (m *Machine) crashOver(v *volume) {
	if !v.crashed {
		return
	}
	for _, l := range v.pv {
		if l.conn != wire.Connected || l.disk != wire.UpToDate || v.disk != wire.UpToDate {
			return
		}
	}
	v.crashed = false
	m.writeSuper(v, false, false, false, nil)
}

// refuseData ends the connection, or the attach that asked for the comparison.
func (m *Machine) refuseData(l *link, why string) error {
	err := fmt.Errorf("volume %d: %s", l.v.num, why)
	if l.v.disk == wire.Negotiating {
		m.detachNow(l.v, err)
		return nil
	}
	m.standAlone(l.p, err)
	return nil
}

// setConn changes the replication state and what follows from it for both disks (section 14).
func (m *Machine) setConn(l *link, c wire.Conn) {
	was := l.conn
	l.conn = c
	m.sanitize(l)
	if was != l.conn {
		m.event(l.v.num, l.p.idx, "replication "+l.conn.String(), nil)
	}
}

// sanitize applies the implied values of section 14.
func (m *Machine) sanitize(l *link) {
	v := l.v
	old := v.disk
	paused := l.userPause || l.afterPause || l.peerPause
	switch {
	case l.conn == wire.SyncSource && paused:
		l.conn = wire.PausedSyncS
	case l.conn == wire.SyncTarget && paused:
		l.conn = wire.PausedSyncT
	case l.conn == wire.PausedSyncS && !paused:
		l.conn = wire.SyncSource
	case l.conn == wire.PausedSyncT && !paused:
		l.conn = wire.SyncTarget
	}
	if l.conn >= wire.Connected && l.conn < wire.Ahead {
		// Outdated data is good again beside a disk that agrees; if that disk is gone in the middle of a resync, ours is still old.
		if v.disk == wire.Consistent || v.disk == wire.Outdated && l.disk >= wire.Inconsistent {
			v.disk = wire.UpToDate
		}
		if l.disk == wire.Consistent || l.disk == wire.Outdated {
			l.disk = wire.UpToDate
		}
	}
	clampDisk := func(d *wire.Disk, low, high wire.Disk) {
		if *d < wire.Inconsistent {
			return
		}
		*d = min(max(*d, low), high)
	}
	switch l.conn {
	case wire.WFBitMapT, wire.PausedSyncT, wire.StartingSyncT, wire.WFSyncUUID, wire.Behind:
		clampDisk(&v.disk, wire.Inconsistent, wire.Outdated)
		clampDisk(&l.disk, wire.UpToDate, wire.UpToDate)
	case wire.SyncTarget:
		clampDisk(&v.disk, wire.Inconsistent, wire.Inconsistent)
		clampDisk(&l.disk, wire.UpToDate, wire.UpToDate)
	case wire.WFBitMapS, wire.PausedSyncS, wire.StartingSyncS, wire.Ahead:
		clampDisk(&v.disk, wire.UpToDate, wire.UpToDate)
		clampDisk(&l.disk, wire.Inconsistent, wire.Consistent)
	case wire.SyncSource:
		clampDisk(&v.disk, wire.UpToDate, wire.UpToDate)
		clampDisk(&l.disk, wire.Inconsistent, wire.Inconsistent)
	}
	if old != v.disk {
		m.event(v.num, -1, "disk "+v.disk.String(), nil)
		m.writeSuper(v, false, false, false, nil)
		m.reportOthers(l)
	}
}

// reportOthers tells the other peers what changed because of this one.
func (m *Machine) reportOthers(l *link) {
	for _, o := range l.v.pv {
		if o != l && o.p.up && o.conn >= wire.Connected {
			m.sendState(o)
		}
	}
}

// dataBack lets suspended requests go on when data is in reach again.
func (m *Machine) dataBack() {
	if !m.suspNoD {
		return
	}
	for _, v := range m.vols {
		if v.disk != wire.UpToDate && !m.otherCopy(v) {
			return
		}
	}
	m.suspNoD = false
	m.event(-1, -1, "resumed: data is in reach", nil)
	m.thaw()
}

func (m *Machine) runHandler(vol, peer int, name string) {
	m.emit(RunHandler, vol, peer).Note = name
}
