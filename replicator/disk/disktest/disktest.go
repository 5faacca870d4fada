// Package disktest holds the conformance test that every disk.Store passes.
package disktest

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/hawser-ha/hawser/replicator/disk"
	"github.com/hawser-ha/hawser/replicator/iobuf"
)

// Size is the number of bytes of the stores that the test asks for.
const Size = 4 << 20

// Run checks the stores that open makes: writable, zeroed and of Size bytes.
func Run(t *testing.T, open func(t *testing.T) disk.Store) {
	for _, c := range []struct {
		rule string
		test func(*testing.T, disk.Store)
	}{
		{"what was written is read, by every way in", readsWhatWasWritten},
		{"a batch ends each request exactly once", batchEnds},
		{"memory may be unaligned", unalignedMemory},
		{"offsets and lengths must be whole blocks inside the disk", refusesBadExtents},
		{"zeroed ranges read as zeroes", zeroes},
		{"discarded neighbours survive", discards},
		{"extents cover the range without gaps", extents},
		{"a section is a disk of its own", section},
		{"a request may be submitted from Done", submitFromDone},
		{"parallel use keeps blocks apart", parallel},
		{"memory is released when the request is done", releasesMemory},
		{"after Close everything is refused", closes},
	} {
		t.Run(c.rule, func(t *testing.T) {
			s := open(t)
			c.test(t, s)
			if err := s.Close(); err != nil && !errors.Is(err, disk.ErrClosed) {
				t.Fatal(err)
			}
		})
	}
}

// Wait submits batch and returns when all are done.
func Wait(s disk.Store, batch ...*disk.Request) {
	var wg sync.WaitGroup
	wg.Add(len(batch))
	for _, r := range batch {
		r.Done = func(*disk.Request) { wg.Done() }
	}
	s.Submit(batch)
	wg.Wait()
}

func pattern(n int, seed byte) []byte {
	p := make([]byte, n)
	for i := range p {
		p[i] = byte(i/251) ^ byte(i) + seed
	}
	return p
}

func readsWhatWasWritten(t *testing.T, s disk.Store) {
	if s.Size() != Size {
		t.Fatalf("size %d, want %d", s.Size(), Size)
	}
	block := s.LogicalBlock()
	off := int64(0)
	writers := map[string]func(p []byte, off int64) error{
		"Do": func(p []byte, off int64) error {
			r := disk.Request{Op: disk.Write, Buf: p, Off: off}
			s.Do(&r)
			return r.Err
		},
		"Do FUA": func(p []byte, off int64) error {
			r := disk.Request{Op: disk.Write, FUA: true, Buf: p, Off: off}
			s.Do(&r)
			return r.Err
		},
		"Submit": func(p []byte, off int64) error {
			r := disk.Request{Op: disk.Write, Buf: p, Off: off}
			Wait(s, &r)
			return r.Err
		},
		"Submit FUA": func(p []byte, off int64) error {
			r := disk.Request{Op: disk.Write, FUA: true, Buf: p, Off: off}
			Wait(s, &r)
			return r.Err
		},
		"WriteAt": func(p []byte, off int64) error { _, err := s.WriteAt(p, off); return err },
	}
	readers := map[string]func(p []byte, off int64) error{
		"Do":     func(p []byte, off int64) error { r := disk.Request{Buf: p, Off: off}; s.Do(&r); return r.Err },
		"Submit": func(p []byte, off int64) error { r := disk.Request{Buf: p, Off: off}; Wait(s, &r); return r.Err },
		"ReadAt": func(p []byte, off int64) error { _, err := s.ReadAt(p, off); return err },
	}
	for _, n := range []int{block, 4096, 64 << 10, 3 * 4096} {
		for name, write := range writers {
			want := pattern(n, byte(off>>12))
			if err := write(want, off); err != nil {
				t.Fatalf("%s of %d at %d: %v", name, n, off, err)
			}
			for how, read := range readers {
				got := make([]byte, n)
				if err := read(got, off); err != nil {
					t.Fatalf("read by %s: %v", how, err)
				}
				if !bytes.Equal(got, want) {
					t.Fatalf("written by %s, read by %s: other bytes", name, how)
				}
			}
			off += int64(n)
		}
	}
	if err := s.Sync(); err != nil {
		t.Fatal(err)
	}
}

