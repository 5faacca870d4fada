package core

import (
	"errors"
	"fmt"

	"github.com/hawser-ha/hawser/replicator/wire"
)

// Codes of state replies (drbd-wire.md 15.2).
const (
	codeOK           = 1
	codeTwoPrimaries = -1
	codeNoDisk       = -4
	codeNoPeerDisk   = -5
	codeBusy         = -8
	codeRefused      = -10
	codeNoVerifyAlg  = -14
	codeNoConnection = -15
	codeUnsupported  = -17
	codeRetry        = -18
	codeConcurrent   = -19
	codeNotOutdated  = -7
)

var codeTexts = map[int32]string{
	-1: "two primaries are not allowed", -2: "needs UpToDate data", -4: "no local disk", -5: "no remote disk",
	-6: "refusing to be Outdated while Connected", -7: "refusing to be Primary while the peer is not outdated",
	-8: "a resync or verify is active", -9: "already StandAlone", -10: "refused by the peer", -11: "diskless",
	-12: "device in use", -13: "no net config", -14: "no verify-alg", -15: "needs a connection", -16: "disk lower than Outdated",
	-17: "not supported", -18: "transient, retry", -19: "concurrent state change", -20: "the peer is Primary on another volume",
	-21: "outdate needs a connection",
}

// asking is a request for the peer's consent that is under way. One at a time for each connection.
type asking struct {
	vol       int // -1: the whole connection
	then      func(err error)
	mask, val wire.State
	since     Now
}

// errNotOutdated: a Primary lets us go only when our data is marked as old.
var errNotOutdated = errors.New("it is Primary, and our disk is not Outdated")

// codeError is a refusal.
func codeError(code int32) error {
	text := codeTexts[code]
	if text == "" {
		text = fmt.Sprintf("code %d", code)
	}
	switch code {
	case codeNotOutdated:
		return fmt.Errorf("%w: %w", ErrRefusedByPeer, errNotOutdated)
	case codeTwoPrimaries:
		return fmt.Errorf("%w (%w: %s)", ErrPeerPrimary, ErrRefusedByPeer, text)
	case codeConcurrent, codeRetry:
		return fmt.Errorf("%w (%s)", ErrTwice, text)
	case codeBusy:
		return fmt.Errorf("%w (%s)", ErrBusy, text)
	}
	return fmt.Errorf("%w: %s", ErrRefusedByPeer, text)
}

// askPeer asks the peer for consent (15.2).
func (m *Machine) askPeer(p *peer, vol int, mask, val wire.State, then func(err error)) {
	switch {
	case p.state != wire.Connected:
		then(ErrNoConnection)
		return
	case p.ask != nil:
		then(ErrTwice)
		return
	}
	p.ask = &asking{vol: vol, then: then, mask: mask, val: val, since: m.now}
	cmd := wire.StateChgReq
	if vol < 0 {
		cmd = wire.ConnStChgReq
		if p.li.Version < 100 {
			cmd = wire.StateChgReq
		}
	}
	pkt := m.send(p, vol, cmd)
	pkt.Mask, pkt.State = mask, val
}

// consent handles the replies.
func (m *Machine) consent(p *peer, pkt *wire.Packet) {
	a := p.ask
	if a == nil {
		return
	}
	p.ask = nil
	if pkt.Code >= codeOK {
		a.then(nil)
		return
	}
	a.then(codeError(pkt.Code))
}

// State words of requests, by what they wish (15.2).
const (
	maskRole wire.State = 0x3
	maskConn wire.State = 0x1f0
	maskDisk wire.State = 0x1e00
	maskPDsk wire.State = 0x1e000
)

