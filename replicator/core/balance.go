package core

import "github.com/hawser-ha/hawser/replicator/wire"

// stripes are the sizes of the striping policies of read-balancing in bytes.
var stripes = map[string]int64{"32K-striping": 32 << 10, "64K-striping": 64 << 10, "128K-striping": 128 << 10,
	"256K-striping": 256 << 10, "512K-striping": 512 << 10, "1M-striping": 1 << 20}

// balance says which peer a read goes to that our disk could serve as well, as read-balancing wants it; -1: our disk. A
// peer counts only while its copy of these blocks is as good as ours.
func (m *Machine) balance(r *Request) int {
	v := r.v
	policy := v.cfg.ReadBalancing
	if policy == "" || policy == "prefer-local" || v.disk != wire.UpToDate {
		return -1
	}
	copies := 1 // ours is number 0
	for i, l := range v.pv {
		if l.canRead(i, r) {
			copies++
		}
	}
	if copies == 1 {
		return -1
	}
	nth := 0
	switch policy {
	case "prefer-remote":
		nth = 1
	case "round-robin":
		v.turn++
		nth = int(v.turn % uint64(copies))
	case "least-pending":
		return m.leastPending(r)
	default:
		if size := stripes[policy]; size > 0 {
			nth = int(r.Off / size % int64(copies))
		}
	}
	for i, l := range v.pv {
		if !l.canRead(i, r) {
			continue
		}
		if nth--; nth == 0 {
			return i
		}
	}
	return -1
}

// leastPending is the copy with the fewest requests before it, of a peer its unanswered reads; among equals the nearest.
func (m *Machine) leastPending(r *Request) int {
	best, least := -1, r.v.local
	for i, l := range r.v.pv {
		if n := len(l.p.reads); n < least && l.canRead(i, r) {
			best, least = i, n
		}
	}
	return best
}

// SetVolume changes the options of a volume. The size limit is Resize's business, and al-updates changes only without a disk.
func (m *Machine) SetVolume(now Now, c VolumeConfig) {
	m.tick(now)
	v := m.volume(c.Number)
	if v.disk != wire.Diskless {
		c.ALUpdates = v.cfg.ALUpdates
	}
	v.cfg = c
}

// SetResource changes the options of the resource. Requests that wait for data are answered where they shall not wait any more.
func (m *Machine) SetResource(now Now, c Config) {
	m.tick(now)
	suspendOnNoData := c.SuspendOnNoData
	m.cfg.SuspendOnNoData, m.cfg.BeforeTarget, m.cfg.FailUnlicensed = suspendOnNoData, c.BeforeTarget, c.FailUnlicensed
	m.cfg.TTL, m.cfg.Margin = c.TTL, c.Margin
	m.failFrozen()
	if m.suspNoD && !suspendOnNoData {
		m.suspNoD = false
		m.event(-1, -1, "resumed: on-no-data-accessible io-error", nil)
		m.thaw()
	}
}
