package config

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"
)

// Services is what runs on top of a resource's volumes, as written.
type Services struct {
	After     []string  // resources whose primary chain must be up on this node first
	Primary   []Service // where the resource is Primary
	Secondary []Service // where it is Secondary
	Always    []Service // wherever it is up
}

// Service is one entry of a chain. Texts are as written; "" is not said.
type Service struct {
	Name           string // "": the last part of Run
	Run            string // ocf:PROVIDER:TYPE, systemd:UNIT or exec:COMMAND
	Params         Options
	Monitor        string // time between monitors, none is never
	MonitorTimeout string
	StartTimeout   string
	StopTimeout    string
	CheckLevel     string // OCF_CHECK_LEVEL of monitors
	Restart        string // how often within RestartWindow it is started again here
	RestartWindow  string
}

// The kinds of service.
const (
	ServiceOCF     = "ocf"
	ServiceSystemd = "systemd"
	ServiceExec    = "exec"
)

// ServiceRoles are the chains of a resource.
var ServiceRoles = []string{"primary", "secondary", "always"}

// ServiceSpec is a service with defaults filled in.
type ServiceSpec struct {
	Name           string            `json:"name"`
	Kind           string            `json:"kind"`
	What           string            `json:"what"` // PROVIDER:TYPE, unit or command
	Params         map[string]string `json:"params,omitempty"`
	Monitor        time.Duration     `json:"monitor"` // 0 is never
	MonitorTimeout time.Duration     `json:"monitor-timeout"`
	StartTimeout   time.Duration     `json:"start-timeout"`
	StopTimeout    time.Duration     `json:"stop-timeout"`
	CheckLevel     int               `json:"check-level,omitempty"`
	Restart        int               `json:"restart"`
	RestartWindow  time.Duration     `json:"restart-window"`
}

// Run is the entry as the file has it: KIND:WHAT.
func (s *ServiceSpec) Run() string { return s.Kind + ":" + s.What }

// SameService reports whether a service that runs as s is what t asks for; how it is watched may differ.
func (s *ServiceSpec) SameService(t *ServiceSpec) bool {
	return s.Name == t.Name && s.Kind == t.Kind && s.What == t.What && maps.Equal(s.Params, t.Params)
}

// chain gives the entries of a role.
func (s *Services) chain(role string) *[]Service {
	switch role {
	case "primary":
		return &s.Primary
	case "secondary":
		return &s.Secondary
	}
	return &s.Always
}

// Empty reports whether nothing is said.
func (s *Services) Empty() bool {
	return len(s.After)+len(s.Primary)+len(s.Secondary)+len(s.Always) == 0
}

// ServiceChain is the chain of a role with defaults filled in; the resource has passed Check.
func (r *Resource) ServiceChain(role string) []ServiceSpec {
	var list []ServiceSpec
	for _, s := range *r.Services.chain(role) {
		spec := ServiceSpec{Name: s.name(), Params: map[string]string{}}
		spec.Kind, spec.What, _ = strings.Cut(s.Run, ":")
		spec.What = strings.TrimSpace(spec.What)
		for _, p := range s.Params {
			spec.Params[p.Name] = p.Value
		}
		for _, f := range s.times() {
			*f.to(&spec), _ = f.parse()
		}
		spec.CheckLevel, _ = serviceNumber(s.CheckLevel, 0, checkLevelMax)
		spec.Restart, _ = serviceNumber(s.Restart, 3, restartMax)
		list = append(list, spec)
	}
	return list
}

const (
	checkLevelMax = 100
	restartMax    = 1000
)

// name is the service's own, or the last part of what it runs.
func (s *Service) name() string {
	if s.Name != "" {
		return s.Name
	}
	kind, what, _ := strings.Cut(s.Run, ":")
	switch kind {
	case ServiceOCF:
		return what[strings.LastIndexByte(what, ':')+1:]
	case ServiceExec:
		word, _, _ := strings.Cut(strings.TrimPrefix(strings.TrimSpace(what), "exec "), " ")
		return word[strings.LastIndexByte(word, '/')+1:]
	}
	return what
}

