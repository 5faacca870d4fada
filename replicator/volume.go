package replicator

import (
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"

	"github.com/hawser-ha/hawser/replicator/bitmap"
	"github.com/hawser-ha/hawser/replicator/control"
	"github.com/hawser-ha/hawser/replicator/core"
	"github.com/hawser-ha/hawser/replicator/disk"
	"github.com/hawser-ha/hawser/replicator/export"
	"github.com/hawser-ha/hawser/replicator/meta"
	"github.com/hawser-ha/hawser/replicator/undo"
	"github.com/hawser-ha/hawser/replicator/wire"
)

// volume is one replicated volume on this node. It is the export.Volume of its front ends.
type volume struct {
	r      *Resource
	number int
	log    *slog.Logger
	done   completions
	meta   metaQueue
	device device
	size   atomic.Int64 // agreed size, bytes

	// Guarded by Resource.mu; store, md and mdStore are also read by requests that the Machine issued while they were set.
	store       disk.Store       // nil: diskless
	md          *meta.Store      // of store
	mdStore     closer           // external metadata's own store; nil with internal
	bitmaps     []*bitmap.Bitmap // by peer index; nil for a diskless peer. The Machine changes them
	slots       []int            // by peer index
	flushes     bool             // disk-flushes
	busy        int              // requests on the disk
	metaBusy    int              // operations on the metadata
	alSlots     int
	stripes     int          // of the activity log
	stripe4k    int          // 4 KiB blocks in each
	undo        *undo.Writer // while a resync overwrites what is to be kept
	undoOn      bool
	undoPeer    int // who wins
	sessions    map[*session]struct{}
	bmWrites    int64
	diskClosing bool       // its end is queued
	sb          meta.Super // as last handed to be written
	deviceUUID  uint64
	lastErr     error

	attached int64      // bytes of the disk when it was attached last; the token of commands guards it
	undoMu   sync.Mutex // one log is begun at a time
	limits   atomic.Pointer[export.Limits]
}

const (
	maxPiece = wire.MaxData // bytes of a read or write that the Machine sees; longer ones are split
	maxIO    = 32 << 20     // bytes of a read or write of a front end
	maxTrim  = 4 << 30      // bytes of a trim or a write of zeroes
)

// split is a request that the Machine gets in pieces. Guarded by Resource.mu.
type split struct {
	left int // pieces
	err  error
}

// diskError notes why the disk failed. r.mu is held.
func (v *volume) diskError(io *ioreq, err error) {
	v.lastErr = fmt.Errorf("%s of %d bytes at %d: %w", io.disk.Op, io.disk.Len, io.disk.Off, err)
	v.log.Error("disk request failed", "op", io.disk.Op.String(), "off", io.disk.Off, "len", io.disk.Len, "err", err)
}

// Size is the present size in bytes.
func (v *volume) Size() int64 { return v.size.Load() }

// Limits are the block sizes of the volume.
func (v *volume) Limits() export.Limits {
	if l := v.limits.Load(); l != nil {
		return *l
	}
	return export.Limits{MinBlock: 512, Preferred: 4096, MaxIO: maxIO}
}

// name is RESOURCE/VOLUME.
func (v *volume) name() string { return fmt.Sprintf("%s/%d", v.r.name, v.number) }

// Open starts a session, if this node is Primary.
func (v *volume) Open(closed func(reason error), resized func(size int64)) (export.Session, error) {
	v.r.mu.Lock()
	defer v.r.mu.Unlock()
	switch {
	case v.r.closing:
		return nil, fmt.Errorf("%w: %s is going down", export.ErrNotPrimary, v.name())
	case v.r.m.Role() != wire.Primary:
		return nil, fmt.Errorf("%w: %s is Secondary: hawser primary %s makes it writable", export.ErrNotPrimary, v.name(), v.r.name)
	case v.size.Load() == 0:
		return nil, fmt.Errorf("%w: the size of %s is not known yet", export.ErrNotPrimary, v.name())
	}
	s := &session{v: v, closed: closed, resized: resized}
	v.sessions[s] = struct{}{}
	v.r.countOpeners()
	return s, nil
}

