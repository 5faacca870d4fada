package replicator

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/hawser-ha/hawser/replicator/control"
	"github.com/hawser-ha/hawser/replicator/core"
	"github.com/hawser-ha/hawser/replicator/meta"
	"github.com/hawser-ha/hawser/replicator/wire"
)

const (
	promoteTries = 3
	promoteWait  = 250 * time.Millisecond
)

// command is one command that the Machine works on.
type command struct{ done chan error }

// finish ends it; the first outcome counts.
func (c *command) finish(err error) {
	select {
	case c.done <- err:
	default:
	}
}

// do gives the Machine a command and waits for its outcome, or for ctx: the command goes on then.
func (r *Resource) do(ctx context.Context, give func(at core.Now, c *command)) error {
	c := &command{done: make(chan error, 1)}
	t := r.lock()
	if r.closing {
		r.unlock(t)
		return control.Errorf(control.NotRunning, "the resource is going down").On(r.name, control.All, "")
	}
	give(now(), c)
	r.unlock(t)
	select {
	case err := <-c.done:
		return err
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-r.done:
		return control.Errorf(control.Unknown, "the resource went down meanwhile").On(r.name, control.All, "")
	}
}

// codes are the errors of the Machine as the control API names them.
var codes = []struct {
	err  error
	code control.Code
	rule string
}{
	{core.ErrNotPrimary, control.NotPrimary, "only a Primary may do this"},
	{core.ErrPrimary, control.IsPrimary, "a Primary may not do this"},
	{core.ErrPeerPrimary, control.PeerPrimary, "one Primary at a time, unless allow-two-primaries"},
	{core.ErrNotUpToDate, control.NotUpToDate, "only an UpToDate disk in reach makes a Primary"},
	{core.ErrNoData, control.NotUpToDate, "a good copy of the data must be in reach"},
	{core.ErrRefusedByPeer, control.RefusedByPeer, "the peer must agree"},
	{core.ErrNoConnection, control.NoConnection, "needs a connection"},
	{core.ErrLinkLost, control.LinkLost, ""},
	{core.ErrNoDisk, control.NoDisk, "needs a local disk"},
	{core.ErrBusy, control.Busy, "one resync or verify at a time"},
	{core.ErrTwice, control.Busy, "one change at a time"},
	{core.ErrAlgorithm, control.NoAlgorithm, "verify-alg must be set"},
	{core.ErrPeerUnknown, control.PeerUnknown, "with fencing, a peer that is not connected must be known not to write"},
	{core.ErrStale, control.Stale, "what is older than what is known does not count"},
	{core.ErrDeposed, control.NoLicence, "one Primary at a time: the one that holds the highest term"},
	{core.ErrNoLicence, control.NoLicence, "a coordinated resource is promoted by a grant of the arbiter"},
	{core.ErrTooSmall, control.TooSmall, "a disk is never smaller than the data"},
	{core.ErrIO, control.DiskError, ""},
}

// told makes an error of the Machine one of the control API.
func (r *Resource) told(err error, volume int, peer string) error {
	if err == nil {
		return nil
	}
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	if e, ok := errors.AsType[*control.Error](err); ok {
		if e.Resource == "" {
			return e.On(r.name, volume, peer)
		}
		return e
	}
	for _, c := range codes {
		if errors.Is(err, c.err) {
			return control.Errorf(c.code, "%w", err).On(r.name, volume, peer).WithRule(c.rule)
		}
	}
	return control.Errorf(control.Failed, "%w", err).On(r.name, volume, peer)
}

