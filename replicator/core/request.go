package core

import (
	"fmt"

	"github.com/hawser-ha/hawser/replicator/actlog"
	"github.com/hawser-ha/hawser/replicator/wire"
)

type localState uint8

const (
	localNone localState = iota // no local disk takes part
	localRunning
	localDone
)

type partState uint8

const (
	partNone  partState = iota // the peer does not get it
	partSent                   // sent, not answered as the protocol asks
	partAcked                  // answered; the barrier acknowledgement is missing
	partDone                   // nothing more is expected
)

// part is what one peer has to do with a write.
type part struct {
	state partState
	want  wire.Command // RecvAck, WriteAck or, for protocol A, 0
	ok    bool         // the peer has it (WriteAck, RecvAck or barrier)
	neg   bool         // the peer failed to write it
	same  bool         // the peer holds the block in sync as soon as our disk has the write
	epoch uint32
	sent  Now
	next  *Request // in the peer's transfer log
}

// reqState is the Machine's own part of a Request.
type reqState struct {
	slot, gen uint32
	v         *volume
	prev, nxt *Request // in the volume's list
	listed    bool
	waits     bool // an older request overlaps
	begun     bool // on its way to disk and peers
	alHeld    bool
	local     localState
	localErr  error
	failed    bool // the local disk was given up while the request was on it
	parts     []part
	ended     bool     // the outcome is known
	told      bool     // and the front end has it
	retry     int      // bitmask of peers asked for a read
	heal      *Request // writes what a peer gives over the block that could not be read

	peerID    uint64 // the peer's block id, to be echoed
	pflags    wire.Flags
	repoch    uint32 // number of the receive epoch, counted by us
	cmd       wire.Command
	postponed bool         // lost a write conflict: to be submitted again
	verdict   wire.Command // PeerWrite that lost a conflict: the answer
	remoteErr bool
	linkGen   uint32 // life of the link it came over
	cancelled bool   // its resync is over
	diskless  bool   // PeerWrite of a peer that has no disk
	arrived   uint64 // place among the requests of the volume
	armed     bool   // SyncWrite, VerifyCheck: the peer's reply is here
	armedAt   uint64
	covers    uint64 // OpFlush: the writes done before it began
	csum      bool   // SyncWrite, SyncRead: by checksum
	again     bool   // sent a second time, because the peer was away: its bits are set though nothing is missing any more
}

// NewRequest takes a Request from the free list.
func (m *Machine) NewRequest(kind Kind) *Request {
	var r *Request
	if n := len(m.free); n > 0 {
		r = m.free[n-1]
		m.free = m.free[:n-1]
	} else {
		r = &Request{}
		r.slot = uint32(len(m.reqs))
		r.parts = make([]part, len(m.peers))
		m.reqs = append(m.reqs, r)
	}
	r.gen++
	r.Kind, r.Peer = kind, -1
	return r
}

// blockID names a request on the wire; never one of the ids with a meaning.
func (r *Request) blockID() uint64 { return uint64(r.gen)<<32 | uint64(r.slot) | 1<<31 }

func (m *Machine) byBlockID(id uint64) *Request {
	slot := uint32(id) &^ (1 << 31)
	if int64(slot) >= int64(len(m.reqs)) || uint32(id)&(1<<31) == 0 {
		return nil
	}
	r := m.reqs[slot]
	if r.gen != uint32(id>>32) || r.v == nil {
		return nil
	}
	return r
}

// newPeerRequest makes a request on behalf of a peer. The link is not established again while one is alive.
func (m *Machine) newPeerRequest(kind Kind, l *link) *Request {
	r := m.NewRequest(kind)
	r.v, r.Vol, r.Peer, r.linkGen = l.v, l.v.num, l.p.idx, l.p.gen
	l.p.io++
	return r
}

// stale says whether the link over which a peer's request came is gone.
func (m *Machine) stale(r *Request) bool { return r.cancelled || r.linkGen != m.peers[r.Peer].gen }

// releasePeer forgets a request made by newPeerRequest.
func (m *Machine) releasePeer(r *Request) {
	p := m.peers[r.Peer]
	m.alPut(r)
	m.unlist(r)
	m.release(r)
	p.io--
	if p.io > 0 {
		return
	}
	m.reconnect(p)
	if pr := m.promoting; pr != nil && !pr.granted && pr.waits == 0 && len(pr.asked) == 0 {
		m.promoteNext(pr)
	}
}

// release gives the request back.
func (m *Machine) release(r *Request) {
	if r.listed {
		panic("core: release of a listed request")
	}
	m.emit(Release, r.Vol, r.Peer).Req = r
	r.v = nil // byBlockID finds it no more
}

// Recycle takes back a Request after its Release effect was carried out.
func (m *Machine) Recycle(r *Request) {
	slot, gen, parts := r.slot, r.gen, r.parts
	clear(parts)
	*r = Request{}
	r.slot, r.gen, r.parts = slot, gen, parts
	m.free = append(m.free, r)
}

