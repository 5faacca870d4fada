package sim

import (
	"slices"
	"testing"
)

// bugs are planted bugs, each with the kind of life that has to find it: the check of the checks.
var bugs = []struct {
	name   string
	faults []fault
	tune   func(*world)
}{
	{"a peer's write is acknowledged before the disk has it", basicFaults, nil},
	{"a write is completed before the disk has it", basicFaults, nil},
	{"acknowledged before it arrived", basicFaults, nil},
	{"no flush at the end of an epoch", basicFaults, nil},
	{"no flush for a client", powerFaults, nil},
	{"FUA is ignored", powerFaults, nil},
	{"no flush before the bitmap", []fault{{"power cut after a resync", cutAfterResync}}, nil},
	{"the bitmap is not written", append([]fault{{"network cut", networkCut}}, lonely...), nil},
	{"no bitmap before an extent leaves the activity log", lonely, wide},
	{"the activity log is not written", basicFaults, nil},
	{"the activity log is not applied", basicFaults, nil},
	{"a superblock is called durable before it is", basicFaults, nil},
	{"a report of what is out of sync is dropped", basicFaults, congested},
	{"a piece of the bitmap is dropped", basicFaults, nil},
	{"a resync write is lost", basicFaults, nil},
	{"resync data is overtaken by newer writes", commandFaults[:2], nil},
	{"a peer's discard is not done", basicFaults, nil},
	{"digests always match", basicFaults, func(w *world) { w.net.CsumsAlg, w.net.CsumsSize, w.net.CsumsAfterCrashOnly = "crc32c", 4, false }},
	{"a read shows what is stable only", basicFaults, nil},
}

// lonely primaries have only themselves to rely on.
var lonely = []fault{{"alone and dead", aloneAndDead}, {"restart of the primary", restart}, {"the primary dies", primaryDies}}

// wide makes extents come and go in the activity log.
func wide(w *world) { w.blocks, w.room = 150<<10, 150<<10 }

// congested makes a node go Ahead all the time.
func congested(w *world) {
	w.net.Protocol, w.net.OnCongestion, w.net.CongestionFill = 1, "pull-ahead", 4*block
}

func TestPlantedBugsAreFound(t *testing.T) {
	bound := uint64(150)
	if raceEnabled {
		t.Skip("the race detector makes this too slow; the code is the same as in the other tests")
	}
	for _, b := range bugs {
		t.Run(b.name, func(t *testing.T) {
			t.Parallel()
			faults := b.faults
			if b.tune != nil {
				faults = slices.DeleteFunc(slices.Clone(faults), func(f fault) bool { return f.name == "change of protocol" })
			}
			hits := 0
			for seed := uint64(1); seed <= bound; seed++ {
				w := live(newWorld(seed, options{bug: b.name, tune: b.tune}), faults)
				hits += w.hits
				if w.err != nil && w.hits > 0 {
					t.Logf("seed %d: %v", seed, w.err)
					return
				}
			}
			t.Fatalf("not found in %d lives, though it was acted out %d times", bound, hits)
		})
	}
}
