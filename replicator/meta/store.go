package meta

import (
	"bytes"
	"errors"
	"fmt"
	"sync"
	"unsafe"

	"github.com/hawser-ha/hawser/replicator/actlog"
)

// Device is where metadata is kept. The store calls it with offsets and lengths that are multiples of 4096 and with buffers
// aligned to 4096 bytes, so that it works with O_DIRECT. With Internal it is the whole data device. Sync returns when all
// completed writes are durable.
type Device interface {
	ReadAt(p []byte, off int64) (int, error)
	WriteAt(p []byte, off int64) (int, error)
	Sync() error
	Size() int64 // bytes; need not be a multiple of 4096
}

// Store is the metadata of one volume. It is safe for concurrent use.
type Store struct {
	md    Device
	kind  Kind
	index int

	// Mutexes are taken in the order bmMu, alMu, superMu. Whoever does I/O to bitmaps or log reads the layout under the mutex of
	// that area, since Move holds all three.
	superMu  sync.Mutex // guards the fields below, and superblock I/O
	dataSize int64
	lay      Layout
	super    Super
	raw      []byte // the block as it is on disk, aligned
	scratch  []byte // aligned, one block

	alMu  sync.Mutex // guards alBuf and activity log I/O
	alBuf []byte     // aligned, one block

	bmMu sync.Mutex // guards bitmap I/O: slots share blocks
}

// ioBytes is the largest single I/O.
const ioBytes = 1 << 20

// alignedBuf returns n bytes at an address that is a multiple of BlockSize.
func alignedBuf(n int) []byte {
	b := make([]byte, n+BlockSize)
	skip := int(-uintptr(unsafe.Pointer(unsafe.SliceData(b))) & (BlockSize - 1))
	return b[skip : skip+n : skip+n]
}

func readAt(d Device, p []byte, off int64, what string) error {
	n, err := d.ReadAt(p, off)
	if n == len(p) {
		return nil
	}
	if err == nil {
		err = errors.New("short read")
	}
	return fmt.Errorf("read %s at byte %d: %w", what, off, err)
}

func writeAt(d Device, p []byte, off int64, what string) error {
	n, err := d.WriteAt(p, off)
	if err == nil && n < len(p) {
		err = errors.New("short write")
	}
	if err != nil {
		return fmt.Errorf("write %s at byte %d: %w", what, off, err)
	}
	return nil
}

func syncDev(d Device, what string) error {
	if err := d.Sync(); err != nil {
		return fmt.Errorf("sync %s: %w", what, err)
	}
	return nil
}

// superAt returns where the superblock is.
func superAt(kind Kind, index int, size int64) (int64, error) {
	switch kind {
	case Internal:
		off := size/BlockSize*BlockSize - BlockSize
		if off < 0 {
			return 0, fmt.Errorf("%w: %d bytes", ErrTooSmall, size)
		}
		return off, nil
	case FlexExternal:
		return 0, nil
	case Indexed:
		if off := int64(index) * indexedBytes; index >= 0 && off <= size-BlockSize {
			return off, nil
		}
		return 0, fmt.Errorf("%w: index %d on a meta device of %d bytes", ErrTooSmall, index, size)
	}
	return 0, fmt.Errorf("unknown kind of metadata %d", kind)
}

// Open finds and checks the metadata of a data device of dataSize bytes. With Internal, md is that device and dataSize its
// size. It checks the superblock (see doc.go) and its offsets against the devices' sizes and, unless the metadata is clean,
// the activity log. Errors: ErrNoMetadata, ErrUnsupported, ErrTooSmall (a device shrank), *DamageError, or the device's.
func Open(dataSize int64, md Device, kind Kind, index int) (*Store, error) {
	s, err := OpenForRepair(dataSize, md, kind, index)
	if err != nil || s.super.Clean() {
		return s, err
	}
	if _, err := s.ReplayAL(); err != nil && (s.super.Flags&FlagPrimary != 0 || !isLogDamage(err)) {
		return nil, err
	}
	return s, nil
}

func isLogDamage(err error) bool {
	return errors.Is(err, actlog.ErrGap) || errors.Is(err, actlog.ErrNoLog)
}

// OpenForRepair is Open without the look at the activity log. If Open finds the log damaged, this opens the store for
// MarkAllDirty.
func OpenForRepair(dataSize int64, md Device, kind Kind, index int) (*Store, error) {
	if kind == Internal {
		dataSize = md.Size()
	}
	return open(dataSize, md, kind, index)
}

