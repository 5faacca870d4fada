package link

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"sync"
	"syscall"
	"time"

	"github.com/hawser-ha/hawser/replicator/wire"
)

const (
	retryDelay  = time.Second // after a failed handshake, as DRBD
	incomingMax = 8           // accepted connections whose first packet is awaited
)

// Establish connects to the peer: sockets, features, authentication (sections 3
// to 5). It tries until that succeeds, ctx ends, or the error is final: ErrAuth,
// ErrIncompatible, or a Config that cannot work. The address cfg.Local is listened
// on only meanwhile.
func Establish(ctx context.Context, log *slog.Logger, cfg Config) (*Conn, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	for {
		c, err := attempt(ctx, log, &cfg)
		if err == nil {
			return c, nil
		}
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		if errors.Is(err, ErrAuth) || errors.Is(err, ErrIncompatible) {
			return nil, err
		}
		log.Warn("connecting went wrong, trying again", "err", err)
		select {
		case <-time.After(min(retryDelay, cfg.ConnectInt)):
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

func attempt(ctx context.Context, log *slog.Logger, cfg *Config) (*Conn, error) {
	p, err := connect(ctx, log, cfg)
	if err != nil {
		return nil, err
	}
	for _, conn := range []net.Conn{p.data, p.meta} {
		if tcp, _ := underTCP(conn); tcp != nil {
			if err := tcp.SetNoDelay(true); err != nil {
				p.close()
				return nil, err
			}
		}
	}
	c, err := handshake(ctx, log, cfg, p)
	if err != nil {
		p.close()
		return nil, err
	}
	return c, nil
}

// pair is the sockets made so far.
type pair struct {
	data, meta net.Conn
	accepted   bool // meta was: we resolve conflicts
}

func (p *pair) close() {
	for _, conn := range []*net.Conn{&p.data, &p.meta} {
		if *conn != nil {
			(*conn).Close()
			*conn = nil
		}
	}
}

// check drops the sockets that the peer has closed and reports whether both are good.
func (p *pair) check() bool {
	for _, conn := range []*net.Conn{&p.data, &p.meta} {
		if *conn != nil && !alive(*conn) {
			(*conn).Close()
			*conn = nil
		}
	}
	return p.data != nil && p.meta != nil
}

// incoming is an accepted connection that said what it is.
type incoming struct {
	cmd  wire.Command
	conn net.Conn
}

type outgoing struct {
	conn net.Conn
	err  error
}

// connecting is the state of section 3: its loop owns p, the goroutines it
// started report through the channels, and stop waits for them.
type connecting struct {
	log *slog.Logger
	cfg *Config
	p   pair
	in  chan incoming
	out chan outgoing
	wg  sync.WaitGroup
}

// connect makes both sockets.
func connect(ctx context.Context, log *slog.Logger, cfg *Config) (*pair, error) {
	l, err := listen(ctx, cfg)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	c := &connecting{log: log, cfg: cfg, in: make(chan incoming), out: make(chan outgoing)}
	c.wg.Go(func() { c.accept(ctx, l) })
	err = c.loop(ctx)
	cancel()
	_ = l.Close()
	c.wg.Wait()
	if err != nil {
		c.p.close()
		return nil, err
	}
	return &c.p, nil
}

// loop reacts to what happens until both sockets exist and have passed the check.
func (c *connecting) loop(ctx context.Context) error {
	var (
		dialing bool
		next    time.Duration = -1               // when to dial after the attempt in progress, if not -1
		dial                  = time.NewTimer(0) // when to try to connect
		check                 = time.NewTimer(c.cfg.SocketCheckTimeout)
	)
	defer dial.Stop()
	defer check.Stop()
	check.Stop()
	dialIn := func(d time.Duration) {
		if dialing {
			next = d
		} else {
			dial.Reset(d)
		}
	}
	for {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)

		case <-dial.C:
			if c.p.check() || dialing {
				break
			}
			dialing = true
			c.wg.Go(func() { c.connect(ctx) })

		case o := <-c.out:
			dialing = false
			if o.err != nil {
				c.log.Debug("connection attempt", "err", o.err)
			} else {
				c.opened(o.conn)
			}
			switch {
			case c.p.check():
				check.Reset(c.cfg.SocketCheckTimeout)
			case next >= 0:
				dial.Reset(next)
			default:
				dial.Reset(c.connectInt())
			}
			next = -1

		case i := <-c.in:
			crossed := c.take(i)
			switch {
			case c.p.check():
				check.Reset(c.cfg.SocketCheckTimeout)
			case crossed: // one of two connections has just been thrown away, perhaps by both nodes: not in step again
				dialIn(c.coin())
			case i.cmd == wire.InitialData:
				dialIn(0)
			default: // the peer opened the meta socket first, so it will most likely open the other too
				dialIn(c.cfg.PingTimeout)
			}

		case <-check.C:
			if c.p.check() {
				return nil
			}
			dialIn(c.coin())
		}
	}
}

// opened puts an outgoing connection to use: the first is the data socket.
func (c *connecting) opened(conn net.Conn) {
	c.p.check()
	switch {
	case c.p.data == nil && c.first(conn, wire.InitialData):
		c.p.data = conn
	case c.p.data != nil && c.p.meta == nil && c.first(conn, wire.InitialMeta):
		c.p.meta, c.p.accepted = conn, false
	default:
		conn.Close()
	}
}

// first sends the first packet, which tells the peer what the connection is for.
func (c *connecting) first(conn net.Conn, cmd wire.Command) bool {
	err := send(conn, c.cfg.handshakeTimeout(), wire.VersionHandshake, &wire.Packet{Cmd: cmd}, nil)
	return err == nil
}

// take puts an accepted connection to use. crossed: it replaced one of our own, or
// the peer has already closed it in favour of ours.
func (c *connecting) take(i incoming) (crossed bool) {
	if !alive(i.conn) {
		i.conn.Close()
		return true
	}
	c.p.check()
	conn := &c.p.data
	if i.cmd == wire.InitialMeta {
		conn, c.p.accepted = &c.p.meta, true
	}
	if *conn != nil {
		crossed = true
		(*conn).Close()
	}
	*conn = i.conn
	return crossed
}

// connectInt is connect-int give or take a seventh.
func (c *connecting) connectInt() time.Duration {
	d := c.cfg.ConnectInt
	return d - d/7 + time.Duration(c.cfg.Rand.Int64N(int64(2*d/7)+1))
}

// coin is a short random delay.
func (c *connecting) coin() time.Duration {
	return time.Duration(c.cfg.Rand.Int64N(int64(c.cfg.PingTimeout) + 1))
}

// connect makes one outgoing connection.
func (c *connecting) connect(ctx context.Context) {
	conn, err := c.dial(ctx)
	select {
	case c.out <- outgoing{conn, err}:
	case <-ctx.Done():
		if err == nil {
			conn.Close()
		}
	}
}

func (c *connecting) dial(ctx context.Context) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, c.cfg.ConnectInt)
	defer cancel()
	conn, err := dial(ctx, c.cfg)
	if err != nil || c.cfg.TLS == nil {
		return conn, err
	}
	conf := c.cfg.TLS
	if conf.ServerName == "" {
		host, _, err := net.SplitHostPort(c.cfg.Remote)
		if err != nil {
			conn.Close()
			return nil, err
		}
		conf = conf.Clone()
		conf.ServerName = host
	}
	return secure(ctx, c.cfg, tls.Client(conn, conf))
}

