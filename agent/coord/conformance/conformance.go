package conformance

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hawser-ha/hawser/agent/coord"
)

// Store is one under test.
type Store struct {
	Client  func() coord.Backend // another node's
	Compact func(rev uint64)
	TTL     time.Duration // the shortest lease that it gives
}

// Run runs everything. Each part has its own prefix.
func Run(t *testing.T, s Store) {
	for _, c := range []struct {
		name string
		run  func(*check)
	}{
		{"a transaction compares revisions", (*check).revisions},
		{"one condition that fails stops all", (*check).allOrNothing},
		{"a key twice is refused", (*check).twice},
		{"keys go with their lease", (*check).leases},
		{"a lease runs out unless it is renewed", (*check).expiry},
		{"a stream has every change once, those of a transaction together", (*check).watch},
		{"a stream from before the oldest change is refused", (*check).compaction},
		{"a read sees what was answered before", (*check).linearizable},
		{"of many who compare, one at a time wins", (*check).race},
		{"an answer older than one that was seen is not taken", (*check).stale},
		{"a call ends with its context", (*check).contexts},
	} {
		t.Run(c.name, func(t *testing.T) {
			prefix := "/conformance/" + strings.ReplaceAll(c.name, " ", "-") + "/"
			c.run(&check{T: t, s: s, b: s.Client(), other: s.Client(), prefix: prefix})
		})
	}
}

type check struct {
	*testing.T
	s        Store
	b, other coord.Backend
	prefix   string
}

func (c *check) ctx() context.Context {
	ctx, cancel := context.WithTimeout(c.Context(), 20*time.Second)
	c.Cleanup(cancel)
	return ctx
}

func (c *check) key(k string) string { return c.prefix + k }

func put(key, value string) coord.Op { return coord.Op{Key: key, Value: []byte(value)} }

func (c *check) txn(t coord.Txn) coord.Result {
	c.Helper()
	r, err := c.b.Txn(c.ctx(), t)
	if err != nil {
		c.Fatal(err)
	}
	return r
}

func (c *check) read(b coord.Backend) map[string]coord.KV {
	c.Helper()
	p, err := b.Range(c.ctx(), c.prefix)
	if err != nil {
		c.Fatal(err)
	}
	m := map[string]coord.KV{}
	for _, kv := range p.KVs {
		if p.Revision < kv.Mod {
			c.Errorf("a page of revision %d has key %s of %d", p.Revision, kv.Key, kv.Mod)
		}
		m[strings.TrimPrefix(kv.Key, c.prefix)] = kv
	}
	return m
}

func (c *check) revisions() {
	k := c.key("k")
	absent := []coord.Compare{{Key: k, What: coord.Mod}, {Key: k, What: coord.Create}, {Key: k, What: coord.Lease}}
	first := c.txn(coord.Txn{If: absent, Then: []coord.Op{put(k, "one")}, Read: []string{k}})
	if !first.Done || len(first.KVs) != 0 || first.Cluster == 0 || first.RaftTerm == 0 {
		c.Fatalf("first: %+v", first)
	}
	again := c.txn(coord.Txn{If: absent, Then: []coord.Op{put(k, "two")}, Read: []string{k, c.key("none")}})
	if again.Done || len(again.KVs) != 1 || string(again.KVs[0].Value) != "one" || again.KVs[0].Mod != first.Revision || again.KVs[0].Create != first.Revision {
		c.Fatalf("again: %+v, the first was at %d", again, first.Revision)
	}
	second := c.txn(coord.Txn{If: []coord.Compare{{Key: k, What: coord.Mod, Value: first.Revision}}, Then: []coord.Op{put(k, "two")}})
	if kv := c.read(c.b)["k"]; !second.Done || kv.Create != first.Revision || kv.Mod != second.Revision || second.Revision <= first.Revision || string(kv.Value) != "two" {
		c.Fatalf("second at %d: %+v", second.Revision, kv)
	}
	gone := c.txn(coord.Txn{If: []coord.Compare{{Key: k, What: coord.Create, Value: first.Revision}}, Then: []coord.Op{{Key: k, Delete: true}}})
	if m := c.read(c.b); !gone.Done || len(m) != 0 {
		c.Fatalf("deleted: %+v %v", gone, m)
	}
	third := c.txn(coord.Txn{If: absent, Then: []coord.Op{put(k, "three")}})
	if kv := c.read(c.b)["k"]; !third.Done || kv.Create != third.Revision || kv.Create <= first.Revision {
		c.Fatalf("a key that was absent has create revision %d, the first had %d", kv.Create, first.Revision)
	}
	if r := c.txn(coord.Txn{If: []coord.Compare{{Key: k, What: coord.Mod, Value: second.Revision}}, Then: []coord.Op{put(k, "late")}}); r.Done {
		c.Fatal("a revision that was passed came back")
	}
}

