package compat

import (
	"cmp"
	"hash/fnv"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/hawser-ha/hawser/replicator/control"
)

const (
	minorsFrom = 1 << 16 // where the minors of volumes without one begin: above what people write
	minorsTo   = 1 << 20 // the kernel has no more
)

// Minors gives every volume a number that no other has: N of those that are called /dev/drbdN, else one that is made
// of its name and hence stays.
func Minors(defs []*control.Definition) map[string]map[int]int {
	all := map[string]map[int]int{}
	taken := map[int]bool{}
	type volume struct {
		res    string
		number int
	}
	var without []volume
	for _, d := range defs {
		all[d.Name] = map[int]int{}
		for _, v := range d.Volumes {
			if n, ok := MinorOf(v.DevLink); ok && !taken[n] {
				all[d.Name][v.Number], taken[n] = n, true
			} else {
				without = append(without, volume{d.Name, v.Number})
			}
		}
	}
	slices.SortFunc(without, func(a, b volume) int { return cmp.Or(cmp.Compare(a.res, b.res), cmp.Compare(a.number, b.number)) })
	for _, v := range without {
		h := fnv.New32a()
		_, _ = h.Write([]byte(v.res + "/" + strconv.Itoa(v.number))) // a hash takes everything
		n := minorsFrom + int(h.Sum32()%(minorsTo-minorsFrom))
		for taken[n] {
			if n++; n == minorsTo {
				n = minorsFrom
			}
		}
		all[v.res][v.number], taken[n] = n, true
	}
	return all
}

// MinorOf reads N of /dev/drbdN.
func MinorOf(link string) (int, bool) {
	text, ok := strings.CutPrefix(link, "/dev/drbd")
	n, err := strconv.ParseUint(text, 10, 20)
	return int(n), ok && err == nil
}

// Of is a resource in DRBD's words. minors are of its volumes; now is for the times of a resync. def may be nil: then
// there are no paths.
func Of(st *control.Status, def *control.Definition, minors map[int]int, now time.Time) Resource {
	r := Resource{Name: st.Resource, NodeID: st.NodeID, Role: cmp.Or(st.Role, "Unknown"), Suspended: suspended(st.Suspended), WriteOrdering: "flush"}
	for i := range st.Volumes {
		v := &st.Volumes[i]
		d := Device{Volume: v.Number, Minor: minors[v.Number], Backing: v.Backing, Disk: cmp.Or(v.DiskState, "Diskless"), Client: v.Client,
			Open: len(v.Front) > 0, Quorum: !slices.Contains(st.Suspended, "licence"), Size: kib(v.Size), Read: kib(v.Read), Written: kib(v.Written),
			ALWrites: count(v.ALWrites), BMWrites: count(v.BMWrites), UpperPending: count(v.UpperPending), LowerPending: count(v.LowerPending),
			ALSuspended: v.GI.ALDisabled, Blocked: "no"}
		if len(r.Suspended) > 0 {
			d.Blocked = "upper"
		}
		r.Devices = append(r.Devices, d)
	}
	if def != nil {
		for _, v := range def.Volumes {
			if !v.Opts.DiskFlushes {
				r.WriteOrdering = "drain"
			}
		}
	}
	if st.Write != nil && st.Role != "Primary" && len(st.Write.InSync) > 0 {
		r.MayNotPromote = !slices.ContainsFunc(st.Write.InSync, func(m control.Member) bool { return m.Node == st.Node })
	}
	for i := range st.Peers {
		r.Connections = append(r.Connections, connection(&st.Peers[i], st, def, now))
	}
	slices.SortFunc(r.Connections, func(a, b Connection) int { return cmp.Compare(a.PeerNodeID, b.PeerNodeID) })
	return r
}

// suspended keeps to the four words that DRBD has.
func suspended(why []string) []string {
	known := map[string]string{"user": "user", "no-data": "no-data", "fencing": "fencing", "insync": "fencing", "licence": "quorum", "quorum": "quorum"}
	var out []string
	for _, w := range []string{"user", "no-data", "fencing", "quorum"} {
		if slices.ContainsFunc(why, func(s string) bool { return known[s] == w }) {
			out = append(out, w)
		}
	}
	return out
}

func connection(p *control.PeerStatus, st *control.Status, def *control.Definition, now time.Time) Connection {
	c := Connection{PeerNodeID: p.NodeID, Name: p.Name, State: cmp.Or(p.Connection, "StandAlone"), PeerRole: cmp.Or(p.Role, "Unknown"),
		Congested: p.Congested, TLS: p.TLS, APInFlight: sectors(p.InFlight)}
	var diskless bool
	if def != nil {
		for _, d := range def.Peers {
			if d.Name == p.Name {
				diskless = d.Diskless
				c.Paths = append(c.Paths, Path{Local: address(d.Local), Peer: address(d.Remote), Established: p.Connection == "Connected"})
			}
		}
	}
	for i := range p.Volumes {
		v := &p.Volumes[i]
		d := PeerDevice{Volume: v.Number, Replication: cmp.Or(v.Replication, "Off"), Disk: cmp.Or(v.DiskState, "DUnknown"), Client: diskless && v.DiskState == "Diskless",
			ResyncSuspended: cmp.Or(strings.Join(v.Paused, ","), "no"), Received: kib(v.Received), Sent: kib(v.Sent), OutOfSync: kib(v.OutOfSync),
			Pending: count(v.Pending), Unacked: count(v.Unacked)}
		if v.Sync != nil && v.Sync.Ended.IsZero() {
			d.Sync = sync(v.Sync, now)
		}
		c.PeerDevices = append(c.PeerDevices, d)
	}
	slices.SortFunc(c.PeerDevices, func(a, b PeerDevice) int { return cmp.Compare(a.Volume, b.Volume) })
	return c
}

func sync(p *control.Progress, now time.Time) *Sync {
	const window = 1000 // ms
	s := &Sync{Verify: p.Kind == "verify", Total: sectors(p.Total), Left: sectors(max(0, p.Total-p.Done)), SameCsum: sectors(p.SameCsum),
		DtStart: uint64(max(0, now.Sub(p.Started).Milliseconds())), Dt1: window, Db1: sectors(p.Rate) * window / 1000}
	s.Dt0, s.Db0 = s.DtStart, s.Total-s.Left
	if s.Verify {
		s.Position, s.Stop = sectors(p.VerifyPos), sectors(p.VerifyStop)
	}
	return s
}

func address(text string) Address {
	a, err := netip.ParseAddrPort(text)
	if err != nil { // a name
		host, port, _ := strings.Cut(text, ":")
		n, _ := strconv.Atoi(port)
		return Address{"ipv4", host, n}
	}
	family := "ipv4"
	if a.Addr().Is6() && !a.Addr().Is4In6() {
		family = "ipv6"
	}
	return Address{family, a.Addr().String(), int(a.Port())}
}

// String is as events2 writes it.
func (a Address) String() string {
	if a.Family == "ipv6" {
		return "ipv6:[" + a.IP + "]:" + strconv.Itoa(a.Port)
	}
	return a.Family + ":" + a.IP + ":" + strconv.Itoa(a.Port)
}

func kib(bytes int64) uint64     { return count(bytes) / 1024 }
func sectors(bytes int64) uint64 { return count(bytes) / 512 }
func count(n int64) uint64       { return uint64(max(n, 0)) }
