// Package drbdtools is the program under the names drbdadm, drbdsetup, drbdadm-84 and drbdsetup-84: it understands
// their command lines and does with hawser's resources what they do with DRBD's, by the agent's API. What it prints is
// made by agent/compat.
//
// The resources are those of the node's own files, YAML or drbd.conf; a file given by -c adds to them unless it is
// /etc/drbd.conf, which drbdadm takes by default. What a node runs is asked of the agent.
package drbdtools
