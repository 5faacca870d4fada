package iobuf

import (
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

func TestEveryBufferStartsOnAPageAndChargesItsClass(t *testing.T) {
	for _, c := range []struct{ n, capacity int }{
		{0, 4 << 10}, {1, 4 << 10}, {4096, 4 << 10}, {4097, 16 << 10}, {65536, 64 << 10}, {65537, 256 << 10},
		{1 << 20, 1 << 20}, {1<<20 + 1, 1<<20 + 4096}, {32 << 20, 32 << 20}, {32<<20 + 1, 32<<20 + 4096},
	} {
		p := NewPool(1 << 30)
		b := p.Get(c.n)
		if len(b.B) != c.n || cap(b.B) != c.capacity {
			t.Errorf("Get(%d): len %d cap %d, want cap %d", c.n, len(b.B), cap(b.B), c.capacity)
		}
		if uintptr(unsafe.Pointer(unsafe.SliceData(b.B[:1])))%4096 != 0 {
			t.Errorf("Get(%d) is not aligned", c.n)
		}
		if p.InUse() != int64(c.capacity) {
			t.Errorf("Get(%d): %d bytes in use, want %d", c.n, p.InUse(), c.capacity)
		}
		full := b.B[:cap(b.B)]
		full[0], full[len(full)-1] = 1, 1
		b.Release()
		if p.InUse() != 0 {
			t.Errorf("%d bytes in use after the release", p.InUse())
		}
		p.Close()
	}
}

func TestTheLastReleaseGivesBackAndOneMorePanics(t *testing.T) {
	p := NewPool(1 << 20)
	defer p.Close()
	b := p.Get(10)
	b.Retain()
	b.Release()
	if p.InUse() == 0 {
		t.Fatal("given back with a reference left")
	}
	b.Release()
	if p.InUse() != 0 {
		t.Fatal("not given back")
	}
	for name, f := range map[string]func(){"Release": b.Release, "Retain": b.Retain} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%s of a released buffer did not panic", name)
				}
				b.refs.Store(0)
			}()
			f()
		}()
	}
}

func TestOverTheLimitGetWaitsInOrderAndTryGetDoesNot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := NewPool(3 * 4096)
		a, b := p.Get(4096), p.Get(4096)
		var order []int
		var got [2]*Buf
		go func() { got[0] = p.Get(2 * 4096); order = append(order, 0) }() // a class of 16 KiB: alone only
		synctest.Wait()
		go func() { got[1] = p.Get(1); order = append(order, 1) }()
		synctest.Wait()
		if got[0] != nil || got[1] != nil {
			t.Fatal("the small request overtook the large one, or the limit did not hold")
		}
		if p.TryGet(1) != nil {
			t.Fatal("TryGet overtook the queue")
		}
		a.Release()
		synctest.Wait()
		if len(order) != 0 {
			t.Fatal("a request larger than the limit went through beside another buffer")
		}
		b.Release()
		synctest.Wait()
		if len(order) != 1 || order[0] != 0 {
			t.Fatalf("order %v, want the large one first, alone", order)
		}
		got[0].Release()
		synctest.Wait()
		if len(order) != 2 {
			t.Fatal("the small request still waits")
		}
		got[1].Release()
		p.Close()
	})
}

func TestCloseLetsWaitersThrough(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := NewPool(4096)
		a := p.Get(1)
		var b *Buf
		go func() { b = p.Get(1) }()
		synctest.Wait()
		p.Close()
		synctest.Wait()
		if b == nil {
			t.Fatal("Get still waits after Close")
		}
		a.B[0], b.B[0] = 1, 2
		a.Release()
		b.Release()
		if p.InUse() != 0 {
			t.Fatalf("%d bytes in use", p.InUse())
		}
	})
}

// resident counts the bytes of m that hold memory.
func resident(t *testing.T, m []byte) int {
	t.Helper()
	page := os.Getpagesize()
	f, err := os.Open("/proc/self/pagemap")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	entries := make([]byte, len(m)/page*8)
	if _, err := f.ReadAt(entries, int64(uintptr(unsafe.Pointer(unsafe.SliceData(m))))/int64(page)*8); err != nil {
		t.Fatal(err)
	}
	n := 0
	for i := 7; i < len(entries); i += 8 {
		if entries[i]&0x80 != 0 {
			n += page
		}
	}
	return n
}

