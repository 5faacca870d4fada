// Package genid knows generation identifiers: the four 64-bit values each disk
// carries, from which two nodes that meet find out whose data is newer, whether
// a resync by bitmap is enough, and whether they have split (drbd-wire.md
// sections 17 to 19).
//
// Everything in it is pure: random numbers are arguments, nothing is logged, and
// both nodes reach opposite results from the same exchanged values without
// talking about them.
//
//	event                     current        bitmap        history 1, 2
//	contact lost (NewCurrent) random         old current
//	source starts             -              sync id       old bitmap, old H1
//	target starts             sync id        0
//	source done               -              0             sync id, old bitmap
//	target done               the source's   0             sync id, old bitmap
package genid
