package meta

import (
	"fmt"

	"github.com/hawser-ha/hawser/replicator/actlog"
)

// ALBlocks returns the number of 4 KiB blocks in the activity log's ring.
func (s *Store) ALBlocks() int { return int(s.Layout().ALBytes / BlockSize) }

// ReplayAL reads the activity log and returns the extents that were active, in rising order. If the log is damaged the
// error is a *DamageError that wraps actlog.ErrGap or actlog.ErrNoLog; then all blocks must be taken for dirty.
func (s *Store) ReplayAL() (active []uint32, err error) {
	s.alMu.Lock()
	defer s.alMu.Unlock()
	l := s.Layout()
	buf := alignedBuf(int(l.ALBytes))
	if err := readArea(s.md, buf, l.AL, "activity log"); err != nil {
		return nil, err
	}
	blocks := make([][]byte, len(buf)/BlockSize)
	for i := range blocks {
		blocks[i] = buf[i*BlockSize:][:BlockSize]
	}
	active, err = actlog.Replay(blocks)
	if err != nil {
		return active, &DamageError{What: "activity log", Offset: l.AL, Err: err}
	}
	return active, nil
}

func readArea(md Device, buf []byte, off int64, what string) error {
	for done := 0; done < len(buf); {
		n := min(ioBytes, len(buf)-done)
		if err := readAt(md, buf[done:done+n], off+int64(done), what); err != nil {
			return err
		}
		done += n
	}
	return nil
}

// InitAL makes the activity log empty, durably.
func (s *Store) InitAL() error {
	s.alMu.Lock()
	defer s.alMu.Unlock()
	l := s.Layout()
	return initAL(s.md, l)
}

func initAL(md Device, l Layout) error {
	buf := alignedBuf(int(min(l.ALBytes, ioBytes)))
	for i := 0; i < len(buf); i += BlockSize {
		actlog.InitBlock((*[BlockSize]byte)(buf[i:]))
	}
	for done := int64(0); done < l.ALBytes; {
		n := min(l.ALBytes-done, int64(len(buf)))
		if err := writeAt(md, buf[:n], l.AL+done, "activity log"); err != nil {
			return err
		}
		done += n
	}
	return syncDev(md, "activity log")
}

// WriteALBlock writes one block of the activity log's ring; it is durable on return. It does not allocate.
func (s *Store) WriteALBlock(index int, block *[BlockSize]byte) error {
	s.alMu.Lock()
	defer s.alMu.Unlock()
	l := s.Layout()
	if index < 0 || int64(index) >= l.ALBytes/BlockSize {
		return fmt.Errorf("activity log block %d of %d", index, l.ALBytes/BlockSize)
	}
	copy(s.alBuf, block[:])
	if err := writeAt(s.md, s.alBuf, l.AL+int64(index)*BlockSize, "activity log"); err != nil {
		return err
	}
	return syncDev(s.md, "activity log")
}

// ApplyAL makes unclean metadata clean, as drbdmeta apply-al does: if the node was Primary, all bits of the extents that
// were active are set in every slot; then the log is emptied and the superblock marked clean. It does nothing to clean metadata.
// marked is the number of bits that it set and that were not set before, in all slots. FlagPrimary stays, it says that there
// was a crash. If the node was Primary and the log is damaged, nothing is changed and the error is a *DamageError; MarkAllDirty is
// then the way on. FlagALDisabled is not looked at: with it, a crashed Primary must set all bits itself.
func (s *Store) ApplyAL() (marked int64, err error) {
	sb := s.Super()
	if sb.Clean() {
		return 0, nil
	}
	active, err := s.ReplayAL()
	switch {
	case err != nil && (sb.Flags&FlagPrimary != 0 || !isLogDamage(err)):
		return 0, err
	case err == nil && sb.Flags&FlagPrimary != 0:
		if marked, err = s.markExtents(active); err != nil {
			return marked, err
		}
	}
	return marked, s.finishApply()
}

// finishApply empties the log and marks the superblock clean.
func (s *Store) finishApply() error {
	if err := s.InitAL(); err != nil {
		return err
	}
	s.superMu.Lock()
	defer s.superMu.Unlock()
	sb := s.super
	sb.Unclean = false
	sb.Flags |= FlagALClean
	return s.writeSuper(sb)
}

// MarkAllDirty sets every bit of every slot, empties the activity log and marks the metadata clean: the way on when the log is
// damaged. It needs an agreed size in the superblock; without one there is nothing to mark, since attaching sets all bits then.
func (s *Store) MarkAllDirty() error {
	if err := s.fillBitmaps(); err != nil {
		return err
	}
	return s.finishApply()
}
