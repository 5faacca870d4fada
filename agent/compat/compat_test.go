package compat

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/hawser-ha/hawser/replicator/control"
)

var began = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

func recorded(t *testing.T, path ...string) string {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(append([]string{"testdata"}, path...)...))
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

func same(t *testing.T, name, got, want string) {
	t.Helper()
	if got != want {
		t.Errorf("%s:\n%s\nrecorded:\n%s", name, got, want)
	}
}

// synthetic is our status and definition of what the printing code of version 9 was fed with.
func synthetic(state string) (*control.Status, *control.Definition) {
	st := &control.Status{Resource: "some-resource", Node: "me", NodeID: 4, Role: "Secondary",
		Volumes: []control.VolumeStatus{{Backing: "/dev/sda", DiskState: "UpToDate", Size: 5 << 10, Read: 10 << 10, Written: 15 << 10,
			ALWrites: 40, BMWrites: 50, UpperPending: 60, LowerPending: 70}},
		Peers: []control.PeerStatus{{Name: "some-peer", NodeID: 1, Connection: "Connected", Role: "Primary", InFlight: 10 * 512,
			Volumes: []control.PeerVolumeStatus{{Replication: "Established", DiskState: "UpToDate", Received: 5 << 10, Sent: 10 << 10, Pending: 30, Unacked: 40}}}}}
	peer, volume := &st.Peers[0], &st.Peers[0].Volumes[0]
	syncing := func() {
		volume.OutOfSync = 2500 << 10
		volume.Sync = &control.Progress{Kind: "resync", Total: 8000 * 512, Done: 3000 * 512, Rate: 500 * 512, Started: began}
	}
	def := &control.Definition{Name: "some-resource", Volumes: []control.VolumeDef{{DevLink: "/dev/drbd1000", Disk: "/dev/sda", Opts: control.DiskOpts{DiskFlushes: true}}},
		Peers: []control.PeerDef{{Name: "some-peer", NodeID: 1, Local: "1.2.3.4:7789", Remote: "5.6.7.8:7790"}}}
	switch state {
	case "syncsource":
		st.Role, peer.Role, volume.Replication, volume.DiskState = "Primary", "Secondary", "SyncSource", "Inconsistent"
		syncing()
	case "synctarget":
		volume.Replication = "SyncTarget"
		syncing()
	case "connecting":
		peer.Connection, peer.Role, volume.Replication, volume.DiskState = "Connecting", "Unknown", "Off", "DUnknown"
	case "standalone":
		st.Role, peer.Connection, peer.Role, volume.Replication, volume.DiskState = "Primary", "StandAlone", "Unknown", "Off", "DUnknown"
	case "twovol-noquorum":
		second, theirs := st.Volumes[0], *volume
		second.Number, second.Backing, second.DiskState, theirs.Number = 1, "", "Diskless", 1
		st.Volumes, peer.Volumes = append(st.Volumes, second), append(peer.Volumes, theirs)
		def.Volumes = append(def.Volumes, control.VolumeDef{Number: 1, DevLink: "/dev/drbd1001", Opts: control.DiskOpts{DiskFlushes: true}})
	}
	return st, def
}

// as9 is that status as Of makes it, with what the recording made up and hawser does not count.
func as9(state string) []Resource {
	st, def := synthetic(state)
	r := Of(st, def, Minors([]*control.Definition{def})[def.Name], began)
	r.WriteOrdering = "none"
	for i := range r.Devices {
		r.Devices[i].Open = false // hawser's upper-pending says otherwise
		r.Devices[i].Quorum = r.Devices[i].Volume == 0
	}
	for i := range r.Connections {
		in := uint64(20)
		c := &r.Connections[i]
		c.RSInFlight = &in
		for j := range c.Paths {
			c.Paths[j].Established = true // the recording has it so, whatever the connection's state
		}
		for j := range c.PeerDevices {
			if s := c.PeerDevices[j].Sync; s != nil {
				s.Dt0, s.Db0, s.Dt1, s.Db1 = 0, 0, 100, 50
			}
		}
	}
	return []Resource{r}
}

func TestStatusOf9(t *testing.T) {
	for _, state := range []string{"uptodate", "syncsource", "synctarget", "connecting", "standalone", "twovol-noquorum", "empty"} {
		rs := as9(state)
		if state == "empty" {
			rs = nil
		}
		for suffix, o := range map[string]StatusOptions{"status": {}, "statusverbose": {Verbose: 1}, "statusstatistics": {Statistics: true},
			"statusvs": {Verbose: 1, Statistics: true}, "statusvvs": {Verbose: 2, Statistics: true}} {
			var b bytes.Buffer
			if err := Status(&b, rs, o); err != nil {
				t.Fatal(err)
			}
			name := state + "." + suffix + ".out"
			same(t, name, b.String(), recorded(t, "drbd9", name))
		}
		var b bytes.Buffer
		if err := StatusJSON(&b, rs); err != nil {
			t.Fatal(err)
		}
		name := state + ".statusjson.out"
		same(t, name, b.String(), recorded(t, "drbd9", name))
	}
}

