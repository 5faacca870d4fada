package disk

import (
	"bytes"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hawser-ha/hawser/replicator/iobuf"
)

// manual is an engine whose kernel is the test.
type manual struct {
	s  *store
	in []*slot // in the kernel
}

func (m *manual) name() string  { return "manual" }
func (m *manual) push(sl *slot) { m.in = append(m.in, sl) }
func (m *manual) kick()         {}
func (m *manual) stop()         {}

// ops is what is in the kernel, in order of arrival.
func (m *manual) ops() string {
	var b bytes.Buffer
	for _, sl := range m.in {
		b.WriteByte("RWFDZ"[sl.op])
		if sl.dsync {
			b.WriteByte('!')
		}
	}
	return b.String()
}

// end completes the request at position i.
func (m *manual) end(i int, err error) {
	sl := m.in[i]
	m.in = append(m.in[:i:i], m.in[i+1:]...)
	if err == nil && sl.op != Flush {
		err = m.s.exec(sl)
	}
	m.s.finish(sl, err)
}

func openManual(t *testing.T, o Options) (*store, *manual) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "disk")
	if err := os.WriteFile(path, make([]byte, 1<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	o.Path, o.Engine, o.Direct = path, "threads", "no"
	st, err := Open(slog.New(slog.DiscardHandler), o)
	if err != nil {
		t.Fatal(err)
	}
	s := st.(*store)
	s.eng.stop()
	m := &manual{s: s}
	s.eng = m
	s.f.dsync.Store(true)
	s.f.fua = false
	return s, m
}

type outcome struct {
	*Request
	ended atomic.Int32
}

func (o *outcome) done() int { return int(o.ended.Load()) }

func submit(s *store, r *Request) *outcome {
	o := &outcome{Request: r}
	r.Done = func(*Request) { o.ended.Add(1) }
	s.Submit([]*Request{r})
	return o
}

func want(t *testing.T, m *manual, ops string, what string) {
	t.Helper()
	if got := m.ops(); got != ops {
		t.Fatalf("%s: in the kernel %q, want %q", what, got, ops)
	}
}

func TestFlushesThatArriveDuringAFlushShareTheNext(t *testing.T) {
	s, m := openManual(t, Options{})
	first := submit(s, &Request{Op: Flush})
	want(t, m, "F", "an idle disk flushes at once")
	second, third := submit(s, &Request{Op: Flush}), submit(s, &Request{Op: Flush})
	want(t, m, "F", "one flush at a time")
	m.end(0, nil)
	if first.done() != 1 || second.done() != 0 || third.done() != 0 {
		t.Fatal("a flush must not cover those who asked after it started")
	}
	want(t, m, "F", "the next flush starts when the first ends")
	m.end(0, nil)
	if second.done() != 1 || third.done() != 1 {
		t.Fatal("the second flush covers both")
	}
	want(t, m, "", "nobody waits")
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
}

func TestAStableWriteJoinsAFlushThatStartsAfterIt(t *testing.T) {
	s, m := openManual(t, Options{})
	alone := submit(s, &Request{Op: Write, FUA: true, Buf: make([]byte, 4096)})
	want(t, m, "W!", "alone it is a stable write")
	a := submit(s, &Request{Op: Write, FUA: true, Buf: make([]byte, 4096), Off: 4096})
	b := submit(s, &Request{Op: Write, FUA: true, Buf: make([]byte, 4096), Off: 8192})
	want(t, m, "W!WW", "beside another it is a write, to be flushed")
	m.end(1, nil)
	want(t, m, "W!WF", "its end starts the flush")
	m.end(1, nil)
	want(t, m, "W!F", "b completed while the flush ran")
	m.end(1, nil)
	if a.done() != 1 || b.done() != 0 {
		t.Fatalf("the flush covers a (%d), not b (%d)", a.done(), b.done())
	}
	want(t, m, "W!F", "b has its own flush")
	m.end(1, nil)
	m.end(0, nil)
	if b.done() != 1 || alone.done() != 1 || a.Err != nil || b.Err != nil || alone.Err != nil {
		t.Fatal("not all done")
	}
	zero := submit(s, &Request{Op: ZeroOut, FUA: true, Len: 4096})
	want(t, m, "Z", "zeroes can be stable")
	m.end(0, nil)
	want(t, m, "F", "by a flush")
	m.end(0, nil)
	if zero.done() != 1 {
		t.Fatal("zero-out not done")
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
}

func TestAFailedWriteDoesNotJoinAFlush(t *testing.T) {
	s, m := openManual(t, Options{})
	hold := submit(s, &Request{Op: Flush})
	w := submit(s, &Request{Op: Write, FUA: true, Buf: make([]byte, 4096)})
	m.end(1, unix.EIO)
	if w.done() != 1 || !errors.Is(w.Err, unix.EIO) || IsFlushLost(w.Err) {
		t.Fatalf("done %d, %v", w.done(), w.Err)
	}
	m.end(0, nil)
	if hold.Err != nil {
		t.Fatal(hold.Err)
	}
	_ = s.Close()
}

func TestAfterAFailedFlushTheDiskIsNeverAskedAgain(t *testing.T) {
	for name, lose := range map[string]func(*store, *manual) []*outcome{
		"a flush": func(s *store, m *manual) []*outcome {
			o := []*outcome{submit(s, &Request{Op: Flush}), submit(s, &Request{Op: Flush})}
			m.end(0, unix.EIO)
			return o
		},
		"a stable write": func(s *store, m *manual) []*outcome {
			o := []*outcome{submit(s, &Request{Op: Write, FUA: true, Buf: make([]byte, 4096)})}
			m.end(0, unix.EIO)
			return o
		},
	} {
		s, m := openManual(t, Options{})
		for _, o := range lose(s, m) {
			if o.done() != 1 || !IsFlushLost(o.Err) || !errors.Is(o.Err, unix.EIO) {
				t.Errorf("%s: done %d, %v", name, o.done(), o.Err)
			}
		}
		for _, r := range []*Request{{Op: Flush}, {Op: Write, FUA: true, Buf: make([]byte, 4096)}} {
			if o := submit(s, r); o.done() != 1 || !IsFlushLost(o.Err) {
				t.Errorf("%v after %s: done %d, %v", r.Op, name, o.done(), o.Err)
			}
			r.Err = nil
			if s.Do(r); !IsFlushLost(r.Err) {
				t.Errorf("inline %v after %s: %v", r.Op, name, r.Err)
			}
		}
		want(t, m, "", "the kernel is left alone")
		w := submit(s, &Request{Op: Write, Buf: make([]byte, 4096)})
		m.end(0, nil)
		if w.Err != nil {
			t.Errorf("a plain write after %s: %v", name, w.Err)
		}
		_ = s.Close()
	}
}

func TestNoSpaceIsNotALostFlush(t *testing.T) {
	s, m := openManual(t, Options{})
	w := submit(s, &Request{Op: Write, FUA: true, Buf: make([]byte, 4096)})
	m.end(0, mapErr(unix.ENOSPC))
	if !errors.Is(w.Err, ErrNoSpace) || !errors.Is(w.Err, unix.ENOSPC) || IsFlushLost(w.Err) {
		t.Fatal(w.Err)
	}
	_ = s.Close()
}

func TestAKernelWithoutDsyncGetsAWriteAndAFlush(t *testing.T) {
	s, m := openManual(t, Options{})
	w := submit(s, &Request{Op: Write, FUA: true, Buf: make([]byte, 4096)})
	m.end(0, unix.EOPNOTSUPP)
	want(t, m, "W", "again, plainly")
	m.end(0, nil)
	want(t, m, "F", "then flushed")
	m.end(0, nil)
	if w.done() != 1 || w.Err != nil {
		t.Fatalf("done %d, %v", w.done(), w.Err)
	}
	_ = s.Close()
}

func TestBeyondTheQueueDepthRequestsWaitInOrder(t *testing.T) {
	s, m := openManual(t, Options{QueueDepth: 2})
	var all []*outcome
	for i := range 5 {
		all = append(all, submit(s, &Request{Op: Read, Buf: make([]byte, 4096), Off: int64(i) * 4096}))
	}
	want(t, m, "RR", "depth 2")
	flush := submit(s, &Request{Op: Flush})
	want(t, m, "RRF", "a flush needs no place")
	m.end(2, nil)
	for i := range all {
		m.end(0, nil)
		if all[i].done() != 1 || (i < 4 && all[i+1].done() != 0) {
			t.Fatalf("request %d out of turn", i)
		}
	}
	if flush.done() != 1 {
		t.Fatal("flush not done")
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
}

func TestALateReadDoesNotTouchMemoryOfATimedOutRequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, m := openManual(t, Options{Timeout: 8 * time.Second})
		if _, err := s.f.fd, s.f.write(bytes.Repeat([]byte{7}, 4096), 0, false); err != nil {
			t.Fatal(err)
		}
		pool := iobuf.NewPool(1 << 20)
		defer pool.Close()
		b := pool.Get(4096)
		plain := submit(s, &Request{Op: Read, Buf: make([]byte, 4096)})
		owned := submit(s, &Request{Op: Read, Buf: b.B, Mem: b})
		flush := submit(s, &Request{Op: Flush})
		next := submit(s, &Request{Op: Flush})
		time.Sleep(8 * time.Second)
		synctest.Wait()
		if plain.done()+owned.done()+flush.done()+next.done() != 0 {
			t.Fatal("timed out too early")
		}
		time.Sleep(2 * time.Second)
		synctest.Wait()
		for name, o := range map[string]*outcome{"plain": plain, "owned": owned, "flush": flush, "next": next} {
			if o.done() != 1 || !errors.Is(o.Err, ErrTimeout) {
				t.Errorf("%s: done %d, %v", name, o.done(), o.Err)
			}
		}
		b.Release() // the caller is through with it; the kernel is not
		if pool.InUse() == 0 {
			t.Fatal("the buffer is free while the kernel may write to it")
		}
		m.end(0, nil)
		m.end(0, nil)
		if pool.InUse() != 0 {
			t.Fatal("the buffer is still held after the kernel came back")
		}
		if plain.Buf[0] == 7 {
			t.Fatal("the late read wrote to the caller's memory")
		}
		if plain.done() != 1 || owned.done() != 1 {
			t.Fatal("Done twice")
		}
		m.end(0, nil)
		after := submit(s, &Request{Op: Flush})
		m.end(0, nil)
		if after.Err != nil {
			t.Fatalf("a flush that came back late, but well: %v", after.Err)
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	})
}

func TestDoWithATimeoutReturnsInTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, m := openManual(t, Options{Timeout: time.Second})
		s.inline = false
		start := time.Now()
		if _, err := s.ReadAt(make([]byte, 4096), 0); !errors.Is(err, ErrTimeout) {
			t.Fatal(err)
		}
		if d := time.Since(start); d > 1500*time.Millisecond {
			t.Fatalf("took %v", d)
		}
		m.end(0, nil)
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	})
}

