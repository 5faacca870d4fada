// Package kernelpeer runs hawser with a DRBD 8.4 kernel module as its peer: the module is in a virtual machine (test/vm),
// hawser's agent and replicator in a network namespace on the machine's bridge, and the two are configured each by its own
// file with the same options. What is compared in the end is every byte of the two disks.
//
// The tests are made when HAWSER_TEST_VM=1 is set (make test-vm): they take some minutes.
package kernelpeer
