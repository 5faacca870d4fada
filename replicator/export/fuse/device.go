package fuse

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"runtime/debug"
	"strings"
	"sync"

	gofuse "github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"

	"github.com/hawser-ha/hawser/replicator/export"
	"github.com/hawser-ha/hawser/replicator/export/hostdev"
	"github.com/hawser-ha/hawser/replicator/iobuf"
)

const (
	// requestMax is the longest READ or WRITE in bytes; kernels allow no more without a sysctl.
	requestMax = 1 << 20
	// backgroundMax is how many asynchronous requests the kernel sends before it waits. go-fuse's 12 would
	// starve a device with a queue of 128.
	backgroundMax = 256
	// inflightBytesMax bounds go-fuse's own input buffers (1 MiB each, held by every write under way).
	inflightBytesMax = 96 << 20
	// poolBytesDefault bounds the payload of a device that is not given a pool.
	poolBytesDefault = 64 << 20
	// fsType is what /proc/self/mountinfo shows as "fuse.hawser".
	fsType = "hawser"
)

// Config says where a device is to appear.
type Config struct {
	MountPoint string       // folder for the FUSE mount, made when missing; absolute
	FileName   string       // name of the file in it; "data" when empty
	ID         string       // shown as the mount's source, for people; MountPoint when empty
	BlockSize  int          // logical block size in bytes, 512 to 4096; 0 takes the volume's smallest
	Pool       *iobuf.Pool  // payload buffers; nil makes one of 64 MiB
	Log        *slog.Logger // nil logs nothing
}

// ErrClosed is what Err says after Detach.
var ErrClosed = errors.New("device detached")

// ErrBusy says that somebody uses the device. The error itself is a *hostdev.BusyError and says who.
var ErrBusy = hostdev.ErrBusy

func busy(device string, holders []hostdev.Holder) error {
	return &hostdev.BusyError{Device: device, Holders: holders}
}

// Device is one attached loop device with its mount. Safe for concurrent use.
type Device struct {
	log     *slog.Logger
	fs      *filesystem
	server  *gofuse.Server
	loop    loopDevice
	mount   string
	file    string
	connID  uint32        // of the FUSE connection, in /sys/fs/fuse/connections
	served  chan struct{} // closed when go-fuse has let go of /dev/fuse
	resized chan struct{} // one token: the volume's size changed
	stop    chan struct{} // ends follow
	done    chan struct{}

	once     sync.Once
	onceErr  error     // set before done is closed
	deadOnce sync.Once // closes fs.dead

	mu                           sync.Mutex // held through Detach and Resize
	loopGone, unmounted, stopped bool
	followed                     chan struct{} // closed when follow has ended
	ownPool                      *iobuf.Pool
}

// Attach mounts the FUSE file system, opens a session on v and puts a free loop device over the file. The
// volume must be ready to serve: the kernel reads the device before Attach returns. Needs root, /dev/fuse and
// /dev/loop-control, and Linux 5.8.
func Attach(v export.Volume, cfg Config) (_ *Device, err error) {
	if err := cfg.check(v); err != nil {
		return nil, err
	}
	if m, err := hostdev.MountsAt(cfg.MountPoint); err != nil {
		return nil, err
	} else if len(m) > 0 {
		return nil, fmt.Errorf("attach %s: something is mounted there already (%s); Cleanup removes what a crash left",
			cfg.MountPoint, m[0].FSType)
	}
	if err := os.MkdirAll(cfg.MountPoint, 0o700); err != nil {
		return nil, err
	}
	d := &Device{
		log:   cfg.Log.With("mount", cfg.MountPoint),
		mount: cfg.MountPoint, file: filepath.Join(cfg.MountPoint, cfg.FileName),
		served: make(chan struct{}), resized: make(chan struct{}, 1),
		stop: make(chan struct{}), done: make(chan struct{}), followed: make(chan struct{}),
	}
	if cfg.Pool == nil {
		d.ownPool = iobuf.NewPool(poolBytesDefault)
		cfg.Pool = d.ownPool
	}
	d.fs = newFilesystem(cfg.FileName, cfg.Pool, v.Limits(), v.Size())
	d.fs.session, err = v.Open(d.demoted, d.sizeChanged)
	if err != nil {
		d.closePool()
		return nil, err
	}
	defer func() {
		if err != nil {
			d.fs.session.Close()
			d.closePool()
		}
	}()
	if err := d.serve(cfg, v.Limits()); err != nil {
		return nil, err
	}
	if d.loop, err = attachLoop(d.file, cfg.BlockSize); err != nil {
		d.teardown()
		return nil, err
	}
	if err := d.loop.tune(v.Limits()); err != nil {
		d.log.Warn("queue of the loop device not set", "device", d.loop.path(), "err", err)
	}
	go d.follow(v)
	d.log.Info("device attached", "device", d.Path(), "bytes", v.Size())
	return d, nil
}

