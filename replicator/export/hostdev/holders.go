package hostdev

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// ErrBusy says that somebody uses the device.
var ErrBusy = errors.New("device is in use")

// Holder is one user of a device.
type Holder struct {
	Kind string // "mount", "swap", "device" (stacked on it) or "open"
	Name string // mount point, device, or name of the process
	PID  int    // of an opener
}

func (h Holder) String() string {
	switch h.Kind {
	case "mount":
		return "mounted on " + h.Name
	case "swap":
		return "used as swap space"
	case "device":
		return "part of " + h.Name
	}
	return fmt.Sprintf("held open by %s (pid %d)", h.Name, h.PID)
}

// BusyError names who keeps a device from being detached. It is an ErrBusy.
type BusyError struct {
	Device  string
	Holders []Holder
}

func (e *BusyError) Error() string {
	if len(e.Holders) == 0 {
		return fmt.Sprintf("%s: %v", e.Device, ErrBusy)
	}
	who := make([]string, len(e.Holders))
	for i, h := range e.Holders {
		who[i] = h.String()
	}
	return fmt.Sprintf("%s: %v: %s", e.Device, ErrBusy, strings.Join(who, ", "))
}

// Unwrap makes it an ErrBusy.
func (e *BusyError) Unwrap() error { return ErrBusy }

// Lasting says that waiting a moment will not help.
func (e *BusyError) Lasting() bool {
	for _, h := range e.Holders {
		if h.Kind != "open" {
			return true
		}
	}
	return false
}

// Holders lists who uses the block device dev ("/dev/loop3") or opened one of the files: mounts in any mount namespace,
// swap, stacked devices, and only when there are none of those, processes that have it open. A process that
// comes or goes meanwhile may be missed.
func Holders(dev string, files ...string) ([]Holder, error) {
	var st unix.Stat_t
	if err := unix.Stat(dev, &st); err != nil {
		return nil, fmt.Errorf("stat %s: %w", dev, err)
	}
	var out []Holder
	for _, m := range mountsOf(dev, unix.Major(st.Rdev), unix.Minor(st.Rdev)) {
		out = append(out, Holder{Kind: "mount", Name: m})
	}
	swaps, _ := os.ReadFile("/proc/swaps")
	for line := range strings.Lines(string(swaps)) {
		if f := strings.Fields(line); len(f) > 0 && f[0] == dev {
			out = append(out, Holder{Kind: "swap"})
		}
	}
	stacked, _ := os.ReadDir(filepath.Join("/sys/block", filepath.Base(dev), "holders"))
	for _, e := range stacked {
		out = append(out, Holder{Kind: "device", Name: "/dev/" + e.Name()})
	}
	if len(out) > 0 {
		return out, nil
	}
	return Openers(append([]string{dev}, files...)...)
}

// mountsOf lists the mount points of a device, each once.
func mountsOf(dev string, major, minor uint32) []string {
	var points []string
	namespaces, seen := map[string]bool{}, map[string]bool{}
	procs, _ := filepath.Glob("/proc/[0-9]*")
	for _, p := range append([]string{"/proc/self"}, procs...) {
		ns, err := os.Readlink(p + "/ns/mnt")
		if err != nil || namespaces[ns] {
			continue
		}
		namespaces[ns] = true
		all, _ := readMounts(p + "/mountinfo")
		for _, m := range all {
			if (m.Major == major && m.Minor == minor || m.Source == dev) && !seen[m.Point] {
				seen[m.Point] = true
				points = append(points, m.Point)
			}
		}
	}
	return points
}

// Openers lists the processes that have one of the paths, or something below it, open.
func Openers(paths ...string) ([]Holder, error) {
	procs, err := os.ReadDir("/proc")
	if err != nil {
		return nil, err
	}
	var out []Holder
	for _, p := range procs {
		pid, err := strconv.Atoi(p.Name())
		if err != nil {
			continue
		}
		fds, _ := os.ReadDir(filepath.Join("/proc", p.Name(), "fd"))
		for _, fd := range fds {
			target, err := os.Readlink(filepath.Join("/proc", p.Name(), "fd", fd.Name()))
			if err == nil && under(target, paths) {
				comm, _ := os.ReadFile(filepath.Join("/proc", p.Name(), "comm"))
				out = append(out, Holder{Kind: "open", Name: strings.TrimSpace(string(comm)), PID: pid})
				break
			}
		}
	}
	return out, nil
}

func under(target string, paths []string) bool {
	for _, p := range paths {
		if target == p || strings.HasPrefix(target, p+"/") {
			return true
		}
	}
	return false
}

// grace is how long RetryBusy waits for openers that come and go by themselves, such as udev's probes.
const grace = 2 * time.Second

// RetryBusy calls f until it succeeds, or fails for good: with another error than a *BusyError, with one that is
// Lasting, or because ctx or a grace of two seconds has ended.
func RetryBusy(ctx context.Context, f func() error) error {
	ctx, cancel := context.WithTimeout(ctx, grace)
	defer cancel()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		err := f()
		b, ok := errors.AsType[*BusyError](err)
		if !ok || b.Lasting() {
			return err
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return err
		}
	}
}
