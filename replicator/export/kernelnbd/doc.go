// Package kernelnbd makes a volume a block device of this host, /dev/nbdN, through the kernel's own NBD client.
// It is the front end of choice where the nbd module exists.
//
// The kernel gets one end of a unix socket pair whose other end our NBD server serves; the handshake is done
// here, since the kernel knows only what comes after it. Commands go over generic netlink (family "nbd").
//
// The device outlives the process that serves it. The kernel keeps it, and keeps every request, for
// DeadConnTimeout; a new process that attaches the same ID finds the device by the backend string in sysfs and gives
// it a new socket. Requests that were under way are then sent again. So the old process must have ended before the
// new one executes anything, or a stale write could land over a newer one: the exclusive lock on the backing
// store sees to that, not this package.
//
// Settings, and why: one socket, because with several a timer kills the socket of a server that is merely frozen; TIMEOUT 0 and
// queue/io_timeout 2000 ms, because that makes a freeze transparent, and sends requests again within two
// seconds after a crash instead of thirty.
//
//	state of the device        event                       next
//	absent                     Attach: CONNECT             serving
//	serving                    server or process ends      waiting: I/O queues in the kernel
//	waiting                    Attach or relink:
//	                           RECONFIGURE takes socket    serving: requests are sent again
//	waiting                    DeadConnTimeout             dead: I/O fails with EIO
//	any                        Detach: DISCONNECT          absent
package kernelnbd
