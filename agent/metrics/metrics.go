package metrics

import (
	"context"
	"io"
	"log/slog"
	"net/http"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/sirupsen/logrus"
)

const (
	scrapesMax      = 4                // at once
	scrapeTimeout   = 8 * time.Second  // less than Prometheus' usual ten
	besideInterval  = 10 * time.Second // between runs of Pacemaker's and Corosync's programs
	splitBrainMarks = "/var/run/drbd/splitbrain"
)

// Options are what an Exporter needs.
type Options struct {
	Log *slog.Logger
	// Look takes a Snapshot. It must answer soon even when a replicator hangs. Safe for concurrent use.
	Look       func(ctx context.Context) Snapshot
	Programs   Programs
	SplitBrain string // folder of the marks a split brain leaves, "": the one DRBD's scripts use
}

// Exporter answers scrapes. Safe for concurrent use.
type Exporter struct {
	look    func(ctx context.Context) Snapshot
	besides []*beside
	drbd    *drbdNames
	handler http.Handler
}

// New makes an Exporter. Run keeps the figures of Pacemaker and Corosync fresh.
func New(o Options) *Exporter {
	logrus.SetOutput(io.Discard) // the library's; what it tells comes as errors too
	if o.SplitBrain == "" {
		o.SplitBrain = splitBrainMarks
	}
	e := &Exporter{look: o.Look, besides: besides(o.Log, o.Programs), drbd: newDRBDNames(o.SplitBrain)}
	reg := prometheus.NewRegistry()
	reg.MustRegister(e, collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	e.handler = promhttp.HandlerFor(reg, promhttp.HandlerOpts{
		ErrorLog: slog.NewLogLogger(o.Log.Handler(), slog.LevelWarn), ErrorHandling: promhttp.ContinueOnError,
		MaxRequestsInFlight: scrapesMax, Timeout: scrapeTimeout + time.Second,
	})
	return e
}

// Run works until ctx ends.
func (e *Exporter) Run(ctx context.Context) {
	var wg sync.WaitGroup
	for _, b := range e.besides {
		wg.Go(func() { b.run(ctx, besideInterval) })
	}
	wg.Wait()
}

// ServeHTTP answers a scrape.
func (e *Exporter) ServeHTTP(w http.ResponseWriter, r *http.Request) { e.handler.ServeHTTP(w, r) }

// Describe implements prometheus.Collector. What the library's collectors give
// is not described: which of them there are shows only later.
func (e *Exporter) Describe(ch chan<- *prometheus.Desc) {
	describe(ch)
	e.drbd.Describe(ch)
	ch <- besideActive.desc
	ch <- besideAge.desc
	ch <- besideOK
	ch <- besideTook
}

// Collect implements prometheus.Collector.
func (e *Exporter) Collect(ch chan<- prometheus.Metric) {
	ctx, cancel := context.WithTimeout(context.Background(), scrapeTimeout)
	defer cancel()
	s := e.look(ctx)
	s.collect(ch)
	e.drbd.collect(ch, &s)
	for _, b := range e.besides {
		b.collect(ch, time.Now())
	}
}
