package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/hawser-ha/hawser/agent"
	"github.com/hawser-ha/hawser/replicator/control"
)

func lookCommands() []*cobra.Command {
	return append(haCommands(), statusCommand(), eventsCommand(), showGICommand(), dumpCommand(), versionCommand(),
		&cobra.Command{
			Use: "dump-md RES/VOL", Short: "Print the metadata of a volume as drbdmeta does", GroupID: groupLook, Args: oneResource, ValidArgsFunction: names,
			RunE: each(func(o *on) error {
				if o.vol == control.All {
					o.vol = 0
				}
				return o.c.DumpMD(o.ctx, o.vol, o.cmd.OutOrStdout())
			}),
		})
}

func versionCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "version", Short: "Print the version of this program and of the agent", GroupID: groupLook, Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			v := map[string]string{"hawser": versionString()}
			if c, err := dial(cmd); err == nil {
				var a agent.Version
				if c.Get(cmd.Context(), "version", nil, &a) == nil {
					v["agent"], v["node"] = a.Version, a.Node
				}
				c.Close()
			}
			if asJSON, err := cmd.Flags().GetBool("json"); err == nil && asJSON {
				return printJSON(cmd.OutOrStdout(), v)
			}
			fmt.Fprintf(cmd.OutOrStdout(), "hawser %s\n", v["hawser"])
			if v["agent"] != "" {
				fmt.Fprintf(cmd.OutOrStdout(), "agent  %s on %s\n", v["agent"], v["node"])
			}
			return nil
		},
	}
	cmd.Flags().Bool("json", false, "print it as JSON")
	return cmd
}

func showGICommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "show-gi RES[/VOL]", Short: "Print the generation identifiers of a volume", GroupID: groupLook, Args: oneResource, ValidArgsFunction: names,
		RunE: each(func(o *on) error {
			if o.vol == control.All {
				o.vol = 0
			}
			gi, err := o.c.ShowGI(o.ctx, o.vol)
			if err != nil {
				return err
			}
			if o.flag("json") {
				return printJSON(o.cmd.OutOrStdout(), gi)
			}
			printGI(o.cmd.OutOrStdout(), gi)
			return nil
		}),
	}
	cmd.Flags().Bool("json", false, "print them as JSON")
	return cmd
}

func printGI(w io.Writer, gi *control.GI) {
	fmt.Fprintf(w, "current   %s\n", gi.Current)
	for _, p := range gi.Bitmap {
		flags := ""
		for _, f := range []struct {
			on   bool
			name string
		}{{p.Connected, " connected"}, {p.Outdated, " outdated"}, {p.FullSync, " full-sync"}} {
			if f.on {
				flags += f.name
			}
		}
		fmt.Fprintf(w, "bitmap    %s  towards %s (node %d)%s\n", p.UUID, p.Peer, p.NodeID, flags)
	}
	for _, h := range gi.History {
		if h != 0 {
			fmt.Fprintf(w, "history   %s\n", h)
		}
	}
	fmt.Fprintf(w, "device    %s\n", gi.DeviceUUID)
	var flags []string
	for _, f := range []struct {
		on   bool
		name string
	}{{gi.Consistent, "consistent"}, {gi.WasUpToDate, "was-up-to-date"}, {gi.PrimaryInd, "primary"}, {gi.CrashedPrimary, "crashed-primary"},
		{gi.ALClean, "al-clean"}, {gi.ALDisabled, "al-disabled"}} {
		if f.on {
			flags = append(flags, f.name)
		}
	}
	fmt.Fprintf(w, "flags     %s\nsize      %d\n", strings.Join(flags, " "), gi.Size)
}

func statusCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "status [RES...]", Short: "Show roles, disks, connections and resyncs", GroupID: groupLook, ValidArgsFunction: names,
		RunE: func(cmd *cobra.Command, args []string) error {
			if done, err := remoteStatus(cmd, args); done || err != nil {
				return err
			}
			c, err := dial(cmd)
			if err != nil {
				return err
			}
			defer c.Close()
			watch, err := cmd.Flags().GetBool("watch")
			if err != nil {
				return err
			}
			if watch {
				return watchStatus(cmd, c, args)
			}
			st, err := askStatus(cmd.Context(), c, args)
			if err != nil {
				return err
			}
			if asJSON, err := cmd.Flags().GetBool("json"); err == nil && asJSON {
				return printJSON(cmd.OutOrStdout(), st)
			}
			out := cmd.OutOrStdout()
			printer{w: out, color: useColor(out)}.node(st)
			return nil
		},
	}
	etcdFlag(cmd)
	cmd.Flags().Bool("json", false, "print it as JSON")
	cmd.Flags().Bool("watch", false, "show it again whenever it changes")
	return cmd
}

// askStatus asks for all resources, or for those named; a name that is not there is an error.
func askStatus(ctx context.Context, c *control.Client, args []string) (*agent.NodeStatus, error) {
	st := new(agent.NodeStatus)
	if err := c.Get(ctx, "status", nil, st); err != nil {
		return nil, err
	}
	if len(args) == 0 || len(args) == 1 && args[0] == "all" {
		return st, nil
	}
	var some []agent.ResourceStatus
	for _, a := range args {
		t, err := parseTarget(a)
		if err != nil {
			return nil, err
		}
		var rs agent.ResourceStatus
		if err := c.Get(ctx, "resources/"+t.res+"/status", nil, &rs); err != nil {
			return nil, err
		}
		some = append(some, rs)
	}
	st.Resources = some
	return st, nil
}

