package meta

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"github.com/hawser-ha/hawser/replicator/actlog"
	"github.com/hawser-ha/hawser/replicator/bitmap"
)

// loopDev is a loop device, opened with O_DIRECT, that drbdmeta can use too.
type loopDev struct {
	*os.File
	path  string
	minor string // a minor number nobody uses
	size  int64
}

func (d *loopDev) Size() int64 { return d.size }

func needTool(t *testing.T, name string) {
	t.Helper()
	if _, err := exec.LookPath(name); err != nil {
		t.Fatalf("install %s (make deps)", name)
	}
}

func newLoop(t *testing.T, size int64) *loopDev {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("loop devices need root, and drbdmeta works on block devices only")
	}
	needTool(t, "losetup")
	needTool(t, "drbdmeta")
	img := filepath.Join(t.TempDir(), "disk")
	f := must(os.Create(img))(t)
	if err := f.Truncate(size); err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	var out []byte
	var err error
	for range 20 { // others may take the free device first
		if out, err = exec.Command("losetup", "-f", "--show", img).CombinedOutput(); err == nil {
			break
		}
	}
	path := strings.TrimSpace(string(out))
	if err != nil {
		t.Fatalf("losetup: %v: %s", err, path)
	}
	d := &loopDev{path: path, minor: "77" + strings.TrimPrefix(path, "/dev/loop"), size: size}
	t.Cleanup(func() {
		if out, err := exec.Command("losetup", "-d", path).CombinedOutput(); err != nil {
			t.Errorf("losetup -d: %v: %s", err, out)
		}
	})
	d.File = must(os.OpenFile(path, os.O_RDWR|syscall.O_DIRECT, 0))(t)
	t.Cleanup(func() { d.Close() })
	return d
}

// drbdmeta runs a command; --force answers its questions.
func (d *loopDev) drbdmeta(t *testing.T, version int, kind Kind, index int, args ...string) string {
	t.Helper()
	where := map[Kind]string{Internal: "internal", FlexExternal: "flex-external", Indexed: fmt.Sprint(index)}[kind]
	cmd := exec.Command("drbdmeta", append([]string{"--force", d.minor, fmt.Sprintf("v%02d", version), d.path, where}, args...)...)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		t.Fatalf("%v: %v\n%s%s", cmd, err, &stdout, &stderr)
	}
	return stdout.String()
}

func (d *loopDev) dump(t *testing.T, version int, kind Kind, index int) string {
	t.Helper()
	_, text, ok := strings.Cut(d.drbdmeta(t, version, kind, index, "dump-md"), "#\n\n")
	if !ok {
		t.Fatal("dump without header")
	}
	return text
}

type variant struct {
	name string
	size int64
	o    CreateOptions
}

var variants = []variant{
	{"v09 internal", 64 << 20, CreateOptions{NodeID: -1}},
	{"v09 internal, 2 slots, odd size", 300<<20 + 5*512, CreateOptions{NodeID: -1, MaxPeers: 2}},
	{"v09 internal, 3 slots, striped", 256 << 20, CreateOptions{NodeID: -1, MaxPeers: 3, ALStripes: 4, ALStripeSizeKB: 64}},
	{"v09 internal, 31 slots", 5 << 30, CreateOptions{NodeID: -1, MaxPeers: 31}},
	{"v09 flexible, 7 slots", 8 << 20, CreateOptions{NodeID: -1, MaxPeers: 7, Kind: FlexExternal}},
	{"v09 index 1", 257 << 20, CreateOptions{NodeID: -1, Kind: Indexed, Index: 1}},
	{"v08 internal, odd size", 130<<20 + 5*512, CreateOptions{Version: 8}},
	{"v08 flexible", 4 << 20, CreateOptions{Version: 8, Kind: FlexExternal}},
	{"v08 index 1", 257 << 20, CreateOptions{Version: 8, Kind: Indexed, Index: 1}},
}

const variantData = 200 << 20 // data device of external metadata

