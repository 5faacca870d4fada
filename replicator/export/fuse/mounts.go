package fuse

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/hawser-ha/hawser/replicator/export/hostdev"
)

func unmountLazily(point string) error {
	err := unix.Unmount(point, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW)
	if err != nil && !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOENT) { // EINVAL: not a mount point
		return fmt.Errorf("unmount %s: %w", point, err)
	}
	return nil
}

// fusectl is where the kernel lists FUSE connections.
const fusectl = "/sys/fs/fuse/connections"

// abortConnection makes every request of a FUSE connection fail, now and later. id is the minor number of
// the mount's device. When there is no fusectl and none can be mounted, umount(MNT_FORCE) does the same.
func abortConnection(id uint32, point string) error {
	file := filepath.Join(fusectl, strconv.FormatUint(uint64(id), 10), "abort")
	err := os.WriteFile(file, []byte("1"), 0)
	if errors.Is(err, os.ErrNotExist) {
		if m, merr := hostdev.MountsAt(fusectl); merr == nil && len(m) == 0 {
			if err := unix.Mount("fusectl", fusectl, "fusectl", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, ""); err == nil {
				return abortConnection(id, point)
			}
			uerr := unix.Unmount(point, unix.MNT_FORCE|unix.UMOUNT_NOFOLLOW)
			if uerr == nil || errors.Is(uerr, unix.EBUSY) || errors.Is(uerr, unix.EINVAL) {
				return nil // it aborts before it finds the mount busy
			}
			return fmt.Errorf("abort FUSE connection %d: %w", id, uerr)
		}
		return nil // the connection has gone already
	}
	if err != nil {
		return fmt.Errorf("abort FUSE connection %d: %w", id, err)
	}
	return nil
}
