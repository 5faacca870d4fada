package link

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"time"

	"github.com/hawser-ha/hawser/replicator/wire"
)

// Final errors of Establish: trying again is no use before an administrator has
// changed something.
var (
	// ErrAuth: the peer and we do not share the secret, or only one wants authentication.
	ErrAuth = errors.New("authentication failed")
	// ErrIncompatible: no protocol version is known to both.
	ErrIncompatible = errors.New("no common protocol version")
)

// Reasons for which a running connection ends by itself, as Handler.Down gets
// them (wrapped). A *wire.PacketError is one more.
var (
	// ErrPeerClosed: the peer closed a socket.
	ErrPeerClosed = errors.New("connection closed by peer")
	// ErrNetwork: the kernel gave up on a socket.
	ErrNetwork = errors.New("network failure")
	// ErrProtocol: the peer sent what it may not send now.
	ErrProtocol = errors.New("protocol violation")
	// ErrClosed is what Down gets after Close(nil).
	ErrClosed = errors.New("connection closed")
)

// Config says how to reach a peer. Zero durations mean DRBD's defaults.
type Config struct {
	Local, Remote string // IP:port of this node and of the peer

	ConnectInt         time.Duration // connect-int: between attempts (10 s)
	PingTimeout        time.Duration // ping-timeout (0.5 s); four of it are the limit of the handshake
	SocketCheckTimeout time.Duration // socket-check-timeout; 0: PingTimeout
	SndBuf, RcvBuf     int           // sndbuf-size, rcvbuf-size in bytes; 0: the kernel decides

	CramHMACAlg  string // cram-hmac-alg, "" for no authentication
	SharedSecret string // at most wire.MaxString bytes

	VersionMin, VersionMax int    // protocol versions we speak (86, 101)
	Features               uint32 // wire.FeatureTrim and so on

	// TLS wraps both sockets when set: who connects is the client, so the config
	// needs certificates for both roles. Without ServerName the peer's certificate
	// must name the IP in Remote.
	TLS *tls.Config

	// Rand decides delays and coins; nil for a random seed. Used by Establish alone.
	Rand *rand.Rand

	// Dial and Listen replace TCP, for tests.
	Dial   func(ctx context.Context) (net.Conn, error)
	Listen func(ctx context.Context) (net.Listener, error)
}

// withDefaults fills what is zero and checks the rest.
func (cfg Config) withDefaults() (Config, error) {
	def := func(d *time.Duration, v time.Duration) {
		if *d <= 0 {
			*d = v
		}
	}
	def(&cfg.ConnectInt, 10*time.Second)
	def(&cfg.PingTimeout, 500*time.Millisecond)
	def(&cfg.SocketCheckTimeout, cfg.PingTimeout)
	if cfg.VersionMin == 0 {
		cfg.VersionMin = wire.VersionMin
	}
	if cfg.VersionMax == 0 {
		cfg.VersionMax = wire.VersionMax
	}
	if cfg.Rand == nil {
		cfg.Rand = rand.New(rand.NewPCG(rand.Uint64(), rand.Uint64()))
	}
	if cfg.VersionMin < wire.VersionMin || cfg.VersionMax > wire.VersionMax || cfg.VersionMin > cfg.VersionMax {
		return cfg, fmt.Errorf("protocol versions %d..%d are not within %d..%d",
			cfg.VersionMin, cfg.VersionMax, wire.VersionMin, wire.VersionMax)
	}
	if len(cfg.SharedSecret) > wire.MaxString {
		return cfg, fmt.Errorf("shared secret is longer than %d bytes", wire.MaxString)
	}
	if cfg.CramHMACAlg != "" {
		if _, err := wire.NewHMAC(cfg.CramHMACAlg, nil); err != nil {
			return cfg, err
		}
	}
	if cfg.Dial == nil || cfg.Listen == nil {
		for _, addr := range []string{cfg.Local, cfg.Remote} {
			if _, err := net.ResolveTCPAddr("tcp", addr); err != nil {
				return cfg, err
			}
		}
	}
	return cfg, nil
}

// handshakeTimeout is the limit for each read of the handshake (section 9).
func (cfg *Config) handshakeTimeout() time.Duration { return 4 * cfg.PingTimeout }
