package config

import (
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"
)

// ClusterNode is a node of the cluster, also one that only votes: a witness.
type ClusterNode struct {
	Name    string `mapstructure:"name"`
	Address string `mapstructure:"address"` // IP or host name of its etcd member
	// ClientURL and PeerURL are where its etcd member is reached, when the ports of Etcd are not it.
	ClientURL string `mapstructure:"client-url"`
	PeerURL   string `mapstructure:"peer-url"`
	NoEtcd    bool   `mapstructure:"no-etcd"` // it runs no member
}

// Etcd says where the etcd cluster is, or that the nodes are it.
type Etcd struct {
	Endpoints    []string      `mapstructure:"endpoints"`     // of an external cluster
	User         string        `mapstructure:"user"`          // "": none
	PasswordFile string        `mapstructure:"password-file"` // read anew at each login
	ClientTLS    TLSFiles      `mapstructure:"client-tls"`    // of clients, and of the member's listener for them
	Embedded     bool          `mapstructure:"embedded"`      // the nodes run `hawser etcd`
	DataDir      string        `mapstructure:"data-dir"`      // of the member; "": STATEDIR/etcd
	PeerTLS      TLSFiles      `mapstructure:"peer-tls"`      // between members
	ClientPort   int           `mapstructure:"client-port"`
	PeerPort     int           `mapstructure:"peer-port"`
	Heartbeat    time.Duration `mapstructure:"heartbeat"`
	Election     time.Duration `mapstructure:"election"` // a leader that is silent for so long is replaced
	QuotaMiB     int           `mapstructure:"quota-mib"`
}

// TLSFiles are PEM files; all empty: no TLS.
type TLSFiles struct {
	CA   string `mapstructure:"ca"`
	Cert string `mapstructure:"cert"`
	Key  string `mapstructure:"key"`
}

// On tells whether there is TLS.
func (t TLSFiles) On() bool { return t != TLSFiles{} }

// Lease says how this node holds on to its place in etcd.
type Lease struct {
	TTL        time.Duration `mapstructure:"ttl"`         // etcd drops what the node holds after this; whole seconds
	RenewEvery time.Duration `mapstructure:"renew-every"` // from send to send
	RPCTimeout time.Duration `mapstructure:"rpc-timeout"` // of one attempt at one endpoint
	Margin     time.Duration `mapstructure:"margin"`      // what clocks may drift apart in a ttl
}

func defaultEtcd() Etcd {
	return Etcd{ClientPort: 2379, PeerPort: 2380, Heartbeat: 100 * time.Millisecond, Election: time.Second, QuotaMiB: 512}
}

func defaultLease() Lease {
	return Lease{TTL: 10 * time.Second, RenewEvery: 2 * time.Second, RPCTimeout: 2 * time.Second, Margin: time.Second}
}

// Coordinated tells whether this node has an etcd.
func (n NodeConfig) Coordinated() bool { return n.Etcd.Embedded || len(n.Etcd.Endpoints) > 0 }

// ClusterNode finds a node of the list.
func (n NodeConfig) ClusterNode(name string) (ClusterNode, bool) {
	i := slices.IndexFunc(n.Nodes, func(c ClusterNode) bool { return c.Name == name })
	if i < 0 {
		return ClusterNode{}, false
	}
	return n.Nodes[i], true
}

// EtcdEndpoints are where clients reach etcd; of an embedded one this node's member is the first.
func (n NodeConfig) EtcdEndpoints() []string {
	if !n.Etcd.Embedded {
		return n.Etcd.Endpoints
	}
	var list []string
	for _, c := range n.EtcdNodes() {
		if u := n.EtcdClientURL(c); c.Name == n.Node {
			list = slices.Insert(list, 0, u)
		} else {
			list = append(list, u)
		}
	}
	return list
}

// EtcdNodes are those that run a member.
func (n NodeConfig) EtcdNodes() []ClusterNode {
	return slices.DeleteFunc(slices.Clone(n.Nodes), func(c ClusterNode) bool { return c.NoEtcd })
}

// EtcdClientURL is where clients reach the member of a node.
func (n NodeConfig) EtcdClientURL(c ClusterNode) string {
	return memberURL(c.ClientURL, c.Address, n.Etcd.ClientPort, n.Etcd.ClientTLS.On())
}

// EtcdPeerURL is where other members reach the member of a node.
func (n NodeConfig) EtcdPeerURL(c ClusterNode) string {
	return memberURL(c.PeerURL, c.Address, n.Etcd.PeerPort, n.Etcd.PeerTLS.On())
}

