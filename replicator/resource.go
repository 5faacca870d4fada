package replicator

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hawser-ha/hawser/replicator/bitmap"
	"github.com/hawser-ha/hawser/replicator/control"
	"github.com/hawser-ha/hawser/replicator/core"
	"github.com/hawser-ha/hawser/replicator/disk"
	"github.com/hawser-ha/hawser/replicator/iobuf"
	"github.com/hawser-ha/hawser/replicator/wire"
)

const (
	// closeTimeout bounds Close: what hangs in the kernel longer is left behind.
	closeTimeout  = 10 * time.Second
	demoteTimeout = 5 * time.Second // before a forced down goes on without
	// frontMemory bounds the payloads of front ends.
	frontMemory = 256 << 20 // bytes, NBD
	fuseMemory  = 64 << 20  // bytes
	// linkMemoryMin is the least that received data may occupy, whatever max-buffers says: some requests of 1 MiB.
	linkMemoryMin = 32 << 20 // bytes
	// spareMemory never limits: see readBuffer.
	spareMemory = 1 << 40 // bytes
)

// Options are what a Resource needs beside its definition. The zero value is good.
type Options struct {
	DeviceDir string        // where the links RES/VOL to the devices are made; "" is /dev/hawser
	StateDir  string        // where the sizes of the disks are remembered over restarts; "": nowhere
	RunDir    string        // where FUSE mounts go; "" is /run/hawser/replicator
	Memory    int64         // bytes of payload of NBD clients; 0 is 256 MiB. FUSE has 64 MiB more
	TLS       *tls.Config   // for the links to the peers; nil: plain TCP
	Rand      func() uint64 // new generation identifiers; nil: the kernel's random numbers

	// OpenDisk opens disks and meta disks; nil is disk.Open. Tests put faults in between.
	OpenDisk func(log *slog.Logger, o disk.Options) (disk.Store, error)
}

// Resource is one resource on this node. All methods are safe for concurrent use.
type Resource struct {
	log     *slog.Logger
	name    string
	opts    Options
	def     atomic.Pointer[control.Definition]
	hub     control.Hub
	started time.Time

	ctx     context.Context // of everything that runs until Close
	cancel  context.CancelCauseFunc
	wg      sync.WaitGroup // every goroutine but those of front ends and links, which have their own owners
	linksUp sync.WaitGroup // links that are not down yet

	front *iobuf.Pool // payloads of FUSE; the NBD server has its own pool
	links *iobuf.Pool // received data: this is the backpressure on peers
	spare *iobuf.Pool // reads for peers
	turns sync.Pool

	vols      []*volume
	peers     []*peer
	timerKick chan struct{}
	fronts    fronts
	records   *records      // nil: not coordinated
	admin     chan struct{} // one token: commands that change disks, role or devices run one at a time

	mu       sync.Mutex // guards the Machine and the fields below
	m        *core.Machine
	freeIO   []*ioreq
	timerAt  core.Now // when the timer goroutine wakes up; 0: not
	closing  bool
	handlers map[uint64]waited // handlers that run, by the id of their event
	nextID   uint64
	status   statusMemory

	closeOnce sync.Once
	closeErr  error
	ready     chan struct{} // closed when the front ends are there
	done      chan struct{} // closed when Close is through
}

