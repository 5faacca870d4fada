package meta

import (
	"errors"
	"fmt"
)

// Find opens internal metadata on a device that may have grown since it was last used: it looks at the end of the device and
// then, if there is no metadata, at the end of the first n bytes for every n in lastSizes (for instance from drbdmeta's
// drbd-minor-N.lkbd). If Displaced says so, ApplyAL and then Move bring the metadata to the end. Errors are those of Open, for the
// end of the device.
func Find(md Device, lastSizes ...int64) (*Store, error) {
	s, err := Open(0, md, Internal, 0)
	if err == nil || !errors.Is(err, ErrNoMetadata) {
		return s, err
	}
	for _, n := range lastSizes {
		if n <= 0 || n >= md.Size() {
			continue
		}
		old, err2 := open(n, md, Internal, 0)
		switch {
		case err2 == nil:
			return old, nil
		case !errors.Is(err2, ErrNoMetadata):
			return nil, err2
		}
	}
	return nil, err
}

// Displaced says whether the device is larger than when the metadata was put in place. Users must not have more than
// Layout().Capacity until Move.
func (s *Store) Displaced() bool {
	s.superMu.Lock()
	defer s.superMu.Unlock()
	return s.kind == Internal && s.dataSize < s.md.Size()
}

// Move follows a data device that is now newDataSize bytes. External metadata stays in place, only the capacity changes.
// Internal metadata moves to the new end, with all bitmaps and an empty activity log. The agreed size does not change. No
// extent of the activity log may be referenced, and unclean metadata after a crash needs ApplyAL first: the log's content is
// not carried over.
//
// After a crash at any point Open (at the new size) or Find (with the old one) gets valid metadata. If the new place overlaps
// the old, that metadata may say that all peers need a full sync. A data device cannot shrink below what is agreed; internal
// metadata cannot move towards the front at all.
func (s *Store) Move(newDataSize int64) error {
	s.bmMu.Lock()
	defer s.bmMu.Unlock()
	s.alMu.Lock()
	defer s.alMu.Unlock()
	s.superMu.Lock()
	defer s.superMu.Unlock()

	if s.kind == Internal && newDataSize > s.md.Size() {
		return fmt.Errorf("move metadata: %w: %d bytes, not %d", ErrTooSmall, s.md.Size(), newDataSize)
	}
	g := s.geometry(&s.super)
	g.DataSize = newDataSize
	l, err := Compute(g)
	if err != nil {
		return fmt.Errorf("move metadata: %w", err)
	}
	if s.super.EffectiveSize > uint64(l.Capacity) {
		return fmt.Errorf("move metadata: %w: %d sectors are in use, %d would be left", ErrTooSmall, s.super.EffectiveSize, l.Capacity)
	}
	if s.kind != Internal || l == s.lay {
		s.dataSize, s.lay = newDataSize, l
		return nil
	}
	if newDataSize < s.dataSize {
		return fmt.Errorf("move metadata: %w: internal metadata cannot move towards the front", ErrUnsupported)
	}

	area := alignedBuf(int(l.BitmapBytes)) // zero past the old bitmaps
	used := min(bitmapBytes(int64(s.super.EffectiveSize), s.super.MaxPeers), s.lay.BitmapBytes)
	if err := readArea(s.md, area[:used], s.lay.Bitmap, "bitmap"); err != nil {
		return err
	}
	sb := s.super
	sb.MDSize, sb.ALOffset, sb.BMOffset = l.MDSize, l.ALOffset, l.BMOffset
	overlap := l.Bitmap < s.lay.Super+BlockSize
	if overlap {
		interim := sb
		interim.Unclean = false
		interim.Flags |= FlagALClean
		interim.needFullSync()
		if err := s.placeSuper(interim, l); err != nil {
			return err
		}
	}
	if err := initAL(s.md, l); err != nil {
		return err
	}
	for done := 0; done < len(area); {
		n := min(ioBytes, len(area)-done)
		if err := writeAt(s.md, area[done:done+n], l.Bitmap+int64(done), "bitmap"); err != nil {
			return err
		}
		done += n
	}
	if err := syncDev(s.md, "bitmap"); err != nil {
		return err
	}
	if err := s.placeSuper(sb, l); err != nil {
		return err
	}
	old := s.lay.Super
	s.dataSize, s.lay, s.super = newDataSize, l, sb
	if overlap { // it was overwritten, or is the new one
		return nil
	}
	clear(s.scratch)
	if err := writeAt(s.md, s.scratch, old, "old superblock"); err != nil {
		return err
	}
	return syncDev(s.md, "old superblock")
}

// needFullSync says that no bitmap can be trusted.
func (sb *Super) needFullSync() {
	if sb.Version == 8 {
		sb.Flags |= FlagV08FullSync
		return
	}
	for i := range sb.Peers {
		if p := &sb.Peers[i]; p.BitmapIndex >= 0 {
			p.Flags |= PeerFullSync
		} else {
			p.BitmapUUID = 0 // a later peer must not start from a slot's old bits
		}
	}
}

// placeSuper writes the superblock at a new place.
func (s *Store) placeSuper(sb Super, l Layout) error {
	if err := sb.check(); err != nil {
		return fmt.Errorf("move metadata: %w", err)
	}
	copy(s.scratch, s.raw)
	sb.encode(s.scratch)
	return putSuper(s.md, s.scratch, l.Super, s.raw)
}
