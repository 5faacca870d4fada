package wire

import (
	"bytes"
	"encoding/binary"
	"fmt"
)

var be = binary.BigEndian

// Append appends the header and the fixed part of p, or its whole body where
// Ext holds one. The length in the header includes p.Tail: the caller sends that
// many bytes behind it. version and features are the agreed ones (VersionHandshake
// before). P_SYNC_PARAM89 goes out as P_SYNC_PARAM below version 89. A packet that
// p does not describe rightly, such as a P_SIZES without its *SizesBody, is a bug
// of the caller and panics.
func Append(dst []byte, version int, features uint32, p *Packet) []byte {
	switch p.Cmd {
	case Protocol, ProtocolUpdate:
		return appendProtocol(dst, version, p)
	case SyncParam, SyncParam89:
		return appendSyncParam(dst, version, p)
	}
	n, tail, ok := FixedSize(version, features, p.Cmd)
	if !ok || p.Tail > 0 && !tail {
		panic(fmt.Sprintf("wire: cannot send %s with %d bytes at version %d", p.Cmd, p.Tail, version))
	}
	dst = AppendHeader(dst, version, p.Cmd, p.Vol, uint32(n)+p.Tail)
	switch p.Cmd {
	case Data, DataReply, RSDataReply:
		dst = appendBlock(dst, p.Sector, p.BlockID)
		dst = be.AppendUint32(dst, p.Seq)
		return be.AppendUint32(dst, uint32(p.Flags))
	case Trim, Zeroes:
		dst = appendBlock(dst, p.Sector, p.BlockID)
		dst = be.AppendUint32(dst, p.Seq)
		dst = be.AppendUint32(dst, uint32(p.Flags))
		return be.AppendUint32(dst, p.Size)
	case DataRequest, RSDataRequest, RSThinReq, OVRequest, OVReply, CsumRSRequest:
		dst = appendBlock(dst, p.Sector, p.BlockID)
		dst = be.AppendUint32(dst, p.Size)
		return append(dst, 0, 0, 0, 0)
	case RecvAck, WriteAck, RSWriteAck, Superseded, NegAck, NegDReply, NegRSDReply, OVResult, RSIsInSync, RSCancel,
		RetryWrite:
		dst = appendBlock(dst, p.Sector, p.BlockID)
		dst = be.AppendUint32(dst, p.Size)
		return be.AppendUint32(dst, p.Seq)
	case OutOfSync, RSDeallocated:
		dst = be.AppendUint64(dst, p.Sector)
		dst = be.AppendUint32(dst, p.Size)
		return append(dst, 0, 0, 0, 0)
	case Barrier:
		dst = be.AppendUint32(dst, p.Barrier)
		return append(dst, 0, 0, 0, 0)
	case BarrierAck:
		dst = be.AppendUint32(dst, p.Barrier)
		return be.AppendUint32(dst, p.SetSize)
	case StateReport:
		return be.AppendUint32(dst, uint32(p.State))
	case StateChgReq, ConnStChgReq:
		dst = be.AppendUint32(dst, uint32(p.Mask))
		return be.AppendUint32(dst, uint32(p.State))
	case StateChgReply, ConnStChgReply:
		return be.AppendUint32(dst, uint32(p.Code))
	case SyncUUID:
		return be.AppendUint64(dst, p.UUID)
	case UUIDs:
		return appendUUIDs(dst, body[*UUIDsBody](p))
	case Sizes:
		return appendSizes(dst, n, body[*SizesBody](p))
	case Term:
		b := body[*TermBody](p)
		dst = be.AppendUint64(dst, b.Term)
		dst = be.AppendUint32(dst, uint32(b.Holder))
		return be.AppendUint32(dst, bit(b.Primary))
	case DiskID:
		b := body[*DiskIDBody](p)
		dst = be.AppendUint64(dst, b.Device)
		return be.AppendUint64(dst, uint64(bit(b.Vouched)))
	case PromiseRequest, Promise:
		b := body[*PromiseBody](p)
		dst = be.AppendUint64(dst, b.ID)
		dst = be.AppendUint64(dst, b.Term)
		return be.AppendUint64(dst, b.Duration)
	case ConnectionFeatures:
		f := body[*FeaturesBody](p)
		dst = be.AppendUint32(dst, f.ProtocolMin)
		dst = be.AppendUint32(dst, f.Features)
		dst = be.AppendUint32(dst, f.ProtocolMax)
		return appendZeros(dst, 60)
	}
	return appendZeros(dst, n) // no content: pings, P_UNPLUG_REMOTE, P_DELAY_PROBE, bitmap, ...
}

