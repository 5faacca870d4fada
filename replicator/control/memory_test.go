package control

import (
	"context"
	"fmt"
	"io"
	"strings"
	"sync"
)

// memory is a Resource that keeps everything in memory: it plays the rules of roles and connections and remembers
// every call.
type memory struct {
	Hub
	mu    sync.Mutex
	def   Definition
	role  string
	disk  string
	conn  string
	calls []string
	hold  chan struct{} // Invalidate waits for it
}

func newMemory(def *Definition) *memory {
	return &memory{def: *def, role: "Secondary", disk: "Diskless", conn: "StandAlone", hold: make(chan struct{})}
}

func (m *memory) call(format string, args ...any) {
	m.calls = append(m.calls, fmt.Sprintf(format, args...))
}

func (m *memory) set(field string, at *string, to string) {
	if *at == to {
		return
	}
	from := *at
	*at = to
	m.Publish(Event{Resource: m.def.Name, Kind: EventState, Volume: All, Field: field, From: from, To: to})
}

func (m *memory) Definition() *Definition { d := m.def; return &d }

func (m *memory) Status() *Status {
	m.mu.Lock()
	defer m.mu.Unlock()
	return &Status{Resource: m.def.Name, Node: m.def.Node, Role: m.role, LastEvent: m.Last(),
		Volumes: []VolumeStatus{{Number: 0, DiskState: m.disk, GI: GI{Current: 0x123456789ABCDEF0}}},
		Peers:   []PeerStatus{{Name: "n2", Connection: m.conn}}}
}

func (m *memory) Adjust(_ context.Context, def *Definition) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.def = *def
	return nil
}

func (m *memory) do(field string, at *string, to, format string, args ...any) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.call(format, args...)
	if at != nil {
		m.set(field, at, to)
	}
	return nil
}

func (m *memory) Attach(_ context.Context, v int) error {
	return m.do(FieldDisk, &m.disk, "UpToDate", "attach %d", v)
}
func (m *memory) Detach(_ context.Context, v int, force bool) error {
	return m.do(FieldDisk, &m.disk, "Diskless", "detach %d %t", v, force)
}
func (m *memory) Connect(_ context.Context, p string, discard bool) error {
	return m.do(FieldConnection, &m.conn, "Connected", "connect %q %t", p, discard)
}
func (m *memory) Disconnect(_ context.Context, p string, force bool) error {
	return m.do(FieldConnection, &m.conn, "StandAlone", "disconnect %q %t", p, force)
}
func (m *memory) Promote(_ context.Context, force bool) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.call("primary %t", force)
	if m.disk != "UpToDate" && !force {
		return Errorf(NotUpToDate, "the disk is %s", m.disk).On(m.def.Name, 0, "").
			WithRule("a Primary needs an UpToDate disk").WithHint("hawser attach " + m.def.Name)
	}
	m.set(FieldRole, &m.role, "Primary")
	return nil
}
func (m *memory) Demote(_ context.Context, force bool) error {
	return m.do(FieldRole, &m.role, "Secondary", "secondary %t", force)
}
func (m *memory) Outdate(_ context.Context, v int) error { return m.do("", nil, "", "outdate %d", v) }
func (m *memory) Invalidate(ctx context.Context, _ int, _ string) error {
	select {
	case <-m.hold:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
func (m *memory) InvalidateRemote(_ context.Context, v int, p string) error {
	return m.do("", nil, "", "invalidate-remote %d %q", v, p)
}
func (m *memory) Verify(_ context.Context, v int, p string, start, stop int64) error {
	return m.do("", nil, "", "verify %d %q %d %d", v, p, start, stop)
}
func (m *memory) PauseSync(_ context.Context, v int, p string) error {
	return m.do("", nil, "", "pause-sync %d %q", v, p)
}
func (m *memory) ResumeSync(_ context.Context, v int, p string) error {
	return m.do("", nil, "", "resume-sync %d %q", v, p)
}
func (m *memory) Resize(_ context.Context, v int, size int64, clean bool) error {
	return m.do("", nil, "", "resize %d %d %t", v, size, clean)
}
func (m *memory) SetProtocol(_ context.Context, p, protocol string) error {
	return m.do("", nil, "", "protocol %q %s", p, protocol)
}
func (m *memory) NewCurrentUUID(_ context.Context, v int, clean bool) error {
	return m.do("", nil, "", "new-current-uuid %d %t", v, clean)
}
func (m *memory) Suspend(context.Context) error { return m.do("", nil, "", "suspend-io") }
func (m *memory) Resume(context.Context) error  { return m.do("", nil, "", "resume-io") }
func (m *memory) ShowGI(context.Context, int) (*GI, error) {
	return &m.Status().Volumes[0].GI, nil
}
func (m *memory) DumpMD(_ context.Context, v int, w io.Writer) error {
	switch v {
	case 0:
		_, err := io.WriteString(w, "version \"v09\";\n")
		return err
	case 1: // breaks off in the middle
		if _, err := io.WriteString(w, strings.Repeat("bm {\n", 4096)); err != nil {
			return err
		}
		return Errorf(DiskError, "metadata: checksum is wrong")
	}
	return Errorf(NotFound, "there is no volume %d", v)
}
func (m *memory) Undos(context.Context, int) ([]UndoLog, error) {
	return []UndoLog{{ID: "1", Peer: "n2", Bytes: 4096}}, nil
}
func (m *memory) ExportUndo(_ context.Context, v int, id string, w io.Writer) error {
	_, err := fmt.Fprintf(w, "undo %d %s", v, id)
	return err
}
func (m *memory) HandlerResult(_ context.Context, id uint64, code int) error {
	return m.do("", nil, "", "handler-result %d %d", id, code)
}
func (m *memory) Grant(_ context.Context, g *Grant) error {
	if g.Term == 1 {
		return Errorf(Stale, "term 2 is known").On(m.def.Name, All, "")
	}
	return m.do("", nil, "", "grant %d %d %s %v %d", g.Term, g.Seq, g.Holder, g.InSync, g.Answers)
}
func (m *memory) Deposed(_ context.Context, d Deposed) error {
	return m.do("", nil, "", "deposed %d", d.Term)
}
func (m *memory) Candidacy(_ context.Context, q Candidacy) (*CandidacyAnswer, error) {
	return &CandidacyAnswer{Bound: 2 * q.For}, m.do("", nil, "", "candidacy %s %t", q.For, q.Dead)
}
func (m *memory) Down(_ context.Context, force bool) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.role == "Primary" && !force {
		return Errorf(InUse, "the device is open").On(m.def.Name, 0, "")
	}
	m.Publish(Event{Resource: m.def.Name, Kind: EventDown, Volume: All})
	m.Close()
	return nil
}
