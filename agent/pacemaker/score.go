package pacemaker

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/hawser-ha/hawser/replicator/control"
)

// Words of disks, connections and roles, as drbd.conf's world has them.
const (
	primary      = "Primary"
	upToDate     = "UpToDate"
	consistent   = "Consistent"
	inconsistent = "Inconsistent"
	unknown      = "DUnknown"
	connected    = "Connected"
	established  = "Established"
	standAlone   = "StandAlone"
)

// Scores are the promotion scores of four situations, as adjust_master_score of ocf:linbit:drbd lists them.
type Scores struct {
	Consistent int // the local data is whole; whether it is the newest nobody knows
	Remote     int // UpToDate data is only on a peer
	Alone      int // Secondary, UpToDate, and the state of a peer is not known
	Good       int // UpToDate, and Primary or every peer is known
}

// DefaultScores are those of ocf:linbit:drbd, so that constraints that add to them keep their meaning.
func DefaultScores() Scores { return Scores{0, 10, 1000, 10000} }

// ParseScores reads the four numbers, which may not decrease.
func ParseScores(text string) (Scores, error) {
	words := strings.Fields(text)
	if len(words) != 4 {
		return Scores{}, fmt.Errorf("promotion scores %q: these are %d numbers, not four", text, len(words))
	}
	var n [4]int
	for i, w := range words {
		v, err := strconv.Atoi(w)
		if err != nil || v < 0 || v > 1000000 {
			return Scores{}, fmt.Errorf("promotion scores %q: %q is no number from 0 to 1000000", text, w)
		}
		if i > 0 && v < n[i-1] {
			return Scores{}, fmt.Errorf("promotion scores %q: they may not decrease", text)
		}
		n[i] = v
	}
	return Scores{n[0], n[1], n[2], n[3]}, nil
}

// Assessment is what Pacemaker has to know of a resource on this node.
type Assessment struct {
	Role        string
	Score       int    // 0: it must not be promoted here
	Why         string // of the score, for people
	AllUpToDate bool   // every volume is UpToDate here and on every peer, and all are connected
	Broken      bool   // Primary, and no UpToDate data is in reach: it can only fail
	Settled     bool   // nothing is on its way: disks are attached, each connection is there or given up
}

// Assess looks at a status. The worst volume counts.
func Assess(st *control.Status, s Scores) Assessment {
	a := Assessment{Role: st.Role, AllUpToDate: len(st.Volumes) > 0, Settled: true, Score: s.Good, Why: "UpToDate, every peer is known"}
	if len(st.Volumes) == 0 {
		a.Score, a.Why = 0, "it has no volumes"
	}
	known := true // what every peer has
	for _, p := range st.Peers {
		if p.Connection != connected {
			a.AllUpToDate = false
			a.Settled = a.Settled && p.Connection == standAlone
		}
		for _, pv := range p.Volumes {
			known = known && pv.DiskState != unknown && pv.DiskState != ""
			a.AllUpToDate = a.AllUpToDate && pv.DiskState == upToDate && pv.Replication == established
		}
	}
	for _, v := range st.Volumes {
		a.AllUpToDate = a.AllUpToDate && v.DiskState == upToDate
		if slices.Contains([]string{"Attaching", "Negotiating"}, v.DiskState) {
			a.Settled = false
		}
		remote := remoteUpToDate(st, v.Number)
		if !remote && v.DiskState != upToDate && st.Role == primary && len(st.Suspended) == 0 {
			a.Broken = true
		}
		if score, why := volumeScore(v, remote, known, st.Role == primary, s); score < a.Score {
			a.Score, a.Why = score, fmt.Sprintf("volume %d: %s", v.Number, why)
		}
	}
	return a
}

// remoteUpToDate tells whether a connected peer holds the volume UpToDate.
func remoteUpToDate(st *control.Status, volume int) bool {
	return slices.ContainsFunc(st.Peers, func(p control.PeerStatus) bool {
		pv := p.Volume(volume)
		return p.Connection == connected && pv != nil && pv.DiskState == upToDate
	})
}

// PrimaryPeer tells whether a connected peer is Primary with UpToDate data.
func PrimaryPeer(st *control.Status) bool {
	return slices.ContainsFunc(st.Peers, func(p control.PeerStatus) bool {
		return p.Connection == connected && p.Role == primary && !slices.ContainsFunc(p.Volumes, func(v control.PeerVolumeStatus) bool { return v.DiskState != upToDate })
	})
}

func volumeScore(v control.VolumeStatus, remote, known, isPrimary bool, s Scores) (int, string) {
	switch {
	case v.DiskState == upToDate && (isPrimary || known):
		return s.Good, "UpToDate"
	case v.DiskState == upToDate:
		return s.Alone, "UpToDate, and nobody knows what a peer has"
	case v.Client && remote && (isPrimary || known):
		return max(s.Good-1, 0), "a diskless client with access to UpToDate data"
	case v.Client && remote:
		return max(s.Alone-1, 0), "a diskless client with access to UpToDate data on one peer"
	case remote:
		return s.Remote, v.DiskState + " here, UpToDate on a peer"
	case v.DiskState == consistent:
		return s.Consistent, "whole, and perhaps not the newest"
	}
	return 0, v.DiskState + ", and no peer with UpToDate data is connected"
}
