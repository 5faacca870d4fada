package actlog

import (
	"errors"
	"flag"
	"math/rand/v2"
	"slices"
	"testing"
)

var seedFlag = flag.Int64("seed", -1, "run only this seed")

// ring is the activity log on disk.
type ring struct {
	blocks              [][]byte
	stripes, stripeSize int
}

func newRing(stripes, stripeSize int) *ring {
	r := &ring{stripes: stripes, stripeSize: stripeSize}
	for range stripes * stripeSize {
		var b [BlockSize]byte
		InitBlock(&b)
		r.blocks = append(r.blocks, b[:])
	}
	return r
}

// torn returns the ring as it is when power goes while tx is written: each sector of the block is old, new or garbage.
func (r *ring) torn(rng *rand.Rand, tx *Transaction) [][]byte {
	var b [BlockSize]byte
	tx.Encode(&b)
	out := slices.Clone(r.blocks)
	at := tx.Block(r.stripes, r.stripeSize)
	mixed := slices.Clone(out[at])
	for s := 0; s < BlockSize; s += 512 {
		switch rng.IntN(3) {
		case 0:
			copy(mixed[s:s+512], b[s:])
		case 1:
			for i := range 512 {
				mixed[s+i] = byte(rng.Uint32())
			}
		}
	}
	out[at] = mixed
	return out
}

func (r *ring) write(tx *Transaction) {
	var b [BlockSize]byte
	tx.Encode(&b)
	r.blocks[tx.Block(r.stripes, r.stripeSize)] = b[:]
}

// world is a Primary with random writes and a disk that may fail.
type world struct {
	seed     int64
	rng      *rand.Rand
	log      *Log
	ring     *ring
	refs     map[uint32]int // references held; writes are in flight if the extent was granted
	granted  map[uint32]int // references of writes that go on
	order    []uint32       // keys of refs in the order of Get, for determinism
	aborted  bool           // an abort was not yet followed by a commit
	maxRefs  int
	universe uint32
}

func (w *world) check(t *testing.T, blocks [][]byte, what string) {
	t.Helper()
	got, err := Replay(blocks)
	if err != nil {
		t.Fatalf("%s: replay: %v", what, err)
	}
	for e, n := range w.granted {
		if _, ok := slices.BinarySearch(got, e); n > 0 && !ok {
			t.Fatalf("%s: extent %d has %d writes in flight and is not in the log: %v\nreplay: go test -run %s -seed=%d",
				what, e, n, got, t.Name(), w.seed)
		}
	}
	if limit := w.log.Slots() + UpdatesMax; len(got) > limit {
		t.Fatalf("%s: %d active extents, %d slots", what, len(got), w.log.Slots())
	}
}

func (w *world) get() {
	if len(w.order) >= w.maxRefs {
		return
	}
	e := w.rng.Uint32N(w.universe)
	active := w.log.Active(e)
	if ok := w.log.Get(e); ok != active {
		panic("Get and Active differ")
	} else if ok {
		w.granted[e]++
	}
	w.refs[e]++
	w.order = append(w.order, e)
}

func (w *world) put() {
	if len(w.order) == 0 {
		return
	}
	i := w.rng.IntN(len(w.order))
	e := w.order[i]
	w.order = slices.Delete(w.order, i, i+1)
	w.refs[e]--
	w.granted[e] = min(w.granted[e], w.refs[e])
	w.log.Put(e)
}

// transaction runs one transaction, with gets and puts going on meanwhile and the disk failing now and then.
func (w *world) transaction(t *testing.T) bool {
	var tx Transaction
	if !w.log.Prepare(&tx) {
		return false
	}
	for _, e := range tx.Evicted {
		if w.granted[e] > 0 {
			t.Fatalf("extent %d is evicted while %d writes are in flight", e, w.granted[e])
		}
	}
	if len(tx.Slots) == 0 || len(tx.Slots) > UpdatesMax || len(tx.Slots) != len(tx.Extents) {
		t.Fatalf("transaction of %d slots, %d extents", len(tx.Slots), len(tx.Extents))
	}
	meanwhile := func() {
		for range w.rng.IntN(10) {
			if w.rng.IntN(2) == 0 {
				w.get()
			} else {
				w.put()
			}
		}
	}
	meanwhile()
	w.check(t, w.ring.blocks, "before the write")
	w.check(t, w.ring.torn(w.rng, &tx), "torn")
	if w.rng.IntN(10) == 0 { // the write fails; perhaps it reached the disk, perhaps not
		if w.rng.IntN(2) == 0 {
			w.ring.write(&tx)
		}
		meanwhile()
		w.check(t, w.ring.blocks, "failed")
		w.log.Abort()
		w.check(t, w.ring.blocks, "aborted")
		w.aborted = true
		return true
	}
	w.ring.write(&tx)
	meanwhile()
	w.check(t, w.ring.blocks, "written")
	for _, e := range w.log.Commit() {
		w.granted[e] = w.refs[e]
		if !w.log.Active(e) {
			t.Fatalf("extent %d is committed and not active", e)
		}
	}
	w.check(t, w.ring.blocks, "committed")
	return true
}

