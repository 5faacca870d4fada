package drbdtools

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hawser-ha/hawser/agent/config"
	"github.com/hawser-ha/hawser/replicator/control"
)

const twoVolumes = `resource: r0
nodes:
  - {name: alpha, address: "10.0.0.1:7788"}
  - {name: beta, address: "10.0.0.2:7788"}
volumes:
  - {volume: 0, device: auto /dev/drbd3, disk: /dev/vg/r0}
  - {volume: 1, device: auto /dev/drbd4, disk: /dev/vg/r1}
net:
  protocol: C
  allow-two-primaries: yes
handlers:
  unfence-peer: echo $DRBD_RESOURCE $DRBD_PEER_NODE_ID; exit 4
`

// bench is the tools with an agent that answers from a table.
type bench struct {
	t       *testing.T
	dir     string
	answers map[string]any // by "METHOD PATH"
	mu      sync.Mutex     // guards asked
	asked   []string
	stdin   string
	env     map[string]string
}

func newBench(t *testing.T, file string) *bench {
	t.Helper()
	b := &bench{t: t, dir: t.TempDir(), answers: map[string]any{}, env: map[string]string{}}
	if err := os.MkdirAll(filepath.Join(b.dir, "resources.d"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(b.dir, "resources.d", "r0.yaml"), []byte(file), 0o600); err != nil {
		t.Fatal(err)
	}
	return b
}

// serve starts the agent.
func (b *bench) serve() {
	b.t.Helper()
	var c net.ListenConfig
	l, err := c.Listen(b.t.Context(), "unix", filepath.Join(b.dir, "agent.sock"))
	if err != nil {
		b.t.Fatal(err)
	}
	srv := &http.Server{ReadHeaderTimeout: time.Second, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			b.t.Error(err)
		}
		key := r.Method + " " + strings.TrimPrefix(r.URL.Path, "/v1/")
		b.mu.Lock()
		b.asked = append(b.asked, strings.TrimSpace(key+" "+string(body)))
		b.mu.Unlock()
		switch a := b.answers[key].(type) {
		case nil:
			control.WriteError(w, control.Errorf(control.NotFound, "nothing at %s", key).On("r0", control.All, ""))
		case error:
			control.WriteError(w, a)
		default:
			control.WriteJSON(w, a)
		}
	})}
	ended := make(chan error, 1)
	go func() { ended <- srv.Serve(l) }()
	b.t.Cleanup(func() {
		if err := srv.Close(); err != nil {
			b.t.Error(err)
		}
		<-ended
	})
}

// up makes the agent say that r0 runs.
func (b *bench) up() {
	st := &control.Status{Resource: "r0", Node: "alpha", Role: "Secondary",
		Volumes: []control.VolumeStatus{{Number: 0, Backing: "/dev/vg/r0", DiskState: "UpToDate", Size: 1 << 20}, {Number: 1, Backing: "/dev/vg/r1", DiskState: "UpToDate", Size: 1 << 20}},
		Peers: []control.PeerStatus{{Name: "beta", NodeID: 1, Connection: "Connected", Role: "Secondary", Volumes: []control.PeerVolumeStatus{
			{Number: 0, Replication: "Established", DiskState: "UpToDate"}, {Number: 1, Replication: "Established", DiskState: "Outdated"}}}}}
	b.answers["GET status"] = map[string]any{"resources": []any{map[string]any{"name": "r0", "status": st}}}
}

func (b *bench) run(command string) (stdout string, code int, stderr string) {
	b.t.Helper()
	words := strings.Fields(command)
	node := config.DefaultNode()
	node.Node, node.RunDir, node.ResourcesDir = "alpha", b.dir, filepath.Join(b.dir, "resources.d")
	var out, complaints bytes.Buffer
	code = Run(context.Background(), words[0], words[1:], Options{Node: node, Version: "1.0 (test)", Stdin: strings.NewReader(b.stdin), Stdout: &out, Stderr: &complaints,
		Getenv: func(k string) string { return b.env[k] }, Now: func() time.Time { return time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC) }})
	return out.String(), code, complaints.String()
}

// posts are what the agent was asked to do, and forgets them.
func (b *bench) posts() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	list := slices.DeleteFunc(b.asked, func(s string) bool { return !strings.HasPrefix(s, "POST ") })
	b.asked = nil
	return list
}