func (cfg *Config) check(v export.Volume) error {
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	if cfg.FileName == "" {
		cfg.FileName = "data"
	}
	if cfg.ID == "" {
		cfg.ID = cfg.MountPoint
	}
	if cfg.BlockSize == 0 {
		cfg.BlockSize = v.Limits().MinBlock
	}
	cfg.MountPoint = filepath.Clean(cfg.MountPoint)
	var errs []error
	if !filepath.IsAbs(cfg.MountPoint) {
		errs = append(errs, fmt.Errorf("mount point %q is not absolute", cfg.MountPoint))
	}
	if strings.ContainsRune(cfg.FileName, '/') {
		errs = append(errs, fmt.Errorf("file name %q has a slash", cfg.FileName))
	}
	if b := cfg.BlockSize; b < v.Limits().MinBlock || b > os.Getpagesize() || b&(b-1) != 0 {
		errs = append(errs, fmt.Errorf("block size %d is not a power of two from %d to %d", b, v.Limits().MinBlock, os.Getpagesize()))
	}
	return errors.Join(errs...)
}

// serve mounts and starts the loop that answers the kernel.
func (d *Device) serve(cfg Config, limits export.Limits) error {
	server, err := gofuse.NewServer(d.fs, cfg.MountPoint, &gofuse.MountOptions{
		Name: fsType, FsName: cfg.ID,
		MaxWrite:                min(requestMax, max(limits.MaxIO, os.Getpagesize())),
		MaxBackground:           backgroundMax,
		CongestionThreshold:     backgroundMax,
		MaxInflightRequestBytes: inflightBytesMax,
		ExtraCapabilities:       gofuse.CAP_ASYNC_DIO,
		DisableXAttrs:           true,
		DisableReadDirPlus:      true,
		DisableSplice:           true,                                                // replies come from memory
		DirectMountStrict:       true,                                                // no fusermount
		Logger:                  slog.NewLogLogger(d.log.Handler(), slog.LevelDebug), // one line for each reply nobody wants any more
		PanicHandler: func(p any) gofuse.Status {
			d.log.Error("panic in a request", "err", p, "stack", string(debug.Stack()))
			return gofuse.EIO
		},
	})
	if err != nil {
		return fmt.Errorf("mount %s: %w", cfg.MountPoint, err)
	}
	d.server = server
	closeOnExec("/dev/fuse")
	go func() {
		server.Serve()
		close(d.served)
		d.finish(errors.New("FUSE connection ended"))
	}()
	m, err := hostdev.MountsAt(cfg.MountPoint)
	if err == nil && len(m) == 0 {
		err = fmt.Errorf("mount %s: not in the list of mounts", cfg.MountPoint)
	}
	if err != nil {
		d.teardown()
		return err
	}
	d.connID = m[len(m)-1].Minor
	return nil
}

// closeOnExec marks all descriptors of a path. go-fuse opens /dev/fuse inheritable, and a child that held
// it would keep the mount answering nobody after our death.
func closeOnExec(path string) {
	fds, _ := os.ReadDir("/proc/self/fd")
	for _, e := range fds {
		if t, err := os.Readlink("/proc/self/fd/" + e.Name()); err == nil && t == path {
			var fd int
			if _, err := fmt.Sscan(e.Name(), &fd); err == nil {
				unix.CloseOnExec(fd)
			}
		}
	}
}

// Path is the block device, /dev/loopN.
func (d *Device) Path() string { return d.loop.path() }

// File is the file behind it; opening it saves the loop hop. A Detach without force waits for its openers.
func (d *Device) File() string { return d.file }

// Done is closed when the device has stopped serving: its volume was demoted, somebody unmounted or aborted
// it, or Detach. Err says which. It still has to be detached.
func (d *Device) Done() <-chan struct{} { return d.done }

// Err is nil until Done is closed.
func (d *Device) Err() error {
	select {
	case <-d.done:
		return d.onceErr
	default:
		return nil
	}
}

func (d *Device) finish(err error) {
	d.once.Do(func() {
		d.onceErr = err
		close(d.done)
	})
}

func (d *Device) demoted(reason error) {
	d.log.Warn("session ended by the volume", "why", reason)
	d.finish(reason)
}

func (d *Device) sizeChanged(int64) {
	select {
	case d.resized <- struct{}{}:
	default: // follow will look at the newest size anyway
	}
}

// follow carries size changes of the volume over to the loop device until the device goes.
func (d *Device) follow(v export.Volume) {
	defer close(d.followed)
	for {
		select {
		case <-d.stop:
			return
		case <-d.resized:
			size := v.Size()
			switch err := d.Resize(size); {
			case errors.Is(err, ErrClosed):
				return
			case err != nil:
				d.log.Error("device not resized", "device", d.Path(), "bytes", size, "err", err)
			default:
				d.log.Info("device resized", "device", d.Path(), "bytes", size)
			}
		}
	}
}

