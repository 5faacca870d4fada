package config

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/spf13/pflag"
	"github.com/spf13/viper"
	"go.yaml.in/yaml/v3"
)

// DefaultNodeFile is where the settings of a node are.
const DefaultNodeFile = "/etc/hawser/hawser.yaml"

// NodeConfig is the settings of one node.
type NodeConfig struct {
	Node         string        `mapstructure:"node"`          // its name in the resource files
	RunDir       string        `mapstructure:"run-dir"`       // sockets
	StateDir     string        `mapstructure:"state-dir"`     // what must survive a reboot: terms, undo logs
	ResourcesDir string        `mapstructure:"resources-dir"` // resource files
	Log          Log           `mapstructure:"log"`
	Timeout      Timeout       `mapstructure:"timeout"`
	Cluster      string        `mapstructure:"cluster"` // its name in etcd
	Nodes        []ClusterNode `mapstructure:"nodes"`   // all of the cluster, the same list on each
	Etcd         Etcd          `mapstructure:"etcd"`
	Lease        Lease         `mapstructure:"lease"`
	Fencing      Fencing       `mapstructure:"fencing"`
	Watchdog     Watchdog      `mapstructure:"watchdog"`
	Listen       string        `mapstructure:"listen"` // IP:port of what load balancers and monitoring ask; "": nowhere
}

// Log says how the agent logs.
type Log struct {
	Level  string `mapstructure:"level"`  // debug, info, warn, error
	Format string `mapstructure:"format"` // text, json
}

// Timeout bounds what the agent waits for.
type Timeout struct {
	Handler time.Duration `mapstructure:"handler"` // a handler program is killed after this
	Down    time.Duration `mapstructure:"down"`    // a replicator that does not end is killed after this
}

// DefaultNode is what holds where nothing is said.
func DefaultNode() NodeConfig {
	name, err := os.Hostname()
	if err != nil {
		name = "" // Validate asks for it
	}
	return NodeConfig{
		Node:         name,
		RunDir:       "/run/hawser",
		StateDir:     "/var/lib/hawser",
		ResourcesDir: "/etc/hawser/resources.d",
		Log:          Log{Level: "info", Format: "text"},
		Timeout:      Timeout{Handler: time.Minute, Down: 30 * time.Second},
		Cluster:      "hawser",
		Etcd:         defaultEtcd(),
		Lease:        defaultLease(),
		Fencing:      defaultFencing(),
		Watchdog:     defaultWatchdog(),
	}
}

// AgentSocket is the path of the agent's API.
func (n NodeConfig) AgentSocket() string { return filepath.Join(n.RunDir, "agent.sock") }

// ReplicatorSocket is the path of the API of a resource's replicator.
func (n NodeConfig) ReplicatorSocket(resource string) string {
	return filepath.Join(n.RunDir, "replicator", resource+".sock")
}

// LoadNode reads file, then HAWSER_* from the environment (HAWSER_RUN_DIR,
// HAWSER_LOG_LEVEL), then those of flags that were set (--run-dir, --log-level);
// the last one wins. flags may be nil. file "" is DefaultNodeFile, which need
// not exist. The error joins all complaints.
func LoadNode(file string, flags *pflag.FlagSet) (NodeConfig, error) {
	optional := file == ""
	if optional {
		file = DefaultNodeFile
	}
	v := viper.NewWithOptions(viper.EnvKeyReplacer(strings.NewReplacer(".", "_", "-", "_")))
	v.SetEnvPrefix("HAWSER")
	v.AutomaticEnv()
	keys := setDefaults(v, "", reflect.ValueOf(DefaultNode()))
	c := complaints{file: file, at: map[string]pos{}}
	data, err := os.ReadFile(file)
	switch {
	case optional && errors.Is(err, fs.ErrNotExist):
	case err != nil:
		return NodeConfig{}, err
	default:
		c.nodeKeys(data, keys)
		if len(c.list) > 0 {
			return NodeConfig{}, c.err()
		}
		v.SetConfigType("yaml")
		if err := v.ReadConfig(strings.NewReader(string(data))); err != nil {
			return NodeConfig{}, fmt.Errorf("%s: %w", file, err)
		}
	}
	if flags != nil {
		for _, k := range keys {
			if f := flags.Lookup(strings.ReplaceAll(k, ".", "-")); f != nil {
				if err := v.BindPFlag(k, f); err != nil {
					return NodeConfig{}, err
				}
			}
		}
	}
	var n NodeConfig
	if err := v.UnmarshalExact(&n); err != nil {
		return NodeConfig{}, fmt.Errorf("%s: %w", file, err)
	}
	n.check(&c)
	return n, c.err()
}