func TestWhatTheFilesSay(t *testing.T) {
	b := newBench(t, twoVolumes) // no agent runs: nothing here needs it
	for command, want := range map[string]string{
		"drbdadm sh-resources":                              "r0\n",
		"drbdadm sh-dev r0":                                 "/dev/drbd3\n/dev/drbd4\n",
		"drbdadm sh-dev r0/1":                               "/dev/drbd4\n",
		"drbdadm sh-minor /dev/drbd4":                       "4\n",
		"drbdadm sh-ll-dev minor-3":                         "/dev/vg/r0\n",
		"drbdadm sh-md-dev r0":                              "/dev/vg/r0\n/dev/vg/r1\n",
		"drbdadm sh-md-idx r0":                              "internal\ninternal\n",
		"drbdadm sh-ip r0":                                  "10.0.0.1\n10.0.0.1\n",
		"drbdadm sh-mod-parms":                              "minor_count=32\n",
		"drbdadm sh-nop":                                    "",
		"drbdadm sh-udev minor-3":                           "DEVICE=drbd3\nSYMLINK=drbd/by-res/r0/0\nSYMLINK_BY_RES=drbd/by-res/r0/0\nSYMLINK_BY_DISK=drbd/by-disk/vg/r0\n",
		"drbdsetup udev 4":                                  "DEVICE=drbd4\nSYMLINK_BY_RES=drbd/by-res/r0/1\nSYMLINK_BY_DISK=drbd/by-disk/vg/r1\n",
		"drbdadm connect all -d":                            "drbdsetup connect r0 1\n",
		"drbdadm-84 -d connect all":                         "drbdsetup-84 connect r0 ipv4:10.0.0.1:7788 ipv4:10.0.0.2:7788\n",
		"drbdadm -d connect r0:beta":                        "drbdsetup connect r0 1\n",
		"drbdadm -d primary r0 --force":                     "drbdsetup primary r0 --force\n",
		"drbdadm -d -- --overwrite-data-of-peer primary r0": "drbdsetup primary r0 --overwrite-data-of-peer\n",
		"drbdadm -d detach r0/1":                            "drbdsetup detach 4\n",
		"drbdadm -d verify r0:beta/0":                       "drbdsetup verify r0 1 0\n",
		"drbdadm -d -c /etc/drbd.conf role r0":              "drbdsetup role r0\n",
		"drbdadm-84 -d role r0":                             "drbdsetup-84 role 3\ndrbdsetup-84 role 4\n",
		"drbdadm -d create-md r0/0":                         "drbdmeta 3 v09 /dev/vg/r0 internal create-md 1\ndrbdmeta 4 v09 /dev/vg/r1 internal create-md 1\n",
		"drbdadm status":                                    "# No currently configured DRBD found.\n",
		"drbdsetup-84 status":                               "",
		"drbdsetup status --json":                           "[\n]\n\n",
		"drbdsetup show":                                    "# No currently configured DRBD found.\n",
		"drbdsetup events2 --now":                           "exists -\n",
		"drbdsetup events2 --now --timestamps":              "2026-03-01T12:00:00.000000+00:00 exists -\n",
	} {
		out, code, complaints := b.run(command)
		if code != 0 || complaints != "" || out != want {
			t.Errorf("%s: exit code %d, %q\n%s\nwant:\n%s", command, code, complaints, out, want)
		}
	}
	out, code, _ := b.run("drbdadm -c /etc/drbd.conf -d -v dump r0")
	if code != 0 || !strings.Contains(out, "allow-two-primaries") || !strings.Contains(out, "resource r0 {") {
		t.Errorf("dump: exit code %d\n%s", code, out)
	}
	out, code, complaints := b.run("drbdadm unfence-peer r0")
	if code != 4 {
		t.Errorf("a handler's exit code is passed on: %d %s%s", code, out, complaints)
	}
}

