package compat

import (
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
)

// None is what status and show print when there is nothing.
const None = "# No currently configured DRBD found.\n"

// replications in DRBD's order: what comes after Established is worth showing.
var replications = []string{"Off", "Established", "StartingSyncS", "StartingSyncT", "WFBitMapS", "WFBitMapT", "WFSyncUUID",
	"SyncSource", "SyncTarget", "VerifyS", "VerifyT", "PausedSyncS", "PausedSyncT", "Ahead", "Behind"}

// StatusOptions say how much is printed.
type StatusOptions struct {
	Verbose    int // -v, -vv
	Statistics bool
	Terminal   bool // standard output is one: people know that a client has no disk
	V84        bool // as the tools of 8.4 do
}

// lines fills lines with fields and breaks them near column 80, as the original does.
type lines struct {
	b    strings.Builder
	v84  bool
	ind  int // of this line
	cont int // of the lines that continue it
	col  int // without the indent
}

func (l *lines) start(indent, cont int) {
	l.ind, l.cont, l.col = indent, cont, 0
	l.b.WriteString(strings.Repeat(" ", indent))
}

func (l *lines) end() { l.b.WriteByte('\n') }

// item adds one field. The original counts the indent in 8.4 and, as its output shows, not in 9.
func (l *lines) item(text string) {
	limit, col := 81, l.col
	if l.v84 {
		limit, col = 80, l.col+l.ind
	}
	switch {
	case l.col == 0:
	case col+1+len(text) > limit:
		l.end()
		l.start(l.cont, l.cont)
	default:
		l.b.WriteByte(' ')
		l.col++
	}
	l.b.WriteString(text)
	l.col += len(text)
}

func (l *lines) field(key, value string) { l.item(key + ":" + value) }

func (l *lines) when(show bool, key, value string) {
	if show {
		l.field(key, value)
	}
}

func (l *lines) number(key string, n uint64) { l.field(key, strconv.FormatUint(n, 10)) }

// Status prints resources as drbdsetup status does.
func Status(w io.Writer, rs []Resource, o StatusOptions) error {
	if len(rs) == 0 && !o.V84 {
		_, err := io.WriteString(w, None)
		return err
	}
	for i := range rs {
		l := &lines{v84: o.V84}
		statusResource(l, &rs[i], o)
		if _, err := io.WriteString(w, l.b.String()+"\n"); err != nil {
			return err
		}
	}
	return nil
}

func statusResource(l *lines, r *Resource, o StatusOptions) {
	v := o.Verbose > 0
	l.start(0, 4)
	l.item(r.Name)
	l.when(v && !o.V84, "node-id", strconv.Itoa(r.NodeID))
	l.field("role", r.Role)
	l.when(v || len(r.Suspended) > 0, "suspended", list(r.Suspended))
	l.when(!o.V84 && (v || r.ForceIOFailures), "force-io-failures", yes(r.ForceIOFailures))
	l.end()
	if v && o.Statistics {
		l.start(4, 4)
		l.field("write-ordering", r.WriteOrdering)
		l.end()
	}
	single := len(r.Devices) == 1 && r.Devices[0].Volume == 0
	for i := range r.Devices {
		statusDevice(l, &r.Devices[i], single, o)
	}
	for i := range r.Connections {
		c := &r.Connections[i]
		if !o.V84 || c.State != "StandAlone" {
			statusConnection(l, c, single, o)
		}
	}
}

func statusDevice(l *lines, d *Device, single bool, o StatusOptions) {
	v := o.Verbose > 0
	l.start(2, 6)
	l.when(v || !single, "volume", strconv.Itoa(d.Volume))
	l.when(v, "minor", strconv.Itoa(d.Minor))
	l.field("disk", d.Disk)
	if !o.V84 {
		l.when(d.Disk == "Diskless" && (v || !o.Terminal), "client", yes(d.Client))
		l.when(v, "backing_dev", orNone(d.Backing))
		l.when(v || !d.Quorum, "quorum", yes(d.Quorum))
		l.field("open", yes(d.Open))
	}
	if o.Statistics {
		l.end()
		l.start(6, 6)
		if v {
			l.number("size", d.Size)
		}
		l.number("read", d.Read)
		l.number("written", d.Written)
		if v {
			l.number("al-writes", d.ALWrites)
			l.number("bm-writes", d.BMWrites)
			l.number("upper-pending", d.UpperPending)
			l.number("lower-pending", d.LowerPending)
			l.field("al-suspended", yes(d.ALSuspended))
		}
	}
	l.when(v || d.Blocked != "no", "blocked", d.Blocked)
	l.end()
}

