// Package hostdev answers two questions about block devices of this host from /proc and /sys: what is
// mounted where, and who uses a device. It never touches the file systems concerned, so it cannot hang with them.
package hostdev
