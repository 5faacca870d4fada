package nbd

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"sync"
	"syscall"
	"time"

	"github.com/hawser-ha/hawser/replicator/export"
	"github.com/hawser-ha/hawser/replicator/iobuf"
)

// Config are the options of a Server. The zero value listens nowhere and is good for ServeConn.
type Config struct {
	Unix     string      // path of the unix socket; empty: none
	UnixMode fs.FileMode // of that socket; 0: 0660
	Listen   string      // TCP address; empty: none
	TLS      *tls.Config // for Listen: nil is no TLS, otherwise nothing works without
	UnixTLS  *tls.Config // the same for Unix

	MaxConns         int           // sessions at a time; 0: 256
	HandshakeTimeout time.Duration // 0: 30 s
	SendTimeout      time.Duration // a client that takes no reply for so long is dropped; 0: 60 s, negative: never
	Memory           int64         // payload bytes in flight, all connections together; 0: 256 MiB; at least 64 MiB
	Log              *slog.Logger  // nil: none
	Pool             *iobuf.Pool   // where payload buffers come from; nil: a pool of Memory bytes
}

const (
	memoryMin     = 2 * payloadMax
	memoryDefault = 8 * payloadMax
	greetingsMax  = 64 // connections beyond MaxConns that may be in their handshake
)

// ErrClosed is the reason clients are dropped for when the server closes.
var ErrClosed = errors.New("nbd server is closing")

// Server serves volumes to NBD clients. Safe for concurrent use.
type Server struct {
	cfg    Config
	pool   *iobuf.Pool
	budget *budget
	share  int64 // of one connection, bytes

	wg sync.WaitGroup // accept loops and connections

	mu        sync.Mutex // guards what follows
	exports   []*exported
	conns     map[*conn]*exported // nil: not in a session
	sessions  int
	listeners []net.Listener
	closed    bool
}

// exported is a volume under a name.
type exported struct {
	name, description string
	volume            export.Volume
	removed           bool
}

// New makes a server that does not listen yet.
func New(cfg Config) *Server {
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	if cfg.UnixMode == 0 {
		cfg.UnixMode = 0o660
	}
	if cfg.MaxConns <= 0 {
		cfg.MaxConns = 256
	}
	if cfg.HandshakeTimeout <= 0 {
		cfg.HandshakeTimeout = 30 * time.Second
	}
	if cfg.SendTimeout == 0 {
		cfg.SendTimeout = time.Minute
	}
	if cfg.Memory == 0 {
		cfg.Memory = memoryDefault
	}
	cfg.Memory = max(cfg.Memory, memoryMin)
	if cfg.Pool == nil {
		cfg.Pool = iobuf.NewPool(cfg.Memory)
	}
	return &Server{cfg: cfg, pool: cfg.Pool, budget: newBudget(cfg.Memory), share: max(cfg.Memory/4, payloadMax),
		conns: make(map[*conn]*exported)}
}

