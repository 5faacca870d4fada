package drbdconf

import (
	"math"
	"slices"
)

// Kind is the type of an option's value.
type Kind uint8

// Kinds of values.
const (
	Number  Kind = iota
	Bool         // yes or no
	Enum         // one of Values
	Text         // at most Max bytes
	Flag         // no value
	Command      // for the shell
	Names        // one or more hosts
)

// Base is what a plain number counts.
type Base uint8

// Bases of numbers. A suffix multiplies relative to them.
const (
	One    Base = iota // bytes, seconds, pieces
	KiB                // KiB
	Sector             // 512 bytes
)

// Spec is one row of the table of options.
type Spec struct {
	Section  string // global net disk options startup handlers proxy
	Name     string
	Kind     Kind
	Base     Base
	Min, Max uint64 // of a Text: Max bytes
	Default  string
	Values   []string
	Open     string // an Enum also takes values that begin so, or "1": numbers up to Max
	Clamp    bool   // out of range is not an error, as in DRBD
	Peer     bool   // of disk: a peer-device option
	Since    string // 9, 9.34: the first that has it; "" is 8.3 or 8.4
	Until    string // the last that has it
}

const (
	discardNode = "discard-node-"
	secretMax   = 63 // bytes, of algorithms too
	stringBig   = stringMax
	rdmaMax     = 10485760
)

var (
	striping = []string{"prefer-local", "prefer-remote", "round-robin", "least-pending", "when-congested-remote", "32K-striping", "64K-striping",
		"128K-striping", "256K-striping", "512K-striping", "1M-striping"}
	quorums = []string{"off", "majority", "all"}
	fencing = []string{"dont-care", "resource-only", "resource-and-stonith"}
)

