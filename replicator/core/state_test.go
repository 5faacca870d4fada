package core

import (
	"testing"

	"github.com/hawser-ha/hawser/replicator/wire"
)

// What follows for both disks from the replication state (drbd-wire.md 14).
func TestSanitize(t *testing.T) {
	const inc, out, cons, up = wire.Inconsistent, wire.Outdated, wire.Consistent, wire.UpToDate
	for _, c := range []struct {
		name       string
		conn       wire.Conn
		disk, peer wire.Disk
		mine, his  wire.Disk
	}{
		{"connected: consistent is good", wire.Connected, cons, cons, up, up},
		{"connected: two outdated ones are good", wire.Connected, out, out, up, up},
		{"connected: outdated beside no disk stays", wire.Connected, out, wire.Diskless, out, wire.Diskless},
		{"connected: outdated beside a failed disk stays", wire.Connected, out, wire.Failed, out, wire.Failed},
		{"connected: inconsistent stays", wire.Connected, inc, up, inc, up},
		{"a target of the bitmap exchange is outdated", wire.WFBitMapT, up, up, out, up},
		{"a target of the bitmap exchange stays inconsistent", wire.WFBitMapT, inc, up, inc, up},
		{"a target that waits for the start", wire.WFSyncUUID, up, cons, out, up},
		{"a resync target is inconsistent", wire.SyncTarget, out, up, inc, up},
		{"a paused target", wire.Behind, up, up, out, up},
		{"a source has good data, its peer not", wire.WFBitMapS, cons, up, up, cons},
		{"a resync source", wire.SyncSource, up, out, up, inc},
		{"ahead", wire.Ahead, up, up, up, cons},
		{"a failed disk is not raised by a resync", wire.SyncTarget, wire.Failed, up, wire.Failed, up},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := newRig(t, testNet())
			v := r.m.vols[0]
			l := v.pv[0]
			v.disk, l.disk, l.conn = c.disk, c.peer, c.conn
			r.m.sanitize(l)
			if v.disk != c.mine || l.disk != c.his {
				t.Fatalf("%s/%s, want %s/%s", v.disk, l.disk, c.mine, c.his)
			}
		})
	}
	t.Run("any pause pauses, none goes on", func(t *testing.T) {
		r := newRig(t, testNet())
		l := r.m.vols[0].pv[0]
		l.disk, l.conn = wire.Inconsistent, wire.SyncSource
		for _, flag := range []*bool{&l.userPause, &l.peerPause, &l.afterPause} {
			*flag = true
			if r.m.sanitize(l); l.conn != wire.PausedSyncS {
				t.Fatalf("paused: %s", l.conn)
			}
			*flag = false
			if r.m.sanitize(l); l.conn != wire.SyncSource {
				t.Fatalf("resumed: %s", l.conn)
			}
		}
	})
}

// What we answer to the peer's wishes (drbd-wire.md 15.2).
func TestStateRequestCodes(t *testing.T) {
	conn := func(c wire.Conn) wire.State { return wire.State(c) << 4 }
	for _, c := range []struct {
		name      string
		prepare   func(*rig)
		mask, val wire.State
		code      int32
	}{
		{"become Primary", nil, maskRole, wire.State(wire.Primary), 1},
		{"become Primary beside one", func(r *rig) { r.m.role = wire.Primary }, maskRole, wire.State(wire.Primary), -1},
		{"become Primary beside one, allowed", func(r *rig) {
			r.m.role = wire.Primary
			r.m.peers[0].cfg.Net.TwoPrimaries, r.m.peers[0].twoPrim = true, true
		}, maskRole, wire.State(wire.Primary), 1},
		{"while we ask ourselves and have the role", func(r *rig) {
			r.m.peers[0].li.ResolveConflicts = true
			r.m.peers[0].ask = &asking{then: func(error) {}}
		}, maskRole, wire.State(wire.Primary), -19},
		{"while we ask ourselves without the role", func(r *rig) { r.m.peers[0].ask = &asking{then: func(error) {}} }, maskRole, wire.State(wire.Primary), 1},
		{"detach", nil, maskDisk, wire.State(wire.Failed) << 9, 1},
		{"invalidate me", nil, maskConn, conn(wire.StartingSyncT), 1},
		{"invalidate me during a resync", func(r *rig) { r.m.vols[0].pv[0].conn = wire.SyncSource }, maskConn, conn(wire.StartingSyncT), -8},
		{"invalidate you", nil, maskConn, conn(wire.StartingSyncS), 1},
		{"invalidate you, the Primary", func(r *rig) { r.m.role = wire.Primary }, maskConn, conn(wire.StartingSyncS), -10},
		{"invalidate me, who has no disk", func(r *rig) { r.m.vols[0].pv[0].disk = wire.Diskless }, maskConn, conn(wire.StartingSyncT), -4},
		{"verify", nil, maskConn, conn(wire.VerifyS), 1},
		{"verify without an algorithm", func(r *rig) { r.m.peers[0].cfg.Net.VerifyAlg = "" }, maskConn, conn(wire.VerifyS), -14},
		{"verify during a resync", func(r *rig) { r.m.vols[0].pv[0].conn = wire.SyncTarget }, maskConn, conn(wire.VerifyS), -8},
		{"verify of a bad disk", func(r *rig) { r.m.vols[0].disk = wire.Inconsistent }, maskConn, conn(wire.VerifyS), -4},
		{"something unknown", nil, 0, 0, -17},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := connected(t, testNet(), 0, false)
			if c.prepare != nil {
				c.prepare(r)
			}
			if code := r.m.judge(r.m.vols[0].pv[0], c.mask, c.val); code != c.code {
				t.Fatalf("answered %d, want %d", code, c.code)
			}
		})
	}
}

