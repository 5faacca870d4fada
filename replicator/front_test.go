package replicator

import (
	"bytes"
	"errors"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/hawser-ha/hawser/replicator/control"
	"github.com/hawser-ha/hawser/replicator/export/hostdev"
	"github.com/hawser-ha/hawser/replicator/undo"
)

// TestNBD: an unmodified client sees the volume while it is Primary, and only then.
func TestNBD(t *testing.T) {
	for _, tool := range []string{"nbdcopy", "nbdinfo"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Fatalf("install libnbd-bin (make deps): %v", err)
		}
	}
	dir := t.TempDir()
	def := definition(dir, "a", 0)
	def.NBD.Unix = filepath.Join(dir, "nbd.sock")
	createMD(t, &def)
	a := start(t, def)
	must(t, a.Up(ctxFor(t)))
	uri := "nbd+unix:///r0/0?socket=" + def.NBD.Unix
	a.until(t, "server", func(*control.Status) bool {
		c, err := net.Dial("unix", def.NBD.Unix)
		if err == nil {
			c.Close()
		}
		return err == nil
	})
	if out, err := exec.Command("nbdinfo", "--size", uri).CombinedOutput(); err == nil {
		t.Fatalf("a Secondary answered: %s", out)
	}
	must(t, a.Promote(ctxFor(t), true))
	src, dst := filepath.Join(dir, "src"), filepath.Join(dir, "dst")
	data := bytes.Repeat([]byte("hawser! "), 5<<20/8)
	must(t, os.WriteFile(src, data, 0o600))
	for _, args := range [][]string{{src, uri}, {uri, dst}} {
		if out, err := exec.Command("nbdcopy", args...).CombinedOutput(); err != nil {
			t.Fatalf("nbdcopy %v: %v: %s", args, err, out)
		}
	}
	got, err := os.ReadFile(dst)
	must(t, err)
	if int64(len(got)) != a.vols[0].Size() || !bytes.Equal(got[:len(data)], data) {
		t.Error("what came back is not what was written")
	}
	must(t, a.Demote(ctxFor(t), false))
	if out, err := exec.Command("nbdinfo", "--size", uri).CombinedOutput(); err == nil {
		t.Fatalf("a Secondary answered: %s", out)
	}
}

// TestFUSEDevice: the volume is a block device under /dev/hawser, and is not demoted while it is mounted or open.
func TestFUSEDevice(t *testing.T) {
	for _, f := range []string{"/dev/fuse", "/dev/loop-control"} {
		if _, err := os.Stat(f); err != nil || os.Geteuid() != 0 {
			t.Skipf("needs root, FUSE and loop devices: %v", err)
		}
	}
	dir := t.TempDir()
	def := definition(dir, "a", 0)
	def.Volumes[0].Device = "fuse"
	def.Volumes[0].DevLink = filepath.Join(dir, "drbd0")
	createMD(t, &def)
	a := start(t, def)
	must(t, a.Up(ctxFor(t)))
	must(t, a.Promote(ctxFor(t), true))
	link := filepath.Join(dir, "dev", "r0", "0")
	if _, err := os.Stat(link); err != nil {
		t.Fatalf("%v; status %+v", err, a.Status().Volumes[0])
	}
	f, err := os.OpenFile(def.Volumes[0].DevLink, os.O_RDWR, 0)
	must(t, err)
	if _, err := f.WriteAt(fill(5, 8192), 1<<20); err != nil {
		t.Fatal(err)
	}
	must(t, f.Sync())
	err = a.Demote(ctxFor(t), false)
	if !errors.Is(err, hostdev.ErrBusy) && !errors.Is(err, control.InUse) {
		t.Fatalf("demoted while open: %v", err)
	}
	if a.Status().Role != "Primary" {
		t.Fatal("a refused demotion changed the role")
	}
	must(t, f.Close())
	must(t, a.Demote(ctxFor(t), false))
	for _, l := range []string{link, def.Volumes[0].DevLink} {
		if _, err := os.Lstat(l); err == nil {
			t.Errorf("%s is left behind", l)
		}
	}
	must(t, a.Promote(ctxFor(t), false))
	c := a.open(t)
	c.expect(1<<20, fill(5, 8192))
}

