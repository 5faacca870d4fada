package nbd

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// call makes a system call that copies up to size bytes. The sockets do not block, so of a short one the runtime is
// not told: its monitor thread, asleep while everything waits for a client, would be woken, and then look at us every
// 20 us for a while. A long one may cost other goroutines the processor, if the runtime does not know.
func call(trap, fd, a, b uintptr, size int) (int, unix.Errno) {
	if size <= shortCall {
		n, _, e := unix.RawSyscall(trap, fd, a, b)
		return int(n), e
	}
	n, _, e := unix.Syscall(trap, fd, a, b)
	return int(n), e
}

const shortCall = 64 << 10 // bytes

func sockRead(fd uintptr, p []byte) (int, error) {
	for {
		n, e := call(unix.SYS_READ, fd, uintptr(unsafe.Pointer(unsafe.SliceData(p))), uintptr(len(p)), len(p))
		if e == 0 {
			return n, nil
		}
		if e != unix.EINTR {
			return 0, sockErr(e)
		}
	}
}

// sockWrite may be interrupted.
func sockWrite(fd uintptr, p []byte) (int, error) {
	n, e := call(unix.SYS_WRITE, fd, uintptr(unsafe.Pointer(unsafe.SliceData(p))), uintptr(len(p)), len(p))
	if e != 0 {
		return 0, sockErr(e)
	}
	return n, nil
}

// sockWritev is sockWrite of a and b in one call. iov is memory that outlives it.
func sockWritev(fd uintptr, iov *[2]unix.Iovec, a, b []byte) (int, error) {
	for i, p := range [2][]byte{a, b} {
		iov[i].Base = unsafe.SliceData(p)
		iov[i].SetLen(len(p))
	}
	n, e := call(unix.SYS_WRITEV, fd, uintptr(unsafe.Pointer(iov)), 2, len(a)+len(b))
	*iov = [2]unix.Iovec{}
	if e != 0 {
		return 0, sockErr(e)
	}
	return n, nil
}

// sockErr keeps the usual ones from being allocated.
func sockErr(e unix.Errno) error {
	switch e {
	case unix.EAGAIN:
		return errAgain
	case unix.EINTR:
		return errIntr
	}
	return e
}

var errAgain, errIntr error = unix.EAGAIN, unix.EINTR
