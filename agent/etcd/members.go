package etcd

import (
	"context"
	"errors"
	"fmt"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/hawser-ha/hawser/agent/coord"
)

// Member is a member of the etcd cluster.
type Member struct {
	ID         uint64   `json:"id"`
	Name       string   `json:"name"` // "": it was added and has never started
	PeerURLs   []string `json:"peer-urls"`
	ClientURLs []string `json:"client-urls"`
	Learner    bool     `json:"learner,omitempty"`
}

// MemberStatus is what a member says of itself.
type MemberStatus struct {
	Member
	Healthy   bool     `json:"healthy"`
	Leader    bool     `json:"leader"`
	RaftTerm  uint64   `json:"raft-term"`
	RaftIndex uint64   `json:"raft-index"`
	DBSize    int64    `json:"db-size"`   // bytes in the file
	DBInUse   int64    `json:"db-in-use"` // bytes of it that hold something: the rest is given back by defrag
	Version   string   `json:"version,omitempty"`
	Errors    []string `json:"errors,omitempty"`
}

// Alarm is a state of the cluster that a person must end.
type Alarm struct {
	Member uint64 `json:"member"`
	Kind   string `json:"kind"` // NOSPACE, CORRUPT
}

// Members lists the members, linearizably.
func (c *Client) Members(ctx context.Context) ([]Member, error) {
	return hedge(ctx, c, c.soon(), coord.ErrUnavailable, func(ctx context.Context, ep *endpoint) ([]Member, error) {
		r, err := ep.c.MemberList(ctx)
		if err != nil {
			return nil, err
		}
		var list []Member
		for _, m := range r.Members {
			list = append(list, Member{m.ID, m.Name, m.PeerURLs, m.ClientURLs, m.IsLearner})
		}
		return list, c.admit(coord.Header{Cluster: r.Header.ClusterId}, coord.Header{})
	})
}

// Status asks each member how it is. One that does not answer is listed as not healthy, with the reason.
func (c *Client) Status(ctx context.Context) ([]MemberStatus, error) {
	members, err := c.Members(ctx)
	if err != nil {
		return nil, err
	}
	list := make([]MemberStatus, len(members))
	done := make(chan struct{})
	for i, m := range members {
		go func() { // waited for below
			list[i] = c.status(ctx, m)
			done <- struct{}{}
		}()
	}
	for range members {
		<-done
	}
	return list, nil
}

func (c *Client) status(ctx context.Context, m Member) MemberStatus {
	s := MemberStatus{Member: m}
	if len(m.ClientURLs) == 0 {
		s.Errors = []string{"it has not started yet"}
		return s
	}
	err := c.at(ctx, m.ClientURLs[0], func(ctx context.Context, cl *clientv3.Client) error {
		r, err := cl.Status(ctx, m.ClientURLs[0])
		if err != nil {
			return err
		}
		s.Leader, s.RaftTerm, s.RaftIndex, s.DBSize, s.DBInUse, s.Version, s.Errors = r.Leader == m.ID, r.RaftTerm, r.RaftIndex, r.DbSize, r.DbSizeInUse, r.Version, r.Errors
		if _, err := cl.Get(ctx, "/hawser/", clientv3.WithCountOnly()); err != nil { // it has a leader, and follows
			return err
		}
		s.Healthy = true
		return nil
	})
	if err != nil {
		s.Errors = append(s.Errors, err.Error())
	}
	return s
}

// at calls f with a connection to one endpoint, within the deadline of an attempt.
func (c *Client) at(ctx context.Context, url string, f func(context.Context, *clientv3.Client) error) error {
	ep, err := c.dial(url)
	if err != nil {
		return err
	}
	defer ep.c.Close() //nolint:errcheck // nothing hangs on it
	one, cancel := context.WithTimeout(ctx, c.cfg.RPCTimeout)
	defer cancel()
	_, err = try(one, c, ep, coord.ErrUnavailable, func(ctx context.Context, ep *endpoint) (struct{}, error) { return struct{}{}, f(ctx, ep.c) })
	return err
}

const settlePoll = 500 * time.Millisecond

// one calls f for one endpoint after the other until one does not fail: for what must not be done twice at once. It waits for
// members that have not settled yet.
func one[T any](ctx context.Context, c *Client, f func(context.Context, *endpoint) (T, error)) (T, error) {
	for {
		v, err := hedge(ctx, c, c.cfg.RPCTimeout, coord.ErrUncertain, f)
		if !errors.Is(err, ErrUnsettled) {
			return v, err
		}
		select {
		case <-ctx.Done():
			return v, err
		case <-time.After(settlePoll):
		}
	}
}

// RemoveMember removes a member.
func (c *Client) RemoveMember(ctx context.Context, id uint64) error {
	_, err := one(ctx, c, func(ctx context.Context, ep *endpoint) (struct{}, error) {
		_, err := ep.c.MemberRemove(ctx, id)
		return struct{}{}, err
	})
	return err
}

// AddMember adds a member that is to start with an empty data directory.
func (c *Client) AddMember(ctx context.Context, peerURLs []string) (Member, error) {
	return one(ctx, c, func(ctx context.Context, ep *endpoint) (Member, error) {
		r, err := ep.c.MemberAdd(ctx, peerURLs)
		if err != nil {
			return Member{}, err
		}
		return Member{ID: r.Member.ID, PeerURLs: r.Member.PeerURLs}, nil
	})
}

// Alarms lists what a person must end.
func (c *Client) Alarms(ctx context.Context) ([]Alarm, error) {
	return hedge(ctx, c, c.soon(), coord.ErrUnavailable, func(ctx context.Context, ep *endpoint) ([]Alarm, error) {
		r, err := ep.c.AlarmList(ctx)
		if err != nil {
			return nil, err
		}
		var list []Alarm
		for _, a := range r.Alarms {
			list = append(list, Alarm{a.MemberID, a.Alarm.String()})
		}
		return list, nil
	})
}

// Disarm ends all alarms.
func (c *Client) Disarm(ctx context.Context) error {
	_, err := one(ctx, c, func(ctx context.Context, ep *endpoint) (struct{}, error) {
		_, err := ep.c.AlarmDisarm(ctx, &clientv3.AlarmMember{})
		return struct{}{}, err
	})
	return err
}

// Compact forgets all changes before now.
func (c *Client) Compact(ctx context.Context) (uint64, error) {
	h, err := c.Head(ctx)
	if err != nil {
		return 0, err
	}
	_, err = one(ctx, c, func(ctx context.Context, ep *endpoint) (struct{}, error) {
		_, err := ep.c.Compact(ctx, int64(h.Revision), clientv3.WithCompactPhysical())
		return struct{}{}, err
	})
	return h.Revision, err
}

// Defragment gives the space of a member's file back that holds nothing. The member does not answer meanwhile.
func (c *Client) Defragment(ctx context.Context, m Member, timeout time.Duration) error {
	if len(m.ClientURLs) == 0 {
		return fmt.Errorf("etcd member %x has not started yet", m.ID)
	}
	ep, err := c.dial(m.ClientURLs[0])
	if err != nil {
		return err
	}
	defer ep.c.Close() //nolint:errcheck // nothing hangs on it
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	_, err = try(ctx, c, ep, coord.ErrUncertain, func(ctx context.Context, ep *endpoint) (struct{}, error) {
		_, err := ep.c.Defragment(ctx, ep.url)
		return struct{}{}, err
	})
	if err != nil {
		return fmt.Errorf("defragment %s: %w", ep.url, err)
	}
	return nil
}
