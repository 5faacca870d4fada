package meta

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"

	"github.com/hawser-ha/hawser/replicator/bitmap"
)

// TestMoveCrashes grows a device and cuts the power after every operation of Move: there is always valid metadata, with
// the right bitmaps unless it asks for a full sync.
func TestMoveCrashes(t *testing.T) {
	for _, c := range []struct {
		name     string
		version  int
		peers    int
		old, new int64
	}{
		{"far", 9, 3, 64 << 20, 96 << 20},
		{"far, version 8", 8, 1, 300 << 20, 400 << 20},
		{"by one block, over its old place", 9, 2, 64 << 20, 64<<20 + 4096},
		{"by a few sectors, in place", 9, 1, 64<<20 + 512, 64<<20 + 4*512},
		{"in place, with a larger bitmap", 9, 2, 128 << 20, 128<<20 + 512},
		{"by less than its length", 8, 1, 1 << 30, 1<<30 + 32<<10},
		{"by its length", 9, 1, 64 << 20, 64<<20 + 40960},
	} {
		t.Run(c.name, func(t *testing.T) {
			d := newDev(t, c.old)
			s := freshStore(t, d, 0, CreateOptions{Version: c.version, MaxPeers: c.peers})
			sb := s.Super()
			sb.EffectiveSize = uint64(s.Layout().Capacity) - 19
			sb.Flags = FlagConsistent | FlagWasUpToDate | FlagPrimary
			sb.Unclean = c.version == 8
			if c.version == 9 {
				for slot := range c.peers {
					sb.Peers[slot+1] = Peer{BitmapUUID: uint64(slot + 77), BitmapIndex: int32(slot)}
				}
			}
			if err := s.WriteSuper(sb); err != nil {
				t.Fatal(err)
			}
			want := make([]*bitmap.Bitmap, c.peers)
			rng := rand.New(rand.NewPCG(1, 1))
			for slot := range want {
				want[slot] = bitmap.New(s.BitmapBits())
				for range 50 {
					n := rng.Int64N(want[slot].Bits())
					want[slot].Set(n, n+rng.Int64N(100))
				}
				if err := s.WriteBitmap(slot, want[slot], nil); err != nil {
					t.Fatal(err)
				}
			}
			d.size = c.new
			before := d.clone()
			d.record = true
			if s.Layout().Capacity*SectorSize >= c.new {
				t.Fatal("capacity grew before Move")
			}
			if err := s.Move(c.new); err != nil {
				t.Fatal(err)
			}
			if s.Displaced() {
				t.Error("still displaced")
			}
			check := func(s *Store, final bool, what string) {
				t.Helper()
				got := s.Super()
				full := got.Version == 8 && got.Flags&FlagV08FullSync != 0 || got.Version == 9 && got.Peers[1].Flags&PeerFullSync != 0
				if got.EffectiveSize != sb.EffectiveSize || got.Flags&FlagPrimary == 0 {
					t.Fatalf("%s: %+v", what, got)
				}
				if full && !final {
					return
				}
				if got.Flags != sb.Flags || got.Unclean != sb.Unclean || got.Peers != sb.Peers {
					t.Fatalf("%s: superblock %+v, want %+v", what, got, sb)
				}
				for slot, w := range want {
					b := bitmap.New(s.BitmapBits())
					if err := s.ReadBitmap(slot, b); err != nil || !slices.Equal(b.Words(), w.Words()) {
						t.Fatalf("%s: slot %d: %v, want %v: %v", what, slot, b, w, err)
					}
				}
			}
			check(s, true, "moved")
			check(must(Open(0, d, Internal, 0))(t), true, "opened again")
			for n := range len(d.log) + 1 {
				for seed := range uint64(8) {
					what := fmt.Sprintf("crash after %d of %d operations, seed %d", n, len(d.log), seed)
					cr := d.crash(before, n, rand.New(rand.NewPCG(seed, 0)))
					s, err := Find(cr, c.old)
					if err != nil {
						t.Fatalf("%s: %v", what, err)
					}
					check(s, false, what)
					// And the move can be done again.
					if s.Displaced() {
						if err := s.Move(c.new); err != nil {
							t.Fatalf("%s: move again: %v", what, err)
						}
						check(must(Open(0, cr, Internal, 0))(t), false, what)
					}
				}
			}
			d.record = false
			if _, err := open(c.old, d, Internal, 0); err == nil && c.new-c.old >= BlockSize {
				t.Error("the old superblock is still there")
			}
		})
	}
}

// A few sectors more or less do not move the superblock, but may change the size that the bitmap should have.
func TestDeviceOfAlmostTheSameSizeIsOpened(t *testing.T) {
	for _, c := range [][2]int64{{128 << 20, 128<<20 + 512}, {128<<20 + 512, 128 << 20}, {128<<20 + 7*512, 128<<20 + 512}} {
		d := newDev(t, c[0])
		s := freshStore(t, d, 0, CreateOptions{})
		setSize(t, s, uint64(s.Layout().Capacity))
		d.size = c[1]
		s2, err := Open(0, d, Internal, 0)
		if err != nil {
			t.Errorf("%d bytes made %d: %v", c[0], c[1], err)
		} else if s2.Layout() != s.Layout() {
			t.Errorf("%d bytes made %d: %+v, want %+v", c[0], c[1], s2.Layout(), s.Layout())
		}
	}
}

