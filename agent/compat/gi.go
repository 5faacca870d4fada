package compat

import (
	"fmt"
	"strings"

	"github.com/hawser-ha/hawser/replicator/control"
)

// GetGI is the line of drbdadm get-gi: identifiers and flags of a volume, as kept for one peer.
func GetGI(gi *control.GI, peer int, v84 bool) string {
	var p control.PeerGI
	for _, b := range gi.Bitmap {
		if b.NodeID == peer {
			p = b
		}
	}
	var old [2]control.UUID
	copy(old[:], gi.History)
	flags := []bool{gi.Consistent, gi.WasUpToDate, gi.PrimaryInd, gi.CrashedPrimary, gi.ALClean, gi.ALDisabled, false,
		p.Connected, p.Outdated, false, p.FullSync, p.UUID != 0 || p.Connected}
	if v84 {
		flags = []bool{gi.Consistent, gi.WasUpToDate, gi.PrimaryInd, p.Connected, p.FullSync, p.Outdated, gi.CrashedPrimary}
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%s:%s:%s:%s", gi.Current, p.UUID, old[0], old[1])
	for _, f := range flags {
		if f {
			b.WriteString(":1")
		} else {
			b.WriteString(":0")
		}
	}
	return b.String() + "\n"
}

const giTop = `
       +--<  Current data generation UUID  >-
       |               +--<  Bitmap's base data generation UUID  >-
       |               |                 +--<  younger history UUID  >-
       |               |                 |         +-<  older history  >-
       V               V                 V         V
`

var giFlags = []string{
	"                                      -<  Data consistency flag  >",
	"                             -<  Data was/is currently up-to-date  >",
	"                                  -<  Node was/is currently primary  >",
	" -<  This node was a crashed primary, and has not seen its peer since  >",
	"             -<  The activity-log was applied, the disk can be attached  >",
	"        -<  The activity-log was disabled, peer is completely out of sync  >",
	"                              -<  This node was primary when it lost quorum  >",
	"                                          -<  Node was/is currently connected  >",
	"                              -<  The peer's disk was out-dated or inconsistent  >",
	"                                 -<   A fence policy other the dont-care was used  >",
	"                  -<  Node was in the progress of marking all blocks as out of sync  >",
	"                     -<  At least once we saw this node with a backing device attached >",
}

var giFlags84 = []string{
	"                                      -<  Data consistency flag  >",
	"                             -<  Data was/is currently up-to-date  >",
	"                                  -<  Node was/is currently primary  >",
	"                                  -<  Node was/is currently connected  >",
	"         -<  Node was in the progress of setting all bits in the bitmap  >",
	"                        -<  The peer's disk was out-dated or inconsistent  >",
	"      -<  This node was a crashed primary, and has not seen its peer since   >",
}

// ShowGI draws what the parts of that line mean.
func ShowGI(gi *control.GI, peer int, v84 bool) string {
	var b strings.Builder
	b.WriteString(giTop + GetGI(gi, peer, v84))
	flags := giFlags
	if v84 {
		flags = giFlags84
	}
	b.WriteString(strings.Repeat(" ", 68) + strings.TrimSuffix(strings.Repeat("^ ", len(flags)), " ") + "\n")
	for i, f := range flags {
		b.WriteString(f + "--+" + strings.Repeat(" |", len(flags)-1-i) + "\n")
	}
	if !v84 {
		return b.String() + "\n"
	}
	p := control.PeerGI{}
	for _, x := range gi.Bitmap {
		if x.NodeID == peer {
			p = x
		}
	}
	role, link, disk := "Secondary", "StandAlone", "Inconsistent"
	if gi.PrimaryInd {
		role = "Primary"
	}
	if p.Connected {
		link = "Connected"
	}
	switch {
	case gi.Consistent && gi.WasUpToDate:
		disk = "UpToDate"
	case gi.Consistent:
		disk = "Outdated"
	}
	if p.Outdated {
		disk += ", peer Outdated"
	}
	clean := "need apply-al"
	if gi.ALClean {
		clean = "clean"
	}
	fmt.Fprintf(&b, "\nflags: %s, %s, %s\nmeta-data: %s\n", role, link, disk, clean)
	return b.String()
}
