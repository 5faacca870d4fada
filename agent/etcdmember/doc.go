// Package etcdmember is a member of etcd in this process, which is `hawser etcd`: one on each node, in a process of its own, since a panic of etcd
// must not take the agent with it.
//
// # How the cluster comes to be
//
// A member whose data directory is empty asks the others first:
//
//	nobody answers                            it makes the cluster anew, from the list of nodes (not if this node had a member before)
//	its place is listed, never started        it joins (it was added, or replaces one), or takes part in the first start
//	its place is listed, and was started      it refuses: its data is lost, and a member without memory could vote twice
//	its place is not listed                   it refuses: it was removed, or never added
//
// One that has data starts with it. Only if the others say that its place was given to a new member, the old data is moved
// aside, and it joins. File MARK in the data directory says which member the data is of; file FORMED beside it, that there was one.
package etcdmember
