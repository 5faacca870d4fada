package pacemaker

import (
	"strings"
	"testing"
)

func TestDecideFence(t *testing.T) {
	mine := NewBan("r0", "r0-clone", "n1", "n2")
	online, gone := NodeState{Name: "n2", Online: true}, NodeState{Name: "n2"}
	unclean := NodeState{Name: "n2", Unclean: true}
	base := FenceView{Me: "n1", Peer: "n2", Clone: "r0-clone", Quorum: true, Stonith: true, NeedStonith: true, Node: online, MePromoted: true}
	with := func(change func(v *FenceView)) FenceView { v := base; change(&v); return v }
	banned := func(v *FenceView) { v.Bans = []Ban{mine} }
	for _, c := range []struct {
		name string
		v    FenceView
		next Next
		code int
		why  string
	}{
		{"nothing was done yet", base, Write, 0, "not there yet"},
		{"an online peer that does not confirm may be about to be lost", with(banned), Wait, PeerUnknown, "does not confirm"},
		{"a peer that confirms is outdated", with(func(v *FenceView) { banned(v); v.Confirmed = true }), Answer, PeerOutdated, ""},
		{"a peer that confirms while Pacemaker is about to fence it", with(func(v *FenceView) { banned(v); v.Confirmed = true; v.Node.Unclean = true }), Answer, PeerOutdated, ""},
		{"a lost peer must be fenced first", with(func(v *FenceView) { banned(v); v.Node = unclean }), Wait, PeerUnknown, "not fenced yet"},
		{"a peer that joins is waited for", with(func(v *FenceView) { banned(v); v.Node = NodeState{Name: "n2", Pending: true} }), Wait, PeerUnknown, ""},
		{"a peer that was fenced meanwhile", with(func(v *FenceView) { banned(v); v.Node = gone; v.SawUnclean = true }), Answer, PeerStonithed, ""},
		{"a peer that was gone before", with(func(v *FenceView) { banned(v); v.Node = gone }), Answer, PeerUnreachable, ""},
		{"gone, nobody fences, and the resource relies on it", with(func(v *FenceView) { banned(v); v.Node = gone; v.Stonith = false }), Answer, PeerUnknown, "stonith-enabled"},
		{"gone, nobody fences, and the resource does not rely on it", with(func(v *FenceView) { banned(v); v.Node = gone; v.Stonith = false; v.NeedStonith = false }), Answer, PeerUnreachable, ""},
		{"no quorum: the other side may be promoted", with(func(v *FenceView) { v.Quorum = false }), Wait, PeerUnknown, "quorum"},
		{"no quorum, even when the ban is there", with(func(v *FenceView) { banned(v); v.Quorum = false; v.Node = gone }), Wait, PeerUnknown, "quorum"},
		{"the peer was faster", with(func(v *FenceView) { v.Bans = []Ban{NewBan("r0", "r0-clone", "n2", "n1")} }), Answer, PeerPrimary, "n1 may not be promoted"},
		{"a ban of a third node counts too", with(func(v *FenceView) { v.Bans = []Ban{NewBan("r0", "r0-clone", "n3", "n1")} }), Answer, PeerPrimary, "by n3"},
		{"a ban of an older clone does not count", with(func(v *FenceView) { v.Bans = []Ban{NewBan("r0", "old", "n2", "n1")} }), Write, 0, ""},
		{"the peer is promoted, this node wants to be", with(func(v *FenceView) { v.PeerPromoted = true; v.MePromoted = false }), Answer, PeerPrimary, "promoted"},
		{"Pacemaker believes both: the peer must be lost or demoted first", with(func(v *FenceView) { banned(v); v.PeerPromoted = true; v.Confirmed = true }), Wait, PeerUnknown, ""},
		{"the peer was promoted, and is lost", with(func(v *FenceView) { banned(v); v.PeerPromoted = true; v.MePromoted = false; v.Node = unclean }), Wait, PeerUnknown, ""},
		{"data that is not whole cannot be promoted anyway", with(func(v *FenceView) { banned(v); v.Inconsistent = true; v.Node = unclean }), Answer, PeerInconsistent, ""},
		{"data that is not whole is banned all the same", with(func(v *FenceView) { v.Inconsistent = true }), Write, 0, ""},
	} {
		s := DecideFence(c.v)
		if s.Next != c.next || s.Code != c.code || !strings.Contains(s.Why, c.why) {
			t.Errorf("%s: %+v, want next %d, code %d, %q", c.name, s, c.next, c.code, c.why)
		}
	}
}

