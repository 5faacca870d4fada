package replicator

import (
	"context"
	"os"
	"strconv"
	"time"

	"github.com/hawser-ha/hawser/replicator/control"
	"github.com/hawser-ha/hawser/replicator/core"
	"github.com/hawser-ha/hawser/replicator/meta"
	"github.com/hawser-ha/hawser/replicator/wire"
)

const (
	statusEvery   = time.Second     // between two looks at what changes without an event
	progressEvery = 5 * time.Second // between two progress events of a resync
	stallAfter    = 20 * time.Second
)

// statusMemory is what statuses and events need to know of the past. It has its own mutex-free owner: progressLoop; what
// others read of it is guarded by Resource.mu.
type statusMemory struct {
	kick  chan struct{} // one token: something changed
	syncs map[[2]int]*syncMemory
}

func (s *statusMemory) dirty() { poke(s.kick) }

// syncMemory follows one resync or verify.
type syncMemory struct {
	progress control.Progress // the running or the last one
	running  bool
	at       core.Now // of the last sample
	done     int64    // bytes, then
	rate     float64  // bytes/s, smoothed
	moved    core.Now // when done grew last
	told     core.Now // when an event was sent last
}

// connName is the state of the connection as DRBD 9 names it.
func connName(c wire.Conn) string {
	switch {
	case c == wire.WFConnection || c == wire.WFReportParams:
		return "Connecting"
	case c >= wire.Connected:
		return "Connected"
	}
	return c.String()
}

// replName is the replication state as DRBD 9 names it.
func replName(c wire.Conn) string {
	switch {
	case c < wire.Connected:
		return "Off"
	case c == wire.Connected:
		return "Established"
	}
	return c.String()
}

func protocolName(n uint32) string {
	if n >= 1 && n <= 3 {
		return string("ABC"[n-1])
	}
	return ""
}

// Status tells everything of this moment.
func (r *Resource) Status() *control.Status {
	def := r.Definition()
	last := r.hub.Last()
	kept := r.undosKept()
	r.mu.Lock()
	defer r.mu.Unlock()
	w := r.m.View()
	s := &control.Status{
		Resource: r.name, Node: def.Node, NodeID: def.NodeID, PID: os.Getpid(), Started: r.started, Role: w.Role.String(),
		Suspended: []string{}, LastEvent: last, Volumes: []control.VolumeStatus{}, Peers: []control.PeerStatus{},
	}
	if w.Suspended {
		s.Suspended = append(s.Suspended, "user")
	}
	if w.NoData {
		s.Suspended = append(s.Suspended, "no-data")
	}
	if w.Fencing {
		s.Suspended = append(s.Suspended, "fencing")
	}
	if w.InSync {
		s.Suspended = append(s.Suspended, "insync")
	}
	if w.Licence != nil && w.Licence.Expired {
		s.Suspended = append(s.Suspended, "licence")
	}
	s.Coordination = coordination(def)
	s.Write = r.writeStatus(&w)
	for i := range w.Questions {
		s.Questions = append(s.Questions, *r.question(&w.Questions[i]))
	}
	for i := range w.Volumes {
		v := r.volumeStatus(def, &w.Volumes[i])
		v.Undo = kept[v.Number]
		s.Volumes = append(s.Volumes, v)
	}
	for i := range w.Peers {
		s.Peers = append(s.Peers, r.peerStatus(def, &w, i))
	}
	if w.Role == wire.Primary && r.fronts.server != nil {
		if def.NBD.Unix != "" {
			s.NBD = append(s.NBD, "unix:"+def.NBD.Unix)
		}
		if a := r.fronts.server.Addr(); a != nil {
			s.NBD = append(s.NBD, "tcp:"+a.String())
		}
	}
	return s
}

// question is an open question.
func (r *Resource) question(q *core.QuestionView) *control.Question {
	return &control.Question{ID: q.ID, Peer: r.peerName(q.Peer), Why: q.Why, Seq: q.Seq, NotBefore: int64(q.NotBefore), Promotion: q.Promotion,
		Since: time.Now().Add(-time.Duration(now() - q.Since))}
}