// life is what the recording of events went through: the state after each line.
func life() (steps [][]Resource) {
	in := uint64(20)
	r := Resource{Name: "some-resource", NodeID: 4, Role: "Secondary", WriteOrdering: "none"}
	add := func() { steps = append(steps, clone([]Resource{r})) }
	add()
	r.Devices = []Device{{Minor: 1000, Disk: "Diskless", Quorum: true, Size: 5, Read: 10, Written: 15, ALWrites: 40, BMWrites: 50, UpperPending: 60, LowerPending: 70, Blocked: "no"}}
	add()
	r.Connections = []Connection{{PeerNodeID: 1, Name: "some-peer", State: "StandAlone", PeerRole: "Unknown", APInFlight: 10, RSInFlight: &in}}
	add()
	c := &r.Connections[0]
	c.PeerDevices = []PeerDevice{{Replication: "Off", Disk: "DUnknown", ResyncSuspended: "no", Received: 5, Sent: 10, Pending: 30, Unacked: 40}}
	add()
	c.Paths = []Path{{Local: Address{"ipv4", "1.2.3.4", 7789}, Peer: Address{"ipv4", "5.6.7.8", 7790}}}
	add()
	c.Paths[0].Established = true
	add()
	c.State, c.PeerRole = "Connected", "Secondary"
	add()
	r.Devices[0].Backing, r.Devices[0].Disk = "/dev/sda", "Inconsistent"
	add()
	p := &c.PeerDevices[0]
	p.Replication, p.Disk, p.OutOfSync, p.Sync = "SyncSource", "Inconsistent", 2500, &Sync{Total: 8000, Left: 5000, Dt1: 100, Db1: 50}
	add()
	p.Replication, p.Disk, p.OutOfSync, p.Sync = "Established", "UpToDate", 0, nil
	add()
	r.Devices[0].Disk = "UpToDate"
	add()
	r.Role = "Primary"
	add()
	c.PeerDevices = nil
	add()
	r.Connections = nil
	add()
	r.Devices = nil
	add()
	return append(steps, nil)
}

func TestEventsOf9(t *testing.T) {
	for suffix, o := range map[string]EventOptions{"events2": {}, "events2statistics": {Statistics: true}, "events2full": {Full: true}, "events2diff": {Diff: true},
		"events2timestamps": {Timestamps: true}} {
		var b bytes.Buffer
		e := NewEvents(&b, o)
		if err := e.Start(began, nil); err != nil {
			t.Fatal(err)
		}
		for _, rs := range life() {
			if len(rs) == 1 && len(rs[0].Devices) == 1 && len(rs[0].Connections) == 1 && len(rs[0].Connections[0].PeerDevices) == 0 && rs[0].Role == "Primary" {
				one := 1
				for _, status := range []*int{nil, &one} {
					if err := e.Helper(began, "some-resource", "some-peer", 0, "before-resync-target", status); err != nil {
						t.Fatal(err)
					}
				}
			}
			if err := e.Update(began, rs, true); err != nil {
				t.Fatal(err)
			}
		}
		want := recorded(t, "drbd9", "life."+suffix+".out")
		if o.Timestamps {
			var lines []string
			for line := range strings.Lines(want) {
				if _, err := time.Parse(timestamp, line[:32]); err != nil || line[32] != ' ' {
					t.Errorf("%q: %v", line, err)
				}
				lines = append(lines, "2026-03-01T12:00:00.000000+00:00"+line[32:])
			}
			want = strings.Join(lines, "")
		}
		same(t, suffix, b.String(), want)
	}
}

// TestEventsThatStart: what the recording says of a resource that is there, its score complete at once.
func TestEventsThatStart(t *testing.T) {
	r := Resource{Name: "some-resource", Role: "Secondary", WriteOrdering: "none", Devices: []Device{{Minor: 1000, Backing: "/dev/sda", Disk: "UpToDate", Quorum: true,
		Size: 5, Read: 10, Written: 15, ALWrites: 40, BMWrites: 50, UpperPending: 60, LowerPending: 70, Blocked: "no"}}}
	for suffix, o := range map[string]EventOptions{"events2": {}, "events2statistics": {Statistics: true}, "events2full": {Full: true}} {
		var b bytes.Buffer
		e := NewEvents(&b, o)
		if err := e.Start(began, []Resource{r}); err != nil {
			t.Fatal(err)
		}
		primary := r
		primary.Role = "Primary"
		if err := e.Update(began, []Resource{primary}, false); err != nil {
			t.Fatal(err)
		}
		lines := strings.SplitAfter(recorded(t, "drbd9", "initial."+suffix+".out"), "\n")
		lines[0] = strings.Replace(lines[0], "may_promote:no promotion_score:0", "may_promote:yes promotion_score:10101", 1)
		same(t, suffix, b.String(), lines[0]+strings.Join(lines[2:], ""))
	}
}

func TestIdentifiersOf9(t *testing.T) {
	all := control.UUID(1<<64 - 1)
	gi := &control.GI{Current: all, History: []control.UUID{all, all}, Bitmap: []control.PeerGI{{Peer: "some-peer", NodeID: 1, UUID: all}}}
	line := GetGI(gi, 1, false)
	// The recording has a bitmap identifier and yet says that no disk was ever seen, which cannot be.
	same(t, "get-gi", line, strings.TrimSuffix(recorded(t, "drbd9", "get-gi.out"), "0\n")+"1\n")
	same(t, "show-gi", ShowGI(gi, 1, false), strings.Replace(recorded(t, "drbd9", "show-gi.out"), ":0:0:0:0:0\n", ":0:0:0:0:1\n", 1))
}
