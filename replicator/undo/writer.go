package undo

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"os"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

const (
	fileMagic   = "HWSUNDO1"
	recordMagic = 0x554e444f
	endMagic    = 0x444f4e45
	recordHead  = 20 // bytes

	suffix = ".undo"

	headerMax = 64 << 10 // bytes of JSON
	// DataMax is the largest block of one record.
	DataMax = 32 << 20 // bytes
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// Errors of logs.
var (
	ErrFull   = errors.New("undo log is full")
	ErrClosed = errors.New("undo log is closed")
	// ErrFormat: not an undo log at all, or its header is damaged.
	ErrFormat = errors.New("not an undo log")
	// ErrTorn: the log ends in the middle of a record, or without an end: the writer crashed. What was read is good.
	ErrTorn = errors.New("undo log has no end")
)

// Header says what a log is about.
type Header struct {
	Resource string    `json:"resource"`
	Volume   int       `json:"volume"`
	Node     string    `json:"node"`   // whose data it is
	Peer     string    `json:"peer"`   // who won
	Reason   string    `json:"reason"` // for people
	Time     time.Time `json:"time"`
	Size     int64     `json:"size"` // bytes of the volume
}

// Writer appends to one log. Safe for concurrent use.
type Writer struct {
	path string
	max  int64 // bytes; 0 is no limit

	mu      sync.Mutex // guards the fields below; held over a write to the page cache, never over a sync
	f       *os.File
	size    int64 // bytes in the file
	records uint64
	written uint64 // records handed to the file
	synced  uint64 // records known to be durable
	syncing bool
	failed  error
	changed sync.Cond // syncing ended
}

// Create starts a log in dir, which is made if it is missing. max is the largest size of this file in bytes, 0 for none.
func Create(dir string, h Header, max int64) (*Writer, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("undo log: %w", err)
	}
	js, err := json.Marshal(h)
	if err != nil {
		return nil, fmt.Errorf("undo log: %w", err)
	}
	if len(js) > headerMax {
		return nil, fmt.Errorf("undo log: header of %d bytes", len(js))
	}
	buf := append([]byte(nil), fileMagic...)
	buf = binary.BigEndian.AppendUint32(buf, uint32(len(js)))
	buf = binary.BigEndian.AppendUint32(buf, crc32.Checksum(js, castagnoli))
	buf = append(buf, js...)

	name := fmt.Sprintf("%s-%d-%s%s", h.Resource, h.Volume, h.Time.UTC().Format("20060102T150405.000000000"), suffix)
	path := filepath.Join(dir, filepath.Base(name))
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, fmt.Errorf("undo log: %w", err)
	}
	w := &Writer{path: path, max: max, f: f, size: int64(len(buf))}
	w.changed.L = &w.mu
	_, err = f.Write(buf)
	err = errors.Join(err, f.Sync(), syncDir(dir))
	if err != nil {
		_ = f.Close()
		_ = os.Remove(path)
		return nil, fmt.Errorf("undo log %s: %w", path, err)
	}
	return w, nil
}

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// Path is the file's.
func (w *Writer) Path() string { return w.path }

// Records is the number of records in the log.
func (w *Writer) Records() uint64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.records
}

// Size is the length of the file in bytes.
func (w *Writer) Size() int64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.size
}

// Append adds the block at off (bytes) and returns when it is durable. Concurrent Appends share one sync. After the
// first failure every Append fails: the caller must not overwrite the block.
func (w *Writer) Append(off int64, data []byte) error {
	if len(data) == 0 || len(data) > DataMax || off < 0 {
		return fmt.Errorf("undo log: record of %d bytes at %d", len(data), off)
	}
	var head [recordHead]byte
	putHead(&head, recordMagic, uint32(len(data)), uint64(off), data)

	w.mu.Lock()
	defer w.mu.Unlock()
	if w.failed != nil {
		return w.failed
	}
	need := int64(recordHead + len(data))
	if w.max > 0 && w.size+need > w.max {
		return fmt.Errorf("%w: %s has %d of %d bytes", ErrFull, w.path, w.size, w.max)
	}
	if err := writev(w.f, w.size, head[:], data); err != nil {
		w.failed = fmt.Errorf("undo log %s: %w", w.path, err)
		return w.failed
	}
	w.size += need
	w.records++
	w.written++
	return w.waitSynced(w.written)
}

// waitSynced returns when the first n records are durable. w.mu is held, and given up meanwhile.
func (w *Writer) waitSynced(n uint64) error {
	for w.failed == nil && w.synced < n {
		if w.syncing {
			w.changed.Wait()
			continue
		}
		w.syncing = true
		upTo := w.written
		w.mu.Unlock()
		err := unix.Fdatasync(int(w.f.Fd()))
		w.mu.Lock()
		w.syncing = false
		if err != nil {
			w.failed = fmt.Errorf("undo log %s: sync: %w", w.path, err)
		} else {
			w.synced = max(w.synced, upTo)
		}
		w.changed.Broadcast()
	}
	return w.failed
}

// Close writes the end and closes the file. A log without records is removed: nothing was overwritten.
func (w *Writer) Close() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.f == nil {
		return nil
	}
	for w.syncing {
		w.changed.Wait()
	}
	f := w.f
	w.f = nil
	failed := w.failed
	w.failed = ErrClosed
	if failed != nil {
		return errors.Join(failed, f.Close())
	}
	if w.records == 0 {
		return errors.Join(f.Close(), os.Remove(w.path))
	}
	var head [recordHead]byte
	putHead(&head, endMagic, 0, w.records, nil)
	_, err := f.WriteAt(head[:], w.size)
	return errors.Join(err, f.Sync(), f.Close())
}

func putHead(head *[recordHead]byte, magic, length uint32, off uint64, data []byte) {
	binary.BigEndian.PutUint32(head[0:], magic)
	binary.BigEndian.PutUint32(head[4:], length)
	binary.BigEndian.PutUint64(head[8:], off)
	crc := crc32.Update(crc32.Checksum(head[:16], castagnoli), castagnoli, data)
	binary.BigEndian.PutUint32(head[16:], crc)
}

// writev writes both parts at off, or fails.
func writev(f *os.File, off int64, head, data []byte) error {
	n, err := unix.Pwritev(int(f.Fd()), [][]byte{head, data}, off)
	if err == nil && n == len(head)+len(data) {
		return nil
	}
	if err != nil && !errors.Is(err, unix.EINTR) {
		return err
	}
	if _, err := f.WriteAt(head, off); err != nil { // short: once more, slowly
		return err
	}
	_, err = f.WriteAt(data, off+int64(len(head)))
	return err
}