// serviceTime is a time in an entry.
type serviceTime struct {
	key, text string
	def       time.Duration
	never     bool // none is allowed
	to        func(*ServiceSpec) *time.Duration
}

func (s *Service) times() []serviceTime {
	return []serviceTime{
		{"monitor", s.Monitor, 10 * time.Second, true, func(s *ServiceSpec) *time.Duration { return &s.Monitor }},
		{"monitor-timeout", s.MonitorTimeout, 40 * time.Second, false, func(s *ServiceSpec) *time.Duration { return &s.MonitorTimeout }},
		{"start-timeout", s.StartTimeout, 90 * time.Second, false, func(s *ServiceSpec) *time.Duration { return &s.StartTimeout }},
		{"stop-timeout", s.StopTimeout, 90 * time.Second, false, func(s *ServiceSpec) *time.Duration { return &s.StopTimeout }},
		{"restart-window", s.RestartWindow, 10 * time.Minute, false, func(s *ServiceSpec) *time.Duration { return &s.RestartWindow }},
	}
}

// parse gives the time, and what is wrong with it.
func (f *serviceTime) parse() (time.Duration, string) {
	switch {
	case f.text == "":
		return f.def, ""
	case f.text == none && f.never:
		return 0, ""
	}
	d, err := time.ParseDuration(f.text)
	switch {
	case err != nil:
		return 0, fmt.Sprintf("%q is no time: write 20s or 2m", f.text)
	case d < 100*time.Millisecond || d > 24*time.Hour:
		return 0, fmt.Sprintf("%s is outside 100ms to 24h", f.text)
	}
	return d, ""
}

func serviceNumber(text string, def, most int) (int, string) {
	if text == "" {
		return def, ""
	}
	n, err := strconv.Atoi(text)
	switch {
	case err != nil:
		return 0, fmt.Sprintf("%q is no number", text)
	case n < 0 || n > most:
		return 0, fmt.Sprintf("%s is outside 0 to %d", text, most)
	}
	return n, ""
}

func (p *parser) services(n *yaml.Node, path string) Services {
	var s Services
	p.mapping(n, path, append([]string{"after"}, ServiceRoles...), func(key, path string, v *yaml.Node) {
		if key == "after" {
			p.sequence(v, path, func(path string, v *yaml.Node) { s.After = append(s.After, p.word(v, path)) })
			return
		}
		chain := s.chain(key)
		p.sequence(v, path, func(path string, v *yaml.Node) { *chain = append(*chain, p.service(v, path)) })
	})
	return s
}

// service reads an entry: a map, or only what to run.
func (p *parser) service(n *yaml.Node, path string) Service {
	var s Service
	if n.Kind == yaml.ScalarNode && n.Tag != "!!null" {
		s.Run = p.word(n, path)
		return s
	}
	known := []string{"name", "run", "params"}
	for _, f := range s.fields() {
		known = append(known, f.key)
	}
	p.mapping(n, path, known, func(key, path string, v *yaml.Node) {
		switch key {
		case "name":
			s.Name = p.word(v, path)
		case "run":
			s.Run = p.word(v, path)
		case "params":
			s.Params = p.options(v, path)
		default:
			for _, f := range s.fields() {
				if f.key == key {
					*f.text = p.word(v, path)
				}
			}
		}
	})
	return s
}

type serviceField struct {
	key  string
	text *string
}

// fields are the plain settings of an entry, in the order of the file.
func (s *Service) fields() []serviceField {
	return []serviceField{{"monitor", &s.Monitor}, {"monitor-timeout", &s.MonitorTimeout}, {"start-timeout", &s.StartTimeout},
		{"stop-timeout", &s.StopTimeout}, {"check-level", &s.CheckLevel}, {"restart", &s.Restart}, {"restart-window", &s.RestartWindow}}
}