// New makes a resource of def: nothing is opened, listened to or connected yet. Run starts it.
func New(log *slog.Logger, def control.Definition, opts Options) (*Resource, error) {
	if opts.DeviceDir == "" {
		opts.DeviceDir = "/dev/hawser"
	}
	if opts.RunDir == "" {
		opts.RunDir = "/run/hawser/replicator"
	}
	if opts.Memory <= 0 {
		opts.Memory = frontMemory
	}
	if opts.OpenDisk == nil {
		opts.OpenDisk = disk.Open
	}
	if opts.Rand == nil {
		opts.Rand = randomUUID
	}
	if err := checkDefinition(&def); err != nil {
		return nil, err
	}
	r := &Resource{log: log.With("resource", def.Name), name: def.Name, opts: opts, started: time.Now(),
		timerKick: make(chan struct{}, 1), admin: make(chan struct{}, 1), handlers: map[uint64]waited{},
		ready: make(chan struct{}), done: make(chan struct{})}
	r.status.kick, r.status.syncs = make(chan struct{}, 1), map[[2]int]*syncMemory{}
	r.fronts.kick = make(chan struct{}, 1)
	r.def.Store(&def)
	r.ctx, r.cancel = context.WithCancelCause(context.Background())
	r.front = iobuf.NewPool(fuseMemory)
	r.links = iobuf.NewPool(linkMemory(&def))
	r.spare = iobuf.NewPool(spareMemory)
	for i := range def.Volumes {
		d := &def.Volumes[i]
		v := &volume{r: r, number: d.Number, log: r.log.With("volume", d.Number), sessions: map[*session]struct{}{},
			bitmaps: make([]*bitmap.Bitmap, len(def.Peers)), flushes: d.Opts.DiskFlushes}
		v.done.wake = make(chan struct{}, 1)
		v.meta.wake = make(chan struct{}, 1)
		r.vols = append(r.vols, v)
	}
	for i := range def.Peers {
		p := &peer{r: r, idx: i, log: r.log.With("peer", def.Peers[i].Name)}
		p.configure(def.Peers[i])
		r.peers = append(r.peers, p)
	}
	c := coreConfig(&def, opts.Rand)
	if err := r.coordinate(&def, &c); err != nil {
		return nil, err
	}
	r.m = core.New(c)
	return r, nil
}

// checkDefinition finds what New cannot work with; agent/config has checked the rest.
func checkDefinition(def *control.Definition) error {
	var errs []error
	if def.Name == "" || len(def.Volumes) == 0 {
		errs = append(errs, errors.New("a resource has a name and at least one volume"))
	}
	switch def.Coordination {
	case "", control.CoordinationNone:
	case control.CoordinationEtcd:
		if def.TTL <= 0 || def.Margin < 0 || def.Margin >= def.TTL {
			errs = append(errs, fmt.Errorf("coordination %s needs a ttl above its margin, not %s and %s", def.Coordination, def.TTL, def.Margin))
		}
	default:
		errs = append(errs, fmt.Errorf("coordination %q is neither none nor etcd", def.Coordination))
	}
	for _, p := range def.Peers {
		for _, alg := range []string{p.Net.DataIntegrityAlg, p.Net.CsumsAlg, p.Net.VerifyAlg} {
			if alg != "" && digestOf(alg) == nil {
				errs = append(errs, fmt.Errorf("peer %s: %q: %w", p.Name, alg, wire.ErrAlgorithm))
			}
		}
		if protocolNumber(p.Net.Protocol) == 0 {
			errs = append(errs, fmt.Errorf("peer %s: protocol %q is not A, B or C", p.Name, p.Net.Protocol))
		}
		if p.NodeID < 0 || p.NodeID > 31 {
			errs = append(errs, fmt.Errorf("peer %s: node id %d", p.Name, p.NodeID))
		}
	}
	if err := errors.Join(errs...); err != nil {
		return control.Errorf(control.BadDefinition, "%w", err)
	}
	return nil
}

func randomUUID() uint64 {
	var b [8]byte
	_, _ = rand.Read(b[:]) // never fails
	return binary.BigEndian.Uint64(b[:])
}

func linkMemory(def *control.Definition) int64 {
	sum := int64(0)
	for _, p := range def.Peers {
		sum += int64(p.Net.MaxBuffers) * 4096
	}
	return max(sum, linkMemoryMin)
}

// Run starts the resource and returns when ctx has ended, or Down, and everything is closed. It opens no disk and makes no
// connection by itself: Up does.
func (r *Resource) Run(ctx context.Context) error {
	for _, v := range r.vols {
		r.wg.Go(v.completionLoop)
		r.wg.Go(v.metaLoop)
	}
	r.wg.Go(r.timerLoop)
	r.wg.Go(r.progressLoop)
	if r.records != nil {
		r.wg.Go(r.recordLoop)
	}
	if err := r.startFronts(); err != nil {
		return errors.Join(err, r.Close())
	}
	close(r.ready)
	select {
	case <-ctx.Done():
	case <-r.ctx.Done():
	}
	return r.Close()
}

