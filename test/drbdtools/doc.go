// Package drbdtools runs programs that were written for DRBD, unmodified, against hawser under the names of DRBD's
// tools: the Prometheus exporter of a Pacemaker cluster, the agent ocf:linbit:drbd, and readers of drbdsetup's events.
package drbdtools
