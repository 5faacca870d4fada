package metrics

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ClusterLabs/ha_cluster_exporter/collector"
	"github.com/ClusterLabs/ha_cluster_exporter/collector/drbd"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/hawser-ha/hawser/replicator/control"
)

// metricName finds our metrics in a query.
var metricName = regexp.MustCompile(`\bhawser_[a-z_]+`)

var update = flag.Bool("update", false, "rewrite the golden files")

// rich is a node on which every metric has something to say.
func rich() Snapshot {
	at := time.Unix(1700000000, 0)
	return Snapshot{Node: "n1", Version: "1.0", Resources: []Resource{
		{Name: "r0", State: "up", Restarts: 2,
			Licence:  &Licence{Term: 7, Left: 8500 * time.Millisecond, Right: "lease", InSync: []string{"n1", "n2"}, Holder: "n1", Waiting: 1},
			Services: []Service{{Name: "fs", State: "running"}, {Name: "db", State: "stop-failed", Failed: true}},
			Status: &control.Status{Resource: "r0", Node: "n1", Started: at, Role: "Primary", Suspended: []string{"insync"},
				Volumes: []control.VolumeStatus{{Number: 0, DiskState: "UpToDate", Size: 1 << 30, Read: 4096, Written: 10 << 20, ALWrites: 3, BMWrites: 4,
					UpperPending: 5, LowerPending: 6, Undo: 1, Front: []control.FrontStat{{Kind: "nbd"}, {Kind: "nbd"}}},
					{Number: 1, DiskState: "Diskless"}},
				Peers: []control.PeerStatus{
					{Name: "n2", NodeID: 1, Connection: "Connected", Role: "Secondary", Protocol: "C", Congested: true, InFlight: 8192,
						Volumes: []control.PeerVolumeStatus{
							{Number: 0, Replication: "SyncSource", DiskState: "Inconsistent", OutOfSync: 256 << 20, Sent: 1 << 20, Received: 2 << 20, Pending: 7, Unacked: 8,
								Sync:     &control.Progress{Kind: "resync", Percent: 75, Rate: 50 << 20, ETA: 5},
								LastSync: &control.Progress{Kind: "verify", Mismatches: 4096}},
							{Number: 1, Replication: "VerifyS", DiskState: "UpToDate", Sync: &control.Progress{Kind: "verify", Percent: 10, ETA: -1, Mismatches: 512}}}},
					{Name: "n3", NodeID: 2, Connection: "Connecting", Role: "Unknown", Protocol: "A",
						Volumes: []control.PeerVolumeStatus{{Number: 0, Replication: "Off", DiskState: "DUnknown"}}}}}},
		{Name: "r1", State: "not-responding", Restarts: 0}},
		Fences: []FenceDevice{{Name: "ipmi-n2", OK: true, Checked: at}, {Name: "pdu", OK: false}}}
}

