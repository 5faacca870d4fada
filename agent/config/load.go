package config

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
)

// Set is all resources of a node's folder, in the order of the files.
type Set struct {
	Resources []Resource
	Warnings  []Warning // what of drbd.conf files hawser does in another way
}

// Resource finds a resource by name.
func (s *Set) Resource(name string) (*Resource, bool) {
	for i := range s.Resources {
		if s.Resources[i].Name == name {
			return &s.Resources[i], true
		}
	}
	return nil, false
}

// Names lists the resources.
func (s *Set) Names() []string {
	var names []string
	for _, r := range s.Resources {
		names = append(names, r.Name)
	}
	return names
}

// Load is LoadFor nobody: host sections of drbd.conf files keep their names, and floating ones have none.
func Load(dir string) (*Set, error) { return LoadFor(dir, "") }

// LoadFor reads every *.yaml and *.yml of a folder, and as one configuration every *.conf and *.res, which have the syntax
// of drbd.conf; node is who reads them. The error joins all that is wrong; the Set is then what is right, since one broken file
// should not keep the others from starting. It is nil only when the folder cannot be read.
func LoadFor(dir, node string) (*Set, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	s := &Set{}
	var list []*Error
	var common, drbd []string
	for _, e := range entries { // sorted by name
		file := filepath.Join(dir, e.Name())
		if e.IsDir() || strings.HasPrefix(e.Name(), ".") {
			continue
		}
		switch filepath.Ext(file) {
		case ".conf": // global and common should come first
			common = append(common, file)
		case ".res":
			drbd = append(drbd, file)
		case ".yaml", ".yml":
			data, err := os.ReadFile(file)
			if err != nil {
				list = append(list, &Error{File: file, Reason: err.Error()})
				continue
			}
			rs, err := Parse(file, data)
			list = append(list, Errors(err)...)
			s.Resources = append(s.Resources, rs...)
		}
	}
	rs, warnings, err := ReadDRBD(append(common, drbd...), DRBDOptions{Node: node, Local: LocalAddress, All: true})
	list = append(list, Errors(err)...)
	s.Resources, s.Warnings = append(s.Resources, rs...), warnings
	good, err := CheckSet(s.Resources)
	s.Resources = good
	return s, join(append(list, Errors(err)...))
}

// CheckSet looks for what resources take from each other: names, addresses,
// disks, device names. It returns those that get along; of two that do not, the
// first stays.
func CheckSet(resources []Resource) ([]Resource, error) {
	var good []Resource
	var list []*Error
	names := map[string]*Resource{}
	addresses := map[netip.AddrPort]string{}
	listeners := map[string]users{} // by node
	disks, devices := map[string]users{}, map[string]users{}
	for i := range resources {
		r := &resources[i]
		c := complaints{file: r.File, at: r.at}
		if other, twice := names[r.Name]; twice {
			where := ""
			if other.File != "" {
				where = fmt.Sprintf(" in %s:%d", other.File, other.at["resource"].line)
			}
			c.add("resource", fmt.Sprintf("resource %s is already defined%s", r.Name, where), "")
			list = append(list, c.list...)
			continue
		}
		names[r.Name] = r
		mine := map[netip.AddrPort]string{}
		for j, n := range r.Nodes {
			for _, u := range []map[string]users{disks, devices, listeners} {
				if u[n.Name] == nil {
					u[n.Name] = users{}
				}
			}
			r.claims(&c, n, disks[n.Name], devices[n.Name])
			r.claimAddresses(&c, j, addresses, mine)
			r.claimListener(&c, j, addresses, mine, listeners[n.Name])
		}
		for a, who := range mine {
			addresses[a] = who
		}
		list = append(list, c.list...)
		if len(c.list) == 0 {
			good = append(good, *r)
		}
	}
	return good, join(append(list, checkServiceSet(resources)...))
}

// claimAddresses notes where node j is reached.
func (r *Resource) claimAddresses(c *complaints, j int, taken, mine map[netip.AddrPort]string) {
	n := r.Nodes[j]
	claim := func(path, text string) {
		a, why := parseAddress(text, false)
		if why != "" {
			return
		}
		if who, ok := taken[a]; ok {
			c.add(path, fmt.Sprintf("%s is the address of %s too", text, who), "each resource needs its own port")
			return
		}
		mine[a] = "resource " + r.Name
	}
	claim(fmt.Sprintf("nodes[%d].address", j), n.Address)
	for i, conn := range r.Connections {
		if a, ok := conn.Addresses.Get(n.Name); ok {
			claim(fmt.Sprintf("connections[%d].addresses.%s", i, n.Name), a)
		}
	}
}

// claimListener notes where the NBD server of node j listens.
func (r *Resource) claimListener(c *complaints, j int, taken, mine map[netip.AddrPort]string, listeners users) {
	n := r.Nodes[j]
	path := "nbd.listen"
	if _, ok := n.NBD.Get("listen"); ok {
		path = fmt.Sprintf("nodes[%d].nbd.listen", j)
	}
	all := overlay(r.NBD, n.NBD)
	if text, ok := all.Get("listen"); ok {
		a, why := parseAddress(text, true)
		if why != "" {
			return
		}
		who, used := taken[a]
		if !used {
			who, used = mine[a]
		}
		if !used {
			who = listeners.claim(a.String(), "the NBD server of "+r.Name)
		}
		if who != "" {
			c.add(path, fmt.Sprintf("%s is used by %s on node %s too", text, who, n.Name), "each resource needs its own port")
		}
	}
	if text, ok := all.Get("unix"); ok {
		if who := listeners.claim(text, "the NBD server of "+r.Name); who != "" {
			c.add(strings.TrimSuffix(path, "listen")+"unix", fmt.Sprintf("%s is used by %s on node %s too", text, who, n.Name), "each resource needs its own")
		}
	}
}

// On lists the resources that node is part of.
func (s *Set) On(node string) []*Resource {
	var list []*Resource
	for i := range s.Resources {
		if s.Resources[i].find(node) >= 0 {
			list = append(list, &s.Resources[i])
		}
	}
	return list
}
