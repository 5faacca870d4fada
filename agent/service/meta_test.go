package service

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hawser-ha/hawser/agent/config"
)

const metaFile = `resource: r0
nodes:
  - {name: alpha, address: "10.0.0.1:7789"}
  - {name: beta, address: "10.0.0.2:7789"}
volumes:
  - disk: /dev/vg/r0
services:
  primary:
    - run: ocf:heartbeat:Filesystem
      params: {device: /dev/hawser/r0/0, directry: /srv, fstype: ext4}
    - run: ocf:heartbeat:IPaddr2
      params: {ip: 10.0.0.9, arp_count: many, lvs_support: perhaps, trace_ra: 1}
    - run: ocf:heartbeat:no-such-agent
      params: {a: b}
    - ocf:broken:agent
  always:
    - run: ocf:heartbeat:IPaddr2
      name: vip2
      params: {ip: 10.0.0.10, cidr_netmask: 24, nic: eth0}
`

// The parameters are compared with the meta-data of Debian's agents, and what is wrong has its line.
func TestCheckAgents(t *testing.T) {
	root := t.TempDir()
	if err := os.MkdirAll(filepath.Join(root, "resource.d", "broken"), 0o755); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"lib", "resource.d/heartbeat"} {
		if err := os.Symlink(filepath.Join(DefaultOCFRoot, name), filepath.Join(root, name)); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(root, "resource.d", "broken", "agent"), []byte("#!/bin/sh\necho oops >&2\nexit 3\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	rs, err := config.Parse("r0.yaml", []byte(metaFile))
	if err != nil {
		t.Fatal(err)
	}
	for range 2 { // the second time from memory
		err = CheckAgents(t.Context(), root, &rs[0])
		want := []string{
			"r0.yaml:10:52: services.primary[0].params.directry: Filesystem has no such parameter (did you mean directory?)",
			"r0.yaml:10:15: services.primary[0].params: Filesystem needs the parameter directory",
			`r0.yaml:12:41: services.primary[1].params.arp_count: "many" is no whole number`,
			`r0.yaml:12:60: services.primary[1].params.lvs_support: "perhaps" is neither true nor false`,
			"r0.yaml:15:7: services.primary[3]: meta-data of ocf:broken:agent: exit code 3: oops (its parameters were not checked)",
		}
		if got := err.Error(); got != strings.Join(want, "\n") {
			t.Errorf("%s\nwant\n%s", got, strings.Join(want, "\n"))
		}
		if got := len(config.Errors(err)); got != len(want) {
			t.Errorf("%d errors with a place, want %d", got, len(want))
		}
	}
	if _, err := ReadMeta(context.Background(), root, "heartbeat:no-such-agent"); !errors.Is(err, ErrNoAgent) {
		t.Errorf("%v", err)
	}
}

func FuzzParseMeta(f *testing.F) {
	f.Add([]byte(`<?xml version="1.0"?><resource-agent name="x"><parameters><parameter name="a" required="1"><content type="integer"/></parameter></parameters></resource-agent>`))
	f.Fuzz(func(t *testing.T, data []byte) {
		m, err := ParseMeta(data)
		if (m == nil) == (err == nil) {
			t.Fatalf("%v %v", m, err)
		}
		if m != nil {
			m.check(map[string]string{"a": "1", "b": ""})
		}
	})
}