func exporter(t *testing.T, s Snapshot, p Programs) *Exporter {
	t.Helper()
	marks := t.TempDir()
	for _, name := range []string{"drbd-split-brain-detected-r0-0", "unrelated"} {
		if err := os.WriteFile(filepath.Join(marks, name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return New(Options{Log: slog.New(slog.DiscardHandler), Look: func(context.Context) Snapshot { return s }, Programs: p, SplitBrain: marks})
}

func scrape(t testing.TB, h http.Handler) string {
	t.Helper()
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/metrics", nil))
	if w.Code != http.StatusOK {
		t.Fatalf("status %d: %s", w.Code, w.Body)
	}
	return w.Body.String()
}

// ours drops the metrics of the Go runtime and what is measured by the clock.
func ours(text string) string {
	var out []string
	for line := range strings.Lines(text) {
		if strings.Contains(line, "hawser_") || strings.Contains(line, "ha_cluster_") {
			out = append(out, line)
		}
	}
	return strings.Join(out, "")
}

func TestGolden(t *testing.T) {
	got := ours(scrape(t, exporter(t, rich(), Programs{})))
	file := filepath.Join("testdata", "rich.txt")
	if *update {
		if err := os.WriteFile(file, []byte(got), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		t.Errorf("differs from %s:\n%s", file, got)
	}
	for _, f := range families { // a family without a sample in the golden file is not tested
		name := strings.Split(f.desc.String(), `"`)[1]
		if !strings.Contains(got, "\n"+name+"{") {
			t.Errorf("%s has no sample", name)
		}
	}
}

// TestPromtoolLikesThem: names, units and help texts follow Prometheus' rules.
func TestPromtoolLikesThem(t *testing.T) {
	promtool, err := exec.LookPath("promtool")
	if err != nil {
		t.Fatalf("install prometheus (make deps): %v", err)
	}
	var own []string
	for line := range strings.Lines(scrape(t, exporter(t, rich(), Programs{}))) {
		if strings.Contains(line, "hawser_") { // the names of ha_cluster_exporter are as they are
			own = append(own, line)
		}
	}
	cmd := exec.Command(promtool, "check", "metrics")
	cmd.Stdin = strings.NewReader(strings.Join(own, ""))
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%v: %s", err, out)
	}
}

// TestSameAsTheLibrarysCollector: the library's own DRBD collector, fed with what
// drbdsetup would print of the same node, gives the same metrics.
func TestSameAsTheLibrarysCollector(t *testing.T) {
	s := rich()
	st := s.Resources[0].Status
	type object = map[string]any
	res := object{"name": st.Resource, "role": st.Role, "devices": []object{}, "connections": []object{}}
	for _, v := range st.Volumes {
		res["devices"] = append(res["devices"].([]object), object{"volume": v.Number, "written": v.Written / 1024, "read": v.Read / 1024,
			"al-writes": v.ALWrites, "bm-writes": v.BMWrites, "upper-pending": v.UpperPending, "lower-pending": v.LowerPending,
			"quorum": false, "disk-state": v.DiskState})
	}
	for _, p := range st.Peers {
		var devices []object
		for _, v := range p.Volumes {
			percent := 100.0
			if v.OutOfSync > 0 {
				percent = 75
			}
			devices = append(devices, object{"volume": v.Number, "received": v.Received / 1024, "sent": v.Sent / 1024, "pending": v.Pending,
				"unacked": v.Unacked, "peer-disk-state": v.DiskState, "percent-in-sync": percent})
		}
		res["connections"] = append(res["connections"].([]object), object{"peer-node-id": p.NodeID, "peer-role": p.Role, "peer_devices": devices})
	}
	data, err := json.Marshal([]object{res})
	if err != nil {
		t.Fatal(err)
	}
	script := filepath.Join(t.TempDir(), "drbdsetup")
	if err := os.WriteFile(script, []byte("#!/bin/sh\n[ \"$*\" = 'status --json' ] || exit 1\ncat <<'E'\n"+string(data)+"\nE\n"), 0o700); err != nil { //nolint:gosec // a program
		t.Fatal(err)
	}
	e := exporter(t, s, Programs{})
	library, err := drbd.NewCollector(script, e.drbd.splitBrain)
	if err != nil {
		t.Fatal(err)
	}
	reg := prometheus.NewRegistry()
	reg.MustRegister(library)
	want := scrape(t, promhttp.HandlerFor(reg, promhttp.HandlerOpts{}))
	var got []string
	for line := range strings.Lines(scrape(t, e)) {
		if strings.Contains(line, "ha_cluster_drbd_") {
			got = append(got, line)
		}
	}
	if strings.Join(got, "") != want {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, ""), want)
	}
}

// failing is a collector that gives something and then goes wrong.
type failing struct {
	collector.DefaultCollector
	how func() error
}

func (f *failing) Collect(chan<- prometheus.Metric) {}
func (f *failing) CollectWithError(ch chan<- prometheus.Metric) error {
	ch <- f.MakeGaugeMetric("up", 1)
	return f.how()
}

func TestCollectorsThatGoWrong(t *testing.T) {
	hang := make(chan struct{})
	t.Cleanup(func() { close(hang) })
	for _, c := range []struct {
		name   string
		how    func() error
		absent error
		want   []string
		not    string
	}{
		{name: "works", how: func() error { return nil }, want: []string{`ha_cluster_scrape_success{collector="x"} 1`, "ha_cluster_x_up 1", `hawser_collector_active{collector="x"} 1`}},
		{name: "fails", how: func() error { return errors.New("exit status 1") }, want: []string{`ha_cluster_scrape_success{collector="x"} 0`}},
		{name: "panics", how: func() error { panic("index out of range") }, want: []string{`ha_cluster_scrape_success{collector="x"} 0`}},
		{name: "hangs", how: func() error { <-hang; return nil }, want: []string{`hawser_collector_active{collector="x"} 0`}, not: "ha_cluster_x_up"},
		{name: "is not installed", absent: errors.New("no such file"), want: []string{`hawser_collector_active{collector="x"} 0`}, not: "ha_cluster_x_up"},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := &failing{collector.NewDefaultCollector("x"), c.how}
			f.SetDescriptor("up", "A test.", nil)
			e := exporter(t, Snapshot{Node: "n1"}, Programs{})
			b := &beside{name: "x", log: slog.New(slog.DiscardHandler), make: func() (collector.InstrumentableCollector, error) { return f, c.absent }}
			e.besides = []*beside{b}
			ctx, cancel := context.WithCancel(t.Context())
			ended := make(chan struct{})
			go func() {
				defer close(ended)
				e.Run(ctx)
			}()
			var text string
			for missing := slices.Clone(c.want); len(missing) > 0; {
				text = scrape(t, e) // never waits for the collector
				missing = slices.DeleteFunc(missing, func(w string) bool { return strings.Contains(text, w) })
			}
			if c.not != "" && strings.Contains(text, c.not) {
				t.Errorf("has %s", c.not)
			}
			cancel()
			<-ended
		})
	}
}

