// Package meta reads and writes replication metadata on disk: superblock, activity log and bitmaps, in the formats of
// drbd-metadata.md. Version 9 is what hawser uses; version 8 is adopted in place.
//
// # Crash safety
//
// The superblock is one aligned block of 4096 bytes, written in one piece and followed by a sync; so is every activity log
// transaction. Create, ConvertV08, ApplyAL and Move write what the superblock will point to first, and the superblock last.
// Create over older metadata wipes the old superblock before anything else.
//
// # What damage is found
//
// The format has no checksum on superblock and bitmaps. hawser appends one to the superblocks it writes, in the last 16
// bytes, which the format leaves zero: u32 "HWSR", u32 1, u32 crc32c of everything before, u32 0, big endian. drbdmeta
// ignores it and writes zeros there, which marks the block as a foreign tool's and is accepted; anything else that does not
// check is a DamageError.
//
//   - Any change of a superblock that hawser wrote is detected, except one that zeroes exactly the 16 bytes.
//   - A superblock of a foreign tool is checked for plausibility only: magic, all offsets against the device's size, slot numbers.
//   - Every activity log block has a checksum. One bad block is normal after a crash: the one that was being written. A
//     committed newest block that went bad later looks the same and is not detected; any other damage is (actlog.ErrGap).
//   - A wrong bit in a bitmap is not detectable, the format has no room for a checksum. Online verify finds its effects.
//
// # Concurrency
//
// A Store is safe for concurrent use. Its mutexes are held during I/O on purpose: a block that several slots share must be read,
// changed and written as one step, and superblocks must reach the disk in order. Bitmaps are the caller's to guard; Snapshot
// copies what is to be written, so that the I/O needs no lock on the bitmap.
package meta
