package main

import (
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/hawser-ha/hawser/agent"
	"github.com/hawser-ha/hawser/agent/config"
	"github.com/hawser-ha/hawser/fencing"
	"github.com/hawser-ha/hawser/replicator/control"
)

func fenceCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "fence NODE", Short: "Make sure that a node is off", GroupID: groupUse, Args: oneNode,
		Long: `Make sure that a node is off, through the devices that hawser.yaml names for it: off
and then on again, unless they are set up otherwise, or --off, --on or --reboot says so.

Exit code 0: the node is off for sure, or was. 1: it is not. 3: nobody knows, and it
counts as running.`,
		RunE: func(cmd *cobra.Command, args []string) error {
			a := fenceArgs(cmd, args[0])
			for _, action := range []fencing.Action{fencing.Off, fencing.On, fencing.Reboot} {
				if !flagSet(cmd, string(action)) {
					continue
				}
				if a.Action != "" {
					return usage("%s: --%s and --%s", cmd.CommandPath(), a.Action, action)
				}
				a.Action = action
			}
			a.DryRun = flagSet(cmd, "dry-run")
			var out agent.FenceAnswer
			if err := onFencing(cmd, func(c *control.Client) error { return c.Call(cmd.Context(), "fence", a, &out) }); err != nil {
				return err
			}
			if flagSet(cmd, "json") {
				return printJSON(cmd.OutOrStdout(), out)
			}
			for _, line := range out.Plan {
				fmt.Fprintln(cmd.OutOrStdout(), line)
			}
			if r := out.Result; r != nil {
				fmt.Fprintf(cmd.OutOrStdout(), "%s: %s by %s (level %d) after %s\n", r.Node, r.Outcome, r.Method, r.Level, r.Took.Round(time.Millisecond))
				for _, n := range r.Notes {
					fmt.Fprintf(cmd.ErrOrStderr(), "%s: %s\n", r.Node, n)
				}
			}
			return nil
		},
	}
	f := cmd.Flags()
	f.Bool("off", false, "off, and leave it so")
	f.Bool("on", false, "turn it on")
	f.Bool("reboot", false, "off and on, or the device's own reboot")
	f.Bool("dry-run", false, "say what would be done")
	f.Bool("json", false, "print the result as JSON")
	f.Bool("force", false, "although it was fenced often, or it cannot be recorded")
	f.String("why", "", "for the record")
	list := &cobra.Command{Use: "list", Short: "Show devices, levels and the watchdog", Args: noArgs, RunE: func(cmd *cobra.Command, _ []string) error {
		return fenceList(cmd, func(c *control.Client, st *agent.FencingStatus) error {
			return c.Get(cmd.Context(), "fencing", nil, st)
		})
	}}
	monitor := &cobra.Command{Use: "monitor", Short: "Ask every device now whether it works, and show them", Args: noArgs, RunE: func(cmd *cobra.Command, _ []string) error {
		return fenceList(cmd, func(c *control.Client, st *agent.FencingStatus) error {
			return c.Sub("fencing").Call(cmd.Context(), "monitor", struct{}{}, st)
		})
	}}
	for _, c := range []*cobra.Command{list, monitor} {
		c.Flags().Bool("json", false, "print it as JSON")
	}
	confirm := &cobra.Command{
		Use: "confirm NODE", Short: "Give a person's word that a node is off", Args: oneNode,
		Long: `Give your word that a node is off. What it held is taken from it, and another node goes
on at once. If it is still running, two nodes write, and data is lost: look at it first.`,
		RunE: func(cmd *cobra.Command, args []string) error {
			if !flagSet(cmd, "it-is-off") {
				return control.Errorf(control.Confirm, "%s counts as running", args[0]).WithRule("a node is dead when a device or a person says so").
					WithHint("if you have seen that it is off: " + cmd.CommandPath() + " " + args[0] + " --it-is-off")
			}
			return onFencing(cmd, func(c *control.Client) error {
				return c.Call(cmd.Context(), "confirm", fenceArgs(cmd, args[0]), new(struct{}))
			})
		},
	}
	confirm.Flags().Bool("it-is-off", false, "you have seen that it is off")
	confirm.Flags().Bool("force", false, "although etcd still hears it")
	cmd.AddCommand(list, monitor, confirm)
	return cmd
}

func oneNode(cmd *cobra.Command, args []string) error {
	if len(args) != 1 {
		return control.Errorf(control.Usage, "%s: takes one node", cmd.CommandPath()).WithHint(cmd.CommandPath() + " --help")
	}
	if why := config.CheckName(args[0]); why != "" {
		return usage("node %q: %s", args[0], why)
	}
	return nil
}

func flagSet(cmd *cobra.Command, name string) bool {
	f := cmd.Flags().Lookup(name)
	return f != nil && f.Value.String() == "true"
}

func fenceArgs(cmd *cobra.Command, node string) agent.FenceArgs {
	a := agent.FenceArgs{Node: node, By: who(), Force: flagSet(cmd, "force")}
	if f := cmd.Flags().Lookup("why"); f != nil {
		a.Why = f.Value.String()
	}
	return a
}

func onFencing(cmd *cobra.Command, do func(c *control.Client) error) error {
	c, err := dial(cmd)
	if err != nil {
		return err
	}
	defer c.Close()
	return do(c.Sub("fencing"))
}

func fenceList(cmd *cobra.Command, get func(c *control.Client, st *agent.FencingStatus) error) error {
	c, err := dial(cmd)
	if err != nil {
		return err
	}
	defer c.Close()
	var st agent.FencingStatus
	if err := get(c, &st); err != nil {
		return err
	}
	if flagSet(cmd, "json") {
		return printJSON(cmd.OutOrStdout(), st)
	}
	printFencing(cmd.OutOrStdout(), &st)
	return nil
}

func printFencing(w io.Writer, st *agent.FencingStatus) {
	if len(st.Devices) == 0 {
		fmt.Fprintln(w, "no devices")
	}
	for _, d := range st.Devices {
		fmt.Fprintf(w, "device %s: %s, %s, fences %s", d.Name, d.Health, d.Mode, strings.Join(d.Nodes, ", "))
		if d.Error != "" {
			fmt.Fprintf(w, ": %s", strings.ReplaceAll(d.Error, "\n", "; "))
		}
		fmt.Fprintln(w)
	}
	for _, r := range st.Last {
		fmt.Fprintf(w, "last fencing of %s: %s, %s, asked by %s\n", r.Node, r.Outcome, r.Began.Format(time.DateTime), r.By)
	}
	for _, n := range st.Running {
		fmt.Fprintf(w, "%s is being fenced now\n", n)
	}
	d := st.Watchdog
	fmt.Fprintf(w, "watchdog: %s", d.Mode)
	switch {
	case d.Armed:
		fmt.Fprintf(w, ", armed (%s), licence for %s", d.Identity, d.Left.Round(100*time.Millisecond))
	case d.Problem != "":
		fmt.Fprintf(w, ": %s", d.Problem)
	case d.Mode != "off":
		fmt.Fprint(w, ", not armed")
	}
	fmt.Fprintln(w)
	for _, line := range st.Timing {
		fmt.Fprintln(w, line)
	}
}
