package replicator

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/hawser-ha/hawser/replicator/actlog"
	"github.com/hawser-ha/hawser/replicator/bitmap"
	"github.com/hawser-ha/hawser/replicator/control"
	"github.com/hawser-ha/hawser/replicator/core"
	"github.com/hawser-ha/hawser/replicator/disk"
	"github.com/hawser-ha/hawser/replicator/meta"
)

// mdDevice is a store as the metadata sees it. One block is written durably in one go, so that a transaction of the activity
// log costs one system call; Sync has then nothing to do.
type mdDevice struct {
	disk.Store
	noFlush bool // md-flushes no
	reqs    sync.Pool
	dirty   bool // guarded by the meta.Store's mutexes in what matters: a Sync too many is harmless
}

func (d *mdDevice) WriteAt(p []byte, off int64) (int, error) {
	if len(p) != meta.BlockSize || d.noFlush || uintptr(unsafe.Pointer(unsafe.SliceData(p)))%meta.BlockSize != 0 {
		d.dirty = true
		return d.Store.WriteAt(p, off)
	}
	r, _ := d.reqs.Get().(*disk.Request)
	if r == nil {
		r = &disk.Request{}
	}
	r.Op, r.FUA, r.Off, r.Len, r.Buf = disk.Write, true, off, int64(len(p)), p
	d.Do(r)
	err := r.Err
	if errors.Is(err, disk.ErrTimeout) {
		return 0, err // the store may still look at the request
	}
	*r = disk.Request{}
	d.reqs.Put(r)
	if err != nil {
		return 0, err
	}
	return len(p), nil
}

func (d *mdDevice) Sync() error {
	if d.noFlush || !d.dirty {
		return nil
	}
	d.dirty = false
	if err := d.Store.Sync(); err != nil {
		d.dirty = true
		return err
	}
	return nil
}

// sharedArea is one area of a meta device that several resources share: opened without claiming the device, and locked
// for this area alone.
type sharedArea struct {
	f       *os.File
	size    int64
	noFlush bool // md-flushes no
}

const indexedArea = 128 << 20 // bytes

func openShared(path string, index int) (*sharedArea, error) {
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return nil, fmt.Errorf("open meta disk: %w", err)
	}
	lock := unix.Flock_t{Type: unix.F_WRLCK, Whence: 0, Start: int64(index) * indexedArea, Len: indexedArea}
	if err := unix.FcntlFlock(f.Fd(), unix.F_OFD_SETLK, &lock); err != nil {
		_ = f.Close()
		return nil, fmt.Errorf("meta disk %s, index %d: %w", path, index, disk.ErrInUse)
	}
	size, err := f.Seek(0, 2)
	if err != nil {
		_ = f.Close()
		return nil, fmt.Errorf("meta disk %s: %w", path, err)
	}
	return &sharedArea{f: f, size: size}, nil
}

func (a *sharedArea) ReadAt(p []byte, off int64) (int, error)  { return a.f.ReadAt(p, off) }
func (a *sharedArea) WriteAt(p []byte, off int64) (int, error) { return a.f.WriteAt(p, off) }
func (a *sharedArea) Size() int64                              { return a.size }
func (a *sharedArea) Close() error                             { return a.f.Close() }

func (a *sharedArea) Sync() error {
	if a.noFlush {
		return nil
	}
	return unix.Fdatasync(int(a.f.Fd()))
}

// closer is what a meta disk of its own needs at the end.
type closer interface{ Close() error }

// opened is a disk with its metadata, before the Machine knows of it.
type opened struct {
	store   disk.Store
	mdStore closer // nil: internal
	md      *meta.Store
	info    core.DiskInfo
	slots   []int
}

func (o *opened) close() error {
	var errs []error
	if o.mdStore != nil {
		errs = append(errs, o.mdStore.Close())
	}
	if o.store != nil {
		errs = append(errs, o.store.Close())
	}
	return errors.Join(errs...)
}

func diskOptions(d *control.VolumeDef, path string) disk.Options {
	return disk.Options{Path: path, Direct: d.Opts.DirectIO, Timeout: d.Opts.DiskTimeout}
}

// metaKindOf says where the metadata of a volume is.
func metaKindOf(d *control.VolumeDef) meta.Kind {
	switch {
	case d.MetaDisk == "" || d.MetaDisk == "internal":
		return meta.Internal
	case d.MetaIndex >= 0:
		return meta.Indexed
	}
	return meta.FlexExternal
}

