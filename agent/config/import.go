package config

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// ImportFile is one file that an import writes.
type ImportFile struct {
	Resource string
	Path     string
	Data     []byte
	Exists   bool // something is there already
	Secret   bool // not for everybody to read
}

// Import turns the resources of a drbd.conf into files for the folder dir, and writes nothing. The error joins what keeps
// it from being used: what is wrong with the file, what hawser cannot run, and what contradicts other files of the folder.
func Import(file, dir string, o DRBDOptions) ([]ImportFile, []Warning, error) {
	rs, warnings, err := ReadDRBD([]string{file}, o)
	list := Errors(err)
	var out []ImportFile
	for _, r := range rs {
		f := ImportFile{Resource: r.Name, Path: filepath.Join(dir, r.Name+".yaml")}
		if _, err := os.Lstat(f.Path); err == nil {
			f.Exists = true
		} else if !errors.Is(err, fs.ErrNotExist) {
			list = append(list, &Error{File: f.Path, Reason: err.Error()})
		}
		var b bytes.Buffer
		fmt.Fprintf(&b, "# From %s, line %d, by hawser import.\n", r.File, r.at[""].line)
		for _, w := range warnings {
			if !w.Note && (w.Resource == r.Name || w.Resource == "") {
				fmt.Fprintf(&b, "# %s\n", strings.Join(strings.Fields(w.String()), " "))
			}
		}
		b.Write(Marshal(r))
		f.Data = b.Bytes()
		for _, net := range append([]Options{r.Net}, netsOf(r.Connections)...) {
			if _, has := net.Get("shared-secret"); has {
				f.Secret = true
			}
		}
		out = append(out, f)
	}
	list = append(list, clashes(rs, out, dir, o.Node)...)
	return out, warnings, join(list)
}

func netsOf(list []Connection) []Options {
	var out []Options
	for _, c := range list {
		out = append(out, c.Net)
	}
	return out
}

// clashes looks at the resources that are in the folder and stay there.
func clashes(rs []Resource, files []ImportFile, dir, node string) []*Error {
	set, _ := LoadFor(dir, node) // what is wrong with it now is not the import's fault
	if set == nil {
		set = &Set{} // there is no folder yet
	}
	var list []*Error
	var stay []Resource
	for _, old := range set.Resources {
		i := slices.IndexFunc(files, func(f ImportFile) bool { return f.Path == old.File })
		if i >= 0 {
			continue // --force overwrites it
		}
		if j := slices.IndexFunc(rs, func(r Resource) bool { return r.Name == old.Name }); j >= 0 {
			list = append(list, &Error{File: rs[j].File, Line: rs[j].at[""].line, Path: "resource " + old.Name,
				Reason: "is already defined in " + old.File, Hint: "move that file away"})
			continue
		}
		stay = append(stay, old)
	}
	_, err := CheckSet(append(stay, rs...))
	for _, e := range Errors(err) {
		if slices.ContainsFunc(rs, func(r Resource) bool { return r.File == e.File }) {
			list = append(list, e)
		}
	}
	return list
}

// Write puts the file where it belongs; without force only where nothing is. A crash leaves the old file or the new one.
func (f *ImportFile) Write(force bool) error {
	mode := os.FileMode(0o644)
	if f.Secret {
		mode = 0o600
	}
	tmp, err := os.CreateTemp(filepath.Dir(f.Path), "."+f.Resource+".*.tmp")
	if err != nil {
		return err
	}
	defer os.Remove(tmp.Name()) //nolint:errcheck // it is gone when all went well
	_, err = tmp.Write(f.Data)
	err = errors.Join(err, tmp.Chmod(mode), tmp.Sync(), tmp.Close())
	if err != nil {
		return err
	}
	if force {
		return os.Rename(tmp.Name(), f.Path)
	}
	return os.Link(tmp.Name(), f.Path) // unlike rename it does not replace what is there
}
