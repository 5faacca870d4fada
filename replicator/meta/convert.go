package meta

import (
	"errors"
	"fmt"
)

// ConvertOptions says who is who when version 8 metadata, which knows only "the peer", becomes version 9.
type ConvertOptions struct {
	NodeID int32 // of this node; -1 not yet known
	// PeerNodeID is the node id of the one peer so far; its bitmap and bitmap UUID are kept, so that only what differs has to
	// be resynced. -1 does as drbdmeta does: the flags go to entry 0, and the bitmap is nobody's.
	PeerNodeID int32
}

// ConvertV08 opens metadata and, if it is of version 8, makes it version 9 with one bitmap slot: activity log and bitmap stay as
// they are, and the superblock is replaced by one write. Unclean metadata stays unclean. Metadata of version 9 is
// only opened. See drbd-metadata.md section 6. Errors are those of Open.
func ConvertV08(dataSize int64, md Device, kind Kind, index int, o ConvertOptions) (*Store, error) {
	if o.NodeID < -1 || o.NodeID >= Nodes || o.PeerNodeID < -1 || o.PeerNodeID >= Nodes || o.PeerNodeID >= 0 && o.PeerNodeID == o.NodeID {
		return nil, fmt.Errorf("convert metadata: node ids %d and %d", o.NodeID, o.PeerNodeID)
	}
	s, err := Open(dataSize, md, kind, index)
	if err != nil {
		return nil, err
	}
	s.superMu.Lock()
	defer s.superMu.Unlock()
	if s.super.Version == 9 {
		return s, nil
	}
	old := s.super
	sb := old
	sb.Version, sb.Unclean = 9, false
	if !old.Clean() {
		sb.Flags &^= FlagALClean
	}
	sb.Flags &^= FlagV08Connected | FlagV08FullSync | FlagV08PeerOutdated
	sb.NodeID, sb.MaxPeers = o.NodeID, 1
	sb.Peers[0] = Peer{BitmapIndex: -1}
	peer := &sb.Peers[max(o.PeerNodeID, 0)]
	for _, f := range flagMoves {
		if old.Flags&f.v08 != 0 {
			peer.Flags |= f.v09
		}
	}
	if o.PeerNodeID >= 0 {
		peer.BitmapUUID, peer.BitmapIndex = old.Peers[0].BitmapUUID, 0
		peer.Flags |= PeerSeen
	}
	return s, s.replaceSuper(sb)
}

// flagMoves are the flags that version 8 has in the superblock and version 9 in the peer's entry.
var flagMoves = []struct{ v08, v09 uint32 }{
	{FlagV08Connected, PeerConnected}, {FlagV08FullSync, PeerFullSync}, {FlagV08PeerOutdated, PeerOutdated},
}

// ToV08 makes the metadata version 8, so that a kernel of DRBD 8.4 can take the disk over; peer is the node id of the one peer
// that version 8 can know. There must be one bitmap slot, and only that peer may have it.
func (s *Store) ToV08(peer int32) error {
	if peer < 0 || peer >= Nodes {
		return fmt.Errorf("convert metadata: node id %d", peer)
	}
	s.superMu.Lock()
	defer s.superMu.Unlock()
	if s.super.Version == 8 {
		return nil
	}
	old := s.super
	if old.MaxPeers != 1 {
		return fmt.Errorf("convert metadata: %w: version 8 has one bitmap slot, not %d", ErrUnsupported, old.MaxPeers)
	}
	for i, p := range old.Peers {
		if p.BitmapIndex != -1 && int32(i) != peer {
			return errors.New("convert metadata: the bitmap is another peer's")
		}
	}
	sb := old
	sb.Version = 8
	sb.Unclean = !old.Clean()
	sb.Members, sb.NodeID = 0, -1
	sb.Flags &= FlagConsistent | FlagPrimary | FlagWasUpToDate | FlagCrashedPrimary | FlagALClean | FlagALDisabled
	for _, f := range flagMoves {
		if old.Peers[peer].Flags&f.v09 != 0 {
			sb.Flags |= f.v08
		}
	}
	for i := range sb.Peers {
		sb.Peers[i] = Peer{BitmapIndex: -1}
		if i >= 2 {
			sb.History[i] = 0
		}
	}
	sb.Peers[0] = Peer{BitmapUUID: old.Peers[peer].BitmapUUID, BitmapIndex: 0}
	return s.replaceSuper(sb)
}

// replaceSuper writes a superblock of another version in the same place; superMu is held.
func (s *Store) replaceSuper(sb Super) error {
	if err := sb.check(); err != nil {
		return fmt.Errorf("convert metadata: %w", err)
	}
	clear(s.scratch)
	sb.encode(s.scratch)
	if err := putSuper(s.md, s.scratch, s.lay.Super, s.raw); err != nil {
		return err
	}
	s.super = sb
	return nil
}