// openStores opens the disk and the device of its metadata.
func (r *Resource) openStores(d *control.VolumeDef) (o *opened, dev meta.Device, err error) {
	o = &opened{}
	defer func() {
		if err != nil {
			err = errors.Join(err, o.close())
		}
	}()
	data := diskOptions(d, d.Disk)
	if v := r.volume(d.Number); v != nil { // create-md has none
		data.Batch = v.reaped
	}
	store, err := r.opts.OpenDisk(r.log.With("volume", d.Number), data)
	if err != nil {
		return o, nil, err
	}
	o.store = store
	switch metaKindOf(d) {
	case meta.Internal:
		return o, &mdDevice{Store: o.store, noFlush: !d.Opts.MDFlushes}, nil
	case meta.Indexed:
		a, err := openShared(d.MetaDisk, d.MetaIndex)
		if err != nil {
			return o, nil, err
		}
		a.noFlush = !d.Opts.MDFlushes
		o.mdStore = a
		return o, &alignedArea{a}, nil
	}
	md, err := r.opts.OpenDisk(r.log.With("volume", d.Number), diskOptions(d, d.MetaDisk))
	if err != nil {
		return o, nil, fmt.Errorf("metadata: %w", err)
	}
	o.mdStore = md
	return o, &mdDevice{Store: md, noFlush: !d.Opts.MDFlushes}, nil
}

// alignedArea is a sharedArea as a meta.Device.
type alignedArea struct{ *sharedArea }

// openDisk opens disk and metadata of a volume and applies the activity log of a crash.
func (r *Resource) openDisk(def *control.Definition, d *control.VolumeDef) (_ *opened, err error) {
	o, dev, err := r.openStores(d)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, o.close())
		}
	}()
	kind, index := metaKindOf(d), max(d.MetaIndex, 0)
	log := r.log.With("volume", d.Number)
	v := r.volume(d.Number)
	o.md, err = openMeta(o.store.Size(), dev, kind, index, v.lastSize(r.opts.StateDir)...)
	damaged, isDamage := errors.AsType[*meta.DamageError](err)
	if isDamage && (errors.Is(err, actlog.ErrGap) || errors.Is(err, actlog.ErrNoLog)) {
		log.Warn("activity log damaged, every block is resynced", "err", damaged)
		if o.md, err = meta.OpenForRepair(o.store.Size(), dev, kind, index); err == nil {
			err = o.md.MarkAllDirty()
		}
	}
	if err != nil {
		return nil, err
	}
	if o.md.Super().Version == 8 {
		return nil, control.Errorf(control.Confirm, "%s has version 8 metadata, of DRBD 8.4", d.Disk).
			WithRule("metadata is converted only when asked to").
			WithHint("hawser convert-md " + r.name + " makes it version 9 in place: data, bitmap and generation stay")
	}
	marked, err := o.md.ApplyAL()
	if err != nil {
		return nil, err
	}
	if marked > 0 {
		log.Info("activity log applied", "bits", marked)
	}
	if o.md.Displaced() {
		if err := o.md.Move(o.store.Size()); err != nil {
			return nil, err
		}
		log.Info("metadata moved to the end of the grown disk", "size", o.store.Size())
	}
	if err := r.fillInfo(def, d, o); err != nil {
		return nil, err
	}
	v.keepSize(r.opts.StateDir, o.store.Size())
	return o, nil
}

// sizeFile is where the size of the volume's disk is kept, because internal metadata cannot be found after it grew.
func (v *volume) sizeFile(dir string) string {
	return filepath.Join(dir, fmt.Sprintf("%s-%d.size", v.r.name, v.number))
}

// lastSize gives the sizes in bytes that the disk had when it was last attached.
func (v *volume) lastSize(dir string) []int64 {
	sizes := []int64{v.attached}
	if dir != "" {
		if b, err := os.ReadFile(v.sizeFile(dir)); err == nil {
			if n, err := strconv.ParseInt(strings.TrimSpace(string(b)), 10, 64); err == nil {
				sizes = append(sizes, n)
			}
		}
	}
	return sizes
}

