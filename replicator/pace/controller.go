package pace

import "math"

// TicksPerSecond is how often Step is called.
const TicksPerSecond = 10

// Bounds of the automatic window, in sectors.
const (
	windowMin   = 256       // 128 KiB, one large request
	windowStart = 2 * 1024  // 1 MiB
	windowMax   = 512 << 11 // 512 MiB, where MaxInFlight sets no limit
)

// Params are the resync options of drbd.conf.
type Params struct {
	ResyncRate  int // KiB/s: the fixed rate, or what to start with
	PlanAhead   int // 0.1 s, c-plan-ahead; 0 is the fixed rate
	DelayTarget int // 0.1 s, c-delay-target
	FillTarget  int // sectors, c-fill-target; 0 finds it by itself
	MaxRate     int // KiB/s, c-max-rate; 0 is no limit
	MaxInFlight int // sectors, half of max-buffers; 0 is no limit
}

// Controller paces the requests of one target. It is not safe for concurrent use.
type Controller struct {
	p       Params
	started bool
	plan    []int // planned corrections, a ring: plan[next] is due
	next    int
	planned int // sum of plan
	auto    window
}

// New returns a controller at the start of a resync.
func New(p Params) *Controller {
	c := &Controller{p: p}
	c.setPlan()
	c.auto.delay = -1
	c.auto.size = c.clampWindow(max(windowStart, perTick(p.ResyncRate)))
	return c
}

// SetParams changes the options of a running resync.
func (c *Controller) SetParams(p Params) {
	resize := p.PlanAhead != c.p.PlanAhead
	c.p = p
	if resize {
		c.setPlan()
	}
	c.auto.size = c.clampWindow(c.auto.size)
}

func (c *Controller) setPlan() {
	c.plan, c.next, c.planned = make([]int, max(c.p.PlanAhead, 0)), 0, 0
}

// perTick converts KiB/s to sectors a tick.
func perTick(kib int) int { return kib * 2 / TicksPerSecond }

// Step ends a tick and returns how many sectors may be requested in the next
// one. sectIn is the sectors that arrived in the tick (data and in-sync
// notices), inFlight what is requested and has not arrived. Between two calls
// the caller may send the budget as it likes as long as what is in flight stays
// below Window, so that a fast link never waits for a tick.
func (c *Controller) Step(sectIn, inFlight int) int {
	want := 0
	switch {
	case c.p.PlanAhead <= 0:
		want = perTick(c.p.ResyncRate)
	case c.p.FillTarget <= 0:
		c.auto.step(c, sectIn, inFlight)
		want = math.MaxInt
	default:
		want = c.stepPlan(sectIn, inFlight)
	}
	if c.p.MaxRate > 0 {
		want = min(want, perTick(c.p.MaxRate))
	}
	return want
}

// stepPlan is DRBD's controller.
func (c *Controller) stepPlan(sectIn, inFlight int) int {
	steps := len(c.plan)
	want := c.p.FillTarget
	if !c.started {
		c.started = true
		want = perTick(c.p.ResyncRate) * steps
	}
	correction := want - inFlight - c.planned
	each := correction / steps
	for i := range c.plan {
		c.plan[i] += each
	}
	due := c.plan[c.next]
	c.plan[c.next] = 0
	c.next = (c.next + 1) % steps
	c.planned += each*steps - due
	return max(0, sectIn+due)
}

// Window is how many sectors may be in flight.
func (c *Controller) Window() int {
	limit := c.p.MaxInFlight
	if limit <= 0 {
		limit = windowMax
	}
	if c.p.PlanAhead > 0 && c.p.FillTarget <= 0 {
		return min(limit, c.auto.size)
	}
	return limit
}

func (c *Controller) clampWindow(size int) int {
	limit := c.p.MaxInFlight
	if limit <= 0 {
		limit = windowMax
	}
	return min(max(size, windowMin), limit)
}

// window searches the smallest amount in flight that keeps the link busy.
type window struct {
	size  int // sectors
	phase phase
	wait  int     // ticks until what was changed shows
	seen  int     // ticks measured since
	sum   int     // sectors that arrived in them
	base  int     // sectors a tick before the change
	prev  int     // size before the change
	rtt   int     // ticks the very first answer took
	going bool    // it has come
	best  float64 // highest rate of late, sectors a tick
	delay float64 // shortest time in flight seen, ticks: what no smaller window shortens
	rest  int     // ticks until the next experiment
	down  bool
}

