package nbd

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/hawser-ha/hawser/replicator/export"
)

// serve starts a server for a volume called "v" and returns a connection on which it has not spoken yet.
func serve(t testing.TB, cfg Config, v export.Volume) (*Server, net.Conn) {
	t.Helper()
	s := New(cfg)
	if err := s.Add("v", "the volume", v); err != nil {
		t.Fatal(err)
	}
	return s, connect(t, s, s.ServeConn)
}

func connect(t testing.TB, s *Server, serve func(net.Conn)) net.Conn {
	t.Helper()
	nc, server := pair(t)
	done := make(chan struct{})
	go func() { serve(server); close(done) }()
	t.Cleanup(func() {
		nc.Close()
		select {
		case <-done:
		case <-time.After(2 * time.Minute):
			t.Error("ServeConn does not return")
		}
		s.budget.mu.Lock()
		defer s.budget.mu.Unlock()
		if used := s.pool.InUse(); used != 0 || s.budget.free != s.cfg.Memory {
			t.Errorf("%d bytes of buffers are still lent, budget %d of %d", used, s.budget.free, s.cfg.Memory)
		}
	})
	return nc
}

func TestClientFlags(t *testing.T) {
	for _, tc := range []struct {
		name  string
		flags uint32
		then  []byte
		lives bool
	}{
		{"both flags", 3, option(optList, nil), true},
		{"fixed newstyle alone", 1, option(optList, nil), true},
		{"an unknown flag drops the client", 4, nil, false},
		{"an unknown flag beside known ones drops the client", 0x80000003, nil, false},
		{"without fixed newstyle only EXPORT_NAME works", 0, option(optList, nil), false},
		{"without fixed newstyle EXPORT_NAME works", 0, option(optExportName, []byte("v")), true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			_, nc := serve(t, Config{}, newMemVolume(1<<20))
			c := &client{t, nc}
			nc.SetDeadline(time.Now().Add(10 * time.Second))
			c.recv(18)
			c.send(be32(tc.flags), tc.then)
			if !tc.lives {
				c.closed()
				return
			}
			c.recv(20)
		})
	}
}