func (c *check) allOrNothing() {
	r := c.txn(coord.Txn{Then: []coord.Op{put(c.key("a"), "1"), put(c.key("b"), "1")}})
	m := c.read(c.b)
	if m["a"].Mod != r.Revision || m["b"].Mod != r.Revision {
		c.Fatalf("one transaction, two revisions: %v", m)
	}
	bad := c.txn(coord.Txn{
		If:   []coord.Compare{{Key: c.key("a"), What: coord.Mod, Value: r.Revision}, {Key: c.key("b"), What: coord.Mod, Value: r.Revision + 1}},
		Then: []coord.Op{put(c.key("a"), "2"), put(c.key("c"), "2"), {Key: c.key("b"), Delete: true}}})
	if m := c.read(c.b); bad.Done || len(m) != 2 || string(m["a"].Value) != "1" {
		c.Fatalf("%+v: %v", bad, m)
	}
}

func (c *check) twice() {
	_, err := c.b.Txn(c.ctx(), coord.Txn{Then: []coord.Op{put(c.key("a"), "1"), put(c.key("a"), "2")}})
	if !errors.Is(err, coord.ErrRefused) {
		c.Fatalf("%v", err)
	}
	if m := c.read(c.b); len(m) != 0 {
		c.Fatal(m)
	}
}

func (c *check) leases() {
	ctx := c.ctx()
	id, ttl, err := c.b.Grant(ctx, c.s.TTL)
	if err != nil || id == 0 || ttl < c.s.TTL {
		c.Fatal(id, ttl, err)
	}
	r := c.txn(coord.Txn{Then: []coord.Op{{Key: c.key("a"), Value: []byte("1"), Lease: id}, {Key: c.key("b"), Value: []byte("1"), Lease: id}, put(c.key("c"), "1")}})
	if kv := c.read(c.b)["a"]; kv.Lease != id {
		c.Fatalf("%+v", kv)
	}
	w, err := c.other.Watch(ctx, c.prefix, r.Revision)
	if err != nil {
		c.Fatal(err)
	}
	defer w.Close()
	if r := c.txn(coord.Txn{If: []coord.Compare{{Key: c.key("a"), What: coord.Lease, Value: uint64(id)}}}); !r.Done {
		c.Fatal("the lease of a key is not what it was put with")
	}
	if got, err := c.other.KeepAlive(ctx, id); err != nil || got != ttl {
		c.Fatal(got, err)
	}
	for range 2 { // that it is gone is no error
		if err := c.other.Revoke(ctx, id); err != nil {
			c.Fatal(err)
		}
	}
	gone := map[string]bool{}
	for len(gone) < 2 {
		ch, err := w.Next(ctx)
		if err != nil {
			c.Fatal(err)
		}
		for _, x := range ch.List {
			if !x.Deleted {
				c.Fatalf("%+v", x)
			}
			gone[strings.TrimPrefix(x.Key, c.prefix)] = true
		}
	}
	if m := c.read(c.b); len(m) != 1 || !gone["a"] || !gone["b"] {
		c.Fatal(m, gone)
	}
	if _, err := c.b.KeepAlive(ctx, id); !errors.Is(err, coord.ErrLeaseGone) {
		c.Errorf("renewed: %v", err)
	}
	if _, err := c.b.Txn(ctx, coord.Txn{Then: []coord.Op{{Key: c.key("a"), Lease: id}}}); !errors.Is(err, coord.ErrLeaseGone) {
		c.Errorf("put: %v", err)
	}
	if r := c.txn(coord.Txn{If: []coord.Compare{{Key: c.key("a"), What: coord.Lease, Value: uint64(id)}}}); r.Done {
		c.Error("an absent key has a lease")
	}
}

