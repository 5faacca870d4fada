package fencing

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"
)

// Health of a device.
type Health string

// Values of Health.
const (
	Working  Health = "working"
	Failing  Health = "failing"
	NotAsked Health = "not-asked" // yet
	NoWay    Health = "no-monitor"
	Broken   Health = "broken" // it could not be set up
)

// DeviceStatus is what is known of one device.
type DeviceStatus struct {
	Name    string        `json:"name"`
	Mode    Mode          `json:"mode"`
	Health  Health        `json:"health"`
	Asked   time.Time     `json:"asked,omitzero"`
	Since   time.Time     `json:"since,omitzero"` // of this health
	Took    time.Duration `json:"took"`
	Error   string        `json:"error,omitempty"`
	Nodes   []string      `json:"nodes"`           // that it is used for
	Monitor int           `json:"monitors"`        // how often it was asked
	Fails   int           `json:"monitors-failed"` // of them
}

// Snapshot is what status and metrics show.
type Snapshot struct {
	Devices []DeviceStatus        `json:"devices"`
	Levels  map[string][][]string `json:"levels"`
	Last    []Result              `json:"last"`    // of each node, the newest
	Running []string              `json:"running"` // nodes that are being fenced
}

// Snapshot gives what is known now.
func (f *Fencer) Snapshot() Snapshot {
	f.mu.Lock()
	defer f.mu.Unlock()
	s := Snapshot{Devices: []DeviceStatus{}, Levels: map[string][][]string{}, Last: []Result{}, Running: slices.Sorted(maps.Keys(f.running))}
	maps.Copy(s.Levels, f.o.Levels)
	for i := range f.o.Devices {
		d := f.seen[f.o.Devices[i].Name]
		d.Nodes = []string{}
		for _, node := range f.Nodes() {
			if slices.ContainsFunc(f.o.Levels[node], func(level []string) bool { return slices.Contains(level, d.Name) }) {
				d.Nodes = append(d.Nodes, node)
			}
		}
		s.Devices = append(s.Devices, d)
	}
	for _, node := range slices.Sorted(maps.Keys(f.last)) {
		s.Last = append(s.Last, f.last[node])
	}
	return s
}

// Run asks each device at the interval whether it works, until ctx ends. The first round is at once.
func (f *Fencer) Run(ctx context.Context) {
	if f.o.MonitorAt <= 0 {
		return
	}
	t := time.NewTicker(f.o.MonitorAt)
	defer t.Stop()
	for {
		f.MonitorAll(ctx)
		select {
		case <-t.C:
		case <-ctx.Done():
			return
		}
	}
}

// MonitorAll asks every device once, side by side, and returns when all have answered.
func (f *Fencer) MonitorAll(ctx context.Context) {
	var wg sync.WaitGroup
	for i := range f.o.Devices {
		wg.Go(func() { f.monitor(ctx, &f.o.Devices[i]) })
	}
	wg.Wait()
}

func (f *Fencer) monitor(ctx context.Context, s *Spec) {
	if s.Device == nil {
		return
	}
	if !s.Device.Can(Monitor) {
		f.mu.Lock()
		d := f.seen[s.Name]
		d.Health = NoWay
		f.seen[s.Name] = d
		f.mu.Unlock()
		return
	}
	call, cancel := context.WithTimeout(ctx, s.Timeout)
	defer cancel()
	began := time.Now()
	err := s.Device.Do(call, Monitor, "")
	if ctx.Err() != nil {
		return // we end; it says nothing about the device
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	d := f.seen[s.Name]
	was := d.Health
	d.Health, d.Error, d.Asked, d.Took = Working, "", began, time.Since(began)
	d.Monitor++
	if err != nil {
		d.Health, d.Error = Failing, err.Error()
		d.Fails++
	}
	if d.Health != was {
		d.Since = began
		if err != nil {
			f.o.Log.Error("fence device does not work", "device", s.Name, "err", err)
		} else {
			f.o.Log.Info("fence device works", "device", s.Name)
		}
	}
	f.seen[s.Name] = d
}
