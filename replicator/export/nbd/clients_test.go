package nbd

import (
	"bytes"
	"context"
	"errors"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/hawser-ha/hawser/replicator/export"
)

// tool finds a client program.
func tool(t testing.TB, name, pkg string) string {
	t.Helper()
	path, err := exec.LookPath(name)
	if err != nil {
		t.Fatalf("%s is not there: install %s (make deps)", name, pkg)
	}
	return path
}

// run runs a client and returns its output; it must succeed.
func run(t testing.TB, name string, args ...string) string {
	t.Helper()
	out, err := try(t, name, args...)
	if err != nil {
		t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, out)
	}
	return out
}

func try(t testing.TB, name string, args ...string) (string, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir = t.TempDir()
	cmd.Env = append(os.Environ(), "PATH=/usr/bin:"+os.Getenv("PATH")) // nbdsh needs the system's python
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	err := cmd.Run()
	return out.String(), err
}

// start serves volumes, named by their place ("v0", "v1", ...), on a unix socket and returns it.
func start(t testing.TB, cfg Config, volumes ...export.Volume) (*Server, string) {
	t.Helper()
	dir, err := os.MkdirTemp("", "nbd") // socket paths are short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	cfg.Unix = filepath.Join(dir, "s")
	s := New(cfg)
	for i, v := range volumes {
		if err := s.Add("v"+string(rune('0'+i)), "volume "+string(rune('0'+i)), v); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
		defer cancel()
		if err := s.Close(ctx); err != nil {
			t.Errorf("close: %v", err)
		}
		if _, err := net.Dial("unix", cfg.Unix); err == nil {
			t.Error("somebody listens after Close")
		}
		if _, err := os.Lstat(cfg.Unix); !os.IsNotExist(err) {
			t.Errorf("socket is left over: %v", err)
		}
		if used := s.pool.InUse(); used != 0 {
			t.Errorf("%d bytes of buffers are still lent after Close", used)
		}
	})
	return s, cfg.Unix
}

func uri(sock, name string) string { return "nbd+unix:///" + name + "?socket=" + sock }

func TestNbdinfo(t *testing.T) {
	nbdinfo := tool(t, "nbdinfo", "libnbd-bin")
	_, sock := start(t, Config{}, newMemVolume(64<<20), newMemVolume(1<<20))
	out := run(t, nbdinfo, uri(sock, ""))
	t.Log(out)
	for _, want := range []string{"export-size: 67108864", "can_multi_conn: true", "can_fua: true", "can_fast_zero: true",
		"can_df: true", "is_read_only: false", "block_size_minimum: 512", "block_size_maximum: 33554432", "base:allocation"} {
		if !strings.Contains(out, want) {
			t.Errorf("nbdinfo does not say %q", want)
		}
	}
	if out := run(t, nbdinfo, "--list", uri(sock, "")); !strings.Contains(out, `export="v0"`) || !strings.Contains(out, `export="v1"`) ||
		!strings.Contains(out, "volume 1") {
		t.Errorf("nbdinfo --list: %s", out)
	}
	run(t, nbdinfo, "--json", uri(sock, "v1"))
	run(t, nbdinfo, "--can", "multi-conn", uri(sock, "v1"))
	if out := run(t, nbdinfo, "--size", uri(sock, "v1")); out != "1048576\n" {
		t.Errorf("nbdinfo --size: %q", out)
	}
	if out := run(t, nbdinfo, "--map", uri(sock, "v1")); !strings.Contains(out, "1048576    3  hole,zero") {
		t.Errorf("nbdinfo --map: %q", out)
	}
	if out, err := try(t, nbdinfo, uri(sock, "other")); err == nil || !strings.Contains(out, "No such file or directory for export: other") {
		t.Errorf("nbdinfo of an unknown export: %v %s", err, out)
	}
}

