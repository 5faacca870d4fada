// Package pacemaker runs hawser under real Pacemaker and Corosync: two or three nodes, each a set of namespaces over a
// copy-on-write view of this machine, with a simulated IPMI power switch for each (package openipmi) and Debian's own
// fence_ipmilan. What hawser pacemaker config prints is loaded as it stands.
//
//	lab/cluster up 3, kill n1, freeze n1, cut n1 n2, exec n1 -- CMD     nodes (see the head of each script)
//	lab/ipmi up, kill n1, log n1                                        their power switches
//
// While a test does its worst, a workload writes to whoever is Primary and an audit asks every node for its role. Each test
// ends with the verdict of test/check and with an account of the fencings: those that were needed, and no other.
//
//	go test ./test/pacemaker                            what must always hold, about three minutes on two cores
//	HAWSER_TEST_PACEMAKER=long go test ./test/pacemaker -timeout 40m        everything (make test-pacemaker)
//	go test ./test/pacemaker -run Partition -v -keep    one, keeping the logs
//
// It needs root.
package pacemaker