// list puts a request behind all others of its volume and says whether it may start.
func (v *volume) list(r *Request) bool {
	v.clock++
	r.arrived = v.clock
	r.listed = true
	v.link(r)
	return v.mayStart(r)
}

// link puts a request at the end of the list.
func (v *volume) link(r *Request) {
	r.prev, r.nxt = v.tail, nil
	if v.tail != nil {
		v.tail.nxt = r
	} else {
		v.head = r
	}
	v.tail = r
}

// unlink takes a request out of the list.
func (v *volume) unlink(r *Request) {
	if r.prev != nil {
		r.prev.nxt = r.nxt
	} else {
		v.head = r.nxt
	}
	if r.nxt != nil {
		r.nxt.prev = r.prev
	} else {
		v.tail = r.prev
	}
	r.prev, r.nxt = nil, nil
}

func (v *volume) mayStart(r *Request) bool {
	if v.blocked(r) {
		r.waits = true
		v.waiting++
		return false
	}
	return true
}

// blocked reports whether another request in flight keeps r from starting.
func (v *volume) blocked(r *Request) bool {
	if r.armed {
		// The peer's writes that came before its reply go first, those that came after it wait.
		for o := v.head; o != nil; o = o.nxt {
			if o.Kind == PeerWrite && o.arrived < r.armedAt && o.overlaps(r) && (r.Kind == SyncWrite || !o.onDisk()) {
				return true
			}
		}
		return false
	}
	for o := r.prev; o != nil; o = o.prev {
		if o.overlaps(r) && conflicts(o, r) {
			return true
		}
	}
	return false
}

func (r *Request) overlaps(o *Request) bool { return o.Off < r.Off+r.Len && r.Off < o.Off+o.Len }

// onDisk says whether the local disk has done its part.
func (r *Request) onDisk() bool { return r.begun && r.local != localRunning }

// conflicts says whether r must wait for the older, overlapping o.
func conflicts(o, r *Request) bool {
	switch r.Kind {
	case SyncRead, VerifyRead, PeerRead:
		// A read for the peer waits for writes that are not on the disk yet. It must not wait for the peer's part
		// of them: the peer may be waiting for this very read.
		return o.isWrite() && !o.onDisk()
	case VerifyCheck:
		return o.isWrite()
	case SyncWrite:
		return o.isWrite() || o.Kind == SyncWrite
	case PeerWrite:
		if r.verdict != 0 { // it is not done: only its answer waits
			return o.isApp() && o.isWrite() && !o.onDisk() && (o.begun || !o.waits)
		}
		switch o.Kind {
		case SyncWrite, VerifyCheck:
			// Not for requests whose reply is outstanding: the peer may need our acknowledgement to give it (21.3).
			return o.armed && o.armedAt < r.arrived
		case SyncRead, VerifyRead:
			return o.local == localRunning
		}
		return o.isWrite()
	}
	return o.Kind != PeerRead
}

func (r *Request) isWrite() bool {
	switch r.Kind {
	case AppWrite, AppTrim, AppZero, PeerWrite, HealWrite:
		return true
	}
	return false
}

func (r *Request) isApp() bool { return r.Kind <= AppZero }

// unlist takes a request out and starts what waited for it.
func (m *Machine) unlist(r *Request) {
	if !r.listed {
		return
	}
	v := r.v
	r.listed = false
	if r.waits {
		r.waits = false
		v.waiting--
	}
	v.unlink(r)
	m.wake(v)
}

// wake starts the waiting requests that no older one blocks any more.
func (m *Machine) wake(v *volume) {
	for v.waiting > 0 {
		var found *Request
		for r := v.head; r != nil; r = r.nxt {
			if r.waits && !v.blocked(r) {
				found = r
				break
			}
		}
		if found == nil {
			return
		}
		found.waits = false
		v.waiting--
		m.begin(found)
	}
}

// begin starts a request that nothing blocks.
func (m *Machine) begin(r *Request) {
	switch r.Kind {
	case AppWrite, AppTrim, AppZero:
		m.logWrite(r)
	case PeerWrite:
		m.beginPeerWrite(r)
	case HealWrite:
		m.readRemote(r.Tag.(*Request)) // the write follows the peer's answer
	case SyncRead, VerifyRead, PeerRead:
		m.toDisk(r)
	case SyncWrite:
		m.beginSyncWrite(r)
	case VerifyCheck:
		m.beginVerifyCheck(r)
	default:
		panic(fmt.Sprintf("core: begin of kind %d", r.Kind))
	}
}

// toDisk hands the request to the local disk.
func (m *Machine) toDisk(r *Request) {
	v := r.v
	r.begun = true
	r.local, r.localErr = localRunning, nil
	v.local++
	switch r.Op {
	case OpWrite, OpDiscard, OpZero:
		v.writes += r.Len
	case OpFlush:
		r.covers = v.wrote
	case OpRead:
		v.reads += r.Len
	}
	m.emit(Disk, r.Vol, r.Peer).Req = r
}

