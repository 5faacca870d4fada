package sim

import (
	"maps"
	"slices"

	"github.com/hawser-ha/hawser/replicator/actlog"
	"github.com/hawser-ha/hawser/replicator/bitmap"
	"github.com/hawser-ha/hawser/replicator/core"
)

const block = bitmap.BlockSize

// store is a disk: what it holds now, and what it may hold after a power cut.
type store struct {
	now    []uint64 // values by block
	stable []uint64
	cache  map[int64][]uint64 // what was written to a block since it was last stable, oldest first
	super  core.Super
	device uint64           // its device UUID
	bits   []*bitmap.Bitmap // on disk, by peer
	ring   [][actlog.BlockSize]byte
	fails  map[access]int // how many of the next accesses of a kind fail
}

// access is a kind of access to a disk.
type access struct {
	kind core.Kind
	op   core.Op
	meta string // super, log: the metadata area
}

func newStore(blocks int64, peers int) *store {
	s := &store{now: make([]uint64, blocks), stable: make([]uint64, blocks), cache: map[int64][]uint64{}, fails: map[access]int{},
		ring: make([][actlog.BlockSize]byte, 8)}
	s.super.Current = 4
	s.super.Bitmap = make([]uint64, peers)
	s.super.Peers = make([]core.SuperPeer, peers)
	for range peers {
		b := bitmap.New(blocks)
		b.SetAll()
		s.bits = append(s.bits, b)
	}
	for i := range s.ring {
		actlog.InitBlock(&s.ring[i])
	}
	return s
}

// write puts a value into the cache.
func (s *store) write(b int64, v uint64, fua bool) {
	s.now[b] = v
	if fua {
		s.stable[b] = v
		delete(s.cache, b)
		return
	}
	if c, ok := s.cache[b]; ok || s.stable[b] != v {
		s.cache[b] = append(c, v)
	}
}

// flush makes the cache stable.
func (s *store) flush() {
	for b := range s.cache {
		s.stable[b] = s.now[b]
	}
	clear(s.cache)
}

// powerCut leaves of every block what was stable or any later content, as chance has it.
func (s *store) powerCut(rnd func(int) int) {
	for _, b := range slices.Sorted(maps.Keys(s.cache)) {
		c := s.cache[b]
		if i := rnd(2 * (len(c) + 1)); i < len(c) {
			s.now[b] = c[i]
		} else if i&1 == 0 {
			s.now[b] = s.stable[b]
		}
		s.stable[b] = s.now[b]
	}
	clear(s.cache)
}

// failing says whether an access is to fail.
func (s *store) failing(a access) bool {
	if s.fails[a] > 0 {
		s.fails[a]--
		return true
	}
	return false
}
