package fuse

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hawser-ha/hawser/replicator/export"
	"github.com/hawser-ha/hawser/replicator/export/hostdev"
)

const childEnv = "HAWSER_FUSE_TEST_CHILD"

func TestMain(m *testing.M) {
	if mount := os.Getenv(childEnv); mount != "" {
		serveForParent(mount)
	}
	os.Exit(m.Run())
}

// serveForParent is the process that TestCleanup kills.
func serveForParent(mount string) {
	f, err := os.CreateTemp("/dev/shm", "hawser-fuse-test-")
	if err == nil {
		_ = os.Remove(f.Name())
		err = f.Truncate(256 << 20)
	}
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	v := &fileVolume{f: f, limits: export.Limits{MinBlock: 512, Preferred: 4096, MaxIO: 1 << 20, FastZero: true}}
	v.size.Store(256 << 20)
	d, err := Attach(v, Config{MountPoint: mount})
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	fmt.Println(d.Path())
	select {}
}

func needRoot(t testing.TB) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("mounting and loop devices need root")
	}
	for _, dev := range []string{"/dev/fuse", "/dev/loop-control"} {
		if _, err := os.Stat(dev); err != nil {
			t.Skipf("no %s in this environment", dev)
		}
	}
}

// tool runs a program and returns what it said; a failure ends the test.
func tool(t testing.TB, name string, args ...string) string {
	t.Helper()
	out, err := toolErr(t, name, args...)
	if err != nil {
		t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, out)
	}
	return out
}

func toolErr(t testing.TB, name string, args ...string) (string, error) {
	t.Helper()
	path, err := exec.LookPath(name)
	if err != nil {
		t.Fatalf("install %s (make deps)", name)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
	defer cancel()
	out, err := exec.CommandContext(ctx, path, args...).CombinedOutput()
	return string(out), err
}

func attach(t testing.TB, v export.Volume) *Device {
	t.Helper()
	d, err := Attach(v, Config{MountPoint: filepath.Join(t.TempDir(), "m"), FileName: "vol0",
		Log: slog.New(slog.NewTextHandler(t.Output(), nil))})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
		defer cancel()
		if err := d.Detach(ctx, true); err != nil {
			t.Error(err)
		}
	})
	return d
}

func detach(t *testing.T, d *Device) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	if err := d.Detach(ctx, false); err != nil {
		t.Fatal(err)
	}
	if l, _ := loopsUnder(d.mount); len(l) != 0 {
		t.Errorf("loop devices left: %v", l)
	}
	if m, _ := hostdev.MountsAt(d.mount); len(m) != 0 {
		t.Errorf("mounts left: %v", m)
	}
}

// mountFS mounts a device and unmounts it at the end of the test, if the test has not.
func mountFS(t *testing.T, dev string, opts ...string) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "fs")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	tool(t, "mount", append(opts, dev, dir)...)
	t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
	return dir
}

func unmountFS(t *testing.T, dir string) {
	t.Helper()
	if err := unix.Unmount(dir, 0); err != nil {
		t.Fatal(err)
	}
}

func randomBytes(seed uint64, n int) []byte {
	rng := rand.NewChaCha8([32]byte{byte(seed)})
	b := make([]byte, n)
	_, _ = rng.Read(b)
	return b
}

