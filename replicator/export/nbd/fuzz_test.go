package nbd

import (
	"io"
	"net"
	"testing"
	"time"
)

// feed sends bytes to a server and reads whatever comes until it closes, or until all is answered and our half is closed.
func feed(t *testing.T, s *Server, data []byte) {
	nc, server := pair(t)
	done := make(chan struct{})
	go func() { s.ServeConn(server); close(done) }()
	drained := make(chan struct{})
	go func() { io.Copy(io.Discard, nc); close(drained) }()
	nc.Write(data) // fails when the server has had enough
	nc.(*net.UnixConn).CloseWrite()
	select {
	case <-done:
	case <-time.After(10 * time.Second):
		t.Fatal("server does not end")
	}
	<-drained
	nc.Close()
	if used := s.pool.InUse(); used != 0 || s.budget.free != s.cfg.Memory {
		t.Fatalf("%d bytes of buffers are still lent, budget %d", used, s.budget.free)
	}
}

// FuzzHandshake feeds client flags and options: no panic, no hang, nothing kept.
func FuzzHandshake(f *testing.F) {
	f.Add(cat(be32(3), option(optList, nil), option(optInfo, cat(str("v"), be16(1), be16(3))), option(optAbort, nil)))
	f.Add(cat(be32(3), option(optStructuredReply, nil), option(optSetMetaContext, cat(str("v"), be32(1), str("base:allocation"))),
		option(optGo, cat(str("v"), be16(0))), command(0, cmdBlockStatus, 1, 0, 512)))
	f.Add(cat(be32(1), option(optExportName, []byte("v")), command(0, cmdDisc, 0, 0, 0)))
	f.Add(cat(be32(3), option(optStartTLS, nil), option(77, make([]byte, 100))))
	v := newMemVolume(1 << 20)
	s := New(Config{})
	if err := s.Add("v", "", v); err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		feed(t, s, data)
		if v.open() != 0 {
			t.Fatal("session is left open")
		}
	})
}

// FuzzTransmission feeds requests, after a handshake. The volume itself checks bounds and buffers (and answers with an
// error that nothing else gives).
func FuzzTransmission(f *testing.F) {
	f.Add(true, cat(command(0, cmdRead, 1, 0, 512), command(cflagFUA, cmdWrite, 2, 512, 512), make([]byte, 512)))
	f.Add(false, cat(command(0, cmdWrite, 1, 0, 65536), make([]byte, 65536), command(0, cmdFlush, 2, 0, 0)))
	f.Add(true, cat(command(cflagReqOne, cmdBlockStatus, 1, 4096, 4096), command(cflagFastZero, cmdWriteZeroes, 1, 0, 1<<20)))
	f.Add(false, cat(command(0, cmdTrim, 1, 1<<63, 1<<31), command(0, cmdCache, 1, 0, 0), command(0, cmdDisc, 0, 0, 0)))
	f.Add(true, command(0, 77, 1<<63, 1<<64-512, 1<<32-1))
	v := newMemVolume(1 << 20)
	v.limits.MaxIO = 16 << 10
	s := New(Config{})
	if err := s.Add("v", "", v); err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, structured bool, data []byte) {
		start := be32(3)
		if structured {
			start = cat(start, option(optStructuredReply, nil), option(optSetMetaContext, cat(str("v"), be32(1), str("base:allocation"))))
		}
		feed(t, s, cat(start, option(optGo, cat(str("v"), be16(0))), data))
		if v.strange.Load() != 0 {
			t.Fatal("the volume got a request that the server should have refused")
		}
	})
}
