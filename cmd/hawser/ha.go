package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"os"
	"os/user"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/hawser-ha/hawser/agent"
	"github.com/hawser-ha/hawser/agent/coord"
	"github.com/hawser-ha/hawser/agent/decide"
	"github.com/hawser-ha/hawser/agent/etcd"
	"github.com/hawser-ha/hawser/agent/ha"
	"github.com/hawser-ha/hawser/replicator/control"
)

// haCommands are those about who leads.
func haCommands() []*cobra.Command {
	return []*cobra.Command{explainCommand(), simulateCommand(), switchoverCommand(), drainCommand(), maintenanceCommand(), historyCommand(), applyCommand(), rebootCheckCommand()}
}

// who asks, for the history.
func who() string {
	if name := os.Getenv("SUDO_USER"); name != "" {
		return name
	}
	if u, err := user.Current(); err == nil {
		return u.Username
	}
	return ""
}

func explainCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "explain RES", Short: "Say why this node leads a resource, or does not", GroupID: groupLook, Args: oneResource, ValidArgsFunction: names,
		Long: `Print what the last decision about a resource was made of on this node, the rule
that decided, and what would change the outcome. The changes are found by asking
the same rules again, with one thing changed at a time.`,
		RunE: each(func(o *on) error {
			var e decide.Explanation
			if err := o.c.Get(o.ctx, "explain", nil, &e); err != nil {
				return err
			}
			if o.flag("json") {
				return printJSON(o.cmd.OutOrStdout(), &e)
			}
			e.Print(o.cmd.OutOrStdout())
			return nil
		}),
	}
	cmd.Flags().Bool("json", false, "print it as JSON")
	return cmd
}

func simulateCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "simulate [RES] --lose NODE | --lose-etcd | --cut NODE,NODE", Short: "Say what would happen if something were lost", GroupID: groupLook, ValidArgsFunction: names,
		Long: `Play a loss with the rules that would decide it, over the cluster as it is now.
Nothing is touched. Several losses are played at once.`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) > 1 {
				return usage("%s: one resource, or none for all", cmd.CommandPath())
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			var l ha.Loss
			lose, err := cmd.Flags().GetStringSlice("lose")
			if err != nil {
				return err
			}
			cuts, err := cmd.Flags().GetStringArray("cut")
			if err != nil {
				return err
			}
			l.Nodes = lose
			if l.Etcd, err = cmd.Flags().GetBool("lose-etcd"); err != nil {
				return err
			}
			for _, c := range cuts {
				a, b, ok := strings.Cut(c, ",")
				if !ok || a == "" || b == "" || a == b {
					return usage("--cut %s: write two nodes, as n1,n2", c)
				}
				l.Cuts = append(l.Cuts, [2]string{a, b})
			}
			if len(l.Nodes)+len(l.Cuts) == 0 && !l.Etcd {
				return usage("what is lost? --lose NODE, --lose-etcd or --cut NODE,NODE")
			}
			if len(args) == 1 {
				l.Resource = args[0]
			}
			c, err := dial(cmd)
			if err != nil {
				return err
			}
			defer c.Close()
			var out []ha.Played
			if err := c.Call(cmd.Context(), "simulate", l, &out); err != nil {
				return err
			}
			if asJSON, err := cmd.Flags().GetBool("json"); err == nil && asJSON {
				return printJSON(cmd.OutOrStdout(), out)
			}
			for i, p := range out {
				if i > 0 {
					fmt.Fprintln(cmd.OutOrStdout())
				}
				fmt.Fprintf(cmd.OutOrStdout(), "%s\n%s", p.Resource, decide.PrintSteps(p.Steps))
				if len(p.Missing) > 0 {
					fmt.Fprintf(cmd.OutOrStdout(), "        not in this play, as they say nothing: %s\n", strings.Join(p.Missing, ", "))
				}
			}
			return nil
		},
	}
	f := cmd.Flags()
	f.StringSlice("lose", nil, "nodes that die")
	f.Bool("lose-etcd", false, "etcd answers nobody")
	f.StringArray("cut", nil, "two nodes whose replication link is cut; may be repeated")
	f.Bool("json", false, "print it as JSON")
	return cmd
}

func switchoverCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "switchover RES", Short: "Move the Primary to another node", GroupID: groupUse, Args: oneResource, ValidArgsFunction: names,
		Long: `Move the Primary to another node: its services stop, it is demoted, the other one is
promoted. Refused when nobody in sync can take over. May be asked for on any node.`,
		RunE: each(func(o *on) error {
			mv := agent.SwitchoverArgs{Move: ha.Move{To: o.text("to"), By: who(), DryRun: o.flag("dry-run"), Cancel: o.flag("cancel")}}
			if at := o.text("at"); at != "" {
				t, err := parseTime(at, time.Now())
				if err != nil {
					return err
				}
				mv.At = t
			}
			var moved ha.Moved
			if err := o.c.Call(o.ctx, "switchover", mv, &moved); err != nil {
				return err
			}
			switch {
			case mv.DryRun:
				fmt.Fprintf(o.cmd.OutOrStdout(), "%s: %s -> %s: %s\n", o.target, moved.From, moved.To, moved.Text)
			case mv.Cancel:
				o.say("%s", moved.Text)
			case !mv.At.IsZero():
				o.say("%s hands over to %s at %s", moved.From, cmp.Or(mv.To, "the best node"), mv.At.Format(time.DateTime))
			default:
				o.say("%s is Primary, %s after it was asked for (term %d)", moved.To, moved.Took.Round(time.Millisecond), moved.Term)
			}
			return nil
		}),
	}
	f := cmd.Flags()
	f.String("to", "", "the node that takes over (default: the preferred one, or any in sync)")
	f.String("at", "", "when: 15:04, 2006-01-02 15:04:05, RFC 3339, or +10m")
	f.Bool("dry-run", false, "only say what would happen")
	f.Bool("cancel", false, "take back a switchover that is still to come")
	return cmd
}

// parseTime reads a time of day, a date, or a duration from now.
func parseTime(text string, now time.Time) (time.Time, error) {
	if d, ok := strings.CutPrefix(text, "+"); ok {
		if d, err := time.ParseDuration(d); err == nil {
			return now.Add(d), nil
		}
	}
	for _, layout := range []string{time.RFC3339, time.DateTime, "2006-01-02 15:04"} {
		if t, err := time.ParseInLocation(layout, text, now.Location()); err == nil {
			return t, nil
		}
	}
	for _, layout := range []string{"15:04", time.TimeOnly} {
		if t, err := time.ParseInLocation(layout, text, now.Location()); err == nil {
			t = time.Date(now.Year(), now.Month(), now.Day(), t.Hour(), t.Minute(), t.Second(), 0, now.Location())
			if !t.After(now) {
				t = t.AddDate(0, 0, 1)
			}
			return t, nil
		}
	}
	return time.Time{}, usage("%q is no time: write 15:04, 2006-01-02 15:04:05, RFC 3339, or +10m", text)
}

func drainCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "drain [NODE]", Short: "Move everything away from a node, and keep it away", GroupID: groupUse,
		Long: `Move every Primary away from a node (this one, if none is named), and let none come
back until drain --undo. What nobody else can take over stays, and is listed.`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) > 1 {
				return usage("%s: one node", cmd.CommandPath())
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := dial(cmd)
			if err != nil {
				return err
			}
			defer c.Close()
			a := agent.DrainArgs{By: who()}
			if len(args) == 1 {
				a.Node = args[0]
			}
			if a.Undo, err = cmd.Flags().GetBool("undo"); err != nil {
				return err
			}
			if a.Why, err = cmd.Flags().GetString("why"); err != nil {
				return err
			}
			var d agent.Drained
			if err := c.Call(cmd.Context(), "drain", a, &d); err != nil {
				return err
			}
			if len(d.Left) > 0 {
				return control.Errorf(control.Refused, "nobody else can take over %s", strings.Join(d.Left, ", ")).
					WithRule("only a node in the in-sync set takes over").WithHint("hawser explain " + d.Left[0])
			}
			return nil
		},
	}
	cmd.Flags().Bool("undo", false, "let the node hold things again")
	cmd.Flags().String("why", "", "for the others to read")
	return cmd
}

func maintenanceCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "maintenance on|off", Short: "Stop deciding, while services and I/O go on", GroupID: groupUse, ValidArgs: []string{"on", "off"},
		Long: `While maintenance is on nothing is promoted, moved, started, stopped or fenced; services
and I/O go on, and who may write stays guarded. It is of the whole cluster, of a
node (--node-name), or of a resource (--resource).`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) != 1 || args[0] != "on" && args[0] != "off" {
				return usage("%s: on or off", cmd.CommandPath())
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := dial(cmd)
			if err != nil {
				return err
			}
			defer c.Close()
			a := agent.MaintenanceArgs{On: args[0] == "on", By: who()}
			f := cmd.Flags()
			a.Node, err = f.GetString("node-name")
			if err != nil {
				return err
			}
			if a.Resource, err = f.GetString("resource"); err != nil {
				return err
			}
			if a.Node != "" && a.Resource != "" {
				return usage("a node or a resource, not both")
			}
			if a.Why, err = f.GetString("why"); err != nil {
				return err
			}
			return c.Call(cmd.Context(), "maintenance", a, nil)
		},
	}
	cmd.Flags().String("node-name", "", "of this node only")
	cmd.Flags().String("resource", "", "of this resource only")
	cmd.Flags().String("why", "", "for the others to read")
	return cmd
}

func historyCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "history RES", Short: "Print who led a resource, since when and why", GroupID: groupLook, Args: oneResource, ValidArgsFunction: names,
		RunE: func(cmd *cobra.Command, args []string) error {
			var lines []ha.HistoryLine
			v, ok, err := remote(cmd)
			switch {
			case err != nil:
				return err
			case ok:
				r := v.Resources[args[0]]
				if r == nil {
					return control.Errorf(control.NotFound, "etcd knows nothing of it").On(args[0], control.All, "")
				}
				lines = ha.HistoryOf(r)
			default:
				c, err := dial(cmd)
				if err != nil {
					return err
				}
				defer c.Close()
				if err := c.Get(cmd.Context(), "resources/"+args[0]+"/history", nil, &lines); err != nil {
					return err
				}
			}
			if asJSON, err := cmd.Flags().GetBool("json"); err == nil && asJSON {
				return printJSON(cmd.OutOrStdout(), lines)
			}
			for _, l := range lines {
				text := l.Why
				if l.Loss != "" {
					text += "; lost: " + l.Loss
				}
				if l.Took != "" {
					text += "; nobody held it for " + l.Took
				}
				fmt.Fprintf(cmd.OutOrStdout(), "%s  term %-6d %-8s %-10s %s\n", l.Time.Local().Format("2006-01-02 15:04:05.000"), l.Term, l.Kind, l.Node, text)
			}
			return nil
		},
	}
	cmd.Flags().Bool("json", false, "print it as JSON")
	etcdFlag(cmd)
	return cmd
}

func applyCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "apply -f FILE", Short: "Store a resource's definition for the whole cluster", GroupID: groupLife, Args: noArgs,
		Long: `Store the resources of a file in etcd. Every agent writes them to its own folder, so that
a node can start from that; changes that need no restart are taken at once.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			path, err := cmd.Flags().GetString("file")
			if err != nil {
				return err
			}
			if path == "" {
				return usage("%s: which file? -f FILE, or -f - for standard input", cmd.CommandPath())
			}
			var data []byte
			if path == "-" {
				data, err = io.ReadAll(cmd.InOrStdin())
			} else {
				data, err = os.ReadFile(path)
			}
			if err != nil {
				return err
			}
			c, err := dial(cmd)
			if err != nil {
				return err
			}
			defer c.Close()
			names, err := apply(cmd.Context(), c, data)
			if err != nil {
				return err
			}
			fmt.Fprintf(cmd.ErrOrStderr(), "stored: %s\n", strings.Join(names, ", "))
			return nil
		},
	}
	cmd.Flags().StringP("file", "f", "", "YAML file of one or several resources; - is standard input")
	return cmd
}

func apply(ctx context.Context, c *control.Client, data []byte) ([]string, error) {
	var names []string
	return names, c.Call(ctx, "apply", agent.ApplyArgs{Text: string(data), By: who()}, &names)
}

func rebootCheckCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "reboot-check", Short: "Name the volumes whose only good copy is on this node", GroupID: groupLook, Args: noArgs,
		Long: `Exit code 0: every volume is complete on another node too. 1: some are not, and are
listed; nothing can serve them while this node is away.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := dial(cmd)
			if err != nil {
				return err
			}
			defer c.Close()
			var r agent.RebootCheck
			if err := c.Get(cmd.Context(), "reboot-check", nil, &r); err != nil {
				return err
			}
			if asJSON, err := cmd.Flags().GetBool("json"); err == nil && asJSON {
				if err := printJSON(cmd.OutOrStdout(), r); err != nil {
					return err
				}
			} else {
				for _, v := range r.Only {
					fmt.Fprintf(cmd.OutOrStdout(), "%s/%d: the only good copy is here (%s)\n", v.Resource, v.Volume, v.Why)
				}
				if len(r.Primary) > 0 {
					fmt.Fprintf(cmd.OutOrStdout(), "Primary here: %s\n", strings.Join(r.Primary, ", "))
				}
			}
			if len(r.Only) > 0 {
				return control.Errorf(control.Refused, "%d volumes have their only good copy on %s", len(r.Only), r.Node).WithHint("wait until the others are in sync: hawser status")
			}
			return nil
		},
	}
	cmd.Flags().Bool("json", false, "print it as JSON")
	return cmd
}

func etcdFlag(cmd *cobra.Command) {
	cmd.Flags().StringSlice("etcd", nil, "ask etcd at these endpoints, not the agent; for a machine that only reaches etcd")
}

// remote reads the cluster from etcd itself, if the command line says so.
func remote(cmd *cobra.Command) (*coord.View, bool, error) {
	f := cmd.Flags().Lookup("etcd")
	if f == nil || !f.Changed {
		return nil, false, nil
	}
	endpoints, err := cmd.Flags().GetStringSlice("etcd")
	if err != nil {
		return nil, false, err
	}
	node, err := loadNode(cmd)
	if err != nil {
		return nil, false, err
	}
	node.Etcd.Embedded, node.Etcd.Endpoints = false, nil
	for _, e := range endpoints {
		if !strings.Contains(e, "://") {
			scheme := "http://"
			if node.Etcd.ClientTLS.On() {
				scheme = "https://"
			}
			e = scheme + e
		}
		node.Etcd.Endpoints = append(node.Etcd.Endpoints, e)
	}
	log, err := newLog(cmd.ErrOrStderr(), "error", node.Log.Format)
	if err != nil {
		return nil, false, err
	}
	cfg, err := etcd.FromNode(node, log)
	if err != nil {
		return nil, false, err
	}
	store, closer, err := etcd.Read(cfg, node.Cluster)
	if err != nil {
		return nil, false, err
	}
	defer func() { _ = closer.Close() }() // nothing was changed
	ctx, cancel := context.WithTimeout(cmd.Context(), 10*time.Second)
	defer cancel()
	v, err := store.Snapshot(ctx)
	if err != nil {
		return nil, false, control.Errorf(control.Unknown, "etcd (%s): %w", strings.Join(endpoints, ", "), err)
	}
	return v, true, nil
}

