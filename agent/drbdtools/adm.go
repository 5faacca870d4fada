package drbdtools

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/hawser-ha/hawser/agent/compat"
	"github.com/hawser-ha/hawser/agent/drbdconf"
	"github.com/hawser-ha/hawser/replicator/control"
)

// globals are the options of drbdadm itself.
var globals = []option{{long: "dry-run", short: "d"}, {long: "verbose", short: "v"}, {long: "config-file", short: "c", value: true},
	{long: "stacked", short: "S"}, {long: "config-to-test", short: "t", value: true}, {long: "config-to-exclude", short: "E", value: true},
	{long: "sh-varname", short: "n", value: true}, {long: "drbdsetup", short: "s", value: true}, {long: "drbdmeta", short: "m", value: true},
	{long: "drbd-proxy-ctl", short: "p", value: true}, {long: "setup-option", short: "W", value: true}, {long: "peer", short: "P", value: true},
	{long: "version", short: "V"}, {long: "help", short: "h"}}

// target is one resource, or a part of it, that drbdadm was given.
type target struct {
	res    string
	volume int    // control.All: every one
	peer   string // "": every one
	plan   *compat.Plan
}

// filter leaves the commands that are about the target's part.
func (g *target) filter(list []compat.Command) []compat.Command {
	return slices.DeleteFunc(list, func(c compat.Command) bool {
		if len(c) < 3 {
			return false
		}
		verb, words := c[1], c[2:]
		i := slices.IndexFunc(setupVerbs, func(v setupVerb) bool { return v.name == verb })
		if i < 0 {
			return false
		}
		switch setupVerbs[i].object {
		case minor:
			return g.volume != control.All && words[0] != fmt.Sprint(g.plan.MinorOf(g.volume))
		case peer, peerDevice:
			if g.peer != "" && !slices.ContainsFunc(g.plan.Peers(), func(p compat.Peer) bool {
				return len(words) > 1 && slices.Contains(p.Host.Names, g.peer) && words[1] == fmt.Sprint(p.ID())
			}) {
				return true
			}
			return setupVerbs[i].object == peerDevice && g.volume != control.All && len(words) > 2 && words[2] != fmt.Sprint(g.volume)
		}
		return false
	})
}

// call is one run of drbdadm.
type call struct {
	*tool
	ctx     context.Context
	a       arguments
	cfg     *drbdconf.Config
	verb    *admVerb
	targets []target
	pass    []string // options that go on to drbdsetup
	code    int
}

// admVerb is one verb of drbdadm.
type admVerb struct {
	name    string
	bare    bool // it takes no resources, or all when none is named
	options []option
	help    string
	// commands are what drbdadm would run for a target. Without do they are run.
	commands func(c *call, g *target) []compat.Command
	do       func(c *call, g *target) int
	all      func(c *call) int // instead of both: once
}

// verbOf finds the verb in a command line: the first word that is no option or an option's value.
func verbOf(args []string) string {
	for i := 0; i < len(args); i++ {
		arg := args[i]
		if name, ok := strings.CutPrefix(arg, "--"); ok {
			if j := slices.IndexFunc(globals, func(o option) bool { return o.long == name }); j >= 0 && globals[j].value {
				i++
			}
			continue
		}
		if strings.HasPrefix(arg, "-") {
			if len(arg) == 2 && slices.ContainsFunc(globals, func(o option) bool { return o.value && o.short == arg[1:] }) {
				i++
			}
			continue
		}
		return arg
	}
	return ""
}

