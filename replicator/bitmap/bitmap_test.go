package bitmap

import (
	"math/rand/v2"
	"testing"
)

// naive is the model: one bool for each bit.
type naive []bool

func (n naive) count() (c int64) {
	for _, b := range n {
		if b {
			c++
		}
	}
	return c
}

func (n naive) put(first, last int64, v bool) (changed int64) {
	for i := max(first, 0); i <= last && i < int64(len(n)); i++ {
		if n[i] != v {
			n[i] = v
			changed++
		}
	}
	return changed
}

func (n naive) next(from int64, v bool) int64 {
	for i := max(from, 0); i < int64(len(n)); i++ {
		if n[i] == v {
			return i
		}
	}
	return -1
}

func (n naive) equal(t *testing.T, b *Bitmap, what string) {
	t.Helper()
	if b.Bits() != int64(len(n)) || b.Count() != n.count() {
		t.Fatalf("%s: %v, want %d of %d", what, b, n.count(), len(n))
	}
	for i, v := range n {
		if b.Test(int64(i)) != v {
			t.Fatalf("%s: bit %d is %v", what, i, !v)
		}
	}
	if r := len(n) % 64; r != 0 && b.Words()[len(b.Words())-1]>>r != 0 {
		t.Fatalf("%s: bits past the end are set", what)
	}
}

var sizes = []int64{0, 1, 63, 64, 65, 127, 1000, 4096, 32767, 32768, 32769, 100000}

func TestAgainstModel(t *testing.T) {
	for seed := range uint64(20) {
		rng := rand.New(rand.NewPCG(seed, 0))
		size := sizes[rng.IntN(len(sizes))]
		b, m := New(size), make(naive, size)
		for range 60 {
			span := size + 10
			first := rng.Int64N(span+10) - 10
			last := first + rng.Int64N(min(span, 1<<rng.IntN(18))) - 1
			switch rng.IntN(9) {
			case 0, 1:
				if got, want := b.Set(first, last), m.put(first, last, true); got != want {
					t.Fatalf("seed %d: Set(%d,%d) = %d, want %d", seed, first, last, got, want)
				}
			case 2, 3:
				if got, want := b.Clear(first, last), m.put(first, last, false); got != want {
					t.Fatalf("seed %d: Clear(%d,%d) = %d, want %d", seed, first, last, got, want)
				}
			case 4:
				if got, want := b.NextSet(first), m.next(first, true); got != want {
					t.Fatalf("seed %d: NextSet(%d) = %d, want %d", seed, first, got, want)
				}
				want := m.next(first, false)
				if want < 0 {
					want = size
				}
				if got := b.NextClear(first); got != want {
					t.Fatalf("seed %d: NextClear(%d) = %d, want %d", seed, first, got, want)
				}
			case 5:
				var want int64
				for i := max(first, 0); i <= last && i < size; i++ {
					if m[i] {
						want++
					}
				}
				if got := b.CountRange(first, last); got != want {
					t.Fatalf("seed %d: CountRange(%d,%d) = %d, want %d", seed, first, last, got, want)
				}
			case 6:
				i, w := rng.IntN(int(size/64)+3)-1, rng.Uint64()
				load := rng.IntN(2) == 0
				if load {
					b.LoadWord(i, w)
				} else {
					b.OrWord(i, w)
				}
				for j := range int64(64) {
					if at := int64(i)*64 + j; at >= 0 && at < size {
						m[at] = w>>j&1 != 0 || !load && m[at]
					}
				}
			case 7:
				n := sizes[rng.IntN(len(sizes))]
				setNew := rng.IntN(2) == 0
				b.Resize(n, setNew)
				old := int64(len(m))
				m2 := make(naive, n)
				copy(m2, m)
				if setNew {
					m2.put(old, n-1, true)
				}
				m, size = m2, n
			case 8:
				if rng.IntN(4) == 0 {
					b.SetAll()
					m.put(0, size-1, true)
				} else if rng.IntN(4) == 0 {
					b.ClearAll()
					m.put(0, size-1, false)
				}
			}
		}
		m.equal(t, b, "after all")
	}
}

// A model of the disk: the words of every block as of MarkWritten. What is not reported as changed must equal the disk.
func TestChangedBlocksCoverEveryDifference(t *testing.T) {
	for seed := range uint64(30) {
		rng := rand.New(rand.NewPCG(seed, 1))
		size := 1 + rng.Int64N(5*BlockBits)
		b := New(size)
		disk := make([]uint64, 20*blockWords)
		for step := range 100 {
			first := rng.Int64N(size)
			last := first + rng.Int64N(1<<rng.IntN(17))
			switch rng.IntN(5) {
			case 0, 1:
				b.Set(first, last)
			case 2:
				b.Clear(first, last)
			case 3:
				b.Changed(func(blk int64) {
					if !b.ChangedBlock(blk) {
						t.Fatalf("seed %d: block %d is and is not changed", seed, blk)
					}
					if rng.IntN(2) == 0 {
						return
					}
					part := disk[blk*blockWords:][:blockWords]
					clear(part)
					copy(part, b.Words()[blk*blockWords:])
					b.MarkWritten(blk)
				})
			case 4:
				if rng.IntN(5) == 0 {
					size = 1 + rng.Int64N(8*BlockBits)
					b.Resize(size, rng.IntN(2) == 0)
				}
			}
			for blk := range b.Blocks() {
				if b.ChangedBlock(blk) {
					continue
				}
				for w := blk * blockWords; w < min((blk+1)*blockWords, int64(len(b.Words()))); w++ {
					if b.Words()[w] != disk[w] {
						t.Fatalf("seed %d step %d: block %d differs from the disk but is not changed", seed, step, blk)
					}
				}
			}
		}
	}
}

func TestSetOfSetBitsChangesNothing(t *testing.T) {
	b := New(3 * BlockBits)
	b.Set(10, 20)
	b.MarkWritten(0)
	b.Set(12, 15)
	b.Clear(40, 4000)
	b.OrWord(0, 1<<11)
	b.Changed(func(blk int64) { t.Errorf("block %d counts as changed", blk) })
	b.Set(BlockBits-1, BlockBits)
	var got []int64
	b.Changed(func(blk int64) { got = append(got, blk) })
	if len(got) != 2 || got[0] != 0 || got[1] != 1 {
		t.Errorf("changed blocks %v, want 0 and 1", got)
	}
}

func TestNoAllocation(t *testing.T) {
	b := New(1 << 20)
	dst := make([]byte, 4096)
	b.Set(5000, 6000)
	for name, fn := range map[string]func(){
		"Set":       func() { b.Set(100, 9000) },
		"Clear":     func() { b.Clear(100, 9000) },
		"NextSet":   func() { b.NextSet(7000) },
		"EncodeRLE": func() { b.EncodeRLE(dst, 0, 4088) },
	} {
		if n := testing.AllocsPerRun(100, fn); n != 0 {
			t.Errorf("%s allocates %v times", name, n)
		}
	}
}

func BenchmarkSetClear4K(b *testing.B) {
	m := New(1 << 28) // 1 TiB
	for i := 0; b.Loop(); i++ {
		at := int64(i*7919) & (1<<28 - 1)
		m.Set(at, at)
		m.Clear(at, at)
	}
}

func BenchmarkNextSetEmptyTiB(b *testing.B) {
	m := New(1 << 28)
	m.Set(1<<28-1, 1<<28-1)
	for b.Loop() {
		m.NextSet(0)
	}
}
