// Package compat prints our state as drbdadm and drbdsetup print theirs. It is pure: states come in, text goes out.
//
// Of makes a Resource, in DRBD's words and units, of the status and the definition of one of ours; everything else
// prints such resources:
//
//	Status, StatusJSON   drbdsetup status, in all verbosities, of version 9 and of 8.4
//	Events               drbdsetup events2: exists, create, change, destroy
//	Show, ShowJSON       drbdsetup show
//	GetGI, ShowGI        generation identifiers
//	Commands             what drbdadm -d prints, made of a drbd.conf
//	ShStatus and others  one-word verbs
//	Refusal              the exit code and the words for an error
//
// The words of states are DRBD's and no others: consumers drop lines with words that they do not know. What hawser has
// beyond them (insync, licence) is told as the nearest word of DRBD.
package compat
