package replicator

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/hawser-ha/hawser/replicator/control"
	"github.com/hawser-ha/hawser/replicator/disk"
	"github.com/hawser-ha/hawser/replicator/undo"
)

// ErrNoUndo says that a block that is to be kept cannot be, so it is not overwritten.
var ErrNoUndo = errors.New("no undo log")

// undoBegin opens the undo log of a resync. r.mu is held: the file is made on the volume's metadata goroutine's time, by the
// first block that needs it.
func (v *volume) undoBegin(peer int) {
	v.undoPeer = peer
	v.undoOn = true
}

// undoEnd closes it. r.mu is held.
func (v *volume) undoEnd(t *turn) {
	v.undoOn = false
	w := v.undo
	v.undo = nil
	if w == nil {
		return
	}
	t.after = append(t.after, func() {
		records, bytes := w.Records(), w.Size()
		if err := w.Close(); err != nil {
			v.log.Error("undo log not closed", "err", err)
			return
		}
		v.log.Info("undo log complete", "path", w.Path(), "records", records, "bytes", bytes)
	})
}

// undoWriter gives the log, made now if need be; nil, nil where there is none to be kept.
func (v *volume) undoWriter() (*undo.Writer, error) {
	v.undoMu.Lock()
	defer v.undoMu.Unlock()
	r := v.r
	r.mu.Lock()
	w, peer := v.undo, v.undoPeer
	r.mu.Unlock()
	if w != nil {
		return w, nil
	}
	def := r.Definition()
	if def.Options.UndoLog == "" {
		return nil, nil
	}
	h := undo.Header{Resource: r.name, Volume: v.number, Node: def.Node, Time: time.Now(), Size: v.Size(), Reason: "overwritten by a resync"}
	if peer >= 0 && peer < len(r.peers) {
		h.Peer = r.peers[peer].def.Load().Name
	}
	room, err := r.undoRoom(def)
	if err != nil {
		return nil, err
	}
	if w, err = undo.Create(def.Options.UndoLog, h, room); err != nil {
		return nil, err
	}
	v.log.Info("undo log begun", "path", w.Path(), "peer", h.Peer)
	r.mu.Lock()
	v.undo = w
	r.mu.Unlock()
	return w, nil
}

// undoRoom is how large a new log may become, 0 without a limit: old logs of the resource make room, oldest first.
func (r *Resource) undoRoom(def *control.Definition) (int64, error) {
	limit := def.Options.UndoLogMax
	if limit <= 0 {
		return 0, nil
	}
	logs, err := r.undoLogs(control.All)
	if err != nil {
		return 0, err
	}
	used := int64(0)
	for _, l := range logs {
		used += l.Bytes
	}
	for _, l := range logs {
		if used <= limit/2 {
			break
		}
		r.log.Warn("old undo log removed to make room", "path", l.Path, "bytes", l.Bytes)
		if err := os.Remove(l.Path); err != nil {
			return 0, fmt.Errorf("remove old undo log: %w", err)
		}
		used -= l.Bytes
	}
	return max(limit-used, 1), nil
}

// saveFirst copies what is on the disk to the undo log, durably, and then submits the write. It returns at once.
func (v *volume) saveFirst(io *ioreq) {
	v.r.wg.Go(func() {
		if err := v.saveOld(io); err != nil {
			v.log.Error("block not overwritten: its old data could not be saved", "off", io.disk.Off, "err", err)
			io.disk.Err = fmt.Errorf("%w: %w", ErrNoUndo, err)
			v.done.push(io)
			return
		}
		io.store.Submit([]*disk.Request{&io.disk})
	})
}

func (v *volume) saveOld(io *ioreq) error {
	w, err := v.undoWriter()
	if err != nil || w == nil {
		return err
	}
	for off := int64(0); off < io.disk.Len; {
		n := min(io.disk.Len-off, 1<<20)
		buf := v.r.spare.Get(int(n))
		r := disk.Request{Op: disk.Read, Off: io.disk.Off + off, Len: n, Buf: buf.B, Mem: buf}
		io.store.Do(&r)
		err := r.Err
		if err == nil {
			err = w.Append(r.Off, buf.B)
		}
		buf.Release()
		if err != nil {
			return err
		}
		off += n
	}
	return nil
}

// undoLogs lists the logs of a volume (control.All: of all), oldest first.
func (r *Resource) undoLogs(volume int) ([]undo.Info, error) {
	dir := r.Definition().Options.UndoLog
	if dir == "" {
		return nil, nil
	}
	logs, err := undo.List(dir)
	return slices.DeleteFunc(logs, func(l undo.Info) bool {
		return l.Header.Resource != r.name || volume != control.All && l.Header.Volume != volume
	}), err
}

// undosKept counts the undo logs of each volume. It reads their headers, and nothing where there is no log.
func (r *Resource) undosKept() map[int]int {
	logs, err := r.undoLogs(control.All)
	if err != nil {
		return nil // undo list says why
	}
	n := map[int]int{}
	for _, l := range logs {
		n[l.Header.Volume]++
	}
	return n
}

// Undos lists the undo logs.
func (r *Resource) Undos(ctx context.Context, volume int) ([]control.UndoLog, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	logs, err := r.undoLogs(volume)
	if err != nil {
		return nil, control.Errorf(control.Failed, "%w", err)
	}
	out := []control.UndoLog{}
	for _, l := range logs {
		u := control.UndoLog{ID: strings.TrimSuffix(filepath.Base(l.Path), filepath.Ext(l.Path)), Volume: l.Header.Volume,
			Peer: l.Header.Peer, Time: l.Header.Time, Path: l.Path}
		s, err := undo.Scan(l.Path)
		u.Bytes, u.Extents, u.Complete = s.Bytes, int64(s.Records), !s.Torn
		if err != nil {
			u.Error = err.Error()
		}
		out = append(out, u)
	}
	return out, nil
}

// ExportUndo copies one log to w as it is: its format says offset, length and checksum before each run of data.
func (r *Resource) ExportUndo(ctx context.Context, volume int, id string, w io.Writer) error {
	logs, err := r.undoLogs(volume)
	if err != nil {
		return control.Errorf(control.Failed, "%w", err)
	}
	for _, l := range logs {
		if strings.TrimSuffix(filepath.Base(l.Path), filepath.Ext(l.Path)) != id {
			continue
		}
		f, err := os.Open(l.Path)
		if err != nil {
			return control.Errorf(control.Failed, "%w", err)
		}
		defer f.Close()
		if _, err := io.Copy(w, ctxReader{ctx, f}); err != nil {
			return control.Errorf(control.Failed, "export undo log: %w", err)
		}
		return nil
	}
	return control.Errorf(control.NotFound, "there is no undo log %q", id).On(r.name, volume, "")
}

// ctxReader reads until ctx ends.
type ctxReader struct {
	ctx context.Context
	in  io.Reader
}

func (c ctxReader) Read(p []byte) (int, error) {
	if err := c.ctx.Err(); err != nil {
		return 0, err
	}
	return c.in.Read(p)
}
