package drbdtools

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/hawser-ha/hawser/agent/compat"
	"github.com/hawser-ha/hawser/agent/config"
	"github.com/hawser-ha/hawser/replicator/control"
)

func (t *tool) status(ctx context.Context, at place, a arguments) int {
	rs, err := t.all(ctx, at.res)
	if err != nil {
		return t.refuse("status", err)
	}
	code := 0
	if at.res != "" && len(rs) == 0 {
		t.errorf("%s: No such resource\n", at.res)
		code = compat.ExitError
		if t.v84 {
			return code
		}
	}
	if a.has("json") {
		err = compat.StatusJSON(t.Stdout, rs)
	} else {
		err = compat.Status(t.Stdout, rs, compat.StatusOptions{Verbose: a.count["verbose"], Statistics: a.has("statistics"), Terminal: t.Terminal, V84: t.v84})
	}
	return max(code, t.wrote(err))
}

// needUp gives a resource that is up, or says that it is not.
func (t *tool) needUp(ctx context.Context, at place, verb string) (*compat.Resource, int) {
	r, err := t.up(ctx, at.res)
	switch {
	case err != nil:
		return nil, t.refuse(at.text, err)
	case r != nil:
		return r, 0
	case t.v84 && at.volume != control.All:
		return nil, t.noDevice(verb, at.text)
	case verb == "dstate":
		return nil, t.noDevice(verb, at.text)
	case verb == "cstate" || verb == "peer-role":
		t.errorf("%s: No such connection\n", at.res)
	case verb == "show" || verb == "status":
		t.errorf("%s: No such resource\n", at.res)
	default:
		t.errorf("%s: Unknown resource\n", at.res)
	}
	return nil, compat.ExitError
}

func (t *tool) print(text string) int {
	_, err := io.WriteString(t.Stdout, text)
	return t.wrote(err)
}

func (t *tool) role(ctx context.Context, at place, _ arguments) int {
	r, code := t.needUp(ctx, at, "role")
	if r == nil {
		return code
	}
	return t.print(compat.Role(r, t.v84) + "\n")
}

func (t *tool) peerRole(ctx context.Context, at place, _ arguments) int {
	r, code := t.needUp(ctx, at, "peer-role")
	if r == nil {
		return code
	}
	c := r.Connection(at.peer)
	if c == nil {
		t.errorf("%s: No such connection\n", at.res)
		return compat.ExitError
	}
	return t.print(c.PeerRole + "\n")
}

func (t *tool) cstate(ctx context.Context, at place, _ arguments) int {
	r, code := t.needUp(ctx, at, "cstate")
	if r == nil {
		return code
	}
	if t.v84 {
		if len(r.Connections) == 0 {
			return t.print("StandAlone\n")
		}
		return t.print(compat.CState(&r.Connections[0], at.volume, true) + "\n")
	}
	c := r.Connection(at.peer)
	if c == nil {
		t.errorf("%s: No such connection\n", at.res)
		return compat.ExitError
	}
	return t.print(c.State + "\n")
}

func (t *tool) dstate(ctx context.Context, at place, _ arguments) int {
	r, code := t.needUp(ctx, at, "dstate")
	if r == nil {
		return code
	}
	if r.Device(at.volume) == nil {
		return t.noDevice("dstate", at.text)
	}
	return t.print(compat.DState(r, at.volume, t.v84) + "\n")
}

func (t *tool) gi(ctx context.Context, at place, a arguments) int {
	return t.identifiers(ctx, at, a, compat.ShowGI)
}

func (t *tool) getGI(ctx context.Context, at place, a arguments) int {
	return t.identifiers(ctx, at, a, compat.GetGI)
}

func (t *tool) identifiers(ctx context.Context, at place, _ arguments, text func(*control.GI, int, bool) string) int {
	r, code := t.needUp(ctx, at, "get-gi")
	if r == nil {
		return code
	}
	if t.v84 && len(r.Connections) > 0 {
		at.peer = r.Connections[0].PeerNodeID
	}
	if c := r.Connection(at.peer); !t.v84 && (c == nil || c.PeerDevice(at.volume) == nil) {
		t.errorf("%s: No such peer device\n", at.res)
		return compat.ExitError
	}
	gi, err := t.sub(at.res).ShowGI(ctx, at.volume)
	if err != nil {
		return t.refuse(at.text, err)
	}
	t.mark(gi, r)
	return t.print(text(gi, at.peer, t.v84))
}

// mark sets the lowest bit of the current identifier as the tools of 8.4 show it: of a Primary.
func (t *tool) mark(gi *control.GI, r *compat.Resource) {
	if !t.v84 {
		return
	}
	gi.Current &^= 1
	if r != nil && r.Role == "Primary" {
		gi.Current |= 1
	}
}

func (t *tool) show(ctx context.Context, at place, a arguments) int {
	rs, err := t.all(ctx, at.res)
	if err != nil {
		return t.refuse("show", err)
	}
	if at.res != "" && len(rs) == 0 {
		if t.v84 {
			t.errorf("received netlink error reply: No such device\n")
			return compat.ExitTrouble
		}
		t.errorf("%s: No such resource\n", at.res)
		if a.has("json") {
			return max(compat.ExitError, t.wrote(compat.ShowJSON(t.Stdout, nil, false)))
		}
		return compat.ExitError
	}
	var list []compat.Shown
	cfg, _ := t.ownConfig()
	for _, r := range rs {
		x := compat.Shown{R: r}
		if cfg != nil {
			if p, ok := compat.PlanOf(cfg, r.Name, t.who(), t.minor); ok {
				x.Plan = p
			}
		}
		list = append(list, x)
	}
	if a.has("json") {
		return t.wrote(compat.ShowJSON(t.Stdout, list, a.has("show-defaults")))
	}
	return t.wrote(compat.Show(t.Stdout, list, a.has("show-defaults"), t.v84))
}

// udev prints what udev rules of drbd-utils ask for.
func (t *tool) udev(_ context.Context, at place, _ arguments) int {
	def := t.definition(at.res)
	for _, v := range def.Volumes {
		if v.Number != at.volume {
			continue
		}
		text := fmt.Sprintf("DEVICE=drbd%s\nSYMLINK_BY_RES=drbd/by-res/%s/%d\n", at.text, at.res, at.volume)
		if disk, ok := strings.CutPrefix(v.Disk, "/dev/"); ok {
			text += "SYMLINK_BY_DISK=drbd/by-disk/" + disk + "\n"
		}
		return t.print(text)
	}
	return t.noDevice("udev", at.text)
}

func (t *tool) shStatus(ctx context.Context, at place, _ arguments) int {
	r, err := t.up(ctx, at.res)
	if err != nil {
		return t.refuse(at.text, err)
	}
	return t.print(compat.ShStatus(r, at.volume, t.minor(at.res, at.volume)))
}

// ours are the resources of the node's files that this node is part of, by name.
func (t *tool) ours() []config.Resource {
	set, err := t.load()
	if err != nil {
		return nil
	}
	var out []config.Resource
	for _, r := range set.On(t.Node.Node) {
		out = append(out, *r)
	}
	slices.SortStableFunc(out, func(a, b config.Resource) int { return strings.Compare(a.Name, b.Name) })
	return out
}
