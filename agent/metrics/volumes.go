package metrics

import (
	"math"
	"strconv"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/hawser-ha/hawser/replicator/control"
)

// family is one metric with its labels.
type family struct {
	desc *prometheus.Desc
	kind prometheus.ValueType
}

func gauge(name, help string, labels ...string) family {
	return family{prometheus.NewDesc("hawser_"+name, help, labels, nil), prometheus.GaugeValue}
}

func counter(name, help string, labels ...string) family {
	return family{prometheus.NewDesc("hawser_"+name, help, labels, nil), prometheus.CounterValue}
}

func (f family) emit(ch chan<- prometheus.Metric, value float64, labels ...string) {
	ch <- prometheus.MustNewConstMetric(f.desc, f.kind, value, labels...)
}

// Metrics of resources, volumes and connections. A state is a label of a metric
// that is always 1, as ha_cluster_exporter does: a query names the state it wants.
var (
	buildInfo = gauge("build_info", "Always 1.", "node", "version")

	resourceState     = gauge("resource_state", "State of the resource on this node: up, down, witness, broken, not-responding. Always 1.", "resource", "state")
	resourceRole      = gauge("resource_role", "Role of this node. Always 1.", "resource", "role")
	resourceSuspended = gauge("resource_suspended", "I/O is frozen for this reason. Always 1; absent while it flows.", "resource", "why")
	restarts          = counter("replicator_restarts_total", "Replicators that ended unexpectedly and were started again.", "resource")
	started           = gauge("replicator_start_time_seconds", "When the replicator opened the resource, Unix time.", "resource")

	diskState    = gauge("volume_disk_state", "State of the local disk. Always 1.", "resource", "volume", "state")
	size         = gauge("volume_size_bytes", "Size of the volume.", "resource", "volume")
	read         = counter("volume_read_bytes_total", "Bytes read from the local disk.", "resource", "volume")
	written      = counter("volume_written_bytes_total", "Bytes written to the local disk.", "resource", "volume")
	alWrites     = counter("volume_activity_log_writes_total", "Transactions of the activity log: writes to an extent that was not in it.", "resource", "volume")
	bmWrites     = counter("volume_bitmap_writes_total", "Blocks of the bitmap written.", "resource", "volume")
	upperPending = gauge("volume_upper_pending", "Requests of front ends not yet completed.", "resource", "volume")
	lowerPending = gauge("volume_lower_pending", "Requests handed to the local disk.", "resource", "volume")
	undoLogs     = gauge("volume_undo_logs", "Undo logs kept: what a split brain's losing side had written.", "resource", "volume")
	clients      = gauge("volume_front_ends", "Users of the volume by kind of front end.", "resource", "volume", "kind")

	connectionState = gauge("connection_state", "State of the connection. Always 1.", "resource", "peer", "state")
	peerRole        = gauge("peer_role", "Role of the peer. Always 1.", "resource", "peer", "role")
	protocol        = gauge("connection_protocol", "Protocol in force: A, B or C. Always 1.", "resource", "peer", "protocol")
	congested       = gauge("connection_congested", "1 while the send buffer is full.", "resource", "peer")
	inFlight        = gauge("connection_in_flight_bytes", "Application writes not yet acknowledged by the peer: under protocol A, what a failover now may lose.", "resource", "peer")

	replication = gauge("replication_state", "Replication state. Always 1.", "resource", "peer", "volume", "state")
	peerDisk    = gauge("peer_disk_state", "State of the peer's disk. Always 1.", "resource", "peer", "volume", "state")
	outOfSync   = gauge("out_of_sync_bytes", "Bytes marked in the bitmap of the peer.", "resource", "peer", "volume")
	sent        = counter("peer_sent_bytes_total", "Bytes of data sent.", "resource", "peer", "volume")
	received    = counter("peer_received_bytes_total", "Bytes of data received.", "resource", "peer", "volume")
	pending     = gauge("peer_pending", "Requests to the peer not yet answered.", "resource", "peer", "volume")
	unacked     = gauge("peer_unacked", "Requests of the peer that we have not answered.", "resource", "peer", "volume")
	syncDone    = gauge("sync_done_ratio", "How far the resync or verify that runs is, 0 to 1; absent while none does.", "resource", "peer", "volume", "kind")
	syncRate    = gauge("sync_bytes_per_second", "Its speed over the last seconds.", "resource", "peer", "volume", "kind")
	syncLeft    = gauge("sync_remaining_seconds", "Its estimated time to finish; absent when unknown.", "resource", "peer", "volume", "kind")
	mismatches  = gauge("verify_mismatch_bytes", "What the last verify, or the one that runs, found different.", "resource", "peer", "volume")

	term      = gauge("term", "Promotion term of the resource.", "resource")
	licence   = gauge("licence_seconds", "How long this node may still write without another word, by the right it has: lease, failsafe, unlimited, none.", "resource", "right")
	inSync    = gauge("in_sync", "Members of the in-sync set: only they may be promoted. Always 1.", "resource", "member")
	holder    = gauge("promoted", "Node that holds the term. Always 1.", "resource", "holder")
	questions = gauge("open_questions", "Peers that went and are still in the in-sync set: writes wait.", "resource")

	service     = gauge("service_state", "State of a service of the volume on this node. Always 1.", "resource", "service", "state")
	serviceFail = gauge("service_failed", "1 when a service needs a person.", "resource", "service")
	fenceOK     = gauge("fence_device_ok", "1 when the last monitor of the fence device succeeded.", "device")
	fenceAge    = gauge("fence_device_checked_time_seconds", "When the fence device was last monitored, Unix time.", "device")
)

