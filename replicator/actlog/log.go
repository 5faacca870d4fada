package actlog

import "slices"

// MaxSlots returns the largest number of slots a ring of the given number of blocks can describe.
func MaxSlots(blocks int) int { return max(0, min(SlotsMax, (blocks-1)*ContextMax)) }

type state uint8

const (
	pending  state = iota // waits for a transaction, on the pending list
	inTx                  // in the prepared transaction, on no list
	active                // on disk; on the idle list while unreferenced
	doubtful              // unreferenced, its eviction was aborted: must be on disk again before use; on the idle list
)

// none is the index of no entry and of no slot.
const none = -1

type entry struct {
	extent     uint32
	slot       int32 // none while it has no slot
	refs       int32
	prev, next int32 // neighbours in the list it is on
	state      state
}

type list struct{ head, tail int32 }

// Log is the set of active extents in memory. It is not safe for concurrent use. Get and Put of active extents do not
// allocate.
type Log struct {
	slots   []uint32         // what the newest committed transaction left in every slot
	blocks  int              // of the ring
	free    []int32          // free slots, the next to use last
	entries []entry          // all known extents, by index
	unused  []int32          // unused entries
	index   map[uint32]int32 // extent -> entry
	queue   list             // pending entries, oldest first
	slotted int              // how many of them have a slot already
	held    int              // how many have references
	idle    list             // unreferenced entries with a slot, next to evict first
	number  uint32           // of the next transaction
	window  int              // where the next transaction's context starts

	open      bool     // a transaction is prepared
	txEntries []int32  // its new entries
	txDropped []entry  // what it evicts
	committed []uint32 // the result of the last Commit

	stats Stats
}

// Stats counts what a Log did since New.
type Stats struct {
	Hits         uint64 // Get found the extent active
	Misses       uint64 // Get found it not active
	Transactions uint64 // committed
	Evictions    uint64 // committed
}

// New returns an empty log for a ring that was just initialised. slots (the option al-extents) is brought into the range
// SlotsMin..MaxSlots(blocks), as a kernel does; blocks is the ring's number of 4 KiB blocks, stripes * stripe size.
func New(slots, blocks int) *Log {
	return newLog(min(max(slots, SlotsMin), MaxSlots(blocks)), blocks)
}

func newLog(slots, blocks int) *Log {
	l := &Log{txEntries: make([]int32, 0, UpdatesMax), committed: make([]uint32, 0, UpdatesMax)}
	l.init(slots, blocks)
	return l
}

func (l *Log) init(slots, blocks int) {
	l.blocks = blocks
	l.slots = make([]uint32, slots)
	l.free = make([]int32, slots)
	for i := range slots {
		l.slots[i] = free
		l.free[i] = int32(i) // the highest is used first
	}
	l.entries, l.unused = make([]entry, 0, slots+UpdatesMax), nil
	l.index = make(map[uint32]int32, slots+UpdatesMax)
	l.queue, l.idle = list{none, none}, list{none, none}
	l.slotted, l.window, l.held = 0, 0, 0
	l.open, l.txEntries, l.txDropped = false, l.txEntries[:0], l.txDropped[:0]
}

// Reset empties the log and changes its size, after the ring on disk was initialised again. No extent may be referenced.
// Transaction numbers go on.
func (l *Log) Reset(slots, blocks int) {
	for _, i := range l.index {
		if l.entries[i].refs > 0 {
			panic("actlog: reset with referenced extents")
		}
	}
	l.init(min(max(slots, SlotsMin), MaxSlots(blocks)), blocks)
}

// Slots returns the number of slots.
func (l *Log) Slots() int { return len(l.slots) }

// Stats returns the counters.
func (l *Log) Stats() Stats { return l.stats }

