package bitmap

import (
	"fmt"
	"math/bits"
)

// BlockSize is the number of bytes of storage one bit stands for.
const BlockSize = 4096 // bytes

// BlockBits is the number of bits in one on-disk block of one slot (4 KiB of bitmap, 128 MiB of storage).
const BlockBits = 32768

const (
	wordBits   = 64
	blockWords = BlockBits / wordBits
)

// Bitmap is one peer's set of dirty blocks. It is not safe for concurrent use. Bit numbers outside 0..Bits()-1 are
// clamped or ignored, never an error. Memory is Bits()/8 bytes; no method except New and Resize allocates.
type Bitmap struct {
	words   []uint64 // bit n is words[n/64] bit n%64; bits past the end are zero
	changed []uint64 // one bit for each on-disk block
	bits    int64
	count   int64 // set bits
}

// New returns a bitmap of the given number of bits, all clear, no block changed. A negative number counts as 0.
func New(bits int64) *Bitmap {
	b := &Bitmap{bits: max(bits, 0)}
	b.words = make([]uint64, wordsFor(b.bits))
	b.changed = make([]uint64, changedWordsFor(b.bits))
	return b
}

// BitsFor returns the number of bits for a volume of size bytes: one for each block begun.
func BitsFor(size int64) int64 { return (size + BlockSize - 1) / BlockSize }

func wordsFor(bits int64) int64        { return (bits + wordBits - 1) / wordBits }
func blocksFor(bits int64) int64       { return (bits + BlockBits - 1) / BlockBits }
func changedWordsFor(bits int64) int64 { return (blocksFor(bits) + wordBits - 1) / wordBits }

// Bits returns the number of bits.
func (b *Bitmap) Bits() int64 { return b.bits }

// Count returns the number of set bits. It costs nothing.
func (b *Bitmap) Count() int64 { return b.count }

// Blocks returns the number of on-disk blocks the bitmap fills.
func (b *Bitmap) Blocks() int64 { return blocksFor(b.bits) }

// Words returns the live words, to be read only: bit n is word n/64 bit n%64. Bits past the end are zero.
func (b *Bitmap) Words() []uint64 { return b.words }

// Test says whether bit i is set; false outside the bitmap.
func (b *Bitmap) Test(i int64) bool {
	if i < 0 || i >= b.bits {
		return false
	}
	return b.words[i/wordBits]>>(i%wordBits)&1 != 0
}

// clamp returns the range cut to the bitmap, and false when nothing is left of it.
func (b *Bitmap) clamp(first, last int64) (int64, int64, bool) {
	first, last = max(first, 0), min(last, b.bits-1)
	return first, last, first <= last
}

// masks returns the word indexes of first and last and the bits of interest in those two words.
func masks(first, last int64) (fw, lw int64, fm, lm uint64) {
	return first / wordBits, last / wordBits, ^uint64(0) << (first % wordBits), ^uint64(0) >> (wordBits - 1 - last%wordBits)
}

// Set sets the bits first..last (both included, clamped) and returns how many of them were clear.
func (b *Bitmap) Set(first, last int64) int64 {
	first, last, ok := b.clamp(first, last)
	if !ok {
		return 0
	}
	fw, lw, fm, lm := masks(first, last)
	if fw == lw {
		return b.setWord(fw, fm&lm)
	}
	n := b.setWord(fw, fm)
	for w := fw + 1; w < lw; w++ {
		n += b.setWord(w, ^uint64(0))
	}
	return n + b.setWord(lw, lm)
}

func (b *Bitmap) setWord(w int64, mask uint64) int64 {
	added := mask &^ b.words[w]
	if added == 0 {
		return 0
	}
	b.words[w] |= added
	n := int64(bits.OnesCount64(added))
	b.count += n
	b.touch(w)
	return n
}

// Clear clears the bits first..last (both included, clamped) and returns how many of them were set.
func (b *Bitmap) Clear(first, last int64) int64 {
	first, last, ok := b.clamp(first, last)
	if !ok {
		return 0
	}
	fw, lw, fm, lm := masks(first, last)
	if fw == lw {
		return b.clearWord(fw, fm&lm)
	}
	n := b.clearWord(fw, fm)
	for w := fw + 1; w < lw; w++ {
		n += b.clearWord(w, ^uint64(0))
	}
	return n + b.clearWord(lw, lm)
}

func (b *Bitmap) clearWord(w int64, mask uint64) int64 {
	gone := mask & b.words[w]
	if gone == 0 {
		return 0
	}
	b.words[w] &^= gone
	n := int64(bits.OnesCount64(gone))
	b.count -= n
	b.touch(w)
	return n
}

// touch marks the on-disk block of word w as changed.
func (b *Bitmap) touch(w int64) {
	blk := w / blockWords
	b.changed[blk/wordBits] |= 1 << (blk % wordBits)
}

// SetAll sets every bit.
func (b *Bitmap) SetAll() { b.Set(0, b.bits-1) }

// ClearAll clears every bit.
func (b *Bitmap) ClearAll() { b.Clear(0, b.bits-1) }

