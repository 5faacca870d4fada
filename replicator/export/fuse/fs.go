package fuse

import (
	"errors"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	gofuse "github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"

	"github.com/hawser-ha/hawser/replicator/export"
	"github.com/hawser-ha/hawser/replicator/iobuf"
)

const (
	rootNode = gofuse.FUSE_ROOT_ID
	fileNode = 2

	attrTimeout  = time.Hour // nothing changes behind the kernel's back but the size, and Resize says so
	zeroChunkMax = 32 << 20  // bytes; a longer WriteZeroes is done in pieces, so that it never holds a whole disk's extents
)

// filesystem is the root folder and the one file in it. Its methods run on go-fuse's goroutines, one for each
// request in flight; each waits for its own request.
type filesystem struct {
	gofuse.RawFileSystem // everything else is ENOSYS

	name    string
	session export.Session
	pool    *iobuf.Pool
	limits  export.Limits
	size    atomic.Int64  // bytes
	dead    chan struct{} // closed by a forced detach: stop waiting for the volume
	ops     sync.Pool
	started time.Time
}

func newFilesystem(name string, pool *iobuf.Pool, limits export.Limits, size int64) *filesystem {
	fs := &filesystem{
		RawFileSystem: gofuse.NewDefaultRawFileSystem(),
		name:          name, pool: pool, limits: limits,
		dead:    make(chan struct{}),
		started: time.Now(),
	}
	fs.size.Store(size)
	fs.ops.New = func() any {
		o := &op{done: make(chan struct{}, 1)}
		o.batch[0] = &o.req
		o.finished = o.finish
		return o
	}
	return fs
}

// The states of an op between Submit and Done.
const (
	opRunning int32 = iota
	opDone
	opAbandoned
)

// op is one request under way, and the result that go-fuse sends from when it is a read.
type op struct {
	req      export.Request
	batch    [1]*export.Request
	buf      *iobuf.Buf
	vec      [1][]byte // what Slices returns
	fs       *filesystem
	state    atomic.Int32
	done     chan struct{} // one token for each Done
	finished func(*export.Request)
}

// finish is the request's Done.
func (o *op) finish(*export.Request) {
	if o.state.CompareAndSwap(opRunning, opDone) {
		o.done <- struct{}{} // has room for the one token
		return
	}
	o.dropBuf() // nobody waits any more; the op itself is the garbage collector's
}

func (o *op) dropBuf() {
	if o.buf != nil {
		o.buf.Release()
		o.buf = nil
	}
}

// Slices makes an op a fuse.ReadResult that is sent straight from the volume's buffer. Without it, go-fuse
// calls Done before it sends what Bytes returned, and the reply would carry the next borrower's data.
func (o *op) Slices() ([][]byte, gofuse.Status) {
	o.vec[0] = o.buf.B
	return o.vec[:], gofuse.OK
}

// Bytes copies, for a caller that does not know Slices.
func (o *op) Bytes(dst []byte) ([]byte, gofuse.Status) {
	return append(dst[:0], o.buf.B...), gofuse.OK
}

// Size is the number of bytes read.
func (o *op) Size() int { return len(o.buf.B) }

// Done gives the buffer back after the reply was sent.
func (o *op) Done() { o.fs.put(o) }

func (fs *filesystem) get(kind export.Op, off, length int64) *op {
	o := fs.ops.Get().(*op)
	o.fs = fs
	o.state.Store(opRunning)
	o.req.Op, o.req.Off, o.req.Len = kind, off, length
	o.req.FUA, o.req.NoHole, o.req.Err = false, false, nil
	o.req.Done = o.finished
	return o
}

func (fs *filesystem) put(o *op) {
	o.dropBuf()
	o.vec[0] = nil
	o.req.Buf, o.req.Private, o.req.Err = nil, nil, nil
	fs.ops.Put(o)
}

// run submits o and waits for it. After errAborted o is no longer the caller's.
func (fs *filesystem) run(o *op) error {
	fs.session.Submit(o.batch[:])
	select {
	case <-o.done:
		return o.req.Err
	case <-fs.dead:
	}
	if o.state.CompareAndSwap(opRunning, opAbandoned) {
		return errAborted
	}
	<-o.done
	return o.req.Err
}

// runPut is run for an op that has no result but its error.
func (fs *filesystem) runPut(o *op) error {
	err := fs.run(o)
	if !errors.Is(err, errAborted) {
		fs.put(o)
	}
	return err
}

