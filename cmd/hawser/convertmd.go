package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/hawser-ha/hawser/replicator/control"
)

func convertMDCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "convert-md RES[/VOL]...", Short: "Convert metadata from or to that of DRBD 8.4, in place", GroupID: groupLife,
		Long: `Convert the metadata on the local disks of a resource that is down, in place, to
version 9 (hawser, DRBD 9) or, with --to v08, to version 8 (DRBD 8.4 in the kernel).
Data, bitmap, activity log and generation stay: nothing is resynced that would not be
without it. Version 8 has room for one peer.`,
		Example: `  hawser convert-md r0 --dry-run
  hawser convert-md r0 --to v08`,
		Args: resources, ValidArgsFunction: names, RunE: each(convertMD),
	}
	cmd.Flags().String("to", "v09", "version to have: v08, v09")
	cmd.Flags().Bool("dry-run", false, "say what would happen")
	cmd.Flags().Bool("json", false, "print the result as JSON")
	return cmd
}

func convertMD(o *on) error {
	name, err := o.cmd.Flags().GetString("to")
	if err != nil {
		return err
	}
	to, ok := map[string]int{"v08": 8, "v09": 9}[name]
	if !ok {
		return usage("--to %s: it is v08 or v09", name)
	}
	var did []control.ConvertMDResult
	if err := o.c.Call(o.ctx, "convert-md", control.ConvertMDOptions{Volume: o.vol, To: to, DryRun: o.flag("dry-run")}, &did); err != nil {
		return err
	}
	if o.flag("json") {
		return printJSON(o.cmd.OutOrStdout(), did)
	}
	for _, r := range did {
		what := "is of version v0%[1]d already"
		switch {
		case r.Converted:
			what = "converted from v0%[2]d to v0%[1]d"
		case r.From != r.To:
			what = "would be converted from v0%[2]d to v0%[1]d"
		}
		fmt.Fprintf(o.cmd.OutOrStdout(), "%s/%d: metadata on %s %s, generation %s\n", o.res, r.Volume, r.Disk, fmt.Sprintf(what, r.To, r.From), r.Current)
	}
	return nil
}
