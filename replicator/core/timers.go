package core

import (
	"errors"
	"time"

	"github.com/hawser-ha/hawser/replicator/wire"
)

var (
	errPingLost   = errors.New("no answer to a ping")
	errStalled    = errors.New("the peer takes no data")
	errUnanswered = errors.New("the peer does not answer a request")
)

// epochMaxAge: with relaxed epochs a barrier goes out at least this often, so that few blocks are in doubt after a crash
// and the activity log gets its extents back.
const epochMaxAge = Now(500e6)

// Deadline says when Tick is wanted next; 0: not before the next event.
func (m *Machine) Deadline() Now {
	var d Now
	earliest := func(t Now) {
		if t > 0 && (d == 0 || t < d) {
			d = t
		}
	}
	if m.cfg.Coordinated && m.role == wire.Primary {
		if !m.co.expired && m.co.licence != forever && !m.co.deposed {
			earliest(max(m.co.licence, 1))
		}
		for _, q := range m.questions {
			if q.notBefore > 0 {
				earliest(q.notBefore)
			}
		}
	}
	for _, p := range m.peers {
		if !p.up {
			continue
		}
		if p.askAt > 0 && !m.co.deposed && m.co.saved >= m.co.rec.Term && p.state == wire.Connected && p.terms() {
			earliest(p.askAt)
		}
		n := &p.cfg.Net
		_, meta := p.lastReceived(m.now)
		if p.pingSent > 0 {
			earliest(p.pingSent + Now(n.PingTimeout))
		} else {
			earliest(meta + Now(n.PingInt))
		}
		if p.tlHead != nil || p.ask != nil || len(p.reads) > 0 || len(p.flushWait) > 0 || p.li.SendStalled != nil && p.li.SendStalled() > 0 {
			earliest(m.now + Now(n.Timeout)/4)
		}
		if p.epochCount > 0 && p.relaxed() {
			earliest(p.epochOpen + epochMaxAge)
		}
		if len(p.unacked) > 0 && !p.unacked[len(p.unacked)-1].sent {
			earliest(m.now + Now(time.Millisecond))
		}
		if p.seqHold != nil {
			earliest(p.seqSince + Now(n.PingTimeout))
		}
		for _, v := range m.vols {
			l := v.pv[p.idx]
			if l.rs.nextTick > 0 {
				earliest(l.rs.nextTick)
			}
			if l.aheadUntil > 0 {
				earliest(l.aheadUntil)
			}
		}
	}
	if d != 0 && d <= m.now {
		d = m.now + 1
	}
	return d
}

func (p *peer) lastReceived(now Now) (data, meta Now) {
	if p.li.LastReceived == nil {
		return now, now
	}
	return p.li.LastReceived()
}

// Tick does what time asks for.
func (m *Machine) Tick(now Now) {
	m.tick(now)
	if m.cfg.Coordinated && m.role == wire.Primary {
		m.licensed()
		m.review()
		m.askPromises()
		m.settle()
		m.goOn()
	}
	for _, p := range m.peers {
		if p.up {
			m.tickPeer(p)
		}
	}
}

