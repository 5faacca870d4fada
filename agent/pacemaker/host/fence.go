package host

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hawser-ha/hawser/agent/pacemaker"
	"github.com/hawser-ha/hawser/replicator/control"
)

const (
	lookEvery   = 300 * time.Millisecond
	toolTimeout = 10 * time.Second // of one call of Pacemaker's tools
)

// Record says for people why a ban is there. It stays beside the constraint and goes with it.
type Record struct {
	pacemaker.Ban
	Resource string    `json:"resource"`
	Since    time.Time `json:"since"`
	Reason   string    `json:"reason"`
	Answer   int       `json:"answer"` // of the handler; 0: it did not end
}

func (h *Host) recordPath(id string) string { return filepath.Join(h.folder(), id+".json") }

// Records lists the bans that this node asked for and that are still there, as far as it knows.
func (h *Host) Records(res string) []Record {
	paths, err := filepath.Glob(filepath.Join(h.folder(), "hawser-fence-*.json"))
	if err != nil {
		return nil // the pattern is right
	}
	var list []Record
	for _, p := range paths {
		data, err := os.ReadFile(p)
		if err != nil {
			continue // it went away just now
		}
		var r Record
		if json.Unmarshal(data, &r) == nil && r.Resource == res {
			list = append(list, r)
		}
	}
	return list
}

// Fences tells whether this node asked for a ban about the resource, and has not noticed yet that it is gone.
func (r *Resource) Fences() bool { return len(r.h.Records(r.name)) > 0 }

func (h *Host) record(r Record) error {
	data, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return err
	}
	tmp := h.recordPath(r.ID) + ".new"
	if err := os.WriteFile(tmp, append(data, '\n'), 0o644); err != nil {
		return err
	}
	return os.Rename(tmp, h.recordPath(r.ID))
}

func (h *Host) forget(id string) error {
	if err := os.Remove(h.recordPath(id)); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}

// lock keeps a ban from being removed while the same node relies on it anew.
func (h *Host) lock(ctx context.Context, res string) (unlock func(), err error) {
	if err := os.MkdirAll(h.folder(), 0o755); err != nil {
		return nil, err
	}
	f, err := os.OpenFile(filepath.Join(h.folder(), res+".lock"), os.O_RDWR|os.O_CREATE, 0o644)
	if err != nil {
		return nil, err
	}
	for {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			return func() { _ = f.Close() }, nil // the lock goes with the descriptor
		}
		if !errors.Is(err, unix.EWOULDBLOCK) {
			return nil, errors.Join(fmt.Errorf("lock %s: %w", f.Name(), err), f.Close())
		}
		if err := pause(ctx); err != nil {
			return nil, errors.Join(fmt.Errorf("another fence-peer or unfence-peer holds %s: %w", f.Name(), err), f.Close())
		}
	}
}

// tool runs one of Pacemaker's programs.
func (h *Host) tool(ctx context.Context, name string, args ...string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, toolTimeout)
	defer cancel()
	out, _, err := h.Run(ctx, name, args...)
	return out, err
}

func (h *Host) cib(ctx context.Context, args ...string) (*pacemaker.CIB, error) {
	out, err := h.tool(ctx, "cibadmin", append([]string{"--query"}, args...)...)
	if err != nil {
		return nil, err
	}
	return pacemaker.ParseCIB(out)
}

func (h *Host) monitor(ctx context.Context) (*pacemaker.Monitor, error) {
	out, err := h.tool(ctx, "crm_mon", "-1", "-r", "--output-as=xml")
	if err != nil { // before Pacemaker 2.0.3
		if out, err = h.tool(ctx, "crm_mon", "-1", "-r", "--as-xml"); err != nil {
			return nil, err
		}
	}
	return pacemaker.ParseMonitor(out)
}

// FenceOptions are what FencePeer must know.
type FenceOptions struct {
	Resource     string
	Peer         string
	NeedStonith  bool // the resource says fencing resource-and-stonith
	Inconsistent bool // the peer's data is known not to be whole
	Timeout      time.Duration
}

