// Package wire turns the packets of DRBD's 8.4 network protocol, versions 86 to
// 101, into bytes and back. It follows drbd-wire.md; the section numbers in the
// comments are that document's.
//
// A packet on the wire is a header, a fixed part whose length its command (and
// the agreed version and features) determines, and for some commands a tail:
//
//	header80/95/100 | fixed part or whole body | tail: digest, data, bitmap words
//	AppendHeader    | Append                   | the caller
//	ParseHeader     | BodySize, Parse          | Packet.Tail bytes, for the caller
//
// The package never touches the tail, so the data path copies no payload here,
// and Append and Parse of a packet of the data path allocate nothing. Rare
// packets (parameters, sizes, UUIDs, features) carry their content in Packet.Ext
// and have no tail: their strings are part of the body.
//
// Which header a packet has depends on the agreed version alone:
//
//	before the features were exchanged   header80   (use VersionHandshake)
//	86..94                               header80
//	95..99                               header80, header95 above 32768 bytes
//	100, 101                             header100
//
// All that comes from outside is checked here, and what is wrong is a
// *PacketError; nothing panics on input. All functions are safe for concurrent
// use.
package wire
