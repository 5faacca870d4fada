package replicator

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/hawser-ha/hawser/replicator/control"
	"github.com/hawser-ha/hawser/replicator/export"
	"github.com/hawser-ha/hawser/replicator/wire"
)

// split has both nodes write apart; a stays Primary if aPri, b if bPri.
func (x *trial) split(t *testing.T, aPri, bPri bool) {
	t.Helper()
	x.part(t)
	c := x.a.open(t)
	c.write(0, fill(0xa, 4096))
	c.s.Close()
	must(t, x.b.Promote(ctxFor(t), true))
	d := x.b.open(t)
	d.write(0, fill(0xb, 4096))
	d.write(1<<20, fill(0xb, 64<<10))
	d.s.Close()
	if !aPri {
		must(t, x.a.Demote(ctxFor(t), false))
	}
	if !bPri {
		must(t, x.b.Demote(ctxFor(t), false))
	}
	x.meet(t)
}

// TestAfterSplitBrain: what each policy does with two nodes that wrote apart, b the most.
func TestAfterSplitBrain(t *testing.T) {
	for _, k := range []struct {
		rule       string
		aPri, bPri bool
		set        func(n *control.NetOpts)
		win        byte // 0: both stop, and the handler split-brain is asked for
	}{
		{"no policy", false, false, nil, 0},
		{"0pri discard-least-changes", false, false, func(n *control.NetOpts) { n.AfterSB0Pri = "discard-least-changes" }, 0xb},
		{"0pri discard-zero-changes", false, false, func(n *control.NetOpts) { n.AfterSB0Pri = "discard-zero-changes" }, 0},
		{"1pri alone says nothing about 0pri", false, false, func(n *control.NetOpts) { n.AfterSB1Pri = "discard-secondary" }, 0},
		{"1pri discard-secondary", true, false, func(n *control.NetOpts) { n.AfterSB1Pri = "discard-secondary" }, 0xa},
		{"1pri consensus that there is none of", true, false, func(n *control.NetOpts) {
			n.AfterSB0Pri, n.AfterSB1Pri = "discard-least-changes", "consensus"
		}, 0},
		{"1pri call-pri-lost-after-sb", true, false, func(n *control.NetOpts) {
			n.AfterSB0Pri, n.AfterSB1Pri = "discard-least-changes", "call-pri-lost-after-sb"
		}, 0xb},
		{"2pri call-pri-lost-after-sb", true, true, func(n *control.NetOpts) {
			n.AllowTwoPrimaries, n.AfterSB0Pri, n.AfterSB2Pri = true, "discard-least-changes", "call-pri-lost-after-sb"
		}, 0xb},
		{"2pri without a policy", true, true, func(n *control.NetOpts) { n.AllowTwoPrimaries = true }, 0},
	} {
		t.Run(k.rule, func(t *testing.T) {
			x := try(t, netOpts(func(n *control.NetOpts) {
				if k.set != nil {
					k.set(n)
				}
			}))
			events := x.a.Subscribe(ctxFor(t), control.FromStart)
			x.split(t, k.aPri, k.bPri)
			want := map[*node]byte{x.a: 0xa, x.b: 0xb}
			if k.win == 0 {
				x.a.until(t, "stop", connection("StandAlone"))
				x.b.until(t, "stop", notConnected)
				awaitHandler(t, events, "split-brain")
			} else {
				x.synced(t)
				want[x.a], want[x.b] = k.win, k.win
			}
			for _, n := range []*node{x.a, x.b} {
				must(t, n.Down(ctxFor(t), true))
				got := make([]byte, 4096)
				f, err := os.Open(n.def.Volumes[0].Disk)
				must(t, err)
				_, err = f.ReadAt(got, 0)
				must(t, err)
				f.Close()
				if !bytes.Equal(got, fill(want[n], 4096)) {
					t.Errorf("node %s has %#x, want %#x", n.def.Node, got[0], want[n])
				}
			}
		})
	}
}

