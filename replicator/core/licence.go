package core

import (
	"errors"
	"fmt"

	"github.com/hawser-ha/hawser/replicator/wire"
)

// Grant is what the arbiter says of who may write (docs/adr/0006).
type Grant struct {
	Term, Seq, Answers uint64
	Holder             int // a peer, Nobody, Self, Stranger
	Until              Now // end of our lease; 0: none
	CoPrimary          bool
	Self               map[int]uint64   // our disks in the in-sync set, by volume; nil: we are not in it
	Members            []map[int]uint64 // the same of the peers
}

// Grant takes what the arbiter says. The answer comes when the term is durable.
func (m *Machine) Grant(now Now, g *Grant, cmd any) {
	m.tick(now)
	c := &m.co
	switch {
	case g.Term < c.rec.Term:
		m.result(cmd, fmt.Errorf("%w: term %d is known, not only %d", ErrStale, c.rec.Term, g.Term))
		return
	case g.Seq < c.seq:
		m.result(cmd, fmt.Errorf("%w: in-sync set %d is known, not only %d", ErrStale, c.seq, g.Seq))
		return
	}
	if g.Term > c.rec.Term {
		m.newTerm(g.Term, g.Holder, g.CoPrimary)
		m.save(nil)
	} else if g.Holder != c.holder {
		m.newHolder(g)
	}
	c.granted, c.seq, c.self, c.members, c.coPrimary = true, g.Seq, g.Self, g.Members, g.CoPrimary
	if g.Holder == Self {
		c.lease = max(c.lease, g.Until)
	}
	m.takeAnswers(g)
	for _, p := range m.peers {
		if m.member(p) && m.role == wire.Primary {
			p.awaited = true
		}
	}
	m.relicense()
	m.review()
	m.goOn()
	if c.saved >= c.rec.Term {
		m.result(cmd, nil)
		return
	}
	m.save(func(err error) { m.result(cmd, err) })
}

// newHolder: the same term has another holder than was known. A term belongs to one node, so either nobody knew before, or it
// was given back.
func (m *Machine) newHolder(g *Grant) {
	c := &m.co
	was := c.holder
	c.holder = g.Holder
	if was == Self && g.Holder >= 0 || g.Holder == Stranger {
		m.depose(fmt.Errorf("%w: term %d is held by %s", ErrDeposed, g.Term, m.nameOf(g.Holder)))
	}
	m.tellTerm()
}

var errMissed = errors.New("the peer missed a write")

// takeAnswers closes the questions that a grant answers.
func (m *Machine) takeAnswers(g *Grant) {
	for _, q := range append([]*question(nil), m.questions...) {
		if q.id > g.Answers || g.Seq <= q.seq {
			continue
		}
		if q.p == nil && g.Self == nil || q.p != nil && !m.member(q.p) {
			q.answered = true
		}
	}
	m.settle()
}

// settle ends the waiting for peers and disks that the arbiter has taken out of the in-sync set, as soon as promises allow it.
func (m *Machine) settle() {
	for _, q := range append([]*question(nil), m.questions...) {
		switch {
		case !q.answered:
		case q.p == nil:
			m.co.awaitSelf = false
			m.closeQuestion(q, "the arbiter goes on without this disk")
		case q.p.given > m.now:
			if q.notBefore != q.p.given {
				q.notBefore = q.p.given
				m.tell(q, "question opened", "it was promised to wait for "+q.p.cfg.Name)
			}
		default:
			q.p.awaited = false
			m.closeQuestion(q, "the arbiter goes on without "+q.p.cfg.Name)
			if q.p.failed {
				m.lost(q.p, wire.NetworkFailure, errMissed) // it has to be resynced
			}
		}
	}
}

// member says whether the peer, with the disks it has now, is in the in-sync set.
func (m *Machine) member(p *peer) bool {
	return p.idx < len(m.co.members) && m.co.members[p.idx] != nil
}

// rightDisks says whether the peer's disks are those that the in-sync set names.
func (m *Machine) rightDisks(p *peer) bool {
	if !m.member(p) || !p.terms() {
		return true
	}
	for _, v := range m.vols {
		if m.co.members[p.idx][v.num] != v.pv[p.idx].device {
			return false
		}
	}
	return true
}

