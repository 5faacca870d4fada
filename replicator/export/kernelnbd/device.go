package kernelnbd

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hawser-ha/hawser/replicator/export/hostdev"
)

const (
	sysBlock = "/sys/block"

	// ioTimeout is how long the kernel's request timer runs before it looks whether the socket is alive.
	ioTimeout = "2000" // ms
	// requestMax is the longest request in KiB, as far as the volume allows it; the kernel's default is 128.
	requestMax = 1024
	// deadConnDefault is how long the kernel keeps requests for a server that is gone.
	deadConnDefault = time.Hour
	// handshakeMax bounds the handshake with our own server.
	handshakeMax = 10 * time.Second
	// relinkPause is the time between two attempts to give the kernel a socket.
	relinkPause = 100 * time.Millisecond
	// goneMax bounds the wait for the kernel to let go of a disconnected device.
	goneMax = 5 * time.Second
)

// ErrClosed is what Err says after Detach or Release.
var ErrClosed = errors.New("device detached")

// ErrBusy says that somebody uses the device. The error itself is a *hostdev.BusyError and says who.
var ErrBusy = hostdev.ErrBusy

// ErrUntaken says that the kernel still talks to another server of the same device.
var ErrUntaken = errors.New("the kernel holds on to another connection of this device")

// Config says what is to be attached.
type Config struct {
	ID        string // backend identifier: the same volume must always give the same one, and no other volume
	Export    string // name that Serve knows the volume by
	BlockSize int    // logical block size in bytes: 512, 1024, 2048 or 4096
	MaxIO     int    // longest request in bytes; 0: 1 MiB
	// Serve serves one connection from the handshake on, with simple replies only, and returns when it is over:
	// (*nbd.Server).ServeSimple.
	Serve func(net.Conn)
	// DeadConnTimeout is how long I/O waits for a server after a crash before it fails; whole seconds; 0: an hour.
	DeadConnTimeout time.Duration
	Log             *slog.Logger // nil logs nothing
}

func (cfg *Config) check() error {
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	if cfg.DeadConnTimeout == 0 {
		cfg.DeadConnTimeout = deadConnDefault
	}
	if cfg.MaxIO == 0 {
		cfg.MaxIO = requestMax << 10
	}
	var errs []error
	if cfg.ID == "" || strings.ContainsAny(cfg.ID, "\n\x00") {
		errs = append(errs, fmt.Errorf("backend identifier %q", cfg.ID))
	}
	if b := cfg.BlockSize; b < 512 || b > os.Getpagesize() || b&(b-1) != 0 {
		errs = append(errs, fmt.Errorf("block size %d", b))
	}
	if cfg.DeadConnTimeout < time.Second {
		errs = append(errs, fmt.Errorf("dead connection timeout %s", cfg.DeadConnTimeout))
	}
	if cfg.Serve == nil {
		errs = append(errs, errors.New("no server"))
	}
	return errors.Join(errs...)
}

// Device is one attached nbd device. Safe for concurrent use.
type Device struct {
	cfg   Config
	log   *slog.Logger
	index int

	ctx    context.Context // of the goroutines below; ends with Detach or Release
	cancel context.CancelCauseFunc
	wg     sync.WaitGroup
	wake   chan struct{} // one token: the kernel said LINK_DEAD
	done   chan struct{}
	once   sync.Once
	err    error // set before done is closed

	mu   sync.Mutex // guards what follows
	conn *link
	size int64 // bytes, as the kernel knows it
}

// link is one socket pair: the kernel has one end, Serve the other.
type link struct {
	kernel int // descriptor, -1 once the kernel has it
	probe  int // second descriptor of the server's end, to see whether the kernel took its end; -1 when closed
	conn   net.Conn
	over   chan struct{} // closed when Serve has returned
	negotiated
}

