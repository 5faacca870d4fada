package control

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"reflect"
	"strconv"
	"sync"
	"time"
)

const (
	requestBytesMax = 1 << 20          // of a command or a definition
	keepAliveEvery  = 10 * time.Second // comment lines in an event stream that is quiet
)

// Args are the arguments of every command; each uses some of them.
type Args struct {
	Volume        int    `json:"volume"` // All: every volume
	Peer          string `json:"peer,omitempty"`
	Force         bool   `json:"force,omitempty"`
	DiscardMyData bool   `json:"discard-my-data,omitempty"`
	AssumeClean   bool   `json:"assume-clean,omitempty"`
	ClearBitmap   bool   `json:"clear-bitmap,omitempty"`
	Start         int64  `json:"start,omitempty"` // bytes
	Stop          int64  `json:"stop,omitempty"`  // bytes
	Size          int64  `json:"size,omitempty"`  // bytes
	Protocol      string `json:"protocol,omitempty"`
	Handler       uint64 `json:"handler,omitempty"`
	Code          int    `json:"code,omitempty"`
}

// commands by their names, which are those of the command line.
var commands = map[string]func(ctx context.Context, r Resource, a Args) error{
	"attach":     func(ctx context.Context, r Resource, a Args) error { return r.Attach(ctx, a.Volume) },
	"detach":     func(ctx context.Context, r Resource, a Args) error { return r.Detach(ctx, a.Volume, a.Force) },
	"connect":    func(ctx context.Context, r Resource, a Args) error { return r.Connect(ctx, a.Peer, a.DiscardMyData) },
	"disconnect": func(ctx context.Context, r Resource, a Args) error { return r.Disconnect(ctx, a.Peer, a.Force) },
	"primary":    func(ctx context.Context, r Resource, a Args) error { return r.Promote(ctx, a.Force) },
	"secondary":  func(ctx context.Context, r Resource, a Args) error { return r.Demote(ctx, a.Force) },
	"outdate":    func(ctx context.Context, r Resource, a Args) error { return r.Outdate(ctx, a.Volume) },
	"invalidate": func(ctx context.Context, r Resource, a Args) error { return r.Invalidate(ctx, a.Volume, a.Peer) },
	"invalidate-remote": func(ctx context.Context, r Resource, a Args) error {
		return r.InvalidateRemote(ctx, a.Volume, a.Peer)
	},
	"verify": func(ctx context.Context, r Resource, a Args) error {
		return r.Verify(ctx, a.Volume, a.Peer, a.Start, a.Stop)
	},
	"pause-sync":  func(ctx context.Context, r Resource, a Args) error { return r.PauseSync(ctx, a.Volume, a.Peer) },
	"resume-sync": func(ctx context.Context, r Resource, a Args) error { return r.ResumeSync(ctx, a.Volume, a.Peer) },
	"resize": func(ctx context.Context, r Resource, a Args) error {
		return r.Resize(ctx, a.Volume, a.Size, a.AssumeClean)
	},
	"protocol": func(ctx context.Context, r Resource, a Args) error { return r.SetProtocol(ctx, a.Peer, a.Protocol) },
	"new-current-uuid": func(ctx context.Context, r Resource, a Args) error {
		return r.NewCurrentUUID(ctx, a.Volume, a.ClearBitmap)
	},
	"suspend-io":     func(ctx context.Context, r Resource, _ Args) error { return r.Suspend(ctx) },
	"resume-io":      func(ctx context.Context, r Resource, _ Args) error { return r.Resume(ctx) },
	"handler-result": func(ctx context.Context, r Resource, a Args) error { return r.HandlerResult(ctx, a.Handler, a.Code) },
}

// Server serves one resource. It starts without one: the definition comes by POST, and open makes the resource of it.
// Safe for concurrent use.
type Server struct {
	name string
	log  *slog.Logger
	open func(ctx context.Context, def *Definition) (Resource, error)
	mux  http.ServeMux

	mu      sync.Mutex // guards res and down; held while the resource is opened
	res     Resource
	down    bool
	done    chan struct{}
	streams chan struct{} // closed by Close: event streams end
	once    sync.Once
}

