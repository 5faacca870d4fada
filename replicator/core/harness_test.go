package core

import (
	"cmp"
	"testing"
	"time"

	"github.com/hawser-ha/hawser/replicator/bitmap"
	"github.com/hawser-ha/hawser/replicator/pace"
	"github.com/hawser-ha/hawser/replicator/wire"
)

const testSize = 64 << 20 // bytes of the test volume

// rig is one Machine whose disk, metadata and peer are the test's.
type rig struct {
	t     testing.TB
	m     *Machine
	now   Now
	buf   []Effect
	sent  []Effect // Send, not yet looked at
	disk  []*Request
	done  map[*Request]error // completed, by request
	had   map[*Request]bool  // answered by the disk
	count int                // completions
	notes []string
	down  bool // CloseLink was asked for
	keep  bool // released requests are not recycled

	records []Effect // WriteRecord, not answered if late
	late    bool

	asked   []Effect // handlers that were asked for
	results map[any]error

	peerTerm      wire.TermBody // what the peer tells when it is connected
	peerUnvouched bool
	peerDevice    uint64 // 0: peerDisk
}

const ownDisk, peerDisk = 0xa1, 0xb1 // device UUIDs

func testNet() NetConfig {
	return NetConfig{Protocol: 3, Timeout: 6 * time.Second, KOCount: 7, PingInt: 10 * time.Second, PingTimeout: 500 * time.Millisecond,
		MaxEpochSize: 2048, MaxBuffers: 2048, OnCongestion: "block", Fencing: "dont-care", VerifyAlg: "crc32c", VerifySize: 4}
}

// newRig makes a node with a good disk that is alone.
func newRig(t testing.TB, n NetConfig) *rig { return newRigWith(t, n, nil) }

func newRigWith(t testing.TB, n NetConfig, change func(*Config)) *rig {
	seed := uint64(0x1234567812345678)
	cfg := Config{Rand: func() uint64 { seed = seed*6364136223846793005 + 1442695040888963407; return seed | 1<<40 }}
	cfg.Volumes = []VolumeConfig{{OnIOError: "detach", ALUpdates: true, MaxBio: 64 << 10}}
	cfg.Peers = []PeerConfig{{Name: "b", Net: n, Pace: pace.Params{ResyncRate: 1 << 20, MaxRate: 4 << 20}}}
	if change != nil {
		change(&cfg)
	}
	r := &rig{t: t, m: New(cfg), now: 1e9, done: map[*Request]error{}, had: map[*Request]bool{}, keep: true, results: map[any]error{}}
	r.m.Attach(r.now, 0, DiskInfo{Device: ownDisk, Capacity: testSize, ALSlots: 67, ALBlocks: 8, Bitmaps: []*bitmap.Bitmap{bitmap.New(bitmap.BitsFor(testSize))},
		Super: Super{Size: testSize, Current: 0x1000, Bitmap: []uint64{0}, Consistent: true, WasUpToDate: true, Peers: make([]SuperPeer, 1)}}, nil)
	r.run()
	return r
}

// connected makes a node that is connected to a peer with the same data.
func connected(t testing.TB, n NetConfig, features uint32, resolve bool) *rig {
	r := newRig(t, n)
	r.link(n, features, resolve)
	if v := r.m.View(); v.Volumes[0].Links[0].Conn != wire.Connected || v.Volumes[0].Links[0].Disk != wire.UpToDate {
		t.Fatalf("not connected: %+v", v)
	}
	r.sent = nil
	return r
}

