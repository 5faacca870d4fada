package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/hawser-ha/hawser/agent/config"
	"github.com/hawser-ha/hawser/agent/pacemaker"
	"github.com/hawser-ha/hawser/agent/pacemaker/host"
	"github.com/hawser-ha/hawser/replicator/control"
)

// answered is the exit code of a handler, with what it has to say: codes 3 to 7 are answers, no failures.
type answered struct {
	code int
	why  string
}

// Error says why.
func (a answered) Error() string { return a.why }

func pacemakerCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "pacemaker", Short: "Be driven by Pacemaker", GroupID: groupUse,
		Long: `What Pacemaker needs of hawser. config prints a cluster configuration; fence-peer and
unfence-peer are handlers for a resource file; the others are what the resource
agents ocf:hawser:volume and ocf:hawser:agent call.`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(pacemakerConfigCommand(), fencePeerCommand(), unfencePeerCommand(), stateCommand(), agentStateCommand(), validateCommand())
	within := func(c *cobra.Command, d time.Duration) {
		c.Flags().Duration("within", d, "be done, or have failed, within this time")
	}
	start := onHost("start", "Start a resource as Secondary, for the resource agent", func(ctx context.Context, cmd *cobra.Command, r *host.Resource) error {
		wait, err := cmd.Flags().GetDuration("wait")
		if err != nil {
			return err
		}
		return r.Start(ctx, wait)
	})
	start.Flags().Duration("wait", 5*time.Second, "for the peers, at most")
	within(start, 200*time.Second)
	promote := onHost("promote", "Make this node Primary, for the resource agent", func(ctx context.Context, cmd *cobra.Command, r *host.Resource) error {
		once, err := cmd.Flags().GetBool("once")
		if err != nil {
			return err
		}
		d, err := cmd.Flags().GetDuration("within")
		if err != nil {
			return err
		}
		return r.Promote(ctx, d, once)
	})
	promote.Flags().Bool("once", false, "do not try again while a peer is Primary")
	within(promote, 75*time.Second)
	demote := onHost("demote", "Make this node Secondary whatever hangs, for the resource agent", func(ctx context.Context, cmd *cobra.Command, r *host.Resource) error {
		d, err := cmd.Flags().GetDuration("within")
		if err != nil {
			return err
		}
		return r.Demote(ctx, d)
	})
	within(demote, 60*time.Second)
	stop := onHost("stop", "Stop a resource whatever hangs, for the resource agent", func(ctx context.Context, cmd *cobra.Command, r *host.Resource) error {
		d, err := cmd.Flags().GetDuration("within")
		if err != nil {
			return err
		}
		return r.Stop(ctx, d)
	})
	within(stop, 70*time.Second)
	cmd.AddCommand(start, promote, demote, stop)
	return cmd
}

// newHost gives this node, for Pacemaker's side of the command line.
func newHost(cmd *cobra.Command) (*host.Host, error) {
	node, err := loadNode(cmd)
	if err != nil {
		return nil, err
	}
	log := slog.New(slog.NewTextHandler(cmd.ErrOrStderr(), nil))
	return &host.Host{Node: node, Log: log, Run: host.Run}, nil
}

// onHost makes a command for one resource that ends within its flag --within, if it has one.
func onHost(name, short string, do func(ctx context.Context, cmd *cobra.Command, r *host.Resource) error) *cobra.Command {
	return &cobra.Command{
		Use: name + " RES", Short: short, Args: oneResource, ValidArgsFunction: names,
		RunE: func(cmd *cobra.Command, args []string) error {
			if why := config.CheckName(args[0]); why != "" {
				return usage("resource name %q: %s", args[0], why)
			}
			h, err := newHost(cmd)
			if err != nil {
				return err
			}
			r := h.Resource(args[0])
			defer r.Close()
			ctx := cmd.Context()
			if f := cmd.Flags().Lookup("within"); f != nil {
				d, err := cmd.Flags().GetDuration("within")
				if err != nil {
					return err
				}
				var cancel context.CancelFunc
				ctx, cancel = context.WithTimeout(ctx, d)
				defer cancel()
			}
			return do(ctx, cmd, r)
		},
	}
}

