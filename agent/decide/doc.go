// Package decide is the HA decision as a function: a View of one resource on one node in, a Plan out. It reads no clock
// and touches nothing; the loop that looks, decides, does and looks again is agent/ha, and hawser explain and hawser
// simulate ask the same function.
//
//	holder   this node's role   what is decided
//	------   ----------------   ----------------------------------------------------------------
//	unknown  any                nothing: the licence of a Primary goes on or runs out by itself
//	me       Primary            answer questions, add candidates, start services; leave if told to
//	me       Secondary          become Primary, or give the key back
//	another  Primary            depose it, unless two primaries are meant
//	another  Secondary          follow; fence a holder that does not answer, where fencing is set up
//	nobody   Primary            run again, if every write is here; else depose it
//	nobody   Secondary          run, if every rule allows it
//
// Who may write stays guarded in maintenance too (questions, additions, deposing); nothing else is decided then.
package decide
