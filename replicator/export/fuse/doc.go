// Package fuse shows a volume as a real block device on a kernel that has neither nbd nor ublk: one
// regular file on a FUSE mount, and a loop device over that file.
//
//	program -> /dev/loopN -> FILE on the mount -> /dev/fuse -> this package -> export.Volume
//
// A program that can open the file itself (a virtual machine, a database) should do so and skip the loop hop.
//
// The device lives as long as the process that serves it. After a crash every request on it fails, it cannot
// be attached again, and what is left of it (a dead mount, a loop device) is removed by Cleanup.
//
// Nothing in here looks at the mount point from outside once it is mounted: a stat of it waits for the
// daemon, which may be the very thing that hangs. State comes from /proc and /sys, and the way out of a
// hang is the abort file of the FUSE connection.
package fuse
