package config

import (
	"strings"
	"testing"

	"github.com/hawser-ha/hawser/replicator/control"
)

func TestDiff(t *testing.T) {
	for _, tc := range []struct {
		rule     string
		from, to string // replaced in three; "" leaves it
		want     []string
	}{
		{"nothing changed, nothing to do", "", "", nil},
		{"an option changes online", "al-extents: 500", "al-extents: 500, read-balancing: round-robin", []string{
			"change volume 0: read-balancing prefer-local -> round-robin", "change volume 1: read-balancing prefer-local -> round-robin"}},
		{"unless it is read when the disk is attached", "al-extents: 500", "al-extents: 501, on-io-error: pass_on", []string{
			"detach 0 volume 0: al-extents 500 -> 501 [detaches]", "change volume 0: on-io-error detach -> pass_on",
			"change volume 1: on-io-error detach -> pass_on", "attach 0 volume 0: al-extents 500 -> 501"}},
		{"or agreed on when the connection is made", "net: {protocol: C}", "net: {protocol: C, verify-alg: md5, ko-count: 3}", []string{
			"disconnect beta peer beta: verify-alg none -> md5 [disconnects]", "change peer beta: ko-count 7 -> 3",
			"connect beta peer beta: verify-alg none -> md5"}},
		{"so do the options of a link", "timeout: 50", "timeout: 40", []string{
			"change peer beta: timeout 5s -> 4s", "change peer gamma.example.com: timeout 5s -> 4s", "change peer delta: timeout 5s -> 4s"}},
		{"and the protocol", "net: {protocol: C}", "net: {protocol: B}", []string{"change peer beta: protocol C -> B"}},
		{"and resync options", "c-min-rate: 1M", "c-min-rate: 2M", []string{"change peer beta: c-min-rate 1024 -> 2048"}},
		{"and options of the resource", "undo-log: none", "undo-log: /undo", []string{"change undo-log none -> /undo"}},
		{"another disk is detached and attached", "/files/r0.img", "/files/r0.new", []string{
			"detach 0 volume 0: disk /files/r0.img -> /files/r0.new [detaches]", "change set the new definition",
			"attach 0 volume 0: disk /files/r0.img -> /files/r0.new"}},
		{"so is other metadata, once for both", "meta-disk: \"/dev/vg/md[2]\"", "meta-disk: \"/dev/vg/mx[3]\"", []string{
			"detach 1 volume 1: meta-disk /dev/vg/md -> /dev/vg/mx, meta-index 2 -> 3 [detaches]", "change set the new definition",
			"attach 1 volume 1: meta-disk /dev/vg/md -> /dev/vg/mx, meta-index 2 -> 3"}},
		{"a disk that goes is only detached", "disk: /files/r0.img, meta-disk: /files/r0.md", "disk: /files/r0.img", []string{
			"detach 0 volume 0: meta-disk /files/r0.md -> internal [detaches]", "change set the new definition",
			"attach 0 volume 0: meta-disk /files/r0.md -> internal"}},
		{"a size is a resize", "size: 10G", "size: 11G", []string{"change set the new definition", "resize 1 volume 1: size 10737418240 -> 11811160064"}},
		{"an address is a reconnect of that peer", "alpha: \"10.2.0.1:7789\"", "alpha: \"10.2.0.1:7790\"", []string{
			"disconnect beta peer beta: local-address 10.2.0.1:7789 -> 10.2.0.1:7790 [disconnects]", "change set the new definition",
			"connect beta peer beta: local-address 10.2.0.1:7789 -> 10.2.0.1:7790"}},
		{"another device is a restart", "fuse /dev/drbd1", "nbd /dev/drbd2", []string{
			"down volume 1: device fuse -> nbd; volume 1: dev-link /dev/drbd1 -> /dev/drbd2 [stops]",
			"up volume 1: device fuse -> nbd; volume 1: dev-link /dev/drbd1 -> /dev/drbd2"}},
		{"so is a peer that goes", "  - {name: delta, address: \"10.1.0.4:7789\", node-id: 9}\n", "", []string{
			"down peer delta is gone [stops]", "up peer delta is gone"}},
		{"and the node's id", "node-id: 4", "node-id: 5", []string{"down node-id 4 -> 5 [stops]", "up node-id 4 -> 5"}},
		{"a secret is not shown", "timeout: 50", "cram-hmac-alg: sha256, shared-secret: hush, timeout: 50", []string{
			"change peer beta: cram-hmac-alg none -> sha256", "change peer beta: shared-secret changed",
			"change peer gamma.example.com: cram-hmac-alg none -> sha256", "change peer gamma.example.com: shared-secret changed",
			"change peer delta: cram-hmac-alg none -> sha256", "change peer delta: shared-secret changed"}},
	} {
		old := define(t, three, "alpha")
		text := three
		if tc.from != "" {
			if !strings.Contains(three, tc.from) {
				t.Fatalf("%s: %q is not in the sample", tc.rule, tc.from)
			}
			text = strings.Replace(three, tc.from, tc.to, 1)
		}
		compare(t, tc.rule, Diff(old, define(t, text, "alpha")), tc.want)
	}
	d := define(t, three, "alpha")
	compare(t, "what does not run comes up", Diff(control.Definition{}, d), []string{"up it does not run"})
	compare(t, "what is not wanted goes down", Diff(d, control.Definition{}), []string{"down it is no longer wanted [stops]"})
	more := define(t, strings.Replace(three, "net: {", "  - {volume: 7, disk: /dev/vg/r7}\nnet: {", 1), "alpha")
	compare(t, "a new volume is a restart", Diff(d, more), []string{"down volume 7 is new [stops]", "up volume 7 is new"})
	without := define(t, three, "alpha")
	without.Volumes[0].Disk = ""
	compare(t, "a disk that goes is only detached", Diff(d, without), []string{
		"detach 0 volume 0: disk /files/r0.img -> none [detaches]", "change set the new definition"})
	compare(t, "a disk that comes is only attached", Diff(without, d), []string{
		"change set the new definition", "attach 0 volume 0: disk none -> /files/r0.img"})
}

func compare(t *testing.T, rule string, steps []Step, want []string) {
	t.Helper()
	var got []string
	for _, s := range steps {
		line := string(s.Verb)
		if s.Target != "" {
			line += " " + s.Target
		}
		line += " " + s.Text
		switch {
		case s.Stops:
			line += " [stops]"
		case s.Detaches:
			line += " [detaches]"
		case s.Disconnects:
			line += " [disconnects]"
		}
		got = append(got, line)
	}
	if strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("%s:\n%s\nwant\n%s", rule, strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}
