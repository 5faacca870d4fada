package control

import (
	"context"
	"sync"
	"time"
)

// Kinds of events.
const (
	EventStatus   = "status"   // Status holds everything: the first of a stream, and what follows EventLost
	EventState    = "state"    // Field changed From to To
	EventSync     = "sync"     // a resync or verify began, ended or moved on (Text: started, progress, done, aborted)
	EventNote     = "note"     // something worth telling: split brain detected, a digest mismatch, metadata damage
	EventQuestion = "question" // Question was opened, closed, or unanswered (Name); Text says why
	EventHandler  = "handler"  // run the user's handler Name; answer with HandlerResult(Handler)
	EventLost     = "lost"     // events before this one were dropped; a status follows
	EventDown     = "down"     // the resource is down; the stream ends
)

// Fields of an EventState.
const (
	FieldRole        = "role"
	FieldDisk        = "disk"
	FieldConnection  = "connection"
	FieldReplication = "replication"
	FieldPeerRole    = "peer-role"
	FieldPeerDisk    = "peer-disk"
	FieldSuspended   = "suspended"
	FieldSize        = "size"
	FieldDevice      = "device"
	FieldProtocol    = "protocol"
	FieldTerm        = "term"      // the highest seen
	FieldRight       = "right"     // by which a Primary serves I/O: none, unlimited, lease, failsafe
	FieldWaits       = "waits"     // of a peer: a write needs its acknowledgement (yes, no)
	FieldCandidate   = "candidate" // of a peer: it has everything and is not in the in-sync set (yes, no)
	FieldUnvouched   = "unvouched" // of a volume: VolumeStatus.Unvouched (yes, no)
)

// FromStart is the id before that of the first event in the life of a replicator: subscribing after it gives all that is kept.
const FromStart = 1

// Event is one thing that happened to a resource. IDs grow by one within the life of a replicator.
type Event struct {
	ID       uint64    `json:"id"`
	Time     time.Time `json:"time"`
	Resource string    `json:"resource"`
	Kind     string    `json:"kind"`
	Volume   int       `json:"volume"`          // -1: not about one volume
	Peer     string    `json:"peer,omitempty"`  // "": not about one peer
	Field    string    `json:"field,omitempty"` // of EventState
	From     string    `json:"from,omitempty"`
	To       string    `json:"to,omitempty"`
	Name     string    `json:"name,omitempty"`     // of EventHandler: split-brain, before-resync-target, ...; of EventNote: what it is about
	Handler  uint64    `json:"handler,omitempty"`  // id to answer with; 0: no answer is wanted
	Text     string    `json:"text,omitempty"`     // for people
	Question *Question `json:"question,omitempty"` // of EventQuestion
	Sync     *Progress `json:"sync,omitempty"`     // of EventSync
	Status   *Status   `json:"status,omitempty"`   // of EventStatus
}

// eventsKept is how many events a Hub remembers for subscribers that come back.
const eventsKept = 1024

// Hub hands events to any number of subscribers and remembers the last ones. Publish never blocks.
// The zero Hub is ready. Safe for concurrent use.
type Hub struct {
	mu     sync.Mutex
	count  uint64  // events so far; the last one has the id FromStart+count
	ring   []Event // the last eventsKept at least, up to that id
	change chan struct{}
	closed bool
}

// Publish gives e its id and time (if it has none) and hands it to the subscribers.
func (h *Hub) Publish(e Event) uint64 {
	if e.Time.IsZero() {
		e.Time = time.Now()
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed {
		return FromStart + h.count
	}
	h.count++
	e.ID = FromStart + h.count
	if len(h.ring) >= 2*eventsKept { // move only once in eventsKept times
		h.ring = append(h.ring[:0], h.ring[len(h.ring)-eventsKept+1:]...)
	}
	h.ring = append(h.ring, e)
	h.wake()
	return e.ID
}

// Last is the id of the newest event; FromStart: there was none.
func (h *Hub) Last() uint64 {
	h.mu.Lock()
	defer h.mu.Unlock()
	return FromStart + h.count
}

// Close ends every subscription once it has delivered what was published before.
func (h *Hub) Close() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.closed = true
	h.wake()
}

// wake wakes the subscribers; mu is held.
func (h *Hub) wake() {
	if h.change != nil {
		close(h.change)
		h.change = nil
	}
}

// since copies the events after that id. When some of them are gone it says so. wait is closed at the next change.
func (h *Hub) since(after uint64) (events []Event, lost, closed bool, wait <-chan struct{}) {
	h.mu.Lock()
	defer h.mu.Unlock()
	last := FromStart + h.count
	if after > last { // an id of another life
		after, lost = last, true
	}
	if before := last - uint64(len(h.ring)); after < before {
		after, lost = before, true
	}
	if n := last - after; n > 0 {
		events = append(events, h.ring[uint64(len(h.ring))-n:]...)
	}
	if h.change == nil {
		h.change = make(chan struct{})
	}
	return events, lost, h.closed, h.change
}

// Subscribe implements Resource.Subscribe. The goroutine behind the channel ends with ctx or after Close.
func (h *Hub) Subscribe(ctx context.Context, after uint64) <-chan Event {
	if after == 0 {
		after = h.Last()
	}
	out := make(chan Event)
	go func() {
		defer close(out)
		for {
			events, lost, closed, wait := h.since(after)
			if lost {
				e := Event{Kind: EventLost, Volume: All, Time: time.Now()}
				if len(events) > 0 {
					e.ID, e.Resource = events[0].ID-1, events[0].Resource
					after = e.ID
				} else {
					after = h.Last()
					e.ID = after
				}
				events = append([]Event{e}, events...)
			}
			for _, e := range events {
				select {
				case out <- e:
					after = e.ID
				case <-ctx.Done():
					return
				}
			}
			if closed {
				return
			}
			select {
			case <-wait:
			case <-ctx.Done():
				return
			}
		}
	}()
	return out
}
