package check

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"math"
	"sync"
	"time"
)

// Kind of an operation.
type Kind byte

// Kinds.
const (
	OpRead  Kind = 'r'
	OpWrite Kind = 'w'
	OpFlush Kind = 'f'
)

// Outcome of an operation.
type Outcome byte

// Outcomes.
const (
	Pending Outcome = '-' // not over
	OK      Outcome = 'k'
	Failed  Outcome = 'e' // the server answered an error: it happened or not, but nothing happens after the answer
	Unknown Outcome = 'u' // lost with its connection: it happened or not, before the writer's next session
	Open    Outcome = 'o' // given up: it may happen at any later time
)

// forever is a return that has not come. Times are nanoseconds since the history began.
const forever = math.MaxInt64

// Op is one operation on one block. A request on several blocks is several operations with the same times.
type Op struct {
	Kind           Kind
	Outcome        Outcome
	FUA            bool
	Client         uint32
	Session        uint32 // of the client; a flush covers only writes of its own session
	Block          int64  // number; its offset is Block*BlockSize
	Value          Value  // what was written or read
	Invoke, Return int64
}

// History is what clients saw. Safe for concurrent use.
type History struct {
	mu       sync.Mutex
	began    time.Time
	ops      []Op
	base     map[int64]Value // what blocks held before
	clients  uint32
	seqs     map[uint32]uint64 // last sequence number of each client
	sessions map[uint32]uint32 // sessions of each client so far
	lost     map[uint32][]int  // operations of a client that wait for its next session
	out      *bufio.Writer     // the log; nil: none
	outErr   error
}

// NewHistory makes an empty history. log gets a line for every event; nil for none.
func NewHistory(log io.Writer) *History {
	h := &History{began: time.Now(), base: map[int64]Value{}, seqs: map[uint32]uint64{}, sessions: map[uint32]uint32{}, lost: map[uint32][]int{}}
	if log != nil {
		h.out = bufio.NewWriterSize(log, 1<<16)
	}
	return h
}

func (h *History) now() int64 { return int64(time.Since(h.began)) }

// Now is the time of the history, for Lossy.
func (h *History) Now() int64 { return h.now() }

func (h *History) print(format string, args ...any) {
	if h.out != nil && h.outErr == nil {
		_, h.outErr = fmt.Fprintf(h.out, format, args...)
	}
}

// Flush writes the log out.
func (h *History) Flush() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.out == nil {
		return nil
	}
	return errors.Join(h.outErr, h.out.Flush())
}

// client gives the number of a new client.
func (h *History) client() uint32 {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.clients++
	return h.clients
}

// next gives the value of a client's next write.
func (h *History) next(client uint32) Value {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.seqs[client]++
	return Value{Writer: client, Seq: h.seqs[client]}
}

// invoke notes the start of operations that are one request and gives the number of the first.
func (h *History) invoke(ops []Op) int {
	h.mu.Lock()
	defer h.mu.Unlock()
	first, now := len(h.ops), h.now()
	for i := range ops {
		o := ops[i]
		o.Invoke, o.Return, o.Outcome = now, forever, Pending
		h.append(o)
	}
	return first
}

func (h *History) append(o Op) {
	o.Session = h.sessions[o.Client]
	h.print("i %d %d %c %d %d %d %d %t\n", len(h.ops), o.Invoke, o.Kind, o.Client, o.Block, o.Value.Writer, o.Value.Seq, o.FUA)
	h.ops = append(h.ops, o)
}

// finish notes the end of n operations from first on. values are what a read found.
func (h *History) finish(first, n int, outcome Outcome, values []Value) {
	h.mu.Lock()
	defer h.mu.Unlock()
	now := h.now()
	for i := first; i < first+n; i++ {
		v := h.ops[i].Value
		if values != nil {
			v = values[i-first]
		}
		h.end(i, now, outcome, v)
	}
}