// volumeStatus is one volume. r.mu is held.
func (r *Resource) volumeStatus(def *control.Definition, w *core.VolumeView) control.VolumeStatus {
	v := r.volume(w.Number)
	d := r.volumeDef(w.Number)
	s := control.VolumeStatus{
		Number: w.Number, Backing: d.Disk, DiskState: w.Disk.String(), Client: d.Disk == "", Size: w.Size,
		Read: w.Read, Written: w.Written, ALWrites: w.ALWrites, BMWrites: v.bmWrites,
		UpperPending: int64(w.Pending), LowerPending: int64(v.busy), GI: r.gi(def, v, w), Unvouched: w.Unvouched,
	}
	dev, kind := v.device.get()
	if dev != nil {
		s.Device = dev.Path()
		s.Front = append(s.Front, control.FrontStat{Kind: kind})
	}
	v.device.mu.Lock()
	if v.device.err != nil {
		s.LastError = v.device.err.Error()
	}
	v.device.mu.Unlock()
	if v.lastErr != nil {
		s.LastError = v.lastErr.Error()
	}
	for range len(v.sessions) - len(s.Front) {
		s.Front = append(s.Front, control.FrontStat{Kind: "nbd"})
	}
	return s
}

// gi are the generation identifiers. r.mu is held.
func (r *Resource) gi(def *control.Definition, v *volume, w *core.VolumeView) control.GI {
	u := &w.UUIDs
	g := control.GI{
		Current: control.UUID(u.Current), History: []control.UUID{control.UUID(u.History[0]), control.UUID(u.History[1])},
		Consistent: u.Consistent, WasUpToDate: u.WasUpToDate, PrimaryInd: u.PrimaryInd, CrashedPrimary: u.CrashedPrimary,
		ALDisabled: u.ALDisabled, Size: u.Size, Bitmap: []control.PeerGI{},
	}
	for i := range def.Peers {
		p := control.PeerGI{Peer: def.Peers[i].Name, NodeID: def.Peers[i].NodeID}
		if i < len(u.Bitmap) && i < len(u.Peers) {
			p.UUID = control.UUID(u.Bitmap[i])
			p.Connected, p.Outdated, p.FullSync = u.Peers[i].Connected, u.Peers[i].OutDated, u.Peers[i].FullSync
		}
		g.Bitmap = append(g.Bitmap, p)
	}
	g.DeviceUUID = control.UUID(v.deviceUUID)
	return g
}

// peerStatus is one connection. r.mu is held.
func (r *Resource) peerStatus(def *control.Definition, w *core.View, i int) control.PeerStatus {
	p, pv := r.peers[i], &w.Peers[i]
	s := control.PeerStatus{
		Name: pv.Name, NodeID: def.Peers[i].NodeID, Address: def.Peers[i].Remote, Connection: connName(pv.Conn), Role: "Unknown",
		Protocol: protocolName(pv.Protocol), InFlight: pv.InFlight, Volumes: []control.PeerVolumeStatus{},
		TermEnforced: pv.Terms, Term: pv.Term, Promised: int64(pv.Promised),
	}
	if c := p.conn; c != nil {
		s.WireVersion = c.Version
		s.TLS = r.opts.TLS != nil
		s.Congested = c.StalledSince(0) != 0 && now()-core.Now(c.StalledSince(0)) > core.Now(100*time.Millisecond)
	}
	if err := p.lastErr.Load(); err != nil && *err != nil {
		s.LastError = (*err).Error()
	} else if pv.Why != nil {
		s.LastError = pv.Why.Error()
	}
	for j := range w.Volumes {
		l := &w.Volumes[j].Links[i]
		if s.Connection == "Connected" {
			s.Role = l.Role.String()
		}
		ps := control.PeerVolumeStatus{
			Number: w.Volumes[j].Number, Replication: replName(l.Conn), DiskState: l.Disk.String(), OutOfSync: l.OutOfSync,
			Paused: []string{}, DeviceUUID: control.UUID(l.Device), Sent: pv.Sent, Received: pv.Received, Pending: int64(pv.Unacked),
		}
		if l.UserPause {
			ps.Paused = append(ps.Paused, "user")
		}
		if l.PeerPause {
			ps.Paused = append(ps.Paused, "peer")
		}
		if m := r.status.syncs[[2]int{w.Volumes[j].Number, i}]; m != nil {
			copied := m.progress
			if m.running {
				ps.Sync = &copied
			} else {
				ps.LastSync = &copied
			}
		}
		s.Volumes = append(s.Volumes, ps)
	}
	return s
}