// NextSet returns the first set bit at or after from, -1 when there is none.
func (b *Bitmap) NextSet(from int64) int64 {
	from = max(from, 0)
	if from >= b.bits || b.count == 0 {
		return -1
	}
	w := from / wordBits
	if x := b.words[w] >> (from % wordBits); x != 0 {
		return from + int64(bits.TrailingZeros64(x))
	}
	for i, x := range b.words[w+1:] {
		if x != 0 {
			return (w+1+int64(i))*wordBits + int64(bits.TrailingZeros64(x))
		}
	}
	return -1
}

// NextClear returns the first clear bit at or after from, Bits() when there is none.
func (b *Bitmap) NextClear(from int64) int64 {
	from = max(from, 0)
	if from >= b.bits {
		return b.bits
	}
	w := from / wordBits
	if x := ^b.words[w] >> (from % wordBits); x != 0 {
		return min(from+int64(bits.TrailingZeros64(x)), b.bits)
	}
	for i, x := range b.words[w+1:] {
		if x != ^uint64(0) {
			return min((w+1+int64(i))*wordBits+int64(bits.TrailingZeros64(^x)), b.bits)
		}
	}
	return b.bits
}

// CountRange returns the number of set bits in first..last (both included, clamped).
func (b *Bitmap) CountRange(first, last int64) int64 {
	first, last, ok := b.clamp(first, last)
	if !ok {
		return 0
	}
	fw, lw, fm, lm := masks(first, last)
	if fw == lw {
		return int64(bits.OnesCount64(b.words[fw] & fm & lm))
	}
	n := bits.OnesCount64(b.words[fw]&fm) + bits.OnesCount64(b.words[lw]&lm)
	for _, x := range b.words[fw+1 : lw] {
		n += bits.OnesCount64(x)
	}
	return int64(n)
}

// tailMask returns the bits of word w that exist.
func (b *Bitmap) tailMask(w int64) uint64 {
	if r := b.bits % wordBits; r != 0 && w == int64(len(b.words))-1 {
		return 1<<r - 1
	}
	return ^uint64(0)
}

// OrWord sets the bits of w in word i; bits past the end are dropped, a word past the end is ignored.
func (b *Bitmap) OrWord(i int, w uint64) {
	if i < 0 || i >= len(b.words) {
		return
	}
	b.setWord(int64(i), w&b.tailMask(int64(i)))
}

// LoadWord replaces word i by one read from disk: the block does not count as changed. Bits past the end are dropped.
func (b *Bitmap) LoadWord(i int, w uint64) {
	if i < 0 || i >= len(b.words) {
		return
	}
	w &= b.tailMask(int64(i))
	b.count += int64(bits.OnesCount64(w) - bits.OnesCount64(b.words[i]))
	b.words[i] = w
}

// Resize changes the number of bits and keeps the contents. New bits are set when setNew, else clear. The block at the
// old end, every new block and the block at a new, nearer end count as changed: what the disk holds there is unknown.
func (b *Bitmap) Resize(bits int64, setNew bool) {
	bits = max(bits, 0)
	old := b.bits
	if bits == old {
		return
	}
	if bits < old {
		b.Clear(bits, old-1)
	}
	b.words = resized(b.words, wordsFor(bits))
	b.changed = resized(b.changed, changedWordsFor(bits))
	b.bits = bits
	if bits > old && setNew {
		b.Set(old, bits-1)
	}
	for blk := min(old, max(bits-1, 0)) / BlockBits; blk < blocksFor(bits); blk++ {
		b.changed[blk/wordBits] |= 1 << (blk % wordBits)
	}
	if r := blocksFor(bits) % wordBits; r != 0 { // forget blocks that are no more
		b.changed[len(b.changed)-1] &= 1<<r - 1
	}
}

func resized(s []uint64, n int64) []uint64 {
	t := make([]uint64, n)
	copy(t, s)
	return t
}

// Changed calls fn for every on-disk block of the slot that changed since MarkWritten, in rising order. fn may call
// MarkWritten for the block it was given.
func (b *Bitmap) Changed(fn func(block int64)) {
	for i := range b.changed {
		for x := b.changed[i]; x != 0; x &= x - 1 {
			fn(int64(i)*wordBits + int64(bits.TrailingZeros64(x)))
		}
	}
}

// ChangedBlock says whether the block changed since MarkWritten.
func (b *Bitmap) ChangedBlock(block int64) bool {
	if block < 0 || block >= b.Blocks() {
		return false
	}
	return b.changed[block/wordBits]>>(block%wordBits)&1 != 0
}

// MarkWritten says that the disk holds the block as it is now in memory. Call it when the words are copied for the write;
// if the write then fails, MarkChanged takes it back.
func (b *Bitmap) MarkWritten(block int64) {
	if block >= 0 && block < b.Blocks() {
		b.changed[block/wordBits] &^= 1 << (block % wordBits)
	}
}

// MarkChanged makes the block count as changed, for instance because writing it failed.
func (b *Bitmap) MarkChanged(block int64) {
	if block >= 0 && block < b.Blocks() {
		b.changed[block/wordBits] |= 1 << (block % wordBits)
	}
}

// String gives the size and the number of set bits, for logs and test failures.
func (b *Bitmap) String() string { return fmt.Sprintf("%d of %d bits set", b.count, b.bits) }
