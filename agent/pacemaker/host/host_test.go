package host

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/hawser-ha/hawser/agent/config"
	"github.com/hawser-ha/hawser/replicator/control"
)

// childEnv makes this program a stand-in for a replicator (or agent): SOCKET MODE.
const childEnv = "HAWSER_TEST_CHILD"

func TestMain(m *testing.M) {
	if text := os.Getenv(childEnv); text != "" {
		sock, mode, _ := strings.Cut(text, " ")
		if err := child(sock, mode); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// child answers as a replicator that is Primary. Its mode says what it does not do: demote, demote-force, down, down-force.
func child(sock, mode string) error {
	l, err := control.Listen(sock)
	if err != nil {
		return err
	}
	role, end := "Primary", make(chan struct{})
	refuses := func(verb string, r *http.Request) bool {
		var a control.Args
		data, _ := io.ReadAll(r.Body)
		if json.Unmarshal(data, &a) == nil && a.Force {
			verb += "-force"
		}
		return strings.Contains(" "+mode+" ", " "+verb+" ")
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /v1/status", func(w http.ResponseWriter, _ *http.Request) {
		if data, err := os.ReadFile(sock + ".status"); err == nil {
			_, _ = w.Write(data)
			return
		}
		control.WriteJSON(w, &control.Status{Resource: "r0", Role: role, Volumes: []control.VolumeStatus{{DiskState: "UpToDate"}}})
	})
	mux.HandleFunc("POST /v1/do/secondary", func(w http.ResponseWriter, r *http.Request) {
		if refuses("demote", r) {
			control.WriteError(w, control.Errorf(control.InUse, "the device is open"))
			return
		}
		role = "Secondary"
		control.WriteJSON(w, struct{}{})
	})
	down := func(w http.ResponseWriter, r *http.Request) {
		if refuses("down", r) {
			control.WriteError(w, control.Errorf(control.InUse, "the device is open"))
			return
		}
		control.WriteJSON(w, struct{}{})
		close(end)
	}
	mux.HandleFunc("POST /v1/down", down)
	mux.HandleFunc("GET /v1/version", func(w http.ResponseWriter, _ *http.Request) { control.WriteJSON(w, struct{}{}) })
	srv := &http.Server{Handler: mux, ReadHeaderTimeout: time.Minute}
	ended := make(chan error, 1)
	go func() { ended <- srv.Serve(l) }()
	fmt.Println("ready")
	select {
	case err := <-ended:
		return err
	case <-end:
	}
	err = srv.Shutdown(context.Background())
	return errors.Join(err, l.Close())
}

func newHost(t *testing.T) *Host {
	t.Helper()
	dir, err := os.MkdirTemp("", "hp")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	node := config.DefaultNode()
	node.Node, node.RunDir, node.StateDir = "n1", filepath.Join(dir, "run"), filepath.Join(dir, "state")
	if err := os.MkdirAll(filepath.Join(node.RunDir, "replicator"), 0o755); err != nil {
		t.Fatal(err)
	}
	return &Host{Node: node, Log: slog.New(slog.NewTextHandler(t.Output(), nil)), Run: Run, Ask: 200 * time.Millisecond}
}

// spawn starts a child on sock.
func spawn(t *testing.T, sock, mode string) *exec.Cmd {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), childEnv+"="+sock+" "+mode)
	cmd.Stderr = t.Output()
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() }) // it may have ended
	if _, err := io.ReadFull(out, make([]byte, len("ready\n"))); err != nil {
		t.Fatalf("the child did not start: %v", err)
	}
	return cmd
}

// TestWhateverHangs: demote and stop end in time, and when they are done nothing can write any more.
func TestWhateverHangs(t *testing.T) {
	const within = 4 * time.Second
	for _, c := range []struct {
		mode         string
		stopped      bool // by SIGSTOP: it answers nothing
		demoteKilled bool
	}{
		{"", false, false},
		{"demote down", false, false},
		{"demote demote-force down down-force", false, true},
		{"", true, true},
	} {
		for _, action := range []string{"demote", "stop"} {
			t.Run(fmt.Sprintf("%s/%s/%v", action, c.mode, c.stopped), func(t *testing.T) {
				t.Parallel()
				h := newHost(t)
				r := h.Resource("r0")
				defer r.Close()
				cmd := spawn(t, r.sock, c.mode)
				if err := os.WriteFile(r.wanted(), []byte("{}"), 0o600); err != nil {
					t.Fatal(err)
				}
				if c.stopped {
					if err := cmd.Process.Signal(syscall.SIGSTOP); err != nil {
						t.Fatal(err)
					}
				}
				began := time.Now()
				if action == "stop" {
					if err := r.Stop(t.Context(), within); err != nil {
						t.Fatal(err)
					}
					if _, served := control.Served(r.sock); served {
						t.Error("the replicator is there still")
					}
					if _, err := os.Stat(r.wanted()); err == nil {
						t.Error("an agent would start it again")
					}
				} else {
					err := r.Demote(t.Context(), within)
					if killed := errors.Is(err, control.NotRunning); killed != c.demoteKilled || err != nil && !killed {
						t.Errorf("%v, want it killed: %v", err, c.demoteKilled)
					}
					_, served := control.Served(r.sock)
					if served == c.demoteKilled {
						t.Errorf("it serves: %v", served)
					}
				}
				if took := time.Since(began); took > within+goneTimeout {
					t.Errorf("it took %s of %s", took, within)
				}
			})
		}
	}
}

func TestStateIsSureOrUnknown(t *testing.T) {
	h := newHost(t)
	r := h.Resource("r0")
	defer r.Close()
	if _, err := r.Status(t.Context()); !errors.Is(err, control.NotRunning) {
		t.Errorf("nothing runs: %v", err)
	}
	if err := r.Stop(t.Context(), time.Second); err != nil {
		t.Errorf("stop of what is down: %v", err)
	}
	if err := r.Demote(t.Context(), time.Second); !errors.Is(err, control.NotRunning) {
		t.Errorf("demote of what is down: %v", err)
	}
	// The replicator has just died, and there is an agent that starts it again.
	if err := os.WriteFile(r.wanted(), []byte("{}"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := r.Status(t.Context()); !errors.Is(err, control.NotRunning) {
		t.Errorf("nobody starts it again: %v", err)
	}
	spawn(t, h.Node.AgentSocket(), "")
	if _, err := r.Status(t.Context()); !errors.Is(err, control.Unknown) {
		t.Errorf("the agent starts it again: %v", err)
	}
	cmd := spawn(t, r.sock, "")
	if st, err := r.Status(t.Context()); err != nil || st.Role != "Primary" {
		t.Errorf("%+v %v", st, err)
	}
	if err := cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	if _, err := r.Status(t.Context()); !errors.Is(err, control.Unknown) {
		t.Errorf("a replicator that hangs may be Primary: %v", err)
	}
}
