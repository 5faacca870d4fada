package drbdtools

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/hawser-ha/hawser/agent/compat"
	"github.com/hawser-ha/hawser/agent/drbdconf"
	"github.com/hawser-ha/hawser/replicator/control"
)

type planned = func(c *call, g *target) []compat.Command

// On what a verb of drbdsetup is run.
func whole(verb string) planned {
	return func(_ *call, g *target) []compat.Command { return g.plan.Whole(verb) }
}

func eachPeer(verb string) planned {
	return func(_ *call, g *target) []compat.Command { return g.plan.EachPeer(verb) }
}

func eachMinor(verb string) planned {
	return func(_ *call, g *target) []compat.Command { return g.plan.EachMinor(verb) }
}

// eachPeerDevice: 8.4 knows no peers.
func eachPeerDevice(verb string) planned {
	return func(c *call, g *target) []compat.Command {
		if c.v84 {
			return g.plan.EachMinor(verb)
		}
		return g.plan.EachPeerDevice(verb)
	}
}

// role and primary are about a resource in 9, about each minor in 8.4.
func wholeOr84(verb string) planned {
	return func(c *call, g *target) []compat.Command {
		if c.v84 {
			return g.plan.EachMinor(verb)
		}
		return g.plan.Whole(verb)
	}
}

func step9(f func(*compat.Plan) []compat.Command) planned {
	return func(_ *call, g *target) []compat.Command { return f(g.plan) }
}

func meta(words ...string) planned {
	return func(_ *call, g *target) []compat.Command { return g.plan.DrbdMeta(words...) }
}

// admVerbs is filled in by init, since help lists all.
var admVerbs []admVerb