// qualified says whether the peer has everything: it may be waited for.
func (m *Machine) qualified(p *peer) bool {
	if p.state != wire.Connected || p.failed || !m.rightDisks(p) {
		return false
	}
	for _, v := range m.vols {
		l := v.pv[p.idx]
		target := false // we are: the peer has everything, and gets what is written
		switch l.conn {
		case wire.Connected, wire.VerifyS, wire.VerifyT:
		case wire.WFBitMapT, wire.WFSyncUUID, wire.SyncTarget, wire.PausedSyncT:
			target = true
		default:
			return false
		}
		if l.disk != wire.UpToDate || p.terms() && (l.device == 0 || !l.vouched) {
			return false
		}
		if !p.awaited && !target && l.count() > 0 { // found by a verify, or not told to the peer: it waits for a resync
			return false
		}
	}
	return true
}

// whyNot says what a peer lacks.
func (m *Machine) whyNot(p *peer) string {
	name := p.cfg.Name
	switch {
	case p.state != wire.Connected:
		return name + " is not connected"
	case p.failed:
		return "a write did not reach the disk of " + name
	case !m.rightDisks(p):
		return name + " has another disk than the one that was in sync"
	}
	for _, v := range m.vols {
		l := v.pv[p.idx]
		if p.terms() && !l.vouched {
			return fmt.Sprintf("%s does not remember its disk of volume %d", name, v.num)
		}
		if l.disk != wire.UpToDate {
			return fmt.Sprintf("the disk of %s is %s in volume %d", name, l.disk, v.num)
		}
	}
	return name + " is being resynced"
}

// selfGood says whether all of our own disks are good.
func (m *Machine) selfGood() bool {
	for _, v := range m.vols {
		if v.disk != wire.UpToDate {
			return false
		}
	}
	return true
}

// reviewLicence is review for a coordinated resource.
func (m *Machine) reviewLicence() {
	c := &m.co
	m.reviewVouch()
	if m.role != wire.Primary || c.deposed {
		return
	}
	changed, closed := false, false
	for _, p := range m.peers {
		good := m.qualified(p)
		if good && !p.awaited {
			p.awaited, changed = true, true
			m.event(-1, p.idx, "peer is waited for", nil)
		}
		q := m.about(p)
		switch {
		case !p.awaited:
		case !good && q == nil:
			m.ask(&question{p: p, why: m.whyNot(p), seq: c.seq, freeze: true})
		case good && q != nil:
			m.closeQuestion(q, p.cfg.Name+" has everything again")
			m.resend(p)
			closed = true
		}
	}
	good := m.selfGood()
	if good && !c.awaitSelf {
		c.awaitSelf = true
	}
	q := m.about(nil)
	switch {
	case c.awaitSelf && !good && q == nil:
		m.ask(&question{why: "a disk of this node is not good any more", seq: c.seq, freeze: true})
	case good && q != nil:
		m.closeQuestion(q, "the disks of this node are good again")
		closed = true
	}
	if changed {
		m.relicense()
	}
	if closed {
		m.goOn()
	}
}

// startWaiting: this node has become Primary. It waits for the in-sync set, and for whoever is in sync besides.
func (m *Machine) startWaiting() {
	c := &m.co
	c.awaitSelf = c.self != nil
	for _, p := range m.peers {
		p.awaited = m.member(p)
		p.failed = false
		p.askAt = m.now
	}
	m.owed = true
	m.relicense()
	m.review()
	m.askPromises()
	m.goOn()
}

// stopWaiting: it is none any more.
func (m *Machine) stopWaiting() {
	c := &m.co
	for _, p := range m.peers {
		if p.state == wire.Connected && p.terms() {
			m.send(p, -1, wire.PromiseRequest).Ext = &wire.PromiseBody{ID: uint64(m.now), Term: c.rec.Term} // it is given back
		}
		p.awaited, p.failed, p.promised, p.askAt = false, false, 0, 0
	}
	c.awaitSelf, c.deposed, c.expired, m.owed = false, false, false, false
	m.relicense()
	m.tellTerm()
}

