package drbdtools

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// TestConsumers takes one pair through what programs written for DRBD do with it.
func TestConsumers(t *testing.T) {
	a, b, device := pair(t)
	t.Run("exit codes", func(t *testing.T) { exitCodes(t, a, b, device) })
	t.Run("events", func(t *testing.T) { events(t, a) })
	t.Run("exporter", func(t *testing.T) { exporter(t, a, device) })
	t.Run("agent of DRBD", func(t *testing.T) { linbitAgent(t, a, device) })
	t.Run("restart of hawser's agent", func(t *testing.T) { restart(t, b) })
}

// exitCodes are those that scripts and agents branch on.
func exitCodes(t *testing.T, a, b *node, device string) {
	for _, c := range []struct {
		n       *node
		command string
		code    int
		out     string // what it prints, or "…" and a part of it
		err     string // a part of what it says on standard error
	}{
		{a, "drbdadm role r0", 0, "Secondary\n", ""},
		{a, "drbdadm-84 role r0", 0, "Secondary/Secondary\n", ""},
		{a, "drbdadm cstate r0", 0, "Connected\n", ""},
		{a, "drbdadm-84 cstate r0", 0, "Connected\n", ""},
		{a, "drbdadm dstate r0", 0, "UpToDate/UpToDate\n", ""},
		{a, "drbdadm status r0", 0, "r0 role:Secondary\n  disk:UpToDate open:no\n  beta role:Secondary\n    peer-disk:UpToDate\n\n", ""},
		{a, "drbdadm-84 status r0", 0, "r0 role:Secondary\n  disk:UpToDate\n  peer role:Secondary\n    replication:Established peer-disk:UpToDate\n\n", ""},
		{a, "drbdadm sh-dev r0", 0, device + "\n", ""},
		{a, "drbdadm sh-resources", 0, "r0\n", ""},
		{a, "drbdadm sh-ll-dev r0", 0, filepath.Dir(a.dir) + "/alpha.img\n", ""},
		{a, "drbdadm sh-md-idx r0", 0, "internal\n", ""},
		{a, "drbdadm sh-nop", 0, "", ""},
		{a, "drbdadm --stacked sh-dev r0", 1, "", "'r0' not defined in your config (for this host)."},
		{a, "drbdadm -c /etc/drbd.conf -d -v dump r0", 0, "…resource r0 {", ""},
		{a, "drbdadm connect all -d", 0, "drbdsetup connect r0 1\n", ""},
		{a, "drbdadm -d adjust r0", 0, "", ""},
		{a, "drbdadm -d primary r0", 0, "drbdsetup primary r0\n", ""},
		{a, "drbdadm up r0", 1, "", "is configured!"},
		{a, "drbdadm create-md r0", 1, "", "is configured!"},
		{a, "drbdadm adjust r0", 0, "", ""},
		{a, "drbdadm check-resize r0", 0, "", ""},
		{a, "drbdadm nosuchverb", 1, "", "Unknown command 'nosuchverb'"},
		{a, "drbdadm role nosuch", 1, "", "'nosuch' not defined in your config (for this host)."},
		{a, "drbdsetup role nosuch", 10, "", "nosuch: Unknown resource"},
		{a, "drbdsetup status nosuch --json", 10, "[\n]\n\n", "nosuch: No such resource"},
		{a, "drbdsetup cstate r0 7", 10, "", "r0: No such connection"},
		{a, "drbdsetup dstate 7", 10, "", "7: No such device"},
		{a, "drbdsetup get-gi r0 7 0", 10, "", "r0: No such peer device"},
		{a, "drbdsetup-84 status --json", 20, "", "status: unrecognized option '--json'"},
		{a, "drbdsetup-84 show nosuch", 20, "", "received netlink error reply: No such device"},
		{a, "drbdsetup nosuchverb", 20, "", "invalid command"},
		{a, "drbdsetup events2 --now nosuch", 0, "exists -\n", ""},
		{a, "drbdadm primary r0", 0, "", ""},
		{a, "drbdadm primary r0", 0, "", ""},
		{b, "drbdadm primary r0", 11, "", "r0: State change failed: (-1) Multiple primaries not allowed by config\n"},
		{a, "drbdadm verify r0", 0, "", ""},
		{a, "drbdadm disconnect r0", 0, "", ""},
		{a, "drbdsetup wait-connect-resource r0 --wait-after-sb --wfc-timeout=1", 5, "", ""},
		{b, "drbdadm outdate r0", 0, "", ""},
		{b, "drbdadm primary r0", 17, "", "r0: State change failed: (-2) Need access to UpToDate data\n"},
		{a, "drbdadm -d adjust r0", 0, "drbdsetup connect r0 1\n", ""},
		{a, "drbdadm adjust r0", 0, "", ""},
		{a, "drbdadm wait-sync r0 --wfc-timeout=100", 0, "", ""},
		{a, "drbdadm secondary r0", 0, "", ""},
		{a, "drbdadm down r0", 0, "", ""},
		{a, "drbdadm down r0", 0, "", ""},
		{a, "drbdadm secondary r0", 0, "", ""},
		{a, "drbdadm role r0", 10, "", "Command 'drbdsetup role r0' terminated with exit code 10"},
		{a, "drbdadm dstate r0", 0, "Consistent\n", ""},
		{a, "drbdadm status", 0, "# No currently configured DRBD found.\n", ""},
		{a, "drbdadm status r0", 10, "# No currently configured DRBD found.\n", "r0: No such resource"},
		{a, "drbdadm adjust r0", 0, "", ""},
		{a, "drbdsetup wait-connect-resource r0 --wfc-timeout=100", 0, "", ""},
	} {
		words := strings.Fields(c.command)
		out, code, complaints := c.n.run(words[0], words[1:]...)
		part, inPart := strings.CutPrefix(c.out, "…")
		if code != c.code || (inPart && !strings.Contains(out, part)) || (!inPart && out != c.out) || !strings.Contains(complaints, c.err) {
			t.Errorf("%s on %s: exit code %d, want %d\n%s\nwant:\n%s\nstandard error:\n%s\nwant:\n%s", c.command, c.n.name, code, c.code, out, c.out, complaints, c.err)
		}
	}
}

