package disk

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/hawser-ha/hawser/replicator/iobuf"
)

const rwfDsync = 2 // RWF_DSYNC

// file is the open descriptor and what was found out about it. Its methods block.
type file struct {
	fd       int
	path     string
	readOnly bool
	blockDev bool
	direct   bool        // opened O_DIRECT
	memory   bool        // tmpfs: cannot stall, needs no engine
	local    bool        // block device or known local file system, see localMagics
	dsync    atomic.Bool // RWF_DSYNC can be trusted here
	fua      bool        // the device takes FUA: RWF_DSYNC is cheap
	discards bool
	rotates  bool
	block    int // logical block, bytes
	memAlign int // of buffers, bytes
}

const (
	magicTmpfs = 0x01021994
	magicRamfs = 0x858458f6
)

// Local file systems that are known to honour RWF_DSYNC with O_DIRECT, and not to block io_uring's
// submission. FUSE passes the flag to a daemon that may ignore it, so there a stable write is a write and a
// flush; and it waits for the inode lock, which a stalled fsync holds, inside io_uring_enter.
var localMagics = map[int64]bool{
	magicTmpfs: true, unix.EXT4_SUPER_MAGIC: true, unix.XFS_SUPER_MAGIC: true, unix.BTRFS_SUPER_MAGIC: true,
	unix.F2FS_SUPER_MAGIC: true,
}

func openFile(o *Options) (f *file, err error) {
	st, err := os.Stat(o.Path)
	if err != nil {
		return nil, fmt.Errorf("open disk: %w", err)
	}
	f = &file{fd: -1, path: o.Path, readOnly: o.ReadOnly, block: 512, memAlign: 512}
	switch mode := st.Mode(); {
	case mode.IsRegular():
	case mode&os.ModeDevice != 0 && mode&os.ModeCharDevice == 0:
		f.blockDev = true
	default:
		return nil, fmt.Errorf("open disk %s: neither a block device nor a regular file", o.Path)
	}
	defer func() {
		if err != nil && f.fd >= 0 {
			_ = unix.Close(f.fd)
		}
	}()
	flags := unix.O_RDWR | unix.O_CLOEXEC
	if o.ReadOnly {
		flags = unix.O_RDONLY | unix.O_CLOEXEC
	}
	if f.blockDev {
		flags |= unix.O_EXCL
	}
	if f.fd, err = openRetry(o.Path, flags); err != nil {
		if errors.Is(err, unix.EBUSY) {
			return f, fmt.Errorf("open disk %s: %w%s", o.Path, ErrInUse, deviceHolder(o.Path))
		}
		return f, fmt.Errorf("open disk %s: %w", o.Path, err)
	}
	if err := flockRetry(f.fd); err != nil {
		if errors.Is(err, unix.EWOULDBLOCK) {
			return f, fmt.Errorf("open disk %s: %w%s", o.Path, ErrInUse, flockHolder(f.fd))
		}
		return f, fmt.Errorf("lock disk %s: %w", o.Path, err)
	}
	if err := f.inspect(); err != nil {
		return f, fmt.Errorf("open disk %s: %w", o.Path, err)
	}
	if o.Direct == "yes" || (o.Direct != "no" && !f.memory) {
		if err := f.goDirect(); err != nil && o.Direct == "yes" {
			return f, fmt.Errorf("open disk %s: direct I/O: %w", o.Path, err)
		}
	}
	return f, nil
}

// openRetry and flockRetry give udev, which locks a device for some milliseconds whenever
// a writer has closed it, a second to finish.
func openRetry(path string, flags int) (int, error) {
	for try := 0; ; try++ {
		fd, err := unix.Open(path, flags, 0)
		if err == nil || (err != unix.EINTR && err != unix.EBUSY) || (err == unix.EBUSY && try >= 20) {
			return fd, err
		}
		time.Sleep(50 * time.Millisecond)
	}
}

func flockRetry(fd int) error {
	var st unix.Stat_t
	tries := 0
	if unix.Fstat(fd, &st) == nil && st.Mode&unix.S_IFMT == unix.S_IFBLK {
		tries = 20
	}
	for try := 0; ; try++ {
		err := unix.Flock(fd, unix.LOCK_EX|unix.LOCK_NB)
		if err == nil || (err != unix.EINTR && err != unix.EWOULDBLOCK) || (err == unix.EWOULDBLOCK && try >= tries) {
			return err
		}
		time.Sleep(50 * time.Millisecond)
	}
}

