package drbdtools

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"strings"
	"time"

	"github.com/hawser-ha/hawser/agent/compat"
	"github.com/hawser-ha/hawser/agent/config"
	"github.com/hawser-ha/hawser/replicator/control"
)

// Names are the names that the program answers to.
var Names = []string{"drbdadm", "drbdsetup", "drbdadm-84", "drbdsetup-84"}

// Is tells whether a program of that name (argv[0]) is one of the tools, and which.
func Is(argv0 string) (string, bool) {
	base := filepath.Base(argv0)
	for _, n := range Names {
		if n == base {
			return n, true
		}
	}
	return "", false
}

// Options are what the tools work with.
type Options struct {
	Node     config.NodeConfig
	NodeErr  error // why the settings of the node could not be read
	Version  string
	Stdin    io.Reader
	Stdout   io.Writer
	Stderr   io.Writer
	Terminal bool // Stdout is one
	Getenv   func(string) string
	Now      func() time.Time
}

// tool is one call.
type tool struct {
	Options
	v84  bool
	name string // as which it was called
	c    *control.Client

	set     *config.Set // loaded once
	setErr  error
	defs    []*control.Definition
	numbers map[string]map[int]int // minors
}

// Run does what the command line says and gives the exit code.
func Run(ctx context.Context, name string, args []string, o Options) int {
	t := &tool{Options: o, name: name, v84: strings.HasSuffix(name, "-84")}
	if node := o.Getenv("__DRBD_NODE__"); node != "" {
		t.Node.Node = node
	}
	t.c = control.NewClient(t.Node.AgentSocket(), "the agent ("+t.Node.AgentSocket()+")")
	defer t.c.Close()
	if strings.HasPrefix(name, "drbdsetup") {
		return t.setup(ctx, args)
	}
	return t.adm(ctx, args)
}

func (t *tool) errorf(format string, args ...any) {
	fmt.Fprintf(t.Stderr, format, args...)
}

// refuse says what an error of the agent is in DRBD's words, and gives the exit code.
func (t *tool) refuse(object string, err error) int {
	exit, text := compat.Refusal(object, err)
	if text != "" {
		t.errorf("%s", text)
	}
	return exit
}

// wrote gives the exit code after printing.
func (t *tool) wrote(err error) int {
	if err != nil {
		t.errorf("%s: write: %v\n", t.name, err)
		return compat.ExitTrouble
	}
	return 0
}

// load reads the node's files once.
func (t *tool) load() (*config.Set, error) {
	if t.set != nil || t.setErr != nil {
		return t.set, t.setErr
	}
	if t.NodeErr != nil {
		t.setErr = t.NodeErr
		return nil, t.setErr
	}
	set, err := config.LoadFor(t.Node.ResourcesDir, t.Node.Node)
	if set == nil {
		t.setErr = err
		return nil, err
	}
	for _, e := range config.Errors(err) { // one broken file does not hide the others
		t.errorf("%v\n", e)
	}
	t.set = set
	for _, r := range set.On(t.Node.Node) {
		if def, err := r.Definition(t.Node.Node); err == nil {
			t.defs = append(t.defs, &def)
		}
	}
	t.numbers = compat.Minors(t.defs)
	return set, nil
}

// definition is the node's part of a resource, nil: no file has it.
func (t *tool) definition(name string) *control.Definition {
	if _, err := t.load(); err != nil {
		return nil
	}
	for _, d := range t.defs {
		if d.Name == name {
			return d
		}
	}
	return nil
}

// minor gives the minor of a volume.
func (t *tool) minor(name string, volume int) int {
	if t.definition(name) == nil {
		return 0
	}
	return t.numbers[name][volume]
}

// byMinor finds the volume that has a minor.
func (t *tool) byMinor(minor int) (name string, volume int, ok bool) {
	if _, err := t.load(); err != nil {
		return "", 0, false
	}
	for _, d := range t.defs {
		for _, v := range d.Volumes {
			if t.numbers[d.Name][v.Number] == minor {
				return d.Name, v.Number, true
			}
		}
	}
	return "", 0, false
}