// aligned says whether off and length are multiples of the volume's smallest block. Like an O_DIRECT file,
// the exported file refuses everything else.
func (fs *filesystem) aligned(off, length uint64) bool {
	return (off|length)%uint64(fs.limits.MinBlock) == 0
}

// Read returns up to the end of the file. Unaligned ranges are EINVAL.
func (fs *filesystem) Read(_ <-chan struct{}, in *gofuse.ReadIn, _ []byte) (gofuse.ReadResult, gofuse.Status) {
	if in.NodeId != fileNode {
		return nil, gofuse.Status(syscall.EISDIR)
	}
	size := uint64(fs.size.Load())
	if in.Offset >= size {
		return gofuse.ReadResultData(nil), gofuse.OK
	}
	length := min(uint64(in.Size), size-in.Offset)
	if !fs.aligned(in.Offset, length) {
		return nil, gofuse.EINVAL
	}
	if length == 0 {
		return gofuse.ReadResultData(nil), gofuse.OK
	}
	o := fs.get(export.Read, int64(in.Offset), int64(length))
	o.buf = fs.pool.Get(int(length))
	o.req.Buf = o.buf
	if err := fs.run(o); err != nil {
		if !errors.Is(err, errAborted) {
			fs.put(o)
		}
		return nil, status(err)
	}
	return o, gofuse.OK
}

// Write copies data, because go-fuse uses its buffer again as soon as this returns while a volume may keep
// the request's for a slow peer.
func (fs *filesystem) Write(_ <-chan struct{}, in *gofuse.WriteIn, data []byte) (uint32, gofuse.Status) {
	if in.NodeId != fileNode {
		return 0, gofuse.Status(syscall.EISDIR)
	}
	length := uint64(len(data))
	if st := fs.checkRange(in.Offset, length); !st.Ok() || length == 0 {
		return 0, st
	}
	o := fs.get(export.Write, int64(in.Offset), int64(length))
	o.buf = fs.pool.Get(len(data))
	copy(o.buf.B, data)
	o.req.Buf = o.buf
	if err := fs.runPut(o); err != nil {
		return 0, status(err)
	}
	return uint32(length), gofuse.OK
}

func (fs *filesystem) checkRange(off, length uint64) gofuse.Status {
	size := uint64(fs.size.Load())
	switch {
	case off > size || length > size-off:
		return gofuse.Status(syscall.ENOSPC)
	case !fs.aligned(off, length):
		return gofuse.EINVAL
	}
	return gofuse.OK
}

// Fsync makes everything acknowledged before durable. The loop device sends it for a flush and, having no FUA
// of its own, after a write that asked for it.
func (fs *filesystem) Fsync(_ <-chan struct{}, in *gofuse.FsyncIn) gofuse.Status {
	if in.NodeId != fileNode {
		return gofuse.OK
	}
	return status(fs.runPut(fs.get(export.Flush, 0, 0)))
}

// FsyncDir has nothing to do: the folder never changes.
func (fs *filesystem) FsyncDir(<-chan struct{}, *gofuse.FsyncIn) gofuse.Status { return gofuse.OK }

// Flush is a close; like that of a block device it promises nothing.
func (fs *filesystem) Flush(<-chan struct{}, *gofuse.FlushIn) gofuse.Status { return gofuse.OK }

// Fallocate punches or zeroes a range. The loop device sends PUNCH_HOLE for a discard as well as for a write of
// zeroes that may deallocate, and nothing tells them apart; so both have to read back as zeroes.
func (fs *filesystem) Fallocate(_ <-chan struct{}, in *gofuse.FallocateIn) gofuse.Status {
	if in.NodeId != fileNode {
		return gofuse.Status(syscall.EISDIR)
	}
	if st := fs.checkRange(in.Offset, in.Length); !st.Ok() {
		return st
	}
	noHole := false
	switch in.Mode &^ unix.FALLOC_FL_KEEP_SIZE {
	case 0:
		return gofuse.OK // the space is there already
	case unix.FALLOC_FL_PUNCH_HOLE:
	case unix.FALLOC_FL_ZERO_RANGE:
		noHole = true
	default:
		return gofuse.Status(syscall.EOPNOTSUPP)
	}
	for off, end := int64(in.Offset), int64(in.Offset+in.Length); off < end; {
		n := min(end-off, zeroChunkMax)
		o := fs.get(export.WriteZeroes, off, n)
		o.req.NoHole = noHole
		if err := fs.runPut(o); err != nil {
			return status(err)
		}
		off += n
	}
	return gofuse.OK
}

