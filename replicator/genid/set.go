package genid

// JustCreated is the current identifier of a disk that never held data.
const JustCreated uint64 = 4

// syncStep is what the source of a resync adds to its bitmap identifier to make
// the sync identifier; rules 51 and 71 recognise a lost sync start by it.
const syncStep uint64 = 0x0001000000000000

// Set is the identifiers of one disk towards one peer. Bit 0 is no part of an
// identifier: in Current it says that the node is Primary, elsewhere it is left
// over from the time the value was current. Zero means "none".
type Set struct {
	Current  uint64 // the generation on this disk
	Bitmap   uint64 // the generation at which the bitmap began to record; 0: it records nothing
	History1 uint64 // the newest older one
	History2 uint64
}

func id(v uint64) uint64 { return v &^ 1 }

func withRole(v uint64, primary bool) uint64 {
	if primary {
		return v | 1
	}
	return id(v)
}

func (s *Set) push(v uint64) { s.History2, s.History1 = s.History1, v }

// Rotate moves a non-zero bitmap identifier into the history.
func (s *Set) Rotate() {
	if s.Bitmap != 0 {
		s.push(s.Bitmap)
		s.Bitmap = 0
	}
}

// SetPrimary notes the role in bit 0 of Current. Promotion and demotion do this
// and nothing else to a Set.
func (s *Set) SetPrimary(primary bool) { s.Current = withRole(s.Current, primary) }

// NewCurrent starts a generation of its own, from which on the bitmap records
// what the peer lacks (section 17.2). random becomes the new identifier. It does
// nothing and reports false when the bitmap already records: the peer has then
// missed the earlier generation and the new writes are part of the same gap. The
// caller makes a change durable before it lets any write pass.
func (s *Set) NewCurrent(random uint64, primary bool) bool {
	if s.Bitmap != 0 {
		return false
	}
	s.Bitmap = s.Current
	s.Current = withRole(fresh(random), primary)
	return true
}

// fresh keeps a random number off the values with a meaning.
func fresh(random uint64) uint64 {
	if id(random) == 0 || id(random) == JustCreated {
		return random ^ 0x5bd1e99500000000
	}
	return random
}

// SourceStart is done by the source of a resync as it starts; the result goes to
// the target in P_SYNC_UUID (section 17.3). random is used when there is no
// bitmap identifier to derive it from.
func (s *Set) SourceStart(random uint64) (syncID uint64) {
	syncID = fresh(random)
	if s.Bitmap != 0 && id(s.Bitmap) != JustCreated {
		syncID = s.Bitmap + syncStep
	}
	s.Rotate()
	s.Bitmap = syncID
	return syncID
}

// TargetStart is done by the target of a resync when P_SYNC_UUID arrives.
func (s *Set) TargetStart(syncID uint64, primary bool) {
	s.Current = withRole(syncID, primary)
	s.Bitmap = 0
}

// SourceDone is done by the source when a resync ended without a failed block
// (section 17.4); with failed blocks the identifiers stay as they are.
func (s *Set) SourceDone() { s.Rotate() }

// TargetDone is done by the target when a resync ended without a failed block.
// peer is the source's Set of the handshake, with the fixes of Compare
// (Verdict.Peer). Both sides then hold the same identifiers.
func (s *Set) TargetDone(peer Set, primary bool) {
	syncID := s.Current
	s.Bitmap, s.History1, s.History2 = peer.Bitmap, peer.History1, peer.History2
	s.Rotate()
	s.push(syncID)
	s.Current = withRole(peer.Current, primary)
}

// SkipInitialSync declares the untouched disks of both nodes equal (section
// 17.5). announce is what P_UUIDS carries, with flag 8. It reports false, and
// changes nothing, unless the disk was just created.
func (s *Set) SkipInitialSync(random uint64, primary bool) (announce Set, ok bool) {
	if id(s.Current) != JustCreated {
		return Set{}, false
	}
	s.Rotate()
	s.NewCurrent(random, primary)
	announce = *s
	s.Bitmap = 0
	return announce, true
}

// AcceptSkip is the receiver's side of SkipInitialSync: current is that of the
// P_UUIDS. It reports false, and changes nothing, unless the own disk was just
// created too.
func (s *Set) AcceptSkip(current uint64, primary bool) bool {
	if id(s.Current) != JustCreated || id(current) == 0 || id(current) == JustCreated {
		return false
	}
	s.Current = withRole(current, primary)
	s.Bitmap = 0
	return true
}
