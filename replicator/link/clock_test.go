package link

import (
	"testing"
	"time"
)

// Now is CLOCK_BOOTTIME, near enough, and finds back to it after the clocks have moved apart.
func TestNowIsBootTime(t *testing.T) {
	near := func(what string) {
		t.Helper()
		before := bootTime()
		got := Now()
		after := bootTime()
		const slack = int64(2 * time.Millisecond) // this machine may stop us in between
		if got < before-slack || got > after+slack {
			t.Errorf("%s: %d is not between %d and %d", what, got, before, after)
		}
	}
	near("at first")
	// What a suspend of a minute does: the monotonic clock stood still, the wall clock did not.
	clock.offset.Add(-int64(time.Minute))
	clock.skew.Add(-int64(time.Minute))
	near("after a suspend")
	clock.skew.Add(int64(time.Hour))
	near("after a step of the wall clock")
	last := Now()
	for range 1000 {
		n := Now()
		if n < last-int64(time.Millisecond) {
			t.Fatalf("the clock went back from %d to %d", last, n)
		}
		last = n
	}
}

func BenchmarkNow(b *testing.B) {
	for b.Loop() {
		Now()
	}
}
