// Package check writes blocks that can be recognised, remembers every answer, and judges afterwards whether a
// replicated volume kept its promises (the workload checker of the acceptance scenarios).
//
// A block of 4 KiB carries who wrote it, a sequence number, its own offset and a hash. The history holds invocation and
// return of every operation, also as lines in a log file, so that another process can judge. The verdict reads every replica:
//
//	lost      an acknowledged write is missing: an older one is in its place
//	unissued  a block holds what nobody wrote there
//	torn      a block is a mixture
//	differ    replicas that should be identical are not
//	stale     a read returned something older than what was acknowledged before it began
//	order     no order of the operations on a block explains what was read (porcupine, for a sample of blocks)
//
// What an unanswered write may do. A write that was lost with a connection which the server ended may have
// happened or not, but no later than the writer's next session begins: a new server must not serve before the writes of
// the old one have arrived or never will. A write that the client gave up on may happen at any later time.
package check
