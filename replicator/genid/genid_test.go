package genid

import (
	"math/rand/v2"
	"testing"
)

func TestCompareByVersion(t *testing.T) {
	const a, b, c = 0xa0, 0xb0, 0xc0
	for _, tc := range []struct {
		rule    string
		self    Set
		peer    Set
		version int
		want    Result
		number  int
		need    int
	}{
		{"a missed end is found from 91", Set{a, b, c, 0}, Set{a, 0, b, c}, 91, SourceBits, 34, 0},
		{"a missed end needs 91", Set{a, b, c, 0}, Set{a, 0, b, c}, 90, NeedsNewer, 34, 91},
		{"the peer's missed end needs 91", Set{a, 0, b, c}, Set{a, b, c, 0}, 90, NeedsNewer, 35, 91},
		{"a bitmap on one side only needs 91", Set{a, b, 0, 0}, Set{a, 0, c, 0}, 90, NeedsNewer, 36, 91},
		{"a missed start is found by +K from 96", Set{a, 0, 0, 0}, Set{b, a + syncStep, a, c}, 96, TargetBits, 51, 0},
		{"below 96 +K is not looked at", Set{a, 0, c, 0}, Set{b, a + syncStep, a, 0xd0}, 95, TargetFull, 60, 0},
		{"below 96 the histories tell", Set{a, 0, c, 0}, Set{b, 0xe0, a, c}, 95, TargetBits, 51, 0},
		{"below 96 the own histories tell", Set{b, 0xe0, a, c}, Set{a, 0, c, 0}, 95, SourceBits, 71, 0},
		{"a missed start needs 91", Set{b, 0xe0, a, c}, Set{a, 0, c, 0}, 90, NeedsNewer, 71, 91},
	} {
		v := Compare(Input{Self: Side{Set: tc.self}, Peer: Side{Set: tc.peer}, Version: tc.version, WSame: true})
		if v.Result != tc.want || v.Rule != tc.number || v.NeedVersion != tc.need {
			t.Errorf("%s: %v by rule %d, needs %d; want %v by rule %d, %d", tc.rule, v.Result, v.Rule, v.NeedVersion,
				tc.want, tc.number, tc.need)
		}
	}
}

func TestCrashedPrimaryMeetsPrimary(t *testing.T) {
	for _, tc := range []struct {
		rule     string
		me, peer bool
		wsame    bool
		want     Result
	}{
		{"without WSAME nobody can tell", true, false, false, NeedsNewer},
		{"I am Primary: source", true, false, true, SourceBits},
		{"the peer is Primary: target", false, true, true, TargetBits},
		{"two Primaries: split", true, true, true, SplitLong},
	} {
		in := Input{Version: 101, WSame: tc.wsame, Self: Side{Set: Set{Current: 0xa0}, Crashed: true, Primary: tc.me},
			Peer: Side{Set: Set{Current: 0xa0}, Primary: tc.peer}}
		if v := Compare(in); v.Result != tc.want || v.Rule != 41 {
			t.Errorf("%s: %v by rule %d", tc.rule, v.Result, v.Rule)
		}
	}
}

func TestCorrections(t *testing.T) {
	const a, b, c, d = 0xa0, 0xb0, 0xc0, 0xd0
	for _, tc := range []struct {
		rule       int
		self, peer Set
		wantSelf   Set
		wantPeer   Set
	}{
		{34, Set{a, b, c, d}, Set{a, 0, b, c}, Set{a, 0, b, c}, Set{a, 0, b, c}},
		{35, Set{a, 0, b, c}, Set{a, b, c, d}, Set{a, 0, b, c}, Set{a, 0, b, c}},
		{51, Set{b, 0, c, 0}, Set{a, b + syncStep, b, c}, Set{b, 0, c, 0}, Set{a, b, c, c}},
		{71, Set{a, b + syncStep, b, c}, Set{b, 0, c, 0}, Set{a, b, c, c}, Set{b, 0, c, 0}},
	} {
		v := Compare(Input{Self: Side{Set: tc.self}, Peer: Side{Set: tc.peer}, Version: 101, WSame: true})
		if v.Rule != tc.rule || v.Self != tc.wantSelf || v.Peer != tc.wantPeer {
			t.Errorf("rule %d: got rule %d, self %x, peer %x", tc.rule, v.Rule, v.Self, v.Peer)
		}
	}
}