// stateRequest answers P_STATE_CHG_REQ.
func (m *Machine) stateRequest(l *link, pkt *wire.Packet) {
	code := m.judge(l, pkt.Mask, pkt.State)
	m.send(l.p, l.v.num, wire.StateChgReply).Code = code
	if code < codeOK {
		return
	}
	switch {
	case pkt.Mask&maskConn != 0:
		m.startedByPeer(l, pkt.State.Conn())
	case pkt.Mask&maskRole != 0 && pkt.State.Role() == wire.Primary:
		l.role = wire.Primary
		if pkt.Mask&maskDisk != 0 && l.disk < wire.UpToDate && l.conn == wire.Connected && l.v.disk >= wire.Inconsistent {
			m.event(l.v.num, l.p.idx, "peer was forced to be primary", nil)
		}
	case pkt.Mask&maskDisk != 0 && pkt.State.Disk() == wire.Failed:
		was := l.disk
		l.disk = wire.Failed
		l.writesLost()
		m.stopSync(l)
		if l.conn > wire.Connected {
			m.setConn(l, wire.Connected)
		}
		m.contactLost(l.v, l, was)
	}
}

// judge says whether we consent to what the peer wishes.
func (m *Machine) judge(l *link, mask, val wire.State) int32 {
	v, p := l.v, l.p
	if p.ask != nil && p.li.ResolveConflicts {
		return codeConcurrent
	}
	if l.conn < wire.Connected {
		return codeRetry
	}
	switch {
	case mask&maskConn != 0:
		switch val.Conn() {
		case wire.StartingSyncS, wire.StartingSyncT:
			switch {
			case l.conn != wire.Connected:
				return codeBusy
			case v.disk < wire.Inconsistent:
				return codeNoPeerDisk
			case l.disk < wire.Inconsistent:
				return codeNoDisk
			case val.Conn() == wire.StartingSyncS && m.role == wire.Primary:
				return codeRefused // invalidating a Primary's disk is its own decision
			}
			return codeOK
		case wire.VerifyS:
			switch {
			case p.cfg.Net.VerifyAlg == "":
				return codeNoVerifyAlg
			case l.conn != wire.Connected:
				return codeBusy
			case v.disk != wire.UpToDate || l.disk != wire.UpToDate:
				return codeNoDisk
			}
			return codeOK
		case wire.Disconnecting:
			return codeOK
		}
		return codeUnsupported
	case mask&maskRole != 0 && val.Role() == wire.Primary:
		if m.oldTerm(p) {
			return codeRefused
		}
		if m.role == wire.Primary && !m.twoPrimaries(p) || m.promoting != nil && p.li.ResolveConflicts {
			return codeTwoPrimaries
		}
		return codeOK
	case mask&maskDisk != 0 && val.Disk() == wire.Failed:
		return codeOK
	}
	return codeUnsupported
}

// connStateRequest answers P_CONN_ST_CHG_REQ: a graceful disconnect, perhaps with an outdating (section 26).
func (m *Machine) connStateRequest(p *peer, pkt *wire.Packet) {
	q := *pkt
	if m.drained(p, func() { m.goodbye(p, &q) }) {
		return // what was written until now is on the peer's disk first, so that a resync later leaves it out
	}
	m.goodbye(p, &q)
}

func (m *Machine) goodbye(p *peer, pkt *wire.Packet) {
	if p.state != wire.Connected {
		return // lost meanwhile
	}
	code := int32(codeOK)
	switch {
	case p.ask != nil && p.li.ResolveConflicts && p.ask.vol < 0:
		code = codeConcurrent
	case pkt.Mask&maskConn == 0 || pkt.State.Conn() != wire.Disconnecting:
		code = codeUnsupported
	case m.role == wire.Primary && p.cfg.Net.Fencing != "dont-care" && pkt.Mask&maskDisk == 0:
		code = codeNotOutdated // it shall outdate itself first
	}
	m.send(p, -1, wire.ConnStChgReply).Code = code
	if code < codeOK {
		return
	}
	if pkt.Mask&maskPDsk != 0 && pkt.State.PDsk() == wire.Outdated {
		for _, v := range m.vols {
			m.outdated(v, p.idx)
		}
	}
	if pkt.Mask&maskDisk != 0 && pkt.State.Disk() == wire.Outdated {
		m.peerOutdated(p)
	}
	p.state = wire.TearDown
	m.event(-1, p.idx, "peer disconnects", nil)
}
