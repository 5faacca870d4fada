package service

import (
	"context"
	"errors"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/hawser-ha/hawser/agent/config"
)

func TestDecide(t *testing.T) {
	now := time.Unix(1000, 0)
	later := now.Add(time.Second)
	spec := func(name string) config.ServiceSpec { return config.ServiceSpec{Name: name, Monitor: time.Minute} }
	in := func(name string) *instance { return &instance{Spec: spec(name), State: Running, Ran: true, due: later} }
	failed := func(name string) *instance { i := in(name); i.Failed = true; return i }
	defs := []config.ServiceSpec{spec("fs"), spec("ip"), spec("pg")}
	tests := []struct {
		name string
		v    view
		want step
	}{
		{"nothing runs: start the first", view{want: wantUp}, step{action: doStart, spec: spec("fs")}},
		{"one runs: start the second", view{want: wantUp, stack: []*instance{in("fs")}}, step{action: doStart, spec: spec("ip")}},
		{"all run: wait for the next monitor", view{want: wantUp, stack: []*instance{in("fs"), in("ip"), in("pg")}}, step{until: later}},
		{"a monitor is due", view{want: wantUp, stack: []*instance{in("fs"), {Spec: spec("ip"), State: Running, due: now}, in("pg")}}, step{action: doMonitor, index: 1}},
		{"of several the one that is due longest", view{want: wantUp, stack: []*instance{{Spec: spec("fs"), due: now}, {Spec: spec("ip"), due: now.Add(-1)}, in("pg")}},
			step{action: doMonitor, index: 1}},
		{"a start comes before monitors that are due", view{want: wantUp, stack: []*instance{{Spec: spec("fs"), due: now}}}, step{action: doStart, spec: spec("ip")}},
		{"what was just started is asked before the next start", view{want: wantUp, stack: []*instance{{Spec: spec("fs")}}}, step{action: doMonitor}},
		{"stop in reverse", view{want: wantDown, stack: []*instance{in("fs"), in("ip")}}, step{action: doStop, index: 1}},
		{"the first failed: stop the last", view{want: wantUp, stack: []*instance{failed("fs"), in("ip"), in("pg")}}, step{action: doStop, index: 2}},
		{"the last failed: stop only that", view{want: wantUp, stack: []*instance{in("fs"), failed("ip")}}, step{action: doStop, index: 1}},
		{"another order runs: stop what is not a prefix", view{want: wantUp, stack: []*instance{in("ip")}}, step{action: doStop, index: 0}},
		{"what is not defined any more stops", view{want: wantUp, stack: []*instance{in("fs"), in("ip"), in("pg"), in("old")}}, step{action: doStop, index: 3}},
		{"undecided: nothing is stopped", view{want: undecided, stack: []*instance{in("fs"), failed("ip")}}, step{until: later}},
		{"undecided: nothing is started", view{want: undecided}, step{}},
		{"maintenance: nothing", view{want: wantDown, maintenance: true, stack: []*instance{in("fs")}}, step{}},
		{"what must be up first never was: nothing is started", view{want: wantUp, hold: noStart}, step{}},
		{"that is not known: what runs stays", view{want: wantUp, hold: noStart, stack: []*instance{in("fs")}}, step{until: later}},
		{"that went down: what runs stops", view{want: wantUp, hold: noRun, stack: []*instance{in("fs")}}, step{action: doStop}},
		{"that went down while undecided", view{want: undecided, hold: noRun, stack: []*instance{in("fs")}}, step{action: doStop}},
		{"others use it: wait before the stop", view{want: wantDown, users: true, stack: []*instance{in("fs")}}, step{}},
		{"back-off", view{want: wantUp, stack: []*instance{in("fs")}, past: map[string]*past{"ip": {Next: now.Add(time.Millisecond)}}}, step{until: now.Add(time.Millisecond)}},
		{"given up: the rest is watched", view{want: wantUp, stack: []*instance{in("fs")}, past: map[string]*past{"ip": {GaveUp: Failed}}}, step{until: later}},
		{"a stop failed: not at once again", view{want: wantDown, stack: []*instance{{Spec: spec("fs"), State: StopFailed, retry: later}}}, step{until: later}},
		{"no record: nothing is started", view{want: wantUp, lost: true}, step{}},
		{"no record: stop all the same", view{want: wantDown, lost: true, stack: []*instance{in("fs")}}, step{action: doStop}},
		{"a command without monitors ended", view{want: wantUp, stack: []*instance{{Spec: config.ServiceSpec{Name: "fs"}, State: Running, exited: "ended"}}, defs: []config.ServiceSpec{{Name: "fs"}}},
			step{action: doMonitor}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			tt.v.now = now
			if tt.v.defs == nil {
				tt.v.defs = defs
			}
			got := decide(tt.v)
			if got.action != tt.want.action || got.index != tt.want.index || got.spec.Name != tt.want.spec.Name || !got.until.Equal(tt.want.until) {
				t.Errorf("%+v, want %+v", got, tt.want)
			}
		})
	}
}

