package undo

import (
	"bufio"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// Reader reads a log record by record. Not safe for concurrent use.
type Reader struct {
	in      *bufio.Reader
	header  Header
	records uint64
	ended   bool
	data    []byte
}

// NewReader reads the header. The error wraps ErrFormat when in is not an undo log.
func NewReader(in io.Reader) (*Reader, error) {
	r := &Reader{in: bufio.NewReaderSize(in, 1<<20)}
	var fixed [16]byte
	if _, err := io.ReadFull(r.in, fixed[:]); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrFormat, err)
	}
	n := binary.BigEndian.Uint32(fixed[8:])
	if string(fixed[:8]) != fileMagic || n > headerMax {
		return nil, fmt.Errorf("%w: bad magic", ErrFormat)
	}
	js := make([]byte, n)
	if _, err := io.ReadFull(r.in, js); err != nil {
		return nil, fmt.Errorf("%w: header: %w", ErrFormat, err)
	}
	if crc32.Checksum(js, castagnoli) != binary.BigEndian.Uint32(fixed[12:]) {
		return nil, fmt.Errorf("%w: header checksum", ErrFormat)
	}
	if err := json.Unmarshal(js, &r.header); err != nil {
		return nil, fmt.Errorf("%w: header: %w", ErrFormat, err)
	}
	return r, nil
}

// Header is the log's.
func (r *Reader) Header() Header { return r.header }

// Next returns the next record; data is valid until the next call. io.EOF: the log is complete. An error that wraps
// ErrTorn: the writer crashed here, everything before is good.
func (r *Reader) Next() (off int64, data []byte, err error) {
	if r.ended {
		return 0, nil, io.EOF
	}
	var head [recordHead]byte
	if _, err := io.ReadFull(r.in, head[:]); err != nil {
		return 0, nil, r.torn("%w", err)
	}
	magic, n, pos := binary.BigEndian.Uint32(head[0:]), binary.BigEndian.Uint32(head[4:]), binary.BigEndian.Uint64(head[8:])
	switch {
	case magic == endMagic:
		if crc32.Checksum(head[:16], castagnoli) != binary.BigEndian.Uint32(head[16:]) || n != 0 || pos != r.records {
			return 0, nil, r.torn("bad end")
		}
		r.ended = true
		return 0, nil, io.EOF
	case magic != recordMagic, n == 0, n > DataMax, int64(pos) < 0, int64(pos)+int64(n) < 0:
		return 0, nil, r.torn("bad record")
	}
	// Grown as bytes arrive, so that a damaged length costs no memory.
	r.data = r.data[:0]
	for left := int(n); left > 0; {
		step := min(left, 1<<20)
		at := len(r.data)
		r.data = slices.Grow(r.data, step)[:at+step]
		if _, err := io.ReadFull(r.in, r.data[at:]); err != nil {
			return 0, nil, r.torn("%w", err)
		}
		left -= step
	}
	if crc32.Update(crc32.Checksum(head[:16], castagnoli), castagnoli, r.data) != binary.BigEndian.Uint32(head[16:]) {
		return 0, nil, r.torn("checksum")
	}
	r.records++
	return int64(pos), r.data, nil
}

func (r *Reader) torn(format string, a ...any) error {
	r.ended = true
	return fmt.Errorf("%w: after record %d: %w", ErrTorn, r.records, fmt.Errorf(format, a...))
}

// Info describes one log of a folder.
type Info struct {
	Path   string `json:"path"`
	Header Header `json:"header"`
	// Bytes is the length of the file.
	Bytes int64 `json:"bytes"`
}

// List returns the logs in dir, oldest first; a missing dir has none. Files that are no undo logs are passed over.
func List(dir string) ([]Info, error) {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("undo logs: %w", err)
	}
	var out []Info
	for _, e := range entries {
		if !e.Type().IsRegular() || !strings.HasSuffix(e.Name(), suffix) {
			continue
		}
		info, err := stat(filepath.Join(dir, e.Name()))
		if errors.Is(err, ErrFormat) || errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err != nil {
			return out, err
		}
		out = append(out, info)
	}
	slices.SortFunc(out, func(a, b Info) int { return a.Header.Time.Compare(b.Header.Time) })
	return out, nil
}