// newLink makes a socket pair, starts serving it and does the handshake.
func (d *Device) newLink(ctx context.Context) (_ *link, err error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("socketpair: %w", err)
	}
	l := &link{kernel: fds[0], probe: -1, over: make(chan struct{})}
	l.conn, err = connOf(fds[1])
	_ = unix.Close(fds[1])
	if err != nil {
		l.closeKernel()
		return nil, err
	}
	d.wg.Go(func() {
		defer close(l.over)
		d.cfg.Serve(l.conn)
		_ = l.conn.Close()
	})
	defer func() {
		if err != nil {
			l.close()
		}
	}()
	ctx, cancel := context.WithTimeout(ctx, handshakeMax)
	defer cancel()
	c, err := connOf(l.kernel)
	if err != nil {
		return nil, err
	}
	defer c.Close()
	stop := context.AfterFunc(ctx, func() { _ = c.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	if l.negotiated, err = negotiate(c, d.cfg.Export); err != nil {
		return nil, err
	}
	if err := unix.SetNonblock(l.kernel, false); err != nil { // the kernel gets it as it would come from nbd-client
		return nil, err
	}
	// Not earlier: the server's end must be seen to close when it refuses us.
	if l.probe, err = dupOf(l.conn); err != nil {
		return nil, err
	}
	return l, nil
}

// dupOf is a second descriptor of a connection's socket.
func dupOf(c net.Conn) (int, error) {
	raw, err := c.(*net.UnixConn).SyscallConn()
	if err != nil {
		return -1, err
	}
	dup := -1
	cerr := raw.Control(func(fd uintptr) { dup, err = unix.FcntlInt(fd, unix.F_DUPFD_CLOEXEC, 0) })
	if err := errors.Join(cerr, err); err != nil {
		return -1, fmt.Errorf("duplicate socket: %w", err)
	}
	return dup, nil
}

// connOf is a connection on a duplicate of fd.
func connOf(fd int) (net.Conn, error) {
	dup, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("duplicate socket: %w", err)
	}
	f := os.NewFile(uintptr(dup), "nbd")
	defer f.Close() // FileConn makes its own duplicate
	return net.FileConn(f)
}

func (l *link) closeKernel() {
	if l.kernel >= 0 {
		_ = unix.Close(l.kernel)
		l.kernel = -1
	}
}

func (l *link) closeProbe() {
	if l.probe >= 0 {
		_ = unix.Close(l.probe)
		l.probe = -1
	}
}

// taken says, after a command with the kernel's end, whether the kernel kept it: if not, closing ours was
// the last and the server's end is hung up. RECONFIGURE reports success in both cases.
func (l *link) taken() bool {
	l.closeKernel()
	defer l.closeProbe()
	p := []unix.PollFd{{Fd: int32(l.probe), Events: unix.POLLRDHUP}}
	for {
		n, err := unix.Poll(p, 0)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		return err == nil && (n == 0 || p[0].Revents&(unix.POLLHUP|unix.POLLRDHUP) == 0)
	}
}

// close ends the link and waits for its server.
func (l *link) close() {
	l.closeKernel()
	l.closeProbe()
	_ = l.conn.Close()
	<-l.over
}

// Attach gives the volume a device. A device that the kernel still holds under the same ID, from a process that died or
// released it, is taken over: it keeps its name, and I/O on it goes on. Otherwise the kernel picks a free one.
// ctx bounds the call; when another process still serves the device, the error at its end is ErrUntaken.
func Attach(ctx context.Context, cfg Config) (*Device, error) {
	if err := cfg.check(); err != nil {
		return nil, fmt.Errorf("attach nbd device: %w", err)
	}
	watch, err := newWatcher()
	if err != nil {
		return nil, fmt.Errorf("attach nbd device: %w", err)
	}
	d := &Device{cfg: cfg, log: cfg.Log, wake: make(chan struct{}, 1), done: make(chan struct{})}
	d.ctx, d.cancel = context.WithCancelCause(context.WithoutCancel(ctx))
	index, found, err := findBackend(cfg.ID)
	var l *link
	switch {
	case err != nil:
	case found:
		d.index = index
		d.wg.Go(func() { watch.run(d) })
		l, err = d.relink(ctx)
	default:
		if l, err = d.connect(ctx); err == nil {
			d.wg.Go(func() { watch.run(d) })
		}
	}
	if err != nil {
		d.cancel(err)
		watch.close()
		d.wg.Wait()
		return nil, fmt.Errorf("attach nbd device for %s: %w", cfg.ID, err)
	}
	d.log = d.log.With("device", d.Path())
	if err := d.tune(); err != nil {
		d.log.Warn("queue of the nbd device not set", "err", err)
	}
	d.mu.Lock()
	d.conn, d.size = l, l.size
	d.mu.Unlock()
	d.wg.Go(func() { d.supervise(l, watch) })
	d.log.Info("device attached", "bytes", l.size, "adopted", found)
	return d, nil
}