func (c *check) expiry() {
	ctx := c.ctx()
	id, ttl, err := c.b.Grant(ctx, c.s.TTL)
	if err != nil {
		c.Fatal(err)
	}
	r := c.txn(coord.Txn{Then: []coord.Op{{Key: c.key("a"), Lease: id}}})
	w, err := c.b.Watch(ctx, c.prefix, r.Revision)
	if err != nil {
		c.Fatal(err)
	}
	defer w.Close()
	time.Sleep(ttl / 2) // the lease's own clock: there is nothing to wait for
	sent := time.Now()
	if _, err := c.b.KeepAlive(ctx, id); err != nil {
		c.Fatal(err)
	}
	for {
		ch, err := w.Next(ctx)
		if err != nil {
			c.Fatal(err)
		}
		if len(ch.List) > 0 {
			if d := time.Since(sent); d < ttl || !ch.List[0].Deleted {
				c.Fatalf("gone %s after a renewal, before %s: %+v", d, ttl, ch.List)
			}
			return
		}
	}
}

func (c *check) watch() {
	ctx := c.ctx()
	r := c.txn(coord.Txn{Then: []coord.Op{put(c.key("before"), "0")}})
	for i := range 5 {
		c.txn(coord.Txn{Then: []coord.Op{put(c.key("a"), strconv.Itoa(i)), put(c.key("b"), strconv.Itoa(i)), put("/conformance/elsewhere", "x")}})
	}
	w, err := c.other.Watch(ctx, c.prefix, r.Revision)
	if err != nil {
		c.Fatal(err)
	}
	defer w.Close()
	last := c.txn(coord.Txn{Then: []coord.Op{{Key: c.key("a"), Delete: true}, put(c.key("b"), "5")}})
	var seen []string
	for pos := uint64(0); pos < last.Revision; {
		ch, err := w.Next(ctx)
		if err != nil {
			c.Fatal(err)
		}
		if len(ch.List)%2 != 0 {
			c.Errorf("half of a transaction: %+v", ch.List)
		}
		for _, x := range ch.List {
			if x.Mod < pos || x.Mod > ch.Revision {
				c.Errorf("out of order: %+v after %d, up to %d", x, pos, ch.Revision)
			}
			pos = x.Mod
			seen = append(seen, fmt.Sprint(strings.TrimPrefix(x.Key, c.prefix), string(x.Value), x.Deleted))
		}
	}
	const want = "a0false b0false a1false b1false a2false b2false a3false b3false a4false b4false atrue b5false"
	if got := strings.Join(seen, " "); got != want {
		c.Errorf("got  %s\nwant %s", got, want)
	}
	far := c.txn(coord.Txn{Then: []coord.Op{put("/conformance/elsewhere", "y")}})
	for pos := uint64(0); pos < far.Revision; { // nothing of ours changes, but the stream says how far it is when asked
		if err := w.Poke(ctx); err != nil {
			c.Fatal(err)
		}
		ch, err := w.Next(ctx)
		if err != nil || len(ch.List) != 0 {
			c.Fatal(ch, err)
		}
		pos = ch.Revision
	}
}

func (c *check) compaction() {
	first := c.txn(coord.Txn{Then: []coord.Op{put(c.key("a"), "1")}})
	var last coord.Result
	for range 3 {
		last = c.txn(coord.Txn{Then: []coord.Op{put(c.key("a"), "2")}})
	}
	c.s.Compact(last.Revision)
	ctx := c.ctx()
	w, err := c.b.Watch(ctx, c.prefix, first.Revision)
	if err == nil {
		defer w.Close()
		_, err = w.Next(ctx)
	}
	if !errors.Is(err, coord.ErrCompacted) {
		c.Fatalf("%v", err)
	}
	if m := c.read(c.b); string(m["a"].Value) != "2" {
		c.Fatal(m)
	}
}