func TestStartInOrderStopInReverse(t *testing.T) {
	b := newBench(t)
	b.boot(primary("r0", b.things("fs", "ip", "pg")...))
	b.start()
	b.wantCalls("start fs, start ip, start pg")
	if c := b.chain(); c.State != Running || len(c.Services) != 3 || c.Services[2].State != Running || c.Wanted == nil || !*c.Wanted {
		t.Errorf("%+v", c)
	}
	b.stop()
	b.wantCalls("start fs, start ip, start pg, stop pg, stop ip, stop fs")
	if c := b.chain(); c.State != Stopped || c.Services[0].State != Stopped {
		t.Errorf("%+v", c)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	var states []string
	for _, e := range b.events {
		if e.Service == "" {
			states = append(states, string(e.To))
		}
	}
	if got := strings.Join(states, " "); got != "starting running stopping stopped" {
		t.Errorf("states of the chain: %s", got)
	}
}

// A service that fails again and again is started anew with a growing pause, then its owner is asked to move it.
func TestRestartThenMove(t *testing.T) {
	b := newBench(t)
	b.boot(primary("r0", b.things("fs", "pg")...))
	b.start()
	b.put("pg.start.rc", "1")
	b.remove("pg.up") // it died
	b.wantAsked(AskMove)
	b.until("failed", func() bool { return b.chain().State == Failed })
	b.until("stopped after its failure", func() bool { return strings.HasSuffix(b.calls(), "stop pg") })
	// One failure of the monitor, two of starts: restart is 2.
	b.wantCalls("start fs, start pg, stop pg, start pg, stop pg, start pg, stop pg")
	c := b.chain()
	if c.Asks != AskMove || !strings.Contains(c.Reason, "pg will not start") || c.Services[0].State != Running || c.Services[1].Failures != 3 {
		t.Errorf("%+v", c)
	}
	var ce *ChainError
	if err := b.r.Start(b.ctx(), Primary); !errors.As(err, &ce) || ce.Chain.State != Failed {
		t.Errorf("start says %v", err)
	}
	b.remove("pg.start.rc")
	b.r.Reset()
	b.start()
	if c := b.chain(); c.State != Running || c.Asks != AskNothing || c.Services[1].Failures != 0 {
		t.Errorf("after reset: %+v", c)
	}
}

// What follows a failed service is stopped first and started after it.
func TestRestartOfTheFirst(t *testing.T) {
	b := newBench(t)
	b.boot(primary("r0", b.things("fs", "pg")...))
	b.start()
	b.remove("fs.up")
	b.until("restarted", func() bool { return strings.Count(b.calls(), "start pg") == 2 && b.chain().State == Running })
	b.wantCalls("start fs, start pg, stop pg, stop fs, start fs, start pg")
}

func TestRefused(t *testing.T) {
	for _, tt := range []struct {
		name, file, code string
		nowhere, started bool
	}{
		{"not installed", "pg.start.rc", "5", false, true},
		{"no permission", "pg.start.rc", "4", false, true},
		{"not configured", "pg.start.rc", "6", true, true},
		{"a probe says not installed", "pg.monitor.rc", "5", false, false},
		{"a probe says not configured", "pg.monitor.rc", "6", true, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			b := newBench(t)
			b.put(tt.file, tt.code)
			b.put("pg.stop.rc", tt.code) // an agent that cannot start cannot stop either
			b.boot(primary("r0", b.things("fs", "pg")...))
			err := b.r.Start(b.ctx(), Primary)
			var ce *ChainError
			if !errors.As(err, &ce) || ce.Chain.State != Refused || ce.Chain.Nowhere != tt.nowhere {
				t.Fatalf("%v %+v", err, ce)
			}
			b.wantAsked(AskMove)
			if e := b.escalations()[0]; e.Nowhere != tt.nowhere || e.Service != "pg" || !strings.Contains(e.Reason, "exit code "+tt.code) || !strings.Contains(e.Reason, "pg will not") {
				t.Errorf("%+v", e)
			}
			if got := strings.Count(b.calls(), "start pg"); got != map[bool]int{true: 1, false: 0}[tt.started] {
				t.Errorf("calls %s", b.calls())
			}
			b.stop()
			if s := b.service("pg"); s.State != Refused || !strings.Contains(s.Reason, "exit code "+tt.code) {
				t.Errorf("the reason is not visible any more: %+v", s)
			}
		})
	}
}

