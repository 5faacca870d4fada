// Package ha is the loop of the HA daemon: for each resource that etcd coordinates it looks, asks agent/decide, does, and
// looks again.
//
//	agent/coord (etcd) ──view──▶ worker of a resource ──View──▶ decide.Decide
//	replicator (Replica) ─status─▶      │    ▲                      │
//	services (Services) ──state──▶      │    └──────── look again ──┤
//	                                    ▼                           ▼
//	                          grant: what etcd says        Plan: one action after the other,
//	                          goes to the replicator       until one fails
//
// The Manager follows etcd and keeps one worker per resource; a worker's goroutine owns its state. What etcd says (term,
// holder, in-sync set, end of the lease) goes to the replicator before anything is decided, in every round; what the
// replicator and the services say goes to etcd by a goroutine of its own, so that a slow etcd delays no decision.
package ha