// NewServer serves the resource of that name.
func NewServer(name string, log *slog.Logger, open func(context.Context, *Definition) (Resource, error)) *Server {
	s := &Server{name: name, log: log, open: open, done: make(chan struct{}), streams: make(chan struct{})}
	s.mux.HandleFunc("GET /v1/status", s.getStatus)
	s.mux.HandleFunc("GET /v1/definition", s.getDefinition)
	s.mux.HandleFunc("GET /v1/events", s.getEvents)
	s.mux.HandleFunc("GET /v1/show-gi", s.getGI)
	s.mux.HandleFunc("GET /v1/dump-md", s.getMD)
	s.mux.HandleFunc("GET /v1/undo", s.getUndos)
	s.mux.HandleFunc("GET /v1/undo/{id}", s.getUndo)
	s.mux.HandleFunc("POST /v1/open", s.postOpen)
	s.mux.HandleFunc("POST /v1/adjust", s.postAdjust)
	s.mux.HandleFunc("POST /v1/down", s.postDown)
	s.mux.HandleFunc("POST /v1/do/{command}", s.postCommand)
	s.mux.HandleFunc("POST /v1/do/grant", s.postGrant)
	s.mux.HandleFunc("POST /v1/do/deposed", s.postDeposed)
	s.mux.HandleFunc("POST /v1/do/candidacy", s.postCandidacy)
	return s
}

// ServeHTTP implements http.Handler.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) { s.mux.ServeHTTP(w, r) }

// Done is closed once the resource has been taken down by a command.
func (s *Server) Done() <-chan struct{} { return s.done }

// Open opens the resource; a second call is refused.
func (s *Server) Open(ctx context.Context, def *Definition) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case def.Name != s.name:
		return Errorf(Usage, "this replicator is for %q, not for %q", s.name, def.Name)
	case s.down:
		return Errorf(NotRunning, "the resource was taken down").On(s.name, All, "")
	case s.res != nil:
		return Errorf(Running, "the resource is open already").On(s.name, All, "")
	}
	// The resource outlives the request that brought its definition.
	res, err := s.open(context.WithoutCancel(ctx), def)
	if err != nil {
		return err
	}
	s.res = res
	return nil
}

