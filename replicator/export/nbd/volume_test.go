package nbd

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"sync"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/hawser-ha/hawser/replicator/export"
)

const largeIO = 256 << 10 // bytes; from here on a fileVolume does not work on its caller's goroutine

// fileVolume is a volume over a file, run to completion in Submit. It also is what the comparison with other servers
// exports (TestCompare).
type fileVolume struct {
	path   string
	fd     int
	size   int64
	large  chan *export.Request
	limits export.Limits
}

func newFileVolume(t testing.TB, dir string, size int64) *fileVolume {
	f, err := os.CreateTemp(dir, "volume")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close(); os.Remove(f.Name()) })
	if err := f.Truncate(size); err != nil {
		t.Fatal(err)
	}
	v := &fileVolume{path: f.Name(), fd: int(f.Fd()), size: size, large: make(chan *export.Request, 1024),
		limits: export.Limits{MinBlock: 512, Preferred: 4096, MaxIO: payloadMax}}
	var wg sync.WaitGroup
	for range 2 {
		wg.Go(v.work)
	}
	t.Cleanup(func() { close(v.large); wg.Wait() })
	return v
}

func (v *fileVolume) Size() int64           { return v.size }
func (v *fileVolume) Limits() export.Limits { return v.limits }
func (v *fileVolume) Open(func(error), func(int64)) (export.Session, error) {
	return v, nil
}
func (v *fileVolume) Close() {}

func (v *fileVolume) Extents(out []export.Extent, off, length int64, n int) ([]export.Extent, error) {
	return append(out, export.Extent{Len: length}), nil
}

func (v *fileVolume) Submit(batch []*export.Request) {
	var kick export.Kicker
	for i, r := range batch {
		kick = r.Kick
		if r.Len >= largeIO && r.Buf != nil {
			v.large <- r
			continue
		}
		r.Err = v.do(r)
		r.Done(r)
		if i%16 == 15 {
			kick.Kick()
		}
	}
	kick.Kick()
}

// work runs large requests beside the connection's reader, so that the copying into memory is no turn of the socket's.
func (v *fileVolume) work() {
	for r := range v.large {
		kick := r.Kick
		r.Err = v.do(r)
		r.Done(r)
		kick.Kick()
	}
}

func (v *fileVolume) do(r *export.Request) error {
	var n int
	var err error
	switch r.Op {
	case export.Read:
		n, err = unix.Pread(v.fd, r.Buf.B, r.Off)
	case export.Write:
		n, err = unix.Pwrite(v.fd, r.Buf.B, r.Off)
	case export.Flush:
		return unix.Fdatasync(v.fd)
	case export.Trim:
		return unix.Fallocate(v.fd, unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, r.Off, r.Len)
	case export.WriteZeroes:
		if r.NoHole {
			return unix.Fallocate(v.fd, unix.FALLOC_FL_ZERO_RANGE|unix.FALLOC_FL_KEEP_SIZE, r.Off, r.Len)
		}
		return unix.Fallocate(v.fd, unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, r.Off, r.Len)
	}
	if err == nil && n != len(r.Buf.B) {
		err = export.ErrIO
	}
	return err
}

// memVolume keeps its contents in memory. It can hold requests back, complete them out of order, fail them, and be
// demoted.
type memVolume struct {
	limits export.Limits

	mu       sync.Mutex
	data     []byte
	mapped   []bool // per 4 KiB: written since it was last trimmed
	sessions map[*memSession]bool
	refuse   error         // of Open
	fail     error         // of every request
	shuffle  *rand.Rand    // complete on another goroutine, in this order
	hold     chan struct{} // non-nil: complete only after it is closed
	submits  []int         // batch sizes
	flushes  atomic.Int32
	fua      atomic.Int32
	noHole   atomic.Int32
	strange  atomic.Int32 // requests the server should not have let through
	wg       sync.WaitGroup
}

type memSession struct {
	v       *memVolume
	closed  func(error)
	resized func(int64)
}

func newMemVolume(size int64) *memVolume {
	return &memVolume{data: make([]byte, size), mapped: make([]bool, (size+4095)/4096), sessions: map[*memSession]bool{},
		limits: export.Limits{MinBlock: 512, Preferred: 4096, MaxIO: payloadMax, FastZero: true}}
}

