package core

import (
	"fmt"

	"github.com/hawser-ha/hawser/replicator/wire"
)

// question is one that only the arbiter can answer: may we go on without that peer, or without our own disk?
type question struct {
	id        uint64
	p         *peer // nil: our own disk
	why       string
	seq       uint64 // of the in-sync set when it was opened
	since     Now
	promotion bool   // asked before a promotion
	freeze    bool   // requests wait for the answer
	token     uint64 // of the handler fence-peer; 0: it has answered, or there is none
	failed    bool   // and the answer was none
	answered  bool   // by the arbiter, but a promise to the peer makes us wait
	notBefore Now    // until then
}

// ask opens a question.
func (m *Machine) ask(q *question) {
	m.questionID++
	q.id, q.since = m.questionID, m.now
	m.questions = append(m.questions, q)
	m.rewatch()
	m.tell(q, "question opened", q.why)
}

// closeQuestion forgets a question; what waited for it is looked at by the caller (goOn).
func (m *Machine) closeQuestion(q *question, why string) {
	for i, o := range m.questions {
		if o == q {
			m.questions = append(m.questions[:i:i], m.questions[i+1:]...)
			break
		}
	}
	m.rewatch()
	m.tell(q, "question closed", why)
}

func (m *Machine) tell(q *question, note, why string) {
	e := m.emit(Event, -1, q.peer())
	w := q.view()
	w.Text = why
	e.Note, e.Cmd = note, &w
	m.reportAll()
}

func (q *question) peer() int {
	if q.p == nil {
		return -1
	}
	return q.p.idx
}

// about is the open question about a peer, nil: there is none.
func (m *Machine) about(p *peer) *question {
	for _, q := range m.questions {
		if q.p == p {
			return q
		}
	}
	return nil
}

// undecided says whether an open question keeps requests, and with them a new generation, waiting.
func (m *Machine) undecided() bool {
	for _, q := range m.questions {
		if q.freeze {
			return true
		}
	}
	return false
}

// fencing says whether everything waits for the handler fence-peer.
func (m *Machine) fencing() bool { return !m.cfg.Coordinated && m.undecided() }

// rewatch sets the flag that spares the data path any look at questions and licences while there are none.
func (m *Machine) rewatch() { m.watch = m.cfg.Coordinated || m.undecided() }

// mustWait says whether a request of a front end has to wait for an answer, or a licence. It is asked with watch only.
func (m *Machine) mustWait(r *Request) bool {
	switch {
	case !m.cfg.Coordinated:
		return m.undecided()
	case !m.licensed():
		return true
	}
	return r.Kind != AppRead && m.undecided() // what was acknowledged may be read on
}

// unsure says whether a read may show a write that is not acknowledged. It may never be: with this node it may be lost, and who
// leads next would show what was there before.
func (r *Request) unsure() bool {
	for o := r.v.head; o != nil; o = o.nxt {
		if o.isApp() && o.isWrite() && o.begun && o.overlaps(r) {
			return true
		}
	}
	return false
}

// mayAnswer says whether the outcome of a request may be told. It is asked with watch only.
func (m *Machine) mayAnswer(r *Request, err error) bool {
	switch {
	case !m.cfg.Coordinated:
		return !m.undecided()
	case !m.licensed():
		return false
	case err != nil:
		return true
	case r.Kind == AppRead:
		return !r.unsure()
	case !r.begun:
		return true
	case r.Kind == AppFlush:
		return !m.undecided()
	}
	return m.everywhere(r)
}

// goOn lets everything go on that the last answer allows.
func (m *Machine) goOn() {
	if m.owed && !m.undecided() && m.role == wire.Primary {
		m.owed = false
		for _, v := range m.vols {
			if v.disk == wire.UpToDate && m.leftBehind(v) {
				m.newCurrent(v)
			}
		}
	}
	for _, v := range m.vols {
		m.releaseHeld(v)
	}
	m.thaw()
}

// leftBehind says whether a peer does not get what is written from now on, which it would have had.
func (m *Machine) leftBehind(v *volume) bool {
	for _, l := range v.pv {
		if l.bm != nil && (l.conn < wire.Connected || l.disk < wire.Inconsistent) {
			return true
		}
	}
	return false
}

