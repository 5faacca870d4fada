package disk_test

import (
	"errors"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/hawser-ha/hawser/replicator/disk"
	"github.com/hawser-ha/hawser/replicator/disk/disktest"
)

var quiet = slog.New(slog.DiscardHandler)

// onDisk makes a sparse file on a file system with a disk; /tmp may be a tmpfs.
func onDisk(t testing.TB, size int64) string {
	dir, err := os.MkdirTemp("/var/tmp", "hawser-disk-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return sparse(t, dir, size)
}

func inMemory(t testing.TB, size int64) string {
	dir, err := os.MkdirTemp("/dev/shm", "hawser-disk-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return sparse(t, dir, size)
}

func sparse(t testing.TB, dir string, size int64) string {
	path := filepath.Join(dir, "disk")
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := f.Truncate(size); err != nil {
		t.Fatal(err)
	}
	return path
}

func open(t testing.TB, o disk.Options) disk.Store {
	s, err := disk.Open(quiet, o)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestConformance(t *testing.T) {
	places := map[string]func(testing.TB, int64) string{"disk": onDisk, "tmpfs": inMemory}
	for _, c := range []struct {
		name, place string
		o           disk.Options
	}{
		{"auto on a disk", "disk", disk.Options{}},
		{"auto on tmpfs", "tmpfs", disk.Options{}},
		{"uring direct", "disk", disk.Options{Engine: "uring", Direct: "yes"}},
		{"uring direct, shallow", "disk", disk.Options{Engine: "uring", Direct: "yes", QueueDepth: 2}},
		{"uring direct with a timeout", "disk", disk.Options{Engine: "uring", Direct: "yes", Timeout: 5 * time.Minute}},
		{"uring buffered", "disk", disk.Options{Engine: "uring", Direct: "no"}},
		{"uring on tmpfs", "tmpfs", disk.Options{Engine: "uring"}},
		{"threads direct", "disk", disk.Options{Engine: "threads", Direct: "yes"}},
		{"threads with a timeout on tmpfs", "tmpfs", disk.Options{Engine: "threads", Timeout: 5 * time.Minute}},
		{"threads, shallow", "tmpfs", disk.Options{Engine: "threads", QueueDepth: 1}},
		{"inline direct", "disk", disk.Options{Engine: "inline", Direct: "yes"}},
		{"inline buffered", "disk", disk.Options{Engine: "inline", Direct: "no"}},
		{"without flushes", "tmpfs", disk.Options{Engine: "uring", NoFlush: true}},
	} {
		t.Run(c.name, func(t *testing.T) {
			disktest.Run(t, func(t *testing.T) disk.Store {
				c.o.Path = places[c.place](t, disktest.Size)
				return open(t, c.o)
			})
		})
	}
}

func TestASecondOpenIsRefusedAndNamesTheHolder(t *testing.T) {
	path := inMemory(t, 1<<20)
	s := open(t, disk.Options{Path: path})
	link := path + "-too"
	if err := os.Symlink(path, link); err != nil {
		t.Fatal(err)
	}
	for _, p := range []string{path, link} {
		_, err := disk.Open(quiet, disk.Options{Path: p})
		if !errors.Is(err, disk.ErrInUse) || !strings.Contains(err.Error(), p) || !strings.Contains(err.Error(), "process") {
			t.Errorf("second open: %v", err)
		}
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if err := open(t, disk.Options{Path: path}).Close(); err != nil {
		t.Fatal(err)
	}
}

func TestBadOptionsAreRefused(t *testing.T) {
	path := inMemory(t, 1<<20)
	for name, o := range map[string]disk.Options{
		"no such engine":            {Path: path, Engine: "warp"},
		"two engines":               {Path: path, Engine: "uring threads"},
		"no such direct":            {Path: path, Direct: "maybe"},
		"inline cannot time out":    {Path: path, Engine: "inline", Timeout: time.Second},
		"negative timeout":          {Path: path, Timeout: -1},
		"a folder is no disk":       {Path: filepath.Dir(path)},
		"a terminal is no disk":     {Path: "/dev/null"},
		"it is not there":           {Path: path + "x"},
		"negative queue depth":      {Path: path, QueueDepth: -1},
		"direct I/O is not to have": {Path: "/proc/self/status", Direct: "yes"},
	} {
		if s, err := disk.Open(quiet, o); err == nil {
			t.Errorf("%s: accepted", name)
			_ = s.Close()
		}
	}
}

func TestAReadOnlyDiskTakesNoWrites(t *testing.T) {
	s := open(t, disk.Options{Path: inMemory(t, 1<<20), ReadOnly: true})
	defer s.Close()
	for _, op := range []disk.Op{disk.Write, disk.Discard, disk.ZeroOut} {
		r := disk.Request{Op: op, Buf: make([]byte, 4096), Len: 4096}
		if s.Do(&r); !errors.Is(r.Err, disk.ErrReadOnly) {
			t.Errorf("%v: %v", op, r.Err)
		}
	}
	if _, err := s.ReadAt(make([]byte, 4096), 0); err != nil {
		t.Error(err)
	}
	if err := s.Sync(); err != nil {
		t.Error(err)
	}
	if s.Discards() {
		t.Error("claims to discard")
	}
}

func TestGrowAndResize(t *testing.T) {
	path := onDisk(t, 1<<20)
	s := open(t, disk.Options{Path: path})
	defer s.Close()
	if err := s.Grow(2 << 20); err != nil || s.Size() != 2<<20 {
		t.Fatalf("grow: size %d, %v", s.Size(), err)
	}
	if err := s.Grow(1 << 20); err != nil || s.Size() != 2<<20 {
		t.Fatalf("grow to less: size %d, %v", s.Size(), err)
	}
	if _, err := s.WriteAt(make([]byte, 4096), 2<<20-4096); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(path, 3<<20+100); err != nil {
		t.Fatal(err)
	}
	if n, err := s.Resize(); err != nil || n != 3<<20 || s.Size() != 3<<20 {
		t.Fatalf("resize: %d, %v; want whole blocks", n, err)
	}
}

// loop attaches path to a loop device.
func loop(t *testing.T, path string) string {
	if os.Geteuid() != 0 {
		t.Skip("needs root for a loop device")
	}
	out, err := exec.Command("losetup", "--find", "--show", "--direct-io=on", path).CombinedOutput()
	if err != nil {
		t.Fatalf("losetup: %v: %s", err, out)
	}
	dev := strings.TrimSpace(string(out))
	t.Cleanup(func() { _ = exec.Command("losetup", "-d", dev).Run() })
	return dev
}

func TestABlockDevice(t *testing.T) {
	for _, engine := range []string{"uring", "threads", "inline"} {
		t.Run(engine, func(t *testing.T) {
			disktest.Run(t, func(t *testing.T) disk.Store {
				return open(t, disk.Options{Path: loop(t, onDisk(t, disktest.Size)), Engine: engine, Direct: "yes"})
			})
		})
	}
}

func TestABlockDeviceIsExclusiveAndKnowsItsNature(t *testing.T) {
	file := onDisk(t, 16<<20)
	dev := loop(t, file)
	s := open(t, disk.Options{Path: dev})
	if !s.Discards() || s.Size() != 16<<20 || s.LogicalBlock() != 512 {
		t.Errorf("discards %v size %d block %d", s.Discards(), s.Size(), s.LogicalBlock())
	}
	if _, err := disk.Open(quiet, disk.Options{Path: dev}); !errors.Is(err, disk.ErrInUse) || !strings.Contains(err.Error(), dev) {
		t.Errorf("second open: %v", err)
	}
	if err := os.Truncate(file, 32<<20); err != nil {
		t.Fatal(err)
	}
	if err := s.Grow(32 << 20); !errors.Is(err, disk.ErrRange) {
		t.Errorf("the device has not grown yet: %v", err)
	}
	if out, err := exec.Command("losetup", "-c", dev).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if err := s.Grow(32 << 20); err != nil || s.Size() != 32<<20 {
		t.Errorf("grow after the device: size %d, %v", s.Size(), err)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}