// flockHolder names who has the lock, when the kernel tells.
func flockHolder(fd int) string {
	var st unix.Stat_t
	if unix.Fstat(fd, &st) != nil {
		return ""
	}
	want := fmt.Sprintf("%02x:%02x:%d", unix.Major(st.Dev), unix.Minor(st.Dev), st.Ino)
	locks, _ := os.ReadFile("/proc/locks")
	for line := range strings.Lines(string(locks)) {
		f := strings.Fields(line)
		if len(f) < 6 || f[1] != "FLOCK" || f[5] != want {
			continue
		}
		if name, err := os.ReadFile("/proc/" + f[4] + "/comm"); err == nil {
			return fmt.Sprintf(": locked by process %s (%s)", f[4], strings.TrimSpace(string(name)))
		}
		return ": locked by process " + f[4]
	}
	return ""
}

// deviceHolder names who has claimed a block device, when the kernel tells.
func deviceHolder(path string) string {
	var st unix.Stat_t
	if unix.Stat(path, &st) != nil {
		return ""
	}
	id := fmt.Sprintf("%d:%d", unix.Major(st.Rdev), unix.Minor(st.Rdev))
	mounts, _ := os.ReadFile("/proc/self/mountinfo")
	for line := range strings.Lines(string(mounts)) {
		if f := strings.Fields(line); len(f) > 4 && f[2] == id {
			return ": mounted at " + f[4]
		}
	}
	holders, _ := os.ReadDir("/sys/dev/block/" + id + "/holders")
	if len(holders) > 0 {
		return ": held by " + holders[0].Name()
	}
	if fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0); err == nil {
		defer func() { _ = unix.Close(fd) }()
		return flockHolder(fd)
	}
	return ""
}

// inspect fills in what the descriptor tells without I/O.
func (f *file) inspect() error {
	var st unix.Stat_t
	if err := unix.Fstat(f.fd, &st); err != nil {
		return err
	}
	dev := st.Dev
	if f.blockDev {
		dev = st.Rdev
		n, err := unix.IoctlGetInt(f.fd, unix.BLKSSZGET)
		if err != nil {
			return fmt.Errorf("logical block size: %w", err)
		}
		f.block, f.memAlign = n, n
		f.local = true
	} else {
		var fs unix.Statfs_t
		if err := unix.Fstatfs(f.fd, &fs); err != nil {
			return err
		}
		magic := int64(fs.Type)
		f.memory = magic == magicTmpfs || magic == magicRamfs
		f.local = localMagics[magic]
		if !f.readOnly {
			// Beyond the end of the file a hole changes nothing, and says whether holes are known here.
			end := (st.Size + 1<<20) &^ 4095
			f.discards = unix.Fallocate(f.fd, unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, end, 4096) == nil
		}
	}
	f.dsync.Store(f.local)
	f.rotates = queueLimit(dev, "rotational") == 1
	f.fua = queueLimit(dev, "fua") == 1
	if f.blockDev {
		f.discards = !f.readOnly && queueLimit(dev, "discard_max_bytes") > 0
	}
	return nil
}

// queueLimit reads one of /sys/block/*/queue for the device or the disk of the partition; 0 when
// there is none.
func queueLimit(dev uint64, name string) int64 {
	dir := fmt.Sprintf("/sys/dev/block/%d:%d/", unix.Major(dev), unix.Minor(dev))
	for _, p := range []string{"queue/", "../queue/"} {
		if s, err := os.ReadFile(dir + p + name); err == nil {
			n, _ := strconv.ParseInt(strings.TrimSpace(string(s)), 10, 64)
			return n
		}
	}
	return 0
}

