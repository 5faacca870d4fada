package etcd_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/hawser-ha/hawser/agent/coord"
	"github.com/hawser-ha/hawser/agent/etcd"
	"github.com/hawser-ha/hawser/agent/etcdmember"
	"github.com/hawser-ha/hawser/agent/etcdmember/membertest"
	"github.com/hawser-ha/hawser/replicator/control"
)

// proxy stands before a member.
type proxy struct {
	l      net.Listener
	target string
	wg     sync.WaitGroup

	mu    sync.Mutex // guards what follows
	mode  mode
	conns []net.Conn
}

type mode int

const (
	pass   mode = iota
	refuse      // connections are closed at once
	hole        // nothing gets through, nothing is closed: half-open
)

func newProxy(t *testing.T, target string) *proxy {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	u, err := url.Parse(target)
	if err != nil {
		t.Fatal(err)
	}
	p := &proxy{l: l, target: u.Host}
	p.wg.Go(p.serve)
	t.Cleanup(func() {
		l.Close()
		p.set(refuse)
		p.wg.Wait()
	})
	return p
}

func (p *proxy) url() string { return "http://" + p.l.Addr().String() }

func (p *proxy) set(m mode) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.mode = m
	if m == refuse {
		for _, c := range p.conns {
			c.Close()
		}
		p.conns = nil
	}
}

func (p *proxy) now() mode {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.mode
}

func (p *proxy) serve() {
	for {
		in, err := p.l.Accept()
		if err != nil {
			return
		}
		if p.now() == refuse {
			in.Close()
			continue
		}
		out, err := net.Dial("tcp", p.target)
		if err != nil {
			in.Close()
			continue
		}
		p.mu.Lock()
		p.conns = append(p.conns, in, out)
		p.mu.Unlock()
		p.wg.Go(func() { p.copy(in, out) })
		p.wg.Go(func() { p.copy(out, in) })
	}
}

// copy swallows what comes while there is a hole.
func (p *proxy) copy(to, from net.Conn) {
	defer to.Close()
	buf := make([]byte, 32<<10)
	for {
		n, err := from.Read(buf)
		if err != nil {
			return
		}
		if p.now() == hole {
			continue
		}
		if _, err := to.Write(buf[:n]); err != nil {
			return
		}
	}
}

// sickMember: each member in turn does not answer in some way; the lease stands, changes are made and seen.
func sickMember(t *testing.T, c *membertest.Cluster) {
	var proxies []*proxy
	var urls []string
	for _, ep := range c.Endpoints() {
		p := newProxy(t, ep)
		proxies, urls = append(proxies, p), append(urls, p.url())
	}
	a := startAgent(t, "sick", c.Client(func(cfg *etcd.Config) { cfg.Endpoints = urls }))
	id := a.Lease()
	n := 0
	for i, p := range proxies {
		for _, m := range []mode{hole, refuse} {
			if m == refuse && i > 0 { // it is the same for all
				continue
			}
			p.set(m)
			since := coord.BootTime()
			for a.State().Renewed < since+int64(800*time.Millisecond) { // two renewals
				n++
				text := fmt.Sprint(n)
				if err := a.PutStatus(within(t), "sick", []byte(text)); err != nil {
					t.Fatalf("member %d, fault %d: %v", i, m, err)
				}
				a.see(t, fmt.Sprintf("status %d, member %d, fault %d", n, i, m), func(v *coord.View) bool {
					s := v.Resource("sick").Status["sick"]
					return s != nil && string(s.Data) == text
				})
				if st := a.State(); st.Lease != id || st.Until <= coord.BootTime() {
					t.Fatalf("member %d, fault %d: %+v", i, m, st)
				}
			}
			p.set(pass)
		}
	}
}

