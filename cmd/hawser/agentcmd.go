package main

import (
	"io"
	"log/slog"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/hawser-ha/hawser/agent"
	"github.com/hawser-ha/hawser/replicator/control"
)

func agentCommand() *cobra.Command {
	return &cobra.Command{
		Use: "agent", Short: "Run the agent of this node", GroupID: groupDaemon, Args: noArgs,
		Long: `Run the agent of this node. It serves the local API on RUNDIR/agent.sock, starts one
replicator process for each resource that is up, and adopts those that run already.
When it ends, the replicators go on. Several agents run on one machine when node,
run-dir, state-dir and resources-dir differ (also HAWSER_NODE, HAWSER_RUN_DIR, ...).`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			node, err := loadNode(cmd)
			if err != nil {
				return err
			}
			log, err := newLog(cmd.ErrOrStderr(), node.Log.Level, node.Log.Format)
			if err != nil {
				return err
			}
			self, err := os.Executable()
			if err != nil {
				return err
			}
			signal.Ignore(syscall.SIGPIPE, syscall.SIGHUP)
			return agent.Run(cmd.Context(), agent.Config{Node: node, Version: versionString(), Replicator: []string{self, "replicator"},
				Etcd: memberCommand(cmd, node, self), Log: log})
		},
	}
}

func newLog(w io.Writer, level, format string) (*slog.Logger, error) {
	var l slog.Level
	if err := l.UnmarshalText([]byte(level)); err != nil {
		return nil, control.Errorf(control.Usage, "log-level %q: %w", level, err)
	}
	o := &slog.HandlerOptions{Level: l}
	switch format {
	case "json":
		return slog.New(slog.NewJSONHandler(w, o)), nil
	case "text":
		return slog.New(slog.NewTextHandler(w, o)), nil
	}
	return nil, usage("log-format %q is neither text nor json", format)
}
