package actlog

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
)

const (
	// BlockSize is the size of a transaction block.
	BlockSize = 4096 // bytes
	// ExtentSize is the storage one extent stands for.
	ExtentSize = 4 << 20 // bytes
	// UpdatesMax is the number of slots one transaction can change.
	UpdatesMax = 64
	// ContextMax is the number of slots whose old contents one transaction records.
	ContextMax = 919
	// SlotsMin is the least number of slots (the option al-extents).
	SlotsMin = 67
	// SlotsMax is the greatest number of slots.
	SlotsMax = 65534

	magic     = 0x69cb65a2
	free      = 0xffffffff // extent number of a free slot
	typeEmpty = 0xffff     // a block as InitBlock makes it

	offCRC, offUpdateSlots, offUpdateExtents, offContext = 8, 36, 164, 420
)

// ErrBlock is the cause when a block is not a valid transaction: torn, damaged or of another format.
var ErrBlock = errors.New("bad activity log block")

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// Transaction is one block of the log, as built by Log.Prepare or read by Decode. It shares no memory with a Log, so it may
// be encoded and written while the Log is used.
type Transaction struct {
	Number       uint32   // consecutive, wraps
	Slots        []uint16 // the slots it changes, at most UpdatesMax
	Extents      []uint32 // what they hold afterwards; 0xffffffff is a free slot
	ContextSize  int      // the log's number of slots
	ContextStart int      // the slot Context begins with
	Context      []uint32 // slot contents before this transaction, at most ContextMax
	Evicted      []uint32 // extents it drops; their bitmap blocks must be on disk first. Not part of the block
}

// blockCRC is the checksum of a block, whose own field counts as zero: crc32c, initial value 0, no inversion at the end.
func blockCRC(block []byte) uint32 {
	var zero [4]byte
	c := crc32.Update(0xffffffff, castagnoli, block[:offCRC])
	c = crc32.Update(c, castagnoli, zero[:])
	return ^crc32.Update(c, castagnoli, block[offCRC+4:])
}

// Encode fills block with the transaction.
func (tx *Transaction) Encode(block *[BlockSize]byte) {
	be := binary.BigEndian
	p := block[:]
	clear(p[:offUpdateSlots])
	be.PutUint32(p[0:], magic)
	be.PutUint32(p[4:], tx.Number)
	be.PutUint16(p[14:], uint16(len(tx.Slots)))
	be.PutUint16(p[16:], uint16(tx.ContextSize))
	be.PutUint16(p[18:], uint16(tx.ContextStart))
	for i := offUpdateSlots; i < BlockSize; i += 4 {
		be.PutUint32(p[i:], 0xffffffff)
	}
	for i, s := range tx.Slots {
		be.PutUint16(p[offUpdateSlots+2*i:], s)
		be.PutUint32(p[offUpdateExtents+4*i:], tx.Extents[i])
	}
	for i, e := range tx.Context {
		be.PutUint32(p[offContext+4*i:], e)
	}
	be.PutUint32(p[offCRC:], blockCRC(p))
}

// Block returns the number of the 4 KiB block of the ring the transaction belongs in. Both arguments are from the
// superblock and at least 1.
func (tx *Transaction) Block(stripes, stripeSize4k int) int {
	t := int(uint64(tx.Number) % (uint64(stripes) * uint64(stripeSize4k)))
	return t%stripes*stripeSize4k + t/stripes
}

// InitBlock fills block with an initialised, empty block, which every block of an unused ring must be.
func InitBlock(block *[BlockSize]byte) {
	clear(block[:])
	binary.BigEndian.PutUint32(block[0:], magic)
	binary.BigEndian.PutUint16(block[12:], typeEmpty)
	binary.BigEndian.PutUint32(block[offCRC:], blockCRC(block[:]))
}

// Decode reads a block. empty is true for an initialised block, of which tx says nothing. The error wraps ErrBlock.
func (tx *Transaction) Decode(block []byte) (empty bool, err error) {
	be := binary.BigEndian
	if len(block) != BlockSize {
		return false, fmt.Errorf("%w: %d bytes", ErrBlock, len(block))
	}
	if m := be.Uint32(block); m != magic {
		return false, fmt.Errorf("%w: magic %#08x", ErrBlock, m)
	}
	if got, want := be.Uint32(block[offCRC:]), blockCRC(block); got != want {
		return false, fmt.Errorf("%w: checksum %#08x, computed %#08x", ErrBlock, got, want)
	}
	*tx = Transaction{Number: be.Uint32(block[4:])}
	n := int(be.Uint16(block[14:]))
	switch typ := be.Uint16(block[12:]); {
	case typ == typeEmpty:
		return true, nil
	case typ != 0:
		return false, fmt.Errorf("%w: type %#04x", ErrBlock, typ)
	case n > UpdatesMax:
		return false, fmt.Errorf("%w: %d updates", ErrBlock, n)
	}
	tx.ContextSize = int(be.Uint16(block[16:]))
	tx.ContextStart = int(be.Uint16(block[18:]))
	for i := range n {
		s := be.Uint16(block[offUpdateSlots+2*i:])
		if int(s) >= tx.ContextSize {
			return false, fmt.Errorf("%w: slot %d of %d", ErrBlock, s, tx.ContextSize)
		}
		tx.Slots = append(tx.Slots, s)
		tx.Extents = append(tx.Extents, be.Uint32(block[offUpdateExtents+4*i:]))
	}
	for i := range min(ContextMax, max(0, tx.ContextSize-tx.ContextStart)) {
		tx.Context = append(tx.Context, be.Uint32(block[offContext+4*i:]))
	}
	return false, nil
}
