package etcd

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"slices"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"

	"github.com/hawser-ha/hawser/agent/coord"
)

const (
	defaultRPCTimeout   = 2 * time.Second
	defaultRefreshEvery = 30 * time.Second
	pingEvery           = 10 * time.Second // etcd closes connections that ping more often than each 5s
	reconnectMax        = time.Second
)

// Config of a Client.
type Config struct {
	Endpoints    []string // http://HOST:PORT or https://HOST:PORT
	TLS          *tls.Config
	User         string
	Password     func() (string, error) // reads it anew each time
	RPCTimeout   time.Duration          // of one attempt at one endpoint
	RefreshEvery time.Duration          // how often the members are asked for their endpoints; negative: never
	Log          *slog.Logger
}

// Client is etcd as this node reaches it: a coord.Backend. Close it.
type Client struct {
	cfg    Config
	log    *slog.Logger
	auth   *auth
	ctx    context.Context // ends with Close
	cancel context.CancelFunc
	wg     sync.WaitGroup

	mu     sync.Mutex // guards what follows
	eps    []*endpoint
	first  *endpoint // answered first the last time
	mark   coord.Watermark
	closed bool
}

// endpoint is one member, as far as we know.
type endpoint struct {
	url        string
	configured bool
	c          *clientv3.Client

	mu    sync.Mutex // guards known
	known bool       // it has shown that it is of our cluster
}

var errClosed = errors.New("the etcd client is closed")

// Open makes a client. It does not wait for an endpoint to answer.
func Open(cfg Config) (*Client, error) {
	if len(cfg.Endpoints) == 0 {
		return nil, errors.New("etcd: no endpoints")
	}
	if cfg.RPCTimeout <= 0 {
		cfg.RPCTimeout = defaultRPCTimeout
	}
	if cfg.RefreshEvery == 0 {
		cfg.RefreshEvery = defaultRefreshEvery
	}
	c := &Client{cfg: cfg, log: cfg.Log, auth: newAuth(cfg.User, cfg.Password)}
	c.ctx, c.cancel = context.WithCancel(context.Background())
	for _, u := range cfg.Endpoints {
		ep, err := c.dial(u)
		if err != nil {
			return nil, errors.Join(err, c.Close())
		}
		ep.configured = true
		c.eps = append(c.eps, ep)
	}
	if cfg.RefreshEvery > 0 {
		c.wg.Go(c.refresh)
	}
	return c, nil
}

func checkURL(text string) error {
	u, err := url.Parse(text)
	switch {
	case err != nil:
		return fmt.Errorf("etcd endpoint %q: %w", text, err)
	case u.Scheme != "http" && u.Scheme != "https":
		return fmt.Errorf("etcd endpoint %q: it begins neither with http:// nor with https://", text)
	case u.Host == "" || u.Port() == "":
		return fmt.Errorf("etcd endpoint %q: it needs HOST:PORT", text)
	}
	return nil
}

func (c *Client) dial(text string) (*endpoint, error) {
	if err := checkURL(text); err != nil {
		return nil, err
	}
	u, _ := url.Parse(text)
	var t *tls.Config
	if u.Scheme == "https" {
		if t = c.cfg.TLS; t == nil {
			t = &tls.Config{MinVersion: tls.VersionTLS12}
		}
	}
	cl, err := clientv3.New(clientv3.Config{
		Endpoints:            []string{text},
		TLS:                  t,
		DialKeepAliveTime:    pingEvery,
		DialKeepAliveTimeout: c.cfg.RPCTimeout,
		MaxUnaryRetries:      1, // we retry ourselves, elsewhere
		Context:              c.ctx,
		Logger:               zap.NewNop(),
		DialOptions: []grpc.DialOption{
			grpc.WithPerRPCCredentials(c.auth),
			grpc.WithConnectParams(grpc.ConnectParams{
				Backoff:           backoff.Config{BaseDelay: 100 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: reconnectMax},
				MinConnectTimeout: c.cfg.RPCTimeout,
			}),
		},
	})
	if err != nil {
		return nil, fmt.Errorf("etcd endpoint %s: %w", text, err)
	}
	return &endpoint{url: text, c: cl}, nil
}