// remoteStatus prints the cluster as etcd has it.
func remoteStatus(cmd *cobra.Command, args []string) (bool, error) {
	v, ok, err := remote(cmd)
	if err != nil || !ok {
		return false, err
	}
	c := ha.Survey(v, nil, v.Seen, time.Now())
	c.Resources = only(c.Resources, args)
	if asJSON, err := cmd.Flags().GetBool("json"); err == nil && asJSON {
		return true, printJSON(cmd.OutOrStdout(), c)
	}
	out := cmd.OutOrStdout()
	printer{w: out, color: useColor(out)}.cluster(c)
	return true, nil
}

func only(list []ha.ResourceLine, names []string) []ha.ResourceLine {
	if len(names) == 0 || names[0] == "all" {
		return list
	}
	some := []ha.ResourceLine{}
	for _, r := range list {
		for _, n := range names {
			if r.Name == n {
				some = append(some, r)
			}
		}
	}
	return some
}

// cluster prints the whole cluster.
func (p printer) cluster(c *ha.Cluster) {
	if !c.Fresh {
		fmt.Fprintf(p.w, "%s %s; what follows is %s old\n", p.paint(red, "etcd does not answer:"), c.Problem, c.Age.Round(100*time.Millisecond))
	}
	if c.Maintenance != "" {
		fmt.Fprintf(p.w, "%s %s\n", p.paint(yellow, "maintenance"), c.Maintenance)
	}
	var nodes []string
	for _, n := range c.Nodes {
		text := n.Name
		switch {
		case !n.Alive:
			text += " " + p.paint(red, "gone")
		case n.Drained:
			text += " " + p.paint(yellow, "drained")
		case n.Maintenance:
			text += " " + p.paint(yellow, "maintenance")
		}
		if n.Fencing != "" {
			text += " fencing " + n.Fencing
		}
		nodes = append(nodes, text)
	}
	fmt.Fprintf(p.w, "nodes     %s\n", strings.Join(nodes, ", "))
	for _, r := range c.Resources {
		holder := cmp.Or(r.Holder, "nobody")
		fmt.Fprintf(p.w, "%-9s %s  term %d  in sync: %s\n", p.paint(bold, r.Name), p.paint(map[bool]string{true: green, false: red}[r.Holder != ""], holder), r.Term, cmp.Or(strings.Join(r.InSync, ", "), "none"))
		for _, n := range r.Nodes {
			var words []string
			if n.Right != "" {
				right := "licence " + n.Right
				if n.Right == control.RightNone {
					right = p.paint(red, "no licence")
				}
				words = append(words, right)
			}
			if len(n.Frozen) > 0 {
				words = append(words, p.paint(red, "frozen: "+strings.Join(n.Frozen, ", ")))
			}
			if n.Services != "" {
				words = append(words, "services "+n.Services)
			}
			if n.Stale {
				words = append(words, p.paint(yellow, "stale"))
			}
			words = append(words, string(n.Rule))
			if n.Detail != "" {
				words = append(words, n.Detail)
			}
			fmt.Fprintf(p.w, "  %-10s %-10s %-12s %s\n", n.Node, p.state(n.Role), p.state(n.Disk), strings.Join(words, ", "))
		}
		if r.Maintained {
			fmt.Fprintf(p.w, "  %s\n", p.paint(yellow, "maintenance"))
		}
		if r.Switchover != "" {
			fmt.Fprintf(p.w, "  switchover %s\n", r.Switchover)
		}
		fmt.Fprintf(p.w, "  one more loss: %s\n", r.OneLoss)
		if r.LastEvent != "" {
			fmt.Fprintf(p.w, "  last: %s\n", r.LastEvent)
		}
		if r.Problem != "" {
			fmt.Fprintf(p.w, "  %s %s\n", p.paint(red, "unreadable:"), r.Problem)
		}
	}
}
