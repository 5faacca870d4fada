// Package actlog is the activity log: which 4 MiB extents a Primary may be writing to, kept in an on-disk log so that after
// a crash exactly these extents are treated as dirty. It does no I/O; see drbd-metadata.md section 4 for the format.
//
// Life of an extent:
//
//	          Get            Prepare            Commit
//	(absent) -----> pending ---------> in tx ----------> active  <---- Get ----  idle
//	   ^              ^                  |                  '------- last Put ---> |
//	   |              '----- Abort ------'                                         |
//	   '--------------- Prepare evicts the least recently used ---------------------'
//
// Only an active extent may be written to. The owner runs one transaction at a time: Prepare, write the bitmap blocks of the
// evicted extents durably, Encode, write the block durably at Block, Commit; then the writes waiting for the extents go on.
// Because the evicted extents' dirty bits are on disk before the transaction is, a crash at any point loses nothing.
//
// Transaction numbers wrap after 2^32. In a ring whose number of blocks is not a power of two the position jumps then, and
// for one lap a crash can lose extents; that is in the format. Initialise the ring and Reset the log before that happens (a
// thousand transactions each second for 49 days), or use a power of two, as the default does.
package actlog
