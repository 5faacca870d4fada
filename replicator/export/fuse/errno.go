package fuse

import (
	"errors"
	"syscall"

	gofuse "github.com/hanwen/go-fuse/v2/fuse"

	"github.com/hawser-ha/hawser/replicator/export"
)

// errnos is the one place where errors of a volume become error numbers. The loop device turns all of them but
// ENOSPC into EIO; a program that opened the file itself sees them as they are.
var errnos = []struct {
	err    error
	status gofuse.Status
}{
	{export.ErrNotPrimary, gofuse.Status(syscall.ESHUTDOWN)},
	{export.ErrNoSpace, gofuse.Status(syscall.ENOSPC)},
	{export.ErrIO, gofuse.EIO},
	{errAborted, gofuse.Status(syscall.ENOTCONN)},
}

// errAborted ends the wait for a request whose device was detached by force.
var errAborted = errors.New("device detached by force")

func status(err error) gofuse.Status {
	if err == nil {
		return gofuse.OK
	}
	for _, e := range errnos {
		if errors.Is(err, e.err) {
			return e.status
		}
	}
	return gofuse.EIO
}