// Every pair of sets over six values, two of them a sync start apart, with every
// combination of flags where flags count.
func TestCompareExhaustive(t *testing.T) {
	const a, b = 0x1111000000000010, 0x2222000000000020
	values := [...]uint64{0, JustCreated, a, a + syncStep, b, b | 1}
	n := len(values)
	total := 1
	for range 8 {
		total *= n
	}
	var checked, odd int
	for code := range total {
		var x [8]uint64
		for i, rest := 0, code; i < 8; i++ {
			x[i] = values[rest%n]
			rest /= n
		}
		in := Input{Version: 101, WSame: true, Self: Side{Set: Set{x[0], x[1], x[2], x[3]}}, Peer: Side{Set: Set{x[4], x[5], x[6], x[7]}}}
		flags := 1
		if id(x[0]) == id(x[4]) && id(x[0]) > JustCreated {
			flags = 32
		}
		for f := range flags {
			in.Self.Crashed, in.Peer.Crashed = f&1 != 0, f&2 != 0
			in.Self.Primary, in.Peer.Primary = f&4 != 0, f&8 != 0
			in.ResolveConflicts = f&16 != 0
			mine, theirs := Compare(in), Compare(in.Mirror())
			checked++
			if mine.Result == Equal && id(x[0]) != id(x[4]) {
				t.Fatalf("equal with different data: %+v", in)
			}
			if mine.Result > 0 && mine.Result.Decided() && id(x[0]) == 0 && id(x[4]) != JustCreated {
				t.Fatalf("a disk without data became source: %+v", in)
			}
			opposite := mine.Result.Decided() && mine.Result == -theirs.Result || !mine.Result.Decided() && mine.Result == theirs.Result
			if opposite == Contradictory(in) {
				t.Fatalf("Contradictory is %v for %v against %v: %+v", Contradictory(in), mine.Result, theirs.Result, in)
			}
			if opposite {
				continue
			}
			odd++
			// Only histories that cannot be: each node's data is in the other's past.
			s, p := in.Self.Set, in.Peer.Set
			mutual := past(p, s.Current) && past(s, p.Current)
			bothNone := id(s.Current) == 0 && id(p.Current) == 0
			if !mutual && !bothNone {
				t.Fatalf("not opposite: %v by %d against %v by %d: %+v", mine.Result, mine.Rule, theirs.Result, theirs.Rule, in)
			}
		}
	}
	t.Logf("%d comparisons, %d contradictory", checked, odd)
}

func past(s Set, current uint64) bool {
	c := id(current)
	return c == id(s.Bitmap) || c == id(s.History1) || c == id(s.History2)
}

// Both nodes reach opposite ends of every policy, whatever they measured.
func TestResolveIsMutual(t *testing.T) {
	for sb0 := range DiscardRemote + 1 {
		for sb1 := range ViolentlyAs0P + 1 {
			for sb2 := range ViolentlyAs0P + 1 {
				if !sb0.Allowed(0) || !sb1.Allowed(1) || !sb2.Allowed(2) {
					continue
				}
				mutual(t, Policies{SB0: sb0, SB1: sb1, SB2: sb2})
			}
		}
	}
}

func mutual(t *testing.T, p Policies) {
	t.Helper()
	theirs := Policies{p.SB0.Mirror(), p.SB1.Mirror(), p.SB2.Mirror(), p.AlwaysASBP}
	if !p.Match(theirs) {
		t.Fatalf("%+v does not match its own mirror", p)
	}
	for f := range 128 {
		for _, bits := range [][2]uint64{{0, 0}, {0, 5}, {5, 0}, {3, 7}, {7, 3}, {4, 4}} {
			in := Input{ResolveConflicts: f&1 != 0,
				Self: Side{Set: Set{Bitmap: uint64(0x10 | f>>1&1)}, Primary: f&4 != 0, DiscardMyData: f&8 != 0, DirtyBits: bits[0]},
				Peer: Side{Set: Set{Bitmap: uint64(0x10 | f>>4&1)}, Primary: f&32 != 0, DiscardMyData: f&64 != 0, DirtyBits: bits[1]}}
			for _, r := range []Result{SplitBrain, SplitLong} {
				a, b := Resolve(in, r, p), Resolve(in.Mirror(), r, theirs)
				if a.Result == Unsolved && b.Result == Unsolved {
					continue
				}
				if a.Result != -b.Result || a.Result == Equal {
					t.Fatalf("%v: %v against %v: %+v %+v", r, a.Result, b.Result, p, in)
				}
			}
		}
	}
}

func TestPolicyNames(t *testing.T) {
	for p := range ViolentlyAs0P + 1 {
		if got, err := ParsePolicy(p.String()); err != nil || got != p {
			t.Errorf("%v: %v, %v", p, got, err)
		}
	}
	if _, err := ParsePolicy("discard"); err == nil {
		t.Error("an unknown policy was taken")
	}
	if s := Policy(77).String(); s != "policy-77" {
		t.Error(s)
	}
}