// failsafe is until when nobody else may take over or go on, by the promises of all who could: the others in the in-sync set, and
// those that may be in it without our knowing.
func (m *Machine) failsafe() Now {
	until := forever
	for _, p := range m.peers {
		if m.member(p) || p.awaited || m.co.coPrimary && m.co.holder == p.idx {
			until = min(until, p.promised)
		}
	}
	if m.co.coPrimary && m.co.holder < 0 {
		return 0
	}
	return until
}

// relicense computes until when this node may serve.
func (m *Machine) relicense() {
	c := &m.co
	if !m.cfg.Coordinated {
		return
	}
	c.licence = 0
	if m.role == wire.Primary && !c.deposed && (c.holder == Self || c.holder == Nobody || c.coPrimary) {
		c.licence = m.failsafe()
		if !c.coPrimary {
			c.licence = max(c.licence, c.lease)
		}
	}
	if c.expired && m.now < c.licence {
		c.expired = false
		m.event(-1, -1, "licensed again", nil)
		m.reportAll()
		m.goOn()
	}
}

// licensed says whether requests may be served and answered now. The moment is that of the event: a process that was stopped
// learns of the time that has passed before anything else.
func (m *Machine) licensed() bool {
	if m.now < m.co.licence {
		return true
	}
	if m.role == wire.Primary && !m.co.expired && !m.co.deposed {
		m.co.expired = true
		m.event(-1, -1, "the licence to write has run out", nil)
		m.reportAll()
		m.failFrozen()
	}
	return false
}

// failing says whether requests fail that have no licence: on-no-quorum io-error.
func (m *Machine) failing() bool {
	return m.cfg.FailUnlicensed && m.co.expired && m.role == wire.Primary
}

// failFrozen fails what waits in vain.
func (m *Machine) failFrozen() {
	if !m.failing() {
		return
	}
	q := m.frozen
	m.frozen = nil
	for _, r := range q {
		m.fail(r, nil, ErrNoLicence)
	}
	m.failHeld(ErrNoLicence)
}

// mayLeadNow says why the arbiter does not let this node be Primary.
func (m *Machine) mayLeadNow() error {
	c := &m.co
	switch {
	case !c.granted || c.holder != Self && !c.coPrimary:
		return fmt.Errorf("%w: term %d is held by %s", ErrNoLicence, c.rec.Term, m.nameOf(c.holder))
	case c.saved < c.rec.Term:
		return fmt.Errorf("%w: term %d is not durable here yet", ErrNoLicence, c.rec.Term)
	case c.self == nil:
		return fmt.Errorf("%w: this node is not in the in-sync set", ErrNoLicence)
	}
	alone := !c.coPrimary
	for _, p := range m.peers {
		alone = alone && !m.member(p)
	}
	if !c.coPrimary && !alone && m.now >= c.lease {
		return fmt.Errorf("%w: the lease is over", ErrNoLicence)
	}
	for _, v := range m.vols {
		if v.device != 0 && c.self[v.num] != v.device {
			return fmt.Errorf("%w: the in-sync set has another disk than this one for volume %d", ErrNoLicence, v.num)
		}
	}
	return nil
}

// askPromises asks the peers not to run for primary.
func (m *Machine) askPromises() {
	if m.role != wire.Primary || m.co.deposed || m.co.saved < m.co.rec.Term {
		return
	}
	for _, p := range m.peers {
		if p.state != wire.Connected || !p.terms() || m.now < p.askAt {
			continue
		}
		p.askAt = m.now + m.cfg.TTL/3
		// The moment is the id: the promise counts from before the request was sent.
		m.send(p, -1, wire.PromiseRequest).Ext = &wire.PromiseBody{ID: uint64(m.now), Term: m.co.rec.Term, Duration: uint64(m.cfg.TTL)}
	}
}