// connect makes a new device.
func (d *Device) connect(ctx context.Context) (*link, error) {
	l, err := d.newLink(ctx)
	if err != nil {
		return nil, err
	}
	reply, err := command(ctx, cmdConnect, params{
		index: -1, size: l.size, block: d.cfg.BlockSize, connect: true, flags: l.flags,
		deadConn: uint64(d.cfg.DeadConnTimeout / time.Second), backend: d.cfg.ID, socket: l.kernel,
	})
	if err == nil {
		d.index, err = indexOf(reply)
	}
	if err != nil {
		l.close()
		return nil, fmt.Errorf("connect: %w", err)
	}
	if !l.taken() {
		l.close()
		return nil, fmt.Errorf("connect: %s was disconnected at once", d.Path())
	}
	return l, nil
}

// relink gives the existing device a new socket. The kernel takes it only once it knows the old one to be dead,
// so it is offered until then.
func (d *Device) relink(ctx context.Context) (*link, error) {
	pause := time.NewTicker(relinkPause)
	defer pause.Stop()
	for {
		l, err := d.offer(ctx)
		if err == nil {
			return l, nil
		}
		if backendOf(d.index) != d.cfg.ID {
			return nil, fmt.Errorf("%s is no longer ours: %w", d.Path(), err)
		}
		d.log.Debug("nbd device not reconnected yet", "device", d.Path(), "err", err)
		select {
		case <-pause.C:
		case <-d.wake:
		case <-ctx.Done():
			return nil, errors.Join(context.Cause(ctx), err)
		}
	}
}

func (d *Device) offer(ctx context.Context) (*link, error) {
	l, err := d.newLink(ctx)
	if err != nil {
		return nil, err
	}
	_, err = command(ctx, cmdReconfigure, params{
		index: d.index, size: l.size, block: d.cfg.BlockSize, backend: d.cfg.ID, socket: l.kernel,
	})
	if err != nil {
		l.close()
		return nil, fmt.Errorf("reconfigure %s: %w", d.Path(), err)
	}
	if !l.taken() {
		l.close()
		return nil, ErrUntaken
	}
	return l, nil
}

// supervise reconnects the device whenever its connection ends, until Detach or Release.
func (d *Device) supervise(l *link, watch *watcher) {
	defer watch.close()
	for {
		select {
		case <-l.over:
		case <-d.ctx.Done():
			return // Detach or Release ends the link
		}
		if d.ctx.Err() != nil {
			return
		}
		d.log.Warn("connection to the kernel ended")
		began := time.Now()
		next, err := d.relink(d.ctx)
		if err != nil {
			if d.ctx.Err() == nil {
				d.log.Error("device lost", "err", err)
				d.finish(err)
			}
			return
		}
		l = next
		d.mu.Lock()
		if d.ctx.Err() != nil {
			d.mu.Unlock()
			l.close()
			return
		}
		d.conn, d.size = l, l.size
		d.mu.Unlock()
		d.log.Info("device reconnected", "dur", time.Since(began))
	}
}

func (d *Device) tune() error {
	q := func(name, value string) error {
		return os.WriteFile(filepath.Join(sysBlock, d.name(), "queue", name), []byte(value), 0)
	}
	return errors.Join(q("io_timeout", ioTimeout), q("max_sectors_kb", strconv.Itoa(min(d.cfg.MaxIO>>10, requestMax))))
}

func (d *Device) name() string { return "nbd" + strconv.Itoa(d.index) }

// Path is the block device, /dev/nbdN.
func (d *Device) Path() string { return "/dev/" + d.name() }

