package control

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// serveMemory serves a memory resource on a socket in a folder of the test.
func serveMemory(t *testing.T) (*memory, *Client, *Server) {
	t.Helper()
	var m *memory
	def := &Definition{Name: "r0", Node: "n1", Volumes: []VolumeDef{{Number: 0}}, Peers: []PeerDef{{Name: "n2"}}}
	m = newMemory(def)
	srv := NewServer("r0", slog.New(slog.DiscardHandler), func(context.Context, *Definition) (Resource, error) { return m, nil })
	path := filepath.Join(t.TempDir(), "r0.sock")
	l, err := Listen(path)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- srv.Serve(ctx, l) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("serve: %v", err)
		}
		if err := l.Close(); err != nil && !strings.Contains(err.Error(), "closed") {
			t.Errorf("close: %v", err)
		}
	})
	c := NewClient(path, "replicator r0")
	t.Cleanup(c.Close)
	if _, err := c.Status(t.Context()); !errors.Is(err, NotRunning) {
		t.Fatalf("status before the definition: %v, want %v", err, NotRunning)
	}
	if err := c.Open(t.Context(), def); err != nil {
		t.Fatal(err)
	}
	return m, c, srv
}

func TestCommandsReachTheResource(t *testing.T) {
	m, c, _ := serveMemory(t)
	steps := []struct {
		command string
		args    Args
		call    string
	}{
		{"attach", Args{Volume: All}, "attach -1"},
		{"connect", Args{Peer: "n2", DiscardMyData: true}, `connect "n2" true`},
		{"primary", Args{}, "primary false"},
		{"secondary", Args{Force: true}, "secondary true"},
		{"outdate", Args{Volume: 0}, "outdate 0"},
		{"invalidate-remote", Args{Volume: 3, Peer: "n2"}, `invalidate-remote 3 "n2"`},
		{"verify", Args{Start: 4096, Stop: 8192}, `verify 0 "" 4096 8192`},
		{"pause-sync", Args{Volume: All}, `pause-sync -1 ""`},
		{"resume-sync", Args{Volume: All}, `resume-sync -1 ""`},
		{"resize", Args{Size: 1 << 30, AssumeClean: true}, "resize 0 1073741824 true"},
		{"protocol", Args{Protocol: "A"}, `protocol "" A`},
		{"new-current-uuid", Args{ClearBitmap: true}, "new-current-uuid 0 true"},
		{"suspend-io", Args{}, "suspend-io"},
		{"resume-io", Args{}, "resume-io"},
		{"handler-result", Args{Handler: 7, Code: 4}, "handler-result 7 4"},
		{"disconnect", Args{Force: true}, `disconnect "" true`},
		{"detach", Args{Force: true}, "detach 0 true"},
	}
	var want []string
	for _, s := range steps {
		if err := c.Do(t.Context(), s.command, s.args); err != nil {
			t.Errorf("%s: %v", s.command, err)
		}
		want = append(want, s.call)
	}
	if !slices.Equal(m.calls, want) {
		t.Errorf("calls:\n%s\nwant:\n%s", strings.Join(m.calls, "\n"), strings.Join(want, "\n"))
	}
	known := map[string]bool{"invalidate": true}
	for _, s := range steps {
		known[s.command] = true
	}
	for name := range commands {
		if !known[name] {
			t.Errorf("command %q is not tested", name)
		}
	}
}

func TestWhoMayWrite(t *testing.T) {
	m, c, _ := serveMemory(t)
	g := &Grant{Term: 7, Seq: 9, Holder: "n1", Answers: 3, InSync: []Member{{Node: "n1", Disks: map[int]UUID{0: 0xAB, 12: 1}}}}
	if err := c.Grant(t.Context(), g); err != nil {
		t.Fatal(err)
	}
	if err := c.Grant(t.Context(), &Grant{Term: 1}); !errors.Is(err, Stale) {
		t.Errorf("an old grant: %v, want %v", err, Stale)
	}
	if err := c.Deposed(t.Context(), Deposed{Term: 7}); err != nil {
		t.Fatal(err)
	}
	a, err := c.Candidacy(t.Context(), Candidacy{For: 3 * time.Second, Dead: true})
	if err != nil || a.Bound != 6*time.Second {
		t.Errorf("candidacy: %+v, %v", a, err)
	}
	want := []string{"grant 7 9 n1 [{n1 map[0:00000000000000AB 12:0000000000000001]}] 3", "deposed 7", "candidacy 3s true"}
	if !slices.Equal(m.calls, want) {
		t.Errorf("calls: %q, want %q", m.calls, want)
	}
	if err := c.Call(t.Context(), "do/grant", map[string]any{"term": 8, "warp": 9}, nil); !errors.Is(err, Usage) {
		t.Errorf("unknown field in a grant: %v, want %v", err, Usage)
	}
	other := Member{Node: "n1", Disks: map[int]UUID{0: 0xAB, 12: 2}}
	if me := g.Member("n1"); me == nil || !me.Same(g.InSync[0]) || me.Same(other) || g.Member("n2") != nil {
		t.Errorf("members: %v", g.InSync)
	}
}

