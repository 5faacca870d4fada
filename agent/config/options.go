package config

import (
	"math"
	"slices"
	"strings"
	"time"

	"github.com/hawser-ha/hawser/replicator/control"
)

// section is where options may stand.
type section uint8

const (
	inNet     section = iota // net of a resource or connection
	inDisk                   // disk of a resource, disk-options of a volume
	inResync                 // disk of a resource or connection: DRBD's peer-device options
	inOptions                // options of a resource
	inNBD                    // nbd of a resource or node
)

func (s section) String() string { return [...]string{"net", "disk", "disk", "options", "nbd"}[s] }

// target is what the options of one peer or volume are written to.
type target struct {
	net    *control.NetOpts
	disk   *control.DiskOpts
	resync *control.ResyncOpts
	res    *control.ResourceOpts
	ha     *HA
	nbd    *control.NBDDef
}

// option is one row of the table of options.
type option struct {
	name     string
	section  section
	kind     kind
	unit     time.Duration // of kindTime
	min, max int64         // after conversion; of a string its length in bytes
	def      string
	enum     []string
	refuse   map[string]string // values of enum that drbd.conf has and hawser has not: why
	set      func(target, value)
}

const (
	tenth       = 100 * time.Millisecond
	discardNode = "discard-node-"
	none        = "none"
)

// Algorithms the replicator implements.
var (
	hmacs = []string{"md5", "sha1", "sha224", "sha256", "sha384", "sha512", "sha3-224", "sha3-256", "sha3-384",
		"sha3-512"}
	digests = append([]string{"crc32c"}, hmacs...)
)

func algs(list []string) []string { return append([]string{""}, list...) }