// TestNeverBothMayGoOn: whatever two nodes see, as long as they see the same constraints, at most one is told that the
// other one is out, unless the other one was fenced or left.
func TestNeverBothMayGoOn(t *testing.T) {
	bools := []bool{false, true}
	views := func(me, peer string, bans []Ban) (list []FenceView) {
		for _, quorum := range bools {
			for _, promoted := range bools {
				for _, peerPromoted := range bools {
					for _, confirmed := range bools {
						list = append(list, FenceView{Me: me, Peer: peer, Clone: "c", Quorum: quorum, Stonith: true, NeedStonith: true,
							Node: NodeState{Name: peer, Online: true}, MePromoted: promoted, PeerPromoted: peerPromoted, Bans: bans, Confirmed: confirmed})
					}
				}
			}
		}
		return list
	}
	goesOn := func(v FenceView) bool {
		s := DecideFence(v)
		return s.Next == Answer && (s.Code == PeerOutdated || s.Code == PeerUnreachable || s.Code == PeerStonithed || s.Code == PeerInconsistent)
	}
	for _, bans := range [][]Ban{nil, {NewBan("r0", "c", "n1", "n2")}, {NewBan("r0", "c", "n2", "n1")}} {
		for _, a := range views("n1", "n2", bans) {
			for _, b := range views("n2", "n1", bans) {
				if goesOn(a) && goesOn(b) {
					t.Fatalf("both go on: %+v and %+v", a, b)
				}
			}
		}
	}
}

func TestRemovable(t *testing.T) {
	good, syncing := peerVolume{"UpToDate", "Established"}, peerVolume{"Inconsistent", "SyncSource"}
	ban := NewBan("r0", "c", "n1", "n2")
	type st = map[string]peerVolume
	for _, c := range []struct {
		name           string
		me, role, disk string
		peers          st
		connection     string
		want           bool
		why            string
	}{
		{name: "the owner, and the peer is UpToDate", me: "n1", role: "Primary", disk: "UpToDate", peers: st{"n2": good}, connection: "Connected", want: true},
		{name: "a full resync runs", me: "n1", role: "Primary", disk: "UpToDate", peers: st{"n2": syncing}, connection: "Connected", why: "SyncSource"},
		{name: "not connected", me: "n1", role: "Primary", disk: "UpToDate", peers: st{"n2": good}, connection: "Connecting", why: "not connected"},
		{name: "the target is UpToDate, but the owner relies on the ban", me: "n2", role: "Secondary", disk: "UpToDate", peers: st{"n1": good}, connection: "Connected", why: "not Primary"},
		{name: "a third node that is only Secondary", me: "n3", role: "Secondary", disk: "UpToDate", peers: st{"n2": good}, connection: "Connected", why: "not Primary"},
		{name: "a third node that is Primary now", me: "n3", role: "Primary", disk: "UpToDate", peers: st{"n2": good}, connection: "Connected", want: true},
		{name: "the banned node was promoted by hand, and the owner follows", me: "n2", role: "Primary", disk: "UpToDate", peers: st{"n1": good}, connection: "Connected", want: true},
		{name: "the banned node was promoted by hand, and the owner is away", me: "n2", role: "Primary", disk: "UpToDate", peers: st{"n1": good}, connection: "Connecting", why: "not connected"},
		{name: "the peer is no node of the resource any more", me: "n1", role: "Secondary", disk: "UpToDate", peers: st{"n3": good}, connection: "Connected", want: true},
	} {
		ok, why := Removable(ban, c.me, status(c.role, c.disk, c.peers, c.connection))
		if ok != c.want || !strings.Contains(why, c.why) {
			t.Errorf("%s: %v %q, want %v %q", c.name, ok, why, c.want, c.why)
		}
	}
}
