package fencing_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hawser-ha/hawser/fencing"
	"github.com/hawser-ha/hawser/fencing/fake"
)

// rig is a fencer with switches a, b, c, for node n2.
type rig struct {
	o        fencing.Options
	switches map[string]*fake.Switch
}

func newRig(levels ...[]string) *rig {
	r := &rig{switches: map[string]*fake.Switch{}}
	r.o = fencing.Options{Self: "n1", Deadline: time.Minute, Levels: map[string][][]string{"n2": levels}, Log: slog.New(slog.DiscardHandler),
		Random: func(limit time.Duration) time.Duration { return limit / 2 }}
	for _, name := range []string{"a", "b", "c"} {
		r.switches[name] = fake.New()
		r.o.Devices = append(r.o.Devices, fencing.Spec{Name: name, Device: r.switches[name], Mode: fencing.ModeOffOn, Timeout: 10 * time.Second, Verify: true, OffTime: 2 * time.Second})
	}
	return r
}

func (r *rig) spec(name string, edit func(*fencing.Spec)) {
	for i := range r.o.Devices {
		if r.o.Devices[i].Name == name {
			edit(&r.o.Devices[i])
		}
	}
}

func (r *rig) fencer(t *testing.T) *fencing.Fencer {
	t.Helper()
	f, err := fencing.New(r.o)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

func (r *rig) calls() string {
	var all []string
	for _, name := range []string{"a", "b", "c"} {
		for _, c := range r.switches[name].Calls() {
			all = append(all, name+":"+strings.TrimSuffix(c, " n2"))
		}
	}
	return strings.Join(all, " ")
}

func TestOutcomes(t *testing.T) {
	type faults = map[string]fake.Faults
	for _, tc := range []struct {
		rule   string
		levels [][]string
		faults faults
		edit   func(*rig)
		action fencing.Action
		want   fencing.Outcome
		level  int
		calls  string
		took   time.Duration // until the outcome is known
		notes  int
	}{
		{rule: "off, asked, on", levels: [][]string{{"a"}}, want: fencing.Confirmed, level: 1, calls: "a:off a:status a:on a:status"},
		{rule: "only off", levels: [][]string{{"a"}}, action: fencing.Off, want: fencing.Confirmed, level: 1, calls: "a:off a:status"},
		{rule: "only on", levels: [][]string{{"a"}}, action: fencing.On, want: fencing.Confirmed, level: 1, calls: "a:on a:status"},
		{rule: "the device reboots", levels: [][]string{{"a"}}, edit: func(r *rig) { r.spec("a", func(s *fencing.Spec) { s.Mode = fencing.ModeReboot }) }, want: fencing.Confirmed, level: 1, calls: "a:reboot"},
		{rule: "a reboot that is done too fast is not believed", levels: [][]string{{"a"}}, want: fencing.Unknown, calls: "a:reboot",
			edit: func(r *rig) {
				r.spec("a", func(s *fencing.Spec) { s.Mode, s.Least = fencing.ModeReboot, time.Second })
			}},
		{rule: "asked to reboot one that is set to off", levels: [][]string{{"a"}}, action: fencing.Reboot, edit: func(r *rig) { r.spec("a", func(s *fencing.Spec) { s.Mode = fencing.ModeOff }) },
			want: fencing.Confirmed, level: 1, calls: "a:off a:status a:on a:status"},
		{rule: "two power supplies: all off, then all on", levels: [][]string{{"a", "b"}}, want: fencing.Confirmed, level: 1,
			edit:  func(r *rig) { r.spec("a", func(s *fencing.Spec) { s.Mode = fencing.ModeReboot }) },
			calls: "a:off a:status a:on a:status b:off b:status b:on b:status"},
		{rule: "half the power is not off", levels: [][]string{{"a", "b"}}, faults: faults{"b": {Refuses: true}}, want: fencing.Unknown, calls: "a:off a:status b:off b:status"},
		{rule: "the second level, when the first is stuck", levels: [][]string{{"a"}, {"b"}}, faults: faults{"a": {Stuck: true}}, want: fencing.Confirmed, level: 2,
			calls: "a:off a:status b:off b:status b:on b:status", took: 20 * time.Second},
		{rule: "failed, but it is off", levels: [][]string{{"a"}}, action: fencing.Off, faults: faults{"a": {Deaf: true}}, want: fencing.Confirmed, level: 1, calls: "a:off a:status"},
		{rule: "failed, and nobody knows", levels: [][]string{{"a"}}, faults: faults{"a": {Deaf: true, Mute: true}}, want: fencing.Unknown, calls: "a:off a:status"},
		{rule: "claims to be done, and nobody knows", levels: [][]string{{"a"}}, faults: faults{"a": {Mute: true}}, want: fencing.Unknown, calls: "a:off a:status"},
		{rule: "claims to be done, and the node goes on", levels: [][]string{{"a"}}, faults: faults{"a": {Lies: true}}, want: fencing.NotDone, took: 10 * time.Second},
		{rule: "claims to be done before the node is off", levels: [][]string{{"a"}}, action: fencing.Off, faults: faults{"a": {Slow: 3}}, want: fencing.Confirmed, level: 1,
			calls: "a:off a:status a:status a:status a:status", took: 750 * time.Millisecond},
		{rule: "without a status the device's word counts", levels: [][]string{{"a"}}, action: fencing.Off, faults: faults{"a": {Cannot: []fencing.Action{fencing.Status}}},
			want: fencing.Confirmed, level: 1, calls: "a:off"},
		{rule: "without a status a failure is no knowledge", levels: [][]string{{"a"}}, faults: faults{"a": {Cannot: []fencing.Action{fencing.Status}, Deaf: true}}, want: fencing.Unknown, calls: "a:off"},
		{rule: "tried again", levels: [][]string{{"a"}}, faults: faults{"a": {Refuses: true}}, want: fencing.Unknown, calls: "a:off a:status a:off a:status a:off a:status", took: 2 * time.Second,
			edit: func(r *rig) { r.spec("a", func(s *fencing.Spec) { s.Retries, s.Wait = 2, time.Second }) }},
		{rule: "one deadline for all", levels: [][]string{{"a"}, {"b"}, {"c"}}, faults: faults{"a": {Stuck: true}, "b": {Stuck: true}}, want: fencing.Unknown, took: 25 * time.Second,
			edit: func(r *rig) { r.o.Deadline = 25 * time.Second }, calls: "a:off a:status b:off b:status"},
		{rule: "every level says that it is on", levels: [][]string{{"a"}, {"b"}}, faults: faults{"a": {Lies: true}, "b": {Lies: true}}, want: fencing.NotDone, took: 20 * time.Second},
		{rule: "one says that it is on, the other does not know", levels: [][]string{{"a"}, {"b"}}, faults: faults{"a": {Lies: true}, "b": {Refuses: true}}, want: fencing.Unknown, took: 10 * time.Second},
		{rule: "a device that could not be set up", levels: [][]string{{"a"}, {"b"}}, want: fencing.Confirmed, level: 2, calls: "b:off b:status b:on b:status",
			edit: func(r *rig) { r.spec("a", func(s *fencing.Spec) { s.Device, s.Problem = nil, "no such program" }) }},
		{rule: "a device that cannot", levels: [][]string{{"a"}}, faults: faults{"a": {Cannot: []fencing.Action{fencing.Off}}}, want: fencing.Unknown},
		{rule: "not turned on again is no failure to fence", levels: [][]string{{"a"}}, want: fencing.Confirmed, level: 1, notes: 1, calls: "a:off a:status",
			edit: func(r *rig) { r.o.Deadline = time.Second }},
	} {
		t.Run(tc.rule, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newRig(tc.levels...)
				for name, f := range tc.faults {
					r.switches[name].Break(f)
				}
				if tc.edit != nil {
					tc.edit(r)
				}
				f := r.fencer(t)
				res, err := f.Fence(t.Context(), fencing.Request{Node: "n2", By: "test", Alone: true, Action: tc.action})
				if res.Outcome != tc.want || res.Level != tc.level || res.Took != tc.took || len(res.Notes) != tc.notes {
					t.Errorf("%s, level %d, after %s, notes %q; want %s, %d, %s, %d", res.Outcome, res.Level, res.Took, res.Notes, tc.want, tc.level, tc.took, tc.notes)
				}
				if tc.calls != "" && r.calls() != tc.calls {
					t.Errorf("calls %s\nwant  %s", r.calls(), tc.calls)
				}
				if (err == nil) != (tc.want == fencing.Confirmed) || errors.Is(err, fencing.ErrUncertain) != (tc.want == fencing.Unknown) || errors.Is(err, fencing.ErrNotDone) != (tc.want == fencing.NotDone) {
					t.Errorf("error %v", err)
				}
				// What is confirmed must be true.
				if tc.want == fencing.Confirmed && tc.action != fencing.On {
					cut := 0
					for _, s := range r.switches {
						cut += s.Cuts("n2")
					}
					if cut == 0 {
						t.Error("confirmed, and the power was never cut")
					}
				}
				if last := f.Snapshot().Last; len(last) != 1 || last[0].Outcome != tc.want {
					t.Errorf("snapshot: %+v", last)
				}
			})
		})
	}
}