func bit(b bool) uint32 {
	if b {
		return 1
	}
	return 0
}

// body is the content of a packet that must have one.
func body[T any](p *Packet) T {
	b, ok := p.Ext.(T)
	if !ok {
		panic(fmt.Sprintf("wire: %s with a body of %T", p.Cmd, p.Ext))
	}
	return b
}

func appendBlock(dst []byte, sector, id uint64) []byte {
	dst = be.AppendUint64(dst, sector)
	return be.AppendUint64(dst, id)
}

func appendZeros(dst []byte, n int) []byte {
	var zeros [64]byte
	return append(dst, zeros[:n]...)
}

// Parse decodes a packet into p. cmd, vol and length are those of its header,
// and body its first BodySize bytes. p.Tail becomes the number of bytes behind
// them. digestSize is the length of the digest the sender puts before the data
// of P_DATA, P_DATA_REPLY and P_RS_DATA_REPLY (0: none); p.Size is then that of
// the data alone. p keeps no reference to body.
func Parse(version int, features uint32, digestSize int, cmd Command, vol uint16, length uint32, body []byte, p *Packet) error {
	n, err := BodySize(version, features, cmd, length)
	if err != nil {
		return err
	}
	if len(body) < n {
		return &PacketError{cmd, length, ErrLength}
	}
	b := body[:n]
	*p = Packet{Cmd: cmd, Vol: vol, Tail: length - uint32(n)}
	good := true
	switch cmd {
	case Data, DataReply, RSDataReply:
		p.Sector, p.BlockID = be.Uint64(b), be.Uint64(b[8:])
		p.Seq, p.Flags = be.Uint32(b[16:]), Flags(be.Uint32(b[20:]))
		p.Size = p.Tail - uint32(digestSize)
		good = p.Tail >= uint32(digestSize) && sane(p, DataLimit(version))
	case Trim, Zeroes:
		p.Sector, p.BlockID = be.Uint64(b), be.Uint64(b[8:])
		p.Seq, p.Flags = be.Uint32(b[16:]), Flags(be.Uint32(b[20:]))
		p.Size = be.Uint32(b[24:])
		good = sane(p, DiscardLimit(features))
	case DataRequest, RSDataRequest, RSThinReq, OVRequest, OVReply, CsumRSRequest:
		p.Sector, p.BlockID = be.Uint64(b), be.Uint64(b[8:])
		p.Size = be.Uint32(b[16:])
		good = sane(p, DataLimit(version))
	case RecvAck, WriteAck, RSWriteAck, Superseded, NegAck, NegDReply, NegRSDReply, OVResult, RSIsInSync, RSCancel,
		RetryWrite: // the size of an ack may be wrong (10.3), so it is not checked
		p.Sector, p.BlockID = be.Uint64(b), be.Uint64(b[8:])
		p.Size, p.Seq = be.Uint32(b[16:]), be.Uint32(b[20:])
		good = p.Sector <= maxSector
	case OutOfSync:
		p.Sector, p.Size = be.Uint64(b), be.Uint32(b[8:])
		good = sane(p, MaxDiscard)
	case RSDeallocated:
		p.Sector, p.Size = be.Uint64(b), be.Uint32(b[8:])
		good = sane(p, DataLimit(version))
	case Barrier:
		p.Barrier = be.Uint32(b)
	case BarrierAck:
		p.Barrier, p.SetSize = be.Uint32(b), be.Uint32(b[4:])
	case StateReport:
		p.State = State(be.Uint32(b))
	case StateChgReq, ConnStChgReq:
		p.Mask, p.State = State(be.Uint32(b)), State(be.Uint32(b[4:]))
	case StateChgReply, ConnStChgReply:
		p.Code = int32(be.Uint32(b))
	case SyncUUID:
		p.UUID = be.Uint64(b)
	case UUIDs:
		p.Ext = parseUUIDs(b)
	case Sizes:
		p.Ext = parseSizes(b)
	case Term:
		good = be.Uint32(b[12:]) <= 1
		p.Ext = &TermBody{Term: be.Uint64(b), Holder: int32(be.Uint32(b[8:])), Primary: be.Uint32(b[12:])&1 != 0}
	case DiskID:
		good = be.Uint64(b[8:]) <= 1
		p.Ext = &DiskIDBody{Device: be.Uint64(b), Vouched: be.Uint64(b[8:])&1 != 0}
	case PromiseRequest, Promise:
		p.Ext = &PromiseBody{ID: be.Uint64(b), Term: be.Uint64(b[8:]), Duration: be.Uint64(b[16:])}
		good = be.Uint64(b[16:]) <= maxPromise
	case ConnectionFeatures:
		p.Ext = &FeaturesBody{ProtocolMin: be.Uint32(b), Features: be.Uint32(b[4:]), ProtocolMax: be.Uint32(b[8:])}
	case Protocol, ProtocolUpdate:
		return parseProtocol(version, b, p)
	case SyncParam, SyncParam89:
		return parseSyncParam(version, b, p)
	}
	if !good {
		return &PacketError{cmd, length, ErrSize}
	}
	return nil
}

