package faulty_test

import (
	"bytes"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hawser-ha/hawser/replicator/disk"
	"github.com/hawser-ha/hawser/replicator/disk/disktest"
	"github.com/hawser-ha/hawser/replicator/disk/faulty"
)

func base(t *testing.T, engine string) disk.Store {
	path := filepath.Join(t.TempDir(), "disk")
	if err := os.WriteFile(path, make([]byte, disktest.Size), 0o600); err != nil {
		t.Fatal(err)
	}
	s, err := disk.Open(slog.New(slog.DiscardHandler), disk.Options{Path: path, Engine: engine, Direct: "no"})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestConformance(t *testing.T) {
	for name, o := range map[string]faulty.Options{"plain": {}, "volatile": {Volatile: true}} {
		for _, engine := range []string{"inline", "uring"} {
			t.Run(name+" over "+engine, func(t *testing.T) {
				disktest.Run(t, func(t *testing.T) disk.Store { return faulty.New(base(t, engine), o) })
			})
		}
	}
}

func block(b byte) []byte { return bytes.Repeat([]byte{b}, 4096) }

func TestFaultsStrikeWhatTheyName(t *testing.T) {
	s := faulty.New(base(t, "inline"), faulty.Options{})
	defer s.Close()
	read := func(off int64) error { _, err := s.ReadAt(make([]byte, 4096), off); return err }
	write := func(off int64) error { _, err := s.WriteAt(block(1), off); return err }
	s.Inject(faulty.Fault{Ops: []disk.Op{disk.Read}, Skip: 1, Times: 2, Err: unix.EIO})
	for i, want := range []error{nil, unix.EIO, unix.EIO, nil} {
		if err := read(0); !errors.Is(err, want) {
			t.Errorf("read %d: %v, want %v", i, err, want)
		}
	}
	remove := s.Inject(faulty.Fault{Ops: []disk.Op{disk.Write}, Off: 8192, Len: 512, Err: disk.ErrNoSpace})
	for off, want := range map[int64]error{0: nil, 4096: nil, 8192: disk.ErrNoSpace, 12288: nil} {
		if err := write(off); !errors.Is(err, want) {
			t.Errorf("write at %d: %v, want %v", off, err, want)
		}
		if err := read(off); err != nil {
			t.Errorf("read at %d: %v", off, err)
		}
	}
	remove()
	if err := write(8192); err != nil {
		t.Error(err)
	}
	s.Inject(faulty.Fault{Ops: []disk.Op{disk.Flush}, Times: 1, Err: unix.EIO})
	for range 3 {
		if err := s.Sync(); !disk.IsFlushLost(err) {
			t.Errorf("a failed flush is for good: %v", err)
		}
	}
}

func TestTheSameSeedStrikesTheSameRequests(t *testing.T) {
	play := func(seed uint64) (out []bool) {
		s := faulty.New(base(t, "inline"), faulty.Options{Seed: seed})
		defer s.Close()
		s.Inject(faulty.Fault{Probability: 0.3, Err: unix.EIO})
		for range 64 {
			_, err := s.ReadAt(make([]byte, 4096), 0)
			out = append(out, err != nil)
		}
		return out
	}
	a, b, c := play(1), play(1), play(2)
	if !equal(a, b) || equal(a, c) {
		t.Fatalf("seed 1 twice %v, another seed %v", equal(a, b), equal(a, c))
	}
}

func equal(a, b []bool) bool {
	for i := range a {
		if a[i] != b[i] {
			return false
		}
	}
	return true
}

func TestAStalledRequestWaitsForReleaseAndASlowOneForItsTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := faulty.New(base(t, "inline"), faulty.Options{})
		defer s.Close()
		s.Inject(faulty.Fault{Ops: []disk.Op{disk.Write}, Stall: true, Times: 2})
		var stalled disk.Request
		submitted := 0
		s.Submit([]*disk.Request{{Op: disk.Write, Buf: block(7), Done: func(*disk.Request) { submitted++ }}})
		go func() {
			stalled = disk.Request{Op: disk.Write, Buf: block(8), Off: 4096}
			s.Do(&stalled)
			submitted++
		}()
		synctest.Wait()
		if submitted != 0 || s.Stalled() != 2 {
			t.Fatalf("%d done, %d stalled", submitted, s.Stalled())
		}
		p := make([]byte, 4096)
		if _, err := s.ReadAt(p, 0); err != nil || p[0] != 0 {
			t.Fatalf("a stalled write is on the disk (%v)", err)
		}
		s.Release()
		synctest.Wait()
		if _, err := s.ReadAt(p, 0); err != nil || p[0] != 7 || submitted != 2 {
			t.Fatalf("after the release: byte %d, %d done, %v", p[0], submitted, err)
		}
		s.Inject(faulty.Fault{Delay: time.Minute, Err: disk.ErrTimeout, Times: 1})
		start := time.Now()
		if err := s.Sync(); !errors.Is(err, disk.ErrTimeout) || time.Since(start) != time.Minute {
			t.Fatalf("after %v: %v", time.Since(start), err)
		}
		if err := s.Sync(); err != nil {
			t.Fatalf("a timeout does not lose a flush: %v", err)
		}
	})
}

