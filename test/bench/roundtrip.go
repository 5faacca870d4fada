package main

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

const (
	roundTripSize  = 4096 // bytes, each way
	roundTripCount = 4000
	roundTripPort  = 10800
)

// roundTrip is the median time in microseconds that 4 KiB take from host a to host b and back over TCP, by blocking
// calls of one thread on each side, the two threads on two cores.
func (w *world) roundTrip() (us float64, err error) {
	if err := w.network(); err != nil {
		return 0, err
	}
	self, err := os.Executable()
	if err != nil {
		return 0, err
	}
	addr := fmt.Sprintf("%s:%d", addrB, roundTripPort)
	args := inside("b", self, "echo", addr)
	server := exec.Command(args[0], args[1:]...)
	server.Stderr = w.log
	if err := server.Start(); err != nil {
		return 0, err
	}
	defer func() {
		_ = server.Process.Kill() // it has ended if all went well
		_ = server.Wait()
	}()
	args = inside("a", self, "ping", addr)
	out, err := w.output(exec.CommandContext(w.ctx, args[0], args[1:]...))
	if err != nil {
		return 0, err
	}
	return strconv.ParseFloat(strings.TrimSpace(out), 64)
}

// roundTripMain is one end of roundTrip, in a process of its own because a network namespace is a thread's.
func roundTripMain(end, addr string) error {
	runtime.LockOSThread()
	var set unix.CPUSet
	if end == "ping" {
		set.Set(runtime.NumCPU() - 1)
	} else {
		set.Set(0)
	}
	if err := unix.SchedSetaffinity(0, &set); err != nil {
		return fmt.Errorf("pin to a core: %w", err)
	}
	to, err := netip.ParseAddrPort(addr)
	if err != nil {
		return err
	}
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM, 0)
	if err != nil {
		return fmt.Errorf("socket: %w", err)
	}
	at := &unix.SockaddrInet4{Addr: to.Addr().As4(), Port: int(to.Port())}
	buf := make([]byte, roundTripSize)
	if end == "echo" {
		if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1); err != nil {
			return err
		}
		if err := unix.Bind(fd, at); err != nil {
			return fmt.Errorf("bind %s: %w", addr, err)
		}
		if err := unix.Listen(fd, 1); err != nil {
			return err
		}
		conn, _, err := unix.Accept(fd)
		if err != nil {
			return err
		}
		if err := unix.SetsockoptInt(conn, unix.IPPROTO_TCP, unix.TCP_NODELAY, 1); err != nil {
			return err
		}
		for {
			if err := transfer(conn, buf, unix.Read); err != nil {
				return nil //nolint:nilerr // the other end is done
			}
			if err := transfer(conn, buf, unix.Write); err != nil {
				return err
			}
		}
	}
	for try := 0; ; try++ {
		if err = unix.Connect(fd, at); err == nil {
			break
		}
		if try == 100 {
			return fmt.Errorf("connect to %s: %w", addr, err)
		}
		time.Sleep(20 * time.Millisecond) // the server is starting
	}
	if err := unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_NODELAY, 1); err != nil {
		return err
	}
	times := make([]time.Duration, roundTripCount)
	for i := range times {
		began := time.Now()
		if err := transfer(fd, buf, unix.Write); err != nil {
			return err
		}
		if err := transfer(fd, buf, unix.Read); err != nil {
			return err
		}
		times[i] = time.Since(began)
	}
	slices.Sort(times)
	fmt.Println(float64(times[len(times)/2].Nanoseconds()) / 1000)
	return nil
}

// transfer reads or writes all of p.
func transfer(fd int, p []byte, call func(int, []byte) (int, error)) error {
	for len(p) > 0 {
		n, err := call(fd, p)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return err
		}
		if n == 0 {
			return net.ErrClosed
		}
		p = p[n:]
	}
	return nil
}