func (r *rig) link(n NetConfig, features uint32, resolve bool) {
	r.m.Connect(r.now, 0, false, nil)
	last := r.now
	r.m.LinkUp(r.now, 0, LinkInfo{Version: 101, Features: features, ResolveConflicts: resolve, LastReceived: func() (Now, Now) { return last, last }})
	r.packet(wire.Packet{Cmd: wire.Protocol, Ext: &wire.ProtocolBody{Protocol: n.Protocol, TwoPrimaries: n.TwoPrimaries}})
	if features&wire.FeatureTerm != 0 {
		r.packet(wire.Packet{Cmd: wire.Term, Ext: &r.peerTerm})
		r.packet(wire.Packet{Cmd: wire.DiskID, Ext: &wire.DiskIDBody{Device: cmp.Or(r.peerDevice, peerDisk), Vouched: !r.peerUnvouched}})
	}
	r.packet(wire.Packet{Cmd: wire.SyncParam89, Ext: &wire.SyncParamBody{VerifyAlg: n.VerifyAlg, CsumsAlg: n.CsumsAlg}})
	r.packet(wire.Packet{Cmd: wire.Sizes, Ext: &wire.SizesBody{DSize: testSize >> 9, CSize: testSize >> 9}})
	r.packet(wire.Packet{Cmd: wire.UUIDs, Ext: &wire.UUIDsBody{Current: r.m.vols[0].sup.Current}})
	r.packet(wire.Packet{Cmd: wire.StateReport, State: wire.MakeState(wire.Secondary, wire.RoleUnknown, wire.WFConnection, wire.UpToDate, wire.DUnknown, 0)})
}

// primary makes it Primary with the peer's consent.
func (r *rig) primary() *rig {
	r.m.Promote(r.now, false, nil)
	r.run()
	if r.m.peers[0].up {
		r.packet(wire.Packet{Cmd: wire.StateChgReply, Code: 1})
	}
	if r.m.Role() != wire.Primary {
		r.t.Fatal("not Primary")
	}
	r.sent = nil
	return r
}

// run carries out the effects: metadata is done at once, the rest is noted.
func (r *rig) run() {
	for {
		r.buf = r.m.Take(r.buf)
		if len(r.buf) == 0 {
			return
		}
		for i := range r.buf {
			e := r.buf[i]
			switch e.Kind {
			case Send:
				r.sent = append(r.sent, e)
			case Disk:
				r.disk = append(r.disk, e.Req)
			case Complete:
				r.count++
				if r.keep {
					r.done[e.Req] = e.Err
				}
			case Release:
				if !r.keep {
					r.m.Recycle(e.Req)
				}
			case WriteSuper:
				r.m.SuperDone(r.now, e.Vol, e.Token, nil)
			case WriteAL:
				r.m.ALDone(r.now, e.Vol, nil)
			case CloseLink:
				r.down = true
			case CloseDisk:
				r.m.DiskClosed(r.now, e.Vol)
			case WriteRecord:
				r.records = append(r.records, e)
				if !r.late {
					r.m.RecordDone(r.now, e.Token, nil)
				}
			case RunHandler:
				r.asked = append(r.asked, e)
			case Result:
				r.results[e.Cmd] = e.Err
			case Event:
				r.notes = append(r.notes, e.Note)
			}
		}
	}
}

func (r *rig) packet(p wire.Packet) error {
	_, err := r.m.Packet(r.now, 0, &p, nil, nil)
	r.run()
	return err
}

// submit gives the node a request of the application.
func (r *rig) submit(kind Kind, off, length int64) *Request {
	q := r.m.NewRequest(kind)
	q.Off, q.Len = off, length
	r.m.Submit(r.now, q)
	r.run()
	return q
}

// finishDisk answers all that is on the disk.
func (r *rig) finishDisk(err error) {
	for len(r.disk) > 0 {
		q := r.disk[0]
		r.disk = r.disk[1:]
		r.had[q] = true
		r.m.DiskDone(r.now, q, err)
		r.run()
	}
}

// commands gives the commands of what was sent, in order.
func (r *rig) commands() []wire.Command {
	var out []wire.Command
	for _, e := range r.sent {
		out = append(out, e.Pkt.Cmd)
	}
	return out
}

// last is the last packet of this kind that was sent.
func (r *rig) last(cmd wire.Command) *wire.Packet {
	for i := len(r.sent) - 1; i >= 0; i-- {
		if r.sent[i].Pkt.Cmd == cmd {
			return &r.sent[i].Pkt
		}
	}
	r.t.Fatalf("no %s was sent, but %v", cmd, r.commands())
	return nil
}

func (r *rig) ack(cmd wire.Command, of *wire.Packet) error {
	return r.packet(wire.Packet{Cmd: cmd, Sector: of.Sector, BlockID: of.BlockID, Size: of.Size, Seq: of.Seq})
}

func (r *rig) completed(q *Request) bool {
	_, ok := r.done[q]
	return ok
}