func membersComeAndGo(t *testing.T, c *membertest.Cluster) {
	cl := c.Client(func(cfg *etcd.Config) { cfg.Endpoints = c.Endpoints()[:1]; cfg.RPCTimeout = 5 * time.Second })
	ctx := within(t)
	if err := cl.Refresh(ctx); err != nil {
		t.Fatal(err)
	}
	want := slices.Sorted(slices.Values(c.Endpoints()))
	if got := cl.Endpoints(); !slices.Equal(got, want) {
		t.Fatalf("endpoints %v, want %v", got, want)
	}
	fourth := membertest.Place(t, "n4")
	cfg := membertest.Config(t, []etcdmember.Place{fourth, c.Configs[0].Self, c.Configs[1].Self, c.Configs[2].Self}, 0, nil)
	if _, err := etcdmember.Start(ctx, cfg); !errors.Is(err, etcdmember.ErrNotMember) {
		t.Fatalf("a member that nobody added: %v", err)
	}
	added, err := cl.AddMember(ctx, []string{fourth.PeerURL})
	if err != nil {
		t.Fatal(err)
	}
	c.Configs = append(c.Configs, cfg)
	c.StartMember(3)
	c.Wait(3)
	if c.Member(3).ID() != added.ID {
		t.Errorf("member %x, %x was added", c.Member(3).ID(), added.ID)
	}
	eventually(t, "the new member is known", func() error {
		if err := cl.Refresh(ctx); err != nil {
			return err
		}
		if got := cl.Endpoints(); !slices.Contains(got, fourth.ClientURL) {
			return fmt.Errorf("endpoints %v", got)
		}
		return nil
	})
	list, err := cl.Status(ctx)
	if err != nil || len(list) != 4 {
		t.Fatal(list, err)
	}
	leaders := 0
	for _, m := range list {
		if m.Leader {
			leaders++
		}
		if !m.Healthy || m.DBSize == 0 || m.Version == "" {
			t.Errorf("%+v", m)
		}
	}
	if leaders != 1 {
		t.Errorf("%d leaders", leaders)
	}
	gone := c.Member(3).Ended()
	if err := cl.RemoveMember(ctx, added.ID); err != nil {
		t.Fatal(err)
	}
	if err := <-gone; err == nil {
		t.Error("a member that was removed goes on")
	}
	c.StopMember(3)
	c.Configs = c.Configs[:3]
	if err := cl.Refresh(ctx); err != nil {
		t.Fatal(err)
	}
	if got := cl.Endpoints(); !slices.Equal(got, want) {
		t.Errorf("endpoints %v, want %v", got, want)
	}
}

// minority: one member of three is left. It must not be believed, and is as soon as it has company.
func minority(t *testing.T, c *membertest.Cluster) {
	cl := c.Client(func(cfg *etcd.Config) { cfg.Endpoints = c.Endpoints()[:1] })
	a := startAgent(t, "minority", cl)
	c.StopMember(1)
	c.StopMember(2)
	eventually(t, "silence", func() error {
		if _, err := cl.Head(within(t)); err == nil {
			return errors.New("answered")
		}
		return nil
	})
	short, cancel := context.WithTimeout(t.Context(), 1500*time.Millisecond)
	defer cancel()
	if _, err := cl.Range(short, "/"); !errors.Is(err, coord.ErrUnavailable) {
		t.Errorf("read: %v", err)
	}
	if err := a.PutStatus(short, "r", []byte("1")); !errors.Is(err, coord.ErrUncertain) {
		t.Errorf("write: %v", err)
	}
	eventually(t, "end of the lease", func() error {
		if st := a.State(); st.Until > coord.BootTime() {
			return fmt.Errorf("%+v", st)
		}
		return nil
	})
	if st := a.State(); st.Err == nil {
		t.Errorf("%+v", st)
	}
	c.StartMember(1) // with its data
	c.Wait(1)
	eventually(t, "lease", func() error {
		if st := a.State(); st.Until <= coord.BootTime() || st.Err != nil {
			return fmt.Errorf("%+v %w", st, st.Err)
		}
		return nil
	})
	c.StartMember(2)
	c.Wait(2)
}