// setDefaults makes every key known to viper, which otherwise does not look for
// it in the environment, and lists them.
func setDefaults(v *viper.Viper, prefix string, s reflect.Value) []string {
	var keys []string
	for i := range s.NumField() {
		key := step(prefix, s.Type().Field(i).Tag.Get("mapstructure"))
		if f := s.Field(i); f.Kind() == reflect.Struct {
			keys = append(keys, setDefaults(v, key, f)...)
		} else {
			v.SetDefault(key, f.Interface())
			keys = append(keys, key)
		}
	}
	return keys
}

// nodeKeys notes where each key of the file stands and complains about those
// that do not exist.
func (c *complaints) nodeKeys(data []byte, keys []string) {
	var doc yaml.Node
	if err := yaml.Unmarshal(data, &doc); err != nil {
		c.list = append(c.list, syntaxError(c.file, err))
		return
	}
	if len(doc.Content) == 0 {
		return
	}
	p := parser{*c}
	var walk func(n *yaml.Node, path string)
	walk = func(n *yaml.Node, path string) {
		var known []string
		for _, k := range keys {
			if rest, ok := strings.CutPrefix(k, strings.TrimPrefix(path+".", ".")); ok {
				first, _, _ := strings.Cut(rest, ".")
				if !slices.Contains(known, first) {
					known = append(known, first)
				}
			}
		}
		p.mapping(n, path, known, func(_, at string, v *yaml.Node) {
			if at == "nodes" {
				p.listKeys(v, at, reflect.TypeFor[ClusterNode]())
			} else if !slices.Contains(keys, at) {
				walk(v, at)
			}
		})
	}
	walk(doc.Content[0], "")
	*c = p.complaints
}

// Validate says everything that is wrong, joined.
func (n NodeConfig) Validate() error {
	var c complaints
	n.check(&c)
	return c.err()
}

func (n NodeConfig) check(c *complaints) {
	n.checkCluster(c)
	if why := CheckName(n.Node); why != "" {
		c.add("node", why, nameHint)
	}
	for _, d := range []struct{ key, dir string }{{"run-dir", n.RunDir}, {"state-dir", n.StateDir}, {"resources-dir", n.ResourcesDir}} {
		if why := checkPath(d.dir); why != "" {
			c.add(d.key, why, "")
		}
	}
	if n.Listen != "" {
		if _, why := parseAddress(n.Listen, true); why != "" {
			c.add("listen", why, "")
		}
	}
	oneOf := func(key, value string, of ...string) {
		if !slices.Contains(of, value) {
			c.add(key, fmt.Sprintf("%q is none of %s", value, strings.Join(of, ", ")), "")
		}
	}
	n.Fencing.check(c)
	n.Watchdog.check(c)
	n.checkTiming(c)
	oneOf("log.level", n.Log.Level, "debug", "info", "warn", "error")
	oneOf("log.format", n.Log.Format, "text", "json")
	for _, t := range []struct {
		key string
		d   time.Duration
	}{{"timeout.handler", n.Timeout.Handler}, {"timeout.down", n.Timeout.Down}} {
		if t.d < time.Second {
			c.add(t.key, fmt.Sprintf("%s is less than a second", t.d), "")
		}
	}
}