// TestRaceOfTwoNodes: each has lost sight of the other and fences it. Whoever acts first has cut the other's power,
// which acts no more.
func TestRaceOfTwoNodes(t *testing.T) {
	for _, tc := range []struct {
		rule             string
		services1        bool
		services2        bool
		random1, random2 time.Duration
		winner           string
	}{
		{"the one with the services wins, whatever chance says", true, false, 3 * time.Second, 0, "n1"},
		{"seen from the other side", false, true, 0, 3 * time.Second, "n2"},
		{"both run services: chance decides", true, true, 2 * time.Second, time.Second, "n2"},
		{"neither does: chance decides", false, false, time.Second, 2 * time.Second, "n1"},
	} {
		t.Run(tc.rule, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				power := fake.New()
				node := func(self, other string, random time.Duration) *fencing.Fencer {
					f, err := fencing.New(fencing.Options{Self: self, Deadline: time.Minute, Log: slog.New(slog.DiscardHandler), Levels: map[string][][]string{other: {{"p"}}},
						Delays: fencing.Delays{Random: 3 * time.Second, NoService: 5 * time.Second}, Random: func(time.Duration) time.Duration { return random },
						Devices: []fencing.Spec{{Name: "p", Device: power, Mode: fencing.ModeOff, Timeout: time.Second, Verify: true}}})
					if err != nil {
						t.Fatal(err)
					}
					return f
				}
				n1, n2 := node("n1", "n2", tc.random1), node("n2", "n1", tc.random2)
				life1, die1 := context.WithCancel(t.Context())
				life2, die2 := context.WithCancel(t.Context())
				done := make(chan struct{}, 2)
				race := func(f *fencing.Fencer, life context.Context, target string, services bool, kill func()) {
					if _, err := f.Fence(life, fencing.Request{Node: target, By: "test", Services: services}); err == nil {
						kill()
					}
					done <- struct{}{}
				}
				go race(n1, life1, "n2", tc.services1, die2)
				go race(n2, life2, "n1", tc.services2, die1)
				<-done
				<-done
				die1()
				die2()
				loser := map[string]string{"n1": "n2", "n2": "n1"}[tc.winner]
				if power.Cuts(loser) != 1 || power.Cuts(tc.winner) != 0 {
					t.Errorf("power cut: n1 %d times, n2 %d times", power.Cuts("n1"), power.Cuts("n2"))
				}
			})
		})
	}
}

