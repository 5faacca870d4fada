// Package exec makes a fencing.Device of a fence agent, the programs fence_* of Debian's package fence-agents and all
// others that follow the same rules: key=value lines on standard input, the answer in the exit status.
//
// A secret reaches the program through its standard input alone. It is read from a file or from the environment at each
// call, and is taken out of whatever the program prints before that is kept. The program gets an environment of its own
// without anything of ours, and a process group that is killed, with all that it has started, when its time is over.
package exec
