package link

import (
	"crypto/tls"
	"net"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// underTCP finds the TCP connection below conn, nil if there is none, and how to
// make system calls on it if conn is that connection itself.
func underTCP(conn net.Conn) (*net.TCPConn, syscall.RawConn) {
	switch conn := conn.(type) {
	case *net.TCPConn:
		raw, err := conn.SyscallConn()
		if err != nil {
			return conn, nil
		}
		return conn, raw
	case *tls.Conn:
		tcp, _ := underTCP(conn.NetConn())
		return tcp, nil
	}
	return nil, nil
}

// call makes a system call that copies about size bytes and never waits. Of a short one the runtime is not told: its
// monitor thread, asleep while everything waits for the network, would be woken, and then look at us every 20 us for a
// while. A long one may cost other goroutines the processor, if the runtime does not know.
func call(trap, fd, a, b uintptr, size int) (uintptr, unix.Errno) {
	if size <= shortCall {
		n, _, errno := unix.RawSyscall(trap, fd, a, b)
		return n, errno
	}
	n, _, errno := unix.Syscall(trap, fd, a, b)
	return n, errno
}

const shortCall = 64 << 10 // bytes

// sendmsg sends without waiting and without SIGPIPE. The error is a syscall.Errno.
func sendmsg(fd uintptr, msg *unix.Msghdr, size int) (int, error) {
	for {
		n, errno := call(unix.SYS_SENDMSG, fd, uintptr(unsafe.Pointer(msg)), unix.MSG_NOSIGNAL|unix.MSG_DONTWAIT, size)
		switch errno {
		case 0:
			return int(n), nil
		case unix.EINTR:
		case unix.EAGAIN:
			return 0, unix.EAGAIN
		default:
			return 0, errno
		}
	}
}

// readv reads from a non-blocking descriptor; size bytes are expected.
func readv(fd uintptr, iov []unix.Iovec, size int) (int, error) {
	for {
		n, errno := call(unix.SYS_READV, fd, uintptr(unsafe.Pointer(&iov[0])), uintptr(len(iov)), size)
		switch errno {
		case 0:
			return int(n), nil
		case unix.EINTR:
		case unix.EAGAIN:
			return 0, unix.EAGAIN
		default:
			return 0, errno
		}
	}
}

// control runs f on the descriptor of a TCP connection.
func control(tcp *net.TCPConn, f func(fd int)) {
	if tcp == nil {
		return
	}
	raw, err := tcp.SyscallConn()
	if err != nil {
		return
	}
	_ = raw.Control(func(fd uintptr) { f(int(fd)) }) // fails only when the connection is closed
}

// shutdown ends both directions, which wakes whoever waits for the socket.
func shutdown(tcp *net.TCPConn) {
	control(tcp, func(fd int) {
		_ = unix.Shutdown(fd, unix.SHUT_RDWR) // ENOTCONN: it is down already
	})
}

// sendBuffer is SIOCOUTQ and SO_SNDBUF.
func sendBuffer(tcp *net.TCPConn) (used, size int) {
	control(tcp, func(fd int) {
		var err error
		if used, err = unix.IoctlGetInt(fd, unix.SIOCOUTQ); err != nil {
			used = 0
		}
		if size, err = unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_SNDBUF); err != nil {
			size = 0
		}
	})
	return used, size
}

// alive reports whether the peer has not closed conn, as far as is known here.
func alive(conn net.Conn) bool {
	tcp, _ := underTCP(conn)
	ok := true
	control(tcp, func(fd int) {
		var b [1]byte
		n, _, err := unix.Recvfrom(fd, b[:], unix.MSG_PEEK|unix.MSG_DONTWAIT)
		ok = err == unix.EAGAIN || err == nil && n > 0
	})
	return ok
}

// setBuffers applies sndbuf-size and rcvbuf-size before connect or listen.
func setBuffers(raw syscall.RawConn, snd, rcv int) error {
	var err error
	set := func(fd uintptr, opt, size int) {
		if size > 0 && err == nil {
			err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, opt, size)
		}
	}
	if e := raw.Control(func(fd uintptr) {
		set(fd, unix.SO_SNDBUF, snd)
		set(fd, unix.SO_RCVBUF, rcv)
	}); e != nil {
		return e
	}
	return err
}
