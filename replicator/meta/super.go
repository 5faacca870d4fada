package meta

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
)

// Superblock flags. The first group exists in both versions.
const (
	FlagConsistent      = 0x001
	FlagPrimary         = 0x002
	FlagWasUpToDate     = 0x010
	FlagCrashedPrimary  = 0x040
	FlagALClean         = 0x080
	FlagALDisabled      = 0x100
	FlagLostQuorum      = 0x200 // version 9
	FlagHaveQuorum      = 0x400 // version 9
	FlagV08Connected    = 0x004 // version 8; PeerConnected in version 9
	FlagV08FullSync     = 0x008 // version 8; PeerFullSync in version 9
	FlagV08PeerOutdated = 0x020 // version 8; PeerOutdated in version 9
)

// Flags of a peer entry, version 9.
const (
	PeerConnected  = 0x01
	PeerOutdated   = 0x02
	PeerFencing    = 0x04
	PeerFullSync   = 0x08
	PeerSeen       = 0x10
	PeerNodeExists = 0x10000
)

// UUIDJustCreated is the current UUID of metadata that no data was ever written under.
const UUIDJustCreated = 4

const (
	magicV07        = 0x8374026a
	magicV08        = 0x8374026b
	magicV08Unclean = 0x8374026c
	magicV09        = 0x8374026d

	// The trailer that hawser appends to the superblock, where the format has zeros.
	offTrailer   = BlockSize - 16
	trailerMagic = 0x48575352 // "HWSR"
	trailerVers  = 1
)

var (
	// ErrNoMetadata says that there is no superblock where it should be.
	ErrNoMetadata = errors.New("no metadata")
	// ErrUnsupported says that there is metadata, but of a kind this package does not handle.
	ErrUnsupported = errors.New("unsupported metadata")
)

// DamageError says that metadata is there but cannot be trusted.
type DamageError struct {
	What   string // what is wrong
	Offset int64  // where on the meta device, bytes
	Err    error  // the cause, if there is one
}

func (e *DamageError) Error() string {
	if e.Err != nil {
		return fmt.Sprintf("metadata damaged at byte %d: %s: %v", e.Offset, e.What, e.Err)
	}
	return fmt.Sprintf("metadata damaged at byte %d: %s", e.Offset, e.What)
}

func (e *DamageError) Unwrap() error { return e.Err }

// Peer is what a superblock says of one peer. In version 8 only entry 0 is used, and of it only BitmapUUID.
type Peer struct {
	BitmapUUID  uint64
	Dagtag      uint64
	Flags       uint32
	BitmapIndex int32 // slot of the interleaved bitmap; -1 none
}

// Super is a superblock, both versions. Version 8 keeps its bitmap UUID in Peers[0] (with BitmapIndex 0) and its history
// UUIDs in History[0:2]; its flags are as on disk, with the FlagV08 bits.
type Super struct {
	Version        int    // 8 or 9
	Unclean        bool   // version 8: the magic says that the activity log was not applied
	EffectiveSize  uint64 // last agreed size, sectors; 0 never agreed
	Current        uint64
	Members        uint64 // version 9, mask of node ids
	DeviceUUID     uint64
	Flags          uint32
	MDSize         uint32 // sectors
	ALOffset       int32  // sectors from the superblock
	ALNrExtents    uint32 // slots of the activity log in use
	BMOffset       int32  // sectors from the superblock
	BytesPerBit    uint32
	PeerMaxBioSize uint32 // bytes; la_peer_max_bio_size
	MaxPeers       int
	NodeID         int32 // version 9; -1 not yet known
	ALStripes      uint32
	ALStripeSize4k uint32
	Peers          [Nodes]Peer   // by node id
	History        [Nodes]uint64 // newest first
}

// Clean says whether the bitmaps can be trusted without the activity log.
func (s Super) Clean() bool { return s.Flags&FlagALClean != 0 && (s.Version != 8 || !s.Unclean) }

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// trailerState says what the end of a superblock tells.
type trailerState uint8

const (
	trailerAbsent trailerState = iota // written by a foreign tool
	trailerGood
	trailerBad
)

