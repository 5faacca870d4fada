package pace

import (
	"fmt"
	"math"
	"testing"
)

// pipe is a link and a disk behind it: so much a second, so much delay, in steps
// of 1 ms. Between ticks it is refilled as the caller of a Controller does.
type pipe struct {
	rate     int // sectors a millisecond
	delay    int // ms, there and back
	inFlight int
	queued   int         // at the bottleneck
	arrive   map[int]int // time of arrival -> sectors
	now      int         // ms
}

func (p *pipe) tick(budget int, c *Controller) (sectIn, sent int) {
	for range 100 {
		if n := min(budget-sent, c.Window()-p.inFlight); n > 0 {
			p.inFlight += n
			p.queued += n
			sent += n
		}
		n := min(p.queued, p.rate)
		p.queued -= n
		p.arrive[p.now+p.delay] += n
		sectIn += p.arrive[p.now]
		p.inFlight -= p.arrive[p.now]
		delete(p.arrive, p.now)
		p.now++
	}
	return sectIn, sent
}

type outcome struct {
	share    float64 // of the link, over the last quarter
	queueing float64 // ms the bottleneck's queue lasts, mean over the last quarter
	firstSec float64 // share of the link in the first two seconds
}

func run(p Params, rate, delay, ticks int) outcome {
	c := New(p)
	l := &pipe{rate: rate, delay: delay, arrive: map[int]int{}}
	var got, early, queue int
	sectIn := 0
	for i := range ticks {
		sectIn, _ = l.tick(c.Step(sectIn, l.inFlight), c)
		if i < 20 {
			early += sectIn
		}
		if i >= ticks*3/4 {
			got += sectIn
			queue += l.queued
		}
	}
	last := ticks - ticks*3/4
	return outcome{float64(got) / float64(rate*100*last), float64(queue) / float64(last*rate), float64(early) / float64(rate*2000)}
}

func TestControllerConverges(t *testing.T) {
	const auto, drbd = "auto", "drbd"
	params := map[string]Params{
		auto: {ResyncRate: 250, PlanAhead: 20, DelayTarget: 10, MaxRate: 4194304, MaxInFlight: 256 << 11},
		drbd: {ResyncRate: 250, PlanAhead: 20, DelayTarget: 10, FillTarget: 4 << 11, MaxRate: 4194304, MaxInFlight: 256 << 11},
	}
	for _, tc := range []struct {
		link     string
		mode     string
		rate     int // sectors a ms; 2 is about 1 MB/s
		delay    int // ms
		share    float64
		queueing float64 // ms, 0 is not looked at
	}{
		{"2 GB/s, 0.2 ms", auto, 4000, 1, 0.95, 100},
		{"1 GB/s, 1 ms", auto, 2000, 1, 0.95, 100},
		{"100 MB/s, 1 ms", auto, 200, 1, 0.95, 100},
		{"100 MB/s, 30 ms", auto, 200, 30, 0.95, 100},
		{"100 MB/s, 200 ms", auto, 200, 200, 0.9, 200},
		{"10 MB/s, 50 ms", auto, 20, 50, 0.95, 150},
		{"1 MB/s, 50 ms", auto, 2, 50, 0.95, 500},
		{"100 MB/s, 600 ms", auto, 200, 600, 0.85, 500},
		{"100 MB/s, 1 ms", drbd, 200, 1, 0.95, 0},
		{"10 MB/s, 50 ms", drbd, 20, 50, 0.95, 0},
	} {
		t.Run(fmt.Sprintf("%s, %s", tc.mode, tc.link), func(t *testing.T) {
			o := run(params[tc.mode], tc.rate, tc.delay, 600)
			t.Logf("share %.3f, queueing %.0f ms, first 2 s %.2f", o.share, o.queueing, o.firstSec)
			if o.share < tc.share || o.share > 1.001 {
				t.Errorf("%.3f of the link used, want %.3f", o.share, tc.share)
			}
			if tc.queueing > 0 && o.queueing > tc.queueing {
				t.Errorf("%.0f ms queued, want at most %.0f", o.queueing, tc.queueing)
			}
		})
	}
}