// TestBeforeResyncTarget: nothing of a resync, and nothing that is written meanwhile, reaches the target's disk before the
// handler ends; a handler that fails keeps it so.
func TestBeforeResyncTarget(t *testing.T) {
	x := try(t, nil)
	def := *x.b.Definition()
	def.Handlers = []string{"before-resync-target"}
	must(t, x.b.Adjust(ctxFor(t), &def))
	c := x.a.open(t)
	c.write(0, fill(1, 4096))
	must(t, c.do(export.Flush, 0, nil, false))
	c.write(4096, fill(1, 4096))
	for _, code := range []int{0, 1} {
		x.part(t)
		last := x.b.Status().LastEvent
		c.write(0, fill(byte(2+code), 8192))
		x.meet(t)
		e := awaitHandler(t, x.b.Subscribe(ctxFor(t), last), "before-resync-target")
		if e.Handler == 0 || e.Peer != "a" || e.Volume != 0 {
			t.Fatalf("event %+v", e)
		}
		written := x.b.Status().Volumes[0].Written
		c.write(1<<20, fill(byte(5+code), 4096)) // goes on, and is not sent
		if s := x.b.Status().Volumes[0]; s.Written != written || x.a.Status().Peers[0].Volumes[0].Replication != "WFBitMapS" {
			t.Errorf("%d bytes were written before the handler ended", s.Written-written)
		}
		must(t, x.b.HandlerResult(ctxFor(t), e.Handler, code))
		if code == 0 {
			x.synced(t)
			continue
		}
		x.b.until(t, "refusal", connection("StandAlone"))
	}
}

// TestAfterResyncTarget: its handler is asked for when the disk is good again.
func TestAfterResyncTarget(t *testing.T) {
	x := try(t, nil)
	awaitHandler(t, x.b.Subscribe(ctxFor(t), control.FromStart), "after-resync-target")
}

// TestThinResync: zeroes of the source stay holes of the target.
func TestThinResync(t *testing.T) {
	used := func(thin int) int64 {
		x := try(t, both(func(d *control.Definition) {
			d.Volumes[0].Opts.RSDiscardGranularity = thin
			d.Volumes[0].Opts.DirectIO = "no"
		}))
		x.a.open(t).write(0, fill(1, 1<<20))
		must(t, x.b.Invalidate(ctxFor(t), 0, "a"))
		x.a.until(t, "full resync", func(s *control.Status) bool { return upToDate(s) && x.tap.seen(wire.StateChgReq) > 1 })
		x.synced(t)
		must(t, x.b.Down(ctxFor(t), true))
		if n := x.tap.seen(wire.RSThinReq); (n > 0) != (thin > 0) {
			t.Errorf("rs-discard-granularity %d: %d thin requests", thin, n)
		}
		var s syscall.Stat_t
		must(t, syscall.Stat(x.b.def.Volumes[0].Disk, &s))
		return s.Blocks * 512
	}
	if thin, thick := used(1<<20), used(0); thin > 8<<20 || thick < 60<<20 {
		t.Errorf("the target's file takes %d bytes, without rs-discard-granularity %d", thin, thick)
	}
}

// TestOnNoDataAccessible: a Primary that lost its disk and then its peer answers with errors, or waits for one of them.
func TestOnNoDataAccessible(t *testing.T) {
	for _, policy := range []string{"io-error", "suspend-io"} {
		t.Run(policy, func(t *testing.T) {
			x := try(t, both(func(d *control.Definition) { d.Options.OnNoDataAccessible = policy }))
			c := x.a.open(t)
			c.write(0, fill(1, 4096))
			before := x.b.Status().Volumes[0].GI.Current
			must(t, x.a.Detach(ctxFor(t), 0, false))
			x.a.until(t, "generation of the peer's disk", func(s *control.Status) bool { // without it the nodes do not meet again
				now := x.b.Status().Volumes[0].GI.Current
				return now != before && s.Volumes[0].GI.Current|1 == now|1
			})
			must(t, x.b.Disconnect(ctxFor(t), "a", true))
			x.a.until(t, "lost peer", notConnected)
			data := make([]byte, 4096)
			done := c.begin(export.Read, 0, data)
			if policy == "io-error" {
				if err := <-done; err == nil {
					t.Error("a read of nothing succeeded")
				}
				return
			}
			x.a.until(t, "suspension", func(s *control.Status) bool { return len(s.Suspended) > 0 && s.Suspended[0] == "no-data" })
			must(t, x.b.Connect(ctxFor(t), "a", false))
			x.a.until(t, "answer", func(*control.Status) bool { return len(done) > 0 })
			must(t, <-done)
		})
	}
}

