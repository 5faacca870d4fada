package compat

import (
	"fmt"
	"io"
	"reflect"
	"slices"
	"strconv"
	"time"
)

// EventOptions say how much is printed of an event.
type EventOptions struct {
	Timestamps bool
	Statistics bool
	Full       bool // every key of an object that changed; implies Statistics
	Diff       bool // key:old->new
	V84        bool // as the tools of 8.4 do
}

// Events tells how resources change, as drbdsetup events2 does. It keeps the state that it told last.
type Events struct {
	w   io.Writer
	o   EventOptions
	now time.Time
	rs  []Resource
	may map[string]promotion // as told last
	err error
}

type promotion struct {
	may   bool
	score int
}

const timestamp = "2006-01-02T15:04:05.000000-07:00"

// NewEvents begins with nothing there.
func NewEvents(w io.Writer, o EventOptions) *Events {
	o.Statistics = o.Statistics || o.Full
	return &Events{w: w, o: o, may: map[string]promotion{}}
}

// event is one line while it is made. old is nil for an object that is new.
type event struct {
	e      *Events
	text   []byte
	fresh  bool // there is no old value
	wrote  bool // something beside the keys
	action string
}

func (e *Events) begin(action, object, name string, fresh bool) *event {
	return &event{e: e, action: action, fresh: fresh, text: []byte(action + " " + object + " name:" + name)}
}

func (v *event) id(key string, value any) { v.text = fmt.Appendf(v.text, " %s:%v", key, value) }

func (v *event) end() {
	if v.e.err != nil || v.action == "change" && !v.wrote {
		return
	}
	line := string(v.text) + "\n"
	if v.e.o.Timestamps {
		line = v.e.now.Format(timestamp) + " " + line
	}
	_, v.e.err = io.WriteString(v.e.w, line)
}

// value is one key with what it was and is.
type value struct {
	key, from, to string
	arrow         bool // with Diff: show it as changed even if it is not
	mute          bool // with Diff: do not show it of a new object
	number        bool // of a new object it was 0
}

// group adds keys that are shown together: when one of them changed, or all are.
func (v *event) group(all bool, values ...value) {
	changed := v.fresh || all
	for _, x := range values {
		changed = changed || x.from != x.to
	}
	if !changed {
		return
	}
	for _, x := range values {
		switch {
		case !v.e.o.Diff:
			v.id(x.key, x.to)
		case v.fresh && x.mute:
		case v.fresh && !x.number:
			v.id(x.key, "UNKNOWN->"+x.to)
		case v.fresh:
			v.id(x.key, "0->"+x.to)
		case x.from != x.to, x.arrow:
			v.id(x.key, x.from+"->"+x.to)
		default:
			v.id(x.key, x.to)
		}
	}
	v.wrote = true
}

// counts adds statistics, which are shown without what they were.
func (v *event) counts(keys []string, from, to []uint64) {
	if !v.e.o.Statistics || !v.fresh && !v.e.o.Full && slices.Equal(from, to) {
		return
	}
	for i, k := range keys {
		v.id(k, to[i])
	}
	v.wrote = true
}

// promotionOf computes; may_promote and promotion_score are not in 8.4.
func promotionOf(r *Resource) promotion {
	may, score := r.Promotion()
	return promotion{may, score}
}

func (e *Events) resource(action string, old, r *Resource) {
	v := e.begin(action, "resource", r.Name, old == nil)
	was, is := e.may[r.Name], promotionOf(r)
	e.may[r.Name] = is
	if old == nil {
		old = new(Resource)
	}
	v.group(e.o.Full, value{key: "role", from: old.Role, to: r.Role})
	v.group(e.o.Full, value{key: "suspended", from: list(old.Suspended), to: list(r.Suspended)})
	if !e.o.V84 {
		v.group(e.o.Full, value{key: "force-io-failures", from: yes(old.ForceIOFailures), to: yes(r.ForceIOFailures)})
	}
	if e.o.Statistics {
		v.group(e.o.Full, value{key: "write-ordering", from: old.WriteOrdering, to: r.WriteOrdering})
	}
	if !e.o.V84 {
		// The original shows them with every change of the role too.
		v.group(e.o.Full || old.Role != r.Role, value{key: "may_promote", from: yes(was.may), to: yes(is.may), arrow: true},
			value{key: "promotion_score", from: strconv.Itoa(was.score), to: strconv.Itoa(is.score), arrow: true, number: true})
	}
	v.end()
}

