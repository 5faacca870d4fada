package wire

import (
	"bytes"
	"encoding/hex"
	"errors"
	"reflect"
	"strings"
	"testing"
)

// everyFeature is what a kernel 8.4.11 announces.
const everyFeature = FeatureTrim | FeatureThinResync | FeatureWSame | FeatureWZeroes

// decode runs a complete packet through ParseHeader, BodySize and Parse.
func decode(version int, features uint32, digestSize int, b []byte) (Packet, error) {
	var p Packet
	cmd, vol, length, err := ParseHeader(version, b)
	if err != nil {
		return p, err
	}
	n, err := BodySize(version, features, cmd, length)
	if err != nil {
		return p, err
	}
	h := HeaderSize(version)
	if len(b) < h+n {
		return p, &PacketError{cmd, length, ErrLength}
	}
	return p, Parse(version, features, digestSize, cmd, vol, length, b[h:h+n], &p)
}

func TestPacketsSurviveARoundTrip(t *testing.T) {
	block := func(cmd Command) Packet {
		return Packet{Cmd: cmd, Sector: 1 << 40, BlockID: 0xc0483b43bc6e3cff, Size: 4096}
	}
	ack := func(cmd Command) Packet { p := block(cmd); p.Seq = 7; return p }
	write := func(cmd Command, tail uint32) Packet {
		p := block(cmd)
		p.Seq, p.Flags, p.Tail = 0xffffffff, FlagRWSync|FlagSendWriteAck, tail
		return p
	}
	withTail := func(p Packet, n uint32) Packet { p.Tail = n; return p }
	packets := []Packet{
		write(Data, 4096), write(DataReply, 4096), write(RSDataReply, 4096), write(Trim, 0), write(Zeroes, 0),
		block(DataRequest), block(RSDataRequest), block(RSThinReq), block(OVRequest),
		withTail(block(OVReply), 20), withTail(block(CsumRSRequest), 4),
		ack(RecvAck), ack(WriteAck), ack(RSWriteAck), ack(Superseded), ack(NegAck), ack(NegDReply), ack(NegRSDReply),
		ack(OVResult), ack(RSIsInSync), ack(RSCancel), ack(RetryWrite),
		{Cmd: OutOfSync, Sector: 8, Size: MaxDiscard}, {Cmd: RSDeallocated, Sector: 8, Size: 65536},
		{Cmd: Barrier, Barrier: 0x06000000}, {Cmd: BarrierAck, Barrier: 0x06000000, SetSize: 3},
		{Cmd: StateReport, State: 0x000110a9},
		{Cmd: StateChgReq, Mask: 3, State: 1}, {Cmd: ConnStChgReq, Mask: 0x1f0, State: 0x10},
		{Cmd: StateChgReply, Code: -19}, {Cmd: ConnStChgReply, Code: 1},
		{Cmd: SyncUUID, UUID: 0x5ea8983cb3433cc7},
		{Cmd: Ping}, {Cmd: PingAck}, {Cmd: UnplugRemote}, {Cmd: DelayProbe}, {Cmd: InitialData}, {Cmd: InitialMeta},
		{Cmd: Bitmap}, {Cmd: Bitmap, Tail: 4080}, {Cmd: CompressedBitmap, Tail: 5},
		{Cmd: AuthChallenge, Tail: 64}, {Cmd: AuthResponse, Tail: 20},
		{Cmd: UUIDs, Ext: &UUIDsBody{1, 2, 3, 4, 1014, UUIDSkipInitialSync}},
		{Cmd: Sizes, Ext: &SizesBody{8112, 1, 8112, MaxData, 2, true, 512, 512, 3, 4, 5, 1, 1, 1}},
		{Cmd: ConnectionFeatures, Ext: &FeaturesBody{VersionMin, everyFeature, VersionMax}},
		{Cmd: Protocol, Ext: &ProtocolBody{3, 1, 2, 3, true, true, true, ""}},
		{Cmd: ProtocolUpdate, Ext: &ProtocolBody{Protocol: 1, IntegrityAlg: strings.Repeat("a", MaxString)}},
		{Cmd: SyncParam89, Ext: &SyncParamBody{250, "crc32c", strings.Repeat("b", MaxString), 20, 10, 100, 102400}},
		{Cmd: Term, Ext: &TermBody{1 << 50, NoHolder, true}}, {Cmd: Term, Ext: &TermBody{7, 2, false}},
		{Cmd: DiskID, Ext: &DiskIDBody{0x5ea8983cb3433cc7, true}},
		{Cmd: PromiseRequest, Ext: &PromiseBody{1, 7, 10e9}}, {Cmd: Promise, Ext: &PromiseBody{1, 7, maxPromise}},
	}
	for _, p := range packets {
		p.Vol = 3
		b := Append(nil, VersionMax, everyFeature|FeatureTerm, &p)
		got, err := decode(VersionMax, everyFeature|FeatureTerm, 0, b)
		if err != nil {
			t.Errorf("%s: %v", p.Cmd, err)
		}
		if !reflect.DeepEqual(got, p) {
			t.Errorf("%s:\n sent %+v\n got  %+v", p.Cmd, p, got)
		}
	}
	sent := map[Command]bool{}
	for _, p := range packets {
		sent[p.Cmd] = true
	}
	for c := range len(layouts) {
		if layouts[c].socks != 0 && !sent[Command(c)] && Command(c) != SyncParam {
			t.Errorf("%s is not tested", Command(c))
		}
	}
}

