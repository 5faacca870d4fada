package faultfs

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"sync"
	"syscall"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"
)

// Name is the file's name under the mount point.
const Name = "disk"

const (
	rootNode, diskNode = 1, 2
	maxWrite           = 1 << 20 // bytes
	lineMax            = 4096    // bytes of a command
)

// Options of Mount.
type Options struct {
	Backing  string // an existing regular file
	Dir      string // mount point, an existing folder
	Socket   string // for commands; "" for none
	Volatile bool   // start with volatile on
}

// FS is a mounted file system.
type FS struct {
	fuse.RawFileSystem
	log    *slog.Logger
	disk   *backing
	faults *faults
	dir    string
	server *fuse.Server
	socket net.Listener
	wg     sync.WaitGroup
}

// Mount mounts the file system; it works until Close.
func Mount(log *slog.Logger, o Options) (*FS, error) {
	f, err := os.OpenFile(o.Backing, os.O_RDWR, 0)
	if err != nil {
		return nil, fmt.Errorf("mount faultfs: %w", err)
	}
	fs := &FS{RawFileSystem: fuse.NewDefaultRawFileSystem(), log: log, dir: o.Dir, faults: newFaults(),
		disk: &backing{f: f, volatile: o.Volatile, cache: map[int64][]byte{}}}
	fs.server, err = fuse.NewServer(fs, o.Dir, &fuse.MountOptions{
		Name: "faultfs", FsName: "faultfs", DirectMountStrict: true, MaxWrite: maxWrite, MaxBackground: 256,
		CongestionThreshold: 256, DisableXAttrs: true, ExtraCapabilities: fuse.CAP_ASYNC_DIO,
	})
	if err != nil {
		return nil, errors.Join(fmt.Errorf("mount faultfs on %s: %w", o.Dir, err), f.Close())
	}
	fs.wg.Go(fs.server.Serve)
	if err := fs.server.WaitMount(); err != nil {
		return nil, errors.Join(fmt.Errorf("mount faultfs on %s: %w", o.Dir, err), fs.Close())
	}
	if o.Socket != "" {
		if fs.socket, err = net.Listen("unix", o.Socket); err != nil {
			return nil, errors.Join(fmt.Errorf("mount faultfs: %w", err), fs.Close())
		}
		fs.wg.Go(fs.listen)
	}
	return fs, nil
}

// Path is where the file is.
func (fs *FS) Path() string { return filepath.Join(fs.dir, Name) }

// Close releases what stalls, unmounts (also when the file is still open elsewhere) and closes the
// backing file. Unflushed data of a volatile cache are lost.
func (fs *FS) Close() error {
	var errs []error
	if fs.socket != nil {
		errs = append(errs, fs.socket.Close())
	}
	fs.faults.free(true)
	if err := fs.server.Unmount(); err != nil {
		// Somebody has the file open: it disappears from the tree, and for them when they close it.
		errs = append(errs, unix.Unmount(fs.dir, unix.MNT_DETACH|unix.MNT_FORCE))
	}
	fs.wg.Wait()
	return errors.Join(append(errs, fs.disk.f.Close())...)
}

func (fs *FS) listen() {
	for {
		c, err := fs.socket.Accept()
		if err != nil {
			if !errors.Is(err, net.ErrClosed) {
				fs.log.Error("faultfs takes no more commands", "err", err)
			}
			return
		}
		go fs.serve(c) // ends when the client hangs up
	}
}

func (fs *FS) serve(c net.Conn) {
	defer c.Close()
	in := bufio.NewScanner(c)
	in.Buffer(nil, lineMax)
	for in.Scan() {
		out, err := fs.Command(in.Text())
		answer := "ok"
		if err != nil {
			answer = "error: " + err.Error()
		} else if out != "" {
			answer += " " + out
		}
		if _, err := io.WriteString(c, answer+"\n"); err != nil {
			return
		}
	}
}

func status(err error) fuse.Status {
	var errno syscall.Errno
	switch {
	case err == nil:
		return fuse.OK
	case errors.As(err, &errno):
		return fuse.Status(errno)
	}
	return fuse.EIO
}

func (fs *FS) attr(node uint64, out *fuse.Attr) fuse.Status {
	out.Ino, out.Nlink = node, 1
	if node == rootNode {
		out.Mode, out.Nlink = syscall.S_IFDIR|0o755, 2
		return fuse.OK
	}
	fs.disk.mu.RLock()
	defer fs.disk.mu.RUnlock()
	size, err := fs.disk.size()
	if err != nil {
		return status(err)
	}
	out.Mode, out.Size, out.Blksize, out.Blocks = syscall.S_IFREG|0o600, uint64(size), 4096, uint64(size+511)/512
	return fuse.OK
}

