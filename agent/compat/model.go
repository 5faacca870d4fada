package compat

// Resource is one resource that is up, as DRBD would see it.
type Resource struct {
	Name            string
	NodeID          int
	Role            string
	Suspended       []string // user, no-data, fencing, quorum
	ForceIOFailures bool
	WriteOrdering   string // none, drain, flush, barrier
	MayNotPromote   bool   // something beyond what DRBD looks at forbids it
	Devices         []Device
	Connections     []Connection
}

// Device is a volume on this node.
type Device struct {
	Volume, Minor              int
	Backing                    string // "" is diskless
	Disk                       string
	Client, Open, Quorum       bool
	Size, Read, Written        uint64 // KiB
	ALWrites, BMWrites         uint64
	UpperPending, LowerPending uint64
	ALSuspended                bool
	Blocked                    string // no, upper, lower
}

// Connection is the link to a peer.
type Connection struct {
	PeerNodeID      int
	Name            string
	State, PeerRole string
	Congested, TLS  bool
	APInFlight      uint64  // sectors
	RSInFlight      *uint64 // sectors, nil is not known
	Paths           []Path
	PeerDevices     []PeerDevice
}

// Path is one way to a peer.
type Path struct {
	Local, Peer Address
	Established bool
}

// Address is an end of a path.
type Address struct {
	Family, IP string
	Port       int
}

// PeerDevice is a volume as seen over a connection.
type PeerDevice struct {
	Volume            int
	Replication, Disk string
	Client            bool
	ResyncSuspended   string // no, or a comma list
	Received, Sent    uint64 // KiB
	OutOfSync         uint64 // KiB
	Pending, Unacked  uint64
	Sync              *Sync // of the resync or verify that runs
}

// Sync is a resync or a verify that runs. Counts are sectors, times milliseconds.
type Sync struct {
	Verify                bool
	Total, Left           uint64
	DtStart, Paused       uint64
	Dt0, Db0, Dt1, Db1    uint64 // two windows of the past
	Failed, SameCsum      uint64
	Start, Stop, Position uint64 // of a verify
	Want                  uint64 // KiB/s
}

// Done is the percentage that is done.
func (s *Sync) Done() float64 {
	if s.Total == 0 {
		return 100
	}
	return 100 * float64(s.Total-min(s.Left, s.Total)) / float64(s.Total)
}

// rate is sectors in a time as MiB/s.
func rate(sectors, ms uint64) float64 {
	if sectors == 0 {
		return 0
	}
	return float64(sectors) / 2048 / (float64(max(ms, 1)) / 1000)
}

// ETA is how many seconds are left at the speed of the last window.
func (s *Sync) ETA() uint64 {
	perSecond := rate(s.Db1, s.Dt1) * 2048
	if perSecond == 0 {
		return 0
	}
	return uint64(float64(s.Left) / perSecond)
}

// overall is the speed since the start.
func (s *Sync) overall() float64 { return rate(s.Total-min(s.Left, s.Total), s.DtStart) }

// percentInSync is how much of a volume is the same on both sides.
func percentInSync(size, outOfSync uint64) float64 {
	if size == 0 {
		return 100
	}
	return 100 * (1 - float64(outOfSync)/float64(size))
}

// Device finds a volume, nil for none.
func (r *Resource) Device(volume int) *Device {
	for i := range r.Devices {
		if r.Devices[i].Volume == volume {
			return &r.Devices[i]
		}
	}
	return nil
}

// Connection finds a peer by its id, nil for none.
func (r *Resource) Connection(id int) *Connection {
	for i := range r.Connections {
		if r.Connections[i].PeerNodeID == id {
			return &r.Connections[i]
		}
	}
	return nil
}

// PeerDevice finds a volume of a connection, nil for none.
func (c *Connection) PeerDevice(volume int) *PeerDevice {
	for i := range c.PeerDevices {
		if c.PeerDevices[i].Volume == volume {
			return &c.PeerDevices[i]
		}
	}
	return nil
}

// Replicas counts how many disks of a volume are UpToDate, the local one among them.
func (r *Resource) replicas(d *Device) int {
	n := 0
	if d.Disk == "UpToDate" {
		n++
	}
	for i := range r.Connections {
		if p := r.Connections[i].PeerDevice(d.Volume); p != nil && p.Disk == "UpToDate" {
			n++
		}
	}
	return n
}

// Promotion tells whether the resource may be promoted here, and how good a place this is: the more, the better.
func (r *Resource) Promotion() (may bool, score int) {
	may = r.Role == "Secondary" && len(r.Devices) > 0 && !r.MayNotPromote && !r.ForceIOFailures
	for i := range r.Connections {
		may = may && r.Connections[i].PeerRole != "Primary"
	}
	const most = 99
	disks, upToDate, replicas := true, 0, most
	for i := range r.Devices {
		d := &r.Devices[i]
		n := r.replicas(d)
		if !d.Quorum || n == 0 {
			return false, 0
		}
		may = may && r.inReach(d)
		disks = disks && d.Disk != "Diskless"
		if d.Disk == "UpToDate" {
			upToDate++
		}
		replicas = min(replicas, n)
	}
	if len(r.Devices) == 0 || r.ForceIOFailures {
		return false, 0
	}
	if disks {
		score = 10000
	}
	return may, score + 100*min(upToDate, most) + replicas
}

// inReach tells whether good data of a volume is here or on a peer that answers.
func (r *Resource) inReach(d *Device) bool {
	if d.Disk == "UpToDate" {
		return true
	}
	for i := range r.Connections {
		c := &r.Connections[i]
		if p := c.PeerDevice(d.Volume); c.State == "Connected" && p != nil && p.Disk == "UpToDate" && p.Replication != "Off" {
			return true
		}
	}
	return false
}
