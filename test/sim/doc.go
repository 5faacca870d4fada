// Package sim plays whole lives of a resource from one seed: two or three nodes with the real state machine
// (replicator/core), disks with a volatile cache, a metadata area, a network that delays, reorders between sockets and
// breaks, crashes and power cuts, commands of an operator, and clients whose every acknowledged write must survive. The
// same seed gives the same life. What is found wrong once stays as a test of replicator/core; planted bugs show that the
// checks of this package would find each kind again.
package sim
