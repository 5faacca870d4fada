// Package metrics serves what a node knows to Prometheus: its own metrics
// (hawser_*), those of the Pacemaker, Corosync and SBD that run beside it, and
// ha_cluster_drbd_* for the volumes, under the names and labels of
// ha_cluster_exporter, so that dashboards and alerts made for that one work.
//
// Pacemaker's and Corosync's figures come from programs that take tens of
// milliseconds each and may hang: they are run in the background and a scrape
// gets the last answer with its age.
package metrics