func TestFenceLoopIsBraked(t *testing.T) {
	history := filepath.Join(t.TempDir(), "state", "fencing.json")
	synctest.Test(t, func(t *testing.T) {
		r := newRig([]string{"a"})
		r.o.Brake, r.o.History = fencing.Brake{Times: 3, Within: 10 * time.Minute}, history
		req := fencing.Request{Node: "n2", By: "test", Alone: true}
		for i := range 3 { // a new agent each time, as after a reboot
			if _, err := r.fencer(t).Fence(t.Context(), req); err != nil {
				t.Fatalf("%d: %v", i, err)
			}
		}
		f := r.fencer(t)
		if _, err := f.Fence(t.Context(), req); !errors.Is(err, fencing.ErrBraked) {
			t.Errorf("the fourth time: %v", err)
		}
		if r.switches["a"].Cuts("n2") != 3 {
			t.Error("fenced although it was refused")
		}
		if lines, err := f.Plan(req); err != nil || !strings.Contains(lines[0], "refused") {
			t.Errorf("%v %q", err, lines)
		}
		forced := req
		forced.Force = true
		if _, err := f.Fence(t.Context(), forced); err != nil {
			t.Errorf("a person insists: %v", err)
		}
		<-time.After(11 * time.Minute)
		if _, err := f.Fence(t.Context(), req); err != nil {
			t.Errorf("much later: %v", err)
		}
	})
}