func TestCloseIsBoundedAndTheLockOutlivesIt(t *testing.T) {
	for _, timeout := range []time.Duration{0, 4 * time.Second} {
		synctest.Test(t, func(t *testing.T) {
			s, m := openManual(t, Options{Timeout: timeout})
			stuck := submit(s, &Request{Op: Write, Buf: make([]byte, 4096)})
			flush := submit(s, &Request{Op: Flush})
			start := time.Now()
			if err := s.Close(); !errors.Is(err, ErrTimeout) {
				t.Fatal(err)
			}
			if d := time.Since(start); d > max(closeWaitMax, 2*timeout) {
				t.Fatalf("took %v", d)
			}
			if stuck.done() != 1 || !errors.Is(stuck.Err, ErrTimeout) || flush.done() != 1 || !errors.Is(flush.Err, ErrTimeout) {
				t.Fatalf("write: done %d, %v; flush: done %d, %v", stuck.done(), stuck.Err, flush.done(), flush.Err)
			}
			if again, err := Open(s.log, Options{Path: s.f.path}); !errors.Is(err, ErrInUse) {
				_ = again.Close()
				t.Fatalf("opened while the kernel may still write: %v", err)
			}
			m.end(0, nil)
			m.end(0, nil)
			<-s.gone
			again, err := Open(s.log, Options{Path: s.f.path})
			if err != nil {
				t.Fatal(err)
			}
			if err := again.Close(); err != nil {
				t.Fatal(err)
			}
		})
	}
}

func TestInlineFlushersShareTheNextFlush(t *testing.T) {
	s, m := openManual(t, Options{})
	running := submit(s, &Request{Op: Flush})
	done := make(chan error, 3)
	for range 3 {
		go func() { done <- s.Sync() }()
	}
	for n := 0; n < 3; {
		n = 0
		s.mu.Lock()
		for r := s.joining.head; r != nil; r = r.next {
			n++
		}
		s.mu.Unlock()
	}
	m.end(0, nil)
	if running.done() != 1 {
		t.Fatal("the running flush did not end")
	}
	want(t, m, "F", "one flush for three callers")
	m.end(0, nil)
	for range 3 {
		if err := <-done; err != nil {
			t.Fatal(err)
		}
	}
	_ = s.Close()
}
