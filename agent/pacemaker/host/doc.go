// Package host does on one node what Pacemaker's resource agent and the fence-peer handler ask for.
//
// Everything here has a deadline, and demote and stop reach their end whatever hangs: they ask, then insist, then kill the
// replicator, which cannot write any more once it is gone. The agent of the node may be away or hang meanwhile: the
// replicator itself says what its role is, and the lock on its pid file whether it is there at all.
package host
