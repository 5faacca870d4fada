// Package vm lets Go tests use the machines of this folder's scripts: real Debian kernels under qemu's
// software emulation, for what the kernel below may lack (nbd, drbd 8.4, softdog, netem). See README.md.
package vm
