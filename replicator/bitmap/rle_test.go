package bitmap

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"errors"
	"math/rand/v2"
	"os"
	"slices"
	"testing"
)

func TestGoldenRLE(t *testing.T) {
	text, err := os.ReadFile("testdata/rle.json")
	if err != nil {
		t.Fatal(err)
	}
	var vectors []struct {
		Note    string
		Runs    [][2]int64
		Payload string
	}
	if err := json.Unmarshal(text, &vectors); err != nil {
		t.Fatal(err)
	}
	const bitsMax = 1 << 27 // larger vectors need gigabytes; their codewords are checked below
	for _, v := range vectors {
		want, err := hex.DecodeString(v.Payload)
		if err != nil {
			t.Fatal(err)
		}
		var total int64
		for _, r := range v.Runs {
			total += r[1]
		}
		if total > bitsMax {
			code, size := codeword(uint64(total))
			var got []byte
			for i := uint(0); i < (size+7)/8; i++ {
				got = append(got, byte(code>>(8*i)))
			}
			if !bytes.Equal(got, want[1:]) {
				t.Errorf("%s: codeword %x, want %x", v.Note, got, want[1:])
			}
			continue
		}
		ref := New(total)
		pos := int64(0)
		for _, r := range v.Runs {
			if r[0] == 1 {
				ref.Set(pos, pos+r[1]-1)
			}
			pos += r[1]
		}
		got := New(total)
		next, err := got.OrRLE(want, 0)
		if err != nil || next != total || !slices.Equal(got.Words(), ref.Words()) {
			t.Errorf("%s: decoded to %v, next %d, error %v", v.Note, got, next, err)
		}
		// The kernel's pad bits and ours agree, so encoding gives the same bytes.
		enc, next, ok := ref.EncodeRLE(nil, 0, 4088)
		if ok && (next != total || !bytes.Equal(enc, want)) {
			t.Errorf("%s: encoded to %x, next %d, want %x", v.Note, enc, next, want)
		}
		if !ok && int64(len(want)) <= wordsFor(total)*8 {
			t.Errorf("%s: not encoded", v.Note)
		}
	}
}

func TestCodewordsAtTheEdges(t *testing.T) {
	for i := range levels {
		l := &levels[i]
		for _, n := range []uint64{l.base, l.max()} {
			code, size := codeword(n)
			if size != l.total {
				t.Errorf("run %#x: %d bits, want %d", n, size, l.total)
			}
			back := &levels[levelOf[byte(code)]]
			if back != l || code>>l.prefixBits+l.base != n {
				t.Errorf("run %#x does not come back", n)
			}
		}
	}
}

// randomRuns fills a bitmap with runs of very different lengths.
func randomRuns(rng *rand.Rand, size int64) *Bitmap {
	b := New(size)
	longest := 1 << (1 + rng.IntN(17))
	for pos, v := int64(0), rng.IntN(2) == 0; pos < size; v = !v {
		n := 1 + rng.Int64N(int64(longest))
		if v {
			b.Set(pos, pos+n-1)
		}
		pos += n
	}
	return b
}

// transfer sends src's bits to dst as a peer would: compressed where that is shorter, else plain words.
func transfer(t *testing.T, src, dst *Bitmap, maxBytes int) (compressed, plain int) {
	t.Helper()
	buf := make([]byte, 0, maxBytes)
	for pos := int64(0); pos < src.Bits(); {
		payload, next, ok := src.EncodeRLE(buf, pos, maxBytes)
		if !ok {
			first, n := src.PlainWords(pos, maxBytes)
			for i := first; i < first+n; i++ {
				dst.OrWord(i, src.Words()[i])
			}
			pos = int64(first+n) * 64
			plain++
			continue
		}
		if len(payload) > maxBytes || next <= pos {
			t.Fatalf("payload of %d bytes, position %d to %d", len(payload), pos, next)
		}
		got, err := dst.OrRLE(payload, pos)
		if err != nil || got != next {
			t.Fatalf("position %d: decoder went to %d, encoder to %d: %v", pos, got, next, err)
		}
		pos = next
		compressed++
	}
	return compressed, plain
}

