package genid

import (
	"encoding/json"
	"os"
	"strconv"
	"testing"
)

func readVectors(t *testing.T, name string, into any) {
	t.Helper()
	b, err := os.ReadFile("testdata/" + name)
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(b, into); err != nil {
		t.Fatal(err)
	}
}

func hexSet(t *testing.T, v [4]string) Set {
	t.Helper()
	var n [4]uint64
	for i, s := range v {
		var err error
		if n[i], err = strconv.ParseUint(s, 16, 64); err != nil {
			t.Fatal(err)
		}
	}
	return Set{n[0], n[1], n[2], n[3]}
}

// The kernel logged these results and rules; we reach each of them.
func TestCompareAsKernel(t *testing.T) {
	var cases []struct {
		Self         [4]string `json:"self"`
		Peer         [4]string `json:"peer"`
		SelfCrashed  bool      `json:"self_crashed_primary"`
		PeerFlags    uint64    `json:"peer_uuid_flags"`
		SelfPrimary  bool      `json:"self_primary"`
		PeerPrimary  bool      `json:"peer_primary"`
		SelfResolves bool      `json:"self_resolve_conflicts"`
		Result       int       `json:"result"`
		Rule         int       `json:"rule"`
	}
	readVectors(t, "uuid-compare.json", &cases)
	if len(cases) != 209 {
		t.Fatalf("%d cases, want 209", len(cases))
	}
	for i, c := range cases {
		in := Input{ResolveConflicts: c.SelfResolves, Version: 101, WSame: true,
			Self: Side{Set: hexSet(t, c.Self), Crashed: c.SelfCrashed, Primary: c.SelfPrimary},
			Peer: Side{Set: hexSet(t, c.Peer), Crashed: c.PeerFlags&2 != 0, Primary: c.PeerPrimary}}
		if v := Compare(in); int(v.Result) != c.Result || v.Rule != c.Rule {
			t.Errorf("case %d: %d by rule %d, the kernel says %d by rule %d\n%+v", i, v.Result, v.Rule, c.Result, c.Rule, in)
		}
	}
}

// The kernel's decisions after a split brain. Its disks were UpToDate, so a
// losing Primary also meets rr-conflict (step 7).
func TestResolveAsKernel(t *testing.T) {
	var cases []struct {
		SB0         string  `json:"after_sb_0pri"`
		SB1         string  `json:"after_sb_1pri"`
		SB2         string  `json:"after_sb_2pri"`
		SelfBit     uint64  `json:"self_bm_bit0"`
		PeerBit     uint64  `json:"peer_bm_bit0"`
		SelfBits    uint64  `json:"self_bits"`
		PeerBits    uint64  `json:"peer_bits"`
		SelfPrimary int     `json:"self_primary"`
		PeerPrimary int     `json:"peer_primary"`
		Resolves    bool    `json:"self_resolves"`
		SelfDiscard int     `json:"self_discard_my_data"`
		PeerDiscard int     `json:"peer_discard_my_data"`
		Always      int     `json:"always_asbp"`
		Common      bool    `json:"common_bitmap_uuid"`
		HGRule      string  `json:"hg_rule"`
		SyncFrom    *string `json:"sync_from"`
		Full        bool    `json:"full"`
	}
	readVectors(t, "split-brain.json", &cases)
	if len(cases) != 37 {
		t.Fatalf("%d cases, want 37", len(cases))
	}
	policy := func(s string) Policy {
		p, err := ParsePolicy(s)
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	for i, c := range cases {
		const b, h = 0xbb00000000000000, 0x1100000000000000
		in := Input{ResolveConflicts: c.Resolves, Version: 101, WSame: true,
			Self: Side{Set: Set{0xa100000000000000, b | c.SelfBit, h, 0}, Primary: c.SelfPrimary == 1,
				DirtyBits: c.SelfBits, DiscardMyData: c.SelfDiscard == 1},
			Peer: Side{Set: Set{0xa200000000000000, b | c.PeerBit, h, 0}, Primary: c.PeerPrimary == 1,
				DirtyBits: c.PeerBits, DiscardMyData: c.PeerDiscard == 1}}
		if !c.Common {
			in.Peer.Bitmap = 0xcc00000000000000 | c.PeerBit
		}
		v := Compare(in)
		if got := strconv.Itoa(int(v.Result)) + " by rule " + strconv.Itoa(v.Rule); got != c.HGRule {
			t.Errorf("case %d: %s, want %s", i, got, c.HGRule)
		}
		res := Resolve(in, v.Result, Policies{policy(c.SB0), policy(c.SB1), policy(c.SB2), c.Always == 1})
		if res.DemoteFirst { // the kernel's device was open, so it could not
			res.Result = Unsolved
		}
		var want Result
		switch {
		case c.SyncFrom == nil:
			want = Unsolved
		case *c.SyncFrom == "this":
			want = SourceBits
		default:
			want = TargetBits
		}
		if c.Full {
			want *= 2
		}
		if res.Result != want {
			t.Errorf("case %d: %v, want %v: %+v", i, res.Result, want, c)
		}
	}
}