// extents gives the range of activity log extents of a request.
func (r *Request) extents() (first, last uint32) {
	return uint32(r.Off / actlog.ExtentSize), uint32((r.Off + r.Len - 1) / actlog.ExtentSize)
}

// logged takes references to the extents of r if all are active.
func (v *volume) logged(r *Request) bool {
	first, last := r.extents()
	for e := first; e <= last; e++ {
		if !v.al.Active(e) {
			return false
		}
	}
	for e := first; e <= last; e++ {
		v.al.Get(e)
	}
	v.alRefs += int(last-first) + 1
	r.alHeld = true
	return true
}

// alBegin gets the extents of r into the activity log: true if r may go on at once, otherwise it goes on from ALDone.
func (m *Machine) alBegin(r *Request) bool {
	v := r.v
	if v.al == nil || !v.cfg.ALUpdates || v.disk < wire.Inconsistent || r.Len == 0 {
		return true
	}
	if len(v.alq) == 0 && v.logged(r) {
		return true
	}
	v.alq = append(v.alq, r)
	m.alPump(v)
	return false
}

// alPump asks for extents for the requests that wait, in order, and starts a transaction. A request asks for all of its
// extents or none, and only as many as there are slots, so that no two wait for each other.
func (m *Machine) alPump(v *volume) {
	for {
		for len(v.alq) > 0 && !v.txUp {
			r := v.alq[0]
			if r.alHeld || !v.logged(r) {
				break
			}
			v.alq = v.alq[1:]
			m.alReady(r)
		}
		if v.txUp || len(v.alq) == 0 {
			return
		}
		for _, r := range v.alq {
			if r.alHeld {
				continue
			}
			first, last := r.extents()
			n := int(last-first) + 1
			if v.alRefs > 0 && v.alRefs+n > v.al.Slots() {
				break
			}
			for e := first; e <= last; e++ {
				v.al.Get(e)
			}
			v.alRefs += n
			r.alHeld = true
		}
		if !v.al.Prepare(&v.tx) {
			// All slots are in use: acknowledged writes keep theirs until the peers say they are stable. Ask for that.
			for _, p := range m.peers {
				m.closeEpoch(p)
				m.sendBarrier(p)
			}
			// Extents that became active meanwhile need no transaction.
			if !m.alActivated(v) {
				return
			}
			continue
		}
		v.txUp = true
		v.alWrites++
		m.emit(WriteAL, v.num, -1).Tx = &v.tx
		return
	}
}

// alActivated starts the waiting requests whose extents are all active.
func (m *Machine) alActivated(v *volume) bool {
	any := false
	for i := 0; i < len(v.alq); {
		r := v.alq[i]
		ok := r.alHeld
		first, last := r.extents()
		for e := first; ok && e <= last; e++ {
			ok = v.al.Active(e)
		}
		if !ok {
			i++
			continue
		}
		v.alq = append(v.alq[:i], v.alq[i+1:]...)
		any = true
		m.alReady(r)
	}
	return any
}

// ALDone says that the prepared transaction is on disk, or why not.
func (m *Machine) ALDone(now Now, vol int, err error) {
	m.tick(now)
	v := m.volume(vol)
	if !v.txUp {
		return // the disk was given up meanwhile
	}
	v.txUp = false
	if err != nil {
		v.al.Abort()
		m.diskFailed(v, err)
		return
	}
	v.al.Commit()
	m.alActivated(v)
	m.alPump(v)
}

func (m *Machine) alReady(r *Request) {
	if r.Kind == PeerWrite {
		m.peerWriteToDisk(r)
		return
	}
	m.sendAndWrite(r)
}

// alPut gives the extents back.
func (m *Machine) alPut(r *Request) {
	if !r.alHeld {
		return
	}
	r.alHeld = false
	v := r.v
	if v.al == nil {
		return
	}
	first, last := r.extents()
	for e := first; e <= last; e++ {
		v.al.Put(e)
	}
	v.alRefs -= int(last-first) + 1
	if len(v.alq) > 0 {
		m.alPump(v)
	}
}

// alDrop forgets the log of a disk that is gone; what waited for it goes on without.
func (m *Machine) alDrop(v *volume) {
	q := v.alq
	v.al, v.alq, v.txUp, v.alRefs = nil, nil, false, 0
	for r := v.head; r != nil; r = r.nxt {
		r.alHeld = false
	}
	for _, p := range m.peers {
		for r := p.tlHead; r != nil; r = r.parts[p.idx].next {
			if r.v == v {
				r.alHeld = false
			}
		}
	}
	for _, r := range q {
		r.alHeld = false
		m.alReady(r)
	}
}
