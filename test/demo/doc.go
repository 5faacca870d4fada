// Command demo shows a replicated volume from birth to failover and back, with
// real processes on this machine: three agents on loopback, two with data and a
// witness. As root it makes an ext4 file system on the exported block device;
// otherwise it writes checked blocks through the NBD socket. It removes all it made.
//
//	demo --hawser bin/hawser [--keep] [--size 1G]
package main
