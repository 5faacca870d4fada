package check

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
)

// Replica is one copy of the volume.
type Replica struct {
	Name string
	io.ReaderAt
}

// Interval is a span of the history's time.
type Interval struct{ From, To int64 }

// Rules of a verdict.
type Rules struct {
	Size int64 // bytes of the volume
	// Identical asks that all replicas are equal in every byte: those that are in sync.
	Identical bool
	// FlushedOnly: only what was flushed after it was acknowledged, in the same session, or written with FUA, must be there. For
	// disks whose volatile cache was lost on all nodes.
	FlushedOnly bool
	// Lossy: what was acknowledged in these spans may be missing. For protocols A and B, within what was reported.
	Lossy []Interval
	// Lin is how many blocks are checked with porcupine; 0: 64, -1: none.
	Lin int
}

// Finding is one broken promise.
type Finding struct {
	Kind    string // lost, unissued, torn, differ, stale, order
	Replica string // "" for reads
	Block   int64
	Text    string
}

func (f Finding) String() string {
	where := ""
	if f.Replica != "" {
		where = f.Replica + ": "
	}
	return fmt.Sprintf("%s%s: block %d (offset %d): %s", where, f.Kind, f.Block, f.Block*BlockSize, f.Text)
}

// Verdict is what was found.
type Verdict struct {
	Blocks   int // that were written
	Acked    int // writes that must be there
	Unsure   int // writes without an answer
	ReadOps  int // reads that were checked
	Ordered  int // blocks checked with porcupine
	GaveUp   int // of those, how many took too long
	Findings []Finding
	Count    map[string]int // of all findings by kind; Findings holds the first of each kind
	final    map[int64]Value
}

const findingsMax = 8 // of a kind, kept with their text

func (v *Verdict) add(f Finding) {
	if v.Count[f.Kind]++; v.Count[f.Kind] <= findingsMax {
		v.Findings = append(v.Findings, f)
	}
}

// Err is nil for a clean verdict.
func (v *Verdict) Err() error {
	if len(v.Findings) == 0 {
		return nil
	}
	var b strings.Builder
	fmt.Fprintf(&b, "the checker finds broken promises: %v", v.Count)
	for _, f := range v.Findings {
		fmt.Fprintf(&b, "\n  %s", f)
	}
	return errors.New(b.String())
}

// String is one line.
func (v *Verdict) String() string {
	return fmt.Sprintf("%d blocks, %d acknowledged writes, %d of unknown outcome, %d reads, %d blocks ordered (%d gave up), findings %v",
		v.Blocks, v.Acked, v.Unsure, v.ReadOps, v.Ordered, v.GaveUp, v.Count)
}

// register is the history of one block.
type register struct {
	base   Value
	writes map[Value]*write
	list   []*write
	reads  []Op
	last   *write // the last that must be there: of the largest invocation
}

type write struct {
	Op
	must bool
}

// Verify reads all replicas and judges the history. The workload must have ended.
func Verify(ctx context.Context, h *History, replicas []Replica, rules Rules) (*Verdict, error) {
	if err := h.Flush(); err != nil {
		return nil, err
	}
	v := &Verdict{Count: map[string]int{}, final: map[int64]Value{}}
	regs := h.registers(v, rules)
	blocks := make([]int64, 0, len(regs))
	for b := range regs {
		blocks = append(blocks, b)
	}
	slices.Sort(blocks)
	end := h.now()
	if rules.Identical {
		if err := v.compare(ctx, replicas, rules.Size); err != nil {
			return nil, err
		}
	}
	buf := aligned(BlockSize)
	for _, r := range replicas {
		for _, b := range blocks {
			if _, err := r.ReadAt(buf, b*BlockSize); err != nil {
				return nil, fmt.Errorf("read block %d of %s: %w", b, r.Name, err)
			}
			v.judge(r.Name, b, regs[b], buf)
		}
	}
	if len(replicas) > 0 {
		for _, b := range blocks {
			if x, ok := v.final[b]; ok {
				regs[b].reads = append(regs[b].reads, Op{Kind: OpRead, Outcome: OK, Block: b, Value: x, Invoke: end, Return: end + 1})
			}
		}
	}
	if len(rules.Lossy) == 0 && !rules.FlushedOnly {
		for _, b := range blocks {
			v.stale(b, regs[b])
		}
		v.order(regs, blocks, rules.Lin)
	}
	return v, nil
}