func TestOlderVersions(t *testing.T) {
	for _, c := range []struct {
		rule     string
		version  int
		features uint32
		p        Packet
		head     string // of the encoded packet
		size     int
	}{
		{"94 has the short header", 94, 0, Packet{Cmd: Data, Size: 32768, Tail: 32768}, "8374026700008018", 8 + 24},
		{"99 has the short header up to 32768 bytes of payload", 99, 0, Packet{Cmd: Data, Size: 32256, Tail: 32256}, "8374026700007e18", 8 + 24},
		{"99 has header95 above", 99, 0, Packet{Cmd: Data, Size: 131072, Tail: 131072}, "835a000000020018", 8 + 24},
		{"100 has header100", 100, 0, Packet{Cmd: Ping, Vol: 0}, "8620ec20000000130000000000000000", 16},
		{"sizes are short without WSAME", 101, 0, Packet{Cmd: Sizes, Ext: &SizesBody{DSize: 8}}, "8620ec200000000d00000020", 16 + 32},
		{"86 sends no integrity algorithm", 86, 0, Packet{Cmd: Protocol, Ext: &ProtocolBody{Protocol: 3}}, "83740267000b0018", 8 + 24},
		{"87 sends it", 87, 0, Packet{Cmd: Protocol, Ext: &ProtocolBody{Protocol: 3, IntegrityAlg: "md5"}}, "83740267000b001c", 8 + 28},
		{"87 sends the resync rate alone", 87, 0, Packet{Cmd: SyncParam, Ext: &SyncParamBody{ResyncRate: 9}}, "83740267000a0004", 8 + 4},
		{"88 adds verify-alg", 88, 0, Packet{Cmd: SyncParam, Ext: &SyncParamBody{ResyncRate: 9, VerifyAlg: "md5"}}, "83740267000a0008", 8 + 8},
		{"89 has two algorithms", 89, 0, Packet{Cmd: SyncParam89, Ext: &SyncParamBody{ResyncRate: 9, CsumsAlg: "md5"}}, "8374026700230084", 8 + 132},
		{"95 has the controller", 95, 0, Packet{Cmd: SyncParam89, Ext: &SyncParamBody{ResyncRate: 9, CMaxRate: 1}}, "8374026700230094", 8 + 148},
	} {
		b := Append(nil, c.version, c.features, &c.p)
		if !strings.HasPrefix(hex.EncodeToString(b), c.head) || len(b) != c.size {
			t.Errorf("%s: %d bytes %.40x", c.rule, len(b), b)
		}
		got, err := decode(c.version, c.features, 0, b)
		if err != nil {
			t.Errorf("%s: %v", c.rule, err)
		}
		if !reflect.DeepEqual(got, c.p) {
			t.Errorf("%s:\n sent %+v\n got  %+v", c.rule, c.p, got)
		}
	}
	if cmd, _, n, err := ParseHeader(97, []byte{0x83, 0x5a, 0, 0x13, 0, 0, 0, 0}); cmd != Ping || n != 0 || err != nil {
		t.Errorf("95..99 accept header95 for a small packet: %v %d %v", cmd, n, err)
	}
}

