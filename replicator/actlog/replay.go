package actlog

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
)

var (
	// ErrNoLog says that no block of the ring is valid. It was never initialised, or is of another format (8.3, persistent memory).
	ErrNoLog = errors.New("no activity log")
	// ErrGap says that transactions are missing between valid ones. At most one block, the one being written, is bad after a crash;
	// so this is damage, and the active extents found are not all. Every block must then be taken for dirty.
	ErrGap = errors.New("activity log is damaged")
)

// State is what Read finds in a ring.
type State struct {
	Active []uint32 // the extents that may have been written to, rising
	Newest uint32   // number of the newest transaction; only if Valid > 0
	Valid  int      // blocks with a transaction
	Empty  int      // initialised blocks
	Bad    int      // all others
}

// Replay returns the extents that were active when the ring was last written, in rising order: after a crash these may
// differ from the peers. blocks are the ring's blocks of 4096 bytes, in any order. On ErrGap the active extents that were found
// are returned too. See drbd-metadata.md 4.4.
func Replay(blocks [][]byte) (active []uint32, err error) {
	st, err := Read(blocks)
	return st.Active, err
}

// Read is Replay with the numbers of good and bad blocks.
func Read(blocks [][]byte) (State, error) {
	var st State
	txs := make([]Transaction, 0, len(blocks))
	for _, b := range blocks {
		var tx Transaction
		switch empty, err := tx.Decode(b); {
		case err != nil:
			st.Bad++
		case empty:
			st.Empty++
		default:
			txs = append(txs, tx)
		}
	}
	st.Valid = len(txs)
	if st.Valid == 0 {
		if st.Empty == 0 {
			return st, fmt.Errorf("%w: none of %d blocks is valid", ErrNoLog, len(blocks))
		}
		if st.Bad > 1 {
			return st, fmt.Errorf("%w: %d bad blocks", ErrGap, st.Bad)
		}
		return st, nil
	}
	// Numbers wrap, and all of a ring's are close together: order them by the distance from any one of them.
	ref := txs[0].Number
	slices.SortFunc(txs, func(a, b Transaction) int {
		return cmp.Compare(int32(a.Number-ref), int32(b.Number-ref))
	})
	st.Newest = txs[len(txs)-1].Number

	slots := 0
	for i := range txs {
		slots = max(slots, txs[i].ContextSize) // Decode checked that nothing is past it
	}
	table := make([]uint32, slots)
	for i := range table {
		table[i] = free
	}
	for i := range txs {
		tx := &txs[i]
		if len(tx.Context) > 0 {
			copy(table[tx.ContextStart:], tx.Context)
		}
		for j, s := range tx.Slots {
			table[int(s)] = tx.Extents[j]
		}
	}
	for _, e := range table {
		if e != free {
			st.Active = append(st.Active, e)
		}
	}
	slices.Sort(st.Active)
	st.Active = slices.Compact(st.Active)

	if st.Bad > 1 {
		return st, fmt.Errorf("%w: %d bad blocks", ErrGap, st.Bad)
	}
	for i := 1; i < len(txs); i++ {
		if txs[i].Number != txs[i-1].Number+1 {
			return st, fmt.Errorf("%w: transaction %d follows %d", ErrGap, txs[i].Number, txs[i-1].Number)
		}
	}
	return st, nil
}
