package drbdtools

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/hawser-ha/hawser/agent/compat"
	"github.com/hawser-ha/hawser/replicator/control"
)

// object says what the words after a verb of drbdsetup name.
type object int

const (
	nothing    object = iota
	resource          // RES
	optional          // [RES | all]
	minor             // MINOR or a device
	peer              // RES PEER-ID
	peerDevice        // RES PEER-ID VOLUME
)

// place is what a call is about.
type place struct {
	res    string
	volume int // control.All: not one
	peer   int // -1: not one
	text   string
}

// setupVerb is one verb of drbdsetup.
type setupVerb struct {
	name    string
	object  object
	extra   int // further words that are taken and not used
	options []option
	help    string
	run     func(t *tool, ctx context.Context, at place, a arguments) int
}

var (
	forceOption = []option{{long: "force"}}
	statusFlags = []option{{long: "verbose", short: "v"}, {long: "statistics", short: "s"}, {long: "json", short: "j"}, {long: "color", short: "c", value: true}}
	eventFlags  = []option{{long: "timestamps", short: "T"}, {long: "statistics", short: "s"}, {long: "now", short: "n"}, {long: "poll", short: "p"},
		{long: "full", short: "f"}, {long: "diff", short: "i"}, {long: "color", short: "c", value: true}}
	waitFlags = []option{{long: "wfc-timeout", short: "t", value: true}, {long: "degr-wfc-timeout", short: "d", value: true},
		{long: "outdated-wfc-timeout", short: "o", value: true}, {long: "wait-after-sb", short: "w"}}
	showFlags = []option{{long: "show-defaults", short: "D"}, {long: "json", short: "j"}}
)

// setupVerbs is filled in by init, since some verbs list all.
var setupVerbs []setupVerb

