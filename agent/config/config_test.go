package config

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/hawser-ha/hawser/replicator/control"
)

const minimal = `resource: r0
nodes:
  - {name: alpha, address: "10.1.0.1:7789"}
  - {name: beta, address: "10.1.0.2:7789"}
volumes:
  - disk: /dev/vg/r0
`

func parseOne(t *testing.T, yaml string) Resource {
	t.Helper()
	rs, err := Parse("r0.yaml", []byte(yaml))
	if err != nil || len(rs) != 1 {
		t.Fatalf("%d resources, %v", len(rs), err)
	}
	return rs[0]
}

func define(t *testing.T, yaml, node string) control.Definition {
	t.Helper()
	r := parseOne(t, yaml)
	d, err := r.Definition(node)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func TestDefaults(t *testing.T) {
	d := define(t, minimal, "beta")
	want := control.Definition{
		Name: "r0", Node: "beta", NodeID: 1,
		Volumes: []control.VolumeDef{{Device: "auto", Disk: "/dev/vg/r0", MetaDisk: "internal", MetaIndex: -1,
			Opts: control.DiskOpts{OnIOError: "detach", DiskFlushes: true, MDFlushes: true, ALExtents: 1237, ALUpdates: true,
				ReadBalancing: "prefer-local", DirectIO: "auto"}}},
		Peers: []control.PeerDef{{Name: "alpha", Local: "10.1.0.2:7789", Remote: "10.1.0.1:7789",
			Net: control.NetOpts{Protocol: "C", Timeout: 6 * time.Second, PingInt: 10 * time.Second, PingTimeout: 500 * time.Millisecond,
				ConnectInt: 10 * time.Second, KOCount: 7, MaxEpochSize: 2048, MaxBuffers: 16384, AfterSB0Pri: "disconnect",
				AfterSB1Pri: "disconnect", AfterSB2Pri: "disconnect", RRConflict: "disconnect", OnCongestion: "block",
				CongestionExtents: 1237, UseRLE: true, Fencing: "dont-care"},
			Resync: control.ResyncOpts{ResyncRate: 250, CPlanAhead: 20, CDelayTarget: 10, CMaxRate: 4194304, CMinRate: 20480}}},
		Options: control.ResourceOpts{OnNoDataAccessible: "io-error", OnNoQuorum: "suspend-io", UndoLog: "/var/lib/hawser/undo", UndoLogMax: 1 << 30},
		NBD:     control.NBDDef{Unix: "/run/hawser/nbd/r0.sock"},
	}
	if !reflect.DeepEqual(d, want) {
		t.Errorf("got  %+v\nwant %+v", d, want)
	}
}

// Every default is inside its own range, and every option has a place.
func TestTable(t *testing.T) {
	seen := map[string]bool{}
	for i := range table {
		o := &table[i]
		if _, why := o.parse(o.def); o.def != "" && why != "" {
			t.Errorf("%s: default %s", o.name, why)
		}
		if o.set == nil {
			t.Errorf("%s is not used", o.name)
		}
		if seen[o.section.String()+o.name] {
			t.Errorf("%s stands twice", o.name)
		}
		seen[o.section.String()+o.name] = true
		if _, no := refused[o.name]; no {
			t.Errorf("%s is refused and taken", o.name)
		}
	}
}

const three = `resource: r0
nodes:
  - {name: alpha, address: "10.1.0.1:7789", node-id: 4}
  - {name: beta, address: "10.1.0.2:7789", node-id: 2, volumes: [{volume: 1, disk: /dev/sdz, disk-options: {al-extents: 300}}]}
  - {name: gamma.example.com, address: "10.1.0.3:7789", node-id: 3, diskless: true, nbd: {listen: "10.1.0.3:10809"}}
  - {name: delta, address: "10.1.0.4:7789", node-id: 9}
volumes:
  - {volume: 1, disk: /dev/vg/r1, meta-disk: "/dev/vg/md[2]", device: "fuse /dev/drbd1", size: 10G, disk-options: {al-extents: 6007, md-flushes: no}}
  - {volume: 0, disk: /files/r0.img, meta-disk: /files/r0.md, device: /dev/drbd0}
net: {protocol: a, timeout: 50, after-sb-0pri: discard-node-beta}
disk: {c-max-rate: 10M, al-extents: 500, disk-timeout: 3s, resync-rate: 100s}
options: {undo-log: none}
connections:
  - nodes: [beta, alpha]
    addresses: {alpha: "10.2.0.1:7789", beta: "[fd00::2]:7789"}
    net: {protocol: C}
    disk: {c-min-rate: 1M, c-plan-ahead: 500ms}
`

func TestDefinitionOfThree(t *testing.T) {
	alpha, beta, gamma := define(t, three, "alpha"), define(t, three, "BETA.example.com"), define(t, three, "gamma")
	for _, tc := range []struct {
		rule      string
		got, want any
	}{
		{"a node is found without its domain and in any case", []string{beta.Node, gamma.Node}, []string{"beta", "gamma.example.com"}},
		{"peers stand in the order of their ids", []int{alpha.Peers[0].NodeID, alpha.Peers[1].NodeID, alpha.Peers[2].NodeID}, []int{2, 3, 9}},
		{"only peers with a disk have a bitmap slot", []int{alpha.Peers[0].BitmapSlot, alpha.Peers[1].BitmapSlot, alpha.Peers[2].BitmapSlot}, []int{0, -1, 1}},
		{"volumes stand in the order of their numbers", []int{alpha.Volumes[0].Number, alpha.Volumes[1].Number}, []int{0, 1}},
		{"the connection's protocol goes before the resource's", []string{alpha.Peers[0].Net.Protocol, alpha.Peers[2].Net.Protocol}, []string{"C", "A"}},
		{"the connection's addresses go before the nodes'", []string{beta.Peers[1].Local, beta.Peers[1].Remote}, []string{"[fd00::2]:7789", "10.2.0.1:7789"}},
		{"other pairs use the nodes' own", []string{beta.Peers[0].Local, beta.Peers[0].Remote}, []string{"10.1.0.2:7789", "10.1.0.3:7789"}},
		{"discard-node-NAME is discard-local there", beta.Peers[1].Net.AfterSB0Pri, "discard-local"},
		{"and discard-remote on its peer", alpha.Peers[0].Net.AfterSB0Pri, "discard-remote"},
		{"and disconnect between others", alpha.Peers[2].Net.AfterSB0Pri, "disconnect"},
		{"a node's disk goes before the resource's", []string{alpha.Volumes[1].Disk, beta.Volumes[1].Disk, gamma.Volumes[1].Disk}, []string{"/dev/vg/r1", "/dev/sdz", ""}},
		{"node's volume > volume > resource", []int{beta.Volumes[1].Opts.ALExtents, alpha.Volumes[1].Opts.ALExtents, alpha.Volumes[0].Opts.ALExtents}, []int{300, 6007, 500}},
		{"an override keeps the rest", beta.Volumes[1].Opts.MDFlushes, false},
		{"an indexed meta-disk", []any{alpha.Volumes[1].MetaDisk, alpha.Volumes[1].MetaIndex}, []any{"/dev/vg/md", 2}},
		{"a flexible meta-disk", []any{alpha.Volumes[0].MetaDisk, alpha.Volumes[0].MetaIndex}, []any{"/files/r0.md", -1}},
		{"a kind and a name of the device", []string{alpha.Volumes[1].Device, alpha.Volumes[1].DevLink}, []string{"fuse", "/dev/drbd1"}},
		{"a name alone leaves the kind open", []string{alpha.Volumes[0].Device, alpha.Volumes[0].DevLink}, []string{"auto", "/dev/drbd0"}},
		{"sizes are bytes", alpha.Volumes[1].Size, int64(10 << 30)},
		{"plain times are in drbd.conf's unit", alpha.Peers[0].Net.Timeout, 5 * time.Second},
		{"others say theirs", []any{alpha.Volumes[0].Opts.DiskTimeout, alpha.Peers[0].Resync.CPlanAhead}, []any{3 * time.Second, 5}},
		{"rates are KiB/s, s is sectors", []int{alpha.Peers[0].Resync.ResyncRate, alpha.Peers[0].Resync.CMaxRate, alpha.Peers[0].Resync.CMinRate}, []int{50, 10240, 1024}},
		{"the default c-min-rate gives way to c-max-rate", alpha.Peers[2].Resync.CMinRate, 10240},
		{"none turns the undo log off", alpha.Options.UndoLog, ""},
		{"nbd of a node", []string{alpha.NBD.Listen, gamma.NBD.Listen}, []string{"", "10.1.0.3:10809"}},
		{"a peer without disks is diskless", []bool{alpha.Peers[0].Diskless, alpha.Peers[1].Diskless}, []bool{false, true}},
	} {
		if !reflect.DeepEqual(tc.got, tc.want) {
			t.Errorf("%s: %v, want %v", tc.rule, tc.got, tc.want)
		}
	}
	r := parseOne(t, three)
	if _, err := r.Definition("omega"); err == nil || !strings.Contains(err.Error(), "node omega is not part of resource r0") {
		t.Error(err)
	}
}

func TestValues(t *testing.T) {
	for _, tc := range []struct {
		option, text string
		want         int64 // -1: refused
	}{
		{"max-buffers", "8k", 8192},
		{"max-buffers", "8KiB", 8192},
		{"max-buffers", "8kB", -1},
		{"resync-rate", "40M", 40960},
		{"resync-rate", "40MiB/s", 40960},
		{"resync-rate", "10240", 10240},
		{"resync-rate", "3s", 2},
		{"resync-rate", "10/s", 10},
		{"resync-rate", "0", -1},
		{"c-max-rate", "4G", 4194304},
		{"c-fill-target", "1M", 2048},
		{"c-fill-target", "100s", 100},
		{"sndbuf-size", "0", 0},
		{"sndbuf-size", "1.5M", -1},
		{"sndbuf-size", "0x10", -1},
		{"sndbuf-size", "10 K", -1},
		{"sndbuf-size", "18014398509481984K", -1},
		{"sndbuf-size", "99999999999999999999", -1},
		{"timeout", "60", 60},
		{"timeout", "6s", 60},
		{"timeout", "0.5s", 5},
		{"timeout", "60m", -1},
		{"timeout", "-6s", -1},
		{"timeout", "0", -1},
		{"ping-int", "1m", 60},
		{"ping-int", "500ms", -1},
	} {
		o := findOption(tc.option, inNet, inDisk, inResync)
		v, why := o.parse(tc.text)
		if why != "" {
			v.n = -1
		}
		if v.n != tc.want {
			t.Errorf("%s %s: %d %s, want %d", tc.option, tc.text, v.n, why, tc.want)
		}
	}
}

func TestMarshalRoundTrip(t *testing.T) {
	sample, err := os.ReadFile("../../etc/resources.d/r0.yaml")
	if err != nil {
		t.Fatal(err)
	}
	for _, text := range []string{minimal, three, string(sample)} {
		r := parseOne(t, text)
		again := parseOne(t, string(Marshal(r)))
		if !same(r, again) {
			t.Errorf("got  %+v\nwant %+v\nfrom\n%s", again, r, Marshal(r))
		}
	}
	golden(t, "testdata/three.golden.yaml", string(Marshal(parseOne(t, three))))
}

func same(a, b Resource) bool {
	a.at, b.at, a.File, b.File = nil, nil, "", ""
	return reflect.DeepEqual(a, b)
}

func FuzzParse(f *testing.F) {
	files, err := filepath.Glob("testdata/bad/*.yaml")
	if err != nil {
		f.Fatal(err)
	}
	for _, file := range append(files, "../../etc/resources.d/r0.yaml") {
		data, err := os.ReadFile(file)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data)
	}
	f.Add([]byte(minimal))
	f.Add([]byte(three))
	f.Fuzz(func(t *testing.T, data []byte) {
		rs, err := Parse("fuzz.yaml", data)
		for _, e := range Errors(err) {
			if e.Reason == "" {
				t.Errorf("an empty complaint: %+v", e)
			}
		}
		for _, r := range rs {
			text := Marshal(r)
			again, err := Parse("again.yaml", text)
			if err != nil || len(again) != 1 || !same(r, again[0]) {
				t.Fatalf("%v\n%s\ngot  %+v\nwant %+v", err, text, again, r)
			}
			if again := Marshal(again[0]); !bytes.Equal(again, text) {
				t.Fatalf("not canonical:\n%s\n%s", text, again)
			}
			for _, n := range r.Nodes {
				if _, err := r.Definition(n.Name); err != nil {
					t.Fatal(err)
				}
			}
		}
	})
}