// "Cannot tell" is not "not running": it is stopped before it is started.
func TestCannotTell(t *testing.T) {
	b := newBench(t)
	b.put("fs.monitor.rc", "1")
	b.boot(primary("r0", b.things("fs")...))
	b.r.Want(Primary, true)
	b.until("stopped first", func() bool { return b.calls() != "" })
	if got := b.calls(); !strings.HasPrefix(got, "stop fs") {
		t.Errorf("calls %s", got)
	}
}

// A stop that fails asks for a forced demotion; its users get errors then, and the second attempt works.
func TestStopFailsUntilForceDemote(t *testing.T) {
	b := newBench(t)
	b.boot(primary("r0", b.things("fs", "pg")...))
	b.start()
	b.put("pg.stop.rc", "1")
	b.escalate = func(Escalation) error { return os.Remove(b.path("pg.stop.rc")) }
	b.stop()
	b.wantCalls("start fs, start pg, stop pg, stop pg, stop fs")
	b.wantAsked(AskForceDemote)
	if e := b.escalations()[0]; e.Service != "pg" || !strings.Contains(e.Reason, "pg will not stop") {
		t.Errorf("%+v", e)
	}
	if c := b.chain(); c.State != Stopped || c.Asks != AskNothing {
		t.Errorf("%+v", c)
	}
}

// When it fails then too, only the end of the node helps; the chain goes on trying, and nothing below is stopped.
func TestStopFailsForEver(t *testing.T) {
	b := newBench(t)
	b.boot(primary("r0", b.things("fs", "pg")...))
	b.start()
	b.put("pg.stop.rc", "1")
	err := b.r.Stop(b.ctx(), Primary)
	var ce *ChainError
	if !errors.As(err, &ce) || ce.Chain.State != StopFailed || ce.Chain.Asks != AskFence || !strings.Contains(err.Error(), "pg will not stop") {
		t.Fatalf("%v", err)
	}
	b.wantAsked(AskForceDemote, AskFence)
	b.until("another attempt", func() bool { return strings.Count(b.calls(), "stop pg") > 2 })
	if strings.Contains(b.calls(), "stop fs") || !b.has("fs.up") {
		t.Errorf("calls %s", b.calls())
	}
	b.remove("pg.stop.rc")
	b.until("stopped at last", func() bool { return b.chain().State == Stopped })
	if len(b.escalations()) != 2 {
		t.Errorf("%+v", b.escalations())
	}
}

// A stop that fails although the service is surely stopped is no reason to end the node.
func TestStopFailsButStopped(t *testing.T) {
	b := newBench(t)
	b.boot(primary("r0", b.things("fs")...))
	b.start()
	b.put("fs.stop.rc", "1")
	b.remove("fs.up")
	b.stop()
	if len(b.escalations()) != 0 {
		t.Errorf("%+v", b.escalations())
	}
}