func init() {
	force := []option{{long: "force"}}
	skip := []option{{long: "skip-net"}, {long: "skip-disk"}}
	connect := []option{{long: "discard-my-data"}}
	admVerbs = []admVerb{
		{name: "up", commands: func(_ *call, g *target) []compat.Command { return compat.Up([]*compat.Plan{g.plan}) }, do: (*call).upVerb, help: "start resources"},
		{name: "down", commands: whole("down"), help: "stop resources"},
		{name: "adjust", options: skip, commands: (*call).adjustCommands, do: (*call).adjust, help: "make resources what their files say"},
		{name: "adjust-with-progress", options: skip, commands: (*call).adjustCommands, do: (*call).adjust, help: "see adjust"},
		{name: "attach", commands: step9((*compat.Plan).Attach), do: func(c *call, g *target) int { return c.attach(g) }, help: "open disks"},
		{name: "detach", options: force, commands: eachMinor("detach"), do: idempotent(eachMinor("detach")), help: "close disks"},
		{name: "connect", options: connect, commands: connectCommands, do: func(c *call, g *target) int { return c.connect(g) }, help: "connect to the peers"},
		{name: "disconnect", options: force, commands: eachPeer("disconnect"), do: idempotent(eachPeer("disconnect")), help: "end connections"},
		{name: "primary", options: append(force, option{long: "overwrite-data-of-peer", short: "o"}), commands: wholeOr84("primary"), help: "make this node Primary"},
		{name: "secondary", options: force, commands: wholeOr84("secondary"), do: idempotent(wholeOr84("secondary")), help: "make this node Secondary"},
		{name: "role", commands: wholeOr84("role"), help: "print the role"},
		{name: "state", commands: wholeOr84("role"), help: "the same as role"},
		{name: "cstate", commands: func(c *call, g *target) []compat.Command {
			if c.v84 {
				return g.plan.EachMinor("cstate")
			}
			return g.plan.EachPeer("cstate")
		}, help: "print the states of connections"},
		{name: "dstate", commands: eachMinor("dstate"), do: func(c *call, g *target) int { return c.dstateVerb(g) }, help: "print the states of disks"},
		{name: "status", bare: true, options: statusFlags, all: (*call).statusVerb, help: "print the state"},
		{name: "invalidate", commands: eachMinor("invalidate"), help: "take the data from a peer"},
		{name: "invalidate-remote", commands: eachPeerDevice("invalidate-remote"), help: "give the data to a peer"},
		{name: "outdate", commands: eachMinor("outdate"), do: func(c *call, g *target) int { return c.outdateVerb(g) }, help: "mark the data as old"},
		{name: "verify", options: []option{{long: "start", value: true}, {long: "stop", value: true}}, commands: eachPeerDevice("verify"), help: "compare the data with the peers'"},
		{name: "pause-sync", commands: eachPeerDevice("pause-sync"), help: "pause resyncs"},
		{name: "resume-sync", commands: eachPeerDevice("resume-sync"), help: "resume resyncs"},
		{name: "suspend-io", commands: eachMinor("suspend-io"), help: "freeze I/O"},
		{name: "resume-io", commands: eachMinor("resume-io"), help: "let I/O go on"},
		{name: "new-current-uuid", options: []option{{long: "clear-bitmap"}}, commands: eachMinor("new-current-uuid"), help: "begin a new generation"},
		{name: "resize", options: []option{{long: "size", value: true}, {long: "assume-clean"}, {long: "assume-peer-has-space"}}, commands: eachMinor("resize"), help: "take what the disks have"},
		{name: "check-resize", commands: eachMinor("check-resize"), help: "nothing: hawser finds grown disks by itself"},
		{name: "get-gi", commands: eachPeerDevice("get-gi"), do: func(c *call, g *target) int { return c.identifiersVerb(g, compat.GetGI) }, help: "print generation identifiers"},
		{name: "show-gi", commands: eachPeerDevice("show-gi"), do: func(c *call, g *target) int { return c.identifiersVerb(g, compat.ShowGI) }, help: "draw generation identifiers"},
		{name: "create-md", options: append(force, option{long: "max-peers", value: true}), commands: meta("create-md", "1"), do: (*call).createMD, help: "write fresh metadata"},
		{name: "dump-md", commands: meta("dump-md"), do: (*call).dumpMD, help: "print metadata"},
		{name: "apply-al", commands: meta("apply-al"), do: (*call).done, help: "nothing: up does it"},
		{name: "repair-md", commands: meta("repair-md"), do: (*call).done, help: "nothing: up does it"},
		{name: "wait-connect", options: waitFlags, commands: whole("wait-connect-resource"), do: (*call).waitVerb, help: "wait for the peers"},
		{name: "wait-con-int", options: waitFlags, commands: whole("wait-connect-resource"), do: (*call).waitVerb, help: "see wait-connect"},
		{name: "wait-sync", options: waitFlags, commands: whole("wait-sync-resource"), do: (*call).waitVerb, help: "wait for resyncs"},
		{name: "net-options", commands: step9((*compat.Plan).NetOptions), do: (*call).optionsVerb, help: "take options from the file"},
		{name: "disk-options", commands: step9((*compat.Plan).DiskOptions), do: (*call).optionsVerb, help: "take options from the file"},
		{name: "resource-options", commands: step9((*compat.Plan).ResourceOptions), do: (*call).optionsVerb, help: "take options from the file"},
		{name: "peer-device-options", commands: step9((*compat.Plan).PeerDeviceOptions), do: (*call).optionsVerb, help: "take options from the file"},
		{name: "new-resource", commands: step9((*compat.Plan).NewResource), do: (*call).bringUp, help: "start a resource"},
		{name: "new-minor", commands: step9((*compat.Plan).NewMinor), do: (*call).bringUp, help: "see new-resource"},
		{name: "new-peer", commands: step9((*compat.Plan).NewPeer), do: (*call).bringUp, help: "see new-resource"},
		{name: "new-path", commands: step9((*compat.Plan).NewPath), do: (*call).bringUp, help: "see new-resource"},
		{name: "dump", bare: true, all: (*call).dump, help: "print the configuration"},
		{name: "dump-xml", bare: true, all: (*call).dump, help: "print the configuration as XML"},
		{name: "sh-nop", bare: true, all: func(*call) int { return 0 }, help: "check the configuration"},
		{name: "sh-resources", bare: true, all: (*call).shResources, help: "names of the resources"},
		{name: "sh-mod-parms", bare: true, all: func(c *call) int { return c.print("minor_count=32\n") }, help: "parameters of the module"},
		{name: "sh-dev", do: shVolume((*call).devOf), help: "devices"},
		{name: "sh-minor", do: shVolume(func(_ *call, g *target, n int) string { return strconv.Itoa(g.plan.MinorOf(n)) }), help: "minors"},
		{name: "sh-ll-dev", do: shVolume(func(_ *call, g *target, n int) string { return diskOf(g, n) }), help: "disks"},
		{name: "sh-md-dev", do: shVolume(func(_ *call, g *target, n int) string {
			v := g.plan.Volume(n)
			dev, _, _ := compat.MetaDisk(&v)
			return dev
		}), help: "metadata devices"},
		{name: "sh-md-idx", do: shVolume(func(_ *call, g *target, n int) string {
			v := g.plan.Volume(n)
			_, _, index := compat.MetaDisk(&v)
			return index
		}), help: "metadata indexes"},
		{name: "sh-ip", do: (*call).shIP, help: "own addresses"},
		{name: "sh-lr-of", do: (*call).shLower, help: "resource below"},
		{name: "sh-udev", do: shVolume((*call).udevOf), help: "names of devices for udev"},
		{name: "sh-status", bare: true, all: (*call).shStatusVerb, help: "the state for a shell (8.4)"},
		{name: "sh-list-adjustable", bare: true, all: (*call).shResources, help: "names of the resources"},
		{name: "hidden-commands", bare: true, all: func(c *call) int { c.admHelp(c.Stdout); return 0 }, help: "list all verbs"},
	}
	for _, h := range []string{"before-resync-target", "after-resync-target", "before-resync-source", "fence-peer", "unfence-peer", "local-io-error", "pri-lost",
		"pri-lost-after-sb", "pri-on-incon-degr", "split-brain", "initial-split-brain", "out-of-sync", "quorum-lost", "disconnected"} {
		admVerbs = append(admVerbs, admVerb{name: h, do: (*call).handler, help: "run this handler"})
	}
}