// sane checks position and size of a packet about blocks.
func sane(p *Packet, limit uint32) bool {
	return p.Size >= BlockSize && p.Size <= limit && p.Size%BlockSize == 0 && p.Sector <= maxSector
}

func appendUUIDs(dst []byte, u *UUIDsBody) []byte {
	for _, v := range [...]uint64{u.Current, u.Bitmap, u.History1, u.History2, u.DirtyBits, u.Flags} {
		dst = be.AppendUint64(dst, v)
	}
	return dst
}

func parseUUIDs(b []byte) *UUIDsBody {
	return &UUIDsBody{
		Current: be.Uint64(b), Bitmap: be.Uint64(b[8:]), History1: be.Uint64(b[16:]), History2: be.Uint64(b[24:]),
		DirtyBits: be.Uint64(b[32:]), Flags: be.Uint64(b[40:]),
	}
}

// appendSizes appends P_SIZES in n bytes, which the agreed features decide.
func appendSizes(dst []byte, n int, s *SizesBody) []byte {
	dst = be.AppendUint64(dst, s.DSize)
	dst = be.AppendUint64(dst, s.USize)
	dst = be.AppendUint64(dst, s.CSize)
	dst = be.AppendUint32(dst, s.MaxBioSize)
	dst = be.AppendUint16(dst, 0)
	dst = be.AppendUint16(dst, s.DDSFlags)
	if n == 32 {
		return dst
	}
	for _, v := range [...]uint32{s.PhysBlock, s.LogBlock, s.AlignOffset, s.IOMin, s.IOOpt} {
		dst = be.AppendUint32(dst, v)
	}
	return append(dst, s.DiscardEnabled, s.DiscardZeroes, s.WriteSame, 0)
}

func parseSizes(b []byte) *SizesBody {
	s := &SizesBody{
		DSize: be.Uint64(b), USize: be.Uint64(b[8:]), CSize: be.Uint64(b[16:]),
		MaxBioSize: be.Uint32(b[24:]), DDSFlags: be.Uint16(b[30:]), HasQueueLimits: len(b) > 32,
	}
	if s.HasQueueLimits {
		s.PhysBlock, s.LogBlock, s.AlignOffset = be.Uint32(b[32:]), be.Uint32(b[36:]), be.Uint32(b[40:])
		s.IOMin, s.IOOpt = be.Uint32(b[44:]), be.Uint32(b[48:])
		s.DiscardEnabled, s.DiscardZeroes, s.WriteSame = b[52], b[53], b[54]
	}
	return s
}

// Bits of conn_flags in P_PROTOCOL.
const (
	connDiscardMyData = 1
	connDryRun        = 2
)

