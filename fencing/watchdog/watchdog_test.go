package watchdog

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// machine is a machine with a watchdog, as the kernel has it: opened, it runs; closed without the letter, it runs on.
type machine struct {
	t        *testing.T
	start    time.Time
	dir      string
	timer    *time.Timer
	timeout  time.Duration
	least    time.Duration // shortest timeout that it takes
	absent   bool
	nowayout bool
	open     bool
	fed      int
	frozen   chan struct{} // no process runs until it is closed
	reset    atomic.Int64  // when it was reset, 0 if it was not
}

func newMachine(t *testing.T) *machine {
	return &machine{t: t, start: time.Now(), dir: t.TempDir(), timeout: time.Minute}
}

func (m *machine) now() time.Duration { return time.Hour + time.Since(m.start) }

func (m *machine) Open(string) (Device, error) {
	if m.absent {
		return nil, os.ErrNotExist
	}
	if m.open {
		return nil, errors.New("busy")
	}
	m.open = true
	m.run()
	return m, nil
}

func (m *machine) run() {
	m.halt()
	m.timer = time.AfterFunc(m.timeout, func() { m.reset.Store(int64(m.now())) })
}

func (m *machine) died() time.Duration { return time.Duration(m.reset.Load()) }

func (m *machine) halt() {
	if m.timer != nil {
		m.timer.Stop()
	}
}

func (m *machine) SetTimeout(d time.Duration) (time.Duration, error) {
	m.timeout = max(d, m.least)
	m.run()
	return m.timeout, nil
}
func (m *machine) Feed() error {
	if m.frozen != nil {
		<-m.frozen
		return nil
	}
	m.fed++
	m.run()
	return nil
}
func (m *machine) Close(disarm bool) error {
	m.open = false
	if disarm && !m.nowayout {
		m.halt()
	}
	return nil
}
func (m *machine) CanDisarm() (bool, error) { return !m.nowayout, nil }
func (m *machine) Identity() string         { return "a test's" }

// agent is a Dog with the loop that feeds.
type agent struct {
	*Dog
	stop context.CancelFunc
	done chan error
}

func (m *machine) agent(mode Mode) *agent {
	m.t.Helper()
	d, err := New(Options{Mode: mode, Path: filepath.Join(m.dir, "watchdog"), Timeout: 5 * time.Second, Marker: filepath.Join(m.dir, "armed"), Log: slog.New(slog.DiscardHandler), Now: m.now, Open: m.Open})
	if err != nil {
		m.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(m.t.Context())
	a := &agent{d, cancel, make(chan error, 1)}
	go func() { a.done <- d.Run(ctx) }()
	return a
}

// end is a clean end.
func (a *agent) end(t *testing.T) {
	t.Helper()
	a.stop()
	if err := <-a.done; err != nil {
		t.Error(err)
	}
}

// kill is kill -9: the kernel closes the file, and nothing is written any more.
func (m *machine) kill(a *agent) {
	a.mu.Lock()
	a.dev = nil
	marker, err := os.ReadFile(a.o.Marker)
	a.mu.Unlock()
	a.stop()
	<-a.done
	m.open = false
	if err == nil {
		err = os.WriteFile(a.o.Marker, marker, 0o600)
	}
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		m.t.Error(err)
	}
}

func (m *machine) wait(d time.Duration) {
	<-time.After(d)
	synctest.Wait()
}

func (m *machine) alive(what string) {
	m.t.Helper()
	if m.died() != 0 {
		m.t.Fatalf("%s: the node was reset", what)
	}
}

