package service

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/coreos/go-systemd/v22/dbus"
	godbus "github.com/godbus/dbus/v5"

	"github.com/hawser-ha/hawser/agent/config"
)

// systemd starts and stops units over D-Bus. Each operation has a connection of its own: dbus-daemon and systemd may be
// restarted at any time.
type systemd struct{ *host }

const (
	unitPoll    = 250 * time.Millisecond // how often a unit is looked at while it changes, should its job's end be missed
	connectWait = 5 * time.Second
)

// unit is what systemd says of one.
type unit struct{ load, active, sub, result, file, job string }

func connect(ctx context.Context) (*dbus.Conn, context.CancelFunc, error) {
	ctx, cancel := context.WithCancel(ctx)
	// The connection ends with ctx; the timer bounds only how long it takes to make it.
	timer := time.AfterFunc(connectWait, cancel)
	c, err := dbus.NewWithContext(ctx)
	if err == nil && !timer.Stop() {
		c.Close()
		err = fmt.Errorf("no connection within %s", connectWait)
	}
	if err != nil {
		cancel()
		return nil, nil, fmt.Errorf("ask systemd over D-Bus: %w", err)
	}
	return c, func() { c.Close(); cancel() }, nil
}

func look(ctx context.Context, c *dbus.Conn, name string) (*unit, error) {
	ctx, cancel := context.WithTimeout(ctx, connectWait)
	defer cancel()
	p, err := c.GetAllPropertiesContext(ctx, name)
	if err != nil {
		return nil, fmt.Errorf("ask systemd for %s: %w", name, err)
	}
	text := func(key string) string { s, _ := p[key].(string); return s }
	u := &unit{load: text("LoadState"), active: text("ActiveState"), sub: text("SubState"), result: text("Result"), file: text("UnitFileState")}
	if job, ok := p["Job"].([]any); ok && len(job) == 2 {
		if id, ok := job[0].(uint32); ok && id != 0 {
			u.job = fmt.Sprint(id)
		}
	}
	return u, nil
}

// say is the unit's state for people.
func (u *unit) say() string {
	s := u.active + " (" + u.sub + ")"
	if u.result != "" && u.result != "success" {
		s += ", result " + u.result
	}
	return s
}

// judge reads the state of a unit that should run.
func (u *unit) judge() answer {
	switch u.active {
	case "active", "reloading", "refreshing":
		return answer{is: running}
	case "activating":
		if u.sub == "auto-restart" || u.sub == "auto-restart-queued" {
			return answer{is: degraded, reason: "systemd starts it again: " + u.say()}
		}
		return answer{is: running, reason: u.say()}
	case "inactive", "failed":
		switch u.load {
		case "not-found":
			return answer{is: refused, reason: "systemd knows no such unit: install it, then systemctl daemon-reload"}
		case "masked":
			return answer{is: refused, reason: "the unit is masked: systemctl unmask"}
		case "error", "bad-setting":
			return answer{is: refused, reason: "systemd cannot load the unit (" + u.load + "): systemctl status tells why"}
		}
		return answer{is: notRunning, reason: u.say()}
	case "deactivating":
		return answer{is: broken, reason: u.say()}
	}
	return answer{is: unclear, reason: u.say()}
}

func (s *systemd) monitor(ctx context.Context, spec *config.ServiceSpec, _ *handle, _ bool) answer {
	limited, cancel := context.WithTimeout(ctx, spec.MonitorTimeout)
	defer cancel()
	c, end, err := connect(limited)
	if err != nil {
		return unasked(ctx, err)
	}
	defer end()
	u, err := look(limited, c, spec.What)
	if err != nil {
		return unasked(ctx, err)
	}
	return u.judge()
}

// unasked is the answer when there is none.
func unasked(ctx context.Context, err error) answer {
	if ctx.Err() != nil {
		return answer{err: leftOr(ctx)}
	}
	return answer{is: unclear, reason: err.Error()}
}

// refusal reads an error of D-Bus: true when it says that the unit cannot run here.
func refusal(err error) bool {
	e, ok := errors.AsType[godbus.Error](err)
	if !ok {
		return false
	}
	switch strings.TrimPrefix(e.Name, "org.freedesktop.systemd1.") {
	case "NoSuchUnit", "UnitMasked", "LoadFailed", "BadUnitSetting", "UnitError":
		return true
	}
	return e.Name == "org.freedesktop.DBus.Error.AccessDenied"
}

