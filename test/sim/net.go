package sim

import (
	"errors"

	"github.com/hawser-ha/hawser/replicator/core"
	"github.com/hawser-ha/hawser/replicator/wire"
)

// packet is one packet on a socket.
type packet struct {
	p    wire.Packet
	vals []uint64 // data, as block values
	term uint64   // that the sender had told before
	data []byte   // bitmap bytes
}

// conn is the pair of sockets between two nodes. Each socket keeps its order; between sockets there is none.
type conn struct {
	w     *world
	ends  [2]*node
	dead  bool
	stall bool        // packets stay on the way
	data  [2][]packet // by receiving end
	meta  [2][]packet
	last  [2][2]core.Now // by receiving end: data, meta
	gone  [2]bool        // this end was told

	flushed [2]bool   // this end has handed all to the network
	late    [2]packet // held back by a planted bug
	closed  [2]bool   // and has closed: the other end still gets it
}

// end says which end of the connection a node is.
func (c *conn) end(n *node) int {
	if c.ends[0] == n {
		return 0
	}
	return 1
}

func (c *conn) send(from *node, p packet) {
	to := 1 - c.end(from)
	if c.dead || c.closed[to] {
		return
	}
	if p.p.Cmd == wire.RSDataReply {
		c.w.moved += int64(p.p.Size)
	}
	if p.p.Cmd == wire.OutOfSync && c.w.bug("what the peer does not get is not told") {
		return
	}
	if p.p.Cmd == wire.RSDataReply && c.late[to].p.Size == 0 && c.w.bug("resync data is overtaken by newer writes") {
		c.late[to] = p
		return
	}
	if p.p.Cmd.OnMeta() {
		c.meta[to] = append(c.meta[to], p)
	} else {
		c.data[to] = append(c.data[to], p)
		if c.late[to].p.Size > 0 && p.p.Cmd == wire.Data {
			c.data[to] = append(c.data[to], c.late[to])
			c.late[to] = packet{}
		}
	}
	if p.p.Cmd == wire.Data && p.p.Flags&wire.FlagSendWriteAck != 0 && p.p.Flags&wire.FlagMaySetInSync == 0 && c.w.bug("acknowledged before it arrived") {
		a := wire.Packet{Cmd: wire.WriteAck, Vol: p.p.Vol, Sector: p.p.Sector, BlockID: p.p.BlockID, Size: p.p.Size, Seq: p.p.Seq}
		c.meta[1-to] = append(c.meta[1-to], packet{p: a})
	}
}

// cut breaks both sockets; what is on the way is lost. Each side hears of it when the world picks it.
func (c *conn) cut() { c.dead = true }

// close is the end of the connection by one of its ends. What it flushed still arrives, if the network lives.
func (c *conn) close(end int) {
	if !c.flushed[end] || c.closed[1-end] {
		c.cut()
		return
	}
	c.closed[end] = true
	c.data[end], c.meta[end] = nil, nil
}

// eof says whether the peer of this end has closed and nothing more comes.
func (c *conn) eof(end int) bool { return c.closed[1-end] && len(c.data[end])+len(c.meta[end]) == 0 }

// deliver hands one packet to a node.
func (c *conn) deliver(to int, meta bool) {
	q := &c.data[to]
	i := 0
	if meta {
		q, i = &c.meta[to], 1
	}
	pk := (*q)[0]
	*q = (*q)[1:]
	n, w := c.ends[to], c.w
	k := n.index(c.ends[1-to])
	c.last[to][i] = n.now()
	if !n.up() || n.links[k] != c {
		return
	}
	switch {
	case w.opt.bug == "acknowledged before it arrived" && pk.p.Cmd == wire.WriteAck && w.doubleAck(n, &pk.p):
		return
	case pk.p.Cmd == wire.OutOfSync && w.rng.IntN(4) == 0 && w.bug("a report of what is out of sync is dropped"):
		return
	case (pk.p.Cmd == wire.Bitmap && len(pk.data) > 0) && w.bug("a piece of the bitmap is dropped"):
		clear(pk.data)
	}
	var tag any
	if pk.vals != nil {
		tag = &payload{vals: pk.vals, term: pk.term, seen: n.m.Term()}
		if pk.p.Cmd == wire.DataReply {
			if r := n.m.ReplyBuffer(k, &pk.p); r != nil {
				r.Tag.(*payload).vals = pk.vals
				tag = nil
			}
		}
	}
	p := pk.p
	p.Tail = 0
	_, err := n.m.Packet(n.now(), k, &p, tag, pk.data)
	if err != nil {
		w.fail("%s: protocol error on %s: %v", n.name, pk.p.Cmd, err)
		n.links[k] = nil
		c.cut()
		n.m.LinkDown(n.now(), k, err, false)
	}
	n.effects()
}

// doubleAck recognises the real acknowledgement of a write that was acknowledged early by a planted bug.
func (w *world) doubleAck(n *node, p *wire.Packet) bool {
	key := [2]uint64{uint64(n.id)<<32 | uint64(n.life), p.BlockID}
	if w.early[key] {
		return true
	}
	w.early[key] = true
	return false
}

// tell informs a node that its connection is dead.
func (c *conn) tell(i int) {
	c.gone[i] = true
	n := c.ends[i]
	k := n.index(c.ends[1-i])
	if n.up() && n.links[k] == c {
		n.links[k] = nil
		n.m.LinkDown(n.now(), k, errors.New("connection reset"), false)
		n.effects()
	}
}

// connect joins two nodes that both want it.
func (w *world) connect(i, j int) {
	c := &conn{w: w, ends: [2]*node{w.nodes[i], w.nodes[j]}}
	w.conns[i][j], w.conns[j][i] = c, c
	resolver := w.rng.IntN(2)
	features := uint32(wire.FeatureTrim | wire.FeatureThinResync | wire.FeatureWSame | wire.FeatureWZeroes)
	if !w.strict {
		features |= core.FeatureRelaxedEpochs
	}
	if w.etcd != nil {
		features |= wire.FeatureTerm
	}
	for e, n := range c.ends {
		k := n.index(c.ends[1-e])
		n.want[k] = false
		net := w.net
		if n.net != nil {
			net = *n.net
		}
		n.m.SetNet(n.now(), k, net, nil) // a change of the protocol may not have reached it before the connection was lost
		n.links[k] = c
		c.last[e] = [2]core.Now{n.now(), n.now()}
		n.m.LinkUp(n.now(), k, core.LinkInfo{Version: 101, Features: features, ResolveConflicts: e == resolver,
			LastReceived: func() (core.Now, core.Now) { return c.last[e][0], c.last[e][1] }})
	}
	for _, n := range c.ends {
		n.effects()
	}
}
