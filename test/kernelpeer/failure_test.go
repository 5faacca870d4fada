package kernelpeer

import (
	"bytes"
	"syscall"
	"testing"

	"github.com/hawser-ha/hawser/replicator/control"
	"github.com/hawser-ha/hawser/test/check"
)

// testFailures: what happens when one of the two dies, or its disk.
func testFailures(p *pair) {
	p.run("hawser dies as Primary", setup{}, func(*testing.T) {
		p.skipSync()
		p.cli("primary", resource)
		h := check.NewHistory(nil)
		w := p.load(0, check.Options{History: h})
		p.acks(w, 200)
		p.kill()
		w.Stop()
		p.same()
		p.judge(h)
		p.cli("primary", resource)
		p.hawserWrites(100, check.Options{Seed: 2})
		p.same()
	})
	p.run("hawser dies as Secondary", setup{}, func(*testing.T) {
		p.skipSync()
		p.kernel("drbdadm primary r0")
		p.kernel("(" + kernelWrites(0, 16384, 6) + ") </dev/null >/dev/null 2>&1 & sleep 1")
		p.kill()
		p.kernel("while pidof fio >/dev/null; do sleep 0.2; done")
		p.connected()
		p.same()
	})
	p.run("the kernel dies as Secondary", setup{}, func(*testing.T) {
		p.skipSync()
		p.cli("primary", resource)
		w := p.load(0, check.Options{})
		p.acks(w, 200)
		p.crash()
		p.acks(w, 200)
		p.reboot()
		p.acks(w, 100)
		p.quiet(w)
		p.same()
	})
	p.run("the kernel dies as Primary", setup{}, func(*testing.T) {
		p.skipSync()
		p.kernel("drbdadm primary r0")
		p.kernel("(" + kernelWrites(0, 16384, 6) + ") </dev/null >/dev/null 2>&1 & sleep 2")
		p.crash()
		p.reboot()
		p.same()
		p.turns()
	})
	p.run("the kernel dies as Primary and hawser takes over", setup{}, func(*testing.T) {
		p.skipSync()
		p.kernel("drbdadm primary r0")
		p.kernel("(" + kernelWrites(0, 16384, 6) + ") </dev/null >/dev/null 2>&1 & sleep 2")
		p.crash()
		p.cli("primary", resource)
		p.hawserWrites(100, check.Options{})
		p.reboot()
		p.hawserWrites(100, check.Options{Seed: 2})
		p.same()
	})
	for _, protocol := range []string{"A", "C"} {
		p.run("reconnects under load with protocol "+protocol, setup{net: map[string]string{"protocol": protocol}}, func(*testing.T) {
			p.skipSync()
			p.cli("primary", resource)
			w := p.load(0, check.Options{Reads: 10})
			for _, by := range []string{"hawser", "kernel", "hawser, by force"} {
				p.acks(w, 100)
				p.part(by)
				p.acks(w, 200)
				p.join()
				p.acks(w, 100)
				p.inSync()
			}
			p.quiet(w)
			p.settled()
			p.cli("secondary", resource)
			p.kernel("drbdadm primary r0")
			p.kernel("(while ! test -e /run/stop; do " + kernelWrites(0, 4096, 6) + "; done) </dev/null >/run/fio.out 2>&1 &")
			for _, by := range []string{"hawser", "kernel", "hawser, by force"} {
				p.part(by)
				p.kernel("sleep 1")
				p.join()
				p.kernel("sleep 1")
			}
			p.kernel("touch /run/stop; while pidof fio >/dev/null; do sleep 0.1; done; rm /run/stop")
			p.settled()
		})
	}
	p.run("congestion", setup{net: map[string]string{"protocol": "A", "on-congestion": "pull-ahead", "congestion-fill": "64K", "congestion-extents": "67"}}, func(*testing.T) {
		p.skipSync()
		p.cli("primary", resource)
		p.hawserWrites(2000, check.Options{Reads: -1, Depth: 32})
		p.settled()
		p.cli("secondary", resource)
		p.kernel("drbdadm primary r0")
		p.kernel(kernelWrites(0, 16384, 6))
		p.settled()
		p.kernel("dmesg | grep 'Connected -> Ahead' && dmesg | grep 'Connected -> Behind'")
		p.unbroken()
	})
	// What hawser may forget is only what the kernel has confirmed by a barrier ack.
	p.run("the kernel's disk loses its cache", setup{}, func(*testing.T) {
		p.skipSync()
		p.kernel("drbdadm down r0")
		p.lab.Script("vm", "stop", machine)
		p.volatile = true
		defer func() {
			p.crash()
			p.volatile = false
			p.boot()
		}()
		p.reboot()
		p.cli("primary", resource)
		for seed := range uint64(2) {
			w := p.load(0, check.Options{Seed: seed, Reads: -1})
			p.acks(w, 400)
			p.crash()
			p.acks(w, 50)
			p.reboot()
			p.quiet(w)
			p.same()
		}
		p.cli("secondary", resource)
		p.kernel("drbdadm primary r0")
		p.kernel("(" + kernelWrites(0, 16384, 6) + ") </dev/null >/dev/null 2>&1 & sleep 2")
		p.crash()
		p.reboot()
		p.same()
	})
	p.run("the kernel without a disk", setup{}, func(*testing.T) {
		p.skipSync()
		p.kernel("drbdadm primary r0")
		p.kernel(kernelWrites(0, 2048, 1))
		p.kernel("drbdadm detach r0 && dd if=/dev/drbd0 bs=64k iflag=direct 2>/dev/null | md5sum >/run/sum")
		p.kernel(kernelWrites(0, 2048, 2))
		p.kernel("drbdadm attach r0")
		p.same()
		p.kernel("drbdadm secondary r0")
		p.cli("primary", resource)
		p.kernel("drbdadm detach r0")
		p.hawserWrites(100, check.Options{})
		p.kernel("drbdadm attach r0")
		p.same()
	})
	p.run("hawser without a disk", setup{}, func(*testing.T) {
		p.skipSync()
		p.cli("primary", resource)
		h := check.NewHistory(nil)
		w := p.load(0, check.Options{History: h})
		p.acks(w, 100)
		p.cli("detach", resource)
		p.acks(w, 100)
		p.cli("attach", resource)
		p.acks(w, 100)
		p.quiet(w)
		p.same()
		p.judge(h)
		p.cli("secondary", resource)
		p.kernel("drbdadm primary r0")
		p.cli("detach", resource)
		p.kernel(kernelWrites(0, 2048, 1))
		p.cli("attach", resource)
		p.same()
	})
	p.run("the network fails", setup{}, func(*testing.T) {
		p.skipSync()
		p.cli("primary", resource)
		w := p.load(0, check.Options{})
		p.acks(w, 100)
		p.lab.Script("vm", "link", machine, "down")
		p.wait("apart", stateLimit, func(st *control.Status, _ int) bool { return st.Peers[0].Connection != "Connected" }, nil)
		p.acks(w, 100)
		p.lab.Script("vm", "link", machine, "up")
		p.connected()
		p.acks(w, 100)
		p.quiet(w)
		p.same()
	})
}