// events reads drbdsetup events2 as drbd-reactor does: all keys, news on request.
func events(t *testing.T, n *node) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, filepath.Join(programs, "drbdsetup"), "events2", "--full", "--poll")
	cmd.Env = n.env()
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	pipe, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(pipe)
	wait := func(part string) {
		t.Helper()
		var seen []string
		for lines.Scan() {
			if seen = append(seen, lines.Text()); strings.Contains(lines.Text(), part) {
				return
			}
		}
		t.Fatalf("no line with %q, only:\n%s", part, strings.Join(seen, "\n"))
	}
	wait("exists resource name:r0 role:Secondary suspended:no force-io-failures:no write-ordering:flush may_promote:yes promotion_score:10102")
	wait("exists peer-device name:r0 peer-node-id:1 conn-name:beta volume:0 replication:Established peer-disk:UpToDate peer-client:no resync-suspended:no")
	wait("exists -")
	n.ok("drbdadm", "primary", "r0")
	wait("change resource name:r0 role:Primary suspended:no force-io-failures:no write-ordering:flush may_promote:no promotion_score:10102")
	n.ok("drbdadm", "disconnect", "r0")
	wait("change peer-device name:r0 peer-node-id:1 conn-name:beta volume:0 replication:Off peer-disk:")
	if _, err := io.WriteString(in, "n\n"); err != nil {
		t.Fatal(err)
	}
	n.ok("drbdadm", "adjust", "r0")
	wait("change path name:r0 peer-node-id:1 conn-name:beta")
	n.ok("drbdadm", "wait-connect", "r0", "--wfc-timeout=100")
	n.ok("drbdadm", "secondary", "r0")
	wait("change resource name:r0 role:Secondary")
	if err := in.Close(); err != nil {
		t.Fatal(err)
	}
	for lines.Scan() { // to its end
	}
	if err := cmd.Wait(); err != nil {
		t.Errorf("after the end of its input: %v", err)
	}
}

