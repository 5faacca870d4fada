package meta

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"

	"github.com/hawser-ha/hawser/replicator/actlog"
	"github.com/hawser-ha/hawser/replicator/bitmap"
)

func TestLayoutExamples(t *testing.T) {
	for _, c := range []struct {
		name string
		g    Geometry
		want Layout
	}{
		{"64 MiB internal, version 8", Geometry{Version: 8, DataSize: 64 << 20, MaxPeers: 1},
			Layout{67104768, 67072000, 32768, 67067904, 4096, 80, -64, -72, 130992}},
		{"130 MiB and 5 sectors internal", Geometry{Version: 8, DataSize: 130<<20 + 5*512, MaxPeers: 1},
			Layout{136310784, 136278016, 32768, 136269824, 8192, 88, -64, -80, 136269824 / 512}},
		{"64 MiB internal, striped log", Geometry{Version: 8, DataSize: 64 << 20, MaxPeers: 1, ALStripes: 4, ALStripeSize4k: 16},
			Layout{67104768, 66842624, 262144, 66838528, 4096, 528, -512, -520, 66838528 / 512}},
		{"64 MiB internal, three peers", Geometry{Version: 9, DataSize: 64 << 20, MaxPeers: 3},
			Layout{67104768, 67072000, 32768, 67063808, 8192, 88, -64, -80, 67063808 / 512}},
		{"4 MiB flexible", Geometry{Version: 8, Kind: FlexExternal, DataSize: 1 << 50, MetaSize: 4 << 20, MaxPeers: 1},
			Layout{0, 4096, 32768, 36864, 4<<20 - 36864, 8192, 8, 72, (8192 - 72) * 32768}},
		{"index 1", Geometry{Version: 8, Kind: Indexed, Index: 1, DataSize: 1 << 50, MetaSize: 257 << 20, MaxPeers: 1},
			Layout{134217728, 134221824, 32768, 134254592, 128<<20 - 36864, 262144, 8, 72, 8587575296}},
	} {
		if got, err := Compute(c.g); err != nil || got != c.want {
			t.Errorf("%s: %+v, want %+v: %v", c.name, got, c.want, err)
		}
	}
	for name, g := range map[string]Geometry{
		"too small a device":       {Version: 9, DataSize: 100 << 10, MaxPeers: 1},
		"no peers":                 {Version: 9, DataSize: 64 << 20},
		"two peers in version 8":   {Version: 8, DataSize: 64 << 20, MaxPeers: 2},
		"32 peers":                 {Version: 9, DataSize: 64 << 20, MaxPeers: 32},
		"a log of 16 KiB":          {Version: 9, DataSize: 64 << 20, MaxPeers: 1, ALStripes: 1, ALStripeSize4k: 4},
		"a log with half a shape":  {Version: 9, DataSize: 64 << 20, MaxPeers: 1, ALStripes: 1},
		"a log of overflow":        {Version: 9, DataSize: 64 << 20, MaxPeers: 1, ALStripes: 1 << 31, ALStripeSize4k: 1 << 31},
		"an index past the end":    {Version: 9, Kind: Indexed, Index: 2, DataSize: 1 << 30, MetaSize: 257 << 20, MaxPeers: 1},
		"a striped log with index": {Version: 9, Kind: Indexed, DataSize: 1 << 30, MetaSize: 257 << 20, MaxPeers: 1, ALStripes: 2, ALStripeSize4k: 4},
		"no data":                  {Version: 9, Kind: FlexExternal, MetaSize: 4 << 20, MaxPeers: 1},
	} {
		if l, err := Compute(g); err == nil {
			t.Errorf("%s: %+v", name, l)
		}
	}
}

