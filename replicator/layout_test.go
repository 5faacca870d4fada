package replicator

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hawser-ha/hawser/replicator/control"
	"github.com/hawser-ha/hawser/replicator/disk"
	"github.com/hawser-ha/hawser/replicator/meta"
)

// TestMetadataPlaces: a volume lives with its metadata on a file of its own and in an area of a shared one.
func TestMetadataPlaces(t *testing.T) {
	for _, k := range []struct {
		name  string
		index int
		size  int64 // of a meta disk made beforehand, bytes
	}{{"external", -1, 0}, {"indexed", 1, 256 << 20}} {
		t.Run(k.name, func(t *testing.T) {
			dir := t.TempDir()
			def := definition(dir, "a", 0)
			v := &def.Volumes[0]
			v.MetaDisk, v.MetaIndex = filepath.Join(dir, "md"), k.index
			if k.size > 0 {
				must(t, makeSparse(v.MetaDisk, k.size))
			}
			createMD(t, &def)
			a := start(t, def)
			must(t, a.Up(ctxFor(t)))
			must(t, a.Promote(ctxFor(t), true))
			if got := a.vols[0].Size(); got != 64<<20 {
				t.Errorf("%d bytes for data", got)
			}
			a.open(t).write(0, fill(1, 4096))
			if _, err := CreateMD(testLog(t, "a"), &def, control.CreateMDOptions{Volume: control.All, Force: true}); !errors.Is(err, control.DiskInUse) {
				t.Errorf("metadata of a disk in use: %v", err)
			}
			must(t, a.Down(ctxFor(t), true))
			b := start(t, def)
			must(t, b.Up(ctxFor(t)))
			b.until(t, "good data", diskState("UpToDate"))
			var out strings.Builder
			must(t, b.DumpMD(ctxFor(t), 0, &out))
			if !strings.Contains(out.String(), "la-size-sect 131072;") {
				t.Errorf("dump: %s", out.String())
			}
		})
	}
}

// TestAdoptV08: metadata of DRBD 8.4 is converted only when asked to, and keeps its generation.
func TestAdoptV08(t *testing.T) {
	a, _ := pairDefinitions(t, nil)
	must(t, makeSparse(a.Volumes[0].Disk, 64<<20))
	s, err := disk.Open(testLog(t, "a"), disk.Options{Path: a.Volumes[0].Disk})
	must(t, err)
	dev := &mdDevice{Store: s}
	must(t, meta.Create(0, dev, meta.CreateOptions{Kind: meta.Internal, Version: 8}))
	md, err := meta.Open(0, dev, meta.Internal, 0)
	must(t, err)
	sb := md.Super()
	sb.Current, sb.Flags, sb.EffectiveSize = 0x1234567890abcdee, sb.Flags|meta.FlagConsistent|meta.FlagWasUpToDate, uint64(md.Layout().Capacity)
	must(t, md.WriteSuper(sb))
	must(t, s.Close())

	n := start(t, a)
	if err := n.Attach(ctxFor(t), 0); !errors.Is(err, control.Confirm) {
		t.Fatalf("converted without being asked: %v", err)
	}
	n.stop(t)
	for _, dry := range []bool{true, false, false} { // the last finds nothing to do
		did, err := ConvertMD(testLog(t, "a"), &a, control.ConvertMDOptions{Volume: control.All, To: 9, DryRun: dry})
		must(t, err)
		t.Logf("%+v", did)
	}
	n = start(t, a)
	must(t, n.Attach(ctxFor(t), 0))
	gi, err := n.ShowGI(ctxFor(t), 0)
	must(t, err)
	if gi.Current != 0x1234567890abcdee || !gi.Consistent {
		t.Errorf("generation %+v", gi)
	}
	n.stop(t)
	if _, err := ConvertMD(testLog(t, "a"), &a, control.ConvertMDOptions{Volume: control.All, To: 7}); !errors.Is(err, control.Usage) {
		t.Errorf("version 7: %v", err)
	}
	back, err := ConvertMD(testLog(t, "a"), &a, control.ConvertMDOptions{Volume: 0, To: 8})
	must(t, err)
	if want := (control.ConvertMDResult{Volume: 0, Disk: a.Volumes[0].Disk, From: 9, To: 8, Current: gi.Current, Converted: true}); len(back) != 1 || back[0] != want {
		t.Errorf("%+v, want %+v", back, want)
	}
	n = start(t, a)
	if err := n.Attach(ctxFor(t), 0); !errors.Is(err, control.Confirm) {
		t.Errorf("attached metadata of version 8: %v", err)
	}
}

