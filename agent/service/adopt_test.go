package service

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/hawser-ha/hawser/agent/config"
)

// A restart of the agent disturbs nothing that runs, whatever runs it, and nothing before the owner says so.
func TestAdopt(t *testing.T) {
	b := newBench(t)
	cmd := config.ServiceSpec{Name: "cmd", Kind: config.ServiceExec, What: "sleep 1000", StartTimeout: time.Second, StopTimeout: 10 * time.Second,
		MonitorTimeout: time.Second, Restart: 5, RestartWindow: time.Minute}
	d := primary("r0", b.thing("fs"), cmd, b.thing("pg"))
	b.boot(d)
	b.start()
	pid := b.service("cmd").PID
	b.end()
	b.boot(d)
	c := b.chain()
	if c.State != Running || c.Wanted != nil || b.service("cmd").PID != pid {
		t.Errorf("adopted: %+v", c)
	}
	b.start()
	b.wantCalls("start fs, start pg")
	if b.service("cmd").PID != pid {
		t.Error("the command was started anew")
	}
	// It is not our child any more as far as this agent knows, and its end is seen at once.
	if err := syscall.Kill(-pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	b.until("started again", func() bool { s := b.service("cmd"); return s.State == Running && s.PID != pid })
	b.stop()
}

// What is under way when the agent ends goes on, and the next one takes its result.
func TestAdoptWhileStarting(t *testing.T) {
	b := newBench(t)
	b.put("pg.start.gate", "")
	d := primary("r0", b.things("fs", "pg")...)
	b.boot(d)
	b.r.Want(Primary, true)
	b.until("pg starts", func() bool { return strings.Contains(b.calls(), "start pg") })
	b.end()
	op := b.record().Stack[1].Op
	if op == nil || op.Action != "start" || !op.Process.alive() {
		t.Fatalf("%+v", op)
	}
	adopted := make(chan struct{})
	go func() { defer close(adopted); b.boot(d) }()
	b.remove("pg.start.gate")
	<-adopted
	if s := b.service("pg"); s.State != Running {
		t.Errorf("%+v", s)
	}
	b.start()
	b.wantCalls("start fs, start pg")
}

func TestAdoptWhileStopping(t *testing.T) {
	b := newBench(t)
	d := primary("r0", b.things("fs", "pg")...)
	b.boot(d)
	b.start()
	b.put("pg.stop.gate", "")
	b.r.Want(Primary, false)
	b.until("pg stops", func() bool { return strings.Contains(b.calls(), "stop pg") })
	b.end()
	b.remove("pg.stop.gate")
	b.boot(d)
	if s := b.service("pg"); s.State != Stopped || b.service("fs").State != Running {
		t.Errorf("%+v", s)
	}
	b.stop()
	b.wantCalls("start fs, start pg, stop pg, stop fs")
}

// A program that the agent before us began and that hangs is killed at its deadline.
func TestAdoptKillsAtTheDeadline(t *testing.T) {
	b := newBench(t)
	spec := b.thing("fs")
	spec.StartTimeout = 3 * time.Second
	b.put("fs.start.hang", "")
	b.boot(primary("r0", spec))
	b.r.Want(Primary, true)
	b.until("it hangs", func() bool { return b.has("fs.start.pid") })
	b.end()
	rec := b.record()
	if len(rec.Stack) != 1 || rec.Stack[0].Op == nil {
		t.Fatalf("nothing is under way: %+v", rec)
	}
	p := rec.Stack[0].Op.Process
	b.boot(primary("r0", spec))
	if !p.gone() {
		t.Error("it still runs")
	}
	if s := b.service("fs"); s.State != Stopped {
		t.Errorf("%+v", s)
	}
}

// What died while no agent watched counts as a failure and is started again.
func TestAdoptWhatDied(t *testing.T) {
	b := newBench(t)
	d := primary("r0", b.things("fs", "pg")...)
	b.boot(d)
	b.start()
	b.end()
	b.remove("pg.up")
	b.boot(d)
	if s := b.service("pg"); s.State != Failed || s.Failures != 1 || !strings.Contains(s.Reason, "no agent watched") {
		t.Errorf("%+v", s)
	}
	b.start()
	b.wantCalls("start fs, start pg, stop pg, start pg")
}

// Without a record, or with one of another boot or one that is damaged, each service is asked.
func TestAdoptWithoutARecord(t *testing.T) {
	for name, damage := range map[string]func(b *bench){
		"no record": func(b *bench) { b.remove("run/services/r0.primary.json") },
		"damaged":   func(b *bench) { b.put("run/services/r0.primary.json", `{"stack":[null]`) },
		"of another boot": func(b *bench) {
			b.put("run/services/r0.primary.json", `{"boot":"other","stack":[{"spec":{"name":"x"}}]}`)
		},
		"an entry is null": func(b *bench) { b.put("run/services/r0.primary.json", `{"boot":"`+bootID()+`","stack":[null]}`) },
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			d := primary("r0", b.things("fs", "pg")...)
			b.boot(d)
			b.start()
			b.end()
			damage(b)
			b.boot(d)
			if c := b.chain(); c.State != Running {
				t.Errorf("%+v", c)
			}
			b.stop()
			b.wantCalls("start fs, start pg, stop pg, stop fs")
		})
	}
}

