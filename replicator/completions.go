package replicator

import "sync"

// completions gathers disk requests that are done, for the goroutine that feeds them to the Machine in batches.
type completions struct {
	mu   sync.Mutex // guards head, tail, stop
	head *ioreq
	tail *ioreq
	stop bool
	wake chan struct{} // capacity 1
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
	if first {
		poke(c.wake)
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
	r := v.r
	t := &turn{}
	var batch []*ioreq
	for range v.done.wake {
		for {
			v.done.mu.Lock()
			io, stop := v.done.head, v.done.stop
			v.done.head, v.done.tail = nil, nil
			v.done.mu.Unlock()
			if io == nil {
				if stop && v.settled() {
					return
				}
				break
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