// TestDrbdmetaReadsOurDisk: the tool of DRBD takes what we wrote for its own.
func TestDrbdmetaReadsOurDisk(t *testing.T) {
	if _, err := exec.LookPath("drbdmeta"); err != nil {
		t.Fatalf("install drbd-utils (make deps): %v", err)
	}
	if os.Geteuid() != 0 {
		t.Skip("drbdmeta reads block devices only, and a loop device needs root")
	}
	a, b := upPair(t, nil)
	c := a.open(t)
	c.write(0, fill(1, 4096))
	c.s.Close()
	must(t, a.Down(ctxFor(t), false))
	must(t, b.Down(ctxFor(t), false))
	loop, err := exec.Command("losetup", "--find", "--show", a.def.Volumes[0].Disk).Output()
	if err != nil {
		t.Skipf("no loop device: %v", err)
	}
	dev := strings.TrimSpace(string(loop))
	defer func() { _ = exec.Command("losetup", "--detach", dev).Run() }()
	out, err := exec.Command("drbdmeta", "--force", "250", "v09", dev, "internal", "dump-md").CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	gi := a.Status().Volumes[0].GI
	if !strings.Contains(string(out), "0x"+gi.Current.String()) {
		t.Errorf("current UUID %s is not in %s", gi.Current, out)
	}
}

// TestPrimaryCrash: what may have been in flight is resynced, and both disks are the same again.
func TestPrimaryCrash(t *testing.T) {
	a, b := upPair(t, nil)
	c := a.open(t)
	for i := range 64 {
		c.write(int64(i)<<19, fill(byte(i), 4096))
	}
	a.stop(t)
	b.until(t, "lost peer", func(s *control.Status) bool { return s.Peers[0].Connection != "Connected" })
	must(t, b.Promote(ctxFor(t), false))
	d := b.open(t)
	d.expect(63<<19, fill(63, 4096))
	d.write(1<<20, fill(0x77, 4096))
	a = start(t, a.def)
	must(t, a.Up(ctxFor(t)))
	a.until(t, "resync", upToDate)
	b.until(t, "resync", upToDate)
	d.s.Close()
	must(t, b.Down(ctxFor(t), false))
	must(t, a.Down(ctxFor(t), false))
	sameData(t, a, b)
}

