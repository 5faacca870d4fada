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
	data []byte   // bitmap bytes
}

// conn is the pair of sockets between the two nodes. Each socket keeps its order; between sockets there is none.
type conn struct {
	w     *world
	dead  bool
	stall bool        // packets stay on the way
	data  [2][]packet // by receiving node
	meta  [2][]packet
	last  [2][2]core.Now // by receiving node: data, meta
	gone  [2]bool        // this side was told
}

func isMeta(c wire.Command) bool {
	switch c {
	case wire.Ping, wire.PingAck, wire.RecvAck, wire.WriteAck, wire.RSWriteAck, wire.Superseded, wire.NegAck, wire.NegDReply, wire.NegRSDReply,
		wire.BarrierAck, wire.StateChgReply, wire.OVResult, wire.RSIsInSync, wire.RSCancel, wire.ConnStChgReply, wire.RetryWrite:
		return true
	}
	return false
}

func (c *conn) send(from int, p packet) {
	if c.dead {
		return
	}
	to := 1 - from
	if isMeta(p.p.Cmd) {
		c.meta[to] = append(c.meta[to], p)
	} else {
		c.data[to] = append(c.data[to], p)
	}
}

// cut breaks both sockets; what is on the way is lost. Each side hears of it when the world picks it.
func (c *conn) cut() { c.dead = true }

// deliver hands one packet to a node.
func (c *conn) deliver(to int, meta bool) {
	q := &c.data[to]
	i := 0
	if meta {
		q, i = &c.meta[to], 1
	}
	pk := (*q)[0]
	*q = (*q)[1:]
	n := c.w.nodes[to]
	c.last[to][i] = c.w.now
	if !n.up() || n.link != c {
		return
	}
	var tag any
	if pk.vals != nil {
		tag = &payload{vals: pk.vals}
		if pk.p.Cmd == wire.DataReply {
			if r := n.m.ReplyBuffer(0, &pk.p); r != nil {
				r.Tag.(*payload).vals = pk.vals
				tag = nil
			}
		}
	}
	p := pk.p
	p.Tail = 0
	_, err := n.m.Packet(c.w.now, 0, &p, tag, pk.data)
	if err != nil {
		c.w.fail("%s: protocol error on %#x: %v", n.name, uint16(pk.p.Cmd), err)
		c.w.protocolErrors++
		l := n.link
		n.link = nil
		if l != nil {
			l.cut()
		}
		n.m.LinkDown(c.w.now, 0, err, false)
	}
	n.effects()
}

// tell informs a node that its connection is dead.
func (c *conn) tell(i int) {
	c.gone[i] = true
	n := c.w.nodes[i]
	if n.up() && n.link == c {
		n.link = nil
		n.m.LinkDown(c.w.now, 0, errors.New("connection reset"), false)
		n.effects()
	}
}

// connect joins two nodes that both want it.
func (w *world) connect() {
	c := &conn{w: w}
	w.conn = c
	resolver := w.rng.IntN(2)
	features := uint32(wire.FeatureTrim | wire.FeatureThinResync | wire.FeatureWSame | wire.FeatureWZeroes)
	if !w.strict {
		features |= core.FeatureRelaxedEpochs
	}
	for i, n := range w.nodes {
		n.want = false
		n.link = c
		c.last[i] = [2]core.Now{w.now, w.now}
		n.m.LinkUp(w.now, 0, core.LinkInfo{Version: 101, Features: features, ResolveConflicts: i == resolver,
			LastReceived: func() (core.Now, core.Now) { return c.last[i][0], c.last[i][1] }})
	}
	for _, n := range w.nodes {
		n.effects()
	}
}
