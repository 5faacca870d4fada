// Package replicator runs one resource: it is everything around the pure state machine of package core that blocks,
// waits or owns memory. Front ends, backing disks, metadata and peer links each have their package; here is
// what ties them together.
//
//	front ends ──> Session.Submit ─┐                          ┌─> link queues (under the mutex, in order)
//	peer links ──> Data, Meta ─────┤   one mutex: events in,  ├─> backing disks (after it, one Submit a batch)
//	disks, metadata ──> done ──────┼─> core.Machine,          ├─> metadata goroutine of the volume
//	timer, commands ───────────────┘   effects out            └─> answers to front ends, results, events
//
// # How an event is handled
//
// A turn takes the mutex, feeds events, and carries out the effects that are cheap and whose order matters: packets go into the
// queues of the links. Everything else is collected, and done after the mutex is free: disk requests are
// submitted, links flushed, front ends answered. When a turn's only disk request finds an idle disk it is executed
// right there, after the flush of the links, so that disk and peer work at the same time, and its outcome goes
// back into the Machine in the same turn: at depth one, nothing changes goroutine.
//
// # Who owns what
//
// A buffer of a front end or a link is counted by package iobuf: the front end holds it until its answer is sent, an
// ioreq until the Machine has forgotten the Request, a link until the kernel took the bytes, a disk until it is through.
// Every goroutine is counted in Resource.wg and ends with Close, which waits at most closeTimeout: a disk that hangs in
// the kernel keeps its goroutine, not the process.
package replicator
