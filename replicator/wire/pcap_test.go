package wire

import (
	"encoding/binary"
	"fmt"
	"os"
	"sort"
	"testing"
)

// stream is one direction of one TCP connection, as captured.
type stream struct {
	name, reverse string
	data          []byte
}

type segment struct {
	seq  uint32
	data []byte
}

// readStreams reassembles all TCP streams of a capture. It fails the test when a
// byte is missing.
func readStreams(t *testing.T, path string) []stream {
	t.Helper()
	raw, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	le := binary.LittleEndian
	if magic := le.Uint32(raw); magic != 0xa1b2c3d4 && magic != 0xa1b23c4d {
		t.Fatalf("%s: magic %#x", path, magic)
	}
	skip := map[uint32]int{1: 14, 101: 0, 113: 16, 276: 20}[le.Uint32(raw[20:])]
	segs := map[string][]segment{}
	first := map[string]uint32{}
	reverse := map[string]string{}
	var order []string
	for b := raw[24:]; len(b) >= 16; {
		n, full := le.Uint32(b[8:]), le.Uint32(b[12:])
		if n != full {
			t.Fatalf("%s: packet captured with %d of %d bytes", path, n, full)
		}
		ip := b[16+skip : 16+n]
		b = b[16+n:]
		if ip[0]>>4 != 4 || ip[9] != 6 {
			continue
		}
		ip = ip[:be.Uint16(ip[2:])]
		tcp := ip[int(ip[0]&15)*4:]
		end := func(addr []byte, port uint16) string {
			return fmt.Sprintf("%d.%d.%d.%d:%d", addr[0], addr[1], addr[2], addr[3], port)
		}
		src, dst := end(ip[12:16], be.Uint16(tcp)), end(ip[16:20], be.Uint16(tcp[2:]))
		name := src + ">" + dst
		seq := be.Uint32(tcp[4:])
		if tcp[13]&2 != 0 { // SYN: a new connection, possibly with the same ports
			first[name] = seq + 1
		}
		if _, ok := reverse[name]; !ok {
			reverse[name] = dst + ">" + src
			order = append(order, name)
		}
		if data := tcp[int(tcp[12]>>4)*4:]; len(data) > 0 {
			segs[name] = append(segs[name], segment{seq, data})
		}
	}
	var out []stream
	for _, name := range order {
		s := segs[name]
		if len(s) == 0 {
			continue // refused, or nothing said
		}
		isn, ok := first[name]
		if !ok {
			t.Fatalf("%s: the start of %s is missing", path, name)
		}
		sort.SliceStable(s, func(i, j int) bool { return s[i].seq-isn < s[j].seq-isn })
		var data []byte
		for _, g := range s {
			at := g.seq - isn
			if at > uint32(len(data)) {
				t.Fatalf("%s: hole in %s at %d", path, name, len(data))
			}
			if have := uint32(len(data)) - at; have < uint32(len(g.data)) {
				data = append(data, g.data[have:]...)
			}
		}
		out = append(out, stream{name, reverse[name], data})
	}
	return out
}