// registers sorts the history by block.
func (h *History) registers(v *Verdict, rules Rules) map[int64]*register {
	h.mu.Lock()
	defer h.mu.Unlock()
	regs := map[int64]*register{}
	at := func(b int64) *register {
		r := regs[b]
		if r == nil {
			r = &register{base: h.base[b], writes: map[Value]*write{}}
			regs[b] = r
		}
		return r
	}
	for b := range h.base {
		at(b)
	}
	flushes := map[uint32][]Op{}
	for _, o := range h.ops {
		if o.Kind == OpFlush && o.Outcome == OK {
			flushes[o.Client] = append(flushes[o.Client], o)
		}
	}
	for _, o := range h.ops {
		switch o.Kind {
		case OpRead:
			if o.Outcome == OK {
				r := at(o.Block)
				r.reads = append(r.reads, o)
				v.ReadOps++
			}
		case OpWrite:
			r := at(o.Block)
			w := &write{Op: o, must: o.Outcome == OK}
			if w.must && rules.FlushedOnly && !o.FUA {
				w.must = slices.ContainsFunc(flushes[o.Client], func(f Op) bool { return f.Session == o.Session && f.Invoke >= o.Return })
			}
			if w.must && slices.ContainsFunc(rules.Lossy, func(i Interval) bool { return o.Return >= i.From && o.Return <= i.To }) {
				w.must = false
			}
			if w.must {
				v.Acked++
				if r.last == nil || o.Invoke > r.last.Invoke {
					r.last = w
				}
			}
			if o.Outcome != OK {
				v.Unsure++
			}
			r.writes[o.Value] = w
			r.list = append(r.list, w)
		}
	}
	v.Blocks = len(regs)
	return regs
}

// returned is when the write of that value was over, at the latest; ok says whether there is such a write.
func (r *register) returned(x Value) (at int64, ok bool) {
	if x == r.base {
		return -1, true
	}
	w := r.writes[x]
	if w == nil {
		return 0, false
	}
	return w.Return, true
}

// judge looks at a block of a replica.
func (v *Verdict) judge(replica string, b int64, r *register, data []byte) {
	x, err := Read(data, b*BlockSize)
	if err != nil {
		v.add(Finding{"torn", replica, b, err.Error()})
		return
	}
	at, ok := r.returned(x)
	if !ok {
		v.add(Finding{"unissued", replica, b, fmt.Sprintf("holds %s, which was never written there", x)})
		return
	}
	v.final[b] = x
	if r.last != nil && x != r.last.Value && at < r.last.Invoke {
		v.add(Finding{"lost", replica, b, fmt.Sprintf("holds %s, but %s was acknowledged later (from %.3f to %.3f s, FUA %t; its predecessor was over at %.3f s)",
			x, r.last.Value, seconds(r.last.Invoke), seconds(r.last.Return), r.last.FUA, seconds(at))})
	}
}

func seconds(t int64) float64 {
	if t == forever {
		return math.Inf(1)
	}
	return float64(t) / 1e9
}

// stale looks for reads that returned what was overwritten before they began.
func (v *Verdict) stale(b int64, r *register) {
	acked := make([]*write, 0, len(r.list))
	for _, w := range r.list {
		if w.Outcome == OK {
			acked = append(acked, w)
		}
	}
	slices.SortFunc(acked, func(a, b *write) int { return cmp.Compare(a.Return, b.Return) })
	latest := make([]*write, len(acked)) // of those up to i, the one invoked last
	for i, w := range acked {
		latest[i] = w
		if i > 0 && latest[i-1].Invoke > w.Invoke {
			latest[i] = latest[i-1]
		}
	}
	for _, o := range r.reads {
		if o.Value == tornValue {
			v.add(Finding{"torn", "", b, fmt.Sprintf("a read at %.3f s returned a mixture", seconds(o.Invoke))})
			continue
		}
		at, ok := r.returned(o.Value)
		if !ok {
			v.add(Finding{"unissued", "", b, fmt.Sprintf("a read returned %s, which was never written there", o.Value)})
			continue
		}
		n, _ := slices.BinarySearchFunc(acked, o.Invoke, func(w *write, t int64) int { return cmp.Compare(w.Return, t) })
		if n == 0 {
			continue
		}
		if w := latest[n-1]; w.Value != o.Value && at < w.Invoke {
			v.add(Finding{"stale", "", b, fmt.Sprintf("a read from %.3f to %.3f s returned %s, but %s was acknowledged at %.3f s",
				seconds(o.Invoke), seconds(o.Return), o.Value, w.Value, seconds(w.Return))})
		}
	}
}

// compare reads all of all replicas.
func (v *Verdict) compare(ctx context.Context, replicas []Replica, size int64) error {
	const chunk = 1 << 20
	if len(replicas) < 2 {
		return nil
	}
	a, b := aligned(chunk), aligned(chunk)
	for off := int64(0); off < size; off += chunk {
		if err := ctx.Err(); err != nil {
			return err
		}
		n := min(chunk, size-off)
		if _, err := replicas[0].ReadAt(a[:n], off); err != nil {
			return fmt.Errorf("read %s at %d: %w", replicas[0].Name, off, err)
		}
		for _, r := range replicas[1:] {
			if _, err := r.ReadAt(b[:n], off); err != nil {
				return fmt.Errorf("read %s at %d: %w", r.Name, off, err)
			}
			if bytes.Equal(a[:n], b[:n]) {
				continue
			}
			for i := int64(0); i < n; i += BlockSize {
				x, y := a[i:min(i+BlockSize, n)], b[i:min(i+BlockSize, n)]
				if !bytes.Equal(x, y) {
					v.add(Finding{"differ", replicas[0].Name + " and " + r.Name, (off + i) / BlockSize, describe(x, off+i) + " and " + describe(y, off+i)})
				}
			}
		}
	}
	return nil
}

func describe(b []byte, off int64) string {
	if len(b) < BlockSize {
		return "a short block"
	}
	v, err := Read(b, off)
	if err != nil {
		return err.Error()
	}
	return v.String()
}
