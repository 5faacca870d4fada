// Package sim plays whole lives of a resource from one seed: two nodes with the real
// state machine (replicator/core), disks with a volatile cache, a metadata area, a
// network that delays, reorders between sockets and breaks, crashes and power cuts, and a
// client whose every acknowledged write must survive. The same seed gives the same life.
package sim
