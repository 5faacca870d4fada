// Package etcd runs the program with an embedded etcd on three nodes of one machine: formation from the list of nodes, an agent that is
// restarted, members that are killed, lost and replaced, a full database.
package etcd