// promiseRequest handles P_PROMISE_REQUEST.
func (m *Machine) promiseRequest(p *peer, b *wire.PromiseBody) {
	c := &m.co
	if !m.cfg.Coordinated || !p.ready() {
		return
	}
	if b.Duration == 0 {
		if b.Term >= p.givenTerm {
			p.given = 0
			m.settle()
			m.goOn()
		}
		return
	}
	d := min(Now(b.Duration), m.cfg.TTL)
	leads := m.role == wire.Primary || m.promoting != nil
	if b.Term != c.rec.Term || c.saved < b.Term || m.now < c.noPromise || leads && (!m.twoPrimaries(p) || !p.leads) {
		d = 0
	} else {
		p.given, p.givenTerm = max(p.given, m.now+d), b.Term
	}
	m.send(p, -1, wire.Promise).Ext = &wire.PromiseBody{ID: b.ID, Term: b.Term, Duration: uint64(d)}
}

// promise handles P_PROMISE.
func (m *Machine) promise(p *peer, b *wire.PromiseBody) error {
	at := Now(b.ID)
	if at > m.now || at < p.upSince {
		return errors.New("a promise that was not asked for on this connection")
	}
	if m.role != wire.Primary || b.Term != m.co.rec.Term || b.Duration == 0 {
		return nil
	}
	p.promised = max(p.promised, at+Now(b.Duration)-m.cfg.Margin)
	m.relicense()
	return nil
}

// bound is until when promises keep this node from running for primary.
func (m *Machine) bound() Now {
	b := m.co.boundUntil
	for _, p := range m.peers {
		b = max(b, p.given)
	}
	return b
}

// Candidacy says for how long this node may not run for primary; 0: it is free, and gives no promise for so long. dead: the
// primary is known to be dead, whatever was promised.
func (m *Machine) Candidacy(now Now, length Now, dead bool) Now {
	m.tick(now)
	if dead {
		m.co.boundUntil = 0
		for _, p := range m.peers {
			p.given = 0
		}
	}
	if b := m.bound(); b > m.now {
		return b - m.now
	}
	m.co.noPromise = max(m.co.noPromise, m.now+length)
	return 0
}

// has says whether the peer has a write for sure, as its protocol means it.
func (m *Machine) has(r *Request, p *peer) bool {
	pt := &r.parts[p.idx]
	switch {
	case pt.neg:
		return false
	case pt.ok, pt.want == 0 && (pt.state == partSent || pt.state == partAcked):
		return true
	}
	l := r.v.pv[p.idx]
	return l.bm != nil && l.conn == wire.Connected && !l.isDirty(r.Off, r.Len) && m.qualified(p) // it came by a resync
}

// everywhere says whether a write may be acknowledged: everybody who is waited for has it.
func (m *Machine) everywhere(r *Request) bool {
	for _, p := range m.peers {
		if !p.awaited || m.has(r, p) {
			continue
		}
		if m.about(p) == nil {
			p.failed = true // until a new connection: what it missed needs a resync
			m.ask(&question{p: p, why: m.whyNot(p), seq: m.co.seq, freeze: true})
		}
		return false
	}
	return !m.co.awaitSelf || r.v.disk == wire.UpToDate
}

// LicenceView is who may write, for people and monitors.
type LicenceView struct {
	Term, Seq  uint64
	Holder     int
	Self       map[int]uint64
	Members    []map[int]uint64
	CoPrimary  bool
	Until      Now // end of the licence; 0: none
	Unlimited  bool
	Lease      Now
	Failsafe   Now // 0: none
	Bound      Now // 0: free
	Expired    bool
	SelfJoins  bool // this node has everything, is waited for, and is not in the in-sync set
	SelfDevice map[int]uint64
}

func (m *Machine) licenceView() *LicenceView {
	c := &m.co
	w := &LicenceView{Term: c.rec.Term, Seq: c.seq, Holder: c.holder, Self: c.self, Members: c.members, CoPrimary: c.coPrimary, Lease: c.lease,
		Expired: c.expired, SelfJoins: m.role == wire.Primary && c.self == nil && c.awaitSelf && m.selfGood(), SelfDevice: map[int]uint64{}}
	for _, v := range m.vols {
		w.SelfDevice[v.num] = v.device
	}
	if b := m.bound(); b > m.now {
		w.Bound = b
	}
	if m.role == wire.Primary {
		w.Until, w.Unlimited = c.licence, c.licence == forever
		if f := m.failsafe(); f != forever {
			w.Failsafe = f
		}
	}
	return w
}
