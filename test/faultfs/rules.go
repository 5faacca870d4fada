package faultfs

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// op is what a request wants of the disk.
type op int

const (
	opRead op = iota
	opWrite
	opFlush
	opAll
)

var opNames = [...]string{"read", "write", "flush", "all"}

// rule is one fault in force.
type rule struct {
	op       op
	off, len int64 // bytes; len 0: everywhere
	errno    syscall.Errno
	stall    bool
	delay    time.Duration
}

func (r rule) matches(o op, off, length int64) bool {
	if r.op != opAll && r.op != o {
		return false
	}
	// Flushes have no place, so a rule with one does not concern them.
	return r.len == 0 || (o != opFlush && off < r.off+r.len && r.off < off+length)
}

// Status is what the status command tells.
type Status struct {
	Reads, Writes, Flushes int
	Stalled                int   // requests waiting for release
	Unsynced               int64 // bytes in the volatile cache
}

// faults is the set of rules.
type faults struct {
	mu      sync.Mutex
	rules   []rule
	release chan struct{} // closed and replaced by release
	status  Status
}

func newFaults() *faults { return &faults{release: make(chan struct{})} }

// meet applies the rules to a request: it waits, and returns the errno to fail with, or 0. A
// request that stalled is not failed by the rule that stalled it, and no other applies.
func (f *faults) meet(o op, off, length int64) syscall.Errno {
	f.mu.Lock()
	switch o {
	case opRead:
		f.status.Reads++
	case opWrite:
		f.status.Writes++
	case opFlush:
		f.status.Flushes++
	}
	for _, r := range f.rules {
		if !r.matches(o, off, length) {
			continue
		}
		release := f.release
		if r.stall {
			f.status.Stalled++
		}
		f.mu.Unlock()
		switch {
		case r.stall:
			<-release
			f.mu.Lock()
			f.status.Stalled--
			f.mu.Unlock()
		case r.delay > 0:
			time.Sleep(r.delay)
		}
		return r.errno
	}
	f.mu.Unlock()
	return 0
}

// free answers what stalls; with all, every rule goes, else those that stall.
func (f *faults) free(all bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	var keep []rule
	for _, r := range f.rules {
		if !all && !r.stall {
			keep = append(keep, r)
		}
	}
	f.rules = keep
	close(f.release)
	f.release = make(chan struct{})
}

func (f *faults) add(r rule) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.rules = append(f.rules, r)
}

// parseRule reads a command that makes a rule.
func parseRule(words []string) (rule, error) {
	r := rule{op: opAll}
	name, args := words[0], words[1:]
	switch name {
	case "eio":
		r.errno = syscall.EIO
		if len(args) == 0 {
			return r, fmt.Errorf("eio: which operation")
		}
	case "enospc":
		r.errno = syscall.ENOSPC
		args = append([]string{"write"}, args...)
	case "stall":
		r.stall = true
	case "slow":
		if len(args) == 0 {
			return r, fmt.Errorf("slow: how many milliseconds")
		}
		ms, err := strconv.ParseUint(args[0], 10, 31)
		if err != nil {
			return r, fmt.Errorf("slow: %w", err)
		}
		r.delay, args = time.Duration(ms)*time.Millisecond, args[1:]
	default:
		return r, fmt.Errorf("unknown command %q", name)
	}
	if len(args) > 0 {
		found := false
		for i, n := range opNames {
			if n == args[0] {
				r.op, found = op(i), true
			}
		}
		if !found {
			return r, fmt.Errorf("%s: unknown operation %q", name, args[0])
		}
		args = args[1:]
	}
	switch len(args) {
	case 0:
		return r, nil
	case 2:
	default:
		return r, fmt.Errorf("%s: want an offset and a length, or neither", name)
	}
	for i, p := range []*int64{&r.off, &r.len} {
		n, err := strconv.ParseUint(args[i], 10, 62)
		if err != nil {
			return r, fmt.Errorf("%s: %w", name, err)
		}
		*p = int64(n)
	}
	return r, nil
}

// Command executes one line and returns the answer, without "ok".
func (fs *FS) Command(line string) (string, error) {
	words := strings.Fields(line)
	if len(words) == 0 {
		return "", fmt.Errorf("empty command")
	}
	if want := map[string]int{"volatile": 2, "drop-unsynced": 1, "release": 1, "clear": 1, "status": 1}[words[0]]; want != 0 && want != len(words) {
		return "", fmt.Errorf("%s: wrong number of words", words[0])
	}
	switch words[0] {
	case "volatile":
		switch words[1] {
		case "on":
			return "", fs.disk.setVolatile(true)
		case "off":
			return "", fs.disk.setVolatile(false)
		}
		return "", fmt.Errorf("volatile: on or off")
	case "drop-unsynced":
		fs.disk.drop()
	case "release":
		fs.faults.free(false)
	case "clear":
		fs.faults.free(true)
	case "status":
		fs.faults.mu.Lock()
		st := fs.faults.status
		fs.faults.mu.Unlock()
		st.Unsynced = fs.disk.unsynced()
		b, err := json.Marshal(st)
		return string(b), err
	default:
		r, err := parseRule(words)
		if err != nil {
			return "", err
		}
		fs.faults.add(r)
	}
	return "", nil
}