// TestSplitBrainKeepsTheLosersBlocks: what discard-my-data overwrites is in the undo log.
func TestSplitBrainKeepsTheLosersBlocks(t *testing.T) {
	da, db := pairDefinitions(t, nil)
	undoDir := filepath.Join(t.TempDir(), "undo")
	db.Options.UndoLog = undoDir
	createMD(t, &da)
	createMD(t, &db)
	a, b := start(t, da), start(t, db)
	must(t, a.Up(ctxFor(t)))
	must(t, b.Up(ctxFor(t)))
	a.until(t, "connection", func(s *control.Status) bool { return s.Peers[0].Connection == "Connected" })
	must(t, a.Promote(ctxFor(t), true))
	a.until(t, "sync", upToDate)
	b.until(t, "sync", upToDate)
	must(t, a.Disconnect(ctxFor(t), "b", true))
	must(t, b.Disconnect(ctxFor(t), "a", true))
	must(t, b.Promote(ctxFor(t), true))
	ca, cb := a.open(t), b.open(t)
	ca.write(0, fill(0xa1, 8192))
	cb.write(0, fill(0xb1, 4096))
	cb.write(1<<20, fill(0xb2, 4096))
	cb.s.Close()
	must(t, b.Demote(ctxFor(t), false))
	must(t, a.Connect(ctxFor(t), "b", false))
	must(t, b.Connect(ctxFor(t), "a", true))
	a.until(t, "resync", upToDate)
	b.until(t, "resync", upToDate)
	must(t, b.Down(ctxFor(t), false))
	logs, err := undo.List(undoDir)
	must(t, err)
	if len(logs) != 1 {
		t.Fatalf("%d undo logs", len(logs))
	}
	dst, err := os.Create(filepath.Join(t.TempDir(), "out"))
	must(t, err)
	defer dst.Close()
	got, err := undo.Export(logs[0].Path, dst)
	must(t, err)
	if got.Torn || got.Header.Peer != "a" {
		t.Errorf("undo log %+v", got)
	}
	for off, want := range map[int64]byte{0: 0xb1, 1 << 20: 0xb2} {
		block := make([]byte, 4096)
		_, err := dst.ReadAt(block, off)
		must(t, err)
		if !bytes.Equal(block, fill(want, 4096)) {
			t.Errorf("the loser's block at %d is lost", off)
		}
	}
	ca.expect(0, fill(0xa1, 8192))
}

// TestCreateMDRefuses: what is on a disk is overwritten only when asked to.
func TestCreateMDRefuses(t *testing.T) {
	def := definition(t.TempDir(), "a", 0)
	createMD(t, &def)
	_, err := CreateMD(testLog(t, "a"), &def, control.CreateMDOptions{Volume: control.All})
	if !errors.Is(err, control.Confirm) {
		t.Fatalf("metadata was overwritten: %v", err)
	}
	_, err = CreateMD(testLog(t, "a"), &def, control.CreateMDOptions{Volume: control.All, Force: true})
	must(t, err)
	other := definition(t.TempDir(), "a", 0)
	must(t, makeSparse(other.Volumes[0].Disk, 64<<20))
	f, err := os.OpenFile(other.Volumes[0].Disk, os.O_WRONLY, 0)
	must(t, err)
	_, err = f.WriteAt([]byte("XFSB"), 0)
	must(t, errors.Join(err, f.Close()))
	_, err = CreateMD(testLog(t, "a"), &other, control.CreateMDOptions{Volume: control.All})
	if !errors.Is(err, control.Confirm) || !strings.Contains(err.Error(), "XFS") {
		t.Fatalf("a file system was overwritten: %v", err)
	}
}

// TestNoGoroutineIsLeft: Down waits for everything.
func TestNoGoroutineIsLeft(t *testing.T) {
	before := runtime.NumGoroutine()
	a, b := upPair(t, nil)
	c := a.open(t)
	c.write(0, fill(1, 4096))
	c.s.Close()
	must(t, a.Down(ctxFor(t), false))
	must(t, b.Down(ctxFor(t), false))
	a.stop(t)
	b.stop(t)
	end := time.Now().Add(60 * time.Second)
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for runtime.NumGoroutine() > before {
		if time.Now().After(end) {
			buf := make([]byte, 1<<20)
			t.Fatalf("%d goroutines, %d before:\n%s", runtime.NumGoroutine(), before, buf[:runtime.Stack(buf, true)])
		}
		<-tick.C
	}
}
