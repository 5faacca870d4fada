package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/hawser-ha/hawser/agent"
	"github.com/hawser-ha/hawser/agent/config"
	"github.com/hawser-ha/hawser/replicator/control"
)

// nodeFlags are the settings of the node that the command line may override; LoadNode reads them.
func nodeFlags(root *cobra.Command) {
	d := config.DefaultNode()
	f := root.PersistentFlags()
	f.String("config", "", "settings of the node (default "+config.DefaultNodeFile+")")
	f.String("node", d.Node, "name of this node in the resource files")
	f.String("run-dir", d.RunDir, "folder of the sockets")
	f.String("state-dir", d.StateDir, "folder of what must survive a reboot")
	f.String("resources-dir", d.ResourcesDir, "folder of the resource files")
	f.String("log-level", d.Log.Level, "debug, info, warn or error")
	f.String("log-format", d.Log.Format, "text or json")
}

func loadNode(cmd *cobra.Command) (config.NodeConfig, error) {
	file, err := cmd.Flags().GetString("config")
	if err != nil {
		return config.NodeConfig{}, err
	}
	node, err := config.LoadNode(file, cmd.Flags())
	if err != nil {
		return node, control.Errorf(control.BadDefinition, "%w", err)
	}
	return node, nil
}

// dial gives a client of the agent's API.
func dial(cmd *cobra.Command) (*control.Client, error) {
	node, err := loadNode(cmd)
	if err != nil {
		return nil, err
	}
	return control.NewClient(node.AgentSocket(), "the agent ("+node.AgentSocket()+")"), nil
}

// target is what a command is about: RES or RES/VOL.
type target struct {
	res string
	vol int // control.All: no volume was named
}

func (t target) String() string {
	if t.vol == control.All {
		return t.res
	}
	return fmt.Sprintf("%s/%d", t.res, t.vol)
}

func parseTarget(arg string) (target, error) {
	name, number, cut := strings.Cut(arg, "/")
	t := target{name, control.All}
	if why := config.CheckName(name); why != "" {
		return t, usage("%q is not RES or RES/VOL: %s", arg, why)
	}
	if cut {
		n, err := strconv.ParseUint(number, 10, 16)
		if err != nil {
			return t, usage("%q is not RES/VOL: the volume is a number", arg)
		}
		t.vol = int(n)
	}
	return t, nil
}

// on is one call of a command: the client is for the resource's part of the agent's API.
type on struct {
	cmd *cobra.Command
	ctx context.Context
	c   *control.Client
	target
}

func (o *on) say(format string, args ...any) {
	fmt.Fprintf(o.cmd.ErrOrStderr(), "%s: %s\n", o.target, fmt.Sprintf(format, args...))
}

// each runs do for every resource that the arguments name. It goes on past errors and joins them.
func each(do func(o *on) error) func(cmd *cobra.Command, args []string) error {
	return func(cmd *cobra.Command, args []string) error {
		c, err := dial(cmd)
		if err != nil {
			return err
		}
		defer c.Close()
		targets, err := targetsOf(cmd.Context(), c, args)
		if err != nil {
			return err
		}
		var errs []error
		for _, t := range targets {
			err := do(&on{cmd: cmd, ctx: cmd.Context(), c: c.Sub("resources/" + t.res), target: t})
			if e, ok := errors.AsType[*control.Error](err); ok && e.Resource == "" && e.Code != control.NotRunning {
				e.Resource = t.res
			}
			errs = append(errs, err)
		}
		return join(errs)
	}
}

// join keeps a single error as it is.
func join(errs []error) error {
	var some []error
	for _, err := range errs {
		if err != nil {
			some = append(some, err)
		}
	}
	if len(some) == 1 {
		return some[0]
	}
	return errors.Join(some...)
}

func targetsOf(ctx context.Context, c *control.Client, args []string) ([]target, error) {
	var list []target
	for _, a := range args {
		if a != "all" {
			t, err := parseTarget(a)
			if err != nil {
				return nil, err
			}
			list = append(list, t)
			continue
		}
		var st agent.NodeStatus
		if err := c.Get(ctx, "status", nil, &st); err != nil {
			return nil, err
		}
		for _, p := range st.Problems {
			return nil, control.Errorf(control.BadDefinition, "%s", p).WithHint("correct the file, or name the resources one by one")
		}
		for _, r := range st.Resources {
			if r.State != agent.StateWitness {
				list = append(list, target{r.Name, control.All})
			}
		}
	}
	return list, nil
}

