package config

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

var provedBy = regexp.MustCompile(`^([a-z/]+)\.(Test[A-Za-z0-9]+)$`)

// Every option stands in docs/options.md with its default and a test that shows that it acts, and every such test exists.
func TestEveryOptionIsDocumentedAndProved(t *testing.T) {
	root := filepath.Join("..", "..")
	data, err := os.ReadFile(filepath.Join(root, "docs", "options.md"))
	if err != nil {
		t.Fatal(err)
	}
	rows := map[string][]string{}
	for line := range strings.Lines(string(data)) {
		cells := strings.Split(strings.Trim(strings.TrimSpace(line), "|"), "|")
		if len(cells) != 6 || !strings.HasPrefix(cells[0], " `") {
			continue
		}
		for i := range cells {
			cells[i] = strings.TrimSpace(cells[i])
		}
		rows[strings.Trim(cells[0], "`")] = cells
	}
	for i := range table {
		o := &table[i]
		row := rows[o.name]
		if row == nil {
			t.Errorf("%s is not in docs/options.md", o.name)
			continue
		}
		delete(rows, o.name)
		want := o.def
		if want == "" {
			want = none
		}
		if o.name == "unix" {
			want = "/run/hawser/nbd/RES.sock"
		}
		if row[2] != want {
			t.Errorf("%s: default %s in docs/options.md, %s here", o.name, row[2], want)
		}
		for proof := range strings.SplitSeq(row[5], ", ") {
			m := provedBy.FindStringSubmatch(proof)
			if m == nil || !hasTest(t, filepath.Join(root, filepath.FromSlash(m[1])), m[2]) {
				t.Errorf("%s: there is no test %s", o.name, proof)
			}
		}
	}
	for name := range rows {
		t.Errorf("%s is in docs/options.md and is no option", name)
	}
	for _, h := range handlers {
		if !strings.Contains(string(data), "`"+h+"`") {
			t.Errorf("handler %s is not in docs/options.md", h)
		}
	}
}

func hasTest(t *testing.T, dir, name string) bool {
	files, err := filepath.Glob(filepath.Join(dir, "*_test.go"))
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		data, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(string(data), "\nfunc "+name+"(t ") {
			return true
		}
	}
	return false
}