// TestOptions sends one option to a fresh connection, with structured replies agreed where so marked.
func TestOptions(t *testing.T) {
	long := strings.Repeat("n", nameMax+1)
	for _, tc := range []struct {
		name       string
		structured bool
		opt        uint32
		data       []byte
		want       uint32   // final reply; 0: the connection is dropped
		before     []string // replies before, as optReply.String says them
	}{
		{"ABORT is acknowledged", false, optAbort, nil, repAck, nil},
		{"ABORT ignores its data", false, optAbort, []byte("bye"), repAck, nil},
		{"LIST names the export and describes it", false, optList, nil, repAck, []string{`2 "\x00\x00\x00\x01vthe volume"`}},
		{"LIST takes no data", false, optList, []byte{0}, repErrInvalid, nil},
		{"PEEK_EXPORT is withdrawn", false, 4, nil, repErrUnsup, nil},
		{"extended headers are not implemented", false, 11, nil, repErrUnsup, nil},
		{"an unknown option with data", false, 12345, make([]byte, 5000), repErrUnsup, nil},
		{"STARTTLS without TLS", false, optStartTLS, nil, repErrPolicy, nil},
		{"STARTTLS takes no data", false, optStartTLS, []byte{0}, repErrInvalid, nil},
		{"STRUCTURED_REPLY", false, optStructuredReply, nil, repAck, nil},
		{"STRUCTURED_REPLY twice", true, optStructuredReply, nil, repAck, nil},
		{"STRUCTURED_REPLY takes no data", false, optStructuredReply, []byte{0}, repErrInvalid, nil},
		{"an option of 64 KiB is read", false, 77, make([]byte, optionMax), repErrUnsup, nil},
		{"a longer one is read to its end and refused", false, 77, make([]byte, optionMax+1), repErrTooBig, nil},
		{"1 MiB is refused", false, 77, make([]byte, optionDiscardMax), repErrTooBig, nil},
		{"more than 1 MiB costs the connection", false, 77, make([]byte, optionDiscardMax+1), 0, nil},
		{"GO of nothing", false, optGo, nil, repErrInvalid, nil},
		{"GO of five bytes", false, optGo, make([]byte, 5), repErrInvalid, nil},
		{"GO with a name longer than the option", false, optGo, cat(be32(2), []byte("v"), be16(0)), repErrInvalid, nil},
		{"GO with a name of nearly 4 GiB", false, optGo, cat(be32(0xffffffff), []byte("v"), be16(0)), repErrInvalid, nil},
		{"GO with bytes left over", false, optGo, cat(str("v"), be16(0), []byte{0}), repErrInvalid, nil},
		{"GO with fewer information requests than said", false, optGo, cat(str("v"), be16(2), be16(3)), repErrInvalid, nil},
		{"GO with more information requests than said", false, optGo, cat(str("v"), be16(0), be16(3)), repErrInvalid, nil},
		{"GO with too long a name", false, optGo, cat(str(long), be16(0)), repErrInvalid, nil},
		{"GO of an unknown export", false, optGo, cat(str("w"), be16(0)), repErrUnknown, nil},
		{"INFO of an unknown export", false, optInfo, cat(str("w"), be16(0)), repErrUnknown, nil},
		{"INFO of the default export", false, optInfo, cat(str(""), be16(0)), repAck,
			[]string{`3 "\x00\x00\x00\x00\x00\x00\x00\x10\x00\x00\rm"`}},
		{"INFO with structured replies adds DF", true, optInfo, cat(str("v"), be16(0)), repAck,
			[]string{`3 "\x00\x00\x00\x00\x00\x00\x00\x10\x00\x00\r\xed"`}},
		{"INFO answers what is asked and skips what it does not know", false, optInfo,
			cat(str(""), be16(4), be16(1), be16(2), be16(99), be16(3)), repAck, []string{
				`3 "\x00\x00\x00\x00\x00\x00\x00\x10\x00\x00\rm"`, `3 "\x00\x01v"`, `3 "\x00\x02the volume"`,
				`3 "\x00\x03\x00\x00\x02\x00\x00\x00\x10\x00\x02\x00\x00\x00"`}},
		{"SET_META_CONTEXT needs structured replies", false, optSetMetaContext, cat(str("v"), be32(0)), repErrInvalid, nil},
		{"LIST_META_CONTEXT needs structured replies", false, optListMetaContext, cat(str("v"), be32(0)), repErrInvalid, nil},
		{"LIST_META_CONTEXT without queries lists all", true, optListMetaContext, cat(str("v"), be32(0)), repAck,
			[]string{`4 "\x00\x00\x00\x00base:allocation"`}},
		{"LIST_META_CONTEXT of a namespace", true, optListMetaContext, cat(str("v"), be32(1), str("base:")), repAck,
			[]string{`4 "\x00\x00\x00\x00base:allocation"`}},
		{"LIST_META_CONTEXT of another namespace is empty", true, optListMetaContext, cat(str("v"), be32(1), str("qemu:")), repAck, nil},
		{"SET_META_CONTEXT without queries selects nothing", true, optSetMetaContext, cat(str("v"), be32(0)), repAck, nil},
		{"SET_META_CONTEXT of a namespace selects nothing", true, optSetMetaContext, cat(str("v"), be32(1), str("base:")), repAck, nil},
		{"SET_META_CONTEXT selects once", true, optSetMetaContext,
			cat(str("v"), be32(3), str("x:y"), str("base:allocation"), str("base:allocation")), repAck,
			[]string{`4 "\x00\x00\x00\x01base:allocation"`}},
		{"SET_META_CONTEXT with a query cut off", true, optSetMetaContext, cat(str("v"), be32(1), be32(5), []byte("ab")), repErrInvalid, nil},
		{"SET_META_CONTEXT with fewer queries than said", true, optSetMetaContext, cat(str("v"), be32(2), str("a:b")), repErrInvalid, nil},
		{"SET_META_CONTEXT with 4 billion queries", true, optSetMetaContext, cat(str("v"), be32(0xffffffff)), repErrInvalid, nil},
		{"SET_META_CONTEXT with bytes left over", true, optSetMetaContext, cat(str("v"), be32(0), []byte{1}), repErrInvalid, nil},
		{"SET_META_CONTEXT without a name", true, optSetMetaContext, be16(0), repErrInvalid, nil},
		{"SET_META_CONTEXT of an unknown export", true, optSetMetaContext, cat(str("w"), be32(0)), repErrUnknown, nil},
		{"EXPORT_NAME of an unknown export", false, optExportName, []byte("w"), 0, nil},
	} {
		t.Run(tc.name, func(t *testing.T) {
			_, nc := serve(t, Config{}, newMemVolume(1<<20))
			c := newClient(t, nc)
			if tc.structured {
				c.mustAck(optStructuredReply, nil)
			}
			if tc.want == 0 {
				nc.Write(option(tc.opt, tc.data)) // the server may close before it has all
				for buf := make([]byte, 1); ; {
					if _, err := nc.Read(buf); err != nil {
						return
					}
					t.Fatal("connection is not dropped")
				}
			}
			last, before := c.opt(tc.opt, tc.data)
			if last.typ != tc.want {
				t.Fatalf("got %v", last)
			}
			var got []string
			for _, r := range before {
				got = append(got, r.String())
			}
			if fmt.Sprint(got) != fmt.Sprint(tc.before) {
				t.Errorf("got  %q\nwant %q", got, tc.before)
			}
			if tc.opt == optAbort {
				c.closed()
				return
			}
			// Whatever happened, haggling goes on.
			if size, _ := c.goExport("v"); size != 1<<20 {
				t.Errorf("size %d", size)
			}
		})
	}
}