func TestFailuresDoNotBrake(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig([]string{"a"})
		r.o.Brake = fencing.Brake{Times: 2, Within: time.Hour}
		r.switches["a"].Break(fake.Faults{Refuses: true})
		f := r.fencer(t)
		req := fencing.Request{Node: "n2", By: "test", Alone: true}
		for range 5 {
			if _, err := f.Fence(t.Context(), req); !errors.Is(err, fencing.ErrUncertain) {
				t.Fatal(err)
			}
		}
		r.switches["a"].Break(fake.Faults{})
		if _, err := f.Fence(t.Context(), req); err != nil {
			t.Errorf("the switch works again: %v", err)
		}
	})
}

func TestBrokenHistoryDoesNotStopFencing(t *testing.T) {
	r := newRig([]string{"a"})
	r.o.History = filepath.Join(t.TempDir(), "h")
	if err := os.WriteFile(r.o.History, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := r.fencer(t).Fence(t.Context(), fencing.Request{Node: "n2", By: "test", Alone: true, Action: fencing.Off}); err != nil {
		t.Error(err)
	}
}

// recorder notes the order of things.
type recorder struct {
	refuse error
	log    []string
	power  *fake.Switch
}

func (r *recorder) Begin(_ context.Context, q fencing.Request) error {
	r.log = append(r.log, fmt.Sprintf("begin %s %s off=%v", q.Node, q.By, r.power.IsOff(q.Node)))
	return r.refuse
}

func (r *recorder) End(ctx context.Context, q fencing.Result) error {
	r.log = append(r.log, fmt.Sprintf("end %s %s level=%d off=%v %v", q.Node, q.Outcome, q.Level, r.power.IsOff(q.Node), ctx.Err()))
	return nil
}

func TestRecorder(t *testing.T) {
	for _, tc := range []struct {
		rule   string
		refuse error
		force  bool
		stuck  bool
		want   []string
		cuts   int
	}{
		{rule: "recorded before it is done, and while it is off", want: []string{"begin n2 test off=false", "end n2 confirmed level=1 off=true <nil>"}, cuts: 1},
		{rule: "recorded that nobody knows, after the deadline too", stuck: true, want: []string{"begin n2 test off=false", "end n2 unknown level=0 off=false <nil>"}},
		{rule: "nothing is done that cannot be recorded", refuse: errors.New("etcd is not there"), want: []string{"begin n2 test off=false"}},
		{rule: "a person may insist", refuse: errors.New("etcd is not there"), force: true, want: []string{"begin n2 test off=false", "end n2 confirmed level=1 off=true <nil>"}, cuts: 1},
	} {
		t.Run(tc.rule, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newRig([]string{"a"})
				rec := &recorder{refuse: tc.refuse, power: r.switches["a"]}
				r.o.Recorder = rec
				r.switches["a"].Break(fake.Faults{Stuck: tc.stuck})
				_, err := r.fencer(t).Fence(t.Context(), fencing.Request{Node: "n2", By: "test", Alone: true, Force: tc.force})
				if tc.refuse != nil && !tc.force && !errors.Is(err, fencing.ErrRefused) {
					t.Error(err)
				}
				if !slices.Equal(rec.log, tc.want) || r.switches["a"].Cuts("n2") != tc.cuts {
					t.Errorf("%q\nwant %q; power cut %d times", rec.log, tc.want, r.switches["a"].Cuts("n2"))
				}
			})
		})
	}
}

func TestAskedTwiceAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig([]string{"a"})
		r.o.Delays.Random = 10 * time.Second // both wait in the delay
		f := r.fencer(t)
		results := make(chan fencing.Result, 2)
		for range 2 {
			go func() {
				res, err := f.Fence(t.Context(), fencing.Request{Node: "n2", By: "test", Action: fencing.Off})
				if err != nil {
					t.Error(err)
				}
				results <- res
			}()
		}
		synctest.Wait()
		if got := f.Snapshot().Running; !slices.Equal(got, []string{"n2"}) {
			t.Errorf("running: %v", got)
		}
		if _, err := f.Fence(t.Context(), fencing.Request{Node: "n2", By: "test", Action: fencing.On}); !errors.Is(err, fencing.ErrBusy) {
			t.Errorf("on, while it is being fenced: %v", err)
		}
		one, two := <-results, <-results
		if r.calls() != "a:off a:status" || one.Began != two.Began {
			t.Errorf("fenced twice: %s", r.calls())
		}
	})
}

func TestRefusals(t *testing.T) {
	f := newRig([]string{"a"}).fencer(t)
	for _, tc := range []struct {
		rule string
		r    fencing.Request
		want error
	}{
		{"itself", fencing.Request{Node: "n1"}, fencing.ErrRefused},
		{"no device", fencing.Request{Node: "n3"}, fencing.ErrNoDevice},
		{"no action", fencing.Request{Node: "n2", Action: "explode"}, fencing.ErrRefused},
	} {
		if _, err := f.Fence(t.Context(), tc.r); !errors.Is(err, tc.want) {
			t.Errorf("%s: %v", tc.rule, err)
		}
	}
	for rule, edit := range map[string]func(*fencing.Options){
		"a level without a device":   func(o *fencing.Options) { o.Levels["n2"] = [][]string{{}} },
		"a device that is not there": func(o *fencing.Options) { o.Levels["n2"] = [][]string{{"x"}} },
		"two of one name":            func(o *fencing.Options) { o.Devices[1].Name = "a" },
		"no deadline":                func(o *fencing.Options) { o.Deadline = 0 },
		"no timeout":                 func(o *fencing.Options) { o.Devices[0].Timeout = 0 },
	} {
		r := newRig([]string{"a"})
		edit(&r.o)
		if _, err := fencing.New(r.o); err == nil {
			t.Errorf("%s: accepted", rule)
		}
	}
}