func (t *tool) admHelp(w io.Writer) {
	fmt.Fprint(w, "drbdadm - see and drive hawser's resources the way DRBD's are\n\nUSAGE: drbdadm [options] COMMAND {all | RES[/VOL] | RES:PEER}...\n\nOPTIONS:\n")
	for _, o := range globals {
		fmt.Fprintf(w, "   {--%s|-%s}\n", o.long, o.short)
	}
	fmt.Fprint(w, "\nCOMMANDS:\n")
	for _, v := range admVerbs {
		fmt.Fprintf(w, "   %-22s %s\n", v.name, v.help)
	}
}

// done: there is nothing to do, since up does it.
func (c *call) done(*target) int { return 0 }

// connectCommands has the forms that drbdtop and the linbit agent look for.
func connectCommands(c *call, g *target) []compat.Command {
	if !c.v84 {
		return g.plan.EachPeer("connect")
	}
	var out []compat.Command
	for _, p := range g.plan.NewPath() {
		out = append(out, compat.Command{p[0], "connect", p[2], p[4], p[5]})
	}
	return out
}

func (c *call) connect(g *target) int {
	code := 0
	for _, cmd := range g.filter(g.plan.EachPeer("connect")) {
		code = max(code, c.run(append(cmd, c.pass...), false))
	}
	return code
}

func (c *call) attach(g *target) int {
	code := 0
	for _, cmd := range g.filter(g.plan.Attach()) {
		if cmd[0] == "drbdsetup" {
			code = max(code, c.run(cmd[:min(6, len(cmd))], false))
		}
	}
	return code
}

func (c *call) statusVerb() int {
	args := slices.Concat([]string{"status"}, c.pass)
	if c.a.has("verbose") && !slices.Contains(c.pass, "--verbose") {
		args = append(args, "--verbose")
	}
	if len(c.targets) == 0 {
		return c.run(append(compat.Command{"drbdsetup"}, args...), c.a.has("dry-run"))
	}
	code := 0
	for _, g := range c.targets {
		code = max(code, c.run(slices.Concat(compat.Command{"drbdsetup", "status", g.res}, args[1:]), c.a.has("dry-run")))
	}
	return code
}

