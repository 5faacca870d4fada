package core

import (
	"maps"
	"slices"

	"github.com/hawser-ha/hawser/replicator/actlog"
	"github.com/hawser-ha/hawser/replicator/bitmap"
	"github.com/hawser-ha/hawser/replicator/genid"
	"github.com/hawser-ha/hawser/replicator/wire"
)

// Machine is the state of one resource on one node. It is not safe for concurrent use.
type Machine struct {
	cfg   Config
	now   Now
	out   []Effect
	vols  []*volume
	peers []*peer
	role  wire.Role
	hooks uint64 // tokens of handlers that are waited for

	suspUser  bool       // suspend-io
	suspNoD   bool       // no data reachable, on-no-data-accessible suspend-io
	frozen    []*Request // application requests held back while suspended
	promoting *roleChange
	demoting  *roleChange

	watch      bool // a question or a licence may keep requests waiting
	questions  []*question
	questionID uint64
	owed       bool // a new generation is due when no question is open any more
	co         coordination

	whenSecondary []any // commands that wait for the end of a demotion

	openers int

	reqs []*Request // by slot: block ids name them
	free []*Request
}

// volume is one volume on this node.
type volume struct {
	num     int
	cfg     VolumeConfig
	size    int64 // agreed size in bytes; 0: unknown yet
	disk    wire.Disk
	cap     int64 // bytes the local disk offers
	user    int64 // size limit in bytes
	sup     Super
	al      *actlog.Log
	tx      actlog.Transaction
	txUp    bool // tx is being written
	alq     []*Request
	alRefs  int  // extents held by requests, counted as often as held
	crashed bool // was Primary when it crashed, until both disks were UpToDate

	pv []*link // by peer index

	head, tail *Request // requests in flight, oldest first; see overlap
	waiting    int      // of those, how many wait for an older one
	clock      uint64   // numbers them
	turn       uint64   // read-balancing round-robin

	local                   int  // requests on the local disk
	closing                 bool // CloseDisk was asked for
	appBusy                 int  // application requests in flight
	hold                    int  // completions wait for this many superblock writes
	held                    []heldCompletion
	device                  uint64 // device UUID of the disk; 0: there is none
	vouched, vouching       bool   // the node remembers the disk; it is being written down
	token                   uint64
	waits                   []superWait // by token, oldest first
	wrote, stable           uint64      // counts writes done on the disk; up to which a flush has made them stable
	attachCmd               any
	detachCmd               any
	reads, writes, alWrites int64 // bytes, bytes, transactions
}

type heldCompletion struct {
	r   *Request
	err error
}

// superWait is what goes on when a superblock is durable.
type superWait struct {
	token uint64
	held  bool // application completions wait for it
	then  func(err error)
}

// peer is one other node and the connection to it.
type peer struct {
	idx          int
	cfg          PeerConfig
	state        wire.Conn // StandAlone, Unconnected, WFConnection, WFReportParams, Connected; Disconnecting, ...
	li           LinkInfo
	up           bool   // the link exists
	gen          uint32 // counts the lives of the link
	io           int    // requests on behalf of this peer
	retryConnect bool   // connect as soon as io is 0
	gotProtocol  bool
	discard      bool // this connection discards my data
	peerDiscard  bool
	why          error // why it was lost last
	fenceAsked   bool  // the handler fence-peer was asked since it was connected last
	fenced       bool  // and said that it is fenced
	unfenced     bool  // unfence-peer was run for this connection

	term      uint64 // the last it told on this connection
	leads     bool   // and said that it is Primary, or wants to be
	termGate  bool   // what it sends waits until the term is durable
	awaited   bool   // a write is acknowledged only when it has it
	failed    bool   // a write did not reach it, though it is connected
	promised  Now    // until when it does not run for primary
	askAt     Now    // when to ask for the next promise
	given     Now    // until when we have promised it not to
	givenTerm uint64
	upSince   Now // of the connection

	// sender
	epoch          uint32 // number of the current epoch
	epochCount     uint32 // writes in it
	epochOpen      Now    // since when it has writes
	unacked        []sentEpoch
	tlHead, tlTail *Request // sent writes that are not barrier acknowledged, oldest first
	tlCount        int
	flushWait      []*Request // application flushes waiting for a barrier acknowledgement
	drains         []drain    // waiting until nothing is unacknowledged
	flushNext      bool       // the next write must not overtake what was sent (protocol A or B, relaxed epochs)
	inflight       int64      // bytes sent, not barrier acknowledged
	reads          []*Request // remote reads without answer

	// receiver
	repoch    []rcvEpoch // the last one is current
	rbase     uint32     // our number of repoch[0]
	gate      bool       // data packets wait for a drain and flush
	seqHold   *link      // the first of them is a write whose turn it is not yet
	seqSince  Now
	drain     bool // a write that carries FLUSH waits until nothing is pending
	inq       []queued
	flushing  int // disk flushes for epochs under way
	flushUpTo int // how many epochs at the head they cover

	// liveness
	pingSent  Now      // 0: none is out
	pingFence []func() // what to do when the answers to the pings come, oldest first
	stall     Now      // since when the data socket takes nothing
	lastData  Now

	// requests to the peer for consent
	ask                  *asking
	cmdCon               any  // answer to a Connect command
	twoPrim              bool // agreed: two primaries allowed
	sentBytes, rcvdBytes int64
}

