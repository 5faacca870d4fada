package meta

import (
	"bytes"
	"math/rand/v2"
	"sync"
	"testing"
	"unsafe"
)

// memDev is a sparse disk that insists on alignment and remembers the order of writes and syncs.
type memDev struct {
	t      testing.TB
	mu     sync.Mutex
	size   int64
	blocks map[int64][]byte
	log    []devOp // since record
	record bool
	fail   error // for all writes
}

type devOp struct {
	off  int64
	data []byte // nil: sync
}

func newDev(t testing.TB, size int64) *memDev {
	return &memDev{t: t, size: size, blocks: map[int64][]byte{}}
}

func (d *memDev) clone() *memDev {
	c := newDev(d.t, d.size)
	for k, v := range d.blocks {
		c.blocks[k] = v // blocks are replaced, never changed
	}
	return c
}

func (d *memDev) aligned(p []byte, off int64) {
	if off%BlockSize != 0 || len(p)%BlockSize != 0 || len(p) == 0 || uintptr(unsafe.Pointer(unsafe.SliceData(p)))%BlockSize != 0 {
		d.t.Errorf("unaligned I/O: %d bytes at %d", len(p), off)
	}
	if off < 0 || off+int64(len(p)) > d.size {
		d.t.Errorf("I/O past the end: %d bytes at %d of %d", len(p), off, d.size)
	}
}

func (d *memDev) ReadAt(p []byte, off int64) (int, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.aligned(p, off)
	for i := 0; i < len(p); i += BlockSize {
		if b := d.blocks[off+int64(i)]; b != nil {
			copy(p[i:i+BlockSize], b)
		} else {
			clear(p[i : i+BlockSize])
		}
	}
	return len(p), nil
}

func (d *memDev) WriteAt(p []byte, off int64) (int, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.aligned(p, off)
	if d.fail != nil {
		return 0, d.fail
	}
	for i := 0; i < len(p); i += BlockSize {
		b := bytes.Clone(p[i : i+BlockSize])
		d.blocks[off+int64(i)] = b
		if d.record {
			d.log = append(d.log, devOp{off + int64(i), b})
		}
	}
	return len(p), nil
}

func (d *memDev) Sync() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.record {
		d.log = append(d.log, devOp{})
	}
	return nil
}

func (d *memDev) Size() int64 { return d.size }

// put writes any bytes anywhere, for preparing images.
func (d *memDev) put(off int64, p []byte) {
	for i := 0; i < len(p); {
		base := (off + int64(i)) / BlockSize * BlockSize
		b := make([]byte, BlockSize)
		copy(b, d.blocks[base])
		i += copy(b[off+int64(i)-base:], p[i:])
		d.blocks[base] = b
	}
}

func (d *memDev) get(off int64) []byte {
	b := make([]byte, BlockSize)
	copy(b, d.blocks[off])
	return b
}

// crash returns before with the first n recorded operations done; of the writes after the last sync among them each is done or not.
func (d *memDev) crash(before *memDev, n int, rng *rand.Rand) *memDev {
	c := before.clone()
	synced := 0
	for i, op := range d.log[:n] {
		if op.data == nil {
			synced = i
		}
	}
	for i, op := range d.log[:n] {
		if op.data != nil && (i < synced || rng.IntN(2) == 0) {
			c.blocks[op.off] = op.data
		}
	}
	return c
}

func must[T any](v T, err error) func(t testing.TB) T {
	return func(t testing.TB) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

func freshStore(t testing.TB, d *memDev, dataSize int64, o CreateOptions) *Store {
	t.Helper()
	if err := Create(dataSize, d, o); err != nil {
		t.Fatal(err)
	}
	return must(Open(dataSize, d, o.Kind, o.Index))(t)
}

// setSize agrees on a size in sectors.
func setSize(t testing.TB, s *Store, sectors uint64) {
	t.Helper()
	sb := s.Super()
	sb.EffectiveSize = sectors
	if err := s.WriteSuper(sb); err != nil {
		t.Fatal(err)
	}
}
