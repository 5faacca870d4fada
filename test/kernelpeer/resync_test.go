package kernelpeer

import (
	"fmt"
	"testing"

	"github.com/hawser-ha/hawser/replicator/control"
	"github.com/hawser-ha/hawser/test/check"
)

// testResyncs: what happens when the two were apart.
func testResyncs(p *pair) {
	for _, cut := range []string{"hawser", "kernel", "hawser, by force"} {
		p.run("resync after a disconnect by "+cut, setup{}, func(*testing.T) {
			p.skipSync()
			p.cli("primary", resource)
			p.hawserWrites(100, check.Options{})
			p.part(cut)
			p.hawserWrites(200, check.Options{Seed: 7})
			p.join()
			p.hawserWrites(100, check.Options{Seed: 8})
			p.same()
			p.partial()
			p.cli("secondary", resource)
			p.kernel("drbdadm primary r0")
			p.part(cut)
			p.kernel(kernelWrites(0, 2048, 3))
			p.join()
			p.kernel(kernelWrites(0, 2048, 4))
			p.same()
			p.partial()
		})
	}
	// Every other block: no run of the bitmap is longer than one, so it is sent as it is, in two packets.
	p.run("plain bitmaps", setup{size: 160 << 20}, func(*testing.T) {
		p.skipSync()
		p.cli("primary", resource)
		p.part("hawser")
		p.comb(16 << 10)
		p.join()
		p.same()
		p.partial()
		p.cli("secondary", resource)
		p.kernel("drbdadm primary r0")
		p.part("kernel")
		p.kernel("fio --name=w --filename=/dev/drbd0 --rw=write:4k --bs=4k --size=150M --ioengine=libaio --iodepth=32 --direct=1 >/run/fio.log 2>&1")
		p.join()
		p.same()
		p.partial()
	})
	for _, rle := range []string{"yes", "no"} {
		p.run("use-rle "+rle, setup{net: map[string]string{"use-rle": rle}, size: 160 << 20}, func(*testing.T) {
			p.skipSync()
			p.cli("primary", resource)
			p.part("kernel")
			p.hawserWrites(2000, check.Options{Reads: -1, Runs: 2000, RunLen: 3})
			p.join()
			p.same()
			p.partial()
			p.cli("secondary", resource)
			p.kernel("drbdadm primary r0")
			p.part("hawser")
			p.kernel(kernelWrites(0, 16384, 3))
			p.join()
			p.same()
			p.partial()
		})
	}
	p.run("invalidate", setup{}, func(*testing.T) {
		p.skipSync()
		p.cli("primary", resource)
		p.hawserWrites(300, check.Options{})
		p.plant(p.disks[0], 4096)
		p.kernel("drbdadm invalidate r0")
		p.same()
		p.plant(p.disks[0], 8192)
		p.cli("invalidate-remote", "--force", resource)
		p.same()
		p.cli("secondary", resource)
		p.kernel("drbdadm primary r0")
		p.plant(p.disk(0), 4096)
		p.cli("invalidate", "--force", resource)
		p.same()
		p.plant(p.disk(0), 8192)
		p.kernel("drbdadm invalidate-remote r0")
		p.same()
	})
	for _, alg := range []string{"crc32c", "sha1"} {
		p.run("checksum resync with "+alg, setup{net: map[string]string{"csums-alg": alg}}, func(*testing.T) {
			p.skipSync()
			p.cli("primary", resource)
			p.hawserWrites(300, check.Options{})
			p.plant(p.disks[0], 4096)
			p.kernel("drbdadm invalidate r0")
			p.same()
			p.kernel("dmesg | grep -E '[1-9][0-9]* % had equal checksums'")
			p.cli("secondary", resource)
			p.kernel("drbdadm primary r0")
			p.plant(p.disk(0), 8192)
			p.cli("invalidate", "--force", resource)
			p.same()
			if s := p.lastSync(); s.SameCsum == 0 || s.SameCsum >= s.Total {
				p.t.Errorf("of %d bytes %d had equal checksums", s.Total, s.SameCsum)
			}
		})
	}
	p.run("verify by hawser", setup{}, func(*testing.T) { p.verify(func() { p.cli("verify", resource) }) })
	p.run("verify by the kernel", setup{}, func(*testing.T) { p.verify(func() { p.kernel("drbdadm verify r0") }) })
	p.run("split brain", setup{}, func(*testing.T) {
		for _, loser := range []string{"hawser", "kernel"} {
			if loser == "hawser" {
				p.skipSync()
			}
			p.part("hawser")
			p.kernel("drbdadm disconnect r0; drbdadm primary r0")
			p.kernel(kernelWrites(0, 1024, 5))
			p.kernel("drbdadm secondary r0")
			p.cli("primary", resource)
			p.hawserWrites(50, check.Options{Seed: 9})
			p.cli("secondary", resource)
			p.kernel("drbdadm connect r0")
			p.cli("connect", resource)
			p.standAlone()
			p.kernel("dmesg | grep -i 'split-brain detected but unresolved'; dmesg -c >/dev/null; drbdadm disconnect r0")
			if loser == "hawser" {
				p.cli("connect", "--discard-my-data", "--force", resource)
				p.kernel("drbdadm connect r0")
			} else {
				p.kernel("drbdadm connect --discard-my-data r0")
				p.cli("connect", resource)
			}
			p.same()
			p.partial()
		}
	})
	for _, c := range []struct{ policy, loser string }{
		{"discard-least-changes", "hawser"},
		{"discard-younger-primary", "hawser"}, // the kernel was Primary when they parted
		{"discard-older-primary", "kernel"},
		{"discard-zero-changes", ""},
	} {
		p.run("split brain with "+c.policy, setup{net: map[string]string{"after-sb-0pri": c.policy}}, func(*testing.T) {
			p.skipSync()
			p.kernel("drbdadm primary r0")
			p.part("hawser")
			p.kernel("drbdadm disconnect r0")
			p.kernel(kernelWrites(0, 4096, 5))
			p.kernel("drbdadm secondary r0")
			p.cli("primary", resource)
			p.hawserWrites(1, check.Options{Seed: 9, Depth: 1, Writers: 1, Reads: -1})
			p.cli("secondary", resource)
			p.kernel("drbdadm connect r0")
			p.cli("connect", resource)
			switch c.loser {
			case "":
				p.standAlone()
				return
			case "hawser":
				p.until("the decision", stateLimit, func() bool {
					_, err := p.lab.TryExec(machine, "dmesg | grep 'WFBitMapS -> SyncSource'")
					return err == nil
				})
			case "kernel":
				p.until("the decision", stateLimit, func() bool {
					_, err := p.lab.TryExec(machine, "dmesg | grep 'WFSyncUUID -> SyncTarget'")
					return err == nil
				})
			}
			p.same()
		})
	}
}

