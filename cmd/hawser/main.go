// Command hawser keeps a block device alive on two or three machines: agent, replicator and their command line.
//
// Exit codes: 0 done, 1 failed or refused, 2 usage, 3 outcome unknown, 4 not there (no such resource, or it is surely
// down, or the agent is).
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"runtime/debug"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/hawser-ha/hawser/agent/drbdtools"
	"github.com/hawser-ha/hawser/replicator/control"
	"github.com/hawser-ha/hawser/replicator/memguard"
)

// version is set by the linker (make build).
var version = ""

func versionString() string {
	if version != "" {
		return version
	}
	if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" {
		return info.Main.Version
	}
	return "unknown"
}

func main() {
	if len(os.Args) > 1 && os.Args[1] == "replicator" && !hasFlag(os.Args, "--task") && !hasFlag(os.Args, "--help") {
		// First of all: it may replace the process by a fresh image of itself.
		memguard.Protect(slog.New(slog.NewTextHandler(os.Stderr, nil)))
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	var code int
	if name, ok := drbdtools.Is(os.Args[0]); ok {
		code = runTool(ctx, name, os.Args[1:], os.Stdin, os.Stdout, os.Stderr)
	} else {
		code = execute(ctx, os.Args[1:], os.Stdin, os.Stdout, os.Stderr)
	}
	stop()
	os.Exit(code)
}

func hasFlag(args []string, flag string) bool {
	for _, a := range args {
		if a == flag {
			return true
		}
	}
	return false
}

// execute runs one command line and gives its exit code.
func execute(ctx context.Context, args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	root := newRoot()
	root.SetArgs(args)
	root.SetIn(stdin)
	root.SetOut(stdout)
	root.SetErr(stderr)
	cmd, err := root.ExecuteContextC(ctx)
	if err == nil {
		return control.ExitDone
	}
	if code, ok := errors.AsType[toolCode](err); ok {
		return int(code)
	}
	if flag := cmd.Flags().Lookup("json"); flag != nil && flag.Value.String() == "true" {
		data, merr := json.Marshal(control.AsError(err))
		if merr == nil {
			fmt.Fprintln(stderr, string(data))
			return exitCode(err)
		}
	}
	printError(stderr, err)
	return exitCode(err)
}

// printError says what went wrong, where, and what to do next; a joined error takes several lines.
func printError(w io.Writer, err error) {
	if many, ok := err.(interface{ Unwrap() []error }); ok {
		for _, e := range many.Unwrap() {
			printError(w, e)
		}
		return
	}
	fmt.Fprintf(w, "hawser: %s\n", strings.TrimSpace(err.Error()))
	if e, ok := errors.AsType[*control.Error](err); ok && e.Hint != "" {
		fmt.Fprintf(w, "  next: %s\n", e.Hint)
	}
}

// usage makes an error of the kind that ends with exit code 2.
func usage(format string, args ...any) error {
	return control.Errorf(control.Usage, format, args...)
}

func newRoot() *cobra.Command {
	root := &cobra.Command{
		Use:   "hawser",
		Short: "A block device that lives on two machines",
		Long: `hawser replicates block devices between machines, in user space.

A resource is a set of volumes with one role on each node; files in resources-dir
define it. RES is its name, RES/VOL one volume of it, and all stands for every
resource of this node.

Exit codes: 0 done, 1 failed or refused, 2 usage, 3 outcome unknown, 4 not there.`,
		SilenceUsage:  true,
		SilenceErrors: true,
		Version:       versionString(),
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return nil
			}
			e := control.Errorf(control.Usage, "there is no command %q", args[0])
			if near := cmd.SuggestionsFor(args[0]); len(near) > 0 {
				return e.WithHint("hawser " + near[0])
			}
			return e.WithHint("hawser --help")
		},
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		return control.Errorf(control.Usage, "%s: %w", cmd.CommandPath(), err).WithHint(cmd.CommandPath() + " --help")
	})
	root.SuggestionsMinimumDistance = 2
	root.AddGroup(&cobra.Group{ID: groupLife, Title: "Bring up and down:"}, &cobra.Group{ID: groupUse, Title: "Use:"},
		&cobra.Group{ID: groupData, Title: "Repair and check the data:"}, &cobra.Group{ID: groupLook, Title: "Look:"},
		&cobra.Group{ID: groupDaemon, Title: "Daemons:"})
	nodeFlags(root)
	root.AddCommand(lifeCommands()...)
	root.AddCommand(useCommands()...)
	root.AddCommand(dataCommands()...)
	root.AddCommand(lookCommands()...)
	root.AddCommand(agentCommand(), replicatorCommand(), etcdCommand(), manCommand(), importCommand(), pacemakerCommand(), fenceCommand())
	root.AddCommand(toolCommands()...)
	return root
}

// Groups of commands in the help.
const (
	groupLife   = "life"
	groupUse    = "use"
	groupData   = "data"
	groupLook   = "look"
	groupDaemon = "daemon"
)
