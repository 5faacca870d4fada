package replicator

import (
	"errors"
	"fmt"
	"sync"

	"github.com/hawser-ha/hawser/replicator/actlog"
	"github.com/hawser-ha/hawser/replicator/bitmap"
	"github.com/hawser-ha/hawser/replicator/core"
	"github.com/hawser-ha/hawser/replicator/disk"
	"github.com/hawser-ha/hawser/replicator/meta"
)

type metaKind uint8

const (
	metaAL metaKind = iota
	metaSuper
	metaClose
	metaStop
)

// metaOp is one thing to be done to the metadata of a volume.
type metaOp struct {
	kind    metaKind
	vol     *volume
	super   meta.Super
	token   uint64
	flush   bool
	flushes bool // disk-flushes
	snaps   []*meta.Snapshot
	bms     []int // of snaps: peer index
	tx      *actlog.Transaction
	md      *meta.Store
	store   disk.Store
	mdst    closer
}

// metaQueue runs the operations of a volume one after the other, on a goroutine of its own.
type metaQueue struct {
	mu    sync.Mutex // guards queue
	queue []*metaOp
	wake  chan struct{} // capacity 1
	block [actlog.BlockSize]byte
	al    metaOp // there is one transaction at a time
}

func (q *metaQueue) push(op *metaOp) {
	q.mu.Lock()
	q.queue = append(q.queue, op)
	q.mu.Unlock()
	poke(q.wake)
}

func (q *metaQueue) pop() *metaOp {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.queue) == 0 {
		return nil
	}
	op := q.queue[0]
	q.queue[0] = nil
	if q.queue = q.queue[1:]; len(q.queue) == 0 {
		q.queue = nil
	}
	return op
}

// startMeta copies what a metadata effect needs: bitmaps and superblock may change as soon as the mutex is free. r.mu is held.
func (r *Resource) startMeta(t *turn, e *core.Effect) {
	v := r.volume(e.Vol)
	op := &v.meta.al
	if e.Kind == core.WriteSuper {
		op = &metaOp{}
	}
	*op = metaOp{vol: v, md: v.md, store: v.store, mdst: v.mdStore, flushes: v.flushes, snaps: op.snaps[:0], bms: op.bms[:0]}
	if e.Kind == core.WriteAL {
		op.kind, op.tx = metaAL, e.Tx
		for i, bm := range v.bitmaps {
			if bm == nil {
				continue
			}
			var blocks []int64
			for _, ext := range e.Tx.Evicted {
				if b := int64(ext) / (32768 / 1024); bm.ChangedBlock(b) {
					blocks = append(blocks, b)
				}
			}
			if len(blocks) > 0 {
				op.snapshot(v, i, blocks)
			}
		}
	} else {
		op.kind, op.token, op.flush = metaSuper, e.Token, e.Flush
		if v.md != nil {
			op.super = v.superblock(e.Super)
		}
		if e.Bitmap {
			for i, bm := range v.bitmaps {
				if bm != nil {
					op.snapshot(v, i, nil)
				}
			}
		}
	}
	v.metaBusy++
	t.meta = append(t.meta, op)
}

// snapshot copies bitmap blocks towards peer i (nil: those that changed). r.mu is held.
func (op *metaOp) snapshot(v *volume, i int, blocks []int64) {
	s := meta.TakeSnapshot(v.slots[i], v.bitmaps[i], blocks)
	if !s.Empty() {
		op.snaps = append(op.snaps, s)
		op.bms = append(op.bms, i)
		v.bmWrites++
	}
}

// metaLoop is the goroutine of the volume's metadata.
func (v *volume) metaLoop() {
	for range v.meta.wake {
		for op := v.meta.pop(); op != nil; op = v.meta.pop() {
			if op.kind == metaStop {
				return
			}
			v.runMeta(op, false)
		}
	}
}