// exclusive gives the one token of commands that change disks, role or devices.
func (r *Resource) exclusive(ctx context.Context) (release func(), err error) {
	select {
	case r.admin <- struct{}{}:
		return func() { <-r.admin }, nil
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// volumesOf gives the volumes a command is about.
func (r *Resource) volumesOf(number int) ([]*volume, error) {
	if number == control.All {
		return r.vols, nil
	}
	if v := r.volume(number); v != nil {
		return []*volume{v}, nil
	}
	return nil, control.Errorf(control.NotFound, "there is no volume %d", number).On(r.name, control.All, "")
}

// peersOf gives the peers a command is about.
func (r *Resource) peersOf(name string) ([]*peer, error) {
	if name == "" {
		return r.peers, nil
	}
	for _, p := range r.peers {
		if p.def.Load().Name == name {
			return []*peer{p}, nil
		}
	}
	return nil, control.Errorf(control.NotFound, "there is no peer %q", name).On(r.name, control.All, "")
}

// eachPair runs a command for volumes and peers, and joins the errors.
func (r *Resource) eachPair(ctx context.Context, volume int, peer string, give func(at core.Now, v, p int, c *command)) error {
	vols, err := r.volumesOf(volume)
	if err != nil {
		return err
	}
	peers, err := r.peersOf(peer)
	if err != nil {
		return err
	}
	var errs []error
	for _, v := range vols {
		for _, p := range peers {
			err := r.do(ctx, func(at core.Now, c *command) { give(at, v.number, p.idx, c) })
			errs = append(errs, r.told(err, v.number, r.peerName(p.idx)))
		}
	}
	return one(errs)
}

// one joins errors and keeps a single one as it is, so that its code survives.
func one(errs []error) error {
	errs = slices.DeleteFunc(errs, func(err error) bool { return err == nil })
	if len(errs) == 1 {
		return errs[0]
	}
	return errors.Join(errs...)
}

// Up attaches every disk and connects every peer; it goes on past failures.
func (r *Resource) Up(ctx context.Context) error {
	var errs []error
	for _, v := range r.vols {
		if r.volumeDef(v.number).Disk != "" {
			errs = append(errs, r.Attach(ctx, v.number))
		}
	}
	errs = append(errs, r.Connect(ctx, "", false))
	return one(errs)
}

func (r *Resource) volumeDef(number int) *control.VolumeDef {
	def := r.Definition()
	for i := range def.Volumes {
		if def.Volumes[i].Number == number {
			return &def.Volumes[i]
		}
	}
	return &control.VolumeDef{Number: number}
}

// Attach opens the disk of a volume, or of all that have one and are not attached.
func (r *Resource) Attach(ctx context.Context, volume int) error {
	vols, err := r.volumesOf(volume)
	if err != nil {
		return err
	}
	release, err := r.exclusive(ctx)
	if err != nil {
		return err
	}
	defer release()
	var errs []error
	for _, v := range vols {
		if volume == control.All && r.volumeDef(v.number).Disk == "" {
			continue
		}
		errs = append(errs, r.told(r.attach(ctx, v, false), v.number, ""))
	}
	return one(errs)
}

// attach opens the disk of a volume. agreed: offer no more than the agreed size for now.
func (r *Resource) attach(ctx context.Context, v *volume, agreed bool) error {
	def := r.Definition()
	d := r.volumeDef(v.number)
	if d.Disk == "" {
		return control.Errorf(control.NoDisk, "the definition gives no disk")
	}
	r.mu.Lock()
	attached, ending := v.store != nil, v.diskClosing
	r.mu.Unlock()
	if attached && !ending {
		return nil
	}
	if err := r.waitClosed(ctx, v); err != nil {
		return err
	}
	o, err := r.openDisk(def, d)
	if err != nil {
		return diskError(err)
	}
	if agreed && o.info.Super.Size > 0 {
		o.info.Capacity = o.info.Super.Size
	}
	err = r.do(ctx, func(at core.Now, c *command) {
		v.store, v.md, v.mdStore, v.diskClosing = o.store, o.md, o.mdStore, false
		v.bitmaps, v.slots = o.info.Bitmaps, o.slots
		v.flushes = d.Opts.DiskFlushes
		sb := o.md.Super()
		if v.sb = sb; v.sb.NodeID < 0 {
			v.sb.NodeID = int32(def.NodeID)
		}
		v.stripes, v.stripe4k, v.alSlots = int(sb.ALStripes), int(sb.ALStripeSize4k), o.info.ALSlots
		v.lastErr, v.deviceUUID = nil, sb.DeviceUUID
		v.retune(d.Opts)
		o.info.Device = sb.DeviceUUID
		r.m.Attach(at, v.number, o.info, c)
	})
	if err != nil && !errors.Is(err, context.Canceled) && !errors.Is(err, context.DeadlineExceeded) {
		r.mu.Lock()
		if v.store == o.store {
			r.closeDisk(v) // the Machine did not take it, or is giving it up
		}
		r.mu.Unlock()
	}
	return err
}

// Detach gives the disk of a volume up.
func (r *Resource) Detach(ctx context.Context, volume int, force bool) error {
	vols, err := r.volumesOf(volume)
	if err != nil {
		return err
	}
	release, err := r.exclusive(ctx)
	if err != nil {
		return err
	}
	defer release()
	var errs []error
	for _, v := range vols {
		err := r.do(ctx, func(at core.Now, c *command) { r.m.Detach(at, v.number, force, c) })
		if err == nil {
			err = r.waitClosed(ctx, v)
		}
		errs = append(errs, r.told(err, v.number, ""))
	}
	return one(errs)
}

// waitClosed waits until the volume's disk is released.
func (r *Resource) waitClosed(ctx context.Context, v *volume) error {
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for {
		r.mu.Lock()
		open := v.store != nil
		r.mu.Unlock()
		if !open {
			return nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// Connect starts to connect to a peer, or all.
func (r *Resource) Connect(ctx context.Context, peer string, discardMyData bool) error {
	return r.eachPeer(ctx, peer, func(at core.Now, p int, c *command) { r.m.Connect(at, p, discardMyData, c) })
}

// Disconnect ends the connection to a peer, or all.
func (r *Resource) Disconnect(ctx context.Context, peer string, force bool) error {
	return r.eachPeer(ctx, peer, func(at core.Now, p int, c *command) { r.m.Disconnect(at, p, force, c) })
}

func (r *Resource) eachPeer(ctx context.Context, peer string, give func(at core.Now, p int, c *command)) error {
	peers, err := r.peersOf(peer)
	if err != nil {
		return err
	}
	var errs []error
	for _, p := range peers {
		err := r.do(ctx, func(at core.Now, c *command) { give(at, p.idx, c) })
		errs = append(errs, r.told(err, control.All, r.peerName(p.idx)))
	}
	return one(errs)
}

// Promote makes this node Primary and waits for its devices. A device that cannot be made does not undo the promotion.
func (r *Resource) Promote(ctx context.Context, force bool) error {
	release, err := r.exclusive(ctx)
	if err != nil {
		return err
	}
	defer release()
	for try := 0; ; try++ {
		err := r.do(ctx, func(at core.Now, c *command) { r.m.Promote(at, force, c) })
		if err == nil {
			break
		}
		// A peer that was demoted a moment ago may not have told yet: look again, as DRBD does.
		if !errors.Is(err, core.ErrPeerPrimary) || try == promoteTries {
			return r.told(err, control.All, "")
		}
		select {
		case <-time.After(promoteWait):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	r.attachDevices(ctx)
	return nil
}

// Demote takes the devices away, which is refused while somebody uses them, and makes this node Secondary.
func (r *Resource) Demote(ctx context.Context, force bool) error {
	release, err := r.exclusive(ctx)
	if err != nil {
		return err
	}
	defer release()
	return r.demote(ctx, force)
}

// demote is Demote with the token.
func (r *Resource) demote(ctx context.Context, force bool) error {
	if r.role() != wire.Primary {
		return nil
	}
	if err := r.detachDevices(ctx, force); err != nil {
		r.attachDevices(ctx) // those that were detached before the one in use
		return r.told(err, control.All, "")
	}
	err := r.do(ctx, func(at core.Now, c *command) { r.m.Demote(at, force, c) })
	if err != nil && r.role() == wire.Primary {
		r.attachDevices(ctx)
	}
	return r.told(err, control.All, "")
}

func (r *Resource) role() wire.Role {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.m.Role()
}

// Outdate marks the disk of a volume, or all, Outdated.
func (r *Resource) Outdate(ctx context.Context, volume int) error {
	vols, err := r.volumesOf(volume)
	if err != nil {
		return err
	}
	var errs []error
	for _, v := range vols {
		err := r.do(ctx, func(at core.Now, c *command) { r.m.Outdate(at, v.number, c) })
		errs = append(errs, r.told(err, v.number, ""))
	}
	return one(errs)
}

// Invalidate makes this node's data the target of a full resync.
func (r *Resource) Invalidate(ctx context.Context, volume int, peer string) error {
	return r.eachPair(ctx, volume, peer, func(at core.Now, v, p int, c *command) { r.m.Invalidate(at, v, p, c) })
}

// InvalidateRemote makes the peer's data the target of a full resync.
func (r *Resource) InvalidateRemote(ctx context.Context, volume int, peer string) error {
	return r.eachPair(ctx, volume, peer, func(at core.Now, v, p int, c *command) { r.m.InvalidateRemote(at, v, p, c) })
}

// Verify starts an online verify.
func (r *Resource) Verify(ctx context.Context, volume int, peer string, start, stop int64) error {
	return r.eachPair(ctx, volume, peer, func(at core.Now, v, p int, c *command) { r.m.Verify(at, v, p, start, stop, c) })
}

// PauseSync pauses a resync.
func (r *Resource) PauseSync(ctx context.Context, volume int, peer string) error {
	return r.eachPair(ctx, volume, peer, func(at core.Now, v, p int, c *command) { r.m.PauseSync(at, v, p, true, c) })
}

// ResumeSync lets it go on.
func (r *Resource) ResumeSync(ctx context.Context, volume int, peer string) error {
	return r.eachPair(ctx, volume, peer, func(at core.Now, v, p int, c *command) { r.m.PauseSync(at, v, p, false, c) })
}

// Resize takes what the disks have to give, up to size.
func (r *Resource) Resize(ctx context.Context, volume int, size int64, assumeClean bool) error {
	vols, err := r.volumesOf(volume)
	if err != nil {
		return err
	}
	release, err := r.exclusive(ctx)
	if err != nil {
		return err
	}
	defer release()
	var errs []error
	for _, v := range vols {
		errs = append(errs, r.told(r.resize(ctx, v, size, assumeClean), v.number, ""))
	}
	return one(errs)
}

func (r *Resource) resize(ctx context.Context, v *volume, size int64, assumeClean bool) error {
	r.mu.Lock()
	st, md, internal := v.store, v.md, v.mdStore == nil
	r.mu.Unlock()
	capacity := int64(0)
	if st != nil {
		found, err := st.Resize()
		if err != nil {
			return diskError(err)
		}
		switch {
		case internal && md.Displaced():
			if capacity, err = r.followDisk(ctx, v); err != nil {
				return err
			}
		case !internal:
			if err := md.Move(found); err != nil {
				return diskError(err)
			}
			moved := md.Super()
			r.mu.Lock()
			v.sb.MDSize, v.sb.ALOffset, v.sb.BMOffset = moved.MDSize, moved.ALOffset, moved.BMOffset
			r.mu.Unlock()
			fallthrough
		default:
			capacity = min(md.Layout().Capacity*meta.SectorSize, found)
		}
	}
	return r.do(ctx, func(at core.Now, c *command) { r.m.Resize(at, v.number, capacity, size, assumeClean, c) })
}

// followDisk moves internal metadata to the end of a disk that has grown. The activity log is not carried over, so nothing may
// be in flight: the disk is detached and attached again, while a peer serves the data. It gives the new capacity in bytes.
func (r *Resource) followDisk(ctx context.Context, v *volume) (int64, error) {
	if err := r.do(ctx, func(at core.Now, c *command) { r.m.Detach(at, v.number, false, c) }); err != nil {
		return 0, fmt.Errorf("move the metadata to the new end of the disk: %w", err)
	}
	if err := r.waitClosed(ctx, v); err != nil {
		return 0, err
	}
	if err := r.attach(ctx, v, true); err != nil {
		return 0, err
	}
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for r.syncing(v) {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return 0, context.Cause(ctx)
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if v.md == nil {
		return 0, control.Errorf(control.DiskError, "the disk is gone again")
	}
	return v.md.Layout().Capacity * meta.SectorSize, nil
}

// syncing says that a resync or verify of the volume runs or is about to.
func (r *Resource) syncing(v *volume) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, w := range r.m.View().Volumes {
		if w.Number != v.number {
			continue
		}
		for _, l := range w.Links {
			if l.Conn > wire.Connected {
				return true
			}
		}
	}
	return false
}

// SetProtocol changes A, B or C online.
func (r *Resource) SetProtocol(ctx context.Context, peer, protocol string) error {
	if protocolNumber(protocol) == 0 {
		return control.Errorf(control.Usage, "protocol %q is not A, B or C", protocol)
	}
	if _, err := r.peersOf(peer); err != nil {
		return err
	}
	def := *r.Definition()
	def.Peers = slices.Clone(def.Peers)
	for i := range def.Peers {
		if peer == "" || def.Peers[i].Name == peer {
			def.Peers[i].Net.Protocol = protocol
		}
	}
	return r.Adjust(ctx, &def)
}

// Adjust makes the resource run by def, as far as that changes online.
func (r *Resource) Adjust(ctx context.Context, def *control.Definition) error {
	if err := checkDefinition(def); err != nil {
		return err
	}
	release, err := r.exclusive(ctx)
	if err != nil {
		return err
	}
	defer release()
	old := r.Definition()
	if err := r.sameShape(old, def); err != nil {
		return err
	}
	kept := *def
	r.def.Store(&kept)
	var errs []error
	for i := range def.Peers {
		r.peers[i].configure(def.Peers[i])
		if old.Peers[i].Net != def.Peers[i].Net {
			err := r.do(ctx, func(at core.Now, c *command) { r.m.SetNet(at, i, netConfig(&def.Peers[i].Net), c) })
			if err != nil { // it goes on as before, and the definition says so
				part := *r.Definition()
				part.Peers = slices.Clone(part.Peers)
				part.Peers[i].Net = old.Peers[i].Net
				r.def.Store(&part)
				r.peers[i].configure(part.Peers[i])
			}
			errs = append(errs, r.told(err, control.All, def.Peers[i].Name))
		}
		if old.Peers[i].Resync != def.Peers[i].Resync {
			t := r.lock()
			r.m.SetPace(i, paceParams(&def.Peers[i]), def.Peers[i].Resync.CMinRate)
			r.unlock(t)
		}
	}
	t := r.lock()
	for _, v := range r.vols {
		d := r.volumeDef(v.number)
		v.flushes = d.Opts.DiskFlushes
		if v.store != nil {
			v.retune(d.Opts)
		}
		r.m.SetVolume(now(), volumeConfig(d))
	}
	r.m.SetResource(now(), coreConfig(def, r.opts.Rand))
	r.unlock(t)
	return one(errs)
}

// sameShape refuses what takes a down and an up, or a detach and an attach.
func (r *Resource) sameShape(old, def *control.Definition) error {
	refuse := func(what string) error {
		return control.Errorf(control.Refused, "%s cannot change while the resource is up", what).WithHint("down and up")
	}
	switch {
	case old.Name != def.Name || old.Node != def.Node || old.NodeID != def.NodeID:
		return refuse("name and node")
	case coordination(old) != coordination(def):
		return refuse("coordination")
	case len(old.Volumes) != len(def.Volumes):
		return refuse("the set of volumes")
	case len(old.Peers) != len(def.Peers):
		return refuse("the set of peers")
	}
	for i := range old.Volumes {
		if old.Volumes[i].Number != def.Volumes[i].Number {
			return refuse("the set of volumes")
		}
		if err := r.sameDisk(&old.Volumes[i], &def.Volumes[i]); err != nil {
			return err
		}
	}
	for i := range old.Peers {
		if old.Peers[i].Name != def.Peers[i].Name || old.Peers[i].NodeID != def.Peers[i].NodeID {
			return refuse("the set of peers")
		}
	}
	return nil
}

func coordination(def *control.Definition) string {
	if def.Coordination == "" {
		return control.CoordinationNone
	}
	return def.Coordination
}

// sameDisk refuses to change what is read when the disk is attached, while it is.
func (r *Resource) sameDisk(old, def *control.VolumeDef) error {
	r.mu.Lock()
	attached := r.volume(old.Number).store != nil
	r.mu.Unlock()
	if !attached {
		return nil
	}
	a, b := old.Opts, def.Opts
	for _, o := range []struct {
		name string
		same bool
	}{
		{"disk", old.Disk == def.Disk}, {"meta-disk", old.MetaDisk == def.MetaDisk && old.MetaIndex == def.MetaIndex},
		{"al-extents", a.ALExtents == b.ALExtents}, {"al-updates", a.ALUpdates == b.ALUpdates}, {"md-flushes", a.MDFlushes == b.MDFlushes},
		{"disk-timeout", a.DiskTimeout == b.DiskTimeout}, {"direct-io", a.DirectIO == b.DirectIO},
	} {
		if !o.same {
			return control.Errorf(control.Refused, "%s of volume %d cannot change while the disk is attached", o.name, def.Number).
				WithHint("detach, adjust and attach; hawser adjust does it")
		}
	}
	return nil
}

// NewCurrentUUID starts a new generation.
func (r *Resource) NewCurrentUUID(ctx context.Context, volume int, clearBitmap bool) error {
	vols, err := r.volumesOf(volume)
	if err != nil {
		return err
	}
	var errs []error
	for _, v := range vols {
		err := r.do(ctx, func(at core.Now, c *command) { r.m.NewCurrentUUID(at, v.number, clearBitmap, c) })
		errs = append(errs, r.told(err, v.number, ""))
	}
	return one(errs)
}

// Suspend freezes the I/O of front ends.
func (r *Resource) Suspend(ctx context.Context) error {
	return r.told(r.do(ctx, func(at core.Now, c *command) { r.m.Suspend(at, c) }), control.All, "")
}

// Resume lets it go on.
func (r *Resource) Resume(ctx context.Context) error {
	return r.told(r.do(ctx, func(at core.Now, c *command) { r.m.Resume(at, c) }), control.All, "")
}

// Down demotes, disconnects and detaches everything, and closes the resource. After a refused demotion it is as before.
func (r *Resource) Down(ctx context.Context, force bool) error {
	release, err := r.exclusive(ctx)
	if err != nil {
		return err
	}
	demoting := ctx
	if force { // a disk that hangs may keep it for ever
		var cancel context.CancelFunc
		demoting, cancel = context.WithTimeout(ctx, demoteTimeout)
		defer cancel()
	}
	err = r.demote(demoting, force)
	release()
	if err != nil && !force {
		return err
	}
	var errs []error
	errs = append(errs, err)
	ctx, cancel := context.WithTimeout(ctx, closeTimeout)
	defer cancel()
	for _, p := range r.peers {
		err := r.do(ctx, func(at core.Now, c *command) { r.m.Disconnect(at, p.idx, force, c) })
		if err != nil && !force && ctx.Err() == nil {
			err = r.do(ctx, func(at core.Now, c *command) { r.m.Disconnect(at, p.idx, true, c) })
		}
		errs = append(errs, r.told(err, control.All, r.peerName(p.idx)))
	}
	for _, v := range r.vols {
		r.mu.Lock()
		open := v.store != nil
		r.mu.Unlock()
		if !open {
			continue
		}
		err := r.do(ctx, func(at core.Now, c *command) { r.m.Detach(at, v.number, true, c) })
		if err == nil {
			err = r.waitClosed(ctx, v)
		}
		errs = append(errs, r.told(err, v.number, ""))
	}
	errs = append(errs, r.Close())
	return one(errs)
}

// DumpMD writes the metadata of a volume as drbdmeta dump-md does.
func (r *Resource) DumpMD(ctx context.Context, volume int, w io.Writer) error {
	v := r.volume(volume)
	if v == nil {
		return control.Errorf(control.NotFound, "there is no volume %d", volume).On(r.name, control.All, "")
	}
	release, err := r.exclusive(ctx)
	if err != nil {
		return err
	}
	defer release()
	r.mu.Lock()
	md := v.md
	r.mu.Unlock()
	if md != nil {
		return r.told(md.Dump(w), volume, "")
	}
	d := r.volumeDef(volume)
	o, dev, err := r.openStores(d)
	if err != nil {
		return r.told(diskError(err), volume, "")
	}
	md, err = openMeta(o.store.Size(), dev, metaKindOf(d), max(d.MetaIndex, 0))
	if err == nil {
		err = md.Dump(w)
	}
	return r.told(errors.Join(diskError(err), o.close()), volume, "")
}

var _ control.Resource = (*Resource)(nil)