// volume finds a volume by its number; the Machine knows no others.
func (r *Resource) volume(number int) *volume {
	for _, v := range r.vols {
		if v.number == number {
			return v
		}
	}
	return nil
}

// timerLoop calls Tick when the Machine wants it.
func (r *Resource) timerLoop() {
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		r.mu.Lock()
		at := r.timerAt
		r.mu.Unlock()
		wait := time.Hour
		if at != 0 {
			wait = max(time.Duration(at-now()), 0)
		}
		timer.Reset(wait)
		select {
		case <-r.ctx.Done():
			return
		case <-r.timerKick:
			continue
		case <-timer.C:
		}
		t := r.lock()
		r.timerAt = 0
		r.m.Tick(now())
		r.unlock(t)
	}
}

// Close stops everything: front ends first, then links, then disks. It returns within closeTimeout; what still hangs in the
// kernel then is left behind and told in the error. A second call waits for the first.
func (r *Resource) Close() error {
	r.closeOnce.Do(func() {
		defer close(r.done)
		r.closeErr = r.close()
	})
	<-r.done
	return r.closeErr
}

func (r *Resource) close() error {
	ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
	defer cancel()
	var errs []error
	t := r.lock()
	r.closing = true
	ended := r.endSessions(fmt.Errorf("%s is going down", r.name))
	for _, p := range r.peers {
		r.closeLink(p, nil)
	}
	r.unlock(t)
	for _, end := range ended {
		end()
	}
	errs = append(errs, r.stopFronts(ctx))
	r.cancel(errClosed)
	r.links.Close() // whoever waits for memory goes on
	r.closeDisks()
	stopped := make(chan struct{})
	go func() { // ends with the goroutines it waits for
		r.linksUp.Wait()
		for _, v := range r.vols {
			v.done.close()
			v.meta.push(&metaOp{kind: metaStop, vol: v})
		}
		r.wg.Wait()
		close(stopped)
	}()
	select {
	case <-stopped:
		r.front.Close()
		r.spare.Close()
	case <-ctx.Done():
		err := errors.New("some I/O hangs in the kernel and is left behind")
		r.log.Error("not everything ended", "err", err)
		errs = append(errs, err)
	}
	r.hub.Publish(control.Event{Kind: control.EventDown, Resource: r.name, Volume: control.All})
	r.hub.Close()
	return errors.Join(errs...)
}

var errClosed = errors.New("resource is closed")

// closeDisks closes the disks that are still open, each on its metadata goroutine, behind what is queued there.
func (r *Resource) closeDisks() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, v := range r.vols {
		r.closeDisk(v)
	}
}

// closeDisk queues the end of the volume's disk. r.mu is held.
func (r *Resource) closeDisk(v *volume) {
	if v.store == nil || v.diskClosing {
		return
	}
	v.diskClosing = true
	v.metaBusy++
	v.meta.push(&metaOp{kind: metaClose, vol: v, store: v.store, md: v.md, mdst: v.mdStore})
}

// endSessions takes all sessions and returns what tells their openers. r.mu is held.
func (r *Resource) endSessions(reason error) []func() {
	var out []func()
	for _, v := range r.vols {
		for s := range v.sessions {
			out = append(out, func() { s.end(reason) })
			delete(v.sessions, s)
		}
	}
	r.countOpeners()
	return out
}

// execRare carries out the effects that are not on the data path. r.mu is held.
func (r *Resource) execRare(t *turn, e *core.Effect) {
	switch e.Kind {
	case core.Connect:
		r.connect(r.peers[e.Peer])
	case core.CloseLink:
		r.closeLink(r.peers[e.Peer], e.Err)
	case core.CloseDisk:
		if v := r.volume(e.Vol); v.store != nil {
			r.closeDisk(v)
		} else {
			t.after = append(t.after, func() {
				t := r.lock()
				r.m.DiskClosed(now(), v.number)
				r.unlock(t)
			})
		}
	case core.RoleChanged:
		r.roleChanged(t)
	case core.SizeChanged:
		v := r.volume(e.Vol)
		v.size.Store(e.Off)
		for s := range v.sessions {
			if s.resized != nil {
				t.after = append(t.after, func() { s.resized(e.Off) })
			}
		}
		v.log.Info("size changed", "size", e.Off)
		poke(r.fronts.kick)
	case core.Result:
		e.Cmd.(*command).finish(e.Err)
	case core.Event:
		r.note(e)
	case core.RunHandler:
		r.handler(e)
	case core.WriteRecord:
		r.records.push(e.Cmd.(*core.Record), e.Token)
	case core.Deposed:
		r.log.Warn("deposed", "err", e.Err)
		t.after = append(t.after, r.endSessions(fmt.Errorf("%s: %w", r.name, e.Err))...)
	case core.UndoBegin:
		r.volume(e.Vol).undoBegin(e.Peer)
	case core.UndoEnd:
		r.volume(e.Vol).undoEnd(t)
	}
}

