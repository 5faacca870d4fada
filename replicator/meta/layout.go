package meta

import (
	"errors"
	"fmt"
)

const (
	// SectorSize is the unit of all sizes and offsets in the superblock.
	SectorSize = 512 // bytes
	// BlockSize is the unit of all metadata I/O.
	BlockSize = 4096 // bytes
	// BytesPerBit is the storage one bit of a bitmap stands for.
	BytesPerBit = 4096 // bytes
	// MaxPeersMax is the largest number of bitmap slots.
	MaxPeersMax = 31
	// Nodes is the number of peer entries in a superblock, one for each possible node id.
	Nodes = 32

	sectorsPerBlock  = BlockSize / SectorSize
	sectorsPerBit    = BytesPerBit / SectorSize
	indexedBytes     = 128 << 20 // one indexed area
	capacityMax      = 1 << 51   // sectors
	alBytesMin       = 32 << 10
	alBytesMax       = 16 << 30
	deviceBytesMin   = 1 << 20 // of a device with internal or flexible metadata
	alStripes        = 1       // default
	alStripeSize4k   = 8       // default
	superblockSector = sectorsPerBlock
)

// Kind says where the metadata is.
type Kind uint8

// The placements. See drbd-metadata.md section 1.
const (
	Internal     Kind = iota // at the end of the data device
	FlexExternal             // a meta device of its own
	Indexed                  // one of several areas of 128 MiB on a shared meta device
)

func (k Kind) String() string {
	switch k {
	case Internal:
		return "internal"
	case FlexExternal:
		return "flex-external"
	case Indexed:
		return "indexed"
	}
	return fmt.Sprintf("Kind(%d)", uint8(k))
}

// ErrTooSmall says that the device cannot hold the metadata.
var ErrTooSmall = errors.New("device is too small for the metadata")

// Geometry is what a layout is computed from.
type Geometry struct {
	Version        int // 8 or 9
	Kind           Kind
	Index          int   // of Indexed, from 0
	DataSize       int64 // bytes of the data device; with Internal the whole device
	MetaSize       int64 // bytes of the meta device; with Internal the same device
	MaxPeers       int   // bitmap slots; 1 for version 8
	ALStripes      int   // 0 means 1
	ALStripeSize4k int   // 4 KiB units; 0 means 8
}

// Layout is where the three areas are. Positions and lengths are in bytes and multiples of 4096.
type Layout struct {
	Super       int64
	AL          int64
	ALBytes     int64
	Bitmap      int64
	BitmapBytes int64 // the area; the bitmaps may need less

	MDSize   uint32 // sectors, as in the superblock
	ALOffset int32  // sectors from the superblock
	BMOffset int32  // sectors from the superblock
	Capacity int64  // sectors that users may have at most
}

func roundUp(n, to int64) int64 { return (n + to - 1) / to * to }

// bitmapBytes is what max_peers interleaved bitmaps for the sectors take on disk.
func bitmapBytes(sectors int64, maxPeers int) int64 {
	bits := roundUp((sectors+sectorsPerBit-1)/sectorsPerBit, 64)
	return roundUp(bits/8*int64(maxPeers), BlockSize)
}

// Compute does the arithmetic of drbd-metadata.md 1.1. It returns ErrTooSmall, or another error if the geometry is
// not possible.
func Compute(g Geometry) (Layout, error) {
	var l Layout
	if g.Version != 8 && g.Version != 9 {
		return l, fmt.Errorf("metadata version %d is not 8 or 9", g.Version)
	}
	if g.MaxPeers < 1 || g.MaxPeers > MaxPeersMax || g.Version == 8 && g.MaxPeers != 1 {
		return l, fmt.Errorf("%d bitmap slots in version %d", g.MaxPeers, g.Version)
	}
	stripes, stripe := int64(g.ALStripes), int64(g.ALStripeSize4k)
	if stripes == 0 && stripe == 0 {
		stripes, stripe = alStripes, alStripeSize4k
	}
	if stripes < 1 || stripe < 1 || stripes > alBytesMax/BlockSize || stripe > alBytesMax/BlockSize {
		return l, fmt.Errorf("activity log of %d stripes of %d blocks", stripes, stripe)
	}
	l.ALBytes = stripes * stripe * BlockSize
	if l.ALBytes < alBytesMin || l.ALBytes > alBytesMax {
		return l, fmt.Errorf("activity log of %d bytes, not %d..%d", l.ALBytes, alBytesMin, int64(alBytesMax))
	}
	al := l.ALBytes / SectorSize

	switch g.Kind {
	case Internal:
		d := g.DataSize / SectorSize
		if d*SectorSize < deviceBytesMin {
			return l, fmt.Errorf("%w: %d bytes", ErrTooSmall, g.DataSize)
		}
		sb := d&^(sectorsPerBlock-1) - superblockSector
		l.BitmapBytes = bitmapBytes(d, g.MaxPeers)
		bm := l.BitmapBytes / SectorSize
		l.Super = sb * SectorSize
		l.AL = l.Super - l.ALBytes
		l.Bitmap = l.AL - l.BitmapBytes
		l.Capacity = sb - al - bm
		if l.Capacity <= 0 {
			return l, fmt.Errorf("%w: %d bytes", ErrTooSmall, g.DataSize)
		}
		l.Capacity = min(l.Capacity, capacityMax)
		if bm+al+superblockSector > 1<<31-1 {
			return l, fmt.Errorf("metadata of %d sectors: offsets do not fit", bm+al)
		}
		l.MDSize = uint32(bm + al + superblockSector)
		l.ALOffset, l.BMOffset = int32(-al), int32(-al-bm)
		return l, nil
	case FlexExternal:
		d := g.MetaSize / SectorSize
		if d*SectorSize < deviceBytesMin || d <= 2*superblockSector+al {
			return l, fmt.Errorf("%w: meta device of %d bytes", ErrTooSmall, g.MetaSize)
		}
		if d > 1<<32-1 {
			return l, fmt.Errorf("meta device of %d bytes: above 2 TiB", g.MetaSize)
		}
		l.MDSize = uint32(d)
	case Indexed:
		if g.Index < 0 || g.Index > 1<<20 {
			return l, fmt.Errorf("index %d", g.Index)
		}
		if l.ALBytes != alBytesMin || stripes != 1 {
			return l, fmt.Errorf("activity log of %d bytes with indexed metadata, must be one stripe of 32 KiB", l.ALBytes)
		}
		l.Super = int64(g.Index) * indexedBytes
		if g.MetaSize < l.Super+indexedBytes {
			return l, fmt.Errorf("%w: index %d on a meta device of %d bytes", ErrTooSmall, g.Index, g.MetaSize)
		}
		l.MDSize = indexedBytes / SectorSize
	default:
		return l, fmt.Errorf("unknown kind of metadata %d", g.Kind)
	}
	l.ALOffset, l.BMOffset = superblockSector, int32(superblockSector+al)
	l.AL = l.Super + BlockSize
	l.Bitmap = l.AL + l.ALBytes
	l.BitmapBytes = (int64(l.MDSize) - int64(l.BMOffset)) / sectorsPerBlock * BlockSize
	bits := l.BitmapBytes / 8 / int64(g.MaxPeers) * 64 // whole 64-bit words for each slot
	l.Capacity = min(g.DataSize/SectorSize, bits*sectorsPerBit, capacityMax)
	if l.Capacity <= 0 {
		return l, fmt.Errorf("%w: %d bytes of data, %d of bitmap", ErrTooSmall, g.DataSize, l.BitmapBytes)
	}
	return l, nil
}
