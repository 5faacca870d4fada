package main

import (
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hawser-ha/hawser/agent"
	"github.com/hawser-ha/hawser/replicator/control"
)

var update = flag.Bool("update", false, "write the golden files anew")

// golden compares with a file in testdata.
func golden(t *testing.T, name, got string) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		t.Errorf("%s:\n%s\nwant:\n%s", name, got, want)
	}
}

// example is a node in the middle of much trouble.
func example() *agent.NodeStatus {
	began := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	return &agent.NodeStatus{Node: "n1", Version: "test", Problems: []string{"/etc/hawser/resources.d/bad.yaml:2:1: nodez: unknown key (did you mean nodes?)"},
		Resources: []agent.ResourceStatus{
			{Name: "r0", State: agent.StateUp, Nodes: []string{"n1", "n2"}, Status: &control.Status{Resource: "r0", Node: "n1", PID: 7, Role: "Primary",
				NBD: []string{"unix:/run/hawser/nbd/r0.sock"}, LastEvent: 41,
				Volumes: []control.VolumeStatus{{Number: 0, Device: "/dev/nbd0", Backing: "/dev/vg/r0", DiskState: "UpToDate", Size: 10 << 30, Front: []control.FrontStat{{Kind: "kernel-nbd"}}},
					{Number: 1, DiskState: "Diskless", Size: 1 << 30, LastError: "i/o error on /dev/vg/r1: detached"}},
				Peers: []control.PeerStatus{{Name: "n2", NodeID: 1, Connection: "Connected", Role: "Secondary", Protocol: "C", Congested: true,
					Volumes: []control.PeerVolumeStatus{{Number: 0, Replication: "SyncSource", DiskState: "Inconsistent", OutOfSync: 3 << 30,
						Sync: &control.Progress{Kind: "resync", Total: 10 << 30, Done: 7 << 30, Percent: 70, Rate: 100 << 20, ETA: 30.7, Started: began}},
						{Number: 1, Replication: "Established", DiskState: "UpToDate"}}},
					{Name: "n3", NodeID: 2, Connection: "StandAlone", LastError: "split brain", Volumes: []control.PeerVolumeStatus{{Number: 0, OutOfSync: 4096}}}}}},
			{Name: "r1", State: agent.StateDown, Nodes: []string{"n1", "n2"}},
			{Name: "r2", State: agent.StateWitness, Nodes: []string{"n2", "n3"}},
			{Name: "r3", State: agent.StateSilent, Message: "its replicator does not answer"},
		}}
}

func TestStatusForPeople(t *testing.T) {
	var b strings.Builder
	printer{w: &b}.node(example())
	golden(t, "status.golden", b.String())
	b.Reset()
	printer{w: &b, color: true}.node(example())
	golden(t, "status-color.golden", b.String())
}

func TestEventsForPeople(t *testing.T) {
	at := time.Date(2026, 3, 1, 12, 0, 0, 5e6, time.Local)
	st := example().Resources[0].Status
	sync := *st.Peers[0].Volumes[0].Sync
	done := sync
	done.Ended, done.Percent, done.Done = sync.Started.Add(1500*time.Millisecond), 100, sync.Total
	var b strings.Builder
	for _, e := range []control.Event{
		{Kind: control.EventStatus, Volume: -1, Status: st},
		{Kind: control.EventState, Volume: 0, Peer: "n2", Field: control.FieldPeerDisk, From: "Inconsistent", To: "UpToDate"},
		{Kind: control.EventState, Volume: -1, Field: control.FieldRole, From: "Primary", To: "Secondary", Text: "command"},
		{Kind: control.EventSync, Volume: 0, Peer: "n2", Text: "progress", Sync: &sync},
		{Kind: control.EventSync, Volume: 0, Peer: "n2", Text: "done", Sync: &done},
		{Kind: control.EventHandler, Volume: -1, Peer: "n2", Name: "before-resync-target", Handler: 1},
		{Kind: control.EventNote, Volume: -1, Name: "split-brain", Text: "the data went two ways"},
		{Kind: control.EventLost, Volume: -1},
		{Kind: control.EventDown, Volume: -1},
	} {
		e.Time, e.Resource = at, "r0"
		b.WriteString(eventText(e) + "\n")
	}
	golden(t, "events.golden", b.String())
}

