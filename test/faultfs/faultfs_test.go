package faultfs

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/hawser-ha/hawser/replicator/disk"
	"github.com/hawser-ha/hawser/replicator/disk/disktest"
)

var quiet = slog.New(slog.DiscardHandler)

func mount(t *testing.T) *FS {
	t.Helper()
	if _, err := os.Stat("/dev/fuse"); err != nil || os.Geteuid() != 0 {
		t.Skip("needs root and /dev/fuse to mount")
	}
	dir := t.TempDir()
	o := Options{Backing: filepath.Join(dir, "backing"), Dir: filepath.Join(dir, "mnt"), Socket: filepath.Join(dir, "sock")}
	if err := errors.Join(os.Mkdir(o.Dir, 0o700), os.WriteFile(o.Backing, make([]byte, disktest.Size), 0o600)); err != nil {
		t.Fatal(err)
	}
	fs, err := Mount(quiet, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := fs.Close(); err != nil {
			t.Error(err)
		}
	})
	return fs
}

func open(t *testing.T, fs *FS, o disk.Options) disk.Store {
	t.Helper()
	o.Path, o.Direct = fs.Path(), "yes"
	s, err := disk.Open(quiet, o)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func command(t *testing.T, fs *FS, line string) string {
	t.Helper()
	out, err := fs.Command(line)
	if err != nil {
		t.Fatalf("%s: %v", line, err)
	}
	return out
}

func statusOf(t *testing.T, fs *FS) (st Status) {
	t.Helper()
	if err := json.Unmarshal([]byte(command(t, fs, "status")), &st); err != nil {
		t.Fatal(err)
	}
	return st
}

func TestItIsADiskForEveryEngine(t *testing.T) {
	for _, volatile := range []string{"off", "on"} {
		for _, engine := range []string{"uring", "threads", "inline"} {
			t.Run(engine+", volatile "+volatile, func(t *testing.T) {
				disktest.Run(t, func(t *testing.T) disk.Store {
					fs := mount(t)
					command(t, fs, "volatile "+volatile)
					return open(t, fs, disk.Options{Engine: engine})
				})
			})
		}
	}
}

func TestErrorsStrikeWhereTheyWereAskedFor(t *testing.T) {
	fs := mount(t)
	s := open(t, fs, disk.Options{})
	defer s.Close()
	p := make([]byte, 4096)
	command(t, fs, "eio read 8192 4096")
	command(t, fs, "enospc 16384 4096")
	for off, want := range map[int64]error{4096: nil, 8192: syscall.EIO, 12288: nil} {
		if _, err := s.ReadAt(p, off); !errors.Is(err, want) {
			t.Errorf("read at %d: %v, want %v", off, err, want)
		}
	}
	for off, want := range map[int64]error{12288: nil, 16384: disk.ErrNoSpace, 20480: nil} {
		if _, err := s.WriteAt(p, off); !errors.Is(err, want) {
			t.Errorf("write at %d: %v, want %v", off, err, want)
		}
	}
	z := disk.Request{Op: disk.ZeroOut, Off: 16384, Len: 4096}
	if s.Do(&z); !errors.Is(z.Err, disk.ErrNoSpace) {
		t.Errorf("zero-out: %v", z.Err)
	}
	command(t, fs, "clear")
	if _, err := s.ReadAt(p, 8192); err != nil {
		t.Error(err)
	}
	command(t, fs, "eio flush")
	if err := s.Sync(); !disk.IsFlushLost(err) {
		t.Errorf("flush: %v", err)
	}
	command(t, fs, "clear")
	before := statusOf(t, fs).Flushes
	if err := s.Sync(); !disk.IsFlushLost(err) {
		t.Errorf("flush after a failed one: %v", err)
	}
	if statusOf(t, fs).Flushes != before {
		t.Error("the disk was asked again after a failed flush")
	}
}

func TestAStalledDiskTimesOutAndClosesInTime(t *testing.T) {
	for _, engine := range []string{"uring", "threads"} {
		t.Run(engine, func(t *testing.T) {
			fs := mount(t)
			s := open(t, fs, disk.Options{Engine: engine, Timeout: 200 * time.Millisecond})
			command(t, fs, "stall write")
			p := bytes.Repeat([]byte{5}, 4096)
			start := time.Now()
			if _, err := s.WriteAt(p, 0); !errors.Is(err, disk.ErrTimeout) {
				t.Fatalf("a stalled write: %v", err)
			}
			if _, err := s.ReadAt(p, 0); err != nil {
				t.Fatalf("reads do not stall: %v", err)
			}
			if err := s.Close(); !errors.Is(err, disk.ErrTimeout) {
				t.Fatalf("close: %v", err)
			}
			if d := time.Since(start); d > 10*time.Second {
				t.Fatalf("took %v", d)
			}
			if _, err := disk.Open(quiet, disk.Options{Path: fs.Path()}); !errors.Is(err, disk.ErrInUse) {
				t.Fatalf("opened while a write is on its way: %v", err)
			}
			command(t, fs, "release")
			for { // the store lets go by itself once the kernel is done
				again, err := disk.Open(quiet, disk.Options{Path: fs.Path()})
				if err == nil {
					_ = again.Close()
					return
				}
				if !errors.Is(err, disk.ErrInUse) || time.Since(start) > 20*time.Second {
					t.Fatal(err)
				}
			}
		})
	}
}

func TestASlowDiskAnswersLate(t *testing.T) {
	fs := mount(t)
	s := open(t, fs, disk.Options{})
	defer s.Close()
	command(t, fs, "slow 100 read")
	start := time.Now()
	if _, err := s.ReadAt(make([]byte, 4096), 0); err != nil || time.Since(start) < 100*time.Millisecond {
		t.Fatalf("after %v: %v", time.Since(start), err)
	}
}

func TestDropUnsyncedForgetsWhatWasNotFlushed(t *testing.T) {
	fs := mount(t)
	command(t, fs, "volatile on")
	s := open(t, fs, disk.Options{})
	write := func(v byte, off int64, fua bool) {
		r := disk.Request{Op: disk.Write, Off: off, FUA: fua, Buf: bytes.Repeat([]byte{v}, 512)}
		if s.Do(&r); r.Err != nil {
			t.Fatal(r.Err)
		}
	}
	write(1, 0, false)
	if err := s.Sync(); err != nil {
		t.Fatal(err)
	}
	write(2, 0, false)
	write(2, 512, true) // flushes the disk, and with it the write before
	write(3, 512, false)
	write(3, 1024, false)
	if n := statusOf(t, fs).Unsynced; n != 4096 {
		t.Errorf("%d bytes not synced", n)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	command(t, fs, "drop-unsynced")
	s = open(t, fs, disk.Options{})
	defer s.Close()
	p := make([]byte, 1536)
	if _, err := s.ReadAt(p, 0); err != nil || p[0] != 2 || p[512] != 2 || p[1024] != 0 {
		t.Fatalf("%d %d %d, want 2 2 0 (%v)", p[0], p[512], p[1024], err)
	}
}

func TestAnOpenForStableWritesIsHonoured(t *testing.T) {
	fs := mount(t)
	command(t, fs, "volatile on")
	f, err := os.OpenFile(fs.Path(), os.O_WRONLY|syscall.O_DSYNC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.WriteAt(make([]byte, 4096), 0); err != nil {
		t.Fatal(err)
	}
	if n := statusOf(t, fs).Unsynced; n != 0 {
		t.Errorf("%d bytes not synced", n)
	}
}

func TestCommandsArriveByTheSocket(t *testing.T) {
	fs := mount(t)
	c, err := net.Dial("unix", fs.socket.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	in := bufio.NewReader(c)
	for _, e := range []struct{ line, want string }{
		{"eio read", "ok\n"}, {"clear", "ok\n"}, {"status", "ok {"}, {"stall", "ok\n"}, {"release", "ok\n"}, {"slow 5 write 0 4096", "ok\n"},
		{"explode", "error: "}, {"eio", "error: "}, {"eio sideways", "error: "}, {"eio read 1", "error: "}, {"slow", "error: "},
		{"slow -1", "error: "}, {"eio read -1 5", "error: "}, {"volatile maybe", "error: "}, {"clear all", "error: "}, {"", "error: "},
	} {
		if _, err := fmt.Fprintln(c, e.line); err != nil {
			t.Fatal(err)
		}
		got, err := in.ReadString('\n')
		if err != nil || !strings.HasPrefix(got, e.want) {
			t.Errorf("%q: %q, want %q (%v)", e.line, got, e.want, err)
		}
	}
}

func FuzzParseRule(f *testing.F) {
	for _, s := range []string{"eio read 0 512", "stall", "slow 10 all", "enospc 5 5"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, line string) {
		words := strings.Fields(line)
		if len(words) == 0 {
			return
		}
		if r, err := parseRule(words); err == nil && (r.op < opRead || r.op > opAll || r.off < 0 || r.len < 0 || r.delay < 0) {
			t.Fatalf("%q made %+v", line, r)
		}
	})
}