// A start that takes too long is killed with all its children, and stopped.
func TestTimeoutKillsTheGroup(t *testing.T) {
	b := newBench(t)
	spec := b.thing("fs")
	spec.StartTimeout, spec.Restart = 300*time.Millisecond, 0
	b.put("fs.start.hang", "")
	b.boot(primary("r0", spec))
	var ce *ChainError
	if err := b.r.Start(b.ctx(), Primary); !errors.As(err, &ce) || !strings.Contains(err.Error(), "no answer within 300ms") {
		t.Fatal(err)
	}
	b.until("stopped", func() bool { return strings.Contains(b.calls(), "stop fs") })
	data, err := os.ReadFile(b.path("fs.start.pid"))
	if err != nil {
		t.Fatal(err)
	}
	child, err := strconv.Atoi(strings.TrimSpace(string(data)))
	if err != nil {
		t.Fatal(err)
	}
	b.until("the child is gone", func() bool { state, _, _, err := stat(child); return err != nil || state == 'Z' })
}

// A demotion does not wait for a start that takes its time.
func TestStopInterruptsStart(t *testing.T) {
	b := newBench(t)
	b.put("pg.start.hang", "")
	b.boot(primary("r0", b.things("fs", "pg")...))
	b.r.Want(Primary, true)
	b.until("pg starts", func() bool { return b.has("pg.start.pid") })
	began := time.Now()
	b.stop()
	if d := time.Since(began); d > 5*time.Second {
		t.Errorf("it took %s", d)
	}
	b.wantCalls("start fs, start pg, stop pg, stop fs")
	if s := b.service("pg"); s.Failures != 0 {
		t.Errorf("an order is no failure: %+v", s)
	}
}

func TestMonitorFailures(t *testing.T) {
	for code, want := range map[int]verdict{0: running, 8: running, 190: degraded, 191: degraded, 7: notRunning, 1: broken, 9: broken, 2: refused, 4: refused,
		5: refused, 6: nowhere, 3: running, 42: broken, 137: broken, -1: broken, -2: unclear} {
		if got := monitorVerdict(code, false); got != want {
			t.Errorf("a recurring monitor with exit code %d: %d, want %d", code, got, want)
		}
	}
	if got := monitorVerdict(3, true); got != refused {
		t.Errorf("a probe with exit code 3: %d", got)
	}
}

func TestDegraded(t *testing.T) {
	b := newBench(t)
	b.boot(primary("r0", b.things("fs")...))
	b.start()
	b.put("fs.monitor.rc", "190")
	b.until("degraded", func() bool { return b.service("fs").State == Degraded })
	if c := b.chain(); c.State != Running || !strings.Contains(c.Reason, "fs will not monitor") {
		t.Errorf("%+v", c)
	}
	b.wantCalls("start fs")
}

func TestMaintenance(t *testing.T) {
	b := newBench(t)
	b.boot(primary("r0", b.things("fs", "pg")...))
	b.start()
	b.r.Maintenance(true)
	if err := b.r.Stop(b.ctx(), Primary); !errors.Is(err, ErrMaintenance) {
		t.Errorf("%v", err)
	}
	if st := b.r.Status(); !st.Maintenance || st.Chains[0].Services[0].State != Running {
		t.Errorf("%+v", st)
	}
	b.wantCalls("start fs, start pg")
	b.r.Want(Primary, true)
	b.remove("pg.up") // the administrator stops it by hand
	b.r.Maintenance(false)
	b.until("started again", func() bool { return strings.Count(b.calls(), "start pg") == 2 })
}

// No monitor runs while maintenance is on: the files they write do not grow.
func TestMaintenanceSuspendsMonitors(t *testing.T) {
	b := newBench(t)
	b.boot(primary("r0", b.things("fs")...))
	b.start()
	size := func() int64 {
		info, err := os.Stat(b.path("fs.monitors"))
		if err != nil {
			t.Fatal(err)
		}
		return info.Size()
	}
	before := size()
	b.until("monitors", func() bool { return size() > before+4 })
	b.r.Maintenance(true)
	b.r.g.mu.Lock()
	s := decide(view{now: time.Now().Add(time.Hour), maintenance: b.r.maintenance, want: wantUp, stack: b.r.chains[Primary].stack, defs: b.r.chains[Primary].defs})
	b.r.g.mu.Unlock()
	if s.action != doWait || !s.until.IsZero() {
		t.Errorf("%+v", s)
	}
}