// Lookup knows one name.
func (fs *filesystem) Lookup(_ <-chan struct{}, h *gofuse.InHeader, name string, out *gofuse.EntryOut) gofuse.Status {
	if h.NodeId != rootNode || name != fs.name {
		return gofuse.ENOENT
	}
	out.NodeId = fileNode
	out.SetEntryTimeout(attrTimeout)
	out.SetAttrTimeout(attrTimeout)
	fs.attr(fileNode, &out.Attr)
	return gofuse.OK
}

// Forget: both nodes stay.
func (fs *filesystem) Forget(uint64, uint64) {}

// GetAttr describes the folder or the file.
func (fs *filesystem) GetAttr(_ <-chan struct{}, in *gofuse.GetAttrIn, out *gofuse.AttrOut) gofuse.Status {
	out.SetTimeout(attrTimeout)
	fs.attr(in.NodeId, &out.Attr)
	return gofuse.OK
}

// SetAttr accepts and ignores everything but another size, which is the volume's to decide.
func (fs *filesystem) SetAttr(_ <-chan struct{}, in *gofuse.SetAttrIn, out *gofuse.AttrOut) gofuse.Status {
	if size, ok := in.GetSize(); ok && size != uint64(fs.size.Load()) {
		return gofuse.EPERM
	}
	out.SetTimeout(attrTimeout)
	fs.attr(in.NodeId, &out.Attr)
	return gofuse.OK
}

func (fs *filesystem) attr(node uint64, a *gofuse.Attr) {
	a.Ino = node
	a.Blksize = uint32(fs.limits.Preferred)
	a.SetTimes(&fs.started, &fs.started, &fs.started)
	if node == rootNode {
		a.Mode, a.Nlink = syscall.S_IFDIR|0o700, 2
		return
	}
	a.Mode, a.Nlink = syscall.S_IFREG|0o600, 1
	a.Size = uint64(fs.size.Load())
	a.Blocks = a.Size / 512
}

// Open bypasses the page cache and lets writes of one file run beside each other.
func (fs *filesystem) Open(_ <-chan struct{}, in *gofuse.OpenIn, out *gofuse.OpenOut) gofuse.Status {
	if in.NodeId != fileNode {
		return gofuse.Status(syscall.EISDIR)
	}
	out.OpenFlags = gofuse.FOPEN_DIRECT_IO | gofuse.FOPEN_PARALLEL_DIRECT_WRITES
	return gofuse.OK
}

// Release: there is no state for each open file.
func (fs *filesystem) Release(<-chan struct{}, *gofuse.ReleaseIn) {}

// OpenDir and ReadDir list the one file; without them ls of the mount would be ENOSYS.
func (fs *filesystem) OpenDir(<-chan struct{}, *gofuse.OpenIn, *gofuse.OpenOut) gofuse.Status {
	return gofuse.OK
}

// ReadDir lists the one file.
func (fs *filesystem) ReadDir(_ <-chan struct{}, in *gofuse.ReadIn, out *gofuse.DirEntryList) gofuse.Status {
	entries := []gofuse.DirEntry{
		{Mode: syscall.S_IFDIR, Name: ".", Ino: rootNode, Off: 1},
		{Mode: syscall.S_IFDIR, Name: "..", Ino: rootNode, Off: 2},
		{Mode: syscall.S_IFREG, Name: fs.name, Ino: fileNode, Off: 3},
	}
	for i := in.Offset; i < uint64(len(entries)); i++ {
		if !out.AddDirEntry(entries[i]) {
			break
		}
	}
	return gofuse.OK
}

// ReleaseDir has nothing to free.
func (fs *filesystem) ReleaseDir(*gofuse.ReleaseIn) {}

// StatFs shows a full filesystem of the volume's size. The loop device takes its discard granularity from Bsize.
func (fs *filesystem) StatFs(_ <-chan struct{}, _ *gofuse.InHeader, out *gofuse.StatfsOut) gofuse.Status {
	bsize := uint64(max(fs.limits.MinBlock, os.Getpagesize()))
	out.Bsize, out.Frsize = uint32(bsize), uint32(bsize)
	out.Blocks = uint64(fs.size.Load()) / bsize
	out.Files, out.NameLen = 1, 255
	return gofuse.OK
}
