package core

import (
	"errors"
	"fmt"

	"github.com/hawser-ha/hawser/replicator/wire"
)

// Who holds a term, beside the index of a peer.
const (
	Nobody   = -1
	Self     = -2
	Stranger = -3 // a node that is no peer of ours
)

// Record is what a node remembers of a coordinated resource over its restarts.
type Record struct {
	Term  uint64         // the highest seen
	Disks map[int]uint64 // device UUID of the disks that were in use with it, by volume
}

// recordWait goes on when a Record is durable.
type recordWait struct {
	token uint64
	term  uint64
	then  func(error)
}

// coordination is what is known of who may write.
type coordination struct {
	rec    Record // the newest, durable or not
	saved  uint64 // the highest durable term
	token  uint64
	waits  []recordWait
	holder int    // of the term: a peer, Nobody, Self, Stranger
	seq    uint64 // of the in-sync set

	granted   bool             // the last grant is of this term
	self      map[int]uint64   // our disks in the in-sync set; nil: we are not in it
	members   []map[int]uint64 // the same of the peers
	lease     Now              // end of our lease
	coPrimary bool
	awaitSelf bool // our own disk is waited for

	licence Now  // until when requests are served
	expired bool // and it was told that this is over
	deposed bool

	boundUntil Now // what an earlier life may have promised
	noPromise  Now // until then this node may run for primary
}

// forever is a moment that never comes.
const forever = Now(1) << 62

// Term is the highest term seen.
func (m *Machine) Term() uint64 { return m.co.rec.Term }

// Licensed says whether this node serves requests at that moment.
func (m *Machine) Licensed(now Now) bool {
	return m.role == wire.Primary && !m.co.deposed && now < m.co.licence
}

// terms says whether the peer knows of terms, and enforces them.
func (p *peer) terms() bool { return p.li.Features&wire.FeatureTerm != 0 }

// save makes the record durable as it is now.
func (m *Machine) save(then func(error)) {
	c := &m.co
	c.token++
	rec := Record{Term: c.rec.Term, Disks: make(map[int]uint64, len(c.rec.Disks))}
	for v, id := range c.rec.Disks {
		rec.Disks[v] = id
	}
	e := m.emit(WriteRecord, -1, -1)
	e.Token, e.Cmd = c.token, &rec
	c.waits = append(c.waits, recordWait{c.token, rec.Term, then})
}

// RecordDone says that the record with this token is durable, or why not.
func (m *Machine) RecordDone(now Now, token uint64, err error) {
	m.tick(now)
	c := &m.co
	for len(c.waits) > 0 && c.waits[0].token <= token {
		w := c.waits[0]
		c.waits = c.waits[1:]
		if err == nil && w.term > c.saved {
			c.saved = w.term
		}
		if w.then != nil {
			w.then(err)
		}
	}
	if err != nil {
		m.event(-1, -1, "the term cannot be remembered", err)
	}
	m.askPromises()
	for _, p := range m.peers {
		switch {
		case !p.termGate:
		case c.saved >= c.rec.Term:
			p.termGate = false
			m.ungate(p)
		case err != nil:
			m.lost(p, wire.ProtocolError, fmt.Errorf("the term cannot be remembered: %w", err))
		}
	}
}

// newTerm takes note of a higher term. A Primary that does not hold it is none any more.
func (m *Machine) newTerm(term uint64, holder int, coPrimary bool) {
	c := &m.co
	was := c.holder
	c.rec.Term, c.holder = term, holder
	c.granted = false
	if holder != Self || was != Self { // otherwise only our key was written anew
		c.lease = 0
	}
	m.event(-1, -1, fmt.Sprintf("term %d", term), nil)
	// Beside the holder we go on if it is the same as before: its agent began anew.
	c.coPrimary = coPrimary || c.coPrimary && holder == was && holder >= 0
	if holder != Self && !c.coPrimary {
		m.depose(fmt.Errorf("%w: term %d is held by %s", ErrDeposed, term, m.nameOf(holder)))
	}
	m.relicense()
	m.tellTerm()
}