func stat(path string) (Info, error) {
	f, err := os.Open(path)
	if err != nil {
		return Info{}, fmt.Errorf("undo log: %w", err)
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return Info{}, fmt.Errorf("undo log: %w", err)
	}
	r, err := NewReader(f)
	if err != nil {
		return Info{}, fmt.Errorf("undo log %s: %w", path, err)
	}
	return Info{Path: path, Header: r.Header(), Bytes: st.Size()}, nil
}

// Exported is the outcome of Export.
type Exported struct {
	Header  Header `json:"header"`
	Records int    `json:"records"`
	Bytes   int64  `json:"bytes"`
	Torn    bool   `json:"torn"` // the writer crashed; all that it had made durable was exported
}

// Export writes the loser's blocks of the log at path into dst at their offsets, the first record of a block last, and
// syncs it. dst is a file or device as large as the volume, or becomes a sparse file of that size. Blocks that the
// log does not hold are left as they are.
func Export(path string, dst *os.File) (Exported, error) {
	type rec struct{ at, off, n int64 }
	var out Exported
	f, err := os.Open(path)
	if err != nil {
		return out, fmt.Errorf("undo log: %w", err)
	}
	defer f.Close()
	r, err := NewReader(f)
	if err != nil {
		return out, fmt.Errorf("undo log %s: %w", path, err)
	}
	out.Header = r.Header()
	js, err := headerLen(f)
	if err != nil {
		return out, err
	}
	var recs []rec
	at := js
	for {
		off, data, err := r.Next()
		if errors.Is(err, io.EOF) && !errors.Is(err, ErrTorn) {
			break
		}
		if errors.Is(err, ErrTorn) {
			out.Torn = true
			break
		}
		if err != nil {
			return out, fmt.Errorf("undo log %s: %w", path, err)
		}
		recs = append(recs, rec{at + recordHead, off, int64(len(data))})
		at += recordHead + int64(len(data))
	}
	if st, err := dst.Stat(); err == nil && st.Mode().IsRegular() && st.Size() < out.Header.Size {
		if err := dst.Truncate(out.Header.Size); err != nil {
			return out, fmt.Errorf("export undo log: %w", err)
		}
	}
	buf := make([]byte, 0, 1<<20)
	for _, rc := range slices.Backward(recs) {
		buf = slices.Grow(buf[:0], int(rc.n))[:rc.n]
		if _, err := f.ReadAt(buf, rc.at); err != nil {
			return out, fmt.Errorf("undo log %s: %w", path, err)
		}
		if _, err := dst.WriteAt(buf, rc.off); err != nil {
			return out, fmt.Errorf("export undo log: %w", err)
		}
		out.Records++
		out.Bytes += rc.n
	}
	if err := dst.Sync(); err != nil {
		return out, fmt.Errorf("export undo log: %w", err)
	}
	return out, nil
}

// headerLen is the position of the first record.
func headerLen(f *os.File) (int64, error) {
	var fixed [16]byte
	if _, err := f.ReadAt(fixed[:], 0); err != nil {
		return 0, fmt.Errorf("undo log: %w", err)
	}
	return 16 + int64(binary.BigEndian.Uint32(fixed[8:])), nil
}

// Scan reads a log without exporting it.
func Scan(path string) (Exported, error) {
	var out Exported
	f, err := os.Open(path)
	if err != nil {
		return out, fmt.Errorf("undo log: %w", err)
	}
	defer f.Close()
	r, err := NewReader(f)
	if err != nil {
		return out, fmt.Errorf("undo log %s: %w", path, err)
	}
	out.Header = r.Header()
	for {
		_, data, err := r.Next()
		switch {
		case errors.Is(err, ErrTorn):
			out.Torn = true
			return out, nil
		case errors.Is(err, io.EOF):
			return out, nil
		case err != nil:
			return out, fmt.Errorf("undo log %s: %w", path, err)
		}
		out.Records++
		out.Bytes += int64(len(data))
	}
}
