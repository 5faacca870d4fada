// Package undo keeps what a resync overwrites. When a split-brain policy, or an operator with discard-my-data, makes this
// node the loser, the blocks of its own history go to an undo log, durably, before the winner's replace them.
//
// A log is one file that only grows:
//
//	header   8 bytes magic, u32 length of the JSON, u32 crc32c of the JSON, JSON
//	record   u32 magic, u32 length, u64 offset, u32 crc32c of the 16 bytes before and of the data, data
//	end      as a record, with another magic, length 0 and the number of records in place of the offset
//
// All numbers are big endian. A log without end, or with a torn last record, is what a crash leaves: everything before
// the tear is good, because a block is overwritten only after its record was synced.
//
// A block may be recorded twice, when a resync was interrupted and began again. Its first record is the loser's
// data, so Export writes the records from the last to the first.
package undo
