package etcdmember

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"go.etcd.io/etcd/client/pkg/v3/transport"
	"go.etcd.io/etcd/server/v3/embed"

	"github.com/hawser-ha/hawser/agent/config"
	"github.com/hawser-ha/hawser/agent/etcd"
	"github.com/hawser-ha/hawser/agent/etcdmember/pidfile"
)

const (
	askTimeout  = 2 * time.Second // for the others to say who is a member
	stopTimeout = 10 * time.Second
	folderMode  = 0o700
)

// Place is the address of a member.
type Place struct {
	Name               string
	PeerURL, ClientURL string
}

// Config of a member.
type Config struct {
	Self      Place
	Others    []Place // the other nodes that run a member
	Cluster   string
	DataDir   string
	ClientTLS config.TLSFiles
	PeerTLS   config.TLSFiles
	Heartbeat time.Duration
	Election  time.Duration
	QuotaMiB  int
	Asking    etcd.Config // how the others are asked: TLS, user; endpoints are those of Others
	NoFsync   bool        // tests: what it promises does not outlive the machine
	Log       *slog.Logger
}

// FromNode makes the Config of this node's member.
func FromNode(n config.NodeConfig, log *slog.Logger) (Config, error) {
	if !n.Etcd.Embedded {
		return Config{}, errors.New("etcd.embedded is not on in hawser.yaml: this node runs no member of etcd")
	}
	self, ok := n.ClusterNode(n.Node)
	if !ok || self.NoEtcd {
		return Config{}, fmt.Errorf("node %s runs no member of etcd: it is not under nodes: in hawser.yaml, or has no-etcd there", n.Node)
	}
	asking, err := etcd.FromNode(n, log)
	if err != nil {
		return Config{}, err
	}
	c := Config{Cluster: n.Cluster, DataDir: n.EtcdDataDir(), ClientTLS: n.Etcd.ClientTLS, PeerTLS: n.Etcd.PeerTLS, Heartbeat: n.Etcd.Heartbeat,
		Election: n.Etcd.Election, QuotaMiB: n.Etcd.QuotaMiB, Asking: asking, Log: log}
	for _, node := range n.EtcdNodes() {
		p := Place{node.Name, n.EtcdPeerURL(node), n.EtcdClientURL(node)}
		if node.Name == n.Node {
			c.Self = p
		} else {
			c.Others = append(c.Others, p)
		}
	}
	return c, nil
}

// Member is one that runs.
type Member struct {
	e      *embed.Etcd
	ending *atomic.Bool // what etcd logs from then on is no news
}

// Start starts a member. It may not have a leader yet: see Ready.
func Start(ctx context.Context, cfg Config) (*Member, error) {
	plan, err := decide(ctx, cfg)
	if err != nil {
		return nil, err
	}
	if plan.moveAside {
		to := cfg.DataDir + ".old-" + time.Now().UTC().Format("20060102T150405.000")
		cfg.Log.Warn("the data is that of a member that was removed: moved aside", "from", cfg.DataDir, "to", to)
		if err := os.Rename(cfg.DataDir, to); err != nil {
			return nil, err
		}
	}
	ending := new(atomic.Bool)
	ec, err := cfg.embed(plan, ending)
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(cfg.DataDir, folderMode); err != nil {
		return nil, err
	}
	if plan.id != 0 { // before it can have voted
		if err := writeMark(cfg.DataDir, plan.id); err != nil {
			return nil, err
		}
	}
	e, err := embed.StartEtcd(ec)
	if err != nil {
		return nil, fmt.Errorf("start the member of etcd: %w", err)
	}
	m := &Member{e: e, ending: ending}
	if err := errors.Join(writeMark(cfg.DataDir, uint64(e.Server.MemberID())), writeFormed(cfg.DataDir, cfg.Cluster)); err != nil {
		return nil, errors.Join(err, m.Stop())
	}
	return m, nil
}

// Ready is closed once the member has a leader.
func (m *Member) Ready() <-chan struct{} { return m.e.Server.ReadyNotify() }

// ID is that of the member in its cluster.
func (m *Member) ID() uint64 { return uint64(m.e.Server.MemberID()) }