func TestBadPacketsAreRefused(t *testing.T) {
	// raw is a header100 packet with a body of n bytes that mod may change.
	raw := func(cmd Command, length uint32, n int, mod func(b []byte)) []byte {
		b := AppendHeader(nil, 101, cmd, 0, length)
		b = append(b, make([]byte, n)...)
		if mod != nil {
			mod(b[16:])
		}
		return b
	}
	size := func(at int, v uint32) func([]byte) { return func(b []byte) { be.PutUint32(b[at:], v) } }
	for _, c := range []struct {
		rule     string
		features uint32
		digest   int
		b        []byte
		want     error
	}{
		{"a term without its feature", everyFeature, 0, raw(Term, 16, 16, nil), ErrCommand},
		{"a promise without its feature", everyFeature, 0, raw(Promise, 24, 24, nil), ErrCommand},
		{"a term that is too short", FeatureTerm, 0, raw(Term, 8, 8, nil), ErrLength},
		{"a term with unknown flags", FeatureTerm, 0, raw(Term, 16, 16, size(12, 2)), ErrSize},
		{"a disk with unknown flags", FeatureTerm, 0, raw(DiskID, 16, 16, size(12, 2)), ErrSize},
		{"a promise for years", FeatureTerm, 0, raw(PromiseRequest, 24, 24, size(16, 0x10000000)), ErrSize},
		{"wrong magic", 0, 0, []byte("GET / HTTP/1.0\r\n"), ErrMagic},
		{"short header after the handshake", 0, 0, append(AppendHeader(nil, 99, Ping, 0, 0), make([]byte, 8)...), ErrMagic},
		{"header pad not zero", 0, 0, append(AppendHeader(nil, 101, Ping, 0, 0)[:12], 0, 0, 0, 1), ErrPad},
		{"unused command", 0, 0, raw(5, 0, 0, nil), ErrCommand},
		{"write same", everyFeature, 0, raw(WSame, 28, 28, nil), ErrCommand},
		{"command beyond the table", 0, 0, raw(0x1234, 0, 0, nil), ErrCommand},
		{"P_SYNC_PARAM is older than 89", 0, 0, raw(SyncParam, 4, 4, nil), ErrCommand},
		{"payload shorter than the fixed part", 0, 0, raw(Data, 23, 23, nil), ErrLength},
		{"a tail where none may be", 0, 0, raw(Barrier, 9, 9, nil), ErrLength},
		{"ping with a payload", 0, 0, raw(Ping, 1, 1, nil), ErrLength},
		{"write without data", 0, 0, raw(Data, 24, 24, nil), ErrSize},
		{"write of 511 bytes", 0, 0, raw(Data, 24+511, 24, nil), ErrSize},
		{"write of 513 bytes", 0, 0, raw(Data, 24+513, 24, nil), ErrSize},
		{"write of more than 1 MiB", 0, 0, raw(Data, 24+MaxData+512, 24, nil), ErrLength},
		{"write of 4 GiB", 0, 0, raw(Data, 0xffffffff, 24, nil), ErrLength},
		{"write shorter than its digest", 0, 64, raw(Data, 24+32, 24, nil), ErrSize},
		{"write with a digest nobody expects", 0, 0, raw(Data, 24+4+512, 24, nil), ErrSize},
		{"write whose position overflows", 0, 0, raw(Data, 24+512, 24, func(b []byte) { b[0] = 0xff }), ErrSize},
		{"discard of more than 4 MiB without WSAME", 0, 0, raw(Trim, 28, 28, size(24, MaxDiscardOld+512)), ErrSize},
		{"discard of more than 128 MiB", everyFeature, 0, raw(Trim, 28, 28, size(24, MaxDiscard+512)), ErrSize},
		{"empty discard", everyFeature, 0, raw(Zeroes, 28, 28, nil), ErrSize},
		{"request of more than 1 MiB", 0, 0, raw(RSDataRequest, 24, 24, size(16, MaxData+512)), ErrSize},
		{"request of nothing", 0, 0, raw(DataRequest, 24, 24, nil), ErrSize},
		{"verify reply without a digest", 0, 0, raw(OVReply, 24, 24, size(16, 4096)), ErrLength},
		{"digest longer than any", 0, 0, raw(CsumRSRequest, 24+65, 24, size(16, 4096)), ErrLength},
		{"bitmap of half a word", 0, 0, raw(Bitmap, 4, 4, nil), ErrLength},
		{"bitmap packet of more than 4096 bytes", 0, 0, raw(Bitmap, 4088, 0, nil), ErrLength},
		{"compressed bitmap without code", 0, 0, raw(CompressedBitmap, 1, 1, nil), ErrLength},
		{"sizes too long without WSAME", 0, 0, raw(Sizes, 56, 56, nil), ErrLength},
		{"sizes too short with WSAME", everyFeature, 0, raw(Sizes, 32, 32, nil), ErrLength},
		{"protocol without algorithm string", 0, 0, raw(Protocol, 24, 24, nil), ErrLength},
		{"protocol with 65 bytes of string", 0, 0, raw(Protocol, 24+65, 24+65, nil), ErrLength},
		{"string without NUL", 0, 0, raw(Protocol, 25, 25, func(b []byte) { b[24] = 'x' }), ErrString},
		{"string of 64 bytes", 0, 0, raw(SyncParam89, 148, 148, func(b []byte) { copy(b[4:], strings.Repeat("x", 64)) }), ErrString},
		{"csums-alg without NUL", 0, 0, raw(SyncParam89, 148, 148, func(b []byte) { copy(b[68:], strings.Repeat("x", 64)) }), ErrString},
		{"sync param of a wrong length", 0, 0, raw(SyncParam89, 132, 132, nil), ErrLength},
		{"challenge of 63 bytes", 0, 0, raw(AuthChallenge, 63, 63, nil), ErrLength},
		{"challenge of 129 bytes", 0, 0, raw(AuthChallenge, 129, 129, nil), ErrLength},
	} {
		_, err := decode(101, c.features, c.digest, c.b)
		if !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", c.rule, err, c.want)
		}
	}
}