func memberURL(text, host string, port int, tls bool) string {
	if text != "" {
		return text
	}
	scheme := "http"
	if tls {
		scheme = "https"
	}
	return scheme + "://" + net.JoinHostPort(host, strconv.Itoa(port))
}

// EtcdDataDir is where the member keeps its data.
func (n NodeConfig) EtcdDataDir() string {
	if n.Etcd.DataDir != "" {
		return n.Etcd.DataDir
	}
	return filepath.Join(n.StateDir, "etcd")
}

// EtcdPIDFile is locked by the member that runs.
func (n NodeConfig) EtcdPIDFile() string { return filepath.Join(n.RunDir, "etcd.pid") }

// SessionFile remembers the lease of the node.
func (n NodeConfig) SessionFile() string { return filepath.Join(n.RunDir, "session.json") }

func (n NodeConfig) checkCluster(c *complaints) {
	if why := CheckName(n.Cluster); why != "" {
		c.add("cluster", why, nameHint)
	}
	n.checkClusterNodes(c)
	n.checkEtcd(c)
	n.Lease.check(c)
}

func (n NodeConfig) checkClusterNodes(c *complaints) {
	names, urls := map[string]bool{}, map[string]string{}
	for i, node := range n.Nodes {
		at := fmt.Sprintf("nodes[%d]", i)
		if why := CheckName(node.Name); why != "" {
			c.add(at+".name", why, nameHint)
		}
		if names[node.Name] {
			c.add(at+".name", fmt.Sprintf("node %s is listed twice", node.Name), "")
		}
		names[node.Name] = true
		if node.Address != "" {
			if why := checkHost(node.Address); why != "" {
				c.add(at+".address", why, "an IP address or host name, without a port")
			}
		}
		for _, u := range []struct{ key, text string }{{"client-url", node.ClientURL}, {"peer-url", node.PeerURL}} {
			if u.text != "" {
				if why := checkEndpoint(u.text); why != "" {
					c.add(at+"."+u.key, why, "")
				}
			}
		}
		if !n.Etcd.Embedded || node.NoEtcd {
			continue
		}
		if node.Address == "" && (node.ClientURL == "" || node.PeerURL == "") {
			c.add(at, fmt.Sprintf("node %s has no address, and etcd.embedded needs it", node.Name), "add address:, or no-etcd: true for a node that runs no member")
			continue
		}
		for _, u := range []string{n.EtcdClientURL(node), n.EtcdPeerURL(node)} {
			if other := urls[u]; other != "" {
				c.add(at, fmt.Sprintf("%s is used by node %s too", u, other), "give each member its own client-url and peer-url")
			}
			urls[u] = node.Name
		}
	}
}

func (n NodeConfig) checkEtcd(c *complaints) {
	e := n.Etcd
	scheme := ""
	for i, text := range e.Endpoints {
		at := fmt.Sprintf("etcd.endpoints[%d]", i)
		why := checkEndpoint(text)
		if why != "" {
			c.add(at, why, "for example http://10.0.0.1:2379")
			continue
		}
		s, _, _ := strings.Cut(text, ":")
		if scheme != "" && s != scheme {
			c.add(at, fmt.Sprintf("%s and %s endpoints are mixed", scheme, s), "")
		}
		scheme = s
	}
	if e.Embedded {
		if len(e.Endpoints) > 0 {
			c.add("etcd.endpoints", "etcd.embedded makes them from the list of nodes", "leave one of the two out")
		}
		if len(n.EtcdNodes()) == 0 {
			c.add("etcd.embedded", "the list of nodes has none that runs a member", "list all nodes of the cluster under nodes:, the same list on each")
		}
	}
	if (e.User == "") != (e.PasswordFile == "") {
		c.add("etcd.user", "user and password-file go together", "")
	}
	for _, f := range []struct{ key, path string }{{"etcd.password-file", e.PasswordFile}, {"etcd.data-dir", e.DataDir}} {
		if f.path != "" {
			if why := checkPath(f.path); why != "" {
				c.add(f.key, why, "")
			}
		}
	}
	e.ClientTLS.check(c, "etcd.client-tls", e.Embedded)
	e.PeerTLS.check(c, "etcd.peer-tls", e.Embedded)
	for _, p := range []struct {
		key  string
		port int
	}{{"etcd.client-port", e.ClientPort}, {"etcd.peer-port", e.PeerPort}} {
		if p.port < 1 || p.port > 65535 {
			c.add(p.key, fmt.Sprintf("%d is not a port", p.port), "")
		}
	}
	if e.Heartbeat < 10*time.Millisecond || e.Heartbeat%time.Millisecond != 0 {
		c.add("etcd.heartbeat", fmt.Sprintf("%s is less than 10ms, or no whole number of ms", e.Heartbeat), "")
	}
	if e.Election < 5*e.Heartbeat || e.Election > 50*time.Second || e.Election%time.Millisecond != 0 {
		c.add("etcd.election", fmt.Sprintf("%s is less than 5 heartbeats, more than 50s, or no whole number of ms", e.Election), "ten heartbeats are usual")
	}
	if e.QuotaMiB < 16 || e.QuotaMiB > 8192 {
		c.add("etcd.quota-mib", fmt.Sprintf("%d is not within 16 to 8192", e.QuotaMiB), "")
	}
	if e.Embedded && n.Lease.TTL < 2*e.Election {
		c.add("lease.ttl", fmt.Sprintf("%s is less than two of etcd.election (%s): the change of a leader would cost leases", n.Lease.TTL, e.Election), "")
	}
}

