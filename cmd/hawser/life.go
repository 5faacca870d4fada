package main

import (
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/hawser-ha/hawser/agent"
	"github.com/hawser-ha/hawser/replicator/control"
)

// verb makes the command of a plain verb: it is handed to the replicator as it is.
func verb(group, name, use, short string) *cobra.Command {
	return &cobra.Command{
		Use: name + " " + use, Short: short, GroupID: group, Args: resources, ValidArgsFunction: names,
		RunE: each(func(o *on) error { return o.c.Do(o.ctx, name, o.args()) }),
	}
}

// with adds flags to a command.
func with(cmd *cobra.Command, add func(cmd *cobra.Command)) *cobra.Command {
	add(cmd)
	return cmd
}

func peerFlag(cmd *cobra.Command) {
	cmd.Flags().String("peer", "", "only this peer (default: every peer)")
}

func lifeCommands() []*cobra.Command {
	down := &cobra.Command{
		Use: "down RES...", Short: "Stop a resource: demote, disconnect, detach, end its replicator", GroupID: groupLife,
		Args: resources, ValidArgsFunction: names,
		RunE: each(func(o *on) error {
			var done agent.Done
			if err := o.c.Call(o.ctx, "down", control.Args{Volume: control.All, Force: o.flag("force")}, &done); err != nil {
				return err
			}
			if !done.Changed {
				o.say("is down already")
			}
			return nil
		}),
	}
	down.Flags().Bool("force", false, "close devices that are in use and fail their I/O; kill a replicator that hangs")
	up := &cobra.Command{
		Use: "up RES...", Short: "Start a resource: its replicator, disks and connections", GroupID: groupLife,
		Args: resources, ValidArgsFunction: names,
		RunE: each(func(o *on) error {
			var done agent.Done
			if err := o.c.Call(o.ctx, "up", struct{}{}, &done); err != nil {
				return err
			}
			if !done.Changed {
				o.say("is up already")
			}
			return nil
		}),
	}
	return []*cobra.Command{createMDCommand(), convertMDCommand(), up, down, adjustCommand(),
		verb(groupLife, "attach", "RES[/VOL]...", "Open the local disk"),
		with(verb(groupLife, "detach", "RES[/VOL]...", "Close the local disk"), func(c *cobra.Command) {
			c.Flags().Bool("force", false, "without waiting for requests that hang")
		}),
		connectCommand(),
		with(verb(groupLife, "disconnect", "RES...", "End connections"), func(c *cobra.Command) {
			peerFlag(c)
			c.Flags().Bool("force", false, "without asking the peer")
		}),
	}
}

func createMDCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "create-md RES[/VOL]...", Short: "Write fresh metadata on the local disks", GroupID: groupLife,
		Long: `Write fresh metadata on the local disks of a resource that is down. A disk that is
a file and not there yet is made, sparse, with room for the volume and its metadata.
What is on a disk already is overwritten only with --force or after a yes.`,
		Args: resources, ValidArgsFunction: names, RunE: each(createMD),
	}
	cmd.Flags().Bool("force", false, "over metadata or a file system that is there")
	cmd.Flags().Bool("dry-run", false, "say what would happen and be lost")
	cmd.Flags().Bool("json", false, "print the result as JSON")
	return cmd
}

