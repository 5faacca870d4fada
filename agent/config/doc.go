// Package config reads what an administrator writes: resource files
// (resources.d/*.yaml) and the settings of the node (hawser.yaml). It is strict:
// a misspelt key, a value out of range or a combination that cannot work is an
// Error with file, line and column, and all of them are reported at once.
//
// A Resource is a file as written; Definition resolves it for one node: names to
// numbers, defaults filled in, the most specific setting taken.
//
//	disk options     a node's volume > volume > resource
//	resync options   connection > resource
//	net options      connection > resource
//	nbd              node > resource
//
// Option names, ranges and plain numbers are drbd.conf's. Beyond them times may
// be written 6s or 500ms, and sizes and rates take K, M, G and T (powers of 1024
// bytes) or s (sectors of 512 bytes).
package config