func (m *Machine) nameOf(holder int) string {
	switch {
	case holder >= 0:
		return m.peers[holder].cfg.Name
	case holder == Self:
		return "this node"
	case holder == Nobody:
		return "nobody"
	}
	return "another node"
}

// tellTerm tells all connected peers the term. They hear it before any write that follows.
func (m *Machine) tellTerm() {
	for _, p := range m.peers {
		if p.up {
			m.sendTerm(p)
		}
	}
}

func (m *Machine) sendTerm(p *peer) {
	if !m.cfg.Coordinated || !p.terms() {
		return
	}
	holder := int32(wire.NoHolder)
	switch h := m.co.holder; {
	case h == Self:
		holder = int32(m.cfg.NodeID)
	case h >= 0:
		holder = int32(m.peers[h].cfg.NodeID)
	}
	m.send(p, -1, wire.Term).Ext = &wire.TermBody{Term: m.co.rec.Term, Holder: holder, Primary: m.role == wire.Primary || m.promoting != nil}
}

// sendDisk tells the peer which disk this is.
func (m *Machine) sendDisk(l *link) {
	if !m.cfg.Coordinated || !l.p.terms() || !l.p.up {
		return
	}
	m.send(l.p, l.v.num, wire.DiskID).Ext = &wire.DiskIDBody{Device: l.v.device, Vouched: m.vouched(l.v)}
}

// vouched says whether the node remembers the disk of a volume, durably.
func (m *Machine) vouched(v *volume) bool { return v.device != 0 && v.vouched }

// peerTerm handles P_TERM.
func (m *Machine) peerTerm(p *peer, b *wire.TermBody) error {
	if !p.gotProtocol {
		return errors.New("the term before the protocol")
	}
	if !m.cfg.Coordinated {
		return nil
	}
	c := &m.co
	p.term, p.leads = b.Term, b.Primary
	switch {
	case b.Term > c.rec.Term:
		m.newTerm(b.Term, m.byNodeID(b.Holder), false)
		m.save(nil)
	case b.Term < c.rec.Term && b.Primary:
		m.refuseTerm(p)
		return nil
	}
	if c.saved < c.rec.Term {
		if len(c.waits) == 0 { // it could not be saved the last time
			m.save(nil)
		}
		p.gate, p.termGate = true, true // nothing of what follows before it is durable
	}
	m.review()
	return nil
}

func (m *Machine) byNodeID(id int32) int {
	if id == wire.NoHolder {
		return Nobody
	}
	if int(id) == m.cfg.NodeID {
		return Self
	}
	for i, p := range m.peers {
		if p.cfg.NodeID == int(id) {
			return i
		}
	}
	return Stranger
}

// refuseTerm ends the connection to a Primary of a lower term. It hears of ours first.
func (m *Machine) refuseTerm(p *peer) {
	why := fmt.Errorf("%s is Primary of term %d, but term %d, held by %s, is known here", p.cfg.Name, p.term, m.co.rec.Term, m.nameOf(m.co.holder))
	m.event(-1, p.idx, "a deposed Primary is refused", why)
	m.emit(FlushLink, -1, p.idx)
	m.lost(p, wire.ProtocolError, why)
}

// oldTerm says whether what the peer writes is of a term that is over.
func (m *Machine) oldTerm(p *peer) bool {
	return m.cfg.Coordinated && p.terms() && p.term < m.co.rec.Term
}

// peerDisk handles P_DISK_ID.
func (m *Machine) peerDisk(l *link, b *wire.DiskIDBody) {
	l.device, l.vouched = b.Device, b.Vouched
	m.review()
}