// TestUndoLogMax: a resync that would overwrite more than the undo log takes does not.
func TestUndoLogMax(t *testing.T) {
	dir := t.TempDir()
	x := try(t, func(a, b *control.Definition) {
		a.Peers[0].Net.AfterSB0Pri, b.Peers[0].Net.AfterSB0Pri = "discard-least-changes", "discard-least-changes"
		a.Options.UndoLog, a.Options.UndoLogMax = dir, 512
	})
	x.split(t, false, false)
	x.a.until(t, "refusal", func(s *control.Status) bool { return strings.Contains(s.Volumes[0].LastError, "undo") })
	if s := x.a.Status(); s.Volumes[0].DiskState == "UpToDate" {
		t.Errorf("it is %s", s.Volumes[0].DiskState)
	}
}

// TestChangesOnline: what adjust changes in a running resource acts at once, and what it cannot is refused.
func TestChangesOnline(t *testing.T) {
	x := try(t, nil)
	c := x.a.open(t)
	c.write(0, fill(1, 4096))
	change := func(f func(d *control.Definition)) error {
		d := *x.a.Definition()
		d.Volumes = append([]control.VolumeDef(nil), d.Volumes...)
		d.Peers = append([]control.PeerDef(nil), d.Peers...)
		f(&d)
		return x.a.Adjust(ctxFor(t), &d)
	}
	must(t, change(func(d *control.Definition) { d.Volumes[0].Opts.ReadBalancing = "prefer-remote" }))
	before := x.tap.seen(wire.DataRequest)
	c.expect(0, fill(1, 4096))
	if x.tap.seen(wire.DataRequest) == before {
		t.Error("read-balancing did not change")
	}
	for _, f := range []func(o *control.DiskOpts){
		func(o *control.DiskOpts) { o.ALExtents = 99 }, func(o *control.DiskOpts) { o.ALUpdates = false },
		func(o *control.DiskOpts) { o.MDFlushes = false }, func(o *control.DiskOpts) { o.DiskTimeout = time.Second },
		func(o *control.DiskOpts) { o.DirectIO = "no" },
	} {
		if err := change(func(d *control.Definition) { f(&d.Volumes[0].Opts) }); err == nil || !strings.Contains(err.Error(), "attached") {
			t.Errorf("changed under an attached disk: %v", err)
		}
	}
	if err := change(func(d *control.Definition) { d.Peers[0].Net.VerifyAlg = "md5" }); err == nil {
		t.Error("verify-alg changed under a connection")
	}
	if got := x.a.Definition().Peers[0].Net.VerifyAlg; got != "" {
		t.Errorf("a refused verify-alg %s is noted", got)
	}
	x.part(t)
	must(t, change(func(d *control.Definition) { d.Options.OnNoDataAccessible = "suspend-io" }))
}

// TestPaceOptions: each option of the resync controller reaches it; replicator/pace has tests of what they do.
func TestPaceOptions(t *testing.T) {
	p := control.PeerDef{Net: control.NetOpts{MaxBuffers: 100}, Resync: control.ResyncOpts{ResyncRate: 1, CPlanAhead: 2, CDelayTarget: 3,
		CFillTarget: 4, CMaxRate: 5, CMinRate: 6}}
	g := paceParams(&p)
	if g.ResyncRate != 1 || g.PlanAhead != 2 || g.DelayTarget != 3 || g.FillTarget != 4 || g.MaxRate != 5 || g.MaxInFlight != 400 {
		t.Errorf("%+v", g)
	}
	def := control.Definition{Peers: []control.PeerDef{p}}
	if c := coreConfig(&def, nil); c.Peers[0].MinRate != 6 {
		t.Errorf("c-min-rate %d", c.Peers[0].MinRate)
	}
	x := try(t, both(func(d *control.Definition) { d.Peers[0].Resync.CMaxRate = 65536 })) // 64 MiB/s, 64 MiB
	l := x.b.Status().Peers[0].Volumes[0].LastSync
	if d := l.Ended.Sub(l.Started); d < 700*time.Millisecond {
		t.Errorf("64 MiB at c-max-rate 64 MiB/s took %s", d)
	}
}

