package bitmap

import (
	"encoding/binary"
	"errors"
	"fmt"
)

// ErrRLE is the cause of every error of OrRLE: the peer sent a compressed bitmap that is not one.
var ErrRLE = errors.New("bad compressed bitmap")

// rleCode is the only encoding there is.
const rleCode = 2

// level is one row of the run length code's table: a codeword is total bits long, its low prefixBits bits are prefix, and
// the rest is the run length less base.
type level struct {
	total, prefixBits uint
	prefix            uint64
	base              uint64
}

func (l *level) max() uint64 { return l.base + 1<<(l.total-l.prefixBits) - 1 }

var levels = [10]level{
	{2, 1, 0x00, 1},
	{3, 2, 0x01, 3},
	{5, 3, 0x03, 5},
	{7, 4, 0x07, 9},
	{10, 5, 0x0f, 17},
	{14, 6, 0x1f, 49},
	{21, 8, 0x3f, 305},
	{29, 8, 0x7f, 8497},
	{42, 8, 0xbf, 2105649},
	{64, 8, 0xff, 0x400202131},
}

// levelOf maps the low byte of a codeword to its level.
var levelOf = func() (t [256]uint8) {
	for b := range t {
		for i := range levels {
			if uint64(b)&(1<<levels[i].prefixBits-1) == levels[i].prefix {
				t[b] = uint8(i)
				break
			}
		}
	}
	return t
}()

// codeword returns the code of run length n, 1 <= n <= 2^56, and its length in bits.
func codeword(n uint64) (code uint64, size uint) {
	for i := range levels {
		if l := &levels[i]; n <= l.max() {
			return (n-l.base)<<l.prefixBits | l.prefix, l.total
		}
	}
	panic(fmt.Sprintf("bitmap: run of %d bits", n)) // a bitmap of 2^56 bits does not fit into memory
}

// EncodeRLE encodes the bits from position from on as a P_COMPRESSED_BITMAP payload of at most maxBytes bytes. The payload
// reuses dst's memory if it is large enough (maxBytes always is). next is the position after the encoded bits. ok is false,
// and payload nil, when the same bits would be shorter as a plain packet (from 8-byte word from/64 on), or when nothing is left
// to send. See drbd-wire.md 20.2 and 20.3.
func (b *Bitmap) EncodeRLE(dst []byte, from int64, maxBytes int) (payload []byte, next int64, ok bool) {
	from = max(from, 0)
	if from >= b.bits || maxBytes < 2 {
		return nil, min(from, b.bits), false
	}
	var (
		out   = append(dst[:0], 0)
		limit = uint(maxBytes-1) * 8 // bits
		used  uint                   // bits
		acc   uint64                 // bits not yet in out
		fill  uint                   // their number, < 8 between codewords
		pos   = from
		value = b.Test(from)
		first = value
	)
	for pos < b.bits {
		end := b.NextClear(pos)
		if !value {
			if end = b.NextSet(pos); end < 0 {
				end = b.bits
			}
		}
		code, size := codeword(uint64(end - pos))
		if used+size > limit {
			break
		}
		used += size
		acc |= code << fill
		if fill+size > 64 { // only for the longest codewords
			out = binary.LittleEndian.AppendUint64(out, acc)
			acc, fill = code>>(64-fill), fill+size-64
		} else {
			fill += size
		}
		for ; fill >= 8; fill -= 8 {
			out = append(out, byte(acc))
			acc >>= 8
		}
		pos, value = end, !value
	}
	if pos == from {
		return nil, from, false
	}
	pad := byte(0)
	if fill > 0 {
		out = append(out, byte(acc))
		pad = byte(8 - fill)
	}
	covered := (pos - from + 7) / 8
	if pos == b.bits { // a plain packet has whole words
		covered = (wordsFor(b.bits) - from/wordBits) * 8
	}
	if int64(len(out)) > covered {
		return nil, from, false
	}
	out[0] = rleCode | pad<<4
	if first {
		out[0] |= 0x80
	}
	return out, pos, true
}

// OrRLE sets the bits that a P_COMPRESSED_BITMAP payload says are set, from position from on, and returns the position
// after them. On an error (all wrap ErrRLE) the bits before the bad codeword may have been set.
func (b *Bitmap) OrRLE(payload []byte, from int64) (next int64, err error) {
	if len(payload) < 2 {
		return from, fmt.Errorf("%w: payload of %d bytes", ErrRLE, len(payload))
	}
	if code := payload[0] & 0x0f; code != rleCode {
		return from, fmt.Errorf("%w: encoding %d", ErrRLE, code)
	}
	if from < 0 || from > b.bits {
		return from, fmt.Errorf("%w: position %d of %d", ErrRLE, from, b.bits)
	}
	value := payload[0]&0x80 != 0
	data := payload[1:]
	left := int64(len(data))*8 - int64(payload[0]>>4&7)
	var acc uint64 // up to 64 bits of look-ahead
	var have uint  // valid bits in acc
	at := int64(0) // next byte of data
	for left > 0 {
		for have <= 56 && at < int64(len(data)) {
			acc |= uint64(data[at]) << have
			have += 8
			at++
		}
		l := &levels[levelOf[byte(acc)]]
		if int64(l.total) > left {
			return from, fmt.Errorf("%w: codeword of %d bits, %d left", ErrRLE, l.total, left)
		}
		code := acc
		if l.total > have { // a 64-bit codeword that starts within a byte
			code |= uint64(data[at]) << have
			spent := 64 - have
			acc, have = uint64(data[at])>>spent, 8-spent
			at++
		} else {
			acc, have = acc>>l.total, have-l.total // a shift by 64 gives 0
		}
		if l.total < 64 {
			code &= 1<<l.total - 1
		}
		left -= int64(l.total)
		n := code>>l.prefixBits + l.base
		if n > uint64(b.bits-from) {
			return from, fmt.Errorf("%w: run of %d bits at %d of %d", ErrRLE, n, from, b.bits)
		}
		if value {
			b.Set(from, from+int64(n)-1)
		}
		from += int64(n)
		value = !value
	}
	return from, nil
}

// PlainWords returns how many words a P_BITMAP packet with maxBytes bytes of payload carries from position from on, and the
// word it starts with: the one that contains from, rounded down. See drbd-wire.md 20.2.
func (b *Bitmap) PlainWords(from int64, maxBytes int) (first, n int) {
	first = int(max(from, 0) / wordBits)
	return first, max(0, min(maxBytes/8, len(b.words)-first))
}