// table is every option, with the ranges of drbd.conf. Defaults are drbd.conf's
// too, except where a comment says why not.
var table = []option{
	{name: "protocol", section: inNet, kind: kindEnum, def: "C", enum: []string{"A", "B", "C"},
		set: func(t target, v value) { t.net.Protocol = v.s }},
	{name: "timeout", section: inNet, kind: kindTime, unit: tenth, min: 1, max: 600, def: "60",
		set: func(t target, v value) { t.net.Timeout = v.dur }},
	{name: "ping-int", section: inNet, kind: kindTime, unit: time.Second, min: 1, max: 120, def: "10",
		set: func(t target, v value) { t.net.PingInt = v.dur }},
	{name: "ping-timeout", section: inNet, kind: kindTime, unit: tenth, min: 1, max: 300, def: "5",
		set: func(t target, v value) { t.net.PingTimeout = v.dur }},
	{name: "connect-int", section: inNet, kind: kindTime, unit: time.Second, min: 1, max: 120, def: "10",
		set: func(t target, v value) { t.net.ConnectInt = v.dur }},
	{name: "socket-check-timeout", section: inNet, kind: kindTime, unit: tenth, min: 0, max: 300, def: "0",
		set: func(t target, v value) { t.net.SocketCheckTimeout = v.dur }},
	{name: "ko-count", section: inNet, kind: kindCount, min: 0, max: 200, def: "7",
		set: func(t target, v value) { t.net.KOCount = int(v.n) }},
	{name: "max-epoch-size", section: inNet, kind: kindCount, min: 1, max: 20000, def: "2048",
		set: func(t target, v value) { t.net.MaxEpochSize = int(v.n) }},
	// 64 MiB; drbd.conf has 2048 pages, 8 MiB. Half of it is what a resync may have in flight, and 4 MiB do not fill a
	// fast link with some delay. The kernel's reason for less, pages taken from atomic reserves, is not ours.
	{name: "max-buffers", section: inNet, kind: kindCount, min: 32, max: 131072, def: "16384",
		set: func(t target, v value) { t.net.MaxBuffers = int(v.n) }},
	{name: "sndbuf-size", section: inNet, kind: kindBytes, min: 0, max: 134217728, def: "0",
		set: func(t target, v value) { t.net.SndbufSize = int(v.n) }},
	{name: "rcvbuf-size", section: inNet, kind: kindBytes, min: 0, max: 134217728, def: "0",
		set: func(t target, v value) { t.net.RcvbufSize = int(v.n) }},
	{name: "allow-two-primaries", section: inNet, kind: kindBool, def: "no",
		set: func(t target, v value) { t.net.AllowTwoPrimaries = v.b }},
	{name: "cram-hmac-alg", section: inNet, kind: kindEnum, enum: algs(hmacs),
		set: func(t target, v value) { t.net.CramHMACAlg = v.s }},
	{name: "shared-secret", section: inNet, kind: kindString, max: 63,
		set: func(t target, v value) { t.net.SharedSecret = v.s }},
	{name: "after-sb-0pri", section: inNet, kind: kindEnum, def: "disconnect", enum: []string{"disconnect",
		"discard-younger-primary", "discard-older-primary", "discard-zero-changes", "discard-least-changes",
		"discard-local", "discard-remote", discardNode + "NAME"},
		set: func(t target, v value) { t.net.AfterSB0Pri = v.s }},
	{name: "after-sb-1pri", section: inNet, kind: kindEnum, def: "disconnect", enum: []string{"disconnect", "consensus",
		"discard-secondary", "call-pri-lost-after-sb", "violently-as0p"},
		set: func(t target, v value) { t.net.AfterSB1Pri = v.s }},
	{name: "after-sb-2pri", section: inNet, kind: kindEnum, def: "disconnect", enum: []string{"disconnect",
		"call-pri-lost-after-sb", "violently-as0p"},
		set: func(t target, v value) { t.net.AfterSB2Pri = v.s }},
	{name: "always-asbp", section: inNet, kind: kindBool, def: "no",
		set: func(t target, v value) { t.net.AlwaysASBP = v.b }},
	{name: "rr-conflict", section: inNet, kind: kindEnum, def: "disconnect", enum: []string{"disconnect", "call-pri-lost",
		"violently"},
		set: func(t target, v value) { t.net.RRConflict = v.s }},
	{name: "data-integrity-alg", section: inNet, kind: kindEnum, enum: algs(digests),
		set: func(t target, v value) { t.net.DataIntegrityAlg = v.s }},
	{name: "on-congestion", section: inNet, kind: kindEnum, def: "block", enum: []string{"block", "pull-ahead", "disconnect"},
		set: func(t target, v value) { t.net.OnCongestion = v.s }},
	{name: "congestion-fill", section: inNet, kind: kindSectors, min: 0, max: 20971520, def: "0",
		set: func(t target, v value) { t.net.CongestionFill = v.n }},
	{name: "congestion-extents", section: inNet, kind: kindCount, min: 67, max: 65534, def: "1237",
		set: func(t target, v value) { t.net.CongestionExtents = int(v.n) }},
	{name: "csums-alg", section: inNet, kind: kindEnum, enum: algs(digests),
		set: func(t target, v value) { t.net.CsumsAlg = v.s }},
	{name: "csums-after-crash-only", section: inNet, kind: kindBool, def: "no",
		set: func(t target, v value) { t.net.CsumsAfterCrashOnly = v.b }},
	{name: "verify-alg", section: inNet, kind: kindEnum, enum: algs(digests),
		set: func(t target, v value) { t.net.VerifyAlg = v.s }},
	{name: "use-rle", section: inNet, kind: kindBool, def: "yes",
		set: func(t target, v value) { t.net.UseRLE = v.b }},
	{name: "fencing", section: inNet, kind: kindEnum, def: "dont-care", enum: []string{"dont-care", "resource-only",
		"resource-and-stonith"},
		set: func(t target, v value) { t.net.Fencing = v.s }},

	{name: "on-io-error", section: inDisk, kind: kindEnum, def: "detach", enum: []string{"detach", "pass_on",
		"call-local-io-error"},
		set: func(t target, v value) { t.disk.OnIOError = v.s }},
	{name: "disk-flushes", section: inDisk, kind: kindBool, def: "yes",
		set: func(t target, v value) { t.disk.DiskFlushes = v.b }},
	{name: "md-flushes", section: inDisk, kind: kindBool, def: "yes",
		set: func(t target, v value) { t.disk.MDFlushes = v.b }},
	{name: "al-extents", section: inDisk, kind: kindCount, min: 67, max: 65534, def: "1237",
		set: func(t target, v value) { t.disk.ALExtents = int(v.n) }},
	{name: "al-updates", section: inDisk, kind: kindBool, def: "yes",
		set: func(t target, v value) { t.disk.ALUpdates = v.b }},
	{name: "disk-timeout", section: inDisk, kind: kindTime, unit: tenth, min: 0, max: 6000, def: "0",
		set: func(t target, v value) { t.disk.DiskTimeout = v.dur }},
	{name: "read-balancing", section: inDisk, kind: kindEnum, def: "prefer-local", enum: []string{"prefer-local",
		"prefer-remote", "round-robin", "least-pending", "when-congested-remote", "32K-striping", "64K-striping",
		"128K-striping", "256K-striping", "512K-striping", "1M-striping"},
		refuse: map[string]string{"when-congested-remote": "whether a disk is congested is known to its kernel only; least-pending is nearest"},
		set:    func(t target, v value) { t.disk.ReadBalancing = v.s }},
	{name: "rs-discard-granularity", section: inDisk, kind: kindBytes, min: 0, max: 1048576, def: "0",
		set: func(t target, v value) { t.disk.RSDiscardGranularity = int(v.n) }},
	// The next two are hawser's own.
	{name: "direct-io", section: inDisk, kind: kindEnum, def: "auto", enum: []string{"auto", "yes", "no"},
		set: func(t target, v value) { t.disk.DirectIO = v.s }},
	{name: "rotational", section: inDisk, kind: kindBool, def: "no",
		set: func(t target, v value) { t.disk.Rotational = v.b }},

	{name: "resync-rate", section: inResync, kind: kindRate, min: 1, max: 8388608, def: "250",
		set: func(t target, v value) { t.resync.ResyncRate = int(v.n) }},
	{name: "c-plan-ahead", section: inResync, kind: kindTime, unit: tenth, min: 0, max: 300, def: "20",
		set: func(t target, v value) { t.resync.CPlanAhead = int(v.n) }},
	{name: "c-delay-target", section: inResync, kind: kindTime, unit: tenth, min: 1, max: 100, def: "10",
		set: func(t target, v value) { t.resync.CDelayTarget = int(v.n) }},
	// 0 lets the window find its size (replicator/pace). drbd.conf has 100 sectors, 50 KiB in flight, with which a link of
	// 1 ms does not pass 50 MB/s.
	{name: "c-fill-target", section: inResync, kind: kindSectors, min: 0, max: 1048576, def: "0",
		set: func(t target, v value) { t.resync.CFillTarget = int(v.n) }},
	// 4 GiB/s, the most drbd.conf can say; it has 100 MiB/s, less than one NVMe disk or a 1 GbE bond gives. What protects
	// the application is c-min-rate and the window, not this.
	{name: "c-max-rate", section: inResync, kind: kindRate, min: 0, max: 4194304, def: "4194304",
		set: func(t target, v value) { t.resync.CMaxRate = int(v.n) }},
	// 20 MiB/s; with drbd.conf's 250 KiB/s a resync under constant load takes days, in which there is no second copy.
	// Without c-min-rate a lower c-max-rate lowers it too.
	{name: "c-min-rate", section: inResync, kind: kindRate, min: 0, max: 4194304, def: "20480",
		set: func(t target, v value) { t.resync.CMinRate = int(v.n) }},

	{name: "on-no-data-accessible", section: inOptions, kind: kindEnum, def: "io-error", enum: []string{"io-error", "suspend-io"},
		set: func(t target, v value) { t.res.OnNoDataAccessible = v.s }},
	// The next ones are hawser's own: who decides who may write, and where the resource should run.
	{name: "coordination", section: inOptions, kind: kindEnum, def: control.CoordinationNone, enum: []string{control.CoordinationNone, control.CoordinationEtcd},
		set: func(t target, v value) { t.ha.Coordination = v.s }},
	{name: "on-no-quorum", section: inOptions, kind: kindEnum, def: "suspend-io", enum: []string{"suspend-io", "io-error"},
		set: func(t target, v value) { t.res.OnNoQuorum = v.s }},
	{name: "auto-promote", section: inOptions, kind: kindBool, def: "yes",
		set: func(t target, v value) { t.ha.AutoPromote = v.b }},
	{name: "preferred-node", section: inOptions, kind: kindString, max: 64,
		set: func(t target, v value) { t.ha.PreferredNode = v.s }},
	{name: "failback", section: inOptions, kind: kindEnum, def: none, enum: []string{none, "auto"},
		set: func(t target, v value) { t.ha.Failback = v.s == "auto" }},
	{name: "boot-wait", section: inOptions, kind: kindTime, unit: time.Second, min: 0, max: 3600, def: "20",
		set: func(t target, v value) { t.ha.BootWait = v.dur }},
	// What the loser of a split brain loses is kept. "none" is off.
	{name: "undo-log", section: inOptions, kind: kindPath, def: "/var/lib/hawser/undo",
		set: func(t target, v value) { t.res.UndoLog = strings.TrimPrefix(v.s, none) }},
	{name: "undo-log-max", section: inOptions, kind: kindBytes, min: 0, max: math.MaxInt64, def: "1G",
		set: func(t target, v value) { t.res.UndoLogMax = v.n }},

	{name: "unix", section: inNBD, kind: kindPath, set: func(t target, v value) { t.nbd.Unix = v.s }},
	{name: "listen", section: inNBD, kind: kindListen, set: func(t target, v value) { t.nbd.Listen = v.s }},
	{name: "tls-cert", section: inNBD, kind: kindPath, set: func(t target, v value) { t.nbd.TLSCert = v.s }},
	{name: "tls-key", section: inNBD, kind: kindPath, set: func(t target, v value) { t.nbd.TLSKey = v.s }},
	{name: "tls-ca", section: inNBD, kind: kindPath, set: func(t target, v value) { t.nbd.TLSCA = v.s }},
}