func TestFind(t *testing.T) {
	d := newDev(t, 64<<20)
	freshStore(t, d, 0, CreateOptions{})
	d.size = 128 << 20
	if _, err := Find(d); !errors.Is(err, ErrNoMetadata) {
		t.Errorf("without a hint: %v", err)
	}
	s := must(Find(d, 32<<20, 64<<20))(t)
	if !s.Displaced() {
		t.Error("not displaced")
	}
	if err := s.Move(32 << 20); !errors.Is(err, ErrUnsupported) {
		t.Errorf("to the front: %v", err)
	}
	if err := s.Move(256 << 20); !errors.Is(err, ErrTooSmall) {
		t.Errorf("past the end: %v", err)
	}
}

func TestExternalMetadataFollowsTheDataDevice(t *testing.T) {
	d := newDev(t, 4<<20)
	s := freshStore(t, d, 64<<20, CreateOptions{Kind: FlexExternal})
	if got := s.Layout().Capacity; got != 64<<20/512 {
		t.Errorf("capacity %d", got)
	}
	setSize(t, s, 64<<20/512)
	if err := s.Move(96 << 20); err != nil || s.Layout().Capacity != 96<<20/512 {
		t.Errorf("capacity %d: %v", s.Layout().Capacity, err)
	}
	if err := s.Move(32 << 20); !errors.Is(err, ErrTooSmall) {
		t.Errorf("below what is agreed: %v", err)
	}
	if _, err := Open(32<<20, d, FlexExternal, 0); !errors.Is(err, ErrTooSmall) {
		t.Errorf("opened with too small a data device: %v", err)
	}
}

func TestConvert(t *testing.T) {
	for _, im := range images(t) {
		if im.Format != "v08" {
			continue
		}
		t.Run(im.Name, func(t *testing.T) {
			d, kind, index := im.device(t)
			old := must(Open(goldenData, d, kind, index))(t).Super()
			must(ConvertV08(goldenData, d, kind, index, ConvertOptions{NodeID: 0, PeerNodeID: 1}))(t)
			s := must(Open(goldenData, d, kind, index))(t)
			sb := s.Super()
			if sb.Version != 9 || sb.Clean() != old.Clean() || sb.Current != old.Current || sb.Peers[1].BitmapUUID != old.Peers[0].BitmapUUID ||
				sb.Peers[1].BitmapIndex != 0 || sb.DeviceUUID != old.DeviceUUID || sb.NodeID != 0 {
				t.Errorf("%+v\nfrom\n%+v", sb, old)
			}
			if got := must(s.ReplayAL())(t); !slices.Equal(got, im.Active) && len(got)+len(im.Active) > 0 {
				t.Errorf("active %v", got)
			}
			if err := s.ToV08(2); err == nil {
				t.Error("given to a peer that does not own the bitmap")
			}
			if err := s.ToV08(1); err != nil {
				t.Fatal(err)
			}
			if got := must(Open(goldenData, d, kind, index))(t).Super(); !got.Clean() == old.Clean() || got != asWrittenBack(old) {
				t.Errorf("back:\n%+v\nwant\n%+v", got, old)
			}
		})
	}
}

// asWrittenBack is a version 8 superblock after a visit to version 9, where there is one notion of unclean.
func asWrittenBack(sb Super) Super {
	if !sb.Clean() {
		sb.Unclean = true
		sb.Flags &^= FlagALClean
	}
	return sb
}

// Bitmaps are written while the metadata moves: nothing is lost, and nothing goes to the old place afterwards.
func TestWritesDuringMove(t *testing.T) {
	d := newDev(t, 512<<20)
	s := freshStore(t, d, 0, CreateOptions{MaxPeers: 2})
	setSize(t, s, uint64(s.Layout().Capacity))
	old := s.Layout()
	d.size = 600 << 20
	want := [2]*bitmap.Bitmap{}
	var wg sync.WaitGroup
	for slot := range want {
		b := bitmap.New(s.BitmapBits())
		want[slot] = b
		wg.Go(func() {
			for i := range int64(200) {
				b.Set(i*500, i*500+7)
				if err := s.WriteBitmap(slot, b, nil); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Go(func() {
		if err := s.Move(600 << 20); err != nil {
			t.Error(err)
		}
		d.mu.Lock()
		for off := old.Bitmap; off < old.Super; off += BlockSize {
			d.blocks[off] = []byte("user data")
		}
		d.mu.Unlock()
	})
	wg.Wait()
	s = must(Open(0, d, Internal, 0))(t)
	for slot, w := range want {
		b := bitmap.New(s.BitmapBits())
		if err := s.ReadBitmap(slot, b); err != nil || !slices.Equal(b.Words(), w.Words()) {
			t.Errorf("slot %d: %v, want %v: %v", slot, b, w, err)
		}
	}
	for off := old.Bitmap; off < old.Super; off += BlockSize {
		if string(d.blocks[off]) != "user data" {
			t.Errorf("user data at %d overwritten", off)
		}
	}
}