func TestErrorsHaveTheExitCodesOfDRBD(t *testing.T) {
	b := newBench(t, twoVolumes)
	b.serve()
	b.up()
	b.answers["POST resources/r0/do/primary"] = control.Errorf(control.NotUpToDate, "no good data")
	b.answers["POST resources/r0/do/secondary"] = control.Errorf(control.InUse, "mounted")
	b.answers["POST resources/r0/do/verify"] = control.Errorf(control.NoAlgorithm, "verify-alg is not set")
	b.answers["POST resources/r0/down"] = control.Errorf(control.InUse, "mounted")
	for command, want := range map[string]struct {
		code int
		text string
	}{
		"drbdadm":                              {1, "USAGE"},
		"drbdadm nosuch":                       {1, "Unknown command 'nosuch'"},
		"drbdadm primary":                      {1, "needs a resource"},
		"drbdadm primary nosuch":               {1, "'nosuch' not defined in your config (for this host)."},
		"drbdadm primary r0/7":                 {1, "'r0/7' not defined"},
		"drbdadm connect r0:gamma":             {1, "'r0:gamma' not defined"},
		"drbdadm primary --nosuch r0":          {1, "unrecognized option '--nosuch'"},
		"drbdadm primary r0":                   {17, "Command 'drbdsetup primary r0' terminated with exit code 17"},
		"drbdadm secondary r0":                 {11, "State change failed: (-12)"},
		"drbdadm verify r0":                    {11, "(-14) Need a verify algorithm"},
		"drbdadm down r0":                      {11, "mounted"},
		"drbdadm -c /nosuch.conf role r0":      {10, "Can not open '/nosuch.conf'"},
		"drbdsetup":                            {1, "USAGE"},
		"drbdsetup nosuch":                     {20, "invalid command"},
		"drbdsetup primary":                    {1, "missing argument"},
		"drbdsetup primary r0 r1":              {1, "excess arguments"},
		"drbdsetup connect r0 x":               {20, "'x' is no node id"},
		"drbdsetup connect r0 7":               {10, "no peer has the node id 7"},
		"drbdsetup connect nosuch 1":           {10, "(158) Unknown resource"},
		"drbdsetup dstate 99":                  {10, "99: No such device"},
		"drbdsetup-84 dstate 99":               {10, "99: Failure: (127) Device minor not allocated"},
		"drbdsetup-84 role r0":                 {20, "Cannot determine minor device number of device 'r0'"},
		"drbdsetup-84 show nosuch":             {20, "received netlink error reply: No such device"},
		"drbdsetup new-resource r0 0 --quorum": {10, "hawser runs resources as their files have them"},
		"drbdsetup status nosuch":              {10, "nosuch: No such resource"},
		"drbdsetup resize 3 --size=x":          {20, "--size=x"},
	} {
		_, code, complaints := b.run(command)
		if code != want.code || !strings.Contains(complaints, want.text) {
			t.Errorf("%s: exit code %d, want %d\n%s\nwant: %s", command, code, want.code, complaints, want.text)
		}
	}
}

func TestVerbsAskTheAgent(t *testing.T) {
	b := newBench(t, twoVolumes)
	b.serve()
	b.up()
	for _, verb := range []string{"primary", "secondary", "connect", "disconnect", "detach", "verify", "invalidate", "invalidate-remote", "pause-sync", "resize", "protocol", "new-current-uuid"} {
		b.answers["POST resources/r0/do/"+verb] = struct{}{}
	}
	b.answers["POST resources/r0/up"] = doneAnswer{Changed: true}
	b.answers["POST resources/r0/down"] = doneAnswer{Changed: true}
	b.answers["POST resources/r0/adjust"] = []step{}
	for _, c := range []struct {
		command string
		want    []string
	}{
		{"drbdadm primary r0", []string{`do/primary {"volume":-1}`}},
		{"drbdadm -- --overwrite-data-of-peer primary r0", []string{`do/primary {"volume":-1,"force":true}`}},
		{"drbdsetup primary r0 --force=yes", []string{`do/primary {"volume":-1,"force":true}`}},
		{"drbdsetup-84 primary 3", []string{`do/primary {"volume":-1}`}},
		{"drbdadm secondary all", []string{`do/secondary {"volume":-1}`}},
		{"drbdadm connect --discard-my-data r0", []string{`do/connect {"volume":-1,"peer":"beta","discard-my-data":true}`}},
		{"drbdadm disconnect r0:beta", []string{`do/disconnect {"volume":-1,"peer":"beta"}`}},
		{"drbdadm detach r0/1", []string{`do/detach {"volume":1}`}},
		{"drbdadm verify --start=1M --stop=8s r0/0", []string{`do/verify {"volume":0,"peer":"beta","start":1048576,"stop":4096}`}},
		{"drbdadm invalidate r0", []string{`do/invalidate {"volume":0}`, `do/invalidate {"volume":1}`}},
		{"drbdadm invalidate-remote r0/1", []string{`do/invalidate-remote {"volume":1,"peer":"beta"}`}},
		{"drbdadm pause-sync r0/0", []string{`do/pause-sync {"volume":0,"peer":"beta"}`}},
		{"drbdadm resize r0/0 --size=10G --assume-clean", []string{`do/resize {"volume":0,"assume-clean":true,"size":10737418240}`}},
		{"drbdadm net-options --protocol=A r0", []string{`do/protocol {"volume":-1,"peer":"beta","protocol":"A"}`}},
		{"drbdadm net-options r0", []string{`adjust {}`}},
		{"drbdadm new-current-uuid --clear-bitmap r0/0", []string{`do/new-current-uuid {"volume":0,"clear-bitmap":true}`}},
		{"drbdadm new-resource r0", []string{`up {}`}},
		{"drbdadm adjust r0", []string{`adjust {}`}},
		{"drbdadm down r0", []string{`down {"volume":-1}`}},
		{"drbdadm up r0", []string{`up {}`}},
		{"drbdadm -d up r0", nil},
		{"drbdadm apply-al r0", nil},
	} {
		out, code, complaints := b.run(c.command)
		var got []string
		for _, p := range b.posts() {
			got = append(got, strings.TrimPrefix(p, "POST resources/r0/"))
		}
		if code != 0 || !reflect.DeepEqual(got, c.want) {
			t.Errorf("%s: exit code %d, asked %q, want %q\n%s%s", c.command, code, got, c.want, out, complaints)
		}
	}
}

