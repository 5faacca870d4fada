package config

import (
	"fmt"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/hawser-ha/hawser/fencing"
	"github.com/hawser-ha/hawser/fencing/params"
)

// Fencing says how nodes are fenced.
type Fencing struct {
	Deadline     time.Duration `mapstructure:"deadline"`      // of one fencing, with all levels, delays and retries
	MonitorEvery time.Duration `mapstructure:"monitor-every"` // each device is asked whether it works; 0: never
	Delay        FenceDelay    `mapstructure:"delay"`
	Brake        FenceBrake    `mapstructure:"brake"`
	Devices      []FenceDevice `mapstructure:"devices"`
	Levels       []FenceLevels `mapstructure:"levels"`
}

// FenceDelay keeps two nodes that lost sight of each other from fencing each other at the same moment.
type FenceDelay struct {
	Random          time.Duration `mapstructure:"random"`           // up to this, by chance
	WithoutServices time.Duration `mapstructure:"without-services"` // more, on a node that runs no services
}

// FenceBrake says how often a node may be fenced.
type FenceBrake struct {
	Times  int           `mapstructure:"times"` // 0: as often as one likes
	Within time.Duration `mapstructure:"within"`
}

// FenceDevice is one power switch or management board. Durations that are not set have a default.
type FenceDevice struct {
	Name         string            `mapstructure:"name"`
	Agent        string            `mapstructure:"agent"`  // fence_ipmilan
	Nodes        []string          `mapstructure:"nodes"`  // that it can fence
	Action       string            `mapstructure:"action"` // off, off-on, reboot
	Params       map[string]string `mapstructure:"params"`
	Plugs        []FencePlug       `mapstructure:"plugs"`
	PasswordFile string            `mapstructure:"password-file"`
	PasswordEnv  string            `mapstructure:"password-env"`
	Secrets      []FenceSecret     `mapstructure:"secrets"`
	Timeout      *time.Duration    `mapstructure:"timeout"`
	Retries      *int              `mapstructure:"retries"`
	RetryWait    *time.Duration    `mapstructure:"retry-wait"`
	OffTime      *time.Duration    `mapstructure:"off-time"`
	Verify       *bool             `mapstructure:"verify"`
	RebootTakes  time.Duration     `mapstructure:"reboot-takes"` // a reboot that is done sooner is not believed
}

// FencePlug is the name of a node at a device.
type FencePlug struct {
	Node string `mapstructure:"node"`
	Plug string `mapstructure:"plug"`
}

// FenceSecret is a secret parameter beside the password.
type FenceSecret struct {
	Param string `mapstructure:"param"`
	File  string `mapstructure:"file"`
	Env   string `mapstructure:"env"`
}

// FenceLevels are the levels of one node, each a list of devices that act together.
type FenceLevels struct {
	Node    string     `mapstructure:"node"`
	Devices [][]string `mapstructure:"devices"`
}

// Watchdog says how this node resets itself.
type Watchdog struct {
	Mode    string        `mapstructure:"mode"` // off, automatic, required
	Device  string        `mapstructure:"device"`
	Timeout time.Duration `mapstructure:"timeout"`
}

func defaultFencing() Fencing {
	return Fencing{Deadline: time.Minute, MonitorEvery: 5 * time.Minute, Delay: FenceDelay{Random: 3 * time.Second, WithoutServices: 5 * time.Second},
		Brake: FenceBrake{Times: 4, Within: 30 * time.Minute}}
}

func defaultWatchdog() Watchdog {
	return Watchdog{Mode: "off", Device: "/dev/watchdog", Timeout: 4 * time.Second}
}

// or gives what was set, or a default.
func or[T any](set *T, def T) T {
	if set != nil {
		return *set
	}
	return def
}

// Spec gives how a device is used, without the device.
func (d *FenceDevice) Spec() fencing.Spec {
	mode := fencing.Mode(d.Action)
	if mode == "" {
		mode = fencing.ModeOffOn
	}
	return fencing.Spec{Name: d.Name, Mode: mode, Timeout: or(d.Timeout, 20*time.Second), Retries: or(d.Retries, 1), Wait: or(d.RetryWait, time.Second),
		Verify: or(d.Verify, true), OffTime: or(d.OffTime, 2*time.Second), Least: d.RebootTakes}
}

