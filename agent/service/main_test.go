package service

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hawser-ha/hawser/agent/config"
)

const testLimit = 30 * time.Second // for what takes a moment

// The test's own resource agent notes each call and does what files beside its state say: NAME.ACTION.rc is its exit
// code, NAME.ACTION.hang makes it hang, NAME.ACTION.gate makes it wait until the file is gone.
const testAgent = `#!/bin/sh
d=$OCF_RESKEY_dir n=$OCF_RESOURCE_INSTANCE f=$d/$OCF_RESOURCE_INSTANCE.$1
if [ "$1" != monitor ]; then echo "$1 $n" >>"$d/log"; else echo x >>"$d/$n.monitors"; fi
env >"$f.env"
if [ -e "$f.hang" ]; then sleep 1000 & echo $! >"$f.pid"; wait; fi
while [ -e "$f.gate" ]; do sleep 0.02; done
if [ -e "$f.rc" ]; then echo "noise" >&2; echo "ocf-exit-reason:$n will not $1" >&2; echo "more noise" >&2; exit "$(cat "$f.rc")"; fi
case $1 in
start) touch "$d/$n.up" ;;
stop) rm -f "$d/$n.up" ;;
monitor) [ -e "$d/$n.up" ] || exit 7 ;;
*) exit 3 ;;
esac
`

// bench is a node for tests.
type bench struct {
	t        *testing.T
	dir, run string
	log      *slog.Logger
	group    *Group
	r        *Runner
	end      func()
	escalate func(Escalation) error

	mu     sync.Mutex
	asked  []Escalation
	events []Event
}

func newBench(t *testing.T) *bench {
	t.Helper()
	// Not t.TempDir: what an agent was doing when it ended goes on without it, and may still write here.
	dir, err := os.MkdirTemp("", "hawser-service-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		for range 100 {
			if os.RemoveAll(dir) == nil {
				return
			}
		}
	})
	b := &bench{t: t, dir: dir, log: slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelDebug}))}
	b.run = filepath.Join(b.dir, "run")
	agents := filepath.Join(b.dir, "ocf", "resource.d", "test")
	if err := os.MkdirAll(agents, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(agents, "thing"), []byte(testAgent), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if b.end != nil {
			b.end()
		}
	})
	return b
}

// boot makes a new agent: group, runners, adoption, Run.
func (b *bench) boot(defs ...Definition) {
	b.t.Helper()
	g, err := NewGroup(Options{Node: "alpha", RunDir: b.run, OCFRoot: filepath.Join(b.dir, "ocf"), Log: b.log, Backoff: 10 * time.Millisecond,
		Escalate: func(_ context.Context, e Escalation) error {
			b.mu.Lock()
			b.asked = append(b.asked, e)
			f := b.escalate
			b.mu.Unlock()
			if f != nil {
				return f(e)
			}
			return nil
		}, Notify: func(e Event) {
			b.mu.Lock()
			defer b.mu.Unlock()
			b.events = append(b.events, e)
		}})
	if err != nil {
		b.t.Fatal(err)
	}
	b.group = g
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	for _, d := range defs {
		r, err := g.New(d)
		if err != nil {
			b.t.Fatal(err)
		}
		if err := r.Adopt(ctx); err != nil {
			b.t.Fatal(err)
		}
		wg.Go(func() {
			if err := r.Run(ctx); err != nil {
				b.t.Error(err)
			}
		})
	}
	b.r, _ = g.Runner(defs[0].Resource)
	b.end = func() { cancel(); wg.Wait(); b.end = nil }
}

func (b *bench) escalations() []Escalation {
	b.mu.Lock()
	defer b.mu.Unlock()
	return append([]Escalation(nil), b.asked...)
}

func (b *bench) path(name string) string { return filepath.Join(b.dir, name) }

func (b *bench) put(name, text string) {
	b.t.Helper()
	if err := os.WriteFile(b.path(name), []byte(text), 0o644); err != nil {
		b.t.Fatal(err)
	}
}

func (b *bench) remove(name string) {
	b.t.Helper()
	if err := os.Remove(b.path(name)); err != nil {
		b.t.Fatal(err)
	}
}

func (b *bench) has(name string) bool { _, err := os.Stat(b.path(name)); return err == nil }

// calls are the starts and stops of agents up to now.
func (b *bench) calls() string {
	data, err := os.ReadFile(b.path("log"))
	if err != nil {
		return ""
	}
	return strings.Join(strings.Split(strings.TrimSpace(string(data)), "\n"), ", ")
}

func (b *bench) until(what string, ok func() bool) {
	b.t.Helper()
	deadline := time.Now().Add(testLimit)
	for !ok() {
		if time.Now().After(deadline) {
			b.t.Fatalf("%s: not within %s; calls %s; %+v", what, testLimit, b.calls(), b.group.Status())
		}
		<-time.After(2 * time.Millisecond)
	}
}

func (b *bench) ctx() context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), testLimit)
	b.t.Cleanup(cancel)
	return ctx
}

func (b *bench) start() {
	b.t.Helper()
	if err := b.r.Start(b.ctx(), Primary); err != nil {
		b.t.Fatal(err)
	}
}

func (b *bench) stop() {
	b.t.Helper()
	if err := b.r.Stop(b.ctx(), Primary); err != nil {
		b.t.Fatal(err)
	}
}

func (b *bench) service(name string) ServiceStatus {
	for _, st := range b.group.Status() {
		for _, c := range st.Chains {
			for _, s := range c.Services {
				if s.Name == name {
					return s
				}
			}
		}
	}
	return ServiceStatus{}
}

func (b *bench) chain() ChainStatus {
	st := b.r.Status()
	if c := st.Chain(Primary); c != nil {
		return *c
	}
	return ChainStatus{}
}

// thing is a service of the test's agent. It is monitored often.
func (b *bench) thing(name string) config.ServiceSpec {
	return config.ServiceSpec{Name: name, Kind: config.ServiceOCF, What: "test:thing", Params: map[string]string{"dir": b.dir}, Monitor: 100 * time.Millisecond,
		MonitorTimeout: 10 * time.Second, StartTimeout: 10 * time.Second, StopTimeout: 10 * time.Second, Restart: 2, RestartWindow: time.Minute}
}

func (b *bench) things(names ...string) []config.ServiceSpec {
	var list []config.ServiceSpec
	for _, n := range names {
		list = append(list, b.thing(n))
	}
	return list
}

func primary(resource string, specs ...config.ServiceSpec) Definition {
	return Definition{Resource: resource, Chains: map[Role][]config.ServiceSpec{Primary: specs}}
}

func (b *bench) wantCalls(want string) {
	b.t.Helper()
	if got := b.calls(); got != want {
		b.t.Errorf("calls %s, want %s", got, want)
	}
}

func (b *bench) wantAsked(want ...Level) {
	b.t.Helper()
	b.until(fmt.Sprint("escalations ", want), func() bool { return len(b.escalations()) >= len(want) })
	got := b.escalations()
	if len(got) != len(want) {
		b.t.Fatalf("escalations %+v, want %v", got, want)
	}
	for i := range want {
		if got[i].Level != want[i] {
			b.t.Errorf("escalations %+v, want %v", got, want)
		}
	}
}
