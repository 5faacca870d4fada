// Package coord is what the agents of a cluster know together: who may write, who has every acknowledged write, who is there, what
// people have asked for (docs/adr/0006).
//
//	agent/decide, agent/ha ──> Store ──> Backend: agent/etcd, or agent/coord/fake in tests
//
// A Backend is a small key-value store: linearizable reads, transactions that compare revisions, leases, a stream of changes. The Store
// is what the keys mean: each change is one transaction that compares what it was decided on. The lock API of etcd is not used.
//
// # Keys, below PREFIX = /hawser/CLUSTER/
//
//	nodes/N                    NodeInfo of a node that is there; lease
//	resources/R/spec           definition of the resource, as `hawser apply` stored it
//	resources/R/primary        holder; term = its create revision; lease
//	resources/R/insync         members with their disks; Seq = its mod revision
//	resources/R/switchover     what a person asked for
//	resources/R/status/N       what a node says of itself; lease
//	resources/R/history/T-N    entries, oldest first
//	fencing/N                  what is done about a node that does not answer
//	maintenance                cluster, nodes, resources on which nothing is decided; drained nodes
//
// # Answers that do not come
//
// A transaction has three outcomes: done, ErrConflict (somebody else changed what it compares: look again), and no answer. Each
// value carries a mark of the transaction that wrote it. One without an answer is therefore simply sent again, by another
// member: its comparisons fail when the first one went through, and the mark says so. Only when the context ends
// before that is clear is the outcome ErrUncertain: assume the worse case until a read, or the same change again, says.
//
// Promote writes insync too, unchanged. So every promotion makes the transactions that were decided before it fail, also
// those that are still under way in a slow member: primary alone would not, since it can go back to absent.
//
// # Leases and clocks
//
// A Session keeps the lease of this node. What it says of the lease's end counts from before the renewal was sent, on
// CLOCK_BOOTTIME, minus the margin. Its number is kept in a file, so that an agent that is started again goes on with the same lease and
// holds what it held. A lease that is gone in the store ends at once here.
//
// # What a View is worth
//
// Follow gives a View at every change. View.Seen is when the store was last asked, by a linearizable read, and had
// nothing newer: a stream of changes from a member that was cut off goes silent, it does not end. A View is safe to act on at any age, as the
// transactions compare; people are told its age.
package coord
