package kernelpeer

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/hawser-ha/hawser/replicator/control"
	"github.com/hawser-ha/hawser/test/check"
)

// testOptions: what the two agree on.
func testOptions(p *pair) {
	for _, alg := range []string{"md5", "sha1", "sha256"} {
		p.run("cram-hmac-alg "+alg, setup{net: map[string]string{"cram-hmac-alg": alg, "shared-secret": "hawser-lab"}}, func(*testing.T) {
			p.skipSync()
			p.turns()
		})
	}
	p.run("another shared-secret", setup{net: map[string]string{"cram-hmac-alg": "sha1"}, hawserNet: map[string]string{"shared-secret": "right"},
		kernelNet: map[string]string{"shared-secret": "wrong"}, apart: true}, func(*testing.T) {
		p.kernel("drbdadm connect r0")
		p.cli("connect", resource)
		p.standAlone()
	})
	p.run("another protocol", setup{hawserNet: map[string]string{"protocol": "A"}, apart: true}, func(*testing.T) {
		p.kernel("drbdadm connect r0")
		p.cli("connect", resource)
		p.standAlone()
	})
	for _, alg := range []string{"crc32c", "md5", "sha1"} {
		p.run("data-integrity-alg "+alg, setup{net: map[string]string{"data-integrity-alg": alg}}, func(*testing.T) {
			p.kernel("drbdadm primary --force r0")
			p.kernel(kernelWrites(0, 1024, 1))
			p.same()
			p.kernel("mkfs.ext4 -q -F /dev/drbd0 && blkdiscard -o 1M -l 2M /dev/drbd0")
			p.same()
			p.kernel("drbdadm secondary r0")
			p.turns()
			p.cli("primary", resource)
			p.trims()
			p.same()
			p.unbroken()
			p.part("hawser")
			p.hawserWrites(100, check.Options{})
			p.join()
			p.same()
		})
	}
	p.run("trim and zeroes", setup{}, func(*testing.T) {
		p.skipSync()
		p.kernel("drbdadm primary r0 && mkfs.ext4 -q -F /dev/drbd0")
		p.same()
		p.kernel(kernelWrites(0, 4096, 3))
		p.kernel("blkdiscard -o 1M -l 3M /dev/drbd0; blkdiscard -z -o 8M -l 5M /dev/drbd0; blkdiscard -z -o 20975616 -l 6656 /dev/drbd0")
		p.same()
		p.kernel("mkfs.ext4 -q -F /dev/drbd0 && mount -o discard /dev/drbd0 /mnt && dd if=/dev/urandom of=/mnt/a bs=64k count=80 conv=fsync 2>/dev/null && rm /mnt/a && sync && fstrim /mnt && umount /mnt")
		p.same()
		p.kernel("drbdadm secondary r0")
		p.cli("primary", resource)
		p.hawserWrites(300, check.Options{})
		p.trims()
		p.same()
		p.cli("secondary", resource)
		p.turns()
	})
	// Slow by the kernel: its controller does not count what comes as P_RS_DEALLOCATED, and soon asks for little.
	p.run("thin resync", setup{size: 8 << 20, kernelDisk: map[string]string{"rs-discard-granularity": "65536"}, hawserDisk: map[string]string{"rs-discard-granularity": "64K"}}, func(*testing.T) {
		p.kernel("drbdadm primary --force r0")
		p.same()
		p.kernel(kernelWrites(0, 4096, 3))
		p.cli("invalidate", "--force", resource)
		p.same()
		p.kernel("drbdadm secondary r0")
		p.cli("primary", resource)
		p.kernel("drbdadm invalidate r0")
		p.same()
	})
	p.run("file system through hawser", setup{}, func(*testing.T) {
		p.skipSync()
		p.cli("primary", resource)
		p.kernel("modprobe nbd && nbd-client -N r0/0 " + hawserIP + " 10809 /dev/nbd0 && mkfs.ext4 -q /dev/nbd0 && mount -o discard /dev/nbd0 /mnt && " +
			"dd if=/dev/urandom of=/mnt/a bs=64k count=80 conv=fsync 2>/dev/null && md5sum </mnt/a >/run/sum && rm -f /mnt/b && fstrim /mnt && umount /mnt && nbd-client -d /dev/nbd0")
		p.same()
		p.cli("secondary", resource)
		p.kernel("drbdadm primary r0 && e2fsck -fn /dev/drbd0 && mount /dev/drbd0 /mnt && md5sum </mnt/a | cmp - /run/sum && umount /mnt")
	})
	p.run("protocol switched by hawser", setup{}, func(*testing.T) {
		p.skipSync()
		p.cli("primary", resource)
		w := p.load(0, check.Options{})
		for _, protocol := range []string{"A", "B", "C", "A", "C"} {
			p.acks(w, 100)
			p.cli("protocol", resource, protocol)
			p.until("the kernel follows", stateLimit, func() bool { v := p.proc(); return len(v) > 0 && v[0].protocol == protocol })
		}
		p.acks(w, 100)
		p.quiet(w)
		p.same()
		p.unbroken()
	})
	p.run("protocol switched by the kernel", setup{}, func(*testing.T) {
		p.skipSync()
		p.kernel("drbdadm primary r0")
		p.kernel("(" + kernelWrites(0, 32768, 6) + "; echo $? >/run/fio.rc) </dev/null >/dev/null 2>&1 &")
		for _, protocol := range []string{"A", "B", "C", "A", "C"} {
			p.kernel("drbdsetup net-options ipv4:" + kernelIP + ":7788 ipv4:" + hawserIP + ":7788 --protocol=" + protocol)
			p.until("hawser follows", stateLimit, func() bool { return p.now().Peers[0].Protocol == protocol })
		}
		p.until("the end of fio", syncLimit, func() bool {
			out, err := p.lab.TryExec(machine, "cat /run/fio.rc")
			return err == nil && strings.TrimSpace(out) == "0"
		})
		p.same()
		p.unbroken()
	})
	p.run("resize by hawser", setup{}, func(*testing.T) {
		p.skipSync()
		p.cli("primary", resource)
		p.hawserWrites(100, check.Options{})
		p.grow(48 << 20)
		p.cli("resize", resource)
		p.grown(40 << 20)
		p.hawserWrites(200, check.Options{Seed: 3})
		p.same()
	})
	p.run("resize by the kernel", setup{size: 64 << 20, kernelDisk: map[string]string{"size": "40M"}}, func(*testing.T) {
		p.skipSync()
		p.kernel("drbdadm primary r0")
		p.kernel(kernelWrites(0, 2048, 1))
		p.kernel("drbdsetup resize 0 --size=56M")
		p.grown(56 << 20)
		p.kernel(kernelWrites(0, 4096, 2))
		p.same()
	})
	p.run("two volumes", setup{volumes: 2}, func(*testing.T) {
		p.kernel("drbdadm primary --force r0")
		p.same()
		p.kernel("drbdadm secondary r0")
		p.turns()
		p.cli("primary", resource)
		p.part("kernel")
		p.hawserWrites(100, check.Options{Seed: 5})
		p.join()
		p.same()
	})
}