// keepSize remembers the size of the disk.
func (v *volume) keepSize(dir string, size int64) {
	v.attached = size
	if dir == "" {
		return
	}
	tmp := v.sizeFile(dir) + ".new"
	err := os.MkdirAll(dir, 0o700)
	if err == nil {
		err = os.WriteFile(tmp, strconv.AppendInt(nil, size, 10), 0o600)
	}
	if err == nil {
		err = os.Rename(tmp, v.sizeFile(dir))
	}
	if err != nil {
		v.log.Warn("size of the disk not remembered", "err", err)
	}
}

// openMeta opens metadata; internal metadata of a disk that has grown is where the disk ended before.
func openMeta(size int64, dev meta.Device, kind meta.Kind, index int, lastSizes ...int64) (*meta.Store, error) {
	if kind == meta.Internal {
		return meta.Find(dev, lastSizes...)
	}
	return meta.Open(size, dev, kind, index)
}

// fillInfo reads what the Machine must know of the disk.
func (r *Resource) fillInfo(def *control.Definition, d *control.VolumeDef, o *opened) error {
	sb := o.md.Super()
	if sb.NodeID >= 0 && int(sb.NodeID) != def.NodeID {
		return control.Errorf(control.Refused, "the disk belongs to node id %d, this is node id %d", sb.NodeID, def.NodeID).
			WithRule("a disk is attached only on the node whose metadata it carries")
	}
	if sb.NodeID < 0 {
		sb.NodeID = int32(def.NodeID)
	}
	capacity := min(o.md.Layout().Capacity*meta.SectorSize, o.store.Size())
	in := &o.info
	in.Capacity = capacity
	in.Discards = o.store.Discards()
	in.ALBlocks = o.md.ALBlocks()
	in.ALSlots = min(max(d.Opts.ALExtents, actlog.SlotsMin), actlog.MaxSlots(in.ALBlocks))
	if in.ALSlots < d.Opts.ALExtents {
		r.log.Warn("al-extents is more than the activity log on the disk holds", "volume", d.Number, "from", d.Opts.ALExtents, "to", in.ALSlots)
	}
	in.Super = core.Super{
		Size: int64(sb.EffectiveSize) * meta.SectorSize, Current: sb.Current, History: [2]uint64{sb.History[0], sb.History[1]},
		Consistent: sb.Flags&meta.FlagConsistent != 0, WasUpToDate: sb.Flags&meta.FlagWasUpToDate != 0,
		PrimaryInd: sb.Flags&meta.FlagPrimary != 0, CrashedPrimary: sb.Flags&meta.FlagCrashedPrimary != 0,
		ALDisabled: sb.Flags&meta.FlagALDisabled != 0,
		Bitmap:     make([]uint64, len(def.Peers)), Peers: make([]core.SuperPeer, len(def.Peers)),
	}
	in.Bitmaps = make([]*bitmap.Bitmap, len(def.Peers))
	o.slots = make([]int, len(def.Peers))
	taken := map[int]int{} // slot -> node id
	for id, e := range sb.Peers {
		if e.BitmapIndex >= 0 {
			taken[int(e.BitmapIndex)] = id
		}
	}
	for i := range def.Peers {
		p := &def.Peers[i]
		o.slots[i] = -1
		e := sb.Peers[p.NodeID]
		in.Super.Bitmap[i] = e.BitmapUUID
		in.Super.Peers[i] = core.SuperPeer{
			Connected: e.Flags&meta.PeerConnected != 0, OutDated: e.Flags&meta.PeerOutdated != 0, FullSync: e.Flags&meta.PeerFullSync != 0,
		}
		if p.Diskless {
			continue
		}
		slot := int(e.BitmapIndex)
		if slot < 0 {
			slot = p.BitmapSlot
			if owner, used := taken[slot]; used {
				return control.Errorf(control.Refused, "bitmap slot %d for %s is that of node id %d", slot, p.Name, owner)
			}
			taken[slot] = p.NodeID
		}
		if slot >= sb.MaxPeers {
			return control.Errorf(control.TooSmall, "the metadata has %d bitmap slots, %s needs slot %d", sb.MaxPeers, p.Name, slot).
				WithHint("make the metadata anew with more slots, or take a free slot")
		}
		bm := bitmap.New(bitmap.BitsFor(capacity))
		if err := o.md.ReadBitmap(slot, bm); err != nil {
			return err
		}
		if in.Super.PrimaryInd && in.Super.ALDisabled {
			bm.SetAll() // nobody knows what was in flight
		}
		o.slots[i], in.Bitmaps[i] = slot, bm
	}
	return nil
}
