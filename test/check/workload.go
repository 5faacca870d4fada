package check

import (
	"context"
	"errors"
	"maps"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"
)

// Options of a workload.
type Options struct {
	Targets []Target // tried in turn, until one opens
	History *History
	Seed    uint64
	Writers int   // clients, each with a session of its own; 0: 2
	Depth   int   // requests in flight of each; 0: 4
	Size    int64 // bytes of the volume; 0: what the first target says
	Runs    int   // places that are used, evenly spread; 0: 256
	RunLen  int   // blocks of each place; 0: 16
	Reads   int   // percent; 0: 30, -1: none
	Flushes int   // percent, flushes and FUA writes each; 0: 3, -1: none
	Rate    int   // requests/s of all writers together; 0: no limit
	// Shared lets all writers write to all blocks. Otherwise each has its own, and only one request at a
	// time writes to a block.
	Shared bool
	// MaxRequest is the most blocks of a request; 0: 4.
	MaxRequest int
	Patience   time.Duration // wait after an error the server answered; 0: 2 ms
}

const (
	redialWait  = 5 * time.Millisecond
	requestsMax = 64 // blocks of a request
)

// Stats are what a workload did so far.
type Stats struct {
	Writes, Reads, Flushes int64          // requests that succeeded
	Sessions               int64          // that were opened
	Broken                 int64          // sessions that ended other than by Stop
	Errors                 map[string]int // requests that failed, by error
	MaxLatency             time.Duration  // of a request that succeeded
	FirstError             error
}

// Failures is how many requests failed.
func (s Stats) Failures() (n int) {
	for _, c := range s.Errors {
		n += c
	}
	return n
}

// Workload is running writers.
type Workload struct {
	o      Options
	cancel context.CancelFunc
	wg     sync.WaitGroup

	writes, reads, flushes, sessions, broken atomic.Int64

	mu      sync.Mutex // guards what follows
	targets []Target
	errs    map[string]int
	first   error
	maxLat  time.Duration
}

// Start starts the writers. They run until Stop, over the loss of any number of servers.
func Start(ctx context.Context, o Options) (*Workload, error) {
	if len(o.Targets) == 0 || o.History == nil {
		return nil, errors.New("a workload needs targets and a history")
	}
	setDefault(&o.Writers, 2)
	setDefault(&o.Depth, 4)
	setDefault(&o.Runs, 256)
	setDefault(&o.RunLen, 16)
	setDefault(&o.Reads, 30)
	setDefault(&o.Flushes, 3)
	setDefault(&o.MaxRequest, 4)
	o.MaxRequest = min(o.MaxRequest, requestsMax, o.RunLen)
	if o.Patience == 0 {
		o.Patience = 2 * time.Millisecond
	}
	if o.Size == 0 {
		d, err := o.Targets[0](ctx)
		if err != nil {
			return nil, err
		}
		o.Size = d.Size()
		if err := d.Close(); err != nil {
			return nil, err
		}
	}
	o.Runs = int(min(int64(o.Runs), o.Size/(int64(o.RunLen)*BlockSize)))
	if o.Runs < o.Writers && !o.Shared {
		return nil, errors.New("the volume is too small for so many writers")
	}
	ctx, cancel := context.WithCancel(ctx)
	w := &Workload{o: o, cancel: cancel, targets: o.Targets, errs: map[string]int{}}
	for i := range o.Writers {
		c := &client{w: w, number: o.History.client(), index: i, busy: map[int64]bool{}}
		w.wg.Go(func() { c.run(ctx) })
	}
	return w, nil
}

func setDefault(p *int, v int) {
	if *p == 0 {
		*p = v
	}
}

// Stop ends the writers after their requests in flight and returns what they did.
func (w *Workload) Stop() Stats {
	w.cancel()
	w.wg.Wait()
	return w.Stats()
}

// Stats so far.
func (w *Workload) Stats() Stats {
	w.mu.Lock()
	defer w.mu.Unlock()
	return Stats{Writes: w.writes.Load(), Reads: w.reads.Load(), Flushes: w.flushes.Load(), Sessions: w.sessions.Load(),
		Broken: w.broken.Load(), Errors: maps.Clone(w.errs), MaxLatency: w.maxLat, FirstError: w.first}
}

// Retarget changes where the next sessions go.
func (w *Workload) Retarget(targets ...Target) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.targets = targets
}

// client is one writer.
type client struct {
	w      *Workload
	number uint32
	index  int
	try    int

	mu   sync.Mutex
	busy map[int64]bool // blocks that a request is writing
}

func (c *client) run(ctx context.Context) {
	for round := uint64(0); ctx.Err() == nil; round++ {
		d := c.open(ctx)
		if d == nil {
			return
		}
		c.w.sessions.Add(1)
		c.w.o.History.session(c.number)
		s := &session{c: c, d: d}
		sctx, cancel := context.WithCancel(ctx)
		s.cancel = cancel
		var wg sync.WaitGroup
		for slot := range c.w.o.Depth {
			rng := rand.New(rand.NewPCG(c.w.o.Seed, uint64(c.index)<<40|round<<8|uint64(slot)))
			wg.Go(func() { s.slot(sctx, rng) })
		}
		wg.Wait()
		cancel()
		if ctx.Err() == nil {
			c.w.broken.Add(1)
		}
		_ = d.Close() // what it was good for is answered or lost
	}
}