func (s *systemd) start(ctx context.Context, spec *config.ServiceSpec, _ *handle) answer {
	a := s.change(ctx, spec, spec.StartTimeout, func(ctx context.Context, c *dbus.Conn, done chan<- string) error {
		_ = c.ResetFailedUnitContext(ctx, spec.What) // that it failed often must not keep it from starting; we count ourselves
		_, err := c.StartUnitContext(ctx, spec.What, "replace", done)
		return err
	}, func(u *unit) (answer, bool) {
		a := u.judge()
		return a, u.job == "" && u.active != "activating" && u.active != "deactivating" || u.active == "active"
	})
	switch a.is {
	case notRunning:
		a.is, a.reason = broken, "start: "+a.reason
	case unclear:
		a.is = broken // it may run now: stop it first
	}
	return a
}

func (s *systemd) stop(ctx context.Context, spec *config.ServiceSpec, _ *handle) answer {
	stopped := func(u *unit) (answer, bool) {
		if u.job == "" && (u.active == "inactive" || u.active == "failed") {
			return answer{is: notRunning}, true
		}
		return answer{is: broken, reason: "stop: " + u.say()}, u.job == "" && u.active != "deactivating"
	}
	a := s.change(ctx, spec, spec.StopTimeout, func(ctx context.Context, c *dbus.Conn, done chan<- string) error {
		_, err := c.StopUnitContext(ctx, spec.What, "replace", done)
		if e, ok := errors.AsType[godbus.Error](err); ok && e.Name == "org.freedesktop.systemd1.NoSuchUnit" {
			close(done) // it is not there, and so it does not run; the state below says so again
			return nil
		}
		return err
	}, stopped)
	if a.err != nil || a.is == notRunning {
		return a
	}
	s.log.Warn("unit killed", "service", spec.Name, "why", a.reason)
	killed := s.change(ctx, spec, killWait, func(ctx context.Context, c *dbus.Conn, _ chan<- string) error {
		return c.KillUnitWithTarget(ctx, spec.What, dbus.All, 9)
	}, stopped)
	if killed.err != nil || killed.is == notRunning {
		return killed
	}
	return a
}

// change begins something and waits until ready says that the unit is where it will stay.
func (s *systemd) change(ctx context.Context, spec *config.ServiceSpec, limit time.Duration, begin func(context.Context, *dbus.Conn, chan<- string) error,
	ready func(*unit) (answer, bool)) answer {
	limited, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	c, end, err := connect(limited)
	if err != nil {
		return unasked(ctx, err)
	}
	defer func() { end() }()
	done := make(chan string, 1)
	if err := begin(limited, c, done); err != nil {
		if refusal(err) {
			return answer{is: refused, reason: err.Error()}
		}
		return unasked(ctx, err)
	}
	tick := time.NewTicker(unitPoll)
	defer tick.Stop()
	last := answer{is: unclear, reason: "systemd did not answer"}
	for {
		select {
		case <-done:
			done = nil
		case <-tick.C:
		case <-limited.Done():
			if ctx.Err() != nil {
				return answer{err: leftOr(ctx)}
			}
			return answer{is: broken, reason: fmt.Sprintf("not done within %s: %s", limit, last.reason)}
		}
		u, err := look(limited, c, spec.What)
		if err != nil {
			last = answer{is: unclear, reason: err.Error()}
			if again, endAgain, err := connect(limited); err == nil {
				end()
				c, end = again, endAgain
			}
			continue
		}
		a, there := ready(u)
		if there {
			return a
		}
		last = answer{is: a.is, reason: u.say()}
	}
}

func (s *systemd) warn(ctx context.Context, spec *config.ServiceSpec) string {
	limited, cancel := context.WithTimeout(ctx, connectWait)
	defer cancel()
	c, end, err := connect(limited)
	if err != nil {
		return ""
	}
	defer end()
	u, err := look(limited, c, spec.What)
	if err == nil && (u.file == "enabled" || u.file == "enabled-runtime") {
		return "the unit is enabled: systemd starts it at boot, whoever is Primary; systemctl disable " + spec.What
	}
	return ""
}
