package config

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"

	"github.com/hawser-ha/hawser/agent/drbdconf"
)

// Warning names something of a drbd.conf that hawser does in another way.
type Warning struct {
	File     string
	Line     int
	Resource string // "" is all, or common
	Option   string // name, "" for what is no option
	Text     string // what hawser does
	Note     bool   // nothing is lost: hawser does what is asked anyway, or it has no meaning here
}

func (w Warning) String() string {
	s := w.Text
	if w.Option != "" {
		s = w.Option + ": " + s
	}
	if w.Resource != "" {
		s = "resource " + w.Resource + ": " + s
	}
	if w.File != "" {
		s = fmt.Sprintf("%s:%d: %s", w.File, w.Line, s)
	}
	return s
}

// DRBDOptions say for whom a drbd.conf is read.
type DRBDOptions struct {
	Node string // its name; a host section that means it gets this name
	// Local tells which addresses are of this node: floating host sections are found by it. nil is none.
	Local func(netip.Addr) bool
	Only  []string // resources, nil for all that have a host section for Node
	All   bool     // those without one too
}

// OSFiles is where drbd.conf files are read from.
func OSFiles() drbdconf.Source { return osFiles{} }

type osFiles struct{}

func (osFiles) Read(name string) ([]byte, error) {
	data, err := os.ReadFile(name)
	if e, ok := errors.AsType[*fs.PathError](err); ok {
		return nil, e.Err // the name stands in the message already
	}
	return data, err
}

func (osFiles) Glob(pattern string) ([]string, error) { return filepath.Glob(pattern) }

func (osFiles) Canonical(name string) string {
	if real, err := filepath.EvalSymlinks(name); err == nil {
		name = real
	}
	if abs, err := filepath.Abs(name); err == nil {
		name = abs
	}
	return name
}

// LocalAddress tells whether an address is of this host.
func LocalAddress(a netip.Addr) bool {
	list, err := net.InterfaceAddrs()
	if err != nil {
		return false
	}
	return slices.ContainsFunc(list, func(n net.Addr) bool {
		p, err := netip.ParsePrefix(n.String())
		return err == nil && p.Addr().WithZone("") == a.WithZone("").Unmap()
	})
}

// ReadDRBD reads the resources of one or more files in the syntax of drbd.conf, and what they include, as one
// configuration. The error joins what is wrong with the files, and why resources cannot run here; the resources are
// those that can. Warnings name every option that hawser does not do as it is written.
func ReadDRBD(files []string, o DRBDOptions) ([]Resource, []Warning, error) {
	return readDRBD(osFiles{}, files, o)
}

func readDRBD(src drbdconf.Source, files []string, o DRBDOptions) ([]Resource, []Warning, error) {
	if len(files) == 0 {
		return nil, nil, nil
	}
	cfg, err := drbdconf.Parse(src, files[0], drbdconf.ParseOptions{Extra: files[1:]})
	var list []*Error
	var warnings []Warning
	broken := map[string]bool{} // resources, or files with errors outside of resources
	sort := func(found []*drbdconf.Error, conflicts bool) {
		was := maps.Clone(broken)
		for _, e := range found {
			w := Warning{File: e.Pos.File, Line: e.Pos.Line, Resource: e.Resource, Text: e.Reason}
			if e.Hint != "" {
				w.Text += " (" + e.Hint + ")"
			}
			key := "resource " + e.Resource
			if e.Resource == "" {
				key = "file " + e.Pos.File
			}
			switch {
			case e.Resource != "" && o.passes(cfg, e.Resource) != nil, was[key], e.Stage == drbdconf.Local:
			case e.Stage == drbdconf.Warn, e.Stage == drbdconf.Expand && !conflicts:
				warnings = append(warnings, w)
			default:
				list = append(list, &Error{File: e.Pos.File, Line: e.Pos.Line, Col: e.Pos.Col, Path: pathOf(e.Resource), Reason: e.Reason, Hint: e.Hint})
				broken[key] = true
			}
		}
	}
	// The same option twice in one section is an error; of two sections the more specific one wins. What one resource
	// has wrong keeps none of the others from starting.
	sort(drbdconf.Errors(err), true)
	sort(drbdconf.Errors(drbdconf.Verify(cfg, drbdconf.VerifyOptions{Host: o.Node, Local: o.Local, Module: "any"})), false)
	cv := &converter{o: o, seen: map[string]bool{}}
	cv.outside(cfg)
	for _, name := range o.Only {
		if cfg.Resource(name) == nil && len(list) == 0 {
			list = append(list, &Error{File: cfg.File, Reason: "there is no resource " + name})
		}
	}
	var out []Resource
	for _, r := range cfg.Resources {
		if why := o.passes(cfg, r.Name); why != nil {
			if len(o.Only) == 0 {
				warnings = append(warnings, *why)
			}
			continue
		}
		if broken["resource "+r.Name] || broken["resource common"] || broken["file "+r.Pos.File] {
			continue
		}
		got, errs := cv.resource(cfg, r)
		list = append(list, errs...)
		if len(errs) == 0 {
			out = append(out, *got)
		}
	}
	warnings = append(warnings, cv.warnings...)
	slices.SortStableFunc(warnings, func(a, b Warning) int { return cmp.Or(cmp.Compare(a.File, b.File), cmp.Compare(a.Line, b.Line)) })
	return out, warnings, join(list)
}

func pathOf(resource string) string {
	if resource == "" || resource == "common" {
		return resource
	}
	return "resource " + resource
}

// passes is nil for a resource that is wanted, and otherwise says why it is not.
func (o DRBDOptions) passes(cfg *drbdconf.Config, name string) *Warning {
	r := cfg.Resource(name)
	if r == nil {
		return nil
	}
	w := &Warning{File: r.Pos.File, Line: r.Pos.Line, Resource: name, Note: true}
	switch {
	case len(o.Only) > 0 && !slices.Contains(o.Only, name):
		w.Text = "not asked for"
	case len(o.Only) == 0 && !o.All && len(r.Hosts) > 0 && r.Self(drbdconf.VerifyOptions{Host: o.Node, Local: o.Local}) == nil:
		w.Text = "has no host section for " + o.Node + " and is left out"
	default:
		return nil
	}
	return w
}
