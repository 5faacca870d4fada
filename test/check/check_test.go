package check

import (
	"bytes"
	"context"
	"errors"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hawser-ha/hawser/test/check/nbdclient"
)

const testSize = 4 << 20

// memory is a volume that obeys, except where a fault is planted.
type memory struct {
	mu     sync.Mutex
	data   []byte
	stable []byte
	dead   bool
	rng    *rand.Rand
	// The planted faults.
	dropOneIn  int  // an acknowledged write is forgotten
	tearOneIn  int  // only the first half is stored
	shiftOneIn int  // stored at the wrong place
	staleReads bool // reads return what was there when the volume was opened last
	old        []byte
	failOneIn  int // answers EIO, having written or not
}

func newMemory() *memory {
	return &memory{data: make([]byte, testSize), stable: make([]byte, testSize), rng: rand.New(rand.NewPCG(3, 4))}
}

func (m *memory) target(context.Context) (Device, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.dead = false
	return memDevice{m}, nil
}

// crash ends all sessions.
func (m *memory) crash() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.dead = true
	m.old = bytes.Clone(m.data)
}

type memDevice struct{ *memory }

func (m *memory) one(in int) bool { return in > 0 && m.rng.IntN(in) == 0 }

func (m memDevice) Size() int64  { return testSize }
func (m memDevice) Close() error { return nil }

func (m memDevice) ReadAt(p []byte, off int64) (int, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.dead {
		return 0, nbdclient.ErrLost
	}
	from := m.data
	if m.staleReads && m.old != nil {
		from = m.old
	}
	return copy(p, from[off:]), nil
}

func (m memDevice) WriteAt(p []byte, off int64, fua bool) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.dead {
		if m.rng.IntN(2) == 0 {
			copy(m.data[off:], p)
		}
		return nbdclient.ErrLost
	}
	switch {
	case m.one(m.dropOneIn):
		return nil
	case m.one(m.tearOneIn):
		copy(m.data[off:], p[:len(p)-BlockSize/2])
		return nil
	case m.one(m.shiftOneIn):
		off ^= BlockSize
		copy(m.data[off:], p)
		return nil
	case m.one(m.failOneIn):
		if m.rng.IntN(2) == 0 {
			copy(m.data[off:], p)
		}
		return nbdclient.EIO
	}
	copy(m.data[off:], p)
	if fua {
		copy(m.stable[off:], p)
	}
	return nil
}

func (m memDevice) Flush() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.dead {
		return nbdclient.ErrLost
	}
	copy(m.stable, m.data)
	return nil
}

