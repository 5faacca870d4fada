package config

import (
	"fmt"

	"github.com/hawser-ha/hawser/replicator/control"
)

// Sizer tells the size of a block device or file in bytes.
type Sizer interface {
	Size(path string) (int64, error)
}

// Sizes of the metadata (drbd-metadata.md section 1.1), in bytes.
const (
	superblockSize = 4 << 10
	alSize         = 32 << 10
	indexSize      = 128 << 20 // one slot of indexed metadata
	flexibleMin    = 1 << 20
	bytesPerBit    = 4 << 10
)

// CheckDisks says which disks of a definition cannot hold its volumes and their
// metadata. The errors join; one that Sizer returned stands in a Reason. A file
// that does not exist yet is created with Size and its metadata, so Sizer should
// report it as an error only where that is one.
func CheckDisks(d control.Definition, sizes Sizer) error {
	slots := 0
	for _, p := range d.Peers {
		if !p.Diskless {
			slots++
		}
	}
	var c complaints
	for _, v := range d.Volumes {
		if v.Disk == "" {
			continue
		}
		at := fmt.Sprintf("%s/%d", d.Name, v.Number)
		disk, err := sizes.Size(v.Disk)
		if err != nil {
			c.add(at, err.Error(), "")
			continue
		}
		if v.MetaDisk == "internal" {
			c.internal(at, v, disk, slots)
			continue
		}
		meta, err := sizes.Size(v.MetaDisk)
		if err != nil {
			c.add(at, err.Error(), "")
			continue
		}
		c.external(at, v, disk, meta, slots)
	}
	return c.err()
}

func (c *complaints) internal(at string, v control.VolumeDef, disk int64, slots int) {
	usable := disk/4096*4096 - MetadataSize(disk, slots)
	switch {
	case disk < flexibleMin || usable < 4096:
		c.add(at, fmt.Sprintf("%s has %d bytes: too small for internal metadata, which needs %d", v.Disk, disk, MetadataSize(disk, slots)),
			"take a larger disk, or a meta-disk of its own")
	case v.Size > usable:
		c.add(at, fmt.Sprintf("%s has room for %d bytes of data before its metadata, size wants %d", v.Disk, usable, v.Size), "lower size, or enlarge the disk")
	}
}

func (c *complaints) external(at string, v control.VolumeDef, disk, meta int64, slots int) {
	if v.Size > disk {
		c.add(at, fmt.Sprintf("%s has %d bytes, size wants %d", v.Disk, disk, v.Size), "lower size, or enlarge the disk")
		return
	}
	need, room := v.Size, int64(0)
	if need == 0 {
		need = disk
	}
	hint := "enlarge it, or set size"
	if v.MetaIndex >= 0 {
		if end := int64(v.MetaIndex+1) * indexSize; meta < end {
			c.add(at, fmt.Sprintf("%s has %d bytes, index %d needs %d", v.MetaDisk, meta, v.MetaIndex, end), "enlarge it, or take a lower index")
			return
		}
		meta = indexSize
		hint = "take flexible metadata (a path without index)"
	} else if meta < flexibleMin {
		c.add(at, fmt.Sprintf("%s has %d bytes, metadata needs %d at least", v.MetaDisk, meta, flexibleMin), "enlarge it")
		return
	}
	room = (meta - superblockSize - alSize) * 8 / int64(max(slots, 1)) * bytesPerBit
	if need > room {
		c.add(at, fmt.Sprintf("the metadata on %s has room for %d bytes of data, %s has %d", v.MetaDisk, room, v.Disk, need), hint)
	}
}

// MetadataSize is what internal metadata takes at the end of a disk, with a
// bitmap for each of slots peers. All in bytes.
func MetadataSize(disk int64, slots int) int64 {
	bits := (disk + bytesPerBit - 1) / bytesPerBit
	bitmap := (bits + 63) / 64 * 8 * int64(max(slots, 1))
	return (bitmap+4095)/4096*4096 + alSize + superblockSize
}