func batchEnds(t *testing.T, s disk.Store) {
	const n = 400 // more than the queue depth
	var batch []*disk.Request
	var ended [n]atomic.Int32
	var wg sync.WaitGroup
	wg.Add(n)
	for i := range n {
		r := &disk.Request{Op: disk.Write, Off: int64(i%200) * 4096, Buf: pattern(4096, byte(i)), Owner: i}
		switch i % 10 {
		case 7:
			r.Op, r.Buf, r.Off = disk.Flush, nil, 0
		case 8:
			r.Op = disk.Read
		case 9:
			r.FUA = true
		}
		r.Done = func(r *disk.Request) { ended[r.Owner.(int)].Add(1); wg.Done() }
		batch = append(batch, r)
	}
	s.Submit(batch)
	wg.Wait()
	for i, r := range batch {
		if r.Err != nil || ended[i].Load() != 1 {
			t.Fatalf("request %d: ended %d times, %v", i, ended[i].Load(), r.Err)
		}
	}
}

func unalignedMemory(t *testing.T, s disk.Store) {
	for skew := range 3 {
		p := pattern(8192+skew, 3)[skew:]
		w := disk.Request{Op: disk.Write, Off: 4096, Buf: p}
		r := disk.Request{Op: disk.Read, Off: 4096, Buf: make([]byte, 8192+skew)[skew:]}
		if Wait(s, &w); w.Err == nil {
			Wait(s, &r)
		}
		if w.Err != nil || r.Err != nil || !bytes.Equal(r.Buf, p) {
			t.Fatalf("submitted with skew %d: %v %v", skew, w.Err, r.Err)
		}
		clear(r.Buf)
		if s.Do(&w); w.Err == nil {
			s.Do(&r)
		}
		if w.Err != nil || r.Err != nil || !bytes.Equal(r.Buf, p) {
			t.Fatalf("inline with skew %d: %v %v", skew, w.Err, r.Err)
		}
	}
}

func refusesBadExtents(t *testing.T, s disk.Store) {
	half := int64(s.LogicalBlock() / 2)
	for _, c := range []struct {
		off, n int64
		want   error
	}{
		{half, 4096, disk.ErrUnaligned}, {0, half, disk.ErrUnaligned}, {Size, 4096, disk.ErrRange}, {-4096, 4096, disk.ErrRange},
		{Size - 4096, 8192, disk.ErrRange}, {1<<63 - 4096, 4096, disk.ErrRange},
	} {
		for _, op := range []disk.Op{disk.Read, disk.Write, disk.Discard, disk.ZeroOut} {
			r := disk.Request{Op: op, Off: c.off, Len: c.n}
			if op == disk.Read || op == disk.Write {
				r.Buf = make([]byte, c.n)
			}
			if Wait(s, &r); !errors.Is(r.Err, c.want) {
				t.Errorf("%v of %d at %d submitted: %v, want %v", op, c.n, c.off, r.Err, c.want)
			}
			r.Err = nil
			if s.Do(&r); !errors.Is(r.Err, c.want) {
				t.Errorf("%v of %d at %d inline: %v, want %v", op, c.n, c.off, r.Err, c.want)
			}
		}
	}
	r := disk.Request{Op: 99}
	if s.Do(&r); r.Err == nil {
		t.Error("an unknown operation was accepted")
	}
	r = disk.Request{Op: disk.Write, FUA: true, Off: Size}
	if Wait(s, &r); r.Err != nil {
		t.Errorf("an empty write at the end: %v", r.Err)
	}
}