// check: a client may do with the CA alone; a member needs a certificate.
func (t TLSFiles) check(c *complaints, at string, member bool) {
	for _, f := range []struct{ key, path string }{{".ca", t.CA}, {".cert", t.Cert}, {".key", t.Key}} {
		if f.path != "" {
			if why := checkPath(f.path); why != "" {
				c.add(at+f.key, why, "")
			}
		}
	}
	switch {
	case !t.On():
	case t.CA == "":
		c.add(at, "there is no ca", "the CA that signs the certificates of the members")
	case (t.Cert == "") != (t.Key == ""):
		c.add(at, "cert and key go together", "")
	case member && t.Cert == "":
		c.add(at, "a member needs cert and key", "")
	}
}

// check: two attempts must fit before anybody may doubt us.
func (l Lease) check(c *complaints) {
	for _, d := range []struct {
		key string
		d   time.Duration
		min time.Duration
	}{{"lease.ttl", l.TTL, 2 * time.Second}, {"lease.renew-every", l.RenewEvery, 100 * time.Millisecond}, {"lease.rpc-timeout", l.RPCTimeout, 100 * time.Millisecond},
		{"lease.margin", l.Margin, 100 * time.Millisecond}} {
		if d.d < d.min {
			c.add(d.key, fmt.Sprintf("%s is less than %s", d.d, d.min), "")
		}
	}
	if l.TTL%time.Second != 0 {
		c.add("lease.ttl", fmt.Sprintf("%s is no whole number of seconds", l.TTL), "etcd counts in seconds")
	}
	if need := l.RenewEvery + 2*l.RPCTimeout + l.Margin; need >= l.TTL {
		c.add("lease", fmt.Sprintf("renew-every + 2 * rpc-timeout + margin = %s is not less than ttl = %s", need, l.TTL),
			"two renewals must fail before the lease is in doubt: raise ttl, or lower the others")
	}
}

func checkEndpoint(text string) string {
	u, err := url.Parse(text)
	switch {
	case err != nil || !strings.Contains(text, "://"):
		return fmt.Sprintf("%q is not http://HOST:PORT or https://HOST:PORT", text)
	case u.Scheme != "http" && u.Scheme != "https":
		return fmt.Sprintf("%q begins neither with http:// nor with https://", text)
	case u.Hostname() == "" || u.Port() == "" || u.Path != "" && u.Path != "/" || u.User != nil || u.RawQuery != "":
		return fmt.Sprintf("%q is not http://HOST:PORT or https://HOST:PORT", text)
	}
	return ""
}

func checkHost(text string) string {
	if _, err := netip.ParseAddr(text); err == nil {
		return ""
	}
	if len(text) > 253 || strings.Trim(text, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-.") != "" || strings.HasPrefix(text, "-") {
		return fmt.Sprintf("%q is neither an IP address nor a host name", text)
	}
	return ""
}

// listKeys looks at the items of the lists of the file, which nodeKeys does not know.
func (p *parser) listKeys(n *yaml.Node, path string, item reflect.Type) {
	if n.Kind != yaml.SequenceNode {
		p.also(path, "it is not a list", "")
		return
	}
	var known []string
	for i := range item.NumField() {
		known = append(known, item.Field(i).Tag.Get("mapstructure"))
	}
	for i, v := range n.Content {
		p.at[fmt.Sprintf("%s[%d]", path, i)] = pos{v.Line, v.Column}
		p.mapping(v, fmt.Sprintf("%s[%d]", path, i), known, func(_, at string, _ *yaml.Node) {})
	}
}