func TestIdleMemoryGoesBackAfterAnIntervalUnused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := NewPool(64 << 20)
		defer p.Close()
		var bufs []*Buf
		for range 4 {
			b := p.Get(1 << 20)
			clear(b.B)
			for i := 0; i < len(b.B); i += 4096 {
				b.B[i] = 1
			}
			bufs = append(bufs, b)
		}
		for _, b := range bufs {
			b.Release()
		}
		sum := func() (n int) {
			for _, b := range bufs {
				n += resident(t, b.mem)
			}
			return n
		}
		if sum() != 4<<20 {
			t.Fatalf("%d bytes resident, want 4 MiB kept warm", sum())
		}
		time.Sleep(trimEvery + time.Second)
		b := p.Get(1 << 20) // one of them stays in use
		b.Release()
		time.Sleep(trimEvery)
		if sum() != 1<<20 {
			t.Fatalf("%d bytes resident, want the one in use only", sum())
		}
		time.Sleep(2 * trimEvery)
		if sum() != 0 {
			t.Fatalf("%d bytes resident after two idle intervals", sum())
		}
		if b := p.Get(1 << 20); len(b.B) != 1<<20 {
			t.Fatal("a cold buffer is not usable")
		} else {
			b.B[0] = 1
			b.Release()
		}
	})
}

func TestLentAndWarmMemoryStayWithinTheLimit(t *testing.T) {
	p := NewPool(8 << 20)
	defer p.Close()
	fill := func(size int) (bufs []*Buf) {
		for b := p.TryGet(size); b != nil; b = p.TryGet(size) {
			for i := 0; i < len(b.B); i += 4096 {
				b.B[i] = 1
			}
			bufs = append(bufs, b)
		}
		return bufs
	}
	all := map[*Buf]bool{}
	for _, size := range []int{4 << 10, 1 << 20, 64 << 10, 8 << 20, 256 << 10, 16 << 10} {
		bufs := fill(size)
		for _, b := range bufs {
			all[b] = true
		}
		n := 0
		for b := range all {
			n += resident(t, b.mem)
		}
		if n > 8<<20 {
			t.Errorf("after buffers of %d: %d bytes resident, limit %d", size, n, 8<<20)
		}
		for _, b := range bufs {
			b.Release()
		}
	}
}

func TestNoTwoBorrowersShareMemory(t *testing.T) {
	p := NewPool(1 << 20)
	defer p.Close()
	var wg sync.WaitGroup
	for id := range byte(8) {
		wg.Go(func() {
			for i := range 2000 {
				b := p.Get([]int{100, 4096, 5000, 65536, 200000}[(i+int(id))%5])
				b.B[0], b.B[len(b.B)-1] = id, id
				b.Retain()
				if b.B[0] != id || b.B[len(b.B)-1] != id {
					t.Error("somebody else wrote to a borrowed buffer")
				}
				b.Release()
				b.Release()
				if i%500 == 0 {
					p.trim()
				}
			}
		})
	}
	wg.Wait()
	if p.InUse() != 0 {
		t.Fatalf("%d bytes in use at the end", p.InUse())
	}
}

func TestCloseUnmapsEverything(t *testing.T) {
	maps := func() int {
		s, err := os.ReadFile("/proc/self/statm")
		if err != nil {
			t.Fatal(err)
		}
		n, err := strconv.Atoi(strings.Fields(string(s))[0])
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	before := maps()
	p := NewPool(1 << 30)
	var bufs []*Buf
	for range 16 {
		bufs = append(bufs, p.Get(32<<20))
	}
	for _, b := range bufs[:8] {
		b.Release()
	}
	p.Close()
	for _, b := range bufs[8:] {
		b.Release()
	}
	if got := maps() - before; got > 256<<20/unix.Getpagesize() {
		t.Fatalf("%d pages of address space more than before", got)
	}
}

func TestSteadyStateDoesNotAllocate(t *testing.T) {
	p := NewPool(64 << 20)
	defer p.Close()
	for _, n := range []int{4096, 65536, 1 << 20, 5 << 20} {
		if got := testing.AllocsPerRun(100, func() { p.Get(n).Release() }); got != 0 {
			t.Errorf("Get(%d): %v allocations", n, got)
		}
	}
}

func BenchmarkGetRelease(b *testing.B) {
	for _, n := range []int{4096, 65536, 1 << 20, 32 << 20} {
		b.Run(strconv.Itoa(n), func(b *testing.B) {
			p := NewPool(256 << 20)
			defer p.Close()
			b.ReportAllocs()
			for b.Loop() {
				p.Get(n).Release()
			}
		})
	}
}

func BenchmarkParallel(b *testing.B) {
	p := NewPool(256 << 20)
	defer p.Close()
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			p.Get(4096).Release()
		}
	})
}

// BenchmarkMakeSlice is what the pool replaces: the Go heap.
func BenchmarkMakeSlice(b *testing.B) {
	b.ReportAllocs()
	var sink []byte
	for b.Loop() {
		sink = make([]byte, 65536)
	}
	_ = sink
}