func zeroes(t *testing.T, s disk.Store) {
	all := pattern(1<<20, 9)
	for i, noUnmap := range []bool{false, true, false, true} {
		if _, err := s.WriteAt(all, 0); err != nil {
			t.Fatal(err)
		}
		r := disk.Request{Op: disk.ZeroOut, NoUnmap: noUnmap, FUA: i == 0, Off: 64 << 10, Len: 128 << 10}
		if i < 2 {
			Wait(s, &r)
		} else {
			s.Do(&r)
		}
		if r.Err != nil {
			t.Fatal(r.Err)
		}
		want := bytes.Clone(all)
		clear(want[64<<10 : 192<<10])
		got := make([]byte, len(all))
		if _, err := s.ReadAt(got, 0); err != nil || !bytes.Equal(got, want) {
			t.Fatalf("no-unmap %v: not zero, or too much of it (%v)", noUnmap, err)
		}
	}
}

func discards(t *testing.T, s disk.Store) {
	all := pattern(1<<20, 17)
	if _, err := s.WriteAt(all, 0); err != nil {
		t.Fatal(err)
	}
	r := disk.Request{Op: disk.Discard, FUA: true, Off: 64 << 10, Len: 128 << 10}
	if Wait(s, &r); r.Err != nil {
		t.Fatal(r.Err)
	}
	got := make([]byte, len(all))
	if _, err := s.ReadAt(got, 0); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got[:64<<10], all[:64<<10]) || !bytes.Equal(got[192<<10:], all[192<<10:]) {
		t.Fatal("the discard touched its neighbours")
	}
}

func extents(t *testing.T, s disk.Store) {
	for off := int64(0); off < Size; off += 1 << 20 {
		if _, err := s.WriteAt(pattern(256<<10, 1), off); err != nil {
			t.Fatal(err)
		}
	}
	for _, limit := range []int{1, 2, 1000} {
		off := int64(4096)
		for off < Size {
			list, err := s.Extents(off, Size-off, limit)
			if err != nil || len(list) == 0 || len(list) > limit {
				t.Fatalf("at %d: %d extents, limit %d, %v", off, len(list), limit, err)
			}
			for _, e := range list {
				if e.Off != off || e.Len <= 0 || e.Off+e.Len > Size {
					t.Fatalf("extent %+v, want it to start at %d", e, off)
				}
				if e.Hole {
					p := make([]byte, e.Len)
					if _, err := s.ReadAt(p, e.Off); err != nil || len(bytes.Trim(p, "\x00")) > 0 {
						t.Fatalf("hole %+v has data (%v)", e, err)
					}
				}
				off += e.Len
			}
		}
	}
	if _, err := s.Extents(0, Size+4096, 1); !errors.Is(err, disk.ErrRange) {
		t.Fatalf("extents beyond the end: %v", err)
	}
}

func section(t *testing.T, s disk.Store) {
	sec, err := disk.NewSection(s, 1<<20, 1<<20)
	if err != nil {
		t.Fatal(err)
	}
	p := pattern(4096, 5)
	if _, err := sec.WriteAt(p, sec.Size()-4096); err != nil {
		t.Fatal(err)
	}
	if err := sec.Sync(); err != nil {
		t.Fatal(err)
	}
	got := make([]byte, 4096)
	if _, err := s.ReadAt(got, 2<<20-4096); err != nil || !bytes.Equal(got, p) {
		t.Fatalf("the section wrote elsewhere (%v)", err)
	}
	for _, off := range []int64{-4096, sec.Size()} {
		if _, err := sec.WriteAt(p, off); !errors.Is(err, disk.ErrRange) {
			t.Errorf("write at %d of the section: %v", off, err)
		}
		if _, err := sec.ReadAt(p, off); !errors.Is(err, disk.ErrRange) {
			t.Errorf("read at %d of the section: %v", off, err)
		}
	}
	if _, err := disk.NewSection(s, Size-4096, 8192); !errors.Is(err, disk.ErrRange) {
		t.Errorf("section beyond the end: %v", err)
	}
	if _, err := disk.NewSection(s, 100, 4096); !errors.Is(err, disk.ErrUnaligned) {
		t.Errorf("unaligned section: %v", err)
	}
}

