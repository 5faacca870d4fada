package check

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/anishathalye/porcupine"
)

const (
	linBlocks  = 64
	linOpsMax  = 600 // of a block; porcupine's time grows fast with those that overlap
	linTimeout = time.Second
)

type regInput struct {
	write bool
	sure  bool // the write happened
	value Value
}

// registerModel is one block as a disk keeps it. A write without an answer may not have happened.
func registerModel(base Value) porcupine.Model {
	return (&porcupine.NondeterministicModel{
		Init: func() []any { return []any{base} },
		Step: func(state, input, output any) []any {
			in := input.(regInput)
			if !in.write {
				if output.(Value) == state.(Value) {
					return []any{state}
				}
				return nil
			}
			if in.sure {
				return []any{in.value}
			}
			return []any{state, in.value}
		},
		Equal: func(a, b any) bool { return a.(Value) == b.(Value) },
	}).ToModel()
}

// order checks a sample of blocks for linearizability: those with the most reads.
func (v *Verdict) order(regs map[int64]*register, blocks []int64, most int) {
	if most == 0 {
		most = linBlocks
	}
	pick := slices.DeleteFunc(slices.Clone(blocks), func(b int64) bool {
		n := len(regs[b].reads) + len(regs[b].list)
		return len(regs[b].reads) == 0 || len(regs[b].list) == 0 || n > linOpsMax
	})
	slices.SortStableFunc(pick, func(a, b int64) int { return cmp.Compare(len(regs[b].reads), len(regs[a].reads)) })
	for _, b := range pick[:max(0, min(len(pick), most))] {
		r := regs[b]
		var ops []porcupine.Operation
		for i, w := range r.list {
			ops = append(ops, porcupine.Operation{ClientId: i, Input: regInput{true, w.Outcome == OK, w.Value}, Call: w.Invoke, Return: w.Return})
		}
		for i, o := range r.reads {
			ops = append(ops, porcupine.Operation{ClientId: len(r.list) + i, Input: regInput{}, Output: o.Value, Call: o.Invoke, Return: o.Return})
		}
		v.Ordered++
		switch porcupine.CheckOperationsTimeout(registerModel(r.base), ops, linTimeout) {
		case porcupine.Illegal:
			v.add(Finding{"order", "", b, fmt.Sprintf("no order of %d writes explains %d reads", len(r.list), len(r.reads))})
		case porcupine.Unknown:
			v.GaveUp++
		}
	}
}
