package replicator

import (
	"encoding/binary"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/hawser-ha/hawser/replicator/bitmap"
	"github.com/hawser-ha/hawser/replicator/wire"
)

// bitmapReader is the receiving side of drbd-wire.md section 20.
type bitmapReader struct {
	t     *testing.T
	bm    *bitmap.Bitmap
	pos   int64
	ended bool
	plain bool
}

func (r *bitmapReader) SendData(p *wire.Packet, digest, payload []byte, sent func(any), owner any) {
	if r.ended {
		r.t.Fatal("a packet after the end")
	}
	if len(payload)+16 > wire.MaxBitmapPacket {
		r.t.Fatalf("payload of %d bytes", len(payload))
	}
	if p.Cmd == wire.CompressedBitmap {
		next, err := r.bm.OrRLE(payload, r.pos)
		if err != nil {
			r.t.Fatal(err)
		}
		r.pos, r.ended, r.plain = next, next == r.bm.Bits(), false
		return
	}
	words := (r.bm.Bits() + 63) / 64
	at := r.pos / 64
	if r.plain && r.pos >= r.bm.Bits() {
		at = words
	}
	if want := min(8*int64((wire.MaxBitmapPacket-16)/8), (words-at)*8); int64(len(payload)) != want {
		r.t.Fatalf("plain packet of %d bytes at word %d, not %d", len(payload), at, want)
	}
	r.ended = len(payload) == 0
	for i := 0; i < len(payload); i += 8 {
		r.bm.OrWord(int(at)+i/8, binary.LittleEndian.Uint64(payload[i:]))
	}
	r.pos, r.plain = (at+int64(len(payload)/8))*64, true
}

// TestBitmapArrives: whatever the bits and the encoding, the peer has the same ones, and knows where the transfer ends.
func TestBitmapArrives(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for n := range 60 {
		bm := bitmap.New(1 + rng.Int64N(400000))
		switch n % 4 {
		case 0:
			bm.SetAll()
		case 1: // noise, which does not compress
			for range bm.Bits() / 2 {
				i := rng.Int64N(bm.Bits())
				bm.Set(i, i)
			}
		case 2: // runs
			for range 200 {
				i := rng.Int64N(bm.Bits())
				bm.Set(i, i+rng.Int64N(5000))
			}
		}
		for _, rle := range []bool{true, false} {
			r := &bitmapReader{t: t, bm: bitmap.New(bm.Bits())}
			writeBitmap(&connSink{r, 101}, 0, bm, rle)
			if !r.ended || !slices.Equal(r.bm.Words(), bm.Words()) {
				t.Fatalf("bitmap %d, rle %t: %s became %s, end seen: %t", n, rle, bm, r.bm, r.ended)
			}
		}
	}
}