func (s *Services) node() *yaml.Node {
	m := mapNode()
	after := seqNode()
	after.Style = yaml.FlowStyle
	for _, a := range s.After {
		after.Content = append(after.Content, text(a))
	}
	put(m, "after", after)
	for _, role := range ServiceRoles {
		seq := seqNode()
		for _, e := range *s.chain(role) {
			n := mapNode()
			put(n, "name", text(e.Name))
			put(n, "run", text(e.Run))
			put(n, "params", e.Params.node())
			for _, f := range e.fields() {
				put(n, f.key, text(*f.text))
			}
			seq.Content = append(seq.Content, n)
		}
		put(m, role, seq)
	}
	return m
}

var (
	ocfShape     = regexp.MustCompile(`^[A-Za-z0-9._-]+:[A-Za-z0-9._-]+$`)
	unitShape    = regexp.MustCompile(`^[A-Za-z0-9:_.\\-]+(@[A-Za-z0-9:_.\\-]+)?\.(service|socket|mount|target|timer|path|automount|swap)$`)
	serviceShape = regexp.MustCompile(`^[A-Za-z0-9._@:\\-]{1,128}$`)
	paramShape   = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)
)

const runHint = "ocf:PROVIDER:TYPE, systemd:UNIT or exec:COMMAND"

func (r *Resource) checkServices(c *complaints) {
	for i, a := range r.Services.After {
		at := fmt.Sprintf("services.after[%d]", i)
		switch {
		case CheckName(a) != "":
			c.add(at, CheckName(a), nameHint)
		case a == r.Name:
			c.add(at, "a resource does not wait for itself", "remove it")
		case slices.Index(r.Services.After, a) < i:
			c.add(at, a+" stands here twice", "remove one")
		}
	}
	if len(r.Services.After) > 0 && len(r.Services.Primary) == 0 {
		c.add("services.after", "there is no primary chain that could wait", "after concerns services.primary")
	}
	names, units := map[string]string{}, map[string]string{}
	for _, role := range ServiceRoles {
		for i, s := range *r.Services.chain(role) {
			r.checkService(c, fmt.Sprintf("services.%s[%d]", role, i), &s, names, units)
		}
	}
}

func (r *Resource) checkService(c *complaints, at string, s *Service, names, units map[string]string) {
	kind, what, _ := strings.Cut(s.Run, ":")
	what = strings.TrimSpace(what)
	bad := ""
	hint := runHint
	switch {
	case s.Run == "":
		bad = "does not say what to run"
	case kind == ServiceOCF:
		if !ocfShape.MatchString(what) || strings.Contains(what, "..") {
			bad, hint = fmt.Sprintf("%q names no resource agent", s.Run), "ocf:PROVIDER:TYPE, as in ocf:heartbeat:Filesystem"
		}
	case kind == ServiceSystemd:
		if !unitShape.MatchString(what) {
			bad, hint = fmt.Sprintf("%q is no unit name", what), "with its suffix, as in systemd:postgresql@15-main.service"
		}
	case kind == ServiceExec:
		if what == "" || strings.ContainsAny(what, "\x00\n") {
			bad, hint = "there is no command", "one line, run by /bin/sh"
		}
	default:
		bad = fmt.Sprintf("%q is no kind of service", kind)
	}
	if bad != "" {
		c.add(at+".run", bad, hint)
		return
	}
	name := s.name()
	if !serviceShape.MatchString(name) || strings.Trim(name, ".") == "" {
		c.add(at+".name", fmt.Sprintf("%q is no name", name), "give it one: name: ..., 1 to 128 of A-Z a-z 0-9 . _ - @ :")
	} else if other, twice := names[name]; twice {
		c.add(at+".name", fmt.Sprintf("%s is already the name of %s", name, other), "give each a name of its own: name: ...")
	} else {
		names[name] = at
	}
	if kind == ServiceSystemd {
		if other, twice := units[what]; twice {
			c.add(at+".run", fmt.Sprintf("%s stands already in %s", what, other), "a unit can be in one chain")
		}
		units[what] = at
	}
	if kind != ServiceOCF && len(s.Params) > 0 {
		c.add(at+".params", "only resource agents have parameters", "a unit has its own files, a command its arguments")
	}
	if kind != ServiceOCF && s.CheckLevel != "" {
		c.add(at+".check-level", "only resource agents have levels of checking", "remove it")
	}
	for _, p := range s.Params {
		switch {
		case !paramShape.MatchString(p.Name) || strings.HasPrefix(p.Name, "CRM_meta_"):
			c.add(at+".params."+p.Name, fmt.Sprintf("%q is no name of a parameter", p.Name), "letters, digits and _")
		case strings.ContainsRune(p.Value, 0):
			c.add(at+".params."+p.Name, "holds a zero byte", "")
		}
	}
	for _, f := range s.times() {
		if _, why := f.parse(); why != "" {
			c.add(at+"."+f.key, why, "")
		}
	}
	if _, why := serviceNumber(s.CheckLevel, 0, checkLevelMax); why != "" {
		c.add(at+".check-level", why, "")
	}
	if _, why := serviceNumber(s.Restart, 0, restartMax); why != "" {
		c.add(at+".restart", why, "")
	}
}

