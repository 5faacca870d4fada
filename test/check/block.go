package check

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"unsafe"
)

// BlockSize is the unit of the checker, bytes.
const BlockSize = 4096

const (
	sectorSize = 512
	blockMagic = 0x6861777365724b31 // hawserK1
	sumAt      = BlockSize - sha256.Size
)

// Value is the content of a block: the write that made it. The zero Value is a block nobody wrote.
type Value struct {
	Writer uint32
	Seq    uint64
}

// String gives w2/17, or "nothing".
func (v Value) String() string {
	if v == (Value{}) {
		return "nothing"
	}
	return fmt.Sprintf("w%d/%d", v.Writer, v.Seq)
}

// Fill makes b, of BlockSize bytes, the content of v at offset off (bytes).
func Fill(b []byte, v Value, off int64) {
	x := uint64(v.Writer)<<48 ^ v.Seq ^ uint64(off)<<20
	for i := 0; i < sumAt; i += 8 {
		x += 0x9e3779b97f4a7c15
		z := (x ^ x>>30) * 0xbf58476d1ce4e5b9
		z = (z ^ z>>27) * 0x94d049bb133111eb
		binary.LittleEndian.PutUint64(b[i:], z^z>>31)
	}
	for s := 0; s < BlockSize; s += sectorSize { // so that a mixture tells what it is made of
		binary.LittleEndian.PutUint32(b[s:], v.Writer)
		binary.LittleEndian.PutUint32(b[s+4:], uint32(s/sectorSize))
		binary.LittleEndian.PutUint64(b[s+8:], v.Seq)
	}
	binary.LittleEndian.PutUint64(b[16:], blockMagic)
	binary.LittleEndian.PutUint64(b[24:], uint64(off))
	sum := sha256.Sum256(b[:sumAt])
	copy(b[sumAt:], sum[:])
}

var zeroes [BlockSize]byte

// Read says which write made b. The error describes a block that no single write at off made.
func Read(b []byte, off int64) (Value, error) {
	if bytes.Equal(b, zeroes[:]) {
		return Value{}, nil
	}
	v := Value{Writer: binary.LittleEndian.Uint32(b), Seq: binary.LittleEndian.Uint64(b[8:])}
	sum := sha256.Sum256(b[:sumAt])
	if binary.LittleEndian.Uint64(b[16:]) != blockMagic || !bytes.Equal(sum[:], b[sumAt:]) {
		return v, fmt.Errorf("not one write: sectors of %s", sectors(b))
	}
	if at := int64(binary.LittleEndian.Uint64(b[24:])); at != off {
		return v, fmt.Errorf("%s was written to offset %d", v, at)
	}
	return v, nil
}

// sectors names the writers of the sectors of a block.
func sectors(b []byte) string {
	var out []byte
	last := ""
	for s := 0; s < BlockSize; s += sectorSize {
		name := Value{Writer: binary.LittleEndian.Uint32(b[s:]), Seq: binary.LittleEndian.Uint64(b[s+8:])}.String()
		if binary.LittleEndian.Uint32(b[s+4:]) != uint32(s/sectorSize) && name != "nothing" {
			name = "?"
		}
		if name != last {
			out = fmt.Appendf(out, " %d:%s", s/sectorSize, name)
			last = name
		}
	}
	return string(bytes.TrimSpace(out))
}

// aligned gives n bytes for direct I/O.
func aligned(n int) []byte {
	b := make([]byte, n+BlockSize)
	skip := (BlockSize - int(uintptr(unsafe.Pointer(&b[0]))%BlockSize)) % BlockSize
	return b[skip : skip+n : skip+n]
}