// Topology gives the levels of each node. One without levels of its own has each of its devices as a level, in their order.
func (f *Fencing) Topology() map[string][][]string {
	levels := map[string][][]string{}
	for _, l := range f.Levels {
		levels[l.Node] = l.Devices
	}
	for i := range f.Devices {
		d := &f.Devices[i]
		for _, node := range d.Nodes {
			if !slices.ContainsFunc(f.Levels, func(l FenceLevels) bool { return l.Node == node }) {
				levels[node] = append(levels[node], []string{d.Name})
			}
		}
	}
	return levels
}

// Timing puts together the times that must fit.
func (n NodeConfig) Timing() fencing.Timing {
	t := fencing.Timing{TTL: n.Lease.TTL, RenewEvery: n.Lease.RenewEvery, RPCTimeout: n.Lease.RPCTimeout, Margin: n.Lease.Margin}
	if n.Watchdog.Mode != "off" {
		t.Watchdog = n.Watchdog.Timeout
	}
	if len(n.Fencing.Devices) > 0 {
		t.Deadline = n.Fencing.Deadline
	}
	return t
}

var fenceAgentName = regexp.MustCompile(`^fence_[a-z0-9_]+$`)

func (f *Fencing) check(c *complaints) {
	if f.Deadline < 5*time.Second {
		c.add("fencing.deadline", fmt.Sprintf("%s is less than 5s", f.Deadline), "")
	}
	if f.MonitorEvery != 0 && f.MonitorEvery < 10*time.Second {
		c.add("fencing.monitor-every", fmt.Sprintf("%s is less than 10s", f.MonitorEvery), "0 turns it off")
	}
	if f.Delay.Random < 0 || f.Delay.WithoutServices < 0 {
		c.add("fencing.delay", "less than nothing", "")
	} else if f.Delay.WithoutServices > 0 && f.Delay.WithoutServices <= f.Delay.Random {
		c.add("fencing.delay.without-services", fmt.Sprintf("%s is not more than random (%s): a node without services could win", f.Delay.WithoutServices, f.Delay.Random), "")
	}
	if f.Delay.Random+f.Delay.WithoutServices >= f.Deadline {
		c.add("fencing.delay", "the delays take all of the deadline", "")
	}
	if f.Brake.Times < 0 || (f.Brake.Times > 0 && f.Brake.Within <= 0) {
		c.add("fencing.brake", fmt.Sprintf("%d times within %s", f.Brake.Times, f.Brake.Within), "times: 0 turns it off")
	}
	names := map[string]bool{}
	for i := range f.Devices {
		f.Devices[i].check(c, fmt.Sprintf("fencing.devices[%d]", i), names)
	}
	seen := map[string]bool{}
	for i, l := range f.Levels {
		at := fmt.Sprintf("fencing.levels[%d]", i)
		if why := CheckName(l.Node); why != "" {
			c.add(at+".node", why, nameHint)
		}
		if seen[l.Node] {
			c.also(at+".node", "node "+l.Node+" has its levels above", "")
		}
		seen[l.Node] = true
		if len(l.Devices) == 0 {
			c.add(at+".devices", "no level", "devices: [[first], [second]]")
		}
		for n, level := range l.Devices {
			f.checkLevel(c, fmt.Sprintf("%s.devices[%d]", at, n), l.Node, level)
		}
	}
}

func (f *Fencing) checkLevel(c *complaints, at, node string, level []string) {
	if len(level) == 0 {
		c.also(at, "an empty level confirms nothing", "")
		return
	}
	real := false
	for _, name := range level {
		i := slices.IndexFunc(f.Devices, func(d FenceDevice) bool { return d.Name == name })
		if i < 0 {
			var known []string
			for j := range f.Devices {
				known = append(known, f.Devices[j].Name)
			}
			c.also(at, fmt.Sprintf("there is no device %q", name), didYouMean(name, known))
			continue
		}
		if !slices.Contains(f.Devices[i].Nodes, node) {
			c.also(at, fmt.Sprintf("device %s does not list node %s", name, node), "add it to its nodes")
		}
		real = real || !strings.Contains(filepath.Base(f.Devices[i].Agent), "fence_heuristics_")
	}
	if !real {
		c.also(at, "nothing in this level turns a node off", "fence_heuristics_* goes before a device in the same level")
	}
}

