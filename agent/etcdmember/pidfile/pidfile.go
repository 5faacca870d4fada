// Package pidfile tells whether the member of etcd of this node runs: a file that it keeps locked, with the number of its process.
package pidfile

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// Lock takes the lock of a PID file and writes the number of this process.
func Lock(path string) (unlock func(), err error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return nil, err
	}
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o644)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		return nil, errors.Join(fmt.Errorf("%s is locked: a member of etcd runs on this node already", path), f.Close())
	}
	if err := f.Truncate(0); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	if _, err := fmt.Fprintln(f, os.Getpid()); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return func() { _ = f.Close() }, nil // which gives the lock up
}

// Running gives the process that holds the lock; 0: none does.
func Running(pidFile string) (pid int, err error) {
	f, err := os.Open(pidFile)
	if errors.Is(err, os.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	defer f.Close()
	if err := unix.Flock(int(f.Fd()), unix.LOCK_SH|unix.LOCK_NB); err == nil {
		return 0, nil // closing gives it up
	} else if !errors.Is(err, unix.EWOULDBLOCK) {
		return 0, fmt.Errorf("%s: %w", pidFile, err)
	}
	var n int
	if _, err := fmt.Fscan(f, &n); err != nil {
		return 0, fmt.Errorf("%s: it is locked, but holds no number: %w", pidFile, err)
	}
	return n, nil
}
