package core

import (
	"errors"
	"fmt"

	"github.com/hawser-ha/hawser/replicator/bitmap"
	"github.com/hawser-ha/hawser/replicator/wire"
)

// usable rounds a capacity down to what is exported: the size limit, if one is set.
func (m *Machine) usable(v *volume, capacity int64) int64 {
	if v.user > 0 && v.user <= capacity {
		return v.user
	}
	return capacity
}

// sendSizes sends P_SIZES (section 16). flags are dds_flags.
func (m *Machine) sendSizes(l *link, flags uint16) {
	m.sendSizesAs(l, l.v.size, flags)
}

func (m *Machine) sendSizesAs(l *link, cSize int64, flags uint16) {
	v := l.v
	b := &wire.SizesBody{USize: uint64(v.user) >> 9, CSize: uint64(cSize) >> 9, MaxBioSize: maxBio, DDSFlags: flags}
	if v.disk > wire.Diskless && v.disk != wire.Failed {
		b.DSize = uint64(v.cap) >> 9
	}
	if l.p.li.Features&wire.FeatureWSame != 0 {
		b.HasQueueLimits = true
		b.PhysBlock, b.LogBlock, b.IOMin, b.DiscardEnabled = 512, 512, 512, 1
	}
	m.send(l.p, v.num, wire.Sizes).Ext = b
}

// sizes handles P_SIZES.
func (m *Machine) sizes(l *link, b *wire.SizesBody) error {
	v := l.v
	if b.DSize > 1<<51 || b.USize > 1<<51 || b.CSize > 1<<51 {
		return errors.New("a size beyond all limits")
	}
	first := l.conn == wire.WFReportParams
	l.dsize, l.usize, l.csize = int64(b.DSize)<<9, int64(b.USize)<<9, int64(b.CSize)<<9
	switch {
	case first && l.usize > 0 && (v.user == 0 || l.usize < v.user):
		v.user = l.usize
	case !first:
		v.user = l.usize
	}
	if first || l.conn < wire.Connected {
		return nil // the first P_STATE decides
	}
	if !m.agreeSizeWith(l, b.DDSFlags) {
		return nil
	}
	if l.csize != v.size {
		m.sendSizes(l, b.DDSFlags)
	}
	return nil
}

// agreeSize finds the size of a volume from both disks at connect.
func (m *Machine) agreeSize(l *link) bool { return m.agreeSizeWith(l, 0) }

func (m *Machine) agreeSizeWith(l *link, flags uint16) bool {
	v := l.v
	mine := int64(0)
	if v.disk > wire.Diskless && v.disk != wire.Failed {
		mine = v.cap
	}
	var size int64
	switch {
	case mine > 0 && l.dsize > 0:
		size = min(mine, l.dsize)
	case mine > 0:
		size = mine
		if v.size > 0 {
			size = min(v.size, mine) // what was agreed stays
		}
	default: // without a disk: what the peer exports
		size = l.csize
		if size == 0 {
			size = l.usize
		}
		if size == 0 {
			size = l.dsize
		}
		if size == 0 {
			return true // nobody knows yet
		}
	}
	if v.user > 0 && mine+l.dsize > 0 {
		if v.user <= size {
			size = v.user
		} else if l.dsize > 0 && mine > 0 {
			m.event(v.num, l.p.idx, fmt.Sprintf("size limit %d is larger than what is there: ignored", v.user), nil)
		}
	}
	online := l.conn >= wire.Connected
	if size < v.size && (v.disk >= wire.Outdated || m.role == wire.Primary) && (!online || v.user == 0) {
		m.standAlone(l.p, fmt.Errorf("volume %d: with this peer the volume would shrink from %d to %d bytes", v.num, v.size, size))
		return false
	}
	m.setSize(v, l, size, online, flags)
	return true
}

// setSize changes the size of a volume. New space is out of sync unless flags say that it is equal (dds_flags 2).
func (m *Machine) setSize(v *volume, l *link, size int64, online bool, flags uint16) {
	old := v.size
	if size == old {
		return
	}
	v.size = size
	assumeClean := flags&2 != 0
	for _, o := range v.pv {
		if o.bm != nil {
			o.bm.Resize(v.bits(), old > 0 && !assumeClean)
		}
	}
	m.event(v.num, -1, fmt.Sprintf("size %d bytes", size), nil)
	m.emit(SizeChanged, v.num, -1).Off = size
	if v.disk >= wire.Inconsistent {
		m.writeSuper(v, false, true, false, nil)
	}
	if !online || size < old || old == 0 || assumeClean || v.disk < wire.Inconsistent || l.disk < wire.Inconsistent || l.conn != wire.Connected {
		return
	}
	source := l.p.li.ResolveConflicts
	if m.role != l.role {
		source = m.role == wire.Primary
	}
	l.peerSet = v.set(l.p.idx)
	if source {
		m.setConn(l, wire.StartingSyncS)
		m.startSource(l)
	} else {
		m.setConn(l, wire.WFSyncUUID)
	}
}

// fitBitmaps gives the bitmaps of an attached disk the agreed size.
func (m *Machine) fitBitmaps(v *volume) {
	for _, l := range v.pv {
		if l.bm != nil && l.bm.Bits() != v.bits() {
			l.bm.Resize(v.bits(), v.sup.Size > 0 && v.sup.Size < v.size)
		}
	}
}

// Resize takes up a new capacity of the local disk (0: unchanged) and a new size limit (0: none, negative: unchanged), and
// agrees with the peers on the new size.
func (m *Machine) Resize(now Now, vol int, capacity, userSize int64, assumeClean bool, cmd any) {
	m.tick(now)
	v := m.volume(vol)
	for _, l := range v.pv {
		if l.conn > wire.Connected {
			m.result(cmd, ErrBusy)
			return
		}
	}
	if capacity > 0 {
		v.cap = capacity
	}
	if userSize >= 0 {
		v.user = userSize
	}
	if v.disk < wire.Inconsistent {
		m.result(cmd, ErrNoDisk)
		return
	}
	if v.user > v.cap {
		m.result(cmd, fmt.Errorf("resize: %w: %d bytes are wanted, the disk has room for %d", ErrTooSmall, v.user, v.cap))
		return
	}
	size := m.usable(v, v.cap)
	if size < v.size && (userSize <= 0 || m.role == wire.Primary) {
		m.result(cmd, fmt.Errorf("resize: %w: shrinking from %d to %d bytes needs a size limit and no primary", ErrTooSmall, v.size, size))
		return
	}
	var flags uint16
	if assumeClean {
		flags = 2
	}
	asked := false
	for _, l := range v.pv {
		if l.p.state == wire.Connected && l.conn == wire.Connected && l.disk >= wire.Inconsistent {
			asked = true
			m.sendUUIDs(l)
			m.sendSizesAs(l, 0, flags)
		}
	}
	if !asked {
		for _, l := range v.pv {
			if l.dsize > 0 && l.disk >= wire.Inconsistent {
				m.result(cmd, fmt.Errorf("resize: %w: the peer's disk must agree", ErrNoConnection))
				return
			}
		}
		m.setSize(v, v.anyLink(), size, false, flags)
	}
	m.result(cmd, nil)
}

func (v *volume) anyLink() *link {
	if len(v.pv) == 0 {
		return nil
	}
	return v.pv[0]
}

// Bits is the number of bitmap bits of a volume.
func (m *Machine) Bits(vol int) int64 { return bitmap.BitsFor(m.volume(vol).size) }