// FencePeer keeps the peer from being promoted, and returns when that is sure: with the answer of a fence-peer handler, and why.
func (h *Host) FencePeer(ctx context.Context, o FenceOptions) (code int, why string) {
	ctx, cancel := context.WithTimeout(ctx, o.Timeout)
	defer cancel()
	unlock, err := h.lock(ctx, o.Resource)
	if err != nil {
		return pacemaker.PeerUnknown, err.Error()
	}
	defer unlock()
	began := time.Now()
	sawUnclean, last := false, "nothing was looked at"
	for {
		step, ban, err := h.fenceLook(ctx, o, &sawUnclean)
		switch {
		case err != nil:
			last = err.Error()
			if errors.Is(err, errNoClone) || errors.Is(err, errNoNode) {
				return pacemaker.PeerUnknown, last
			}
			h.Log.Warn("cannot look at the cluster", "err", err)
		case step.Next == pacemaker.Answer:
			return step.Code, h.noteAnswer(ban, o, began, step)
		case step.Next == pacemaker.Write:
			if err := h.writeBan(ctx, o, ban, began); err != nil {
				last = err.Error()
				h.Log.Warn("constraint not written", "constraint", ban.ID, "err", err)
				break
			}
			h.Log.Info("constraint written", "constraint", ban.ID, "peer", o.Peer)
			continue
		default:
			if step.Why != last {
				h.Log.Info("waiting", "why", step.Why)
			}
			last = step.Why
		}
		if pauseFor(ctx, lookEvery) != nil {
			return pacemaker.PeerUnknown, fmt.Sprintf("after %s: %s", o.Timeout, last)
		}
	}
}

var (
	errNoClone = errors.New("no clone")
	errNoNode  = errors.New("no such node in the cluster")
)

// fenceLook looks at the cluster once.
func (h *Host) fenceLook(ctx context.Context, o FenceOptions, sawUnclean *bool) (pacemaker.FenceStep, pacemaker.Ban, error) {
	me := h.Node.Node
	cib, err := h.cib(ctx, "--local")
	if err != nil {
		return pacemaker.FenceStep{}, pacemaker.Ban{}, err
	}
	clone, err := cib.Clone(o.Resource)
	if err != nil {
		return pacemaker.FenceStep{}, pacemaker.Ban{}, fmt.Errorf("%w: %w", errNoClone, err)
	}
	for _, n := range []string{me, o.Peer} {
		if !slices.Contains(cib.Nodes, n) {
			return pacemaker.FenceStep{}, pacemaker.Ban{}, fmt.Errorf("%w: %s; its nodes are %s, and a resource file must name them the same",
				errNoNode, n, strings.Join(cib.Nodes, ", "))
		}
	}
	mon, err := h.monitor(ctx)
	if err != nil {
		return pacemaker.FenceStep{}, pacemaker.Ban{}, err
	}
	node, ok := mon.Node(o.Peer)
	if !ok {
		return pacemaker.FenceStep{}, pacemaker.Ban{}, fmt.Errorf("crm_mon does not show node %s", o.Peer)
	}
	ban := pacemaker.NewBan(o.Resource, clone, me, o.Peer)
	v := pacemaker.FenceView{Me: me, Peer: o.Peer, Clone: clone, Quorum: cib.Quorum, Stonith: cib.Stonith, NeedStonith: o.NeedStonith, Node: node,
		MePromoted: mon.Promoted(clone, me), PeerPromoted: mon.Promoted(clone, o.Peer), Bans: cib.Bans(o.Resource), SawUnclean: *sawUnclean, Inconsistent: o.Inconsistent}
	*sawUnclean = *sawUnclean || node.Unclean
	if node.Online && slices.ContainsFunc(v.Bans, func(b pacemaker.Ban) bool { return b.ID == ban.ID && b.Banned == o.Peer }) {
		v.Confirmed = h.confirmed(ctx, o, ban)
	}
	return pacemaker.DecideFence(v), ban, nil
}

