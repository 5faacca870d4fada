package sim

import (
	"flag"
	"fmt"
	"hash/maphash"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/hawser-ha/hawser/replicator/core"
	"github.com/hawser-ha/hawser/replicator/pace"
	"github.com/hawser-ha/hawser/replicator/wire"
)

// options are what a kind of life has of its own.
type options struct {
	coordinated    bool
	failUnlicensed bool         // on-no-quorum io-error
	nodes          int          // 0: two
	blocks         int64        // of the volume; 0: as chance has it
	bug            string       // a planted bug
	tune           func(*world) // changes the configuration before the nodes are built
}

// world is the nodes, the network between them, and the clients.
type world struct {
	opt    options
	rng    *rand.Rand
	now    core.Now
	blocks int64 // size of the volume
	room   int64 // size of the disks, at most
	nodes  []*node
	conns  [][]*conn // by the two nodes, lower number first
	net    core.NetConfig
	pace   pace.Params
	volume core.VolumeConfig
	strict bool // epochs as a kernel peer wants them
	err    error
	log    []string
	hash   uint64 // of all effects so far
	hits   int    // how often the planted bug was acted out

	next    uint64 // next value to write
	hist    map[int64]*blockHist
	open    []*clientOp
	clock   int64 // orders client events
	primary int   // the node that clients use; -1: none
	both    bool  // clients use all nodes
	acked   int
	reads   int
	good    []bool // may be promoted: has all acknowledged writes
	trace   int64  // a block whose story is logged; -1: none
	narrow  bool   // clients write to the first blocks only
	quiet   bool   // no more client requests: the end
	blind   bool   // what clients see is not checked: the data has split

	etcd   *etcd           // nil: not coordinated
	faults []fault         // that may come together
	forced bool            // an operator lets disks lead that nobody remembers
	cuts   map[[2]int]bool // pairs of nodes that cannot reach each other, lower number first

	choices []choice
	moved   int64              // bytes of resync data on the network
	split   map[int64]bool     // blocks whose content a split brain made different: they go to the undo log before they are overwritten
	early   map[[2]uint64]bool // for a planted bug: writes that were acknowledged
}

// fail says that the life went wrong.
func (w *world) fail(format string, args ...any) {
	if w.err == nil {
		w.err = fmt.Errorf(format, args...)
	}
}

func (w *world) logf(format string, args ...any) {
	w.log = append(w.log, fmt.Sprintf("%d: ", w.now/1e6)+fmt.Sprintf(format, args...))
	if w.trace < 0 && len(w.log) > 4000 {
		w.log = w.log[2000:]
	}
}

func (w *world) tail() string {
	if w.trace >= 0 {
		return strings.Join(w.log, "\n")
	}
	return strings.Join(w.log[max(0, len(w.log)-80):], "\n")
}

// bug says whether the planted bug of this name is to be acted out now.
func (w *world) bug(name string) bool {
	if w.opt.bug != name {
		return false
	}
	w.hits++
	return true
}

var (
	traceFlag = flag.Int64("block", -1, "log what happens to this block")
	hashSeed  = maphash.MakeSeed()
)