func stateCommand() *cobra.Command {
	cmd := onHost("state", "Print state, role and promotion score in one line", func(ctx context.Context, cmd *cobra.Command, r *host.Resource) error {
		text, err := cmd.Flags().GetString("scores")
		if err != nil {
			return err
		}
		scores, err := pacemaker.ParseScores(text)
		if err != nil {
			return usage("%w", err)
		}
		st, err := r.Status(ctx)
		if err != nil {
			return err
		}
		a := pacemaker.Assess(st, scores)
		words := []string{"up", a.Role, fmt.Sprint(a.Score)}
		for _, f := range []struct {
			on   bool
			word string
		}{{a.AllUpToDate, "all-uptodate"}, {pacemaker.PrimaryPeer(st), "peer-primary"}, {a.Broken, "broken"}, {len(st.Suspended) > 0, "suspended"}, {r.Fences(), "fenced"}} {
			if f.on {
				words = append(words, f.word)
			}
		}
		fmt.Fprintln(cmd.OutOrStdout(), strings.Join(words, " "))
		fmt.Fprintln(cmd.ErrOrStderr(), a.Why)
		return nil
	})
	cmd.Long = `Print "up ROLE SCORE FLAGS..." of a resource, as the replicator itself tells it: the
agent may be away. Exit codes: 0 it is up, 3 nobody can tell, 4 it is surely down.
Flags: all-uptodate, peer-primary, broken (Primary without any UpToDate data),
suspended, fenced (this node asked to keep a peer from being promoted).`
	cmd.Flags().String("scores", "0 10 1000 10000", "promotion scores: Consistent, data only on a peer, UpToDate alone, all good")
	return cmd
}

