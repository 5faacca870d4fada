package fencing

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"time"
)

// past is one fencing that was tried. Wall time: the history must make sense after a reboot.
type past struct {
	Node string    `json:"node"`
	At   time.Time `json:"at"`
}

const historyMax = 200

func readHistory(file string) ([]past, error) {
	if file == "" {
		return nil, nil
	}
	data, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var list []past
	if err := json.Unmarshal(data, &list); err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	return list, nil
}

// remember adds to the history, durably: a node that dies in a fencing loop must know of it when it is back.
func (f *Fencer) remember(p past, log *slog.Logger) {
	f.mu.Lock()
	f.history = append(f.history, p)
	if n := len(f.history); n > historyMax {
		f.history = slices.Clone(f.history[n-historyMax:])
	}
	list := slices.Clone(f.history)
	f.mu.Unlock()
	if err := writeHistory(f.o.History, list); err != nil {
		log.Error("history of fencing not written", "file", f.o.History, "err", err)
	}
}

func writeHistory(file string, list []past) error {
	if file == "" {
		return nil
	}
	data, err := json.Marshal(list)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		return err
	}
	tmp, err := os.CreateTemp(filepath.Dir(file), filepath.Base(file)+".")
	if err != nil {
		return err
	}
	defer func() { _ = os.Remove(tmp.Name()) }() // gone after the rename
	_, err = tmp.Write(data)
	err = errors.Join(err, tmp.Sync(), tmp.Close())
	if err != nil {
		return err
	}
	if err := os.Rename(tmp.Name(), file); err != nil {
		return err
	}
	dir, err := os.Open(filepath.Dir(file))
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}

// braked tells whether the node was fenced too often; f.mu is held. A time in the future counts as now: the clock was
// set back.
func (f *Fencer) braked(r Request, now time.Time) error {
	if r.Force || r.Action == On || f.o.Brake.Times <= 0 {
		return nil
	}
	n := 0
	for _, p := range f.history {
		if p.Node == r.Node && now.Sub(p.At) < f.o.Brake.Within {
			n++
		}
	}
	if n < f.o.Brake.Times {
		return nil
	}
	return fmt.Errorf("%w: %d times within %s", ErrBraked, n, f.o.Brake.Within)
}