// Get takes a reference to the extent. True: the extent is active, its storage may be written to. False: it is pending; the
// write waits until a Commit returns the extent. The reference is held in both cases until Put.
func (l *Log) Get(extent uint32) bool {
	if i, ok := l.index[extent]; ok {
		e := &l.entries[i]
		if e.refs++; e.refs == 1 {
			l.held++
		}
		switch e.state {
		case active:
			if e.refs == 1 {
				l.unlink(&l.idle, i)
			}
			l.stats.Hits++
			return true
		case doubtful:
			l.unlink(&l.idle, i)
			l.slotted++
			l.append(&l.queue, i)
			e.state = pending
		case pending, inTx:
		}
		l.stats.Misses++
		return false
	}
	if extent == free {
		panic("actlog: extent number out of range")
	}
	l.stats.Misses++
	l.held++
	l.append(&l.queue, l.add(entry{extent: extent, slot: none, refs: 1, state: pending}))
	return false
}

// Put drops a reference: the write is complete and, with a peer, its epoch is acknowledged. The extent stays active until
// its slot is needed. A pending extent without references is forgotten.
func (l *Log) Put(extent uint32) {
	i, ok := l.index[extent]
	if !ok || l.entries[i].refs == 0 {
		panic("actlog: put without get")
	}
	e := &l.entries[i]
	if e.refs--; e.refs > 0 {
		return
	}
	l.held--
	switch e.state {
	case active:
		l.append(&l.idle, i)
	case pending:
		l.unlink(&l.queue, i)
		if e.slot == none {
			l.remove(i)
			return
		}
		l.slotted--
		e.state = doubtful
		l.prepend(&l.idle, i)
	case inTx, doubtful:
	}
}

// Active says whether the extent is active: on disk as such, as far as Get is concerned.
func (l *Log) Active(extent uint32) bool {
	i, ok := l.index[extent]
	return ok && l.entries[i].state == active
}

// Referenced returns the number of references held to the extent.
func (l *Log) Referenced(extent uint32) int {
	if i, ok := l.index[extent]; ok {
		return int(l.entries[i].refs)
	}
	return 0
}

// Held returns the number of extents to which references are held.
func (l *Log) Held() int { return l.held }

// Pending says whether an extent waits for a transaction that is not yet prepared.
func (l *Log) Pending() bool { return l.queue.head != none }

// Prepare builds the next transaction for up to UpdatesMax pending extents, oldest first, evicting the least recently used
// unreferenced ones if slots are short. It reuses tx's memory. It returns false, and changes nothing, when nothing is pending, a
// transaction is prepared already, or no slot is free or evictable (try again after a Put). After true the caller
// must end with Commit or Abort. The bitmap blocks of tx.Evicted must be on disk before tx is written.
func (l *Log) Prepare(tx *Transaction) bool {
	if l.open || l.queue.head == none {
		return false
	}
	tx.Slots, tx.Extents, tx.Evicted = tx.Slots[:0], tx.Extents[:0], tx.Evicted[:0]
	l.txEntries, l.txDropped = l.txEntries[:0], l.txDropped[:0]
	for i := l.queue.head; i != none && len(l.txEntries) < UpdatesMax; {
		e := &l.entries[i]
		next := e.next
		if e.slot == none {
			if e.slot = l.takeSlot(tx); e.slot == none {
				if l.slotted == 0 {
					break
				}
				i = next // a later one has its slot already
				continue
			}
		} else {
			l.slotted--
		}
		l.unlink(&l.queue, i)
		e.state = inTx
		l.txEntries = append(l.txEntries, i)
		tx.Slots = append(tx.Slots, uint16(e.slot))
		tx.Extents = append(tx.Extents, e.extent)
		i = next
	}
	if len(l.txEntries) == 0 {
		return false
	}
	l.open = true
	tx.Number = l.number
	tx.ContextSize, tx.ContextStart = len(l.slots), l.window
	tx.Context = append(tx.Context[:0], l.slots[l.window:min(l.window+ContextMax, len(l.slots))]...)
	return true
}