// checkServiceSet looks for what services of different resources take from each other, and for orders that cannot be
// kept. It keeps no resource from running: its services wait, and say why.
func checkServiceSet(resources []Resource) []*Error {
	var list []*Error
	byName := map[string]*Resource{}
	units := map[string]string{}
	for i := range resources {
		byName[resources[i].Name] = &resources[i]
	}
	for i := range resources {
		r := &resources[i]
		c := complaints{file: r.File, at: r.at}
		for j, a := range r.Services.After {
			at := fmt.Sprintf("services.after[%d]", j)
			switch {
			case byName[a] == nil:
				c.add(at, fmt.Sprintf("resource %s is not defined here, or its file is not right", a), "these services wait until it is")
			case waitsFor(byName, a, r.Name, map[string]bool{}):
				c.add(at, fmt.Sprintf("%s waits for %s, and %s for %s: neither will start", r.Name, a, a, r.Name), "remove one after")
			}
		}
		for _, role := range ServiceRoles {
			for j, s := range *r.Services.chain(role) {
				if !strings.HasPrefix(s.Run, ServiceSystemd+":") {
					continue
				}
				if who, taken := units[s.Run]; taken && who != r.Name {
					if o := byName[who]; slices.ContainsFunc(r.Nodes, func(n Node) bool { return o.hasNode(n.Name) }) {
						c.add(fmt.Sprintf("services.%s[%d]", role, j), fmt.Sprintf("%s is a service of resource %s too", s.Run, who), "each needs its own, as an instance of a template unit")
					}
				}
				units[s.Run] = r.Name
			}
		}
		list = append(list, c.list...)
	}
	return list
}

// waitsFor reports whether from's services come, by way of others perhaps, after those of to.
func waitsFor(byName map[string]*Resource, from, to string, seen map[string]bool) bool {
	r := byName[from]
	if r == nil || seen[from] {
		return false
	}
	seen[from] = true
	return slices.ContainsFunc(r.Services.After, func(a string) bool { return a == to || waitsFor(byName, a, to, seen) })
}

// Complain is an error about a place in the resource's file, for checks that need more than the file:
// path is like services.primary[0].params.device.
func (r *Resource) Complain(path, reason, hint string) *Error {
	c := complaints{file: r.File, at: r.at}
	c.also(path, reason, hint)
	return c.list[0]
}

// DidYouMean is the hint for a word that is none of the candidates.
func DidYouMean(word string, candidates []string) string { return didYouMean(word, candidates) }
