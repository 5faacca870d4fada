package config

import (
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"
)

const withServices = `resource: r1
nodes:
  - {name: alpha, address: "10.0.0.1:7790"}
  - {name: beta, address: "10.0.0.2:7790"}
volumes:
  - disk: /dev/vg/r1
services:
  after: [r0]
  primary:
    - name: fs
      run: ocf:heartbeat:Filesystem
      params: {device: /dev/hawser/r1/0, directory: /srv/pg, fstype: ext4, options: "noatime,nodev"}
      monitor: 20s
      start-timeout: 2m
      check-level: 20
      restart: 1
      restart-window: 1h
    - systemd:postgresql@15-main.service
    - run: exec:exec /usr/local/sbin/announce --now "a b"
      monitor: none
  secondary:
    - exec:/usr/local/sbin/standby
  always:
    - run: ocf:heartbeat:Dummy
      params: {fake: 1}
`

func one(t *testing.T, text string) Resource {
	t.Helper()
	rs, err := Parse("r.yaml", []byte(text))
	if err != nil || len(rs) != 1 {
		t.Fatal(len(rs), err)
	}
	return rs[0]
}

func TestServices(t *testing.T) {
	r := one(t, withServices)
	want := []ServiceSpec{
		{Name: "fs", Kind: ServiceOCF, What: "heartbeat:Filesystem",
			Params:  map[string]string{"device": "/dev/hawser/r1/0", "directory": "/srv/pg", "fstype": "ext4", "options": "noatime,nodev"},
			Monitor: 20 * time.Second, MonitorTimeout: 40 * time.Second, StartTimeout: 2 * time.Minute, StopTimeout: 90 * time.Second,
			CheckLevel: 20, Restart: 1, RestartWindow: time.Hour},
		{Name: "postgresql@15-main.service", Kind: ServiceSystemd, What: "postgresql@15-main.service", Params: map[string]string{},
			Monitor: 10 * time.Second, MonitorTimeout: 40 * time.Second, StartTimeout: 90 * time.Second, StopTimeout: 90 * time.Second,
			Restart: 3, RestartWindow: 10 * time.Minute},
		{Name: "announce", Kind: ServiceExec, What: `exec /usr/local/sbin/announce --now "a b"`, Params: map[string]string{},
			MonitorTimeout: 40 * time.Second, StartTimeout: 90 * time.Second, StopTimeout: 90 * time.Second, Restart: 3, RestartWindow: 10 * time.Minute},
	}
	if got := r.ServiceChain("primary"); !reflect.DeepEqual(got, want) {
		t.Errorf("primary:\n%+v\nwant\n%+v", got, want)
	}
	if got := r.ServiceChain("secondary"); len(got) != 1 || got[0].Name != "standby" || got[0].Run() != "exec:/usr/local/sbin/standby" {
		t.Errorf("secondary: %+v", got)
	}
	if got := r.ServiceChain("always"); len(got) != 1 || got[0].Name != "Dummy" {
		t.Errorf("always: %+v", got)
	}
	again := one(t, string(Marshal(r)))
	if !reflect.DeepEqual(again.Services, r.Services) {
		t.Errorf("marshalled and read again:\n%+v\nwant\n%+v", again.Services, r.Services)
	}
}

// The replicator runs no services: what it gets does not change with them.
func TestDefinitionIgnoresServices(t *testing.T) {
	plain, _, _ := strings.Cut(withServices, "services:")
	a, b := one(t, withServices), one(t, plain)
	da, errA := a.Definition("alpha")
	db, errB := b.Definition("alpha")
	if errA != nil || errB != nil || !reflect.DeepEqual(da, db) {
		t.Errorf("%+v %v, want %+v %v", da, errA, db, errB)
	}
}

// A wrong order between resources is a complaint, but the volumes come up.
func TestServicesOfSeveralResources(t *testing.T) {
	text := func(name, port, services string) string {
		return "resource: " + name + "\nnodes:\n  - {name: alpha, address: \"10.0.0.1:" + port + "\"}\n  - {name: beta, address: \"10.0.0.2:" + port +
			"\"}\nvolumes: [{disk: /dev/vg/" + name + "}]\nservices:\n" + services
	}
	tests := []struct {
		name  string
		texts []string
		want  []string
	}{
		{"in order", []string{text("r0", "1", "  primary: [exec:a]\n"), text("r1", "2", "  after: [r0]\n  primary: [exec:a]\n")}, nil},
		{"unknown", []string{text("r1", "2", "  after: [r0]\n  primary: [exec:a]\n")}, []string{"r.yaml:7:11: services.after[0]: resource r0 is not defined here"}},
		{"a circle of three", []string{text("r0", "1", "  after: [r2]\n  primary: [exec:a]\n"), text("r1", "2", "  after: [r0]\n  primary: [exec:a]\n"), text("r2", "3", "  after: [r1]\n  primary: [exec:a]\n")},
			[]string{"r0 waits for r2, and r2 for r0", "r1 waits for r0", "r2 waits for r1"}},
		{"a circle beside", []string{text("r0", "1", "  after: [r1]\n  primary: [exec:a]\n"), text("r1", "2", "  after: [r2]\n  primary: [exec:a]\n"), text("r2", "3", "  after: [r1]\n  primary: [exec:a]\n")},
			[]string{"r1 waits for r2", "r2 waits for r1"}},
		{"one unit twice", []string{text("r0", "1", "  primary: [systemd:a.service]\n"), text("r1", "2", "  always: [systemd:a.service]\n")}, []string{"systemd:a.service is a service of resource r0 too"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var rs []Resource
			for _, x := range tt.texts {
				rs = append(rs, one(t, x))
			}
			good, err := CheckSet(rs)
			if len(good) != len(rs) {
				t.Errorf("%d of %d resources stay", len(good), len(rs))
			}
			got := Errors(err)
			if len(got) != len(tt.want) {
				t.Fatalf("%v, want %q", err, tt.want)
			}
			for _, w := range tt.want {
				if !slices.ContainsFunc(got, func(e *Error) bool { return strings.Contains(e.Error(), w) }) {
					t.Errorf("%v, want %q", err, w)
				}
			}
		})
	}
}

func FuzzServices(f *testing.F) {
	f.Add(withServices)
	f.Fuzz(func(t *testing.T, text string) {
		rs, err := Parse("r.yaml", []byte(text))
		if err != nil {
			return
		}
		for _, r := range rs {
			again, err := Parse("r.yaml", Marshal(r))
			if err != nil || len(again) != 1 || !reflect.DeepEqual(again[0].Services, r.Services) {
				t.Fatalf("marshalled and read again: %v\n%s", err, Marshal(r))
			}
			for _, role := range ServiceRoles {
				if got := r.ServiceChain(role); len(got) != len(*r.Services.chain(role)) {
					t.Fatalf("%s: %d entries", role, len(got))
				}
			}
		}
	})
}
