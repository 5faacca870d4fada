package wire

import (
	"bytes"
	"encoding/hex"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
)

// pads are the ranges of the fixed part that a kernel leaves undefined.
var pads = map[Command][2]int{
	Barrier:       {4, 8},
	DataRequest:   {20, 24},
	RSDataRequest: {20, 24},
	RSThinReq:     {20, 24},
	OVRequest:     {20, 24},
	OVReply:       {20, 24},
	CsumRSRequest: {20, 24},
	OutOfSync:     {12, 16},
	RSDeallocated: {12, 16},
}

// conversation decodes one direction of one socket.
type conversation struct {
	version  int
	features uint32
	digest   Digest
	seen     map[Command]int
	packets  []Packet
	lines    []string // hex of header and body
}

// decode takes packets off the front of data until it is empty, and encodes each again.
func (c *conversation) decode(data []byte) error {
	for at := 0; at < len(data); {
		b := data[at:]
		cmd, vol, length, err := ParseHeader(c.version, b)
		if err != nil {
			return fmt.Errorf("at %d: %w", at, err)
		}
		h := HeaderSize(c.version)
		n, err := BodySize(c.version, c.features, cmd, length)
		if err != nil {
			return fmt.Errorf("at %d: %w", at, err)
		}
		if len(b) < h+int(length) {
			return fmt.Errorf("at %d: %s cut off", at, cmd)
		}
		var p Packet
		dsize := 0
		if c.digest != nil {
			dsize = c.digest.Size()
		}
		if err := Parse(c.version, c.features, dsize, cmd, vol, length, b[h:h+n], &p); err != nil {
			return fmt.Errorf("at %d: %w", at, err)
		}
		if h+n+int(p.Tail) != h+int(length) {
			return fmt.Errorf("at %d: %s: body %d and tail %d are not %d", at, cmd, n, p.Tail, length)
		}
		got := Append(nil, c.version, c.features, &p)
		want := bytes.Clone(b[:h+n])
		if r, ok := pads[cmd]; ok {
			clear(want[h+r[0] : h+r[1]])
		}
		if !bytes.Equal(got, want) {
			return fmt.Errorf("at %d: %s\n encoded %x\ncaptured %x", at, cmd, got, want)
		}
		tail := b[h+n : h+int(length)]
		if isData := cmd == Data || cmd == DataReply || cmd == RSDataReply; isData && dsize > 0 {
			if sum := c.digest.Sum(nil, tail[dsize:]); !bytes.Equal(sum, tail[:dsize]) {
				return fmt.Errorf("at %d: digest %x, computed %x", at, tail[:dsize], sum)
			}
		}
		if f, ok := p.Ext.(*FeaturesBody); ok {
			c.version, c.features = int(f.ProtocolMax), f.Features
		}
		if f, ok := p.Ext.(*ProtocolBody); ok {
			c.digest = nil
			if f.IntegrityAlg != "" {
				if c.digest, err = NewDigest(f.IntegrityAlg); err != nil {
					return err
				}
			}
		}
		c.seen[cmd]++
		c.packets = append(c.packets, p)
		c.lines = append(c.lines, hex.EncodeToString(want))
		at += h + int(length)
	}
	return nil
}

// decodeCapture decodes all streams of a capture, in the order of its connections.
func decodeCapture(t *testing.T, path string, seen map[Command]int) (names []string, all map[string]*conversation) {
	t.Helper()
	all = map[string]*conversation{}
	meta := map[string]bool{}
	streams := readStreams(t, path)
	for _, s := range streams {
		if cmd, _, _, err := ParseHeader(VersionHandshake, s.data); err == nil && cmd == InitialMeta {
			meta[s.name], meta[s.reverse] = true, true
		}
	}
	for _, s := range streams {
		c := &conversation{version: VersionHandshake, seen: seen}
		data := s.data
		if meta[s.name] { // no features here: the header changes silently
			if cmd, _, _, err := ParseHeader(VersionHandshake, data); err == nil && cmd == InitialMeta {
				data = data[8:]
				seen[InitialMeta]++
			}
			c.version, c.features = VersionMax, 0xf
		}
		if err := c.decode(data); err != nil {
			t.Errorf("%s %s: %v", path, s.name, err)
		}
		names = append(names, s.name)
		all[s.name] = c
	}
	return names, all
}