// roleChanged opens or closes the front ends. r.mu is held.
func (r *Resource) roleChanged(t *turn) {
	role := r.m.Role()
	r.log.Info("role changed", "to", role.String())
	if role != wire.Primary {
		t.after = append(t.after, r.endSessions(fmt.Errorf("%s is Secondary now", r.name))...)
	}
	poke(r.fronts.kick)
}

func (r *Resource) peerName(i int) string {
	if i < 0 || i >= len(r.peers) {
		return ""
	}
	return r.peers[i].def.Load().Name
}

// note publishes an event of the Machine. r.mu is held.
func (r *Resource) note(e *core.Effect) {
	text := e.Note
	if e.Err != nil {
		text += ": " + e.Err.Error()
	}
	log := r.log
	if e.Vol >= 0 {
		log = log.With("volume", e.Vol)
	}
	if e.Peer >= 0 {
		log = log.With("peer", r.peerName(e.Peer))
	}
	if e.Err != nil {
		log.Warn(e.Note, "err", e.Err)
	} else {
		log.Info(e.Note)
	}
	vol := e.Vol
	if vol < 0 {
		vol = control.All
	}
	if q, ok := e.Cmd.(*core.QuestionView); ok {
		r.hub.Publish(control.Event{Kind: control.EventQuestion, Resource: r.name, Volume: vol, Peer: r.peerName(e.Peer),
			Name: strings.TrimPrefix(e.Note, "question "), Question: r.question(q), Text: q.Text})
	} else {
		r.hub.Publish(control.Event{Kind: control.EventNote, Resource: r.name, Volume: vol, Peer: r.peerName(e.Peer), Name: e.Note, Text: text})
	}
	w := r.m.View()
	for _, ev := range r.sample(&w, now()) { // now: a short resync is over before anybody looks again
		ev.Resource = r.name
		r.hub.Publish(ev)
	}
	r.status.dirty()
}

// handler asks the agent to run a handler: this process starts no program. r.mu is held.
func (r *Resource) handler(e *core.Effect) {
	id := uint64(0)
	if e.Token != 0 {
		r.nextID++
		id = r.nextID
		r.handlers[id] = waited{e.Vol, e.Peer, e.Token}
	}
	vol := e.Vol
	if vol < 0 {
		vol = control.All
	}
	r.log.Info("handler wanted", "name", e.Note, "peer", r.peerName(e.Peer))
	r.hub.Publish(control.Event{Kind: control.EventHandler, Resource: r.name, Volume: vol, Peer: r.peerName(e.Peer), Name: e.Note, Handler: id})
}

// waited is a handler whose outcome the Machine waits for.
type waited struct {
	vol, peer int
	token     uint64
}

// HandlerResult answers a handler event.
func (r *Resource) HandlerResult(ctx context.Context, id uint64, code int) error {
	t := r.lock()
	defer r.unlock(t)
	w, ok := r.handlers[id]
	if !ok {
		return control.Errorf(control.NotFound, "no handler with id %d runs", id)
	}
	delete(r.handlers, id)
	r.m.HandlerDone(now(), w.vol, w.peer, w.token, code)
	return nil
}

// Definition is what the resource runs by now.
func (r *Resource) Definition() *control.Definition { return r.def.Load() }

// Subscribe gives the events after the one with that id.
func (r *Resource) Subscribe(ctx context.Context, after uint64) <-chan control.Event {
	return r.hub.Subscribe(ctx, after)
}