// Down takes the resource down, if it is open, and ends the server's usefulness: Done is closed.
func (s *Server) Down(ctx context.Context, force bool) error {
	if res := s.Resource(); res != nil {
		if err := res.Down(ctx, force); err != nil {
			return err
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.down {
		s.down = true
		close(s.done)
	}
	return nil
}

// Serve answers on l until ctx ends, then gives running requests a moment and ends the event streams.
func (s *Server) Serve(ctx context.Context, l net.Listener) error {
	return serve(ctx, l, s, func() { s.once.Do(func() { close(s.streams) }) }, s.log)
}

// serve runs an HTTP server until ctx ends; stop ends what would hold up the end.
func serve(ctx context.Context, l net.Listener, h http.Handler, stop func(), log *slog.Logger) error {
	srv := &http.Server{Handler: h, ReadHeaderTimeout: 10 * time.Second, ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelWarn)}
	ended := make(chan error, 1)
	go func() { ended <- srv.Serve(l) }()
	select {
	case err := <-ended:
		return err
	case <-ctx.Done():
	}
	stop()
	// A connection that was dialled and not used counts as busy for five seconds: such a one must not hold up the end.
	grace, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
	defer cancel()
	err := srv.Shutdown(grace)
	if errors.Is(err, context.DeadlineExceeded) {
		err = srv.Close()
	}
	if e := <-ended; !errors.Is(e, http.ErrServerClosed) {
		err = errors.Join(err, e)
	}
	return err
}

// Resource gives the open resource, nil: the definition has not come.
func (s *Server) Resource() Resource {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.res
}

// resource gives the open resource or answers that there is none.
func (s *Server) resource(w http.ResponseWriter) (Resource, bool) {
	res := s.Resource()
	if res == nil {
		WriteError(w, Errorf(NotRunning, "the replicator waits for its definition").On(s.name, All, ""))
	}
	return res, res != nil
}

func (s *Server) getStatus(w http.ResponseWriter, _ *http.Request) {
	if res, ok := s.resource(w); ok {
		WriteJSON(w, res.Status())
	}
}

func (s *Server) getDefinition(w http.ResponseWriter, _ *http.Request) {
	if res, ok := s.resource(w); ok {
		WriteJSON(w, res.Definition())
	}
}

func (s *Server) getGI(w http.ResponseWriter, r *http.Request) {
	res, ok := s.resource(w)
	if !ok {
		return
	}
	volume, err := volumeOf(r)
	if err != nil {
		WriteError(w, err)
		return
	}
	gi, err := res.ShowGI(r.Context(), volume)
	answer(w, gi, err)
}

func (s *Server) getUndos(w http.ResponseWriter, r *http.Request) {
	res, ok := s.resource(w)
	if !ok {
		return
	}
	volume, err := volumeOf(r)
	if err != nil {
		WriteError(w, err)
		return
	}
	logs, err := res.Undos(r.Context(), volume)
	answer(w, logs, err)
}

func (s *Server) getMD(w http.ResponseWriter, r *http.Request) {
	if res, ok := s.resource(w); ok {
		stream(w, r, "text/plain; charset=utf-8", func(volume int, out io.Writer) error {
			return res.DumpMD(r.Context(), volume, out)
		})
	}
}

func (s *Server) getUndo(w http.ResponseWriter, r *http.Request) {
	if res, ok := s.resource(w); ok {
		stream(w, r, "application/octet-stream", func(volume int, out io.Writer) error {
			return res.ExportUndo(r.Context(), volume, r.PathValue("id"), out)
		})
	}
}

func (s *Server) postOpen(w http.ResponseWriter, r *http.Request) {
	var def Definition
	if err := ReadJSON(r, &def); err != nil {
		WriteError(w, err)
		return
	}
	answer(w, struct{}{}, s.Open(r.Context(), &def))
}

func (s *Server) postAdjust(w http.ResponseWriter, r *http.Request) {
	var def Definition
	if err := ReadJSON(r, &def); err != nil {
		WriteError(w, err)
		return
	}
	if res, ok := s.resource(w); ok {
		answer(w, struct{}{}, res.Adjust(r.Context(), &def))
	}
}

func (s *Server) postDown(w http.ResponseWriter, r *http.Request) {
	var a Args
	if err := ReadJSON(r, &a); err != nil {
		WriteError(w, err)
		return
	}
	answer(w, struct{}{}, s.Down(r.Context(), a.Force))
}

func (s *Server) postCommand(w http.ResponseWriter, r *http.Request) {
	name := r.PathValue("command")
	run := commands[name]
	if run == nil {
		WriteError(w, Errorf(Usage, "there is no command %q", name).On(s.name, All, ""))
		return
	}
	var a Args
	if err := ReadJSON(r, &a); err != nil {
		WriteError(w, err)
		return
	}
	res, ok := s.resource(w)
	if !ok {
		return
	}
	err := run(r.Context(), res, a)
	if err != nil {
		s.log.Info("command refused", "command", name, "err", err)
	} else {
		s.log.Info("command done", "command", name)
	}
	answer(w, struct{}{}, err)
}

// These are not in the log: the agent renews a grant every few seconds.

func (s *Server) postGrant(w http.ResponseWriter, r *http.Request) {
	var g Grant
	if err := ReadJSON(r, &g); err != nil {
		WriteError(w, err)
		return
	}
	if res, ok := s.resource(w); ok {
		answer(w, struct{}{}, res.Grant(r.Context(), &g))
	}
}

func (s *Server) postDeposed(w http.ResponseWriter, r *http.Request) {
	var d Deposed
	if err := ReadJSON(r, &d); err != nil {
		WriteError(w, err)
		return
	}
	if res, ok := s.resource(w); ok {
		answer(w, struct{}{}, res.Deposed(r.Context(), d))
	}
}

func (s *Server) postCandidacy(w http.ResponseWriter, r *http.Request) {
	var q Candidacy
	if err := ReadJSON(r, &q); err != nil {
		WriteError(w, err)
		return
	}
	if res, ok := s.resource(w); ok {
		a, err := res.Candidacy(r.Context(), q)
		answer(w, a, err)
	}
}

// getEvents streams events. A new subscriber first gets a status; one that says the last id it saw (query "after" or
// header Last-Event-ID) gets what followed, or EventLost and a status when that is gone.
func (s *Server) getEvents(w http.ResponseWriter, r *http.Request) {
	res, ok := s.resource(w)
	if !ok {
		return
	}
	after, err := LastEventID(r)
	if err != nil {
		WriteError(w, err)
		return
	}
	status := func() []Event {
		st := res.Status()
		return []Event{{ID: st.LastEvent, Time: time.Now(), Resource: s.name, Kind: EventStatus, Volume: All, Status: st}}
	}
	ServeEvents(w, r, res.Subscribe(r.Context(), after), after == 0, status, s.streams)
}

// ServeEvents writes a stream of server-sent events until it ends, the client goes or stop is closed. With first, and
// after every EventLost, it sends what status gives: one or several events, all with the id of the last event in them.
func ServeEvents(w http.ResponseWriter, r *http.Request, events <-chan Event, first bool, status func() []Event, stop <-chan struct{}) {
	w.Header().Set("Content-Type", "text/event-stream")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(http.StatusOK)
	out := http.NewResponseController(w)
	var seen uint64
	send := func(e Event) error {
		data, err := json.Marshal(e)
		if err != nil {
			return err
		}
		if _, err := fmt.Fprintf(w, "id: %d\nevent: %s\ndata: %s\n\n", e.ID, e.Kind, data); err != nil {
			return err
		}
		return out.Flush()
	}
	sendStatus := func() error {
		for _, e := range status() {
			seen = e.ID
			if err := send(e); err != nil {
				return err
			}
		}
		return nil
	}
	if first {
		if sendStatus() != nil {
			return
		}
	} else if out.Flush() != nil {
		return
	}
	quiet := time.NewTicker(keepAliveEvery)
	defer quiet.Stop()
	for {
		select {
		case e, ok := <-events:
			if !ok {
				return
			}
			if e.Kind != EventLost && e.ID <= seen { // the status holds it
				continue
			}
			if send(e) != nil {
				return
			}
			if e.Kind == EventLost && sendStatus() != nil {
				return
			}
		case <-quiet.C:
			if _, err := io.WriteString(w, ": quiet\n\n"); err != nil || out.Flush() != nil {
				return
			}
		case <-stop:
			return
		case <-r.Context().Done():
			return
		}
	}
}

// LastEventID gives the id after which a client wants events, 0: it begins.
func LastEventID(r *http.Request) (uint64, error) {
	text := r.URL.Query().Get("after")
	if text == "" {
		text = r.Header.Get("Last-Event-ID")
	}
	if text == "" {
		return 0, nil
	}
	id, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		return 0, Errorf(Usage, "after %q is no event id", text)
	}
	return id, nil
}

