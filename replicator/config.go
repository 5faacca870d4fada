package replicator

import (
	"slices"

	"github.com/hawser-ha/hawser/replicator/control"
	"github.com/hawser-ha/hawser/replicator/core"
	"github.com/hawser-ha/hawser/replicator/genid"
	"github.com/hawser-ha/hawser/replicator/pace"
	"github.com/hawser-ha/hawser/replicator/wire"
)

// protocolNumber is the number of protocol A, B or C on the wire; 0 for anything else.
func protocolNumber(name string) uint32 {
	switch name {
	case "A", "a":
		return 1
	case "B", "b":
		return 2
	case "C", "c":
		return 3
	}
	return 0
}

// coreConfig is the definition as the Machine takes it.
func coreConfig(def *control.Definition, random func() uint64) core.Config {
	c := core.Config{Rand: random, SuspendOnNoData: suspendOnNoData(def), BeforeTarget: hasBeforeTarget(def), NodeID: def.NodeID,
		Coordinated: def.Coordination == control.CoordinationEtcd, FailUnlicensed: def.Options.OnNoQuorum == "io-error",
		TTL: core.Now(def.TTL), Margin: core.Now(def.Margin)}
	for i := range def.Volumes {
		c.Volumes = append(c.Volumes, volumeConfig(&def.Volumes[i]))
	}
	for i := range def.Peers {
		p := &def.Peers[i]
		c.Peers = append(c.Peers, core.PeerConfig{Name: p.Name, NodeID: p.NodeID, Diskless: p.Diskless, Net: netConfig(&p.Net), Pace: paceParams(p), MinRate: p.Resync.CMinRate})
	}
	return c
}

func volumeConfig(d *control.VolumeDef) core.VolumeConfig {
	return core.VolumeConfig{
		Number: d.Number, UserSize: d.Size, OnIOError: d.Opts.OnIOError, ALUpdates: d.Opts.ALUpdates,
		ThinGranularity: int64(d.Opts.RSDiscardGranularity), ReadBalancing: d.Opts.ReadBalancing, MaxBio: wire.MaxData,
	}
}

func suspendOnNoData(def *control.Definition) bool {
	return def.Options.OnNoDataAccessible == "suspend-io"
}

func hasBeforeTarget(def *control.Definition) bool {
	return slices.Contains(def.Handlers, "before-resync-target")
}

func netConfig(n *control.NetOpts) core.NetConfig {
	return core.NetConfig{
		Protocol: protocolNumber(n.Protocol), Timeout: n.Timeout, KOCount: n.KOCount, PingInt: n.PingInt, PingTimeout: n.PingTimeout,
		MaxEpochSize: n.MaxEpochSize, MaxBuffers: n.MaxBuffers, TwoPrimaries: n.AllowTwoPrimaries,
		Policies: policies(n), RRConflict: n.RRConflict,
		IntegrityAlg: n.DataIntegrityAlg, IntegritySize: sizeOf(n.DataIntegrityAlg),
		CsumsAlg: n.CsumsAlg, CsumsSize: sizeOf(n.CsumsAlg), CsumsAfterCrashOnly: n.CsumsAfterCrashOnly,
		VerifyAlg: n.VerifyAlg, VerifySize: sizeOf(n.VerifyAlg),
		OnCongestion: n.OnCongestion, CongestionFill: n.CongestionFill * 512, CongestionExtents: n.CongestionExtents,
		Fencing: n.Fencing,
	}
}

func paceParams(p *control.PeerDef) pace.Params {
	s := p.Resync
	return pace.Params{
		ResyncRate: s.ResyncRate, PlanAhead: s.CPlanAhead, DelayTarget: s.CDelayTarget, FillTarget: s.CFillTarget,
		MaxRate: s.CMaxRate, MaxInFlight: p.Net.MaxBuffers * 8 / 2,
	}
}

// policies are the after-sb options; the definition was checked, an unknown name is the safe one.
func policies(n *control.NetOpts) genid.Policies {
	parse := func(name string) genid.Policy {
		p, err := genid.ParsePolicy(name)
		if err != nil {
			return genid.Disconnect
		}
		return p
	}
	return genid.Policies{SB0: parse(n.AfterSB0Pri), SB1: parse(n.AfterSB1Pri), SB2: parse(n.AfterSB2Pri), AlwaysASBP: n.AlwaysASBP}
}