// ShowGI gives the generation identifiers of a volume; of a detached one, those on its disk.
func (r *Resource) ShowGI(ctx context.Context, volume int) (*control.GI, error) {
	v := r.volume(volume)
	if v == nil {
		return nil, control.Errorf(control.NotFound, "there is no volume %d", volume).On(r.name, control.All, "")
	}
	release, err := r.exclusive(ctx)
	if err != nil {
		return nil, err
	}
	defer release()
	def := r.Definition()
	r.mu.Lock()
	w := r.m.View()
	attached := v.store != nil
	var g control.GI
	for i := range w.Volumes {
		if w.Volumes[i].Number == volume {
			g = r.gi(def, v, &w.Volumes[i])
		}
	}
	r.mu.Unlock()
	if attached || r.volumeDef(volume).Disk == "" {
		return &g, nil
	}
	d := r.volumeDef(volume)
	o, dev, err := r.openStores(d)
	if err != nil {
		return nil, r.told(diskError(err), volume, "")
	}
	defer func() { _ = o.close() }()
	md, err := openMeta(o.store.Size(), dev, metaKindOf(d), max(d.MetaIndex, 0))
	if err != nil {
		return nil, r.told(diskError(err), volume, "")
	}
	g = giOf(def, md.Super())
	return &g, nil
}

// giOf are the generation identifiers of a superblock.
func giOf(def *control.Definition, sb meta.Super) control.GI {
	g := control.GI{
		Current: control.UUID(sb.Current), History: []control.UUID{control.UUID(sb.History[0]), control.UUID(sb.History[1])},
		DeviceUUID: control.UUID(sb.DeviceUUID), Size: int64(sb.EffectiveSize) * meta.SectorSize,
		Consistent: sb.Flags&meta.FlagConsistent != 0, WasUpToDate: sb.Flags&meta.FlagWasUpToDate != 0,
		PrimaryInd: sb.Flags&meta.FlagPrimary != 0, CrashedPrimary: sb.Flags&meta.FlagCrashedPrimary != 0,
		ALClean: sb.Clean(), ALDisabled: sb.Flags&meta.FlagALDisabled != 0,
	}
	for i := range def.Peers {
		p := control.PeerGI{Peer: def.Peers[i].Name, NodeID: def.Peers[i].NodeID}
		if sb.Version == 8 {
			p.UUID = control.UUID(sb.Peers[0].BitmapUUID)
			p.Connected, p.Outdated = sb.Flags&meta.FlagV08Connected != 0, sb.Flags&meta.FlagV08PeerOutdated != 0
			p.FullSync = sb.Flags&meta.FlagV08FullSync != 0
		} else {
			e := sb.Peers[def.Peers[i].NodeID]
			p.UUID = control.UUID(e.BitmapUUID)
			p.Connected, p.Outdated = e.Flags&meta.PeerConnected != 0, e.Flags&meta.PeerOutdated != 0
			p.FullSync = e.Flags&meta.PeerFullSync != 0
		}
		g.Bitmap = append(g.Bitmap, p)
	}
	return g
}

// progressLoop publishes what changed: the Machine tells that something did, the view tells what.
func (r *Resource) progressLoop() {
	tick := time.NewTicker(statusEvery)
	defer tick.Stop()
	old := map[stateKey]string{}
	for {
		select {
		case <-r.ctx.Done():
			return
		case <-r.status.kick:
		case <-tick.C:
		}
		for _, v := range r.vols {
			v.device.look()
		}
		r.mu.Lock()
		r.countOpeners()
		w := r.m.View()
		events := r.sample(&w, now())
		r.mu.Unlock()
		for _, c := range r.states(&w) {
			if was, known := old[c.stateKey]; !known || was != c.value {
				old[c.stateKey] = c.value
				if known {
					events = append(events, control.Event{Kind: control.EventState, Volume: c.volume, Peer: c.peer, Field: c.field, From: was, To: c.value})
				}
			}
		}
		for _, e := range events {
			e.Resource = r.name
			r.hub.Publish(e)
		}
	}
}

func yes(b bool) string {
	if b {
		return "yes"
	}
	return "no"
}

type stateKey struct {
	volume      int
	peer, field string
}

type stateValue struct {
	stateKey
	value string
}