func TestFastLinkIsUsedAtOnce(t *testing.T) {
	o := run(Params{ResyncRate: 250, PlanAhead: 20, DelayTarget: 10, MaxRate: 4194304, MaxInFlight: 256 << 11}, 4000, 1, 100)
	if o.firstSec < 0.9 {
		t.Errorf("%.2f of the link in the first two seconds", o.firstSec)
	}
}

func TestLinkThatBecomesSlow(t *testing.T) {
	c := New(Params{ResyncRate: 250, PlanAhead: 20, DelayTarget: 2, MaxInFlight: 256 << 11})
	l := &pipe{rate: 200, delay: 30, arrive: map[int]int{}}
	sectIn := 0
	for range 100 {
		sectIn, _ = l.tick(c.Step(sectIn, l.inFlight), c)
	}
	l.rate = 10
	for range 100 {
		sectIn, _ = l.tick(c.Step(sectIn, l.inFlight), c)
	}
	if ms := l.queued / l.rate; ms > 400 {
		t.Errorf("%d ms still queued, c-delay-target is 200 ms", ms)
	}
	if sectIn < 990 {
		t.Errorf("%d of 1000 sectors a tick", sectIn)
	}
}

func TestFixedAndMaxRate(t *testing.T) {
	for _, tc := range []struct {
		rule string
		p    Params
		want int // sectors a tick
	}{
		{"without plan-ahead the rate is fixed", Params{ResyncRate: 1000}, 200},
		{"the fixed rate obeys c-max-rate", Params{ResyncRate: 1000, MaxRate: 500}, 100},
		{"the window obeys c-max-rate", Params{PlanAhead: 20, DelayTarget: 10, MaxRate: 500}, 100},
		{"without c-max-rate the window alone limits", Params{PlanAhead: 20, DelayTarget: 10}, math.MaxInt},
		{"the plan starts from resync-rate", Params{PlanAhead: 20, FillTarget: 100, ResyncRate: 1000}, 200},
	} {
		if got := New(tc.p).Step(0, 0); got != tc.want {
			t.Errorf("%s: %d, want %d", tc.rule, got, tc.want)
		}
	}
	if w := New(Params{MaxInFlight: 77}).Window(); w != 77 {
		t.Errorf("window %d", w)
	}
}

// The sum kept beside the plan is the sum of the plan, and changing options in
// mid-flight keeps the controller sane.
func TestPlanSum(t *testing.T) {
	c := New(Params{ResyncRate: 5000, PlanAhead: 7, FillTarget: 1000})
	for i := range 500 {
		if i == 250 {
			c.SetParams(Params{ResyncRate: 5000, PlanAhead: 13, FillTarget: 3000})
		}
		if got := c.Step(i*37%900, i*91%5000); got < 0 {
			t.Fatalf("step %d: %d", i, got)
		}
		sum := 0
		for _, v := range c.plan {
			sum += v
		}
		if sum != c.planned {
			t.Fatalf("step %d: planned %d, sum %d", i, c.planned, sum)
		}
	}
}

func TestThrottle(t *testing.T) {
	type tick struct{ resync, app, want int }
	for _, tc := range []struct {
		rule    string
		minRate int // KiB/s
		ticks   []tick
	}{
		{"an idle application costs nothing", 1000, []tick{{5000, 0, math.MaxInt}, {9000, 63, math.MaxInt}}},
		{"a busy one halves the resync down to c-min-rate", 1000,
			[]tick{{5000, 160, 2500}, {2500, 900, 1250}, {1250, 900, 625}, {625, 900, 312}, {312, 900, 200}, {200, 900, 200}}},
		{"a few writes beside a fast resync are no reason", 1000, []tick{{80000, 240, math.MaxInt}, {80000, 2400, math.MaxInt}}},
		{"c-min-rate 0 never gives way", 0, []tick{{5000, 9000, math.MaxInt}}},
		{"half a second of quiet opens it", 1000, []tick{{400, 64, 200}, {200, 0, 400}, {400, 0, 800}, {800, 0, 1600}, {1600, 0, 3200}, {3200, 0, math.MaxInt}}},
		{"it never stands still", 1, []tick{{10, 64, 8}, {8, 64, 8}}},
	} {
		th := NewThrottle(tc.minRate)
		for i, k := range tc.ticks {
			if got := th.Step(k.resync, k.app); got != k.want {
				t.Errorf("%s: tick %d: %d, want %d", tc.rule, i, got, k.want)
			}
		}
	}
}
