// Command bench measures hawser beside other programs that do the same work, and prints ratios and whether the
// targets of docs/performance.md are reached. It needs root, fio with its nbd engine, and what the peers need:
// nbdkit, qemu-utils, libnbd-bin, iproute2, and glusterfs-server and glusterfs-client for GlusterFS. A peer whose
// program is missing is left out, and said.
//
// In each cell and turn all peers of a group run one after the other, and a ratio is the median of the ratios of the
// turns: what else the machine does in the meantime hits both sides. Replicating peers have their two nodes in two
// network namespaces that a bridge connects; their two disks are compared at the end.
package main
