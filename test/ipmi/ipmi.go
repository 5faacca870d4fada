package ipmi

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// What the board knows of its only user.
const (
	User     = "admin"
	Password = "se-cret_17"
)

// Board is one management board with the machine that it switches.
type Board struct {
	t     testing.TB
	dir   string
	relay *relay
	Host  string
	Port  int
}

// Start gives a board on a port of its own, until the test ends.
func Start(t testing.TB) *Board {
	t.Helper()
	for _, p := range []string{"ipmi_sim", "ipmitool"} {
		if _, err := exec.LookPath(p); err != nil {
			t.Fatalf("%v: install openipmi and ipmitool (make deps)", err)
		}
	}
	_, file, _, _ := runtime.Caller(0)
	hook, err := filepath.Abs(filepath.Join(filepath.Dir(file), "hook"))
	if err != nil {
		t.Fatal(err)
	}
	b := &Board{t: t, dir: t.TempDir(), Host: "127.0.0.1"}
	port := freePort(t)
	conf := fmt.Sprintf(`name "board"
set_working_mc 0x20
  startlan 1
    addr 127.0.0.1 %d
    priv_limit admin
    allowed_auths_callback none md2 md5 straight
    allowed_auths_user none md2 md5 straight
    allowed_auths_operator none md2 md5 straight
    allowed_auths_admin none md2 md5 straight
    guid 68617773657261626162616365000100
  endlan
  chassis_control "%s %s"
  user 1 false "" "" user 10 none
  user 2 true "%s" "%s" admin 10 none md2 md5 straight
`, port, hook, b.dir, User, Password)
	emu := "mc_setbmc 0x20\nmc_add 0x20 0 no-device-sdrs 0x23 9 8 0x9f 0x1291 0xf02 persist_sdr\nsel_enable 0x20 1000 0x0a\nmc_enable 0x20\n"
	for name, text := range map[string]string{"lan.conf": conf, "emu": emu} {
		if err := os.WriteFile(filepath.Join(b.dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	log, err := os.Create(filepath.Join(b.dir, "sim.log"))
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("ipmi_sim", "-c", filepath.Join(b.dir, "lan.conf"), "-f", filepath.Join(b.dir, "emu"), "-s", filepath.Join(b.dir, "state"), "-n")
	cmd.Stdout, cmd.Stderr = log, log
	if err := os.Mkdir(filepath.Join(b.dir, "state"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait() // it was killed
		_ = log.Close()
	})
	b.relay = newRelay(t, port)
	b.Port = b.relay.port()
	deadline := time.Now().Add(20 * time.Second)
	for {
		out, err := exec.Command("ipmitool", "-I", "lan", "-N", "1", "-R", "1", "-H", "127.0.0.1", "-p", fmt.Sprint(port), "-U", User, "-P", Password, "mc", "guid").CombinedOutput()
		if err == nil {
			return b
		}
		if time.Now().After(deadline) {
			said, _ := os.ReadFile(log.Name())
			t.Fatalf("the board does not answer: %v: %s\n%s", err, out, said)
		}
	}
}

func freePort(t testing.TB) int {
	t.Helper()
	c, err := net.ListenPacket("udp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	port := c.LocalAddr().(*net.UDPAddr).Port
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	return port
}

// IsOff tells whether the machine's power is off.
func (b *Board) IsOff() bool {
	_, err := os.Stat(filepath.Join(b.dir, "off"))
	return err == nil
}

// Cuts tells how often its power went.
func (b *Board) Cuts() int {
	data, err := os.ReadFile(filepath.Join(b.dir, "cuts"))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		b.t.Error(err)
	}
	return bytes.Count(data, []byte("\n"))
}

// Asked counts the commands of a kind that the machine got, such as "set power 0".
func (b *Board) Asked(what string) int {
	data, err := os.ReadFile(filepath.Join(b.dir, "log"))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		b.t.Error(err)
	}
	return strings.Count(string(data), what)
}

// Stick makes the board silent, as one whose firmware hangs; and answer again.
func (b *Board) Stick(on bool) { b.relay.silent.Store(on) }

// Slow makes every answer take this long.
func (b *Board) Slow(d time.Duration) { b.relay.delay.Store(int64(d)) }

// Ignore makes the machine ignore what the board acknowledges.
func (b *Board) Ignore() { b.flag("ignore") }

// StaysOff makes only turning on fail.
func (b *Board) StaysOff() { b.flag("on-fails") }

func (b *Board) flag(name string) {
	b.t.Helper()
	if err := os.WriteFile(filepath.Join(b.dir, name), nil, 0o600); err != nil {
		b.t.Fatal(err)
	}
}

// relay passes datagrams between clients and the simulator.
type relay struct {
	front  *net.UDPConn
	to     *net.UDPAddr
	silent atomic.Bool
	delay  atomic.Int64
	wg     sync.WaitGroup

	mu    sync.Mutex // guards backs
	backs map[string]*net.UDPConn
}

func newRelay(t testing.TB, port int) *relay {
	t.Helper()
	front, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	r := &relay{front: front, to: &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1), Port: port}, backs: map[string]*net.UDPConn{}}
	r.wg.Go(r.forward)
	t.Cleanup(func() {
		_ = front.Close()
		r.mu.Lock()
		for _, c := range r.backs {
			_ = c.Close()
		}
		r.mu.Unlock()
		r.wg.Wait()
	})
	return r
}

func (r *relay) port() int { return r.front.LocalAddr().(*net.UDPAddr).Port }

func (r *relay) forward() {
	buf := make([]byte, 2048)
	for {
		n, from, err := r.front.ReadFromUDP(buf)
		if err != nil {
			return // closed, or as good as
		}
		if r.silent.Load() {
			continue
		}
		r.mu.Lock()
		back := r.backs[from.String()]
		if back == nil {
			if back, err = net.DialUDP("udp4", nil, r.to); err == nil {
				r.backs[from.String()] = back
				r.wg.Go(func() { r.answers(back, from) })
			}
		}
		r.mu.Unlock()
		if err == nil {
			_, _ = back.Write(buf[:n]) // a datagram may get lost
		}
	}
}

func (r *relay) answers(back *net.UDPConn, to *net.UDPAddr) {
	buf := make([]byte, 2048)
	for {
		n, err := back.Read(buf)
		if err != nil {
			return
		}
		if r.silent.Load() {
			continue
		}
		if d := time.Duration(r.delay.Load()); d > 0 {
			<-time.After(d)
		}
		_, _ = r.front.WriteToUDP(buf[:n], to)
	}
}