func (v *variant) version() int {
	if v.o.Version == 0 {
		return 9
	}
	return v.o.Version
}

func (v *variant) createArgs() []string {
	args := []string{"create-md"}
	if v.o.ALStripes > 0 {
		args = append(args, "--al-stripes", fmt.Sprint(v.o.ALStripes), "--al-stripe-size-kB", fmt.Sprint(v.o.ALStripeSizeKB))
	}
	if v.version() == 9 {
		args = append(args, fmt.Sprint(max(v.o.MaxPeers, 1)))
	}
	return args
}

// fill writes random contents through s.
func fill(t *testing.T, s *Store, rng *rand.Rand) {
	t.Helper()
	sb := s.Super()
	sb.EffectiveSize = uint64(s.Layout().Capacity) - uint64(rng.IntN(4000))
	sb.Current, sb.DeviceUUID = rng.Uint64(), rng.Uint64()
	sb.Flags = FlagALClean | FlagConsistent | uint32(rng.IntN(8))&FlagPrimary
	sb.PeerMaxBioSize, sb.ALNrExtents = 1<<20, 1237
	sb.History[0], sb.History[1] = rng.Uint64(), rng.Uint64()
	sb.Peers[0].BitmapUUID = rng.Uint64()
	if sb.Version == 9 {
		for i := range sb.History {
			sb.History[i] = rng.Uint64()
		}
		sb.NodeID = 31
		for i := range sb.Peers[:Nodes-1] {
			sb.Peers[i] = Peer{rng.Uint64(), rng.Uint64(), rng.Uint32() & 0x1001f, -1}
			if i < sb.MaxPeers {
				sb.Peers[i].BitmapIndex = int32((i + 1) % sb.MaxPeers)
			}
		}
	}
	if err := s.WriteSuper(sb); err != nil {
		t.Fatal(err)
	}
	for slot := range sb.MaxPeers {
		b := bitmap.New(s.BitmapBits())
		for range 1 + rng.IntN(40) {
			n := rng.Int64N(b.Bits())
			b.Set(n, n+rng.Int64N(1<<rng.IntN(14)))
		}
		if err := s.WriteBitmap(slot, b, nil); err != nil {
			t.Fatal(err)
		}
	}
}

// What hawser writes, drbdmeta reads, trailer or not, and the dumps are the same.
func TestDrbdmetaReadsOurs(t *testing.T) {
	for _, v := range variants {
		t.Run(v.name, func(t *testing.T) {
			d := newLoop(t, v.size)
			if err := Create(variantData, d, v.o); err != nil {
				t.Fatal(err)
			}
			s := must(Open(variantData, d, v.o.Kind, v.o.Index))(t)
			for round := range 3 {
				if got, want := dump22(dumpOf(t, s)), d.dump(t, v.version(), v.o.Kind, v.o.Index); got != want {
					t.Fatalf("round %d: dump: %s", round, firstDiff(got, want))
				}
				if got, want := GI(s.Super(), 0), d.drbdmeta(t, v.version(), v.o.Kind, v.o.Index, "get-gi", "--node-id", "0"); got+"\n" != want {
					t.Fatalf("get-gi %s, drbdmeta's %s", got, want)
				}
				if got, want := DState(s.Super()), d.drbdmeta(t, v.version(), v.o.Kind, v.o.Index, "dstate"); got+"\n" != want {
					t.Fatalf("dstate %s, drbdmeta's %s", got, want)
				}
				fill(t, s, rand.New(rand.NewPCG(uint64(round), 7)))
			}
			if s = must(Open(variantData, d, v.o.Kind, v.o.Index))(t); s.Foreign() {
				t.Error("reading with drbdmeta removed our checksum")
			}
		})
	}
}

// firstDiff shows the first lines that differ.
func firstDiff(got, want string) string {
	g, w := strings.Split(got, "\n"), strings.Split(want, "\n")
	for i := range min(len(g), len(w)) {
		if g[i] != w[i] {
			return fmt.Sprintf("line %d of %d and %d:\n%s\nshould be\n%s", i+1, len(g), len(w),
				strings.Join(g[max(0, i-4):min(i+4, len(g))], "\n"), strings.Join(w[max(0, i-4):min(i+4, len(w))], "\n"))
		}
	}
	return fmt.Sprintf("%d lines, should be %d", len(g), len(w))
}