// dropQuestions: this node is no Primary any more.
func (m *Machine) dropQuestions(why string) {
	for len(m.questions) > 0 {
		m.closeQuestion(m.questions[0], why)
	}
}

// review opens the questions that the present state asks, and closes those that it has answered.
func (m *Machine) review() {
	if m.cfg.Coordinated {
		m.reviewLicence()
		return
	}
	for _, p := range m.peers {
		m.reviewFence(p)
	}
}

// QuestionView is a question for people and monitors.
type QuestionView struct {
	ID        uint64
	Peer      int // -1: our own disk
	Why       string
	Seq       uint64
	Since     Now
	NotBefore Now
	Promotion bool
	Text      string // of the event: why it was opened or closed
}

func (q *question) view() QuestionView {
	return QuestionView{ID: q.id, Peer: q.peer(), Why: q.why, Seq: q.seq, Since: q.since, NotBefore: q.notBefore, Promotion: q.promotion}
}

// Exit codes of the handler fence-peer (drbd-cli.md 1.7).
const (
	fenceInconsistent = 3
	fenceOutdated     = 4
	fenceUnreachable  = 5
	fencePrimary      = 6
	fenceShot         = 7
)

// fences says whether the handler fence-peer is asked when this peer is lost.
func (m *Machine) fences(p *peer) bool {
	if m.cfg.Coordinated || p.cfg.Diskless {
		return false
	}
	return p.cfg.Net.Fencing == "resource-only" || p.cfg.Net.Fencing == "resource-and-stonith"
}

// unknown says whether the peer is out of reach and may have good data, and write.
func (m *Machine) unknown(p *peer) bool {
	for _, v := range m.vols {
		if v.pv[p.idx].disk == wire.DUnknown {
			return true
		}
	}
	return false
}

// reviewFence opens the question about a peer that a Primary has lost, and closes it when the peer is back.
func (m *Machine) reviewFence(p *peer) {
	q := m.about(p)
	switch {
	case q == nil:
		if m.role != wire.Primary || !m.fences(p) || p.fenceAsked || !m.unknown(p) {
			return
		}
		m.fence(p, false, p.cfg.Net.Fencing == "resource-and-stonith")
	case m.fences(p) && !m.unknown(p):
		m.closeQuestion(q, "the peer is back")
		m.resend(p)
		m.fenceAnswered(q, nil)
	}
}

// resend writes again what waited while the peer was away. A hawser peer gets it by a resync: but to a kernel equal generations
// are equal data, whatever the bitmap says.
func (m *Machine) resend(p *peer) {
	if p.relaxed() {
		return
	}
	for _, v := range m.vols {
		l := v.pv[p.idx]
		if l.conn != wire.Connected || !l.replicates() {
			continue
		}
		for again := true; again; {
			again = false
			for r := v.head; r != nil; r = r.nxt {
				pt := &r.parts[p.idx]
				if !r.isApp() || !r.isWrite() || !r.begun || r.told || r.postponed || pt.ok || pt.state == partSent || pt.state == partAcked {
					continue
				}
				if !r.ended {
					r.postponed, r.again = true, true // when the disk has it
					continue
				}
				m.unhold(r)
				m.resubmit(r).again = true
				again = true
				break
			}
		}
	}
}

// unhold takes a request out of those whose outcome is not told yet.
func (m *Machine) unhold(r *Request) {
	v := r.v
	for i, h := range v.held {
		if h.r == r {
			v.held = append(v.held[:i:i], v.held[i+1:]...)
			return
		}
	}
}

// fence asks the handler about a peer.
func (m *Machine) fence(p *peer, promotion, freeze bool) {
	m.hooks++
	p.fenceAsked = true
	m.ask(&question{p: p, why: "what does " + p.cfg.Name + " do? It is not connected", promotion: promotion, freeze: freeze, token: m.hooks})
	e := m.emit(RunHandler, -1, p.idx)
	e.Note, e.Token = "fence-peer", m.hooks
}