func TestCrashAtAnyPointKeepsEveryExtentInFlight(t *testing.T) {
	for seed := range int64(40) {
		if *seedFlag >= 0 && seed != *seedFlag {
			continue
		}
		rng := rand.New(rand.NewPCG(uint64(seed), 0))
		shapes := [][2]int{{1, 8}, {4, 8}, {1, 16}, {3, 3}}
		shape := shapes[rng.IntN(len(shapes))]
		slots := []int{4, 67, 300, 919, 1237, 2500, 6433}[rng.IntN(7)]
		slots = min(slots, MaxSlots(shape[0]*shape[1]))
		w := &world{seed: seed, rng: rng, ring: newRing(shape[0], shape[1]), log: newLog(slots, shape[0]*shape[1]),
			refs: map[uint32]int{}, granted: map[uint32]int{}, maxRefs: 1 + rng.IntN(min(slots*2, 500)),
			universe: uint32(1 + rng.IntN(slots*3))}
		if n := shape[0] * shape[1]; n&(n-1) == 0 && rng.IntN(4) == 0 {
			w.log.number = 0xfffffffc // wraps
		}
		for range 60 {
			for range rng.IntN(80) {
				w.get()
			}
			for range rng.IntN(60) {
				w.put()
			}
			for w.transaction(t) && rng.IntN(3) > 0 {
			}
		}
		// Liveness: once everything that was granted is put, everything pending gets its turn.
		for len(w.order) > 0 {
			for i := len(w.order) - 1; i >= 0; i-- {
				if e := w.order[i]; w.granted[e] > 0 {
					w.order = slices.Delete(w.order, i, i+1)
					w.refs[e]--
					w.granted[e]--
					w.log.Put(e)
				}
			}
			for w.log.Pending() {
				var tx Transaction
				if !w.log.Prepare(&tx) {
					break
				}
				w.ring.write(&tx)
				for _, e := range w.log.Commit() {
					w.granted[e] = w.refs[e]
				}
			}
			if !slices.ContainsFunc(w.order, func(e uint32) bool { return w.granted[e] > 0 }) && len(w.order) > 0 {
				t.Fatalf("seed %d: %d references wait for ever", seed, len(w.order))
			}
		}
		if w.log.Pending() {
			t.Fatalf("seed %d: extents pending, none referenced", seed)
		}
		got, err := Replay(w.ring.blocks)
		if err != nil || !w.aborted && !slices.Equal(got, w.log.Extents()) {
			t.Fatalf("seed %d: replay gives %d extents, the log has %d: %v", seed, len(got), len(w.log.Extents()), err)
		}
		for _, e := range w.log.Extents() {
			if _, ok := slices.BinarySearch(got, e); !ok && w.log.Active(e) { // not active: its eviction was aborted
				t.Fatalf("seed %d: extent %d is missing", seed, e)
			}
		}
	}
}

// commitAll runs transactions until none can be prepared, and returns what they evicted.
func commitAll(l *Log, r *ring) (evicted []uint32) {
	var tx Transaction
	for l.Prepare(&tx) {
		r.write(&tx)
		evicted = append(evicted, tx.Evicted...)
		l.Commit()
	}
	return evicted
}

