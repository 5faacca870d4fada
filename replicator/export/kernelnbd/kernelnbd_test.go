package kernelnbd

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"log/slog"
	"net"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func TestEncode(t *testing.T) {
	tests := []struct {
		rule string
		p    params
		want string
	}{
		{"CONNECT carries size, block size, zero timeout, flags, socket, dead timeout and backend",
			params{index: -1, size: 1 << 20, block: 4096, connect: true, flags: 0x2d, deadConn: 3600, backend: "r0/0", socket: 7},
			"0c000200" + "0000100000000000" +
				"0c000300" + "0010000000000000" +
				"0c000400" + "0000000000000000" +
				"0c000500" + "2d00000000000000" +
				"10000780" + "0c000180" + "08000100" + "07000000" +
				"0c000800" + "100e000000000000" +
				"09000a00" + "72302f3000" + "000000"},
		{"RECONFIGURE names the device and says nothing of timeouts, which would reset the request timer",
			params{index: 3, size: 512, block: 512, backend: "x", socket: 9},
			"08000100" + "03000000" + "0c000200" + "0002000000000000" + "0c000300" + "0002000000000000" +
				"10000780" + "0c000180" + "08000100" + "09000000" + "06000a00" + "7800" + "0000"},
		{"a resize has no socket",
			params{index: 0, size: 512, backend: "x", socket: -1},
			"08000100" + "00000000" + "0c000200" + "0002000000000000" + "06000a00" + "7800" + "0000"},
		{"DISCONNECT has a number only", params{index: 2, socket: -1}, "08000100" + "02000000"},
	}
	if binary.NativeEndian.Uint16([]byte{1, 0}) != 1 {
		t.Skip("the expected bytes are those of a little-endian machine")
	}
	for _, tt := range tests {
		got, err := tt.p.encode()
		if err != nil {
			t.Errorf("%s: %v", tt.rule, err)
		}
		if g := hex(got); g != tt.want {
			t.Errorf("%s:\n got %s\nwant %s", tt.rule, g, tt.want)
		}
	}
}

func hex(b []byte) string {
	const digits = "0123456789abcdef"
	var s strings.Builder
	for _, c := range b {
		s.WriteByte(digits[c>>4])
		s.WriteByte(digits[c&15])
	}
	return s.String()
}

func TestIndexOf(t *testing.T) {
	tests := []struct {
		rule string
		data []byte
		want int
		ok   bool
	}{
		{"the number is found behind other attributes", []byte{5, 0, 9, 0, 1, 0, 0, 0, 8, 0, 1, 0, 4, 0, 0, 0}, 4, true},
		{"a message without a number is an error", []byte{5, 0, 9, 0, 1, 0, 0, 0}, 0, false},
		{"a short number is an error", []byte{6, 0, 1, 0, 4, 0, 0, 0}, 0, false},
		{"an empty message is an error", nil, 0, false},
	}
	for _, tt := range tests {
		got, err := indexOf(tt.data)
		if got != tt.want || (err == nil) != tt.ok {
			t.Errorf("%s: got %d, %v", tt.rule, got, err)
		}
	}
}

func FuzzIndexOf(f *testing.F) {
	f.Add([]byte{8, 0, 1, 0, 4, 0, 0, 0})
	f.Fuzz(func(t *testing.T, data []byte) { _, _ = indexOf(data) })
}

// script is a server that says what it has to say, whatever it hears.
type script struct {
	io.Reader
	heard bytes.Buffer
}

func (s *script) Write(p []byte) (int, error) { return s.heard.Write(p) }

func be(values ...any) []byte {
	var b bytes.Buffer
	for _, v := range values {
		_ = binary.Write(&b, binary.BigEndian, v)
	}
	return b.Bytes()
}

