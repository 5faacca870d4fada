package iobuf

import (
	"runtime"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

const (
	pageSize = 4096    // bytes; the alignment promised, also where the kernel's page is larger
	slabSize = 1 << 20 // bytes mapped at once for the classes below it

	trimEvery = 10 * time.Second
	shardsMax = 8
)

var classSizes = [...]int{4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 32 << 20} // bytes

const (
	classHuge = len(classSizes) - 1 // charged by length, not by class
	classOwn  = len(classSizes)     // larger than every class: its own mapping
)

// Pool lends buffers up to a limit. Safe for concurrent use.
type Pool struct {
	limit   int64
	inUse   atomic.Int64 // bytes lent or granted
	waiting atomic.Int32 // Gets in queue
	closed  atomic.Bool
	armed   atomic.Bool // a trim is due

	mu    sync.Mutex // guards queue
	queue []*waiter  // first come, first served

	nshards int
	classes [len(classSizes)]class
}

type waiter struct {
	charge int64
	ready  chan struct{}
}

type class struct {
	shards [shardsMax]shard
}

// shard is one stack of free buffers. hot ones hold memory, cold ones only addresses.
type shard struct {
	mu   sync.Mutex // guards hot, cold and low; never held over a system call
	hot  []*Buf
	cold []*Buf
	low  int          // fewest hot buffers since the last trim
	free atomic.Int32 // len(hot) + len(cold), to pass by an empty shard
	_    [40]byte     // a cache line of its own
}

// slab is one mapping that holds several buffers.
type slab struct {
	mem  []byte
	left atomic.Int32 // buffers not dropped yet
}

// Buf is one buffer on loan. B may be resliced up to its capacity; the memory behind it holds
// whatever its last user left there.
type Buf struct {
	B []byte // length as asked for; starts on a page

	refs    atomic.Int32
	pool    *Pool
	mem     []byte // whole class
	slab    *slab
	class   int8
	touched int   // bytes a borrower may have dirtied; the 32 MiB class only
	charge  int64 // bytes counted in the pool's limit
}

// NewPool makes a pool that lends at most limit bytes at a time; limit must be positive.
func NewPool(limit int64) *Pool {
	if limit <= 0 {
		panic("iobuf: limit must be positive")
	}
	n := 1
	for n < runtime.GOMAXPROCS(0) && n < shardsMax {
		n *= 2
	}
	return &Pool{limit: limit, nshards: n}
}

// Limit is the number of bytes the pool lends at a time.
func (p *Pool) Limit() int64 { return p.limit }

// InUse is the number of bytes on loan.
func (p *Pool) InUse() int64 { return p.inUse.Load() }

// Get lends n bytes and waits while the limit is exceeded. One request larger than the limit is
// let through when nothing else is on loan. The caller holds the only reference. Never call Get while
// holding buffers of the same pool that only the caller can give back: use TryGet there.
func (p *Pool) Get(n int) *Buf {
	c, charge := classify(n)
	if p.waiting.Load() != 0 || !p.reserve(charge) {
		p.wait(charge)
	}
	return p.take(c, n, charge)
}

// TryGet is Get that returns nil where Get would wait.
func (p *Pool) TryGet(n int) *Buf {
	c, charge := classify(n)
	if p.waiting.Load() != 0 || !p.reserve(charge) {
		return nil
	}
	return p.take(c, n, charge)
}

// Close gives idle memory back. Buffers on loan stay valid and are unmapped at their release; Gets
// that wait, and later ones, are let through without a limit.
func (p *Pool) Close() {
	p.closed.Store(true)
	p.mu.Lock()
	for _, w := range p.queue {
		p.inUse.Add(w.charge)
		close(w.ready)
	}
	p.waiting.Add(-int32(len(p.queue)))
	p.queue = nil
	p.mu.Unlock()
	for c := range p.classes {
		for i := range p.classes[c].shards {
			s := &p.classes[c].shards[i]
			s.mu.Lock()
			idle := append(s.hot, s.cold...)
			s.hot, s.cold, s.low = nil, nil, 0
			s.free.Store(0)
			s.mu.Unlock()
			for _, b := range idle {
				b.drop()
			}
		}
	}
}

func classify(n int) (c int, charge int64) {
	if n < 0 {
		panic("iobuf: negative length")
	}
	for c, size := range classSizes[:classHuge] {
		if n <= size {
			return c, int64(size)
		}
	}
	charge = (int64(n) + pageSize - 1) &^ (pageSize - 1)
	if n <= classSizes[classHuge] {
		return classHuge, charge
	}
	return classOwn, charge
}

// reserve counts charge bytes as lent, if they fit.
func (p *Pool) reserve(charge int64) bool {
	for {
		used := p.inUse.Load()
		if used != 0 && used+charge > p.limit && !p.closed.Load() {
			return false
		}
		if p.inUse.CompareAndSwap(used, used+charge) {
			return true
		}
	}
}

func (p *Pool) wait(charge int64) {
	w := &waiter{charge: charge, ready: make(chan struct{})}
	p.mu.Lock()
	p.queue = append(p.queue, w)
	// Counted before grant looks at inUse: a release either sees the waiter or is seen by grant.
	p.waiting.Add(1)
	p.grant()
	p.mu.Unlock()
	<-w.ready
}

// grant lets waiters through from the front while they fit. p.mu is held.
func (p *Pool) grant() {
	for len(p.queue) > 0 && p.reserve(p.queue[0].charge) {
		close(p.queue[0].ready)
		p.queue[0] = nil
		p.queue = p.queue[1:]
		p.waiting.Add(-1)
	}
}

func (p *Pool) take(c, n int, charge int64) *Buf {
	var b *Buf
	if c == classOwn {
		b = &Buf{pool: p, class: int8(classOwn), mem: mapMemory(int(charge))}
	} else {
		b = p.pop(c, charge)
	}
	if c == classHuge {
		if b.touched > int(charge) {
			dontNeed(b.mem[charge:b.touched])
		}
		b.touched = int(charge)
	}
	b.charge = charge
	b.B = b.mem[:n:charge]
	b.refs.Store(1)
	return b
}

// pop finds a free buffer of class c or makes one. Its memory is already reserved.
func (p *Pool) pop(c int, charge int64) *Buf {
	shards := p.classes[c].shards[:p.nshards]
	for i := range shards {
		s := &shards[i]
		if s.free.Load() == 0 || !s.mu.TryLock() {
			continue
		}
		b := s.popHot()
		s.mu.Unlock()
		if b != nil {
			return b
		}
	}
	// Nothing warm at hand: new memory is about to become resident, so stay inside the limit.
	p.reclaim(charge, c)
	for i := range shards {
		s := &shards[i]
		s.mu.Lock()
		b := s.popHot()
		if b == nil && len(s.cold) > 0 {
			last := len(s.cold) - 1
			b, s.cold[last] = s.cold[last], nil
			s.cold = s.cold[:last]
			s.free.Add(-1)
		}
		s.mu.Unlock()
		if b != nil {
			return b
		}
	}
	return p.grow(c)
}

// popHot takes the buffer used last, or nil. s.mu is held.
func (s *shard) popHot() *Buf {
	last := len(s.hot) - 1
	if last < 0 {
		return nil
	}
	b := s.hot[last]
	s.hot[last] = nil
	s.hot = s.hot[:last]
	s.low = min(s.low, last)
	s.free.Add(-1)
	return b
}

// grow maps memory for class c, keeps all of it but one buffer as cold, and returns that one.
func (p *Pool) grow(c int) *Buf {
	size := classSizes[c]
	sl := &slab{mem: mapMemory(max(size, slabSize))}
	n := len(sl.mem) / size
	sl.left.Store(int32(n))
	bufs := make([]*Buf, n)
	for i := range bufs {
		bufs[i] = &Buf{pool: p, class: int8(c), slab: sl, mem: sl.mem[i*size : (i+1)*size : (i+1)*size]}
	}
	p.keepCold(&p.classes[c].shards[0], bufs[1:])
	return bufs[0]
}

// Retain adds a reference.
func (b *Buf) Retain() {
	if b.refs.Add(1) <= 1 {
		panic("iobuf: Retain of a released buffer")
	}
}

// Release drops a reference; the last one gives the buffer back. Releasing more often than retained
// panics, as long as nobody else has borrowed the same buffer meanwhile.
func (b *Buf) Release() {
	switch n := b.refs.Add(-1); {
	case n > 0:
		return
	case n < 0:
		panic("iobuf: Release of a released buffer")
	}
	p, charge := b.pool, b.charge
	b.B = nil
	switch {
	case b.class == int8(classOwn):
		_ = unix.Munmap(b.mem)
		b.mem = nil
	default:
		p.push(b)
	}
	p.inUse.Add(-charge)
	if p.waiting.Load() != 0 {
		p.mu.Lock()
		p.grant()
		p.mu.Unlock()
	}
}

func (p *Pool) push(b *Buf) {
	shards := p.classes[b.class].shards[:p.nshards]
	s := &shards[0]
	for i := 1; !s.mu.TryLock(); i++ {
		if i == len(shards) {
			s = &shards[0]
			s.mu.Lock()
			break
		}
		s = &shards[i]
	}
	if p.closed.Load() { // Close is past this shard, or waits for its lock
		s.mu.Unlock()
		b.drop()
		return
	}
	s.hot = append(s.hot, b)
	s.free.Add(1)
	s.mu.Unlock()
	if !p.armed.Load() && p.armed.CompareAndSwap(false, true) {
		time.AfterFunc(trimEvery, p.trimTick)
	}
}

// trimTick runs every trimEvery while warm buffers lie idle.
func (p *Pool) trimTick() {
	p.armed.Store(false)
	if p.closed.Load() {
		return
	}
	if p.trim() && p.armed.CompareAndSwap(false, true) {
		time.AfterFunc(trimEvery, p.trimTick)
	}
}

// trim cools what was not used since the last trim and reports whether warm buffers are left.
func (p *Pool) trim() bool {
	left := false
	for c := range p.classes {
		for i := range p.classes[c].shards[:p.nshards] {
			s := &p.classes[c].shards[i]
			s.mu.Lock()
			n := s.low
			s.mu.Unlock()
			s.cool(n)
			s.mu.Lock()
			s.low = len(s.hot)
			left = left || s.low > 0
			s.mu.Unlock()
		}
	}
	return left
}

// reclaim cools idle buffers, of other classes than keep, until charge more bytes fit in the limit.
// Called only when a stack had run empty, and cheap when there is room.
func (p *Pool) reclaim(charge int64, keep int) {
	hot := int64(0)
	for c := range p.classes {
		for i := range p.classes[c].shards[:p.nshards] {
			s := &p.classes[c].shards[i]
			if s.free.Load() == 0 {
				continue
			}
			s.mu.Lock()
			hot += s.hotBytes(c)
			s.mu.Unlock()
		}
	}
	over := p.inUse.Load() + hot - p.limit // inUse holds charge already
	for c := range p.classes {
		for i := range p.classes[c].shards[:p.nshards] {
			if over <= 0 {
				return
			}
			if c == keep {
				continue
			}
			over -= p.classes[c].shards[i].cool(int((over + int64(classSizes[c]) - 1) / int64(classSizes[c])))
		}
	}
}

func (s *shard) hotBytes(c int) int64 {
	if c != classHuge {
		return int64(len(s.hot)) * int64(classSizes[c])
	}
	sum := int64(0)
	for _, b := range s.hot {
		sum += int64(b.touched)
	}
	return sum
}

// cool gives the memory of up to n buffers at the bottom of the stack back to the kernel and
// returns the bytes.
func (s *shard) cool(n int) int64 {
	s.mu.Lock()
	n = min(n, len(s.hot))
	if n <= 0 {
		s.mu.Unlock()
		return 0
	}
	idle := append([]*Buf(nil), s.hot[:n]...)
	rest := copy(s.hot, s.hot[n:])
	clear(s.hot[rest:])
	s.hot = s.hot[:rest]
	s.low = min(s.low, rest)
	s.free.Add(-int32(n))
	s.mu.Unlock()
	sum := int64(0)
	for _, b := range idle {
		m := b.mem
		if int(b.class) == classHuge {
			m = m[:b.touched]
			b.touched = 0
		}
		dontNeed(m)
		sum += int64(len(m))
	}
	idle[0].pool.keepCold(s, idle)
	return sum
}

// keepCold puts bufs, which hold no memory, on s.
func (p *Pool) keepCold(s *shard, bufs []*Buf) {
	s.mu.Lock()
	if p.closed.Load() {
		s.mu.Unlock()
		for _, b := range bufs {
			b.drop()
		}
		return
	}
	s.cold = append(s.cold, bufs...)
	s.free.Add(int32(len(bufs)))
	s.mu.Unlock()
}

// drop forgets the buffer for good; the last one of a slab unmaps it.
func (b *Buf) drop() {
	b.mem = nil
	if b.slab.left.Add(-1) == 0 {
		_ = unix.Munmap(b.slab.mem)
	}
}

// mapMemory maps n bytes. Where the kernel refuses (address space or map count used up), the
// memory comes from the Go heap, aligned by hand: slower, never wrong.
func mapMemory(n int) []byte {
	m, err := unix.Mmap(-1, 0, n, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
	if err == nil {
		return m
	}
	m = make([]byte, n+pageSize)
	skip := int(-uintptr(unsafe.Pointer(unsafe.SliceData(m))) & (pageSize - 1))
	return m[skip : skip+n : skip+n]
}

func dontNeed(m []byte) {
	if len(m) > 0 {
		_ = unix.Madvise(m, unix.MADV_DONTNEED)
	}
}