func TestAcksMayCarryAnySize(t *testing.T) {
	// A kernel without a usable disk refuses a discard with a wrong size (10.3).
	p := Packet{Cmd: NegAck, Sector: 8, Size: 0xfffffffc}
	if got, err := decode(101, 0, 0, Append(nil, 101, 0, &p)); err != nil || got.Size != p.Size {
		t.Errorf("%v %+v", err, got)
	}
}

func TestDigestIsNotPartOfTheSize(t *testing.T) {
	p := Packet{Cmd: Data, Tail: 4 + 4096}
	got, err := decode(101, 0, 4, Append(nil, 101, 0, &p))
	if err != nil || got.Size != 4096 || got.Tail != 4100 {
		t.Errorf("%v %+v", err, got)
	}
}

func TestKnownDigests(t *testing.T) {
	data := bytes.Repeat([]byte{0x77}, 4096)
	for alg, want := range map[string]string{
		"crc32c": "a9ea7560", // from the capture of two kernels
		"md5":    "", "sha1": "", "sha224": "", "sha256": "", "sha384": "", "sha512": "",
		"sha3-224": "", "sha3-256": "", "sha3-384": "", "sha3-512": "",
	} {
		d, err := NewDigest(alg)
		if err != nil {
			t.Fatal(err)
		}
		got := d.Sum([]byte{1}, data)
		if len(got) != 1+d.Size() || got[0] != 1 || d.Name() != alg || d.Size() > MaxDigest {
			t.Errorf("%s: %d bytes", alg, len(got))
		}
		if want != "" && hex.EncodeToString(got[1:]) != want {
			t.Errorf("%s: %x", alg, got[1:])
		}
		buf := make([]byte, 0, MaxDigest)
		if n := testing.AllocsPerRun(10, func() { d.Sum(buf, data) }); n != 0 {
			t.Errorf("%s allocates %v times", alg, n)
		}
		if mac, err := NewHMAC(alg, []byte("k")); (err != nil) != (alg == "crc32c") || err == nil && mac.Size() != d.Size() {
			t.Errorf("hmac(%s): %v", alg, err)
		}
	}
	if _, err := NewDigest("rot13"); !errors.Is(err, ErrAlgorithm) {
		t.Errorf("unknown algorithm: %v", err)
	}
}