func watchStatus(cmd *cobra.Command, c *control.Client, args []string) error {
	ctx, cancel := context.WithCancel(cmd.Context())
	defer cancel()
	changed := make(chan struct{}, 1)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		follow(ctx, c, changed)
	}()
	defer func() { cancel(); <-ended }()
	out := cmd.OutOrStdout()
	asJSON, err := cmd.Flags().GetBool("json")
	if err != nil {
		return err
	}
	f, ok := out.(*os.File)
	screen := ok && isTerminal(f)
	last := ""
	for {
		st, err := askStatus(ctx, c, args)
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return err
		}
		var b strings.Builder
		if asJSON {
			data, err := json.Marshal(st)
			if err != nil {
				return err
			}
			fmt.Fprintln(&b, string(data))
		} else {
			printer{w: &b, color: useColor(out)}.node(st)
		}
		switch text := b.String(); {
		case text == last:
		case screen && !asJSON:
			fmt.Fprintf(out, "\x1b[H\x1b[2J%s", text) // home, clear
			last = text
		default:
			if last != "" && !asJSON {
				fmt.Fprintln(out)
			}
			fmt.Fprint(out, text)
			last = text
		}
		select {
		case <-changed:
		case <-time.After(time.Second):
		case <-ctx.Done():
			return nil
		}
	}
}

// follow pokes changed at every event until ctx ends; it comes back when the agent was restarted.
func follow(ctx context.Context, c *control.Client, changed chan<- struct{}) {
	for ctx.Err() == nil {
		_ = c.Events(ctx, 0, func(control.Event) error { // whatever the end: the status asked for next says it
			select {
			case changed <- struct{}{}:
			default:
			}
			return nil
		})
		select {
		case <-time.After(500 * time.Millisecond):
		case <-ctx.Done():
		}
	}
}

func eventsCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "events [RES]", Short: "Follow what happens", GroupID: groupLook, ValidArgsFunction: names,
		Long: `Follow what happens to all resources of this node, or to one. The stream begins with
a status of each. --after ID goes on after an event seen before, across restarts of
this command; when what followed it is no longer known, an event says so (lost) and
a status comes in its place.`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) > 1 {
				return usage("%s: one resource, or none for all", cmd.CommandPath())
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := dial(cmd)
			if err != nil {
				return err
			}
			defer c.Close()
			if len(args) == 1 && args[0] != "all" {
				t, err := parseTarget(args[0])
				if err != nil {
					return err
				}
				c = c.Sub("resources/" + t.res)
			}
			after, err := cmd.Flags().GetUint64("after")
			if err != nil {
				return err
			}
			now, err := cmd.Flags().GetBool("now")
			if err != nil {
				return err
			}
			asJSON, err := cmd.Flags().GetBool("json")
			if err != nil {
				return err
			}
			err = followEvents(cmd, c, after, now, asJSON)
			if cmd.Context().Err() != nil {
				return nil // the user ended it
			}
			return err
		},
	}
	cmd.Flags().Bool("json", false, "one JSON object in a line")
	cmd.Flags().Bool("now", false, "only the status now, then end")
	cmd.Flags().Uint64("after", 0, "go on after the event with this id")
	return cmd
}

func followEvents(cmd *cobra.Command, c *control.Client, after uint64, now, asJSON bool) error {
	out := cmd.OutOrStdout()
	show := func(e control.Event) error {
		if asJSON {
			data, err := json.Marshal(e)
			if err != nil {
				return err
			}
			_, err = fmt.Fprintln(out, string(data))
			return err
		}
		_, err := fmt.Fprintln(out, eventText(e))
		return err
	}
	if now {
		var st agent.NodeStatus
		if err := c.Get(cmd.Context(), "status", nil, &st); err != nil {
			return err
		}
		for _, r := range st.Resources {
			if r.Status == nil {
				continue
			}
			if err := show(control.Event{ID: r.Status.LastEvent, Time: time.Now(), Resource: r.Name, Kind: control.EventStatus, Volume: control.All, Status: r.Status}); err != nil {
				return err
			}
		}
		return nil
	}
	err := c.Events(cmd.Context(), after, show)
	if errors.Is(err, io.EOF) {
		return control.Errorf(control.NotRunning, "the agent ended")
	}
	return err
}

// eventText is one event in a line.
func eventText(e control.Event) string {
	where := e.Resource
	if e.Volume >= 0 {
		where += "/" + strconv.Itoa(e.Volume)
	}
	if e.Peer != "" {
		where += " to " + e.Peer
	}
	line := fmt.Sprintf("%s %s: ", e.Time.Local().Format("2006-01-02 15:04:05.000"), where)
	switch e.Kind {
	case control.EventState:
		line += fmt.Sprintf("%s %s -> %s", e.Field, e.From, e.To)
	case control.EventStatus:
		line += summary(e.Status)
	case control.EventSync:
		line += e.Text
		if e.Sync != nil {
			line = strings.TrimRight(line, " ") + " " + progressText(e.Sync)
		}
		return line
	case control.EventHandler:
		line += "handler " + e.Name
	case control.EventLost:
		line = fmt.Sprintf("%s events were lost, the status follows", e.Time.Local().Format("2006-01-02 15:04:05.000"))
	case control.EventDown:
		line += "down"
	default:
		line += e.Name
	}
	if e.Text != "" {
		line += ": " + e.Text
	}
	return line
}

// summary is a status in a few words.
func summary(s *control.Status) string {
	var parts []string
	for _, v := range s.Volumes {
		parts = append(parts, fmt.Sprintf("volume %d %s", v.Number, v.DiskState))
	}
	for _, p := range s.Peers {
		parts = append(parts, strings.TrimSpace(p.Name+" "+p.Connection+" "+p.Role))
	}
	return s.Role + ", " + strings.Join(parts, ", ")
}