// takeSlot returns a free slot, or that of an extent it evicts, or none.
func (l *Log) takeSlot(tx *Transaction) int32 {
	if n := len(l.free); n > 0 {
		s := l.free[n-1]
		l.free = l.free[:n-1]
		return s
	}
	i := l.idle.head
	if i == none {
		return none
	}
	l.unlink(&l.idle, i)
	e := l.entries[i]
	l.remove(i)
	l.txDropped = append(l.txDropped, e)
	tx.Evicted = append(tx.Evicted, e.extent)
	return e.slot
}

// Commit says that the prepared transaction is durable, and returns the extents that are active now. The slice is valid until
// the next Commit.
func (l *Log) Commit() []uint32 {
	if !l.open {
		panic("actlog: commit without transaction")
	}
	l.open = false
	l.committed = l.committed[:0]
	for _, i := range l.txEntries {
		e := &l.entries[i]
		e.state = active
		l.slots[e.slot] = e.extent
		l.committed = append(l.committed, e.extent)
		if e.refs == 0 {
			l.append(&l.idle, i)
		}
	}
	l.number++
	if l.window += ContextMax; l.window >= len(l.slots) {
		l.window = 0
	}
	l.stats.Transactions++
	l.stats.Evictions += uint64(len(l.txDropped))
	return l.committed
}

// Abort says that writing the prepared transaction failed, so that it is unknown whether the disk holds it. Its extents are
// pending again, ahead of all others; the extents it would have evicted keep their slots, but are not active until another
// transaction has them. The next transaction has the same number and overwrites the block.
func (l *Log) Abort() {
	if !l.open {
		panic("actlog: abort without transaction")
	}
	l.open = false
	for _, i := range slices.Backward(l.txEntries) {
		e := &l.entries[i]
		if old := l.slots[e.slot]; old != e.extent { // not its own from an earlier abort
			if old == free {
				l.free = append(l.free, e.slot)
			}
			e.slot = none
		}
		e.state = pending
		if e.refs > 0 {
			if e.slot != none {
				l.slotted++
			}
			l.prepend(&l.queue, i)
			continue
		}
		if e.slot == none {
			l.remove(i)
			continue
		}
		e.state = doubtful
		l.prepend(&l.idle, i)
	}
	for _, d := range slices.Backward(l.txDropped) {
		if i, ok := l.index[d.extent]; ok { // wanted again meanwhile
			l.entries[i].slot = d.slot
			l.slotted++
			continue
		}
		d.state, d.refs = doubtful, 0
		l.prepend(&l.idle, l.add(d))
	}
}

// Extents returns what the slots hold on disk, in rising order: the active extents, and those whose eviction was aborted. A
// prepared transaction does not count.
func (l *Log) Extents() []uint32 {
	var out []uint32
	for _, e := range l.slots {
		if e != free {
			out = append(out, e)
		}
	}
	slices.Sort(out)
	return out
}

func (l *Log) add(e entry) int32 {
	var i int32
	if n := len(l.unused); n > 0 {
		i = l.unused[n-1]
		l.unused = l.unused[:n-1]
		l.entries[i] = e
	} else {
		i = int32(len(l.entries))
		l.entries = append(l.entries, e)
	}
	l.index[e.extent] = i
	return i
}

func (l *Log) remove(i int32) {
	delete(l.index, l.entries[i].extent)
	l.unused = append(l.unused, i)
}

func (l *Log) append(s *list, i int32) {
	e := &l.entries[i]
	e.prev, e.next = s.tail, none
	if s.tail == none {
		s.head = i
	} else {
		l.entries[s.tail].next = i
	}
	s.tail = i
}

func (l *Log) prepend(s *list, i int32) {
	e := &l.entries[i]
	e.prev, e.next = none, s.head
	if s.head == none {
		s.tail = i
	} else {
		l.entries[s.head].prev = i
	}
	s.head = i
}

func (l *Log) unlink(s *list, i int32) {
	e := &l.entries[i]
	if e.prev == none {
		s.head = e.next
	} else {
		l.entries[e.prev].next = e.next
	}
	if e.next == none {
		s.tail = e.prev
	} else {
		l.entries[e.next].prev = e.prev
	}
}