// promote tells what the change that comes next means for a promotion.
func (e *Events) promote(r *Resource) {
	is := promotionOf(r)
	if e.o.V84 || e.may[r.Name] == is {
		return
	}
	e.resource("change", r, r)
}

func (e *Events) device(action, name string, old, d *Device) {
	v := e.begin(action, "device", name, old == nil)
	v.id("volume", d.Volume)
	v.id("minor", d.Minor)
	if old == nil {
		old = new(Device)
	}
	if e.o.V84 {
		v.group(e.o.Full, value{key: "disk", from: old.Disk, to: d.Disk})
	} else {
		v.group(e.o.Full, value{key: "backing_dev", from: orNone(old.Backing), to: orNone(d.Backing)}, value{key: "disk", from: old.Disk, to: d.Disk},
			value{key: "client", from: yes(old.Client), to: yes(d.Client)}, value{key: "open", from: yes(old.Open), to: yes(d.Open)},
			value{key: "quorum", from: yes(old.Quorum), to: yes(d.Quorum), mute: true})
	}
	keys := []string{"size", "read", "written", "al-writes", "bm-writes", "upper-pending", "lower-pending"}
	of := func(d *Device) []uint64 {
		return []uint64{d.Size, d.Read, d.Written, d.ALWrites, d.BMWrites, d.UpperPending, d.LowerPending}
	}
	v.counts(keys, of(old), of(d))
	if e.o.Statistics {
		v.group(e.o.Full, value{key: "al-suspended", from: yes(old.ALSuspended), to: yes(d.ALSuspended)})
		v.group(false, value{key: "blocked", from: old.Blocked, to: d.Blocked})
	}
	v.end()
}

func (e *Events) peer(action, object, name string, c *Connection, fresh bool) *event {
	v := e.begin(action, object, name, fresh)
	if e.o.V84 {
		v.id("peer-node-id", 0)
		if c.State != "StandAlone" {
			v.id("conn-name", "peer")
		}
		return v
	}
	v.id("peer-node-id", c.PeerNodeID)
	v.id("conn-name", c.Name)
	return v
}

func (e *Events) connection(action, name string, old, c *Connection) {
	v := e.peer(action, "connection", name, c, old == nil)
	if old == nil {
		old = new(Connection)
	}
	v.group(e.o.Full, value{key: "connection", from: old.State, to: c.State})
	v.group(e.o.Full, value{key: "role", from: old.PeerRole, to: c.PeerRole})
	if e.o.Statistics {
		v.group(e.o.Full, value{key: "congested", from: yes(old.Congested), to: yes(c.Congested)})
		keys, from, to := []string{"ap-in-flight"}, []uint64{old.APInFlight}, []uint64{c.APInFlight}
		if c.RSInFlight != nil {
			keys, to = append(keys, "rs-in-flight"), append(to, *c.RSInFlight)
			if old.RSInFlight != nil {
				from = append(from, *old.RSInFlight)
			}
		}
		if !e.o.V84 {
			v.counts(keys, from, to)
		}
	}
	v.end()
}