// metaGI asks for the identifiers of a resource that is down: the agent looks at the disk.
func (c *call) metaGI(g *target, volume int) (*control.GI, error) {
	return c.sub(g.res).ShowGI(c.ctx, volume)
}

func (c *call) isUp(g *target) bool {
	r, err := c.up(c.ctx, g.res)
	return err != nil || r != nil
}

// noMeta is what drbdmeta says of a disk without metadata.
func (c *call) noMeta(g *target, err error) int {
	if errors.Is(err, control.NoMetadata) || errors.Is(err, control.NoDisk) {
		c.errorf("No valid meta data found\n")
		return 1
	}
	return c.refuse(g.res, err)
}

func (c *call) dstateVerb(g *target) int {
	if c.isUp(g) {
		code := 0
		for _, cmd := range g.filter(g.plan.EachMinor("dstate")) {
			code = max(code, c.run(cmd, false))
		}
		return code
	}
	for _, n := range c.numbers(g) {
		gi, err := c.metaGI(g, n)
		if err != nil {
			return c.noMeta(g, err)
		}
		word := "Consistent"
		switch {
		case !gi.Consistent:
			word = "Inconsistent"
		case !gi.WasUpToDate:
			word = "Outdated"
		}
		if code := c.print(word + "\n"); code != 0 {
			return code
		}
	}
	return 0
}

func (c *call) numbers(g *target) []int {
	if g.volume != control.All {
		return []int{g.volume}
	}
	return g.plan.Numbers()
}

func (c *call) identifiersVerb(g *target, text func(*control.GI, int, bool) string) int {
	r, err := c.up(c.ctx, g.res)
	if err != nil {
		return c.refuse(g.res, err)
	}
	for _, n := range c.numbers(g) {
		gi, err := c.metaGI(g, n)
		if err != nil {
			return c.noMeta(g, err)
		}
		c.mark(gi, r)
		for _, p := range g.plan.Peers() {
			if g.peer != "" && !slices.Contains(p.Host.Names, g.peer) {
				continue
			}
			if code := c.print(text(gi, p.ID(), c.v84)); code != 0 {
				return code
			}
			if c.v84 {
				break
			}
		}
	}
	return 0
}

func (c *call) outdateVerb(g *target) int {
	if !c.isUp(g) {
		c.errorf("%s: it is down: its data is marked as old when it is up (drbdadm up %s)\n", g.res, g.res)
		return compat.ExitError
	}
	code := 0
	for _, cmd := range g.filter(g.plan.EachMinor("outdate")) {
		code = max(code, c.run(append(cmd, c.pass...), false))
	}
	return code
}

// createMD asks before it overwrites, as drbdmeta does; the answer is read from standard input.
func (c *call) createMD(g *target) int {
	var would, did []control.CreateMDResult
	o := control.CreateMDOptions{Volume: g.volume, Force: c.a.has("force"), DryRun: true}
	err := c.api(g, "create-md", o, &would)
	if errors.Is(err, control.Running) {
		c.errorf("Device '%d' is configured!\n", g.plan.MinorOf(g.plan.Numbers()[0]))
		return 1
	}
	if err != nil {
		return c.refuse(g.res, err)
	}
	for _, r := range would {
		if r.Found == "" || o.Force {
			continue
		}
		c.errorf("%s holds %s\n\nDo you want to proceed?\n[need to type 'yes' to confirm] ", r.Disk, r.Found)
		line, err := bufio.NewReader(c.Stdin).ReadString('\n')
		if err != nil && !errors.Is(err, io.EOF) || strings.TrimSpace(line) != "yes" {
			c.errorf("\nOperation canceled.\n")
			return 1
		}
	}
	o.DryRun, o.Force = false, true
	if err := c.api(g, "create-md", o, &did); err != nil {
		return c.refuse(g.res, err)
	}
	for range did {
		if code := c.print("initializing activity log\nWriting meta data...\nNew drbd meta data block successfully created.\n"); code != 0 {
			return code
		}
	}
	return 0
}

