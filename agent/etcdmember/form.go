package etcdmember

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"go.etcd.io/etcd/server/v3/embed"

	"github.com/hawser-ha/hawser/agent/etcd"
)

// plan is how a member starts.
type plan struct {
	state     string // embed.ClusterStateFlagNew, ClusterStateFlagExisting; etcd looks at it when there is no data
	initial   string
	id        uint64 // that it will have; 0: not known before
	moveAside bool   // the data is of another member
}

// ErrDataLost means: the others remember a member here that has no data any more.
var ErrDataLost = errors.New("the data of this node's etcd member is lost")

// ErrNotMember means: the others know of no member here.
var ErrNotMember = errors.New("this node is no member of the etcd cluster")

// decide looks at the data, asks the others, and says how to start.
func decide(ctx context.Context, cfg Config) (plan, error) {
	has, mark, err := look(cfg.DataDir)
	if err != nil {
		return plan{}, err
	}
	members, askErr := ask(ctx, cfg)
	if askErr != nil {
		cfg.Log.Debug("no other member of etcd answers", "err", askErr)
	}
	formed, err := wasFormed(cfg.DataDir, cfg.Cluster)
	if err != nil {
		return plan{}, err
	}
	return choose(cfg, has, mark, formed, members)
}

// choose is decide without the looking. members is nil when nobody answered.
func choose(cfg Config, has bool, mark uint64, formed bool, members []etcd.Member) (plan, error) {
	anew := plan{state: embed.ClusterStateFlagNew, initial: initial(append([]Place{cfg.Self}, cfg.Others...))}
	i := slices.IndexFunc(members, func(m etcd.Member) bool { return slices.Contains(m.PeerURLs, cfg.Self.PeerURL) })
	switch {
	case members == nil && has:
		return anew, nil // with its data
	case members == nil && formed:
		return plan{}, fmt.Errorf("%w (%s is empty, but there was one), and no other member answers; start the others first, then on one of them: hawser etcd member replace %s",
			ErrDataLost, cfg.DataDir, cfg.Self.Name)
	case members == nil:
		return anew, nil
	case i < 0 && has:
		return anew, nil // etcd itself finds out whether it was removed
	case i < 0:
		return plan{}, fmt.Errorf("%w: nobody there has peer URL %s; on a node whose member runs: hawser etcd member add %s", ErrNotMember, cfg.Self.PeerURL, cfg.Self.Name)
	}
	me := members[i]
	started := len(me.ClientURLs) > 0
	added := !started && me.Name == "" // not from the list of the first start
	switch {
	case has && added && mark != me.ID:
		p := join(cfg, members, me)
		p.moveAside = true
		return p, nil
	case has:
		return anew, nil
	case started:
		return plan{}, fmt.Errorf("%w (%s is empty, the others know member %x); on a node whose member runs: hawser etcd member replace %s",
			ErrDataLost, cfg.DataDir, me.ID, cfg.Self.Name)
	case added:
		return join(cfg, members, me), nil
	}
	return anew, nil // the first start of the cluster is under way
}

// join is the plan of a member that was added to a cluster.
func join(cfg Config, members []etcd.Member, me etcd.Member) plan {
	var places []Place
	for _, m := range members {
		if m.ID == me.ID {
			m.Name = cfg.Self.Name
		}
		for _, u := range m.PeerURLs {
			places = append(places, Place{Name: m.Name, PeerURL: u})
		}
	}
	return plan{state: embed.ClusterStateFlagExisting, initial: initial(places), id: me.ID}
}

// ask asks the other members who is one.
func ask(ctx context.Context, cfg Config) ([]etcd.Member, error) {
	if len(cfg.Others) == 0 {
		return nil, errors.New("there are no others")
	}
	e := cfg.Asking
	e.Endpoints, e.RefreshEvery, e.RPCTimeout, e.Log = nil, -1, askTimeout, cfg.Log
	for _, p := range cfg.Others {
		e.Endpoints = append(e.Endpoints, p.ClientURL)
	}
	c, err := etcd.Open(e)
	if err != nil {
		return nil, err
	}
	defer c.Close() //nolint:errcheck // nothing hangs on it
	ctx, cancel := context.WithTimeout(ctx, 2*askTimeout)
	defer cancel()
	return c.Members(ctx)
}

const (
	markName     = "hawser-member"
	formedSuffix = ".formed"
)

// look tells whether a data directory has data, and of which member; 0: not known.
func look(dir string) (has bool, mark uint64, err error) {
	if _, err := os.Stat(filepath.Join(dir, "member", "wal")); err == nil {
		has = true
	} else if !errors.Is(err, os.ErrNotExist) {
		return false, 0, err
	}
	data, err := os.ReadFile(filepath.Join(dir, markName))
	if errors.Is(err, os.ErrNotExist) {
		return has, 0, nil
	}
	if err != nil {
		return false, 0, err
	}
	mark, err = strconv.ParseUint(strings.TrimSpace(string(data)), 16, 64)
	if err != nil {
		return false, 0, fmt.Errorf("%s: %w", filepath.Join(dir, markName), err)
	}
	return has, mark, nil
}

func writeMark(dir string, id uint64) error {
	return writeSynced(filepath.Join(dir, markName), fmt.Sprintf("%x\n", id))
}

// wasFormed tells whether there was a member of that cluster with this data directory.
func wasFormed(dir, cluster string) (bool, error) {
	data, err := os.ReadFile(dir + formedSuffix)
	if errors.Is(err, os.ErrNotExist) {
		return false, nil
	}
	return strings.TrimSpace(string(data)) == cluster, err
}

func writeFormed(dir, cluster string) error { return writeSynced(dir+formedSuffix, cluster+"\n") }

// writeSynced replaces a file durably.
func writeSynced(path, text string) error {
	if old, err := os.ReadFile(path); err == nil && string(old) == text {
		return nil
	}
	f, err := os.OpenFile(path+".new", os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	_, err = f.WriteString(text)
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		return err
	}
	if err := os.Rename(path+".new", path); err != nil {
		return err
	}
	d, err := os.Open(filepath.Dir(path))
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