func (t *tool) adm(ctx context.Context, args []string) int {
	name := verbOf(args)
	if name == "" {
		a := split(args, globals)
		switch {
		case a.has("version"):
			return t.print(t.versionText())
		case a.has("help"):
			t.admHelp(t.Stdout)
			return 0
		case a.bad != "":
			t.errorf("drbdadm: unrecognized option %s\n", a.bad)
			return 1
		}
		t.admHelp(t.Stderr)
		return 1
	}
	if name == "help" {
		t.admHelp(t.Stdout)
		return 0
	}
	i := slices.IndexFunc(admVerbs, func(v admVerb) bool { return v.name == name })
	if i < 0 {
		t.errorf("Unknown command '%s'.\n", name)
		return 1
	}
	v := &admVerbs[i]
	options := slices.Concat(v.options, globals)
	if slices.Contains([]string{"net-options", "disk-options", "resource-options", "peer-device-options", "connect"}, name) {
		options = slices.Concat(options, unknownOptions(args, options))
	}
	c := &call{tool: t, ctx: ctx, verb: v, a: split(args, options)}
	switch {
	case c.a.has("version"):
		return t.print(t.versionText())
	case c.a.bad != "":
		t.errorf("%s: unrecognized option %s\n", name, c.a.bad)
		return 1
	}
	for _, o := range v.options {
		for range c.a.count[o.long] {
			switch {
			case o.value:
				c.pass = append(c.pass, "--"+o.long+"="+c.a.options[o.long])
			default:
				c.pass = append(c.pass, "--"+o.long)
			}
		}
	}
	c.pass = append(c.pass, strings.Fields(c.a.options["setup-option"])...)
	words := slices.DeleteFunc(c.a.words, func(w string) bool { return w == name })
	var extra []string
	if f := c.a.options["config-to-test"]; f != "" {
		extra = []string{f}
	}
	var code int
	if c.cfg, code = t.configuration(c.a.options["config-file"], extra, name); code != 0 {
		return code
	}
	if code := c.resolve(words); code != 0 {
		return code
	}
	if v.all != nil {
		return v.all(c)
	}
	for i := range c.targets {
		c.code = max(c.code, c.one(&c.targets[i]))
	}
	return c.code
}

// one does the verb for a target, or prints what it would.
func (c *call) one(g *target) int {
	dry := c.a.has("dry-run")
	if c.verb.do != nil && !dry {
		return c.verb.do(c, g)
	}
	if c.verb.commands == nil {
		return c.verb.do(c, g) // it only prints
	}
	list := g.filter(c.verb.commands(c, g))
	code := 0
	for _, cmd := range list {
		if len(c.pass) > 0 && c.verb.do == nil {
			cmd = append(slices.Clone(cmd), c.pass...)
		}
		code = max(code, c.run(cmd, dry))
	}
	return code
}

// run runs a command of drbdsetup in this process, or prints it.
func (c *call) run(cmd compat.Command, dry bool) int {
	if c.v84 {
		cmd = c.in84(cmd)
	}
	if dry {
		return c.print(cmd.String() + "\n")
	}
	if c.a.has("verbose") && c.verb.name != "status" {
		c.errorf("%s\n", cmd)
	}
	code := c.setup(c.ctx, cmd[1:])
	if code >= 10 {
		c.errorf("Command '%s' terminated with exit code %d\n", cmd, code)
	}
	return code
}

// in84 is a command in the form of 8.4, which knows volumes by their minors and peers not at all.
func (c *call) in84(cmd compat.Command) compat.Command {
	cmd = slices.Clone(cmd)
	cmd[0] = "drbdsetup-84"
	return cmd
}

// resolve finds the resources that the words name.
func (c *call) resolve(words []string) int {
	if c.verb.all != nil && c.verb.name != "dump" && c.verb.name != "dump-xml" && c.verb.name != "sh-status" && c.verb.name != "status" {
		return 0
	}
	if len(words) == 0 && c.verb.bare {
		if c.verb.name == "status" || c.verb.name == "dump" || c.verb.name == "dump-xml" {
			return 0
		}
		words = []string{"all"}
	}
	if len(words) == 0 {
		c.errorf("drbdadm: %s needs a resource: %s all, or %s RES\n", c.verb.name, c.verb.name, c.verb.name)
		return 1
	}
	for _, w := range words {
		if w == "all" {
			n := len(c.targets)
			for _, r := range c.cfg.Resources {
				c.add(target{res: r.Name, volume: control.All})
			}
			if len(c.targets) == n {
				c.errorf("no resources defined!\n")
				return 1
			}
			continue
		}
		if !c.add(c.parse(w)) {
			c.errorf("'%s' not defined in your config (for this host).\n", w)
			return 1
		}
	}
	return 0
}