func (c *call) dumpMD(g *target) int {
	for _, n := range c.numbers(g) {
		if err := c.sub(g.res).Copy(c.ctx, "dump-md", url.Values{"volume": {strconv.Itoa(n)}}, c.Stdout); err != nil {
			return c.noMeta(g, err)
		}
	}
	return 0
}

// waitVerb waits as the startup section says, unless the command line does.
func (c *call) waitVerb(g *target) int {
	verb := "wait-connect"
	if c.verb.name == "wait-sync" {
		verb = "wait-sync"
	}
	flags := slices.Clone(c.pass)
	for _, name := range []string{"wfc-timeout", "degr-wfc-timeout", "outdated-wfc-timeout"} {
		o, ok := g.plan.R.Get("startup").Get(name)
		if n, why := drbdconf.ParseNumber(o.Value, drbdconf.One); ok && why == "" && !c.a.has(name) {
			flags = append(flags, "--"+name+"="+strconv.FormatUint(n, 10))
		}
	}
	var list []compat.Command
	switch {
	case c.v84:
		list = g.plan.EachMinor(verb)
	case g.volume != control.All:
		list = g.plan.EachPeerDevice(verb + "-volume")
	case g.peer != "":
		list = g.plan.EachPeer(verb + "-connection")
	default:
		list = g.plan.Whole(verb + "-resource")
	}
	code := 0
	for _, cmd := range g.filter(list) {
		code = max(code, c.run(append(cmd, flags...), false))
	}
	return code
}

// dump prints what was read; with -v all that is inherited too.
func (c *call) dump() int {
	style := drbdconf.V9
	if c.v84 {
		style = drbdconf.V84
	}
	cfg := c.cfg
	o := drbdconf.PrintOptions{VerifyOptions: c.who(), Style: style}
	for _, g := range c.targets {
		if cfg.Resource(g.res) == nil { // one of ours
			own, err := c.ownConfig()
			if err != nil {
				c.errorf("%v\n", err)
				return 10
			}
			cfg = own
		}
		o.Only = append(o.Only, g.res)
	}
	if c.a.has("verbose") {
		cfg = cfg.Expand()
	}
	if c.verb.name == "dump-xml" {
		return c.wrote(drbdconf.PrintXML(c.Stdout, cfg, o))
	}
	return c.wrote(drbdconf.Print(c.Stdout, cfg, o))
}

func (c *call) shResources() int {
	var names []string
	for _, r := range c.cfg.Resources {
		if r.Self(c.who()) != nil {
			names = append(names, r.Name)
		}
	}
	if len(names) == 0 {
		return 0
	}
	return c.print(strings.Join(names, "\n") + "\n")
}

// shVolume prints one line for each volume.
func shVolume(of func(c *call, g *target, volume int) string) func(*call, *target) int {
	return func(c *call, g *target) int {
		if c.a.has("stacked") && g.plan.Self.Kind != drbdconf.Stacked {
			c.errorf("'%s' not defined in your config (for this host).\n", g.res)
			return 1
		}
		for _, n := range c.numbers(g) {
			if text := of(c, g, n); text != "" {
				if code := c.print(text + "\n"); code != 0 {
					return code
				}
			}
		}
		return 0
	}
}

// devOf is the device of a volume, where this node has it.
func (c *call) devOf(g *target, n int) string {
	if def := c.definition(g.res); def != nil {
		for i := range def.Volumes {
			if def.Volumes[i].Number == n {
				return c.device(def, &def.Volumes[i])
			}
		}
	}
	if d := g.plan.Volume(n).Device; d != nil {
		return d.Path()
	}
	return fmt.Sprintf("/dev/drbd%d", g.plan.MinorOf(n))
}

func diskOf(g *target, n int) string {
	if disk := g.plan.Volume(n).Disk; disk != "" {
		return disk
	}
	return drbdconf.None
}