func checkTrailer(b []byte) trailerState {
	t := b[offTrailer:]
	be := binary.BigEndian
	switch {
	case be.Uint64(t) == 0 && be.Uint64(t[8:]) == 0:
		return trailerAbsent
	case be.Uint32(t) == trailerMagic && be.Uint32(t[4:]) == trailerVers && be.Uint32(t[12:]) == 0 &&
		be.Uint32(t[8:]) == crc32.Checksum(b[:offTrailer+8], castagnoli):
		return trailerGood
	}
	return trailerBad
}

func putTrailer(b []byte) {
	be := binary.BigEndian
	t := b[offTrailer:]
	be.PutUint32(t, trailerMagic)
	be.PutUint32(t[4:], trailerVers)
	be.PutUint32(t[8:], crc32.Checksum(b[:offTrailer+8], castagnoli))
	be.PutUint32(t[12:], 0)
}

// DecodeSuper reads a superblock of either version. It checks magic, checksum (if hawser wrote the block) and what must hold
// whatever the device; the offsets are for Open to check. Errors: ErrNoMetadata, ErrUnsupported, *DamageError (Offset counts
// from the superblock).
func DecodeSuper(b []byte) (Super, error) {
	var s Super
	if len(b) != BlockSize {
		return s, fmt.Errorf("%w: superblock of %d bytes", ErrNoMetadata, len(b))
	}
	be := binary.BigEndian
	magic := be.Uint32(b[0x3c:])
	trailer := checkTrailer(b)
	switch magic {
	case magicV08, magicV08Unclean:
		s.Version, s.Unclean = 8, magic == magicV08Unclean
	case magicV09:
		s.Version = 9
	default:
		if be.Uint32(b[offTrailer:]) == trailerMagic { // our own, with a damaged magic
			return s, &DamageError{What: fmt.Sprintf("superblock magic %#08x", magic), Offset: 0x3c}
		}
		if be.Uint32(b[0x1c:]) == magicV07 {
			return s, fmt.Errorf("%w: version 7", ErrUnsupported)
		}
		return s, fmt.Errorf("%w: magic %#08x", ErrNoMetadata, magic)
	}
	if trailer == trailerBad {
		return s, &DamageError{What: "superblock checksum is wrong", Offset: offTrailer}
	}
	s.EffectiveSize = be.Uint64(b[0x00:])
	s.Current = be.Uint64(b[0x08:])
	s.Flags = be.Uint32(b[0x38:])
	s.MDSize = be.Uint32(b[0x40:])
	s.ALOffset = int32(be.Uint32(b[0x44:]))
	s.ALNrExtents = be.Uint32(b[0x48:])
	s.BMOffset = int32(be.Uint32(b[0x4c:]))
	s.BytesPerBit = be.Uint32(b[0x50:])
	s.PeerMaxBioSize = be.Uint32(b[0x54:])
	for i := range s.Peers {
		s.Peers[i].BitmapIndex = -1
	}
	if s.Version == 8 {
		s.Peers[0].BitmapUUID, s.Peers[0].BitmapIndex = be.Uint64(b[0x10:]), 0
		s.History[0], s.History[1] = be.Uint64(b[0x18:]), be.Uint64(b[0x20:])
		s.DeviceUUID = be.Uint64(b[0x28:])
		s.ALStripes, s.ALStripeSize4k = be.Uint32(b[0x58:]), be.Uint32(b[0x5c:])
		s.MaxPeers, s.NodeID = 1, -1
	} else {
		s.Members = be.Uint64(b[0x10:])
		s.DeviceUUID = be.Uint64(b[0x30:])
		s.MaxPeers = int(min(be.Uint32(b[0x58:]), 1<<16))
		s.NodeID = int32(be.Uint32(b[0x5c:]))
		s.ALStripes, s.ALStripeSize4k = be.Uint32(b[0x60:]), be.Uint32(b[0x64:])
		for i := range s.Peers {
			e := b[0x70+32*i:]
			s.Peers[i] = Peer{be.Uint64(e), be.Uint64(e[8:]), be.Uint32(e[16:]), int32(be.Uint32(e[20:]))}
			s.History[i] = be.Uint64(b[0x470+8*i:])
		}
	}
	if s.ALStripes == 0 && s.ALStripeSize4k == 0 {
		s.ALStripes, s.ALStripeSize4k = alStripes, alStripeSize4k
	}
	return s, s.check()
}

