package core

import (
	"slices"
	"testing"

	"github.com/hawser-ha/hawser/replicator/wire"
)

// Zeroes go as P_ZEROES only to a peer that can read it (drbd-wire.md 12).
func TestZeroesTakeTheFormThatThePeerReads(t *testing.T) {
	const kernel = wire.FeatureTrim | wire.FeatureThinResync | wire.FeatureWSame | wire.FeatureWZeroes
	for _, c := range []struct {
		rule      string
		features  uint32
		integrity int // bytes of the digest
		want      wire.Command
		tail      uint32
	}{
		{"a kernel gets P_ZEROES", kernel, 0, wire.Zeroes, 0},
		{"a kernel with data-integrity-alg waits for a digest that P_ZEROES has not: data", kernel, 4, wire.Data, 8192 + 4},
		{"hawser does not wait for it", kernel | FeatureRelaxedEpochs, 4, wire.Zeroes, 0},
		{"a peer that does not know P_ZEROES gets data", wire.FeatureTrim, 0, wire.Data, 8192},
	} {
		t.Run(c.rule, func(t *testing.T) {
			n := testNet()
			n.IntegritySize = c.integrity // the peer of the harness names no algorithm, so nor do we
			r := connected(t, n, c.features, false).primary()
			q := r.submit(AppZero, 4096, 8192)
			p := r.last(c.want)
			if p == nil || p.Size != 8192 || p.Tail != c.tail {
				t.Fatalf("sent %v: %+v", r.commands(), p)
			}
			r.finishDisk(nil)
			if err := r.ack(wire.WriteAck, p); err != nil || !r.completed(q) {
				t.Fatalf("not complete after the acknowledgement: %v", err)
			}
		})
	}
}

// A discard is a hint: with a peer that does not know it, it is done nowhere, or the disks would differ.
func TestTrimIsLeftOutWhereThePeerDoesNotKnowIt(t *testing.T) {
	for _, c := range []struct {
		rule     string
		features uint32
		sent     bool
	}{
		{"a peer with FeatureTrim gets P_TRIM", wire.FeatureTrim, true},
		{"without it nothing is sent, marked or discarded", wire.FeatureWZeroes, false},
	} {
		t.Run(c.rule, func(t *testing.T) {
			r := connected(t, testNet(), c.features, false).primary()
			q := r.submit(AppTrim, 4096, 8192)
			if sent := slices.Contains(r.commands(), wire.Trim); sent != c.sent {
				t.Fatalf("sent %v", r.commands())
			}
			if r.completed(q) == c.sent {
				t.Fatalf("completed at once: %v", !c.sent)
			}
			if dirty := r.m.View().Volumes[0].Links[0].OutOfSync; dirty != 0 {
				t.Fatalf("%d bytes out of sync", dirty)
			}
		})
	}
}