// Close ends all calls and connections.
func (c *Client) Close() error {
	c.mu.Lock()
	c.closed = true
	eps := c.eps
	c.eps = nil
	c.mu.Unlock()
	c.cancel()
	c.wg.Wait()
	var all error
	for _, ep := range eps {
		if err := ep.c.Close(); err != nil && !errors.Is(err, context.Canceled) {
			all = errors.Join(all, fmt.Errorf("close the connection to %s: %w", ep.url, err))
		}
	}
	return all
}

// begin counts an attempt that Close waits for; false: it is closed.
func (c *Client) begin() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return false
	}
	c.wg.Add(1)
	return true
}

// Endpoints lists those that are in use.
func (c *Client) Endpoints() []string {
	var list []string
	for _, ep := range c.order() {
		list = append(list, ep.url)
	}
	slices.Sort(list)
	return list
}

// order gives the endpoints, the one that answered first the last time first.
func (c *Client) order() []*endpoint {
	c.mu.Lock()
	defer c.mu.Unlock()
	list := slices.Clone(c.eps)
	if i := slices.Index(list, c.first); i > 0 {
		list[0], list[i] = list[i], list[0]
	}
	return list
}

func (c *Client) answered(ep *endpoint) {
	c.mu.Lock()
	c.first = ep
	c.mu.Unlock()
}

// refresh asks the members for their endpoints, now and then.
func (c *Client) refresh() {
	wait := time.Duration(0) // the first time at once
	for {
		t := time.NewTimer(wait)
		select {
		case <-c.ctx.Done():
			t.Stop()
			return
		case <-t.C:
		}
		if err := c.Refresh(c.ctx); err != nil {
			c.log.Debug("etcd members are not known", "err", err)
		}
		wait = c.cfg.RefreshEvery
	}
}

// Refresh asks the members for their endpoints. Those of the configuration stay whatever they say.
func (c *Client) Refresh(ctx context.Context) error {
	members, err := c.Members(ctx)
	if err != nil {
		return err
	}
	scheme := "http"
	if u, err := url.Parse(c.cfg.Endpoints[0]); err == nil {
		scheme = u.Scheme
	}
	var want []string
	for _, m := range members {
		for _, text := range m.ClientURLs {
			if u, err := url.Parse(text); err == nil && u.Scheme == scheme && checkURL(text) == nil && !m.Learner {
				want = append(want, text)
			}
		}
	}
	c.mu.Lock()
	var gone []*endpoint
	have := map[string]bool{}
	c.eps = slices.DeleteFunc(c.eps, func(ep *endpoint) bool {
		if !ep.configured && !slices.Contains(want, ep.url) {
			gone = append(gone, ep)
			return true
		}
		have[ep.url] = true
		return false
	})
	c.mu.Unlock()
	for _, ep := range gone {
		c.log.Info("etcd endpoint is gone", "endpoint", ep.url)
		if err := ep.c.Close(); err != nil {
			c.log.Debug("connection not closed", "endpoint", ep.url, "err", err)
		}
	}
	for _, text := range want {
		if have[text] {
			continue
		}
		have[text] = true
		ep, err := c.dial(text)
		if err != nil {
			c.log.Warn("etcd endpoint not used", "err", err)
			continue
		}
		c.log.Info("etcd endpoint found", "endpoint", text)
		c.mu.Lock()
		if c.closed {
			c.mu.Unlock()
			return errors.Join(errClosed, ep.c.Close())
		}
		c.eps = append(c.eps, ep)
		c.mu.Unlock()
	}
	return nil
}

// Seen is the newest answer ever seen.
func (c *Client) Seen() coord.Header {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.mark.Seen()
}

// Expect has older answers ignored.
func (c *Client) Expect(h coord.Header) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.mark.Expect(h)
}

func (c *Client) admit(h, since coord.Header) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.mark.Admit(h, since)
}
