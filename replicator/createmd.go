package replicator

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"

	"github.com/hawser-ha/hawser/replicator/control"
	"github.com/hawser-ha/hawser/replicator/disk"
	"github.com/hawser-ha/hawser/replicator/meta"
)

// CreateMD makes fresh metadata for the volumes of a resource that is down. A disk that is to be a file and is not there is
// made, sparse, of the size in the definition. Without o.Force it refuses a disk that holds metadata, a file system or
// anything else it knows.
func CreateMD(log *slog.Logger, def *control.Definition, o control.CreateMDOptions) ([]control.CreateMDResult, error) {
	return onDisks(log, def, o.Volume, func(r *Resource, d *control.VolumeDef) (control.CreateMDResult, error) {
		return r.createMD(def, d, o)
	})
}

// onDisks does something to the disk of one volume, or of all, of a resource that is down. With an error come the
// results before it.
func onDisks[T any](log *slog.Logger, def *control.Definition, volume int, do func(*Resource, *control.VolumeDef) (T, error)) ([]T, error) {
	r := &Resource{log: log, name: def.Name, opts: Options{OpenDisk: disk.Open}}
	var out []T
	for i := range def.Volumes {
		d := &def.Volumes[i]
		if volume != control.All && volume != d.Number || d.Disk == "" {
			continue
		}
		res, err := do(r, d)
		if err != nil {
			return out, r.told(diskError(err), d.Number, "")
		}
		out = append(out, res)
	}
	if len(out) == 0 {
		return nil, control.Errorf(control.NotFound, "there is no volume %d with a disk", volume).On(def.Name, control.All, "")
	}
	return out, nil
}

func (r *Resource) createMD(def *control.Definition, d *control.VolumeDef, o control.CreateMDOptions) (res control.CreateMDResult, err error) {
	res = control.CreateMDResult{Volume: d.Number, Disk: d.Disk, MetaDisk: d.MetaDisk}
	if _, err := os.Stat(d.Disk); errors.Is(err, os.ErrNotExist) {
		if d.Size <= 0 {
			return res, control.Errorf(control.NotFound, "%s is not there, and no size is given to make a file of", d.Disk)
		}
		res.File, res.DiskSize = true, d.Size
		if o.DryRun {
			return res, nil
		}
		if err := makeSparse(d.Disk, d.Size); err != nil {
			return res, control.Errorf(control.Failed, "%w", err)
		}
	}
	if metaKindOf(d) == meta.FlexExternal {
		if _, err := os.Stat(d.MetaDisk); errors.Is(err, os.ErrNotExist) && !o.DryRun {
			size, err := metaFileSize(d, def)
			if err != nil {
				return res, err
			}
			if err := makeSparse(d.MetaDisk, size); err != nil {
				return res, control.Errorf(control.Failed, "%w", err)
			}
		}
	}
	st, dev, err := r.openStores(d)
	if err != nil {
		return res, err
	}
	defer func() { err = errors.Join(err, st.close()) }()
	res.DiskSize = st.store.Size()
	opts := meta.CreateOptions{Kind: metaKindOf(d), Index: max(d.MetaIndex, 0), Version: 9, MaxPeers: slotsOf(def), NodeID: int32(def.NodeID),
		DeviceUUID: randomUUID(), Force: o.Force}
	l, err := meta.Compute(meta.Geometry{Version: 9, Kind: opts.Kind, Index: opts.Index, DataSize: res.DiskSize, MetaSize: dev.Size(),
		MaxPeers: opts.MaxPeers})
	if err != nil {
		return res, err
	}
	res.Size = l.Capacity * meta.SectorSize
	res.MetaOff = min(l.Super, l.AL, l.Bitmap)
	res.MetaSize = meta.BlockSize + l.ALBytes + l.BitmapBytes
	if res.Found, err = found(st, dev, d, l); err != nil {
		return res, err
	}
	if res.Found != "" && !o.Force {
		if o.DryRun {
			return res, nil
		}
		return res, control.Errorf(control.Confirm, "%s holds: %s", d.Disk, res.Found).
			WithRule("what is on a disk is overwritten only when asked to").WithHint("say --force if it may be lost")
	}
	if o.DryRun {
		return res, nil
	}
	if err := meta.Create(res.DiskSize, dev, opts); err != nil {
		return res, err
	}
	res.Created = true
	r.log.Info("metadata created", "volume", d.Number, "disk", d.Disk, "size", res.Size, "slots", opts.MaxPeers)
	return res, nil
}