func TestCommandsBelongToASocket(t *testing.T) {
	meta := "P_PING P_PING_ACK P_RECV_ACK P_WRITE_ACK P_RS_WRITE_ACK P_SUPERSEDED P_NEG_ACK P_NEG_DREPLY P_NEG_RS_DREPLY " +
		"P_BARRIER_ACK P_STATE_CHG_REPLY P_OV_RESULT P_RS_IS_IN_SYNC P_DELAY_PROBE P_RS_CANCEL P_CONN_ST_CHG_REPLY P_RETRY_WRITE " +
		"P_PROMISE_REQUEST P_PROMISE"
	var got []string
	for c := range Command(0x40) {
		if c.OnMeta() {
			got = append(got, c.String())
		}
		if l := layoutOf(c); l.socks != 0 && !c.OnMeta() && !c.OnData() {
			t.Errorf("%s is on no socket", c)
		}
	}
	if s := strings.Join(got, " "); s != meta {
		t.Errorf("meta socket: %s", s)
	}
}

func TestStateWord(t *testing.T) {
	for word, want := range map[State]State{
		0x000110a9: MakeState(Primary, Secondary, Connected, UpToDate, UpToDate, 0),
		0x00010ae6: MakeState(Secondary, Primary, WFBitMapT, Outdated, UpToDate, 0)&^0xf | 0x6,
		0x0000c882: MakeState(Secondary, RoleUnknown, WFConnection, Inconsistent, DUnknown, 0),
	} {
		if word != want {
			t.Errorf("%#x, not %#x", want, word)
		}
		if MakeState(word.Role(), word.Peer(), word.Conn(), word.Disk(), word.PDsk(), 0) != word {
			t.Errorf("%#x does not survive its fields", word)
		}
	}
}

func FuzzDecode(f *testing.F) {
	for _, p := range []Packet{
		{Cmd: Data, Tail: 512}, {Cmd: Trim, Size: 4096}, {Cmd: Protocol, Ext: &ProtocolBody{IntegrityAlg: "md5"}},
		{Cmd: SyncParam89, Ext: &SyncParamBody{VerifyAlg: "crc32c"}}, {Cmd: Sizes, Ext: &SizesBody{}},
		{Cmd: UUIDs, Ext: &UUIDsBody{}}, {Cmd: WriteAck}, {Cmd: Barrier},
		{Cmd: Term, Ext: &TermBody{}}, {Cmd: DiskID, Ext: &DiskIDBody{}}, {Cmd: Promise, Ext: &PromiseBody{}},
	} {
		for _, v := range []uint8{101, 99, 88} {
			f.Add(v-VersionMin, uint8(everyFeature|0x80), uint8(4), Append(nil, int(v), everyFeature|FeatureTerm, &p))
		}
	}
	f.Fuzz(func(t *testing.T, v, bits, digest uint8, b []byte) {
		features := uint32(bits)
		if bits&0x80 != 0 { // the bits in between mean nothing
			features |= FeatureTerm
		}
		version := VersionMin + int(v)%(VersionMax-VersionMin+1)
		p, err := decode(version, features, int(digest)%(MaxDigest+1), b)
		if err != nil {
			return
		}
		again := Append(nil, version, features, &p)
		q, err := decode(version, features, int(digest)%(MaxDigest+1), again)
		if err != nil || !reflect.DeepEqual(p, q) {
			t.Fatalf("%v\n%+v\n%+v", err, p, q)
		}
		if twice := Append(nil, version, features, &q); !bytes.Equal(again, twice) {
			t.Fatalf("%x\n%x", again, twice)
		}
	})
}

func BenchmarkAppend(b *testing.B) {
	buf := make([]byte, 0, 256)
	for _, p := range []Packet{{Cmd: Data, Tail: 4096}, {Cmd: WriteAck, Size: 4096}, {Cmd: Barrier}} {
		b.Run(p.Cmd.String(), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				Append(buf, VersionMax, everyFeature, &p)
			}
		})
	}
}

func BenchmarkParse(b *testing.B) {
	var q Packet
	for _, p := range []Packet{{Cmd: Data, Tail: 4096}, {Cmd: WriteAck, Size: 4096}, {Cmd: Barrier}} {
		raw := Append(nil, VersionMax, everyFeature, &p)
		b.Run(p.Cmd.String(), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				cmd, vol, length, err := ParseHeader(VersionMax, raw)
				if err == nil {
					err = Parse(VersionMax, everyFeature, 0, cmd, vol, length, raw[16:], &q)
				}
				if err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
