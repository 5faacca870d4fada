package disk

import (
	"bytes"
	"log/slog"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// TestCancelledRequestsAreExecuted: what the kernel gives back without having executed it is no error of the disk.
func TestCancelledRequestsAreExecuted(t *testing.T) {
	path := filepath.Join(t.TempDir(), "disk")
	if err := os.WriteFile(path, make([]byte, 1<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	st, err := Open(slog.New(slog.DiscardHandler), Options{Path: path, Engine: "uring"})
	if err != nil {
		t.Fatal(err)
	}
	s := st.(*store)
	u := s.eng.(*uring)
	kernel := s.eng
	s.eng = cancelling{kernel, u}
	w := newWaiter()
	do := func(r Request) error {
		w.req = r
		w.req.Done, w.req.Owner = wake, w
		s.Submit(w.batch[:])
		<-w.done
		return w.req.Err
	}
	data := bytes.Repeat([]byte{7}, 4096)
	if err := do(Request{Op: Write, Off: 8192, Buf: data}); err != nil {
		t.Errorf("write: %v", err)
	}
	if err := do(Request{Op: Flush}); err != nil {
		t.Errorf("flush: %v", err)
	}
	got := make([]byte, 4096)
	if err := do(Request{Op: Read, Off: 8192, Buf: got}); err != nil || !bytes.Equal(got, data) {
		t.Errorf("read: %v", err)
	}
	s.eng = kernel
	if err := st.Close(); err != nil {
		t.Error(err)
	}
}

// cancelling is an engine whose kernel gives every request back.
type cancelling struct {
	engine
	u *uring
}

func (c cancelling) push(sl *slot) {
	var out reqList
	c.u.completion(ringCQE{userData: uint64(sl.index), res: -int32(unix.ECANCELED)}, &out)
}
