package watchdog

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// Mode says whether a node uses a watchdog.
type Mode string

// Modes.
const (
	Off       Mode = "off"
	Automatic Mode = "automatic" // if there is one
	Required  Mode = "required"  // without one this node does not lead
)

// granularity: drivers count whole seconds.
const granularity = time.Second

// Errors to ask for with errors.Is.
var (
	// ErrAbsent: there is no watchdog that could be used.
	ErrAbsent = errors.New("no usable watchdog")
	// ErrTooLate: the licence ends before the watchdog could fire.
	ErrTooLate = errors.New("the licence ends too soon to arm the watchdog")
)

// Device is an open watchdog: the kernel's, or a test's. From Open on it runs, and resets the machine unless it is fed.
type Device interface {
	// SetTimeout says after how long without food it fires, and gives what it really took.
	SetTimeout(d time.Duration) (time.Duration, error)
	Feed() error
	// Close lets go of it. With disarm it is stopped, where it can be; without, it runs on.
	Close(disarm bool) error
	// CanDisarm tells whether Close can stop it.
	CanDisarm() (bool, error)
	Identity() string
}

// Options of a Dog.
type Options struct {
	Mode    Mode
	Path    string        // /dev/watchdog
	Timeout time.Duration // of the watchdog; whole seconds
	// Marker is a file that is there while we have armed the device: a new agent knows by it that the running watchdog is its
	// own, and until when it may be fed. It belongs on a file system that a reset empties. "": none.
	Marker string
	Log    *slog.Logger
	Now    func() time.Duration              // nil: the boot clock
	Open   func(path string) (Device, error) // nil: the kernel's
}

// Status is what is known of the watchdog.
type Status struct {
	Mode     Mode          `json:"mode"`
	Path     string        `json:"path,omitempty"`
	Identity string        `json:"identity,omitempty"`
	Armed    bool          `json:"armed"`
	Timeout  time.Duration `json:"timeout"`
	Until    time.Duration `json:"until,omitempty"`  // end of the licence, boot clock
	Left     time.Duration `json:"left,omitempty"`   // until then
	Hungry   bool          `json:"hungry,omitempty"` // it is armed and fed no more: the node will be reset
	Problem  string        `json:"problem,omitempty"`
}

// Dog holds the watchdog of a node. Safe for concurrent use.
type Dog struct {
	o Options

	mu       sync.Mutex // guards what follows. Under it are calls of the device, and the marker is written: both are memory
	dev      Device
	until    time.Duration
	hungry   bool
	dying    bool // Die was called: nothing saves this node any more
	identity string
	problem  string
	failed   time.Duration // when arming it failed last
}

// retryAfter: how long a node that could not arm its watchdog says that it may not lead.
const retryAfter = time.Minute

// marker is the content of Options.Marker.
type marker struct {
	Boot  string        `json:"boot"`
	Until time.Duration `json:"until"`
}

// New makes a Dog and, if the last agent left the device armed, adopts it: it is fed until the end of the licence which
// that agent had, and then no more, unless Extend or Disarm comes first.
func New(o Options) (*Dog, error) {
	switch o.Mode {
	case Off, Automatic, Required:
	default:
		return nil, fmt.Errorf("watchdog: mode %q is none of off, automatic, required", o.Mode)
	}
	if o.Mode != Off && (o.Timeout < time.Second || o.Timeout%time.Second != 0) {
		return nil, fmt.Errorf("watchdog: timeout %s: it takes whole seconds", o.Timeout)
	}
	if o.Now == nil {
		o.Now = bootClock
	}
	if o.Open == nil {
		o.Open = openKernel
	}
	d := &Dog{o: o}
	m, err := d.readMarker()
	if err != nil {
		return nil, fmt.Errorf("watchdog: %w", err)
	}
	if m == nil {
		return d, nil
	}
	dev, err := d.open()
	if err != nil {
		// It was armed and runs on; without the device nobody can feed it.
		o.Log.Error("the watchdog that the last agent armed cannot be opened: the node may be reset", "err", err)
		d.problem = err.Error()
		return d, nil
	}
	d.dev, d.until = dev, m.Until
	o.Log.Warn("armed watchdog adopted", "device", o.Path, "left", (m.Until - o.Now()).Round(time.Millisecond))
	d.mu.Lock()
	d.feed()
	d.mu.Unlock()
	return d, nil
}

func bootClock() time.Duration {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts); err != nil {
		panic(err) // every kernel that runs this has it
	}
	return time.Duration(ts.Nano())
}