func TestRules(t *testing.T) {
	t.Run("references to a pending extent stack up", func(t *testing.T) {
		l, r := New(67, 8), newRing(1, 8)
		if first, second := l.Get(5), l.Get(5); first || second || l.Active(5) {
			t.Fatal("a pending extent is active")
		}
		commitAll(l, r)
		if !l.Active(5) || l.Referenced(5) != 2 || !l.Get(5) {
			t.Fatal("the extent is not active with its references")
		}
	})
	t.Run("the least recently used extent goes first", func(t *testing.T) {
		l, r := newLog(4, 8), newRing(1, 8)
		for e := range uint32(4) {
			l.Get(e)
		}
		commitAll(l, r)
		for _, e := range []uint32{2, 0, 3, 1} {
			l.Put(e)
		}
		l.Get(0) // used again
		l.Put(0)
		l.Get(10)
		l.Get(11)
		if got := commitAll(l, r); !slices.Equal(got, []uint32{2, 3}) {
			t.Fatalf("evicted %v, want 2 and 3", got)
		}
	})
	t.Run("a referenced extent is never evicted", func(t *testing.T) {
		l, r := newLog(2, 8), newRing(1, 8)
		l.Get(1)
		l.Get(2)
		commitAll(l, r)
		l.Get(3)
		var tx Transaction
		if l.Prepare(&tx) || !l.Pending() {
			t.Fatal("prepared without a slot")
		}
		l.Put(2)
		if got := commitAll(l, r); !slices.Equal(got, []uint32{2}) || !l.Active(3) {
			t.Fatalf("evicted %v, want 2", got)
		}
	})
	t.Run("one transaction at a time, of at most 64 extents", func(t *testing.T) {
		l := New(200, 8)
		for e := range uint32(100) {
			l.Get(e)
		}
		var tx, tx2 Transaction
		if !l.Prepare(&tx) || len(tx.Slots) != 64 || tx.Slots[0] != 199 || l.Prepare(&tx2) || !l.Pending() {
			t.Fatalf("first transaction: %d slots", len(tx.Slots))
		}
		if got := l.Commit(); len(got) != 64 || l.Active(64) || !l.Active(63) {
			t.Fatalf("%d committed", len(got))
		}
		if !l.Prepare(&tx2) || len(tx2.Slots) != 36 || tx2.Number != tx.Number+1 {
			t.Fatalf("second transaction: %d slots", len(tx2.Slots))
		}
	})
	t.Run("a pending extent that nobody wants any more costs no transaction", func(t *testing.T) {
		l := New(67, 8)
		l.Get(1)
		l.Put(1)
		var tx Transaction
		if l.Pending() || l.Prepare(&tx) {
			t.Fatal("prepared")
		}
	})
	t.Run("after an abort the same number is used, and an evicted extent is written again before use", func(t *testing.T) {
		l, r := newLog(1, 8), newRing(1, 8)
		l.Get(1)
		commitAll(l, r)
		l.Put(1)
		l.Get(2)
		var tx Transaction
		l.Prepare(&tx)
		n := tx.Number
		r.write(&tx) // it reached the disk, but we were told that it did not
		l.Abort()
		l.Put(2)
		if l.Active(1) || l.Get(1) {
			t.Fatal("extent 1 is active, the disk says otherwise")
		}
		if !l.Prepare(&tx) || tx.Number != n || len(tx.Evicted) != 0 {
			t.Fatalf("retry: %+v", tx)
		}
		r.write(&tx)
		l.Commit()
		if got, err := Replay(r.blocks); err != nil || !slices.Equal(got, []uint32{1}) {
			t.Fatalf("replay: %v, %v", got, err)
		}
	})
	t.Run("slots are limited as by a kernel", func(t *testing.T) {
		for _, c := range [][3]int{{1, 8, 67}, {1237, 8, 1237}, {65534, 8, 6433}, {1 << 20, 1 << 20, 65534}} {
			if got := New(c[0], c[1]).Slots(); got != c[2] {
				t.Errorf("New(%d, %d): %d slots, want %d", c[0], c[1], got, c[2])
			}
		}
	})
	t.Run("counters", func(t *testing.T) {
		l, r := newLog(1, 8), newRing(1, 8)
		l.Get(1)
		commitAll(l, r)
		l.Get(1)
		l.Put(1)
		l.Put(1)
		l.Get(2)
		commitAll(l, r)
		if got, want := l.Stats(), (Stats{Hits: 1, Misses: 2, Transactions: 2, Evictions: 1}); got != want {
			t.Errorf("%+v, want %+v", got, want)
		}
		l.Put(2)
		l.Reset(100, 8)
		if l.Slots() != 100 || l.Active(2) || len(l.Extents()) != 0 {
			t.Error("not empty after Reset")
		}
	})
}

func TestBlockPosition(t *testing.T) {
	for _, c := range []struct{ number, stripes, size, want int }{
		{0, 1, 8, 0}, {9, 1, 8, 1}, {32, 4, 8, 0}, {33, 4, 8, 8}, {34, 4, 8, 16}, {35, 4, 8, 24}, {36, 4, 8, 1},
	} {
		tx := Transaction{Number: uint32(c.number)}
		if got := tx.Block(c.stripes, c.size); got != c.want {
			t.Errorf("transaction %d with %d x %d blocks: block %d, want %d", c.number, c.stripes, c.size, got, c.want)
		}
	}
}

func TestInitBlockChecksum(t *testing.T) {
	var b [BlockSize]byte
	InitBlock(&b)
	if got := blockCRC(b[:]); got != 0x709cc651 {
		t.Errorf("checksum %#x, want 0x709cc651", got)
	}
}