func init() {
	setupVerbs = []setupVerb{
		{"primary", resource, 0, append(forceOption, option{long: "overwrite-data-of-peer", short: "o"}), "make this node Primary", (*tool).primary},
		{"secondary", resource, 0, forceOption, "make this node Secondary", doVerb("secondary")},
		{"attach", minor, 3, nil, "open the disk of a volume", doVerb("attach")},
		{"detach", minor, 0, forceOption, "close the disk of a volume", doVerb("detach")},
		{"connect", peer, 0, []option{{long: "discard-my-data"}, {long: "tentative"}}, "connect to a peer", doVerb("connect")},
		{"disconnect", peer, 0, forceOption, "end a connection", doVerb("disconnect")},
		{"new-resource", resource, 1, nil, "bring a resource up", (*tool).byFile},
		{"new-minor", resource, 2, []option{{long: "diskless"}}, "see new-resource", (*tool).byFile},
		{"new-peer", peer, 0, nil, "see new-resource", (*tool).byFile},
		{"new-path", peer, 2, nil, "see new-resource", (*tool).byFile},
		{"del-peer", peer, 0, nil, "see new-resource", (*tool).byFile},
		{"del-path", peer, 2, nil, "see new-resource", (*tool).byFile},
		{"del-minor", minor, 0, nil, "see new-resource", (*tool).byFile},
		{"del-resource", resource, 0, nil, "see new-resource", (*tool).byFile},
		{"disk-options", minor, 0, nil, "take options from the file", (*tool).byFile},
		{"net-options", peer, 0, []option{{long: "protocol", value: true}, {long: "set-defaults"}}, "change the protocol", (*tool).netOptions},
		{"resource-options", resource, 0, nil, "take options from the file", (*tool).byFile},
		{"peer-device-options", peerDevice, 0, nil, "take options from the file", (*tool).byFile},
		{"resize", minor, 0, []option{{long: "size", short: "s", value: true}, {long: "assume-clean"}, {long: "assume-peer-has-space"}}, "take what the disks have", (*tool).resize},
		{"new-current-uuid", minor, 0, []option{{long: "clear-bitmap", short: "c"}, {long: "force-resync"}}, "begin a new generation", doVerb("new-current-uuid")},
		{"invalidate", minor, 0, []option{{long: "reset-bitmap", value: true}, {long: "sync-from-peer-node-id", value: true}}, "take the data from a peer", (*tool).invalidate},
		{"invalidate-remote", peerDevice, 0, []option{{long: "reset-bitmap", value: true}}, "give the data to a peer", doVerb("invalidate-remote")},
		{"pause-sync", peerDevice, 0, nil, "pause a resync", doVerb("pause-sync")},
		{"resume-sync", peerDevice, 0, nil, "resume a resync", doVerb("resume-sync")},
		{"suspend-io", minor, 0, nil, "freeze I/O", doVerb("suspend-io")},
		{"resume-io", minor, 0, nil, "let I/O go on", doVerb("resume-io")},
		{"outdate", minor, 0, forceOption, "mark the data as old", (*tool).outdate},
		{"verify", peerDevice, 0, []option{{long: "start", short: "S", value: true}, {long: "stop", value: true}}, "compare the data with a peer's", (*tool).verify},
		{"down", resource, 0, nil, "take a resource down", (*tool).down},
		{"role", resource, 0, nil, "print the role", (*tool).role},
		{"peer-role", peer, 0, nil, "print a peer's role", (*tool).peerRole},
		{"cstate", peer, 0, nil, "print the state of a connection", (*tool).cstate},
		{"dstate", minor, 0, nil, "print the states of the disks", (*tool).dstate},
		{"show-gi", peerDevice, 0, nil, "draw the generation identifiers", (*tool).gi},
		{"get-gi", peerDevice, 0, nil, "print the generation identifiers", (*tool).getGI},
		{"show", optional, 0, showFlags, "print the configuration", (*tool).show},
		{"status", optional, 0, statusFlags, "print the state", (*tool).status},
		{"check-resize", minor, 0, nil, "nothing: hawser finds grown disks by itself", (*tool).nothing},
		{"events2", optional, 0, eventFlags, "print what changes", (*tool).events2},
		{"wait-connect-resource", resource, 0, waitFlags, "wait for all peers", (*tool).waitConnect},
		{"wait-connect-connection", peer, 0, waitFlags, "wait for a peer", (*tool).waitConnect},
		{"wait-connect-volume", peerDevice, 0, waitFlags, "wait for a peer's volume", (*tool).waitConnect},
		{"wait-sync-resource", resource, 0, waitFlags, "wait for all resyncs", (*tool).waitSync},
		{"wait-sync-connection", peer, 0, waitFlags, "wait for the resyncs with a peer", (*tool).waitSync},
		{"wait-sync-volume", peerDevice, 0, waitFlags, "wait for the resync of a volume", (*tool).waitSync},
		{"udev", minor, 0, nil, "print names of a device", (*tool).udev},
		{"sh-status", minor, 0, nil, "print the state for a shell (8.4)", (*tool).shStatus},
		{"state", resource, 0, nil, "the same as role", (*tool).role},
		{"device-exists", minor, 0, nil, "only hawser: whether a device of DRBD would be there now", (*tool).deviceExists},
	}
	v84 := map[string]object{"primary": minor, "secondary": minor, "role": minor, "state": minor, "cstate": minor, "show-gi": minor, "get-gi": minor, "verify": minor,
		"invalidate-remote": minor, "pause-sync": minor, "resume-sync": minor, "sh-status": minor}
	for _, v := range setupVerbs {
		if o, ok := v84[v.name]; ok {
			v.object = o
		}
		switch v.name {
		case "wait-connect-resource":
			v.name, v.object = "wait-connect", minor
		case "wait-sync-resource":
			v.name, v.object = "wait-sync", minor
		}
		if !slices.Contains([]string{"new-peer", "new-path", "del-peer", "del-path", "peer-role", "udev", "peer-device-options"}, v.name) {
			setupVerbs84 = append(setupVerbs84, v)
		}
	}
}

var setupVerbs84 []setupVerb

func (t *tool) setup(ctx context.Context, args []string) int {
	verbs := setupVerbs
	if t.v84 {
		verbs = setupVerbs84
	}
	if len(args) == 0 {
		t.setupHelp(verbs)
		return 1
	}
	switch args[0] {
	case "help", "--help", "-h":
		if len(args) > 1 {
			return t.helpOf(verbs, args[1])
		}
		t.setupHelp(verbs)
		return 0
	case "--version", "-V":
		if !t.v84 {
			_, err := fmt.Fprint(t.Stdout, t.versionText())
			return t.wrote(err)
		}
	}
	i := slices.IndexFunc(verbs, func(v setupVerb) bool { return v.name == args[0] })
	if i < 0 {
		t.setupHelp(verbs)
		t.errorf("invalid command\n")
		return compat.ExitTrouble
	}
	return t.setupDo(ctx, &verbs[i], args[1:])
}

func (t *tool) setupHelp(verbs []setupVerb) {
	t.errorf("drbdsetup - see and drive hawser's resources the way DRBD's are.\n\nUSAGE: drbdsetup command {arguments} [options]\n\nCommands:\n")
	for _, v := range verbs {
		t.errorf("    %s - %s.\n", v.name, strings.ToUpper(v.help[:1])+v.help[1:])
	}
	t.errorf("\nUse 'drbdsetup command help' for command-specific help.\n")
}

