package replicator

import (
	"sync"
	"sync/atomic"
)

// completions gathers disk requests that are done, for the goroutine that feeds them to the Machine in batches.
type completions struct {
	mu   sync.Mutex // guards head, tail, stop
	head *ioreq
	tail *ioreq
	stop bool
	wake chan struct{} // capacity 1

	// A batch of the disk is coming in, on a goroutine that sees to it afterwards (reaped): no need to wake the loop.
	reaping atomic.Bool
	reapMu  sync.Mutex // guards turn and batch: there are two such goroutines while one disk follows another
	turn    turn
	batch   []*ioreq
}

// push adds one; it never blocks.
func (c *completions) push(io *ioreq) {
	c.mu.Lock()
	io.next = nil
	first := c.head == nil
	if first {
		c.head = io
	} else {
		c.tail.next = io
	}
	c.tail = io
	c.mu.Unlock()
	if first && !c.reaping.Load() { // looked at after the push: reaped looks at the list after it has cleared it
		poke(c.wake)
	}
}

// reaped is the disk's Batch.
func (v *volume) reaped(begin bool) {
	c := &v.done
	c.reaping.Store(begin)
	if begin {
		return
	}
	c.reapMu.Lock()
	c.batch = v.complete(&c.turn, c.batch)
	c.reapMu.Unlock()
	c.mu.Lock()
	stop := c.stop
	c.mu.Unlock()
	if stop {
		poke(c.wake) // the loop waits for the last request
	}
}

func (c *completions) close() {
	c.mu.Lock()
	c.stop = true
	c.mu.Unlock()
	poke(c.wake)
}

// completionLoop feeds what is done to the Machine until close, and until nothing is on the disk any more.
func (v *volume) completionLoop() {
	t := &turn{}
	var batch []*ioreq
	for range v.done.wake {
		batch = v.complete(t, batch)
		v.done.mu.Lock()
		stop := v.done.stop
		v.done.mu.Unlock()
		if stop && v.settled() {
			return
		}
	}
}

// complete feeds what is done to the Machine. batch is memory, and is returned for the next time.
func (v *volume) complete(t *turn, batch []*ioreq) []*ioreq {
	r := v.r
	for {
		v.done.mu.Lock()
		io := v.done.head
		v.done.head, v.done.tail = nil, nil
		v.done.mu.Unlock()
		if io == nil {
			return batch
		}
		for ; io != nil; io = io.next {
			io.finish()
			batch = append(batch, io)
		}
		r.mu.Lock()
		at := now()
		for i, io := range batch {
			r.diskDone(at, io)
			batch[i] = nil
		}
		batch = batch[:0]
		r.collect(t)
		r.mu.Unlock()
		r.run(t)
	}
}

// settled says that no request is on the disk.
func (v *volume) settled() bool {
	v.r.mu.Lock()
	defer v.r.mu.Unlock()
	return v.busy == 0
}

// allZero says that b holds nothing but zeroes.
func allZero(b []byte) bool {
	for len(b) >= 64 {
		if [64]byte(b) != [64]byte{} {
			return false
		}
		b = b[64:]
	}
	for _, c := range b {
		if c != 0 {
			return false
		}
	}
	return true
}
