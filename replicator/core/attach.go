package core

import (
	"errors"
	"fmt"

	"github.com/hawser-ha/hawser/replicator/actlog"
	"github.com/hawser-ha/hawser/replicator/wire"
)

// Attach gives a volume its disk. While connected the peer is asked whose data is newer; the answer to cmd comes after that.
func (m *Machine) Attach(now Now, vol int, d DiskInfo, cmd any) {
	m.tick(now)
	v := m.volume(vol)
	if v.disk != wire.Diskless || v.closing {
		m.result(cmd, fmt.Errorf("volume %d already has a disk: %w", vol, ErrTwice))
		return
	}
	if d.Super.Size > d.Capacity || v.size > d.Capacity && m.busyWith(v) {
		m.result(cmd, fmt.Errorf("volume %d: %w: %d bytes are needed, the disk has room for %d", vol, ErrTooSmall, max(d.Super.Size, v.size), d.Capacity))
		return
	}
	if v.size > 0 && m.role == wire.Primary && v.sup.Current != 0 && v.sup.Current&^1 != d.Super.Current&^1 && !m.otherCopy(v) {
		m.result(cmd, fmt.Errorf("volume %d: the disk has another data generation than this primary uses", vol))
		return
	}
	v.cap = d.Capacity
	v.sup = d.Super
	v.crashed = d.Super.CrashedPrimary || d.Super.PrimaryInd
	v.device = d.Device
	v.vouched = v.device != 0 && m.co.rec.Disks[v.num] == v.device
	for i, l := range v.pv {
		l.bm = nil
		if i < len(d.Bitmaps) {
			l.bm = d.Bitmaps[i]
		}
	}
	v.al = actlog.New(d.ALSlots, d.ALBlocks)
	v.attachCmd = cmd
	v.disk = wire.Attaching
	v.wrote++ // what its former life left in the cache
	if v.size == 0 {
		v.size = v.sup.Size
	}
	if v.size == 0 {
		v.size = m.usable(v, v.cap)
	}
	m.fitBitmaps(v)
	for i, l := range v.pv {
		if d.Super.Peers[i].FullSync || d.Super.ALDisabled && v.crashed {
			if l.bm != nil {
				l.bm.SetAll()
			}
		}
		if d.Super.Peers[i].OutDated && l.conn < wire.Connected {
			l.disk = wire.Outdated
		}
	}
	m.emit(SizeChanged, v.num, -1).Off = v.size
	connected := false
	for _, l := range v.pv {
		// A peer without a disk has nothing to compare, and would not answer.
		if l.p.up && l.conn >= wire.WFReportParams && (l.conn < wire.Connected || l.disk != wire.Diskless) {
			connected = true
		}
	}
	if !connected {
		m.leaveNegotiating(v)
		m.event(v.num, -1, "disk "+v.disk.String(), nil)
		for _, l := range v.pv {
			if l.p.up && l.conn >= wire.Connected {
				m.sendSizes(l, 0)
				m.sendDisk(l)
				m.sendUUIDs(l)
				m.sendState(l)
			}
		}
		m.attached(v, nil)
		m.dataBack()
		return
	}
	v.disk = wire.Negotiating
	for _, l := range v.pv {
		if !l.p.up || l.conn < wire.WFReportParams {
			continue
		}
		l.negotiating = l.conn < wire.Connected || l.disk != wire.Diskless
		m.sendSizes(l, 0)
		m.sendDisk(l)
		m.sendUUIDs(l)
		m.sendState(l)
	}
}

func (m *Machine) busyWith(v *volume) bool {
	for _, l := range v.pv {
		if l.conn >= wire.Connected {
			return true
		}
	}
	return m.role == wire.Primary
}

// attached answers the Attach command and makes the state durable.
func (m *Machine) attached(v *volume, err error) {
	cmd := v.attachCmd
	v.attachCmd = nil
	if err != nil {
		m.result(cmd, err)
		return
	}
	m.writeSuper(v, false, true, false, func(err error) { m.result(cmd, err) })
}

// leaveNegotiating gives the disk the state that its metadata says (drbd-metadata.md 2.1).
func (m *Machine) leaveNegotiating(v *volume) {
	s := &v.sup
	switch {
	case !s.Consistent:
		v.disk = wire.Inconsistent
	case !s.WasUpToDate:
		v.disk = wire.Outdated
	default:
		v.disk = wire.UpToDate
		for i, l := range v.pv {
			if l.p.cfg.Net.Fencing != "" && l.p.cfg.Net.Fencing != "dont-care" && !s.Peers[i].OutDated && l.bm != nil {
				v.disk = wire.Consistent
			}
		}
	}
}