func appendProtocol(dst []byte, version int, p *Packet) []byte {
	c := body[*ProtocolBody](p)
	n := uint32(24)
	if version >= 87 {
		mustFit(p, c.IntegrityAlg)
		n += uint32(len(c.IntegrityAlg)) + 1
	}
	dst = AppendHeader(dst, version, p.Cmd, p.Vol, n)
	flags := uint32(0)
	if c.DiscardMyData {
		flags |= connDiscardMyData
	}
	if c.DryRun {
		flags |= connDryRun
	}
	two := uint32(0)
	if c.TwoPrimaries {
		two = 1
	}
	for _, v := range [...]uint32{c.Protocol, c.AfterSB0, c.AfterSB1, c.AfterSB2, flags, two} {
		dst = be.AppendUint32(dst, v)
	}
	if version >= 87 {
		dst = append(dst, c.IntegrityAlg...)
		dst = append(dst, 0)
	}
	return dst
}

func parseProtocol(version int, b []byte, p *Packet) error {
	c := &ProtocolBody{
		Protocol: be.Uint32(b), AfterSB0: be.Uint32(b[4:]), AfterSB1: be.Uint32(b[8:]), AfterSB2: be.Uint32(b[12:]),
		DiscardMyData: be.Uint32(b[16:])&connDiscardMyData != 0,
		DryRun:        be.Uint32(b[16:])&connDryRun != 0,
		TwoPrimaries:  be.Uint32(b[20:]) != 0,
	}
	p.Ext = c
	if version < 87 {
		return nil
	}
	return text(b[24:], &c.IntegrityAlg, p, len(b))
}

// appendSyncParam takes P_SYNC_PARAM and P_SYNC_PARAM89 for the same: the version
// decides which of them goes out.
func appendSyncParam(dst []byte, version int, p *Packet) []byte {
	s := body[*SyncParamBody](p)
	mustFit(p, s.VerifyAlg)
	mustFit(p, s.CsumsAlg)
	switch {
	case version < 88:
		dst = AppendHeader(dst, version, SyncParam, p.Vol, 4)
		return be.AppendUint32(dst, s.ResyncRate)
	case version < 89:
		dst = AppendHeader(dst, version, SyncParam, p.Vol, uint32(4+len(s.VerifyAlg)+1))
		dst = be.AppendUint32(dst, s.ResyncRate)
		dst = append(dst, s.VerifyAlg...)
		return append(dst, 0)
	}
	dst = AppendHeader(dst, version, SyncParam89, p.Vol, syncParamSize(version))
	dst = be.AppendUint32(dst, s.ResyncRate)
	for _, alg := range [...]string{s.VerifyAlg, s.CsumsAlg} {
		dst = append(dst, alg...)
		dst = appendZeros(dst, MaxString+1-len(alg))
	}
	if version < 95 {
		return dst
	}
	for _, v := range [...]uint32{s.CPlanAhead, s.CDelayTarget, s.CFillTarget, s.CMaxRate} {
		dst = be.AppendUint32(dst, v)
	}
	return dst
}

func parseSyncParam(version int, b []byte, p *Packet) error {
	s := &SyncParamBody{ResyncRate: be.Uint32(b)}
	p.Ext = s
	if p.Cmd == SyncParam {
		if len(b) == 4 {
			return nil
		}
		return text(b[4:], &s.VerifyAlg, p, len(b))
	}
	if err := text(b[4:4+MaxString+1], &s.VerifyAlg, p, len(b)); err != nil {
		return err
	}
	if err := text(b[4+MaxString+1:4+2*(MaxString+1)], &s.CsumsAlg, p, len(b)); err != nil {
		return err
	}
	if version >= 95 {
		t := b[132:]
		s.CPlanAhead, s.CDelayTarget = be.Uint32(t), be.Uint32(t[4:])
		s.CFillTarget, s.CMaxRate = be.Uint32(t[8:]), be.Uint32(t[12:])
	}
	return nil
}

// text reads the NUL terminated string at the start of b. What follows the NUL
// is padding and may be anything.
func text(b []byte, s *string, p *Packet, length int) error {
	i := bytes.IndexByte(b, 0)
	if i < 0 || i > MaxString {
		return &PacketError{p.Cmd, uint32(length), ErrString}
	}
	*s = string(b[:i])
	return nil
}

// mustFit asserts that a configured string can be sent.
func mustFit(p *Packet, s string) {
	if len(s) > MaxString || bytes.IndexByte([]byte(s), 0) >= 0 {
		panic(fmt.Sprintf("wire: %s with the string %q", p.Cmd, s))
	}
}