func TestVerbsThatPrintState(t *testing.T) {
	b := newBench(t, twoVolumes)
	b.serve()
	b.up()
	gi := control.GI{Current: 0x11, Bitmap: []control.PeerGI{{NodeID: 1, UUID: 0x22, Connected: true}}, Consistent: true, WasUpToDate: true}
	b.answers["GET resources/r0/show-gi"] = gi
	for command, want := range map[string]string{
		"drbdadm role r0":          "Secondary\n",
		"drbdadm cstate r0":        "Connected\n",
		"drbdadm dstate r0":        "UpToDate/UpToDate\nUpToDate/Outdated\n",
		"drbdadm dstate r0/1":      "UpToDate/Outdated\n",
		"drbdsetup peer-role r0 1": "Secondary\n",
		"drbdadm get-gi r0/0":      "0000000000000011:0000000000000022:0000000000000000:0000000000000000:1:1:0:0:0:0:0:1:0:0:0:1\n",
		"drbdadm-84 get-gi r0/0":   "0000000000000010:0000000000000022:0000000000000000:0000000000000000:1:1:0:1:0:0:0\n",
		"drbdadm status r0":        "r0 role:Secondary\n  volume:0 disk:UpToDate open:no\n  volume:1 disk:UpToDate open:no\n  beta role:Secondary\n    volume:0 peer-disk:UpToDate\n    volume:1 peer-disk:Outdated\n\n",
		"drbdsetup wait-connect-resource r0 --wfc-timeout=1": "",
		"drbdadm wait-sync r0 --wfc-timeout=1":               "",
		"drbdsetup device-exists /dev/drbd4":                 "",
	} {
		out, code, complaints := b.run(command)
		if code != 0 || out != want {
			t.Errorf("%s: exit code %d\n%s%s\nwant:\n%s", command, code, out, complaints, want)
		}
	}
	var status, show []map[string]any
	for command, to := range map[string]*[]map[string]any{"drbdsetup status --json r0": &status, "drbdsetup show --show-defaults --json r0": &show} {
		out, code, _ := b.run(command)
		if err := json.Unmarshal([]byte(out), to); err != nil || code != 0 || len(*to) != 1 {
			t.Errorf("%s: exit code %d, %v\n%s", command, code, err, out)
		}
	}
	if o, ok := show[0]["options"].(map[string]any); !ok || o["auto-promote"] != true || o["quorum"] != "off" {
		t.Errorf("options by default: %v", show[0]["options"])
	}
}

// TestPollAnswersEveryN: with --now each n is answered up to "exists -"; the end of the input is the end.
func TestPollAnswersEveryN(t *testing.T) {
	b := newBench(t, twoVolumes)
	b.serve()
	b.up()
	b.stdin = "n\nn"
	out, code, complaints := b.run("drbdsetup events2 --now --poll r0")
	if code != 0 || strings.Count(out, "exists -\n") != 3 || strings.Count(out, "exists resource name:r0 ") != 1 {
		t.Errorf("exit code %d %s\n%s", code, complaints, out)
	}
}