func TestFileSystems(t *testing.T) {
	needRoot(t)
	tests := []struct {
		name, mkfs, check string
		args              []string
	}{
		{"ext4", "mkfs.ext4", "e2fsck -fn", []string{"-q", "-E", "lazy_itable_init=0"}},
		{"xfs", "mkfs.xfs", "xfs_repair -n", []string{"-q"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			v := newFileVolume(t, 512<<20)
			d := attach(t, v)
			tool(t, tt.mkfs, append(tt.args, d.Path())...)
			dir := mountFS(t, d.Path())
			data := randomBytes(1, 5<<20+123)
			f, err := os.Create(filepath.Join(dir, "data"))
			if err != nil {
				t.Fatal(err)
			}
			if _, err := f.Write(data); err != nil {
				t.Fatal(err)
			}
			before := v.flushes.Load()
			if err := f.Sync(); err != nil {
				t.Fatal(err)
			}
			if v.flushes.Load() == before {
				t.Error("fsync of a file did not reach the volume as a flush")
			}
			_ = f.Close()
			unmountFS(t, dir)
			detach(t, d)

			d = attach(t, v) // nothing in any cache now
			dir = mountFS(t, d.Path())
			got, err := os.ReadFile(filepath.Join(dir, "data"))
			if err != nil || sha256.Sum256(got) != sha256.Sum256(data) {
				t.Errorf("%d bytes, %v: not what was written", len(got), err)
			}
			holes := v.holes.Load()
			if err := os.Remove(filepath.Join(dir, "data")); err != nil {
				t.Fatal(err)
			}
			unix.Sync()
			t.Log(tool(t, "fstrim", "-v", dir))
			if v.holes.Load() == holes {
				t.Error("fstrim did not reach the volume")
			}
			unmountFS(t, dir)
			check := strings.Fields(tt.check)
			tool(t, check[0], append(check[1:], d.Path())...)
			detach(t, d)
			if n := v.trims.Load(); n != 0 {
				t.Errorf("%d trims: contents would be undefined where the kernel may rely on zeroes", n)
			}
		})
	}
}

func TestDiscard(t *testing.T) {
	needRoot(t)
	const size = 64 << 20
	v := newFileVolume(t, size)
	d := attach(t, v)
	fill := func() {
		t.Helper()
		if err := os.WriteFile(d.Path(), randomBytes(2, size), 0); err != nil {
			t.Fatal(err)
		}
		tool(t, "blockdev", "--flushbufs", d.Path())
	}
	tests := []struct {
		rule string
		args []string
		seen func() int64
	}{
		{"blkdiscard punches, and the range reads back as zeroes", nil, v.holes.Load},
		{"blkdiscard -z zeroes and keeps the space", []string{"-z"}, v.zeroes.Load},
	}
	for _, tt := range tests {
		fill()
		before := tt.seen()
		tool(t, "blkdiscard", append(tt.args, "-o", "1048576", "-l", "41943040", d.Path())...)
		n := tt.seen() - before
		if n < 2 {
			t.Errorf("%s: %d requests, want it cut in pieces of at most %d bytes", tt.rule, n, zeroChunkMax)
		}
		got, err := os.ReadFile(v.f.Name())
		if err != nil {
			t.Fatal(err)
		}
		if !allZero(got[1<<20 : 41<<20]) {
			t.Errorf("%s: not zero", tt.rule)
		}
		if want := randomBytes(2, size); !bytes.Equal(got[:1<<20], want[:1<<20]) || !bytes.Equal(got[41<<20:], want[41<<20:]) {
			t.Errorf("%s: it touched what is beside the range", tt.rule)
		}
	}
	t.Run("is off where zeroes cost as much as data", func(t *testing.T) {
		v := newFileVolume(t, size)
		v.limits.FastZero = false
		d := attach(t, v)
		if out, err := toolErr(t, "blkdiscard", "-f", d.Path()); err == nil {
			t.Errorf("blkdiscard succeeded: %s", out)
		}
		tool(t, "mkfs.ext4", "-q", d.Path())
		if n := v.holes.Load(); n != 0 {
			t.Errorf("%d holes", n)
		}
		detach(t, d)
	})
	detach(t, d)
}

func allZero(b []byte) bool { return bytes.Count(b, []byte{0}) == len(b) }