func (e *Events) peerDevice(action, name string, c *Connection, old, p *PeerDevice) {
	v := e.peer(action, "peer-device", name, c, old == nil)
	v.id("volume", p.Volume)
	if old == nil {
		old = new(PeerDevice)
	}
	v.group(e.o.Full, value{key: "replication", from: old.Replication, to: p.Replication})
	disk := []value{{key: "peer-disk", from: old.Disk, to: p.Disk}}
	if !e.o.V84 {
		disk = append(disk, value{key: "peer-client", from: yes(old.Client), to: yes(p.Client)})
	}
	v.group(e.o.Full, disk...)
	v.group(e.o.Full, value{key: "resync-suspended", from: old.ResyncSuspended, to: p.ResyncSuspended})
	if p.Sync != nil && !e.o.V84 {
		was := ""
		if old.Sync != nil {
			was = fmt.Sprintf("%.2f", old.Sync.Done())
		}
		if done := fmt.Sprintf("%.2f", p.Sync.Done()); v.wrote || done != was {
			v.id("done", done)
			v.wrote = true
		}
	}
	keys := []string{"received", "sent", "out-of-sync", "pending", "unacked"}
	of := func(p *PeerDevice) []uint64 { return []uint64{p.Received, p.Sent, p.OutOfSync, p.Pending, p.Unacked} }
	before := len(v.text)
	v.counts(keys, of(old), of(p))
	if len(v.text) > before && p.Sync != nil && !e.o.V84 {
		v.id("dbdt1", fmt.Sprintf("%.2f", rate(p.Sync.Db1, p.Sync.Dt1)))
		v.id("eta", p.Sync.ETA())
	}
	v.end()
}

func (e *Events) path(action, name string, c *Connection, old, p *Path) {
	if e.o.V84 {
		return
	}
	v := e.peer(action, "path", name, c, old == nil)
	v.id("local", p.Local)
	v.id("peer", p.Peer)
	if action != "destroy" {
		was := ""
		if old != nil {
			was = yes(old.Established)
		}
		v.group(e.o.Full, value{key: "established", from: was, to: yes(p.Established)})
	}
	v.end()
}

// Start prints what there is, and the line that ends the list.
func (e *Events) Start(now time.Time, rs []Resource) error {
	e.now, e.rs = now, clone(rs)
	for i := range e.rs {
		r := &e.rs[i]
		e.resource("exists", nil, r)
		for j := range r.Connections {
			e.connection("exists", r.Name, nil, &r.Connections[j])
		}
		for j := range r.Devices {
			e.device("exists", r.Name, nil, &r.Devices[j])
		}
		for j := range r.Connections {
			c := &r.Connections[j]
			for k := range c.PeerDevices {
				e.peerDevice("exists", r.Name, c, nil, &c.PeerDevices[k])
			}
			for k := range c.Paths {
				e.path("exists", r.Name, c, nil, &c.Paths[k])
			}
		}
	}
	return e.Bare("exists -")
}

// Bare prints a line that is about nothing.
func (e *Events) Bare(line string) error {
	if e.err == nil {
		if e.o.Timestamps {
			line = e.now.Format(timestamp) + " " + line
		}
		_, e.err = io.WriteString(e.w, line+"\n")
	}
	return e.err
}

// Helper prints that a handler was called, and with status (nil: not yet) what it answered.
func (e *Events) Helper(now time.Time, resource, peer string, volume int, helper string, status *int) error {
	e.now = now
	action := "call"
	if status != nil {
		action = "response"
	}
	v := e.begin(action, "helper", resource, false)
	i := slices.IndexFunc(e.rs, func(r Resource) bool { return r.Name == resource })
	if i >= 0 && peer != "" {
		r := &e.rs[i]
		if j := slices.IndexFunc(r.Connections, func(c Connection) bool { return c.Name == peer }); j >= 0 {
			v.id("peer-node-id", r.Connections[j].PeerNodeID)
			v.id("conn-name", peer)
		}
	}
	if volume >= 0 {
		v.id("volume", volume)
	}
	v.id("helper", helper)
	if status != nil {
		v.id("status", *status)
	}
	v.end()
	return e.err
}