func TestMonitor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig([]string{"a"}, []string{"b", "a"})
		r.o.MonitorAt = time.Minute
		r.switches["b"].Break(fake.Faults{Cannot: []fencing.Action{fencing.Monitor}})
		r.spec("c", func(s *fencing.Spec) { s.Device, s.Problem = nil, "no such program" })
		f := r.fencer(t)
		health := func() string {
			var all []string
			for _, d := range f.Snapshot().Devices {
				all = append(all, fmt.Sprintf("%s %s %v %d/%d", d.Name, d.Health, d.Nodes, d.Fails, d.Monitor))
			}
			return strings.Join(all, ", ")
		}
		is := func(want string) {
			t.Helper()
			synctest.Wait()
			if got := health(); got != want {
				t.Errorf("%s\nwant %s", got, want)
			}
		}
		is("a not-asked [n2] 0/0, b not-asked [n2] 0/0, c broken [] 0/0")
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() { f.Run(ctx); close(ended) }()
		is("a working [n2] 0/1, b no-monitor [n2] 0/0, c broken [] 0/0")
		r.switches["a"].Break(fake.Faults{Refuses: true})
		<-time.After(61 * time.Second)
		is("a failing [n2] 1/2, b no-monitor [n2] 0/0, c broken [] 0/0")
		r.switches["a"].Break(fake.Faults{Stuck: true})
		<-time.After(60 * time.Second)
		cancel()
		<-ended
		is("a failing [n2] 1/2, b no-monitor [n2] 0/0, c broken [] 0/0") // the one that was cut short does not count
	})
}

func TestTiming(t *testing.T) {
	good := fencing.Timing{TTL: 20 * time.Second, RenewEvery: 4 * time.Second, RPCTimeout: 2 * time.Second, Margin: time.Second, Watchdog: 8 * time.Second, Deadline: time.Minute}
	for _, tc := range []struct {
		rule string
		edit func(*fencing.Timing)
		want string // part of the complaint
	}{
		{"good", func(*fencing.Timing) {}, ""},
		{"no watchdog, no fencing", func(t *fencing.Timing) { t.Watchdog, t.Deadline = 0, 0 }, ""},
		{"just enough", func(t *fencing.Timing) { t.TTL = 16 * time.Second }, ""},
		{"a watchdog that takes too long", func(t *fencing.Timing) { t.TTL = 16*time.Second - time.Nanosecond }, "a renewal that is slow"},
		{"two renewals do not fit", func(t *fencing.Timing) { t.Watchdog, t.TTL = 0, 8*time.Second }, "two renewals must fit"},
		{"no margin: the watchdog fires when the lease ends", func(t *fencing.Timing) { t.Margin = 0 }, "dead before anybody may take over"},
		{"fencing gives up before the node resets itself", func(t *fencing.Timing) { t.Deadline = 19 * time.Second }, "longer than a node takes"},
	} {
		x := good
		tc.edit(&x)
		broken := strings.Join(x.Broken(), "\n")
		if (broken == "") != (tc.want == "") || !strings.Contains(broken, tc.want) {
			t.Errorf("%s: %s", tc.rule, broken)
		}
		if text := strings.Join(x.Lines(), "\n"); strings.Contains(text, "DOES NOT HOLD") != (broken != "") {
			t.Errorf("%s: %s", tc.rule, text)
		}
		if x.Watchdog > 0 && broken == "" && x.FedFor()+x.Watchdog >= x.TTL {
			t.Errorf("%s: accepted, and a node may live on after its lease", tc.rule)
		}
	}
}

// TestOutcomesInJSON: a word that another version wrote is not taken for an answer.
func TestOutcomesInJSON(t *testing.T) {
	for _, o := range []fencing.Outcome{fencing.Unknown, fencing.NotDone, fencing.Confirmed} {
		text, err := o.MarshalText()
		var back fencing.Outcome
		if e := back.UnmarshalText(text); err != nil || e != nil || back != o {
			t.Errorf("%s: %v %v %v", o, back, err, e)
		}
	}
	back := fencing.Confirmed
	if err := back.UnmarshalText([]byte("certainly")); err != nil || back != fencing.Unknown {
		t.Errorf("%v %v", back, err)
	}
}
