package undo_test

import (
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/hawser-ha/hawser/replicator/undo"
)

func header(size int64) undo.Header {
	return undo.Header{Resource: "r0", Volume: 1, Node: "a", Peer: "b", Reason: "split brain", Time: time.Unix(1000, 5), Size: size}
}

func fill(b byte, n int) []byte { return bytes.Repeat([]byte{b}, n) }

func TestRoundTrip(t *testing.T) {
	dir := t.TempDir()
	w, err := undo.Create(dir, header(1<<20), 0)
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	for i := range 16 {
		wg.Go(func() {
			if err := w.Append(int64(i)*4096, fill(byte(i+1), 4096)); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	// The resync began again: the winner's data must not replace the loser's.
	if err := w.Append(4096, fill(0xee, 4096)); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(w.Close(), w.Close()); err != nil {
		t.Fatal(err)
	}
	if err := w.Append(0, fill(1, 512)); !errors.Is(err, undo.ErrClosed) {
		t.Errorf("append after close: %v", err)
	}
	logs, err := undo.List(dir)
	if err != nil || len(logs) != 1 || logs[0].Header.Peer != "b" {
		t.Fatalf("list: %+v, %v", logs, err)
	}
	dst, err := os.Create(filepath.Join(t.TempDir(), "out"))
	if err != nil {
		t.Fatal(err)
	}
	defer dst.Close()
	got, err := undo.Export(logs[0].Path, dst)
	if err != nil || got.Records != 17 || got.Torn {
		t.Fatalf("export: %+v, %v", got, err)
	}
	img, err := os.ReadFile(dst.Name())
	if err != nil || len(img) != 1<<20 {
		t.Fatalf("image of %d bytes, %v", len(img), err)
	}
	for i := range 16 {
		if !bytes.Equal(img[i*4096:(i+1)*4096], fill(byte(i+1), 4096)) {
			t.Errorf("block %d is not the loser's", i)
		}
	}
}

func TestTornTailKeepsWhatWasSynced(t *testing.T) {
	dir := t.TempDir()
	w, err := undo.Create(dir, header(1<<20), 0)
	if err != nil {
		t.Fatal(err)
	}
	for i := range 3 {
		if err := w.Append(int64(i)*4096, fill(byte(i+1), 4096)); err != nil {
			t.Fatal(err)
		}
	}
	whole, err := os.ReadFile(w.Path())
	if err != nil {
		t.Fatal(err)
	}
	for cut := range 4096 + 20 {
		r, err := undo.NewReader(bytes.NewReader(whole[:len(whole)-cut]))
		if err != nil {
			t.Fatal(err)
		}
		n := 0
		for {
			_, _, err = r.Next()
			if err != nil {
				break
			}
			n++
		}
		want := 2
		if cut == 0 {
			want = 3
		}
		if n != want || !errors.Is(err, undo.ErrTorn) {
			t.Fatalf("cut by %d: %d records, %v", cut, n, err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
}

func TestLimitRefusesAndEmptyLogVanishes(t *testing.T) {
	dir := t.TempDir()
	w, err := undo.Create(dir, header(1<<20), 8<<10)
	if err != nil {
		t.Fatal(err)
	}
	if err := w.Append(0, fill(1, 4096)); err != nil {
		t.Fatal(err)
	}
	if err := w.Append(4096, fill(1, 4096)); !errors.Is(err, undo.ErrFull) {
		t.Errorf("past the limit: %v", err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	h := header(1)
	h.Time = h.Time.Add(time.Second)
	e, err := undo.Create(dir, h, 0)
	if err != nil {
		t.Fatal(err)
	}
	if err := e.Close(); err != nil {
		t.Fatal(err)
	}
	if logs, err := undo.List(dir); err != nil || len(logs) != 1 {
		t.Errorf("logs %+v, %v", logs, err)
	}
	if logs, err := undo.List(filepath.Join(dir, "missing")); err != nil || len(logs) != 0 {
		t.Errorf("missing folder: %+v, %v", logs, err)
	}
}

func FuzzReader(f *testing.F) {
	dir := f.TempDir()
	w, err := undo.Create(dir, header(1<<20), 0)
	if err != nil {
		f.Fatal(err)
	}
	if err := w.Append(512, fill(7, 512)); err != nil {
		f.Fatal(err)
	}
	if err := w.Close(); err != nil {
		f.Fatal(err)
	}
	whole, err := os.ReadFile(w.Path())
	if err != nil {
		f.Fatal(err)
	}
	f.Add(whole)
	f.Add(whole[:len(whole)-30])
	f.Fuzz(func(t *testing.T, b []byte) {
		r, err := undo.NewReader(bytes.NewReader(b))
		if err != nil {
			if !errors.Is(err, undo.ErrFormat) {
				t.Fatalf("kind of error: %v", err)
			}
			return
		}
		for {
			off, data, err := r.Next()
			if errors.Is(err, undo.ErrTorn) || errors.Is(err, io.EOF) {
				return
			}
			if err != nil {
				t.Fatalf("kind of error: %v", err)
			}
			if off < 0 || len(data) == 0 || len(data) > undo.DataMax {
				t.Fatalf("record of %d bytes at %d", len(data), off)
			}
		}
	})
}
