package drbdconf

import (
	"bytes"
	"errors"
	"flag"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "rewrite the golden files")

// samples is testdata/samples, seen as /mnt: there the original programs saw it.
type samples struct{}

const samplesDir = "testdata/samples"

func real(name string) string { return samplesDir + strings.TrimPrefix(name, "/mnt") }

func (samples) Read(name string) ([]byte, error) {
	if !strings.HasPrefix(name, "/mnt/") {
		return nil, fs.ErrNotExist
	}
	return os.ReadFile(real(name))
}

func (samples) Glob(pattern string) ([]string, error) {
	list, err := filepath.Glob(real(pattern))
	for i := range list {
		list[i] = "/mnt" + strings.TrimPrefix(list[i], samplesDir)
	}
	return list, err
}

func (samples) Canonical(name string) string { return name }

// local is what the host had whose outputs are in testdata.
var localAddresses = []string{"10.9.0.1", "172.16.0.1", "192.168.90.17", "fd01:2345:6789:abcd::1", "127.0.0.1"}

func verifyAs(host string) VerifyOptions {
	return VerifyOptions{Host: host, Local: func(a netip.Addr) bool { return slices.Contains(localAddresses, a.WithZone("").String()) }}
}

func load(name, host string) (*Config, error) {
	cfg, err := Parse(samples{}, "/mnt/"+name+".conf", ParseOptions{})
	if ExitCode(err, "dump") == 0 {
		err = errors.Join(err, Verify(cfg, verifyAs(host)))
	}
	return cfg, err
}

type sample struct {
	name, host string
	codes      map[string][]int // by oracle: dump dump-xml up sh-nop
}

func manifest(t testing.TB) []sample {
	t.Helper()
	data, err := os.ReadFile(samplesDir + "/manifest.tsv")
	if err != nil {
		t.Fatal(err)
	}
	var list []sample
	oracles := []string{"9.22", "9.34", "8.4", "8.3"}
	for i, line := range strings.Split(strings.TrimSpace(string(data)), "\n") {
		f := strings.Split(line, "\t")
		if i == 0 {
			continue
		}
		s := sample{name: f[0], host: f[1], codes: map[string][]int{}}
		for j, o := range oracles {
			for c := range strings.SplitSeq(f[2+j], "/") {
				n, err := strconv.Atoi(c)
				if err != nil {
					t.Fatal(line)
				}
				s.codes[o] = append(s.codes[o], n)
			}
		}
		list = append(list, s)
	}
	if len(list) != 95 {
		t.Fatalf("%d samples", len(list))
	}
	return list
}

func goldenFile(name, kind string, oracles ...string) ([]byte, string) {
	for _, o := range oracles {
		file := samplesDir + "/golden/" + name + "." + o + "." + kind
		if data, err := os.ReadFile(file); err == nil {
			return data, file
		}
	}
	return nil, ""
}

func diff(t *testing.T, file, got, want string) {
	t.Helper()
	if got == want {
		return
	}
	g, w := strings.Split(got, "\n"), strings.Split(want, "\n")
	for i := range max(len(g), len(w)) {
		a, b := "(end)", "(end)"
		if i < len(g) {
			a = g[i]
		}
		if i < len(w) {
			b = w[i]
		}
		if a != b {
			t.Errorf("%s:%d:\n got %q\nwant %q", file, i+1, a, b)
			return
		}
	}
}

