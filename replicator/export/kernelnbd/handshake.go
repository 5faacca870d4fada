package kernelnbd

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
)

// The few words of the newstyle handshake that a client needs who only wants an export by its name, with simple
// replies.
const (
	nbdMagic      = 0x4e42444d41474943
	optMagic      = 0x49484156454f5054
	optExportName = 1
	flagFixed     = 1 << 0
	flagNoZeroes  = 1 << 1
	exportNameMax = 4096 // bytes
	greetingLen   = 18
	exportLen     = 10 // without the 124 zeroes
	paddingLen    = 124
	transHasFlags = 1 << 0
)

// negotiated is what the server says about an export.
type negotiated struct {
	size  int64  // bytes
	flags uint16 // transmission flags
}

// negotiate asks for export by EXPORT_NAME. After it, the connection speaks simple replies.
func negotiate(rw io.ReadWriter, export string) (negotiated, error) {
	if len(export) > exportNameMax {
		return negotiated{}, fmt.Errorf("export name of %d bytes", len(export))
	}
	var b [greetingLen]byte
	if _, err := io.ReadFull(rw, b[:]); err != nil {
		return negotiated{}, fmt.Errorf("nbd greeting: %w", err)
	}
	if binary.BigEndian.Uint64(b[:]) != nbdMagic || binary.BigEndian.Uint64(b[8:]) != optMagic {
		return negotiated{}, errors.New("nbd greeting: not a newstyle server")
	}
	offered := uint32(binary.BigEndian.Uint16(b[16:])) & (flagFixed | flagNoZeroes)
	req := binary.BigEndian.AppendUint32(nil, offered)
	req = binary.BigEndian.AppendUint64(req, optMagic)
	req = binary.BigEndian.AppendUint32(req, optExportName)
	req = binary.BigEndian.AppendUint32(req, uint32(len(export)))
	req = append(req, export...)
	if _, err := rw.Write(req); err != nil {
		return negotiated{}, fmt.Errorf("nbd export %q: %w", export, err)
	}
	rest := make([]byte, exportLen, exportLen+paddingLen)
	if offered&flagNoZeroes == 0 {
		rest = rest[:exportLen+paddingLen]
	}
	if _, err := io.ReadFull(rw, rest); err != nil { // a server that refuses just closes
		return negotiated{}, fmt.Errorf("nbd export %q refused: %w", export, err)
	}
	size := binary.BigEndian.Uint64(rest)
	n := negotiated{size: int64(size), flags: binary.BigEndian.Uint16(rest[8:])}
	if n.size <= 0 || n.flags&transHasFlags == 0 {
		return negotiated{}, fmt.Errorf("nbd export %q: size %d, flags %#x", export, size, n.flags)
	}
	return n, nil
}
