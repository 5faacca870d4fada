// Package iobuf lends page-aligned buffers for disk and network payloads.
//
// The memory is anonymous and mapped outside the Go heap: the garbage collector neither scans nor
// counts it, O_DIRECT takes it as it is, and it does not move. A Pool bounds what is lent at any time
// in bytes; who asks for more waits, in the order of asking, until others give back.
//
// Sizes are rounded up to a class (4 KiB, 16 KiB, 64 KiB, 256 KiB, 1 MiB, 32 MiB); a larger request
// has a mapping of its own. The first five classes charge the whole class against the limit. A buffer of
// the 32 MiB class charges its length rounded up to 4 KiB, and pages beyond that which an
// earlier borrower touched are given back to the kernel first, so the charge is the memory.
//
// Free buffers of a class are kept in a stack (the last one used is warm in the cache). Stacks are
// sharded, but a shard is left only when its lock is taken, so that without contention one stack stays warm.
// What lay unused at the bottom of a stack for a whole interval of 10 s is given back to the kernel
// (MADV_DONTNEED: the addresses stay reserved, the memory goes), and at once when memory
// lent plus memory kept warm would exceed the limit. Nothing of this allocates on the Go heap once warm.
package iobuf