func agentStateCommand() *cobra.Command {
	return &cobra.Command{
		Use: "agent-state", Short: "Print whether the agent of this node runs, and its pid", Args: noArgs,
		Long: `Print "up PID", "silent PID" (it runs and does not answer) or "down". Exit codes: 0 up,
3 silent, 4 surely down.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			h, err := newHost(cmd)
			if err != nil {
				return err
			}
			switch pid, ok := h.AgentPID(cmd.Context()); {
			case ok:
				fmt.Fprintf(cmd.OutOrStdout(), "up %d\n", pid)
				return nil
			case pid > 0:
				fmt.Fprintf(cmd.OutOrStdout(), "silent %d\n", pid)
				return control.Errorf(control.Unknown, "the agent, process %d, does not answer", pid)
			}
			fmt.Fprintln(cmd.OutOrStdout(), "down")
			return control.Errorf(control.NotRunning, "the agent does not run")
		},
	}
}

func validateCommand() *cobra.Command {
	return &cobra.Command{
		Use: "validate RES", Short: "Check that this node can hold a resource, without asking any process", Args: oneResource,
		RunE: func(cmd *cobra.Command, args []string) error {
			_, _, err := readResource(cmd, args[0])
			return err
		},
	}
}

// readResource reads a resource's file itself, for this node.
func readResource(cmd *cobra.Command, name string) (*config.Resource, config.NodeConfig, error) {
	node, err := loadNode(cmd)
	if err != nil {
		return nil, node, err
	}
	if why := config.CheckName(name); why != "" {
		return nil, node, usage("resource name %q: %s", name, why)
	}
	set, err := config.LoadFor(node.ResourcesDir, node.Node)
	if set == nil {
		return nil, node, control.Errorf(control.BadDefinition, "%w", err)
	}
	res, ok := set.Resource(name)
	switch {
	case !ok && err != nil:
		return nil, node, control.Errorf(control.BadDefinition, "%w", err).On(name, control.All, "")
	case !ok:
		return nil, node, control.Errorf(control.NotFound, "no file in %s defines it", node.ResourcesDir).On(name, control.All, "").
			WithHint("copy the resource's file from a node that has it")
	case !slices.ContainsFunc(res.Nodes, func(n config.Node) bool { return n.Name == node.Node }):
		return res, node, control.Errorf(control.Refused, "its file does not list node %s", node.Node).On(name, control.All, "").
			WithHint("the names in the file must be those of the cluster's nodes")
	}
	if _, err := res.Definition(node.Node); err != nil {
		return res, node, control.Errorf(control.BadDefinition, "%w", err).On(name, control.All, "")
	}
	return res, node, nil
}

// fromHandler gives resource and peer: from the arguments, or from the environment of a handler.
func fromHandler(cmd *cobra.Command, args []string) (res, peer string, err error) {
	res, peer = os.Getenv("HAWSER_RESOURCE"), os.Getenv("HAWSER_PEER")
	if res == "" {
		res = os.Getenv("DRBD_RESOURCE")
	}
	if peer == "" {
		peer = os.Getenv("DRBD_PEER")
	}
	if len(args) > 0 {
		res = args[0]
	}
	if f := cmd.Flags().Lookup("peer"); f.Changed {
		peer = f.Value.String()
	}
	if why := config.CheckName(res); why != "" {
		return "", "", control.Errorf(control.Usage, "which resource? %q is no name: %s", res, why).
			WithHint("it comes from the environment of a handler (DRBD_RESOURCE), or as the argument")
	}
	return res, peer, nil
}

func atMostOne(cmd *cobra.Command, args []string) error {
	if len(args) > 1 {
		return usage("%s: takes one resource", cmd.CommandPath())
	}
	return nil
}

func fencePeerCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "fence-peer [RES]", Short: "Keep a lost peer from being promoted (a handler)", Args: atMostOne,
		Long: `For a resource file:  handlers: {fence-peer: hawser pacemaker fence-peer}

Writes a location constraint into the cluster's configuration that keeps the peer from
being promoted, and ends when that is sure: the peer's own copy of the configuration
shows the constraint, or the peer was fenced, or it left the cluster in good order.
RES and the peer come from the environment of the handler (DRBD_RESOURCE, DRBD_PEER).

Exit codes are the answers of such a handler: 3 the peer is Inconsistent, 4 it is
outdated, 5 unreachable, 6 it is Primary and this node has to give up, 7 it was
fenced; 1 nobody knows: nothing may be written.`,
		RunE: func(cmd *cobra.Command, args []string) error {
			res, peer, err := fromHandler(cmd, args)
			if err != nil {
				return err
			}
			if peer == "" {
				return control.Errorf(control.Usage, "which peer?").WithHint("--peer NAME, or DRBD_PEER in the environment")
			}
			limit, err := cmd.Flags().GetDuration("timeout")
			if err != nil {
				return err
			}
			h, err := newHost(cmd)
			if err != nil {
				return err
			}
			o := host.FenceOptions{Resource: res, Peer: peer, NeedStonith: true, Timeout: limit}
			r := h.Resource(res)
			defer r.Close()
			if fencing, inconsistent, err := r.AboutPeer(cmd.Context(), peer); err == nil {
				o.NeedStonith, o.Inconsistent = fencing != "resource-only", inconsistent
			} else {
				h.Log.Warn("the replicator does not tell about the peer", "err", err)
			}
			code, why := h.FencePeer(cmd.Context(), o)
			if code == pacemaker.PeerUnknown {
				return control.Errorf(control.Failed, "%s", why).On(res, control.All, peer).WithHint("crm_mon -1 shows the cluster; the handler may run again: hawser pacemaker fence-peer " + res + " --peer " + peer)
			}
			return answered{code, fmt.Sprintf("%s to %s: %s", res, peer, why)}
		},
	}
	cmd.Flags().String("peer", "", "name of the peer (default: DRBD_PEER)")
	cmd.Flags().Duration("timeout", 55*time.Second, "give up after this; timeout.handler of the agent must be longer")
	return cmd
}

func unfencePeerCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "unfence-peer [RES]", Short: "Let peers that are UpToDate be promoted again (a handler)", Args: atMostOne,
		Long: `For a resource file:  handlers: {unfence-peer: hawser pacemaker unfence-peer}

Removes the constraints of fence-peer whose reason is gone: the peer is connected and
UpToDate. It looks for itself, so it may run at any time; the resource agent runs it
with each monitor of a promoted volume, so that none is left behind. Only the node that
asked for a constraint removes it, or the one that is Primary.`,
		RunE: func(cmd *cobra.Command, args []string) error {
			res, peer, err := fromHandler(cmd, args)
			if err != nil {
				return err
			}
			wait, err := cmd.Flags().GetDuration("wait")
			if err != nil {
				return err
			}
			h, err := newHost(cmd)
			if err != nil {
				return err
			}
			ctx, cancel := context.WithTimeout(cmd.Context(), wait+30*time.Second)
			defer cancel()
			removed, left, err := h.Unfence(ctx, res, peer, wait)
			for _, id := range removed {
				fmt.Fprintf(cmd.OutOrStdout(), "%s: constraint %s removed\n", res, id)
			}
			for _, why := range left {
				fmt.Fprintf(cmd.OutOrStdout(), "%s: %s\n", res, why)
			}
			return err
		},
	}
	cmd.Flags().String("peer", "", "only constraints about this peer (default: DRBD_PEER, or all)")
	cmd.Flags().Duration("wait", 5*time.Second, "for a peer that is about to be UpToDate, at most")
	return cmd
}

// exitCode is control.ExitCode, but for the answers of handlers.
func exitCode(err error) int {
	if a, ok := errors.AsType[answered](err); ok {
		return a.code
	}
	return control.ExitCode(err)
}

func pacemakerConfigCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "config RES", Short: "Print a complete cluster configuration for a resource", Args: oneResource, ValidArgsFunction: names,
		Long: `Print a cluster configuration for a resource, complete and ready to load: the promotable
clone of ocf:hawser:volume, the agent before it, fence devices, and a file system and an
address where it is promoted. It reads the resource file of this node and touches nothing.

  hawser pacemaker config r0 --fence n1=fence_ipmilan,ip=10.0.0.101,username=admin,password_script=/etc/pw \
    --fence n2=fence_ipmilan,ip=10.0.0.102,username=admin,password_script=/etc/pw --mount /srv --ip 10.0.0.100/24 >r0.crm
  crm configure load update r0.crm

For a second resource of the same cluster say --agent none: the agent is in the cluster already.`,
		RunE: func(cmd *cobra.Command, args []string) error {
			res, _, err := readResource(cmd, args[0])
			if err != nil && (res == nil || !errors.Is(err, control.Refused)) { // any node may print it
				return err
			}
			o := pacemaker.ConfigOptions{Resource: res.Name}
			for _, n := range res.Nodes {
				o.Nodes = append(o.Nodes, n.Name)
			}
			f := cmd.Flags()
			for name, to := range map[string]*string{"agent": &o.Agent, "fence-delay": &o.FenceDelay} {
				if *to, err = f.GetString(name); err != nil {
					return err
				}
			}
			if o.IPs, err = f.GetStringArray("ip"); err != nil {
				return err
			}
			fences, err := f.GetStringArray("fence")
			if err != nil {
				return err
			}
			for _, text := range fences {
				d, err := pacemaker.ParseFence(text)
				if err != nil {
					return usage("--fence: %w", err)
				}
				o.Fences = append(o.Fences, d)
			}
			mounts, err := f.GetStringArray("mount")
			if err != nil {
				return err
			}
			for _, text := range mounts {
				m, err := pacemaker.ParseMount(text)
				if err != nil {
					return usage("--mount: %w", err)
				}
				if !slices.ContainsFunc(res.Volumes, func(v config.Volume) bool { return v.Number == m.Volume }) {
					return usage("--mount: %s has no volume %d", res.Name, m.Volume)
				}
				o.Mounts = append(o.Mounts, m)
			}
			format, err := f.GetString("format")
			if err != nil {
				return err
			}
			plan, err := pacemaker.NewPlan(o)
			if err != nil {
				return usage("%w", err)
			}
			text, err := plan.Render(format)
			if err != nil {
				return usage("--format: %w", err)
			}
			_, err = fmt.Fprint(cmd.OutOrStdout(), text)
			return err
		},
	}
	f := cmd.Flags()
	f.String("format", "crm", "crm, pcs or cib")
	f.String("agent", pacemaker.AgentOCF, "who keeps the agent running: ocf, systemd, or none of Pacemaker's business")
	f.StringArray("fence", nil, "fence device `NODE=AGENT,NAME=VALUE,...`, once or more for each node")
	f.StringArray("mount", nil, "`[VOLUME:]DIRECTORY[:TYPE]` of a file system on a volume (type ext4)")
	f.StringArray("ip", nil, "`ADDRESS/BITS` that moves with the volume")
	f.String("fence-delay", "5s", "with two nodes: the promoted one is fenced that much later, so that it wins; 0s: no")
	return cmd
}