// states are the fields whose changes are events.
func (r *Resource) states(w *core.View) []stateValue {
	out := []stateValue{{stateKey{control.All, "", control.FieldRole}, w.Role.String()}}
	susp := "no"
	switch {
	case w.Suspended:
		susp = "user"
	case w.NoData:
		susp = "no-data"
	case w.Fencing:
		susp = "fencing"
	case w.Licence != nil && w.Licence.Expired:
		susp = "licence"
	case w.InSync:
		susp = "insync"
	}
	out = append(out, stateValue{stateKey{control.All, "", control.FieldSuspended}, susp})
	if l := w.Licence; l != nil {
		out = append(out, stateValue{stateKey{control.All, "", control.FieldTerm}, strconv.FormatUint(l.Term, 10)},
			stateValue{stateKey{control.All, "", control.FieldRight}, rightOf(l)})
		for i := range w.Peers {
			out = append(out, stateValue{stateKey{control.All, w.Peers[i].Name, control.FieldWaits}, yes(w.Peers[i].Awaited)},
				stateValue{stateKey{control.All, w.Peers[i].Name, control.FieldCandidate}, yes(r.candidate(w, i))})
		}
		for i := range w.Volumes {
			out = append(out, stateValue{stateKey{w.Volumes[i].Number, "", control.FieldUnvouched}, yes(w.Volumes[i].Unvouched)})
		}
	}
	for i := range w.Peers {
		p := &w.Peers[i]
		out = append(out, stateValue{stateKey{control.All, p.Name, control.FieldConnection}, connName(p.Conn)},
			stateValue{stateKey{control.All, p.Name, control.FieldProtocol}, protocolName(p.Protocol)})
		role := wire.RoleUnknown
		for j := range w.Volumes {
			role = w.Volumes[j].Links[i].Role
		}
		out = append(out, stateValue{stateKey{control.All, p.Name, control.FieldPeerRole}, role.String()})
	}
	for j := range w.Volumes {
		v := &w.Volumes[j]
		out = append(out, stateValue{stateKey{v.Number, "", control.FieldDisk}, v.Disk.String()})
		for i := range v.Links {
			name := w.Peers[i].Name
			out = append(out, stateValue{stateKey{v.Number, name, control.FieldReplication}, replName(v.Links[i].Conn)},
				stateValue{stateKey{v.Number, name, control.FieldPeerDisk}, v.Links[i].Disk.String()})
		}
	}
	return out
}

// sample follows the resyncs and verifies, and gives the events about them. r.mu is held.
func (r *Resource) sample(w *core.View, at core.Now) (events []control.Event) {
	for j := range w.Volumes {
		v := &w.Volumes[j]
		for i := range v.Links {
			l := &v.Links[i]
			kind := ""
			switch l.Conn {
			case wire.SyncSource, wire.SyncTarget, wire.PausedSyncS, wire.PausedSyncT:
				kind = "resync"
			case wire.VerifyS, wire.VerifyT:
				kind = "verify"
			}
			key := [2]int{v.Number, i}
			m := r.status.syncs[key]
			e := control.Event{Kind: control.EventSync, Volume: v.Number, Peer: w.Peers[i].Name}
			if m != nil && m.running && (kind == "" || kind != m.progress.Kind) {
				if l.Total == m.progress.Total {
					m.update(l, at)
				}
				m.running = false
				m.progress.Ended, m.progress.ETA = time.Now(), 0
				e.Text = "aborted"
				if w.Peers[i].Conn >= wire.Connected && (l.OutOfSync == 0 || m.progress.Kind == "verify") {
					e.Text = "done"
					m.progress.Done, m.progress.Percent = m.progress.Total, 100
				}
				p := m.progress
				e.Sync = &p
				events = append(events, e)
			}
			if kind == "" {
				continue
			}
			if m == nil || !m.running {
				m = &syncMemory{running: true, at: at, done: l.Done, moved: at, told: at}
				m.progress = control.Progress{Kind: kind, Started: time.Now().Add(-time.Duration(at - l.Since))}
				r.status.syncs[key] = m
				m.update(l, at)
				p := m.progress
				e.Text, e.Sync = "started", &p
				events = append(events, e)
				continue
			}
			m.update(l, at)
			if time.Duration(at-m.told) >= progressEvery {
				m.told = at
				p := m.progress
				e.Text, e.Sync = "progress", &p
				events = append(events, e)
			}
		}
	}
	return events
}

// update takes a sample.
func (m *syncMemory) update(l *core.LinkView, at core.Now) {
	p := &m.progress
	p.Total, p.Done, p.Mismatches, p.SameCsum = l.Total, l.Done, l.Found, l.Same
	if p.Total > 0 {
		p.Percent = 100 * float64(p.Done) / float64(p.Total)
	}
	if l.Done > m.done {
		m.moved = at
	}
	if dt := time.Duration(at - m.at).Seconds(); dt >= 0.2 {
		rate := float64(max(l.Done-m.done, 0)) / dt
		if m.rate == 0 {
			m.rate = rate
		}
		m.rate += (rate - m.rate) / 4
		m.at, m.done = at, l.Done
	}
	p.Rate = int64(m.rate)
	p.ETA = -1
	if m.rate > 0 {
		p.ETA = float64(p.Total-p.Done) / m.rate
	}
	p.Stalled = time.Duration(at-m.moved) > stallAfter
}