var families = []family{buildInfo, resourceState, resourceRole, resourceSuspended, restarts, started,
	diskState, size, read, written, alWrites, bmWrites, upperPending, lowerPending, undoLogs, clients,
	connectionState, peerRole, protocol, congested, inFlight,
	replication, peerDisk, outOfSync, sent, received, pending, unacked, syncDone, syncRate, syncLeft, mismatches,
	term, licence, inSync, holder, questions, service, serviceFail, fenceOK, fenceAge}

func describe(ch chan<- *prometheus.Desc) {
	for _, f := range families {
		ch <- f.desc
	}
}

func truth(b bool) float64 {
	if b {
		return 1
	}
	return 0
}

func (s *Snapshot) collect(ch chan<- prometheus.Metric) {
	buildInfo.emit(ch, 1, s.Node, s.Version)
	for i := range s.Resources {
		s.Resources[i].collect(ch)
	}
	for _, d := range s.Fences {
		fenceOK.emit(ch, truth(d.OK), d.Name)
		if !d.Checked.IsZero() {
			fenceAge.emit(ch, float64(d.Checked.UnixNano())/1e9, d.Name)
		}
	}
}

func (r *Resource) collect(ch chan<- prometheus.Metric) {
	resourceState.emit(ch, 1, r.Name, r.State)
	restarts.emit(ch, float64(r.Restarts), r.Name)
	if l := r.Licence; l != nil {
		term.emit(ch, float64(l.Term), r.Name)
		left := l.Left.Seconds()
		if l.Right == control.RightUnlimited {
			left = math.Inf(1)
		}
		licence.emit(ch, left, r.Name, l.Right)
		for _, n := range l.InSync {
			inSync.emit(ch, 1, r.Name, n)
		}
		if l.Holder != "" {
			holder.emit(ch, 1, r.Name, l.Holder)
		}
		questions.emit(ch, float64(l.Waiting), r.Name)
	}
	for _, s := range r.Services {
		service.emit(ch, 1, r.Name, s.Name, s.State)
		serviceFail.emit(ch, truth(s.Failed), r.Name, s.Name)
	}
	st := r.Status
	if st == nil {
		return
	}
	resourceRole.emit(ch, 1, r.Name, st.Role)
	started.emit(ch, float64(st.Started.UnixNano())/1e9, r.Name)
	for _, why := range st.Suspended {
		resourceSuspended.emit(ch, 1, r.Name, why)
	}
	for i := range st.Volumes {
		collectVolume(ch, r.Name, &st.Volumes[i])
	}
	for i := range st.Peers {
		collectPeer(ch, r.Name, &st.Peers[i])
	}
}

func collectVolume(ch chan<- prometheus.Metric, resource string, v *control.VolumeStatus) {
	n := strconv.Itoa(v.Number)
	diskState.emit(ch, 1, resource, n, v.DiskState)
	size.emit(ch, float64(v.Size), resource, n)
	read.emit(ch, float64(v.Read), resource, n)
	written.emit(ch, float64(v.Written), resource, n)
	alWrites.emit(ch, float64(v.ALWrites), resource, n)
	bmWrites.emit(ch, float64(v.BMWrites), resource, n)
	upperPending.emit(ch, float64(v.UpperPending), resource, n)
	lowerPending.emit(ch, float64(v.LowerPending), resource, n)
	undoLogs.emit(ch, float64(v.Undo), resource, n)
	count := map[string]int{}
	for _, f := range v.Front {
		count[f.Kind]++
	}
	for kind, c := range count {
		clients.emit(ch, float64(c), resource, n, kind)
	}
}

func collectPeer(ch chan<- prometheus.Metric, resource string, p *control.PeerStatus) {
	connectionState.emit(ch, 1, resource, p.Name, p.Connection)
	peerRole.emit(ch, 1, resource, p.Name, p.Role)
	protocol.emit(ch, 1, resource, p.Name, p.Protocol)
	congested.emit(ch, truth(p.Congested), resource, p.Name)
	inFlight.emit(ch, float64(p.InFlight), resource, p.Name)
	for i := range p.Volumes {
		v := &p.Volumes[i]
		n := strconv.Itoa(v.Number)
		replication.emit(ch, 1, resource, p.Name, n, v.Replication)
		peerDisk.emit(ch, 1, resource, p.Name, n, v.DiskState)
		outOfSync.emit(ch, float64(v.OutOfSync), resource, p.Name, n)
		sent.emit(ch, float64(v.Sent), resource, p.Name, n)
		received.emit(ch, float64(v.Received), resource, p.Name, n)
		pending.emit(ch, float64(v.Pending), resource, p.Name, n)
		unacked.emit(ch, float64(v.Unacked), resource, p.Name, n)
		last := v.LastSync
		if s := v.Sync; s != nil {
			syncDone.emit(ch, s.Percent/100, resource, p.Name, n, s.Kind)
			syncRate.emit(ch, float64(s.Rate), resource, p.Name, n, s.Kind)
			if s.ETA >= 0 {
				syncLeft.emit(ch, s.ETA, resource, p.Name, n, s.Kind)
			}
			if s.Kind == "verify" {
				last = s
			}
		}
		if last != nil && last.Kind == "verify" {
			mismatches.emit(ch, float64(last.Mismatches), resource, p.Name, n)
		}
	}
}