// What the original programs print for each sample, byte for byte.
func TestDumpIsThatOfDRBD(t *testing.T) {
	compared := map[string]int{}
	for _, s := range manifest(t) {
		cfg, err := load(s.name, s.host)
		for _, kind := range []string{"dump", "dump-xml"} {
			if ExitCode(err, kind) != 0 {
				continue
			}
			for style, oracles := range map[Style][]string{V9: {"9.34", "9.22"}, V84: {"8.4"}} {
				want, file := goldenFile(s.name, kind, oracles...)
				if file == "" {
					continue
				}
				var b bytes.Buffer
				opt := PrintOptions{VerifyOptions: verifyAs(s.host), Style: style}
				print := Print
				if kind == "dump-xml" {
					print = PrintXML
				}
				if err := print(&b, cfg, opt); err != nil {
					t.Fatal(err)
				}
				compared[oracles[0]+" "+kind]++
				diff(t, file, b.String(), string(want))
			}
		}
	}
	for what, least := range map[string]int{"9.34 dump": 38, "9.34 dump-xml": 38, "8.4 dump": 25, "8.4 dump-xml": 25} {
		if compared[what] < least {
			t.Errorf("%s: only %d outputs compared", what, compared[what])
		}
	}
	t.Log(compared)
}

// deviations are where hawser is not of the opinion of 9.34, and why.
var deviations = map[string]string{
	"v03-legacy83-net-tuning": "8.4 takes unplug-watermark, and so do we",
	"v29-split-brain-node":    "8.4 takes discard-node-NAME, and so do we",
	"e31-bad-resource-name":   "a name with / cannot be said on any command line",
}

func TestExitCodesAreThoseOfDRBD(t *testing.T) {
	verbs := []string{"dump", "dump-xml", "up", "sh-nop"}
	for _, s := range manifest(t) {
		cfg, err := load(s.name, s.host)
		for i, verb := range verbs {
			want := s.codes["9.34"][i]
			if verb == "up" && want == 1 { // nothing to do: the caller's business
				mine := 0
				for _, r := range cfg.Resources {
					if r.Self(verifyAs(s.host)) != nil {
						mine++
					}
				}
				if mine != 0 {
					t.Errorf("%s: %d resources are for %s", s.name, mine, s.host)
				}
				want = 0
			}
			if got := ExitCode(err, verb); (got != want) != (deviations[s.name] != "") {
				t.Errorf("%s %s: %d, not %d: %v", s.name, verb, got, want, err)
			}
		}
	}
}

// What a person sees for each faulty sample: file, line and reason.
func TestComplaints(t *testing.T) {
	var b strings.Builder
	for _, s := range manifest(t) {
		_, err := load(s.name, s.host)
		if err == nil {
			continue
		}
		b.WriteString("== " + s.name + "\n")
		for _, e := range Errors(err) {
			if e.Stage == Warn {
				b.WriteString("warning: ")
			}
			b.WriteString(e.Error() + "\n")
			if e.Pos.File == "" || e.Pos.Line == 0 {
				t.Errorf("%s: no place: %v", s.name, e)
			}
		}
	}
	const file = "testdata/complaints.golden"
	if *update {
		if err := os.WriteFile(file, []byte(b.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	diff(t, file, b.String(), string(want))
}

// Expand gives what drbdadm 9.22 -v dump prints.
func TestExpandIsThatOfDRBD(t *testing.T) {
	files, err := filepath.Glob("testdata/expanded/*.9.22.dump-v")
	if err != nil || len(files) != 16 {
		t.Fatal(files, err)
	}
	for _, s := range manifest(t) {
		file := "testdata/expanded/" + s.name + ".9.22.dump-v"
		if !slices.Contains(files, file) {
			continue
		}
		cfg, err := load(s.name, s.host)
		if ExitCode(err, "up") != 0 {
			t.Fatal(err)
		}
		var b bytes.Buffer
		if err := Print(&b, cfg.Expand(), PrintOptions{VerifyOptions: verifyAs(s.host)}); err != nil {
			t.Fatal(err)
		}
		want, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if s.name == "v09-floating" { // 9.34 joins address and port in another way
			want = []byte(strings.NewReplacer("host 10.9.0.1:", "host 10.9.0.1_", "host 10.9.0.2:", "host 10.9.0.2_").Replace(string(want)))
		}
		diff(t, file, b.String(), string(want))
	}
}