// depose makes a Primary Secondary at once: what waits fails, nothing is answered any more that is not already.
func (m *Machine) depose(why error) {
	c := &m.co
	if pr := m.promoting; pr != nil {
		if !pr.granted {
			m.promoteFailed(pr, why)
		} else if pr.err == nil {
			pr.err = why // when its superblocks are written
		}
	}
	if m.role != wire.Primary || c.deposed {
		return
	}
	c.deposed = true
	m.event(-1, -1, "deposed", why)
	m.relicense()
	m.Demote(m.now, true, nil)
	for _, v := range m.vols { // what waits for peers is not to be acknowledged, so it may as well fail now
		for again := true; again; {
			again = false
			for r := v.head; r != nil; r = r.nxt {
				if r.isApp() && r.Kind != AppRead && r.begun && !r.ended && r.local != localRunning {
					m.fail(r, nil, ErrDeposed)
					again = true
					break
				}
			}
		}
	}
	for _, p := range m.peers {
		for _, r := range append([]*Request(nil), p.flushWait...) {
			if !r.ended && r.local != localRunning {
				m.fail(r, nil, ErrDeposed)
			}
		}
	}
	m.emit(Deposed, -1, -1).Err = why
}

// Depose is the arbiter's word that this node does not hold that term any more.
func (m *Machine) Depose(now Now, term uint64, cmd any) {
	m.tick(now)
	switch {
	case term < m.co.rec.Term:
		m.result(cmd, fmt.Errorf("%w: term %d is known, not only %d", ErrStale, m.co.rec.Term, term))
		return
	case m.role != wire.Primary && m.promoting == nil:
		m.result(cmd, nil)
		return
	}
	m.depose(fmt.Errorf("%w: term %d is over", ErrDeposed, term))
	m.whenSecondary = append(m.whenSecondary, cmd)
	m.secondaryNow()
}

// secondaryNow answers who waits for the end of a demotion.
func (m *Machine) secondaryNow() {
	if m.role == wire.Primary || m.demoting != nil || m.promoting != nil {
		return
	}
	q := m.whenSecondary
	m.whenSecondary = nil
	for _, cmd := range q {
		m.result(cmd, nil)
	}
}

// reviewVouch remembers a disk of which a Primary of the newest term says that it is in sync.
func (m *Machine) reviewVouch() {
	c := &m.co
	if c.rec.Term == 0 || m.role == wire.Primary {
		return
	}
	for _, v := range m.vols {
		if v.vouched || v.vouching || v.device == 0 || v.disk != wire.UpToDate {
			continue
		}
		for _, l := range v.pv {
			if l.role == wire.Primary && l.conn == wire.Connected && l.p.terms() && l.p.term == c.rec.Term && l.count() == 0 {
				m.vouch(v, nil)
				break
			}
		}
	}
}

// vouch remembers the disk of a volume, with the term.
func (m *Machine) vouch(v *volume, then func(error)) {
	id := v.device
	v.vouching = true
	if m.co.rec.Disks == nil {
		m.co.rec.Disks = map[int]uint64{}
	}
	m.co.rec.Disks[v.num] = id
	m.save(func(err error) {
		v.vouching = false
		if err == nil && v.device == id {
			v.vouched = true
			m.event(v.num, -1, "this disk is known by now", nil)
			for _, l := range v.pv {
				if l.conn >= wire.Connected {
					m.sendDisk(l)
				}
			}
		}
		if then != nil {
			then(err)
		}
	})
}

// vouchFirst: the arbiter says that our disks are in sync, and grants the term; from now on they are remembered with it. False:
// they are already.
func (m *Machine) vouchFirst(pr *roleChange) bool {
	if !m.cfg.Coordinated {
		return false
	}
	for _, v := range m.vols {
		if v.device == 0 || v.vouched || v.disk < wire.Inconsistent {
			continue
		}
		pr.waits++
		m.vouch(v, func(err error) {
			if m.promoting != pr {
				return
			}
			if err != nil && pr.err == nil {
				pr.err = err
			}
			if pr.waits--; pr.waits > 0 {
				return
			}
			if pr.err != nil {
				m.promoteFailed(pr, pr.err)
				return
			}
			m.promoteAsk(pr)
		})
	}
	return pr.waits > 0
}