type phase uint8

const (
	growing phase = iota // doubling
	steady
	trying // an experiment in either direction runs
)

// Figures of the search: a larger window must earn its latency, a smaller one
// must cost nothing.
const (
	measureTicks  = 3 // while growing it is one
	restTicks     = 10
	growFactor    = 1.2  // doubling goes on while the rate grows by this
	earnFactor    = 1.03 // a third more in flight must bring this
	keepFactor    = 0.98 // a fifth less in flight may leave this of the best rate
	fadeFactor    = 0.99 // what is left of the best rate after an experiment
	fullFactor    = 0.5  // below that share of the window in flight it is not what limits
	roundTicksMax = 50
)

func (w *window) step(c *Controller, sectIn, inFlight int) {
	if w.going = w.going || sectIn > 0; !w.going {
		if inFlight > 0 {
			w.rtt++
		}
		return
	}
	// The bound on queued time comes first: a link that became slow drains at once.
	if sectIn > 0 {
		if d := float64(inFlight) / float64(sectIn); w.delay < 0 || d < w.delay {
			w.delay = d
		}
		if limit := w.limit(c, sectIn); inFlight > limit && w.phase != growing {
			w.size = c.clampWindow(min(w.size, limit))
		}
	}
	if w.wait > 0 {
		w.wait--
		return
	}
	w.seen++
	w.sum += sectIn
	if enough := max(w.rtt, measureTicks); w.seen < enough && (w.phase != growing || w.seen < w.rtt) {
		return
	}
	rate := w.sum / w.seen
	full := sectIn == 0 || float64(inFlight) >= fullFactor*float64(w.size) || w.size < 2*sectIn
	w.seen, w.sum = 0, 0
	w.best = max(w.best, float64(rate))
	switch w.phase {
	case growing:
		w.grow(c, rate, full)
	case steady:
		if w.rest -= measureTicks; w.rest <= 0 && full {
			w.experiment(c, rate)
		}
	case trying:
		w.judge(c, rate)
	}
}

// limit is what may be in flight at a rate so that no more than c-delay-target
// of it queues.
func (w *window) limit(c *Controller, rate int) int {
	if c.p.DelayTarget <= 0 {
		return math.MaxInt
	}
	return int(float64(rate) * (float64(c.p.DelayTarget) + max(w.delay, float64(w.rtt))))
}

func (w *window) grow(c *Controller, rate int, full bool) {
	switch {
	case !full:
		w.settle()
	case float64(rate) < growFactor*float64(w.base):
		w.size = w.prev // the last doubling brought nothing
		w.settle()
	default:
		w.change(c, rate, 2*w.size)
		if w.size == w.prev {
			w.settle()
		}
	}
}

func (w *window) settle() { w.phase, w.rest = steady, restTicks }

// change sets a new size and waits one round of it before measuring.
func (w *window) change(c *Controller, rate, size int) {
	w.prev, w.base = w.size, rate
	w.size = c.clampWindow(size)
	if rate > 0 {
		w.size = c.clampWindow(min(w.size, max(w.limit(c, rate), w.prev)))
	}
	w.wait = 1 + w.rtt
	if rate > 0 {
		w.wait = min(1+max(w.size, w.prev)/rate+w.rtt, roundTicksMax)
	}
}

func (w *window) experiment(c *Controller, rate int) {
	w.down = !w.down
	size := w.size + w.size/3
	if w.down {
		size = w.size - w.size/5
	}
	w.change(c, rate, size)
	if w.size == w.prev {
		w.settle()
		return
	}
	w.phase = trying
}

func (w *window) judge(c *Controller, rate int) {
	need := earnFactor * float64(w.base)
	if w.down {
		need = keepFactor * w.best
	}
	w.best *= fadeFactor
	if float64(rate) < need {
		w.size = c.clampWindow(w.prev)
		w.settle()
		return
	}
	w.down = !w.down // it paid: once more in the same direction, soon
	w.phase, w.rest = steady, 0
}