// refused are options of drbd.conf that hawser knows and does not have. Silence
// about a safety option would be a lie.
var refused = map[string]string{
	"quorum":                        "who may write is decided through etcd or Pacemaker, not by a quorum of replicas",
	"quorum-minimum-redundancy":     "who may write is decided through etcd or Pacemaker, not by a quorum of replicas",
	"on-suspended-primary-outdated": "a deposed Primary always fails its frozen writes",
	"auto-promote-timeout":          "opening a device promotes nothing",
	"disk-barrier":                  "writes are ordered by flushes, see disk-flushes",
	"disk-drain":                    "writes are always drained before a barrier is confirmed",
	"cpu-mask":                      "use CPUAffinity of the systemd unit",
	"tcp-cork":                      "there is no such choice here",
	"unplug-watermark":              "there is no such choice here",
	"max-bio-bvecs":                 "there are no bios",
	"use-bmbv":                      "there are no bios",
	"max-bio-size":                  "there are no bios",
	"resync-after":                  "there is no such choice here",
	"transport":                     "only TCP is there",
	"load-balance-paths":            "a connection has one path",
	"discard-zeroes-if-aligned":     "there is no such choice here",
	"disable-write-same":            "there is no such choice here",
	"allow-remote-read":             "there is no such choice here",
	"bitmap":                        "set diskless for the peer instead",
	"peer-ack-window":               "there is no such choice here",
	"peer-ack-delay":                "there is no such choice here",
	"twopc-timeout":                 "there are no cluster-wide state changes between replicas",
	"twopc-retry-timeout":           "there are no cluster-wide state changes between replicas",
	"max-io-depth":                  "there is no such choice here",
	"drbd8-api-compatibility":       "there is no such choice here",
	"resync-without-replication":    "there is no such choice here",
	"peer-tiebreaker":               "there is no such choice here",
	"wfc-timeout":                   "starting never blocks the boot",
	"degr-wfc-timeout":              "starting never blocks the boot",
	"outdated-wfc-timeout":          "starting never blocks the boot",
	"become-primary-on":             "promotion is the cluster's decision",
	"discard-my-data":               "say it at connect time: hawser connect --discard-my-data",
	"usage-count":                   "there is no such choice here",
}

func findOption(name string, in ...section) *option {
	for i := range table {
		if o := &table[i]; o.name == name && slices.Contains(in, o.section) {
			return o
		}
	}
	return nil
}

func optionNames(in ...section) []string {
	var names []string
	for _, o := range table {
		if slices.Contains(in, o.section) {
			names = append(names, o.name)
		}
	}
	return names
}

// handlers are the programs a node runs for a resource, by sh -c.
var handlers = []string{"split-brain", "initial-split-brain", "before-resync-target", "after-resync-target", "local-io-error", "pri-lost",
	"pri-lost-after-sb", "fence-peer", "unfence-peer"}

// refusedHandlers are those of drbd.conf that nothing would ever call.
var refusedHandlers = map[string]string{
	"outdate-peer":         "it has another name now: fence-peer",
	"before-resync-source": "only the target of a resync runs handlers",
	"pri-on-incon-degr":    "a Primary whose data is in reach of nobody answers as on-no-data-accessible says",
	"out-of-sync":          "what a verify finds is in the events and the status",
	"quorum-lost":          "who may write is decided through etcd or Pacemaker, not by a quorum of replicas",
	"disconnected":         "hawser events tells of lost peers",
}