func TestFile(t *testing.T) {
	needRoot(t)
	v := newFileVolume(t, 8<<20)
	d := attach(t, v)
	entries, err := os.ReadDir(filepath.Dir(d.File()))
	if err != nil || len(entries) != 1 || entries[0].Name() != "vol0" {
		t.Errorf("the folder lists %v, %v", entries, err)
	}
	fd, err := unix.Open(d.File(), unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	var errno = func(_ int, err error) error { return err }
	tests := []struct {
		rule string
		got  error
		want error
	}{
		{"an aligned write is taken", errno(unix.Pwrite(fd, make([]byte, 4096), 512)), nil},
		{"an unaligned write is refused", errno(unix.Pwrite(fd, make([]byte, 100), 0)), unix.EINVAL},
		{"an unaligned read is refused", errno(unix.Pread(fd, make([]byte, 100), 0)), unix.EINVAL},
		{"a write past the end has no space", errno(unix.Pwrite(fd, make([]byte, 1024), 8<<20-512)), unix.ENOSPC},
		{"the size is the volume's to decide", unix.Ftruncate(fd, 4096), unix.EPERM},
		{"allocating what is there is nothing", unix.Fallocate(fd, 0, 0, 8<<20), nil},
		{"other kinds of fallocate are not known", unix.Fallocate(fd, unix.FALLOC_FL_COLLAPSE_RANGE, 0, 4096), unix.EOPNOTSUPP},
	}
	for _, tt := range tests {
		if !errors.Is(tt.got, tt.want) {
			t.Errorf("%s: got %v, want %v", tt.rule, tt.got, tt.want)
		}
	}
	if n, err := unix.Pread(fd, make([]byte, 4096), 8<<20-512); n != 512 || err != nil {
		t.Errorf("a read at the end is cut: got %d, %v", n, err)
	}
	if n, err := unix.Pread(fd, make([]byte, 4096), 8<<20); n != 0 || err != nil {
		t.Errorf("a read past the end is empty: got %d, %v", n, err)
	}
	for _, e := range []struct{ fail, want error }{
		{export.ErrNotPrimary, unix.ESHUTDOWN}, {export.ErrNoSpace, unix.ENOSPC},
		{fmt.Errorf("disk: %w", export.ErrIO), unix.EIO}, {errors.New("anything"), unix.EIO},
	} {
		v.mu.Lock()
		v.fail = e.fail
		v.mu.Unlock()
		if _, err := unix.Pwrite(fd, make([]byte, 512), 0); !errors.Is(err, e.want) {
			t.Errorf("%v: got %v, want %v", e.fail, err, e.want)
		}
	}
	v.mu.Lock()
	v.fail = nil
	v.mu.Unlock()
	err = d.Detach(t.Context(), false)
	if !errors.Is(err, ErrBusy) || !strings.Contains(err.Error(), fmt.Sprintf("pid %d", os.Getpid())) {
		t.Errorf("an open file keeps the device: %v", err)
	}
}

func TestResize(t *testing.T) {
	needRoot(t)
	v := newFileVolume(t, 320<<20)
	d := attach(t, v)
	tool(t, "mkfs.xfs", "-q", d.Path())
	dir := mountFS(t, d.Path())
	v.grow(t, 512<<20)
	waitFor(t, func() bool { return strings.TrimSpace(tool(t, "blockdev", "--getsize64", d.Path())) == "536870912" })
	tool(t, "xfs_growfs", dir)
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil || int64(st.Blocks)*st.Bsize < 400<<20 {
		t.Errorf("file system has %d bytes, %v", int64(st.Blocks)*st.Bsize, err)
	}
	unmountFS(t, dir)
	detach(t, d)
	if err := d.Resize(1 << 30); !errors.Is(err, ErrClosed) {
		t.Errorf("resize after detach: %v", err)
	}
}

// waitFor asks until the answer is yes.
func waitFor(t testing.TB, yes func() bool) {
	t.Helper()
	deadline := time.After(2 * time.Minute)
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for !yes() {
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatal("waited in vain")
		}
	}
}