// secure performs the TLS handshake.
func secure(ctx context.Context, cfg *Config, conn *tls.Conn) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, cfg.handshakeTimeout())
	defer cancel()
	if err := conn.HandshakeContext(ctx); err != nil {
		_ = conn.Close()
		return nil, err
	}
	return conn, nil
}

// accept takes connections until the listener is closed.
func (c *connecting) accept(ctx context.Context, l net.Listener) {
	slots := make(chan struct{}, incomingMax)
	for {
		conn, err := l.Accept()
		if err != nil {
			if ctx.Err() == nil && !errors.Is(err, net.ErrClosed) {
				c.log.Warn("accept", "err", err)
				select { // out of descriptors, perhaps; do not spin
				case <-time.After(c.cfg.PingTimeout):
					continue
				case <-ctx.Done():
				}
			}
			return
		}
		select {
		case slots <- struct{}{}:
			c.wg.Go(func() {
				c.greet(ctx, conn)
				<-slots
			})
		default:
			conn.Close()
		}
	}
}

// greet reads the first packet of an accepted connection.
func (c *connecting) greet(ctx context.Context, conn net.Conn) {
	if c.cfg.TLS != nil {
		var err error
		if conn, err = secure(ctx, c.cfg, tls.Server(conn, c.cfg.TLS)); err != nil {
			c.log.Warn("incoming connection refused", "err", err)
			return
		}
	}
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	var head [8]byte
	cmd, length := wire.Command(0), uint32(0)
	err := conn.SetReadDeadline(time.Now().Add(c.cfg.handshakeTimeout()))
	if err == nil {
		_, err = io.ReadFull(conn, head[:])
	}
	if err == nil {
		cmd, _, length, err = wire.ParseHeader(wire.VersionHandshake, head[:])
	}
	if err == nil && (cmd != wire.InitialData && cmd != wire.InitialMeta || length != 0) {
		err = &wire.PacketError{Cmd: cmd, Length: length, Err: wire.ErrCommand}
	}
	if !stop() {
		conn.Close()
		return
	}
	if err != nil {
		level := slog.LevelWarn
		if errors.Is(err, io.EOF) { // the usual end of an attempt that crossed ours
			level = slog.LevelDebug
		}
		c.log.Log(ctx, level, "incoming connection refused", "from", conn.RemoteAddr(), "err", err)
		conn.Close()
		return
	}
	select {
	case c.in <- incoming{cmd, conn}:
	case <-ctx.Done():
		conn.Close()
	}
}

func listen(ctx context.Context, cfg *Config) (net.Listener, error) {
	if cfg.Listen != nil {
		return cfg.Listen(ctx)
	}
	lc := net.ListenConfig{Control: cfg.control}
	lc.SetMultipathTCP(false)
	l, err := lc.Listen(ctx, "tcp", cfg.Local)
	if err != nil {
		return nil, fmt.Errorf("listen on %s: %w", cfg.Local, err)
	}
	return l, nil
}

func dial(ctx context.Context, cfg *Config) (net.Conn, error) {
	if cfg.Dial != nil {
		return cfg.Dial(ctx)
	}
	local, err := net.ResolveTCPAddr("tcp", cfg.Local)
	if err != nil {
		return nil, err
	}
	d := net.Dialer{LocalAddr: &net.TCPAddr{IP: local.IP, Zone: local.Zone}, Control: cfg.control}
	return d.DialContext(ctx, "tcp", cfg.Remote)
}

func (cfg *Config) control(_, _ string, raw syscall.RawConn) error {
	return setBuffers(raw, cfg.SndBuf, cfg.RcvBuf)
}