// TestTwoVolumes: volumes of one resource share a connection and nothing else.
func TestTwoVolumes(t *testing.T) {
	da, db := pairDefinitions(t, nil)
	for _, d := range []*control.Definition{&da, &db} {
		v := d.Volumes[0]
		v.Number, v.Disk = 7, v.Disk+".7"
		d.Volumes = append(d.Volumes, v)
		createMD(t, d)
	}
	a, b := start(t, da), start(t, db)
	must(t, a.Up(ctxFor(t)))
	must(t, b.Up(ctxFor(t)))
	a.until(t, "connection", func(s *control.Status) bool { return s.Peers[0].Connection == "Connected" })
	must(t, a.Promote(ctxFor(t), true))
	both := func(s *control.Status) bool {
		for _, v := range s.Peers[0].Volumes {
			if v.DiskState != "UpToDate" || v.Replication != "Established" {
				return false
			}
		}
		return s.Volumes[0].DiskState == "UpToDate" && s.Volumes[1].DiskState == "UpToDate"
	}
	a.until(t, "sync of both", both)
	b.until(t, "sync of both", both)
	c0 := a.open(t)
	s1, err := a.vols[1].Open(nil, nil)
	must(t, err)
	c1 := &client{t, c0.pool, s1}
	for i := range 50 {
		c0.write(int64(i)*4096, fill(byte(i), 4096))
		c1.write(int64(i)*8192, fill(byte(100+i), 4096))
	}
	c0.s.Close()
	c1.s.Close()
	must(t, a.Demote(ctxFor(t), false))
	b.until(t, "secondary peer", func(s *control.Status) bool { return s.Peers[0].Role == "Secondary" })
	must(t, b.Promote(ctxFor(t), false))
	s1, err = b.vols[1].Open(nil, nil)
	must(t, err)
	d1 := &client{t, c0.pool, s1}
	for i := range 50 {
		d1.expect(int64(i)*8192, fill(byte(100+i), 4096))
	}
}

// TestGrow: both disks grow under use, and the volume follows without an error for its users.
func TestGrow(t *testing.T) {
	da, db := pairDefinitions(t, nil)
	for _, d := range []*control.Definition{&da, &db} {
		d.Volumes[0].Size = 0
		must(t, makeSparse(d.Volumes[0].Disk, 64<<20))
		d.Volumes[0].MetaDisk = d.Volumes[0].Disk + ".md"
		createMD(t, d)
	}
	a, b := start(t, da), start(t, db)
	must(t, a.Up(ctxFor(t)))
	must(t, b.Up(ctxFor(t)))
	a.until(t, "connection", func(s *control.Status) bool { return s.Peers[0].Connection == "Connected" })
	must(t, a.Promote(ctxFor(t), true))
	a.until(t, "sync", upToDate)
	b.until(t, "sync", upToDate)
	c := a.open(t)
	c.write(0, fill(1, 4096))
	must(t, os.Truncate(da.Volumes[0].Disk, 128<<20))
	must(t, os.Truncate(db.Volumes[0].Disk, 128<<20))
	must(t, b.Resize(ctxFor(t), 0, 0, false))
	must(t, a.Resize(ctxFor(t), 0, 0, false))
	grown := func(s *control.Status) bool { return upToDate(s) && s.Volumes[0].Size == 128<<20 }
	a.until(t, "new size", grown)
	b.until(t, "new size", grown)
	c.write(100<<20, fill(2, 4096))
	c.expect(100<<20, fill(2, 4096))
	c.expect(0, fill(1, 4096))
	c.s.Close()
	must(t, a.Down(ctxFor(t), false))
	must(t, b.Down(ctxFor(t), false))
	sameData(t, a, b)
}

// TestGrownWhileDown: internal metadata is found where the disk ended before, and moves to the new end.
func TestGrownWhileDown(t *testing.T) {
	dir := t.TempDir()
	def := definition(dir, "a", 0)
	createMD(t, &def)
	def.Volumes[0].Size = 0
	opts := Options{StateDir: filepath.Join(dir, "state")}
	a := startOpts(t, def, opts)
	must(t, a.Up(ctxFor(t)))
	must(t, a.Promote(ctxFor(t), true))
	a.open(t).write(8<<20, fill(5, 4096))
	must(t, a.Down(ctxFor(t), true))
	must(t, os.Truncate(def.Volumes[0].Disk, 128<<20))
	a = startOpts(t, def, opts)
	must(t, a.Up(ctxFor(t)))
	must(t, a.Promote(ctxFor(t), false))
	must(t, a.Resize(ctxFor(t), 0, 0, false))
	a.until(t, "new size", func(s *control.Status) bool { return s.Volumes[0].Size > 120<<20 })
	c := a.open(t)
	c.expect(8<<20, fill(5, 4096))
	c.write(100<<20, fill(6, 4096))
	c.expect(100<<20, fill(6, 4096))
}