// serveAgent answers as an agent would, from a table of paths; others are not found.
func serveAgent(t *testing.T, answers map[string]any) (runDir string, asked func() []string) {
	t.Helper()
	dir := t.TempDir()
	l, err := net.Listen("unix", filepath.Join(dir, "agent.sock"))
	if err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex // guards log
	var log []string
	srv := &http.Server{ReadHeaderTimeout: time.Second, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			t.Error(err)
		}
		key := r.Method + " " + r.URL.Path
		mu.Lock()
		log = append(log, strings.TrimSpace(key+" "+string(body)))
		mu.Unlock()
		switch a := answers[key].(type) {
		case nil:
			control.WriteError(w, control.Errorf(control.NotFound, "nothing at %s", key))
		case error:
			control.WriteError(w, a)
		case string:
			_, _ = io.WriteString(w, a)
		default:
			control.WriteJSON(w, a)
		}
	})}
	ended := make(chan error, 1)
	go func() { ended <- srv.Serve(l) }()
	t.Cleanup(func() {
		if err := srv.Close(); err != nil {
			t.Error(err)
		}
		<-ended
	})
	return dir, func() []string {
		mu.Lock()
		defer mu.Unlock()
		return slices.Clone(log)
	}
}

// hawser runs a command line against an agent.
func hawser(runDir string, args ...string) (code int, stdout, stderr string) {
	var out, errs bytes.Buffer
	code = execute(context.Background(), append([]string{"--run-dir", runDir}, args...), strings.NewReader(""), &out, &errs)
	return code, out.String(), errs.String()
}

func TestExitCodesAndMessages(t *testing.T) {
	r0 := example().Resources[0]
	refused := control.Errorf(control.NotUpToDate, "the disk is Inconsistent").On("r0", 0, "").WithRule("only an UpToDate disk makes a Primary")
	dir, asked := serveAgent(t, map[string]any{
		"GET /v1/status":                            example(),
		"GET /v1/resources/r0/status":               r0,
		"GET /v1/resources/r1/status":               example().Resources[1],
		"POST /v1/resources/r0/do/primary":          refused,
		"POST /v1/resources/r0/do/secondary":        struct{}{},
		"POST /v1/resources/r0/do/invalidate":       struct{}{},
		"POST /v1/resources/r0/do/protocol":         struct{}{},
		"POST /v1/resources/r0/do/resize":           struct{}{},
		"POST /v1/resources/r0/up":                  agent.Done{},
		"POST /v1/resources/r0/down":                control.Errorf(control.Unknown, "it takes longer than 30s").On("r0", -1, "").WithHint("wait, or hawser down --force r0"),
		"POST /v1/resources/r0/create-md":           []control.CreateMDResult{{Volume: 0, Disk: "/dev/vg/r0", Found: "an XFS file system"}},
		"POST /v1/resources/r0/adjust":              []agent.Step{{Verb: "disconnect", Target: "n2", Text: "peer n2: Remote", Disconnects: true}, {Verb: "change", Text: "set the new definition"}},
		"GET /v1/resources/r0/file":                 "resource: r0\n",
		"GET /v1/version":                           agent.Version{Version: "v1", Node: "n1"},
		"GET /v1/resources/r0/undo":                 []control.UndoLog{{ID: "1", Peer: "n2", Bytes: 8192, Time: time.Date(2026, 3, 1, 12, 0, 0, 0, time.Local), Complete: true}},
		"GET /v1/resources/r0/show-gi":              control.GI{Current: 0xABC, Bitmap: []control.PeerGI{{Peer: "n2", NodeID: 1, UUID: 0xDEF, Connected: true}}, Consistent: true, Size: 4096},
		"POST /v1/resources/r0/do/new-current-uuid": struct{}{},
	})
	var b strings.Builder
	for _, c := range []struct {
		line string
		code int
	}{
		{"secondary r0", 0},
		{"primary r0", 1},
		{"primary r0 --force --dry-run", 0},
		{"primary", 2},
		{"primary r0/x", 2},
		{"primary r0 --frobnicate", 2},
		{"frobnicate", 2},
		{"up r0", 0},
		{"up r9", 4},
		{"down r0", 3},
		{"invalidate r0", 1},
		{"invalidate r0 --dry-run", 0},
		{"invalidate r0 --force", 0},
		{"invalidate r1 --force", 4},
		{"create-md r0", 1},
		{"create-md r0 --dry-run", 0},
		{"connect r0 --discard-my-data", 1},
		{"new-current-uuid r0 --clear-bitmap --dry-run", 0},
		{"protocol r0 X", 2},
		{"protocol r0 a", 0},
		{"resize r0/0 --size 10G", 0},
		{"resize r0/0 --size 10X", 2},
		{"adjust r0 --dry-run", 0},
		{"adjust r0 --json", 0},
		{"dump r0", 0},
		{"show-gi r0", 0},
		{"undo list r0", 0},
		{"version", 0},
		{"status r9", 4},
		{"wait-connect r0 --timeout 20ms", 1},
		{"wait-connect r0 --peer n2", 0},
		{"secondary r0 r9 --json-what", 2},
	} {
		code, stdout, stderr := hawser(dir, strings.Fields(c.line)...)
		if code != c.code {
			t.Errorf("hawser %s: exit code %d, want %d\n%s%s", c.line, code, c.code, stdout, stderr)
		}
		b.WriteString("$ hawser " + c.line + "\n")
		for _, l := range strings.SplitAfter(stdout, "\n") {
			if l != "" {
				b.WriteString("out: " + l)
			}
		}
		for _, l := range strings.SplitAfter(stderr, "\n") {
			if l != "" {
				b.WriteString("err: " + l)
			}
		}
		b.WriteString("= " + string(rune('0'+code)) + "\n")
	}
	golden(t, "commands.golden", strings.ReplaceAll(b.String(), versionString(), "VERSION"))
	want := `POST /v1/resources/r0/do/invalidate {"volume":-1,"force":true}`
	found := 0
	for _, a := range asked() {
		if strings.Contains(a, "do/invalidate") {
			found++
			if a != want {
				t.Errorf("asked %s, want %s", a, want)
			}
		}
	}
	if found != 1 {
		t.Errorf("invalidate went through %d times, want once: with --force only", found)
	}
}