func (h *History) end(i int, now int64, outcome Outcome, v Value) {
	h.print("r %d %d %c %d %d\n", i, now, outcome, v.Writer, v.Seq)
	o := &h.ops[i]
	o.Outcome, o.Value = outcome, v
	switch outcome {
	case OK, Failed:
		o.Return = now
	case Unknown:
		h.lost[o.Client] = append(h.lost[o.Client], i)
	}
}

// session notes that a client has connected again.
func (h *History) session(client uint32) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.begin(client, h.now())
}

func (h *History) begin(client uint32, now int64) {
	h.print("n %d %d\n", client, now)
	h.sessions[client]++
	for _, i := range h.lost[client] {
		h.ops[i].Return = now
	}
	delete(h.lost, client)
}

// Rebase forgets the operations, of which the verdict accepted v, and goes on from the values found. No client may be running.
func (h *History) Rebase(v *Verdict) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.ops, h.lost = nil, map[uint32][]int{}
	for b, x := range v.final {
		h.base[b] = x
		h.print("b %d %d %d\n", b, x.Writer, x.Seq)
	}
}

// Ops gives a copy of the operations so far.
func (h *History) Ops() []Op {
	h.mu.Lock()
	defer h.mu.Unlock()
	return append([]Op(nil), h.ops...)
}

// LoadHistory reads a log. A torn last line is what a killed checker leaves, and ignored.
func LoadHistory(in io.Reader) (*History, error) {
	h := NewHistory(nil)
	s := bufio.NewScanner(in)
	for n := 1; s.Scan(); n++ {
		if err := h.line(s.Text()); err != nil {
			if !s.Scan() {
				break
			}
			return nil, fmt.Errorf("line %d: %w", n, err)
		}
	}
	latest := int64(0)
	for _, o := range h.ops {
		latest = max(latest, o.Invoke)
		if o.Return != forever {
			latest = max(latest, o.Return)
		}
	}
	h.began = time.Now().Add(-time.Duration(latest + 1)) // now is after all of it
	return h, s.Err()
}

func (h *History) line(text string) error {
	if text == "" {
		return errors.New("empty line")
	}
	var (
		o   Op
		i   int
		now int64
		x   Value
	)
	switch text[0] {
	case 'i':
		if _, err := fmt.Sscanf(text, "i %d %d %c %d %d %d %d %t", &i, &o.Invoke, &o.Kind, &o.Client, &o.Block, &o.Value.Writer, &o.Value.Seq, &o.FUA); err != nil {
			return err
		}
		if i != len(h.ops) {
			return fmt.Errorf("operation %d follows %d", i, len(h.ops)-1)
		}
		o.Return, o.Outcome, o.Session = forever, Pending, h.sessions[o.Client]
		h.clients = max(h.clients, o.Client)
		if o.Kind == OpWrite {
			h.seqs[o.Client] = max(h.seqs[o.Client], o.Value.Seq)
		}
		h.ops = append(h.ops, o)
	case 'r':
		var outcome Outcome
		if _, err := fmt.Sscanf(text, "r %d %d %c %d %d", &i, &now, &outcome, &x.Writer, &x.Seq); err != nil {
			return err
		}
		if i < 0 || i >= len(h.ops) {
			return fmt.Errorf("no operation %d", i)
		}
		h.end(i, now, outcome, x)
	case 'n':
		if _, err := fmt.Sscanf(text, "n %d %d", &o.Client, &now); err != nil {
			return err
		}
		h.begin(o.Client, now)
	case 'b':
		if _, err := fmt.Sscanf(text, "b %d %d %d", &o.Block, &x.Writer, &x.Seq); err != nil {
			return err
		}
		h.ops = nil
		h.base[o.Block] = x
	default:
		return fmt.Errorf("%q", text)
	}
	return nil
}

// Settle says that nothing of what was lost so far can happen any more: all old servers are gone or have let go, whether or
// not the clients came back.
func (h *History) Settle() {
	h.mu.Lock()
	defer h.mu.Unlock()
	now := h.now()
	for c := uint32(1); c <= h.clients; c++ {
		h.begin(c, now)
	}
}
