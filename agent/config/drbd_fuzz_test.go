package config

import (
	"io/fs"
	"os"
	"path/filepath"
	"testing"
)

// oneFile is a drbd.conf that includes nothing that exists.
type oneFile []byte

func (f oneFile) Read(name string) ([]byte, error) {
	if name != "/f.conf" {
		return nil, fs.ErrNotExist
	}
	return f, nil
}
func (oneFile) Glob(string) ([]string, error) { return nil, nil }
func (oneFile) Canonical(name string) string  { return name }

// Whatever stands in a drbd.conf: what comes out is a resource that is right, on each of its nodes, in YAML and as
// drbd.conf.
func FuzzReadDRBD(f *testing.F) {
	files, err := filepath.Glob(drbdSamples + "/*.conf")
	if err != nil || len(files) == 0 {
		f.Fatal(files, err)
	}
	for _, name := range files {
		data, err := os.ReadFile(name)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		rs, warnings, err := readDRBD(oneFile(data), []string{"/f.conf"}, as("alpha"))
		for _, w := range warnings {
			if w.Text == "" {
				t.Fatalf("a warning without text: %+v", w)
			}
		}
		for _, e := range Errors(err) {
			if e.Reason == "" {
				t.Fatalf("an error without reason: %+v", e)
			}
		}
		for _, r := range rs {
			text := Marshal(r)
			again, err := Parse("again.yaml", text)
			if err != nil || len(again) != 1 {
				t.Fatalf("%v in\n%s\nfrom\n%s", err, text, data)
			}
			for _, n := range r.Nodes {
				if _, err := again[0].Definition(n.Name); err != nil {
					t.Fatalf("%v in\n%s\nfrom\n%s", err, text, data)
				}
			}
			back, _ := MarshalDRBD(again)
			if got, _, err := readDRBD(oneFile(back), []string{"/f.conf"}, as("alpha")); err != nil || len(got) != 1 {
				t.Fatalf("%v in\n%s\nfrom\n%s", err, back, data)
			}
		}
	})
}