func TestEveryCapturedPacketDecodesAndEncodesToTheSameBytes(t *testing.T) {
	files, err := filepath.Glob("testdata/*.pcap")
	if err != nil || len(files) == 0 {
		t.Fatal("no captures", err)
	}
	seen := map[Command]int{}
	total := 0
	for _, f := range files {
		_, all := decodeCapture(t, f, seen)
		for _, c := range all {
			total += len(c.packets)
		}
	}
	t.Logf("%d packets of %d kinds: %v", total, len(seen), seen)
	for _, cmd := range []Command{Data, RSDataReply, Barrier, BarrierAck, Bitmap, CompressedBitmap, RSDataRequest, Protocol,
		ProtocolUpdate, UUIDs, Sizes, StateReport, SyncUUID, AuthChallenge, AuthResponse, StateChgReq, StateChgReply, Ping,
		PingAck, WriteAck, RSWriteAck, SyncParam89, ConnStChgReq, ConnStChgReply, Trim, Zeroes, InitialData, InitialMeta,
		ConnectionFeatures, UnplugRemote} {
		if seen[cmd] == 0 {
			t.Errorf("the captures hold no %s", cmd)
		}
	}
}

// The lines of the worked example (section 29), each of them in the capture.
func TestWorkedExample(t *testing.T) {
	h := func(s string) string { return strings.ReplaceAll(s, " ", "") }
	zero64 := strings.Repeat("00", 64)
	ids := "ffffffffffffffff"
	lines := []string{
		h("83740267 fff2 0000"),
		h("83740267 fffe 0048  00000056 0000000f 00000065 00000000") + strings.Repeat("00", 56),
		h("8620ec20 0000 000b 00000019 00000000 00000003 00000000 00000000 00000000 00000000 00000000 00"),
		h("8620ec20 0000 0023 00000094 00000000 000000fa") + zero64 + zero64 + h("00000014 0000000a 00000064 00019000"),
		h("8620ec20 0000 000d 00000038 00000000 0000000000001fb0 0000000000000000 0000000000001fb0 00100000 0000 0000" +
			"00000200 00000200 00000000 00000200 00000000 01 00 00 00"),
		h("8620ec20 0000 000c 00000030 00000000 0000000000000004 0000000000000000 0000000000000000 0000000000000000" +
			"00000000000003f6 0000000000000000"),
		h("8620ec20 0000 000e 00000004 00000000 0000c882"),
		h("8620ec20 0000 000e 00000004 00000000 000088aa"),
		h("8620ec20 0000 0012 00000008 00000000 00000003 00000001"),
		h("8620ec20 0000 001d 00000004 00000000 00000001"),
		h("8620ec20 0000 000e 00000004 00000000 000110a9"),
		h("8620ec20 0000 0000 00001018 00000000 0000000000000000 c0483b43bc6e3cff 00000001 00000102"),
		h("8620ec20 0000 0007 00000000 00000000"),
		h("8620ec20 0000 0016 00000018 00000000 0000000000000000 c0483b43bc6e3cff 00001000 00000001"),
		h("8620ec20 0000 0003 00000008 00000000 00000000 00000000"),
		h("8620ec20 0000 001c 00000008 00000000 00000000 00000001"),
		h("8620ec20 0000 002a 00000008 00000000 000001f0 00000010"),
		h("8620ec20 0000 002b 00000004 00000000 00000001"),
		h("8620ec20 0000 000f 00000008 00000000 5ea8983cb3433cc7"),
		h("8620ec20 0000 0009 00000018 00000000 0000000000000200") + ids + h("00002000 00000000"),
		h("8620ec20 0000 0002 00002018 00000000 0000000000000200") + ids + h("00000000 00000000"),
		h("8620ec20 0000 0017 00000018 00000000 0000000000001000") + ids + h("00001000 00000001"),
		h("8620ec20 0000 000e 00000004 00000000 000110a6"),
	}
	seen := map[string]bool{}
	_, all := decodeCapture(t, "testdata/reconnect_bitmap.pcap", map[Command]int{})
	for _, c := range all {
		for _, l := range c.lines {
			seen[l] = true
		}
	}
	for _, l := range lines {
		if !seen[l] {
			t.Errorf("not in the capture: %s", l)
		}
	}
}

func TestSharedSecretOfTheAuthCapture(t *testing.T) {
	b := func(s string) []byte {
		v, err := hex.DecodeString(s)
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
	mac, err := NewHMAC("sha1", []byte("hawser-lab"))
	if err != nil {
		t.Fatal(err)
	}
	mac.Write(b("d7f13438038de41fc5a9e0112fd4460d5fca3af0ce4f40454cd316e582628a6a551bfb3c013957d952572eb00d210029d0efc05c517184300f70823db2fc0d9e"))
	if got := hex.EncodeToString(mac.Sum(nil)); got != "a7209675f60e07871983b3b7fcbee52d2e705dc1" {
		t.Errorf("response %s", got)
	}
}
