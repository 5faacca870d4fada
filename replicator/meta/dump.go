package meta

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"io"
	"math/bits"
	"strings"
)

// Dump prints the metadata as drbdmeta dump-md does, from the version line on (the comment with date and command line before it is
// the caller's). The text is that of drbd-utils 9.22 to the byte, quirks included (bits-set counts the last slot only; in "# at"
// lines the position counts all slots), except that the flags of version 8 are printed, as from 9.33 on, where 9.22 prints 0.
func (s *Store) Dump(w io.Writer) error {
	sb, l := s.Super(), s.Layout()
	used, _, _ := s.usedBytes()
	out := bufio.NewWriter(w)
	p := func(format string, args ...any) { fmt.Fprintf(out, format, args...) } // out remembers the first error

	p("version \"v%02d\";\n\n", sb.Version)
	if !sb.Clean() {
		p("This_is_an_unclean_meta_data_dump._Don't_trust_the_bitmap.\n" +
			"# You should \"apply-al\" first, if you plan to restore this.\n\n")
	}
	if sb.Version == 9 {
		p("max-peers %d;\n", sb.MaxPeers)
	}
	p("# md_size_sect %d\n# md_offset %d\n# al_offset %d\n# bm_offset %d\n\n", sb.MDSize, l.Super, l.AL, l.Bitmap)
	if sb.Version == 8 {
		p("uuid {\n    0x%016X; 0x%016X; 0x%016X; 0x%016X;\n    flags 0x%08X;\n}\n",
			sb.Current, sb.Peers[0].BitmapUUID, sb.History[0], sb.History[1], sb.Flags)
	} else {
		p("node-id %d;\ncurrent-uuid 0x%016X;\nflags 0x%08X;\n", sb.NodeID, sb.Current, sb.Flags)
		for i, e := range sb.Peers {
			p("peer[%d] {\n    bitmap-index %d;\n    bitmap-uuid 0x%016X;\n    bitmap-dagtag 0x%016X;\n    flags 0x%08X;%s\n}\n",
				i, e.BitmapIndex, e.BitmapUUID, e.Dagtag, e.Flags, peerFlagsComment(e.Flags))
		}
		p("history-uuids {\n")
		for i := 0; i < Nodes; i += 4 {
			h := sb.History[i:]
			p("        0x%016X; 0x%016X; 0x%016X; 0x%016X;\n", h[0], h[1], h[2], h[3])
		}
		p("}\n")
	}
	p("# al-extents %d;\nla-size-sect %d;\nbm-byte-per-bit %d;\ndevice-uuid 0x%016X;\nla-peer-max-bio-size %d;\n"+
		"al-stripes %d;\nal-stripe-size-4k %d;\n# bm-bytes %d;\n", sb.ALNrExtents, sb.EffectiveSize, sb.BytesPerBit,
		sb.DeviceUUID, sb.PeerMaxBioSize, sb.ALStripes, sb.ALStripeSize4k, used)
	var set int64
	for slot := range sb.MaxPeers {
		if sb.Version == 8 {
			p("bm {\n")
		} else {
			p("bitmap[%d] {\n", slot)
		}
		d := bitmapDump{out: out, maxPeers: sb.MaxPeers}
		if err := s.eachWord(slot, d.word); err != nil {
			return err
		}
		// The slot's share of the area, in 32-bit words, may be odd.
		d.end(((used/4-int64(slot)+int64(sb.MaxPeers)-1)/int64(sb.MaxPeers))%2 != 0)
		set = d.set
		p("}\n")
	}
	p("# bits-set %d;\n", set)
	return out.Flush()
}

func peerFlagsComment(f uint32) string {
	if f == 0 {
		return ""
	}
	var names []string
	for _, n := range []struct {
		bit  uint32
		name string
	}{
		{PeerConnected, "connected"}, {PeerOutdated, "<=outdated"}, {PeerFencing, "fencing"}, {PeerFullSync, "full-sync"},
		{PeerSeen, "seen"},
	} {
		if f&n.bit != 0 {
			names = append(names, n.name)
		}
	}
	if other := f &^ (0x1f | PeerNodeExists); other != 0 {
		names = append(names, fmt.Sprintf("0x%x=?", other))
	}
	if f&PeerNodeExists != 0 {
		names = append(names, "exists")
	}
	return " # " + strings.Join(names, " | ")
}

