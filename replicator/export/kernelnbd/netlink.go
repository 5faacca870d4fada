package kernelnbd

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/mdlayher/genetlink"
	"github.com/mdlayher/netlink"
)

// The family, its commands and attributes, as the kernel's nbd-netlink.h numbers them.
const (
	familyName    = "nbd"
	familyVersion = 1
	groupName     = "nbd_mc_group"

	cmdConnect     = 1
	cmdDisconnect  = 2
	cmdReconfigure = 3
	cmdLinkDead    = 4

	attrIndex           = 1  // u32
	attrSizeBytes       = 2  // u64
	attrBlockSizeBytes  = 3  // u64
	attrTimeout         = 4  // u64, seconds
	attrServerFlags     = 5  // u64
	attrSockets         = 7  // nested sockItem
	attrDeadConnTimeout = 8  // u64, seconds
	attrBackendID       = 10 // string

	sockItem = 1 // nested sockFD
	sockFD   = 1 // u32
)

// ErrUnavailable says that this kernel has no nbd client, or its module is not loaded.
var ErrUnavailable = errors.New("the kernel's nbd client is not available")

// params are the attributes of a command. Zero values are left out, except where a comment says otherwise.
type params struct {
	index    int // negative: left out
	size     int64
	block    int
	connect  bool // also send TIMEOUT 0, FLAGS and DEAD_CONN_TIMEOUT, whatever their values
	flags    uint16
	deadConn uint64 // seconds
	backend  string
	socket   int // negative: left out
}

// encode is the attributes' wire format, in the order of their numbers.
func (p params) encode() ([]byte, error) {
	ae := netlink.NewAttributeEncoder()
	if p.index >= 0 {
		ae.Uint32(attrIndex, uint32(p.index))
	}
	if p.size > 0 {
		ae.Uint64(attrSizeBytes, uint64(p.size))
	}
	if p.block > 0 {
		ae.Uint64(attrBlockSizeBytes, uint64(p.block))
	}
	if p.connect {
		ae.Uint64(attrTimeout, 0)
		ae.Uint64(attrServerFlags, uint64(p.flags))
	}
	if p.socket >= 0 {
		ae.Nested(attrSockets, func(items *netlink.AttributeEncoder) error {
			items.Nested(sockItem, func(item *netlink.AttributeEncoder) error {
				item.Uint32(sockFD, uint32(p.socket))
				return nil
			})
			return nil
		})
	}
	if p.connect {
		ae.Uint64(attrDeadConnTimeout, p.deadConn)
	}
	if p.backend != "" {
		ae.String(attrBackendID, p.backend)
	}
	return ae.Encode()
}

// indexOf finds the device number in the attributes of a reply or of LINK_DEAD.
func indexOf(data []byte) (int, error) {
	ad, err := netlink.NewAttributeDecoder(data)
	if err != nil {
		return 0, fmt.Errorf("nbd message: %w", err)
	}
	for ad.Next() {
		if ad.Type() == attrIndex {
			n := ad.Uint32()
			if err := ad.Err(); err != nil {
				return 0, fmt.Errorf("nbd message: %w", err)
			}
			return int(n), nil
		}
	}
	return 0, errors.Join(errors.New("nbd message without a device number"), ad.Err())
}

// dial opens a socket of its own, so that no late message of one command is taken for the reply to the next.
func dial() (*genetlink.Conn, genetlink.Family, error) {
	c, err := genetlink.Dial(nil)
	if err != nil {
		return nil, genetlink.Family{}, fmt.Errorf("generic netlink: %w", err)
	}
	f, err := c.GetFamily(familyName)
	if err != nil {
		if errors.Is(err, os.ErrNotExist) {
			err = fmt.Errorf("%w (modprobe nbd)", ErrUnavailable)
		}
		return nil, genetlink.Family{}, errors.Join(err, c.Close())
	}
	return c, f, nil
}

// command executes one command and returns the attributes of its reply, if it has one.
func command(ctx context.Context, cmd uint8, p params) ([]byte, error) {
	data, err := p.encode()
	if err != nil {
		return nil, err
	}
	c, f, err := dial()
	if err != nil {
		return nil, err
	}
	defer func() { _ = c.Close() }()
	if t, ok := ctx.Deadline(); ok {
		if err := c.SetDeadline(t); err != nil {
			return nil, err
		}
	}
	flags := netlink.Request
	if cmd != cmdConnect { // CONNECT has a reply of its own
		flags |= netlink.Acknowledge
	}
	msgs, err := c.Execute(genetlink.Message{
		Header: genetlink.Header{Command: cmd, Version: familyVersion}, Data: data,
	}, f.ID, flags)
	if err != nil {
		return nil, err
	}
	if len(msgs) == 0 {
		return nil, nil
	}
	return msgs[0].Data, nil
}

// Available says whether this kernel takes nbd devices over netlink. The module is not loaded for it.
func Available() bool {
	c, _, err := dial()
	if err != nil {
		return false
	}
	_ = c.Close()
	return true
}
