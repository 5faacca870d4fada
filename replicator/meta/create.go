package meta

import (
	"errors"
	"fmt"
)

// CreateOptions says what metadata to make.
type CreateOptions struct {
	Kind           Kind
	Index          int    // of Indexed
	Version        int    // 8 or 9; 0 means 9
	MaxPeers       int    // bitmap slots; 0 means 1
	NodeID         int32  // of this node; -1 not yet known
	ALStripes      int    // 0 means 1
	ALStripeSizeKB int    // KiB, a multiple of 4; 0 means 32
	DeviceUUID     uint64 // identifies the disk; may be 0
	PeerMaxBioSize uint32 // bytes; 0 not known
	Force          bool   // overwrite metadata that is there
}

// ExistsError says that there is metadata already, and the caller did not say to overwrite it.
type ExistsError struct {
	Found  string // what it is
	Offset int64  // bytes
}

func (e *ExistsError) Error() string {
	return fmt.Sprintf("the device has metadata already: %s at byte %d", e.Found, e.Offset)
}

// probe says what metadata a superblock is of, damaged or not; "" when there is none.
func probe(block []byte) string {
	sb, err := DecodeSuper(block)
	if err == nil {
		clean := "clean"
		if !sb.Clean() {
			clean = "not clean"
		}
		return fmt.Sprintf("version %d, current UUID %016X, %d sectors, %s", sb.Version, sb.Current, sb.EffectiveSize, clean)
	}
	if errors.Is(err, ErrNoMetadata) {
		return ""
	}
	return err.Error()
}

// Create makes fresh metadata, like drbdmeta create-md: no bits set, current UUID UUIDJustCreated, no agreed size, clean. dataSize is
// the size of the data device in bytes; with Internal md is that device. It returns *ExistsError if it finds metadata of any
// version, even damaged, and o.Force is not set. All is durable on return; after a crash meanwhile there is no metadata.
func Create(dataSize int64, md Device, o CreateOptions) error {
	if o.Version == 0 {
		o.Version = 9
	}
	if o.MaxPeers == 0 {
		o.MaxPeers = 1
	}
	if o.ALStripes == 0 {
		o.ALStripes = alStripes
	}
	if o.ALStripeSizeKB == 0 {
		o.ALStripeSizeKB = alStripeSize4k * 4
	}
	if o.ALStripeSizeKB%4 != 0 {
		return fmt.Errorf("create metadata: activity log stripes of %d KiB, not a multiple of 4", o.ALStripeSizeKB)
	}
	if o.Kind == Internal {
		dataSize = md.Size()
	}
	l, err := Compute(Geometry{Version: o.Version, Kind: o.Kind, Index: o.Index, DataSize: dataSize, MetaSize: md.Size(),
		MaxPeers: o.MaxPeers, ALStripes: o.ALStripes, ALStripeSize4k: o.ALStripeSizeKB / 4})
	if err != nil {
		return fmt.Errorf("create metadata: %w", err)
	}
	sb := Super{
		Version: o.Version, Current: UUIDJustCreated, DeviceUUID: o.DeviceUUID, Flags: FlagALClean,
		MDSize: l.MDSize, ALOffset: l.ALOffset, BMOffset: l.BMOffset, ALNrExtents: alNrExtentsFresh, BytesPerBit: BytesPerBit,
		PeerMaxBioSize: o.PeerMaxBioSize, MaxPeers: o.MaxPeers, NodeID: o.NodeID,
		ALStripes: uint32(o.ALStripes), ALStripeSize4k: uint32(o.ALStripeSizeKB / 4),
	}
	for i := range sb.Peers {
		sb.Peers[i].BitmapIndex = -1
	}
	if err := sb.check(); err != nil {
		return fmt.Errorf("create metadata: %w", err)
	}

	block, back := alignedBuf(BlockSize), alignedBuf(BlockSize)
	if err := readAt(md, block, l.Super, "superblock"); err != nil {
		return err
	}
	if found := probe(block); found != "" && !o.Force {
		return fmt.Errorf("create metadata: %w", &ExistsError{Found: found, Offset: l.Super})
	}
	// The old superblock must not outlive its bitmap and log.
	clear(block)
	if err := putSuper(md, block, l.Super, back); err != nil {
		return err
	}
	if err := initAL(md, l); err != nil {
		return err
	}
	used := l.BitmapBytes
	if o.Kind != Internal { // the area may be far larger than any bitmap in it
		used = min(used, bitmapBytes(l.Capacity, o.MaxPeers))
	}
	if err := zero(md, l.Bitmap, used); err != nil {
		return err
	}
	sb.encode(block)
	return putSuper(md, block, l.Super, back)
}

// alNrExtentsFresh is what drbdmeta writes.
const alNrExtentsFresh = 257

// zero writes zeros, durably.
func zero(md Device, off, n int64) error {
	buf := alignedBuf(int(min(n, ioBytes)))
	for done := int64(0); done < n; {
		part := buf[:min(int64(len(buf)), n-done)]
		if err := writeAt(md, part, off+done, "bitmap"); err != nil {
			return err
		}
		done += int64(len(part))
	}
	return syncDev(md, "bitmap")
}

// Wipe makes the superblock zero, durably: the device has no metadata any more.
func (s *Store) Wipe() error {
	s.superMu.Lock()
	defer s.superMu.Unlock()
	clear(s.scratch)
	return putSuper(s.md, s.scratch, s.lay.Super, s.raw)
}
