package replicator

import (
	"encoding/binary"

	"github.com/hawser-ha/hawser/replicator/bitmap"
	"github.com/hawser-ha/hawser/replicator/core"
	"github.com/hawser-ha/hawser/replicator/link"
	"github.com/hawser-ha/hawser/replicator/wire"
)

// sendBitmap queues our bitmap for the peer (drbd-wire.md section 20): what is queued is the copy. r.mu is held; a sparse bitmap
// takes a fraction of a millisecond for each TiB.
func (r *Resource) sendBitmap(t *turn, e *core.Effect) {
	p, v := r.peers[e.Peer], r.volume(e.Vol)
	c := p.conn
	bm := v.bitmaps[e.Peer]
	if c == nil || bm == nil {
		return
	}
	encodeBitmap(c, uint16(v.number), bm, p.def.Load().Net.UseRLE)
	t.flushLater(c)
}

// packetSink is the part of a link that encodeBitmap needs.
type packetSink interface {
	SendData(p *wire.Packet, digest, payload []byte, sent func(any), owner any)
}

func (c *connSink) size() int { return wire.HeaderSize(c.version) }

// connSink is a link and its version.
type connSink struct {
	packetSink
	version int
}

func encodeBitmap(c *link.Conn, vol uint16, bm *bitmap.Bitmap, rle bool) {
	writeBitmap(&connSink{c, c.Version}, vol, bm, rle)
}

// writeBitmap sends bm as compressed packets where that is shorter, and plain ones elsewhere. Every payload has memory of its
// own: the link may send it later.
func writeBitmap(c *connSink, vol uint16, bm *bitmap.Bitmap, rle bool) {
	room := wire.MaxBitmapPacket - c.size()
	var scratch []byte
	plain := false // the last packet was plain
	for pos := int64(0); pos < bm.Bits(); {
		if rle {
			payload, next, ok := bm.EncodeRLE(scratch, pos, room)
			if ok {
				c.SendData(&wire.Packet{Cmd: wire.CompressedBitmap, Vol: vol}, nil, append([]byte(nil), payload...), nil, nil)
				scratch, pos, plain = payload, next, false
				continue
			}
		}
		first, n := bm.PlainWords(pos, room)
		payload := make([]byte, 0, n*8)
		for _, w := range bm.Words()[first : first+n] {
			payload = binary.LittleEndian.AppendUint64(payload, w)
		}
		c.SendData(&wire.Packet{Cmd: wire.Bitmap, Vol: vol}, nil, payload, nil, nil)
		pos, plain = int64(first+n)*64, true
	}
	if plain || bm.Bits() == 0 {
		c.SendData(&wire.Packet{Cmd: wire.Bitmap, Vol: vol}, nil, nil, nil, nil)
	}
}
