package faultfs

import (
	"fmt"
	"io"
	"os"
	"sync"

	"golang.org/x/sys/unix"
)

const cacheBlock = 4096 // bytes

// backing is the file behind, with a write cache in front of it that a power loss empties.
type backing struct {
	f *os.File

	mu       sync.RWMutex // guards cache; held for writing over flushes, as a disk's cache would be
	volatile bool
	cache    map[int64][]byte // block number -> contents; nil is zeroes
	end      int64            // size of the file as written, bytes
}

// read fills p from off; beyond the end it returns less.
func (b *backing) read(p []byte, off int64) (int, error) {
	b.mu.RLock()
	defer b.mu.RUnlock()
	if !b.volatile {
		n, err := b.f.ReadAt(p, off)
		if err == io.EOF {
			err = nil
		}
		return n, err
	}
	size, err := b.size()
	if err != nil {
		return 0, err
	}
	p = p[:max(0, min(int64(len(p)), size-off))]
	if n, err := b.f.ReadAt(p, off); err == io.EOF {
		clear(p[n:])
	} else if err != nil {
		return 0, err
	}
	for i := int64(0); i < int64(len(p)); {
		n, skip := (off+i)/cacheBlock, (off+i)%cacheBlock
		step := min(cacheBlock-skip, int64(len(p))-i)
		if c, ok := b.cache[n]; ok && c != nil {
			copy(p[i:i+step], c[skip:])
		} else if ok {
			clear(p[i : i+step])
		}
		i += step
	}
	return len(p), nil
}

// write stores p at off in the cache; nil p writes length zeroes. mu is held.
func (b *backing) write(p []byte, off, length int64) error {
	for i := int64(0); i < length; {
		n, skip := (off+i)/cacheBlock, (off+i)%cacheBlock
		step := min(cacheBlock-skip, length-i)
		c, ok := b.cache[n]
		switch {
		case p == nil && step == cacheBlock:
			c = nil
		case c == nil:
			c = make([]byte, cacheBlock)
			if !ok && step < cacheBlock {
				if _, err := b.f.ReadAt(c, n*cacheBlock); err != nil && err != io.EOF {
					return err
				}
			}
		}
		if p != nil {
			copy(c[skip:], p[i:i+step])
		} else if c != nil {
			clear(c[skip : skip+step])
		}
		b.cache[n] = c
		i += step
	}
	if length > 0 { // a hole beyond the end does not extend the file
		b.end = max(b.end, off+length)
	}
	return nil
}

// through runs do at once if the cache is off, and reports whether it was.
func (b *backing) through(do func() error) (bool, error) {
	b.mu.RLock()
	defer b.mu.RUnlock()
	if b.volatile {
		return false, nil
	}
	return true, do()
}

// put writes p at off, through or into the cache.
func (b *backing) put(p []byte, off int64) error {
	store := func() error {
		_, err := b.f.WriteAt(p, off)
		return err
	}
	if done, err := b.through(store); done {
		return err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.volatile { // switched off meanwhile
		return store()
	}
	return b.write(p, off, int64(len(p)))
}

// allocate is fallocate; a volatile cache sees punched and zeroed ranges as written zeroes.
func (b *backing) allocate(mode uint32, off, length int64) error {
	allocate := func() error { return unix.Fallocate(int(b.f.Fd()), mode, off, length) }
	if mode&(unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_ZERO_RANGE) == 0 {
		return allocate()
	}
	if done, err := b.through(allocate); done {
		return err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	size, err := b.size()
	if err != nil {
		return err
	}
	if !b.volatile {
		return allocate()
	}
	return b.write(nil, off, max(0, min(length, size-off)))
}

// size is the file's length with what is in the cache. mu is held.
func (b *backing) size() (int64, error) {
	st, err := b.f.Stat()
	if err != nil {
		return 0, err
	}
	return max(st.Size(), b.end), nil
}

// flush makes everything written so far stable.
func (b *backing) flush() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.flushLocked()
}

func (b *backing) flushLocked() error {
	size, err := b.size()
	if err != nil {
		return err
	}
	for n, c := range b.cache {
		if c == nil {
			c = make([]byte, cacheBlock)
		}
		// The cache of the last block may be longer than the file.
		c = c[:max(0, min(cacheBlock, size-n*cacheBlock))]
		if _, err := b.f.WriteAt(c, n*cacheBlock); err != nil {
			return err
		}
		delete(b.cache, n)
	}
	b.end = 0
	return unix.Fdatasync(int(b.f.Fd()))
}

func (b *backing) truncate(size int64) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if err := b.flushLocked(); err != nil {
		return err
	}
	return b.f.Truncate(size)
}

func (b *backing) setVolatile(on bool) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if err := b.flushLocked(); err != nil {
		return fmt.Errorf("write the cache through: %w", err)
	}
	b.volatile = on
	return nil
}

func (b *backing) drop() {
	b.mu.Lock()
	defer b.mu.Unlock()
	clear(b.cache)
	b.end = 0
}

func (b *backing) unsynced() int64 {
	b.mu.RLock()
	defer b.mu.RUnlock()
	return int64(len(b.cache)) * cacheBlock
}