// goDirect switches to O_DIRECT if an aligned read then really works.
func (f *file) goDirect() error {
	flags, err := unix.FcntlInt(uintptr(f.fd), unix.F_GETFL, 0)
	if err != nil {
		return err
	}
	if _, err := unix.FcntlInt(uintptr(f.fd), unix.F_SETFL, flags|unix.O_DIRECT); err != nil {
		return err
	}
	block, mem := f.block, f.memAlign
	var sx unix.Statx_t
	if unix.Statx(f.fd, "", unix.AT_EMPTY_PATH, unix.STATX_DIOALIGN, &sx) == nil && sx.Mask&unix.STATX_DIOALIGN != 0 && sx.Dio_offset_align != 0 {
		block, mem = max(block, int(sx.Dio_offset_align)), max(mem, int(sx.Dio_mem_align))
	}
	p := iobuf.NewPool(1 << 20)
	defer p.Close()
	b := p.Get(8192)
	defer b.Release()
	for ; block <= 4096; block *= 8 {
		if _, err = unix.Pread(f.fd, b.B[mem%4096:][:block], int64(block)); err == nil {
			f.block, f.memAlign, f.direct = block, mem, true
			return nil
		}
	}
	if _, e := unix.FcntlInt(uintptr(f.fd), unix.F_SETFL, flags); e != nil {
		return e
	}
	return err
}

// readSize asks for the size in bytes, rounded down to whole blocks.
func (f *file) readSize() (int64, error) {
	var n int64
	if f.blockDev {
		var size uint64
		if _, _, e := unix.Syscall(unix.SYS_IOCTL, uintptr(f.fd), unix.BLKGETSIZE64, uintptr(unsafe.Pointer(&size))); e != 0 {
			return 0, fmt.Errorf("size of %s: %w", f.path, e)
		}
		n = int64(size)
	} else {
		var st unix.Stat_t
		if err := unix.Fstat(f.fd, &st); err != nil {
			return 0, fmt.Errorf("size of %s: %w", f.path, err)
		}
		n = st.Size
	}
	return n - n%int64(f.block), nil
}

func (f *file) aligned(p []byte) bool {
	return !f.direct || uintptr(unsafe.Pointer(unsafe.SliceData(p)))%uintptr(f.memAlign) == 0
}

// mapErr turns an errno into the package's errors.
func mapErr(err error) error {
	if err == unix.ENOSPC || err == unix.EDQUOT { //nolint:errorlint // raw errno of a system call
		return errNoSpace
	}
	return err
}

func (f *file) read(p []byte, off int64) error {
	for len(p) > 0 {
		n, err := unix.Pread(f.fd, p, off)
		switch {
		case err == unix.EINTR || err == unix.EAGAIN: //nolint:errorlint // raw errno of a system call
		case err != nil:
			return err
		case n == 0:
			return io.ErrUnexpectedEOF
		}
		if n > 0 {
			p, off = p[n:], off+int64(n)
		}
	}
	return nil
}

func (f *file) write(p []byte, off int64, dsync bool) error {
	for len(p) > 0 {
		var n int
		var err error
		if dsync {
			n, err = pwriteDsync(f.fd, p, off)
		} else {
			n, err = unix.Pwrite(f.fd, p, off)
		}
		switch {
		case err == unix.EINTR || err == unix.EAGAIN: //nolint:errorlint // raw errno of a system call
		case err != nil:
			return mapErr(err)
		case n == 0:
			return io.ErrShortWrite
		}
		if n > 0 {
			p, off = p[n:], off+int64(n)
		}
	}
	return nil
}

// pwriteDsync is pwritev2 with RWF_DSYNC; the one of x/sys allocates.
func pwriteDsync(fd int, p []byte, off int64) (int, error) {
	iov := unix.Iovec{Base: unsafe.SliceData(p)}
	iov.SetLen(len(p))
	n, _, e := unix.Syscall6(unix.SYS_PWRITEV2, uintptr(fd), uintptr(unsafe.Pointer(&iov)), 1, uintptr(off), uintptr(uint64(off)>>32), rwfDsync)
	if e != 0 {
		return 0, e
	}
	return int(n), nil
}

func (f *file) flush() error {
	for {
		if err := unix.Fdatasync(f.fd); err != unix.EINTR {
			return mapErr(err)
		}
	}
}

// rangeMax bounds one discard or zero-out call to the kernel, which cannot be interrupted; bytes.
const rangeMax = 1 << 30