func (v *setupVerb) usage() string {
	words := map[object]string{resource: " {resource}", optional: " [{resource} | all]", minor: " {minor}", peer: " {resource} {peer_node_id}",
		peerDevice: " {resource} {peer_node_id} {volume}"}
	line := "USAGE: drbdsetup " + v.name + words[v.object]
	for _, o := range v.options {
		if o.value {
			line += " [--" + o.long + "=VALUE]"
		} else {
			line += " [--" + o.long + "]"
		}
	}
	return line + "\n"
}

func (t *tool) helpOf(verbs []setupVerb, name string) int {
	i := slices.IndexFunc(verbs, func(v setupVerb) bool { return v.name == name })
	if i < 0 {
		t.errorf("%s: there is no command %q\n", t.name, name)
		return 1
	}
	_, err := fmt.Fprintf(t.Stdout, "%s - %s\n\n%s", name, verbs[i].help, verbs[i].usage())
	return t.wrote(err)
}

// setupDo finds what the words name and runs the verb.
func (t *tool) setupDo(ctx context.Context, v *setupVerb, args []string) int {
	if t.v84 && v.name == "status" {
		args = slices.Clone(args)
	}
	options := v.options
	if t.v84 && (v.name == "status" || v.name == "show") {
		options = slices.DeleteFunc(slices.Clone(options), func(o option) bool { return o.long == "json" })
	}
	if open := slices.Contains([]string{"new-resource", "new-minor", "new-peer", "attach", "disk-options", "net-options", "resource-options",
		"peer-device-options"}, v.name); open {
		options = slices.Concat(options, unknownOptions(args, options))
	}
	a := split(args, options)
	if a.bad != "" {
		t.errorf("%s: unrecognized option %s\n", v.name, a.bad)
		return compat.ExitTrouble
	}
	at := place{volume: control.All, peer: -1}
	need := map[object]int{resource: 1, minor: 1, peer: 2, peerDevice: 3}[v.object]
	if len(a.words) < need {
		t.errorf("%s: missing argument\n%s", v.name, v.usage())
		return 1
	}
	if most := need + v.extra; len(a.words) > most && v.object != optional || v.object == optional && len(a.words) > 1 {
		t.errorf("%s: excess arguments\n%s", v.name, v.usage())
		return 1
	}
	if need > 0 || len(a.words) > 0 {
		at.text, at.res = a.words[0], a.words[0]
	}
	switch v.object {
	case minor:
		name, volume, ok := t.byDevice(a.words[0])
		if _, isNumber := number(strings.TrimPrefix(strings.TrimPrefix(a.words[0], "/dev/drbd"), "minor-")); !ok && !isNumber {
			t.errorf("Cannot determine minor device number of device '%s'\n", a.words[0])
			return compat.ExitTrouble
		}
		if !ok {
			return t.noDevice(v.name, a.words[0])
		}
		at.res, at.volume, at.text = name, volume, strconv.Itoa(t.minor(name, volume))
	case peer, peerDevice:
		n, ok := number(a.words[1])
		if !ok {
			t.errorf("%s: '%s' is no node id\n", v.name, a.words[1])
			return compat.ExitTrouble
		}
		at.peer = n
		if v.object == peerDevice {
			if at.volume, ok = number(a.words[2]); !ok {
				t.errorf("%s: '%s' is no volume number\n", v.name, a.words[2])
				return compat.ExitTrouble
			}
		}
	case optional:
		if at.res == "all" {
			at.res = ""
		}
		if v.name != "show" || at.res == "" {
			break
		}
		if name, _, ok := t.byDevice(at.res); ok && t.definition(at.res) == nil {
			at.res = name
		}
	}
	return v.run(t, ctx, at, a)
}

// unknownOptions lets pass whatever looks like --key=value.
func unknownOptions(args []string, known []option) []option {
	var out []option
	for _, arg := range args {
		if name, _, _ := strings.Cut(strings.TrimPrefix(arg, "--"), "="); strings.HasPrefix(arg, "--") && len(arg) > 2 &&
			!slices.ContainsFunc(known, func(o option) bool { return o.long == name }) {
			out = append(out, option{long: name, value: strings.Contains(arg, "=")})
		}
	}
	return out
}

func (t *tool) noDevice(verb, text string) int {
	if t.v84 || verb != "dstate" {
		text = strings.TrimPrefix(strings.TrimPrefix(text, "/dev/drbd"), "minor-")
		t.errorf("%s: Failure: (127) Device minor not allocated\nadditional info from kernel:\nunknown minor\n", text)
	} else {
		t.errorf("%s: No such device\n", text)
	}
	return compat.ExitError
}

// do runs a command of the replicator.
func (t *tool) do(ctx context.Context, at place, verb string, args control.Args) int {
	args.Volume = at.volume
	if at.peer >= 0 {
		if args.Peer = t.peerName(at.res, at.peer); args.Peer == "" {
			return t.noPeer(at)
		}
	}
	return t.refuse(at.text, t.sub(at.res).Do(ctx, verb, args))
}

