package replicator

import (
	"errors"
	"slices"
	"testing"

	"github.com/hawser-ha/hawser/replicator/control"
	"github.com/hawser-ha/hawser/replicator/export"
)

// awaitQuestion waits for an event about a question.
func awaitQuestion(t *testing.T, events <-chan control.Event, name string) *control.Question {
	t.Helper()
	ctx := ctxFor(t)
	for {
		select {
		case e, ok := <-events:
			if !ok {
				t.Fatalf("events ended before a question was %s", name)
			}
			if e.Kind == control.EventQuestion && e.Name == name {
				return e.Question
			}
		case <-ctx.Done():
			t.Fatalf("no question was %s", name)
		}
	}
}

// TestFencing: a Primary that lost its peer asks fence-peer, freezes, goes on, and unfences when the peer is in sync again.
func TestFencing(t *testing.T) {
	x := try(t, netOpts(func(n *control.NetOpts) { n.Fencing = "resource-and-stonith" }))
	events := x.a.Subscribe(ctxFor(t), control.FromStart)
	questions := x.a.Subscribe(ctxFor(t), control.FromStart)
	c := x.a.open(t)
	c.write(0, fill(1, 4096))
	x.part(t)
	id := awaitHandler(t, events, "fence-peer").Handler
	if id == 0 {
		t.Fatal("the handler's answer is not waited for")
	}
	x.a.until(t, "freeze", func(s *control.Status) bool { return slices.Contains(s.Suspended, "fencing") })
	if s := x.a.Status(); len(s.Questions) != 1 || s.Questions[0].Peer != "b" || s.Questions[0].Why == "" {
		t.Fatalf("questions: %+v", s.Questions)
	}
	before := x.a.Status().Volumes[0].GI.Current
	done := make(chan error, 1)
	go func() { done <- c.do(export.Write, 4096, fill(2, 4096), false) }()
	x.a.until(t, "waiting write", func(s *control.Status) bool { return s.Volumes[0].UpperPending > 0 })
	select {
	case err := <-done:
		t.Fatalf("a write was answered while nobody knew of the peer: %v", err)
	default:
	}
	if got := x.a.Status().Volumes[0].GI.Current; got != before {
		t.Fatalf("a new generation before the answer: %s", got)
	}
	must(t, x.a.HandlerResult(ctxFor(t), id, 4))
	must(t, <-done)
	if q := awaitQuestion(t, questions, "opened"); q.Peer != "b" {
		t.Fatalf("question: %+v", q)
	}
	awaitQuestion(t, questions, "closed")
	if s := x.a.Status(); len(s.Suspended) > 0 || s.Peers[0].Volumes[0].DiskState != "Outdated" || s.Volumes[0].GI.Current == before {
		t.Fatalf("after the answer: suspended %v, peer %s, generation %s", s.Suspended, s.Peers[0].Volumes[0].DiskState, s.Volumes[0].GI.Current)
	}
	if err := x.a.HandlerResult(ctxFor(t), id, 4); !errors.Is(err, control.NotFound) {
		t.Fatalf("the second answer: %v", err)
	}
	x.meet(t)
	x.synced(t)
	awaitHandler(t, events, "unfence-peer")
}