func newWorld(seed uint64, opt options) *world {
	w := &world{opt: opt, rng: rand.New(rand.NewPCG(seed, 0)), now: 1e9, hist: map[int64]*blockHist{}, primary: -1, next: 1, trace: *traceFlag, early: map[[2]uint64]bool{}}
	w.blocks = 1024*int64(3+w.rng.IntN(100)) + int64(w.rng.IntN(1024))
	if opt.blocks > 0 {
		w.blocks = opt.blocks
	}
	w.room = w.blocks
	w.strict = w.rng.IntN(3) == 0
	w.net = core.NetConfig{Protocol: 3, Timeout: 6 * time.Second, KOCount: 7, PingInt: 10 * time.Second, PingTimeout: 500 * time.Millisecond,
		MaxEpochSize: 1 + w.rng.IntN(20), MaxBuffers: 2048, OnCongestion: "block", Fencing: "dont-care", VerifyAlg: "crc32c", VerifySize: 4}
	w.volume = core.VolumeConfig{Number: 0, OnIOError: "detach", ALUpdates: true, MaxBio: 64 << 10}
	if w.rng.IntN(2) == 0 {
		w.net.CsumsAlg, w.net.CsumsSize = "crc32c", 4
		w.net.CsumsAfterCrashOnly = w.rng.IntN(3) == 0
	}
	if w.rng.IntN(3) == 0 {
		w.volume.ThinGranularity = 16 << 10
	}
	w.pace = pace.Params{ResyncRate: 1 << 20, PlanAhead: 20, DelayTarget: 10, FillTarget: 512, MaxRate: 4 << 20}
	if opt.nodes == 0 {
		w.opt.nodes = 2
	}
	if opt.tune != nil {
		opt.tune(w)
	}
	w.good = make([]bool, w.opt.nodes)
	for i := range w.opt.nodes {
		w.nodes = append(w.nodes, &node{w: w, id: i, name: string(rune('a' + i)), volume: w.volume, capacity: w.blocks, disk: newStore(w.room, w.opt.nodes-1)})
		w.conns = append(w.conns, make([]*conn, w.opt.nodes))
		w.nodes[i].disk.device = uint64(i + 1)
	}
	if opt.coordinated {
		w.coordinate()
	}
	return w
}

// note mixes something that happened into the hash of this life.
func (w *world) note(args ...any) {
	w.hash = w.hash*1099511628211 ^ maphash.String(hashSeed, fmt.Sprint(args...))
}

func (w *world) view(i int) core.View { return w.nodes[i].m.View() }

// disk is the state of a node's disk; Diskless for a dead node.
func (w *world) disk(i int) wire.Disk {
	if !w.nodes[i].up() {
		return wire.Diskless
	}
	return w.view(i).Volumes[0].Disk
}

// linked says that two nodes are connected and at rest with each other, seen from both sides.
func (w *world) linked(i, j int) bool {
	a, b := w.nodes[i], w.nodes[j]
	if !a.up() || !b.up() {
		return false
	}
	va, vb := a.m.View(), b.m.View()
	la, lb := va.Volumes[0].Links[a.index(b)], vb.Volumes[0].Links[b.index(a)]
	return va.Peers[a.index(b)].Conn == wire.Connected && vb.Peers[b.index(a)].Conn == wire.Connected &&
		la.Conn == wire.Connected && lb.Conn == wire.Connected
}

// replicated reports whether node j can lead: it has all acknowledged writes, as the primary i sees it.
func (w *world) replicated(i, j int) bool {
	a, b := w.nodes[i], w.nodes[j]
	if !a.up() || !b.up() {
		return false
	}
	v := a.m.View()
	k := a.index(b)
	l := v.Volumes[0].Links[k]
	return v.Peers[k].Conn == wire.Connected && l.Conn == wire.Connected && l.Disk == wire.UpToDate && w.disk(j) == wire.UpToDate
}

// allReplicated says that the primary has everything replicated everywhere.
func (w *world) allReplicated() bool {
	if w.primary < 0 || !w.nodes[w.primary].up() {
		return false
	}
	for j := range w.nodes {
		if j != w.primary && !w.replicated(w.primary, j) {
			return false
		}
	}
	return true
}

// check compares the replicas at the end.
func (w *world) check() {
	for _, n := range w.nodes {
		v := n.m.View().Volumes[0]
		if v.Size != w.blocks*block {
			w.fail("%s ended with %d blocks, not %d", n.name, v.Size/block, w.blocks)
		}
		for k, l := range v.Links {
			if v.Disk != wire.UpToDate || l.OutOfSync != 0 || l.Conn != wire.Connected {
				w.fail("%s ended %s %s towards %s, %d bytes out of sync", n.name, v.Disk, l.Conn, n.peer(k).name, l.OutOfSync)
				return
			}
		}
	}
	a := w.nodes[0].disk
	for k := range w.blocks {
		for _, n := range w.nodes[1:] {
			if a.now[k] != n.disk.now[k] {
				w.fail("block %d: a has %d, %s has %d", k, a.now[k], n.name, n.disk.now[k])
				return
			}
		}
	}
	if w.blind {
		return
	}
	for k := range w.blocks {
		if !w.mayShow(k, a.now[k]) {
			w.fail("block %d holds %d, allowed %v", k, a.now[k], w.shown(k))
			return
		}
	}
}
