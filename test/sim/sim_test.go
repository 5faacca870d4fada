package sim

import (
	"flag"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
)

var (
	seedFlag  = flag.Uint64("seed", 0, "play this seed only")
	seedsFlag = flag.Int("seeds", 24, "how many seeds of every kind of life to play")
	fromFlag  = flag.Uint64("from", 1, "the first seed to play")
)

// seeds is how many seeds a kind of life plays that needs a part of them only. The race detector makes all slower.
func seeds(part, of int) int {
	n := *seedsFlag
	if raceEnabled {
		n = n/8 + 1
	}
	return max(1, n*part/of)
}

// each plays the seeds of a kind of life.
func each(t *testing.T, n int, life func(seed uint64) *world) {
	t.Helper()
	first := *fromFlag
	if *seedFlag != 0 {
		first, n = *seedFlag, 1
	}
	var acked, reads, failed atomic.Int64
	var group sync.WaitGroup
	var next atomic.Uint64
	next.Store(first)
	for range 2 {
		group.Go(func() {
			for {
				seed := next.Add(1) - 1
				if seed >= first+uint64(n) || failed.Load() > 0 {
					return
				}
				w := playSafe(seed, life)
				acked.Add(int64(w.acked))
				reads.Add(int64(w.reads))
				if w.err != nil {
					failed.Add(1)
					t.Errorf("%v\n%s\nreplay: go test ./test/sim -run '%s$' -seed=%d", w.err, w.tail(), t.Name(), seed)
				}
			}
		})
	}
	group.Wait()
	t.Logf("%d writes acknowledged, %d reads checked", acked.Load(), reads.Load())
}

// playSafe names the seed of a panic.
func playSafe(seed uint64, life func(uint64) *world) *world {
	defer func() {
		if r := recover(); r != nil {
			fmt.Printf("seed %d panics\n", seed)
			panic(r)
		}
	}()
	return life(seed)
}

// live plays a whole life: trouble, then peace.
func live(w *world, faults []fault) *world {
	if !w.setup() {
		w.fail("no setup")
		return w
	}
	for range 6 + w.rng.IntN(10) {
		w.run(200+w.rng.IntN(2000), nil)
		if w.err != nil {
			return w
		}
		w.strike(faults)
		if w.err != nil {
			return w
		}
	}
	w.heal()
	if w.err == nil {
		w.check()
	}
	return w
}

func TestSeeds(t *testing.T) {
	each(t, seeds(1, 1), func(seed uint64) *world { return live(newWorld(seed, options{}), basicFaults) })
}

func TestSameSeedSameLife(t *testing.T) {
	for seed := range uint64(3) {
		a := live(newWorld(seed+1, options{}), basicFaults)
		b := live(newWorld(seed+1, options{}), basicFaults)
		if a.hash != b.hash || a.tail() != b.tail() || a.now != b.now {
			t.Fatalf("seed %d lives differently the second time:\n%s\n---\n%s", seed+1, a.tail(), b.tail())
		}
	}
}