// slotsOf is how many bitmap slots the peers need.
func slotsOf(def *control.Definition) int {
	n := 1
	for _, p := range def.Peers {
		if !p.Diskless {
			n = max(n, p.BitmapSlot+1)
		}
	}
	return n
}

func makeSparse(path string, size int64) error {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_RDWR, 0o600)
	if err != nil {
		return err
	}
	return errors.Join(f.Truncate(size), f.Sync(), f.Close())
}

// metaFileSize is what external metadata of the disk needs, rounded up to 1 MiB.
func metaFileSize(d *control.VolumeDef, def *control.Definition) (int64, error) {
	f, err := os.Open(d.Disk)
	if err != nil {
		return 0, control.Errorf(control.NotFound, "%w", err)
	}
	defer f.Close()
	size, err := f.Seek(0, io.SeekEnd)
	if err != nil {
		return 0, control.Errorf(control.Failed, "%w", err)
	}
	bits := (size + meta.BytesPerBit - 1) / meta.BytesPerBit
	need := 64<<10 + (bits/8+64)*int64(slotsOf(def))
	return max((need+1<<20-1)>>20<<20, 1<<20), nil
}

// found says what a disk holds that would be lost.
func found(st *opened, dev meta.Device, d *control.VolumeDef, l meta.Layout) (string, error) {
	kind := metaKindOf(d)
	md, err := openMeta(st.store.Size(), dev, kind, max(d.MetaIndex, 0))
	switch {
	case err == nil:
		sb := md.Super()
		return fmt.Sprintf("version %d metadata, %s, current UUID %016X", sb.Version, meta.DState(sb), sb.Current), nil
	case !errors.Is(err, meta.ErrNoMetadata) && !errors.Is(err, meta.ErrTooSmall):
		return "metadata that is damaged or not supported: " + err.Error(), nil
	}
	head := make([]byte, 128<<10)
	n := min(int64(len(head)), st.store.Size()/4096*4096)
	if _, err := st.store.ReadAt(head[:n], 0); err != nil {
		return "", err
	}
	if what := signature(head[:n]); what != "" && kind == meta.Internal {
		return what + " (internal metadata would overwrite the end of the disk)", nil
	}
	return "", nil
}

// signature knows file systems and the like by the head of a disk.
func signature(b []byte) string {
	at := func(off int, magic string) bool {
		return off+len(magic) <= len(b) && string(b[off:off+len(magic)]) == magic
	}
	switch {
	case len(b) >= 0x43a && binary.LittleEndian.Uint16(b[0x438:]) == 0xef53:
		return "an ext2, ext3 or ext4 file system"
	case at(0, "XFSB"):
		return "an XFS file system"
	case at(0x10040, "_BHRfS_M"):
		return "a btrfs file system"
	case at(0x218, "LVM2 001"), at(0x18, "LVM2 001"):
		return "an LVM physical volume"
	case at(0, "LUKS\xba\xbe"):
		return "a LUKS volume"
	case at(0x200, "EFI PART"), at(0x1000, "EFI PART"):
		return "a GPT partition table"
	case at(3, "NTFS    "):
		return "an NTFS file system"
	case at(0xff6, "SWAPSPACE2"):
		return "swap space"
	case at(0x1000, "\xfc\x4e\x2b\xa9"), at(0, "\xfc\x4e\x2b\xa9"):
		return "an MD RAID member"
	case at(0x1fe, "\x55\xaa") && len(b) >= 512 && !bytes.Equal(b[0x1be:0x1fe], make([]byte, 64)):
		return "a partition table or a FAT file system"
	}
	return ""
}

// diskError gives errors of disks and metadata their code.
func diskError(err error) error {
	if err == nil {
		return nil
	}
	if _, ok := errors.AsType[*control.Error](err); ok {
		return err
	}
	code := control.DiskError
	hint := ""
	switch {
	case errors.Is(err, disk.ErrInUse):
		code = control.DiskInUse
	case errors.Is(err, meta.ErrNoMetadata):
		code, hint = control.NoMetadata, "hawser create-md makes it"
	case errors.Is(err, meta.ErrTooSmall):
		code = control.TooSmall
	case errors.Is(err, meta.ErrUnsupported):
		code = control.Unsupported
	case errors.Is(err, os.ErrPermission):
		code = control.Denied
	case errors.Is(err, os.ErrNotExist):
		code = control.NotFound
	}
	e := control.Errorf(code, "%w", err)
	if hint != "" {
		e = e.WithHint(hint)
	}
	return e
}