// negotiated: the peers that were to decide about an attaching disk are gone.
func (m *Machine) negotiated(v *volume) {
	if v.disk != wire.Negotiating {
		return
	}
	for _, l := range v.pv {
		if l.negotiating {
			return
		}
	}
	m.leaveNegotiating(v)
	m.event(v.num, -1, "disk "+v.disk.String(), nil)
	m.attached(v, nil)
	m.dataBack()
}

// Detach takes the disk away. A Primary goes on through a peer that has good data; force does not ask for one, and does
// not wait for requests that the disk does not answer.
func (m *Machine) Detach(now Now, vol int, force bool, cmd any) {
	m.tick(now)
	v := m.volume(vol)
	switch {
	case v.disk == wire.Diskless && !v.closing:
		m.result(cmd, nil)
		return
	case v.closing:
		if force {
			m.abandon(v)
		}
		m.result(cmd, ErrTwice)
		return
	case m.role == wire.Primary && !m.otherCopy(v) && !force:
		m.result(cmd, fmt.Errorf("detach: %w: this is the only copy in reach of a volume in use", ErrNoData))
		return
	}
	for _, l := range v.pv {
		if l.servesDiskless() && !force {
			m.result(cmd, fmt.Errorf("detach: %w: the peer %s is Primary without a disk and needs ours", ErrNoData, l.p.cfg.Name))
			return
		}
	}
	v.detachCmd = cmd
	m.detachNow(v, nil)
	if force {
		m.abandon(v)
	}
}

// detachNow takes the disk out of use.
func (m *Machine) detachNow(v *volume, why error) {
	if v.disk == wire.Diskless || v.closing {
		return
	}
	v.closing = true
	attach := v.attachCmd
	v.attachCmd = nil
	if why == nil && v.disk >= wire.Inconsistent {
		// An orderly end: bitmap and superblock are written first.
		m.writeSuper(v, true, true, false, nil)
	}
	keep := v.waits
	if why != nil {
		v.waits = nil
	}
	v.disk = wire.Failed
	m.event(v.num, -1, "disk Failed: detaching", why)
	m.review()
	if attach != nil {
		m.result(attach, why)
	}
	for _, l := range v.pv {
		if l.conn > wire.Connected {
			m.stopSync(l)
			m.setConn(l, wire.Connected)
		}
		if l.conn == wire.WFReportParams || l.conn >= wire.Connected {
			m.sendState(l)
		}
	}
	for _, p := range m.peers { // theirs are the only copies now: let them be stable
		m.closeEpoch(p)
		m.sendBarrier(p)
	}
	m.alDrop(v)
	if why != nil {
		for _, w := range keep {
			if w.then != nil {
				w.then(why)
			}
		}
		v.hold = 0
		m.releaseHeld(v)
	}
	m.closeIfIdle(v)
}

// abandon treats what is on the disk as failed; the answers may never come.
func (m *Machine) abandon(v *volume) {
	for r := v.head; r != nil; {
		next := r.nxt
		if r.isApp() && r.local == localRunning && !r.failed {
			r.failed = true
			r.localErr = ErrIO
			m.advance(r)
			next = v.head // the list may have changed
		}
		r = next
	}
}

// closeIfIdle closes a disk that is out of use when its last request is answered.
func (m *Machine) closeIfIdle(v *volume) {
	if !v.closing || v.local > 0 || v.disk != wire.Failed || len(v.waits) > 0 {
		return
	}
	v.disk = wire.Diskless
	m.event(v.num, -1, "disk Diskless", nil)
	m.emit(CloseDisk, v.num, -1)
	m.report(v)
}

// DiskClosed says that the backing store is released.
func (m *Machine) DiskClosed(now Now, vol int) {
	m.tick(now)
	v := m.volume(vol)
	v.closing, v.device, v.vouched = false, 0, false
	for _, l := range v.pv {
		l.bm = nil
		m.sendDisk(l)
	}
	m.result(v.detachCmd, nil)
	v.detachCmd = nil
}

// diskFailed acts on an error of the local disk as on-io-error says.
func (m *Machine) diskFailed(v *volume, err error) {
	if v.disk < wire.Inconsistent || v.closing {
		return
	}
	m.event(v.num, -1, "i/o error on the local disk", err)
	switch {
	case v.cfg.OnIOError == "pass_on" && !errors.Is(err, errGone):
		if m.otherCopy(v) && v.disk > wire.Inconsistent {
			v.disk = wire.Inconsistent
			m.event(v.num, -1, "disk Inconsistent: a write failed", err)
			m.review()
			m.writeSuper(v, false, true, false, nil)
			m.report(v)
		}
		return
	case v.cfg.OnIOError == "call-local-io-error":
		m.runHandler(v.num, -1, "local-io-error")
	}
	if v.disk == wire.UpToDate && !m.otherCopy(v) {
		return // never give up the last good copy: the application was told of its request
	}
	m.detachNow(v, err)
}

// errGone marks errors after which a disk cannot be used at all.
var errGone = errors.New("the disk is gone")

