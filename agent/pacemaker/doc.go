// Package pacemaker is what hawser knows of Pacemaker, without touching it: promotion scores, the decisions of the
// fence-peer and unfence-peer handlers, and complete configurations for crmsh, pcs and cibadmin. Package host does the deeds.
//
// A resource without a coordinator of its own (no etcd) is promoted by Pacemaker. When its replication breaks, the Primary
// has to make sure that the peer, whose data grows old, is not promoted. It does so by a ban: a location constraint in the
// cluster's configuration that keeps the promoted role from one peer. One pair of nodes has one ban:
//
//	hawser-fence-RES-CLONE.A.B      id of the constraint; A and B are the two nodes, sorted
//	  ...-rule-by-OWNER             id of its rule: who asked for it
//	    #uname eq BANNED            who may not be promoted
//
// Since both nodes of a pair use the same id, and the configuration refuses a second constraint of that id, at most one
// of them bans the other. With three nodes the third may still be promoted.
//
// What the handler answers, and so what the replicator may do next:
//
//	peer                                   ban       answer
//	its own copy of the CIB shows the ban  there     4  it is outdated, and cannot be promoted
//	was lost, and has been fenced since    there     7  it was shot
//	left the cluster in good order         there     5  it is unreachable and runs nothing
//	was known to be Inconsistent           there     3  nobody can promote it
//	is promoted, says Pacemaker            none      6  give up
//	has banned this node                   its own   6  give up
//	is lost, and nobody has fenced it yet  there     wait
//	is online, but does not confirm        there     wait: it may be about to be lost
//	this partition has no quorum           none      wait
//
// A wait that reaches its limit ends with 1: nobody knows, and writes stay frozen.
package pacemaker
