package fake_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hawser-ha/hawser/agent/coord"
	"github.com/hawser-ha/hawser/agent/coord/conformance"
	"github.com/hawser-ha/hawser/agent/coord/fake"
)

func TestConformance(t *testing.T) {
	s := fake.New(fake.Options{})
	t.Cleanup(s.Close)
	conformance.Run(t, conformance.Store{Client: func() coord.Backend { return s.Client("n") }, Compact: func(uint64) { s.Compact() }, TTL: 200 * time.Millisecond})
}

func TestFaultsComeFromTheSeed(t *testing.T) {
	life := func(seed uint64) string {
		now := int64(0)
		s := fake.New(fake.Options{Seed: seed, Clock: func() int64 { return now }})
		c := s.Client("n1")
		c.SetFaults(fake.Faults{LoseRequest: 0.2, LoseAnswer: 0.2, Late: 0.2})
		out := ""
		for i := range 40 {
			_, err := c.Txn(context.Background(), coord.Txn{Then: []coord.Op{{Key: fmt.Sprint("k", i)}}})
			out += fmt.Sprint(errors.Is(err, coord.ErrUncertain), " ")
		}
		s.Settle()
		return out + fmt.Sprint(s.Dump())
	}
	first := life(1)
	if life(1) != first {
		t.Error("one seed, two lives")
	}
	if life(2) == first {
		t.Error("two seeds, one life")
	}
}

func TestLeasesRunOutByTheGivenClock(t *testing.T) {
	now := int64(0)
	s := fake.New(fake.Options{Clock: func() int64 { return now }})
	c := s.Client("n1")
	id, _, err := c.Grant(context.Background(), time.Second)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Txn(context.Background(), coord.Txn{Then: []coord.Op{{Key: "k", Lease: id}}}); err != nil {
		t.Fatal(err)
	}
	now = int64(time.Second) - 1
	if s.Tick(); len(s.Dump()) != 1 {
		t.Error("gone too early")
	}
	now++
	if s.Tick(); len(s.Dump()) != 0 {
		t.Error("still there")
	}
}

func TestCutIsSilence(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := fake.New(fake.Options{})
		defer s.Close()
		c := s.Client("n1")
		c.Cut(true)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		start := time.Now()
		if _, err := c.Txn(ctx, coord.Txn{Then: []coord.Op{{Key: "k"}}}); !errors.Is(err, coord.ErrUncertain) || time.Since(start) != time.Second {
			t.Error(err, time.Since(start))
		}
		if len(s.Dump()) != 0 {
			t.Error("it was done")
		}
	})
}
