package meta

import (
	"encoding/binary"
	"fmt"
	"math/bits"

	"github.com/hawser-ha/hawser/replicator/bitmap"
)

// On disk the 32-bit little-endian word k (bits 32k..32k+31) of slot p is at byte 4*(k*max_peers+p) of the area. So block b of
// one slot (words 1024b..1024b+1023) lies in max_peers whole disk blocks, from b*max_peers on.
const blockWords32 = BlockSize / 4

// slotArea checks that the slot exists and that the area has room for bitmaps of n bits. bmMu is held, or Move might move the
// area away.
func (s *Store) slotArea(slot int, n int64) (maxPeers int, l Layout, err error) {
	s.superMu.Lock()
	defer s.superMu.Unlock()
	maxPeers, l = s.super.MaxPeers, s.lay
	if slot < 0 || slot >= maxPeers {
		return 0, l, fmt.Errorf("no bitmap slot %d of %d", slot, maxPeers)
	}
	if need := bitmapBytes(n*sectorsPerBit, maxPeers); need > l.BitmapBytes {
		return 0, l, fmt.Errorf("%w: bitmaps of %d bits need %d bytes, there are %d", ErrTooSmall, n, need, l.BitmapBytes)
	}
	return maxPeers, l, nil
}

// BitmapBits returns the number of bits for the agreed size; 0 while there is none.
func (s *Store) BitmapBits() int64 {
	return bitmap.BitsFor(int64(s.Super().EffectiveSize) * SectorSize)
}

// ReadBitmap loads b from the slot. b's size decides how much is read; bits on disk past it are ignored. Afterwards
// no block of b counts as changed.
func (s *Store) ReadBitmap(slot int, b *bitmap.Bitmap) error {
	s.bmMu.Lock()
	defer s.bmMu.Unlock()
	maxPeers, l, err := s.slotArea(slot, b.Bits())
	if err != nil {
		return fmt.Errorf("read bitmap: %w", err)
	}
	unit := maxPeers * BlockSize // one block of the slot
	buf := alignedBuf(max(ioBytes/unit, 1) * unit)
	total := bitmapBytes(b.Bits()*sectorsPerBit, maxPeers)
	words := len(b.Words())
	for off := int64(0); off < total; {
		part := buf[:min(int64(len(buf)), total-off)]
		if err := readAt(s.md, part, l.Bitmap+off, "bitmap"); err != nil {
			return err
		}
		first := int(off / int64(unit) * blockWords32 / 2) // 64-bit word
		for i := 0; first+i < words && (2*i*maxPeers+slot)*4 < len(part); i++ {
			lo := binary.LittleEndian.Uint32(part[4*(2*i*maxPeers+slot):])
			hi := uint32(0)
			if at := 4 * ((2*i+1)*maxPeers + slot); at < len(part) {
				hi = binary.LittleEndian.Uint32(part[at:])
			}
			b.LoadWord(first+i, uint64(hi)<<32|uint64(lo))
		}
		off += int64(len(part))
	}
	for blk := range b.Blocks() {
		b.MarkWritten(blk)
	}
	return nil
}

// Snapshot is a copy of some blocks of a bitmap, on their way to disk.
type Snapshot struct {
	slot   int
	bits   int64
	blocks []int64
	words  []uint64 // bitmap.BlockBits/64 for each block
}

// Empty says whether there is nothing to write.
func (p *Snapshot) Empty() bool { return len(p.blocks) == 0 }

// Undo makes the blocks count as changed again, because writing them failed.
func (p *Snapshot) Undo(b *bitmap.Bitmap) {
	for _, blk := range p.blocks {
		b.MarkChanged(blk)
	}
}

// TakeSnapshot copies the given blocks of b (nil: all changed ones), which then count as written, and does no I/O. If
// WriteSnapshot fails, call Undo.
func TakeSnapshot(slot int, b *bitmap.Bitmap, blocks []int64) *Snapshot {
	const blockWords = bitmap.BlockBits / 64
	p := &Snapshot{slot: slot, bits: b.Bits()}
	take := func(blk int64) {
		if blk < 0 || blk >= b.Blocks() {
			return
		}
		p.blocks = append(p.blocks, blk)
		w := b.Words()[blk*blockWords:]
		n := min(len(w), blockWords)
		p.words = append(p.words, w[:n]...)
		p.words = append(p.words, make([]uint64, blockWords-n)...)
		b.MarkWritten(blk)
	}
	if blocks == nil {
		b.Changed(take)
	}
	for _, blk := range blocks {
		take(blk)
	}
	return p
}

