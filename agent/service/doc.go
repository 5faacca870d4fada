// Package service runs what lives on a volume: for each resource a chain of systemd units, OCF resource agents and
// commands for the primary, the secondary, and always. It starts them in order, stops them in reverse, watches them, and
// asks its owner when it cannot go on. It decides nothing about roles and knows neither etcd nor Pacemaker.
//
// A chain is a stack of what runs, or may run, and a list of what should. One rule drives it: what runs must be a prefix
// of what should. Too much, another definition or something failed: stop the top. Too little: start the next.
//
//	stack            target           does
//	fs ip pg         fs ip pg         monitor what is due
//	fs ip pg(failed) fs ip pg         stop pg; then start it, after a back-off, restart times within the window
//	fs(failed) ip pg fs ip pg         stop pg, ip, fs; then start all three
//	fs ip pg         (not wanted)     stop pg, ip, fs
//	fs               fs ip pg         start ip
//	anything         (undecided)      monitor: after a start of the agent, until the owner has said Start or Stop
//
// What ends in another way is said to the owner by Escalate: move (it failed too often here, or cannot run here at all),
// force-demote (a stop failed: make the volume fail its users), fence (the stop failed then too).
//
// The end of the agent ends no service and interrupts none that is just being started: each chain keeps a record in
// RUNDIR/services, written before a program runs, and Adopt of the next agent takes it from there. A service that may
// run is never forgotten: "cannot tell" is stopped before it is started.
package service
