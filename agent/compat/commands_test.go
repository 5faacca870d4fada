package compat

import (
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/hawser-ha/hawser/agent/drbdconf"
)

const samples = "../drbdconf/testdata/samples"

// mnt is the samples, seen as /mnt: where they were when drbdadm read them.
type mnt struct{}

func (mnt) Read(name string) ([]byte, error) {
	if !strings.HasPrefix(name, "/mnt/") {
		return nil, fs.ErrNotExist
	}
	return os.ReadFile(samples + strings.TrimPrefix(name, "/mnt"))
}

func (mnt) Glob(pattern string) ([]string, error) {
	list, err := filepath.Glob(samples + strings.TrimPrefix(pattern, "/mnt"))
	for i := range list {
		list[i] = "/mnt" + strings.TrimPrefix(list[i], samples)
	}
	return list, err
}

func (mnt) Canonical(name string) string { return name }

// TestCommandsOfUp: what drbdadm 9.34 -d up prints for every sample that it takes.
func TestCommandsOfUp(t *testing.T) {
	data, err := os.ReadFile(samples + "/manifest.tsv")
	if err != nil {
		t.Fatal(err)
	}
	local := []netip.Addr{netip.MustParseAddr("10.9.0.1"), netip.MustParseAddr("172.16.0.1"), netip.MustParseAddr("192.168.90.17"), netip.MustParseAddr("fd01:2345:6789:abcd::1")}
	compared := 0
	for line := range strings.Lines(string(data)) {
		f := strings.Split(line, "\t")
		if f[0] == "e31-bad-resource-name" {
			continue // drbdadm takes a name with a slash in it, and then cannot use it
		}
		want, err := os.ReadFile("testdata/up/" + f[0] + ".9.34.up")
		if err != nil {
			continue
		}
		who := drbdconf.VerifyOptions{Host: f[1], Local: func(a netip.Addr) bool { return slices.Contains(local, a) }}
		cfg, err := drbdconf.Parse(mnt{}, "/mnt/"+f[0]+".conf", drbdconf.ParseOptions{})
		for _, e := range append(drbdconf.Errors(err), drbdconf.Errors(drbdconf.Verify(cfg, who))...) {
			if e.Stops("up") {
				t.Errorf("%s: %v", f[0], e)
			}
		}
		var plans []*Plan
		for _, r := range cfg.Resources {
			if slices.ContainsFunc(r.Hosts, func(h *drbdconf.Host) bool { return h.Kind == drbdconf.Stacked }) {
				continue // only with --stacked
			}
			if p, ok := PlanOf(cfg, r.Name, who, nil); ok {
				plans = append(plans, p)
			}
		}
		var b strings.Builder
		for _, c := range Up(plans) {
			b.WriteString(c.String() + "\n")
		}
		same(t, f[0], b.String(), string(want))
		compared++
	}
	if compared < 30 {
		t.Errorf("compared only %d samples", compared)
	}
}
