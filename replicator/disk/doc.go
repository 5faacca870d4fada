// Package disk is the port to a backing store: a block device or a regular file, with direct I/O
// where it works, driven by io_uring, by threads, or inline on the caller's goroutine.
//
//	Do      the caller's goroutine does the system call: cheapest when nothing else is to be done
//	Submit  starts a batch (one io_uring_enter) and returns; Done tells the end of each request
//
// # Order and durability
//
// Requests in flight together have no order. A Flush covers the writes that had completed before it
// started; one flush is in flight at a time, and Flushes that arrive meanwhile share the next one. A
// write with FUA is one RWF_DSYNC write, or a write that joins the next flush, whichever is cheaper.
//
// After a failed flush the kernel has reported a lost write, and it does so once only. So the first
// error of a flush (or of a stable write) is kept: every later Flush and FUA returns it (IsFlushLost),
// without asking the kernel again. Only opening the disk anew, after its contents were
// checked or copied from a peer, helps.
//
// # Time and memory
//
// With Options.Timeout, a request that does not come back gets ErrTimeout and Done, while the kernel
// still owns its memory: a late read would scribble over the buffer's next user. Request.Mem names
// the buffer behind Buf and is retained until the kernel lets go; without it the data go through a buffer of
// this package. Do cannot leave a system call, so with a Timeout it submits and waits (except
// on tmpfs, which cannot stall); that costs the inline advantage.
//
// # Exclusive use
//
// Open takes flock on the path, and O_EXCL on a block device (which also excludes mounts, md, dm and loop),
// so that two replicators never share a disk. The lock goes when the last request has left the
// kernel, not when Close gives up waiting.
package disk
