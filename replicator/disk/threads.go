package disk

import "sync"

// workers is a pool of goroutines that block for slots. They are not locked to threads: that would
// cost two context switches for each request.
type workers struct {
	s    *store
	work chan *slot
	wg   sync.WaitGroup
}

func newWorkers(s *store, n, depth int) *workers {
	w := &workers{s: s, work: make(chan *slot, depth+1)} // every slot and the flush: push never blocks
	for range n {
		w.wg.Go(func() {
			for sl := range w.work {
				s.finish(sl, s.exec(sl))
			}
		})
	}
	return w
}

func (w *workers) stop() {
	close(w.work)
	w.wg.Wait()
}

// threads is the engine for kernels without io_uring.
type threads struct{ *workers }

func newThreads(s *store, depth int) threads { return threads{newWorkers(s, workersMax, depth)} }

func (t threads) name() string  { return "threads" }
func (t threads) push(sl *slot) { t.work <- sl }
func (t threads) kick()         {}
