// Package fake is a coord.Backend in memory, for tests: one Server, a Client for each node, faults from a seed.
//
// It keeps what etcd keeps: one revision for the whole store, create and mod revisions, leases, changes after a revision until they are compacted. Time is
// that of package time, so it works in a synctest bubble; with Options.Clock nothing happens by itself and Tick makes leases run out,
// which a simulator needs that plays a life from one seed.
package fake