// open expects internal metadata at the end of the first dataSize bytes.
func open(dataSize int64, md Device, kind Kind, index int) (*Store, error) {
	end := md.Size()
	if kind == Internal {
		end = dataSize
	}
	at, err := superAt(kind, index, end)
	if err != nil {
		return nil, err
	}
	s := &Store{md: md, kind: kind, index: index, dataSize: dataSize,
		raw: alignedBuf(BlockSize), scratch: alignedBuf(BlockSize), alBuf: alignedBuf(BlockSize)}
	if err := readAt(md, s.raw, at, "superblock"); err != nil {
		return nil, err
	}
	s.super, err = DecodeSuper(s.raw)
	if err != nil {
		if de, ok := errors.AsType[*DamageError](err); ok {
			de.Offset += at
		}
		return nil, fmt.Errorf("%s metadata at byte %d: %w", kind, at, err)
	}
	sizes := []int64{dataSize}
	if kind == Internal {
		// The superblock is here too if the device was a few sectors smaller or larger, but the bitmap's size may differ.
		whole := dataSize / BlockSize * BlockSize
		sizes = append(sizes, whole, whole+SectorSize)
	}
	var first error
	for _, s.dataSize = range sizes {
		if err = s.fit(at); err == nil {
			return s, nil
		}
		if first == nil {
			first = err
		}
	}
	return nil, first
}

// fit computes the layout and compares the superblock, which is at byte at, with it.
func (s *Store) fit(at int64) (err error) {
	s.lay, err = Compute(s.geometry(&s.super))
	switch {
	case errors.Is(err, ErrTooSmall):
		return err
	case err != nil:
		return &DamageError{What: "superblock", Offset: at, Err: err}
	}
	return s.checkLayout(&s.super)
}

func (s *Store) geometry(sb *Super) Geometry {
	return Geometry{
		Version: sb.Version, Kind: s.kind, Index: s.index, DataSize: s.dataSize, MetaSize: s.md.Size(), MaxPeers: sb.MaxPeers,
		ALStripes: int(sb.ALStripes), ALStripeSize4k: int(sb.ALStripeSize4k),
	}
}

// checkLayout compares what the superblock says with what the devices' sizes say.
func (s *Store) checkLayout(sb *Super) error {
	l := &s.lay
	for _, f := range []struct {
		what      string
		got, want int64
		off       int64
	}{
		{"al_offset", int64(sb.ALOffset), int64(l.ALOffset), 0x44},
		{"bm_offset", int64(sb.BMOffset), int64(l.BMOffset), 0x4c},
		{"md_size", int64(sb.MDSize), int64(l.MDSize), 0x40},
	} {
		if f.what == "md_size" && s.kind == FlexExternal {
			continue // the meta device may have grown
		}
		if f.got != f.want {
			return &DamageError{What: fmt.Sprintf("%s is %d, should be %d", f.what, f.got, f.want), Offset: l.Super + f.off}
		}
	}
	if sb.EffectiveSize > uint64(l.Capacity) {
		return fmt.Errorf("%w: %d sectors were in use, %d are left", ErrTooSmall, sb.EffectiveSize, l.Capacity)
	}
	return nil
}

// Super returns the superblock as last read or written.
func (s *Store) Super() Super {
	s.superMu.Lock()
	defer s.superMu.Unlock()
	return s.super
}

// Layout returns where everything is.
func (s *Store) Layout() Layout {
	s.superMu.Lock()
	defer s.superMu.Unlock()
	return s.lay
}

// Kind returns the placement and, for Indexed, the index.
func (s *Store) Kind() (Kind, int) { return s.kind, s.index }

// Foreign says whether the superblock on disk was last written by a program other than hawser.
func (s *Store) Foreign() bool {
	s.superMu.Lock()
	defer s.superMu.Unlock()
	return checkTrailer(s.raw) == trailerAbsent
}

// WriteSuper makes sb the superblock. On return without error it is durable and was read back. Version, sizes and offsets must
// be those of Super(); changing them is for Create, ConvertV08 and Move. After an error it is unknown which of the two
// the disk holds: stop using the disk.
func (s *Store) WriteSuper(sb Super) error {
	s.superMu.Lock()
	defer s.superMu.Unlock()
	return s.writeSuper(sb)
}

// writeSuper is WriteSuper with superMu held.
func (s *Store) writeSuper(sb Super) error {
	if sb.Version != s.super.Version || sb.MaxPeers != s.super.MaxPeers || sb.ALStripes != s.super.ALStripes ||
		sb.ALStripeSize4k != s.super.ALStripeSize4k {
		return errors.New("write superblock: version, bitmap slots or activity log size would change")
	}
	if err := sb.check(); err != nil {
		return fmt.Errorf("write superblock: %w", err)
	}
	if err := s.checkLayout(&sb); err != nil {
		return fmt.Errorf("write superblock: %w", err)
	}
	copy(s.scratch, s.raw)
	sb.encode(s.scratch)
	if err := putSuper(s.md, s.scratch, s.lay.Super, s.raw); err != nil {
		return err
	}
	s.super = sb
	return nil
}

// putSuper writes the block durably and reads it back into check; both are aligned.
func putSuper(md Device, block []byte, off int64, check []byte) error {
	if err := writeAt(md, block, off, "superblock"); err != nil {
		return err
	}
	if err := syncDev(md, "superblock"); err != nil {
		return err
	}
	if err := readAt(md, check, off, "superblock"); err != nil {
		return err
	}
	if !bytes.Equal(block, check) {
		return &DamageError{What: "superblock reads back differently than written", Offset: off}
	}
	return nil
}