// What drbdmeta writes, hawser reads; drbdmeta takes our checksum away.
func TestWeReadDrbdmetas(t *testing.T) {
	for _, v := range variants {
		t.Run(v.name, func(t *testing.T) {
			d := newLoop(t, v.size)
			d.drbdmeta(t, v.version(), v.o.Kind, v.o.Index, v.createArgs()...)
			s := must(Open(variantData, d, v.o.Kind, v.o.Index))(t)
			if !s.Foreign() {
				t.Error("not seen as another program's")
			}
			if got, want := dump22(dumpOf(t, s)), d.dump(t, v.version(), v.o.Kind, v.o.Index); got != want {
				t.Errorf("dump: %s", firstDiff(got, want))
			}
			fill(t, s, rand.New(rand.NewPCG(3, 7)))
			// drbdmeta restores our dump over ours.
			file := filepath.Join(t.TempDir(), "dump")
			text := dumpOf(t, s)
			if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
			d.drbdmeta(t, v.version(), v.o.Kind, v.o.Index, v.createArgs()...)
			d.drbdmeta(t, v.version(), v.o.Kind, v.o.Index, "restore-md", file)
			s = must(Open(variantData, d, v.o.Kind, v.o.Index))(t)
			if !s.Foreign() {
				t.Error("not seen as another program's")
			}
			if got := dumpOf(t, s); alExtents.ReplaceAllString(got, "") != alExtents.ReplaceAllString(text, "") {
				t.Errorf("dump of what drbdmeta restored: %s", firstDiff(got, text))
			}
		})
	}
}

// alExtents is a comment in the dump, so that it does not survive.
var alExtents = regexp.MustCompile(`# al-extents \d+;`)

// drbdmeta apply-al and ours leave the same bytes.
func TestApplyALAgainstDrbdmeta(t *testing.T) {
	for _, v := range variants {
		if v.name == "v09 internal, 31 slots" {
			continue // 5 GiB would only be slow
		}
		t.Run(v.name, func(t *testing.T) {
			d := newLoop(t, v.size)
			if err := Create(variantData, d, v.o); err != nil {
				t.Fatal(err)
			}
			s := must(Open(variantData, d, v.o.Kind, v.o.Index))(t)
			rng := rand.New(rand.NewPCG(9, 9))
			fill(t, s, rng)
			sb := s.Super()
			sb.Flags = sb.Flags&^FlagALClean | FlagPrimary
			sb.Unclean = sb.Version == 8
			if err := s.WriteSuper(sb); err != nil {
				t.Fatal(err)
			}
			last := uint32((sb.EffectiveSize - 1) / 8192)
			l := actlog.New(67, s.ALBlocks())
			var tx actlog.Transaction
			var block [BlockSize]byte
			for i := range 20 {
				l.Get(last)
				l.Get(rng.Uint32N(last + 1))
				if !l.Prepare(&tx) {
					continue
				}
				tx.Encode(&block)
				at := tx.Block(int(sb.ALStripes), int(sb.ALStripeSize4k))
				if i == 19 {
					block[700] ^= 1 // torn
				}
				if err := s.WriteALBlock(at, &block); err != nil {
					t.Fatal(err)
				}
				l.Commit()
			}
			lay := s.Layout()
			size := min(lay.BitmapBytes, 1<<20)
			before := alignedBuf(int(size))
			if _, err := d.ReadAt(before, lay.Bitmap); err != nil {
				t.Fatal(err)
			}
			logArea := alignedBuf(int(lay.ALBytes))
			if _, err := d.ReadAt(logArea, lay.AL); err != nil {
				t.Fatal(err)
			}
			super := alignedBuf(BlockSize)
			if _, err := d.ReadAt(super, lay.Super); err != nil {
				t.Fatal(err)
			}

			result := func() []byte {
				out := alignedBuf(int(size))
				if _, err := d.ReadAt(out, lay.Bitmap); err != nil {
					t.Fatal(err)
				}
				log := alignedBuf(int(lay.ALBytes))
				if _, err := d.ReadAt(log, lay.AL); err != nil {
					t.Fatal(err)
				}
				sb := alignedBuf(BlockSize)
				if _, err := d.ReadAt(sb, lay.Super); err != nil {
					t.Fatal(err)
				}
				clear(sb[offTrailer:])
				return append(append(out, log...), sb...)
			}
			s = must(Open(variantData, d, v.o.Kind, v.o.Index))(t)
			marked := must(s.ApplyAL())(t)
			ours := result()
			for _, w := range []struct {
				p   []byte
				off int64
			}{{before, lay.Bitmap}, {logArea, lay.AL}, {super, lay.Super}} {
				if _, err := d.WriteAt(w.p, w.off); err != nil {
					t.Fatal(err)
				}
			}
			d.drbdmeta(t, v.version(), v.o.Kind, v.o.Index, "apply-al")
			theirs := result()
			if marked == 0 {
				t.Error("nothing was marked")
			}
			for i := range ours {
				if ours[i] != theirs[i] {
					t.Fatalf("byte %d of bitmap (%d), log (%d) and superblock: %#02x, drbdmeta's %#02x", i, size, lay.ALBytes, ours[i], theirs[i])
				}
			}
			if s = must(Open(variantData, d, v.o.Kind, v.o.Index))(t); !s.Foreign() || !s.Super().Clean() {
				t.Error("after drbdmeta's apply-al: not foreign, or not clean")
			}
		})
	}
}