// The services of r1 come after those of r0, and stop before them.
func TestAfter(t *testing.T) {
	b := newBench(t)
	second := primary("r1", b.thing("pg"))
	second.After = []string{"r0"}
	b.boot(primary("r0", b.thing("fs")), second)
	r1, _ := b.group.Runner("r1")
	r1.Want(Primary, true)
	b.until("r1 waits", func() bool { st := r1.Status(); return st.Chain(Primary).State == Waiting })
	if st := r1.Status(); !strings.Contains(st.Chain(Primary).Reason, "after r0") {
		t.Errorf("%+v", st)
	}
	b.start()
	b.until("r1 runs", func() bool { st := r1.Status(); return st.Chain(Primary).State == Running })
	b.stop()
	b.wantCalls("start fs, start pg, stop pg, stop fs")
	if st := r1.Status(); st.Chain(Primary).State != Waiting {
		t.Errorf("%+v", st)
	}
	b.start()
	b.until("r1 runs again", func() bool { st := r1.Status(); return st.Chain(Primary).State == Running })
}

// Resources that wait for each other do not start, and say so.
func TestAfterEachOther(t *testing.T) {
	b := newBench(t)
	one, two := primary("r0", b.thing("fs")), primary("r1", b.thing("pg"))
	one.After, two.After = []string{"r1"}, []string{"r0"}
	b.boot(one, two)
	r1, _ := b.group.Runner("r1")
	b.r.Want(Primary, true)
	r1.Want(Primary, true)
	b.until("both wait", func() bool {
		st := r1.Status()
		return b.chain().State == Waiting && st.Chain(Primary).State == Waiting
	})
	b.wantCalls("")
}

// The chains of the two roles never run at the same time.
func TestOppositeChain(t *testing.T) {
	b := newBench(t)
	d := primary("r0", b.thing("pg"))
	d.Chains[Secondary] = b.things("standby")
	d.Chains[Always] = b.things("watcher")
	b.boot(d)
	for _, role := range []Role{Always, Secondary, Primary, Secondary} {
		if err := b.r.Start(b.ctx(), role); err != nil {
			t.Fatal(err)
		}
	}
	b.wantCalls("start watcher, start standby, stop standby, start pg, stop pg, start standby")
}

func TestUpdate(t *testing.T) {
	b := newBench(t)
	b.boot(primary("r0", b.things("fs", "ip", "pg")...))
	b.start()
	changed := b.thing("ip")
	changed.Params = map[string]string{"dir": b.dir, "ip": "10.0.0.9"}
	watched := b.thing("fs")
	watched.Monitor = time.Hour
	b.r.Update(primary("r0", watched, changed))
	b.until("the new chain", func() bool { return b.chain().State == Running && strings.Count(b.calls(), "start ip") == 2 })
	b.wantCalls("start fs, start ip, start pg, stop pg, stop ip, start ip")
	b.r.Update(primary("r0"))
	b.until("all stopped", func() bool { return len(b.r.Status().Chains) == 0 })
	if got := b.calls(); !strings.HasSuffix(got, "stop ip, stop fs") {
		t.Errorf("calls %s", got)
	}
}