func TestLoad(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	edit := func(pairs ...string) string { return strings.NewReplacer(pairs...).Replace(minimal) }
	write("a.yaml", minimal+"---\n"+edit("r0", "r1", "7789", "7790"))
	write("b.yaml", edit("r0\nn", "r2\nn", "10.1.0.1:7789", "10.1.0.1:7791", "10.1.0.2:7789", "10.1.0.2:7790"))
	write("c.yaml", edit("7789", "7792", "/dev/vg/r0", "/dev/vg/r3"))
	write("d.yaml", edit("r0", "r4", "7789", "7793", "alpha", "al pha"))
	write("e.yaml", edit("r0", "r5", "7789", "7794")+"nbd: {listen: \"10.1.0.1:7790\"}\n")
	write("notes.txt", "not for us")
	s, err := Load(dir)
	var got []string
	for _, e := range Errors(err) {
		got = append(got, strings.ReplaceAll(e.Error(), dir+"/", ""))
	}
	golden(t, "testdata/load.golden", strings.Join(got, "\n")+"\n")
	if n := s.Names(); !reflect.DeepEqual(n, []string{"r0", "r1"}) {
		t.Errorf("%v are right", n)
	}
	if r, ok := s.Resource("r1"); !ok || r.File != filepath.Join(dir, "a.yaml") {
		t.Error("r1 not found")
	}
	if n := len(s.On("beta")); n != 2 {
		t.Errorf("%d resources on beta", n)
	}
	if s, err := Load(filepath.Join(dir, "none")); s != nil || !errors.Is(err, os.ErrNotExist) {
		t.Error(s, err)
	}
}

