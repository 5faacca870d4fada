package fencing

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"time"
)

// Mode is how a device brings a node down.
type Mode string

// Modes.
const (
	ModeOff    Mode = "off"    // off, and it stays off
	ModeOffOn  Mode = "off-on" // off, confirmed, then on
	ModeReboot Mode = "reboot" // the device's own reboot: its word is all there is
)

// Spec is one device with how it is used.
type Spec struct {
	Name    string
	Device  Device // nil: it could not be set up, see Problem
	Problem string
	Mode    Mode
	Timeout time.Duration // of one call
	Retries int           // after the first try
	Wait    time.Duration // before a retry
	Verify  bool          // ask for the status after off, where the device can
	OffTime time.Duration // how long the node stays off before on
	Least   time.Duration // a reboot that claims to be done sooner is not believed
}

// Delays keep two nodes that lost sight of each other from fencing each other at the same moment.
type Delays struct {
	Random    time.Duration // up to this, by chance
	NoService time.Duration // more for a node that runs no services: the one that does wins
}

// Brake says how often a node may be fenced.
type Brake struct {
	Times  int
	Within time.Duration
}

// Options of a Fencer.
type Options struct {
	Self      string
	Devices   []Spec
	Levels    map[string][][]string // node -> levels -> names of devices
	Deadline  time.Duration         // for one fencing with all its levels, delays and retries
	Delays    Delays
	Brake     Brake
	MonitorAt time.Duration // each device is asked at this interval whether it works; 0: never
	History   string        // file; "" keeps it in memory
	Recorder  Recorder      // nil: nobody is told
	Log       *slog.Logger
	Random    func(limit time.Duration) time.Duration // nil: by chance
}

// Recorder keeps what is done about a node where every node sees it.
type Recorder interface {
	// Begin is called before anything is done. An error keeps the fencing from happening: another node is at it, or this
	// node is itself being fenced, or the record cannot be reached.
	Begin(ctx context.Context, r Request) error
	// End is called as soon as the outcome is known; a node that is turned on again is turned on afterwards.
	End(ctx context.Context, r Result) error
}

// Request asks for a fencing.
type Request struct {
	Node   string `json:"node"`
	By     string `json:"by"`            // who asks: a node, or a person
	Why    string `json:"why,omitempty"` // for people
	Action Action `json:"action,omitempty"`
	// Services: this node runs services, and should win a race.
	Services bool `json:"services,omitempty"`
	// Alone: nobody else can be fencing us at the same time (the shared record decided who may, or a person asks): no delay.
	Alone bool `json:"alone,omitempty"`
	// Force goes past the brake, and past a Recorder that says no.
	Force bool `json:"force,omitempty"`
}

// Attempt is one call of a device.
type Attempt struct {
	Level  int           `json:"level"` // from 1
	Device string        `json:"device"`
	Action Action        `json:"action"`
	Took   time.Duration `json:"took"`
	Power  string        `json:"power,omitempty"` // what its status said afterwards
	Error  string        `json:"error,omitempty"`
}

// Result of a fencing.
type Result struct {
	Request
	Outcome  Outcome       `json:"outcome"`
	Level    int           `json:"level,omitempty"` // that was confirmed
	Method   string        `json:"method,omitempty"`
	Began    time.Time     `json:"began"`
	Took     time.Duration `json:"took"` // until the outcome was known
	Delay    time.Duration `json:"delay,omitempty"`
	Attempts []Attempt     `json:"attempts"`
	// Notes are what went wrong beside: the node was not turned on again, the record could not be written.
	Notes []string `json:"notes,omitempty"`
}

// Fencer fences nodes. Safe for concurrent use.
type Fencer struct {
	o       Options
	devices map[string]*Spec

	mu      sync.Mutex // guards what follows
	running map[string]*job
	history []past
	seen    map[string]DeviceStatus
	last    map[string]Result
}

type job struct {
	action Action
	done   chan struct{}
	result Result
	err    error
}

