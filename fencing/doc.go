// Package fencing makes sure that a node is off, and says so only when it knows.
//
// A Device is a port: a power switch, a management board, a hypervisor. A Fencer holds the devices of a cluster and, for
// each node, levels: a level is a list of devices which must all have cut their part of the node's power. Levels are
// tried in order until one is confirmed. One deadline holds for all of it.
//
// The outcome has three values. Confirmed: the node is off, or was since the fencing began. NotDone: it is surely still
// on. Unknown: nobody can say. Whoever waits for the node's death goes on after Confirmed only; the other two count as
// "still writing".
//
//	the device says      its status afterwards   outcome
//	done                 off                     Confirmed
//	done                 cannot be asked         Confirmed (the device's word)
//	done                 still on                asked again until the device's time is over, then NotDone
//	failed, or no answer off                     Confirmed
//	failed, or no answer on                      NotDone
//	failed, or no answer cannot be told          Unknown
//
// A node that has been fenced often in short time is not fenced again without force: turning it off has not helped, and
// two nodes that fence each other at every boot would go on forever. The history of that is kept in a file.
package fencing
