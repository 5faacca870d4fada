// Package core is the replication state machine of one resource on one node:
// connections, roles, generation UUIDs, write epochs, the activity log, resync and
// online verify. It is pure: events go in (the exported methods of Machine), effects
// come out (Take), time and randomness are inputs, payload bytes never pass through.
// One seed replays a whole life (test/sim does, thousands of times).
//
// It speaks the DRBD 8.4 protocol (drbd-wire.md in the project's specifications). The
// caller serialises all calls of one Machine and carries out the effects in order.
//
//	connection  StandAlone -> Unconnected -> WFConnection -> WFReportParams -> Connected
//	                ^             |   ^                             |
//	                +-- final ----+   +--- link lost, retry --------+
//
//	replication, one for each volume and peer, while connected:
//	  Connected -> WFBitMapS -> SyncSource (PausedSyncS) -> Connected
//	  Connected -> WFBitMapT -> WFSyncUUID -> SyncTarget (PausedSyncT) -> Connected
//	  Connected -> StartingSyncS -> SyncSource      Connected -> StartingSyncT -> WFSyncUUID
//	  Connected -> VerifyS | VerifyT -> Connected
//	  Connected -> Ahead -> SyncSource              Connected -> Behind -> SyncTarget
package core
