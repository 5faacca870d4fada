package watchdog

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// kernel is a device file of the kernel's watchdog drivers.
type kernel struct {
	f    *os.File
	info unix.WatchdogInfo
}

// openKernel opens it, which starts it.
func openKernel(path string) (Device, error) {
	st, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if st.Mode().Type() != os.ModeDevice|os.ModeCharDevice {
		return nil, fmt.Errorf("%s is no device", path) // never write into a file that happens to be there
	}
	f, err := os.OpenFile(path, os.O_WRONLY|unix.O_CLOEXEC, 0)
	if errors.Is(err, unix.EBUSY) {
		return nil, fmt.Errorf("another program has it open (systemd's RuntimeWatchdogSec, watchdogd, sbd?): %w", err)
	}
	if err != nil {
		return nil, err
	}
	k := &kernel{f: f}
	if err := k.ioctl(unix.WDIOC_GETSUPPORT, unsafe.Pointer(&k.info)); err != nil {
		return nil, errors.Join(fmt.Errorf("%s is no watchdog: %w", path, err), k.Close(true))
	}
	return k, nil
}

func (k *kernel) ioctl(request uint, arg unsafe.Pointer) error {
	raw, err := k.f.SyscallConn()
	if err != nil {
		return err
	}
	var no unix.Errno
	if err := raw.Control(func(fd uintptr) { _, _, no = unix.Syscall(unix.SYS_IOCTL, fd, uintptr(request), uintptr(arg)) }); err != nil {
		return err
	}
	if no != 0 {
		return no
	}
	return nil
}

// SetTimeout implements Device.
func (k *kernel) SetTimeout(d time.Duration) (time.Duration, error) {
	seconds := int32(d / time.Second)
	if k.info.Options&unix.WDIOF_SETTIMEOUT == 0 { // a fixed one: what is it?
		if err := k.ioctl(unix.WDIOC_GETTIMEOUT, unsafe.Pointer(&seconds)); err != nil {
			return 0, fmt.Errorf("read its timeout: %w", err)
		}
		return time.Duration(seconds) * time.Second, nil
	}
	if err := k.ioctl(unix.WDIOC_SETTIMEOUT, unsafe.Pointer(&seconds)); err != nil {
		return 0, fmt.Errorf("set its timeout to %s: %w", d, err)
	}
	return time.Duration(seconds) * time.Second, nil
}

// Feed implements Device.
func (k *kernel) Feed() error { return k.ioctl(unix.WDIOC_KEEPALIVE, nil) }

// Close implements Device. The letter V before it is the driver's sign that it is meant.
func (k *kernel) Close(disarm bool) error {
	var err error
	if disarm {
		_, err = k.f.Write([]byte("V"))
	}
	return errors.Join(err, k.f.Close())
}

// CanDisarm implements Device.
func (k *kernel) CanDisarm() (bool, error) {
	if k.info.Options&unix.WDIOF_MAGICCLOSE == 0 {
		return false, nil
	}
	// nowayout makes the driver ignore the letter. Kernels without these files do not tell.
	files, err := filepath.Glob("/sys/class/watchdog/*/nowayout")
	if err != nil {
		return false, err
	}
	var st unix.Stat_t
	raw, err := k.f.SyscallConn()
	if err != nil {
		return false, err
	}
	var serr error
	if err := raw.Control(func(fd uintptr) { serr = unix.Fstat(int(fd), &st) }); err != nil || serr != nil {
		return false, errors.Join(err, serr)
	}
	for _, file := range files {
		dev, err := os.ReadFile(filepath.Join(filepath.Dir(file), "dev"))
		if err != nil {
			continue // it went away
		}
		mine := strings.TrimSpace(string(dev)) == fmt.Sprintf("%d:%d", unix.Major(st.Rdev), unix.Minor(st.Rdev))
		// /dev/watchdog is 10:130, the first one by its old name.
		first := st.Rdev == unix.Mkdev(10, 130) && filepath.Base(filepath.Dir(file)) == "watchdog0"
		if !mine && !first {
			continue
		}
		text, err := os.ReadFile(file)
		if err != nil {
			return false, err
		}
		return strings.TrimSpace(string(text)) == "0", nil
	}
	return true, nil
}

// Identity implements Device.
func (k *kernel) Identity() string {
	name, _, _ := bytes.Cut(k.info.Identity[:], []byte{0})
	return string(name)
}