// in runs a test in a bubble.
func in(t *testing.T, rule string, f func(t *testing.T, m *machine)) {
	t.Run(rule, func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) { f(t, newMachine(t)) })
	})
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func TestLives(t *testing.T) {
	in(t, "nothing is opened before it leads", func(t *testing.T, m *machine) {
		a := m.agent(Required)
		m.wait(time.Hour)
		if m.open || m.fed > 0 || a.Status().Armed {
			t.Error("the device is open")
		}
		a.end(t)
	})
	in(t, "a licence that is renewed", func(t *testing.T, m *machine) {
		a := m.agent(Automatic)
		must(t, a.Arm(m.now()+15*time.Second))
		for range 100 {
			m.wait(5 * time.Second)
			must(t, a.Extend(m.now()+15*time.Second))
		}
		m.alive("renewed")
		if s := a.Status(); !s.Armed || s.Hungry || s.Identity != "a test's" {
			t.Errorf("%+v", s)
		}
		a.end(t)
		m.wait(time.Hour)
		m.alive("a clean end")
	})
	in(t, "disarmed", func(t *testing.T, m *machine) {
		a := m.agent(Automatic)
		must(t, a.Arm(m.now()+15*time.Second))
		m.wait(3 * time.Second)
		must(t, a.Disarm())
		must(t, a.Disarm())
		m.wait(time.Hour)
		m.alive("disarmed")
		must(t, a.Arm(m.now()+15*time.Second)) // and again
		if !m.open {
			t.Error("not armed")
		}
		a.end(t)
	})
	in(t, "an upgrade", func(t *testing.T, m *machine) {
		a := m.agent(Automatic)
		must(t, a.Arm(m.now()+15*time.Second))
		a.end(t)
		m.wait(time.Minute)
		b := m.agent(Automatic)
		m.wait(time.Hour)
		m.alive("upgraded")
		b.end(t)
	})
	in(t, "a crash with a quick successor", func(t *testing.T, m *machine) {
		a := m.agent(Automatic)
		until := m.now() + 15*time.Second
		must(t, a.Arm(until))
		m.kill(a)
		m.wait(2 * time.Second)
		b := m.agent(Automatic)
		if s := b.Status(); !s.Armed || s.Until != until {
			t.Errorf("not adopted: %+v", s)
		}
		m.wait(4 * time.Second)
		must(t, b.Extend(m.now()+15*time.Second))
		m.wait(8 * time.Second)
		m.alive("adopted and renewed")
		b.end(t)
		m.wait(time.Hour)
		m.alive("the end of the successor")
	})
	in(t, "one that cannot be stopped is fed on after the end of leading", func(t *testing.T, m *machine) {
		m.nowayout = true
		a := m.agent(Automatic)
		must(t, a.Arm(m.now()+15*time.Second))
		must(t, a.Disarm())
		m.wait(time.Hour)
		m.alive("fed on")
		must(t, a.Arm(m.now()+15*time.Second))
		m.wait(15 * time.Second)
		if m.died() == 0 {
			t.Error("armed again without effect")
		}
		a.end(t)
	})
}

func TestDies(t *testing.T) {
	const licence = 15 * time.Second
	for _, tc := range []struct {
		rule string
		do   func(t *testing.T, m *machine, a *agent) *agent // returns the agent that runs at the end
	}{
		{"the licence is not renewed", func(_ *testing.T, _ *machine, a *agent) *agent { return a }},
		{"the agent is stopped", func(_ *testing.T, m *machine, a *agent) *agent {
			a.mu.Lock()
			m.frozen = make(chan struct{})
			a.mu.Unlock()
			return a
		}},
		{"the agent is killed and nobody comes", func(_ *testing.T, m *machine, a *agent) *agent { m.kill(a); return nil }},
		{"its successor has no licence", func(_ *testing.T, m *machine, a *agent) *agent {
			m.kill(a)
			m.wait(2 * time.Second)
			return m.agent(Automatic)
		}},
		{"one that cannot be stopped, and the agent ends", func(t *testing.T, m *machine, a *agent) *agent { m.nowayout = true; a.end(t); return nil }},
	} {
		in(t, tc.rule, func(t *testing.T, m *machine) {
			a := m.agent(Automatic)
			until := m.now() + licence
			must(t, a.Arm(until))
			b := tc.do(t, m, a)
			m.wait(licence)
			if m.died() == 0 || m.died() >= until {
				t.Errorf("reset at %s, the licence ended at %s", m.died(), until)
			}
			if m.frozen != nil {
				close(m.frozen)
			}
			if b != nil {
				b.end(t)
			}
		})
	}
}

// TestNeverOutlivesItsLicence: whatever the licence does, the node is dead when it ends; and it does not die while there
// is room for the watchdog.
func TestNeverOutlivesItsLicence(t *testing.T) {
	for seed := range uint64(60) {
		synctest.Test(t, func(t *testing.T) {
			rng := rand.New(rand.NewPCG(seed, 0))
			m := newMachine(t)
			a := m.agent(Required)
			until := m.now() + 20*time.Second
			must(t, a.Arm(until))
			for range 50 {
				m.wait(time.Duration(rng.Int64N(int64(4 * time.Second))))
				if m.died() != 0 {
					break
				}
				if m.now() >= until {
					t.Fatalf("seed %d: alive at %s, the licence ended at %s", seed, m.now(), until)
				}
				if rng.IntN(3) > 0 {
					until = max(until, m.now()+time.Duration(rng.Int64N(int64(20*time.Second)))) // a licence is not taken back
					must(t, a.Extend(until))
				}
			}
			// The last meal is at most a tick before the time after which none is allowed, and an extension that leaves less than
			// a timeout is no meal.
			if m.died() != 0 && until-m.died() > granularity+5*time.Second+5*time.Second/4 {
				t.Errorf("seed %d: reset %s before the end of the licence", seed, until-m.died())
			}
			a.end(t)
		})
	}
}