// exporter runs Debian's prometheus-hacluster-exporter and compares what it serves with what drbdsetup says.
func exporter(t *testing.T, n *node, device string) {
	program, err := exec.LookPath("ha_cluster_exporter")
	if err != nil {
		t.Fatalf("%v: make deps installs it", err)
	}
	n.ok("drbdadm", "primary", "r0")
	f, err := os.OpenFile(device, os.O_WRONLY|syscall.O_SYNC, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err = f.WriteAt(make([]byte, 1<<20), 0); err == nil {
		err = f.Sync()
	}
	if e := f.Close(); err != nil || e != nil {
		t.Fatal(err, e)
	}
	address := free(t)
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	split := t.TempDir()
	cmd := exec.CommandContext(ctx, program, "--web.listen-address="+address, "--drbdsetup-path="+filepath.Join(programs, "drbdsetup"), "--drbdsplitbrain-path="+split)
	cmd.Env = n.env()
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		cancel()
		_ = cmd.Wait() // it was killed
	}()
	var metrics string
	n.until("the exporter serves", func() bool {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+address+"/metrics", nil)
		if err != nil {
			t.Fatal(err)
		}
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			return false
		}
		defer resp.Body.Close()
		data, err := io.ReadAll(resp.Body)
		metrics = string(data)
		return err == nil && resp.StatusCode == http.StatusOK
	})
	var said []struct {
		Devices []struct {
			Written, Read int64
			ALWrites      int64 `json:"al-writes"`
		}
		Connections []struct {
			Peers []struct{ Sent int64 } `json:"peer_devices"`
		}
	}
	if err := json.Unmarshal([]byte(n.ok("drbdsetup", "status", "--json")), &said); err != nil {
		t.Fatal(err)
	}
	d, p := said[0].Devices[0], said[0].Connections[0].Peers[0]
	if d.Written < 1024 || p.Sent < 1024 {
		t.Errorf("1 MiB was written: %+v", said)
	}
	for _, want := range []string{
		`ha_cluster_scrape_success{collector="drbd"} 1`,
		`ha_cluster_drbd_resources{disk_state="uptodate",resource="r0",role="Primary",volume="0"} 1`,
		`ha_cluster_drbd_connections{peer_disk_state="uptodate",peer_node_id="1",peer_role="Secondary",resource="r0",volume="0"} 1`,
		`ha_cluster_drbd_connections_sync{peer_node_id="1",resource="r0",volume="0"} 100`,
		`ha_cluster_drbd_quorum{resource="r0",volume="0"} 1`,
		fmt.Sprintf(`ha_cluster_drbd_written{resource="r0",volume="0"} %d`, d.Written),
		fmt.Sprintf(`ha_cluster_drbd_read{resource="r0",volume="0"} %d`, d.Read),
		fmt.Sprintf(`ha_cluster_drbd_al_writes{resource="r0",volume="0"} %d`, d.ALWrites),
		fmt.Sprintf(`ha_cluster_drbd_connections_sent{peer_node_id="1",resource="r0",volume="0"} %d`, p.Sent),
		`ha_cluster_drbd_upper_pending{resource="r0",volume="0"} 0`,
	} {
		if !strings.Contains(metrics, want+"\n") {
			t.Errorf("the exporter does not serve %s:\n%s", want, metrics)
		}
	}
	n.ok("drbdadm", "secondary", "r0")
}