// confirmed asks the peer itself, over the cluster's own network: being in its copy of the configuration is what makes a
// constraint hold there, also after the cluster falls apart.
func (h *Host) confirmed(ctx context.Context, o FenceOptions, ban pacemaker.Ban) bool {
	ctx, cancel := context.WithTimeout(ctx, 3*time.Second)
	defer cancel()
	cib, err := h.cib(ctx, "--node", o.Peer, "--timeout", "2")
	if err != nil {
		h.Log.Debug("peer does not tell its configuration", "peer", o.Peer, "err", err)
		return false
	}
	return slices.ContainsFunc(cib.Bans(o.Resource), func(b pacemaker.Ban) bool { return b.ID == ban.ID && b.Banned == o.Peer })
}

// writeBan creates the constraint, in the words that the cluster's schema knows.
func (h *Host) writeBan(ctx context.Context, o FenceOptions, ban pacemaker.Ban, began time.Time) error {
	cib, err := h.cib(ctx, "--local")
	if err != nil {
		return err
	}
	if err := h.record(Record{Ban: ban, Resource: o.Resource, Since: began, Reason: "replication to " + o.Peer + " broke"}); err != nil {
		return err
	}
	_, err = h.tool(ctx, "cibadmin", "--create", "--sync-call", "--scope", "constraints", "--xml-text", ban.XML(cib.NewRoles))
	if err != nil {
		return errors.Join(err, h.forget(ban.ID))
	}
	return nil
}

func (h *Host) noteAnswer(ban pacemaker.Ban, o FenceOptions, began time.Time, step pacemaker.FenceStep) string {
	if step.Code == pacemaker.PeerPrimary {
		return step.Why
	}
	r := Record{Ban: ban, Resource: o.Resource, Since: began, Reason: "replication to " + o.Peer + " broke; " + step.Why, Answer: step.Code}
	if err := h.record(r); err != nil {
		h.Log.Warn("cannot note why the constraint is there", "err", err)
	}
	return step.Why
}

// Unfence removes the bans whose reason is gone. With peer it looks at that peer's only. It waits, at most wait, for a
// reason that is about to go: the end of a resync is told before the status shows it. left says why bans stay.
func (h *Host) Unfence(ctx context.Context, res, peer string, wait time.Duration) (removed, left []string, err error) {
	r := h.Resource(res)
	defer r.Close()
	until := time.Now().Add(wait)
	for {
		gone, stay, err := h.unfenceOnce(ctx, r, peer)
		removed = append(removed, gone...)
		if err != nil || len(stay) == 0 || time.Now().After(until) {
			return removed, stay, err
		}
		if err := pauseFor(ctx, lookEvery); err != nil {
			return removed, stay, err
		}
	}
}

func (h *Host) unfenceOnce(ctx context.Context, r *Resource, peer string) (removed, left []string, err error) {
	unlock, err := h.lock(ctx, r.name)
	if err != nil {
		return nil, nil, err
	}
	defer unlock()
	cib, err := h.cib(ctx, "--local")
	if err != nil {
		return nil, nil, err
	}
	bans := cib.Bans(r.name)
	for _, rec := range h.Records(r.name) {
		if !slices.ContainsFunc(bans, func(b pacemaker.Ban) bool { return b.ID == rec.ID }) { // removed by another node, or by hand
			if err := h.forget(rec.ID); err != nil {
				return nil, nil, err
			}
		}
	}
	if len(bans) == 0 {
		return nil, nil, nil
	}
	st, err := r.Status(ctx)
	if errors.Is(err, control.NotRunning) {
		return nil, []string{"the resource is down here, and cannot tell whether its peers are UpToDate"}, nil
	}
	if err != nil {
		return nil, nil, err
	}
	for _, b := range bans {
		if peer != "" && b.Banned != peer && b.Banned != h.Node.Node {
			continue
		}
		ok, why := pacemaker.Removable(b, h.Node.Node, st)
		if !ok {
			left = append(left, fmt.Sprintf("%s stays: %s", b.ID, why))
			continue
		}
		if _, err := h.tool(ctx, "cibadmin", "--delete", "--sync-call", "--scope", "constraints", "--xml-text", fmt.Sprintf(`<rsc_location id="%s"/>`, b.ID)); err != nil {
			return removed, left, err
		}
		h.Log.Info("constraint removed", "constraint", b.ID, "peer", b.Banned)
		removed = append(removed, b.ID)
		if err := h.forget(b.ID); err != nil {
			return removed, left, err
		}
	}
	return removed, left, nil
}