func (f *file) discard(off, length int64) error {
	for length > 0 {
		n := min(length, rangeMax)
		var err error
		if f.blockDev {
			err = f.rangeIoctl(unix.BLKDISCARD, off, n)
		} else {
			err = f.fallocate(unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, off, n)
		}
		if unsupported(err) {
			return nil // contents are undefined either way
		}
		if err != nil {
			return mapErr(err)
		}
		off, length = off+n, length-n
	}
	return nil
}

func (f *file) zeroOut(off, length int64, noUnmap bool, pool *iobuf.Pool) error {
	for length > 0 {
		n := min(length, rangeMax)
		err := error(unix.EOPNOTSUPP)
		if !noUnmap {
			// Deallocates, and reads as zeroes by contract, on files and block devices.
			err = f.fallocate(unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, off, n)
		}
		if unsupported(err) {
			if f.blockDev {
				err = f.rangeIoctl(unix.BLKZEROOUT, off, n)
			} else {
				err = f.fallocate(unix.FALLOC_FL_ZERO_RANGE|unix.FALLOC_FL_KEEP_SIZE, off, n)
			}
		}
		if unsupported(err) {
			err = f.writeZeroes(off, n, pool)
		}
		if err != nil {
			return mapErr(err)
		}
		off, length = off+n, length-n
	}
	return nil
}

func (f *file) writeZeroes(off, length int64, pool *iobuf.Pool) error {
	b := pool.Get(int(min(length, 1<<20)))
	defer b.Release()
	clear(b.B)
	for length > 0 {
		n := min(length, int64(len(b.B)))
		if err := f.write(b.B[:n], off, false); err != nil {
			return err
		}
		off, length = off+n, length-n
	}
	return nil
}

func (f *file) fallocate(mode uint32, off, length int64) error {
	for {
		if err := unix.Fallocate(f.fd, mode, off, length); err != unix.EINTR {
			return err
		}
	}
}

func (f *file) rangeIoctl(req uint, off, length int64) error {
	r := [2]uint64{uint64(off), uint64(length)}
	for {
		_, _, e := unix.Syscall(unix.SYS_IOCTL, uintptr(f.fd), uintptr(req), uintptr(unsafe.Pointer(&r)))
		if e == 0 {
			return nil
		}
		if e != unix.EINTR {
			return e
		}
	}
}

func unsupported(err error) bool {
	return err == unix.EOPNOTSUPP || err == unix.ENOTTY || err == unix.ENOSYS || err == unix.EINVAL //nolint:errorlint // raw errno of a system call
}

func (f *file) extents(off, length int64, limit int) ([]Extent, error) {
	if length <= 0 || limit <= 0 {
		return nil, nil
	}
	if f.blockDev {
		return []Extent{{Off: off, Len: length}}, nil
	}
	var out []Extent
	block := int64(f.block)
	for end := off + length; off < end && len(out) < limit; {
		data, err := unix.Seek(f.fd, off, unix.SEEK_DATA)
		switch {
		case err == unix.ENXIO: // nothing but a hole up to the end
			data = end
		case err == unix.EINVAL || err == unix.EOPNOTSUPP:
			return append(out, Extent{Off: off, Len: end - off}), nil
		case err != nil:
			return nil, fmt.Errorf("extents of %s: %w", f.path, err)
		}
		if data = min(data-data%block, end); data > off {
			out = append(out, Extent{Off: off, Len: data - off, Hole: true})
			off = data
			continue
		}
		hole, err := unix.Seek(f.fd, off, unix.SEEK_HOLE)
		if err == unix.ENXIO { // the file was cut meanwhile
			hole, err = end, nil
		}
		if err != nil {
			return nil, fmt.Errorf("extents of %s: %w", f.path, err)
		}
		// A hole inside the last block does not make the block a hole.
		hole = min((hole+block-1)/block*block, end)
		if hole <= off { // concurrent change: call the block allocated and go on
			hole = min(off+block, end)
		}
		if last := len(out) - 1; last >= 0 && !out[last].Hole {
			out[last].Len += hole - off
		} else {
			out = append(out, Extent{Off: off, Len: hole - off})
		}
		off = hole
	}
	return out, nil
}

func (f *file) close() error { return unix.Close(f.fd) }