// Done is closed when the device has stopped working for good; Err says why.
func (d *Device) Done() <-chan struct{} { return d.done }

// Err is nil until Done is closed.
func (d *Device) Err() error {
	select {
	case <-d.done:
		return d.err
	default:
		return nil
	}
}

func (d *Device) finish(err error) {
	d.once.Do(func() {
		d.err = err
		close(d.done)
	})
}

// Resize tells the kernel the volume's new size in bytes.
func (d *Device) Resize(ctx context.Context, size int64) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.ctx.Err() != nil {
		return ErrClosed
	}
	_, err := command(ctx, cmdReconfigure, params{index: d.index, size: size, block: d.cfg.BlockSize, backend: d.cfg.ID, socket: -1})
	if err != nil {
		return fmt.Errorf("resize %s to %d: %w", d.Path(), size, err)
	}
	if got, err := sysSize(d.name()); err != nil || got != size {
		return errors.Join(fmt.Errorf("resize %s to %d: the kernel has %d", d.Path(), size, got), err)
	}
	d.size = size
	return nil
}

// Detach removes the device from the kernel. Without force it refuses with a *hostdev.BusyError while somebody
// uses it; with force their I/O fails from then on. It returns when ctx ends at the latest.
func (d *Device) Detach(ctx context.Context, force bool) error {
	res := make(chan error, 1)
	go func() { res <- d.detach(ctx, force) }() // neither open nor DISCONNECT can be interrupted
	select {
	case err := <-res:
		return err
	case <-ctx.Done():
		return fmt.Errorf("detach %s: %w", d.Path(), context.Cause(ctx))
	}
}

func (d *Device) detach(ctx context.Context, force bool) error {
	if errors.Is(d.Err(), ErrClosed) {
		return nil
	}
	unlock := func() {}
	if !force {
		err := hostdev.RetryBusy(ctx, func() (err error) {
			unlock, err = claim(d.Path())
			return err
		})
		if err != nil {
			return err
		}
	}
	d.cancel(ErrClosed) // no reconnection from here on
	_, err := command(ctx, cmdDisconnect, params{index: d.index, socket: -1})
	unlock() // an opener, too, keeps the kernel from forgetting the device
	if err != nil {
		err = fmt.Errorf("disconnect %s: %w", d.Path(), err)
	} else {
		err = d.waitGone(ctx, force)
	}
	d.stop() // last: the server may wait for a volume that hangs, the kernel does not any more
	if err == nil {
		d.log.Info("device detached", "force", force)
	}
	return err
}

// Release stops serving and leaves the device to the next process: I/O on it waits in the kernel. It is what
// a planned restart does.
func (d *Device) Release() {
	d.cancel(ErrClosed)
	d.stop()
	d.log.Info("device released")
}

// stop ends every goroutine of the device.
func (d *Device) stop() {
	d.mu.Lock()
	l := d.conn
	d.mu.Unlock()
	l.close()
	d.wg.Wait()
	d.finish(ErrClosed)
}

// claim makes sure that nobody uses a device, and that nobody mounts it, until unlock.
func claim(path string) (unlock func(), err error) {
	holders, err := hostdev.Holders(path)
	if err != nil {
		return nil, err
	}
	if len(holders) > 0 {
		return nil, &hostdev.BusyError{Device: path, Holders: holders}
	}
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_EXCL|unix.O_CLOEXEC, 0)
	if errors.Is(err, unix.EBUSY) {
		return nil, &hostdev.BusyError{Device: path}
	}
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", path, err)
	}
	return func() { _ = unix.Close(fd) }, nil
}

// waitGone waits until the kernel has forgotten the backend, so that the device is free for others. A device
// that is still open is forgotten when its last user closes it; nobody waits for that.
func (d *Device) waitGone(ctx context.Context, force bool) error {
	ctx, cancel := context.WithTimeout(ctx, goneMax)
	defer cancel()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for pidOf(d.index) != 0 {
		select {
		case <-tick.C:
		case <-ctx.Done():
			if force {
				return nil
			}
			return fmt.Errorf("%s is still connected: %w", d.Path(), context.Cause(ctx))
		}
	}
	return nil
}
