package meta

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/klauspost/compress/zstd"

	"github.com/hawser-ha/hawser/replicator/bitmap"
)

type image struct {
	Name         string
	Format       string
	Index        string
	DeviceSize   int64 `json:"device_size"`
	RegionOffset int64 `json:"region_offset"`
	RegionLength int   `json:"region_length"`
	SuperOffset  int64 `json:"superblock_offset"`
	ALOffset     int64 `json:"al_offset"`
	ALBytes      int64 `json:"al_bytes"`
	BitmapOffset int64 `json:"bitmap_offset"`
	Superblock   struct {
		Magic       string
		LaSize      uint64 `json:"la_size_sect"`
		DeviceUUID  string `json:"device_uuid"`
		Flags       string
		MDSize      uint32 `json:"md_size_sect"`
		ALOffset    int32  `json:"al_offset"`
		ALNrExtents uint32 `json:"al_nr_extents"`
		BMOffset    int32  `json:"bm_offset"`
		BytesPerBit uint32 `json:"bm_bytes_per_bit"`
		BioSize     uint32 `json:"la_peer_max_bio_size"`
		Stripes     uint32 `json:"al_stripes"`
		StripeSize  uint32 `json:"al_stripe_size_4k"`
		MaxPeers    int    `json:"max_peers"`
		NodeID      int32  `json:"node_id"`
		Current     string `json:"current_uuid"`
		UUID        []string
	}
	Peers []struct {
		NodeID      int    `json:"node_id"`
		BitmapUUID  string `json:"bitmap_uuid"`
		Dagtag      string
		Flags       string
		BitmapIndex int32 `json:"bitmap_index"`
	}
	History     []string
	BitmapBits  int64    `json:"bitmap_bits"`
	BitsPerSlot []int64  `json:"bits_set_per_slot"`
	Active      []uint32 `json:"al_active_extents"`
	Full        []int64  `json:"expect_full_extents"`
	GetGI       []string `json:"get_gi"`
}

func images(t testing.TB) []image {
	t.Helper()
	var out []image
	if err := json.Unmarshal(must(os.ReadFile("testdata/manifest.json"))(t), &out); err != nil {
		t.Fatal(err)
	}
	return out
}

// device rebuilds the image.
func (im *image) device(t testing.TB) (*memDev, Kind, int) {
	t.Helper()
	dec := must(zstd.NewReader(nil))(t)
	defer dec.Close()
	region := must(dec.DecodeAll(must(os.ReadFile("testdata/"+im.Name+".region.zst"))(t), nil))(t)
	if len(region) != im.RegionLength {
		t.Fatalf("%s: region of %d bytes", im.Name, len(region))
	}
	d := newDev(t, im.DeviceSize)
	d.put(im.RegionOffset, region)
	switch im.Index {
	case "internal":
		return d, Internal, 0
	case "flex-external":
		return d, FlexExternal, 0
	}
	return d, Indexed, must(strconv.Atoi(im.Index))(t)
}

func num(t testing.TB, s string) uint64 {
	t.Helper()
	return must(strconv.ParseUint(strings.TrimPrefix(s, "0x"), 16, 64))(t)
}

// goldenDump is the sample dump, without the comment that holds the date.
func (im *image) goldenDump(t testing.TB) string {
	_, text, ok := strings.Cut(string(must(os.ReadFile("testdata/"+im.Name+".dump.txt"))(t)), "\n\n")
	if !ok {
		t.Fatal("no header")
	}
	return text
}

var v08Flags = regexp.MustCompile(`(?m)^    flags 0x[0-9A-F]{8};\n}`)

// dump22 is a dump as drbd-utils 9.22 prints it: version 8 without flags.
func dump22(s string) string {
	if strings.HasPrefix(s, "version \"v08\"") {
		return v08Flags.ReplaceAllString(s, "    flags 0x00000000;\n}")
	}
	return s
}