func (v *memVolume) Size() int64 {
	v.mu.Lock()
	defer v.mu.Unlock()
	return int64(len(v.data))
}

func (v *memVolume) Limits() export.Limits { return v.limits }

func (v *memVolume) Open(closed func(error), resized func(int64)) (export.Session, error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.refuse != nil {
		return nil, v.refuse
	}
	s := &memSession{v, closed, resized}
	v.sessions[s] = true
	return s, nil
}

func (v *memVolume) open() int {
	v.mu.Lock()
	defer v.mu.Unlock()
	return len(v.sessions)
}

// demote refuses everything from now on and asks the sessions to end.
func (v *memVolume) demote(reason string) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.refuse = fmt.Errorf("%w: %s", export.ErrNotPrimary, reason)
	v.fail = v.refuse
	for s := range v.sessions {
		s.closed(v.refuse)
	}
}

func (v *memVolume) resize(size int64) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.data = append(make([]byte, 0, size), v.data[:min(size, int64(len(v.data)))]...)[:size]
	v.mapped = append(make([]bool, 0, (size+4095)/4096), v.mapped...)[:(size+4095)/4096]
	for s := range v.sessions {
		s.resized(size)
	}
}

func (v *memVolume) Extents(out []export.Extent, off, length int64, n int) ([]export.Extent, error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	for end := off + length; off < end && n > 0; n-- {
		state, start := v.mapped[off/4096], off
		for off < end && v.mapped[off/4096] == state {
			off = min((off/4096+1)*4096, int64(len(v.data))) // the last may overshoot
		}
		out = append(out, export.Extent{Len: off - start, Hole: !state, Zero: !state})
	}
	return out, nil
}

func (s *memSession) Close() {
	s.v.mu.Lock()
	delete(s.v.sessions, s)
	s.v.mu.Unlock()
}

func (s *memSession) Submit(batch []*export.Request) {
	v := s.v
	v.mu.Lock()
	v.submits = append(v.submits, len(batch))
	hold, shuffle := v.hold, v.shuffle
	v.mu.Unlock()
	if hold == nil && shuffle == nil {
		v.complete(batch)
		return
	}
	batch = append([]*export.Request(nil), batch...)
	if shuffle != nil {
		v.mu.Lock()
		shuffle.Shuffle(len(batch), func(i, j int) { batch[i], batch[j] = batch[j], batch[i] })
		v.mu.Unlock()
	}
	v.wg.Go(func() {
		if hold != nil {
			<-hold
		}
		v.complete(batch)
	})
}

func (v *memVolume) complete(batch []*export.Request) {
	var kick export.Kicker
	for _, r := range batch {
		kick = r.Kick
		r.Err = v.do(r)
		r.Done(r)
	}
	kick.Kick()
}

func (v *memVolume) do(r *export.Request) error {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.fail != nil {
		return v.fail
	}
	if r.FUA {
		v.fua.Add(1)
	}
	if r.NoHole {
		v.noHole.Add(1)
	}
	if r.Op == export.Flush {
		v.flushes.Add(1)
		return nil
	}
	if r.Off < 0 || r.Len <= 0 || r.Off+r.Len > int64(len(v.data)) {
		v.strange.Add(1)
		return errors.New("out of bounds: the server should have seen it")
	}
	if r.Buf != nil && int64(len(r.Buf.B)) != r.Len {
		v.strange.Add(1)
		return errors.New("buffer has the wrong length")
	}
	d := v.data[r.Off : r.Off+r.Len]
	set := r.Op == export.Write || r.NoHole
	switch r.Op {
	case export.Read:
		copy(r.Buf.B, d)
		return nil
	case export.Write:
		copy(d, r.Buf.B)
	case export.Trim, export.WriteZeroes:
		clear(d)
	}
	for b := r.Off / 4096; b*4096 < r.Off+r.Len; b++ {
		whole := b*4096 >= r.Off && (b+1)*4096 <= r.Off+r.Len
		if set || whole {
			v.mapped[b] = set
		}
	}
	return nil
}
