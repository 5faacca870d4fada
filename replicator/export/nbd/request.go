package nbd

import (
	"encoding/binary"
	"errors"
	"sync/atomic"

	"github.com/hawser-ha/hawser/replicator/export"
)

// errnos translates a volume's errors; the first match counts, and what matches nothing is EIO.
var errnos = []struct {
	err error
	no  uint32
}{
	{export.ErrNotPrimary, eShutdown},
	{export.ErrNoSpace, eNoSpace},
	{export.ErrIO, eIO},
}

func errno(err error) uint32 {
	if err == nil {
		return eOK
	}
	for _, e := range errnos {
		if errors.Is(err, e.err) {
			return e.no
		}
	}
	return eIO
}

// request is one request of a client, or one part of a request that is larger than the volume's MaxIO. It belongs to
// its connection and is used again and again.
type request struct {
	export.Request

	conn   *conn
	next   *request // in the reply list, or in the free list
	cmd    uint16
	cookie uint64
	start  uint64 // offset of the whole request, bytes
	cost   int64  // bytes taken from the budgets

	parts   []*request // non-empty: the volume sees these, and this request is answered after the last
	whole   *request   // the request this one is a part of
	pending atomic.Int32

	head  [dataHeaderSize]byte
	headN int
	extra []byte // payload that is not in Buf: an error text, extents
	data  bool   // the contents of Buf, or of the parts, follow the header
}

func newRequest(c *conn) *request {
	r := &request{conn: c}
	r.Kick = c
	r.Done = func(*export.Request) { r.done() }
	return r
}

// done is the volume's answer: it prepares the reply and queues it.
func (r *request) done() {
	if w := r.whole; w != nil {
		if w.pending.Add(-1) == 0 {
			w.gather()
		}
		return
	}
	r.encode(errno(r.Err))
	r.conn.push(r)
}

// gather is done for a request in parts, after the last of them.
func (r *request) gather() {
	for _, p := range r.parts {
		if r.Err == nil {
			r.Err = p.Err
		}
	}
	r.encode(errno(r.Err))
	r.conn.push(r)
}

// encode writes the reply header for an outcome.
func (r *request) encode(no uint32) {
	if r.conn.structured && r.cmd == cmdRead {
		r.encodeRead(no)
		return
	}
	binary.BigEndian.PutUint32(r.head[0:], magicSimple)
	binary.BigEndian.PutUint32(r.head[4:], no)
	binary.BigEndian.PutUint64(r.head[8:], r.cookie)
	r.headN = simpleSize
	r.data = no == eOK && r.cmd == cmdRead && r.Len > 0
}

// encodeRead writes the single structured chunk that answers a READ.
func (r *request) encodeRead(no uint32) {
	r.data = no == eOK && r.Len > 0
	switch {
	case no != eOK:
		text := ""
		if r.Err != nil {
			text = r.Err.Error()
			text = text[:min(len(text), messageMax)]
		}
		r.extra = binary.BigEndian.AppendUint32(r.extra[:0], no)
		r.extra = binary.BigEndian.AppendUint16(r.extra, uint16(len(text)))
		r.extra = append(r.extra, text...)
		r.chunk(chunkError, len(r.extra))
	case r.Len == 0:
		r.chunk(chunkNone, 0)
	default:
		r.chunk(chunkOffsetData, 8+int(r.Len))
		binary.BigEndian.PutUint64(r.head[chunkSize:], r.start)
		r.headN = dataHeaderSize
	}
}

// chunk writes the header of a chunk that is the only one of its reply.
func (r *request) chunk(typ uint16, n int) {
	binary.BigEndian.PutUint32(r.head[0:], magicStructured)
	binary.BigEndian.PutUint16(r.head[4:], chunkDone)
	binary.BigEndian.PutUint16(r.head[6:], typ)
	binary.BigEndian.PutUint64(r.head[8:], r.cookie)
	binary.BigEndian.PutUint32(r.head[16:], uint32(n))
	r.headN = chunkSize
}

// encodeExtents writes the BLOCK_STATUS chunk for [r.Off, r.Off+r.Len). one limits it to one extent within the
// request. limit is the volume's end and min its block size, both in bytes.
func (r *request) encodeExtents(exts []export.Extent, one bool, limit int64, min int) bool {
	const longest = 1<<32 - 1
	r.extra = binary.BigEndian.AppendUint32(r.extra[:0], contextAllocationID)
	end := limit
	if one {
		end = r.Off + r.Len
	}
	var run int64 // length of the extent that is being collected
	var flags uint32
	unit := int64(max(min, 1))
	emit := func() {
		r.extra = binary.BigEndian.AppendUint32(r.extra, uint32(run))
		r.extra = binary.BigEndian.AppendUint32(r.extra, flags)
	}
	for off, i := r.Off, 0; i < len(exts) && off < end; i++ {
		n := exts[i].Len
		if n > end-off {
			n = end - off
		}
		if n <= 0 {
			continue
		}
		var f uint32
		if exts[i].Hole {
			f |= stateHole
		}
		if exts[i].Zero {
			f |= stateZero
		}
		if run > 0 && f != flags {
			emit()
			run = 0
			if one {
				break
			}
		}
		flags = f
		run += n
		off += n
		if run > longest { // a compact chunk has 32 bits; the client asks for the rest
			run = longest / unit * unit
			break
		}
	}
	if run > 0 {
		emit()
	}
	if len(r.extra) < 12 {
		return false
	}
	if one {
		r.extra = r.extra[:12]
	}
	r.chunk(chunkBlockStatus, len(r.extra))
	return true
}

// release gives the request's buffers back.
func (r *request) release() {
	if r.Buf != nil {
		r.Buf.Release()
		r.Buf = nil
	}
	for _, p := range r.parts {
		if p.Buf != nil {
			p.Buf.Release()
			p.Buf = nil
		}
	}
}