// check is what must hold in every superblock.
func (s *Super) check() error {
	bad := func(off int64, format string, args ...any) error {
		return &DamageError{What: fmt.Sprintf(format, args...), Offset: off}
	}
	if s.BytesPerBit != BytesPerBit {
		if n := s.BytesPerBit; s.Version == 9 && n > BytesPerBit && n <= 1<<20 && n&(n-1) == 0 {
			return fmt.Errorf("%w: %d bytes for each bit, only 4096 is", ErrUnsupported, n)
		}
		return bad(0x50, "%d bytes for each bit", s.BytesPerBit)
	}
	if s.EffectiveSize > capacityMax {
		return bad(0, "size of %d sectors", s.EffectiveSize)
	}
	if s.Version == 8 {
		return nil
	}
	if s.MaxPeers < 1 || s.MaxPeers > MaxPeersMax {
		return bad(0x58, "%d bitmap slots", s.MaxPeers)
	}
	if s.NodeID < -1 || s.NodeID >= Nodes {
		return bad(0x5c, "node id %d", s.NodeID)
	}
	var used [MaxPeersMax]bool
	for i, p := range s.Peers {
		switch at := int64(0x70 + 32*i + 20); {
		case p.BitmapIndex == -1:
		case p.BitmapIndex < -1 || int(p.BitmapIndex) >= s.MaxPeers:
			return bad(at, "peer %d has bitmap slot %d of %d", i, p.BitmapIndex, s.MaxPeers)
		case used[p.BitmapIndex]:
			return bad(at, "peer %d has the bitmap slot of another, %d", i, p.BitmapIndex)
		default:
			used[p.BitmapIndex] = true
		}
	}
	return nil
}

// encode puts the fields into b and leaves the rest of b, which a newer version of the format may use, as it is. The trailer
// is written last.
func (s *Super) encode(b []byte) {
	be := binary.BigEndian
	be.PutUint64(b[0x00:], s.EffectiveSize)
	be.PutUint64(b[0x08:], s.Current)
	be.PutUint32(b[0x38:], s.Flags)
	be.PutUint32(b[0x40:], s.MDSize)
	be.PutUint32(b[0x44:], uint32(s.ALOffset))
	be.PutUint32(b[0x48:], s.ALNrExtents)
	be.PutUint32(b[0x4c:], uint32(s.BMOffset))
	be.PutUint32(b[0x50:], s.BytesPerBit)
	be.PutUint32(b[0x54:], s.PeerMaxBioSize)
	if s.Version == 8 {
		magic := uint32(magicV08)
		if s.Unclean {
			magic = magicV08Unclean
		}
		be.PutUint32(b[0x3c:], magic)
		be.PutUint64(b[0x10:], s.Peers[0].BitmapUUID)
		be.PutUint64(b[0x18:], s.History[0])
		be.PutUint64(b[0x20:], s.History[1])
		be.PutUint64(b[0x28:], s.DeviceUUID)
		be.PutUint32(b[0x58:], s.ALStripes)
		be.PutUint32(b[0x5c:], s.ALStripeSize4k)
	} else {
		be.PutUint32(b[0x3c:], magicV09)
		be.PutUint64(b[0x10:], s.Members)
		be.PutUint64(b[0x30:], s.DeviceUUID)
		be.PutUint32(b[0x58:], uint32(s.MaxPeers))
		be.PutUint32(b[0x5c:], uint32(s.NodeID))
		be.PutUint32(b[0x60:], s.ALStripes)
		be.PutUint32(b[0x64:], s.ALStripeSize4k)
		for i, p := range s.Peers {
			e := b[0x70+32*i:]
			be.PutUint64(e, p.BitmapUUID)
			be.PutUint64(e[8:], p.Dagtag)
			be.PutUint32(e[16:], p.Flags)
			be.PutUint32(e[20:], uint32(p.BitmapIndex))
			be.PutUint64(b[0x470+8*i:], s.History[i])
		}
	}
	putTrailer(b)
}

// Encode returns the superblock as 4096 bytes, with hawser's checksum.
func (s *Super) Encode() []byte {
	b := make([]byte, BlockSize)
	s.encode(b)
	return b
}
