package compat

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
)

// StatusJSON prints resources as drbdsetup status --json does, white space and all.
func StatusJSON(w io.Writer, rs []Resource) error {
	var b strings.Builder
	b.WriteString("[\n")
	for i := range rs {
		if i > 0 {
			b.WriteString(",\n")
		}
		jsonResource(&b, &rs[i])
	}
	if len(rs) > 0 {
		b.WriteByte('\n')
	}
	b.WriteString("]\n\n")
	_, err := io.WriteString(w, b.String())
	return err
}

// object writes "key": value lines.
type object struct {
	b      *strings.Builder
	indent string
	first  bool
}

func (o *object) raw(key, value string) {
	if o.first {
		o.b.WriteString(",\n")
	}
	o.first = true
	fmt.Fprintf(o.b, "%s%s: %s", o.indent, quote(key), value)
}

func (o *object) text(key, value string)     { o.raw(key, quote(value)) }
func (o *object) bool(key string, v bool)    { o.raw(key, fmt.Sprint(v)) }
func (o *object) int(key string, n int)      { o.raw(key, fmt.Sprint(n)) }
func (o *object) num(key string, n uint64)   { o.raw(key, fmt.Sprint(n)) }
func (o *object) real(key string, f float64) { o.raw(key, fmt.Sprintf("%.2f", f)) }

// quote writes a JSON string, without the escapes that are only for HTML.
func quote(s string) string {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(s); err != nil { // a string always encodes
		panic(err)
	}
	return strings.TrimSuffix(b.String(), "\n")
}

func jsonResource(b *strings.Builder, r *Resource) {
	b.WriteString("{\n")
	o := &object{b: b, indent: "  "}
	o.text("name", r.Name)
	o.int("node-id", r.NodeID)
	o.text("role", r.Role)
	o.bool("suspended", len(r.Suspended) > 0)
	for _, w := range []string{"user", "no-data", "fencing", "quorum"} {
		o.bool("suspended-"+w, slices.Contains(r.Suspended, w))
	}
	o.bool("force-io-failures", r.ForceIOFailures)
	o.text("write-ordering", r.WriteOrdering)
	o.raw("devices", "[")
	for i := range r.Devices {
		if i > 0 {
			b.WriteByte(',')
		}
		jsonDevice(b, &r.Devices[i])
	}
	b.WriteString(" ]")
	o.raw("connections", "[")
	for i := range r.Connections {
		if i > 0 {
			b.WriteByte(',')
		}
		jsonConnection(b, r, &r.Connections[i])
	}
	b.WriteString(" ]\n}")
}

func jsonDevice(b *strings.Builder, d *Device) {
	b.WriteString("\n    {\n")
	o := &object{b: b, indent: "      "}
	o.int("volume", d.Volume)
	o.int("minor", d.Minor)
	o.text("disk-state", d.Disk)
	o.bool("client", d.Client)
	o.bool("open", d.Open)
	o.bool("quorum", d.Quorum)
	o.num("size", d.Size)
	o.num("read", d.Read)
	o.num("written", d.Written)
	o.num("al-writes", d.ALWrites)
	o.num("bm-writes", d.BMWrites)
	o.num("upper-pending", d.UpperPending)
	o.num("lower-pending", d.LowerPending)
	b.WriteString("\n    }")
}

func jsonConnection(b *strings.Builder, r *Resource, c *Connection) {
	b.WriteString("\n    {\n")
	o := &object{b: b, indent: "      "}
	o.int("peer-node-id", c.PeerNodeID)
	o.text("name", c.Name)
	o.raw("connection-state", quote(c.State)+", \n"+o.indent+`"congested": `+fmt.Sprint(c.Congested)) // the blank is the original's
	o.text("peer-role", c.PeerRole)
	o.bool("tls", c.TLS)
	o.num("ap-in-flight", c.APInFlight)
	if c.RSInFlight != nil {
		o.num("rs-in-flight", *c.RSInFlight)
	}
	if len(c.Paths) > 0 {
		o.raw("paths", "[")
		for i, p := range c.Paths {
			if i > 0 {
				b.WriteByte(',')
			}
			end := func(key string, a Address) string {
				return fmt.Sprintf("          %q: {\n            \"address\": %s,\n            \"port\": %d,\n            \"family\": %q\n          },\n", key, quote(a.IP), a.Port, a.Family)
			}
			fmt.Fprintf(b, "\n        {\n%s%s          \"established\": %v\n        }", end("this_host", p.Local), end("remote_host", p.Peer), p.Established)
		}
		b.WriteString(" ]")
	}
	o.raw("peer_devices", "[")
	for i := range c.PeerDevices {
		if i > 0 {
			b.WriteByte(',')
		}
		var size uint64
		if d := r.Device(c.PeerDevices[i].Volume); d != nil {
			size = d.Size
		}
		jsonPeerDevice(b, &c.PeerDevices[i], size)
	}
	b.WriteString(" ]\n    }")
}

func jsonPeerDevice(b *strings.Builder, p *PeerDevice, size uint64) {
	b.WriteString("\n        {\n")
	o := &object{b: b, indent: "          "}
	o.int("volume", p.Volume)
	o.text("replication-state", p.Replication)
	o.text("peer-disk-state", p.Disk)
	o.bool("peer-client", p.Client)
	o.text("resync-suspended", p.ResyncSuspended)
	o.num("received", p.Received)
	o.num("sent", p.Sent)
	o.num("out-of-sync", p.OutOfSync)
	o.num("pending", p.Pending)
	o.num("unacked", p.Unacked)
	o.bool("has-sync-details", p.Sync != nil && !p.Sync.Verify)
	o.bool("has-online-verify-details", p.Sync != nil && p.Sync.Verify)
	o.real("percent-in-sync", percentInSync(size, p.OutOfSync))
	if s := p.Sync; s != nil {
		jsonSync(o, s)
	}
	b.WriteString("\n        }")
}

func jsonSync(o *object, s *Sync) {
	o.num("rs-total", s.Total)
	o.num("rs-dt-start-ms", s.DtStart)
	o.num("rs-paused-ms", s.Paused)
	o.num("rs-dt0-ms", s.Dt0)
	o.num("rs-db0-sectors", s.Db0)
	o.num("rs-dt1-ms", s.Dt1)
	o.num("rs-db1-sectors", s.Db1)
	if s.Verify {
		o.num("ov-start-sector", s.Start)
		o.num("ov-stop-sector", s.Stop)
		o.num("ov-position", s.Position)
		o.num("ov-left", s.Left)
		o.num("ov-skipped", 0)
	} else {
		o.num("rs-failed", s.Failed)
		o.num("rs-same-csum", s.SameCsum)
		o.real("want", float64(s.Want))
	}
	o.real("db0/dt0 [MiB/s]", rate(s.Db0, s.Dt0))
	o.real("db1/dt1 [MiB/s]", rate(s.Db1, s.Dt1))
	o.num("estimated-seconds-to-finish", s.ETA())
	o.real("db/dt [MiB/s]", s.overall())
	o.real("percent-resync-done", s.Done())
}