// The worked example of section 17.4: split, resync, and both agree again.
func TestResyncLife(t *testing.T) {
	source := Set{0x5ea7983cb3433cc7, 0, 0x10, 0x20}
	target := Set{0x5ea7983cb3433cc6, 0, 0x10, 0x20}
	if !source.NewCurrent(0xabcdef, true) || source.Current != 0xabcdef || source.Bitmap != 0x5ea7983cb3433cc7 {
		t.Fatalf("%x", source)
	}
	if source.NewCurrent(0x777, true) {
		t.Fatal("a second generation hid the first")
	}
	in := Input{Self: Side{Set: source}, Peer: Side{Set: target}, Version: 101, WSame: true}
	if v := Compare(in); v.Result != SourceBits || v.Rule != 70 {
		t.Fatal(v)
	}
	handshake := source
	sync := source.SourceStart(1)
	if sync != 0x5ea8983cb3433cc7 {
		t.Fatalf("sync id %x", sync)
	}
	lost := Compare(Input{Self: Side{Set: source}, Peer: Side{Set: target}, Version: 101})
	if lost.Rule != 71 || lost.Self.Bitmap != handshake.Bitmap {
		t.Fatalf("the target did not hear of the start: %+v", lost)
	}
	target.TargetStart(sync, false)
	half := Compare(Input{Self: Side{Set: source}, Peer: Side{Set: target}, Version: 101})
	if half.Result != SourceBits || half.Rule != 70 {
		t.Fatalf("broken off: %+v", half)
	}
	target.TargetDone(handshake, false)
	missed := Compare(Input{Self: Side{Set: source}, Peer: Side{Set: target}, Version: 101})
	if missed.Rule != 34 || missed.Result != SourceBits {
		t.Fatalf("the source missed the end: %+v", missed)
	}
	source.SourceDone()
	want := Set{0xabcdef, 0, 0x5ea8983cb3433cc7, 0x5ea7983cb3433cc7}
	if source != want {
		t.Fatalf("source %x, want %x", source, want)
	}
	for _, p := range [][2]*uint64{{&source.Current, &target.Current}, {&source.Bitmap, &target.Bitmap},
		{&source.History1, &target.History1}, {&source.History2, &target.History2}} {
		if id(*p[0]) != id(*p[1]) {
			t.Fatalf("source %x, target %x", source, target)
		}
	}
	if v := Compare(Input{Self: Side{Set: source}, Peer: Side{Set: target}, Version: 101}); v.Result != Equal {
		t.Fatal(v)
	}
}

func TestSkipInitialSync(t *testing.T) {
	a, b := Set{Current: JustCreated}, Set{Current: JustCreated}
	announce, ok := a.SkipInitialSync(0x4711, true)
	if !ok || announce.Bitmap != JustCreated || announce.Current != 0x4711 || a.Bitmap != 0 {
		t.Fatalf("%x, %x, %v", announce, a, ok)
	}
	if !b.AcceptSkip(announce.Current, false) || b.Current != 0x4710 || b.Bitmap != 0 {
		t.Fatalf("%x", b)
	}
	if v := Compare(Input{Self: Side{Set: a}, Peer: Side{Set: b}, Version: 101}); v.Result != Equal {
		t.Fatal(v)
	}
	if _, ok := a.SkipInitialSync(0x99, false); ok {
		t.Error("a disk with data was declared new")
	}
	if b.AcceptSkip(0x99, false) {
		t.Error("a disk with data accepted it")
	}
}

func TestRandomAvoidsMeanings(t *testing.T) {
	for _, random := range []uint64{0, 1, 4, 5} {
		s := Set{Current: 0x10}
		s.NewCurrent(random, false)
		if c := id(s.Current); c == 0 || c == JustCreated {
			t.Errorf("%d became the current %x", random, c)
		}
	}
}

func TestLeftover(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 0))
	for range 1000 {
		in := Input{ResolveConflicts: rng.IntN(2) == 0,
			Self: Side{Primary: rng.IntN(2) == 0, DirtyBits: rng.Uint64N(2)},
			Peer: Side{Primary: rng.IntN(2) == 0, DirtyBits: rng.Uint64N(2)}}
		a, b := Leftover(in), Leftover(in.Mirror())
		if a != -b && (a != SplitLong || b != SplitLong) {
			t.Fatalf("%v against %v: %+v", a, b, in)
		}
		if dirty := in.Self.DirtyBits+in.Peer.DirtyBits > 0; dirty == (a == Equal) {
			t.Fatalf("%v with dirty=%v", a, dirty)
		}
	}
}
