package pacemaker

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
)

func load(t testing.TB, name string) []byte {
	t.Helper()
	data, err := os.ReadFile(filepath.Join("testdata", name))
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// The CIB of Pacemaker 1.1 (master, Master, no Promoted) and that of 2.1 (promotable clones).
func TestParseCIB(t *testing.T) {
	for _, c := range []struct {
		file            string
		quorum, stonith bool
		newRoles        bool
		clone           string
	}{
		{"cib-old.xml", true, false, false, "ms_drbd"},
		{"cib-new.xml", true, true, true, "r0-clone"},
	} {
		cib, err := ParseCIB(load(t, c.file))
		if err != nil {
			t.Fatal(err)
		}
		clone, err := cib.Clone("r0")
		if err != nil || clone != c.clone || cib.Quorum != c.quorum || cib.Stonith != c.stonith || cib.NewRoles != c.newRoles {
			t.Errorf("%s: %q %v, quorum %v, stonith %v, new roles %v", c.file, clone, err, cib.Quorum, cib.Stonith, cib.NewRoles)
		}
		if !slices.Equal(cib.Nodes, []string{"n1", "n2"}) {
			t.Errorf("%s: nodes %v", c.file, cib.Nodes)
		}
		if _, err := cib.Clone("other"); err == nil {
			t.Errorf("%s: there is no clone of other", c.file)
		}
		if _, err := cib.Clone("plain"); err == nil {
			t.Errorf("%s: a clone that cannot be promoted was taken", c.file)
		}
		bans := cib.Bans("r0")
		if want := []Ban{NewBan("r0", c.clone, "n1", "n2")}; !slices.Equal(bans, want) {
			t.Errorf("%s: bans %+v, want %+v", c.file, bans, want)
		}
	}
}

func TestABanIsReadAsItWasWritten(t *testing.T) {
	for _, newRoles := range []bool{false, true} {
		b := NewBan("r.0-x", "ms-r.0-x", "node-b.example", "node-a.example")
		text := `<cib validate-with="pacemaker-3.9"><configuration><constraints>` + b.XML(newRoles) + `</constraints></configuration></cib>`
		cib, err := ParseCIB([]byte(text))
		if err != nil {
			t.Fatal(err)
		}
		if got := cib.Bans("r.0-x"); !slices.Equal(got, []Ban{b}) {
			t.Errorf("%+v, want %+v", got, b)
		}
		if got := cib.Bans("r.0"); len(got) != 0 {
			t.Errorf("a ban of another resource was taken: %+v", got)
		}
	}
	if a, b := NewBan("r0", "c", "n1", "n2"), NewBan("r0", "c", "n2", "n1"); a.ID != b.ID {
		t.Error("the two nodes of a pair could ban each other")
	}
}

func TestParseMonitor(t *testing.T) {
	for _, file := range []string{"mon-old.xml", "mon-new.xml"} {
		m, err := ParseMonitor(load(t, file))
		if err != nil {
			t.Fatal(err)
		}
		n2, ok := m.Node("n2")
		if n1, _ := m.Node("n1"); !ok || !n1.Online || n1.Unclean || n2.Online || !n2.Unclean {
			t.Errorf("%s: %+v %+v", file, n1, n2)
		}
		clone := map[string]string{"mon-old.xml": "ms_drbd", "mon-new.xml": "r0-clone"}[file]
		if !m.Promoted(clone, "n1") || m.Promoted(clone, "n2") || m.Promoted("other", "n1") {
			t.Errorf("%s: promoted %q", file, m.promoted)
		}
	}
	if _, err := ParseMonitor([]byte(`<crm_mon/>`)); err == nil {
		t.Error("an empty answer was taken")
	}
}

func FuzzParseCIB(f *testing.F) {
	f.Add(load(f, "cib-old.xml"))
	f.Add(load(f, "cib-new.xml"))
	f.Fuzz(func(t *testing.T, data []byte) {
		cib, err := ParseCIB(data)
		if err != nil {
			return
		}
		_, _ = cib.Clone("r0") // it may not panic
		for _, b := range cib.Bans("r0") {
			again, err := ParseCIB([]byte(`<constraints>` + b.XML(true) + `</constraints>`))
			if err != nil {
				t.Fatalf("%+v: %v", b, err)
			}
			if got := again.Bans("r0"); len(got) != 1 || got[0] != b {
				t.Fatalf("%+v became %+v", b, got)
			}
		}
	})
}

func FuzzParseMonitor(f *testing.F) {
	f.Add(load(f, "mon-old.xml"))
	f.Add(load(f, "mon-new.xml"))
	f.Fuzz(func(t *testing.T, data []byte) {
		m, err := ParseMonitor(data)
		if err == nil && len(m.nodes) == 0 {
			t.Fatal("no nodes and no error")
		}
	})
}
