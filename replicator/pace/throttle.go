package pace

import "math"

// Figures of the throttle, in ticks of 100 ms and sectors.
const (
	busySectors = 64 // application I/O in a tick below which it never counts as busy
	busyShare   = 32 // of the resync's I/O: less than one part in so many is no reason to give way
	idleTicks   = 5  // so many quiet ticks in a row open the resync fully again
)

// Throttle is the source's side: resync reads give way to the application's I/O
// on the same disk, down to c-min-rate. While the application is busy (a few
// writes a second beside a fast resync are not) the resync
// gets half as much in each tick, never less than c-min-rate; in a quiet tick
// twice as much, and after half a second of quiet whatever it asks for. It is
// not safe for concurrent use.
type Throttle struct {
	minRate int // sectors a tick; 0 never throttles
	budget  int
	quiet   int // ticks
}

// NewThrottle returns an open throttle. minRate is c-min-rate in KiB/s; 0 means
// that the resync does not give way.
func NewThrottle(minRate int) *Throttle {
	return &Throttle{minRate: perTickMin(minRate), budget: math.MaxInt, quiet: idleTicks}
}

func perTickMin(kib int) int {
	if kib <= 0 {
		return 0
	}
	return max(perTick(kib), 8) // one block a tick: it never stands still
}

// SetMinRate changes c-min-rate (KiB/s).
func (t *Throttle) SetMinRate(minRate int) { t.minRate = perTickMin(minRate) }

// Step ends a tick in which resync sectors were served for the peer and app
// sectors for the application. It returns how many sectors of resync may be
// served in the next tick; math.MaxInt is no limit. Requests above it wait, they
// are not refused.
func (t *Throttle) Step(resync, app int) int {
	if t.minRate == 0 {
		t.budget = math.MaxInt
		return t.budget
	}
	if app >= max(busySectors, resync/busyShare) {
		t.quiet = 0
		t.budget = max(t.minRate, min(t.budget, resync)/2)
		return t.budget
	}
	t.quiet++
	if t.quiet >= idleTicks || t.budget > math.MaxInt/2 {
		t.budget = math.MaxInt
	} else {
		t.budget *= 2
	}
	return t.budget
}