func (m *Machine) tickPeer(p *peer) {
	n := &p.cfg.Net
	data, meta := p.lastReceived(m.now)
	limit := Now(n.Timeout) * Now(n.KOCount)

	// Liveness (drbd-wire.md 9).
	switch {
	case p.pingSent > 0 && m.now >= p.pingSent+Now(n.PingTimeout):
		if data <= p.pingSent && meta <= p.pingSent {
			m.lost(p, wire.NetworkFailure, errPingLost)
			return
		}
		p.pingSent = m.now // something came: wait again
		m.send(p, -1, wire.Ping)
		p.pingFence = append(p.pingFence, nil)
	case p.pingSent == 0 && m.now >= meta+Now(n.PingInt):
		m.ping(p, nil)
	}
	if p.li.SendStalled != nil {
		if since := p.li.SendStalled(); since > 0 {
			if p.pingSent == 0 && m.now-since >= Now(n.Timeout) {
				m.ping(p, nil)
			}
			if limit > 0 && m.now-since >= limit {
				m.lost(p, wire.Timeout, errStalled)
				return
			}
		}
	}
	if limit > 0 {
		oldest := Now(0)
		if r := p.tlHead; r != nil {
			pt := &r.parts[p.idx]
			barrier := len(p.unacked) > 0 && p.unacked[0].sent && p.unacked[0].nr == pt.epoch
			if pt.state == partSent && pt.want != 0 || barrier {
				oldest = pt.sent
				if barrier && pt.state != partSent {
					oldest = p.unacked[0].at
				}
			}
		}
		for _, r := range p.reads {
			if s := r.parts[p.idx].sent; oldest == 0 || s < oldest {
				oldest = s
			}
		}
		if oldest > 0 && m.now-oldest >= limit {
			m.lost(p, wire.Timeout, errUnanswered)
			return
		}
	}
	if a := p.ask; a != nil && m.now-a.since >= Now(n.PingTimeout)*4+Now(n.Timeout) {
		p.ask = nil
		a.then(errUnanswered)
	}

	if p.seqHold != nil && m.now-p.seqSince >= Now(n.PingTimeout) {
		m.lost(p, wire.ProtocolError, errors.New("a sequence number is missing"))
		return
	}

	// Epochs.
	if p.relaxed() {
		if p.epochCount > 0 && m.now >= p.epochOpen+epochMaxAge {
			m.closeEpoch(p)
		}
	}
	if len(p.unacked) > 0 {
		m.sendBarrier(p) // nothing else to do
	}
	for _, v := range m.vols {
		l := v.pv[p.idx]
		if l.rs.nextTick > 0 && m.now >= l.rs.nextTick {
			m.tickSync(l)
		}
		m.tickAhead(l)
		if !p.up {
			return
		}
	}
}

// ping asks for a sign of life; then runs when the answer is here, which is after everything the peer received before.
func (m *Machine) ping(p *peer, then func()) {
	if !p.up {
		return
	}
	if p.pingSent == 0 {
		p.pingSent = m.now
	}
	p.pingFence = append(p.pingFence, then)
	m.send(p, -1, wire.Ping)
}

func (m *Machine) pingAnswered(p *peer) {
	if len(p.pingFence) == 0 {
		return
	}
	then := p.pingFence[0]
	p.pingFence = p.pingFence[1:]
	if len(p.pingFence) == 0 {
		p.pingSent = 0
	}
	if then != nil {
		then()
	}
}

// tickSync runs the controllers of a resync or verify.
func (m *Machine) tickSync(l *link) {
	rs := &l.rs
	rs.nextTick = m.now + tickEvery
	switch l.conn {
	case wire.SyncTarget:
		rs.budget = int64(rs.ctl.Step(int(rs.in), int(rs.inFlight)))
		rs.in = 0
		m.syncMore(l)
	case wire.VerifyS:
		rs.budget = int64(rs.ctl.Step(int(rs.in), int(rs.inFlight)))
		rs.in = 0
		m.verifyMore(l)
	case wire.SyncSource:
		m.tickSource(l)
	case wire.PausedSyncS, wire.PausedSyncT:
	default:
		rs.nextTick = 0
	}
}

// tickSource lets the application's I/O go before the resync's reads.
func (m *Machine) tickSource(l *link) {
	rs, v := &l.rs, l.v
	app := v.reads + v.writes
	busy := (app-rs.app)>>9 - rs.served // reads for the resync are counted in both
	rs.app = app
	if rs.throttle != nil {
		allow := rs.throttle.Step(int(rs.served), int(max(busy, 0)))
		rs.allow = int64(allow)
		if l.role == wire.Primary || int64(allow) >= 1<<40 {
			rs.allow = -1
		}
	}
	rs.served = 0
	q := rs.backlog
	rs.backlog = nil
	for i, r := range q {
		if rs.allow >= 0 && rs.served >= rs.allow {
			rs.backlog = append(rs.backlog, q[i:]...)
			return
		}
		rs.served += r.Len >> 9
		if v.list(r) {
			m.begin(r)
		}
	}
}
