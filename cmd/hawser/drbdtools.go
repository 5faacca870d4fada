package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/hawser-ha/hawser/agent/config"
	"github.com/hawser-ha/hawser/agent/drbdtools"
)

// toolCode carries the exit code of drbdadm or drbdsetup, which have their own, through cobra. They have said why.
type toolCode int

func (c toolCode) Error() string { return fmt.Sprintf("exit code %d", int(c)) }

// runTool is the program under the name of one of DRBD's tools.
func runTool(ctx context.Context, name string, args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	node, err := config.LoadNode(os.Getenv("HAWSER_CONFIG"), nil)
	out, ok := stdout.(*os.File)
	return drbdtools.Run(ctx, name, args, drbdtools.Options{Node: node, NodeErr: err, Version: versionString(), Stdin: stdin, Stdout: stdout, Stderr: stderr,
		Terminal: ok && isTerminal(out), Getenv: os.Getenv, Now: time.Now})
}

// toolCommands are the same by the name of hawser: hawser drbdadm status.
func toolCommands() []*cobra.Command {
	var list []*cobra.Command
	for _, name := range drbdtools.Names {
		list = append(list, &cobra.Command{
			Use: name + " ARGUMENTS...", Short: "What the program does under the name " + name, Hidden: true, DisableFlagParsing: true,
			RunE: func(cmd *cobra.Command, args []string) error {
				if code := runTool(cmd.Context(), name, args, cmd.InOrStdin(), cmd.OutOrStdout(), cmd.ErrOrStderr()); code != 0 {
					return toolCode(code)
				}
				return nil
			},
		})
	}
	return append(list, doctorCommand())
}

// doctorCommand tells which program a name of DRBD's means on this host.
func doctorCommand() *cobra.Command {
	return &cobra.Command{
		Use: "doctor", Short: "Say whether drbdadm and drbdsetup mean hawser or DRBD on this host", GroupID: groupLook, Args: noArgs,
		Long: `Say for each of the names drbdadm and drbdsetup which program it means here: hawser's,
or that of an installed drbd-utils, and which others are in reach. With both in reach
the first in PATH wins, and programs that call one by its path (/usr/sbin/drbdsetup) get
that one whatever PATH says.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			for _, line := range whichTools(os.Getenv("PATH")) {
				fmt.Fprintln(cmd.OutOrStdout(), line)
			}
			return nil
		},
	}
}

// whichTools looks for the names in PATH and in the folders that programs name by themselves.
func whichTools(path string) []string {
	self, err := os.Executable()
	if err == nil {
		self, err = filepath.EvalSymlinks(self)
	}
	if err != nil {
		self = ""
	}
	var lines []string
	ours, theirs := false, false
	for _, name := range drbdtools.Names[:2] {
		var seen, found []string
		for _, dir := range slices.Concat(filepath.SplitList(path), []string{"/usr/sbin", "/sbin"}) {
			file, err := exec.LookPath(filepath.Join(dir, name))
			if err != nil || dir == "" {
				continue
			}
			real, err := filepath.EvalSymlinks(file)
			if err != nil || slices.Contains(seen, real) {
				continue
			}
			seen = append(seen, real)
			what := "not hawser's: drbd-utils, or another"
			if real == self || isHawser(real) {
				what, ours = "hawser", true
			} else {
				theirs = true
			}
			found = append(found, fmt.Sprintf("%s (%s)", file, what))
		}
		switch len(found) {
		case 0:
			lines = append(lines, name+": not in PATH")
		default:
			lines = append(lines, name+": "+strings.Join(found, ", then "))
		}
	}
	if ours && theirs {
		lines = append(lines, "both are in reach: the first of each line is what the bare name means")
	}
	return lines
}

// isHawser tells whether another copy of this program stands behind a name.
func isHawser(file string) bool { return filepath.Base(file) == "hawser" }
