package nbd

import "sync"

// budget is a number of bytes that connections borrow from. A request takes all it needs at once, so that
// requests in parts cannot wait for each other.
type budget struct {
	mu      sync.Mutex
	cond    sync.Cond
	free    int64 // bytes
	waiting int
}

func newBudget(n int64) *budget {
	b := &budget{free: n}
	b.cond.L = &b.mu
	return b
}

// try takes n bytes if they are there and nobody is waiting for some.
func (b *budget) try(n int64) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.free < n || b.waiting > 0 {
		return false
	}
	b.free -= n
	return true
}

// take waits for n bytes, at most the whole budget. It gives up, with false, once stop says so after a wake.
func (b *budget) take(n int64, stop func() bool) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.waiting++
	defer func() { b.waiting-- }()
	for b.free < n {
		if stop() {
			return false
		}
		b.cond.Wait()
	}
	b.free -= n
	if b.free > 0 {
		b.cond.Broadcast()
	}
	return true
}

// give returns n bytes.
func (b *budget) give(n int64) {
	b.mu.Lock()
	b.free += n
	if b.waiting > 0 {
		b.cond.Broadcast()
	}
	b.mu.Unlock()
}

// wake makes the waiting look at their stop again.
func (b *budget) wake() {
	b.mu.Lock()
	b.cond.Broadcast()
	b.mu.Unlock()
}