// New checks o and reads the history.
func New(o Options) (*Fencer, error) {
	f := &Fencer{o: o, devices: map[string]*Spec{}, running: map[string]*job{}, seen: map[string]DeviceStatus{}, last: map[string]Result{}}
	if f.o.Random == nil {
		f.o.Random = func(limit time.Duration) time.Duration { return time.Duration(rand.Int64N(int64(limit) + 1)) }
	}
	var errs []error
	for i := range o.Devices {
		s := &o.Devices[i]
		if f.devices[s.Name] != nil {
			errs = append(errs, fmt.Errorf("device %s is there twice", s.Name))
		}
		if s.Timeout <= 0 {
			errs = append(errs, fmt.Errorf("device %s: timeout %s", s.Name, s.Timeout))
		}
		f.devices[s.Name] = s
		f.seen[s.Name] = DeviceStatus{Name: s.Name, Health: NotAsked, Mode: s.Mode, Error: s.Problem}
		if s.Device == nil {
			st := f.seen[s.Name]
			st.Health = Broken
			f.seen[s.Name] = st
		}
	}
	for _, node := range slices.Sorted(maps.Keys(o.Levels)) {
		for i, level := range o.Levels[node] {
			if len(level) == 0 {
				errs = append(errs, fmt.Errorf("level %d of node %s is empty", i+1, node))
			}
			for _, name := range level {
				if f.devices[name] == nil {
					errs = append(errs, fmt.Errorf("level %d of node %s: there is no device %s", i+1, node, name))
				}
			}
		}
	}
	if o.Deadline <= 0 {
		errs = append(errs, fmt.Errorf("deadline %s", o.Deadline))
	}
	if err := errors.Join(errs...); err != nil {
		return nil, fmt.Errorf("fencing: %w", err)
	}
	var err error
	f.history, err = readHistory(o.History)
	if err != nil {
		// Without it the brake is looser; not being able to fence would be worse.
		o.Log.Error("history of fencing not readable, it begins anew", "file", o.History, "err", err)
	}
	return f, nil
}

// Nodes lists those that can be fenced.
func (f *Fencer) Nodes() []string { return slices.Sorted(maps.Keys(f.o.Levels)) }

// Fence carries out r and returns its result. The error is nil only when the outcome is Confirmed; otherwise it wraps
// ErrUncertain or ErrNotDone, or, when nothing was done at all, ErrNoDevice, ErrBraked, ErrBusy or ErrRefused. A
// second call for the same node and action waits for the first and shares its result. For action On, Confirmed means
// that it was turned on.
func (f *Fencer) Fence(ctx context.Context, r Request) (Result, error) {
	if err := f.sane(r); err != nil {
		return Result{Request: r}, fmt.Errorf("fence %s: %w", r.Node, err)
	}
	f.mu.Lock()
	if j := f.running[r.Node]; j != nil {
		f.mu.Unlock()
		if j.action != r.Action {
			return Result{Request: r}, fmt.Errorf("fence %s: %w", r.Node, ErrBusy)
		}
		select {
		case <-j.done:
			return j.result, j.err
		case <-ctx.Done():
			return Result{Request: r}, fmt.Errorf("fence %s: %w: %w", r.Node, ErrUncertain, context.Cause(ctx))
		}
	}
	if err := f.braked(r, time.Now()); err != nil {
		f.mu.Unlock()
		return Result{Request: r}, fmt.Errorf("fence %s: %w", r.Node, err)
	}
	j := &job{action: r.Action, done: make(chan struct{})}
	f.running[r.Node] = j
	f.mu.Unlock()

	j.result, j.err = f.fence(ctx, r)

	f.mu.Lock()
	delete(f.running, r.Node)
	f.last[r.Node] = j.result
	f.mu.Unlock()
	close(j.done)
	return j.result, j.err
}

func (f *Fencer) sane(r Request) error {
	switch r.Action {
	case "", Off, On, Reboot:
	default:
		return fmt.Errorf("%w: %q is no way to fence", ErrRefused, r.Action)
	}
	if r.Node == f.o.Self && !r.Force {
		return fmt.Errorf("%w: it is this node", ErrRefused)
	}
	if len(f.o.Levels[r.Node]) == 0 {
		return ErrNoDevice
	}
	return nil
}

func (f *Fencer) fence(ctx context.Context, r Request) (res Result, err error) {
	res = Result{Request: r, Began: time.Now(), Attempts: []Attempt{}}
	log := f.o.Log.With("target", r.Node, "by", r.By)
	ctx, cancel := context.WithTimeout(ctx, f.o.Deadline)
	defer cancel()
	if f.o.Recorder != nil && r.Action != On {
		if err := f.o.Recorder.Begin(ctx, r); err != nil {
			if !r.Force {
				return res, fmt.Errorf("fence %s: %w: %w", r.Node, ErrRefused, err)
			}
			res.Notes = append(res.Notes, "not recorded: "+err.Error())
		}
	}
	log.Warn("fencing begins", "action", cmp.Or(string(r.Action), "as configured"), "why", r.Why)
	if !r.Alone && r.Action != On {
		if res.Delay = f.delay(r); res.Delay > 0 {
			if err := sleep(ctx, res.Delay); err != nil {
				f.ended(&res, log)
				return res, fmt.Errorf("fence %s: %w: ended in the delay before anything was done: %w", r.Node, ErrUncertain, err)
			}
		}
	}
	levels := f.o.Levels[r.Node]
	outcomes := make([]Outcome, 0, len(levels))
	var errs []error
	for i, names := range levels {
		o, err := f.level(ctx, &res, i+1, names)
		if err != nil {
			errs = append(errs, fmt.Errorf("level %d: %w", i+1, err))
		}
		outcomes = append(outcomes, o)
		if o == Confirmed {
			res.Outcome, res.Level, res.Method = Confirmed, i+1, strings.Join(names, "+")
			break
		}
		if ctx.Err() != nil {
			break
		}
	}
	if res.Outcome != Confirmed && len(outcomes) == len(levels) && !slices.Contains(outcomes, Unknown) {
		res.Outcome = NotDone // every level says so
	}
	f.ended(&res, log)
	switch res.Outcome {
	case Confirmed:
		f.turnOn(ctx, &res, log)
		return res, nil
	case NotDone:
		return res, fmt.Errorf("fence %s: %w: %w", r.Node, ErrNotDone, errors.Join(errs...))
	}
	return res, fmt.Errorf("fence %s: %w: %w", r.Node, ErrUncertain, errors.Join(errs...))
}