// resources checks that a command names at least one resource.
func resources(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return control.Errorf(control.Usage, "%s: which resource?", cmd.CommandPath()).WithHint(cmd.CommandPath() + " RES, or all")
	}
	return nil
}

// oneResource checks that a command names exactly one.
func oneResource(cmd *cobra.Command, args []string) error {
	if len(args) != 1 || args[0] == "all" {
		return control.Errorf(control.Usage, "%s: takes one resource", cmd.CommandPath()).WithHint(cmd.CommandPath() + " --help")
	}
	return nil
}

// noArgs checks that there is nothing left over.
func noArgs(cmd *cobra.Command, args []string) error {
	if len(args) > 0 {
		return usage("%s: what is %q?", cmd.CommandPath(), args[0])
	}
	return nil
}

// names completes the names of resources.
func names(cmd *cobra.Command, _ []string, _ string) ([]string, cobra.ShellCompDirective) {
	c, err := dial(cmd)
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	defer c.Close()
	var st agent.NodeStatus
	if err := c.Get(cmd.Context(), "status", nil, &st); err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	list := []string{"all"}
	for _, r := range st.Resources {
		list = append(list, r.Name)
	}
	return list, cobra.ShellCompDirectiveNoFileComp
}

// status asks for the replicator's status; a resource that is down is an error.
func (o *on) status() (*control.Status, error) {
	var rs agent.ResourceStatus
	if err := o.c.Get(o.ctx, "status", nil, &rs); err != nil {
		return nil, err
	}
	switch rs.State {
	case agent.StateUp:
		return rs.Status, nil
	case agent.StateSilent:
		return nil, control.Errorf(control.Unknown, "its replicator does not answer: %s", rs.Message).On(o.res, control.All, "")
	case agent.StateWitness:
		return nil, control.Errorf(control.Refused, "this node is a witness of it and holds no volume").On(o.res, control.All, "").
			WithHint("run the command on one of: " + strings.Join(rs.Nodes, ", "))
	}
	return nil, control.Errorf(control.NotRunning, "it is down").On(o.res, control.All, "").WithHint("hawser up " + o.res)
}

// confirm lets a dangerous command pass: with force, or when a person at a terminal types yes. dry-run only tells. It
// returns false if nothing is to be done.
func (o *on) confirm(lost string) (bool, error) {
	dry, force := o.flag("dry-run"), o.flag("force")
	switch {
	case dry:
		fmt.Fprintf(o.cmd.OutOrStdout(), "%s: %s\n", o.target, lost)
		return false, nil
	case force:
		return true, nil
	}
	in, ok := o.cmd.InOrStdin().(*os.File)
	if !ok || !isTerminal(in) {
		return false, control.Errorf(control.Confirm, "%s", lost).On(o.res, o.vol, "").
			WithRule("what loses data is done only when asked to").WithHint("say --force if that is what you want; --dry-run changes nothing")
	}
	fmt.Fprintf(o.cmd.ErrOrStderr(), "%s: %s\nType yes to go on: ", o.target, lost)
	line, err := bufio.NewReader(in).ReadString('\n')
	if err != nil && !errors.Is(err, io.EOF) {
		return false, err
	}
	if strings.TrimSpace(line) != "yes" {
		return false, control.Errorf(control.Refused, "nothing was changed").On(o.res, o.vol, "")
	}
	return true, nil
}

// flag gives a boolean flag of the command, false if it has none of that name.
func (o *on) flag(name string) bool {
	f := o.cmd.Flags().Lookup(name)
	return f != nil && f.Value.String() == "true"
}

// text gives a flag of the command as text.
func (o *on) text(name string) string {
	if f := o.cmd.Flags().Lookup(name); f != nil {
		return f.Value.String()
	}
	return ""
}

func (o *on) args() control.Args {
	return control.Args{Volume: o.vol, Peer: o.text("peer"), Force: o.flag("force")}
}

// printJSON writes v, indented, as one value.
func printJSON(w io.Writer, v any) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	return e.Encode(v)
}

func isTerminal(f *os.File) bool {
	_, err := unix.IoctlGetTermios(int(f.Fd()), unix.TCGETS)
	return err == nil
}
