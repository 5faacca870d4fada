// Package link carries packets to the one peer of a connection and back: two
// sockets, data and meta, over TCP or TLS (drbd-wire.md sections 3 to 5).
//
// Establish makes a Conn: it connects and listens at once, agrees on version and
// features, and authenticates. Nothing above that is decided here. When to ping,
// what a silence means and when to reconnect is for the caller, to whom a Conn
// tells times (LastRecv, StalledSince) and amounts (QueuedBytes, Unsent).
//
//	Establish ──> Conn ── Start(Handler) ──> packets ── Close, EOF, bad packet ──> Handler.Down
//
// Sending never blocks and never switches goroutines when it can be helped: Send*
// puts a packet into a queue, and whoever calls Flush* while nobody is writing
// becomes the writer and hands everything queued to the kernel in one system
// call. Only when the socket is full does a background goroutine take over.
//
// Receiving is one goroutine a socket that parses every packet already read
// before it reads again, and reads large data straight into the buffer that the
// handler gives it. Neither way allocates in the steady state.
package link