func statusConnection(l *lines, c *Connection, single bool, o StatusOptions) {
	v, up := o.Verbose > 0, c.State == "Connected"
	l.start(2, 6)
	if o.V84 {
		l.item("peer")
	} else {
		l.item(c.Name)
		l.when(v, "node-id", strconv.Itoa(c.PeerNodeID))
	}
	l.when(v || !up, "connection", c.State)
	l.when(v || up, "role", c.PeerRole)
	if !o.V84 {
		l.when(v || up && c.TLS, "tls", yes(c.TLS))
	}
	if v || c.Congested {
		l.field("congested", yes(c.Congested))
		if !o.V84 {
			l.number("ap-in-flight", c.APInFlight)
			if c.RSInFlight != nil {
				l.number("rs-in-flight", *c.RSInFlight)
			}
		}
	}
	l.end()
	if !v && !up && !o.Statistics {
		return
	}
	for i := range c.PeerDevices {
		if o.V84 && !up && !v {
			return
		}
		statusPeerDevice(l, &c.PeerDevices[i], single, o)
	}
}

func statusPeerDevice(l *lines, p *PeerDevice, single bool, o StatusOptions) {
	v, stats := o.Verbose > 0, o.Statistics
	l.start(4, 8)
	l.when(v || !single, "volume", strconv.Itoa(p.Volume))
	replicates := slices.Index(replications, p.Replication)
	l.when(v || replicates > 1 || o.V84 && replicates == 1, "replication", p.Replication)
	l.when(v || stats || replicates != 0 || p.Disk != "DUnknown", "peer-disk", p.Disk)
	if !o.V84 {
		l.when(p.Disk == "Diskless" && (v || !o.Terminal), "peer-client", yes(p.Client))
	}
	if p.Sync != nil {
		l.field("done", fmt.Sprintf("%.2f", p.Sync.Done()))
	}
	l.when(v || p.ResyncSuspended != "no", "resync-suspended", p.ResyncSuspended)
	if stats {
		l.end()
		l.start(8, 8)
		l.number("received", p.Received)
		l.number("sent", p.Sent)
		for _, f := range []struct {
			key string
			n   uint64
		}{{"out-of-sync", p.OutOfSync}, {"pending", p.Pending}, {"unacked", p.Unacked}} {
			if v || f.key == "out-of-sync" && f.n > 0 {
				l.number(f.key, f.n)
			}
		}
		if p.Sync != nil && v && !o.V84 {
			statusSync(l, p.Sync, o.Verbose)
		}
	}
	l.end()
}

func statusSync(l *lines, s *Sync, verbose int) {
	if verbose > 1 {
		l.number("rs-total", s.Total)
		l.number("rs-dt-start-ms", s.DtStart)
		l.number("rs-paused-ms", s.Paused)
		l.number("rs-dt0-ms", s.Dt0)
		l.number("rs-db0-sectors", s.Db0)
		l.number("rs-dt1-ms", s.Dt1)
		l.number("rs-db1-sectors", s.Db1)
		if !s.Verify {
			l.number("rs-failed", s.Failed)
			l.number("rs-same-csum", s.SameCsum)
		}
		l.field("dbdt", fmt.Sprintf("%.2f", s.overall()))
		l.field("dbdt0", fmt.Sprintf("%.2f", rate(s.Db0, s.Dt0)))
	}
	l.field("dbdt1", fmt.Sprintf("%.2f", rate(s.Db1, s.Dt1)))
	l.number("eta", s.ETA())
}

func yes(b bool) string {
	if b {
		return "yes"
	}
	return "no"
}

func list(words []string) string {
	if len(words) == 0 {
		return "no"
	}
	return strings.Join(words, ",")
}

func orNone(s string) string {
	if s == "" {
		return "none"
	}
	return s
}
