package link

import (
	"context"
	"crypto/hmac"
	"crypto/rand"
	"fmt"
	"io"
	"log/slog"
	"net"
	"time"

	"github.com/hawser-ha/hawser/replicator/wire"
)

// handshake agrees on version and features and authenticates, over a pair of
// sockets that passed the check.
func handshake(ctx context.Context, log *slog.Logger, cfg *Config, p *pair) (*Conn, error) {
	stop := context.AfterFunc(ctx, func() { p.data.Close() })
	defer stop()
	version, features, err := agree(cfg, p.data)
	if err != nil {
		return nil, err
	}
	if cfg.CramHMACAlg != "" {
		if err := authenticate(cfg, p.data, version); err != nil {
			return nil, err
		}
	}
	if !stop() {
		return nil, context.Cause(ctx)
	}
	for _, conn := range []net.Conn{p.data, p.meta} {
		if err := conn.SetDeadline(time.Time{}); err != nil {
			return nil, err
		}
	}
	log.Info("connected", "peer", p.data.RemoteAddr(), "version", version, "features", features)
	return newConn(log, version, features, p.accepted, p.data, p.meta), nil
}

// agree exchanges P_CONNECTION_FEATURES (section 4).
func agree(cfg *Config, conn net.Conn) (version int, features uint32, err error) {
	own := &wire.FeaturesBody{ProtocolMin: uint32(cfg.VersionMin), Features: cfg.Features, ProtocolMax: uint32(cfg.VersionMax)}
	p := &wire.Packet{Cmd: wire.ConnectionFeatures, Ext: own}
	if err := send(conn, cfg.handshakeTimeout(), wire.VersionHandshake, p, nil); err != nil {
		return 0, 0, err
	}
	cmd, payload, err := receive(conn, cfg.handshakeTimeout(), wire.VersionHandshake)
	if err != nil {
		return 0, 0, fmt.Errorf("features: %w", err)
	}
	if cmd != wire.ConnectionFeatures {
		return 0, 0, fmt.Errorf("%w: %s instead of features", ErrProtocol, cmd)
	}
	if err := wire.Parse(wire.VersionHandshake, 0, 0, cmd, 0, uint32(len(payload)), payload, p); err != nil {
		return 0, 0, err
	}
	peer := p.Ext.(*wire.FeaturesBody)
	if peer.ProtocolMax == 0 {
		peer.ProtocolMax = peer.ProtocolMin
	}
	if own.ProtocolMax < peer.ProtocolMin || own.ProtocolMin > peer.ProtocolMax {
		return 0, 0, fmt.Errorf("%w: ours are %d..%d, the peer's %d..%d", ErrIncompatible,
			own.ProtocolMin, own.ProtocolMax, peer.ProtocolMin, peer.ProtocolMax)
	}
	return int(min(own.ProtocolMax, peer.ProtocolMax)), own.Features & peer.Features, nil
}

// authenticate proves to each side that the other knows the secret (section 5).
func authenticate(cfg *Config, conn net.Conn, version int) error {
	mac, err := wire.NewHMAC(cfg.CramHMACAlg, []byte(cfg.SharedSecret))
	if err != nil {
		return err
	}
	put := func(cmd wire.Command, b []byte) error {
		return send(conn, cfg.handshakeTimeout(), version, &wire.Packet{Cmd: cmd, Tail: uint32(len(b))}, b)
	}
	own := make([]byte, wire.ChallengeSize)
	rand.Read(own)
	if err := put(wire.AuthChallenge, own); err != nil {
		return err
	}
	cmd, challenge, err := receive(conn, cfg.handshakeTimeout(), version)
	if err != nil {
		return fmt.Errorf("challenge: %w", err)
	}
	switch {
	case cmd != wire.AuthChallenge:
		return fmt.Errorf("%w: the peer sent %s and no challenge", ErrAuth, cmd)
	case len(challenge) < wire.ChallengeSize || len(challenge) > wire.ChallengeSizeMax:
		return fmt.Errorf("%w: challenge of %d bytes", ErrAuth, len(challenge))
	case hmac.Equal(challenge[:wire.ChallengeSize], own):
		return fmt.Errorf("%w: the peer sent our own challenge", ErrAuth)
	}
	mac.Write(challenge)
	if err := put(wire.AuthResponse, mac.Sum(nil)); err != nil {
		return err
	}
	cmd, response, err := receive(conn, cfg.handshakeTimeout(), version)
	if err != nil {
		return fmt.Errorf("response: %w", err)
	}
	if cmd != wire.AuthResponse || len(response) != mac.Size() {
		return fmt.Errorf("%w: %s of %d bytes instead of a response", ErrProtocol, cmd, len(response))
	}
	mac.Reset()
	mac.Write(own)
	if !hmac.Equal(response, mac.Sum(nil)) {
		return fmt.Errorf("%w: the peer does not know the shared secret", ErrAuth)
	}
	return nil
}

// send writes one packet of the handshake.
func send(conn net.Conn, timeout time.Duration, version int, p *wire.Packet, tail []byte) error {
	if err := conn.SetWriteDeadline(time.Now().Add(timeout)); err != nil {
		return err
	}
	_, err := conn.Write(append(wire.Append(nil, version, 0, p), tail...))
	return err
}

// payloadMax is more than any packet of the handshake has.
const payloadMax = 4096

// receive reads one packet of the handshake, and not a byte more.
func receive(conn net.Conn, timeout time.Duration, version int) (wire.Command, []byte, error) {
	if err := conn.SetReadDeadline(time.Now().Add(timeout)); err != nil {
		return 0, nil, err
	}
	head := make([]byte, wire.HeaderSize(version))
	if _, err := io.ReadFull(conn, head); err != nil {
		return 0, nil, err
	}
	cmd, _, length, err := wire.ParseHeader(version, head)
	if err != nil {
		return 0, nil, err
	}
	if length > payloadMax {
		return 0, nil, &wire.PacketError{Cmd: cmd, Length: length, Err: wire.ErrLength}
	}
	payload := make([]byte, length)
	_, err = io.ReadFull(conn, payload)
	return cmd, payload, err
}
