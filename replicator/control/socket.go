package control

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

const (
	lockTries = 5
	lockPause = 20 * time.Millisecond
)

// Socket is a unix socket that only one process serves: a lock is held on the pid file beside it.
type Socket struct {
	net.Listener
	lock *os.File
	once sync.Once
	err  error
}

// PIDFile is where Listen writes the pid for a socket: PATH.sock has PATH.pid.
func PIDFile(socket string) string { return strings.TrimSuffix(socket, ".sock") + ".pid" }

// Listen locks the pid file of the socket at path and listens, for this user only. When another process holds the
// lock the error is Running and says which. The lock goes with the process, however it ends; a socket left behind by
// a dead one is replaced.
func Listen(path string) (*Socket, error) {
	if len(path) > 107 {
		return nil, Errorf(Usage, "%s: a socket path may have 107 bytes, this one has %d", path, len(path))
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return nil, err
	}
	lock, err := os.OpenFile(PIDFile(path), os.O_RDWR|os.O_CREATE, 0o644)
	if err != nil {
		return nil, err
	}
	s := &Socket{lock: lock}
	if err := s.listen(path); err != nil {
		return nil, errors.Join(err, lock.Close())
	}
	return s, nil
}

func (s *Socket) listen(path string) error {
	err := unix.Flock(int(s.lock.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	for try := 0; errors.Is(err, unix.EWOULDBLOCK) && try < lockTries; try++ { // Served may hold it for an instant
		time.Sleep(lockPause)
		err = unix.Flock(int(s.lock.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	}
	if err != nil {
		if errors.Is(err, unix.EWOULDBLOCK) {
			pid, _ := ReadPID(path)
			return Errorf(Running, "%s: process %d serves it already", path, pid)
		}
		return fmt.Errorf("lock %s: %w", s.lock.Name(), err)
	}
	if err := s.lock.Truncate(0); err != nil {
		return err
	}
	if _, err := s.lock.WriteAt(strconv.AppendInt(nil, int64(os.Getpid()), 10), 0); err != nil {
		return err
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		return err
	}
	if err := os.Chmod(path, 0o600); err != nil {
		return errors.Join(err, l.Close())
	}
	s.Listener = l
	return nil
}

// Close closes the socket (its file goes away) and then gives up the lock. A second call is harmless.
func (s *Socket) Close() error {
	s.once.Do(func() { s.err = errors.Join(s.Listener.Close(), s.lock.Close()) })
	return s.err
}

// ReadPID gives the pid in the pid file of the socket at path.
func ReadPID(path string) (int, error) {
	text, err := os.ReadFile(PIDFile(path))
	if err != nil {
		return 0, err
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil || pid <= 0 {
		return 0, fmt.Errorf("%s: %q is no pid", PIDFile(path), text)
	}
	return pid, nil
}

// Served tells whether a living process serves the socket at path, and its pid.
func Served(path string) (pid int, served bool) {
	lock, err := os.Open(PIDFile(path))
	if err != nil {
		return 0, false
	}
	defer lock.Close()
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_SH|unix.LOCK_NB); err == nil {
		return 0, false // nobody holds it; the lock goes with the descriptor
	}
	pid, err = ReadPID(path)
	return pid, err == nil
}