type sentEpoch struct {
	nr    uint32
	count uint32
	sent  bool // its barrier is out
	at    Now  // when it was closed
	odd   bool // it held a write the peer refused in a conflict: its count cannot be checked
}

// drain runs when the peer has acknowledged all epochs up to nr.
type drain struct {
	nr   uint32
	then func()
}

type rcvEpoch struct {
	nr      uint32
	closed  bool
	total   uint32
	pending uint32
}

type queued struct {
	pkt  wire.Packet
	tag  any
	data []byte
}

// link is one volume towards one peer.
type link struct {
	v                                *volume
	p                                *peer
	conn                             wire.Conn // replication state; WFReportParams until the peer's first state
	role                             wire.Role
	disk                             wire.Disk // the peer's
	bm                               *bitmap.Bitmap
	uuids                            *wire.UUIDsBody
	peerSet                          genid.Set // the peer's UUIDs as corrected by the comparison, for the end of a resync
	dsize, usize, csize              int64
	userPause, afterPause, peerPause bool

	seq     uint32 // last sequence number sent
	peerSeq uint32 // highest seen

	rs            resync
	starting      bool // the decision is made, its bitmap exchange begins when FULL_SYNC is durable
	gotPeerBitmap bool
	bmPos         int64          // position in the peer's bitmap
	bmWhole       bool           // all of it so far went into ours
	bmScratch     *bitmap.Bitmap // takes what goes nowhere
	bmSent        bool
	syncID        uint64         // of the resync that this node began as the source on this connection
	hook          uint64         // token of the before-resync-target under way
	hooked        bool           // it was run and agrees
	negotiating   bool           // an attach waits for the peer's answer
	aheadUntil    Now            // Ahead: when to try to resync
	doubt         *bitmap.Bitmap // Ahead out of a resync: blocks whose next acknowledgement may be of what they held before
	undo          bool           // this resync overwrites the loser of a split brain
	fullSync      bool
	device        uint64 // of the peer's disk
	vouched       bool   // the peer remembers it
	skipped       bool   // the initial sync was skipped: reports from before may still be on the way
}

// New makes a Machine: Secondary, Diskless, StandAlone.
func New(cfg Config) *Machine {
	m := &Machine{cfg: cfg, role: wire.Secondary, watch: cfg.Coordinated}
	m.co = coordination{rec: Record{Term: cfg.Record.Term, Disks: maps.Clone(cfg.Record.Disks)}, saved: cfg.Record.Term, holder: Nobody, boundUntil: cfg.Bound}
	for i := range cfg.Peers {
		m.peers = append(m.peers, &peer{idx: i, cfg: cfg.Peers[i], state: wire.StandAlone})
	}
	for _, vc := range cfg.Volumes {
		v := &volume{num: vc.Number, cfg: vc, user: vc.UserSize}
		v.sup.Bitmap = make([]uint64, len(m.peers))
		v.sup.Peers = make([]SuperPeer, len(m.peers))
		for _, p := range m.peers {
			v.pv = append(v.pv, &link{v: v, p: p, conn: wire.StandAlone, disk: wire.DUnknown})
		}
		m.vols = append(m.vols, v)
	}
	return m
}

// Take moves the pending effects into buf and returns them.
func (m *Machine) Take(buf []Effect) []Effect {
	buf = append(buf[:0], m.out...)
	clear(m.out)
	m.out = m.out[:0]
	return buf
}

// Role is this node's role.
func (m *Machine) Role() wire.Role { return m.role }

func (m *Machine) volume(num int) *volume {
	for _, v := range m.vols {
		if v.num == num {
			return v
		}
	}
	return nil
}

func (m *Machine) tick(now Now) {
	if now > m.now {
		m.now = now
	}
}

// emit adds an effect and returns it, to be filled in.
func (m *Machine) emit(kind EffectKind, vol, peer int) *Effect {
	m.out = append(m.out, Effect{Kind: kind, Vol: vol, Peer: peer})
	return &m.out[len(m.out)-1]
}

func (m *Machine) event(vol, peer int, note string, err error) {
	e := m.emit(Event, vol, peer)
	e.Note, e.Err = note, err
}

func (m *Machine) result(cmd any, err error) {
	if cmd == nil {
		return
	}
	e := m.emit(Result, -1, -1)
	e.Cmd, e.Err = cmd, err
}

