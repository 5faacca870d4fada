package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/hawser-ha/hawser/agent/decide"
	"github.com/hawser-ha/hawser/replicator/control"
)

// listen answers load balancers and monitoring on TCP, where the settings say so. Nothing can be changed there.
//
//	/primary/RES   200 on the node whose Primary may write now, else 503
//	/replica/RES   200 where a good copy is, in sync, and no Primary
//	/health        200: the agent is there and no resource that should be up is broken
//	/readiness     200: etcd answers, and what this node should run is up
//	/metrics
func (a *Agent) listen(ctx context.Context) error {
	if a.cfg.Node.Listen == "" {
		return nil
	}
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", a.cfg.Node.Listen)
	if err != nil {
		return fmt.Errorf("agent: listen: %w", err)
	}
	mux := http.NewServeMux()
	mux.HandleFunc("/primary/{name}", a.check(func(ctx context.Context, r *http.Request) (string, bool) {
		return a.licensed(ctx, r.PathValue("name"))
	}))
	mux.HandleFunc("/replica/{name}", a.check(func(ctx context.Context, r *http.Request) (string, bool) {
		return a.goodCopy(ctx, r.PathValue("name"))
	}))
	mux.HandleFunc("/health", a.check(func(ctx context.Context, _ *http.Request) (string, bool) { return a.healthy(ctx) }))
	mux.HandleFunc("/readiness", a.check(func(ctx context.Context, _ *http.Request) (string, bool) { return a.ready(ctx) }))
	mux.Handle("GET /metrics", a.metrics)
	srv := &http.Server{Handler: mux, ReadHeaderTimeout: 10 * time.Second, IdleTimeout: time.Minute, ErrorLog: slog.NewLogLogger(a.log.Handler(), slog.LevelDebug)}
	a.wg.Go(func() {
		if err := srv.Serve(l); !errors.Is(err, http.ErrServerClosed) {
			a.log.Error("TCP listener ended", "err", err)
		}
	})
	a.wg.Go(func() {
		<-ctx.Done()
		_ = srv.Close() // requests are short, and nobody minds
	})
	return nil
}

// check answers GET, HEAD and OPTIONS with a status and a line of text.
func (a *Agent) check(ask func(context.Context, *http.Request) (string, bool)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		switch r.Method {
		case http.MethodGet, http.MethodHead, http.MethodOptions:
		default:
			w.WriteHeader(http.StatusMethodNotAllowed)
			return
		}
		ctx, cancel := context.WithTimeout(r.Context(), askTimeout)
		defer cancel()
		text, ok := ask(ctx, r)
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		w.Header().Set("Cache-Control", "no-store")
		if !ok {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
		if r.Method != http.MethodHead {
			fmt.Fprintln(w, text)
		}
	}
}

// asked gives the status of the replicator of a resource.
func (a *Agent) asked(ctx context.Context, name string) (*control.Status, string) {
	m, err := a.running(name)
	if err != nil {
		return nil, err.Error()
	}
	st, err := m.client.Status(ctx)
	if err != nil {
		return nil, err.Error()
	}
	return st, ""
}

// licensed says whether this node is the Primary that may write.
func (a *Agent) licensed(ctx context.Context, name string) (string, bool) {
	st, why := a.asked(ctx, name)
	switch {
	case st == nil:
		return why, false
	case st.Role != decide.Primary:
		return "it is " + st.Role, false
	case st.Write != nil && (st.Write.Right == control.RightNone || st.Write.Right == ""):
		return "it is Primary and has no licence to write", false
	case len(st.Suspended) > 0:
		return "it is Primary and frozen: " + strings.Join(st.Suspended, ", "), false
	}
	return "Primary", true
}

// goodCopy says whether this node holds a complete copy and is not Primary.
func (a *Agent) goodCopy(ctx context.Context, name string) (string, bool) {
	st, why := a.asked(ctx, name)
	switch {
	case st == nil:
		return why, false
	case st.Role == decide.Primary:
		return "it is Primary", false
	case st.Write != nil && st.Write.Term == 0:
		return "it was never in sync", false
	}
	for i := range st.Volumes {
		if v := &st.Volumes[i]; v.DiskState != "UpToDate" || v.Unvouched {
			return fmt.Sprintf("volume %d is %s", v.Number, v.DiskState), false
		}
	}
	if a.isCoordinated(name) {
		v, err := a.ha.View()
		if v == nil || v.Resource(name).InSync.Member(a.cfg.Node.Node) == nil {
			return "it is not in the in-sync set", false
		}
		if err != nil {
			return "etcd does not answer: nobody knows whether it is in sync", false
		}
	}
	return "Secondary", true
}

// healthy says whether the agent works.
func (a *Agent) healthy(ctx context.Context) (string, bool) {
	for _, r := range a.status(ctx, "").Resources {
		if r.State == StateSilent {
			return r.Name + " does not answer: " + r.Message, false
		}
	}
	return "healthy", true
}

// ready says whether this node does what it should.
func (a *Agent) ready(ctx context.Context) (string, bool) {
	if text, ok := a.healthy(ctx); !ok {
		return text, false
	}
	if a.ha == nil {
		return "ready", true
	}
	if _, err := a.ha.View(); err != nil {
		return "etcd: " + err.Error(), false
	}
	for _, r := range a.status(ctx, "").Resources {
		if a.isCoordinated(r.Name) && r.State == StateDown && !a.takenDown(r.Name) {
			return r.Name + " is down", false
		}
	}
	return "ready", true
}
