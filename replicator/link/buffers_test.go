package link

import (
	"context"
	"errors"
	"net"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// sndbuf-size and rcvbuf-size hold for connections made and accepted; the kernel doubles what it is told.
func TestBufferSizes(t *testing.T) {
	a, b := configs(t, 1)
	for _, cfg := range []*Config{&a, &b} {
		cfg.SndBuf, cfg.RcvBuf = 64<<10, 96<<10
	}
	l, err := listen(t.Context(), &a)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	out, err := dial(t.Context(), &b)
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	in, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	for name, conn := range map[string]net.Conn{"made": out, "accepted": in} {
		tcp, _ := underTCP(conn)
		control(tcp, func(fd int) {
			snd, _ := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_SNDBUF)
			rcv, _ := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUF)
			if snd != 2*a.SndBuf || rcv != 2*a.RcvBuf {
				t.Errorf("%s: %d and %d bytes", name, snd, rcv)
			}
		})
	}
}

// Attempts to reach a peer that is not there are connect-int apart, give or take a seventh.
func TestAttemptsAreConnectIntApart(t *testing.T) {
	a, _ := configs(t, 1)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	attempts := make(chan time.Time, 16)
	a.Dial = func(context.Context) (net.Conn, error) {
		attempts <- time.Now()
		return nil, errors.New("nobody is there")
	}
	done := begin(ctx, a)
	last := <-attempts
	for range 3 {
		next := <-attempts
		if d := next.Sub(last); d < a.ConnectInt*6/7-10*time.Millisecond || d > 5*a.ConnectInt {
			t.Errorf("%s apart, connect-int is %s", d, a.ConnectInt)
		}
		last = next
	}
	cancel()
	<-done
}