// Lookup finds the disk, the only file.
func (fs *FS) Lookup(_ <-chan struct{}, h *fuse.InHeader, name string, out *fuse.EntryOut) fuse.Status {
	if h.NodeId != rootNode || name != Name {
		return fuse.ENOENT
	}
	out.NodeId = diskNode
	return fs.attr(diskNode, &out.Attr)
}

// GetAttr gives the disk's size as it is now.
func (fs *FS) GetAttr(_ <-chan struct{}, in *fuse.GetAttrIn, out *fuse.AttrOut) fuse.Status {
	return fs.attr(in.NodeId, &out.Attr)
}

// SetAttr changes the disk's size, and ignores all else.
func (fs *FS) SetAttr(_ <-chan struct{}, in *fuse.SetAttrIn, out *fuse.AttrOut) fuse.Status {
	if size, ok := in.GetSize(); ok && in.NodeId == diskNode {
		if err := fs.disk.truncate(int64(size)); err != nil {
			return status(err)
		}
	}
	return fs.attr(in.NodeId, &out.Attr)
}

// Open has every read and write come here, past the page cache and side by side.
func (fs *FS) Open(_ <-chan struct{}, _ *fuse.OpenIn, out *fuse.OpenOut) fuse.Status {
	out.OpenFlags = fuse.FOPEN_DIRECT_IO | fuse.FOPEN_PARALLEL_DIRECT_WRITES
	return fuse.OK
}

func (fs *FS) Read(_ <-chan struct{}, in *fuse.ReadIn, buf []byte) (fuse.ReadResult, fuse.Status) {
	if errno := fs.faults.meet(opRead, int64(in.Offset), int64(in.Size)); errno != 0 {
		return nil, fuse.Status(errno)
	}
	n, err := fs.disk.read(buf[:min(len(buf), int(in.Size))], int64(in.Offset))
	if err != nil {
		return nil, status(err)
	}
	return fuse.ReadResultData(buf[:n]), fuse.OK
}

func (fs *FS) Write(_ <-chan struct{}, in *fuse.WriteIn, data []byte) (uint32, fuse.Status) {
	if errno := fs.faults.meet(opWrite, int64(in.Offset), int64(len(data))); errno != 0 {
		return 0, fuse.Status(errno)
	}
	if err := fs.disk.put(data, int64(in.Offset)); err != nil {
		return 0, status(err)
	}
	if in.Flags&syscall.O_DSYNC != 0 {
		if st := fs.sync(); st != fuse.OK {
			return 0, st
		}
	}
	return uint32(len(data)), fuse.OK
}

func (fs *FS) sync() fuse.Status {
	if errno := fs.faults.meet(opFlush, 0, 0); errno != 0 {
		return fuse.Status(errno)
	}
	return status(fs.disk.flush())
}

// Fsync flushes the disk, unless a fault meets it.
func (fs *FS) Fsync(_ <-chan struct{}, _ *fuse.FsyncIn) fuse.Status { return fs.sync() }

// Flush is close(2): a disk does not hear of it.
func (fs *FS) Flush(<-chan struct{}, *fuse.FlushIn) fuse.Status { return fuse.OK }

// Fallocate allocates, punches or zeroes a range; it meets the faults of writes.
func (fs *FS) Fallocate(_ <-chan struct{}, in *fuse.FallocateIn) fuse.Status {
	if errno := fs.faults.meet(opWrite, int64(in.Offset), int64(in.Length)); errno != 0 {
		return fuse.Status(errno)
	}
	return status(fs.disk.allocate(in.Mode, int64(in.Offset), int64(in.Length)))
}

// StatFs answers for the file system below.
func (fs *FS) StatFs(_ <-chan struct{}, _ *fuse.InHeader, out *fuse.StatfsOut) fuse.Status {
	var st syscall.Statfs_t
	if err := syscall.Fstatfs(int(fs.disk.f.Fd()), &st); err != nil {
		return status(err)
	}
	out.FromStatfsT(&st)
	return fuse.OK
}

// OpenDir always works.
func (fs *FS) OpenDir(<-chan struct{}, *fuse.OpenIn, *fuse.OpenOut) fuse.Status { return fuse.OK }

// ReadDir lists the disk.
func (fs *FS) ReadDir(_ <-chan struct{}, in *fuse.ReadIn, out *fuse.DirEntryList) fuse.Status {
	if in.Offset == 0 {
		out.AddDirEntry(fuse.DirEntry{Name: Name, Mode: syscall.S_IFREG, Ino: diskNode})
	}
	return fuse.OK
}