// eachWord calls fn for every whole 64-bit word of the slot in the used part of the area.
func (s *Store) eachWord(slot int, fn func(uint64)) error {
	s.bmMu.Lock()
	defer s.bmMu.Unlock()
	used, maxPeers, l := s.usedBytes()
	unit := int64(maxPeers * BlockSize)
	buf := alignedBuf(int(max(ioBytes/unit, 1) * unit))
	for off := int64(0); off < used; {
		part := buf[:min(int64(len(buf)), used-off)]
		if err := readAt(s.md, part, l.Bitmap+off, "bitmap"); err != nil {
			return err
		}
		for at := 4 * slot; at+4*maxPeers+4 <= len(part); at += 8 * maxPeers {
			lo, hi := binary.LittleEndian.Uint32(part[at:]), binary.LittleEndian.Uint32(part[at+4*maxPeers:])
			fn(uint64(hi)<<32 | uint64(lo))
		}
		off += int64(len(part))
	}
	return nil
}

// bitmapDump prints words in rows of four; two or more rows of only 0 or only ~0 become one line.
type bitmapDump struct {
	out      *bufio.Writer
	maxPeers int
	set      int64
	row      [4]uint64
	n        int   // words in row
	at       int64 // of the slot's words, position of the run or of row
	run      int64 // words
	value    uint64
}

func (d *bitmapDump) word(w uint64) {
	d.set += int64(bits.OnesCount64(w))
	d.row[d.n] = w
	if d.n++; d.n < 4 {
		return
	}
	d.n = 0
	v := d.row[0]
	same := (v == 0 || v == ^uint64(0)) && d.row == [4]uint64{v, v, v, v}
	if d.run > 0 && (!same || v != d.value) {
		d.flushRun()
	}
	if same {
		d.run += 4
		d.value = v
		return
	}
	d.print(d.row[:])
}

func (d *bitmapDump) flushRun() {
	n := d.run
	d.run = 0
	switch {
	case n == 4:
		d.print([]uint64{d.value, d.value, d.value, d.value})
	case n > 4:
		d.position()
		fmt.Fprintf(d.out, "    %d times 0x%016X;\n", n, d.value)
		d.at += n
	}
}

// position prints where the next line is, every 8 KiB of the interleaved bitmap's words.
func (d *bitmapDump) position() {
	if raw := d.at * int64(d.maxPeers); raw%32 == 0 {
		fmt.Fprintf(d.out, "   # at %dkB\n", raw*64*BytesPerBit/1024)
	}
}

func (d *bitmapDump) print(row []uint64) {
	d.position()
	for i, w := range row {
		sep := " "
		if i == 0 {
			sep = "    "
		}
		fmt.Fprintf(d.out, "%s0x%016X;", sep, w)
	}
	_ = d.out.WriteByte('\n') // out remembers the first error
	d.at += int64(len(row))
}

// end prints what is left. Half a word at the end is not printed, but drbdmeta begins a line for it.
func (d *bitmapDump) end(half bool) {
	d.flushRun()
	switch {
	case d.n > 0:
		d.print(d.row[:d.n])
	case half:
		d.position()
		_, _ = d.out.WriteString("   \n")
	}
}

// GI returns the generation identifiers as drbdmeta get-gi prints them for the peer with the given node id (version 8: any): UUIDs
// current:bitmap:history1:history2, then flags as 0 or 1.
func GI(sb Super, peer int) string {
	if sb.Version == 8 {
		peer = 0
	}
	var e Peer
	if peer >= 0 && peer < Nodes {
		e = sb.Peers[peer]
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%016X:%016X:%016X:%016X", sb.Current, e.BitmapUUID, sb.History[0], sb.History[1])
	put := func(flags uint32, masks ...uint32) {
		for _, m := range masks {
			fmt.Fprintf(&b, ":%d", boolBit(flags&m != 0))
		}
	}
	if sb.Version == 8 {
		put(sb.Flags, FlagConsistent, FlagWasUpToDate, FlagPrimary, FlagV08Connected, FlagV08FullSync, FlagV08PeerOutdated, FlagCrashedPrimary)
	} else {
		put(sb.Flags, FlagConsistent, FlagWasUpToDate, FlagPrimary, FlagCrashedPrimary, FlagALClean, FlagALDisabled, FlagLostQuorum)
		put(e.Flags, PeerConnected, PeerOutdated, PeerFencing, PeerFullSync, PeerSeen)
	}
	return b.String()
}

func boolBit(v bool) int {
	if v {
		return 1
	}
	return 0
}

// DState returns the disk state that drbdmeta dstate derives from the superblock.
func DState(sb Super) string {
	switch {
	case sb.Flags&FlagConsistent == 0:
		return "Inconsistent"
	case sb.Flags&FlagWasUpToDate == 0:
		return "Outdated"
	case sb.Flags&FlagV08PeerOutdated != 0:
		return "UpToDate"
	}
	return "Consistent"
}