// TestNBDListensWithTLS: the server on TCP takes clients of its authority only.
func TestNBDListensWithTLS(t *testing.T) {
	if _, err := exec.LookPath("nbdinfo"); err != nil {
		t.Fatalf("install libnbd-bin (make deps): %v", err)
	}
	dir := t.TempDir()
	ca, caKey := issue(t, "ca", nil, nil, filepath.Join(dir, "ca-cert.pem"), filepath.Join(dir, "ca-key.pem"))
	issue(t, "server", ca, caKey, filepath.Join(dir, "server-cert.pem"), filepath.Join(dir, "server-key.pem"))
	issue(t, "client", ca, caKey, filepath.Join(dir, "client-cert.pem"), filepath.Join(dir, "client-key.pem"))
	def := definition(dir, "a", 0)
	def.NBD = control.NBDDef{Listen: "127.0.0.1:0", TLSCert: filepath.Join(dir, "server-cert.pem"), TLSKey: filepath.Join(dir, "server-key.pem"),
		TLSCA: filepath.Join(dir, "ca-cert.pem")}
	createMD(t, &def)
	a := start(t, def)
	must(t, a.Up(ctxFor(t)))
	must(t, a.Promote(ctxFor(t), true))
	a.until(t, "server", func(*control.Status) bool { return a.NBDAddr() != nil })
	at := a.NBDAddr().String() + "/r0/0"
	if out, err := exec.Command("nbdinfo", "--size", "nbds://"+at+"?tls-certificates="+dir).CombinedOutput(); err != nil {
		t.Errorf("%v: %s", err, out)
	}
	if out, err := exec.Command("nbdinfo", "--size", "nbd://"+at).CombinedOutput(); err == nil {
		t.Errorf("a client without TLS got in: %s", out)
	}
}

// issue makes a key and a certificate, of itself without ca.
func issue(t *testing.T, name string, ca *x509.Certificate, caKey *ecdsa.PrivateKey, certFile, keyFile string) (*x509.Certificate, *ecdsa.PrivateKey) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must(t, err)
	c := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name}, NotBefore: time.Now().Add(-time.Hour),
		NotAfter: time.Now().Add(time.Hour), IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, BasicConstraintsValid: true, IsCA: ca == nil,
		KeyUsage:    x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}}
	if ca == nil {
		ca, caKey = c, key
	} else {
		c.KeyUsage = x509.KeyUsageDigitalSignature
	}
	der, err := x509.CreateCertificate(rand.Reader, c, ca, &key.PublicKey, caKey)
	must(t, err)
	priv, err := x509.MarshalPKCS8PrivateKey(key)
	must(t, err)
	must(t, os.WriteFile(certFile, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o600))
	must(t, os.WriteFile(keyFile, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: priv}), 0o600))
	return c, key
}

// TestRRConflict: a Primary whose data is to be overwritten stops, asks its handler too, or follows the peer all the same.
// violently-as0p is what brings it there.
func TestRRConflict(t *testing.T) {
	for _, policy := range []string{"disconnect", "call-pri-lost", "violently"} {
		t.Run(policy, func(t *testing.T) {
			x := try(t, netOpts(func(n *control.NetOpts) {
				n.AfterSB0Pri, n.AfterSB1Pri, n.RRConflict = "discard-least-changes", "violently-as0p", policy
			}))
			events := x.a.Subscribe(ctxFor(t), control.FromStart)
			x.split(t, true, false)
			if policy == "violently" {
				x.synced(t)
				x.a.open(t).expect(0, fill(0xb, 4096))
				return
			}
			x.a.until(t, "refusal", connection("StandAlone"))
			if why := x.a.Status().Peers[0].LastError; !strings.Contains(why, "rr-conflict "+policy) {
				t.Errorf("why: %s", why)
			}
			x.a.open(t).expect(0, fill(0xa, 4096))
			asked := make(chan bool, 1)
			go func() { // until the node goes down
				found := false
				for e := range events {
					found = found || e.Kind == control.EventHandler && e.Name == "pri-lost"
				}
				asked <- found
			}()
			must(t, x.a.Down(ctxFor(t), true))
			if got := <-asked; got != (policy == "call-pri-lost") {
				t.Errorf("the handler pri-lost is asked for: %v", got)
			}
		})
	}
}