// WriteBitmap writes blocks of b (nil: all that changed) to the slot; they are durable on return and other slots keep their
// contents. The caller guards b for the whole time; to avoid that use TakeSnapshot and WriteSnapshot.
func (s *Store) WriteBitmap(slot int, b *bitmap.Bitmap, blocks []int64) error {
	p := TakeSnapshot(slot, b, blocks)
	if err := s.WriteSnapshot(p); err != nil {
		p.Undo(b)
		return err
	}
	return nil
}

// WriteSnapshot writes the snapshot's blocks; they are durable on return and other slots keep their contents. Snapshots of one
// slot must be written in the order they were taken.
func (s *Store) WriteSnapshot(p *Snapshot) error {
	s.bmMu.Lock()
	defer s.bmMu.Unlock()
	maxPeers, l, err := s.slotArea(p.slot, p.bits)
	if err != nil {
		return fmt.Errorf("write bitmap: %w", err)
	}
	if p.Empty() {
		return nil
	}
	unit := maxPeers * BlockSize
	batch := max(ioBytes/unit, 1) // slot blocks for each I/O
	buf := alignedBuf(min(batch, len(p.blocks)) * unit)
	for i := 0; i < len(p.blocks); {
		n := 1
		for i+n < len(p.blocks) && n < batch && p.blocks[i+n] == p.blocks[i]+int64(n) {
			n++
		}
		off := p.blocks[i] * int64(unit)
		part := buf[:min(int64(n*unit), l.BitmapBytes-off)] // the area may end within the last unit
		if maxPeers > 1 {
			if err := readAt(s.md, part, l.Bitmap+off, "bitmap"); err != nil {
				return err
			}
		}
		const blockWords = bitmap.BlockBits / 64
		for j, w := range p.words[i*blockWords : (i+n)*blockWords] {
			at := 4 * (2*j*maxPeers + p.slot)
			if at < len(part) {
				binary.LittleEndian.PutUint32(part[at:], uint32(w))
			}
			if at += 4 * maxPeers; at < len(part) {
				binary.LittleEndian.PutUint32(part[at:], uint32(w>>32))
			}
		}
		if err := writeAt(s.md, part, l.Bitmap+off, "bitmap"); err != nil {
			return err
		}
		i += n
	}
	return syncDev(s.md, "bitmap")
}

// usedBytes returns the part of the bitmap area that the agreed size needs, whole blocks.
func (s *Store) usedBytes() (int64, int, Layout) {
	s.superMu.Lock()
	defer s.superMu.Unlock()
	return min(bitmapBytes(int64(s.super.EffectiveSize), s.super.MaxPeers), s.lay.BitmapBytes), s.super.MaxPeers, s.lay
}

// extentBits is the number of bits in an extent of the activity log.
const extentBits = 4 << 20 / BytesPerBit

// markExtents sets all bits of the extents (rising) in all slots on disk, and returns how many of them were clear.
func (s *Store) markExtents(extents []uint32) (marked int64, err error) {
	s.bmMu.Lock()
	defer s.bmMu.Unlock()
	used, maxPeers, l := s.usedBytes()
	size := int64(extentBits / 8 * maxPeers) // bytes of one extent, all slots
	return s.fillRanges(l, used, func(yield func(from, to int64) bool) {
		for _, e := range extents {
			if from := int64(e) * size; from < used && !yield(from, min(from+size, used)) {
				return
			}
		}
	})
}

// fillBitmaps sets all bits of all slots up to the agreed size on disk.
func (s *Store) fillBitmaps() error {
	s.bmMu.Lock()
	defer s.bmMu.Unlock()
	used, _, l := s.usedBytes()
	_, err := s.fillRanges(l, used, func(yield func(from, to int64) bool) { yield(0, used) })
	return err
}

// fillRanges sets the bytes of rising ranges of the used part of the area to 0xff, and returns how many bits were clear. bmMu
// is held.
func (s *Store) fillRanges(l Layout, used int64, ranges func(yield func(from, to int64) bool)) (filled int64, err error) {
	buf := alignedBuf(ioBytes)
	var at, n int64 // the part of the area in buf
	flush := func() error {
		if n == 0 {
			return nil
		}
		return writeAt(s.md, buf[:n], l.Bitmap+at, "bitmap")
	}
	for from, to := range ranges {
		for from < to {
			if n == 0 || from < at || from >= at+n {
				if err := flush(); err != nil {
					return filled, err
				}
				at = from / ioBytes * ioBytes
				n = min(ioBytes, used-at)
				if err := readAt(s.md, buf[:n], l.Bitmap+at, "bitmap"); err != nil {
					return filled, err
				}
			}
			part := buf[from-at : min(to-at, n)]
			for i, c := range part {
				filled += int64(8 - bits.OnesCount8(c))
				part[i] = 0xff
			}
			from += int64(len(part))
		}
	}
	if err := flush(); err != nil {
		return filled, err
	}
	return filled, syncDev(s.md, "bitmap")
}
