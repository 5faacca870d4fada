// Package nbdclient is a small NBD client for tests: fixed newstyle handshake, simple replies, any number of requests
// in flight on one connection. It knows only what a checker of data needs: read, write (with FUA), flush.
//
// It tells apart how a request ended, because the checker's verdict hangs on it: answered (nil or an Errno), lost with the
// connection (ErrLost), or given up on (ErrTimeout: it may still happen).
package nbdclient