// TestEveryCode: whatever a member answers, a read without a good answer is silence and a transaction is uncertain, or it is a plain no.
func TestEveryCode(t *testing.T) {
	var code struct {
		sync.Mutex
		err error
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	srv := grpc.NewServer(grpc.UnknownServiceHandler(func(any, grpc.ServerStream) error {
		code.Lock()
		defer code.Unlock()
		return code.err
	}))
	done := make(chan error)
	go func() { done <- srv.Serve(l) }()
	t.Cleanup(func() {
		srv.Stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	cl, err := etcd.Open(etcd.Config{Endpoints: []string{"http://" + l.Addr().String()}, RPCTimeout: 300 * time.Millisecond, RefreshEvery: -1, Log: quiet})
	if err != nil {
		t.Fatal(err)
	}
	defer cl.Close()
	no := []codes.Code{codes.InvalidArgument, codes.PermissionDenied, codes.Unauthenticated, codes.Unimplemented}
	spellings := []error{
		status.Error(codes.Unavailable, "etcdserver: no leader"), status.Error(codes.Unavailable, "etcdserver: request timed out, possibly due to previous leader failure"),
		status.Error(codes.FailedPrecondition, "etcdserver: not leader"), status.Error(codes.ResourceExhausted, "etcdserver: too many requests"),
		status.Error(codes.Unavailable, "etcdserver: server stopped"), status.Error(codes.FailedPrecondition, "etcdserver: rpc not supported for learner"),
	}
	for c := codes.Canceled; c <= codes.Unauthenticated; c++ {
		spellings = append(spellings, status.Error(c, "some text"))
	}
	for _, e := range spellings {
		code.Lock()
		code.err = e
		code.Unlock()
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		read, change := coord.ErrUnavailable, coord.ErrUnavailable // a change is not sent before a read has shown that the cluster is ours
		if slices.Contains(no, status.Code(e)) {
			read, change = coord.ErrRefused, coord.ErrRefused
		}
		if _, err := cl.Range(ctx, "/"); !errors.Is(err, read) {
			t.Errorf("%v: read: %v", e, err)
		}
		if _, err := cl.Head(ctx); !errors.Is(err, read) {
			t.Errorf("%v: head: %v", e, err)
		}
		if _, err := cl.KeepAlive(ctx, 1); !errors.Is(err, read) {
			t.Errorf("%v: renewal: %v", e, err)
		}
		if _, err := cl.Txn(ctx, coord.Txn{Then: []coord.Op{{Key: "k"}}}); !errors.Is(err, change) {
			t.Errorf("%v: transaction: %v", e, err)
		}
		if w, err := cl.Watch(ctx, "/", 1); err == nil {
			next, stop := context.WithTimeout(ctx, 50*time.Millisecond)
			if ch, err := w.Next(next); err == nil {
				t.Errorf("%v: stream: %+v", e, ch)
			}
			stop()
			w.Close()
		}
		cancel()
	}
}

// TestNoAnswerToATransaction: it was sent, so it may have been done.
func TestNoAnswerToATransaction(t *testing.T) {
	c := membertest.Start(t, 1, nil)
	p := newProxy(t, c.Endpoints()[0])
	cl := c.Client(func(cfg *etcd.Config) { cfg.Endpoints = []string{p.url()}; cfg.RPCTimeout = 300 * time.Millisecond })
	txn := coord.Txn{Then: []coord.Op{{Key: "/k", Value: []byte("v")}}}
	if _, err := cl.Txn(within(t), txn); err != nil {
		t.Fatal(err)
	}
	for _, m := range []mode{hole, refuse} {
		p.set(m)
		if _, err := cl.Txn(within(t), txn); !errors.Is(err, coord.ErrUncertain) {
			t.Errorf("fault %d: %v", m, err)
		}
		if _, err := cl.Range(within(t), "/"); !errors.Is(err, coord.ErrUnavailable) || errors.Is(err, coord.ErrUncertain) {
			t.Errorf("fault %d: %v", m, err)
		}
	}
	p.set(pass)
	eventually(t, "back", func() error { _, err := cl.Head(within(t)); return err })
}

// TestSpace: the database is full; what is held stays held, and the documented way out works.
func TestSpace(t *testing.T) {
	c := membertest.Start(t, 1, func(cfg *etcdmember.Config) { cfg.QuotaMiB = 2 })
	cl := c.Client(func(cfg *etcd.Config) { cfg.RPCTimeout = 5 * time.Second })
	a := startAgent(t, "n1", cl)
	ctx := within(t)
	if _, err := a.CreateInSync(ctx, &coord.Resource{Name: "r0"}, []control.Member{member("n1")}, coord.Reason{}); err != nil {
		t.Fatal(err)
	}
	v, err := a.Snapshot(ctx)
	if err != nil {
		t.Fatal(err)
	}
	p, err := a.Promote(ctx, v.Resource("r0"), member("n1"), coord.Reason{})
	if err != nil {
		t.Fatal(err)
	}
	full := []byte(strings.Repeat("x", 200<<10))
	for err == nil {
		_, err = cl.Txn(ctx, coord.Txn{Then: []coord.Op{{Key: "/filler", Value: full}}})
	}
	if !errors.Is(err, coord.ErrRefused) || !strings.Contains(err.Error(), "space") {
		t.Fatalf("full: %v", err)
	}
	since := coord.BootTime()
	eventually(t, "renewals go on", func() error {
		if st := a.State(); st.Renewed <= since {
			return fmt.Errorf("%+v", st)
		}
		return nil
	})
	if err := a.PutStatus(ctx, "r0", []byte("1")); !errors.Is(err, coord.ErrRefused) {
		t.Errorf("a change: %v", err)
	}
	alarms, err := cl.Alarms(ctx)
	if err != nil || len(alarms) != 1 || alarms[0].Kind != "NOSPACE" {
		t.Fatalf("%+v %v", alarms, err)
	}
	if _, err := cl.Compact(ctx); err != nil {
		t.Fatal(err)
	}
	members, err := cl.Members(ctx)
	if err != nil {
		t.Fatal(err)
	}
	before, err := cl.Status(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if err := cl.Defragment(ctx, members[0], patience); err != nil {
		t.Fatal(err)
	}
	if after, err := cl.Status(ctx); err != nil || after[0].DBSize >= before[0].DBSize {
		t.Errorf("%+v, before %+v: %v", after, before, err)
	}
	if err := cl.Disarm(ctx); err != nil {
		t.Fatal(err)
	}
	if err := a.PutStatus(ctx, "r0", []byte("1")); err != nil {
		t.Errorf("after the way out: %v", err)
	}
	if v, err := a.Snapshot(ctx); err != nil || v.Resource("r0").Primary == nil || v.Resource("r0").Primary.Term != p.Term {
		t.Errorf("the term did not outlive it: %v", err)
	}
}

var _ io.Closer = (*etcd.Client)(nil)