// Update prints what changed since the last call. Each object is told by itself, and before it what that changes about
// a promotion. statistics tells counters that changed too, else they stay as they were until something else does.
func (e *Events) Update(now time.Time, rs []Resource, statistics bool) error {
	e.now = now
	rs = clone(rs)
	if !statistics {
		e.keepCounters(rs)
	}
	for i := len(e.rs) - 1; i >= 0; i-- {
		name := e.rs[i].Name
		if !slices.ContainsFunc(rs, func(r Resource) bool { return r.Name == name }) {
			e.shrink(&e.rs[i], &Resource{Name: name})
			e.begin("destroy", "resource", name, false).end()
			delete(e.may, name)
			e.rs = slices.Delete(e.rs, i, i+1)
		}
	}
	for i := range rs {
		j := slices.IndexFunc(e.rs, func(r Resource) bool { return r.Name == rs[i].Name })
		if j < 0 {
			fresh := rs[i]
			fresh.Devices, fresh.Connections = nil, nil
			e.rs = append(e.rs, fresh)
			j = len(e.rs) - 1
			e.resource("create", nil, &e.rs[j])
		}
		e.shrink(&e.rs[j], &rs[i])
		e.grow(&e.rs[j], &rs[i])
	}
	return e.err
}

// keepCounters puts back the counters of objects in which nothing else changed, so that they are not told.
func (e *Events) keepCounters(rs []Resource) {
	for i := range rs {
		j := slices.IndexFunc(e.rs, func(r Resource) bool { return r.Name == rs[i].Name })
		if j < 0 {
			continue
		}
		old := &e.rs[j]
		for k := range rs[i].Devices {
			d := &rs[i].Devices[k]
			if o := old.Device(d.Volume); o != nil {
				same := *d
				same.Read, same.Written, same.ALWrites, same.BMWrites, same.UpperPending, same.LowerPending =
					o.Read, o.Written, o.ALWrites, o.BMWrites, o.UpperPending, o.LowerPending
				if same == *o {
					*d = same
				}
			}
		}
		for k := range rs[i].Connections {
			c := &rs[i].Connections[k]
			o := old.Connection(c.PeerNodeID)
			if o == nil {
				continue
			}
			if c.State == o.State && c.PeerRole == o.PeerRole && c.Congested == o.Congested {
				c.APInFlight, c.RSInFlight = o.APInFlight, o.RSInFlight
			}
			for m := range c.PeerDevices {
				p := &c.PeerDevices[m]
				q := o.PeerDevice(p.Volume)
				if q != nil && p.Replication == q.Replication && p.Disk == q.Disk && p.Client == q.Client && p.ResyncSuspended == q.ResyncSuspended {
					*p = *q
				}
			}
		}
	}
}

// shrink tells what is gone.
func (e *Events) shrink(have, want *Resource) {
	for i := len(have.Connections) - 1; i >= 0; i-- {
		c := &have.Connections[i]
		left := want.Connection(c.PeerNodeID)
		for j := len(c.PeerDevices) - 1; j >= 0; j-- {
			volume := c.PeerDevices[j].Volume
			if left == nil || left.PeerDevice(volume) == nil {
				c.PeerDevices = slices.Delete(c.PeerDevices, j, j+1)
				e.promote(have)
				v := e.peer("destroy", "peer-device", have.Name, c, false)
				v.id("volume", volume)
				v.end()
			}
		}
		for j := len(c.Paths) - 1; j >= 0; j-- {
			p := c.Paths[j]
			if left == nil || !slices.ContainsFunc(left.Paths, p.same) {
				c.Paths = slices.Delete(c.Paths, j, j+1)
				e.path("destroy", have.Name, c, &p, &p)
			}
		}
		if left == nil {
			gone := *c
			have.Connections = slices.Delete(have.Connections, i, i+1)
			e.promote(have)
			e.peer("destroy", "connection", have.Name, &gone, false).end()
		}
	}
	for i := len(have.Devices) - 1; i >= 0; i-- {
		volume := have.Devices[i].Volume
		if want.Device(volume) == nil {
			have.Devices = slices.Delete(have.Devices, i, i+1)
			e.promote(have)
			v := e.begin("destroy", "device", have.Name, false)
			v.id("volume", volume)
			v.end()
		}
	}
}

