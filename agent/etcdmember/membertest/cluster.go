// Package membertest runs clusters of etcd in the process of a test: real members that do not sync their files.
package membertest

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/hawser-ha/hawser/agent/etcd"
	"github.com/hawser-ha/hawser/agent/etcdmember"
)

const startTimeout = 60 * time.Second // a busy machine

// Cluster is one. The test ends it.
type Cluster struct {
	t       testing.TB
	Configs []etcdmember.Config
	members []*etcdmember.Member
}

// Start starts a cluster of n members and waits until it has a leader. tune may change a member's configuration.
func Start(t testing.TB, n int, tune func(*etcdmember.Config)) *Cluster {
	t.Helper()
	c := &Cluster{t: t, members: make([]*etcdmember.Member, n)}
	var places []etcdmember.Place
	for i := range n {
		places = append(places, Place(t, fmt.Sprintf("n%d", i+1)))
	}
	for i := range n {
		c.Configs = append(c.Configs, Config(t, places, i, tune))
	}
	t.Cleanup(c.stopAll)
	c.startAll()
	return c
}

// Place finds an address for a member.
func Place(t testing.TB, name string) etcdmember.Place {
	t.Helper()
	return etcdmember.Place{Name: name, PeerURL: "http://" + free(t), ClientURL: "http://" + free(t)}
}

// Config makes the configuration of one of them.
func Config(t testing.TB, places []etcdmember.Place, i int, tune func(*etcdmember.Config)) etcdmember.Config {
	t.Helper()
	cfg := etcdmember.Config{Self: places[i], Cluster: "test", DataDir: filepath.Join(dataDir(t), "etcd"), Heartbeat: 50 * time.Millisecond,
		Election: 500 * time.Millisecond, QuotaMiB: 64, NoFsync: true, Log: slog.New(slog.DiscardHandler)}
	for j, p := range places {
		if j != i {
			cfg.Others = append(cfg.Others, p)
		}
	}
	if tune != nil {
		tune(&cfg)
	}
	return cfg
}

func free(t testing.TB) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close() //nolint:errcheck // it was only asked for a port
	return l.Addr().String()
}

func (c *Cluster) startAll() {
	c.t.Helper()
	errs := make(chan error)
	for i := range c.Configs {
		go func() { errs <- c.start(i) }() // waited for below
	}
	for range c.Configs {
		if err := <-errs; err != nil {
			c.t.Fatal(err)
		}
	}
	for i := range c.members {
		c.Wait(i)
	}
}

func (c *Cluster) start(i int) error {
	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()
	m, err := etcdmember.Start(ctx, c.Configs[i])
	c.members[i] = m
	return err
}

// StartMember starts a member again, or one whose configuration was appended. Wait waits for its leader.
func (c *Cluster) StartMember(i int) {
	c.t.Helper()
	for len(c.members) < len(c.Configs) {
		c.members = append(c.members, nil)
	}
	if err := c.start(i); err != nil {
		c.t.Fatal(err)
	}
}

// Member is the one that runs there, nil: none.
func (c *Cluster) Member(i int) *etcdmember.Member { return c.members[i] }

// Wait waits until a member has a leader.
func (c *Cluster) Wait(i int) {
	c.t.Helper()
	select {
	case <-c.members[i].Ready():
	case <-time.After(startTimeout):
		c.t.Fatalf("member %d has no leader after %s", i, startTimeout)
	}
}

// StopMember stops a member.
func (c *Cluster) StopMember(i int) {
	c.t.Helper()
	if err := c.members[i].Stop(); err != nil {
		c.t.Error(err)
	}
	c.members[i] = nil
}

func (c *Cluster) stopAll() {
	done := make(chan struct{})
	n := 0
	for i, m := range c.members {
		if m != nil {
			n++
			go func() { c.StopMember(i); done <- struct{}{} }() // waited for below
		}
	}
	for range n {
		<-done
	}
}

// Endpoints are those of all members.
func (c *Cluster) Endpoints() []string {
	var list []string
	for _, cfg := range c.Configs {
		list = append(list, cfg.Self.ClientURL)
	}
	return list
}

// Client opens a client of all members, which the test closes. tune may change its configuration.
func (c *Cluster) Client(tune func(*etcd.Config)) *etcd.Client {
	c.t.Helper()
	cfg := etcd.Config{Endpoints: c.Endpoints(), RPCTimeout: time.Second, RefreshEvery: -1, Log: slog.New(slog.DiscardHandler)}
	if tune != nil {
		tune(&cfg)
	}
	cl, err := etcd.Open(cfg)
	if err != nil {
		c.t.Fatal(err)
	}
	c.t.Cleanup(func() {
		if err := cl.Close(); err != nil {
			c.t.Error(err)
		}
	})
	return cl
}

// dataDir is in memory where that is possible: a disk busy with other tests makes a member miss heartbeats. test/etcd has
// members on disks.
func dataDir(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("/dev/shm", "hawser-etcd-")
	if err != nil {
		return t.TempDir()
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}
