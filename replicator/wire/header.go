package wire

import (
	"encoding/binary"
	"errors"
	"fmt"
)

// Protocol versions. VersionHandshake selects the header in use before the
// features were exchanged (section 2).
const (
	VersionHandshake = 80
	VersionMin       = 86
	VersionMax       = 101
)

// HeaderMax is the length of the longest header, in bytes.
const HeaderMax = 16

const (
	magic80  uint32 = 0x83740267
	magic95  uint16 = 0x835a
	magic100 uint32 = 0x8620ec20

	header95Above = 32768 // bytes of payload from which on 95..99 uses header95
)

// What can be wrong with a packet. Parse and its companions wrap one of these in
// a *PacketError.
var (
	ErrMagic   = errors.New("bad magic in packet header")
	ErrPad     = errors.New("header pad is not zero")
	ErrCommand = errors.New("unknown command")
	ErrLength  = errors.New("payload length does not fit the command")
	ErrSize    = errors.New("size or position out of range")
	ErrString  = errors.New("string not terminated or too long")
)

// PacketError says which packet was refused and why. Any of them ends the
// connection.
type PacketError struct {
	Cmd    Command
	Length uint32 // payload bytes, as in the header
	Err    error
}

func (e *PacketError) Error() string {
	return fmt.Sprintf("%s with %d bytes: %v", e.Cmd, e.Length, e.Err)
}

func (e *PacketError) Unwrap() error { return e.Err }

// HeaderSize is the length in bytes of every header at an agreed version.
func HeaderSize(version int) int {
	if version >= 100 {
		return 16
	}
	return 8
}

// AppendHeader appends the header of a packet with length payload bytes. It
// panics if the header of that version has no room for length or vol, which the
// limits of the protocol exclude.
func AppendHeader(dst []byte, version int, cmd Command, vol uint16, length uint32) []byte {
	if version >= 100 {
		dst = binary.BigEndian.AppendUint32(dst, magic100)
		dst = binary.BigEndian.AppendUint16(dst, vol)
		dst = binary.BigEndian.AppendUint16(dst, uint16(cmd))
		dst = binary.BigEndian.AppendUint32(dst, length)
		return append(dst, 0, 0, 0, 0)
	}
	if vol != 0 {
		panic(fmt.Sprintf("wire: volume %d at protocol version %d", vol, version))
	}
	if version >= 95 && length > header95Above {
		dst = binary.BigEndian.AppendUint16(dst, magic95)
		dst = binary.BigEndian.AppendUint16(dst, uint16(cmd))
		return binary.BigEndian.AppendUint32(dst, length)
	}
	if length > 0xffff {
		panic(fmt.Sprintf("wire: %s of %d bytes at protocol version %d", cmd, length, version))
	}
	dst = binary.BigEndian.AppendUint32(dst, magic80)
	dst = binary.BigEndian.AppendUint16(dst, uint16(cmd))
	return binary.BigEndian.AppendUint16(dst, uint16(length))
}

// ParseHeader reads the header at the start of b, which must hold
// HeaderSize(version) bytes. The command and the length are not checked here,
// see BodySize.
func ParseHeader(version int, b []byte) (cmd Command, vol uint16, length uint32, err error) {
	if len(b) < HeaderSize(version) {
		return 0, 0, 0, ErrMagic
	}
	magic := binary.BigEndian.Uint32(b)
	switch {
	case version >= 100:
		if magic != magic100 {
			return 0, 0, 0, ErrMagic
		}
		if binary.BigEndian.Uint32(b[12:]) != 0 {
			return 0, 0, 0, ErrPad
		}
		return Command(binary.BigEndian.Uint16(b[6:])), binary.BigEndian.Uint16(b[4:]), binary.BigEndian.Uint32(b[8:]), nil
	case magic == magic80:
		return Command(binary.BigEndian.Uint16(b[4:])), 0, uint32(binary.BigEndian.Uint16(b[6:])), nil
	case version >= 95 && uint16(magic>>16) == magic95:
		return Command(binary.BigEndian.Uint16(b[2:])), 0, binary.BigEndian.Uint32(b[4:]), nil
	}
	return 0, 0, 0, ErrMagic
}