func TestEveryFlippedBitOfOurSuperblockIsDetected(t *testing.T) {
	for _, version := range []int{8, 9} {
		d := newDev(t, 64<<20)
		s := freshStore(t, d, 0, CreateOptions{Version: version})
		at := s.Layout().Super
		good := d.get(at)
		for bit := range BlockSize * 8 {
			bad := bytes.Clone(good)
			bad[bit/8] ^= 1 << (bit % 8)
			d.blocks[at] = bad
			_, err := Open(0, d, Internal, 0)
			if _, ok := errors.AsType[*DamageError](err); !ok {
				t.Fatalf("version %d, bit %d of byte %#x flipped: %v", version, bit%8, bit/8, err)
			}
		}
	}
}

func TestDamagedForeignSuperblocks(t *testing.T) {
	for name, c := range map[string]struct {
		off int
		val []byte
	}{
		"al_offset":          {0x44, []byte{0, 0, 0, 8}},
		"bm_offset":          {0x4c, []byte{0, 0, 0, 8}},
		"md_size":            {0x40, []byte{0, 0, 0, 8}},
		"bytes per bit":      {0x50, []byte{0, 0, 0, 8}},
		"bitmap slots":       {0x58, []byte{0, 0, 0, 32}},
		"node id":            {0x5c, []byte{0, 0, 0, 32}},
		"al_stripes":         {0x60, []byte{0xff, 0xff, 0xff, 0xff}},
		"slot of a peer":     {0x70 + 20, []byte{0, 0, 0, 1}},
		"slot of two peers":  {0x70 + 20, append(append(make([]byte, 4), make([]byte, 28)...), make([]byte, 4)...)},
		"size past any disk": {0, []byte{0xff}},
		"size past the disk": {0, []byte{0, 0, 0, 0, 0, 0xff}},
	} {
		d := newDev(t, 64<<20)
		s := freshStore(t, d, 0, CreateOptions{})
		b := d.get(s.Layout().Super)
		clear(b[offTrailer:])
		copy(b[c.off:], c.val)
		d.blocks[s.Layout().Super] = b
		_, err := Open(0, d, Internal, 0)
		if _, ok := errors.AsType[*DamageError](err); !ok && !errors.Is(err, ErrTooSmall) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestNoMetadata(t *testing.T) {
	d := newDev(t, 64<<20)
	if _, err := Open(0, d, Internal, 0); !errors.Is(err, ErrNoMetadata) {
		t.Errorf("empty device: %v", err)
	}
	b := make([]byte, BlockSize)
	copy(b[0x1c:], []byte{0x83, 0x74, 0x02, 0x6a})
	d.put(64<<20-BlockSize, b)
	if _, err := Open(0, d, Internal, 0); !errors.Is(err, ErrUnsupported) {
		t.Errorf("version 7: %v", err)
	}
	if _, err := Open(0, newDev(t, 100), Internal, 0); !errors.Is(err, ErrTooSmall) {
		t.Errorf("tiny device: %v", err)
	}
}

func TestCreateRefusesToOverwrite(t *testing.T) {
	for _, version := range []int{8, 9} {
		d := newDev(t, 64<<20)
		s := freshStore(t, d, 0, CreateOptions{Version: version})
		_, ok := errors.AsType[*ExistsError](Create(0, d, CreateOptions{}))
		if !ok {
			t.Errorf("version %d was overwritten", version)
		}
		b := d.get(s.Layout().Super)
		b[8] ^= 1
		d.blocks[s.Layout().Super] = b
		if _, ok := errors.AsType[*ExistsError](Create(0, d, CreateOptions{})); !ok {
			t.Errorf("damaged version %d was overwritten", version)
		}
		if err := Create(0, d, CreateOptions{Force: true}); err != nil {
			t.Error(err)
		}
		if s = must(Open(0, d, Internal, 0))(t); s.Super().Version != 9 {
			t.Error("not overwritten")
		}
		if err := s.Wipe(); err != nil {
			t.Error(err)
		}
		if _, err := Open(0, d, Internal, 0); !errors.Is(err, ErrNoMetadata) {
			t.Errorf("wiped: %v", err)
		}
	}
}

// After a crash of Create over old metadata there is none, or the new; never the old superblock with new bitmaps.
func TestCreateOverOldMetadataCrashes(t *testing.T) {
	d := newDev(t, 64<<20)
	s := freshStore(t, d, 0, CreateOptions{MaxPeers: 2})
	setSize(t, s, 100000)
	b := bitmap.New(s.BitmapBits())
	b.SetAll()
	if err := s.WriteBitmap(1, b, nil); err != nil {
		t.Fatal(err)
	}
	before := d.clone()
	d.record = true
	if err := Create(0, d, CreateOptions{MaxPeers: 2, Force: true}); err != nil {
		t.Fatal(err)
	}
	for n := range len(d.log) + 1 {
		for seed := range uint64(10) {
			c := d.crash(before, n, rand.New(rand.NewPCG(seed, 0)))
			s, err := Open(0, c, Internal, 0)
			if errors.Is(err, ErrNoMetadata) {
				continue
			}
			if err != nil {
				t.Fatalf("crash after %d of %d operations: %v", n, len(d.log), err)
			}
			if s.Super().EffectiveSize == 0 {
				continue // new
			}
			got := bitmap.New(s.BitmapBits())
			if err := s.ReadBitmap(1, got); err != nil || got.Count() != b.Count() {
				t.Fatalf("crash after %d of %d operations: old superblock, bitmap %v: %v", n, len(d.log), got, err)
			}
		}
	}
}

func TestSlotsKeepTheirBits(t *testing.T) {
	for _, peers := range []int{1, 2, 3, 5, 7, 31} {
		t.Run(fmt.Sprint(peers, " slots"), func(t *testing.T) {
			d := newDev(t, 1<<30)
			s := freshStore(t, d, 0, CreateOptions{MaxPeers: peers})
			setSize(t, s, uint64(s.Layout().Capacity)-7)
			var wg sync.WaitGroup
			maps := make([]*bitmap.Bitmap, peers)
			for slot := range peers {
				maps[slot] = bitmap.New(s.BitmapBits())
				wg.Go(func() {
					rng := rand.New(rand.NewPCG(uint64(slot), 0))
					b := maps[slot]
					for range 20 {
						for range 20 {
							first := rng.Int64N(b.Bits())
							if last := first + rng.Int64N(1<<rng.IntN(16)); rng.IntN(3) == 0 {
								b.Clear(first, last)
							} else {
								b.Set(first, last)
							}
						}
						if err := s.WriteBitmap(slot, b, nil); err != nil {
							t.Error(err)
						}
					}
				})
			}
			wg.Wait()
			s = must(Open(0, d, Internal, 0))(t)
			for slot, want := range maps {
				got := bitmap.New(s.BitmapBits())
				if err := s.ReadBitmap(slot, got); err != nil || !slices.Equal(got.Words(), want.Words()) || got.Count() != want.Count() {
					t.Errorf("slot %d: %v, want %v: %v", slot, got, want, err)
				}
				got.Changed(func(blk int64) { t.Errorf("slot %d: block %d counts as changed after reading", slot, blk) })
				want.Changed(func(blk int64) { t.Errorf("slot %d: block %d counts as changed after writing", slot, blk) })
			}
		})
	}
}

func TestFailedBitmapWriteIsRepeated(t *testing.T) {
	d := newDev(t, 1<<30)
	s := freshStore(t, d, 0, CreateOptions{})
	setSize(t, s, 2000000)
	b := bitmap.New(s.BitmapBits())
	b.Set(5, 5)
	b.Set(100000, 100000)
	d.fail = errors.New("no disk")
	if err := s.WriteBitmap(0, b, nil); !errors.Is(err, d.fail) {
		t.Errorf("error %v", err)
	}
	if !b.ChangedBlock(0) || b.ChangedBlock(1) || !b.ChangedBlock(3) {
		t.Error("the failed blocks do not count as changed")
	}
	d.fail = nil
	if err := s.WriteBitmap(0, b, []int64{3}); err != nil {
		t.Fatal(err)
	}
	got := bitmap.New(s.BitmapBits())
	if err := s.ReadBitmap(0, got); err != nil || got.Count() != 1 || !b.ChangedBlock(0) {
		t.Errorf("%v: %v", got, err)
	}
	if err := s.WriteBitmap(1, b, nil); err == nil {
		t.Error("slot 1 of 1 was written")
	}
	if err := s.ReadBitmap(0, bitmap.New(1<<30)); !errors.Is(err, ErrTooSmall) {
		t.Errorf("a bitmap past the area: %v", err)
	}
}

// dirty makes metadata of a Primary that crashed with some extents active.
func dirty(t *testing.T, d *memDev, o CreateOptions, extents ...uint32) *Store {
	t.Helper()
	s := freshStore(t, d, 0, o)
	sb := s.Super()
	sb.EffectiveSize = uint64(s.Layout().Capacity)
	sb.Flags = FlagConsistent | FlagWasUpToDate | FlagPrimary
	sb.Unclean = sb.Version == 8
	if err := s.WriteSuper(sb); err != nil {
		t.Fatal(err)
	}
	l := actlog.New(1237, s.ALBlocks())
	var block [BlockSize]byte
	var tx actlog.Transaction
	for _, e := range extents {
		l.Get(e)
		l.Prepare(&tx)
		tx.Encode(&block)
		if err := s.WriteALBlock(tx.Block(int(sb.ALStripes), int(sb.ALStripeSize4k)), &block); err != nil {
			t.Fatal(err)
		}
		l.Commit()
	}
	return s
}

func TestApplyALMarksEverySlot(t *testing.T) {
	for _, o := range []CreateOptions{{Version: 8}, {MaxPeers: 3}, {MaxPeers: 3, ALStripes: 3, ALStripeSizeKB: 32}} {
		d := newDev(t, 256<<20)
		dirty(t, d, o, 7, 3, 63, 20)
		s := must(Open(0, d, Internal, 0))(t)
		if s.Super().Version == 9 {
			b := bitmap.New(s.BitmapBits())
			b.Set(3*1024, 3*1024+9)
			if err := s.WriteBitmap(1, b, nil); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := s.ApplyAL(); err != nil {
			t.Fatal(err)
		}
		s = must(Open(0, d, Internal, 0))(t)
		sb := s.Super()
		if !sb.Clean() || sb.Flags&FlagPrimary == 0 {
			t.Errorf("flags %#x", sb.Flags)
		}
		want := bitmap.New(s.BitmapBits())
		for _, e := range []int64{3, 7, 20, 63} {
			want.Set(e*1024, e*1024+1023)
		}
		for slot := range sb.MaxPeers {
			got := bitmap.New(s.BitmapBits())
			if err := s.ReadBitmap(slot, got); err != nil || !slices.Equal(got.Words(), want.Words()) {
				t.Errorf("slot %d: %v, want %v: %v", slot, got, want, err)
			}
		}
		if active := must(s.ReplayAL())(t); len(active) != 0 {
			t.Errorf("still active: %v", active)
		}
	}
}

func TestDamagedActivityLogIsRefused(t *testing.T) {
	d := newDev(t, 256<<20)
	s := dirty(t, d, CreateOptions{}, 1, 2, 3, 4, 5)
	at := s.Layout().AL + 2*BlockSize // neither the newest nor the next
	b := d.get(at)
	b[500] ^= 1
	d.blocks[at] = b
	_, err := Open(0, d, Internal, 0)
	if _, ok := errors.AsType[*DamageError](err); !ok || !errors.Is(err, actlog.ErrGap) {
		t.Fatalf("error %v", err)
	}
	s = must(OpenForRepair(0, d, Internal, 0))(t)
	if _, err := s.ApplyAL(); !errors.Is(err, actlog.ErrGap) {
		t.Fatalf("error %v", err)
	}
	if err := s.MarkAllDirty(); err != nil {
		t.Fatal(err)
	}
	s = must(Open(0, d, Internal, 0))(t)
	got := bitmap.New(s.BitmapBits())
	if err := s.ReadBitmap(0, got); err != nil || got.Count() != got.Bits() {
		t.Errorf("%v: %v", got, err)
	}
	// A node that was not Primary wrote nothing: the log does not matter.
	s = dirty(t, d, CreateOptions{Force: true}, 1, 2, 3, 4, 5)
	d.blocks[at] = b
	sb := s.Super()
	sb.Flags &^= FlagPrimary
	if err := s.WriteSuper(sb); err != nil {
		t.Fatal(err)
	}
	s = must(Open(0, d, Internal, 0))(t)
	if n, err := s.ApplyAL(); n != 0 || err != nil {
		t.Errorf("%d bits, %v", n, err)
	}
}

func TestSuperblockKeepsWhatItDoesNotKnow(t *testing.T) {
	d := newDev(t, 64<<20)
	s := freshStore(t, d, 0, CreateOptions{})
	at := s.Layout().Super
	b := d.get(at)
	b[0x68], b[0x600] = 0xaa, 0xbb // a newer format's
	clear(b[offTrailer:])
	d.blocks[at] = b
	s = must(Open(0, d, Internal, 0))(t)
	setSize(t, s, 8)
	if b = d.get(at); b[0x68] != 0xaa || b[0x600] != 0xbb {
		t.Error("unknown fields were lost")
	}
}

func TestWriteSuperRefusesNonsense(t *testing.T) {
	d := newDev(t, 64<<20)
	s := freshStore(t, d, 0, CreateOptions{})
	for name, change := range map[string]func(*Super){
		"other offsets":  func(sb *Super) { sb.BMOffset -= 8 },
		"other version":  func(sb *Super) { sb.Version = 8 },
		"more slots":     func(sb *Super) { sb.MaxPeers = 2 },
		"too large":      func(sb *Super) { sb.EffectiveSize = 1 << 30 },
		"slot of nobody": func(sb *Super) { sb.Peers[3].BitmapIndex = 1 },
	} {
		sb := s.Super()
		change(&sb)
		if err := s.WriteSuper(sb); err == nil {
			t.Errorf("%s: written", name)
		}
	}
	if _, err := Open(0, d, Internal, 0); err != nil {
		t.Error(err)
	}
}

func TestWriteALBlockDoesNotAllocate(t *testing.T) {
	d := newDev(t, 64<<20)
	s := freshStore(t, d, 0, CreateOptions{})
	s.md = nullDev{d}
	var block [BlockSize]byte
	if n := testing.AllocsPerRun(100, func() {
		if err := s.WriteALBlock(3, &block); err != nil {
			t.Fatal(err)
		}
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
	if err := s.WriteALBlock(8, &block); err == nil {
		t.Error("block 8 of 8 was written")
	}
}

type nullDev struct{ *memDev }

func (nullDev) WriteAt(p []byte, _ int64) (int, error) { return len(p), nil }
func (nullDev) Sync() error                            { return nil }

func FuzzDecodeSuper(f *testing.F) {
	for _, im := range images(f) {
		d, _, _ := im.device(f)
		f.Add(d.get(im.SuperOffset))
	}
	f.Fuzz(func(t *testing.T, in []byte) {
		if len(in) > BlockSize {
			in = in[:BlockSize]
		}
		b := make([]byte, BlockSize)
		copy(b, in)
		sb, err := DecodeSuper(b)
		if err != nil {
			return
		}
		// A device that claims this superblock must not upset Open or Dump.
		d := newDev(t, 8<<20)
		d.put(0, b)
		if s, err := Open(64<<20, d, FlexExternal, 0); err == nil {
			if err := s.Dump(&bytes.Buffer{}); err != nil {
				t.Fatal(err)
			}
		}
		again, err := DecodeSuper(sb.Encode())
		if err != nil || again != sb {
			t.Fatalf("round trip: %+v, want %+v: %v", again, sb, err)
		}
	})
}
