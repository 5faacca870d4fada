package drbdconf

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
)

// tree writes a value without places, and without what only remembers how it was written.
func tree(b *strings.Builder, v reflect.Value) {
	switch v.Kind() {
	case reflect.Pointer:
		if v.IsNil() {
			b.WriteString("nil")
			return
		}
		tree(b, v.Elem())
	case reflect.Struct:
		b.WriteString(v.Type().Name() + "{")
		for i := range v.NumField() {
			switch f := v.Type().Field(i); {
			case f.Type == reflect.TypeFor[Pos](), f.Name == "seq", f.Name == "From", f.Name == "common", f.Name == "below", f.Name == "Files", f.Name == "Generated":
			case f.Name == "IP":
				fmt.Fprintf(b, "%s ", v.Field(i))
			default:
				b.WriteString(f.Name + ":")
				tree(b, v.Field(i))
			}
		}
		b.WriteString("}")
	case reflect.Slice:
		b.WriteString("[")
		for i := range v.Len() {
			tree(b, v.Index(i))
			b.WriteString(" ")
		}
		b.WriteString("]")
	default:
		fmt.Fprintf(b, "%#v ", v)
	}
}

func treeOf(cfg *Config) string {
	var b strings.Builder
	tree(&b, reflect.ValueOf(cfg))
	return b.String()
}

// roundTrip parses data, prints it and parses that: both are the same.
func roundTrip(t *testing.T, data []byte) bool {
	cfg, err := ParseText("f.conf", data)
	for _, e := range Errors(err) {
		if e.Pos.File != "f.conf" || e.Pos.Line < 1 || e.Pos.Line > bytes.Count(data, []byte("\n"))+1 || e.Reason == "" {
			t.Fatalf("no place for %v in %q", e, data)
		}
	}
	if ExitCode(err, "dump") != 0 {
		return false
	}
	opt := VerifyOptions{Host: "alpha", Module: "any"}
	verr := Verify(cfg, opt)
	var x bytes.Buffer
	for _, style := range []Style{V9, V84} {
		o := PrintOptions{VerifyOptions: opt, Style: style}
		if err := Print(&x, cfg, o); err != nil {
			t.Fatal(err)
		}
		if err := PrintXML(&x, cfg, o); err != nil {
			t.Fatal(err)
		}
	}
	if ExitCode(verr, "up") == 0 {
		if err := Print(&x, cfg.Expand(), PrintOptions{VerifyOptions: opt}); err != nil {
			t.Fatal(err)
		}
	}
	var one, two bytes.Buffer
	if err := Print(&one, cfg, PrintOptions{Style: Lossless}); err != nil {
		t.Fatal(err)
	}
	again, err := ParseText("f.conf", one.Bytes())
	if ExitCode(err, "dump") != 0 {
		t.Fatalf("%v\nin what was printed:\n%s\nfrom:\n%s", err, &one, data)
	}
	_ = Verify(again, opt) // as above
	if a, b := treeOf(cfg), treeOf(again); a != b {
		t.Fatalf("differs:\n%s\n%s\nprinted:\n%s\nfrom:\n%s", a, b, &one, data)
	}
	if err := Print(&two, again, PrintOptions{Style: Lossless}); err != nil {
		t.Fatal(err)
	}
	if one.String() != two.String() {
		t.Fatalf("printed once:\n%s\nand again:\n%s", &one, &two)
	}
	return true
}

func sampleFiles(t testing.TB) map[string][]byte {
	t.Helper()
	out := map[string][]byte{}
	for _, pattern := range []string{"/*.conf", "/v05.d/*"} {
		files, err := filepath.Glob(samplesDir + pattern)
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range files {
			data, err := os.ReadFile(f)
			if err != nil {
				t.Fatal(err)
			}
			out[filepath.Base(f)] = data
		}
	}
	return out
}

func TestPrintedFilesReadTheSame(t *testing.T) {
	same := 0
	for name, data := range sampleFiles(t) {
		t.Run(name, func(t *testing.T) {
			if roundTrip(t, data) {
				same++
			}
		})
	}
	if same < 48 {
		t.Errorf("only %d samples came to be printed", same)
	}
}

func FuzzParse(f *testing.F) {
	for _, data := range sampleFiles(f) {
		f.Add(data)
	}
	f.Add([]byte(`global { cmd-timeout-short 6; udev-always-use-vnr; } common { startup { become-primary-on both "a b"; } }
resource r { ignore-on x; device drbd_a minor 3; on "h h" i { node-id 0; address ipv6 [fe80::1%e"th]:1; tiebreaker; disk { size 1s; } }
connection "n" { path { host a port 3 via outside-address 1.2.3.4:5; host b address sci 1.2.3.4:6 port 9; } volume 1 { disk { bitmap no; } } } }`))
	f.Fuzz(func(t *testing.T, data []byte) { roundTrip(t, data) })
}
