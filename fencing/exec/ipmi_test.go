package exec

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/hawser-ha/hawser/fencing"
	"github.com/hawser-ha/hawser/fencing/conformance"
	"github.com/hawser-ha/hawser/test/ipmi"
)

func secretFile(t *testing.T, secret string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(file, []byte(secret+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

func ipmilan(t *testing.T, b *ipmi.Board, password string) *Device {
	t.Helper()
	d, err := New(t.Context(), Options{Name: "ipmi", Agent: "fence_ipmilan", Secrets: []Secret{{File: secretFile(t, password)}},
		Params: map[string]string{"ip": b.Host, "ipport": fmt.Sprint(b.Port), "username": ipmi.User, "lanplus": "1", "cipher": "3", "power_wait": "0", "ipmitool_timeout": "1"}})
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func fencer(t *testing.T, log *slog.Logger, levels [][]string, specs ...fencing.Spec) *fencing.Fencer {
	t.Helper()
	for i := range specs {
		s := &specs[i]
		s.Verify = true
		if s.Timeout == 0 {
			s.Timeout = 20 * time.Second
		}
		if s.Mode == "" {
			s.Mode = fencing.ModeOffOn
		}
	}
	f, err := fencing.New(fencing.Options{Self: "n1", Devices: specs, Levels: map[string][][]string{"n2": levels}, Deadline: time.Minute, Log: log})
	if err != nil {
		t.Fatal(err)
	}
	return f
}

func TestIPMIConformance(t *testing.T) {
	t.Parallel()
	conformance.Run(t, func(t *testing.T) conformance.Rig {
		b := ipmi.Start(t)
		return conformance.Rig{Device: ipmilan(t, b, ipmi.Password), Node: "n2", IsOff: b.IsOff, Cuts: b.Cuts, Dead: func() { b.Stick(true) }, Limit: 20 * time.Second}
	})
}

func TestIPMIFencing(t *testing.T) {
	for _, tc := range []struct {
		rule     string
		mode     fencing.Mode
		action   fencing.Action
		password string
		break1   func(*ipmi.Board)
		want     fencing.Outcome
		off      bool
		cuts     int
		notes    int
	}{
		{rule: "off, then on", mode: fencing.ModeOffOn, want: fencing.Confirmed, cuts: 1},
		{rule: "off stays off", mode: fencing.ModeOff, want: fencing.Confirmed, off: true, cuts: 1},
		{rule: "the device's own reboot", mode: fencing.ModeReboot, want: fencing.Confirmed, cuts: 1},
		{rule: "asked for off, whatever is configured", mode: fencing.ModeReboot, action: fencing.Off, want: fencing.Confirmed, off: true, cuts: 1},
		{rule: "wrong password", password: "wrong-pass", want: fencing.Unknown},
		{rule: "the board acknowledges and does nothing", break1: (*ipmi.Board).Ignore, want: fencing.NotDone},
		{rule: "slow answers", mode: fencing.ModeOff, break1: func(b *ipmi.Board) { b.Slow(120 * time.Millisecond) }, want: fencing.Confirmed, off: true, cuts: 1},
		{rule: "off is certain although on fails", break1: (*ipmi.Board).StaysOff, want: fencing.Confirmed, off: true, cuts: 1, notes: 1},
	} {
		t.Run(tc.rule, func(t *testing.T) {
			t.Parallel()
			b := ipmi.Start(t)
			password := ipmi.Password
			if tc.password != "" {
				password = tc.password
			}
			if tc.break1 != nil {
				tc.break1(b)
			}
			var said bytes.Buffer
			f := fencer(t, slog.New(slog.NewTextHandler(&said, &slog.HandlerOptions{Level: slog.LevelDebug})), [][]string{{"ipmi"}},
				fencing.Spec{Name: "ipmi", Device: ipmilan(t, b, password), Mode: tc.mode, Timeout: 8 * time.Second})
			res, err := f.Fence(t.Context(), fencing.Request{Node: "n2", By: "test", Alone: true, Action: tc.action})
			t.Logf("%v: %+v", err, res)
			if res.Outcome != tc.want || (err == nil) != (tc.want == fencing.Confirmed) {
				t.Errorf("outcome %s, want %s: %v", res.Outcome, tc.want, err)
			}
			if tc.want == fencing.Unknown && !errors.Is(err, fencing.ErrUncertain) || tc.want == fencing.NotDone && !errors.Is(err, fencing.ErrNotDone) {
				t.Errorf("the error does not say which: %v", err)
			}
			if b.IsOff() != tc.off || b.Cuts() != tc.cuts || len(res.Notes) != tc.notes {
				t.Errorf("off %v, power cut %d times, notes %q", b.IsOff(), b.Cuts(), res.Notes)
			}
			if s := fmt.Sprintf("%s %v %+v", said.String(), err, res); strings.Contains(s, password) {
				t.Errorf("the password is in: %s", s)
			}
		})
	}
}

func TestIPMIStuckFirstLevel(t *testing.T) {
	t.Parallel()
	stuck, good := ipmi.Start(t), ipmi.Start(t)
	stuck.Stick(true)
	f := fencer(t, slog.New(slog.DiscardHandler), [][]string{{"stuck"}, {"good"}},
		fencing.Spec{Name: "stuck", Device: ipmilan(t, stuck, ipmi.Password), Timeout: 1500 * time.Millisecond, Mode: fencing.ModeOff},
		fencing.Spec{Name: "good", Device: ipmilan(t, good, ipmi.Password), Mode: fencing.ModeOff})
	f.MonitorAll(t.Context())
	for i, want := range []fencing.Health{fencing.Failing, fencing.Working} {
		if d := f.Snapshot().Devices[i]; d.Health != want {
			t.Errorf("%s is %s: %s", d.Name, d.Health, d.Error)
		}
	}
	res, err := f.Fence(t.Context(), fencing.Request{Node: "n2", By: "test", Alone: true})
	if err != nil || res.Level != 2 || !good.IsOff() || stuck.IsOff() {
		t.Errorf("%v: %+v", err, res)
	}
	if a := res.Attempts; len(a) != 2 || !strings.Contains(a[0].Error, "deadline") || a[0].Took > 6*time.Second {
		t.Errorf("%+v", a)
	}
}

func TestIPMIStuckEverywhere(t *testing.T) {
	t.Parallel()
	b := ipmi.Start(t)
	b.Stick(true)
	f, err := fencing.New(fencing.Options{Self: "n1", Deadline: 3 * time.Second, Log: slog.New(slog.DiscardHandler), Levels: map[string][][]string{"n2": {{"a"}}},
		Devices: []fencing.Spec{{Name: "a", Device: ipmilan(t, b, ipmi.Password), Timeout: time.Minute, Retries: 5, Verify: true, Mode: fencing.ModeOff}}})
	if err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	res, err := f.Fence(t.Context(), fencing.Request{Node: "n2", By: "test", Alone: true})
	if !errors.Is(err, fencing.ErrUncertain) || res.Outcome != fencing.Unknown {
		t.Errorf("%v: %+v", err, res)
	}
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("the error does not say that time was over: %v", err)
	}
	if took := time.Since(began); took > 8*time.Second {
		t.Errorf("the deadline of 3s was kept after %s", took)
	}
}
