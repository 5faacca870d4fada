package compat

import (
	"io"
	"strconv"
	"strings"

	"github.com/hawser-ha/hawser/agent/drbdconf"
)

// tree writes indented JSON whose keys keep their order.
type tree struct {
	b     strings.Builder
	depth int
	comma bool
}

func (t *tree) next() {
	if t.comma {
		t.b.WriteByte(',')
	}
	t.b.WriteString("\n" + strings.Repeat("    ", t.depth))
	t.comma = true
}

func (t *tree) open(key, bracket string) {
	t.next()
	if key != "" {
		t.b.WriteString(quote(key) + ": ")
	}
	t.b.WriteString(bracket)
	t.depth++
	t.comma = false
}

func (t *tree) close(bracket string) {
	t.depth--
	t.b.WriteString("\n" + strings.Repeat("    ", t.depth) + bracket)
	t.comma = true
}

func (t *tree) raw(key, value string)  { t.next(); t.b.WriteString(quote(key) + ": " + value) }
func (t *tree) text(key, value string) { t.raw(key, quote(value)) }
func (t *tree) num(key string, n int)  { t.raw(key, strconv.Itoa(n)) }

// settings: booleans are JSON's, everything else is a string.
func (t *tree) settings(key string, list []setting) {
	t.open(key, "{")
	for _, o := range list {
		if o.kind == drbdconf.Bool {
			t.raw(o.name, strconv.FormatBool(o.value == "yes"))
		} else {
			t.text(o.name, o.value)
		}
	}
	t.close("}")
}

// ShowJSON prints them as drbdsetup show --json does.
func ShowJSON(w io.Writer, list []Shown, defaults bool) error {
	t := &tree{depth: 1}
	t.b.WriteByte('[')
	for i := range list {
		t.resource(&list[i], defaults)
	}
	t.b.WriteString("\n]\n")
	_, err := io.WriteString(w, t.b.String())
	return err
}

func (t *tree) resource(x *Shown, defaults bool) {
	t.open("", "{")
	t.text("resource", x.R.Name)
	t.settings("options", settings("options", x.options("options"), isAny, defaults, false))
	t.open("_this_host", "{")
	t.num("node-id", x.R.NodeID)
	t.open("volumes", "[")
	for i := range x.R.Devices {
		d := &x.R.Devices[i]
		t.open("", "{")
		t.num("volume_nr", d.Volume)
		t.num("device_minor", d.Minor)
		if d.Backing != "" {
			t.text("backing-disk", d.Backing)
			dev, index := x.meta(d.Volume)
			t.text("meta-disk", dev)
			if index != "" && index != "flexible" {
				t.text("meta-disk-index", index)
			}
			t.settings("disk", settings("disk", x.disk(d.Volume), func(o *drbdconf.Spec) bool { return !o.Peer }, defaults, false))
		}
		t.close("}")
	}
	t.close("]")
	t.close("}")
	t.open("connections", "[")
	for i := range x.R.Connections {
		t.connection(x, &x.R.Connections[i], defaults)
	}
	t.close("]")
	t.close("}")
}

func (t *tree) connection(x *Shown, c *Connection, defaults bool) {
	peer := x.peer(c.PeerNodeID)
	t.open("", "{")
	t.open("paths", "[")
	for _, p := range c.Paths {
		t.open("", "{")
		for _, end := range []struct {
			key string
			a   Address
		}{{"_this_host", p.Local}, {"_remote_host", p.Peer}} {
			t.open(end.key, "{")
			t.text("address", end.a.IP)
			t.num("port", end.a.Port)
			t.text("family", end.a.Family)
			t.close("}")
		}
		t.close("}")
	}
	t.close("]")
	t.text("_cstate", c.State)
	if c.State == "StandAlone" {
		t.raw("_is_standalone", "true")
	}
	t.settings("net", settings("net", peer.net(), isAny, defaults, false))
	t.open("volumes", "[")
	for i := range c.PeerDevices {
		v := c.PeerDevices[i].Volume
		t.open("", "{")
		t.num("volume_nr", v)
		t.settings("disk", settings("disk", peer.disk(v), isPeer, defaults, false))
		t.close("}")
	}
	t.close("]")
	t.num("_peer_node_id", c.PeerNodeID)
	t.close("}")
}