func createMD(o *on) error {
	var would, did []control.CreateMDResult
	if err := o.c.Call(o.ctx, "create-md", control.CreateMDOptions{Volume: o.vol, DryRun: true}, &would); err != nil {
		return err
	}
	dry, force := o.flag("dry-run"), o.flag("force")
	var lost []string
	for _, r := range would {
		if r.Found != "" {
			lost = append(lost, fmt.Sprintf("%s/%d: %s holds %s", o.res, r.Volume, r.Disk, r.Found))
		}
	}
	if dry {
		if o.flag("json") {
			return printJSON(o.cmd.OutOrStdout(), would)
		}
		for _, r := range would {
			what := "nothing known is lost"
			if r.Found != "" {
				what = "loses: " + r.Found
			}
			if r.File {
				what = "makes this file"
			}
			fmt.Fprintf(o.cmd.OutOrStdout(), "%s/%d: %s: %s\n", o.res, r.Volume, r.Disk, what)
		}
		return nil
	}
	if len(lost) > 0 && !force {
		ok, err := o.confirm(strings.Join(lost, "; ") + ": it would be overwritten")
		if err != nil || !ok {
			return err
		}
		force = true
	}
	if err := o.c.Call(o.ctx, "create-md", control.CreateMDOptions{Volume: o.vol, Force: force}, &did); err != nil {
		return err
	}
	if o.flag("json") {
		return printJSON(o.cmd.OutOrStdout(), did)
	}
	for _, r := range did {
		file := ""
		if r.File {
			file = " (a new file)"
		}
		fmt.Fprintf(o.cmd.ErrOrStderr(), "%s/%d: metadata written, %s for data on %s%s\n", o.res, r.Volume, bytesText(r.Size), r.Disk, file)
	}
	return nil
}

func connectCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "connect RES...", Short: "Connect to the peers", GroupID: groupLife, Args: resources, ValidArgsFunction: names,
		RunE: each(func(o *on) error {
			a := o.args()
			a.Force = false
			a.DiscardMyData = o.flag("discard-my-data")
			if a.DiscardMyData {
				st, err := o.status()
				if err != nil {
					return err
				}
				ok, err := o.confirm("if the data went two ways, what was written here and not on the peer is overwritten by the peer's" + undoText(st))
				if err != nil || !ok {
					return err
				}
			} else if o.flag("dry-run") {
				fmt.Fprintf(o.cmd.OutOrStdout(), "%s: nothing is lost\n", o.target)
				return nil
			}
			return o.c.Do(o.ctx, "connect", a)
		}),
	}
	peerFlag(cmd)
	cmd.Flags().Bool("discard-my-data", false, "after a split brain: let the peer's data win")
	cmd.Flags().Bool("force", false, "do not ask before --discard-my-data")
	cmd.Flags().Bool("dry-run", false, "say what would be lost")
	return cmd
}

func undoText(st *control.Status) string {
	return fmt.Sprintf(" (node %s is %s; the overwritten blocks go to the undo log, unless undo-log is none)", st.Node, st.Role)
}

func adjustCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "adjust RES...", Short: "Make a running resource follow its changed file, with the fewest steps", GroupID: groupLife,
		Args: resources, ValidArgsFunction: names,
		RunE: each(func(o *on) error {
			var steps []agent.Step
			dry := o.flag("dry-run")
			if err := o.c.Call(o.ctx, "adjust", agent.AdjustArgs{DryRun: dry}, &steps); err != nil {
				return err
			}
			if o.flag("json") {
				return printJSON(o.cmd.OutOrStdout(), steps)
			}
			if len(steps) == 0 {
				o.say("nothing to change")
			}
			out := o.cmd.ErrOrStderr()
			if dry {
				out = o.cmd.OutOrStdout()
			}
			for _, s := range steps {
				fmt.Fprintln(out, stepText(o.res, s))
			}
			return nil
		}),
	}
	cmd.Flags().Bool("dry-run", false, "print the steps and do nothing")
	cmd.Flags().Bool("json", false, "print the steps as JSON")
	return cmd
}

func stepText(res string, s agent.Step) string {
	line := fmt.Sprintf("%s: %s", res, s.Verb)
	if s.Target != "" {
		line += " " + s.Target
	}
	if s.Text != "" {
		line += ": " + s.Text
	}
	switch {
	case s.Stops:
		line += " [stops the device]"
	case s.Detaches:
		line += " [local copy away meanwhile]"
	case s.Disconnects:
		line += " [disconnects]"
	}
	return line
}

