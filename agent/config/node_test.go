package config

import (
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"
)

func writeNode(t *testing.T, text string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "hawser.yaml")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

func TestSampleNode(t *testing.T) {
	n, err := LoadNode("../../etc/hawser.yaml", nil)
	if err != nil {
		t.Fatal(err)
	}
	want := DefaultNode()
	want.Metrics.Listen = "127.0.0.1:9942"
	if !reflect.DeepEqual(n, want) {
		t.Errorf("got %+v\nwant %+v", n, want)
	}
	// What the comments call the default is the default.
	text, err := os.ReadFile("../../etc/hawser.yaml")
	if err != nil {
		t.Fatal(err)
	}
	for _, line := range []string{"# cluster: default\n", "# run-dir: /run/hawser ", "# state-dir: /var/lib/hawser ",
		"# resources-dir: /etc/hawser/resources.d ", "#   ttl: 10s\n", "#   renew-every: 2s\n", "#   rpc-timeout: 2s\n",
		"#   margin: 1s ", "#   handler: 1m ", "#   down: 30s "} {
		if !strings.Contains(string(text), line) {
			t.Errorf("the sample lacks %q", line)
		}
	}
	if want.Lease != (Lease{10 * time.Second, 2 * time.Second, 2 * time.Second, time.Second}) || want.Cluster != "default" ||
		want.Timeout != (Timeout{time.Minute, 30 * time.Second}) || want.ResourcesDir != "/etc/hawser/resources.d" {
		t.Errorf("the sample's comments are old: %+v", want)
	}
	if s := n.ReplicatorSocket("r0"); s != "/run/hawser/replicator/r0.sock" || n.AgentSocket() != "/run/hawser/agent.sock" {
		t.Error(s)
	}
}

func TestNodeOrder(t *testing.T) {
	file := writeNode(t, "node: file\nrun-dir: /file\nstate-dir: /file\nlease: {ttl: 20s}\netcd: {endpoints: [http://a:1]}\n")
	t.Setenv("HAWSER_RUN_DIR", "/env")
	t.Setenv("HAWSER_STATE_DIR", "/env")
	t.Setenv("HAWSER_LEASE_RENEW_EVERY", "3s")
	t.Setenv("HAWSER_ETCD_ENDPOINTS", "http://b:1,http://c:1")
	flags := pflag.NewFlagSet("", pflag.ContinueOnError)
	flags.String("run-dir", "/default-of-the-flag", "")
	flags.String("state-dir", "/default-of-the-flag", "")
	flags.Bool("other", false, "")
	if err := flags.Parse([]string{"--state-dir", "/flag"}); err != nil {
		t.Fatal(err)
	}
	n, err := LoadNode(file, flags)
	if err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		rule      string
		got, want any
	}{
		{"the file goes before the default", n.Node, "file"},
		{"the environment goes before the file", n.RunDir, "/env"},
		{"a flag that was set goes before both", n.StateDir, "/flag"},
		{"durations in the file", n.Lease.TTL, 20 * time.Second},
		{"an environment variable the file does not mention", n.Lease.RenewEvery, 3 * time.Second},
		{"the rest is the default", n.Lease.RPCTimeout, 2 * time.Second},
		{"a list in the environment", n.Etcd.Endpoints, []string{"http://b:1", "http://c:1"}},
	} {
		if !reflect.DeepEqual(tc.got, tc.want) {
			t.Errorf("%s: %v, want %v", tc.rule, tc.got, tc.want)
		}
	}
}

func TestNodeComplaints(t *testing.T) {
	for name, text := range map[string]string{
		"keys":   "node: alpha\nrun-dri: /run/hawser\nlease:\n  tll: 3s\nlog: debug\netcd:\n  endpoints: []\n  endpoints: []\n",
		"values": "node: al pha\nrun-dir: run\ncoordination: etcd\nlease:\n  ttl: 1500ms\n  margin: 0s\napi:\n  listen: 10.1.0.1:7780\n  tls-cert: x\nmetrics: {listen: 10.1.0.1:7780}\nlog: {level: loud}\ntimeout: {down: 1ms}\n",
		"type":   "node: alpha\nlease:\n  ttl: soon\n",
		"syntax": "node: [\n",
	} {
		file := writeNode(t, text)
		_, err := LoadNode(file, nil)
		if err == nil {
			t.Fatalf("%s: accepted", name)
		}
		golden(t, "testdata/node-"+name+".golden", strings.ReplaceAll(err.Error(), file, "hawser.yaml")+"\n")
	}
	if _, err := LoadNode(filepath.Join(t.TempDir(), "none.yaml"), nil); err == nil {
		t.Error("a file that was named must exist")
	}
}