func TestDetachRefused(t *testing.T) {
	needRoot(t)
	v := newFileVolume(t, 64<<20)
	d := attach(t, v)
	tool(t, "mkfs.ext4", "-q", d.Path())
	dir := mountFS(t, d.Path())
	began := time.Now()
	err := d.Detach(t.Context(), false)
	if !errors.Is(err, ErrBusy) || !strings.Contains(err.Error(), "mounted on "+dir) {
		t.Fatalf("mounted: %v", err)
	}
	if took := time.Since(began); took > 2*time.Second {
		t.Errorf("a mount does not go by itself: waited %s for it", took)
	}
	if err := os.WriteFile(filepath.Join(dir, "x"), []byte("still works"), 0o600); err != nil {
		t.Error(err)
	}
	unmountFS(t, dir)
	f, err := os.Open(d.Path())
	if err != nil {
		t.Fatal(err)
	}
	err = d.Detach(t.Context(), false)
	if !errors.Is(err, ErrBusy) || !strings.Contains(err.Error(), fmt.Sprintf("pid %d", os.Getpid())) {
		t.Errorf("open: %v", err)
	}
	_ = f.Close()
	detach(t, d)
	if err := d.Detach(t.Context(), false); err != nil {
		t.Errorf("a second detach is harmless: %v", err)
	}
	if !errors.Is(d.Err(), ErrClosed) {
		t.Errorf("Err is %v", d.Err())
	}
}