func (c *call) udevOf(g *target, n int) string {
	link := fmt.Sprintf("drbd/by-res/%s/%d", g.res, n)
	text := fmt.Sprintf("DEVICE=drbd%d\nSYMLINK=%s\nSYMLINK_BY_RES=%s", g.plan.MinorOf(n), link, link)
	if disk, ok := strings.CutPrefix(diskOf(g, n), "/dev/"); ok {
		text += "\nSYMLINK_BY_DISK=drbd/by-disk/" + disk
	}
	return text
}

func (c *call) shIP(g *target) int {
	for range c.numbers(g) {
		for _, p := range g.plan.Peers() {
			for _, path := range p.Paths {
				if code := c.print(path[0].Text + "\n"); code != 0 {
					return code
				}
			}
		}
	}
	return 0
}

func (c *call) shLower(g *target) int {
	if lower := g.plan.Self.Lower; lower != "" {
		return c.print(lower + "\n")
	}
	return 0
}

// shStatusVerb prints assignments that a shell evaluates.
func (c *call) shStatusVerb() int {
	api, file := 2, c.a.options["config-file"]
	if c.v84 {
		api = 1
	}
	if file == "" {
		file = "/etc/drbd.conf"
	}
	text := fmt.Sprintf("_drbd_version=%s\n_drbd_api=%d\n_config_file=%s\n\n\n", utilsVersion, api, file)
	for i := range c.targets {
		g := &c.targets[i]
		r, err := c.up(c.ctx, g.res)
		if err != nil {
			return c.refuse(g.res, err)
		}
		text += fmt.Sprintf("_conf_res_name=%s\n_conf_file_line=%s\n\n_stacked_on=\n_stacked_on_device=\n_stacked_on_minor=\n", g.res, g.plan.R.Pos)
		for _, n := range c.numbers(g) {
			text += fmt.Sprintf("_conf_volume=%d\n", n) + compat.ShStatus(r, n, g.plan.MinorOf(n))
		}
	}
	return c.print(text)
}

// handler runs the command that the configuration has for it, as the agent would.
func (c *call) handler(g *target) int {
	o, ok := g.plan.R.Get("handlers").Get(c.verb.name)
	if !ok || o.Value == "" {
		return 0
	}
	code, err := c.runHandler(c.ctx, g, o.Value)
	if err != nil {
		c.errorf("%s: handler %s: %v\n", g.res, c.verb.name, err)
		return compat.ExitTrouble
	}
	return code
}

// environment is what a handler finds of its resource.
func (c *call) environment(g *target) []string {
	var minors, volumes, disks []string
	for _, n := range c.numbers(g) {
		minors = append(minors, strconv.Itoa(g.plan.MinorOf(n)))
		volumes = append(volumes, strconv.Itoa(n))
		disks = append(disks, diskOf(g, n))
	}
	file := c.a.options["config-file"]
	if file == "" {
		file = "/etc/drbd.conf"
	}
	env := []string{"DRBD_CONF=" + file, "DRBD_RESOURCE=" + g.res, "DRBD_MINOR=" + strings.Join(minors, " "), "DRBD_VOLUME=" + strings.Join(volumes, " "),
		"DRBD_LL_DISK=" + strings.Join(disks, " "), "DRBD_MY_NODE_ID=" + strconv.Itoa(g.plan.Self.NodeID)}
	for _, h := range g.plan.R.Hosts {
		env = append(env, fmt.Sprintf("DRBD_NODE_ID_%d=%s", h.NodeID, h.Name()))
	}
	peers := slices.DeleteFunc(g.plan.Peers(), func(p compat.Peer) bool { return g.peer != "" && !slices.Contains(p.Host.Names, g.peer) })
	if len(peers) != 1 { // which one is meant, the caller must say
		return env
	}
	env = append(env, fmt.Sprintf("DRBD_PEER_NODE_ID=%d", peers[0].ID()), "DRBD_PEER="+peers[0].Name())
	if paths := peers[0].Paths; len(paths) > 0 {
		env = append(env, "DRBD_PEER_AF="+paths[0][1].Family, "DRBD_PEER_ADDRESS="+paths[0][1].Text, "DRBD_MY_AF="+paths[0][0].Family, "DRBD_MY_ADDRESS="+paths[0][0].Text)
	}
	return env
}