func TestACrashKeepsWhatWasFlushedAndLosesTheRest(t *testing.T) {
	b := base(t, "inline")
	defer b.Close()
	s := faulty.New(b, faulty.Options{Volatile: true})
	write := func(v byte, off int64, fua bool) {
		r := disk.Request{Op: disk.Write, Buf: block(v), Off: off, FUA: fua}
		if s.Do(&r); r.Err != nil {
			t.Fatal(r.Err)
		}
	}
	write(1, 0, false)
	write(1, 4096, false)
	if err := s.Sync(); err != nil {
		t.Fatal(err)
	}
	write(2, 0, false)
	write(3, 0, false)
	write(2, 8192, true)
	write(3, 8192, false)
	var waiting *disk.Request
	s.Inject(faulty.Fault{Stall: true})
	s.Submit([]*disk.Request{{Op: disk.Flush, Done: func(r *disk.Request) { waiting = r }}})
	if err := s.Crash(faulty.DropAll); err != nil {
		t.Fatal(err)
	}
	if waiting == nil || !errors.Is(waiting.Err, faulty.ErrCrashed) {
		t.Fatal("the waiting request did not end")
	}
	if err := s.Sync(); !errors.Is(err, faulty.ErrCrashed) {
		t.Fatal(err)
	}
	p := make([]byte, 4096)
	for off, want := range map[int64]byte{0: 1, 4096: 1, 8192: 2} {
		if _, err := b.ReadAt(p, off); err != nil || !bytes.Equal(p, block(want)) {
			t.Errorf("at %d: %d, want %d (%v)", off, p[0], want, err)
		}
	}
}

func TestATornWriteLeavesEachBlockInSomeStateItHad(t *testing.T) {
	torn, states := 0, map[byte]bool{}
	for seed := range uint64(20) {
		b := base(t, "inline")
		s := faulty.New(b, faulty.Options{Volatile: true, Seed: seed})
		for v := byte(1); v <= 3; v++ {
			if _, err := s.WriteAt(block(v), 0); err != nil {
				t.Fatal(err)
			}
		}
		if err := s.Crash(faulty.Tear); err != nil {
			t.Fatal(err)
		}
		p := make([]byte, 4096)
		if _, err := b.ReadAt(p, 0); err != nil {
			t.Fatal(err)
		}
		for i := 0; i < 4096; i += 512 {
			if !bytes.Equal(p[i:i+512], bytes.Repeat(p[i:i+1], 512)) || p[i] > 3 {
				t.Fatalf("seed %d: block at %d has a state it never had", seed, i)
			}
			states[p[i]] = true
		}
		if !bytes.Equal(p, block(p[0])) {
			torn++
		}
		if err := b.Close(); err != nil {
			t.Fatal(err)
		}
	}
	if torn == 0 || len(states) != 4 {
		t.Fatalf("%d of 20 torn, %d of 4 states seen", torn, len(states))
	}
}
