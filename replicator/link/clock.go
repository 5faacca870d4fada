package link

import (
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// The clock behind everything is CLOCK_BOOTTIME: a licence to write ends also while the machine is suspended. The kernel gives it
// only by a system call, which is too dear for every packet. So it is taken as the monotonic clock, which Go reads without one,
// plus the time of all suspends; whether there was one since the last look is seen by the wall clock, which then has jumped.
var clock struct {
	begin  time.Time
	offset atomic.Int64 // boot time at begin, in ns
	skew   atomic.Int64 // wall clock less the monotonic one, in ns, when offset was measured
}

const (
	skewMax    = int64(time.Millisecond)      // a jump of the wall clock after which offset is measured anew
	measureMax = int64(50 * time.Microsecond) // of a measurement that is good
	measures   = 16                           // at most, for one that is
)

func init() {
	clock.begin = time.Now()
	measure()
}

// Now is the time on CLOCK_BOOTTIME, in nanoseconds: the one behind the times that a Conn tells.
func Now() int64 {
	t := time.Now()
	mono := int64(t.Sub(clock.begin))
	if d := t.UnixNano() - mono - clock.skew.Load(); d > skewMax || d < -skewMax {
		measure()
	}
	return mono + clock.offset.Load()
}

// measure finds how far the two clocks are apart.
func measure() {
	best := int64(-1)
	for range measures {
		a := time.Now()
		boot := bootTime()
		b := time.Now()
		took := int64(b.Sub(a))
		if best >= 0 && took >= best {
			continue
		}
		best = took
		mono := int64(b.Sub(clock.begin))
		clock.offset.Store(boot - mono)
		clock.skew.Store(b.UnixNano() - mono)
		if took <= measureMax {
			return
		}
	}
}

// bootTime reads CLOCK_BOOTTIME.
func bootTime() int64 {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts); err != nil {
		panic("link: no CLOCK_BOOTTIME: " + err.Error()) // it is there since Linux 2.6.39
	}
	return ts.Nano()
}
