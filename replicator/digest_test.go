package replicator

import (
	"math/rand/v2"
	"os"
	"testing"

	"github.com/hawser-ha/hawser/replicator/control"
	"github.com/hawser-ha/hawser/replicator/export"
)

// TestDigests: with integrity digests on every packet, a checksum resync sends only what differs, and a verify finds a block
// that was changed behind our back.
func TestDigests(t *testing.T) {
	a, b := upPair(t, func(n *control.NetOpts) {
		n.DataIntegrityAlg, n.CsumsAlg, n.VerifyAlg = "crc32c", "sha1", "md5"
	})
	c := a.open(t)
	rng := rand.New(rand.NewPCG(3, 4))
	for range 200 {
		c.write(rng.Int64N(4000)*4096, fill(byte(rng.Uint32()), 4096*(1+rng.IntN(4))))
	}
	must(t, c.do(export.Trim, 8<<20, make([]byte, 1<<20), false))
	must(t, c.do(export.WriteZeroes, 24<<20, make([]byte, 1<<20), false))

	must(t, b.Invalidate(ctxFor(t), 0, "a"))
	b.until(t, "checksum resync", func(s *control.Status) bool {
		l := s.Peers[0].Volumes[0].LastSync
		return upToDate(s) && l != nil && l.SameCsum > 32<<20
	})
	a.until(t, "checksum resync", upToDate)

	verified := func(n int) func(*control.Status) bool {
		return func(s *control.Status) bool {
			l := s.Peers[0].Volumes[0].LastSync
			return upToDate(s) && l != nil && l.Kind == "verify" && l.Mismatches == int64(n)*4096
		}
	}
	must(t, a.Verify(ctxFor(t), 0, "b", 0, 0))
	a.until(t, "verify without findings", verified(0))

	f, err := os.OpenFile(b.def.Volumes[0].Disk, os.O_WRONLY, 0)
	must(t, err)
	_, err = f.WriteAt(fill(0xdd, 4096), 40<<20)
	must(t, err)
	must(t, f.Sync())
	must(t, f.Close())
	must(t, a.Verify(ctxFor(t), 0, "b", 0, 0))
	a.until(t, "verify with one block found", verified(1))
	if oos := a.Status().Peers[0].Volumes[0].OutOfSync; oos != 4096 {
		t.Errorf("%d bytes out of sync", oos)
	}
	// Found blocks are copied by the resync of the next connection.
	must(t, a.Disconnect(ctxFor(t), "b", false))
	must(t, b.Disconnect(ctxFor(t), "a", true))
	must(t, a.Connect(ctxFor(t), "b", false))
	must(t, b.Connect(ctxFor(t), "a", false))
	a.until(t, "repair", func(s *control.Status) bool { return upToDate(s) && s.Peers[0].Volumes[0].OutOfSync == 0 })
	b.until(t, "repair", upToDate)
	c.s.Close()
	must(t, a.Down(ctxFor(t), false))
	must(t, b.Down(ctxFor(t), false))
	sameData(t, a, b)
}

// TestProtocolChangesOnline: A, B and C take turns under writes, nobody disconnects and nothing fails.
func TestProtocolChangesOnline(t *testing.T) {
	a, b := upPair(t, nil)
	c := a.open(t)
	for i := range 12 {
		proto := string("ABC"[i%3])
		must(t, a.SetProtocol(ctxFor(t), "b", proto))
		for j := range 20 {
			c.write(int64(i*20+j)*8192, fill(byte(i*20+j), 8192))
		}
	}
	if s := a.Status(); s.Peers[0].Connection != "Connected" || s.Peers[0].Protocol != "C" {
		t.Errorf("peers %+v", s.Peers)
	}
	c.s.Close()
	must(t, a.Down(ctxFor(t), false))
	must(t, b.Down(ctxFor(t), false))
	sameData(t, a, b)
}

// TestDisklessPrimary: reads and writes go through the peer when the disk is taken away, and the disk comes back.
func TestDisklessPrimary(t *testing.T) {
	a, b := upPair(t, nil)
	c := a.open(t)
	c.write(4096, fill(1, 8192))
	must(t, a.Detach(ctxFor(t), 0, false))
	c.expect(4096, fill(1, 8192))
	c.write(8192, fill(2, 4096))
	c.expect(4096, append(fill(1, 4096), fill(2, 4096)...))
	must(t, a.Attach(ctxFor(t), 0))
	a.until(t, "resync after attach", upToDate)
	c.expect(4096, append(fill(1, 4096), fill(2, 4096)...))
	c.s.Close()
	must(t, a.Down(ctxFor(t), false))
	must(t, b.Down(ctxFor(t), false))
	sameData(t, a, b)
}