// Under maintenance an agent that starts asks nobody; when it ends, it finds what runs.
func TestAdoptUnderMaintenance(t *testing.T) {
	b := newBench(t)
	d := primary("r0", b.things("fs")...)
	b.put("fs.up", "")
	g, err := NewGroup(Options{Node: "alpha", RunDir: b.run, OCFRoot: b.path("ocf"), Log: b.log})
	if err != nil {
		t.Fatal(err)
	}
	r, err := g.New(d)
	if err != nil {
		t.Fatal(err)
	}
	r.Maintenance(true)
	if err := r.Adopt(b.ctx()); err != nil {
		t.Fatal(err)
	}
	if b.has("fs.monitors") {
		t.Error("it was asked")
	}
	b.group, b.r = g, r
	ctx := b.ctx()
	done := make(chan error, 1)
	ctx, cancel := context.WithCancel(ctx)
	go func() { done <- r.Run(ctx) }()
	b.end = func() { cancel(); <-done; b.end = nil }
	r.Maintenance(false)
	b.until("found", func() bool { return b.service("fs").State == Running })
	b.stop()
	b.wantCalls("stop fs")
}

// It is stopped as it was started, though the definition changed while no agent ran.
func TestAdoptOtherDefinition(t *testing.T) {
	b := newBench(t)
	old := b.thing("ip")
	old.Params["ip"] = "10.0.0.1"
	b.boot(primary("r0", b.thing("fs"), old))
	b.start()
	b.end()
	now := b.thing("ip")
	now.Params["ip"] = "10.0.0.2"
	b.boot(primary("r0", b.thing("fs"), now))
	b.start()
	b.wantCalls("start fs, start ip, stop ip, start ip")
	for file, want := range map[string]string{"ip.stop.env": "OCF_RESKEY_ip=10.0.0.1\n", "ip.start.env": "OCF_RESKEY_ip=10.0.0.2\n"} {
		data, err := os.ReadFile(b.path(file))
		if err != nil || !strings.Contains(string(data), want) {
			t.Errorf("%s: no %s (%v)", file, want, err)
		}
	}
}

// What cannot be recorded is not started: the next agent would not know of it.
func TestNoRecordNoStart(t *testing.T) {
	b := newBench(t)
	b.boot(primary("r0", b.things("fs", "pg")...))
	b.start()
	dir := filepath.Join(b.run, "services")
	if err := os.Rename(dir, dir+".gone"); err != nil {
		t.Fatal(err)
	}
	b.remove("pg.up")
	b.until("said", func() bool { return strings.Contains(b.chain().Reason, "record cannot be written") })
	if strings.Count(b.calls(), "start pg") != 1 {
		t.Errorf("calls %s", b.calls())
	}
	if err := os.Rename(dir+".gone", dir); err != nil {
		t.Fatal(err)
	}
	b.until("started", func() bool { return b.chain().State == Running && strings.Count(b.calls(), "start pg") == 2 })
}

func (b *bench) record() *record {
	b.t.Helper()
	rec, err := readRecord(recordPath(filepath.Join(b.run, "services"), "r0", Primary))
	if err != nil || rec == nil {
		b.t.Fatal(rec, err)
	}
	return rec
}

func FuzzRecord(f *testing.F) {
	f.Add([]byte(`{"boot":"` + bootID() + `","stack":[{"spec":{"name":"fs","kind":"ocf","what":"a:b"},"state":"running","op":{"process":{"pid":99999}}}],"past":{"fs":{}}}`))
	f.Add([]byte(`{}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		r, err := parseRecord("x", data)
		if err != nil || r == nil {
			return
		}
		again, err := json.Marshal(r)
		if err != nil {
			t.Skip() // times that JSON does not have
		}
		r2, err := parseRecord("x", again)
		if err != nil || r2 == nil || len(r2.Stack) != len(r.Stack) || !reflect.DeepEqual(len(r2.Past), len(r.Past)) {
			t.Fatalf("%+v, read again %+v %v", r, r2, err)
		}
	})
}