// Extents tells holes of the local disk where reads come from it; everything is data elsewhere.
func (v *volume) Extents(out []export.Extent, off, length int64, max int) ([]export.Extent, error) {
	v.r.mu.Lock()
	st := v.store
	upToDate := v.r.localReads(v)
	v.r.mu.Unlock()
	if off < 0 || length <= 0 || off > v.Size()-length {
		return out, fmt.Errorf("extents of %d bytes at %d of %d: %w", length, off, v.Size(), export.ErrIO)
	}
	if st == nil || !upToDate || max < 2 {
		return append(out, export.Extent{Len: length}), nil
	}
	found, err := st.Extents(off, length, max)
	if err != nil || len(found) == 0 {
		return append(out, export.Extent{Len: length}), nil
	}
	for _, e := range found {
		out = append(out, export.Extent{Len: e.Len, Hole: e.Hole, Zero: e.Hole})
	}
	return out, nil
}

// session is one opener.
type session struct {
	v       *volume
	closed  func(error)
	resized func(int64)
	once    sync.Once
}

// Close ends the session; requests in flight get their Done.
func (s *session) Close() {
	s.v.r.mu.Lock()
	delete(s.v.sessions, s)
	s.v.r.countOpeners()
	s.v.r.mu.Unlock()
}

// countOpeners tells the Machine who uses the volumes. A block device counts while somebody has claimed it; its own session
// does not. r.mu is held.
func (r *Resource) countOpeners() {
	n := 0
	for _, v := range r.vols {
		n += len(v.sessions)
		if dev, _ := v.device.get(); dev != nil && !v.device.held.Load() {
			n--
		}
	}
	r.m.Opened(max(n, 0))
}

// end tells the opener, once, that the session is over.
func (s *session) end(reason error) {
	s.once.Do(func() {
		if s.closed != nil {
			s.closed(reason)
		}
	})
}

// Submit starts the requests of a batch.
func (s *session) Submit(batch []*export.Request) {
	v := s.v
	r := v.r
	d := r.integrityAlg()
	t := r.lock()
	t.inline = len(batch) == 1
	at := now()
	for _, a := range batch {
		r.submitOne(t, v, a, d, at)
	}
	r.unlock(t)
}

// submitOne feeds one request of a front end. r.mu is held.
func (r *Resource) submitOne(t *turn, v *volume, a *export.Request, d wire.Digest, at core.Now) {
	kind := core.AppRead
	switch a.Op {
	case export.Write:
		kind = core.AppWrite
	case export.Flush:
		kind = core.AppFlush
	case export.Trim:
		kind = core.AppTrim
	case export.WriteZeroes:
		kind = core.AppZero
	}
	if err := v.check(a); err != nil {
		a.Err = err
		t.done = append(t.done, answer{a, a.Kick})
		return
	}
	piece := int64(maxPiece)
	if a.Op == export.Trim || a.Op == export.WriteZeroes {
		piece = wire.MaxDiscardOld
	}
	if a.Op == export.WriteZeroes && r.zeroesAsData() {
		piece = maxPiece
	}
	if a.Op == export.Flush || a.Len <= piece {
		r.submitPiece(v, a, kind, nil, 0, a.Len, d, at)
		return
	}
	sp := &split{left: int((a.Len + piece - 1) / piece)}
	for off := int64(0); off < a.Len; off += piece {
		r.submitPiece(v, a, kind, sp, off, min(piece, a.Len-off), d, at)
	}
}

