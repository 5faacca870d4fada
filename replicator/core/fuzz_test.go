package core

import (
	"encoding/binary"
	"testing"

	"github.com/hawser-ha/hawser/replicator/wire"
)

// fuzzCommands are what a peer may send at all.
var fuzzCommands = []wire.Command{wire.Data, wire.Trim, wire.Zeroes, wire.Barrier, wire.BarrierAck, wire.Ping, wire.PingAck, wire.Protocol,
	wire.ProtocolUpdate, wire.ConnStChgReq, wire.StateChgReply, wire.ConnStChgReply, wire.RecvAck, wire.WriteAck, wire.RSWriteAck, wire.NegAck,
	wire.Superseded, wire.RetryWrite, wire.SyncParam89, wire.Sizes, wire.UUIDs, wire.StateReport, wire.StateChgReq, wire.SyncUUID, wire.Bitmap,
	wire.CompressedBitmap, wire.OutOfSync, wire.DataRequest, wire.DataReply, wire.NegDReply, wire.RSDataRequest, wire.RSThinReq,
	wire.CsumRSRequest, wire.RSDataReply, wire.RSDeallocated, wire.NegRSDReply, wire.RSCancel, wire.RSIsInSync, wire.OVRequest, wire.OVReply,
	wire.OVResult, wire.UnplugRemote, 0x7777}

// FuzzPacket: no packet of a peer may make the Machine panic, whatever its state, nor complete a write that the local disk
// does not have.
func FuzzPacket(f *testing.F) {
	f.Add([]byte{0, 0, 0, 0, 0, 0, 0, 0})
	f.Add([]byte{3, 13, 0, 8, 1, 2, 3, 4, 3, 4, 0, 8, 1, 2, 3, 4, 0, 9, 9, 9, 9, 9, 9, 9})
	f.Fuzz(fuzzOne)
}

func fuzzOne(t *testing.T, in []byte) {
	if len(in) < 8 {
		return
	}
	n := testNet()
	n.Protocol = uint32(in[0]%3) + 1
	n.TwoPrimaries = in[0]&4 != 0 && n.Protocol == 3
	features := uint32(0)
	if in[0]&8 != 0 {
		features = FeatureRelaxedEpochs | wire.FeatureTrim | wire.FeatureWZeroes | wire.FeatureThinResync | wire.FeatureWSame
	}
	r := connected(t, n, features, in[0]&16 != 0)
	if in[0]&32 != 0 {
		r.primary()
	}
	if in[0]&64 != 0 {
		r.m.Verify(r.now, 0, 0, 0, 0, nil)
	}
	r.run()
	var writes []*Request
	for at := 1; at+8 <= len(in); at += 8 {
		fuzzStep(r, in[at:at+8], &writes)
		for _, q := range writes {
			if err, ok := r.done[q]; ok && err == nil && !r.had[q] && !r.everBad() {
				t.Fatalf("write at %d completed, but the disk does not have it", q.Off)
			}
		}
	}
	r.m.LinkDown(r.now, 0, errDisk, false)
	r.run()
	r.finishDisk(nil)
}

// everBad says that our disk was not the good copy at some time, so that the peer's word was enough.
func (r *rig) everBad() bool {
	for _, note := range r.notes {
		switch note {
		case "disk Outdated", "disk Inconsistent", "disk Failed: detaching", "disk Diskless":
			return true
		}
	}
	return false
}

// fuzzStep does one thing that eight bytes name.
func fuzzStep(r *rig, b []byte, writes *[]*Request) {
	off := int64(b[2]%32) * 4096
	length := int64(b[3]%4+1) * 4096
	if b[3]&128 != 0 {
		off, length = int64(binary.LittleEndian.Uint32(b[2:]))<<9, int64(b[6])<<9
	}
	switch b[0] % 8 {
	case 0:
		if r.m.Role() == wire.Primary && off+length <= r.m.vols[0].size {
			kinds := []Kind{AppWrite, AppRead, AppFlush, AppTrim, AppZero}
			k := kinds[int(b[1])%len(kinds)]
			q := r.submit(k, off, length)
			if length > 0 && (k == AppWrite || k == AppTrim || k == AppZero) {
				*writes = append(*writes, q)
			}
		}
	case 1:
		if len(r.disk) > 0 {
			i := int(b[1]) % len(r.disk)
			q := r.disk[i]
			r.disk = append(r.disk[:i:i], r.disk[i+1:]...)
			var err error
			if b[4]%8 == 0 {
				err = errDisk
			}
			r.had[q] = true
			r.m.DiskDone(r.now, q, err)
			r.run()
		}
	case 2:
		r.now += Now(b[1]) * 20e6
		r.m.Tick(r.now)
		r.run()
	default:
		p := wire.Packet{Cmd: fuzzCommands[int(b[1])%len(fuzzCommands)], Sector: uint64(off) >> 9, Size: uint32(length), Seq: uint32(b[4]),
			BlockID: wire.IDSyncer, Barrier: uint32(b[5]), SetSize: uint32(b[6] % 4), Code: int32(int8(b[5])), UUID: uint64(b[6]),
			State: wire.State(binary.LittleEndian.Uint32(b[4:])), Mask: wire.State(binary.LittleEndian.Uint32(b[3:])), Flags: wire.Flags(b[4]) << 4}
		if i := int(b[4]); i < len(r.sent) { // an answer to something that was sent
			s := r.sent[len(r.sent)-1-i].Pkt
			p.BlockID, p.Barrier = s.BlockID, s.Barrier
			if b[5]&1 != 0 {
				p.Sector, p.Size = s.Sector, s.Size
			}
		}
		var data []byte
		switch p.Cmd {
		case wire.Protocol, wire.ProtocolUpdate:
			p.Ext = &wire.ProtocolBody{Protocol: uint32(b[4] % 5), AfterSB0: uint32(b[5]), TwoPrimaries: b[6]&1 != 0}
		case wire.SyncParam89:
			p.Ext = &wire.SyncParamBody{VerifyAlg: "crc32c"}
		case wire.Sizes:
			p.Ext = &wire.SizesBody{DSize: uint64(b[4]) << 14, USize: uint64(b[5]) << 12, CSize: uint64(b[6]) << 14}
		case wire.UUIDs:
			p.Ext = &wire.UUIDsBody{Current: uint64(b[4]) << 8, Bitmap: uint64(b[5]) << 8, History1: uint64(b[6]) << 8, Flags: uint64(b[7])}
		case wire.Bitmap:
			data = make([]byte, int(b[4])*16)
		case wire.CompressedBitmap:
			data = b[2:]
		}
		_ = r.packetData(p, data)
	}
}

func (r *rig) packetData(p wire.Packet, data []byte) error {
	_, err := r.m.Packet(r.now, 0, &p, &struct{}{}, data)
	r.run()
	if err != nil { // what the caller does on a protocol error
		r.m.LinkDown(r.now, 0, err, false)
		r.run()
		for range 3 {
			r.finishDisk(nil)
		}
		if r.m.peers[0].state == wire.WFConnection {
			r.link(r.m.peers[0].cfg.Net, r.m.peers[0].li.Features, r.m.peers[0].li.ResolveConflicts)
		}
	}
	return err
}
