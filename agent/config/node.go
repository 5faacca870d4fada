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
	Node         string  `mapstructure:"node"`          // its name in the resource files
	Cluster      string  `mapstructure:"cluster"`       // part of every etcd key
	Coordination string  `mapstructure:"coordination"`  // etcd, or none: Pacemaker decides
	RunDir       string  `mapstructure:"run-dir"`       // sockets
	StateDir     string  `mapstructure:"state-dir"`     // what must survive a reboot: terms, undo logs
	ResourcesDir string  `mapstructure:"resources-dir"` // resource files
	API          Listen  `mapstructure:"api"`           // the API over TCP; its Unix socket is always there
	Metrics      Listen  `mapstructure:"metrics"`       // Prometheus
	Etcd         Etcd    `mapstructure:"etcd"`
	Lease        Lease   `mapstructure:"lease"`
	Log          Log     `mapstructure:"log"`
	Timeout      Timeout `mapstructure:"timeout"`
}

// Listen is a TCP listener. TLS is on when the three files are named.
type Listen struct {
	Listen  string `mapstructure:"listen"` // IP:port; "" is none
	TLSCert string `mapstructure:"tls-cert"`
	TLSKey  string `mapstructure:"tls-key"`
	TLSCA   string `mapstructure:"tls-ca"` // clients must show a certificate of this CA
}

// Etcd says how to reach the cluster's etcd.
type Etcd struct {
	Endpoints []string `mapstructure:"endpoints"` // URLs
	TLSCert   string   `mapstructure:"tls-cert"`
	TLSKey    string   `mapstructure:"tls-key"`
	TLSCA     string   `mapstructure:"tls-ca"`
	Username  string   `mapstructure:"username"`
	Password  string   `mapstructure:"password"`
}

// Lease is the timing of leases in etcd. How long a failover takes is about TTL.
type Lease struct {
	TTL        time.Duration `mapstructure:"ttl"`         // etcd drops the key after this; whole seconds
	RenewEvery time.Duration `mapstructure:"renew-every"` // from send to send
	RPCTimeout time.Duration `mapstructure:"rpc-timeout"` // for one attempt
	Margin     time.Duration `mapstructure:"margin"`      // a holder stops that long before the lease ends
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
		Cluster:      "default",
		Coordination: none,
		RunDir:       "/run/hawser",
		StateDir:     "/var/lib/hawser",
		ResourcesDir: "/etc/hawser/resources.d",
		Lease:        Lease{TTL: 10 * time.Second, RenewEvery: 2 * time.Second, RPCTimeout: 2 * time.Second, Margin: time.Second},
		Log:          Log{Level: "info", Format: "text"},
		Timeout:      Timeout{Handler: time.Minute, Down: 30 * time.Second},
	}
}

// AgentSocket is the path of the agent's API.
func (n NodeConfig) AgentSocket() string { return filepath.Join(n.RunDir, "agent.sock") }

// ReplicatorSocket is the path of the API of a resource's replicator.
func (n NodeConfig) ReplicatorSocket(resource string) string {
	return filepath.Join(n.RunDir, "replicator", resource+".sock")
}

