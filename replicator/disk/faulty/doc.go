// Package faulty wraps a disk.Store and misbehaves on command: errors, stalls, delays, and a
// volatile cache that a crash empties. It is for tests of what stands on a disk; everything random
// comes from one seed.
//
// A Fault names requests (operation, range, count, probability) and what becomes of them. Without a
// matching fault a request goes straight to the wrapped store. Stalled and delayed requests live in the wrapper, so
// Options.Timeout of the wrapped store does not see them: to play a timeout, inject
// disk.ErrTimeout with a Delay.
//
// With a volatile cache (Options.Volatile), requests run one at a time on the caller's goroutine, and the previous contents
// of each block are kept until a flush. Crash then leaves every block with any of the contents it had
// since (or with the last flushed ones), independently of its neighbours: lost, reordered and torn writes.
package faulty