// ended records the outcome, although the time for fencing may be over.
func (f *Fencer) ended(res *Result, log *slog.Logger) {
	res.Took = time.Since(res.Began)
	if res.Outcome == Confirmed && res.Action != On {
		f.remember(past{Node: res.Node, At: res.Began}, log) // before it is turned on again
	}
	log.Warn("fencing ended", "outcome", res.Outcome.String(), "level", res.Level, "method", res.Method, "dur", res.Took.Round(time.Millisecond))
	if f.o.Recorder == nil || res.Action == On {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), recordTimeout)
	defer cancel()
	if err := f.o.Recorder.End(ctx, *res); err != nil {
		res.Notes = append(res.Notes, "outcome not recorded: "+err.Error())
		log.Error("outcome of fencing not recorded", "err", err)
	}
}

const recordTimeout = 10 * time.Second

// delay before the first action of a fencing that the target may be racing against.
func (f *Fencer) delay(r Request) time.Duration {
	var d time.Duration
	if f.o.Delays.Random > 0 {
		d = f.o.Delays.Random
		d = min(f.o.Random(d), d)
	}
	if !r.Services {
		d += f.o.Delays.NoService
	}
	return d
}

func sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// action is the one that a device of a level gets first. Where power comes from several devices, a reboot of one after
// the other would never leave the node without power: all go off, then all on.
func (s *Spec) action(r Request, together bool) Action {
	switch {
	case r.Action == On:
		return On
	case r.Action == Off:
		return Off
	case s.Mode == ModeReboot && !together:
		return Reboot
	}
	return Off
}

// again tells whether a device turns the node on after it was turned off.
func (s *Spec) again(r Request) bool {
	return r.Action == Reboot || (r.Action == "" && s.Mode != ModeOff)
}

func (f *Fencer) level(ctx context.Context, res *Result, n int, names []string) (Outcome, error) {
	for _, name := range names {
		s := f.devices[name]
		o, err := f.device(ctx, res, n, s, s.action(res.Request, len(names) > 1))
		if o != Confirmed {
			// The rest of the level is not touched: half the power cut is no better than none.
			return o, fmt.Errorf("%s: %w", name, err)
		}
	}
	return Confirmed, nil
}

// device lets one device act, again if that fails, and says what is known afterwards.
func (f *Fencer) device(ctx context.Context, res *Result, level int, s *Spec, a Action) (Outcome, error) {
	if s.Device == nil {
		return Unknown, fmt.Errorf("it could not be set up: %s", s.Problem)
	}
	if !s.Device.Can(a) {
		return Unknown, fmt.Errorf("%s: %w", a, ErrUnsupported)
	}
	var out Outcome
	var err error
	for try := 0; try <= s.Retries; try++ {
		if try > 0 {
			if sleep(ctx, s.Wait) != nil {
				return out, err
			}
		}
		out, err = f.once(ctx, res, level, s, a)
		if out == Confirmed || ctx.Err() != nil || errors.Is(err, ErrUnsupported) {
			return out, err
		}
	}
	return out, err
}

