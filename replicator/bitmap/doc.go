// Package bitmap keeps one peer's dirty bits in memory: bit n stands for the 4096 bytes of storage at n*4096
// and is set while that block may differ from the peer's copy.
//
// The package does no I/O. It remembers which on-disk blocks of a bitmap (4 KiB of one slot, 32768 bits, 128 MiB of
// storage) differ from what was last written, so that the metadata writer has to write only those, and it encodes and
// decodes the run length code in which two nodes exchange their bitmaps.
//
//	              Set, Clear, OrWord, OrRLE, Resize
//	block clean  ---------------------------------->  block changed
//	             <----------------------------------
//	              MarkWritten (after the write is durable)
//
// A bit may be cleared only after the block was copied completely; nothing here can check that, the caller must.
package bitmap