// send queues a packet; the returned pointer is valid until the next effect.
func (m *Machine) send(p *peer, vol int, cmd wire.Command) *wire.Packet {
	e := m.emit(Send, vol, p.idx)
	e.Pkt.Cmd = cmd
	if vol >= 0 {
		e.Pkt.Vol = uint16(vol)
	}
	return &e.Pkt
}

// writeSuper stores the superblock as it is now; then runs once it is durable.
func (m *Machine) writeSuper(v *volume, flush, bits, held bool, then func(error)) {
	if v.disk == wire.Diskless || v.disk == wire.Failed {
		if then != nil {
			then(nil) // nothing to store without a disk
		}
		return
	}
	v.token++
	if held {
		v.hold++
	}
	m.supFlags(v)
	s := v.sup
	s.Bitmap = slices.Clone(s.Bitmap)
	s.Peers = slices.Clone(s.Peers)
	e := m.emit(WriteSuper, v.num, -1)
	e.Super, e.Token, e.Flush, e.Bitmap = &s, v.token, flush || bits, bits // a cleared bit is not durable before its block
	v.waits = append(v.waits, superWait{token: v.token, held: held, then: then})
}

// supFlags computes the flags of the superblock from the state (drbd-metadata.md 2.1).
func (m *Machine) supFlags(v *volume) {
	v.sup.Size = v.size
	if v.disk >= wire.Inconsistent { // while attaching, the flags on the disk stay
		v.sup.Consistent = v.disk > wire.Inconsistent
		v.sup.WasUpToDate = v.disk > wire.Outdated
	}
	v.sup.CrashedPrimary = v.crashed
	v.sup.PrimaryInd = m.role == wire.Primary || m.promoting != nil && m.promoting.granted
	v.sup.ALDisabled = !v.cfg.ALUpdates
	for i, l := range v.pv {
		v.sup.Peers[i].Connected = l.conn >= wire.Connected
		v.sup.Peers[i].OutDated = l.disk == wire.Outdated || l.disk == wire.Inconsistent
		v.sup.Peers[i].FullSync = l.fullSync
		if l.servesDiskless() {
			v.sup.PrimaryInd = true // its activity log is ours
		}
	}
}

// SuperDone says that the superblock with this token is durable, or why not.
func (m *Machine) SuperDone(now Now, vol int, token uint64, err error) {
	m.tick(now)
	v := m.volume(vol)
	for len(v.waits) > 0 && v.waits[0].token <= token {
		w := v.waits[0]
		v.waits = v.waits[1:]
		if w.held {
			v.hold--
		}
		if w.then != nil {
			w.then(err)
		}
	}
	if err != nil {
		m.diskFailed(v, err)
	}
	m.releaseHeld(v)
	m.closeIfIdle(v)
}

func (m *Machine) releaseHeld(v *volume) {
	if len(v.held) == 0 {
		return
	}
	held := v.held
	v.held = nil
	for _, h := range held {
		m.finish(h.r, h.err)
	}
}

// set gives the UUIDs of v towards peer i.
func (v *volume) set(i int) genid.Set {
	return genid.Set{Current: v.sup.Current, Bitmap: v.sup.Bitmap[i], History1: v.sup.History[0], History2: v.sup.History[1]}
}

func (v *volume) setUUIDs(i int, s genid.Set) {
	v.sup.Current, v.sup.Bitmap[i] = s.Current, s.Bitmap
	v.sup.History = [2]uint64{s.History1, s.History2}
}

// servesDiskless says whether the peer is a Primary without a disk, which writes through us.
func (l *link) servesDiskless() bool {
	return l.role == wire.Primary && l.conn >= wire.Connected && l.disk < wire.Inconsistent
}

func (v *volume) bits() int64 { return bitmap.BitsFor(v.size) }

// dirty marks [off, off+length) as different from the peer, rounding outward.
func (l *link) dirty(off, length int64) {
	if l.bm == nil || length <= 0 {
		return
	}
	l.bm.Set(off/bitmap.BlockSize, (off+length-1)/bitmap.BlockSize)
}

// clean marks the blocks fully inside [off, off+length) as equal, the last partial block of the volume included.
func (l *link) clean(off, length int64) int64 {
	if l.bm == nil || length <= 0 {
		return 0
	}
	first := (off + bitmap.BlockSize - 1) / bitmap.BlockSize
	last := (off+length)/bitmap.BlockSize - 1
	if off+length == l.v.size {
		last = (l.v.size - 1) / bitmap.BlockSize
	}
	if last < first {
		return 0
	}
	return l.bm.Clear(first, last)
}

func (l *link) count() int64 {
	if l.bm == nil {
		return 0
	}
	return l.bm.Count()
}

// isDirty reports whether a block touched by [off, off+length) may differ.
func (l *link) isDirty(off, length int64) bool {
	if l.bm == nil {
		return false
	}
	n := l.bm.NextSet(off / bitmap.BlockSize)
	return n >= 0 && n <= (off+length-1)/bitmap.BlockSize
}