func TestErrorsSurviveTheHop(t *testing.T) {
	_, c, _ := serveMemory(t)
	err := c.Do(t.Context(), "primary", Args{Volume: All})
	if !errors.Is(err, NotUpToDate) || errors.Is(err, Busy) {
		t.Errorf("errors.Is does not know the code of %v", err)
	}
	e, ok := errors.AsType[*Error](err)
	if !ok {
		t.Fatalf("%T is no *Error", err)
	}
	if e.Hint != "hawser attach r0" || e.Volume == nil || *e.Volume != 0 {
		t.Errorf("hint or volume are lost: %+v", e)
	}
	want := "r0/0: the disk is Diskless (rule: a Primary needs an UpToDate disk)"
	if err.Error() != want {
		t.Errorf("text %q, want %q", err, want)
	}
	if err := c.Do(t.Context(), "frobnicate", Args{}); !errors.Is(err, Usage) {
		t.Errorf("unknown command: %v, want %v", err, Usage)
	}
	if err := c.Call(t.Context(), "do/attach", map[string]any{"volume": 0, "warp": 9}, nil); !errors.Is(err, Usage) {
		t.Errorf("unknown argument: %v, want %v", err, Usage)
	}
	if err := NewClient(filepath.Join(t.TempDir(), "no.sock"), "the agent").Down(t.Context(), false); !errors.Is(err, NotRunning) {
		t.Errorf("no socket: %v, want %v", err, NotRunning)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	if err := c.Do(ctx, "invalidate", Args{}); !errors.Is(err, Unknown) {
		t.Errorf("a command that took too long: %v, want %v", err, Unknown)
	}
}

func TestExitCodes(t *testing.T) {
	for _, c := range []struct {
		rule string
		err  error
		want int
	}{
		{"done is 0", nil, 0},
		{"any other error is 1", io.ErrUnexpectedEOF, 1},
		{"refused is 1", Errorf(Refused, "no"), 1},
		{"usage is 2", fmt.Errorf("x: %w", Errorf(Usage, "no")), 2},
		{"a bare code counts", fmt.Errorf("x: %w", Usage), 2},
		{"unknown is 3", Errorf(Unknown, "lost"), 3},
		{"a deadline is 3", context.DeadlineExceeded, 3},
		{"no such resource is 4", Errorf(NotFound, "r9"), 4},
		{"down is 4", Errorf(NotRunning, "down"), 4},
	} {
		if got := ExitCode(c.err); got != c.want {
			t.Errorf("%s: got %d", c.rule, got)
		}
	}
}

func TestStreamsThatBreakOffAreErrors(t *testing.T) {
	_, c, _ := serveMemory(t)
	var b strings.Builder
	if err := c.DumpMD(t.Context(), 0, &b); err != nil || b.String() != "version \"v09\";\n" {
		t.Errorf("dump-md: %q, %v", b.String(), err)
	}
	if err := c.DumpMD(t.Context(), 1, io.Discard); err == nil {
		t.Error("a dump that broke off in the middle was taken for a whole one")
	}
	if err := c.DumpMD(t.Context(), 2, io.Discard); !errors.Is(err, NotFound) {
		t.Errorf("dump of a volume that is not there: %v, want %v", err, NotFound)
	}
	b.Reset()
	if err := c.ExportUndo(t.Context(), 0, "1", &b); err != nil || b.String() != "undo 0 1" {
		t.Errorf("undo export: %q, %v", b.String(), err)
	}
	if logs, err := c.Undos(t.Context(), All); err != nil || len(logs) != 1 || logs[0].Bytes != 4096 {
		t.Errorf("undo list: %v, %v", logs, err)
	}
	if gi, err := c.ShowGI(t.Context(), 0); err != nil || gi.Current != 0x123456789ABCDEF0 {
		t.Errorf("show-gi: %v, %v", gi, err)
	}
}

var errEnough = errors.New("enough")

// collect gathers n events after that id.
func collect(t *testing.T, c *Client, after uint64, n int, ready func()) []Event {
	t.Helper()
	var got []Event
	err := c.Events(t.Context(), after, func(e Event) error {
		got = append(got, e)
		if len(got) == 1 && ready != nil {
			ready()
		}
		if len(got) == n {
			return errEnough
		}
		return nil
	})
	if !errors.Is(err, errEnough) {
		t.Fatalf("events after %d: %v, got %d of %d", after, err, len(got), n)
	}
	return got
}

func TestEventsBeginWithAStatusAndResumeById(t *testing.T) {
	m, c, _ := serveMemory(t)
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(c.Do(t.Context(), "attach", Args{Volume: All}))
	got := collect(t, c, 0, 3, func() {
		must(c.Do(t.Context(), "connect", Args{}))
		must(c.Do(t.Context(), "primary", Args{}))
	})
	if got[0].Kind != EventStatus || got[0].Status.Volume(0).DiskState != "UpToDate" || got[0].ID != 2 {
		t.Errorf("first event: %+v", got[0])
	}
	if got[1].Field != FieldConnection || got[2].Field != FieldRole || got[2].From != "Secondary" || got[2].To != "Primary" || got[2].ID != 4 {
		t.Errorf("events: %+v", got[1:])
	}
	got = collect(t, c, 3, 1, nil)
	if got[0].ID != 4 {
		t.Errorf("resumed after 3 with %d", got[0].ID)
	}
	if got := collect(t, c, FromStart, 3, nil); got[0].ID != 2 || got[0].Field != FieldDisk {
		t.Errorf("from the start: %+v", got)
	}
	for range 3 * eventsKept {
		m.Publish(Event{Kind: EventNote, Volume: All, Text: "noise"})
	}
	got = collect(t, c, 2, 2, nil)
	if got[0].Kind != EventLost || got[1].Kind != EventStatus {
		t.Errorf("what follows a gap: %q, %q; want lost, status", got[0].Kind, got[1].Kind)
	}
	if got := collect(t, c, 1<<40, 2, nil); got[0].Kind != EventLost || got[1].Kind != EventStatus {
		t.Errorf("an id of another life: %q, %q; want lost, status", got[0].Kind, got[1].Kind)
	}
}

func TestDownEndsStreamAndServer(t *testing.T) {
	_, c, srv := serveMemory(t)
	if err := c.Do(t.Context(), "primary", Args{Force: true}); err != nil {
		t.Fatal(err)
	}
	if err := c.Down(t.Context(), false); !errors.Is(err, InUse) {
		t.Fatalf("down while in use: %v, want %v", err, InUse)
	}
	var last Event
	err := c.Events(t.Context(), 0, func(e Event) error {
		if e.Kind == EventStatus {
			go func() { _ = c.Down(context.WithoutCancel(t.Context()), true) }() // the event below waits for it
		}
		last = e
		return nil
	})
	if !errors.Is(err, io.EOF) || last.Kind != EventDown {
		t.Errorf("stream ended with %v after %q, want EOF after down", err, last.Kind)
	}
	<-srv.Done()
	if err := c.Open(t.Context(), &Definition{Name: "r0"}); !errors.Is(err, NotRunning) {
		t.Errorf("open after down: %v, want %v", err, NotRunning)
	}
}

func TestOnlyOneProcessServesASocket(t *testing.T) {
	path := filepath.Join(t.TempDir(), "r0.sock")
	if _, served := Served(path); served {
		t.Error("served before anybody listened")
	}
	l, err := Listen(path)
	if err != nil {
		t.Fatal(err)
	}
	if pid, served := Served(path); !served || pid != os.Getpid() {
		t.Errorf("served by %d, %t", pid, served)
	}
	if _, err := Listen(path); !errors.Is(err, Running) {
		t.Errorf("second listener: %v, want %v", err, Running)
	}
	if err := l.Close(); err != nil {
		t.Error(err)
	}
	if _, served := Served(path); served {
		t.Error("served after the close")
	}
	// A dead process leaves socket and pid file behind: they are no obstacle.
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if l, err = Listen(path); err != nil {
		t.Fatal(err)
	}
	if err := l.Close(); err != nil {
		t.Error(err)
	}
}

func TestHubNeverBlocksThePublisher(t *testing.T) {
	var h Hub
	ctx, cancel := context.WithCancel(t.Context())
	slow := h.Subscribe(ctx, 0)
	for range 3 * eventsKept {
		h.Publish(Event{Kind: EventNote})
	}
	first := <-slow
	next := <-slow
	if first.Kind != EventLost || next.ID <= 2 || next.ID != first.ID+1 {
		// The first may have been taken before the ring overflowed.
		if first.ID != 2 || next.Kind != EventLost && next.ID != 3 {
			t.Errorf("a slow subscriber got %d %q, then %d %q", first.ID, first.Kind, next.ID, next.Kind)
		}
	}
	cancel()
	for range slow { // it closes
	}
	h.Close()
	if got := h.Publish(Event{}); got != FromStart+3*eventsKept {
		t.Errorf("published after Close: %d", got)
	}
	if _, open := <-h.Subscribe(t.Context(), 0); open {
		t.Error("subscription to a closed hub is open")
	}
}

func TestHTTPStatusOfErrors(t *testing.T) {
	for code, want := range map[Code]int{Usage: http.StatusBadRequest, NotFound: http.StatusNotFound, Unknown: http.StatusGatewayTimeout,
		NotRunning: http.StatusServiceUnavailable, NotUpToDate: http.StatusConflict, DiskError: http.StatusInternalServerError} {
		if got := httpStatus(code); got != want {
			t.Errorf("%s: %d, want %d", code, got, want)
		}
	}
}
