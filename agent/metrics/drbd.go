package metrics

import (
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"

	"github.com/ClusterLabs/ha_cluster_exporter/collector"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/hawser-ha/hawser/replicator/control"
)

// drbdNames is ha_cluster_drbd_* as ha_cluster_exporter names them: figures in
// KiB, states in lower case.
type drbdNames struct {
	collector.DefaultCollector
	splitBrain string // folder of the marks that a split brain leaves
}

func newDRBDNames(splitBrain string) *drbdNames {
	d := &drbdNames{collector.NewDefaultCollector("drbd"), splitBrain}
	volume := []string{"resource", "volume"}
	peer := []string{"resource", "peer_node_id", "volume"}
	d.SetDescriptor("resources", "The DRBD resources; 1 line per name, per volume", []string{"resource", "role", "volume", "disk_state"})
	d.SetDescriptor("written", "KiB written to DRBD; 1 line per res, per volume", volume)
	d.SetDescriptor("read", "KiB read from DRBD; 1 line per res, per volume", volume)
	d.SetDescriptor("al_writes", "Writes to activity log; 1 line per res, per volume", volume)
	d.SetDescriptor("bm_writes", "Writes to bitmap; 1 line per res, per volume", volume)
	d.SetDescriptor("upper_pending", "Upper pending; 1 line per res, per volume", volume)
	d.SetDescriptor("lower_pending", "Lower pending; 1 line per res, per volume", volume)
	d.SetDescriptor("quorum", "Quorum status per resource and per volume", volume)
	d.SetDescriptor("connections", "The DRBD resource connections; 1 line per per resource, per peer_node_id",
		[]string{"resource", "peer_node_id", "peer_role", "volume", "peer_disk_state"})
	d.SetDescriptor("connections_sync", "The in sync percentage value for DRBD resource connections", peer)
	d.SetDescriptor("connections_received", "KiB received per connection", peer)
	d.SetDescriptor("connections_sent", "KiB sent per connection", peer)
	d.SetDescriptor("connections_pending", "Pending value per connection", peer)
	d.SetDescriptor("connections_unacked", "Unacked value per connection", peer)
	d.SetDescriptor("split_brain", "Whether a split brain has been detected; 1 line per resource, per volume.", volume)
	return d
}

func kib(bytes int64) float64 { return float64(bytes / 1024) }

// splitBrainMark is the name of the file that says that a volume's data has split.
var splitBrainMark = regexp.MustCompile(`^drbd-split-brain-detected-([\w-]+)-([\w-]+)$`)

func (d *drbdNames) collect(ch chan<- prometheus.Metric, s *Snapshot) {
	for i := range s.Resources {
		if st := s.Resources[i].Status; st != nil {
			d.resource(ch, st)
		}
	}
	entries, err := os.ReadDir(d.splitBrain)
	if err != nil { // the folder comes with the first mark
		return
	}
	for _, e := range entries {
		if m := splitBrainMark.FindStringSubmatch(filepath.Base(e.Name())); m != nil {
			ch <- d.MakeGaugeMetric("split_brain", 1, m[1], m[2])
		}
	}
}

func (d *drbdNames) resource(ch chan<- prometheus.Metric, st *control.Status) {
	for i := range st.Volumes {
		v := &st.Volumes[i]
		n := strconv.Itoa(v.Number)
		ch <- d.MakeGaugeMetric("resources", 1, st.Resource, st.Role, n, strings.ToLower(v.DiskState))
		for name, value := range map[string]float64{"written": kib(v.Written), "read": kib(v.Read),
			"al_writes": float64(v.ALWrites), "bm_writes": float64(v.BMWrites),
			"upper_pending": float64(v.UpperPending), "lower_pending": float64(v.LowerPending), "quorum": truth(quorum(st))} {
			ch <- d.MakeGaugeMetric(name, value, st.Resource, n)
		}
	}
	for i := range st.Peers {
		p := &st.Peers[i]
		id := strconv.Itoa(p.NodeID)
		for j := range p.Volumes {
			v := &p.Volumes[j]
			n := strconv.Itoa(v.Number)
			ch <- d.MakeGaugeMetric("connections", 1, st.Resource, id, p.Role, n, strings.ToLower(v.DiskState))
			for name, value := range map[string]float64{"connections_sync": inSyncPercent(st.Volume(v.Number), v),
				"connections_received": kib(v.Received), "connections_sent": kib(v.Sent),
				"connections_pending": float64(v.Pending), "connections_unacked": float64(v.Unacked)} {
				ch <- d.MakeGaugeMetric(name, value, st.Resource, id, n)
			}
		}
	}
}

// quorum is whether the node may go on: DRBD's word for what the licence says here.
func quorum(st *control.Status) bool {
	for _, why := range st.Suspended {
		if why == "licence" || why == "insync" || why == "quorum" {
			return false
		}
	}
	return true
}

// inSyncPercent is what of the volume is not marked in the bitmap, two decimals, as drbdsetup prints it.
func inSyncPercent(v *control.VolumeStatus, p *control.PeerVolumeStatus) float64 {
	if v == nil || v.Size == 0 {
		return 100
	}
	in := max(v.Size-p.OutOfSync, 0)
	return float64(in*10000/v.Size) / 100
}