// runMeta does one operation and tells the Machine. inline: the caller has nothing better to do than what follows.
func (v *volume) runMeta(op *metaOp, inline bool) {
	r := v.r
	var err error
	switch op.kind {
	case metaClose:
		op.closeDisk(v)
		t := r.lock()
		v.metaBusy--
		if v.store == op.store {
			v.store, v.md, v.mdStore, v.diskClosing = nil, nil, nil, false
			v.bitmaps = make([]*bitmap.Bitmap, len(r.peers))
		}
		r.m.DiskClosed(now(), v.number)
		r.unlock(t)
		return
	case metaAL:
		err = op.writeAL(v)
	case metaSuper:
		err = op.writeSuper()
	}
	t := r.lock()
	t.inline = inline
	v.metaBusy--
	if err != nil {
		v.log.Error("metadata not written", "err", err)
		v.lastErr = err
		for i, s := range op.snaps {
			if bm := v.bitmaps[op.bms[i]]; bm != nil {
				s.Undo(bm)
			}
		}
	}
	if op.kind == metaAL {
		r.m.ALDone(now(), v.number, err)
	} else {
		r.m.SuperDone(now(), v.number, op.token, err)
	}
	r.unlock(t)
}

var errNoMetadata = errors.New("the volume has no metadata open")

// writeBitmaps makes the snapshots durable; what was cleared in them is durable on the data disk before.
func (op *metaOp) writeBitmaps() error {
	if len(op.snaps) == 0 && !op.flush {
		return nil
	}
	if op.flushes {
		if err := op.store.Sync(); err != nil {
			return fmt.Errorf("flush before metadata: %w", err)
		}
	}
	for _, s := range op.snaps {
		if err := op.md.WriteSnapshot(s); err != nil {
			return err
		}
	}
	return nil
}

func (op *metaOp) writeAL(v *volume) error {
	if op.md == nil {
		return errNoMetadata
	}
	if err := op.writeBitmaps(); err != nil {
		return err
	}
	op.tx.Encode(&v.meta.block)
	return op.md.WriteALBlock(op.tx.Block(v.stripes, v.stripe4k), &v.meta.block)
}

func (op *metaOp) writeSuper() error {
	if op.md == nil {
		return errNoMetadata
	}
	if err := op.writeBitmaps(); err != nil {
		return err
	}
	return op.md.WriteSuper(op.super)
}

// closeDisk releases the stores; how long it takes is bounded by the disk package.
func (op *metaOp) closeDisk(v *volume) {
	for _, st := range []closer{op.mdst, op.store} {
		if st == nil {
			continue
		}
		if err := st.Close(); err != nil {
			v.log.Error("disk not closed", "err", err)
		}
	}
}

// superblock is what the Machine wants to keep, put into a copy of the volume's superblock: asking the store for its own would
// wait for a write under way. r.mu is held.
func (v *volume) superblock(s *core.Super) meta.Super {
	sb := v.sb
	sb.EffectiveSize = uint64(s.Size / meta.SectorSize)
	sb.Current = s.Current
	sb.History[0], sb.History[1] = s.History[0], s.History[1]
	sb.Unclean = sb.Version == 8
	sb.Flags &^= meta.FlagALClean
	set := func(flags *uint32, bit uint32, on bool) {
		*flags &^= bit
		if on {
			*flags |= bit
		}
	}
	set(&sb.Flags, meta.FlagConsistent, s.Consistent)
	set(&sb.Flags, meta.FlagWasUpToDate, s.WasUpToDate)
	set(&sb.Flags, meta.FlagPrimary, s.PrimaryInd)
	set(&sb.Flags, meta.FlagCrashedPrimary, s.CrashedPrimary)
	set(&sb.Flags, meta.FlagALDisabled, s.ALDisabled)
	sb.ALNrExtents = uint32(v.alSlots)
	for i, p := range v.r.peers {
		if i >= len(s.Peers) || i >= len(s.Bitmap) || v.bitmaps[i] == nil {
			continue
		}
		f := s.Peers[i]
		if sb.Version == 8 {
			set(&sb.Flags, meta.FlagV08Connected, f.Connected)
			set(&sb.Flags, meta.FlagV08PeerOutdated, f.OutDated)
			set(&sb.Flags, meta.FlagV08FullSync, f.FullSync)
			sb.Peers[0].BitmapUUID = s.Bitmap[i]
			continue
		}
		e := &sb.Peers[p.def.Load().NodeID]
		e.BitmapUUID, e.BitmapIndex = s.Bitmap[i], int32(v.slots[i])
		set(&e.Flags, meta.PeerConnected, f.Connected)
		set(&e.Flags, meta.PeerOutdated, f.OutDated)
		set(&e.Flags, meta.PeerFullSync, f.FullSync)
		e.Flags |= meta.PeerSeen
	}
	v.sb = sb
	return sb
}
