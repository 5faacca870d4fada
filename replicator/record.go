package replicator

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/hawser-ha/hawser/replicator/control"
	"github.com/hawser-ha/hawser/replicator/core"
)

// record is the state file of a coordinated resource: what must not be forgotten over a restart (docs/adr/0006).
type record struct {
	Version int                  `json:"version"`
	Term    uint64               `json:"term"`          // the highest seen
	Disks   map[int]control.UUID `json:"disks"`         // device UUIDs of the disks that were in use with it
	TTL     time.Duration        `json:"ttl,omitempty"` // of the longest promise that may bind
}

const recordVersion = 1

// recordPath is where the state file is.
func recordPath(stateDir, name string) string { return filepath.Join(stateDir, "terms", name+".json") }

// readRecord reads the state file; found is false where there is none.
func readRecord(path string) (rec record, found bool, err error) {
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return rec, false, nil
	}
	if err != nil {
		return rec, false, err
	}
	if err := json.Unmarshal(data, &rec); err != nil {
		return record{}, true, fmt.Errorf("%s: %w", path, err)
	}
	if rec.Version != recordVersion {
		return record{}, true, fmt.Errorf("%s: version %d is not %d", path, rec.Version, recordVersion)
	}
	return rec, true, nil
}

// writeRecord replaces the state file, durably.
func writeRecord(path string, rec *record) error {
	data, err := json.MarshalIndent(rec, "", "  ")
	if err != nil {
		return err
	}
	dir := filepath.Dir(path)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	tmp := path + ".new"
	f, err := os.OpenFile(tmp, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(append(data, '\n'))
	err = errors.Join(err, f.Sync(), f.Close())
	if err != nil {
		return err
	}
	if err := os.Rename(tmp, path); err != nil {
		return err
	}
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// records writes the state file on a goroutine of its own: the newest one that is wanted.
type records struct {
	path  string
	wake  chan struct{} // one token: something is queued
	bound core.Now      // until when promises of an earlier life may bind
	ttl   time.Duration // of those

	mu    sync.Mutex // guards the fields below
	next  *core.Record
	token uint64
}

// push queues a record; what was queued before is part of it.
func (q *records) push(rec *core.Record, token uint64) {
	q.mu.Lock()
	q.next, q.token = rec, token
	q.mu.Unlock()
	poke(q.wake)
}

func (q *records) pop() (*core.Record, uint64) {
	q.mu.Lock()
	defer q.mu.Unlock()
	rec := q.next
	q.next = nil
	return rec, q.token
}

// recordLoop writes the records until the resource is closed.
func (r *Resource) recordLoop() {
	q := r.records
	for {
		select {
		case <-r.ctx.Done():
			return
		case <-q.wake:
		}
		rec, token := q.pop()
		if rec == nil {
			continue
		}
		out := record{Version: recordVersion, Term: rec.Term, Disks: map[int]control.UUID{}, TTL: r.Definition().TTL}
		for v, id := range rec.Disks {
			out.Disks[v] = control.UUID(id)
		}
		if now() < q.bound { // an older, longer promise may bind still
			out.TTL = max(out.TTL, q.ttl)
		}
		err := writeRecord(q.path, &out)
		if err != nil {
			r.log.Error("state file not written", "path", q.path, "err", err)
		}
		t := r.lock()
		r.m.RecordDone(now(), token, err)
		r.unlock(t)
	}
}

// coordinate reads what the node remembers of a coordinated resource, and adds it to the Machine's configuration.
func (r *Resource) coordinate(def *control.Definition, c *core.Config) error {
	if def.Coordination != control.CoordinationEtcd {
		return nil
	}
	if r.opts.StateDir == "" {
		return control.Errorf(control.BadDefinition, "coordination %s needs a folder for the state file", def.Coordination)
	}
	q := &records{path: recordPath(r.opts.StateDir, def.Name), wake: make(chan struct{}, 1)}
	rec, found, err := readRecord(q.path)
	if err != nil {
		// The disks are vouched for no more, so they are not in sync before a resync says so.
		r.log.Error("state file not read: the disks of this node count as unknown", "err", err)
	}
	c.Record = core.Record{Term: rec.Term, Disks: map[int]uint64{}}
	for v, id := range rec.Disks {
		c.Record.Disks[v] = uint64(id)
	}
	if found { // an earlier life may have promised not to run for primary
		q.ttl = max(rec.TTL, def.TTL)
		q.bound = now() + core.Now(q.ttl)
		c.Bound = q.bound
	}
	r.records = q
	return nil
}
