package drbdconf

import "hash/crc32"

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// addressHash is what drbdadm orders two hosts without node-id by: CRC-32C of the address text with a start value of
// its own and without the final inversion, compared as a signed number.
func addressHash(text string) int32 {
	const start = 0x1a656f21
	return int32(^crc32.Update(^uint32(start), castagnoli, []byte(text)))
}

// nodeIDs gives ids to two hosts without. It is false when the hashes are equal.
func nodeIDs(a, b *Host) bool {
	if a.Address == nil || b.Address == nil {
		return true // complained about elsewhere
	}
	ha, hb := addressHash(a.Address.Text), addressHash(b.Address.Text)
	if ha == hb && a.Proxy != nil && b.Proxy != nil && a.Proxy.Outside != nil && b.Proxy.Outside != nil {
		ha, hb = addressHash(a.Proxy.Outside.Text), addressHash(b.Proxy.Outside.Text)
	}
	if ha == hb {
		return false
	}
	a.NodeID, b.NodeID = 0, 1
	if ha < hb {
		a.NodeID, b.NodeID = 1, 0
	}
	a.Generated, b.Generated = true, true
	return true
}
