package compat

import (
	"fmt"
	"slices"
	"strings"
)

// Role is what drbdadm role prints. 8.4 adds the peer's.
func Role(r *Resource, v84 bool) string {
	if !v84 {
		return r.Role
	}
	peer := "Unknown"
	if len(r.Connections) > 0 {
		peer = r.Connections[0].PeerRole
	}
	return r.Role + "/" + peer
}

// CState is the state of a connection; in 8.4 with the replication of the volume in it.
func CState(c *Connection, volume int, v84 bool) string {
	if !v84 {
		return c.State
	}
	switch c.State {
	case "Connecting":
		return "WFConnection"
	case "Connected":
		if p := c.PeerDevice(volume); p != nil && p.Replication != "Established" {
			return p.Replication
		}
	}
	return c.State
}

// DState is the state of the local disk of a volume and those of its peers.
func DState(r *Resource, volume int, v84 bool) string {
	d := r.Device(volume)
	if d == nil {
		return ""
	}
	words := []string{d.Disk}
	for i := range r.Connections {
		if p := r.Connections[i].PeerDevice(volume); p != nil {
			words = append(words, p.Disk)
		}
	}
	if v84 && len(words) == 1 {
		words = append(words, "DUnknown")
	}
	return strings.Join(words, "/")
}

// ShStatus is what drbdsetup sh-status of 8.4 prints for a volume; a nil resource is one that is down.
func ShStatus(r *Resource, volume, minor int) string {
	if r == nil || r.Device(volume) == nil {
		return fmt.Sprintf("_minor=%d\n_res_name=\n_volume=-1\n_known=NA # not available or not yet created\n\n_cstate=Unconfigured\n"+
			"_role=\n_peer=\n_disk=\n_pdsk=\n_flags_susp=\n_flags_aftr_isp=\n_flags_peer_isp=\n_flags_user_isp=\n_resynced_percent=\n\n_sh_status_process\n\n\n", minor)
	}
	state, peer, pdsk, percent, paused := "StandAlone", "Unknown", "DUnknown", "", []string(nil)
	if len(r.Connections) > 0 {
		c := &r.Connections[0]
		state, peer = CState(c, volume, true), c.PeerRole
		if p := c.PeerDevice(volume); p != nil {
			pdsk = p.Disk
			paused = strings.Split(p.ResyncSuspended, ",")
			if p.Sync != nil {
				percent = fmt.Sprintf("%.1f", p.Sync.Done())
			}
		}
	}
	flag := func(list []string, word string) string {
		if slices.Contains(list, word) {
			return "1"
		}
		return ""
	}
	return fmt.Sprintf("_minor=%d\n_res_name=%s\n_volume=%d\n_known=Configured\n\n_cstate=%s\n_role=%s\n_peer=%s\n_disk=%s\n_pdsk=%s\n\n"+
		"_flags_susp=%s\n_flags_aftr_isp=%s\n_flags_peer_isp=%s\n_flags_user_isp=%s\n\n_resynced_percent=%s\n\n_sh_status_process\n\n\n",
		minor, r.Name, volume, state, r.Role, peer, r.Device(volume).Disk, pdsk,
		flag(r.Suspended, "user"), flag(paused, "dependency"), flag(paused, "peer"), flag(paused, "user"), percent)
}
