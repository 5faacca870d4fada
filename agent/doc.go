// Package agent is the daemon of a node: it serves the local API, starts one
// replicator process for each resource that is up, and follows it.
//
//	CLI ── HTTP on RUNDIR/agent.sock ──▶ Agent ── HTTP on RUNDIR/replicator/NAME.sock ──▶ replicator NAME
//
// The agent is not in the data path. Replicators are processes of their own
// session that outlive it; a new agent adopts those it finds by their sockets
// and goes on following their events from where it stopped. What is up is
// remembered in RUNDIR/replicator/NAME.json (the definition it was brought up
// with), so a replicator that died, alone or together with the agent, is
// started again; after a reboot RUNDIR is empty and `hawser up` decides.
//
// One goroutine per resource (managed.run) owns its replicator's life; commands
// that change it (up, down, adjust) hold managed.op.
package agent