// part ends the connection.
func (p *pair) part(by string) {
	p.t.Helper()
	switch by {
	case "hawser":
		p.cli("disconnect", resource)
	case "hawser, by force":
		p.cli("disconnect", "--force", resource)
	case "kernel":
		p.kernel("drbdadm disconnect r0")
	}
	p.wait("apart", stateLimit, func(st *control.Status, _ int) bool { return st.Peers[0].Connection != "Connected" },
		func(v kernelVolume) bool { return v.conn == "StandAlone" || v.conn == "WFConnection" })
}

// join connects again.
func (p *pair) join() {
	p.t.Helper()
	p.cli("connect", resource)
	p.kernel("drbdadm connect r0 2>&1 || drbdadm cstate r0")
	p.connected()
}

// comb writes every other block of hawser's volume.
func (p *pair) comb(blocks int) {
	p.t.Helper()
	d, err := p.target(0)(p.t.Context())
	if err != nil {
		p.t.Fatal(err)
	}
	defer d.Close()
	b := make([]byte, check.BlockSize)
	for i := range blocks {
		check.Fill(b, check.Value{Writer: 1, Seq: uint64(i)}, int64(i))
		if err := d.WriteAt(b, int64(2*i)*check.BlockSize, false); err != nil {
			p.t.Fatal(err)
		}
	}
}

// lastSync is the last resync as hawser saw it.
func (p *pair) lastSync() control.Progress {
	p.t.Helper()
	s := p.now().Peers[0].Volumes[0].LastSync
	if s == nil {
		p.t.Fatalf("hawser saw no resync\n%s", p.state())
	}
	return *s
}

// partial checks that the last resync was of a part only.
func (p *pair) partial() {
	p.t.Helper()
	if s := p.lastSync(); s.Total <= 0 || s.Total >= p.o.size {
		p.t.Errorf("the resync was about %d bytes of %d", s.Total, p.o.size)
	}
}

// verify plants a difference, finds it and mends it.
func (p *pair) verify(start func()) {
	p.t.Helper()
	p.skipSync()
	p.cli("primary", resource)
	p.hawserWrites(300, check.Options{})
	clean := func(oos int64) {
		p.t.Helper()
		p.wait(fmt.Sprintf("verify with %d bytes out of sync", oos), syncLimit, func(st *control.Status, _ int) bool {
			v := st.Peers[0].Volumes[0]
			return v.Replication == "Established" && v.OutOfSync == oos
		}, func(v kernelVolume) bool { return v.conn == "Connected" && v.oos == fmt.Sprint(oos>>10) })
	}
	start()
	p.until("the end of the verify", syncLimit, func() bool {
		s := p.now().Peers[0].Volumes[0].LastSync
		return s != nil && s.Kind == "verify"
	})
	clean(0)
	p.plant(p.disks[0], 40960)
	p.plant(p.disks[0], 81920)
	start()
	clean(8192)
	p.part("hawser")
	p.join()
	p.same()
}