// submitPiece feeds [off, off+n) of a request. r.mu is held.
func (r *Resource) submitPiece(v *volume, a *export.Request, kind core.Kind, sp *split, off, n int64, d wire.Digest, at core.Now) {
	io := r.newIO()
	io.app, io.kick, io.split = a, a.Kick, sp
	if a.Buf != nil && (a.Op == export.Read || a.Op == export.Write) {
		a.Buf.Retain()
		io.buf, io.data = a.Buf, a.Buf.B[off:off+n]
		if d != nil && a.Op == export.Write {
			io.integrity(d, io.data)
		}
	}
	req := r.m.NewRequest(kind)
	req.Vol, req.FUA, req.NoUnmap, req.Tag = v.number, a.FUA, a.NoHole, io
	if a.Op != export.Flush {
		req.Off, req.Len = a.Off+off, n
	}
	r.m.Submit(at, req)
}

// check refuses what the Machine may not see.
func (v *volume) check(a *export.Request) error {
	if a.Op == export.Flush {
		return nil
	}
	unit := int64(512)
	if l := v.limits.Load(); l != nil {
		unit = int64(l.MinBlock)
	}
	size := v.size.Load()
	switch {
	case a.Off < 0 || a.Len <= 0 || a.Off > size-a.Len:
		return fmt.Errorf("%d bytes at %d of %d: %w", a.Len, a.Off, size, export.ErrIO)
	case a.Off%unit != 0 || a.Len%unit != 0:
		return fmt.Errorf("%d bytes at %d, the block size is %d: %w", a.Len, a.Off, unit, export.ErrIO)
	case (a.Op == export.Read || a.Op == export.Write) && (a.Buf == nil || int64(len(a.Buf.B)) != a.Len || a.Len > maxIO):
		return fmt.Errorf("%d bytes, at most %d: %w", a.Len, maxIO, export.ErrIO)
	case (a.Op == export.Trim || a.Op == export.WriteZeroes) && a.Len > maxTrim:
		return fmt.Errorf("%d bytes, at most %d: %w", a.Len, maxTrim, export.ErrIO)
	}
	return nil
}

// zeroesAsData says that there is a peer to which zeroes may have to go as data. r.mu is held.
func (r *Resource) zeroesAsData() bool {
	for _, p := range r.peers {
		if p.def.Load().Net.DataIntegrityAlg != "" || p.conn != nil && p.conn.Features&wire.FeatureWZeroes == 0 {
			return true
		}
	}
	return false
}

// integrityAlg is the digest that the links want, if they agree on one.
func (r *Resource) integrityAlg() wire.Digest {
	for _, p := range r.peers {
		if d := p.integDigest.Load(); d != nil {
			return d.Digest
		}
	}
	return nil
}

// translateRequest is requestError for those that failed.
func translateRequest(err error) error {
	switch {
	case errors.Is(err, core.ErrNotPrimary):
		return fmt.Errorf("%w", export.ErrNotPrimary)
	case errors.Is(err, core.ErrNoSpace), errors.Is(err, disk.ErrNoSpace):
		return fmt.Errorf("%w: %w", export.ErrNoSpace, err)
	}
	return fmt.Errorf("%w: %w", export.ErrIO, err)
}

// localReads says that reads come from the local disk. r.mu is held.
func (r *Resource) localReads(v *volume) bool {
	if v.store == nil {
		return false
	}
	for _, w := range r.m.View().Volumes {
		if w.Number == v.number {
			return w.Disk == wire.UpToDate
		}
	}
	return false
}

// minBlock is the unit of requests that the disks allow.
func minBlock(stores ...disk.Store) int {
	n := 512
	for _, s := range stores {
		if s != nil {
			n = max(n, s.LogicalBlock())
		}
	}
	return n
}

// retune sets the limits from the disk. r.mu is held.
func (v *volume) retune(opts control.DiskOpts) {
	l := export.Limits{MinBlock: minBlock(v.store), Preferred: 4096, MaxIO: maxIO, Rotational: opts.Rotational}
	if v.store != nil {
		l.Rotational = l.Rotational || v.store.Rotational()
		l.FastZero = v.store.Discards()
	}
	v.limits.Store(&l)
}
