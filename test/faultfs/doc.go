// Package faultfs is a FUSE file system with one file, "disk", that passes through to a backing file and
// misbehaves on command: for end-to-end tests, where the program under test must not know of faults.
// The program is test/faultfs/cmd/faultfs.
//
// Commands are lines on a unix socket; each is answered by "ok", "ok TEXT" or "error: TEXT".
//
//	eio OP [OFF LEN]        fail with EIO; OP is read, write, flush or all; bytes
//	enospc [OFF LEN]        fail writes with ENOSPC
//	stall [OP [OFF LEN]]    do not answer until release
//	slow MS [OP [OFF LEN]]  answer MS milliseconds later
//	volatile on|off         keep writes in memory until a flush; off writes them through
//	drop-unsynced           forget what was not flushed: call it after the program was killed
//	release                 answer what stalls, and stall no longer
//	clear                   release, and remove all rules
//	status                  counts, as JSON
//
// The first rule that matches decides; a zero or absent LEN is everywhere. With volatile on, killing
// faultfs itself also loses what was not flushed.
//
// The file takes O_DIRECT and asynchronous direct I/O, has no page cache (so every request arrives here), and
// honours O_DSYNC. A stalled request is in the state of a disk that does not answer: a process waiting
// for it cannot be killed until release. The server must not share a process with its client: the kernel
// runs io_uring completions of the client on any of the process's threads, and both then wait for each other.
package faultfs