func TestDie(t *testing.T) {
	for _, armed := range []bool{true, false} {
		in(t, map[bool]string{true: "armed", false: "not armed"}[armed], func(t *testing.T, m *machine) {
			a := m.agent(Automatic)
			if armed {
				must(t, a.Arm(m.now()+time.Hour))
			}
			must(t, a.Die("test"))
			must(t, a.Extend(m.now()+time.Hour))
			if err := a.Disarm(); err == nil {
				t.Error("disarmed")
			}
			a.end(t) // a clean end does not save it
			m.wait(5 * time.Second)
			if m.died() == 0 {
				t.Error("lives")
			}
		})
	}
}

func TestRequired(t *testing.T) {
	in(t, "required and absent: does not lead", func(t *testing.T, m *machine) {
		m.absent = true
		a := m.agent(Required)
		if err := a.MayLead(); !errors.Is(err, ErrAbsent) {
			t.Error(err)
		}
		if err := a.Arm(m.now() + time.Minute); !errors.Is(err, ErrAbsent) {
			t.Error(err)
		}
		if s := a.Status(); s.Armed || s.Problem == "" {
			t.Errorf("%+v", s)
		}
		a.end(t)
	})
	in(t, "automatic and absent: leads without", func(t *testing.T, m *machine) {
		m.absent = true
		a := m.agent(Automatic)
		must(t, a.MayLead())
		must(t, a.Arm(m.now()+time.Minute))
		if s := a.Status(); s.Armed || s.Problem == "" {
			t.Errorf("%+v", s)
		}
		a.end(t)
	})
	in(t, "off: never opened", func(t *testing.T, m *machine) {
		a := m.agent(Off)
		must(t, a.MayLead())
		must(t, a.Arm(m.now()+time.Minute))
		if m.open {
			t.Error("opened")
		}
		a.end(t)
	})
	in(t, "one that takes too long is none", func(t *testing.T, m *machine) {
		m.least = 30 * time.Second
		a := m.agent(Required)
		if err := a.Arm(m.now() + time.Minute); !errors.Is(err, ErrAbsent) || !strings.Contains(err.Error(), "30s at least") {
			t.Error(err)
		}
		m.wait(time.Hour)
		m.alive("refused")
		a.end(t)
	})
	in(t, "a licence that ends too soon", func(t *testing.T, m *machine) {
		a := m.agent(Automatic)
		if err := a.Arm(m.now() + 5*time.Second); !errors.Is(err, ErrTooLate) {
			t.Error(err)
		}
		if m.open {
			t.Error("opened")
		}
		a.end(t)
	})
}

func TestMarkerOfAnotherLife(t *testing.T) {
	for name, text := range map[string]string{"another boot": `{"boot":"x","until":99999999999999}`, "cut": `{"boo`, "empty": ""} {
		in(t, name, func(t *testing.T, m *machine) {
			must(t, os.WriteFile(filepath.Join(m.dir, "armed"), []byte(text), 0o600))
			a := m.agent(Automatic)
			if m.open {
				t.Error("adopted what is not ours")
			}
			a.end(t)
		})
	}
}

func TestOptions(t *testing.T) {
	for _, o := range []Options{{Mode: "maybe"}, {Mode: Required}, {Mode: Automatic, Timeout: 1500 * time.Millisecond}} {
		o.Log = slog.New(slog.DiscardHandler)
		if _, err := New(o); err == nil {
			t.Errorf("accepted: %+v", o)
		}
	}
}

// TestAFileIsNoWatchdog: nothing is written into a file that happens to be there.
func TestAFileIsNoWatchdog(t *testing.T) {
	file := filepath.Join(t.TempDir(), "watchdog")
	must(t, os.WriteFile(file, []byte("data"), 0o600))
	for _, path := range []string{file, "/dev/null", filepath.Join(t.TempDir(), "none")} {
		d, err := New(Options{Mode: Required, Path: path, Timeout: 5 * time.Second, Log: slog.New(slog.DiscardHandler)})
		must(t, err)
		if err := d.Arm(d.o.Now() + time.Minute); !errors.Is(err, ErrAbsent) {
			t.Errorf("%s: %v", path, err)
		}
		if err := d.MayLead(); !errors.Is(err, ErrAbsent) {
			t.Errorf("%s: %v", path, err)
		}
	}
	if data, err := os.ReadFile(file); err != nil || string(data) != "data" {
		t.Errorf("%q %v", data, err)
	}
}
