package main

import (
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/hawser-ha/hawser/replicator/control"
)

// lossy makes the command of a verb that throws data away.
func lossy(name, use, short string, lost func(o *on, st *control.Status) (string, error)) *cobra.Command {
	cmd := &cobra.Command{
		Use: name + " " + use, Short: short, GroupID: groupData, Args: resources, ValidArgsFunction: names,
		RunE: each(func(o *on) error {
			st, err := o.status()
			if err != nil {
				return err
			}
			text, err := lost(o, st)
			if err != nil {
				return err
			}
			ok, err := o.confirm(text)
			if err != nil || !ok {
				return err
			}
			return o.c.Do(o.ctx, name, o.args())
		}),
	}
	peerFlag(cmd)
	cmd.Flags().Bool("force", false, "do not ask")
	cmd.Flags().Bool("dry-run", false, "say what would be lost")
	return cmd
}

func dataCommands() []*cobra.Command {
	invalidate := lossy("invalidate", "RES[/VOL]...", "Take the data from a peer anew: a full resync to here", func(o *on, st *control.Status) (string, error) {
		return "the local data is given up and all of it copied anew from a peer (" + sizesText(st, o.vol) + ")", nil
	})
	remote := lossy("invalidate-remote", "RES[/VOL]...", "Copy the data to a peer anew: a full resync from here", func(o *on, st *control.Status) (string, error) {
		peer := o.text("peer")
		if peer == "" {
			peer = "every peer"
		}
		return "the data of " + peer + " is given up and all of it copied anew from here (" + sizesText(st, o.vol) + ")", nil
	})
	verify := &cobra.Command{
		Use: "verify RES[/VOL]...", Short: "Compare the data with the peers', while it is in use", GroupID: groupData,
		Long: `Compare the local data with the peers' block by block, while it is in use. What is
different is marked out of sync: disconnect and connect, and it is resynced.
verify-alg must be set in the resource file.`,
		Args: resources, ValidArgsFunction: names,
		RunE: each(func(o *on) error {
			a := o.args()
			for name, at := range map[string]*int64{"start": &a.Start, "stop": &a.Stop} {
				if text := o.text(name); text != "" {
					n, err := parseBytes(text)
					if err != nil {
						return usage("--%s %s: %v", name, text, err)
					}
					*at = n
				}
			}
			began := time.Now()
			if err := o.c.Do(o.ctx, "verify", a); err != nil {
				return err
			}
			if !o.flag("wait") {
				return nil
			}
			return waitVerify(o, a.Peer, began)
		}),
	}
	peerFlag(verify)
	verify.Flags().String("start", "", "where to begin, for example 10G (default: the start)")
	verify.Flags().String("stop", "", "where to stop (default: the end)")
	verify.Flags().Bool("wait", false, "wait for the end, with a progress bar; exit code 1 if the data differs")
	return []*cobra.Command{invalidate, remote, verify,
		with(verb(groupData, "outdate", "RES[/VOL]...", "Mark the local data as old: it cannot be promoted"), func(*cobra.Command) {}),
		with(verb(groupData, "pause-sync", "RES[/VOL]...", "Pause resyncs"), peerFlag),
		with(verb(groupData, "resume-sync", "RES[/VOL]...", "Let paused resyncs go on"), peerFlag),
		newUUIDCommand(), undoCommand(),
		waitCommand("wait-connect", "Wait until the peers are connected", func(st *control.Status, t target, peer string) (bool, string) {
			for _, p := range st.Peers {
				if (peer == "" || p.Name == peer) && p.Connection != "Connected" {
					return false, fmt.Sprintf("%s is %s", p.Name, p.Connection)
				}
			}
			return true, ""
		}),
		waitCommand("wait-sync", "Wait until every resync is over and all disks are UpToDate", synced),
	}
}

func sizesText(st *control.Status, vol int) string {
	var parts []string
	for _, v := range st.Volumes {
		if vol == control.All || v.Number == vol {
			parts = append(parts, fmt.Sprintf("volume %d: %s, %s", v.Number, bytesText(v.Size), v.DiskState))
		}
	}
	return strings.Join(parts, "; ")
}

func newUUIDCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "new-current-uuid RES[/VOL]...", Short: "Start a new data generation; --clear-bitmap skips the initial resync", GroupID: groupData,
		Long: `Start a new data generation. With --clear-bitmap, on connected disks that were just
created, all of them are declared equal and the initial resync is skipped. If they
are not equal, reads differ between the nodes until each block has been written:
use it only for disks whose old contents matter to nobody.`,
		Args: resources, ValidArgsFunction: names,
		RunE: each(func(o *on) error {
			a := o.args()
			a.ClearBitmap = o.flag("clear-bitmap")
			a.Force = false
			if a.ClearBitmap {
				ok, err := o.confirm("the disks are declared equal without being compared or copied")
				if err != nil || !ok {
					return err
				}
			}
			return o.c.Do(o.ctx, "new-current-uuid", a)
		}),
	}
	cmd.Flags().Bool("clear-bitmap", false, "declare the disks equal")
	cmd.Flags().Bool("force", false, "do not ask")
	cmd.Flags().Bool("dry-run", false, "say what would be lost")
	return cmd
}

