package pacemaker

import (
	"encoding/xml"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hawser-ha/hawser/agent/config"
)

var update = flag.Bool("update", false, "rewrite the golden files")

func must[T any](t *testing.T) func(v T, err error) T {
	return func(v T, err error) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

func TestConfigurations(t *testing.T) {
	fence := must[Fence](t)
	mount := must[Mount](t)
	for name, o := range map[string]ConfigOptions{
		"full": {Resource: "r0", Nodes: []string{"n1", "n2"}, Agent: AgentOCF, FenceDelay: "5s",
			Fences: []Fence{fence(ParseFence("n1=fence_ipmilan,ip=10.0.0.101,username=admin,password_script=/etc/pw,lanplus=1")), fence(ParseFence("n2=fence_ipmilan,ip=10.0.0.102,username=admin,password_script=/etc/pw,lanplus=1"))},
			Mounts: []Mount{mount(ParseMount("/srv/db:xfs")), mount(ParseMount("1:/srv/log"))}, IPs: []string{"10.0.0.100/24", "fd00::1/64"}},
		"bare":    {Resource: "r0", Nodes: []string{"n1", "n2", "n3"}, Agent: AgentNone, FenceDelay: "5s"},
		"systemd": {Resource: "r0", Nodes: []string{"n1", "n2"}, Agent: AgentSystemd, FenceDelay: "0s", Fences: []Fence{{Node: "n1", Agent: "fence_x"}, {Node: "n1", Agent: "fence_y"}, {Node: "n2", Agent: "fence_x"}}},
	} {
		plan, err := NewPlan(o)
		if err != nil {
			t.Fatal(err)
		}
		for _, format := range Formats {
			text, err := plan.Render(format)
			if err != nil {
				t.Fatal(err)
			}
			file := filepath.Join("testdata", "config-"+name+"."+format)
			if *update {
				if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			if want := string(load(t, filepath.Base(file))); text != want {
				t.Errorf("%s is not what is printed (go test ./agent/pacemaker -update rewrites it):\n%s", file, text)
			}
			if format == "cib" {
				if err := xml.Unmarshal([]byte(text), new(element)); err != nil {
					t.Errorf("%s: %v", file, err)
				}
			}
			for line := range strings.Lines(text) { // crmsh refuses comments with two dashes
				if c, ok := strings.CutPrefix(line, "#"); ok && strings.Contains(c, "--") {
					t.Errorf("%s: comment %q", file, line)
				}
			}
		}
	}
}

func TestConfigurationsThatMakeNoSense(t *testing.T) {
	for name, o := range map[string]ConfigOptions{
		"one node":      {Resource: "r0", Nodes: []string{"n1"}, Agent: AgentNone},
		"no such agent": {Resource: "r0", Nodes: []string{"n1", "n2"}, Agent: "x"},
		"mounted twice": {Resource: "r0", Nodes: []string{"n1", "n2"}, Agent: AgentNone, Mounts: []Mount{{0, "/a", "ext4"}, {0, "/b", "ext4"}}},
		"no address":    {Resource: "r0", Nodes: []string{"n1", "n2"}, Agent: AgentNone, IPs: []string{"10.0.0.1"}},
	} {
		if _, err := NewPlan(o); err == nil {
			t.Errorf("%s was taken", name)
		}
	}
	for _, bad := range []string{"", "n1", "n1=ipmi", "=fence_x", "n1=fence_x,ip", "n1=fence_x,ip=a b", "n1=fence_x,ip=$(reboot)", "n 1=fence_x"} {
		if f, err := ParseFence(bad); err == nil {
			t.Errorf("fence %q became %+v", bad, f)
		}
	}
	for _, bad := range []string{"", "srv", "x:/srv", "0:srv", "/srv dir", "/srv:ext4;reboot"} {
		if m, err := ParseMount(bad); err == nil {
			t.Errorf("mount %q became %+v", bad, m)
		}
	}
	if _, err := new(Plan).Render("json"); err == nil {
		t.Error("a format that does not exist was taken")
	}
}

// TestTheSampleIsWhatIsPrinted: etc/pacemaker/r0.crm is the configuration of etc/pacemaker/r0.yaml.
func TestTheSampleIsWhatIsPrinted(t *testing.T) {
	dir := filepath.Join("..", "..", "etc", "pacemaker")
	data, err := os.ReadFile(filepath.Join(dir, "r0.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	res, err := config.Parse("r0.yaml", data)
	if err != nil || len(res) != 1 {
		t.Fatal(err)
	}
	o := ConfigOptions{Resource: res[0].Name, Agent: AgentOCF, FenceDelay: "5s", Mounts: []Mount{{0, "/srv/data", "ext4"}}, IPs: []string{"10.0.0.100/24"}}
	for i, n := range res[0].Nodes {
		o.Nodes = append(o.Nodes, n.Name)
		f, err := ParseFence(fmt.Sprintf("%s=fence_ipmilan,ip=10.0.0.10%d,username=admin,password_script=/etc/hawser/ipmi-password,lanplus=1", n.Name, i+1))
		if err != nil {
			t.Fatal(err)
		}
		o.Fences = append(o.Fences, f)
	}
	plan, err := NewPlan(o)
	if err != nil {
		t.Fatal(err)
	}
	text, err := plan.Render("crm")
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(dir, "r0.crm")
	if *update {
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if want, err := os.ReadFile(file); err != nil || string(want) != text {
		t.Errorf("%s is not what is printed (go test ./agent/pacemaker -update rewrites it): %v", file, err)
	}
}