func TestOCFEnvironment(t *testing.T) {
	t.Setenv("HAWSER_ETCD_PASSWORD", "secret")
	t.Setenv("NOTIFY_SOCKET", "/run/notify")
	b := newBench(t)
	spec := b.thing("fs")
	spec.CheckLevel = 20
	b.boot(primary("r0", spec))
	b.start()
	read := func(action string) []string {
		data, err := os.ReadFile(b.path("fs." + action + ".env"))
		if err != nil {
			t.Fatal(err)
		}
		return strings.Split(strings.TrimSpace(string(data)), "\n")
	}
	b.until("a recurring monitor", func() bool {
		return slices.Contains(read("monitor"), "OCF_RESKEY_CRM_meta_interval=100")
	})
	b.end()
	for action, want := range map[string][]string{
		"start": {"OCF_RA_VERSION_MAJOR=1", "OCF_RA_VERSION_MINOR=1", "OCF_RESOURCE_INSTANCE=fs", "OCF_RESOURCE_TYPE=thing", "OCF_RESOURCE_PROVIDER=test",
			"OCF_RESKEY_dir=" + b.dir, "OCF_RESKEY_CRM_meta_timeout=10000", "OCF_RESKEY_CRM_meta_name=start", "OCF_RESKEY_CRM_meta_interval=0",
			"OCF_RESKEY_CRM_meta_on_node=alpha", "OCF_ROOT=" + b.path("ocf"), "OCF_EXIT_REASON_PREFIX=ocf-exit-reason:", "OCF_RESKEY_crm_feature_set=3.16.1",
			"HAWSER_RESOURCE=r0", "HAWSER_NODE=alpha", "HAWSER_ROLE=primary"},
		"monitor": {"OCF_CHECK_LEVEL=20", "OCF_RESKEY_CRM_meta_role=Started"},
	} {
		env := read(action)
		for _, w := range want {
			if !slices.Contains(env, w) {
				t.Errorf("%s: no %s", action, w)
			}
		}
		for _, e := range env {
			if strings.Contains(e, "secret") || strings.HasPrefix(e, "NOTIFY_SOCKET") {
				t.Errorf("%s: %s", action, e)
			}
		}
	}
}

func TestCommand(t *testing.T) {
	b := newBench(t)
	spec := config.ServiceSpec{Name: "cmd", Kind: config.ServiceExec, What: `sleep 1000 & echo "$HAWSER_ROLE" >>` + b.path("log") + `; wait`, StartTimeout: time.Second,
		StopTimeout: 10 * time.Second, MonitorTimeout: time.Second, Restart: 5, RestartWindow: time.Minute}
	b.boot(primary("r0", spec))
	b.start()
	pid := b.service("cmd").PID
	b.until("it ran", func() bool { return b.calls() == "primary" })
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil { // its child stays behind and is stopped first
		t.Fatal(err)
	}
	b.until("started again", func() bool { s := b.service("cmd"); return s.State == Running && s.PID != pid })
	if s := b.service("cmd"); s.Failures != 1 || !strings.Contains(s.Reason+b.lastReason("cmd"), "left processes behind") {
		t.Errorf("%+v, %s", s, b.lastReason("cmd"))
	}
	if p := (&process{PID: pid}); !p.gone() {
		t.Error("the first command's child still runs")
	}
	p := b.r.chains[Primary].stack[0].Main
	b.stop()
	if !p.gone() {
		t.Error("it still runs")
	}
}

// lastReason is that of the last failure of a service in the events.
func (b *bench) lastReason(name string) string {
	b.mu.Lock()
	defer b.mu.Unlock()
	why := ""
	for _, e := range b.events {
		if e.Service == name && e.To == Failed {
			why = e.Reason
		}
	}
	return why
}

// A command that does not mind SIGTERM is killed.
func TestCommandKilled(t *testing.T) {
	b := newBench(t)
	spec := config.ServiceSpec{Name: "cmd", Kind: config.ServiceExec, What: `trap "" TERM; touch ` + b.path("trapped") + `; while :; do sleep 1000; done`, StartTimeout: time.Second,
		StopTimeout: 200 * time.Millisecond, MonitorTimeout: time.Second, RestartWindow: time.Minute}
	b.boot(primary("r0", spec))
	b.start()
	b.until("it does not mind", func() bool { return b.has("trapped") })
	p := b.r.chains[Primary].stack[0].Main
	b.stop()
	if !p.gone() || len(b.escalations()) != 0 {
		t.Errorf("gone %t, %+v", p.gone(), b.escalations())
	}
}

func TestWaitingEndsWithItsContext(t *testing.T) {
	b := newBench(t)
	b.put("fs.start.gate", "")
	b.boot(primary("r0", b.thing("fs")))
	ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
	defer cancel()
	if err := b.r.Start(ctx, Primary); !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "still ") {
		t.Errorf("%v", err)
	}
	b.remove("fs.start.gate")
	b.until("it started all the same", func() bool { return b.chain().State == Running })
	b.wantCalls("start fs")
}
