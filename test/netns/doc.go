// Package netns runs whole clusters with real processes: each node has a network namespace of its own, joined by a
// bridge; agents and replicators are the real binary, disks are files on a real disk. The tests are named by the
// acceptance scenario they recreate, and each ends with the verdict of test/check.
//
//	switch namespace:   p1 ── bridge ── p2 ── p3        (links are cut and shaped here)
//	                    │               │     │
//	node namespaces:   n1              n2    n3         10.77.0.1, .2, .3
//
// They need root. Names of namespaces begin with hawser-PID; everything is removed at the end of each test.
//
//	go test ./test/netns                       every scenario, a few minutes on two cores
//	go test ./test/netns -run C01 -v -keep     one, keeping folders and logs
//	go test ./test/netns -long                 more rounds of everything
//	go test ./test/netns -run Kill -rounds 500 -seed 7 -timeout 0
package netns