func bootID() string {
	data, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(data))
}

func (d *Dog) readMarker() (*marker, error) {
	if d.o.Marker == "" {
		return nil, nil
	}
	data, err := os.ReadFile(d.o.Marker)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var m marker
	if err := json.Unmarshal(data, &m); err != nil || m.Boot != bootID() {
		return nil, nil // of another life of this machine, or cut off by its end
	}
	return &m, nil
}

// writeMarker says until when the device may be fed. It is renamed into place: a crash leaves the old one or the new.
func (d *Dog) writeMarker() error {
	if d.o.Marker == "" {
		return nil
	}
	data, err := json.Marshal(marker{bootID(), d.until})
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(d.o.Marker), 0o755); err != nil {
		return err
	}
	tmp := d.o.Marker + ".new"
	if err := os.WriteFile(tmp, data, 0o600); err != nil {
		return err
	}
	return os.Rename(tmp, d.o.Marker)
}

func (d *Dog) dropMarker() error {
	if d.o.Marker == "" {
		return nil
	}
	if err := os.Remove(d.o.Marker); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// open opens the device and sets its timeout. A device that would take longer than asked for is none: the node would
// outlive its licence.
func (d *Dog) open() (Device, error) {
	dev, err := d.o.Open(d.o.Path)
	if err != nil {
		return nil, fmt.Errorf("watchdog %s: %w: %w", d.o.Path, ErrAbsent, err)
	}
	got, err := dev.SetTimeout(d.o.Timeout)
	if err == nil && got > d.o.Timeout {
		err = fmt.Errorf("it takes %s at least, %s is set", got, d.o.Timeout)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("watchdog %s: %w: %w", d.o.Path, ErrAbsent, err), dev.Close(true))
	}
	d.identity = dev.Identity()
	return dev, nil
}

// Arm starts the watchdog for a node that is about to lead under a licence until then (boot clock). Armed already, it is
// Extend. With mode off, or automatic and none there, it does nothing.
func (d *Dog) Arm(until time.Duration) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.o.Mode == Off {
		return nil
	}
	if d.dev != nil {
		return d.extend(until)
	}
	if d.o.Now()+d.o.Timeout+granularity > until {
		return fmt.Errorf("watchdog: %w: %s left, timeout %s", ErrTooLate, until-d.o.Now(), d.o.Timeout)
	}
	dev, err := d.open()
	if err != nil {
		d.problem, d.failed = err.Error(), d.o.Now()
		if d.o.Mode == Required {
			return err
		}
		d.o.Log.Warn("no watchdog: this node leads without one", "err", err)
		return nil
	}
	can, err := dev.CanDisarm()
	if err != nil || !can {
		d.o.Log.Warn("this watchdog cannot be stopped again: when the agent ends, the node is reset unless it is back in time", "device", d.o.Path, "err", err)
	}
	d.dev, d.until, d.problem, d.hungry = dev, until, "", false
	d.feed()
	if err := d.writeMarker(); err != nil {
		d.o.Log.Error("marker of the watchdog not written: an agent that crashes resets the node", "file", d.o.Marker, "err", err)
	}
	d.o.Log.Info("watchdog armed", "device", d.o.Path, "identity", d.identity, "timeout", d.o.Timeout)
	return nil
}

// Extend moves the end of the licence. A watchdog that was not fed in time is not saved by it, if it fires first.
func (d *Dog) Extend(until time.Duration) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.dev == nil {
		return nil
	}
	return d.extend(until)
}

func (d *Dog) extend(until time.Duration) error {
	if until == d.until || d.dying {
		return nil
	}
	d.until = until
	d.feed()
	if err := d.writeMarker(); err != nil {
		return fmt.Errorf("watchdog: marker: %w", err)
	}
	return nil
}

// Disarm stops the watchdog: this node leads no more, and nothing that needs the licence runs. Disarmed already, it does nothing.
func (d *Dog) Disarm() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.dying {
		return fmt.Errorf("watchdog %s: this node is to be reset", d.o.Path)
	}
	if d.dev == nil {
		return d.dropMarker()
	}
	can, err := d.dev.CanDisarm()
	if err == nil && !can {
		// Closed, it would fire: it is fed as long as there is an agent.
		d.until = 1<<63 - 1 - d.o.Timeout - 2*granularity
		d.feed()
		d.o.Log.Warn("this watchdog cannot be stopped: it is fed on", "device", d.o.Path)
		return d.writeMarker()
	}
	err = errors.Join(err, d.dev.Close(true), d.dropMarker())
	d.dev, d.hungry = nil, false
	if err != nil {
		return fmt.Errorf("watchdog %s: disarm: %w", d.o.Path, err)
	}
	d.o.Log.Info("watchdog disarmed", "device", d.o.Path)
	return nil
}