// TestForcedDetach: with a mounted file system, a writer in the middle of it, and a volume that answers nobody.
func TestForcedDetach(t *testing.T) {
	needRoot(t)
	v := newFileVolume(t, 64<<20)
	d := attach(t, v)
	tool(t, "mkfs.ext4", "-q", d.Path())
	dir := mountFS(t, d.Path())
	f, err := os.Create(filepath.Join(dir, "x"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	v.freeze()
	wrote := make(chan error, 1)
	go func() {
		_, err := f.Write(randomBytes(3, 1<<20))
		wrote <- errors.Join(err, f.Sync())
	}()
	waitFor(t, func() bool { v.mu.Lock(); defer v.mu.Unlock(); return len(v.kept) > 0 })
	if err := d.Detach(t.Context(), false); !errors.Is(err, ErrBusy) {
		t.Errorf("without force: %v", err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	began := time.Now()
	if err := d.Detach(ctx, true); err != nil {
		t.Fatal(err)
	}
	t.Logf("forced detach took %s", time.Since(began))
	if err := <-wrote; err == nil {
		t.Error("the writer was told that its data is safe")
	}
	v.thaw() // the volume finishes what nobody waits for
	_ = f.Close()
	unmountFS(t, dir)
	waitFor(t, func() bool { return !d.loop.attached() })
}

// TestDetachBounded: a volume that hangs must not hang the caller.
func TestDetachBounded(t *testing.T) {
	needRoot(t)
	v := newFileVolume(t, 64<<20)
	d := attach(t, v)
	f, err := os.OpenFile(d.Path(), os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	v.freeze()
	if _, err := f.Write(make([]byte, 4096)); err != nil { // stays in the page cache until close
		t.Fatal(err)
	}
	closed := make(chan struct{})
	go func() { _ = f.Close(); close(closed) }()
	waitFor(t, func() bool { v.mu.Lock(); defer v.mu.Unlock(); return len(v.kept) > 0 })
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	began := time.Now()
	if err := d.Detach(ctx, false); err == nil {
		t.Error("detached under a write")
	}
	if took := time.Since(began); took > 5*time.Second {
		t.Errorf("took %s", took)
	}
	v.thaw()
	<-closed
}

// TestCleanup: kill -9 of the serving process, with a file system mounted on the device and without.
func TestCleanup(t *testing.T) {
	needRoot(t)
	for _, mounted := range []bool{false, true} {
		t.Run(fmt.Sprintf("mounted=%v", mounted), func(t *testing.T) {
			mount := filepath.Join(t.TempDir(), "m")
			cmd := exec.Command(os.Args[0])
			cmd.Env = append(os.Environ(), childEnv+"="+mount)
			out, err := cmd.StdoutPipe()
			if err != nil {
				t.Fatal(err)
			}
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = Cleanup(mount) })
			line, err := bufio.NewReader(out).ReadString('\n')
			dev := strings.TrimSpace(line)
			if err != nil || !strings.HasPrefix(dev, "/dev/loop") {
				_ = cmd.Process.Kill()
				t.Fatalf("child says %q, %v", line, err)
			}
			dir := ""
			if mounted {
				tool(t, "mkfs.ext4", "-q", dev)
				dir = mountFS(t, dev)
				if err := os.WriteFile(filepath.Join(dir, "x"), randomBytes(4, 1<<20), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			if err := cmd.Process.Kill(); err != nil {
				t.Fatal(err)
			}
			_ = cmd.Wait()
			v := newFileVolume(t, 64<<20)
			if _, err := Attach(v, Config{MountPoint: mount}); err == nil {
				t.Error("attached over a dead mount")
			}
			began := time.Now()
			err = Cleanup(mount)
			t.Logf("cleanup took %s: %v", time.Since(began), err)
			if mounted != errors.Is(err, ErrBusy) || !mounted && err != nil {
				t.Errorf("mounted %v: %v", mounted, err)
			}
			if m, _ := hostdev.MountsAt(mount); len(m) != 0 {
				t.Errorf("still mounted: %v", m)
			}
			d, err := Attach(v, Config{MountPoint: mount})
			if err != nil {
				t.Fatal(err)
			}
			if mounted {
				if d.Path() == dev {
					t.Error("the lost device's name was given away while it is mounted")
				}
				_ = unix.Unmount(dir, unix.MNT_DETACH)
			}
			detach(t, d)
			if err := Cleanup(mount); err != nil {
				t.Errorf("cleanup of nothing: %v", err)
			}
		})
	}
}

func TestDemotion(t *testing.T) {
	needRoot(t)
	v := newFileVolume(t, 8<<20)
	d := attach(t, v)
	v.mu.Lock()
	closed := v.closed
	v.fail = export.ErrNotPrimary
	v.mu.Unlock()
	closed(export.ErrNotPrimary)
	<-d.Done()
	if !errors.Is(d.Err(), export.ErrNotPrimary) {
		t.Errorf("Err is %v", d.Err())
	}
	if out, err := toolErr(t, "dd", "if=/dev/zero", "of="+d.Path(), "bs=4k", "count=1", "oflag=direct"); err == nil {
		t.Errorf("a demoted device took a write: %s", out)
	}
	detach(t, d)
}

func TestConfig(t *testing.T) {
	v := &fileVolume{limits: export.Limits{MinBlock: 4096, Preferred: 4096, MaxIO: 1 << 20}}
	for rule, cfg := range map[string]Config{
		"a relative mount point":                        {MountPoint: "m"},
		"a file name with a slash":                      {MountPoint: "/m", FileName: "a/b"},
		"a block size that is no power of two":          {MountPoint: "/m", BlockSize: 4097},
		"a block size under the volume's smallest unit": {MountPoint: "/m", BlockSize: 512},
	} {
		if _, err := Attach(v, cfg); err == nil {
			t.Errorf("%s is taken", rule)
		}
	}
}

func TestTools(t *testing.T) {
	needRoot(t)
	v := newFileVolume(t, 768<<20)
	d := attach(t, v)
	t.Run("fio verifies what it wrote", func(t *testing.T) {
		for _, bs := range []string{"4k", "1m"} {
			tool(t, "fio", "--name=v", "--filename="+d.Path(), "--ioengine=libaio", "--direct=1", "--rw=randwrite", "--bs="+bs,
				"--iodepth=32", "--size=128m", "--verify=crc32c", "--do_verify=1", "--verify_fatal=1", "--verify_state_save=0", "--fsync=256")
		}
	})
	t.Run("bonnie++ on ext4", func(t *testing.T) {
		tool(t, "mkfs.ext4", "-q", d.Path())
		dir := mountFS(t, d.Path())
		tool(t, "bonnie++", "-d", dir, "-s", "256", "-r", "128", "-n", "2", "-u", "root", "-q", "-f")
		unmountFS(t, dir)
		tool(t, "e2fsck", "-fn", d.Path())
	})
	detach(t, d)
}