// randomFile writes n random bytes to a file.
func randomFile(t testing.TB, n int) string {
	t.Helper()
	b := make([]byte, n)
	rng := rand.NewChaCha8([32]byte{1})
	for at := 0; at < n; at += 1 << 20 { // every other MiB stays zero
		if at>>20%2 == 0 {
			rng.Read(b[at:min(n, at+1<<20)])
		}
	}
	path := filepath.Join(t.TempDir(), "random")
	if err := os.WriteFile(path, b, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestNbdcopy(t *testing.T) {
	nbdcopy := tool(t, "nbdcopy", "libnbd-bin")
	v := newMemVolume(32 << 20)
	v.shuffle = rand.New(rand.NewPCG(1, 1))
	_, sock := start(t, Config{}, v)
	from := randomFile(t, 32<<20)
	run(t, nbdcopy, "--connections=2", "--requests=64", "--flush", from, uri(sock, ""))
	if v.flushes.Load() == 0 {
		t.Error("no flush came")
	}
	back := filepath.Join(t.TempDir(), "back")
	run(t, nbdcopy, "--connections=2", uri(sock, ""), back)
	run(t, "cmp", from, back)
}

func TestNbdsh(t *testing.T) {
	nbdsh := tool(t, "nbdsh", "libnbd-bin, python3-libnbd")
	v := newMemVolume(64 << 20)
	v.limits.MaxIO = 1 << 20
	_, sock := start(t, Config{}, v)
	out := run(t, nbdsh, "--base-allocation", "-u", uri(sock, ""), "-c", `
h.pwrite(b"x" * 4096, 0, nbd.CMD_FLAG_FUA)
h.flush()
assert h.pread(4096, 0) == b"x" * 4096
h.trim(4096, 4096)
h.zero(4096, 8192, nbd.CMD_FLAG_NO_HOLE)
h.zero(4096, 12288, nbd.CMD_FLAG_FAST_ZERO)
h.cache(4096, 0)
h.pread_structured(4096, 0, lambda b, o, s, e: 0, nbd.CMD_FLAG_DF)
big = bytes(range(256)) * 131072
h.pwrite(big, 0)
assert h.pread(len(big), 0) == big
h.trim(16 << 20, 8 << 20)
h.block_status(32 << 20, 0, lambda m, o, e, err: print(m, o, e))
h.set_strict_mode(0)
def fails(what, want, f):
    try:
        f()
    except nbd.Error as e:
        assert e.errno == want, (what, e.errno)
        print("ok", what)
    else:
        raise Exception(what + " was accepted")
size = h.get_size()
fails("read beyond the end", "EINVAL", lambda: h.pread(512, size))
fails("write beyond the end", "ENOSPC", lambda: h.pwrite(b"x" * 512, size))
fails("zero beyond the end", "ENOSPC", lambda: h.zero(512, size))
fails("trim beyond the end", "EINVAL", lambda: h.trim(512, size))
fails("unaligned read", "EINVAL", lambda: h.pread(512, 1))
fails("unaligned write", "EINVAL", lambda: h.pwrite(b"x", 0))
fails("unknown flag", "EINVAL", lambda: h.pread(512, 0, nbd.CMD_FLAG_FAST_ZERO))
fails("oversize read", "EINVAL", lambda: h.pread(33 << 20, 0))
fails("oversize write", "EINVAL", lambda: h.pwrite(bytes(33 << 20), 0))
assert h.pread(512, 0) == big[:512]
h.shutdown()
`)
	if !strings.Contains(out, "base:allocation 0 [8388608, 0, 16777216, 3, 8388608, 0]") || strings.Count(out, "ok ") != 9 {
		t.Errorf("nbdsh: %s", out)
	}
	if v.fua.Load() != 1 || v.flushes.Load() != 1 || v.noHole.Load() != 1 {
		t.Errorf("%d FUA, %d flushes, %d without holes", v.fua.Load(), v.flushes.Load(), v.noHole.Load())
	}
}

// TestPolicyReason: the reason for a refusal is what a person sees.
func TestPolicyReason(t *testing.T) {
	qemuImg := tool(t, "qemu-img", "qemu-utils") // libnbd 1.14 tells it only to those who debug
	v := newMemVolume(1 << 20)
	v.demote("r0/0 is Secondary: hawser primary r0 makes it writable")
	_, sock := start(t, Config{}, v)
	if out, err := try(t, qemuImg, "info", uri(sock, "")); err == nil || !strings.Contains(out, "hawser primary r0 makes it writable") {
		t.Errorf("qemu-img: %v, %s", err, out)
	}
}

func TestQemuImg(t *testing.T) {
	qemuImg := tool(t, "qemu-img", "qemu-utils")
	v := newMemVolume(32 << 20)
	_, sock := start(t, Config{}, v)
	from, u := randomFile(t, 32<<20), uri(sock, "v0")
	if out := run(t, qemuImg, "info", u); !strings.Contains(out, "virtual size: 32 MiB") {
		t.Errorf("info: %s", out)
	}
	run(t, qemuImg, "convert", "-n", "-f", "raw", "-O", "raw", from, u)
	run(t, qemuImg, "compare", "-f", "raw", "-F", "raw", from, u)
	back := filepath.Join(t.TempDir(), "back")
	run(t, qemuImg, "convert", "-f", "raw", "-O", "raw", u, back)
	run(t, "cmp", from, back)
	if out := run(t, qemuImg, "map", "--output=json", "-f", "raw", u); !strings.Contains(out, `"zero": true`) {
		t.Errorf("map: %s", out)
	}
	run(t, qemuImg, "bench", "-c", "2000", "-d", "16", "-w", "-s", "4k", "-f", "raw", u)
	run(t, qemuImg, "bench", "-c", "2000", "-d", "16", "-s", "4k", "-f", "raw", u)
}

// ioScript is for qemu-io, in writeback mode or not.
var ioScript = []string{"-c", "write -P 0xaa 0 64k", "-c", "read -P 0xaa 0 64k", "-c", "write -z 64k 64k", "-c", "read -P 0 64k 64k",
	"-c", "write -z -u 128k 64k", "-c", "discard 128k 64k", "-c", "write -f -P 1 0 4k", "-c", "flush", "-c", "aio_write -P 3 1M 1M",
	"-c", "aio_write -P 4 2M 1M", "-c", "aio_flush", "-c", "read -P 3 1M 1M", "-c", "read -P 4 2M 1M", "-c", "read -P 1 0 4k",
	"-c", "read -P 0xaa 4k 60k", "-c", "write -P 7 511 1026", "-c", "read -P 7 511 1026"}

func TestQemuIO(t *testing.T) {
	qemuIO := tool(t, "qemu-io", "qemu-utils")
	v := newMemVolume(32 << 20)
	_, sock := start(t, Config{}, v)
	out := run(t, qemuIO, append([]string{"-f", "raw", uri(sock, "")}, ioScript...)...)
	if strings.Contains(out, "failed") {
		t.Errorf("qemu-io: %s", out)
	}
	if v.fua.Load() == 0 || v.flushes.Load() == 0 {
		t.Errorf("%d FUA, %d flushes came", v.fua.Load(), v.flushes.Load())
	}
}

// TestQemuNbd puts qemu-nbd between a client and us.
func TestQemuNbd(t *testing.T) {
	qemuNbd, qemuIO, nbdinfo := tool(t, "qemu-nbd", "qemu-utils"), tool(t, "qemu-io", "qemu-utils"), tool(t, "nbdinfo", "libnbd-bin")
	_, sock := start(t, Config{}, newMemVolume(32<<20))
	proxy := sock + "p"
	cmd := exec.Command(qemuNbd, "-k", proxy, "-f", "raw", "--persistent", "--discard=unmap", uri(sock, ""))
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { cmd.Process.Kill(); cmd.Wait() }()
	waitFor(t, "qemu-nbd's socket", func() bool { _, err := os.Stat(proxy); return err == nil })
	if out := run(t, qemuIO, append([]string{"-f", "raw", uri(proxy, "")}, ioScript...)...); strings.Contains(out, "failed") {
		t.Errorf("qemu-io: %s", out)
	}
	if out := run(t, nbdinfo, uri(proxy, "")); !strings.Contains(out, "33554432") {
		t.Errorf("nbdinfo: %s", out)
	}
}

func TestFioVerify(t *testing.T) {
	fio := tool(t, "fio", "fio")
	for _, bs := range []string{"4k-4k", "4k-512k"} {
		v := newMemVolume(32 << 20)
		v.shuffle = rand.New(rand.NewPCG(5, 5))
		v.limits.MaxIO = 128 << 10
		_, sock := start(t, Config{}, v)
		out := run(t, fio, "--name=v", "--ioengine=nbd", "--uri="+uri(sock, ""), "--rw=randwrite", "--bsrange="+bs, "--iodepth=16",
			"--size=32M", "--verify=crc32c", "--do_verify=1", "--verify_fatal=1", "--verify_state_save=0")
		v.mu.Lock()
		n := len(v.submits)
		v.mu.Unlock()
		if !strings.Contains(out, "err= 0") || n == 0 {
			t.Errorf("fio: %s", out)
		}
	}
}

func TestUnixSocket(t *testing.T) {
	dir, err := os.MkdirTemp("", "nbd")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	path := filepath.Join(dir, "s")
	begin := func() (*Server, error) {
		s := New(Config{Unix: path})
		return s, s.Start()
	}
	stale, err := net.ListenUnix("unix", &net.UnixAddr{Name: path})
	if err != nil {
		t.Fatal(err)
	}
	stale.SetUnlinkOnClose(false)
	stale.Close()
	s, err := begin()
	if err != nil {
		t.Fatalf("a stale socket is in the way: %v", err)
	}
	if fi, err := os.Stat(path); err != nil || fi.Mode().Perm() != 0o660 {
		t.Errorf("mode %v, %v", fi.Mode(), err)
	}
	if _, err := begin(); !errors.Is(err, syscall.EADDRINUSE) || !strings.Contains(err.Error(), "live server") {
		t.Errorf("two servers at one socket: %v", err)
	}
	if nc, err := net.Dial("unix", path); err != nil {
		t.Errorf("the first server is gone: %v", err)
	} else {
		nc.Close()
	}
	if err := s.Close(t.Context()); err != nil {
		t.Error(err)
	}
	if err := os.WriteFile(path, []byte("precious"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := begin(); err == nil {
		t.Error("a file was taken for a stale socket")
	}
	if b, _ := os.ReadFile(path); string(b) != "precious" {
		t.Error("a file was removed")
	}
}

func TestServe(t *testing.T) {
	dir, err := os.MkdirTemp("", "nbd")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	s := New(Config{Unix: filepath.Join(dir, "s")})
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- s.Serve(ctx) }()
	waitFor(t, "the socket", func() bool { _, err := os.Stat(s.cfg.Unix); return err == nil })
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(s.cfg.Unix); !os.IsNotExist(err) {
		t.Errorf("the socket is left: %v", err)
	}
}
