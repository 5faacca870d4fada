package agent

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"path/filepath"
	"sync"
	"syscall"
	"testing"

	"github.com/hawser-ha/hawser/replicator/control"
)

// asReplicator, in the environment, makes the test binary a replicator process: the agent under test starts it with
// the command line of the real one.
const asReplicator = "HAWSER_TEST_AS_REPLICATOR"

func TestMain(m *testing.M) {
	if os.Getenv(asReplicator) != "" {
		if err := childMain(os.Args[1:]); err != nil {
			fmt.Fprintln(os.Stderr, "child:", err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

func childMain(args []string) error {
	f := flag.NewFlagSet("replicator", flag.ContinueOnError)
	runDir := f.String("run-dir", "", "")
	f.String("state-dir", "", "")
	report := f.Int("report-fd", -1, "")
	task := f.Bool("task", false, "")
	f.String("log-level", "", "")
	f.String("log-format", "", "")
	if err := f.Parse(args[1:]); err != nil {
		return err
	}
	out := os.NewFile(uintptr(*report), "report")
	if *task {
		err := childTask()
		return Report(out, err)
	}
	if _, err := os.Stat(filepath.Join(*runDir, "refuse")); err == nil {
		return Report(out, control.Errorf(control.DiskInUse, "the test wants it to fail"))
	}
	sock, err := control.Listen(filepath.Join(*runDir, "replicator", args[0]+".sock"))
	if rerr := Report(out, err); rerr != nil || err != nil {
		return err
	}
	srv := control.NewServer(args[0], slog.New(slog.DiscardHandler), func(_ context.Context, def *control.Definition) (control.Resource, error) {
		return &volatile{def: def, role: "Secondary", runDir: *runDir}, nil
	})
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	go func() {
		<-srv.Done()
		stop()
	}()
	return srv.Serve(ctx, sock)
}

func childTask() error {
	var t Task
	if err := json.NewDecoder(os.Stdin).Decode(&t); err != nil {
		return err
	}
	switch t.Verb {
	case TaskCreateMD:
		return json.NewEncoder(os.Stdout).Encode([]control.CreateMDResult{{Volume: 0, Disk: t.Definition.Volumes[0].Disk, DiskSize: t.Definition.Volumes[0].Size, Created: !t.Create.DryRun}})
	case TaskDumpMD:
		_, err := io.WriteString(os.Stdout, "version \"v09\";\n")
		return err
	}
	return control.Errorf(control.NoMetadata, "there is no metadata")
}

// volatile is a resource that keeps roles and connections in memory. It asks for the handler before-resync-target when
// it is disconnected, and makes a file run-dir/answered-CODE of the answer.
type volatile struct {
	control.Resource // nil: what the tests do not call
	control.Hub
	runDir string

	mu    sync.Mutex // guards what follows
	def   *control.Definition
	role  string
	disk  string
	conn  string
	hooks int
}

func (v *volatile) Subscribe(ctx context.Context, after uint64) <-chan control.Event {
	return v.Hub.Subscribe(ctx, after)
}

func (v *volatile) Definition() *control.Definition {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.def
}

func (v *volatile) Status() *control.Status {
	v.mu.Lock()
	defer v.mu.Unlock()
	return &control.Status{Resource: v.def.Name, Node: v.def.Node, PID: os.Getpid(), Role: v.role, LastEvent: v.Last(),
		Volumes: []control.VolumeStatus{{DiskState: v.disk}}, Peers: []control.PeerStatus{{Name: "n2", Connection: v.conn}}}
}

func (v *volatile) set(field string, at *string, to string) error {
	v.mu.Lock()
	defer v.mu.Unlock()
	from := *at
	*at = to
	v.Publish(control.Event{Resource: v.def.Name, Kind: control.EventState, Volume: control.All, Field: field, From: from, To: to})
	return nil
}

func (v *volatile) Attach(context.Context, int) error {
	if _, err := os.Stat(filepath.Join(v.runDir, "no-metadata")); err == nil {
		return control.Errorf(control.NoMetadata, "there is no metadata").On("r0", 0, "")
	}
	return v.set(control.FieldDisk, &v.disk, "UpToDate")
}
func (v *volatile) Connect(context.Context, string, bool) error {
	return v.set(control.FieldConnection, &v.conn, "Connecting")
}
func (v *volatile) Promote(context.Context, bool) error {
	return v.set(control.FieldRole, &v.role, "Primary")
}
func (v *volatile) Adjust(_ context.Context, def *control.Definition) error {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.def = def
	return nil
}
func (v *volatile) Disconnect(context.Context, string, bool) error {
	v.Publish(control.Event{Resource: "r0", Kind: control.EventHandler, Volume: 0, Peer: "n2", Name: "before-resync-target", Handler: 42})
	return v.set(control.FieldConnection, &v.conn, "StandAlone")
}
func (v *volatile) HandlerResult(_ context.Context, id uint64, code int) error {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.hooks++
	return os.WriteFile(filepath.Join(v.runDir, fmt.Sprintf("answered-%d-%d-%d", id, code, v.hooks)), nil, 0o600)
}
func (v *volatile) Down(_ context.Context, force bool) error {
	if _, err := os.Stat(filepath.Join(v.runDir, "hang")); err == nil {
		select {}
	}
	if v.Status().Role == "Primary" && !force {
		return control.Errorf(control.InUse, "the device is open").On("r0", 0, "")
	}
	v.Publish(control.Event{Resource: "r0", Kind: control.EventDown, Volume: control.All})
	v.Close()
	return nil
}
