// Package pace says how fast a resync or an online verify may go: on the target
// how much to request (Controller), on the source when to give way to the
// application (Throttle). Both are pure: they are told what happened in each
// tick of 100 ms and hold no clock.
//
// The Controller works in one of three ways:
//
//	c-plan-ahead  c-fill-target   what happens
//	0             -               a fixed resync-rate
//	> 0           > 0             DRBD's planner: that much is kept in flight (drbd-wire.md section 22)
//	> 0           0               the window grows while the link gets faster by it and shrinks
//	                              when less would do; c-delay-target limits it
//
// The third is not DRBD's: there a fill target of 0 fills the link with data for
// c-delay-target, which on a slow link stands in front of the application's
// writes. Here c-delay-target is only the most that may queue, and the window
// settles near the bandwidth-delay product of link and disks.
package pace
