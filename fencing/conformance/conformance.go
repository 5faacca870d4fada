package conformance

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/hawser-ha/hawser/fencing"
)

// Rig is a device under test, with the truth behind it.
type Rig struct {
	Device fencing.Device
	Node   string        // a node that it can fence
	IsOff  func() bool   // the truth
	Cuts   func() int    // how often the node's power was cut
	Dead   func()        // from now on nothing answers
	Limit  time.Duration // enough for any call
}

// Run checks a device that make gives; it is called once for each part.
func Run(t *testing.T, make func(t *testing.T) Rig) {
	t.Helper()
	t.Run("off, on, reboot", func(t *testing.T) {
		r := make(t)
		do := func(a fencing.Action) {
			t.Helper()
			ctx, cancel := context.WithTimeout(t.Context(), r.Limit)
			defer cancel()
			if err := r.Device.Do(ctx, a, r.Node); err != nil {
				t.Fatalf("%s: %v", a, err)
			}
		}
		is := func(what string, want fencing.Power) {
			t.Helper()
			ctx, cancel := context.WithTimeout(t.Context(), r.Limit)
			defer cancel()
			p, err := r.Device.Power(ctx, r.Node)
			if err != nil || p != want || r.IsOff() != (want == fencing.PowerOff) {
				t.Fatalf("%s: power %s, off in truth: %v, %v", what, p, r.IsOff(), err)
			}
		}
		do(fencing.Monitor)
		is("at first", fencing.PowerOn)
		do(fencing.Off)
		is("after off", fencing.PowerOff)
		do(fencing.Off)
		is("after a second off", fencing.PowerOff)
		do(fencing.On)
		is("after on", fencing.PowerOn)
		before := r.Cuts()
		do(fencing.Reboot)
		is("after reboot", fencing.PowerOn)
		if r.Cuts() != before+1 {
			t.Errorf("reboot cut the power %d times", r.Cuts()-before)
		}
	})
	t.Run("an action that it does not know", func(t *testing.T) {
		r := make(t)
		if r.Device.Can("explode") {
			t.Error("can explode")
		}
		ctx, cancel := context.WithTimeout(t.Context(), r.Limit)
		defer cancel()
		if err := r.Device.Do(ctx, "explode", r.Node); !errors.Is(err, fencing.ErrUnsupported) {
			t.Error(err)
		}
	})
	t.Run("a dead device is not a fenced node", func(t *testing.T) {
		r := make(t)
		r.Dead()
		for _, a := range []fencing.Action{fencing.Off, fencing.Reboot, fencing.On, fencing.Monitor} {
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			began := time.Now()
			err := r.Device.Do(ctx, a, r.Node)
			cancel()
			if err == nil {
				t.Errorf("%s claims to be done", a)
			}
			if took := time.Since(began); took > time.Second+r.Limit/2 {
				t.Errorf("%s came back after %s, its context ended after 1s", a, took)
			}
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if p, err := r.Device.Power(ctx, r.Node); err == nil || p != fencing.PowerUnknown {
			t.Errorf("power %s, %v", p, err)
		}
		if r.IsOff() {
			t.Error("and the node is off")
		}
	})
	t.Run("a context that has ended", func(t *testing.T) {
		r := make(t)
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if err := r.Device.Do(ctx, fencing.Off, r.Node); err == nil {
			t.Error("claims to be done")
		}
		if r.IsOff() {
			t.Error("the node is off")
		}
	})
}