// LoadNode reads file, then HAWSER_* from the environment (HAWSER_RUN_DIR,
// HAWSER_LEASE_TTL), then those of flags that were set (--run-dir, --lease-ttl);
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
			if !slices.Contains(keys, at) {
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
	if why := CheckName(n.Node); why != "" {
		c.add("node", why, nameHint)
	}
	if why := CheckName(n.Cluster); why != "" {
		c.add("cluster", why, nameHint)
	}
	for _, d := range []struct{ key, dir string }{{"run-dir", n.RunDir}, {"state-dir", n.StateDir}, {"resources-dir", n.ResourcesDir}} {
		if why := checkPath(d.dir); why != "" {
			c.add(d.key, why, "")
		}
	}
	oneOf := func(key, value string, of ...string) {
		if !slices.Contains(of, value) {
			c.add(key, fmt.Sprintf("%q is none of %s", value, strings.Join(of, ", ")), "")
		}
	}
	oneOf("coordination", n.Coordination, none, "etcd")
	oneOf("log.level", n.Log.Level, "debug", "info", "warn", "error")
	oneOf("log.format", n.Log.Format, "text", "json")
	n.API.check(c, "api")
	n.Metrics.check(c, "metrics")
	if n.API.Listen != "" && n.API.Listen == n.Metrics.Listen {
		c.add("metrics.listen", n.Metrics.Listen+" is the address of the API too", "give it a port of its own")
	}
	if n.API.Listen != "" && n.API.TLSCA == "" && !loopback(n.API.Listen) {
		c.add("api.listen", n.API.Listen+" lets anybody on the network give commands", "set tls-cert, tls-key and tls-ca, or listen on 127.0.0.1")
	}
	if n.Coordination == "etcd" {
		n.Etcd.check(c)
		n.Lease.check(c)
	}
	for _, t := range []struct {
		key string
		d   time.Duration
	}{{"timeout.handler", n.Timeout.Handler}, {"timeout.down", n.Timeout.Down}} {
		if t.d < time.Second {
			c.add(t.key, fmt.Sprintf("%s is less than a second", t.d), "")
		}
	}
}

func loopback(listen string) bool {
	a, why := parseAddress(listen, true)
	return why == "" && a.Addr().IsLoopback()
}

// threeFiles complains unless all of TLS is named, or nothing.
func threeFiles(c *complaints, key, cert, private, ca string) {
	set := 0
	for _, f := range []struct{ name, path string }{{"tls-cert", cert}, {"tls-key", private}, {"tls-ca", ca}} {
		if f.path == "" {
			continue
		}
		set++
		if why := checkPath(f.path); why != "" {
			c.add(step(key, f.name), why, "")
		}
	}
	if set != 0 && set != 3 {
		c.add(key, "TLS needs tls-cert, tls-key and tls-ca", "")
	}
}

func (l Listen) check(c *complaints, key string) {
	if l.Listen != "" {
		if _, why := parseAddress(l.Listen, true); why != "" {
			c.add(key+".listen", why, "")
		}
	}
	threeFiles(c, key, l.TLSCert, l.TLSKey, l.TLSCA)
}

func (e Etcd) check(c *complaints) {
	if len(e.Endpoints) == 0 {
		c.add("etcd.endpoints", "coordination etcd needs endpoints", "endpoints: [http://127.0.0.1:2379]")
	}
	for _, u := range e.Endpoints {
		if !strings.HasPrefix(u, "http://") && !strings.HasPrefix(u, "https://") {
			c.add("etcd.endpoints", fmt.Sprintf("%q is no URL", u), "http://IP:2379")
		}
	}
	if e.TLSCA != "" && e.TLSCert == "" && e.TLSKey == "" {
		return // the server proves itself, the client by password or not at all
	}
	threeFiles(c, "etcd", e.TLSCert, e.TLSKey, e.TLSCA)
}

func (l Lease) check(c *complaints) {
	if l.TTL < 2*time.Second || l.TTL%time.Second != 0 {
		c.add("lease.ttl", fmt.Sprintf("%s is not a whole number of seconds from 2 on", l.TTL), "")
	}
	for _, d := range []struct {
		key string
		d   time.Duration
	}{{"renew-every", l.RenewEvery}, {"rpc-timeout", l.RPCTimeout}, {"margin", l.Margin}} {
		if d.d <= 0 {
			c.add("lease."+d.key, fmt.Sprintf("%s is not above 0", d.d), "")
		}
	}
	// Two attempts must fit before the holder has to stop.
	if need := l.RenewEvery + 2*l.RPCTimeout + l.Margin; need > l.TTL {
		c.add("lease", fmt.Sprintf("renew-every + 2*rpc-timeout + margin = %s exceeds ttl = %s", need, l.TTL), "raise ttl, or lower one of them")
	}
}