// synced says whether nothing is left to resync.
func synced(st *control.Status, t target, peer string) (bool, string) {
	for _, v := range st.Volumes {
		if (t.vol == control.All || v.Number == t.vol) && v.DiskState != "UpToDate" && !v.Client {
			return false, fmt.Sprintf("volume %d is %s", v.Number, v.DiskState)
		}
	}
	for _, p := range st.Peers {
		if peer != "" && p.Name != peer {
			continue
		}
		if p.Connection != "Connected" {
			return false, fmt.Sprintf("%s is %s", p.Name, p.Connection)
		}
		for _, v := range p.Volumes {
			if t.vol != control.All && v.Number != t.vol {
				continue
			}
			if v.Replication != "Established" || v.DiskState != "UpToDate" && v.DiskState != "Diskless" {
				return false, fmt.Sprintf("volume %d towards %s: %s, disk there %s, %s out of sync", v.Number, p.Name, v.Replication, v.DiskState, bytesText(v.OutOfSync))
			}
		}
	}
	return true, ""
}

func waitCommand(name, short string, done func(*control.Status, target, string) (bool, string)) *cobra.Command {
	cmd := &cobra.Command{
		Use: name + " RES[/VOL]...", Short: short, GroupID: groupData, Args: resources, ValidArgsFunction: names,
		RunE: each(func(o *on) error {
			limit, err := o.cmd.Flags().GetDuration("timeout")
			if err != nil {
				return err
			}
			return wait(o, limit, func(st *control.Status) (bool, string, error) {
				ok, why := done(st, o.target, o.text("peer"))
				return ok, why, nil
			})
		}),
	}
	peerFlag(cmd)
	cmd.Flags().Duration("timeout", 0, "give up after this, for example 30s (default: never); exit code 1")
	return cmd
}

func waitVerify(o *on, peer string, began time.Time) error {
	var different int64
	err := wait(o, 0, func(st *control.Status) (bool, string, error) {
		different = 0
		ended := 0
		for _, p := range st.Peers {
			if peer != "" && p.Name != peer {
				continue
			}
			for _, v := range p.Volumes {
				if o.vol != control.All && v.Number != o.vol {
					continue
				}
				if v.Sync != nil && v.Sync.Kind == "verify" {
					return false, "verifying", nil
				}
				if p.Connection != "Connected" {
					return false, "", control.Errorf(control.Failed, "the connection was lost while verifying").On(o.res, v.Number, p.Name).
						WithHint("hawser verify again when it is back")
				}
				if v.LastSync != nil && v.LastSync.Kind == "verify" && !v.LastSync.Ended.Before(began.Add(-time.Second)) {
					different += v.LastSync.Mismatches
					ended++
				}
			}
		}
		return ended > 0, "the verify has not begun", nil
	})
	if err != nil {
		return err
	}
	if different > 0 {
		return control.Errorf(control.Failed, "%s differ", bytesText(different)).On(o.res, o.vol, "").
			WithHint("they are marked out of sync: hawser disconnect and connect resyncs them")
	}
	o.say("no differences")
	return nil
}

func undoCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "undo", Short: "What a resync overwrote on the losing side of a split brain", GroupID: groupData,
		Args: noArgs, RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() }}
	list := &cobra.Command{
		Use: "list RES[/VOL]", Short: "List the undo logs", Args: oneResource, ValidArgsFunction: names,
		RunE: each(func(o *on) error {
			logs, err := o.c.Undos(o.ctx, o.vol)
			if err != nil {
				return err
			}
			if o.flag("json") {
				return printJSON(o.cmd.OutOrStdout(), logs)
			}
			rows := [][]string{{"VOLUME", "ID", "WON BY", "BEGUN", "SAVED", "STATE"}}
			for _, l := range logs {
				state := "complete"
				if !l.Complete {
					state = "the resync did not end"
				}
				if l.Error != "" {
					state = l.Error
				}
				rows = append(rows, []string{fmt.Sprintf("%s/%d", o.res, l.Volume), l.ID, l.Peer, l.Time.Local().Format(time.DateTime), bytesText(l.Bytes), state})
			}
			table(o.cmd.OutOrStdout(), rows)
			return nil
		}),
	}
	list.Flags().Bool("json", false, "print them as JSON")
	export := &cobra.Command{
		Use: "export RES/VOL ID", Short: "Write the blocks of an undo log to standard output or a file",
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) != 2 || !strings.Contains(args[0], "/") {
				return control.Errorf(control.Usage, "%s: takes RES/VOL and an id", cmd.CommandPath()).WithHint("hawser undo list RES")
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			return each(func(o *on) error { return exportUndo(o, args[1]) })(cmd, args[:1])
		},
	}
	export.Flags().String("output", "", "a file that must not exist yet (default: standard output)")
	cmd.AddCommand(list, export)
	return cmd
}

func exportUndo(o *on, id string) (err error) {
	path := o.text("output")
	if path == "" {
		if f, ok := o.cmd.OutOrStdout().(*os.File); ok && isTerminal(f) {
			return control.Errorf(control.Usage, "blocks do not belong on a terminal").WithHint("--output FILE")
		}
		return o.c.ExportUndo(o.ctx, o.vol, id, o.cmd.OutOrStdout())
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	if err := o.c.ExportUndo(o.ctx, o.vol, id, f); err != nil {
		return join([]error{err, f.Close(), os.Remove(path)})
	}
	return join([]error{f.Sync(), f.Close()})
}
