// Package control is how an agent and its replicators talk: the definition of a
// resource, commands, status and events as JSON over HTTP on a unix socket.
//
// The agent is always the client. A replicator calls nobody: what it wants done
// (a handler run, for instance) it says in its event stream, and the answer is
// posted back (Resource.HandlerResult).
//
//	agent ── Client ──▶ unix socket ──▶ Server ──▶ Resource (package replicator)
//	      ◀── server-sent events, resumable by id ──
//
// Package replicator provides what is behind it: Open(ctx, log, *Definition)
// gives the Resource; CreateMD, and the offline ShowGI and DumpMD, work on the
// metadata of a resource that is down.
//
// Terms are DRBD's. Sizes and counters are bytes unless a name says otherwise.
// Errors are of type *Error and survive the hop: errors.Is(err, NotPrimary)
// holds on both sides.
package control
