package replicator

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hawser-ha/hawser/replicator/control"
	"github.com/hawser-ha/hawser/replicator/export/fuse"
	"github.com/hawser-ha/hawser/replicator/export/hostdev"
	"github.com/hawser-ha/hawser/replicator/export/kernelnbd"
	"github.com/hawser-ha/hawser/replicator/export/nbd"
	"github.com/hawser-ha/hawser/replicator/wire"
)

// deviceTimeout bounds how long a device is attached or detached without anybody asking for it.
const deviceTimeout = 5 * time.Second

// blockDevice is a volume as a block device of this host.
type blockDevice interface {
	Path() string
	Detach(ctx context.Context, force bool) error
	Done() <-chan struct{}
	Err() error
}

// device is the block device of a volume, while there is one.
type device struct {
	mu    sync.Mutex // guards the fields below, never held over I/O
	dev   blockDevice
	kind  string
	links []string // that point to it
	err   error    // why there is none

	size atomic.Int64 // bytes, as a resizable device knows it
	held atomic.Bool  // somebody has claimed the device: a mount, a stacked device, swap
}

// look finds out whether the device is claimed.
func (d *device) look() {
	dev, _ := d.get()
	if dev == nil {
		d.held.Store(false)
		return
	}
	fd, err := unix.Open(dev.Path(), unix.O_RDONLY|unix.O_EXCL|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	d.held.Store(errors.Is(err, unix.EBUSY))
	if err == nil {
		_ = unix.Close(fd)
	}
}

func (d *device) get() (blockDevice, string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.dev, d.kind
}

// fronts are the front ends of a resource.
type fronts struct {
	kick   chan struct{} // one token: the role changed
	server *nbd.Server
}

// startFronts makes the NBD server, which also serves the kernel's nbd devices, and starts to follow the role.
func (r *Resource) startFronts() error {
	def := r.Definition()
	cfg := nbd.Config{Unix: def.NBD.Unix, Listen: def.NBD.Listen, Memory: r.opts.Memory, Log: r.log}
	if def.NBD.TLSCert != "" {
		t, err := serverTLS(&def.NBD)
		if err != nil {
			return control.Errorf(control.BadDefinition, "nbd: %w", err)
		}
		cfg.TLS = t
	}
	if cfg.Unix != "" {
		if err := os.MkdirAll(filepath.Dir(cfg.Unix), 0o755); err != nil {
			return control.Errorf(control.Failed, "nbd: %w", err)
		}
	}
	s := nbd.New(cfg)
	for _, v := range r.vols {
		if err := s.Add(v.name(), "replicated volume", v); err != nil {
			return control.Errorf(control.BadDefinition, "nbd: %w", err)
		}
	}
	if err := s.Start(); err != nil {
		return control.Errorf(control.Failed, "nbd: %w", err)
	}
	r.mu.Lock()
	r.fronts.server = s
	r.mu.Unlock()
	r.wg.Go(r.frontLoop)
	return nil
}

// serverTLS asks every client for a certificate of the CA.
func serverTLS(d *control.NBDDef) (*tls.Config, error) {
	cert, err := tls.LoadX509KeyPair(d.TLSCert, d.TLSKey)
	if err != nil {
		return nil, err
	}
	pem, err := os.ReadFile(d.TLSCA)
	if err != nil {
		return nil, err
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(pem) {
		return nil, fmt.Errorf("%s holds no certificate", d.TLSCA)
	}
	return &tls.Config{Certificates: []tls.Certificate{cert}, ClientCAs: pool, ClientAuth: tls.RequireAndVerifyClientCert, MinVersion: tls.VersionTLS12}, nil
}

// frontLoop makes the devices follow a role that changed without a command, and those that broke.
func (r *Resource) frontLoop() {
	for {
		select {
		case <-r.ctx.Done():
			return
		case <-r.fronts.kick:
		}
		release, err := r.exclusive(r.ctx)
		if err != nil {
			return
		}
		ctx, cancel := context.WithTimeout(r.ctx, deviceTimeout)
		if r.role() == wire.Primary {
			r.attachDevices(ctx)
			r.resizeDevices(ctx)
		} else if err := r.detachDevices(ctx, true); err != nil {
			r.log.Error("device not removed", "err", err)
		}
		cancel()
		release()
	}
}

// attachDevices makes the devices that are missing. The token is held.
func (r *Resource) attachDevices(ctx context.Context) {
	select {
	case <-r.ready:
	case <-ctx.Done():
		return
	case <-r.ctx.Done():
		return
	}
	for _, v := range r.vols {
		d := r.volumeDef(v.number)
		v.device.mu.Lock()
		have := v.device.dev != nil
		v.device.mu.Unlock()
		if have || d.Device == "none" || d.Device == "" || v.Size() == 0 {
			continue
		}
		dev, kind, err := v.makeDevice(ctx, d)
		if err == nil && dev == nil {
			continue
		}
		if err != nil {
			v.log.Error("no block device", "err", err)
			v.device.mu.Lock()
			v.device.err = err
			v.device.mu.Unlock()
			r.hub.Publish(control.Event{Kind: control.EventNote, Resource: r.name, Volume: v.number, Name: "no-device", Text: err.Error()})
			continue
		}
		v.device.size.Store(v.Size())
		links := v.link(dev.Path(), d)
		v.device.mu.Lock()
		v.device.dev, v.device.kind, v.device.links, v.device.err = dev, kind, links, nil
		v.device.mu.Unlock()
		v.log.Info("block device attached", "device", dev.Path(), "kind", kind)
		r.hub.Publish(control.Event{Kind: control.EventState, Resource: r.name, Volume: v.number, Field: control.FieldDevice, To: dev.Path()})
		r.wg.Go(func() { v.watch(dev) })
	}
}

// resizable is a device that does not follow the size of its volume by itself.
type resizable interface {
	Resize(ctx context.Context, size int64) error
}

// resizeDevices tells the devices the sizes of their volumes. The token is held.
func (r *Resource) resizeDevices(ctx context.Context) {
	for _, v := range r.vols {
		dev, _ := v.device.get()
		d, ok := dev.(resizable)
		size := v.Size()
		if !ok || v.device.size.Load() == size {
			continue
		}
		if err := d.Resize(ctx, size); err != nil {
			v.log.Error("device not resized", "device", dev.Path(), "err", err)
			continue
		}
		v.device.size.Store(size)
	}
}

// makeDevice makes the block device that the definition wants, or the best that is possible here; nil where none is.
func (v *volume) makeDevice(ctx context.Context, d *control.VolumeDef) (blockDevice, string, error) {
	r := v.r
	limits := v.Limits()
	kind := d.Device
	if kind == "auto" {
		switch {
		case kernelnbd.Available():
			kind = "nbd"
		case os.Geteuid() == 0 && exists("/dev/fuse") && exists("/dev/loop-control"):
			kind = "fuse"
		default:
			return nil, "", nil
		}
	}
	switch kind {
	case "nbd":
		dev, err := kernelnbd.Attach(ctx, kernelnbd.Config{
			ID: "hawser/" + v.name(), Export: v.name(), BlockSize: max(limits.MinBlock, 512), Serve: r.fronts.server.ServeSimple, Log: v.log,
		})
		if err != nil {
			return nil, "", err
		}
		return dev, "kernel-nbd", nil
	case "fuse":
		point := filepath.Join(r.opts.RunDir, "fuse", r.name, strconv.Itoa(v.number))
		if err := fuse.Cleanup(point); err != nil && !errors.Is(err, os.ErrNotExist) {
			v.log.Warn("rest of an older mount", "mount", point, "err", err)
		}
		dev, err := fuse.Attach(v, fuse.Config{MountPoint: point, ID: v.name(), BlockSize: limits.MinBlock, Pool: r.front, Log: v.log})
		if err != nil {
			return nil, "", err
		}
		return dev, "loop", nil
	}
	return nil, "", control.Errorf(control.BadDefinition, "device %q is not auto, nbd, fuse or none", d.Device)
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// link makes the names of the device; what is in the way and no link is left alone.
func (v *volume) link(path string, d *control.VolumeDef) (made []string) {
	names := []string{filepath.Join(v.r.opts.DeviceDir, v.r.name, strconv.Itoa(v.number))}
	if d.DevLink != "" {
		names = append(names, d.DevLink)
	}
	for _, name := range names {
		if err := symlink(path, name); err != nil {
			v.log.Error("device link not made", "link", name, "err", err)
			continue
		}
		made = append(made, name)
	}
	return made
}

// symlink makes name point to path, in place of a link that is there.
func symlink(path, name string) error {
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		return err
	}
	if st, err := os.Lstat(name); err == nil && st.Mode()&os.ModeSymlink == 0 {
		return fmt.Errorf("%s is there and no link", name)
	}
	tmp := name + ".new"
	_ = os.Remove(tmp)
	if err := os.Symlink(path, tmp); err != nil {
		return err
	}
	return os.Rename(tmp, name)
}

// watch waits for a device that breaks.
func (v *volume) watch(dev blockDevice) {
	select {
	case <-v.r.ctx.Done():
		return
	case <-dev.Done():
	}
	v.device.mu.Lock()
	broke := v.device.dev == dev
	v.device.mu.Unlock()
	if !broke {
		return
	}
	v.log.Error("block device broke", "device", dev.Path(), "err", dev.Err())
	ctx, cancel := context.WithTimeout(v.r.ctx, deviceTimeout)
	defer cancel()
	release, err := v.r.exclusive(ctx)
	if err != nil {
		return
	}
	defer release()
	if err := v.detachDevice(ctx, true); err != nil {
		v.log.Error("broken device not removed", "err", err)
	}
	v.device.mu.Lock()
	v.device.err = fmt.Errorf("%s broke: %w", dev.Path(), dev.Err())
	v.device.mu.Unlock()
}

// detachDevices removes the devices; without force it stops at one that is in use. The token is held.
func (r *Resource) detachDevices(ctx context.Context, force bool) error {
	var errs []error
	for _, v := range r.vols {
		if err := v.detachDevice(ctx, force); err != nil {
			if !force {
				return err
			}
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

func (v *volume) detachDevice(ctx context.Context, force bool) error {
	dev, _ := v.device.get()
	if dev == nil {
		return nil
	}
	path := dev.Path()
	if err := dev.Detach(ctx, force); err != nil {
		if errors.Is(err, hostdev.ErrBusy) {
			return control.Errorf(control.InUse, "%w", err).On(v.r.name, v.number, "").
				WithRule("a Primary whose device is in use stays Primary").WithHint("stop what uses it, or say --force")
		}
		if !force {
			return err
		}
		v.log.Error("device not detached", "device", path, "err", err)
	}
	v.device.mu.Lock()
	links := v.device.links
	v.device.dev, v.device.kind, v.device.links = nil, "", nil
	v.device.mu.Unlock()
	for _, l := range links {
		if to, err := os.Readlink(l); err == nil && to == path {
			_ = os.Remove(l)
			_ = os.Remove(filepath.Dir(l)) // if it was the last one
		}
	}
	v.r.hub.Publish(control.Event{Kind: control.EventState, Resource: v.r.name, Volume: v.number, Field: control.FieldDevice, From: path})
	return nil
}

// stopFronts removes devices and the NBD server.
func (r *Resource) stopFronts(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, deviceTimeout)
	defer cancel()
	err := r.detachDevices(ctx, true)
	r.mu.Lock()
	s := r.fronts.server
	r.mu.Unlock()
	if s == nil {
		return err
	}
	return errors.Join(err, s.Close(ctx))
}

// NBDAddr is where the NBD server listens on TCP; nil: it does not.
func (r *Resource) NBDAddr() net.Addr {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.fronts.server == nil {
		return nil
	}
	return r.fronts.server.Addr()
}
