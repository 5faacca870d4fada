package pacemaker

import (
	"testing"

	"github.com/hawser-ha/hawser/replicator/control"
)

type peerVolume struct{ disk, replication string }

// status makes a status of one volume: disk here, and one peer for each connection state.
func status(role, disk string, peers map[string]peerVolume, connection string) *control.Status {
	st := &control.Status{Role: role, Volumes: []control.VolumeStatus{{Number: 0, DiskState: disk}}}
	for _, name := range []string{"n1", "n2", "n3"} {
		if v, ok := peers[name]; ok {
			st.Peers = append(st.Peers, control.PeerStatus{Name: name, Connection: connection, Role: "Secondary",
				Volumes: []control.PeerVolumeStatus{{Number: 0, DiskState: v.disk, Replication: v.replication}}})
		}
	}
	return st
}

func TestScores(t *testing.T) {
	good := peerVolume{"UpToDate", "Established"}
	for _, c := range []struct {
		name   string
		st     *control.Status
		score  int
		all    bool
		broken bool
	}{
		{"both UpToDate", status("Secondary", "UpToDate", map[string]peerVolume{"n2": good}, "Connected"), 10000, true, false},
		{"Primary alone", status("Primary", "UpToDate", map[string]peerVolume{"n2": {"DUnknown", "Off"}}, "Connecting"), 10000, false, false},
		{"Secondary alone", status("Secondary", "UpToDate", map[string]peerVolume{"n2": {"DUnknown", "Off"}}, "Connecting"), 1000, false, false},
		{"Secondary alone, and the peer is known to be old", status("Secondary", "UpToDate", map[string]peerVolume{"n2": {"Outdated", "Off"}}, "Connecting"), 10000, false, false},
		{"resync target", status("Secondary", "Inconsistent", map[string]peerVolume{"n2": {"UpToDate", "SyncTarget"}}, "Connected"), 10, false, false},
		{"resync source", status("Primary", "UpToDate", map[string]peerVolume{"n2": {"Inconsistent", "SyncSource"}}, "Connected"), 10000, false, false},
		{"Consistent alone", status("Secondary", "Consistent", map[string]peerVolume{"n2": {"DUnknown", "Off"}}, "Connecting"), 0, false, false},
		{"Outdated", status("Secondary", "Outdated", map[string]peerVolume{"n2": {"DUnknown", "Off"}}, "Connecting"), 0, false, false},
		{"Inconsistent, the peer too", status("Secondary", "Inconsistent", map[string]peerVolume{"n2": {"Inconsistent", "Established"}}, "Connected"), 0, false, false},
		{"Primary whose disk failed, the peer has it", status("Primary", "Diskless", map[string]peerVolume{"n2": good}, "Connected"), 10, false, false},
		{"Primary with no data at all", status("Primary", "Diskless", map[string]peerVolume{"n2": {"DUnknown", "Off"}}, "Connecting"), 0, false, true},
		{"no volume", &control.Status{Role: "Secondary"}, 0, false, false},
	} {
		a := Assess(c.st, DefaultScores())
		if a.Score != c.score || a.AllUpToDate != c.all || a.Broken != c.broken {
			t.Errorf("%s: %+v, want score %d, all-uptodate %v, broken %v", c.name, a, c.score, c.all, c.broken)
		}
	}
}

func TestTheWorstVolumeCounts(t *testing.T) {
	st := status("Secondary", "UpToDate", map[string]peerVolume{"n2": {"UpToDate", "Established"}}, "Connected")
	st.Volumes = append(st.Volumes, control.VolumeStatus{Number: 1, DiskState: "Inconsistent"})
	st.Peers[0].Volumes = append(st.Peers[0].Volumes, control.PeerVolumeStatus{Number: 1, DiskState: "UpToDate", Replication: "SyncTarget"})
	if a := Assess(st, DefaultScores()); a.Score != 10 || a.AllUpToDate {
		t.Errorf("%+v", a)
	}
	st.Volumes[1].DiskState = "Outdated"
	st.Peers[0].Volumes[1].DiskState = "Outdated"
	if a := Assess(st, DefaultScores()); a.Score != 0 {
		t.Errorf("%+v", a)
	}
}

func TestAClientOnPurposeIsNearlyAsGood(t *testing.T) {
	st := status("Secondary", "Diskless", map[string]peerVolume{"n2": {"UpToDate", "Established"}}, "Connected")
	st.Volumes[0].Client = true
	if a := Assess(st, DefaultScores()); a.Score != 9999 {
		t.Errorf("%+v", a)
	}
}

func TestIOThatIsFrozenIsNotBroken(t *testing.T) {
	st := status("Primary", "Diskless", map[string]peerVolume{"n2": {"DUnknown", "Off"}}, "Connecting")
	st.Suspended = []string{"no-data"}
	if a := Assess(st, DefaultScores()); a.Broken {
		t.Error("a Primary that waits for its data must not be demoted")
	}
}

func TestParseScores(t *testing.T) {
	if s, err := ParseScores(" 5 10  1000 10000"); err != nil || s != (Scores{5, 10, 1000, 10000}) {
		t.Error(s, err)
	}
	for _, bad := range []string{"", "1 2 3", "1 2 3 4 5", "1 2 3 x", "-1 2 3 4", "4 3 2 1", "0 0 0 99999999"} {
		if _, err := ParseScores(bad); err == nil {
			t.Errorf("%q was taken", bad)
		}
	}
}
