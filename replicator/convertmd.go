package replicator

import (
	"errors"
	"log/slog"

	"github.com/hawser-ha/hawser/replicator/control"
	"github.com/hawser-ha/hawser/replicator/meta"
)

// ConvertMD turns the metadata of a resource that is down into version o.To, in place: data, bitmap, activity log and
// generation stay. Version 8 is what a kernel with DRBD 8.4 attaches, version 9 what a replicator does. Metadata of
// that version already is left as it is.
func ConvertMD(log *slog.Logger, def *control.Definition, o control.ConvertMDOptions) ([]control.ConvertMDResult, error) {
	if o.To != 8 && o.To != 9 {
		return nil, control.Errorf(control.Usage, "there is no metadata of version %d to convert to", o.To).On(def.Name, control.All, "").
			WithHint("say v08 for DRBD 8.4 in the kernel, v09 for hawser and DRBD 9")
	}
	return onDisks(log, def, o.Volume, func(r *Resource, d *control.VolumeDef) (control.ConvertMDResult, error) {
		return r.convertMD(def, d, o)
	})
}

func (r *Resource) convertMD(def *control.Definition, d *control.VolumeDef, o control.ConvertMDOptions) (res control.ConvertMDResult, err error) {
	res = control.ConvertMDResult{Volume: d.Number, Disk: d.Disk, To: o.To}
	st, dev, err := r.openStores(d)
	if err != nil {
		return res, err
	}
	defer func() { err = errors.Join(err, st.close()) }()
	kind, index := metaKindOf(d), max(d.MetaIndex, 0)
	md, err := openMeta(st.store.Size(), dev, kind, index)
	if err != nil {
		return res, err
	}
	sb := md.Super()
	res.From, res.Current = sb.Version, control.UUID(sb.Current)
	res.Clean = sb.Clean()
	if res.From == o.To || o.DryRun {
		return res, r.convertible(def, d, o.To, sb)
	}
	peer := onlyPeer(def)
	if o.To == 8 {
		if err := r.convertible(def, d, o.To, sb); err != nil {
			return res, err
		}
		err = md.ToV08(peer)
	} else {
		_, err = meta.ConvertV08(st.store.Size(), dev, kind, index, meta.ConvertOptions{NodeID: int32(def.NodeID), PeerNodeID: peer})
	}
	if err != nil {
		return res, err
	}
	res.Converted = true
	r.log.Info("metadata converted", "volume", d.Number, "disk", d.Disk, "from", res.From, "to", o.To, "generation", res.Current)
	return res, nil
}

// convertible refuses what version 8 has no room for: it knows one peer.
func (r *Resource) convertible(def *control.Definition, d *control.VolumeDef, to int, sb meta.Super) error {
	if to != 8 {
		return nil
	}
	if slots := slotsOf(def); slots != 1 || sb.MaxPeers > 1 {
		return control.Errorf(control.Refused, "%s has bitmaps for %d peers", d.Disk, max(slots, int(sb.MaxPeers))).
			WithRule("metadata of version 8 has room for one peer").WithHint("bring the resource down to two nodes with disks first")
	}
	return nil
}

// onlyPeer is the node id of the first peer with a disk, -1 for none.
func onlyPeer(def *control.Definition) int32 {
	for _, p := range def.Peers {
		if !p.Diskless {
			return int32(p.NodeID)
		}
	}
	return -1
}
