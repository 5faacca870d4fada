package kernelpeer

import (
	"testing"

	"github.com/hawser-ha/hawser/test/check"
)

// TestKernelPeer runs every case with the same machine.
func TestKernelPeer(t *testing.T) {
	p := newPair(t)
	p.run("full sync from hawser", setup{}, func(t *testing.T) {
		p.cli("primary", "--force", resource)
		p.hawserWrites(200, check.Options{})
		p.same()
	})
	p.run("full sync from the kernel", setup{}, func(t *testing.T) {
		p.kernel("drbdadm primary --force r0")
		p.kernel(kernelWrites(0, 4096, 1))
		p.same()
	})
}