// linbitAgent runs the actions of drbd-utils' own resource agent, as Pacemaker would, without Pacemaker.
func linbitAgent(t *testing.T, n *node, device string) {
	const agent = "/usr/lib/ocf/resource.d/linbit/drbd"
	if _, err := os.Stat(agent); err != nil {
		t.Fatalf("%v: make deps installs it (drbd-utils)", err)
	}
	stubs := t.TempDir() // of Pacemaker's tools, which want a cluster
	for _, name := range []string{"crm_master", "crm_resource", "crm_attribute", "crm_node", "attrd_updater"} {
		if err := os.WriteFile(filepath.Join(stubs, name), []byte("#!/bin/sh\nexit 0\n"), 0o755); err != nil { //nolint:gosec // it must be executable
			t.Fatal(err)
		}
	}
	n.extra = []string{"PATH=" + programs + ":" + stubs + ":" + os.Getenv("PATH"), "BASH_ENV=" + bridge, "OCF_ROOT=/usr/lib/ocf", "OCF_RA_VERSION_MAJOR=1",
		"OCF_RA_VERSION_MINOR=0", "OCF_RESOURCE_INSTANCE=drbd_r0:0", "OCF_RESOURCE_TYPE=drbd", "OCF_RESOURCE_PROVIDER=linbit", "HA_RSCTMP=" + stubs,
		"OCF_RESKEY_drbd_resource=r0", "OCF_RESKEY_CRM_meta_clone_max=2", "OCF_RESKEY_CRM_meta_clone_node_max=1", "OCF_RESKEY_CRM_meta_master_max=1",
		"OCF_RESKEY_CRM_meta_master_node_max=1", "OCF_RESKEY_CRM_meta_notify=true", "OCF_RESKEY_CRM_meta_timeout=100000", "OCF_RESKEY_CRM_meta_interval=0",
		"OCF_RESKEY_CRM_meta_notify_type=post", "OCF_RESKEY_CRM_meta_notify_operation=start"}
	defer func() { n.extra = nil }()
	for _, step := range []struct {
		action string
		code   int
		role   string // afterwards; "": it is down
	}{
		{"meta-data", 0, "Secondary"}, {"validate-all", 0, "Secondary"}, {"monitor", 0, "Secondary"}, {"stop", 0, ""}, {"monitor", 7, ""}, {"stop", 0, ""},
		{"start", 0, "Secondary"}, {"start", 0, "Secondary"}, {"monitor", 0, "Secondary"}, {"notify", 0, "Secondary"}, {"promote", 0, "Primary"},
		{"monitor", 8, "Primary"}, {"demote", 0, "Secondary"}, {"monitor", 0, "Secondary"}, {"stop", 0, ""}, {"monitor", 7, ""},
	} {
		began := time.Now()
		out, code, complaints := n.run(agent, step.action)
		if code != step.code {
			t.Fatalf("%s: exit code %d, want %d\n%s%s\n%s", step.action, code, step.code, out, complaints, n.tail())
		}
		role, _, _ := n.run("drbdadm", "role", "r0")
		if got := strings.TrimSpace(role); got != step.role {
			t.Fatalf("after %s the role is %q, want %q", step.action, got, step.role)
		}
		if step.role == "Primary" {
			if st, err := os.Stat(device); err != nil || st.Mode()&os.ModeDevice == 0 {
				t.Errorf("after %s %s is no device: %v", step.action, device, err)
			}
		}
		t.Logf("%s: %v", step.action, time.Since(began).Round(time.Millisecond))
	}
	n.extra = nil
	n.ok("drbdadm", "up", "r0")
}

// restart: while hawser's agent is away, the tools still see what runs; a monitor that does not would end services.
func restart(t *testing.T, n *node) {
	before := n.ok("drbdsetup", "status", "r0")
	n.stop(syscall.SIGKILL)
	if after := n.ok("drbdsetup", "status", "r0"); after != before && !strings.Contains(after, "r0 role:Secondary\n  disk:UpToDate") {
		t.Errorf("without the agent:\n%s\nbefore:\n%s", after, before)
	}
	if _, code, complaints := n.run("drbdadm", "down", "r0"); code != 20 || !strings.Contains(complaints, "is not running") {
		t.Errorf("down without the agent: exit code %d, want 20: %s", code, complaints)
	}
	n.start()
	n.ok("drbdadm", "status", "r0")
}
