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
	if !reflect.DeepEqual(n, want) {
		t.Errorf("got %+v\nwant %+v", n, want)
	}
	if s := n.ReplicatorSocket("r0"); s != "/run/hawser/replicator/r0.sock" || n.AgentSocket() != "/run/hawser/agent.sock" {
		t.Error(s)
	}
}

func TestNodeOrder(t *testing.T) {
	file := writeNode(t, "node: file\nrun-dir: /file\nstate-dir: /file\ntimeout: {handler: 20s}\n")
	t.Setenv("HAWSER_RUN_DIR", "/env")
	t.Setenv("HAWSER_STATE_DIR", "/env")
	t.Setenv("HAWSER_TIMEOUT_DOWN", "3s")
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
		{"durations in the file", n.Timeout.Handler, 20 * time.Second},
		{"an environment variable the file does not mention", n.Timeout.Down, 3 * time.Second},
		{"the rest is the default", n.Log.Level, "info"},
	} {
		if !reflect.DeepEqual(tc.got, tc.want) {
			t.Errorf("%s: %v, want %v", tc.rule, tc.got, tc.want)
		}
	}
}

func TestNodeComplaints(t *testing.T) {
	for name, text := range map[string]string{
		"keys":   "node: alpha\nrun-dri: /run/hawser\ntimeout:\n  donw: 3s\nlog: debug\nstate-dir: /a\nstate-dir: /b\n",
		"values": "node: al pha\nrun-dir: run\nlog: {level: loud}\ntimeout: {down: 1ms}\n",
		"type":   "node: alpha\ntimeout:\n  down: soon\n",
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
