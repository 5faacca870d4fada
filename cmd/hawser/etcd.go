package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/hawser-ha/hawser/agent/config"
	"github.com/hawser-ha/hawser/agent/coord"
	"github.com/hawser-ha/hawser/agent/etcd"
	"github.com/hawser-ha/hawser/agent/etcdmember"
	"github.com/hawser-ha/hawser/agent/etcdmember/pidfile"
	"github.com/hawser-ha/hawser/replicator/control"
)

const (
	etcdTimeout   = 15 * time.Second // of a command on the cluster
	defragTimeout = 2 * time.Minute  // of one member
	endTimeout    = 20 * time.Second // for a member to end
	endPoll       = 100 * time.Millisecond
)

// memberCommand is the command line of this node's member of etcd, with the flags that the agent got; nil: it runs none.
func memberCommand(cmd *cobra.Command, node config.NodeConfig, self string) []string {
	c, ok := node.ClusterNode(node.Node)
	if !node.Etcd.Embedded || !ok || c.NoEtcd {
		return nil
	}
	args := []string{self, "etcd"}
	cmd.Flags().Visit(func(f *pflag.Flag) {
		if cmd.Root().PersistentFlags().Lookup(f.Name) != nil {
			value := f.Value.String()
			if f.Name == "config" {
				if abs, err := filepath.Abs(value); err == nil { // the member runs in another folder
					value = abs
				}
			}
			args = append(args, "--"+f.Name+"="+value)
		}
	})
	return args
}

func etcdCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "etcd", Short: "Run this node's member of etcd (the agent starts it), or look after the members", GroupID: groupDaemon, Args: noArgs,
		Long: `Without a command: run this node's member of etcd. The agent does that where hawser.yaml
says etcd.embedded; a witness is a node that has the agent and no resource.

The commands work on the members, also of an etcd that others run.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			node, err := loadNode(cmd)
			if err != nil {
				return err
			}
			log, err := newLog(cmd.ErrOrStderr(), node.Log.Level, node.Log.Format)
			if err != nil {
				return err
			}
			cfg, err := etcdmember.FromNode(node, log.With("node", node.Node))
			if err != nil {
				return control.Errorf(control.Refused, "%w", err)
			}
			signal.Ignore(syscall.SIGPIPE, syscall.SIGHUP)
			return etcdmember.Run(cmd.Context(), cfg, node.EtcdPIDFile())
		},
	}
	status := onEtcd("status", "Show the members, their health and the alarms", 0, etcdStatus)
	status.Flags().Bool("json", false, "print JSON")
	members := &cobra.Command{Use: "member", Short: "Add, remove and replace members", Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() }}
	list := onEtcd("list", "Show the members, as status does", 0, etcdStatus)
	list.Flags().Bool("json", false, "print JSON")
	remove := onEtcd("remove NODE", "Take a node's member out of the cluster", 1, func(ctx context.Context, e *etcdAdmin) error {
		return e.remove(ctx, e.args[0])
	})
	replace := onEtcd("replace NODE", "Have a node's member that has lost its data start anew", 1, func(ctx context.Context, e *etcdAdmin) error {
		if err := e.remove(ctx, e.args[0]); err != nil {
			return err
		}
		return e.add(ctx, e.args[0])
	})
	for _, c := range []*cobra.Command{remove, replace} {
		c.Flags().Bool("force", false, "though the member is well")
	}
	members.AddCommand(list, onEtcd("add NODE", "Make a node of hawser.yaml a member", 1, func(ctx context.Context, e *etcdAdmin) error {
		return e.add(ctx, e.args[0])
	}), remove, replace)
	cmd.AddCommand(status, members,
		onEtcd("defrag", "Forget old revisions and give their space back, one member after the other", 0, etcdDefrag),
		onEtcd("disarm", "End the alarms, after defrag: a full database takes writes again", 0, func(ctx context.Context, e *etcdAdmin) error {
			if err := e.c.Disarm(ctx); err != nil {
				return etcdError("disarm", err)
			}
			fmt.Fprintln(e.out, "no alarm any more")
			return nil
		}),
		&cobra.Command{Use: "restart", Short: "End this node's member; the agent starts it again", Args: noArgs, RunE: etcdRestart})
	return cmd
}

// etcdAdmin is what a command on the members needs.
type etcdAdmin struct {
	c     *etcd.Client
	node  config.NodeConfig
	args  []string
	flags *pflag.FlagSet
	out   io.Writer
}

func onEtcd(use, short string, args int, run func(context.Context, *etcdAdmin) error) *cobra.Command {
	return &cobra.Command{Use: use, Short: short,
		Args: func(cmd *cobra.Command, got []string) error {
			if len(got) != args {
				return usage("%s takes %d arguments, not %d", cmd.CommandPath(), args, len(got))
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			node, err := loadNode(cmd)
			if err != nil {
				return err
			}
			if !node.Coordinated() {
				return control.Errorf(control.Refused, "hawser.yaml names no etcd").WithHint("set etcd.endpoints or etcd.embedded (docs/etcd.md)")
			}
			log, err := newLog(cmd.ErrOrStderr(), node.Log.Level, node.Log.Format)
			if err != nil {
				return err
			}
			cfg, err := etcd.FromNode(node, log)
			if err != nil {
				return err
			}
			c, err := etcd.Open(cfg)
			if err != nil {
				return err
			}
			err = run(cmd.Context(), &etcdAdmin{c, node, args, cmd.Flags(), cmd.OutOrStdout()})
			return errors.Join(err, c.Close())
		}}
}

// etcdError makes an error of the CLI of one of the client: no answer to a change is an outcome unknown.
func etcdError(what string, err error) error {
	code := control.Failed
	if errors.Is(err, coord.ErrUncertain) {
		code = control.Unknown
	}
	return control.Errorf(code, "%s: %w", what, err).WithHint("hawser etcd status")
}

func etcdStatus(ctx context.Context, e *etcdAdmin) error {
	ctx, cancel := context.WithTimeout(ctx, etcdTimeout)
	defer cancel()
	members, err := e.c.Status(ctx)
	if err != nil {
		return etcdError("members of etcd", err)
	}
	alarms, err := e.c.Alarms(ctx)
	if err != nil {
		return etcdError("alarms of etcd", err)
	}
	slices.SortFunc(members, func(a, b etcd.MemberStatus) int { return cmp.Compare(a.Name, b.Name) })
	asJSON, err := e.flags.GetBool("json")
	if err != nil {
		return err
	}
	if asJSON {
		return json.NewEncoder(e.out).Encode(map[string]any{"members": members, "alarms": alarms})
	}
	return printMembers(e.out, members, alarms)
}

func printMembers(out io.Writer, members []etcd.MemberStatus, alarms []etcd.Alarm) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "MEMBER\tID\tSTATE\tTERM\tINDEX\tDATABASE\tIN USE\tCLIENT URL")
	var more []string
	for _, m := range members {
		state := "down"
		switch {
		case m.Leader && m.Healthy:
			state = "leader"
		case m.Healthy:
			state = "follower"
		case len(m.ClientURLs) == 0:
			state = "not started"
		case m.RaftTerm > 0:
			state = "no leader"
		}
		name := cmp.Or(m.Name, "(new)")
		fmt.Fprintf(w, "%s\t%x\t%s\t%d\t%d\t%.1f MiB\t%.1f MiB\t%s\n", name, m.ID, state, m.RaftTerm, m.RaftIndex, float64(m.DBSize)/(1<<20), float64(m.DBInUse)/(1<<20),
			strings.Join(m.ClientURLs, ","))
		for _, why := range m.Errors {
			more = append(more, name+": "+why)
		}
	}
	if err := w.Flush(); err != nil {
		return err
	}
	for _, a := range alarms {
		more = append(more, fmt.Sprintf("alarm %s of member %x (next: hawser etcd defrag, then hawser etcd disarm)", a.Kind, a.Member))
	}
	for _, line := range more {
		fmt.Fprintln(out, line)
	}
	return nil
}

// find gives the member of a node: by name, or by the URL that hawser.yaml gives it.
func (e *etcdAdmin) find(ctx context.Context, name string) (*etcd.MemberStatus, error) {
	members, err := e.c.Status(ctx)
	if err != nil {
		return nil, etcdError("members of etcd", err)
	}
	n, _ := e.node.ClusterNode(name)
	for i, m := range members {
		if m.Name == name || n.Name != "" && slices.Contains(m.PeerURLs, e.node.EtcdPeerURL(n)) {
			return &members[i], nil
		}
	}
	return nil, nil
}

func (e *etcdAdmin) remove(ctx context.Context, name string) error {
	ctx, cancel := context.WithTimeout(ctx, etcdTimeout)
	defer cancel()
	m, err := e.find(ctx, name)
	if err != nil {
		return err
	}
	if m == nil {
		return control.Errorf(control.NotFound, "node %s has no member of etcd", name).WithHint("hawser etcd member add " + name)
	}
	force, err := e.flags.GetBool("force")
	if err != nil {
		return err
	}
	if m.Healthy && !force {
		return control.Errorf(control.Refused, "the member of node %s is well", name).WithHint("repeat it with --force if it is to go all the same")
	}
	if err := e.c.RemoveMember(ctx, m.ID); err != nil {
		return etcdError(fmt.Sprintf("remove member %x of node %s", m.ID, name), err)
	}
	fmt.Fprintf(e.out, "member %x of node %s is removed\n", m.ID, name)
	return nil
}

func (e *etcdAdmin) add(ctx context.Context, name string) error {
	ctx, cancel := context.WithTimeout(ctx, etcdTimeout)
	defer cancel()
	n, ok := e.node.ClusterNode(name)
	if !ok || n.NoEtcd || !e.node.Etcd.Embedded {
		return control.Errorf(control.NotFound, "hawser.yaml has no node %s that runs a member of etcd", name).WithHint("add it under nodes:, on each node")
	}
	m, err := e.find(ctx, name)
	if err != nil {
		return err
	}
	if m != nil {
		return control.Errorf(control.Refused, "node %s has a member already (%x)", name, m.ID).WithHint("hawser etcd member replace " + name)
	}
	added, err := e.c.AddMember(ctx, []string{e.node.EtcdPeerURL(n)})
	if err != nil {
		return etcdError("add a member on node "+name, err)
	}
	fmt.Fprintf(e.out, "member %x of node %s is added; it joins when it starts there (the agent of %s does that within half a minute)\n", added.ID, name, name)
	return nil
}

func etcdDefrag(ctx context.Context, e *etcdAdmin) error {
	members, err := e.c.Status(ctx)
	if err != nil {
		return etcdError("members of etcd", err)
	}
	rev, err := e.c.Compact(ctx)
	if err != nil && !errors.Is(err, coord.ErrCompacted) {
		return etcdError("compact", err)
	}
	fmt.Fprintf(e.out, "revisions before %d are forgotten\n", rev)
	slices.SortStableFunc(members, func(a, b etcd.MemberStatus) int { // the leader last
		return cmp.Compare(b2i(a.Leader), b2i(b.Leader))
	})
	var all error
	for _, m := range members {
		if !m.Healthy {
			all = errors.Join(all, control.Errorf(control.Failed, "member %s is not well: it is left as it is", cmp.Or(m.Name, "(new)")))
			continue
		}
		if err := e.c.Defragment(ctx, m.Member, defragTimeout); err != nil {
			return errors.Join(all, etcdError("member "+m.Name, err)) // not the next one too
		}
		fmt.Fprintf(e.out, "member %s: done\n", m.Name)
	}
	return all
}

func b2i(b bool) int {
	if b {
		return 1
	}
	return 0
}

func etcdRestart(cmd *cobra.Command, _ []string) error {
	node, err := loadNode(cmd)
	if err != nil {
		return err
	}
	pid, err := pidfile.Running(node.EtcdPIDFile())
	if err != nil {
		return err
	}
	if pid == 0 {
		return control.Errorf(control.NotFound, "no member of etcd runs on this node").WithHint("the agent starts it, where hawser.yaml says etcd.embedded")
	}
	if err := syscall.Kill(pid, syscall.SIGTERM); err != nil {
		return fmt.Errorf("end process %d: %w", pid, err)
	}
	end := time.After(endTimeout)
	for {
		now, err := pidfile.Running(node.EtcdPIDFile())
		if err != nil {
			return err
		}
		if now != pid {
			fmt.Fprintf(cmd.OutOrStdout(), "process %d has ended\n", pid)
			return nil
		}
		select {
		case <-end:
			return control.Errorf(control.Unknown, "process %d has not ended within %s", pid, endTimeout)
		case <-cmd.Context().Done():
			return cmd.Context().Err()
		case <-time.After(endPoll):
		}
	}
}