// TestShippedRules: promtool takes the alert rules, its unit tests of them pass, and dashboard and rules name only metrics
// that exist.
func TestShippedRules(t *testing.T) {
	promtool, err := exec.LookPath("promtool")
	if err != nil {
		t.Fatalf("install prometheus (make deps): %v", err)
	}
	dir := filepath.Join("..", "..", "etc", "prometheus")
	for _, args := range [][]string{{"check", "rules", filepath.Join(dir, "hawser.rules.yml")}, {"test", "rules", filepath.Join("testdata", "rules_test.yml")}} {
		if out, err := exec.Command(promtool, args...).CombinedOutput(); err != nil {
			t.Errorf("%v: %v: %s", args, err, out)
		}
	}
	known := scrape(t, exporter(t, rich(), Programs{}))
	for _, file := range []string{filepath.Join(dir, "hawser.rules.yml"), filepath.Join("..", "..", "etc", "grafana", "hawser.json")} {
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		names := metricName.FindAllString(string(data), -1)
		if len(names) == 0 {
			t.Errorf("%s uses no metric of ours", file)
		}
		for _, n := range names {
			if !strings.Contains(known, "# TYPE "+n+" ") {
				t.Errorf("%s uses %s, which does not exist", file, n)
			}
		}
	}
	data, err := os.ReadFile(filepath.Join("..", "..", "etc", "grafana", "hawser.json"))
	if err != nil {
		t.Fatal(err)
	}
	var dashboard struct {
		Title  string
		Panels []struct {
			Title   string
			Type    string
			Targets []struct{ Expr string }
		}
	}
	if err := json.Unmarshal(data, &dashboard); err != nil {
		t.Fatal(err)
	}
	for _, p := range dashboard.Panels {
		if p.Type == "row" {
			continue
		}
		for _, q := range p.Targets {
			rule := fmt.Sprintf("groups: [{name: x, rules: [{record: x, expr: %q}]}]", strings.NewReplacer("$resource", ".*", "$instance", ".*", "$__rate_interval", "5m").Replace(q.Expr))
			cmd := exec.Command(promtool, "check", "rules", "/dev/stdin")
			cmd.Stdin = strings.NewReader(rule)
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Errorf("panel %q: %s: %s", p.Title, q.Expr, bytes.TrimSpace(out))
			}
		}
		if len(p.Targets) == 0 {
			t.Errorf("panel %q asks nothing", p.Title)
		}
	}
}

// BenchmarkScrape is a scrape of a node with 40 volumes, ready to be sent.
func BenchmarkScrape(b *testing.B) {
	s := Snapshot{Node: "n1"}
	for i := range 40 {
		r := rich().Resources[0]
		st := *r.Status
		st.Resource = fmt.Sprint("r", i)
		st.Volumes, st.Peers = st.Volumes[:1], st.Peers[:1]
		r.Name, r.Status = st.Resource, &st
		s.Resources = append(s.Resources, r)
	}
	e := New(Options{Log: slog.New(slog.DiscardHandler), Look: func(context.Context) Snapshot { return s }, SplitBrain: b.TempDir()})
	for b.Loop() {
		scrape(b, e)
	}
}
