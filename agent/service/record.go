package service

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/hawser-ha/hawser/agent/config"
)

// instance is a service that runs, or may run: it is on the stack from before it is started until it is surely stopped.
type instance struct {
	Spec    config.ServiceSpec `json:"spec"` // as it was started: it is stopped in the same way
	State   State              `json:"state"`
	Reason  string             `json:"reason,omitempty"`
	Since   time.Time          `json:"since"`
	Ran     bool               `json:"ran"`               // it did run; false: its start may have done nothing
	Op      *operation         `json:"op,omitempty"`      // a program that starts or stops it
	Main    *process           `json:"main,omitempty"`    // of a command
	Failed  bool               `json:"failed,omitempty"`  // it must be stopped
	Refused bool               `json:"refused,omitempty"` // its start said that it cannot run here: it did nothing
	Stops   int                `json:"stops,omitempty"`   // how often its stop failed
	exited  string
	checked time.Time // the last monitor
	due     time.Time // the next one
	retry   time.Time // of a stop that failed
	warning string
	warned  bool // it was looked for a warning
	unwatch func()
}

// operation is a program under way.
type operation struct {
	Action   string    `json:"action"`
	Process  process   `json:"process"`
	Deadline time.Time `json:"deadline"`
}

// past is what a service did before.
type past struct {
	Failures []time.Time `json:"failures,omitempty"`
	Reason   string      `json:"reason,omitempty"` // of the last failure
	GaveUp   State       `json:"gave-up,omitempty"`
	Nowhere  bool        `json:"nowhere,omitempty"`
	Next     time.Time   `json:"next,omitzero"` // it is not started before
}

// record is a chain in RUNDIR/services.
type record struct {
	Boot  string           `json:"boot"`
	Stack []*instance      `json:"stack"`
	Past  map[string]*past `json:"past,omitempty"`
}

func recordPath(dir, resource string, role Role) string {
	return filepath.Join(dir, resource+"."+string(role)+".json")
}

// readRecord gives nil when there is none, or none of this boot: then nothing is known.
func readRecord(path string) (*record, error) {
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return parseRecord(path, data)
}

func parseRecord(path string, data []byte) (*record, error) {
	r := new(record)
	if err := json.Unmarshal(data, r); err != nil {
		return nil, fmt.Errorf("record of services %s: %w", path, err)
	}
	if r.Boot != bootID() {
		return nil, nil
	}
	for i, in := range r.Stack {
		if in == nil || !serviceKind(in.Spec.Kind) || in.Op != nil && in.Op.Process.PID <= 1 || in.Main != nil && in.Main.PID <= 1 {
			return nil, fmt.Errorf("record of services %s: entry %d is not right", path, i)
		}
	}
	return r, nil
}

func serviceKind(kind string) bool {
	return kind == config.ServiceOCF || kind == config.ServiceSystemd || kind == config.ServiceExec
}