func useCommands() []*cobra.Command {
	primary := &cobra.Command{
		Use: "primary RES...", Short: "Make this node Primary: the device may be used here", GroupID: groupUse,
		Args: resources, ValidArgsFunction: names,
		RunE: each(func(o *on) error {
			if o.flag("dry-run") {
				st, err := o.status()
				if err != nil {
					return err
				}
				fmt.Fprintf(o.cmd.OutOrStdout(), "%s: %s\n", o.target, primaryLoss(st, o.flag("force")))
				return nil
			}
			err := o.c.Do(o.ctx, "primary", o.args())
			if e, ok := errors.AsType[*control.Error](err); ok && e.Hint == "" && e.Code == control.NotUpToDate {
				e.Hint = "connect to a peer that is UpToDate; hawser primary --force " + o.res + " takes the data as it is (--dry-run says what that may lose)"
			}
			return err
		}),
	}
	primary.Flags().Bool("force", false, "even if the local data is not known to be the newest")
	primary.Flags().Bool("dry-run", false, "say what would be lost")
	protocol := &cobra.Command{
		Use: "protocol RES A|B|C", Short: "Change the protocol while it runs, at an epoch boundary", GroupID: groupUse,
		Long: `Change the replication protocol of the connections while they run. The resource file
is not changed: hawser adjust goes back to what it says.`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) != 2 || !strings.Contains("ABCabc", args[1]) || len(args[1]) != 1 {
				return control.Errorf(control.Usage, "%s: takes a resource and A, B or C", cmd.CommandPath()).WithHint("hawser protocol r0 C")
			}
			return nil
		},
		ValidArgsFunction: names,
		RunE: func(cmd *cobra.Command, args []string) error {
			return each(func(o *on) error {
				a := o.args()
				a.Protocol = strings.ToUpper(args[1])
				return o.c.Do(o.ctx, "protocol", a)
			})(cmd, args[:1])
		},
	}
	peerFlag(protocol)
	resize := &cobra.Command{
		Use: "resize RES[/VOL]...", Short: "Grow or shrink a volume to what its disks allow, or to --size", GroupID: groupUse,
		Args: resources, ValidArgsFunction: names,
		RunE: each(func(o *on) error {
			a := o.args()
			a.AssumeClean = o.flag("assume-clean")
			if text := o.text("size"); text != "" {
				n, err := parseBytes(text)
				if err != nil {
					return usage("--size %s: %v", text, err)
				}
				a.Size = n
			}
			return o.c.Do(o.ctx, "resize", a)
		}),
	}
	resize.Flags().String("size", "", "limit of the size, for example 10G (default: none)")
	resize.Flags().Bool("assume-clean", false, "do not resync the new part")
	return []*cobra.Command{primary,
		with(verb(groupUse, "secondary", "RES...", "Make this node Secondary: the device goes away here"), func(c *cobra.Command) {
			c.Flags().Bool("force", false, "even while the device is in use: its I/O fails")
		}),
		protocol, resize,
		verb(groupUse, "suspend-io", "RES...", "Freeze the I/O of the devices"),
		verb(groupUse, "resume-io", "RES...", "Let frozen I/O go on"),
	}
}

// primaryLoss says what a promotion may lose.
func primaryLoss(st *control.Status, force bool) string {
	var lost []string
	for _, v := range st.Volumes {
		if v.DiskState != "UpToDate" {
			lost = append(lost, fmt.Sprintf("volume %d is %s here", v.Number, v.DiskState))
		}
	}
	for _, p := range st.Peers {
		if p.Connection != "Connected" {
			lost = append(lost, fmt.Sprintf("peer %s is not connected and may hold newer writes", p.Name))
		}
	}
	switch {
	case len(lost) == 0:
		return "nothing is lost"
	case !force:
		return "without --force nothing can be lost: it is refused unless the data is UpToDate (" + strings.Join(lost, "; ") + ")"
	}
	return "writes that are only on a peer are lost here, and the data may have gone two ways: " + strings.Join(lost, "; ")
}