func (c *check) linearizable() {
	for i := range 20 {
		b, other := c.b, c.other
		if i%2 == 1 {
			b, other = other, b
		}
		r, err := b.Txn(c.ctx(), coord.Txn{Then: []coord.Op{put(c.key("a"), strconv.Itoa(i))}})
		if err != nil {
			c.Fatal(err)
		}
		if m := c.read(other); string(m["a"].Value) != strconv.Itoa(i) {
			c.Fatalf("read %q after %d was answered", m["a"].Value, i)
		}
		if h, err := other.Head(c.ctx()); err != nil || h.Revision < r.Revision {
			c.Fatalf("%+v %v after revision %d", h, err, r.Revision)
		}
	}
}

func (c *check) race() {
	const each, many = 5, 4
	var wg sync.WaitGroup
	for i := range many {
		b := c.b
		if i%2 == 1 {
			b = c.other
		}
		wg.Go(func() {
			for n := 0; n < each; {
				p, err := b.Range(c.ctx(), c.prefix)
				if err != nil {
					c.Error(err)
					return
				}
				var mod uint64
				var v int
				for _, kv := range p.KVs {
					mod = kv.Mod
					if v, err = strconv.Atoi(string(kv.Value)); err != nil {
						c.Error(err)
					}
				}
				r, err := b.Txn(c.ctx(), coord.Txn{If: []coord.Compare{{Key: c.key("n"), What: coord.Mod, Value: mod}}, Then: []coord.Op{put(c.key("n"), strconv.Itoa(v+1))}})
				if err != nil {
					c.Error(err)
					return
				}
				if r.Done {
					n++
				}
			}
		})
	}
	wg.Wait()
	if m := c.read(c.b); string(m["n"].Value) != strconv.Itoa(each*many) {
		c.Errorf("%s additions counted, of %d", m["n"].Value, each*many)
	}
}

func (c *check) stale() {
	h, err := c.b.Head(c.ctx())
	if err != nil || c.b.Seen().Revision < h.Revision || c.b.Seen().RaftTerm != h.RaftTerm {
		c.Fatal(h, c.b.Seen(), err)
	}
	for name, ahead := range map[string]coord.Header{
		"revision":  {Cluster: h.Cluster, Revision: h.Revision + 1000, RaftTerm: h.RaftTerm},
		"raft term": {Cluster: h.Cluster, Revision: h.Revision, RaftTerm: h.RaftTerm + 7},
	} {
		b := c.s.Client()
		b.Expect(ahead)
		b.Expect(coord.Header{Cluster: h.Cluster, Revision: 1, RaftTerm: 1}) // never lower
		ctx, cancel := context.WithTimeout(c.Context(), 2*time.Second)
		if _, err := b.Range(ctx, c.prefix); !errors.Is(err, coord.ErrStale) {
			c.Errorf("%s: read: %v", name, err)
		}
		if _, err := b.Head(ctx); !errors.Is(err, coord.ErrStale) {
			c.Errorf("%s: head: %v", name, err)
		}
		cancel()
	}
	b := c.s.Client()
	b.Expect(coord.Header{Cluster: h.Cluster + 1, Revision: 1, RaftTerm: 1})
	ctx, cancel := context.WithTimeout(c.Context(), 2*time.Second)
	defer cancel()
	if _, err := b.Range(ctx, c.prefix); !errors.Is(err, coord.ErrStale) {
		c.Errorf("another cluster: %v", err)
	}
}

func (c *check) contexts() {
	w, err := c.b.Watch(c.ctx(), c.prefix, c.txn(coord.Txn{Then: []coord.Op{put(c.key("a"), "1")}}).Revision)
	if err != nil {
		c.Fatal(err)
	}
	defer w.Close()
	ctx, cancel := context.WithTimeout(c.Context(), 10*time.Millisecond)
	defer cancel()
	if ch, err := w.Next(ctx); !errors.Is(err, context.DeadlineExceeded) {
		c.Errorf("%+v, %v", ch, err)
	}
	if _, err := c.b.Range(ctx, c.prefix); err == nil {
		c.Error("a read was done after its context ended")
	}
}