func (p Path) same(q Path) bool { return p.Local == q.Local && p.Peer == q.Peer }

// grow tells what is new and what changed.
func (e *Events) grow(have, want *Resource) {
	was := *have
	have.NodeID, have.Role, have.Suspended, have.ForceIOFailures = want.NodeID, want.Role, want.Suspended, want.ForceIOFailures
	have.WriteOrdering, have.MayNotPromote = want.WriteOrdering, want.MayNotPromote
	if was.Role != have.Role || !slices.Equal(was.Suspended, have.Suspended) || was.ForceIOFailures != have.ForceIOFailures ||
		e.o.Statistics && was.WriteOrdering != have.WriteOrdering || was.MayNotPromote != have.MayNotPromote {
		e.resource("change", &was, have)
	}
	for i := range want.Devices {
		d := want.Devices[i]
		old := have.Device(d.Volume)
		if old == nil {
			have.Devices = append(have.Devices, d)
			e.promote(have)
			e.device("create", have.Name, nil, &d)
		} else if *old != d {
			before := *old
			*old = d
			e.promote(have)
			e.device("change", have.Name, &before, &d)
		}
	}
	for i := range want.Connections {
		c := want.Connections[i]
		h := have.Connection(c.PeerNodeID)
		if h == nil {
			fresh := c
			fresh.PeerDevices, fresh.Paths = nil, nil
			have.Connections = append(have.Connections, fresh)
			h = &have.Connections[len(have.Connections)-1]
			e.promote(have)
			e.connection("create", have.Name, nil, h)
		}
		e.link(have, h, &c)
	}
}

// link tells how a connection changed: its paths, itself, its volumes.
func (e *Events) link(have *Resource, h, c *Connection) {
	for i := range c.Paths {
		p := c.Paths[i]
		if k := slices.IndexFunc(h.Paths, p.same); k >= 0 && h.Paths[k] != p {
			before := h.Paths[k]
			h.Paths[k] = p
			e.path("change", have.Name, h, &before, &p)
		}
	}
	before := *h
	h.State, h.PeerRole, h.Congested, h.TLS, h.APInFlight, h.RSInFlight = c.State, c.PeerRole, c.Congested, c.TLS, c.APInFlight, c.RSInFlight
	if before.State != h.State || before.PeerRole != h.PeerRole || before.Congested != h.Congested || before.APInFlight != h.APInFlight ||
		!reflect.DeepEqual(before.RSInFlight, h.RSInFlight) {
		e.promote(have)
		e.connection("change", have.Name, &before, h)
	}
	for i := range c.PeerDevices {
		p := c.PeerDevices[i]
		old := h.PeerDevice(p.Volume)
		if old == nil {
			h.PeerDevices = append(h.PeerDevices, p)
			e.promote(have)
			e.peerDevice("create", have.Name, h, nil, &p)
		} else if !reflect.DeepEqual(*old, p) {
			was := *old
			*old = p
			e.promote(have)
			e.peerDevice("change", have.Name, h, &was, &p)
		}
	}
	for i := range c.Paths {
		p := c.Paths[i]
		if !slices.ContainsFunc(h.Paths, p.same) {
			h.Paths = append(h.Paths, p)
			e.path("create", have.Name, h, nil, &p)
		}
	}
}

// clone copies what Events changes.
func clone(rs []Resource) []Resource {
	out := slices.Clone(rs)
	for i := range out {
		r := &out[i]
		r.Devices, r.Connections = slices.Clone(r.Devices), slices.Clone(r.Connections)
		for j := range r.Connections {
			c := &r.Connections[j]
			c.Paths, c.PeerDevices = slices.Clone(c.Paths), slices.Clone(c.PeerDevices)
		}
	}
	return out
}