func (c *call) parse(word string) target {
	if strings.HasPrefix(word, "minor-") || strings.HasPrefix(word, "/dev/") {
		if name, volume, ok := c.byDevice(word); ok {
			return target{res: name, volume: volume}
		}
		return target{res: word}
	}
	g := target{volume: control.All}
	rest, volume, cut := strings.Cut(word, "/")
	if n, ok := number(volume); cut && ok {
		g.volume = n
	} else if cut {
		rest = word
	}
	g.res, g.peer, _ = strings.Cut(rest, ":")
	return g
}

// add looks the target up; false: it is not there, or not for this node.
func (c *call) add(g target) bool {
	who := c.who()
	cfg := c.cfg
	if cfg == nil || cfg.Resource(g.res) == nil { // one of ours that a file given by -c does not have
		own, err := c.ownConfig()
		if err != nil {
			return false
		}
		cfg = own
	} else if !isDefault(c.a.options["config-file"]) {
		who.Local = nil
	}
	p, ok := compat.PlanOf(cfg, g.res, who, c.minor)
	if !ok {
		return false
	}
	if g.volume != control.All && !slices.Contains(p.Numbers(), g.volume) {
		return false
	}
	if peers := p.Peers(); g.peer != "" && !slices.ContainsFunc(peers, func(x compat.Peer) bool { return slices.Contains(x.Host.Names, g.peer) }) {
		return false
	}
	g.plan = p
	c.targets = append(c.targets, g)
	return true
}

// api posts to the resource's part of the agent's API.
func (c *call) api(g *target, path string, in, out any) error {
	return c.sub(g.res).Call(c.ctx, path, in, out)
}

type doneAnswer struct {
	Changed bool `json:"changed"`
}

// bringUp starts a resource; one that is up stays so.
func (c *call) bringUp(g *target) int {
	return c.refuse(g.res, c.api(g, "up", struct{}{}, &doneAnswer{}))
}

func (c *call) upVerb(g *target) int {
	var done doneAnswer
	if err := c.api(g, "up", struct{}{}, &done); err != nil {
		return c.refuse(g.res, err)
	}
	if !done.Changed {
		c.errorf("Device '%d' is configured!\n", g.plan.MinorOf(g.plan.Numbers()[0]))
		return 1
	}
	return 0
}

// step is a step of the agent's plan.
type step struct {
	Verb   string `json:"verb"`
	Target string `json:"target"`
}

// adjust makes a resource what its file says. What was disconnected or detached by hand comes back, as with DRBD.
func (c *call) adjust(g *target) int {
	r, err := c.up(c.ctx, g.res)
	if err != nil {
		return c.refuse(g.res, err)
	}
	if r == nil {
		return c.bringUp(g)
	}
	if err := c.api(g, "adjust", struct{}{}, &[]step{}); err != nil {
		return c.refuse(g.res, err)
	}
	if r, err = c.up(c.ctx, g.res); err != nil || r == nil {
		return c.refuse(g.res, err)
	}
	code := 0
	for _, cmd := range g.filter(c.missing(g, r)) {
		code = max(code, c.run(cmd, false))
	}
	return code
}

