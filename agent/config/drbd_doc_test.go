package config

import (
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/hawser-ha/hawser/agent/drbdconf"
)

// The lists in docs/drbd-conf.md are those of the program.
func TestDRBDDocument(t *testing.T) {
	const file = "../../docs/drbd-conf.md"
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var honoured, lacking strings.Builder
	last := ""
	for _, s := range drbdconf.Specs() {
		if s.Section == "proxy" { // refused as a whole
			continue
		}
		x, instead := insteadOf[s.Section+" "+s.Name]
		switch {
		case instead:
			same := ""
			if len(x.same) > 0 {
				same = "`" + strings.Join(x.same, "`, `") + "`"
			}
			fmt.Fprintf(&lacking, "| %s | `%s` | %s | %s |\n", s.Section, s.Name, x.text, same)
		case s.Section != last:
			last = s.Section
			fmt.Fprintf(&honoured, "\n- %s: `%s`", s.Section, s.Name)
		default:
			fmt.Fprintf(&honoured, ", `%s`", s.Name)
		}
	}
	var values strings.Builder
	for _, name := range slices.Sorted(maps.Keys(otherValue)) {
		for _, v := range slices.Sorted(maps.Keys(otherValue[name])) {
			x := otherValue[name][v]
			fmt.Fprintf(&values, "| `%s %s` | `%s`: %s |\n", name, v, x.use, x.why)
		}
	}
	text := string(data)
	for mark, body := range map[string]string{"honoured": strings.TrimPrefix(honoured.String(), "\n"),
		"instead": "| section | option | what hawser does | only a note for |\n|---|---|---|---|\n" + strings.TrimSuffix(lacking.String(), "\n"),
		"values":  "| written | taken |\n|---|---|\n" + strings.TrimSuffix(values.String(), "\n")} {
		head, rest, ok1 := strings.Cut(text, "<!-- "+mark+" -->\n")
		_, tail, ok2 := strings.Cut(rest, "<!-- end -->")
		if !ok1 || !ok2 {
			t.Fatalf("%s has no place for %s", file, mark)
		}
		text = head + "<!-- " + mark + " -->\n" + body + "\n<!-- end -->" + tail
	}
	golden(t, file, text)
}