func TestTransferGivesTheUnion(t *testing.T) {
	var compressed, plain int
	for seed := range uint64(300) {
		rng := rand.New(rand.NewPCG(seed, 2))
		size := 1 + rng.Int64N(300000)
		src, dst := randomRuns(rng, size), randomRuns(rng, size)
		want := New(size)
		for i := range want.Words() {
			want.OrWord(i, src.Words()[i]|dst.Words()[i])
		}
		c, p := transfer(t, src, dst, 16+rng.IntN(4073))
		compressed, plain = compressed+c, plain+p
		if !slices.Equal(dst.Words(), want.Words()) || dst.Count() != want.Count() {
			t.Fatalf("seed %d: %v, want %v", seed, dst, want)
		}
	}
	if compressed < 100 || plain < 100 {
		t.Errorf("%d compressed and %d plain packets: one is hardly tested", compressed, plain)
	}
}

func TestBadPayloads(t *testing.T) {
	for name, p := range map[string]string{
		"empty":                       "",
		"one byte":                    "b2",
		"another encoding":            "b37fc51e00",
		"a run past the end":          "b27fc51e00",
		"a codeword cut short":        "827f",
		"a run of zeros past the end": "327fc51e00",
		"pad leaves less than a code": "f200",
	} {
		raw, err := hex.DecodeString(p)
		if err != nil {
			t.Fatal(err)
		}
		b := New(1000)
		if _, err := b.OrRLE(raw, 0); !errors.Is(err, ErrRLE) {
			t.Errorf("%s: error %v", name, err)
		}
	}
	if _, err := New(10).OrRLE([]byte{2, 0}, 11); !errors.Is(err, ErrRLE) {
		t.Errorf("position past the end: error %v", err)
	}
}

func FuzzOrRLE(f *testing.F) {
	f.Add([]byte{0xb2, 0x7f, 0xc5, 0x1e, 0x00}, uint32(16374), uint16(0))
	f.Add([]byte{0xe2, 0xbf, 0, 0, 0, 0, 0}, uint32(1<<22), uint16(3))
	f.Add([]byte{0x82, 0xff, 0, 0, 0, 0, 0, 0, 0}, uint32(1<<10), uint16(0))
	f.Fuzz(func(t *testing.T, payload []byte, size uint32, from uint16) {
		b := New(int64(size % (1 << 23)))
		next, err := b.OrRLE(payload, int64(from))
		if err == nil && (next < int64(from) || next > b.Bits()) {
			t.Fatalf("position %d of %d", next, b.Bits())
		}
		var n int64
		for p := b.NextSet(0); p >= 0; p = b.NextSet(p) {
			e := b.NextClear(p)
			n, p = n+e-p, e
			if p >= b.Bits() {
				break
			}
		}
		if n != b.Count() {
			t.Fatalf("%d bits set, counted %d", n, b.Count())
		}
		if err != nil {
			return
		}
		// What was decoded, encoded again, decodes to the same bits.
		again := New(b.Bits())
		for pos := int64(from); pos < next; {
			enc, to, ok := b.EncodeRLE(nil, pos, 1<<20)
			if !ok {
				break
			}
			if got, err := again.OrRLE(enc, pos); err != nil || got != to {
				t.Fatalf("position %d: %d, want %d: %v", pos, got, to, err)
			}
			pos = to
			if pos == b.Bits() && !slices.Equal(again.Words(), b.Words()) {
				t.Fatal("round trip differs")
			}
		}
	})
}

func BenchmarkEncodeRLE(b *testing.B) {
	m := randomRuns(rand.New(rand.NewPCG(1, 1)), 1<<22)
	buf := make([]byte, 0, 4096)
	b.SetBytes(1 << 19)
	for b.Loop() {
		for pos := int64(0); pos < m.Bits(); {
			_, next, ok := m.EncodeRLE(buf, pos, 4088)
			if !ok {
				first, n := m.PlainWords(pos, 4088)
				next = int64(first+n) * 64
			}
			pos = next
		}
	}
}