func TestSampleResources(t *testing.T) {
	s, err := Load("../../etc/resources.d")
	if err != nil {
		t.Fatal(err)
	}
	r, ok := s.Resource("r0")
	if !ok {
		t.Fatal("no r0")
	}
	if d, err := r.Definition("alpha"); err != nil || d.Volumes[0].DevLink != "/dev/drbd0" {
		t.Error(d, err)
	}
}

type sizes map[string]int64

func (s sizes) Size(path string) (int64, error) {
	if n, ok := s[path]; ok {
		return n, nil
	}
	return 0, os.ErrNotExist
}

func TestCheckDisks(t *testing.T) {
	const mib = 1 << 20
	internal := control.VolumeDef{Disk: "/d", MetaDisk: "internal", MetaIndex: -1}
	flexible := control.VolumeDef{Disk: "/d", MetaDisk: "/m", MetaIndex: -1}
	index := control.VolumeDef{Disk: "/d", MetaDisk: "/m", MetaIndex: 1}
	sized := func(v control.VolumeDef, n int64) control.VolumeDef { v.Size = n; return v }
	for _, tc := range []struct {
		rule string
		v    control.VolumeDef
		s    sizes
		want string // part of the error
	}{
		{"a disk for data and metadata", internal, sizes{"/d": 64 * mib}, ""},
		{"a disk too small for metadata", internal, sizes{"/d": 512 << 10}, "too small for internal metadata"},
		{"a size that leaves no room for metadata", sized(internal, 64*mib), sizes{"/d": 64 * mib}, "size wants"},
		{"a size that just fits", sized(internal, 64*mib-MetadataSize(64*mib, 2)), sizes{"/d": 64 * mib}, ""},
		{"one block more", sized(internal, 64*mib-MetadataSize(64*mib, 2)+4096), sizes{"/d": 64 * mib}, "size wants"},
		{"a disk that is not there", internal, sizes{}, "not exist"},
		{"a meta device that is not there", flexible, sizes{"/d": mib}, "not exist"},
		{"a meta device for this much", flexible, sizes{"/d": 10 << 30, "/m": mib}, ""},
		{"a meta device too small for the bitmaps", flexible, sizes{"/d": 1 << 40, "/m": mib}, "has room for"},
		{"unless the size is limited", sized(flexible, 1<<30), sizes{"/d": 1 << 40, "/m": mib}, ""},
		{"a size above the disk", sized(flexible, 1<<41), sizes{"/d": 1 << 40, "/m": mib}, "size wants"},
		{"a meta device below the minimum", flexible, sizes{"/d": mib, "/m": mib - 512}, "needs 1048576 at least"},
		{"a slot behind the end", index, sizes{"/d": mib, "/m": 255 * mib}, "index 1 needs"},
		{"a slot that is there", index, sizes{"/d": mib, "/m": 256 * mib}, ""},
		{"a slot too small for the disk", index, sizes{"/d": 16 << 40, "/m": 256 * mib}, "take flexible metadata"},
		{"a diskless volume", control.VolumeDef{MetaIndex: -1}, sizes{}, ""},
	} {
		d := control.Definition{Name: "r0", Volumes: []control.VolumeDef{tc.v}, Peers: []control.PeerDef{{}, {Diskless: true}, {}}}
		err := CheckDisks(d, tc.s)
		if (err == nil) != (tc.want == "") || err != nil && !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: %v", tc.rule, err)
		}
	}
	// The sizes drbdmeta makes (md_size in sectors).
	for _, tc := range []struct {
		disk  int64
		slots int
		want  int64
	}{{64 * mib, 1, 80}, {130*mib + 5*512, 1, 88}, {64 * mib, 3, 88}} {
		if got := MetadataSize(tc.disk, tc.slots) / 512; got != tc.want {
			t.Errorf("%d bytes, %d peers: %d sectors, want %d", tc.disk, tc.slots, got, tc.want)
		}
	}
}