// Add exports a volume. The first one is also the default export, which clients call "". A name that is
// there already is an error, and so is one the protocol cannot carry.
func (s *Server) Add(name, description string, v export.Volume) error {
	if name != cleanText(name) {
		return fmt.Errorf("export %q: bad name", name)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, e := range s.exports {
		if e.name == name {
			return fmt.Errorf("export %q: there already", name)
		}
	}
	s.exports = append(s.exports, &exported{name: name, description: cleanText(description), volume: v})
	return nil
}

// Remove ends an export. Its sessions are closed as at a demotion; Remove does not wait for them.
func (s *Server) Remove(name string) {
	var ending []*conn
	s.mu.Lock()
	for i, e := range s.exports {
		if e.name != name {
			continue
		}
		e.removed = true
		s.exports = append(s.exports[:i:i], s.exports[i+1:]...)
		for c, of := range s.conns {
			if of == e {
				ending = append(ending, c)
			}
		}
		break
	}
	s.mu.Unlock()
	for _, c := range ending {
		c.shut(fmt.Errorf("export %q is removed", name))
	}
}

// Addr is where the server listens on TCP, or nil.
func (s *Server) Addr() net.Addr {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, l := range s.listeners {
		if a, ok := l.Addr().(*net.TCPAddr); ok {
			return a
		}
	}
	return nil
}

// Start listens as configured and returns. Nothing listens after an error.
func (s *Server) Start() error {
	type listener struct {
		net.Listener
		tls *tls.Config
	}
	var ls []listener
	closeAll := func() {
		for _, l := range ls {
			_ = l.Close()
		}
	}
	if s.cfg.Unix != "" {
		l, err := listenUnix(s.cfg.Unix, s.cfg.UnixMode)
		if err != nil {
			return err
		}
		ls = append(ls, listener{l, s.cfg.UnixTLS})
	}
	if s.cfg.Listen != "" {
		l, err := net.Listen("tcp", s.cfg.Listen)
		if err != nil {
			closeAll()
			return err
		}
		ls = append(ls, listener{l, s.cfg.TLS})
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		closeAll()
		return ErrClosed
	}
	for _, l := range ls {
		s.listeners = append(s.listeners, l.Listener)
		s.wg.Go(func() { s.accept(l.Listener, l.tls) })
	}
	return nil
}

// Serve is Start, and Close when ctx ends; the close takes at most 10 s.
func (s *Server) Serve(ctx context.Context) error {
	if err := s.Start(); err != nil {
		return err
	}
	<-ctx.Done()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
	defer cancel()
	return s.Close(ctx)
}

// Close stops listening, removes the unix socket, lets requests in flight finish, and drops all clients. When ctx
// ends first their sockets are closed at once and its error is returned; goroutines that still wait for a volume then end
// with their last request. A second call is harmless.
func (s *Server) Close(ctx context.Context) error {
	s.mu.Lock()
	s.closed = true
	for _, l := range s.listeners {
		_ = l.Close()
	}
	s.listeners = nil
	conns := make([]*conn, 0, len(s.conns))
	for c := range s.conns {
		conns = append(conns, c)
	}
	s.mu.Unlock()
	for _, c := range conns {
		c.shut(ErrClosed)
	}
	done := make(chan struct{})
	go func() { s.wg.Wait(); close(done) }()
	select {
	case <-done:
		return nil
	case <-ctx.Done():
	}
	for _, c := range conns {
		c.fail(ErrClosed)
	}
	return ctx.Err()
}

// ServeConn serves one client on a connection that was made elsewhere, without TLS, and returns when it is
// over. It closes nc.
func (s *Server) ServeConn(nc net.Conn) { s.serve(nc, nil, false) }

// ServeSimple is ServeConn without structured replies, for clients that know only simple ones: the Linux kernel.
func (s *Server) ServeSimple(nc net.Conn) { s.serve(nc, nil, true) }

func (s *Server) serve(nc net.Conn, cfg *tls.Config, simple bool) {
	c := newConn(s, nc)
	c.tls, c.simple = cfg, simple
	s.mu.Lock()
	if s.closed || len(s.conns) >= s.cfg.MaxConns+greetingsMax {
		s.mu.Unlock()
		_ = nc.Close()
		return
	}
	s.conns[c] = nil
	s.wg.Add(1)
	s.mu.Unlock()
	defer s.wg.Done()
	err := c.run()
	s.detach(c)
	s.mu.Lock()
	delete(s.conns, c)
	s.mu.Unlock()
	if err != nil {
		s.cfg.Log.Debug("nbd client dropped", "err", err)
	}
}

// run serves the connection from the first byte to the last.
func (c *conn) run() error {
	defer c.base.Close()
	err := c.negotiate()
	if c.sess == nil {
		if errors.Is(err, errLeft) {
			err = nil
		}
		return err
	}
	written := make(chan struct{})
	go func() { c.writer(); close(written) }()
	if err == nil {
		c.log.Debug("nbd session opened", "volume", c.exp.name)
		err = c.transmit()
	}
	c.finish()
	close(c.handover)
	<-written
	_ = c.nc.Close()
	c.mu.Lock()
	if c.reason != nil {
		err = c.reason
	}
	c.mu.Unlock()
	return err
}

// accept runs until its listener is closed.
func (s *Server) accept(l net.Listener, cfg *tls.Config) {
	pause := time.NewTimer(0)
	defer pause.Stop()
	for {
		nc, err := l.Accept()
		if err == nil {
			s.wg.Go(func() { s.serve(nc, cfg, false) })
			continue
		}
		if errors.Is(err, net.ErrClosed) {
			return
		}
		s.cfg.Log.Warn("nbd accept", "err", err) // out of descriptors: some may come free
		pause.Reset(100 * time.Millisecond)
		<-pause.C
	}
}

// list is a copy of the exports.
func (s *Server) list() []*exported {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]*exported(nil), s.exports...)
}

// lookup finds an export. The empty name is the first one, unless an export is really called so.
func (s *Server) lookup(name string) *exported {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, e := range s.exports {
		if e.name == name {
			return e
		}
	}
	if name == "" && len(s.exports) > 0 {
		return s.exports[0]
	}
	return nil
}

// attach counts a session.
func (s *Server) attach(c *conn, e *exported) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.closed:
		return ErrClosed
	case e.removed:
		return fmt.Errorf("export %q is removed", e.name)
	case s.sessions >= s.cfg.MaxConns:
		return fmt.Errorf("there are %d sessions already, the most allowed", s.sessions)
	}
	s.sessions++
	s.conns[c] = e
	return nil
}

// detach is attach undone. A second call is harmless.
func (s *Server) detach(c *conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.conns[c] != nil {
		s.conns[c] = nil
		s.sessions--
	}
}

// listenUnix listens at path. A socket that nobody listens at any more is replaced; a live one is an error.
func listenUnix(path string, mode fs.FileMode) (net.Listener, error) {
	l, err := net.Listen("unix", path)
	if errors.Is(err, syscall.EADDRINUSE) {
		if fi, serr := os.Lstat(path); serr != nil || fi.Mode().Type() != fs.ModeSocket {
			return nil, fmt.Errorf("%w, and it is no socket", err)
		}
		nc, derr := net.DialTimeout("unix", path, time.Second)
		if derr == nil {
			_ = nc.Close()
			return nil, fmt.Errorf("%w by a live server", err)
		}
		if !errors.Is(derr, syscall.ECONNREFUSED) {
			return nil, errors.Join(err, derr)
		}
		if rerr := os.Remove(path); rerr != nil && !errors.Is(rerr, fs.ErrNotExist) {
			return nil, rerr
		}
		l, err = net.Listen("unix", path)
	}
	if err != nil {
		return nil, err
	}
	if err := os.Chmod(path, mode); err != nil {
		_ = l.Close()
		return nil, err
	}
	return l, nil
}