func TestNegotiate(t *testing.T) {
	greeting := be(uint64(nbdMagic), uint64(optMagic), uint16(3))
	old := be(uint64(nbdMagic), uint64(optMagic), uint16(1))
	export := be(uint64(1<<30), uint16(0x2d))
	tests := []struct {
		rule string
		says []byte
		want negotiated
		err  string
	}{
		{"size and flags come from the server", append(greeting[:18:18], export...), negotiated{1 << 30, 0x2d}, ""},
		{"a server without NO_ZEROES sends 124 of them", append(append(old[:18:18], export...), make([]byte, 124)...), negotiated{1 << 30, 0x2d}, ""},
		{"a server that closes has refused the export", greeting, negotiated{}, "refused"},
		{"an oldstyle server is not for us", be(uint64(nbdMagic), uint64(0x00420281861253), uint64(4096), uint32(0)), negotiated{}, "newstyle"},
		{"flags without HAS_FLAGS are no flags", append(greeting[:18:18], be(uint64(512), uint16(0))...), negotiated{}, "flags"},
		{"a size past int64 is refused", append(greeting[:18:18], be(^uint64(0), uint16(1))...), negotiated{}, "size"},
		{"silence is an error", nil, negotiated{}, "greeting"},
	}
	for _, tt := range tests {
		s := &script{Reader: bytes.NewReader(tt.says)}
		got, err := negotiate(s, "r0/0")
		if got != tt.want || (err == nil) != (tt.err == "") || err != nil && !strings.Contains(err.Error(), tt.err) {
			t.Errorf("%s: got %+v, %v", tt.rule, got, err)
		}
		if err == nil {
			want := be(uint32(tt.says[17]), uint64(optMagic), uint32(1), uint32(4), []byte("r0/0"))
			if !bytes.Equal(s.heard.Bytes(), want) {
				t.Errorf("%s: said %x, want %x", tt.rule, s.heard.Bytes(), want)
			}
		}
	}
	if _, err := negotiate(&script{}, strings.Repeat("x", exportNameMax+1)); err == nil {
		t.Error("a name over the protocol's limit is refused")
	}
}

func FuzzNegotiate(f *testing.F) {
	f.Add(append(be(uint64(nbdMagic), uint64(optMagic), uint16(3)), be(uint64(1<<30), uint16(0x2d))...))
	f.Fuzz(func(t *testing.T, says []byte) {
		n, err := negotiate(&script{Reader: bytes.NewReader(says)}, "x")
		if err == nil && n.size <= 0 {
			t.Errorf("size %d", n.size)
		}
	})
}

// greeter is a server that does the handshake and then reads until the end.
func greeter(c net.Conn) {
	_, _ = c.Write(be(uint64(nbdMagic), uint64(optMagic), uint16(3)))
	_, _ = io.ReadFull(c, make([]byte, 4+8+4+4+1))
	_, _ = c.Write(be(uint64(4096), uint16(1)))
	_, _ = io.Copy(io.Discard, c)
	_ = c.Close()
}

func testDevice(serve func(net.Conn)) *Device {
	d := &Device{cfg: Config{Serve: serve, Export: "x"}, log: slog.New(slog.DiscardHandler)}
	d.ctx, d.cancel = context.WithCancelCause(context.Background())
	return d
}

func TestTaken(t *testing.T) {
	for _, keep := range []bool{true, false} {
		d := testDevice(greeter)
		l, err := d.newLink(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if l.size != 4096 {
			t.Errorf("size %d", l.size)
		}
		if keep { // as the kernel does
			dup, err := unix.Dup(l.kernel)
			if err != nil {
				t.Fatal(err)
			}
			defer unix.Close(dup)
		}
		if got := l.taken(); got != keep {
			t.Errorf("the kernel kept its end: %v, seen as %v", keep, got)
		}
		l.close()
		d.wg.Wait()
	}
}

func TestHandshakeEnds(t *testing.T) {
	t.Run("with the context when the server is silent", func(t *testing.T) {
		d := testDevice(func(c net.Conn) { _, _ = io.Copy(io.Discard, c) })
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer cancel()
		if _, err := d.newLink(ctx); err == nil {
			t.Error("no error")
		}
		d.wg.Wait()
	})
	t.Run("when the server refuses", func(t *testing.T) {
		d := testDevice(func(c net.Conn) { _ = c.Close() })
		if _, err := d.newLink(t.Context()); err == nil {
			t.Error("no error")
		}
		d.wg.Wait()
	})
}

func TestConfig(t *testing.T) {
	good := Config{ID: "r0/0", BlockSize: 4096, Serve: greeter}
	if err := good.check(); err != nil {
		t.Error(err)
	}
	for rule, change := range map[string]func(*Config){
		"an empty ID would adopt any device":                 func(c *Config) { c.ID = "" },
		"a line feed in the ID would never match sysfs":      func(c *Config) { c.ID = "a\nb" },
		"the kernel's smallest block is 512":                 func(c *Config) { c.BlockSize = 256 },
		"blocks are powers of two":                           func(c *Config) { c.BlockSize = 1536 },
		"a dead timeout under a second would be none at all": func(c *Config) { c.DeadConnTimeout = time.Millisecond },
		"somebody has to serve":                              func(c *Config) { c.Serve = nil },
	} {
		c := good
		change(&c)
		if c.check() == nil {
			t.Error(rule)
		}
	}
}

func TestAttachWithoutModule(t *testing.T) {
	if Available() {
		t.Skip("this kernel has nbd: test/vm tests the rest")
	}
	_, err := Attach(t.Context(), Config{ID: "x", BlockSize: 512, Serve: greeter})
	if !errors.Is(err, ErrUnavailable) {
		t.Errorf("got %v", err)
	}
}
