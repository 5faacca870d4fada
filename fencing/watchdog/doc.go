// Package watchdog makes a node reset itself when it must not go on: it feeds /dev/watchdog for as long as there is a
// licence, and not a moment longer.
//
// The agent holds the device itself (docs/adr/0007-self-fence.md). What becomes of the node follows from that:
//
//	state      what happens                              the node
//	disarmed   nothing: the device is closed             lives
//	armed      fed while now + timeout + 1s <= until     lives; dies at until at the latest
//	           Extend moves until
//	           until comes: fed no more                  dies
//	           the agent is stopped, or hangs            dies
//	           the agent is killed                       dies, unless a new one adopts the device in time
//	           Disarm, or the agent ends cleanly         lives
//
// All times are on the boot clock, which goes on while a machine sleeps.
package watchdog
