package fuse

import (
	"errors"
	"os"
	"sync"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/hawser-ha/hawser/replicator/export"
)

// fileVolume is a volume in one file. Requests are executed on the caller's goroutine, unless it is frozen.
type fileVolume struct {
	f      *os.File
	size   atomic.Int64
	limits export.Limits

	flushes, zeroes, holes, trims atomic.Int64 // requests seen; zeroes are those with NoHole

	mu      sync.Mutex
	closed  func(error)
	resized func(int64)
	fail    error             // of every request
	frozen  bool              // keep requests
	kept    []*export.Request // while frozen
}

func newFileVolume(t testing.TB, size int64) *fileVolume {
	t.Helper()
	f, err := os.CreateTemp("/dev/shm", "hawser-fuse-test-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = f.Close(); _ = os.Remove(f.Name()) })
	return fileVolumeOn(t, f, size)
}

func fileVolumeOn(t testing.TB, f *os.File, size int64) *fileVolume {
	t.Helper()
	if err := f.Truncate(size); err != nil {
		t.Fatal(err)
	}
	v := &fileVolume{f: f, limits: export.Limits{MinBlock: 512, Preferred: 4096, MaxIO: 32 << 20, FastZero: true}}
	v.size.Store(size)
	return v
}

func (v *fileVolume) Size() int64           { return v.size.Load() }
func (v *fileVolume) Limits() export.Limits { return v.limits }

func (v *fileVolume) Open(closed func(error), resized func(int64)) (export.Session, error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.closed, v.resized = closed, resized
	return v, nil
}

func (v *fileVolume) Extents(out []export.Extent, _, length int64, _ int) ([]export.Extent, error) {
	return append(out, export.Extent{Len: length}), nil
}

func (v *fileVolume) Close() {}

func (v *fileVolume) Submit(batch []*export.Request) {
	for _, r := range batch {
		v.mu.Lock()
		frozen, fail := v.frozen, v.fail
		if frozen {
			v.kept = append(v.kept, r)
		}
		v.mu.Unlock()
		if frozen {
			continue
		}
		if r.Err = fail; fail == nil {
			r.Err = v.do(r)
		}
		r.Done(r)
	}
}

var errUnaligned = errors.New("unaligned request reached the volume")

func (v *fileVolume) do(r *export.Request) error {
	if (r.Off|r.Len)%int64(v.limits.MinBlock) != 0 || r.Off+r.Len > v.size.Load() {
		return errUnaligned
	}
	fd := int(v.f.Fd())
	var err error
	switch r.Op {
	case export.Read:
		_, err = v.f.ReadAt(r.Buf.B, r.Off)
	case export.Write:
		_, err = v.f.WriteAt(r.Buf.B, r.Off)
	case export.Flush:
		v.flushes.Add(1)
	case export.Trim:
		v.trims.Add(1)
	case export.WriteZeroes:
		mode := uint32(unix.FALLOC_FL_PUNCH_HOLE)
		if r.NoHole {
			v.zeroes.Add(1)
			mode = unix.FALLOC_FL_ZERO_RANGE
		} else {
			v.holes.Add(1)
		}
		err = unix.Fallocate(fd, mode|unix.FALLOC_FL_KEEP_SIZE, r.Off, r.Len)
		if errors.Is(err, unix.EOPNOTSUPP) { // tmpfs knows no ZERO_RANGE
			_, err = v.f.WriteAt(make([]byte, r.Len), r.Off)
		}
	}
	return err
}

func (v *fileVolume) grow(t *testing.T, size int64) {
	t.Helper()
	if err := v.f.Truncate(size); err != nil {
		t.Fatal(err)
	}
	v.size.Store(size)
	v.mu.Lock()
	f := v.resized
	v.mu.Unlock()
	f(size)
}

func (v *fileVolume) freeze() {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.frozen = true
}

// thaw executes what was kept.
func (v *fileVolume) thaw() {
	v.mu.Lock()
	kept := v.kept
	v.frozen, v.kept = false, nil
	v.mu.Unlock()
	v.Submit(kept)
}