// load runs a workload over a volume that crashes a few times.
func load(t *testing.T, h *History, m *memory, o Options) Stats {
	t.Helper()
	o.Targets, o.History = []Target{m.target}, h
	o.Runs, o.RunLen = 16, 8
	w, err := Start(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	for range 3 {
		before := w.Stats()
		for done := before; done.Writes < before.Writes+300 || done.Reads < before.Reads+100; done = w.Stats() {
			select {
			case <-t.Context().Done():
				t.Fatal("no progress")
			case <-time.After(time.Millisecond):
			}
		}
		m.crash()
	}
	return w.Stop()
}

func replica(name string, data []byte) Replica { return Replica{name, bytes.NewReader(data)} }

func TestACleanVolumePasses(t *testing.T) {
	for name, o := range map[string]Options{
		"each writer its own blocks": {Writers: 3, Seed: 1},
		"all writers all blocks":     {Writers: 3, Shared: true, Seed: 2},
	} {
		t.Run(name, func(t *testing.T) {
			h, m := NewHistory(nil), newMemory()
			stats := load(t, h, m, o)
			if stats.Broken == 0 || stats.Flushes == 0 {
				t.Fatalf("nothing broke or nothing was flushed: %+v", stats)
			}
			for round := range 2 {
				v, err := Verify(t.Context(), h, []Replica{replica("a", m.data), replica("b", m.data)}, Rules{Size: testSize, Identical: true})
				if err != nil {
					t.Fatal(err)
				}
				if err := v.Err(); err != nil || v.Acked == 0 || v.Ordered == 0 || v.ReadOps == 0 {
					t.Fatalf("%s: %v", v, err)
				}
				if round == 0 { // another life on what was found
					h.Rebase(v)
					load(t, h, m, o)
				}
			}
		})
	}
}

func TestErrorsTheServerAnsweredAreNotLosses(t *testing.T) {
	h, m := NewHistory(nil), newMemory()
	m.failOneIn = 20
	stats := load(t, h, m, Options{Seed: 3})
	if stats.Errors[nbdclient.EIO.Error()] == 0 {
		t.Fatalf("%+v", stats)
	}
	v, err := Verify(t.Context(), h, []Replica{replica("a", m.data)}, Rules{Size: testSize})
	if err != nil || v.Err() != nil {
		t.Fatal(err, v.Err())
	}
}

// written is a block that holds an acknowledged write, and an older content of it.
func written(t *testing.T, h *History) (block int64, older, newer Value) {
	t.Helper()
	last := map[int64]Op{}
	for _, o := range h.Ops() {
		if o.Kind != OpWrite {
			continue
		}
		if p, ok := last[o.Block]; ok && o.Outcome == OK && p.Outcome == OK {
			block, older, newer = o.Block, p.Value, o.Value
		}
		last[o.Block] = o
	}
	if newer == (Value{}) || last[block].Value != newer {
		for b, o := range last { // the last write of a block, over nothing
			if o.Outcome == OK {
				return b, Value{}, o.Value
			}
		}
		t.Fatal("no block was written")
	}
	return block, older, newer
}

func TestThePlantedViolationIsFound(t *testing.T) {
	type plant struct {
		during func(m *memory)
		after  func(t *testing.T, h *History, a, b []byte)
		rules  Rules
		want   string
	}
	for name, p := range map[string]plant{
		"acknowledged writes are dropped": {during: func(m *memory) { m.dropOneIn = 8 }, want: "lost"},
		"writes are torn":                 {during: func(m *memory) { m.tearOneIn = 50 }, want: "torn"},
		"writes go to the wrong place":    {during: func(m *memory) { m.shiftOneIn = 50 }, want: "torn"},
		"reads come from an old copy":     {during: func(m *memory) { m.staleReads = true }, want: "stale"},
		"one replica misses the last write of a block": {after: func(t *testing.T, h *History, _, b []byte) {
			block, older, _ := written(t, h)
			if older == (Value{}) {
				clear(b[block*BlockSize : (block+1)*BlockSize])
				return
			}
			Fill(b[block*BlockSize:(block+1)*BlockSize], older, block*BlockSize)
		}, want: "lost"},
		"a block holds a number that was never written": {after: func(t *testing.T, h *History, a, _ []byte) {
			block, _, v := written(t, h)
			v.Seq += 1 << 40
			Fill(a[block*BlockSize:(block+1)*BlockSize], v, block*BlockSize)
		}, want: "unissued"},
		"a block holds another block's data": {after: func(t *testing.T, h *History, a, _ []byte) {
			block, _, v := written(t, h)
			Fill(a[block*BlockSize:(block+1)*BlockSize], v, (block+1)*BlockSize)
		}, want: "torn"},
		"one bit is wrong": {after: func(t *testing.T, h *History, a, _ []byte) {
			block, _, _ := written(t, h)
			a[block*BlockSize+1000] ^= 4
		}, want: "torn"},
		"half a block is of an older write": {after: func(t *testing.T, h *History, a, _ []byte) {
			block, older, _ := written(t, h)
			old := make([]byte, BlockSize)
			Fill(old, older, block*BlockSize)
			copy(a[block*BlockSize+2048:(block+1)*BlockSize], old[2048:])
		}, want: "torn"},
		"replicas differ where nobody wrote": {after: func(_ *testing.T, _ *History, _, b []byte) {
			b[testSize-1] ^= 1
		}, rules: Rules{Identical: true}, want: "differ"},
	} {
		t.Run(name, func(t *testing.T) {
			h, m := NewHistory(nil), newMemory()
			if p.during != nil {
				p.during(m)
			}
			load(t, h, m, Options{Seed: 7, Reads: 40})
			a, b := bytes.Clone(m.data), bytes.Clone(m.data)
			if p.after != nil {
				p.after(t, h, a, b)
			}
			p.rules.Size = testSize
			v, err := Verify(t.Context(), h, []Replica{replica("a", a), replica("b", b)}, p.rules)
			if err != nil {
				t.Fatal(err)
			}
			if v.Err() == nil || v.Count[p.want] == 0 {
				t.Fatalf("found %v, want %s", v.Count, p.want)
			}
			if !strings.Contains(v.Err().Error(), p.want) {
				t.Error(v.Err())
			}
		})
	}
}

func TestAfterAPowerCutOnlyWhatWasFlushedMustBeThere(t *testing.T) {
	h, m := NewHistory(nil), newMemory()
	load(t, h, m, Options{Seed: 9, Flushes: 10})
	c := h.client()
	last, data := h.next(c), make([]byte, BlockSize)
	id := h.invoke([]Op{{Kind: OpWrite, Client: c, Block: 3, Value: last}})
	Fill(data, last, 3*BlockSize)
	copy(m.data[3*BlockSize:], data)
	h.finish(id, 1, OK, nil) // and nobody flushes it
	v, err := Verify(t.Context(), h, []Replica{replica("a", m.stable)}, Rules{Size: testSize, FlushedOnly: true})
	if err != nil || v.Err() != nil {
		t.Fatal(err, v.Err())
	}
	if v, err = Verify(t.Context(), h, []Replica{replica("a", m.stable)}, Rules{Size: testSize}); err != nil || v.Count["lost"] == 0 {
		t.Errorf("%v %v: unflushed writes are not missed", err, v)
	}
	clear(m.stable)
	if v, err = Verify(t.Context(), h, []Replica{replica("a", m.stable)}, Rules{Size: testSize, FlushedOnly: true}); err != nil || v.Count["lost"] == 0 {
		t.Errorf("%v %v: flushed writes are not missed", err, v)
	}
}

func TestLossIsForgivenOnlyInTheSpanOfTheRule(t *testing.T) {
	h := NewHistory(nil)
	c := h.client()
	var vals []Value
	for range 2 {
		v := h.next(c)
		id := h.invoke([]Op{{Kind: OpWrite, Client: c, Block: 1, Value: v}})
		h.finish(id, 1, OK, nil)
		vals = append(vals, v)
	}
	data := make([]byte, 2*BlockSize)
	Fill(data[BlockSize:], vals[0], BlockSize)
	last := h.Ops()[1]
	for _, tc := range []struct {
		lossy []Interval
		lost  int
	}{
		{nil, 1},
		{[]Interval{{last.Return, last.Return}}, 0},
		{[]Interval{{last.Return + 1, forever}}, 1},
	} {
		v, err := Verify(t.Context(), h, []Replica{replica("a", data)}, Rules{Size: int64(len(data)), Lossy: tc.lossy})
		if err != nil || v.Count["lost"] != tc.lost {
			t.Errorf("lossy %v: %v %v, want %d lost", tc.lossy, err, v, tc.lost)
		}
	}
}

// A flush on a connection to the next server says nothing about what the last one had not written.
func TestAFlushCoversItsOwnSession(t *testing.T) {
	for _, tc := range []struct {
		again bool
		lost  int
	}{{false, 1}, {true, 0}} {
		h := NewHistory(nil)
		c := h.client()
		h.session(c)
		id := h.invoke([]Op{{Kind: OpWrite, Client: c, Block: 0, Value: h.next(c)}})
		h.finish(id, 1, OK, nil)
		if tc.again {
			h.session(c)
		}
		id = h.invoke([]Op{{Kind: OpFlush, Client: c}})
		h.finish(id, 1, OK, nil)
		v, err := Verify(t.Context(), h, []Replica{replica("a", make([]byte, BlockSize))}, Rules{Size: BlockSize, FlushedOnly: true})
		if err != nil || v.Count["lost"] != tc.lost {
			t.Errorf("another session %t: %v %v, want %d lost", tc.again, err, v, tc.lost)
		}
	}
}

// What was lost with its session may appear until the next session, and not after: an old server must be fenced off.
func TestALostWriteMayNotAppearAfterTheNextSession(t *testing.T) {
	for _, tc := range []struct {
		how     Outcome
		session bool
		want    int
	}{
		{Unknown, true, 1}, {Unknown, false, 0}, {Open, true, 0},
	} {
		h := NewHistory(nil)
		c := h.client()
		first := h.next(c)
		id := h.invoke([]Op{{Kind: OpWrite, Client: c, Block: 0, Value: first}})
		h.finish(id, 1, tc.how, nil)
		if tc.session {
			h.session(c)
		}
		id = h.invoke([]Op{{Kind: OpWrite, Client: c, Block: 0, Value: h.next(c)}})
		h.finish(id, 1, OK, nil)
		data := make([]byte, BlockSize)
		Fill(data, first, 0)
		v, err := Verify(t.Context(), h, []Replica{replica("a", data)}, Rules{Size: BlockSize})
		if err != nil || v.Count["lost"] != tc.want {
			t.Errorf("%c, session %t: %v %v, want %d lost", tc.how, tc.session, err, v, tc.want)
		}
	}
}

// Two reads that see two concurrent writes in opposite orders: each is not stale, together they have no order.
func TestReadsThatGoBackAreFoundByOrder(t *testing.T) {
	h := NewHistory(nil)
	a, b := Value{1, 1}, Value{2, 1}
	h.ops = []Op{
		{Kind: OpWrite, Outcome: OK, Client: 1, Value: a, Invoke: 10, Return: 100},
		{Kind: OpWrite, Outcome: OK, Client: 2, Value: b, Invoke: 10, Return: 100},
		{Kind: OpRead, Outcome: OK, Client: 3, Value: a, Invoke: 20, Return: 30},
		{Kind: OpRead, Outcome: OK, Client: 3, Value: b, Invoke: 40, Return: 50},
		{Kind: OpRead, Outcome: OK, Client: 3, Value: a, Invoke: 60, Return: 70},
	}
	v, err := Verify(t.Context(), h, nil, Rules{})
	if err != nil || v.Count["order"] != 1 || v.Count["stale"] != 0 {
		t.Fatal(err, v)
	}
}

func TestTheLogJudgesAsTheHistory(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	h, m := NewHistory(f), newMemory()
	m.failOneIn = 100
	load(t, h, m, Options{Seed: 11})
	if err := errors.Join(h.Flush(), f.Close()); err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	again, err := LoadHistory(bytes.NewReader(append(data, "i 99"...))) // a torn last line
	if err != nil {
		t.Fatal(err)
	}
	if got, want := again.Ops(), h.Ops(); !slices.Equal(got, want) {
		t.Fatalf("%d operations of %d, or others", len(got), len(want))
	}
	v, err := Verify(t.Context(), again, []Replica{replica("a", m.data)}, Rules{Size: testSize})
	if err != nil || v.Err() != nil {
		t.Fatal(err, v.Err())
	}
	if _, err := LoadHistory(strings.NewReader("nonsense\nn 1 1\n")); err == nil {
		t.Error("a damaged log is read")
	}
}

func TestFileTargetWithDirectIO(t *testing.T) {
	path := filepath.Join(t.TempDir(), "disk")
	if err := os.WriteFile(path, make([]byte, testSize), 0o600); err != nil {
		t.Fatal(err)
	}
	h := NewHistory(nil)
	w, err := Start(t.Context(), Options{Targets: []Target{File(path, true)}, History: h, Runs: 8})
	if err != nil {
		t.Fatal(err)
	}
	for w.Stats().Writes < 50 && w.Stats().Failures() == 0 {
		select {
		case <-t.Context().Done():
		case <-time.After(time.Millisecond):
		}
	}
	if st := w.Stop(); st.Failures() > 0 {
		t.Fatalf("%+v", st)
	}
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	v, err := Verify(t.Context(), h, []Replica{{"file", f}}, Rules{Size: testSize})
	if err != nil || v.Err() != nil {
		t.Fatal(err, v.Err())
	}
}