// fenceDone takes the exit code of the handler fence-peer.
func (m *Machine) fenceDone(token uint64, code int) bool {
	var q *question
	for _, o := range m.questions {
		if o.token == token {
			q = o
		}
	}
	if q == nil {
		return false
	}
	q.token = 0
	p := q.p
	good := true // our data
	for _, v := range m.vols {
		good = good && v.disk == wire.UpToDate
	}
	var err error
	var is wire.Disk
	switch {
	case code == fenceInconsistent:
		is = wire.Inconsistent
	case code == fenceOutdated, code == fenceShot, code == fenceUnreachable && good:
		is = wire.Outdated
	case code == fenceUnreachable:
		err = fmt.Errorf("%w: %s cannot be reached, and whether the data here is good is not known", ErrPeerUnknown, p.cfg.Name)
	case code == fencePrimary:
		err = fmt.Errorf("fence-peer: %w: %s", ErrPeerPrimary, p.cfg.Name)
		m.outdateSelf(p)
	case code < 0:
		err = fmt.Errorf("%w: the handler fence-peer did not run to its end for %s", ErrPeerUnknown, p.cfg.Name)
	default:
		err = fmt.Errorf("%w: the handler fence-peer failed for %s, exit code %d", ErrPeerUnknown, p.cfg.Name, code)
	}
	if err != nil {
		m.event(-1, p.idx, "peer not fenced", err)
		if q.freeze {
			q.failed = true // until the peer is back, or somebody says resume-io
			q.why = err.Error()
			m.tell(q, "question unanswered", q.why)
			return true
		}
		m.closeQuestion(q, err.Error())
		m.fenceAnswered(q, err)
		return true
	}
	p.fenced = true
	for _, v := range m.vols {
		l := v.pv[p.idx]
		if l.disk == wire.DUnknown {
			l.disk = is
			m.event(v.num, p.idx, "peer disk "+is.String()+": fenced", nil)
			m.writeSuper(v, false, false, true, nil)
		}
	}
	m.closeQuestion(q, fmt.Sprintf("fence-peer: exit code %d", code))
	m.fenceAnswered(q, nil)
	return true
}

// outdateSelf: the peer is Primary, so this data is old, or soon will be.
func (m *Machine) outdateSelf(*peer) {
	if m.role == wire.Primary {
		return // its users have it; they wait, and the nodes have to be told which one goes on
	}
	for _, v := range m.vols {
		if v.disk > wire.Outdated {
			v.disk = wire.Outdated
			m.event(v.num, -1, "disk Outdated: the peer is Primary", nil)
			m.writeSuper(v, false, false, false, nil)
			m.report(v)
		}
	}
}

// fenceAnswered goes on after the answer.
func (m *Machine) fenceAnswered(q *question, err error) {
	pr := m.promoting
	if !q.promotion || pr == nil || pr.waits == 0 {
		m.goOn()
		return
	}
	if err != nil && pr.fenceErr == nil {
		pr.fenceErr = err
	}
	if pr.waits--; pr.waits > 0 {
		return
	}
	if pr.fenceErr != nil && !pr.force {
		m.promoteFailed(pr, pr.fenceErr)
		return
	}
	m.promoteFenced(pr)
}

// fenceFirst asks about the peers that a promotion may not overlook. False: there are none.
func (m *Machine) fenceFirst(pr *roleChange) bool {
	for _, p := range m.peers {
		if m.fences(p) && m.unknown(p) && m.about(p) == nil {
			pr.waits++
			m.fence(p, true, false)
		}
	}
	return pr.waits > 0
}

// promoteFenced: what the lost peers do is known. Data that was not known to be the newest is, without them.
func (m *Machine) promoteFenced(pr *roleChange) {
	for _, v := range m.vols {
		if v.disk != wire.Consistent || pr.fenceErr != nil {
			continue
		}
		v.disk = wire.UpToDate
		m.event(v.num, -1, "disk UpToDate: the peer is fenced", nil)
		m.report(v)
	}
	m.promoteAsk(pr)
}

// unfence runs unfence-peer for a peer that has all data again: once for each connection, and not if nobody fenced it, as far
// as this node can know.
func (m *Machine) unfence(p *peer) {
	if !m.fences(p) || !p.fenced && (p.unfenced || m.role != wire.Primary) || p.state != wire.Connected {
		return
	}
	for _, v := range m.vols {
		l := v.pv[p.idx]
		if l.conn != wire.Connected || l.disk != wire.UpToDate || v.disk != wire.UpToDate {
			return
		}
	}
	p.fenced, p.unfenced = false, true
	m.runHandler(-1, p.idx, "unfence-peer")
}
