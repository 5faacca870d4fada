package drbdconf

import (
	"fmt"
	"net/netip"
	"strings"
)

// Pos is a place in a file, lines and columns (bytes) from 1.
type Pos struct {
	File      string
	Line, Col int
}

func (p Pos) String() string { return fmt.Sprintf("%s:%d", p.File, p.Line) }

// Config is a configuration with all files it includes.
type Config struct {
	File      string   // the first file
	Files     []string // every file that was read, templates too
	Global    *Section // flags have no value
	Common    *Sections
	Resources []*Resource // in the order of the files
	Requires  []Require

	expanded bool
}

// Resource finds a resource by name, nil for none.
func (c *Config) Resource(name string) *Resource {
	for _, r := range c.Resources {
		if r.Name == name {
			return r
		}
	}
	return nil
}

// Require is a statement require-drbd-module-version-OP VERSION.
type Require struct {
	Pos         Pos
	Op, Version string
}

// Option is one setting. Value is as written, "" for a flag; a boolean has yes or no whatever its spelling was.
type Option struct {
	Name, Value string
	Flag        bool   // stands without a value
	Void        bool   // names what does not exist: set by Verify for resync-after
	From        string // the section it stood in, where version 9 has it elsewhere: disk or syncer
	Pos         Pos

	seq int // order of appearance
}

// Options are settings in the order of the file.
type Options []Option

// Get finds a setting.
func (o Options) Get(name string) (Option, bool) {
	for _, x := range o {
		if x.Name == name {
			return x, true
		}
	}
	return Option{}, false
}

// Section is a section of options.
type Section struct {
	Pos     Pos
	Options Options
	Plugins []string // of proxy: one statement each
}

// Sections are those a resource, and common, can have. A nil one is not there.
type Sections struct {
	Pos                                          Pos
	Options, Net, Disk, Startup, Handlers, Proxy *Section
}

// named lists the sections in the order of a dump.
func (s *Sections) named() []struct {
	name string
	at   **Section
} {
	return []struct {
		name string
		at   **Section
	}{{"options", &s.Options}, {"net", &s.Net}, {"disk", &s.Disk}, {"startup", &s.Startup}, {"proxy", &s.Proxy},
		{"handlers", &s.Handlers}}
}

// Get is a section's options, by the name of the section.
func (s *Sections) Get(section string) Options {
	if s == nil {
		return nil
	}
	for _, x := range s.named() {
		if x.name == section && *x.at != nil {
			return (*x.at).Options
		}
	}
	return nil
}

// Resource is a resource as written.
type Resource struct {
	Sections
	Name        string
	Template    string    // file, "" for none
	TemplateFor *Sections // its common section; it replaces that of the configuration
	Volumes     []*Volume
	Hosts       []*Host
	Connections []*Connection
	Mesh        *Mesh
	IgnoreOn    []string

	common *Sections // the configuration's
}

// Common is where the resource inherits from: its template, else common. It may be nil.
func (r *Resource) Common() *Sections {
	if r.Template != "" {
		return r.TemplateFor
	}
	return r.common
}

// Volume is a volume of a resource, or what a host has of it.
type Volume struct {
	Pos        Pos
	Number     int
	Implicit   bool // written without volume 0 { }
	Device     *Device
	Disk       string // "" is not said, None is diskless
	DiskPos    Pos
	Options    *Section // disk { }
	MetaDisk   *MetaDisk
	Tiebreaker *Option
}

// None is the disk of a diskless volume.
const None = "none"

// Device names a volume's device. Name is "" where only the minor was written.
type Device struct {
	Pos   Pos
	Name  string
	Minor int
}

// Path is the name, or the one made of the minor.
func (d *Device) Path() string {
	if d.Name != "" {
		return d.Name
	}
	return fmt.Sprintf("/dev/drbd%d", d.Minor)
}

// MetaDisk says where metadata is. Path is Internal or a device; Index is -1 without one.
type MetaDisk struct {
	Pos   Pos
	Path  string
	Index int
}

// Internal is metadata at the end of the disk.
const Internal = "internal"

// HostKind is how a host section was written.
type HostKind uint8

// Host sections.
const (
	On       HostKind = iota // on NAME
	Floating                 // floating ADDRESS
	Stacked                  // stacked-on-top-of RESOURCE
)

// Host is a host section.
type Host struct {
	Pos       Pos
	Kind      HostKind
	Names     []string // of Stacked: all hosts of the lower resource, after Check
	Lower     string   // the resource below
	NodeID    int      // -1 is not known
	Generated bool     // the id was not written but computed
	Address   *Address
	Options   *Section
	Volumes   []*Volume
	Proxy     *Proxy

	below *Resource // of Stacked
}

// Name is how connections call the host: its name, the names of all, or for a floating one its address.
func (h *Host) Name() string {
	if h.Kind == Floating && h.Address != nil {
		return h.Address.Text + "_" + h.Address.Port
	}
	return strings.Join(h.Names, "_")
}

// label is the host in a message.
func (h *Host) label() string {
	switch h.Kind {
	case Floating:
		return "floating " + h.Address.String()
	case Stacked:
		return "stacked-on-top-of " + h.Lower
	}
	return "on " + strings.Join(h.Names, " ")
}

// who is the host in the middle of a message.
func (h *Host) who() string {
	if h.Kind == On {
		return strings.Join(h.Names, " ")
	}
	return h.label()
}

// Volume finds what the host says of a volume, nil for nothing.
func (h *Host) Volume(number int) *Volume { return findVolume(h.Volumes, number) }

func findVolume(list []*Volume, number int) *Volume {
	for _, v := range list {
		if v.Number == number {
			return v
		}
	}
	return nil
}

// Address is where a host is reached. Text, without brackets, and Port are as written.
type Address struct {
	Pos        Pos
	Family     string // ipv4, ipv6, ssocks or sdp
	Text, Port string
	IP         netip.Addr
}

func (a *Address) String() string {
	if a.Family == "ipv6" {
		return "[" + a.Text + "]:" + a.Port
	}
	return a.Text + ":" + a.Port
}

// with is the address with another port.
func (a *Address) with(port string) *Address {
	b := *a
	b.Port = port
	return &b
}

// Proxy is a proxy on hosts.
type Proxy struct {
	Pos             Pos
	Hosts           []string
	Inside, Outside *Address
	Options         *Section
}

// Connection is a connection as written.
type Connection struct {
	Pos       Pos
	Name      string
	Endpoints []Endpoint // without path { }
	Paths     []Path
	Net, Disk *Section
	Volumes   []*PeerVolume
	Implicit  bool // made by Expand or PrintXML
}

// Path is a path of a connection.
type Path struct {
	Pos       Pos
	Endpoints []Endpoint
}

// AllPaths are the paths, also where there is only one, written without path { }.
func (c *Connection) AllPaths() []Path {
	if len(c.Endpoints) > 0 {
		return append([]Path{{c.Pos, c.Endpoints}}, c.Paths...)
	}
	return c.Paths
}

// Endpoint is one end of a path.
type Endpoint struct {
	Pos     Pos
	Host    string
	Address *Address // nil is the host's
	Port    string   // in place of the host's, "" for none
	Proxy   *Proxy
	Outside *Address // via outside-address: where the peer connects to
}

// PeerVolume is what a connection says of a volume.
type PeerVolume struct {
	Pos    Pos
	Number int
	Disk   *Section
}

// Mesh is a connection-mesh.
type Mesh struct {
	Pos   Pos
	Hosts []string
	Net   *Section
}
