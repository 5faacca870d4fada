package service

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hawser-ha/hawser/agent/config"
)

var (
	lives     = flag.Int("lives", 40, "random lives of a chain")
	firstSeed = flag.Uint64("seed", 1, "of the first")
)

// world is services that fail at random, and what may never happen to them.
type world struct {
	mu     sync.Mutex
	rng    *rand.Rand
	faulty bool
	state  map[string]string // of each service: "" stopped, up, half (it may run)
	order  []string          // those that are not stopped, as they were started
	busy   string            // an action is under way
	wrong  []string
	seen   map[string]int
}

func (w *world) complain(format string, args ...any) {
	w.wrong = append(w.wrong, fmt.Sprintf(format, args...)+fmt.Sprintf(" (running: %v)", w.order))
}

func (w *world) drop(name string) {
	w.state[name] = ""
	for i, n := range w.order {
		if n == name {
			w.order = append(w.order[:i:i], w.order[i+1:]...)
			return
		}
	}
}

func (w *world) chance(n int) bool { return w.faulty && w.rng.IntN(n) == 0 }

// act is one action of the fake driver: it begins, takes its time, and ends in some way. An agent that ends in between
// leaves it to the world whether it is done.
func (w *world) act(ctx context.Context, what, name string, effect func()) answer {
	w.mu.Lock()
	if w.busy != "" && what != "monitor" {
		w.complain("%s of %s while %s", what, name, w.busy)
	}
	if what != "monitor" {
		w.busy = what + " of " + name
	}
	d := time.Duration(w.rng.IntN(3000)) * time.Millisecond
	late, fails := w.chance(12), w.chance(6)
	code := []verdict{broken, broken, broken, refused, nowhere, unclear}[w.rng.IntN(6)]
	half := w.rng.IntN(2) == 0
	w.seen[what]++
	w.mu.Unlock()
	if late {
		d = 10 * time.Second // its limit
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	var err error
	select {
	case <-timer.C:
	case <-ctx.Done():
		err = leftOr(ctx)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if what != "monitor" {
		w.busy = ""
	}
	switch {
	case err != nil || late || fails:
		if what == "start" && half && code != refused && code != nowhere {
			if w.state[name] == "" {
				w.order = append(w.order, name)
			}
			w.state[name] = "half"
		}
		if what == "stop" && half && (err != nil || late) {
			w.drop(name) // it was stopped, and nobody heard of it
		}
		if what == "stop" && code == unclear {
			code = broken
		}
		return answer{code, what + " failed", err}
	}
	effect()
	return answer{}
}

// fake is a driver in the world.
type fake struct{ w *world }

func (f *fake) start(ctx context.Context, s *config.ServiceSpec, _ *handle) answer {
	f.w.mu.Lock()
	if f.w.state[s.Name] != "" {
		f.w.complain("start of %s, which is %s", s.Name, f.w.state[s.Name])
	}
	f.w.mu.Unlock()
	a := f.w.act(ctx, "start", s.Name, func() {
		f.w.state[s.Name] = "up"
		f.w.order = append(f.w.order, s.Name)
	})
	if a.reason == "" && a.err == nil {
		a.is = running
	} else if a.is == unclear {
		a.is = broken
	}
	return a
}

func (f *fake) stop(ctx context.Context, s *config.ServiceSpec, _ *handle) answer {
	f.w.mu.Lock()
	for i, n := range f.w.order {
		if n == s.Name && i < len(f.w.order)-1 {
			f.w.complain("stop of %s before %s", s.Name, f.w.order[i+1:])
		}
	}
	f.w.mu.Unlock()
	a := f.w.act(ctx, "stop", s.Name, func() { f.w.drop(s.Name) })
	if a.reason == "" {
		a.is = notRunning
	}
	return a
}

func (f *fake) monitor(ctx context.Context, s *config.ServiceSpec, _ *handle, _ bool) answer {
	is := notRunning
	a := f.w.act(ctx, "monitor", s.Name, func() { is = map[string]verdict{"": notRunning, "up": running, "half": broken}[f.w.state[s.Name]] })
	if a.reason != "" || a.err != nil {
		if a.is == refused || a.is == nowhere { // a true answer, or the world contradicts itself
			a.is = broken
		}
		return a
	}
	return answer{is: is, reason: "monitored"}
}

func (f *fake) warn(context.Context, *config.ServiceSpec) string { return "" }

// TestRandomLives lets everything fail at random: services die, actions fail, hang or are cut short, orders, definitions
// and maintenance change, the agent restarts. At every moment the order holds; when the faults end, what is wanted comes.
func TestRandomLives(t *testing.T) {
	total := map[string]int{}
	for i := range *lives {
		seed := *firstSeed + uint64(i)
		if !t.Run(fmt.Sprint(seed), func(t *testing.T) { synctest.Test(t, func(t *testing.T) { life(t, seed, total) }) }) {
			t.Fatalf("replay: go test ./agent/service -run TestRandomLives -lives 1 -seed %d", seed)
		}
	}
	for _, what := range []string{"start", "stop", "monitor", string(AskMove), string(AskForceDemote), string(AskFence)} {
		if total[what] < *lives/10 {
			t.Errorf("only %d of %s in all lives: they test nothing", total[what], what)
		}
	}
}

func life(t *testing.T, seed uint64, total map[string]int) {
	w := &world{rng: rand.New(rand.NewPCG(seed, 0)), faulty: true, state: map[string]string{}, seen: map[string]int{}}
	rng := rand.New(rand.NewPCG(seed, 1))
	dir := t.TempDir()
	var asked sync.Map
	definition := func() Definition {
		var specs []config.ServiceSpec
		for _, name := range []string{"fs", "ip", "pg", "web"}[:1+rng.IntN(4)] {
			specs = append(specs, config.ServiceSpec{Name: name, Kind: "exec", What: "v" + fmt.Sprint(rng.IntN(5)/4), Monitor: 5 * time.Second, MonitorTimeout: 10 * time.Second,
				StartTimeout: 10 * time.Second, StopTimeout: 10 * time.Second, Restart: 2, RestartWindow: 10 * time.Minute})
		}
		return primary("r0", specs...)
	}
	d := definition()
	maintenance := false
	var r *Runner
	var end func()
	boot := func() {
		g, err := NewGroup(Options{Node: "alpha", RunDir: dir, Escalate: func(_ context.Context, e Escalation) error {
			n, _ := asked.LoadOrStore(e.Level, new(int))
			w.mu.Lock()
			*n.(*int)++
			w.mu.Unlock()
			return nil
		}})
		if err != nil {
			t.Fatal(err)
		}
		g.drivers = func(*host, string) driver { return &fake{w: w} }
		if r, err = g.New(d); err != nil {
			t.Fatal(err)
		}
		r.Maintenance(maintenance)
		ctx, cancel := context.WithCancel(context.Background())
		if err := r.Adopt(ctx); err != nil {
			t.Fatal(err)
		}
		done := make(chan struct{})
		go func() {
			defer close(done)
			if err := r.Run(ctx); err != nil {
				t.Error(err)
			}
		}()
		end = func() { cancel(); <-done }
	}
	boot()
	defer func() { end() }()
	for range 60 {
		time.Sleep(time.Duration(rng.IntN(20000)) * time.Millisecond)
		switch rng.IntN(9) {
		case 0, 1, 2:
			r.Want(Primary, true)
		case 3:
			r.Want(Primary, false)
		case 4: // a service dies, the last: what comes after it would die too
			w.mu.Lock()
			if n := len(w.order); n > 0 && w.busy == "" {
				w.drop(w.order[n-1])
			}
			w.mu.Unlock()
		case 5:
			d = definition()
			r.Update(d)
		case 6:
			maintenance = !maintenance
			r.Maintenance(maintenance)
		case 7:
			end()
			boot()
		case 8:
			r.Reset()
		}
	}
	w.mu.Lock()
	w.faulty = false
	w.mu.Unlock()
	r.Maintenance(false)
	r.Reset()
	time.Sleep(time.Minute) // what died is seen by a monitor
	ctx, cancel := context.WithTimeout(context.Background(), time.Hour)
	defer cancel()
	for {
		if err := r.Start(ctx, Primary); err == nil {
			break
		} else if ctx.Err() != nil {
			t.Fatalf("it does not start without faults: %v %+v", err, r.Status())
		}
		time.Sleep(time.Minute) // a failure of before may still make it give up
		r.Reset()
	}
	w.mu.Lock()
	if len(w.order) != len(d.Chains[Primary]) {
		w.complain("what runs is not what is wanted, %v", d.Chains[Primary])
	}
	w.mu.Unlock()
	if err := r.Stop(ctx, Primary); err != nil {
		t.Errorf("it does not stop without faults: %v", err)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.order) != 0 {
		w.complain("something still runs")
	}
	for _, s := range w.wrong {
		t.Error(s)
	}
	for what, n := range w.seen {
		total[what] += n
	}
	asked.Range(func(level, n any) bool { total[string(level.(Level))] += *n.(*int); return true })
}