// unbroken checks that the connection is the first.
func (p *pair) unbroken() {
	p.t.Helper()
	p.kernel("! dmesg | grep -E 'conn\\( [A-Z][A-Za-z]* -> (TearDown|Timeout|BrokenPipe|NetworkFailure|ProtocolError|Disconnecting) '")
}

// trims discards places of hawser's volume, odd ones too.
func (p *pair) trims() {
	p.t.Helper()
	d, err := p.target(0)(p.t.Context())
	if err != nil {
		p.t.Fatal(err)
	}
	defer d.Close()
	for _, x := range []struct{ off, n int64 }{{0, 1 << 20}, {3 << 20, 4096}, {5<<20 + 512, 1024}, {7<<20 - 512, 1 << 20}, {9 << 20, 12 << 20}} {
		for _, do := range []struct {
			name string
			f    func(off, n int64) error
		}{{"trim", d.(interface{ Trim(off, n int64) error }).Trim}, {"zero", d.(interface{ Zero(off, n int64) error }).Zero}} {
			if err := do.f(x.off, x.n); err != nil {
				p.t.Errorf("%s %d+%d: %v", do.name, x.off, x.n, err)
			}
			x.off += 512
		}
	}
	if err := d.Flush(); err != nil {
		p.t.Error(err)
	}
}

// grow makes hawser's disk larger.
func (p *pair) grow(size int64) {
	p.t.Helper()
	if err := os.Truncate(p.disk(0), size); err != nil {
		p.t.Fatal(err)
	}
}

// grown waits for a size.
func (p *pair) grown(least int64) {
	p.t.Helper()
	p.wait(fmt.Sprintf("%d bytes", least), stateLimit, func(st *control.Status, _ int) bool { return st.Volumes[0].Size >= least }, nil)
	p.until("the kernel's size", stateLimit, func() bool {
		out, err := p.lab.TryExec(machine, "echo $(($(cat /sys/block/drbd0/size) * 512))")
		return err == nil && strings.TrimSpace(out) == fmt.Sprint(p.now().Volumes[0].Size)
	})
}
