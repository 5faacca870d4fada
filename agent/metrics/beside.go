package metrics

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/ClusterLabs/ha_cluster_exporter/collector"
	"github.com/ClusterLabs/ha_cluster_exporter/collector/corosync"
	"github.com/ClusterLabs/ha_cluster_exporter/collector/pacemaker"
	"github.com/ClusterLabs/ha_cluster_exporter/collector/sbd"
	"github.com/prometheus/client_golang/prometheus"
)

// Programs are those that the collectors of Pacemaker, Corosync and SBD run.
type Programs struct {
	CrmMon, CIBAdmin, CfgTool, QuorumTool, SBD, SBDConfig string
}

// DefaultPrograms is where Debian has them.
func DefaultPrograms() Programs {
	return Programs{CrmMon: "/usr/sbin/crm_mon", CIBAdmin: "/usr/sbin/cibadmin", CfgTool: "/usr/sbin/corosync-cfgtool",
		QuorumTool: "/usr/sbin/corosync-quorumtool", SBD: "/usr/sbin/sbd", SBDConfig: "/etc/default/sbd"}
}

var (
	besideActive = gauge("collector_active", "1 when the programs that the collector needs are installed.", "collector")
	besideAge    = gauge("collector_age_seconds", "Age of the figures of the collector.", "collector")
	besideOK     = prometheus.NewDesc("ha_cluster_scrape_success", "Whether a collector succeeded.", []string{"collector"}, nil)
	besideTook   = prometheus.NewDesc("ha_cluster_scrape_duration_seconds", "Duration of a collector scrape.", []string{"collector"}, nil)
)

// beside is one collector of ha_cluster_exporter, run in the background: its
// programs are slow, and nothing in it ends one that hangs.
type beside struct {
	name string
	log  *slog.Logger
	make func() (collector.InstrumentableCollector, error)

	mu    sync.Mutex // guards all below
	inner collector.InstrumentableCollector
	last  []prometheus.Metric
	ok    bool
	took  time.Duration
	at    time.Time // of the last answer; zero: none yet
}

func besides(log *slog.Logger, p Programs) []*beside {
	one := func(name string, make func() (collector.InstrumentableCollector, error)) *beside {
		return &beside{name: name, log: log.With("collector", name), make: make}
	}
	return []*beside{
		one("pacemaker", func() (collector.InstrumentableCollector, error) { return pacemaker.NewCollector(p.CrmMon, p.CIBAdmin) }),
		one("corosync", func() (collector.InstrumentableCollector, error) {
			return corosync.NewCollector(p.CfgTool, p.QuorumTool)
		}),
		one("sbd", func() (collector.InstrumentableCollector, error) { return sbd.NewCollector(p.SBD, p.SBDConfig) }),
	}
}

// run refreshes the figures every interval until ctx ends. A run in progress
// then is left to end by itself: it only fills a slice nobody reads.
func (b *beside) run(ctx context.Context, interval time.Duration) {
	tick := time.NewTicker(interval)
	defer tick.Stop()
	for {
		done := make(chan struct{})
		go func() { // one that hangs must not hold up the end of the agent
			defer close(done)
			b.refresh()
		}()
		select {
		case <-done:
		case <-ctx.Done():
			return
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

// refresh collects once.
func (b *beside) refresh() {
	b.mu.Lock()
	inner := b.inner
	b.mu.Unlock()
	if inner == nil {
		made, err := b.make()
		if err != nil { // not installed here, perhaps later
			b.log.Debug("collector not active", "why", err)
			return
		}
		inner = made
	}
	began := time.Now()
	metrics, err := gather(inner)
	b.mu.Lock()
	defer b.mu.Unlock()
	if err != nil && (b.ok || b.inner == nil) { // once, not with every interval
		b.log.Warn("collector failed", "err", err)
	}
	b.inner, b.last, b.ok, b.took, b.at = inner, metrics, err == nil, time.Since(began), time.Now()
}

// gather calls a collector of the library. What it panics about is an error: the
// output of a program it did not expect must not end the agent.
func gather(c collector.InstrumentableCollector) (out []prometheus.Metric, err error) {
	ch := make(chan prometheus.Metric)
	collected := make(chan []prometheus.Metric)
	go func() {
		var all []prometheus.Metric
		for m := range ch {
			all = append(all, m)
		}
		collected <- all
	}()
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("panic: %v", p)
		}
		close(ch)
		out = <-collected
	}()
	return nil, c.CollectWithError(ch)
}

func (b *beside) collect(ch chan<- prometheus.Metric, now time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	besideActive.emit(ch, truth(b.inner != nil), b.name)
	if b.at.IsZero() {
		return
	}
	besideAge.emit(ch, now.Sub(b.at).Seconds(), b.name)
	ch <- prometheus.MustNewConstMetric(besideOK, prometheus.GaugeValue, truth(b.ok), b.name)
	ch <- prometheus.MustNewConstMetric(besideTook, prometheus.GaugeValue, b.took.Seconds(), b.name)
	for _, m := range b.last {
		ch <- m
	}
}