func volumeOf(r *http.Request) (int, error) {
	text := r.URL.Query().Get("volume")
	if text == "" {
		return All, nil
	}
	n, err := strconv.Atoi(text)
	if err != nil {
		return 0, Errorf(Usage, "volume %q is no number", text)
	}
	return n, nil
}

// stream answers with what produce writes. An error before the first byte is answered as an error; after it the
// connection is cut, so that the client sees that the rest is missing.
func stream(w http.ResponseWriter, r *http.Request, kind string, produce func(volume int, out io.Writer) error) {
	volume, err := volumeOf(r)
	if err != nil {
		WriteError(w, err)
		return
	}
	first := &firstByte{w: w, kind: kind}
	switch err := produce(volume, first); {
	case err == nil:
		w.Header().Set("Content-Type", kind)
	case first.begun:
		panic(http.ErrAbortHandler) // net/http's way to cut a connection; it is not logged
	default:
		WriteError(w, err)
	}
}

// firstByte sets the content type before the first byte is written.
type firstByte struct {
	w     http.ResponseWriter
	kind  string
	begun bool
}

func (f *firstByte) Write(p []byte) (int, error) {
	if !f.begun {
		f.begun = true
		f.w.Header().Set("Content-Type", f.kind)
	}
	return f.w.Write(p)
}

// answer writes v, or err if there is one.
func answer(w http.ResponseWriter, v any, err error) {
	if err != nil && !isNil(err) {
		WriteError(w, err)
		return
	}
	WriteJSON(w, v)
}

// isNil catches a nil *Error in an error.
func isNil(err error) bool {
	v := reflect.ValueOf(err)
	return v.Kind() == reflect.Pointer && v.IsNil()
}

// WriteJSON answers with v.
func WriteJSON(w http.ResponseWriter, v any) {
	var b bytes.Buffer
	if err := json.NewEncoder(&b).Encode(v); err != nil {
		WriteError(w, err)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(b.Bytes()) // the client has gone: nobody to tell
}

// WriteError answers with err and the HTTP status that goes with it.
func WriteError(w http.ResponseWriter, err error) {
	data, merr := json.Marshal(AsError(err))
	if merr != nil {
		data = []byte(`{"code":"failed","text":"an error that cannot be written as JSON"}`)
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(httpStatus(err))
	_, _ = w.Write(append(data, '\n')) // the client has gone: nobody to tell
}

// ReadJSON reads the body of r into v. Unknown fields are refused: an option that is not understood must not be
// dropped in silence.
func ReadJSON(r *http.Request, v any) error {
	d := json.NewDecoder(io.LimitReader(r.Body, requestBytesMax+1))
	d.DisallowUnknownFields()
	if err := d.Decode(v); err != nil {
		return Errorf(Usage, "request: %w", err)
	}
	if d.More() || d.InputOffset() > requestBytesMax {
		return Errorf(Usage, "request: more than one value, or more than %d bytes", requestBytesMax)
	}
	return nil
}
