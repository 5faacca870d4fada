package agent

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/hawser-ha/hawser/agent/config"
	"github.com/hawser-ha/hawser/replicator/control"
)

// Step is one step of an adjustment, as the API tells it.
type Step struct {
	Verb        string `json:"verb"`
	Target      string `json:"target,omitempty"`
	Text        string `json:"text"`
	Disconnects bool   `json:"disconnects,omitempty"`
	Detaches    bool   `json:"detaches,omitempty"`
	Stops       bool   `json:"stops,omitempty"`
}

// plan says what takes a resource from how it runs to how its file wants it.
func (m *managed) plan(ctx context.Context) ([]config.Step, *control.Definition, error) {
	_, wanted, err := m.a.definition(m.name)
	if errors.Is(err, control.NotFound) {
		wanted, err = new(control.Definition), nil
	}
	if err != nil {
		return nil, nil, err
	}
	running := new(control.Definition)
	if _, served := control.Served(m.sock); served {
		if running, err = m.definition(ctx); err != nil {
			return nil, nil, err
		}
	}
	return config.Diff(*running, *wanted), wanted, nil
}

// adjust makes the resource run as its file says, with the fewest steps; dryRun only tells them.
func (m *managed) adjust(ctx context.Context, dryRun bool) ([]Step, error) {
	unlock, err := m.lock(ctx)
	if err != nil {
		return nil, err
	}
	defer unlock()
	steps, wanted, err := m.plan(ctx)
	if err != nil {
		return nil, err
	}
	told := []Step{}
	for _, s := range steps {
		told = append(told, Step{Verb: string(s.Verb), Target: s.Target, Text: s.Text, Disconnects: s.Disconnects, Detaches: s.Detaches, Stops: s.Stops})
	}
	if dryRun || len(steps) == 0 {
		return told, nil
	}
	if wanted.Name != "" {
		if err := m.a.checkDisks(wanted); err != nil {
			return nil, err
		}
	}
	changed := false
	for i, s := range steps {
		if s.Verb == config.Change && changed {
			continue
		}
		changed = changed || s.Verb == config.Change
		if err := m.step(ctx, s, wanted); err != nil {
			e := *control.AsError(err)
			e.Text = fmt.Sprintf("step %d of %d, %s %s: %s", i+1, len(steps), s.Verb, s.Target, e.Text)
			return told, &e
		}
	}
	if wanted.Name != "" {
		return told, m.want(wanted)
	}
	return told, nil
}

func (m *managed) step(ctx context.Context, s config.Step, wanted *control.Definition) error {
	volume := func() int {
		n, err := strconv.Atoi(s.Target)
		if err != nil {
			return control.All
		}
		return n
	}
	switch s.Verb {
	case config.Down:
		return m.stop(ctx, false)
	case config.Up:
		return m.start(ctx, wanted, false)
	case config.Change:
		return m.client.Adjust(ctx, wanted)
	case config.Disconnect:
		return m.client.Do(ctx, "disconnect", control.Args{Volume: control.All, Peer: s.Target})
	case config.Connect:
		return m.client.Do(ctx, "connect", control.Args{Volume: control.All, Peer: s.Target})
	case config.Detach:
		return m.client.Do(ctx, "detach", control.Args{Volume: volume()})
	case config.Attach:
		return m.client.Do(ctx, "attach", control.Args{Volume: volume()})
	case config.Resize:
		size := int64(0)
		for _, v := range wanted.Volumes {
			if v.Number == volume() {
				size = v.Size
			}
		}
		return m.client.Do(ctx, "resize", control.Args{Volume: volume(), Size: size})
	}
	return control.Errorf(control.Failed, "step %q is not known", s.Verb)
}

// checkDisks refuses disks that are too small before anything is touched.
func (a *Agent) checkDisks(def *control.Definition) error {
	if err := config.CheckDisks(*def, disks{def}); err != nil {
		return control.Errorf(control.TooSmall, "%w", err).On(def.Name, control.All, "").
			WithRule("a disk holds its volume and its metadata")
	}
	return nil
}

// disks tells the sizes of a definition's disks without touching them.
type disks struct{ def *control.Definition }

// Size implements config.Sizer. A file that is not there yet counts with the size that create-md will give it.
func (d disks) Size(path string) (int64, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if errors.Is(err, os.ErrNotExist) {
		for _, v := range d.def.Volumes {
			switch {
			case v.Disk == path && v.Size > 0 && v.MetaDisk == "internal":
				return fileSize(v.Size, len(d.def.Peers)), nil
			case v.Disk == path && v.Size > 0:
				return v.Size, nil
			case v.MetaDisk == path && v.Size > 0:
				return config.MetadataSize(v.Size, len(d.def.Peers)) + 1<<20, nil
			}
		}
		return 0, control.Errorf(control.NotFound, "%s is not there", path)
	}
	if err != nil {
		return 0, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return 0, err
	}
	if info.Mode().IsRegular() {
		return info.Size(), nil
	}
	if info.Mode()&os.ModeDevice == 0 || info.Mode()&os.ModeCharDevice != 0 {
		return 0, fmt.Errorf("%s is neither a block device nor a file", path)
	}
	size, err := f.Seek(0, 2)
	if err != nil {
		return 0, fmt.Errorf("size of %s: %w", path, err)
	}
	return size, nil
}
