// Package drbdconf runs a drbd.conf as it stands on two agents, each in network and mount namespaces of its own: the
// host names, addresses, disks and device names of the file are true there. It needs root; as another user it is skipped.
package drbdconf