// specs are all options of 8.3 to 9.34. Ranges are after conversion, in base units.
var specs = []Spec{
	{Section: "global", Name: "usage-count", Kind: Enum, Values: []string{"yes", "no", "ask"}, Default: "ask"},
	{Section: "global", Name: "dialog-refresh", Max: 600, Default: "1"},
	{Section: "global", Name: "minor-count", Min: 1, Max: 255, Default: "32"},
	{Section: "global", Name: "disable-ip-verification", Kind: Flag},
	{Section: "global", Name: "cmd-timeout-short", Max: 900, Default: "5"},
	{Section: "global", Name: "cmd-timeout-medium", Max: 900, Default: "121"},
	{Section: "global", Name: "cmd-timeout-long", Max: 900, Default: "600"},
	{Section: "global", Name: "udev-always-use-vnr", Kind: Flag},

	{Section: "net", Name: "protocol", Kind: Enum, Values: []string{"A", "B", "C", "a", "b", "c"}, Default: "C"},
	{Section: "net", Name: "transport", Kind: Text, Max: secretMax, Default: "tcp", Since: "9"},
	{Section: "net", Name: "load-balance-paths", Kind: Bool, Default: "no", Since: "9.34"},
	{Section: "net", Name: "timeout", Min: 1, Max: 600, Default: "60"},
	{Section: "net", Name: "max-epoch-size", Min: 1, Max: 20000, Default: "2048"},
	{Section: "net", Name: "max-buffers", Min: 32, Max: 131072, Default: "2048"},
	{Section: "net", Name: "unplug-watermark", Min: 1, Max: 131072, Default: "128", Until: "8.4"},
	{Section: "net", Name: "connect-int", Min: 1, Max: 120, Default: "10"},
	{Section: "net", Name: "ping-int", Min: 1, Max: 120, Default: "10"},
	{Section: "net", Name: "ping-timeout", Min: 1, Max: 300, Default: "5"},
	{Section: "net", Name: "sndbuf-size", Max: 134217728, Default: "0"},
	{Section: "net", Name: "rcvbuf-size", Max: 134217728, Default: "0"},
	{Section: "net", Name: "ko-count", Max: 200, Default: "7"},
	{Section: "net", Name: "allow-two-primaries", Kind: Bool, Default: "no"},
	{Section: "net", Name: "cram-hmac-alg", Kind: Text, Max: secretMax},
	{Section: "net", Name: "shared-secret", Kind: Text, Max: secretMax},
	{Section: "net", Name: "after-sb-0pri", Kind: Enum, Values: []string{"disconnect", "discard-younger-primary", "discard-older-primary",
		"discard-zero-changes", "discard-least-changes", "discard-local", "discard-remote"}, Open: discardNode, Default: "disconnect"},
	{Section: "net", Name: "after-sb-1pri", Kind: Enum, Values: []string{"disconnect", "consensus", "discard-secondary", "call-pri-lost-after-sb",
		"violently-as0p"}, Default: "disconnect"},
	{Section: "net", Name: "after-sb-2pri", Kind: Enum, Values: []string{"disconnect", "call-pri-lost-after-sb", "violently-as0p"}, Default: "disconnect"},
	{Section: "net", Name: "always-asbp", Kind: Bool, Default: "no"},
	{Section: "net", Name: "rr-conflict", Kind: Enum, Values: []string{"disconnect", "call-pri-lost", "violently", "retry-connect", "auto-discard"},
		Default: "disconnect"},
	{Section: "net", Name: "data-integrity-alg", Kind: Text, Max: secretMax},
	{Section: "net", Name: "tcp-cork", Kind: Bool, Default: "yes"},
	{Section: "net", Name: "on-congestion", Kind: Enum, Values: []string{"block", "pull-ahead", "disconnect"}, Default: "block"},
	{Section: "net", Name: "congestion-fill", Base: Sector, Max: 20971520, Default: "0"},
	{Section: "net", Name: "congestion-extents", Min: 67, Max: 65534, Default: "1237"},
	{Section: "net", Name: "csums-alg", Kind: Text, Max: secretMax},
	{Section: "net", Name: "csums-after-crash-only", Kind: Bool, Default: "no"},
	{Section: "net", Name: "verify-alg", Kind: Text, Max: secretMax},
	{Section: "net", Name: "use-rle", Kind: Bool, Default: "yes"},
	{Section: "net", Name: "socket-check-timeout", Max: 300, Default: "0"},
	{Section: "net", Name: "fencing", Kind: Enum, Values: fencing, Default: "dont-care"},
	{Section: "net", Name: "allow-remote-read", Kind: Bool, Default: "yes", Since: "9"},
	{Section: "net", Name: "tls", Kind: Bool, Default: "no", Since: "9.34"},
	{Section: "net", Name: "tls-keyring", Kind: Text, Max: stringBig, Since: "9.34"},
	{Section: "net", Name: "tls-privkey", Kind: Text, Max: stringBig, Since: "9.34"},
	{Section: "net", Name: "tls-certificate", Kind: Text, Max: stringBig, Since: "9.34"},
	{Section: "net", Name: "rdma-ctrl-rcvbuf-size", Max: rdmaMax, Default: "0", Since: "9.34"},
	{Section: "net", Name: "rdma-ctrl-sndbuf-size", Max: rdmaMax, Default: "0", Since: "9.34"},
	{Section: "net", Name: "discard-my-data", Kind: Bool, Default: "no"},
	{Section: "net", Name: "tentative", Kind: Bool, Default: "no"},

	{Section: "disk", Name: "size", Base: Sector, Max: 1 << 41, Default: "0"},
	{Section: "disk", Name: "on-io-error", Kind: Enum, Values: []string{"pass_on", "call-local-io-error", "detach"}, Default: "detach"},
	{Section: "disk", Name: "disk-barrier", Kind: Bool, Default: "no"},
	{Section: "disk", Name: "disk-flushes", Kind: Bool, Default: "yes"},
	{Section: "disk", Name: "disk-drain", Kind: Bool, Default: "yes"},
	{Section: "disk", Name: "md-flushes", Kind: Bool, Default: "yes"},
	{Section: "disk", Name: "resync-after", Kind: Text, Max: stringBig},
	{Section: "disk", Name: "al-extents", Min: 67, Max: 65534, Clamp: true, Default: "1237"},
	{Section: "disk", Name: "al-updates", Kind: Bool, Default: "yes"},
	{Section: "disk", Name: "discard-zeroes-if-aligned", Kind: Bool, Default: "yes"},
	{Section: "disk", Name: "disable-write-same", Kind: Bool, Default: "no"},
	{Section: "disk", Name: "disk-timeout", Max: 6000, Default: "0"},
	{Section: "disk", Name: "read-balancing", Kind: Enum, Values: striping, Default: "prefer-local"},
	{Section: "disk", Name: "rs-discard-granularity", Max: 1048576, Default: "0"},
	{Section: "disk", Name: "max-bio-size", Min: 512, Max: 1048576, Default: "1048576", Since: "9"},
	{Section: "disk", Name: "block-size", Min: 512, Max: 4096, Default: "512", Since: "9.34"},
	{Section: "disk", Name: "discard-granularity", Max: 134217728, Since: "9.34"},
	{Section: "disk", Name: "max-bio-bvecs", Max: 128, Default: "0", Until: "8.4"},
	{Section: "disk", Name: "use-bmbv", Kind: Bool, Default: "no", Until: "8.4"},
	{Section: "disk", Name: "bitmap", Kind: Bool, Default: "yes", Since: "9"}, // a peer-device option that 9.34 dumps among the others
	{Section: "disk", Name: "resync-rate", Base: KiB, Min: 1, Max: 8388608, Default: "250", Peer: true},
	{Section: "disk", Name: "c-plan-ahead", Max: 300, Default: "20", Peer: true},
	{Section: "disk", Name: "c-delay-target", Min: 1, Max: 100, Default: "10", Peer: true},
	{Section: "disk", Name: "c-fill-target", Base: Sector, Max: 1048576, Default: "100", Peer: true},
	{Section: "disk", Name: "c-max-rate", Base: KiB, Max: 4194304, Default: "102400", Peer: true},
	{Section: "disk", Name: "c-min-rate", Base: KiB, Max: 4194304, Default: "250", Peer: true},
	{Section: "disk", Name: "resync-without-replication", Kind: Bool, Default: "yes", Peer: true, Since: "9.34"},
	{Section: "disk", Name: "peer-tiebreaker", Kind: Bool, Default: "yes", Peer: true, Since: "9.34"},

	{Section: "options", Name: "cpu-mask", Kind: Text, Max: stringBig},
	{Section: "options", Name: "on-no-data-accessible", Kind: Enum, Values: []string{"io-error", "suspend-io"}, Default: "io-error"},
	{Section: "options", Name: "auto-promote", Kind: Bool, Default: "yes", Since: "9"},
	{Section: "options", Name: "quorum", Kind: Enum, Values: quorums, Open: "1", Max: 32, Default: "off", Since: "9"},
	{Section: "options", Name: "on-no-quorum", Kind: Enum, Values: []string{"io-error", "suspend-io"}, Default: "suspend-io", Since: "9"},
	{Section: "options", Name: "quorum-minimum-redundancy", Kind: Enum, Values: quorums, Open: "1", Max: 32, Default: "off", Since: "9"},
	{Section: "options", Name: "on-suspended-primary-outdated", Kind: Enum, Values: []string{"disconnect", "force-secondary"}, Default: "disconnect",
		Since: "9"},
	{Section: "options", Name: "peer-ack-window", Base: Sector, Min: 2048, Max: 204800, Default: "4096", Since: "9"},
	{Section: "options", Name: "peer-ack-delay", Min: 1, Max: 10000, Default: "100", Since: "9"},
	{Section: "options", Name: "twopc-timeout", Min: 50, Max: 600, Default: "300", Since: "9"},
	{Section: "options", Name: "twopc-retry-timeout", Min: 1, Max: 50, Default: "1", Since: "9"},
	{Section: "options", Name: "auto-promote-timeout", Max: 600, Default: "20", Since: "9"},
	{Section: "options", Name: "max-io-depth", Min: 4, Max: math.MaxUint32, Default: "8000", Since: "9"},
	{Section: "options", Name: "drbd8-api-compatibility", Kind: Bool, Default: "no", Since: "9.34"},

	{Section: "startup", Name: "wfc-timeout", Max: 300000, Default: "0"},
	{Section: "startup", Name: "degr-wfc-timeout", Max: 300000, Default: "0"},
	{Section: "startup", Name: "outdated-wfc-timeout", Max: 300000, Default: "0"},
	{Section: "startup", Name: "wait-after-sb", Kind: Bool, Default: "no"},
	{Section: "startup", Name: "stacked-timeouts", Kind: Flag},
	{Section: "startup", Name: "become-primary-on", Kind: Names},

	{Section: "handlers", Name: "fence-peer", Kind: Command},
	{Section: "handlers", Name: "outdate-peer", Kind: Command},
	{Section: "handlers", Name: "unfence-peer", Kind: Command, Since: "9"},
	{Section: "handlers", Name: "before-resync-source", Kind: Command},
	{Section: "handlers", Name: "before-resync-target", Kind: Command},
	{Section: "handlers", Name: "after-resync-target", Kind: Command},
	{Section: "handlers", Name: "split-brain", Kind: Command},
	{Section: "handlers", Name: "initial-split-brain", Kind: Command},
	{Section: "handlers", Name: "local-io-error", Kind: Command},
	{Section: "handlers", Name: "pri-lost", Kind: Command},
	{Section: "handlers", Name: "pri-lost-after-sb", Kind: Command},
	{Section: "handlers", Name: "pri-on-incon-degr", Kind: Command},
	{Section: "handlers", Name: "out-of-sync", Kind: Command},
	{Section: "handlers", Name: "quorum-lost", Kind: Command, Since: "9"},
	{Section: "handlers", Name: "disconnected", Kind: Command, Since: "9"},

	{Section: "proxy", Name: "memlimit", Kind: Text, Max: stringBig},
	{Section: "proxy", Name: "read-loops", Kind: Text, Max: stringBig},
	{Section: "proxy", Name: "compression", Kind: Text, Max: stringBig},
	{Section: "proxy", Name: "bwlimit", Kind: Text, Max: stringBig},
	{Section: "proxy", Name: "sndbuf-size", Kind: Text, Max: stringBig},
	{Section: "proxy", Name: "rcvbuf-size", Kind: Text, Max: stringBig},
	{Section: "proxy", Name: "ping-timeout", Kind: Text, Max: stringBig},
}

// syncer says what an option of the section syncer of 8.3 became.
var syncer = map[string]struct{ section, name string }{
	"rate": {"disk", "resync-rate"}, "after": {"disk", "resync-after"}, "al-extents": {"disk", "al-extents"},
	"c-plan-ahead": {"disk", "c-plan-ahead"}, "c-delay-target": {"disk", "c-delay-target"}, "c-fill-target": {"disk", "c-fill-target"},
	"c-max-rate": {"disk", "c-max-rate"}, "c-min-rate": {"disk", "c-min-rate"},
	"verify-alg": {"net", "verify-alg"}, "csums-alg": {"net", "csums-alg"}, "use-rle": {"net", "use-rle"},
	"cpu-mask": {"options", "cpu-mask"}, "on-no-data-accessible": {"options", "on-no-data-accessible"},
}

// Specs is the table of all options.
func Specs() []Spec { return slices.Clone(specs) }

// Find is the row of an option, nil for none.
func Find(section, name string) *Spec {
	for i := range specs {
		if specs[i].Name == name && specs[i].Section == section {
			return &specs[i]
		}
	}
	return nil
}