func sample() *Transaction {
	l := New(1237, 8)
	var tx Transaction
	for e := range uint32(30) {
		l.Get(e * 7)
	}
	l.Prepare(&tx)
	return &tx
}

func TestEveryFlippedBitIsDetected(t *testing.T) {
	var upd, empty [BlockSize]byte
	sample().Encode(&upd)
	InitBlock(&empty)
	for _, b := range [][BlockSize]byte{upd, empty} {
		for bit := range BlockSize * 8 {
			b[bit/8] ^= 1 << (bit % 8)
			var tx Transaction
			if _, err := tx.Decode(b[:]); !errors.Is(err, ErrBlock) {
				t.Fatalf("bit %d flipped: %v", bit, err)
			}
			b[bit/8] ^= 1 << (bit % 8)
		}
	}
}

func TestDamageIsNotTakenForACrash(t *testing.T) {
	l, r := New(67, 8), newRing(1, 8)
	for e := range uint32(20) {
		l.Get(e)
		commitAll(l, r)
		l.Put(e)
	}
	// Transactions 12..19 are in the ring; the next goes where 12 is.
	bad := make([]byte, BlockSize)
	with := func(numbers ...int) [][]byte {
		out := slices.Clone(r.blocks)
		for _, n := range numbers {
			out[n%8] = bad
		}
		return out
	}
	for _, c := range []struct {
		name string
		bad  []int
		want error
	}{
		{"nothing is bad", nil, nil},
		{"the block being written is torn", []int{12}, nil},
		{"the newest is torn", []int{19}, nil},
		{"one in the middle is bad", []int{15}, ErrGap},
		{"two are bad", []int{12, 13}, ErrGap},
		{"all are bad", []int{0, 1, 2, 3, 4, 5, 6, 7}, ErrNoLog},
	} {
		if _, err := Replay(with(c.bad...)); !errors.Is(err, c.want) {
			t.Errorf("%s: error %v, want %v", c.name, err, c.want)
		}
	}
	if _, err := Replay(nil); !errors.Is(err, ErrNoLog) {
		t.Errorf("no blocks: error %v", err)
	}
}

func TestHitsDoNotAllocate(t *testing.T) {
	l, r := New(1237, 8), newRing(1, 8)
	for e := range uint32(1237) {
		l.Get(e)
	}
	commitAll(l, r)
	for e := range uint32(1237) {
		l.Put(e)
	}
	i := uint32(0)
	if n := testing.AllocsPerRun(1000, func() {
		i = (i + 7) % 1237
		l.Get(i)
		l.Put(i)
	}); n != 0 {
		t.Errorf("a hit allocates %v times", n)
	}
}

func FuzzDecode(f *testing.F) {
	var b [BlockSize]byte
	sample().Encode(&b)
	f.Add(b[:])
	InitBlock(&b)
	f.Add(b[:])
	f.Fuzz(func(t *testing.T, in []byte) {
		var tx Transaction
		_, _ = tx.Decode(in)
		if len(in) < BlockSize {
			return
		}
		in = slices.Clone(in[:BlockSize])
		// With a good checksum, so that the fields are reached.
		copy(in, []byte{0x69, 0xcb, 0x65, 0xa2})
		c := blockCRC(in)
		in[8], in[9], in[10], in[11] = byte(c>>24), byte(c>>16), byte(c>>8), byte(c)
		if empty, err := tx.Decode(in); err != nil || empty {
			return
		}
		_, _ = Replay([][]byte{in})
		var out [BlockSize]byte
		tx.Encode(&out)
		var again Transaction
		if _, err := again.Decode(out[:]); err != nil {
			t.Fatalf("what was decoded does not encode: %v", err)
		}
		if !slices.Equal(again.Slots, tx.Slots) || !slices.Equal(again.Extents, tx.Extents) || !slices.Equal(again.Context, tx.Context) {
			t.Fatal("round trip differs")
		}
	})
}

func BenchmarkHit(b *testing.B) {
	l, r := New(1237, 8), newRing(1, 8)
	for e := range uint32(1237) {
		l.Get(e)
	}
	commitAll(l, r)
	for i := 0; b.Loop(); i++ {
		e := uint32(i*31) % 1237
		l.Get(e)
		l.Put(e)
	}
}

func BenchmarkMiss(b *testing.B) {
	l := New(1237, 8)
	var tx Transaction
	var block [BlockSize]byte
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		e := uint32(i*31) % 100000
		if !l.Get(e) {
			l.Prepare(&tx)
			tx.Encode(&block)
			l.Commit()
		}
		l.Put(e)
	}
}