// device is the path under which people know a volume.
func (t *tool) device(def *control.Definition, v *control.VolumeDef) string {
	if v.DevLink != "" {
		return v.DevLink
	}
	dir := "/dev/hawser"
	if t.Node.RunDir != config.DefaultNode().RunDir { // agents that share a machine keep theirs apart
		dir = filepath.Join(t.Node.RunDir, "dev")
	}
	return fmt.Sprintf("%s/%s/%d", dir, def.Name, v.Number)
}

// byDevice finds the volume that is called by a path, /dev/drbdN, drbdN or minor-N.
func (t *tool) byDevice(arg string) (name string, volume int, ok bool) {
	if _, err := t.load(); err != nil {
		return "", 0, false
	}
	for _, d := range t.defs {
		for i := range d.Volumes {
			if arg == t.device(d, &d.Volumes[i]) || arg == fmt.Sprintf("/dev/drbd/by-res/%s/%d", d.Name, d.Volumes[i].Number) {
				return d.Name, d.Volumes[i].Number, true
			}
		}
	}
	text := arg
	for _, prefix := range []string{"minor-", "/dev/drbd", "drbd"} {
		if rest, cut := strings.CutPrefix(arg, prefix); cut {
			text = rest
		}
	}
	n, ok := number(text)
	if !ok {
		return "", 0, false
	}
	return t.byMinor(n)
}

func number(text string) (int, bool) {
	if text == "" || len(text) > 9 {
		return 0, false
	}
	n := 0
	for _, c := range []byte(text) {
		if c < '0' || c > '9' {
			return 0, false
		}
		n = 10*n + int(c-'0')
	}
	return n, true
}

// all asks what is up on this node; name "" is everything. While the agent does not run the replicators, which go on
// without it, are asked themselves: nobody may take a restart of the agent for the end of a resource.
func (t *tool) all(ctx context.Context, name string) ([]compat.Resource, error) {
	var st nodeStatus
	err := t.c.Get(ctx, "status", nil, &st)
	if errors.Is(err, control.NotRunning) {
		return t.replicators(ctx, name)
	}
	if err != nil {
		return nil, err
	}
	var out []compat.Resource
	for _, r := range st.Resources {
		if r.Status == nil || name != "" && r.Name != name {
			continue
		}
		out = append(out, compat.Of(r.Status, t.definition(r.Name), t.numbers[r.Name], t.Now()))
	}
	return out, nil
}

func (t *tool) replicators(ctx context.Context, name string) ([]compat.Resource, error) {
	if _, err := t.load(); err != nil {
		return nil, control.Errorf(control.BadDefinition, "%w", err)
	}
	var out []compat.Resource
	for _, d := range t.defs {
		sock := t.Node.ReplicatorSocket(d.Name)
		if _, served := control.Served(sock); !served || name != "" && d.Name != name {
			continue
		}
		c := control.NewClient(sock, "replicator "+d.Name)
		st, err := c.Status(ctx)
		c.Close()
		if err != nil {
			return nil, err
		}
		out = append(out, compat.Of(st, d, t.numbers[d.Name], t.Now()))
	}
	return out, nil
}

// nodeStatus is what the agent tells of the node, as far as it matters here.
type nodeStatus struct {
	Resources []struct {
		Name   string          `json:"name"`
		Status *control.Status `json:"status"`
	} `json:"resources"`
}

// up gives a resource that is up, nil: it is not.
func (t *tool) up(ctx context.Context, name string) (*compat.Resource, error) {
	rs, err := t.all(ctx, name)
	if err != nil || len(rs) == 0 {
		return nil, err
	}
	return &rs[0], nil
}

func (t *tool) sub(name string) *control.Client { return t.c.Sub("resources/" + name) }

// peerName is the name of a peer, "" for none.
func (t *tool) peerName(name string, id int) string {
	if d := t.definition(name); d != nil {
		for _, p := range d.Peers {
			if p.NodeID == id {
				return p.Name
			}
		}
	}
	return ""
}
