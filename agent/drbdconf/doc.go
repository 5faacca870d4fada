// Package drbdconf reads and writes drbd.conf, from DRBD 8.3 to 9. It is pure: files come through a Source.
//
// Parse accepts the union of what the versions accept and gives one tree, with the place of everything in it and every
// value as the user wrote it. What is old moves to where version 9 has it: syncer options to net, disk and options, the
// protocol of a resource and fencing to net, device names without /dev/ get it. A file with errors gives them all (up to
// 20), each with file, line and column; drbdadm's own order of things is kept by Error.Stage, which says what verbs an
// error stops:
//
//	Syntax   every verb                      Expand   all but dump: contradicting values
//	Check    every verb                      Local    dump, dump-xml: the address is not of this host
//	Hosts    all but sh-nop                  Warn     none
//
// Print writes the tree as drbdadm dump does (9.34, or 8.4), or Lossless: what Parse of it reads is equal. PrintXML is
// dump-xml. Expand is the tree with inheritance resolved, as drbdadm uses it for every verb that does something, and as
// dump -v prints it. Specs lists all options with ranges, defaults and the versions that have them.
//
// What hawser makes of it is not here: agent/config turns resources into its own.
package drbdconf