func TestNoAgent(t *testing.T) {
	code, stdout, stderr := hawser(t.TempDir(), "status")
	if code != control.ExitAbsent || stdout != "" || !strings.Contains(stderr, "is not running") {
		t.Errorf("exit code %d, %q, %q", code, stdout, stderr)
	}
}

func TestJSONIsOnStdoutAndErrorsToo(t *testing.T) {
	dir, _ := serveAgent(t, map[string]any{"GET /v1/status": example(), "GET /v1/resources/r0/undo": control.Errorf(control.Busy, "later").On("r0", 0, "n2")})
	code, stdout, stderr := hawser(dir, "status", "--json")
	var st agent.NodeStatus
	if err := json.Unmarshal([]byte(stdout), &st); err != nil || code != 0 || stderr != "" || len(st.Resources) != 4 {
		t.Errorf("status --json: %d, %v, %q", code, err, stderr)
	}
	code, stdout, stderr = hawser(dir, "undo", "list", "r0", "--json")
	var e control.Error
	if err := json.Unmarshal([]byte(stderr), &e); err != nil || code != 1 || stdout != "" || e.Code != control.Busy || e.Peer != "n2" {
		t.Errorf("an error with --json: %d, %v, %q", code, err, stderr)
	}
	code, stdout, _ = hawser(dir, "events", "--now", "--json")
	var ev control.Event
	if err := json.Unmarshal([]byte(stdout), &ev); err != nil || code != 0 || ev.Kind != control.EventStatus || ev.Status.Role != "Primary" {
		t.Errorf("events --now --json: %d, %v, %q", code, err, stdout)
	}
}

func TestSizes(t *testing.T) {
	for text, want := range map[string]int64{"4096": 4096, "512K": 512 << 10, "10G": 10 << 30, "10GiB": 10 << 30, "1t": 1 << 40, "2048s": 1 << 20,
		"": -1, "10X": -1, "-1": -1, "9999999T": -1, "1KG": -1} {
		got, err := parseBytes(text)
		if err != nil {
			got = -1
		}
		if got != want {
			t.Errorf("%q: %d (%v), want %d", text, got, err, want)
		}
	}
	for n, want := range map[int64]string{0: "0B", 1023: "1023B", 1024: "1.0KiB", 1 << 20: "1.0MiB", 10 << 30: "10.0GiB", 1<<20 - 1: "1.0MiB", 1536: "1.5KiB"} {
		if got := bytesText(n); got != want {
			t.Errorf("%d: %s, want %s", n, got, want)
		}
	}
}

func TestManualPage(t *testing.T) {
	var b bytes.Buffer
	manPage(&b, newRoot())
	for _, want := range []string{`.B create\-md RES[/VOL]... [flags]`, `.B \-\-discard\-my\-data`, `.B undo export RES/VOL ID`} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("the page lacks %s", want)
		}
	}
	if man, err := exec.LookPath("groff"); err == nil { // a better judge where it is installed
		cmd := exec.Command(man, "-man", "-Tascii", "-ww", "-z")
		cmd.Stdin = &b
		if out, err := cmd.CombinedOutput(); err != nil || len(out) > 0 {
			t.Errorf("groff: %v\n%s", err, out)
		}
	}
}
