package main

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/hawser-ha/hawser/agent/config"
	"github.com/hawser-ha/hawser/replicator/control"
)

func importCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "import FILE [RES...]", Short: "Make resource files of a drbd.conf", GroupID: groupLife,
		Long: `Read a configuration of DRBD 8.3 to 9, with all that it includes, and write each of its
resources that has a host section for this node as RES.yaml into resources-dir.

Every option is done as it is written, or named by a warning that says what hawser does
instead; the warnings also stand in the files. A file with errors, or with a resource
that hawser cannot run, is not imported, unless the resources to take are named.
Nothing is overwritten without --force, and nothing is started.

A drbd.conf may also stay as it is: *.res and *.conf in resources-dir are read like
YAML files.`,
		Example: `  hawser import /etc/drbd.conf --dry-run
  hawser import /etc/drbd.conf r0 r1`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return control.Errorf(control.Usage, "%s: which file?", cmd.CommandPath()).WithHint(cmd.CommandPath() + " /etc/drbd.conf")
			}
			return nil
		},
		RunE: runImport,
	}
	cmd.Flags().Bool("dry-run", false, "print the files, write none")
	cmd.Flags().Bool("force", false, "overwrite files that are there")
	cmd.Flags().Bool("all", false, "also take resources that have no host section for this node")
	return cmd
}

func runImport(cmd *cobra.Command, args []string) error {
	node, err := loadNode(cmd)
	if err != nil {
		return err
	}
	flags := map[string]bool{}
	for _, name := range []string{"dry-run", "force", "all"} {
		if flags[name], err = cmd.Flags().GetBool(name); err != nil {
			return err
		}
	}
	if _, err := os.Stat(args[0]); err != nil {
		e := control.Errorf(control.NotFound, "%w", err)
		if errors.Is(err, fs.ErrNotExist) && !filepath.IsAbs(args[0]) {
			return e.WithHint("hawser import " + filepath.Join("/etc", args[0]))
		}
		return e
	}
	o := config.DRBDOptions{Node: node.Node, Local: config.LocalAddress, Only: args[1:], All: flags["all"]}
	files, warnings, err := config.Import(args[0], node.ResourcesDir, o)
	for _, w := range warnings {
		level := "warning"
		if w.Note {
			level = "note"
		}
		fmt.Fprintf(cmd.ErrOrStderr(), "%s: %v\n", level, w)
	}
	if err != nil {
		return control.Errorf(control.BadDefinition, "nothing was written:\n%w", err).WithHint("correct this, or name the resources to take: hawser import " + args[0] + " RES...")
	}
	if len(files) == 0 {
		return control.Errorf(control.NotFound, "%s has no resource for node %s", args[0], node.Node).WithHint("hawser import " + args[0] + " --all, or --node NAME")
	}
	return writeImport(cmd, files, flags["dry-run"], flags["force"])
}

func writeImport(cmd *cobra.Command, files []config.ImportFile, dry, force bool) error {
	var there []string
	for _, f := range files {
		if f.Exists {
			there = append(there, f.Path)
		}
	}
	if len(there) > 0 && !force && !dry {
		return control.Errorf(control.Refused, "nothing was written: there is already %s", strings.Join(there, ", ")).WithHint("--force overwrites, --dry-run shows what would be written")
	}
	for _, f := range files {
		if dry {
			fmt.Fprintf(cmd.OutOrStdout(), "---\n%s", f.Data)
			continue
		}
		if err := os.MkdirAll(filepath.Dir(f.Path), 0o755); err != nil {
			return err
		}
		if err := f.Write(force); err != nil {
			return control.Errorf(control.Failed, "%w", err).On(f.Resource, control.All, "")
		}
		fmt.Fprintln(cmd.OutOrStdout(), f.Path)
	}
	return nil
}

func dumpCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "dump RES...", Short: "Print the definition of a resource in canonical form", GroupID: groupLook,
		Long: `Print the definition of resources in canonical form, as YAML or in the syntax of
drbd.conf. What drbd.conf cannot say is left out and named on the standard error.`,
		Args: resources, ValidArgsFunction: names, RunE: runDump,
	}
	cmd.Flags().String("format", "yaml", "yaml or drbd")
	return cmd
}

func runDump(cmd *cobra.Command, args []string) error {
	format, err := cmd.Flags().GetString("format")
	if err != nil {
		return err
	}
	if format == "yaml" {
		return each(func(o *on) error { return o.c.Copy(o.ctx, "file", nil, o.cmd.OutOrStdout()) })(cmd, args)
	}
	if format != "drbd" {
		return usage("--format %s: it is yaml or drbd", format)
	}
	var all []config.Resource // together: each volume needs a minor number of its own
	err = each(func(o *on) error {
		var b bytes.Buffer
		if err := o.c.Copy(o.ctx, "file", nil, &b); err != nil {
			return err
		}
		rs, err := config.Parse("", b.Bytes())
		all = append(all, rs...)
		return err
	})(cmd, args)
	text, warnings := config.MarshalDRBD(all)
	for _, w := range warnings {
		fmt.Fprintf(cmd.ErrOrStderr(), "warning: %v\n", w)
	}
	if _, werr := cmd.OutOrStdout().Write(text); werr != nil {
		return werr
	}
	return err
}