// Ended gets why it ended by itself: it was removed, or cannot go on.
func (m *Member) Ended() <-chan error {
	c := make(chan error, 1)
	go func() { // ends with the member
		select {
		case err := <-m.e.Err():
			c <- err
		case <-m.e.Server.StopNotify():
			c <- errors.New("the member of etcd has stopped: it was removed from the cluster, or cannot go on (its log says why)")
		}
	}()
	return c
}

// Stop ends the member. It gives leadership to another one first.
func (m *Member) Stop() error {
	m.ending.Store(true)
	done := make(chan struct{})
	go func() { m.e.Close(); close(done) }() // waited for below
	select {
	case <-done:
		return nil
	case <-time.After(stopTimeout):
		return errors.New("the member of etcd does not stop")
	}
}

// Run is a member until ctx ends or it cannot go on. pidFile is locked meanwhile.
func Run(ctx context.Context, cfg Config, pidFile string) error {
	unlock, err := pidfile.Lock(pidFile)
	if err != nil {
		return err
	}
	defer unlock()
	m, err := Start(ctx, cfg)
	if err != nil {
		return err
	}
	cfg.Log.Info("etcd member started", "id", fmt.Sprintf("%x", m.ID()), "client-url", cfg.Self.ClientURL, "peer-url", cfg.Self.PeerURL)
	ready, ended := m.Ready(), m.Ended()
	for {
		select {
		case <-ready:
			cfg.Log.Info("etcd member has a leader")
			ready = nil
		case err := <-ended:
			return errors.Join(err, m.Stop())
		case <-ctx.Done():
			cfg.Log.Info("etcd member ends")
			return m.Stop()
		}
	}
}

func (c Config) embed(plan plan, ending *atomic.Bool) (*embed.Config, error) {
	e := embed.NewConfig()
	e.Name, e.Dir = c.Self.Name, c.DataDir
	peer, err := url.Parse(c.Self.PeerURL)
	if err != nil {
		return nil, err
	}
	client, err := url.Parse(c.Self.ClientURL)
	if err != nil {
		return nil, err
	}
	e.AdvertisePeerUrls, e.AdvertiseClientUrls = []url.URL{*peer}, []url.URL{*client}
	e.ListenPeerUrls, e.ListenClientUrls = []url.URL{listenURL(peer)}, []url.URL{listenURL(client)}
	e.ClientTLSInfo, e.PeerTLSInfo = tlsInfo(c.ClientTLS), tlsInfo(c.PeerTLS)
	e.TlsMinVersion = "TLS1.2"
	e.InitialCluster, e.ClusterState = plan.initial, plan.state
	e.InitialClusterToken = "hawser-" + c.Cluster
	e.TickMs, e.ElectionMs = uint(c.Heartbeat.Milliseconds()), uint(c.Election.Milliseconds())
	e.QuotaBackendBytes = int64(c.QuotaMiB) << 20
	e.AutoCompactionMode, e.AutoCompactionRetention = "periodic", "10m"
	e.UnsafeNoFsync = c.NoFsync
	e.EnableGRPCGateway = false
	e.ZapLoggerBuilder = embed.NewZapLoggerBuilder(zapTo(c.Log, ending))
	return e, nil
}

// listenURL is where a member listens: its own address, or all of them if that is a name.
func listenURL(u *url.URL) url.URL {
	l := *u
	if strings.Trim(u.Hostname(), "0123456789.") != "" && !strings.Contains(u.Hostname(), ":") {
		l.Host = "0.0.0.0:" + u.Port()
	}
	return l
}

func tlsInfo(t config.TLSFiles) transport.TLSInfo {
	if !t.On() {
		return transport.TLSInfo{}
	}
	return transport.TLSInfo{TrustedCAFile: t.CA, CertFile: t.Cert, KeyFile: t.Key, ClientCertAuth: true}
}

// initial is the list of members in etcd's form.
func initial(places []Place) string {
	var list []string
	for _, p := range places {
		list = append(list, p.Name+"="+p.PeerURL)
	}
	slices.Sort(list)
	return strings.Join(list, ",")
}