// Outdate marks the data as old: this node may not be promoted before it was in touch with a good copy.
func (m *Machine) Outdate(now Now, vol int, cmd any) {
	m.tick(now)
	v := m.volume(vol)
	switch {
	case v.disk < wire.Inconsistent:
		m.result(cmd, ErrNoDisk)
		return
	case m.role == wire.Primary:
		m.result(cmd, ErrPrimary)
		return
	case v.disk <= wire.Outdated:
		m.result(cmd, nil)
		return
	}
	for _, l := range v.pv {
		if l.conn >= wire.Connected {
			m.result(cmd, fmt.Errorf("outdate: connected to %s: %w", l.p.cfg.Name, ErrBusy))
			return
		}
	}
	v.disk = wire.Outdated
	m.event(v.num, -1, "disk Outdated", nil)
	m.writeSuper(v, false, false, false, func(err error) { m.result(cmd, err) })
}

// Disconnect ends the connection to a peer in good order. force does not wait for the peer.
func (m *Machine) Disconnect(now Now, peer int, force bool, cmd any) {
	m.tick(now)
	p := m.peers[peer]
	switch {
	case p.state == wire.StandAlone:
		m.result(cmd, nil)
		return
	case p.state != wire.Connected || force:
		m.retryOff(p)
		m.standAlone(p, errors.New("disconnected by command"))
		m.result(cmd, nil)
		return
	}
	for _, v := range m.vols {
		l := v.pv[peer]
		if m.role == wire.Primary && v.disk < wire.Inconsistent && l.disk == wire.UpToDate && !m.copyBeside(v, l) {
			m.result(cmd, fmt.Errorf("volume %d: %w: this node is Primary without a disk and the peer has its only copy", v.num, ErrNoDisk))
			return
		}
	}
	if !m.drained(p, func() { m.askGoodbye(p, cmd) }) {
		m.askGoodbye(p, cmd)
	}
}

// askGoodbye asks for the peer's consent to a disconnect. What is written meanwhile it may miss.
func (m *Machine) askGoodbye(p *peer, cmd any) {
	if p.state != wire.Connected { // lost meanwhile: so be it
		m.retryOff(p)
		m.standAlone(p, errors.New("disconnected by command"))
		m.result(cmd, nil)
		return
	}
	mask, val := maskConn, wire.State(wire.Disconnecting)<<4
	primary := m.role == wire.Primary && m.fences(p)
	if primary { // it may go only if it says that its data is old from then on
		mask, val = mask|maskPDsk, val|wire.State(wire.Outdated)<<13
	}
	m.askPeer(p, -1, mask, val, func(err error) {
		switch {
		case errors.Is(err, errNotOutdated):
			m.outdateAndGo(p, cmd)
			return
		case err != nil && !errors.Is(err, ErrLinkLost):
			m.result(cmd, err)
			return
		case err == nil && primary:
			m.peerOutdated(p)
		}
		m.retryOff(p)
		m.standAlone(p, errors.New("disconnected by command"))
		m.result(cmd, nil)
	})
}

// outdateAndGo: the peer is Primary with fencing, and lets us go only when our data is marked as old (section 26).
func (m *Machine) outdateAndGo(p *peer, cmd any) {
	m.askPeer(p, -1, maskConn|maskDisk, wire.State(wire.Disconnecting)<<4|wire.State(wire.Outdated)<<9, func(err error) {
		if err != nil && !errors.Is(err, ErrLinkLost) {
			m.result(cmd, err)
			return
		}
		if err == nil {
			for _, v := range m.vols {
				m.outdated(v, p.idx)
			}
		}
		m.retryOff(p)
		m.standAlone(p, errors.New("disconnected by command"))
		m.result(cmd, nil)
	})
}

// outdated marks our data as old: the peer goes on without us.
func (m *Machine) outdated(v *volume, peer int) {
	if v.disk <= wire.Outdated || m.role == wire.Primary {
		return
	}
	v.disk = wire.Outdated
	m.event(v.num, peer, "disk Outdated: the peer goes on alone", nil)
	m.writeSuper(v, false, false, false, nil)
}

// peerOutdated: the peer said that its data is old from now on.
func (m *Machine) peerOutdated(p *peer) {
	for _, v := range m.vols {
		if l := v.pv[p.idx]; l.disk > wire.Outdated {
			was := l.disk
			l.disk = wire.Outdated
			m.contactLost(v, l, was)
		}
	}
}

func (m *Machine) copyBeside(v *volume, not *link) bool {
	for _, l := range v.pv {
		if l != not && l.conn >= wire.Connected && l.disk == wire.UpToDate {
			return true
		}
	}
	return false
}

// retryOff keeps a peer from being connected again.
func (m *Machine) retryOff(p *peer) {
	if p.retryConnect {
		p.retryConnect = false
		p.setState(m, wire.StandAlone, "")
	}
}