// once is one call of a device, and the question what came of it.
func (f *Fencer) once(ctx context.Context, res *Result, level int, s *Spec, a Action) (out Outcome, err error) {
	at := Attempt{Level: level, Device: s.Name, Action: a}
	began := time.Now()
	power := PowerUnknown
	defer func() {
		at.Took = time.Since(began)
		if power != PowerUnknown {
			at.Power = power.String()
		}
		if err != nil {
			at.Error = err.Error()
		}
		res.Attempts = append(res.Attempts, at)
	}()
	call, cancel := context.WithTimeout(ctx, s.Timeout)
	err = s.Device.Do(call, a, res.Node)
	cancel()
	if errors.Is(err, ErrUnsupported) {
		return Unknown, err
	}
	if a == Reboot {
		// Afterwards it is on in any case: there is nothing to ask.
		if err == nil && time.Since(began) < s.Least {
			err = fmt.Errorf("says that it has rebooted the node after %s, less than %s", time.Since(began).Round(time.Millisecond), s.Least)
		}
		if err != nil {
			return Unknown, err
		}
		return Confirmed, nil
	}
	if !s.Verify || !s.Device.Can(Status) {
		if err != nil {
			return Unknown, err
		}
		return Confirmed, nil
	}
	want := PowerOff
	if a == On {
		want = PowerOn
	}
	// After an action that failed one question is enough; after one that is said to have worked the node gets time to go.
	ask, cancel := context.WithTimeout(ctx, s.Timeout)
	defer cancel()
	for {
		var perr error
		power, perr = s.Device.Power(ask, res.Node)
		switch {
		case perr == nil && power == want:
			err = nil // whatever the agent thinks of it
			return Confirmed, nil
		case perr != nil && err == nil && ask.Err() == nil:
			err = fmt.Errorf("says that it is done, and does not know the node's power: %w", perr)
			return Unknown, err
		case perr != nil || power == PowerUnknown:
			if err == nil {
				err = fmt.Errorf("says that it is done, and its status is not known: %w", cmp.Or(perr, context.Cause(ask), ErrUncertain))
			}
			return Unknown, err
		case err != nil:
			return NotDone, fmt.Errorf("%w (the node's power is %s)", err, power)
		}
		if sleep(ask, verifyEvery) != nil {
			err = fmt.Errorf("says that it is done, but the node's power is still %s", power)
			return NotDone, err
		}
	}
}

const verifyEvery = 250 * time.Millisecond

// turnOn brings a node back whose death is confirmed and recorded. It cannot change the outcome.
func (f *Fencer) turnOn(ctx context.Context, res *Result, log *slog.Logger) {
	if res.Action == On || res.Action == Off {
		return
	}
	names := f.o.Levels[res.Node][res.Level-1]
	var rest time.Duration
	var on []*Spec
	for _, name := range names {
		s := f.devices[name]
		if s.again(res.Request) && s.action(res.Request, len(names) > 1) == Off && s.Device.Can(On) {
			on = append(on, s)
			rest = max(rest, s.OffTime)
		}
	}
	if len(on) == 0 {
		return
	}
	if err := sleep(ctx, rest); err != nil {
		res.Notes = append(res.Notes, "not turned on again: "+err.Error())
		return
	}
	for _, s := range on {
		if _, err := f.device(ctx, res, res.Level, s, On); err != nil {
			res.Notes = append(res.Notes, fmt.Sprintf("not turned on again by %s: %s", s.Name, err))
			log.Error("fenced node not turned on again", "device", s.Name, "err", err)
		}
	}
}

// Plan says what Fence would do, line by line, and does nothing.
func (f *Fencer) Plan(r Request) ([]string, error) {
	if err := f.sane(r); err != nil {
		return nil, fmt.Errorf("fence %s: %w", r.Node, err)
	}
	var lines []string
	f.mu.Lock()
	err := f.braked(r, time.Now())
	f.mu.Unlock()
	if err != nil {
		lines = append(lines, "refused: "+err.Error())
	}
	if !r.Alone && r.Action != On {
		low, high := time.Duration(0), f.o.Delays.Random
		if !r.Services {
			low, high = low+f.o.Delays.NoService, high+f.o.Delays.NoService
		}
		lines = append(lines, fmt.Sprintf("wait %s to %s, so that two nodes do not fence each other", low, high))
	}
	for i, names := range f.o.Levels[r.Node] {
		for _, name := range names {
			s := f.devices[name]
			a := s.action(r, len(names) > 1)
			line := fmt.Sprintf("level %d: %s: %s", i+1, name, a)
			if s.Device == nil {
				lines = append(lines, line+": broken: "+s.Problem)
				continue
			}
			if !s.Device.Can(a) {
				line += " (it cannot)"
			}
			if a != Reboot && s.Verify && s.Device.Can(Status) {
				line += ", then ask for its status"
			}
			if a == Off && s.again(r) && s.Device.Can(On) {
				line += fmt.Sprintf(", then on after %s", s.OffTime)
			}
			lines = append(lines, fmt.Sprintf("%s (timeout %s, %d retries)", line, s.Timeout, s.Retries))
		}
	}
	return append(lines, fmt.Sprintf("all within %s", f.o.Deadline)), nil
}
