// Package ha tests the HA daemon with real processes: three nodes in network namespaces, each with an agent and a member
// of etcd; two hold the data, the third is a witness. It needs root.
package ha