func (t *tool) noPeer(at place) int {
	if t.definition(at.res) == nil {
		t.errorf("%s: Failure: (158) Unknown resource\n", at.res)
	} else {
		t.errorf("%s: Failure: (162) Invalid configuration request\nadditional info from kernel:\nno peer has the node id %d\n", at.res, at.peer)
	}
	return compat.ExitError
}

func doVerb(verb string) func(*tool, context.Context, place, arguments) int {
	return func(t *tool, ctx context.Context, at place, a arguments) int {
		switch verb {
		case "secondary", "suspend-io", "resume-io":
			at.volume = control.All
		}
		return t.do(ctx, at, verb, control.Args{Force: a.on("force"), DiscardMyData: a.on("discard-my-data"), ClearBitmap: a.on("clear-bitmap")})
	}
}

func (t *tool) primary(ctx context.Context, at place, a arguments) int {
	at.volume = control.All
	return t.do(ctx, at, "primary", control.Args{Force: a.on("force") || a.has("overwrite-data-of-peer")})
}

func (t *tool) invalidate(ctx context.Context, at place, a arguments) int {
	if text, ok := a.options["sync-from-peer-node-id"]; ok {
		n, ok := number(text)
		if !ok {
			t.errorf("invalidate: '%s' is no node id\n", text)
			return compat.ExitTrouble
		}
		at.peer = n
	}
	return t.do(ctx, at, "invalidate", control.Args{})
}

// outdate of a disk that is lower than Outdated is code 5.
func (t *tool) outdate(ctx context.Context, at place, _ arguments) int {
	r, err := t.up(ctx, at.res)
	if err == nil && r != nil {
		if d := r.Device(at.volume); d != nil && slices.Contains([]string{"Diskless", "Failed", "Inconsistent"}, d.Disk) {
			t.errorf("%s: State is %s, lower than Outdated\n", at.text, d.Disk)
			return compat.ExitTimeout
		}
	}
	return t.do(ctx, at, "outdate", control.Args{})
}

func (t *tool) verify(ctx context.Context, at place, a arguments) int {
	var args control.Args
	for name, to := range map[string]*int64{"start": &args.Start, "stop": &args.Stop} {
		if text, ok := a.options[name]; ok {
			n, err := size(text)
			if err != nil {
				t.errorf("verify: --%s=%s: %v\n", name, text, err)
				return compat.ExitTrouble
			}
			*to = n
		}
	}
	return t.do(ctx, at, "verify", args)
}

func (t *tool) resize(ctx context.Context, at place, a arguments) int {
	args := control.Args{AssumeClean: a.on("assume-clean")}
	if text, ok := a.options["size"]; ok {
		n, err := size(text)
		if err != nil {
			t.errorf("resize: --size=%s: %v\n", text, err)
			return compat.ExitTrouble
		}
		args.Size = n
	}
	return t.do(ctx, at, "resize", args)
}

func (t *tool) netOptions(ctx context.Context, at place, a arguments) int {
	p, ok := a.options["protocol"]
	if !ok || len(a.options) > 1 {
		return t.byFile(ctx, at, a)
	}
	return t.do(ctx, at, "protocol", control.Args{Protocol: strings.ToUpper(p)})
}

// byFile answers verbs that would make up a resource piece by piece: hawser runs what the files say.
func (t *tool) byFile(context.Context, place, arguments) int {
	t.errorf("%s: Failure: (162) Invalid configuration request\nadditional info from kernel:\n"+
		"hawser runs resources as their files have them: change the file, then drbdadm adjust (or up, down)\n", t.name)
	return compat.ExitError
}

func (t *tool) nothing(context.Context, place, arguments) int { return 0 }

func (t *tool) down(ctx context.Context, at place, _ arguments) int {
	var done struct {
		Changed bool `json:"changed"`
	}
	err := t.sub(at.res).Call(ctx, "down", control.Args{Volume: control.All}, &done)
	if t.isDown(at.res, err) {
		return 0
	}
	return t.refuse(at.res, err)
}

// isDown tells whether an error says that the resource is surely down. While the agent does not run its replicator says.
func (t *tool) isDown(name string, err error) bool {
	if e := control.AsError(err); e == nil || e.Code != control.NotFound && e.Code != control.NotRunning {
		return false
	}
	_, served := control.Served(t.Node.ReplicatorSocket(name))
	return !served
}

func (t *tool) deviceExists(ctx context.Context, at place, _ arguments) int {
	r, err := t.up(ctx, at.res)
	if err != nil || r == nil || r.Device(at.volume) == nil {
		return 1
	}
	return 0
}
