package nbd

import (
	"encoding/binary"
	"io"
	"net"
	"os"
	"testing"

	"golang.org/x/sys/unix"
)

// pair is a connected unix socket pair.
func pair(t testing.TB) (net.Conn, net.Conn) {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	var conns [2]net.Conn
	for i, fd := range fds {
		f := os.NewFile(uintptr(fd), "pair")
		if conns[i], err = net.FileConn(f); err != nil {
			t.Fatal(err)
		}
		f.Close()
		t.Cleanup(func() { conns[i].Close() })
	}
	return conns[0], conns[1]
}

// BenchmarkRequests sends rounds of requests through a socket pair; one op is one request, and must not allocate.
func BenchmarkRequests(b *testing.B) {
	for _, bc := range []struct {
		name       string
		cmd        uint16
		size       int
		depth      int
		structured bool
	}{
		{"read 4k depth 1", cmdRead, 4 << 10, 1, true},
		{"read 4k depth 32", cmdRead, 4 << 10, 32, true},
		{"write 4k depth 1", cmdWrite, 4 << 10, 1, false},
		{"write 4k depth 32", cmdWrite, 4 << 10, 32, false},
		{"read 1M depth 8", cmdRead, 1 << 20, 8, true},
		{"write 1M depth 8", cmdWrite, 1 << 20, 8, false},
	} {
		b.Run(bc.name, func(b *testing.B) {
			s := New(Config{})
			if err := s.Add("v", "", newFileVolume(b, "/dev/shm", 64<<20)); err != nil {
				b.Fatal(err)
			}
			nc, server := pair(b)
			done := make(chan struct{})
			go func() { s.ServeConn(server); close(done) }()
			c := newClient(b, nc)
			if bc.structured {
				c.mustAck(optStructuredReply, nil)
			}
			c.goExport("v")

			var round []byte
			reply := simpleSize
			for range bc.depth {
				round = append(round, command(0, bc.cmd, 1, 0, uint32(bc.size))...)
				if bc.cmd == cmdWrite {
					round = append(round, make([]byte, bc.size)...)
				}
			}
			if bc.cmd == cmdRead {
				reply = dataHeaderSize + bc.size
			}
			answer := make([]byte, reply*bc.depth)
			if bc.depth*bc.size > 128<<10 && bc.cmd == cmdRead {
				answer = make([]byte, 1<<20)
			}
			roundTrip := func() {
				if _, err := nc.Write(round); err != nil {
					b.Fatal(err)
				}
				for left := reply * bc.depth; left > 0; {
					n, err := io.ReadFull(nc, answer[:min(left, len(answer))])
					if err != nil {
						b.Fatal(err)
					}
					left -= n
				}
			}
			for range 100 {
				roundTrip()
			}
			b.SetBytes(int64(bc.size))
			b.ReportAllocs()
			b.ResetTimer()
			for n := 0; n < b.N; n += bc.depth {
				roundTrip()
			}
			b.StopTimer()
			nc.Close()
			<-done
		})
	}
}

// command is a request header.
func command(flags, cmd uint16, cookie, off uint64, n uint32) []byte {
	b := binary.BigEndian.AppendUint32(nil, magicRequest)
	b = binary.BigEndian.AppendUint16(b, flags)
	b = binary.BigEndian.AppendUint16(b, cmd)
	b = binary.BigEndian.AppendUint64(b, cookie)
	b = binary.BigEndian.AppendUint64(b, off)
	return binary.BigEndian.AppendUint32(b, n)
}