func (d *FenceDevice) check(c *complaints, at string, names map[string]bool) {
	if why := CheckName(d.Name); why != "" {
		c.add(at+".name", why, nameHint)
	}
	if names[d.Name] {
		c.also(at+".name", "device "+d.Name+" is there twice", "")
	}
	names[d.Name] = true
	if !fenceAgentName.MatchString(d.Agent) && !filepath.IsAbs(d.Agent) {
		c.add(at+".agent", fmt.Sprintf("%q is neither fence_... nor a path", d.Agent), "ls /usr/sbin/fence_*")
	}
	if len(d.Nodes) == 0 {
		c.add(at+".nodes", "it fences no node", "nodes: [NAME, ...]")
	}
	if d.Action != "" && !slices.Contains([]string{"off", "off-on", "reboot"}, d.Action) {
		c.add(at+".action", fmt.Sprintf("%q is none of off, off-on, reboot", d.Action), "")
	}
	for name := range d.Params {
		if params.Secret(name) {
			c.also(at+".params."+name, "a secret does not belong here", "password-file, password-env, or secrets")
		}
	}
	if d.PasswordFile != "" && d.PasswordEnv != "" {
		c.also(at+".password-env", "there is a password-file too", "")
	}
	if d.PasswordFile != "" {
		if why := checkPath(d.PasswordFile); why != "" {
			c.also(at+".password-file", why, "")
		}
	}
	for i, s := range d.Secrets {
		if s.Param == "" || (s.File == "") == (s.Env == "") {
			c.also(fmt.Sprintf("%s.secrets[%d]", at, i), "needs param, and either file or env", "")
		}
	}
	plugs := map[string]bool{}
	for i, p := range d.Plugs {
		if p.Plug == "" || !slices.Contains(d.Nodes, p.Node) || plugs[p.Node] {
			c.also(fmt.Sprintf("%s.plugs[%d]", at, i), fmt.Sprintf("plug %q of node %q: each node of the device has one", p.Plug, p.Node), "")
		}
		plugs[p.Node] = true
	}
	if len(d.Plugs) > 0 && len(plugs) != len(d.Nodes) {
		c.also(at+".plugs", "not every node of the device has one", "")
	}
	if len(d.Plugs) == 0 && len(d.Nodes) > 1 {
		c.also(at+".nodes", "more than one node, and nothing tells them apart at the device", "plugs: [{node: n1, plug: \"1\"}, ...]")
	}
	if s := d.Spec(); s.Timeout < time.Second || s.Retries < 0 || s.Retries > 20 || s.Wait < 0 || s.OffTime < 0 || s.Least < 0 {
		c.also(at, "timeout is at least 1s, retries 0 to 20, other times not negative", "")
	}
}

func (w *Watchdog) check(c *complaints) {
	if !slices.Contains([]string{"off", "automatic", "required"}, w.Mode) {
		c.add("watchdog.mode", fmt.Sprintf("%q is none of off, automatic, required", w.Mode), "")
	}
	if why := checkPath(w.Device); why != "" {
		c.add("watchdog.device", why, "")
	}
	if w.Timeout < time.Second || w.Timeout%time.Second != 0 {
		c.add("watchdog.timeout", fmt.Sprintf("%s: watchdogs count whole seconds", w.Timeout), "")
	}
}

// checkTiming refuses times by which a node could live on after another has taken its place.
func (n NodeConfig) checkTiming(c *complaints) {
	if n.Watchdog.Mode == "off" {
		return
	}
	for _, text := range n.Timing().Broken() {
		c.also("watchdog.timeout", text, "")
	}
}