func TestExportName(t *testing.T) {
	for _, tc := range []struct {
		name   string
		flags  uint32
		zeroes int
	}{
		{"no zeroes when agreed", 3, 0},
		{"124 zeroes otherwise", 1, 124},
	} {
		t.Run(tc.name, func(t *testing.T) {
			_, nc := serve(t, Config{}, newMemVolume(1<<20))
			c := &client{t, nc}
			c.recv(18)
			c.send(be32(tc.flags), option(optExportName, nil), command(0, cmdRead, 9, 0, 512))
			if got := c.recv(10 + tc.zeroes); binary.BigEndian.Uint64(got) != 1<<20 || !bytes.Equal(got[10:], make([]byte, tc.zeroes)) {
				t.Errorf("got %x", got)
			}
			if no, cookie := c.simple(); no != eOK || cookie != 9 {
				t.Errorf("read: error %d, cookie %d", no, cookie)
			}
			c.recv(512)
		})
	}
}

func TestBadMagicDropsTheClient(t *testing.T) {
	_, nc := serve(t, Config{}, newMemVolume(1<<20))
	c := newClient(t, nc)
	c.send(make([]byte, 16))
	c.closed()
}

func TestHandshakeTimeout(t *testing.T) {
	_, nc := serve(t, Config{HandshakeTimeout: 20 * time.Millisecond}, newMemVolume(1<<20))
	newClient(t, nc).closed()
}

func TestOpenRefused(t *testing.T) {
	v := newMemVolume(1 << 20)
	v.demote("r0/0 is Secondary: hawser primary r0 makes it writable")
	_, nc := serve(t, Config{}, v)
	c := newClient(t, nc)
	for _, opt := range []uint32{optInfo, optGo, optGo} {
		last, _ := c.opt(opt, cat(str("v"), be16(0)))
		if last.typ != repErrPolicy || !strings.Contains(string(last.data), "r0/0 is Secondary") {
			t.Errorf("option %d: %v", opt, last)
		}
	}
	c.send(option(optExportName, []byte("v")))
	c.closed()
}

func TestMaxConns(t *testing.T) {
	v := newMemVolume(1 << 20)
	s, nc := serve(t, Config{MaxConns: 1}, v)
	a := newClient(t, nc)
	b := newClient(t, connect(t, s, s.ServeConn))
	a.mustAck(optInfo, cat(str("v"), be16(0))) // does not count
	a.goExport("v")
	if last, _ := b.opt(optGo, cat(str("v"), be16(0))); last.typ != repErrPolicy {
		t.Fatalf("second session: %v", last)
	}
	a.send(command(0, cmdDisc, 0, 0, 0))
	a.closed()
	waitFor(t, "session closed", func() bool { return v.open() == 0 })
	waitFor(t, "room for a session", func() bool {
		last, _ := b.opt(optInfo, cat(str("v"), be16(0)))
		return last.typ == repAck
	})
}

func TestServeSimpleRefusesStructuredReplies(t *testing.T) {
	s, _ := serve(t, Config{}, newMemVolume(1<<20))
	c := newClient(t, connect(t, s, s.ServeSimple))
	if last, _ := c.opt(optStructuredReply, nil); last.typ != repErrUnsup {
		t.Fatalf("got %v", last)
	}
	if _, flags := c.goExport("v"); flags&tflagDF != 0 {
		t.Errorf("flags %#x have DF", flags)
	}
}

func TestMetaContextSelection(t *testing.T) {
	set := func(name string) []byte { return cat(str(name), be32(1), str(contextAllocation)) }
	for _, tc := range []struct {
		name string
		do   func(c *client)
		want uint32
	}{
		{"selected", func(c *client) { c.mustAck(optSetMetaContext, set("v")) }, eOK},
		{"not selected", func(c *client) {}, eInval},
		{"for another name of the same export", func(c *client) { c.mustAck(optSetMetaContext, set("")) }, eInval},
		{"a later SET that fails takes it away", func(c *client) {
			c.mustAck(optSetMetaContext, set("v"))
			c.opt(optSetMetaContext, nil)
		}, eInval},
		{"LIST does not take it away", func(c *client) {
			c.mustAck(optSetMetaContext, set("v"))
			c.mustAck(optListMetaContext, cat(str("v"), be32(0)))
		}, eOK},
	} {
		t.Run(tc.name, func(t *testing.T) {
			_, nc := serve(t, Config{}, newMemVolume(1<<20))
			c := newClient(t, nc)
			c.mustAck(optStructuredReply, nil)
			tc.do(c)
			c.goExport("v")
			c.send(command(0, cmdBlockStatus, 1, 0, 4096))
			if tc.want != eOK {
				if no, _ := c.simple(); no != tc.want {
					t.Errorf("error %d", no)
				}
				return
			}
			typ, _, data := c.chunk()
			if typ != chunkBlockStatus || !bytes.Equal(data, cat(be32(1), be32(4096), be32(3))) {
				t.Errorf("chunk %d %x", typ, data)
			}
		})
	}
}