func dumpOf(t testing.TB, s *Store) string {
	t.Helper()
	var b bytes.Buffer
	if err := s.Dump(&b); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

func checkGolden(t *testing.T, im *image, s *Store) {
	t.Helper()
	sb, l := s.Super(), s.Layout()
	w := &im.Superblock
	want := Super{
		Version: int(im.Format[2] - '0'), Unclean: w.Magic == "0x8374026c", EffectiveSize: w.LaSize, DeviceUUID: num(t, w.DeviceUUID),
		Flags: uint32(num(t, w.Flags)), MDSize: w.MDSize, ALOffset: w.ALOffset, ALNrExtents: w.ALNrExtents, BMOffset: w.BMOffset,
		BytesPerBit: w.BytesPerBit, PeerMaxBioSize: w.BioSize, MaxPeers: w.MaxPeers, NodeID: w.NodeID,
		ALStripes: w.Stripes, ALStripeSize4k: w.StripeSize,
	}
	for i := range want.Peers {
		want.Peers[i].BitmapIndex = -1
	}
	if want.Version == 8 {
		want.NodeID = -1
		want.Current = num(t, w.UUID[0])
		want.Peers[0] = Peer{BitmapUUID: num(t, w.UUID[1])}
		want.History[0], want.History[1] = num(t, w.UUID[2]), num(t, w.UUID[3])
	} else {
		want.Current = num(t, w.Current)
		for _, p := range im.Peers {
			want.Peers[p.NodeID] = Peer{num(t, p.BitmapUUID), num(t, p.Dagtag), uint32(num(t, p.Flags)), p.BitmapIndex}
		}
		for i, h := range im.History {
			want.History[i] = num(t, h)
		}
	}
	if sb != want {
		t.Errorf("superblock\n%+v\nwant\n%+v", sb, want)
	}
	if l.Super != im.SuperOffset || l.AL != im.ALOffset || l.ALBytes != im.ALBytes || l.Bitmap != im.BitmapOffset {
		t.Errorf("layout %+v", l)
	}
	if s.BitmapBits() != im.BitmapBits {
		t.Errorf("%d bits, want %d", s.BitmapBits(), im.BitmapBits)
	}
	for slot, n := range im.BitsPerSlot {
		b := bitmap.New(s.BitmapBits())
		if err := s.ReadBitmap(slot, b); err != nil {
			t.Fatal(err)
		}
		if b.Count() != n {
			t.Errorf("slot %d: %d bits set, want %d", slot, b.Count(), n)
		}
		for _, e := range im.Full {
			if got := b.CountRange(e*1024, e*1024+1023); got != min(1024, b.Bits()-e*1024) {
				t.Errorf("slot %d: extent %d has %d bits set", slot, e, got)
			}
		}
	}
	active, err := s.ReplayAL()
	if err != nil || !slices.Equal(active, im.Active) && len(active)+len(im.Active) > 0 {
		t.Errorf("active extents %v, want %v: %v", active, im.Active, err)
	}
	if got, want := dump22(dumpOf(t, s)), im.goldenDump(t); got != want {
		t.Errorf("dump\n%s\nwant\n%s", got, want)
	}
	for _, line := range im.GetGI {
		what, want, _ := strings.Cut(line, ": ")
		got := DState(sb)
		if what != "dstate" {
			var node int
			if _, err := fmt.Sscanf(what, "get-gi --node-id %d", &node); err != nil {
				t.Fatal(err)
			}
			got = GI(sb, node)
		}
		if got != want {
			t.Errorf("%s: %s, want %s", what, got, want)
		}
	}
}

const goldenData = 64 << 20 // of images with external metadata

func TestGoldenImages(t *testing.T) {
	for _, im := range images(t) {
		t.Run(im.Name, func(t *testing.T) {
			d, kind, index := im.device(t)
			s := must(Open(goldenData, d, kind, index))(t)
			if !s.Foreign() {
				t.Error("not seen as written by another program")
			}
			checkGolden(t, &im, s)
			// Written by us and read again it is the same.
			if err := s.WriteSuper(s.Super()); err != nil {
				t.Fatal(err)
			}
			s = must(Open(goldenData, d, kind, index))(t)
			if s.Foreign() {
				t.Error("our superblock is seen as another program's")
			}
			checkGolden(t, &im, s)
		})
	}
}

func TestApplyALIsAsDrbdmetas(t *testing.T) {
	all := images(t)
	find := func(name string) *image {
		i := slices.IndexFunc(all, func(im image) bool { return im.Name == name })
		return &all[i]
	}
	before, after := find("v08-internal-unclean-al-before"), find("v08-internal-after-apply-al")
	d, kind, _ := before.device(t)
	s := must(Open(0, d, kind, 0))(t)
	if n := must(s.ApplyAL())(t); n != 6*1024 {
		t.Errorf("%d bits marked, want %d", n, 6*1024)
	}
	checkGolden(t, after, s)
	ref, _, _ := after.device(t)
	for off := after.RegionOffset; off < after.RegionOffset+int64(after.RegionLength); off += BlockSize {
		got := d.get(off)
		if off == after.SuperOffset {
			clear(got[offTrailer:])
		}
		if !bytes.Equal(got, ref.get(off)) {
			t.Errorf("block at %d differs from drbdmeta's", off)
		}
	}
	if n := must(s.ApplyAL())(t); n != 0 {
		t.Errorf("a second time %d bits marked", n)
	}
}

func TestCreateIsAsDrbdmetas(t *testing.T) {
	opts := map[string]CreateOptions{
		"v08-internal-fresh":       {Version: 8},
		"v08-internal-al-striped":  {Version: 8, ALStripes: 4, ALStripeSizeKB: 64},
		"v09-internal-1peer":       {NodeID: -1},
		"v09-flex-external-7peers": {Kind: FlexExternal, MaxPeers: 7, NodeID: -1},
	}
	for _, im := range images(t) {
		o, ok := opts[im.Name]
		if !ok {
			continue
		}
		t.Run(im.Name, func(t *testing.T) {
			ref, kind, _ := im.device(t)
			d := newDev(t, im.DeviceSize)
			o.Kind = kind
			s := freshStore(t, d, goldenData, o)
			checkGolden(t, &im, s)
			for off := im.RegionOffset; off < im.RegionOffset+int64(im.RegionLength); off += BlockSize {
				got := d.get(off)
				if off == im.SuperOffset {
					clear(got[offTrailer:])
				}
				if !bytes.Equal(got, ref.get(off)) {
					t.Errorf("block at %d differs from drbdmeta's", off)
				}
			}
		})
	}
}