func TestCreateMDAsks(t *testing.T) {
	b := newBench(t, twoVolumes)
	b.serve()
	b.answers["POST resources/r0/create-md"] = []control.CreateMDResult{{Volume: 0, Disk: "/dev/vg/r0", Found: "ext4 file system", Created: true}}
	for answer, want := range map[string]int{"": 1, "no\n": 1, "y\n": 1, "yes\n": 0} {
		b.stdin = answer
		out, code, complaints := b.run("drbdadm create-md r0/0")
		posts := b.posts()
		if code != want || !strings.Contains(complaints, "/dev/vg/r0 holds ext4 file system") || (want == 0) != strings.Contains(out, "successfully created") || len(posts) != 2-want {
			t.Errorf("answer %q: exit code %d, want %d, asked %q\n%s%s", answer, code, want, posts, out, complaints)
		}
	}
}

// TestVersionIsForTheShell: the agent ocf:linbit:drbd evaluates it.
func TestVersionIsForTheShell(t *testing.T) {
	b := newBench(t, twoVolumes)
	for _, command := range []string{"drbdadm --version", "drbdadm -V", "drbdadm-84 --version"} {
		text, code, _ := b.run(command)
		if code != 0 {
			t.Fatalf("%s: exit code %d", command, code)
		}
		out, err := exec.CommandContext(t.Context(), "sh", "-euc", text+`echo "$DRBDADM_BUILDTAG $((DRBD_KERNEL_VERSION_CODE >= 0x080400)) $DRBDADM_API_VERSION"`).CombinedOutput()
		api := "2"
		if strings.Contains(command, "84") {
			api = "1"
		}
		if want := "hawser 1.0 (test) 1 " + api + "\n"; err != nil || string(out) != want {
			t.Errorf("%s: %v: %q, want %q", command, err, out, want)
		}
	}
}

func TestAnotherConfigurationIsReadToo(t *testing.T) {
	b := newBench(t, twoVolumes)
	file := filepath.Join(b.dir, "other.conf")
	if err := os.WriteFile(file, []byte(`resource mine { on alpha { device /dev/drbd9; disk /dev/sdz; meta-disk internal; address 127.0.0.1:7000; }
		on beta { device /dev/drbd9; disk /dev/sdz; meta-disk internal; address 10.0.0.2:7000; } }`), 0o600); err != nil {
		t.Fatal(err)
	}
	for command, want := range map[string]string{"sh-resources": "mine\n", "sh-ll-dev mine": "/dev/sdz\n", "sh-dev r0": "/dev/drbd3\n/dev/drbd4\n", "-d connect mine": "drbdsetup connect mine 0\n"} {
		out, code, complaints := b.run("drbdadm -c " + file + " " + command)
		if code != 0 || out != want {
			t.Errorf("%s: exit code %d\n%s%s\nwant:\n%s", command, code, out, complaints, want)
		}
	}
	if err := os.WriteFile(file, []byte("resource mine {"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, code, complaints := b.run("drbdadm -c " + file + " sh-nop"); code != 10 || !strings.Contains(complaints, "other.conf:1") {
		t.Errorf("a broken file: exit code %d, want 10: %s", code, complaints)
	}
}

func FuzzCommandLine(f *testing.F) {
	for _, s := range []string{"drbdadm -d -v dump r0", "drbdsetup events2 --now", "drbdadm -c /etc/drbd.conf -- --force primary minor-3", "drbdsetup-84 role /dev/drbd3", "drbdadm connect r0:beta/1 -d"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, line string) {
		words := strings.Fields(line)
		if len(words) == 0 || !slices.Contains(Names, words[0]) || strings.Contains(line, "events2") {
			t.Skip()
		}
		if slices.ContainsFunc(words, func(w string) bool {
			return strings.Contains(w, "-fence") || strings.HasPrefix(w, "-") && strings.ContainsAny(w, "ct")
		}) {
			t.Skip() // it would run a handler, or read a file
		}
		b := newBench(t, twoVolumes)
		if _, code, _ := b.run(strings.Join(words, " ")); !slices.Contains([]int{0, 1, 5, 10, 11, 16, 17, 20}, code) {
			t.Errorf("%q: exit code %d", line, code)
		}
	})
}
