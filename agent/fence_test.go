package agent

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/hawser-ha/hawser/agent/config"
	"github.com/hawser-ha/hawser/fencing"
	"github.com/hawser-ha/hawser/replicator/control"
	"github.com/hawser-ha/hawser/test/ipmi"
)

// TestFencingThroughTheAPI: from hawser.yaml to a management board and back.
func TestFencingThroughTheAPI(t *testing.T) {
	stuck, good := ipmi.Start(t), ipmi.Start(t)
	stuck.Stick(true)
	n := newNode(t, "n1")
	n.stop()
	n.write("password", ipmi.Password+"\n")
	text := fmt.Sprintf("node: n1\nrun-dir: %s\nstate-dir: %s\nresources-dir: %s\nfencing:\n  monitor-every: 0\n  devices:\n", n.cfg.RunDir, n.cfg.StateDir, n.cfg.ResourcesDir)
	for name, b := range map[string]*ipmi.Board{"stuck": stuck, "good": good} {
		text += fmt.Sprintf("    - name: %s\n      agent: fence_ipmilan\n      nodes: [n2]\n      action: \"off\"\n      password-file: %s\n      timeout: %s\n      retries: 0\n"+
			"      params: {ip: 127.0.0.1, ipport: %d, username: %s, lanplus: 1, cipher: 3, power_wait: 0}\n",
			name, filepath.Join(n.dir, "password"), map[string]string{"stuck": "2s", "good": "20s"}[name], b.Port, ipmi.User)
	}
	text += "    - name: none\n      agent: fence_of_nobody\n      nodes: [n2]\n  levels:\n    - node: n2\n      devices: [[none], [stuck], [good]]\n"
	n.write("hawser.yaml", text)
	cfg, err := config.LoadNode(filepath.Join(n.dir, "hawser.yaml"), nil)
	if err != nil {
		t.Fatal(err)
	}
	cfg.Timeout = n.cfg.Timeout
	n.cfg = cfg
	n.start()

	c := n.client().Sub("fencing")
	var st FencingStatus
	if err := c.Call(t.Context(), "monitor", struct{}{}, &st); err != nil {
		t.Fatal(err)
	}
	want := map[string]fencing.Health{"stuck": fencing.Failing, "good": fencing.Working, "none": fencing.Broken}
	for _, d := range st.Devices {
		if d.Health != want[d.Name] {
			t.Errorf("%s is %s: %s", d.Name, d.Health, d.Error)
		}
	}
	var out FenceAnswer
	if err := c.Call(t.Context(), "fence", FenceArgs{Node: "n2", By: "test", DryRun: true}, &out); err != nil {
		t.Fatal(err)
	}
	if plan := strings.Join(out.Plan, "\n"); good.Cuts() != 0 || !strings.Contains(plan, "level 3: good: off, then ask for its status") || !strings.Contains(plan, "none: off: broken") {
		t.Errorf("%s", plan)
	}
	out = FenceAnswer{}
	if err := c.Call(t.Context(), "fence", FenceArgs{Node: "n2", By: "test"}, &out); err != nil {
		t.Fatal(err)
	}
	if r := out.Result; r == nil || r.Outcome != fencing.Confirmed || r.Level != 3 || !good.IsOff() || stuck.IsOff() {
		t.Errorf("%+v", out.Result)
	}
	good.Stick(true)
	for name, tc := range map[string]struct {
		args FenceArgs
		want control.Code
	}{
		"nobody knows": {FenceArgs{Node: "n2", By: "test", Action: fencing.Off}, control.Unknown},
		"no device":    {FenceArgs{Node: "n3", By: "test"}, control.NotFound},
		"itself":       {FenceArgs{Node: "n1", By: "test"}, control.Refused},
	} {
		if err := c.Call(t.Context(), "fence", tc.args, new(FenceAnswer)); !errors.Is(err, tc.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := c.Call(t.Context(), "confirm", FenceArgs{Node: "n2", By: "test"}, new(struct{})); !errors.Is(err, control.Refused) {
		t.Errorf("a word that nobody records: %v", err)
	}
	data, err := os.ReadFile(filepath.Join(n.cfg.StateDir, "fencing.json"))
	if err != nil || strings.Count(string(data), `"n2"`) != 1 {
		t.Errorf("history: %s %v", data, err)
	}
}

func TestLicenceOfAReplicator(t *testing.T) {
	for right, want := range map[string]int64{control.RightNone: 0, control.RightLease: 0, control.RightFailsafe: 42} {
		st := &control.Status{Write: &control.WriteStatus{Right: right, Until: 42}}
		if got := licence(st, time.Second); got != want {
			t.Errorf("%s: %d, want %d", right, got, want)
		}
	}
	if licence(&control.Status{}, time.Second) != 0 {
		t.Error("a resource that nobody coordinates has a licence")
	}
	if licence(&control.Status{Write: &control.WriteStatus{Right: control.RightUnlimited}}, time.Second) == 0 {
		t.Error("nobody can take over, and it has no licence")
	}
}
