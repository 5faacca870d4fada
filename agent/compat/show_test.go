package compat

import (
	"bytes"
	"encoding/json"
	"reflect"
	"strings"
	"testing"

	"github.com/hawser-ha/hawser/agent/drbdconf"
	"github.com/hawser-ha/hawser/replicator/control"
)

// planOf reads a configuration as a node would.
func planOf(t *testing.T, text, host, name string) *Plan {
	t.Helper()
	cfg, err := drbdconf.ParseText("test.conf", []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	who := drbdconf.VerifyOptions{Host: host}
	for _, e := range drbdconf.Errors(drbdconf.Verify(cfg, who)) {
		if e.Stops("up") {
			t.Fatal(e)
		}
	}
	p, ok := PlanOf(cfg, name, who, nil)
	if !ok {
		t.Fatalf("%s is not on %s", name, host)
	}
	return p
}

// pick leaves the keys of got that want has, all the way down: the recording has options as the test of the original
// gave them, among them those that are as by default.
func pick(got, want any) any {
	switch w := want.(type) {
	case map[string]any:
		g, ok := got.(map[string]any)
		if !ok {
			return got
		}
		out := map[string]any{}
		for k, v := range w {
			if x, ok := g[k]; ok {
				out[k] = pick(x, v)
			}
		}
		return out
	case []any:
		g, ok := got.([]any)
		if !ok || len(g) != len(w) {
			return got
		}
		out := make([]any, len(g))
		for i := range g {
			out[i] = pick(g[i], w[i])
		}
		return out
	}
	return got
}

func TestShowJSONOf9(t *testing.T) {
	st, def := synthetic("uptodate")
	r := Of(st, def, map[int]int{0: 1000}, began)
	r.Connections[0].Paths = nil // as in the recording
	plan := planOf(t, `resource some-resource { options { on-no-quorum suspend-io; auto-promote yes; } net { ping-int 10; }
		disk { al-extents 1237; max-bio-size 1048576; c-max-rate 102400k; c-min-rate 250k; }
		on me { node-id 4; device /dev/drbd1000; disk /dev/sda; meta-disk internal; address 1.2.3.4:7789; }
		on some-peer { node-id 1; device /dev/drbd1000; disk /dev/sda; meta-disk internal; address 5.6.7.8:7790; } }`, "me", "some-resource")
	var b bytes.Buffer
	if err := ShowJSON(&b, []Shown{{R: r, Plan: plan}}, true); err != nil {
		t.Fatal(err)
	}
	var got, want any
	if err := json.Unmarshal(b.Bytes(), &got); err != nil {
		t.Fatalf("%v\n%s", err, b.String())
	}
	if err := json.Unmarshal([]byte(recorded(t, "drbd9", "show.json.out")), &want); err != nil {
		t.Fatal(err)
	}
	if got := pick(got, want); !reflect.DeepEqual(got, want) {
		t.Errorf("%v\nrecorded:\n%v", got, want)
	}
	b.Reset()
	if err := ShowJSON(&b, nil, false); err != nil {
		t.Fatal(err)
	}
	same(t, "show.emptyjson", b.String(), recorded(t, "drbd9", "show.emptyjson.out"))
	b.Reset()
	if err := Show(&b, nil, false, false); err != nil {
		t.Fatal(err)
	}
	same(t, "show.empty", b.String(), recorded(t, "drbd9", "show.empty.out"))
}

// TestShowOf84 prints the configuration that the recorded pair ran by.
func TestShowOf84(t *testing.T) {
	r := kernel84(t, "kernel84/connected-uptodate/da")
	r.Devices[0].Backing = "/dev/vda"
	r.Connections[0].Paths = []Path{{Local: Address{"ipv4", "10.77.0.21", 7788}, Peer: Address{"ipv4", "10.77.0.22", 7788}}}
	plan := planOf(t, `resource r0 { on da { device /dev/drbd0; disk /dev/vda; meta-disk internal; address 10.77.0.21:7788; }
		on db { device /dev/drbd0; disk /dev/vda; meta-disk internal; address 10.77.0.22:7788; } }`, "da", "r0")
	var b bytes.Buffer
	if err := Show(&b, []Shown{{*r, plan}}, false, true); err != nil {
		t.Fatal(err)
	}
	same(t, "show", b.String(), recorded(t, "kernel84", "connected-uptodate", "da", "setup-show.txt"))
}

func TestRefusals(t *testing.T) {
	for _, c := range []struct {
		err  error
		exit int
		text string
	}{
		{nil, 0, ""},
		{control.Errorf(control.NotFound, "x"), 10, "r0: Failure: (158) Unknown resource\n"},
		{control.Errorf(control.NotRunning, "it is down").On("r0", control.All, ""), 10, "r0: Failure: (158) Unknown resource\n"},
		{control.Errorf(control.NotRunning, "the agent is not running"), 20, "r0: the agent is not running\n"},
		{control.Errorf(control.PeerPrimary, "x"), 11, "r0: State change failed: (-1) Multiple primaries not allowed by config\n"},
		{control.Errorf(control.Bound, "x"), 11, "r0: State change failed: (-10)"},
		{control.Errorf(control.InUse, "x"), 11, "r0: State change failed: (-12) Device is held open by someone\n"},
		{control.Errorf(control.NotUpToDate, "x").WithHint("y"), 17, "r0: State change failed: (-2) Need access to UpToDate data\nadditional info from kernel:\nx\nnext: y\n"},
		{control.Errorf(control.NoLicence, "x"), 17, "r0: State change failed: (-2)"},
		{control.Errorf(control.PeerUnknown, "x"), 17, "r0: State change failed: (-7) Refusing to be Primary while peer is not outdated\n"},
		{control.Errorf(control.NoDisk, "x"), 16, "r0: Failure: (138)"},
		{control.Errorf(control.NoMetadata, "x"), 10, "r0: Failure: (119)"},
		{control.Errorf(control.Unknown, "x"), 20, "r0: x\n"},
		{control.Errorf(control.Failed, "x"), 20, "r0: x\n"},
	} {
		exit, text := Refusal("r0", c.err)
		if exit != c.exit || !strings.HasPrefix(text, c.text) {
			t.Errorf("%v: %d %q, want %d %q", c.err, exit, text, c.exit, c.text)
		}
	}
}

func TestMinorsAreStable(t *testing.T) {
	def := func(name, link string, volumes ...int) *control.Definition {
		d := &control.Definition{Name: name}
		for _, v := range volumes {
			d.Volumes = append(d.Volumes, control.VolumeDef{Number: v, DevLink: link})
		}
		return d
	}
	alone := Minors([]*control.Definition{def("a", "", 0, 1)})
	both := Minors([]*control.Definition{def("z", "/dev/drbd7", 0), def("a", "", 0, 1), def("k", "/dev/mine", 0)})
	if !reflect.DeepEqual(alone["a"], both["a"]) {
		t.Errorf("a resource beside changes minors: %v, %v", alone, both)
	}
	if both["z"][0] != 7 {
		t.Errorf("/dev/drbd7 has the minor %d", both["z"][0])
	}
	seen := map[int]bool{}
	for _, v := range both {
		for _, n := range v {
			if seen[n] || n < 0 || n >= minorsTo {
				t.Errorf("minor %d twice, or out of range", n)
			}
			seen[n] = true
		}
	}
	// Two volumes may not have one device; the second gets a number of its own.
	if twice := Minors([]*control.Definition{def("a", "/dev/drbd7", 0), def("b", "/dev/drbd7", 0)}); twice["a"][0] == twice["b"][0] {
		t.Errorf("one minor for two volumes: %v", twice)
	}
}

func TestSuspendedKeepsToTheWordsOfDRBD(t *testing.T) {
	got := suspended([]string{"licence", "insync", "user", "fencing", "no-data"})
	if want := []string{"user", "no-data", "fencing", "quorum"}; !reflect.DeepEqual(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}

func TestPromotionScore(t *testing.T) {
	good := func() Resource {
		return Resource{Role: "Secondary", Devices: []Device{{Disk: "UpToDate", Quorum: true}},
			Connections: []Connection{{State: "Connected", PeerRole: "Secondary", PeerDevices: []PeerDevice{{Replication: "Established", Disk: "UpToDate"}}}}}
	}
	for name, c := range map[string]struct {
		change func(r *Resource)
		may    bool
		score  int
	}{
		"healthy":             {func(*Resource) {}, true, 10102},
		"primary here":        {func(r *Resource) { r.Role = "Primary" }, false, 10102},
		"primary there":       {func(r *Resource) { r.Connections[0].PeerRole = "Primary" }, false, 10102},
		"only theirs":         {func(r *Resource) { r.Devices[0].Disk = "Inconsistent" }, true, 10001},
		"diskless":            {func(r *Resource) { r.Devices[0].Disk = "Diskless" }, true, 1},
		"alone":               {func(r *Resource) { r.Connections = nil }, true, 10101},
		"alone and outdated":  {func(r *Resource) { r.Connections, r.Devices[0].Disk = nil, "Outdated" }, false, 0},
		"no quorum":           {func(r *Resource) { r.Devices[0].Quorum = false }, false, 0},
		"not in the set":      {func(r *Resource) { r.MayNotPromote = true }, false, 10102},
		"no volume":           {func(r *Resource) { r.Devices = nil }, false, 0},
		"forced I/O failures": {func(r *Resource) { r.ForceIOFailures = true }, false, 0},
	} {
		r := good()
		c.change(&r)
		if may, score := r.Promotion(); may != c.may || score != c.score {
			t.Errorf("%s: %v %d, want %v %d", name, may, score, c.may, c.score)
		}
	}
}