func submitFromDone(t *testing.T, s disk.Store) {
	done := make(chan error, 1)
	left := 300
	r := &disk.Request{Op: disk.Write, Buf: pattern(4096, 1)}
	batch := []*disk.Request{r}
	r.Done = func(r *disk.Request) {
		if left--; left == 0 || r.Err != nil {
			done <- r.Err
			return
		}
		r.Op = []disk.Op{disk.Read, disk.Write, disk.Flush}[left%3]
		s.Submit(batch)
	}
	s.Submit(batch)
	if err := <-done; err != nil {
		t.Fatal(err)
	}
}

func parallel(t *testing.T, s disk.Store) {
	const workers = 8
	var wg sync.WaitGroup
	for id := range workers {
		wg.Go(func() {
			rng := rand.New(rand.NewPCG(1, uint64(id)))
			part := int64(Size / workers)
			shadow := make([]byte, part)
			base := int64(id) * part
			for range 150 {
				n := int64(1+rng.IntN(8)) * 4096
				off := rng.Int64N((part-n)/4096) * 4096
				p := shadow[off : off+n]
				r := disk.Request{Op: disk.Write, FUA: rng.IntN(4) == 0, Off: base + off, Buf: p}
				for i := range p {
					p[i] = byte(rng.Uint32())
				}
				if rng.IntN(2) == 0 {
					Wait(s, &r)
				} else {
					s.Do(&r)
				}
				if r.Err == nil && rng.IntN(8) == 0 {
					r.Err = s.Sync()
				}
				got := make([]byte, n)
				if r.Err == nil {
					_, r.Err = s.ReadAt(got, base+off)
				}
				if r.Err != nil || !bytes.Equal(got, p) {
					t.Errorf("worker %d at %d: wrong data or %v", id, off, r.Err)
					return
				}
			}
		})
	}
	wg.Wait()
}

func releasesMemory(t *testing.T, s disk.Store) {
	pool := iobuf.NewPool(16 << 20)
	defer pool.Close()
	var batch []*disk.Request
	for i := range 300 {
		b := pool.Get(4096)
		batch = append(batch, &disk.Request{Op: disk.Op(i % 2), Off: int64(i) * 4096, Buf: b.B, Mem: b})
	}
	Wait(s, batch...)
	for i, r := range batch {
		if r.Err != nil {
			t.Fatalf("request %d: %v", i, r.Err)
		}
		r.Mem.Release()
	}
	if err := s.Close(); err != nil { // a reference may outlive Done by a moment, but not Close
		t.Fatal(err)
	}
	if pool.InUse() != 0 {
		t.Fatalf("%d bytes still held", pool.InUse())
	}
}

func closes(t *testing.T, s disk.Store) {
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	r := disk.Request{Op: disk.Read, Buf: make([]byte, 4096)}
	if s.Do(&r); !errors.Is(r.Err, disk.ErrClosed) {
		t.Errorf("Do: %v", r.Err)
	}
	r.Err = nil
	if Wait(s, &r); !errors.Is(r.Err, disk.ErrClosed) {
		t.Errorf("Submit: %v", r.Err)
	}
	if err := s.Sync(); !errors.Is(err, disk.ErrClosed) {
		t.Errorf("Sync: %v", err)
	}
	if err := s.Close(); !errors.Is(err, disk.ErrClosed) {
		t.Errorf("second Close: %v", err)
	}
	if _, err := s.Resize(); !errors.Is(err, disk.ErrClosed) {
		t.Error(fmt.Errorf("resize: %w", err))
	}
}