// Resize makes the file and the loop device size bytes long. A change that the volume announces by itself is
// followed without it; it is harmless to call it again.
func (d *Device) Resize(size int64) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.loopGone {
		return ErrClosed
	}
	d.fs.size.Store(size)
	// The kernel believes the attributes for an hour: drop them, and ask, so that the inode has the new size
	// before the loop device looks at it.
	if st := d.server.InodeNotify(fileNode, -1, 0); !st.Ok() && st != gofuse.ENOENT {
		return fmt.Errorf("resize %s: drop attributes: %w", d.file, unix.Errno(st))
	}
	var s unix.Stat_t
	if err := unix.Stat(d.file, &s); err != nil {
		return fmt.Errorf("resize %s: %w", d.file, err)
	}
	return d.loop.setCapacity()
}

// Detach removes the loop device and the mount, and ends the session. Without force it refuses with a
// *hostdev.BusyError (errors.Is ErrBusy) while somebody uses them. With force it first aborts the FUSE connection: every
// request fails from then on, also those under way, a file system on the device sees I/O errors, and a loop
// device that is still mounted disappears with its last user. Detach returns when ctx ends at the latest; it
// may be called again, also with force after a call without.
func (d *Device) Detach(ctx context.Context, force bool) error {
	if force {
		// Before the lock: another Detach or Resize may hold it, waiting for the very requests that hang.
		if err := abortConnection(d.connID, d.mount); err != nil {
			d.log.Warn("FUSE connection not aborted", "err", err)
		}
		d.abandon()
	}
	res := make(chan error, 1)
	go func() { res <- d.detach(ctx, force) }() // system calls on a device cannot be interrupted
	select {
	case err := <-res:
		return err
	case <-ctx.Done():
		return fmt.Errorf("detach %s: %w", d.Path(), context.Cause(ctx))
	}
}

// abandon stops every wait for the volume.
func (d *Device) abandon() {
	d.finish(ErrClosed)
	d.deadOnce.Do(func() { close(d.fs.dead) })
}

func (d *Device) detach(ctx context.Context, force bool) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.stopped {
		return nil
	}
	if !d.loopGone {
		if err := d.detachLoop(ctx, force); err != nil {
			return err
		}
		d.loopGone = true
	}
	if !d.unmounted {
		d.finish(ErrClosed) // or Err would call our own unmount an accident
		if err := d.unmount(ctx, force); err != nil {
			return err
		}
		d.unmounted = true
	}
	select {
	case <-d.served:
	case <-ctx.Done():
		return fmt.Errorf("detach %s: requests still under way: %w", d.file, context.Cause(ctx))
	}
	d.stopped = true
	close(d.stop)
	d.fs.session.Close()
	d.closePool()
	d.log.Info("device detached", "device", d.Path(), "force", force)
	return nil
}

// detachLoop lets go of the loop device.
func (d *Device) detachLoop(ctx context.Context, force bool) error {
	if force {
		if holders, err := hostdev.Holders(d.Path(), d.file); err == nil && len(holders) > 0 {
			d.log.Warn("device detached under its users", "device", d.Path(), "why", busy(d.Path(), holders))
		}
		return d.loop.clear(false)
	}
	return hostdev.RetryBusy(ctx, func() error {
		holders, err := hostdev.Holders(d.Path(), d.file)
		if err != nil {
			return err
		}
		if len(holders) > 0 {
			return busy(d.Path(), holders)
		}
		switch err := d.loop.clear(true); {
		case errors.Is(err, unix.EBUSY):
			return busy(d.Path(), []hostdev.Holder{{Kind: "mount", Name: "another mount namespace"}})
		case err != nil:
			return err
		case d.loop.attached():
			return busy(d.Path(), []hostdev.Holder{{Kind: "open", Name: "unknown process"}})
		}
		return nil
	})
}

// unmount removes the mount. After the loop device let go, its RELEASE may take a moment to arrive.
func (d *Device) unmount(ctx context.Context, force bool) error {
	if force {
		return unmountLazily(d.mount)
	}
	return hostdev.RetryBusy(ctx, func() error {
		err := unix.Unmount(d.mount, unix.UMOUNT_NOFOLLOW)
		switch {
		case errors.Is(err, unix.EBUSY):
			holders, _ := hostdev.Openers(d.mount)
			return busy(d.mount, holders)
		case errors.Is(err, unix.EINVAL): // no longer a mount point
			return nil
		case err != nil:
			return fmt.Errorf("unmount %s: %w", d.mount, err)
		}
		return nil
	})
}

// teardown undoes a half-made Attach.
func (d *Device) teardown() {
	d.abandon()
	if d.connID != 0 {
		if err := abortConnection(d.connID, d.mount); err != nil {
			d.log.Warn("FUSE connection not aborted", "err", err)
		}
	}
	if err := unmountLazily(d.mount); err != nil {
		d.log.Warn("mount left behind", "err", err)
		return
	}
	<-d.served // no user is left, and nothing waits for the volume any more
}

func (d *Device) closePool() {
	if d.ownPool != nil {
		d.ownPool.Close()
	}
}