// kill ends the replicator; the agent starts it again.
func (p *pair) kill() {
	p.t.Helper()
	pid := p.now().PID
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		p.t.Fatal(err)
	}
	p.until("another replicator", stateLimit, func() bool {
		st, err := p.status()
		return err == nil && st.PID != pid
	})
	p.connected()
}

// crash takes the machine's power away.
func (p *pair) crash() {
	p.t.Helper()
	p.lab.Script("vm", "kill", machine)
}

// reboot starts the machine and its resource.
func (p *pair) reboot() {
	p.t.Helper()
	p.boot()
	p.kernel("rm -rf /etc/drbd.d; cat >/etc/drbd.conf <<'END'\n" + p.drbdConf() + "END\ndmesg -c >/dev/null; drbdadm up r0")
	p.connected()
}

// judge looks on both disks for what the clients of hawser's volume wrote, and at what they read.
func (p *pair) judge(h *check.History) {
	p.t.Helper()
	size := p.now().Volumes[0].Size
	replicas := []check.Replica{{Name: "hawser", ReaderAt: bytes.NewReader(p.read(p.disk(0), size))},
		{Name: "kernel", ReaderAt: bytes.NewReader(p.read(p.disks[0], size))}}
	v, err := check.Verify(p.t.Context(), h, replicas, check.Rules{Size: size, Identical: true})
	if err != nil {
		p.t.Fatal(err)
	}
	p.t.Log(v)
	if err := v.Err(); err != nil || v.Acked == 0 {
		p.t.Errorf("%d writes were acknowledged: %v", v.Acked, err)
	}
}