// missing is what adjust does to a resource that runs by its file already.
func (c *call) missing(g *target, r *compat.Resource) []compat.Command {
	var out []compat.Command
	if !c.a.has("skip-disk") {
		for _, n := range g.plan.Numbers() {
			v := g.plan.Volume(n)
			d := r.Device(n)
			if d != nil && d.Disk == "Diskless" && d.Backing == "" && v.Disk != "" && v.Disk != drbdconf.None {
				dev, _, attach := compat.MetaDisk(&v)
				out = append(out, compat.Command{"drbdsetup", "attach", fmt.Sprint(g.plan.MinorOf(n)), v.Disk, dev, attach})
			}
		}
	}
	if !c.a.has("skip-net") {
		for _, p := range g.plan.Peers() {
			if x := r.Connection(p.ID()); x != nil && x.State == "StandAlone" {
				out = append(out, compat.Command{"drbdsetup", "connect", g.res, fmt.Sprint(p.ID())})
			}
		}
	}
	return out
}

// adjustCommands are what -d adjust prints.
func (c *call) adjustCommands(g *target) []compat.Command {
	r, err := c.up(c.ctx, g.res)
	if err != nil || r == nil {
		return compat.Up([]*compat.Plan{g.plan})
	}
	var steps []step
	if err := c.api(g, "adjust", map[string]bool{"dry-run": true}, &steps); err != nil {
		c.code = max(c.code, c.refuse(g.res, err))
		return nil
	}
	var out []compat.Command
	for _, s := range steps {
		switch s.Verb {
		case "down":
			out = append(out, g.plan.Whole("down")...)
		case "up":
			out = append(out, compat.Up([]*compat.Plan{g.plan})...)
		case "detach":
			out = append(out, only(g.plan, s.Target, g.plan.EachMinor("detach"))...)
		case "attach":
			out = append(out, only(g.plan, s.Target, g.plan.Attach())...)
		case "resize":
			out = append(out, only(g.plan, s.Target, g.plan.EachMinor("resize"))...)
		case "disconnect", "connect":
			sub := target{res: g.res, volume: control.All, peer: s.Target, plan: g.plan}
			out = append(out, sub.filter(g.plan.EachPeer(s.Verb))...)
		default:
			out = append(out, slices.Concat(g.plan.ResourceOptions(), g.plan.DiskOptions(), g.plan.NetOptions(), g.plan.PeerDeviceOptions())...)
		}
	}
	return append(out, c.missing(g, r)...)
}

// only leaves the commands about one volume.
func only(p *compat.Plan, volume string, list []compat.Command) []compat.Command {
	n, ok := number(volume)
	if !ok {
		return list
	}
	minor := fmt.Sprint(p.MinorOf(n))
	return slices.DeleteFunc(list, func(c compat.Command) bool {
		return c[0] == "drbdmeta" && c[1] != minor || c[0] == "drbdsetup" && c[2] != minor
	})
}

// optionsVerb takes options from the file, or the protocol from the command line.
func (c *call) optionsVerb(g *target) int {
	if protocol, ok := c.a.options["protocol"]; ok && c.verb.name == "net-options" {
		code := 0
		for _, cmd := range g.filter(g.plan.EachPeer("net-options", "--protocol="+protocol)) {
			code = max(code, c.run(cmd, false))
		}
		return code
	}
	if r, err := c.up(c.ctx, g.res); err != nil || r == nil {
		if err == nil {
			err = control.Errorf(control.NotRunning, "it is down").On(g.res, control.All, "")
		}
		return c.refuse(g.res, err)
	}
	return c.refuse(g.res, c.api(g, "adjust", struct{}{}, &[]step{}))
}

// idempotent runs the commands of a verb that leave what is down as it is.
func idempotent(commands func(c *call, g *target) []compat.Command) func(c *call, g *target) int {
	return func(c *call, g *target) int {
		if r, err := c.up(c.ctx, g.res); err == nil && r == nil {
			return 0
		}
		code := 0
		for _, cmd := range g.filter(commands(c, g)) {
			code = max(code, c.run(append(slices.Clone(cmd), c.pass...), false))
		}
		return code
	}
}
