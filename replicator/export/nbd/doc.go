// Package nbd serves replicated volumes over the network block device protocol: fixed newstyle handshake, simple and
// structured replies, TLS, base:allocation.
//
// A connection has one reader goroutine and no workers. The reader parses every complete request that is already in
// its buffer, hands them to the volume in one Submit, and only then reads again. Replies are sent by whoever
// completes requests: Done queues a reply, Kick sends what is queued with one system call, and while one goroutine
// is sending the others only queue. Kick never waits for the client: when the socket is full, the rest
// goes to a goroutine of the connection. Requests, their buffers and the batches are reused, so that the steady
// state allocates nothing.
//
// Memory is bounded twice: by a budget of payload bytes for the server, and by a share of it (and a number
// of requests) for each connection, so that a client that does not read its replies stalls only itself, and is
// dropped after Config.SendTimeout.
//
//	reader:  parse -> batch -> Session.Submit ....... Done -> reply list -> Kick -> socket
//	                                                                         | EAGAIN
//	                                                                         v
//	                                                                    writer goroutine
//
// When a volume is demoted, the requests in flight and those that follow are answered with ESHUTDOWN, the session is
// closed at once, and the connection after a short grace.
package nbd
