package main

import (
	"fmt"
	"os"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/hawser-ha/hawser/replicator/export"
)

// volume is a block device or file, locked against a second server. Requests run on the caller's goroutine.
type volume struct {
	f *os.File

	mu   sync.Mutex // guards what follows
	size int64      // bytes
	open map[*session]func(int64)
}

type session struct{ v *volume }

// openVolume waits for the lock: the process before us may be dying still.
func openVolume(path string, size int64) (*volume, error) {
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX); err != nil {
		return nil, fmt.Errorf("lock %s: %w", path, err)
	}
	return &volume{f: f, size: size, open: map[*session]func(int64){}}, nil
}

func (v *volume) Size() int64 {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.size
}

func (v *volume) Limits() export.Limits {
	return export.Limits{MinBlock: 512, Preferred: 4096, MaxIO: 1 << 20}
}

func (v *volume) Open(_ func(error), resized func(int64)) (export.Session, error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	s := &session{v}
	v.open[s] = resized
	return s, nil
}

func (v *volume) Extents(out []export.Extent, _, length int64, _ int) ([]export.Extent, error) {
	return append(out, export.Extent{Len: length}), nil
}

func (v *volume) resize(size int64) {
	v.mu.Lock()
	v.size = size
	var tell []func(int64)
	for _, f := range v.open {
		tell = append(tell, f)
	}
	v.mu.Unlock()
	for _, f := range tell {
		f(size)
	}
}

func (s *session) Close() {
	s.v.mu.Lock()
	defer s.v.mu.Unlock()
	delete(s.v.open, s)
}

func (s *session) Submit(batch []*export.Request) {
	for i, r := range batch {
		r.Err = s.v.do(r)
		kick := r.Kick
		last := i == len(batch)-1
		r.Done(r)
		if last && kick != nil {
			kick.Kick()
		}
	}
}

func (v *volume) do(r *export.Request) error {
	var err error
	switch r.Op {
	case export.Read:
		_, err = v.f.ReadAt(r.Buf.B, r.Off)
	case export.Write:
		_, err = v.f.WriteAt(r.Buf.B, r.Off)
	case export.WriteZeroes:
		_, err = v.f.WriteAt(make([]byte, r.Len), r.Off)
	case export.Flush:
		err = unix.Fdatasync(int(v.f.Fd()))
	case export.Trim: // advice
	}
	if err == nil && r.FUA {
		err = unix.Fdatasync(int(v.f.Fd()))
	}
	if err != nil {
		return fmt.Errorf("%w: %w", export.ErrIO, err)
	}
	return nil
}