// Without a peer's node id our conversion is drbdmeta's.
func TestConversionAgainstDrbdmeta(t *testing.T) {
	d := newLoop(t, 100<<20)
	d.drbdmeta(t, 8, Internal, 0, "create-md")
	d.drbdmeta(t, 8, Internal, 0, "set-gi", "1111111111111110:2222222222222222:3333333333333332:4444444444444444:1:1:0:1:1:1:1")
	d.drbdmeta(t, 8, Internal, 0, "write-dev-uuid", "99")
	block := alignedBuf(BlockSize)
	if _, err := d.ReadAt(block, 100<<20-BlockSize); err != nil {
		t.Fatal(err)
	}
	s := must(ConvertV08(0, d, Internal, 0, ConvertOptions{NodeID: -1, PeerNodeID: -1}))(t)
	ours := dumpOf(t, s)
	if got := d.dump(t, 9, Internal, 0); got != ours {
		t.Errorf("drbdmeta dumps our conversion as\n%s\nwe as\n%s", got, ours)
	}
	if _, err := d.WriteAt(block, 100<<20-BlockSize); err != nil {
		t.Fatal(err)
	}
	d.drbdmeta(t, 9, Internal, 0, "create-md", "1") // converts
	if theirs := d.dump(t, 9, Internal, 0); theirs != ours {
		t.Errorf("drbdmeta's conversion\n%s\nours\n%s", theirs, ours)
	}
	// And back: a version 8 tool reads it.
	if err := must(Open(0, d, Internal, 0))(t).ToV08(0); err != nil {
		t.Fatal(err)
	}
	s = must(Open(0, d, Internal, 0))(t)
	if got, want := dump22(dumpOf(t, s)), d.dump(t, 8, Internal, 0); got != want {
		t.Errorf("dump\n%s\ndrbdmeta's\n%s", got, want)
	}
	if got, want := d.drbdmeta(t, 8, Internal, 0, "get-gi", "--node-id", "0"), GI(s.Super(), 0)+"\n"; got != want ||
		!strings.HasPrefix(got, "1111111111111110:0000000000000000:3333333333333332:4444444444444444:1:1:0:1:1:1:1") {
		t.Errorf("get-gi %s, ours %s", got, want)
	}
}