// Die lets the watchdog reset this node, and arms it for that where it is not. There is no way back.
func (d *Dog) Die(why string) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.o.Mode == Off {
		return fmt.Errorf("watchdog: %w: watchdog.mode is off", ErrAbsent)
	}
	if d.dev == nil {
		dev, err := d.open()
		if err != nil {
			return err
		}
		d.dev = dev
	}
	d.dying, d.until = true, 0
	d.o.Log.Error("this node resets itself", "why", why, "dur", d.o.Timeout)
	return d.writeMarker() // an agent that starts meanwhile must not feed it either
}

// feed feeds if the licence allows it; d.mu is held. The last meal is so early that the device fires before the licence ends.
func (d *Dog) feed() {
	now := d.o.Now()
	if d.dying || now+d.o.Timeout+granularity > d.until {
		if !d.hungry {
			d.o.Log.Error("watchdog fed no more: the licence ends, and the node is reset", "left", (d.until - now).Round(time.Millisecond))
		}
		d.hungry = true
		return
	}
	if err := d.dev.Feed(); err != nil {
		d.problem = err.Error()
		d.o.Log.Error("watchdog not fed", "err", err)
		return
	}
	if d.hungry {
		d.o.Log.Warn("watchdog fed again, the licence was renewed")
	}
	d.hungry = false
}

// Run feeds an armed watchdog until ctx ends, and then disarms it: a clean end is no reason for a reset (the replicators
// hold a licence of their own, which ends without anybody's help).
func (d *Dog) Run(ctx context.Context) error {
	if d.o.Mode == Off {
		return nil
	}
	t := time.NewTicker(d.o.Timeout / 4)
	defer t.Stop()
	for {
		select {
		case <-t.C:
			d.mu.Lock()
			if d.dev != nil {
				d.feed()
			}
			d.mu.Unlock()
		case <-ctx.Done():
			return d.end()
		}
	}
}

// end is Disarm for an agent that goes: nobody is left to feed.
func (d *Dog) end() error {
	d.mu.Lock()
	if d.dying {
		d.mu.Unlock()
		return nil
	}
	if d.dev != nil {
		if can, err := d.dev.CanDisarm(); err == nil && !can {
			d.feed()
			err := d.dev.Close(false)
			d.dev = nil
			d.mu.Unlock()
			d.o.Log.Error("this watchdog cannot be stopped: the node is reset unless the agent is back in time", "timeout", d.o.Timeout)
			return err
		}
	}
	d.mu.Unlock()
	return d.Disarm()
}

// MayLead tells whether this node may lead as far as the watchdog goes. It looks whether there is one and does not
// start it.
func (d *Dog) MayLead() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.o.Mode != Required || d.dev != nil {
		return nil
	}
	if d.problem != "" && d.o.Now() < d.failed+retryAfter {
		// Looking at the file says nothing about what failed when it was armed.
		return fmt.Errorf("%w: %s", ErrAbsent, d.problem)
	}
	return d.present()
}

// present looks at the file. Opening it would start the watchdog.
func (d *Dog) present() error {
	st, err := os.Stat(d.o.Path)
	switch {
	case err != nil:
		return fmt.Errorf("%w: %w (modprobe softdog, or watchdog.mode: automatic)", ErrAbsent, err)
	case st.Mode().Type() != fs.ModeDevice|fs.ModeCharDevice:
		return fmt.Errorf("%w: %s is no device", ErrAbsent, d.o.Path)
	}
	return nil
}

// Status tells how it is.
func (d *Dog) Status() Status {
	d.mu.Lock()
	defer d.mu.Unlock()
	s := Status{Mode: d.o.Mode, Armed: d.dev != nil, Problem: d.problem}
	if d.o.Mode == Off {
		return s
	}
	s.Path, s.Identity, s.Timeout = d.o.Path, d.identity, d.o.Timeout
	if s.Armed {
		s.Until, s.Left, s.Hungry = d.until, d.until-d.o.Now(), d.hungry
	} else if s.Problem == "" {
		if err := d.present(); err != nil {
			s.Problem = err.Error()
		}
	}
	return s
}