// open tries the targets in turn until one opens; nil when ctx has ended.
func (c *client) open(ctx context.Context) Device {
	for ctx.Err() == nil {
		c.w.mu.Lock()
		t := c.w.targets[c.try%len(c.w.targets)]
		c.w.mu.Unlock()
		d, err := t(ctx)
		if err == nil {
			return d
		}
		c.try++
		pause(ctx, redialWait)
	}
	return nil
}

func pause(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
	case <-t.C:
	}
}

// session is one connection of a client.
type session struct {
	c      *client
	d      Device
	cancel context.CancelFunc
}

func (s *session) slot(ctx context.Context, rng *rand.Rand) {
	buf := aligned(s.c.w.o.MaxRequest * BlockSize)
	o := &s.c.w.o
	for ctx.Err() == nil {
		if o.Rate > 0 {
			pause(ctx, time.Duration(float64(time.Second)*float64(o.Writers*o.Depth)/float64(o.Rate)*(0.5+rng.Float64())))
		}
		began := time.Now()
		err := s.one(rng, buf)
		if err == nil {
			s.c.w.note(time.Since(began))
			continue
		}
		s.c.w.failed(err)
		if _, over := outcome(err); over {
			s.cancel()
			return
		}
		pause(ctx, o.Patience)
	}
}

func (w *Workload) note(d time.Duration) {
	w.mu.Lock()
	w.maxLat = max(w.maxLat, d)
	w.mu.Unlock()
}

func (w *Workload) failed(err error) {
	w.mu.Lock()
	w.errs[name(err)]++
	if w.first == nil {
		w.first = err
	}
	w.mu.Unlock()
}

// one runs one random request.
func (s *session) one(rng *rand.Rand, buf []byte) error {
	o := &s.c.w.o
	n := 1 + rng.IntN(o.MaxRequest)
	if rng.IntN(2) == 0 {
		n = 1
	}
	switch p := rng.IntN(100); {
	case p < o.Reads:
		return s.read(s.c.place(rng, false), rng.IntN(o.RunLen-n+1), n, buf)
	case p < o.Reads+o.Flushes:
		return s.flush()
	default:
		fua := rng.IntN(100) < o.Flushes
		return s.write(rng, n, fua, buf)
	}
}

// place picks a run; its first block.
func (c *client) place(rng *rand.Rand, own bool) int64 {
	o := &c.w.o
	run := rng.IntN(o.Runs)
	if own && !o.Shared {
		if run = run - run%o.Writers + c.index; run >= o.Runs {
			run = c.index
		}
	}
	spacing := o.Size / BlockSize / int64(o.Runs)
	return int64(run) * spacing
}

// claim reserves n blocks for a write.
func (c *client) claim(first int64, n int) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	for b := first; b < first+int64(n); b++ {
		if c.busy[b] {
			return false
		}
	}
	for b := first; b < first+int64(n); b++ {
		c.busy[b] = true
	}
	return true
}

func (c *client) release(first int64, n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for b := first; b < first+int64(n); b++ {
		delete(c.busy, b)
	}
}

func (s *session) write(rng *rand.Rand, n int, fua bool, buf []byte) error {
	c := s.c
	var first int64
	for {
		first = c.place(rng, true) + int64(rng.IntN(c.w.o.RunLen-n+1))
		if c.claim(first, n) {
			break
		}
	}
	defer c.release(first, n)
	h := c.w.o.History
	var ops [requestsMax]Op
	for i := range n {
		v := h.next(c.number)
		b := first + int64(i)
		Fill(buf[i*BlockSize:(i+1)*BlockSize], v, b*BlockSize)
		ops[i] = Op{Kind: OpWrite, FUA: fua, Client: c.number, Block: b, Value: v}
	}
	id := h.invoke(ops[:n])
	err := s.d.WriteAt(buf[:n*BlockSize], first*BlockSize, fua)
	how, _ := outcome(err)
	h.finish(id, n, how, nil)
	if err == nil {
		c.w.writes.Add(1)
	}
	return err
}

func (s *session) read(first int64, skip, n int, buf []byte) error {
	c := s.c
	first += int64(skip)
	h := c.w.o.History
	var (
		ops    [requestsMax]Op
		values [requestsMax]Value
	)
	for i := range n {
		ops[i] = Op{Kind: OpRead, Client: c.number, Block: first + int64(i)}
	}
	id := h.invoke(ops[:n])
	_, err := s.d.ReadAt(buf[:n*BlockSize], first*BlockSize)
	if err != nil {
		h.finish(id, n, Failed, nil)
		return err
	}
	for i := range n {
		v, err := Read(buf[i*BlockSize:(i+1)*BlockSize], (first+int64(i))*BlockSize)
		if err != nil {
			v = tornValue
		}
		values[i] = v
	}
	h.finish(id, n, OK, values[:n])
	c.w.reads.Add(1)
	return nil
}

// tornValue stands for the content of a block that no single write made, in the history of reads.
var tornValue = Value{Writer: 1<<32 - 1}

func (s *session) flush() error {
	c := s.c
	h := c.w.o.History
	id := h.invoke([]Op{{Kind: OpFlush, Client: c.number}})
	err := s.d.Flush()
	how, _ := outcome(err)
	h.finish(id, 1, how, nil)
	if err == nil {
		c.w.flushes.Add(1)
	}
	return err
}
