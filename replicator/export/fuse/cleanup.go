package fuse

import (
	"errors"
	"path/filepath"
	"strings"

	"github.com/hawser-ha/hawser/replicator/export/hostdev"
)

// Cleanup removes what a process that died (or hangs) has left on mountPoint: it aborts the FUSE
// connections, detaches the loop devices and unmounts. Afterwards the mount point can be used again. When a
// file system is still mounted from such a loop device, the error is a *hostdev.BusyError for each: that file system is
// lost, and the loop device goes when it is unmounted. Only mounts made by this
// package are touched, but also that of a process that still serves it: the caller must know that it is dead. Bounded.
func Cleanup(mountPoint string) error {
	mountPoint = filepath.Clean(mountPoint)
	at, err := hostdev.MountsAt(mountPoint)
	errs := []error{err}
	ours := 0
	for _, m := range at {
		if m.FSType == "fuse."+fsType {
			ours++
			errs = append(errs, abortConnection(m.Minor, mountPoint))
		}
	}
	// The devices first: without its mount, the path of a loop device's file can no longer be told.
	loops, err := loopsUnder(mountPoint)
	errs = append(errs, err)
	for _, l := range loops {
		if holders, err := hostdev.Holders(l.path(), strings.TrimSuffix(l.backing(), " (deleted)")); err == nil && len(holders) > 0 {
			errs = append(errs, busy(l.path(), holders))
		}
		errs = append(errs, l.clear(false))
	}
	for range ours {
		errs = append(errs, unmountLazily(mountPoint))
	}
	return errors.Join(errs...)
}
