package check

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hawser-ha/hawser/test/check/nbdclient"
)

// Device is an open volume. Safe for concurrent use.
type Device interface {
	ReadAt(p []byte, off int64) (int, error)
	WriteAt(p []byte, off int64, fua bool) error
	Flush() error
	Size() int64
	Close() error
}

// Target opens a volume: an NBD export or a file.
type Target func(ctx context.Context) (Device, error)

// NBD is the export at uri. timeout bounds each request.
func NBD(uri string, timeout time.Duration) (Target, error) {
	u, err := nbdclient.ParseURI(uri)
	if err != nil {
		return nil, err
	}
	return func(ctx context.Context) (Device, error) { return nbdclient.Dial(ctx, u, timeout) }, nil
}

// File is a file or block device, opened with O_DIRECT where direct is set.
func File(path string, direct bool) Target {
	return func(context.Context) (Device, error) {
		flags := os.O_RDWR
		if direct {
			flags |= unix.O_DIRECT
		}
		f, err := os.OpenFile(path, flags, 0)
		if err != nil {
			return nil, err
		}
		size, err := f.Seek(0, 2)
		if err != nil {
			return nil, errors.Join(err, f.Close())
		}
		return &file{f, size}, nil
	}
}

type file struct {
	*os.File
	size int64
}

func (f *file) Size() int64  { return f.size }
func (f *file) Flush() error { return unix.Fdatasync(int(f.Fd())) }

func (f *file) WriteAt(p []byte, off int64, fua bool) error {
	if _, err := f.File.WriteAt(p, off); err != nil || !fua {
		return err
	}
	return f.Flush()
}

// outcome says what an error means for a write, and whether the session is over.
func outcome(err error) (o Outcome, over bool) {
	if err == nil {
		return OK, false
	}
	if code, ok := errors.AsType[nbdclient.Errno](err); ok {
		if code == nbdclient.ESHUTDOWN { // the server lets go of the volume
			return Unknown, true
		}
		return Failed, false
	}
	if _, ok := errors.AsType[*os.PathError](err); ok {
		return Failed, false
	}
	if errors.Is(err, nbdclient.ErrLost) {
		return Unknown, true
	}
	return Open, true
}

// name is a short name of an error for the statistics.
func name(err error) string {
	if code, ok := errors.AsType[nbdclient.Errno](err); ok {
		return code.Error()
	}
	for _, e := range []error{nbdclient.ErrLost, nbdclient.ErrTimeout} {
		if errors.Is(err, e) {
			return e.Error()
		}
	}
	if p, ok := errors.AsType[*os.PathError](err); ok {
		return p.Err.Error()
	}
	return fmt.Sprint(err)
}