// The agreed size (drbd-wire.md 16).
func TestAgreedSize(t *testing.T) {
	const mib = 1 << 20
	for _, c := range []struct {
		name                string
		mine, size, user    int64 // our disk, the size so far, our limit
		dsize, usize, csize int64 // the peer's
		want                int64 // -1: the connection is refused
	}{
		{"the smaller disk counts", 64 * mib, 0, 0, 48 * mib, 0, 0, 48 * mib},
		{"both the same", 64 * mib, 64 * mib, 0, 64 * mib, 0, 64 * mib, 64 * mib},
		{"good data does not shrink at a connect", 64 * mib, 64 * mib, 0, 48 * mib, 0, 48 * mib, -1},
		{"a peer without a disk changes nothing", 64 * mib, 48 * mib, 0, 0, 0, 48 * mib, 48 * mib},
		{"a limit counts", 64 * mib, 0, 32 * mib, 64 * mib, 0, 0, 32 * mib},
		{"the peer's limit counts", 64 * mib, 0, 0, 64 * mib, 32 * mib, 0, 32 * mib},
		{"the smaller limit counts", 64 * mib, 0, 40 * mib, 64 * mib, 32 * mib, 0, 32 * mib},
		{"a limit beyond the disks is ignored", 64 * mib, 0, 80 * mib, 64 * mib, 0, 0, 64 * mib},
		{"without a disk: what the peer exports", 0, 0, 0, 64 * mib, 0, 40 * mib, 40 * mib},
		{"without a disk: the peer's limit next", 0, 0, 0, 64 * mib, 32 * mib, 0, 32 * mib},
		{"without a disk: the peer's disk last", 0, 0, 0, 64 * mib, 0, 0, 64 * mib},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := newRig(t, testNet())
			v := r.m.vols[0]
			l := v.pv[0]
			p := l.p
			p.state, p.up, p.gotProtocol = wire.WFReportParams, true, true
			l.conn = wire.WFReportParams
			v.size, v.cap, v.user = c.size, c.mine, c.user
			if c.mine == 0 {
				v.disk = wire.Diskless
			} else if c.size == 0 {
				v.disk = wire.Inconsistent
			}
			if err := r.m.sizes(l, &wire.SizesBody{DSize: uint64(c.dsize) >> 9, USize: uint64(c.usize) >> 9, CSize: uint64(c.csize) >> 9}); err != nil {
				t.Fatal(err)
			}
			ok := r.m.agreeSize(l)
			if c.want < 0 {
				if ok {
					t.Fatal("accepted")
				}
				return
			}
			if !ok || v.size != c.want {
				t.Fatalf("agreed on %d MiB (%v), want %d MiB", v.size/mib, ok, c.want/mib)
			}
		})
	}
}

func TestAttachingSourceIsAccepted(t *testing.T) {
	r := connected(t, testNet(), 0, false)
	v := r.m.vols[0]
	l := v.pv[0]
	v.disk, l.negotiating = wire.Negotiating, true
	v.sup.Current, v.sup.Bitmap[0] = 0x2000, 0x1000 // newer than the peer's
	r.packet(wire.Packet{Cmd: wire.StateReport, State: wire.MakeState(wire.Secondary, wire.Secondary, wire.Connected, wire.UpToDate, wire.Negotiating, 0)})
	if v.disk != wire.UpToDate || l.conn != wire.WFBitMapS {
		t.Fatalf("%s %s", v.disk, l.conn)
	}
}

func TestDetachIsRefusedForADisklessPrimary(t *testing.T) {
	r := connected(t, testNet(), 0, false)
	l := r.m.vols[0].pv[0]
	l.role, l.disk = wire.Primary, wire.Diskless
	r.m.Detach(r.now, 0, false, nil)
	r.run()
	if r.m.View().Volumes[0].Disk != wire.UpToDate {
		t.Fatal("the only copy of a Primary was detached")
	}
}
