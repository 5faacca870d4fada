// Command hawser-check writes recognisable blocks to a volume, and judges afterwards whether its replicas kept every
// acknowledged write; see package check.
//
//	hawser-check run --log FILE --target URI|PATH... [--duration 30s] [--writers 2] [--depth 4]
//	hawser-check verdict --log FILE --size BYTES NAME=URI|PATH...
//
// URIs are nbd://HOST:PORT/EXPORT and nbd+unix:///EXPORT?socket=PATH. The targets are tried in turn whenever a server is lost.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/hawser-ha/hawser/test/check"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	root := &cobra.Command{Use: "hawser-check", Short: "Write recognisable blocks and judge the replicas", SilenceUsage: true, SilenceErrors: true}
	root.AddCommand(runCommand(), verdictCommand())
	if err := root.ExecuteContext(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "hawser-check:", err)
		os.Exit(1)
	}
}

// target reads a URI or a path.
func target(text string, timeout time.Duration, direct bool) (check.Target, error) {
	if strings.HasPrefix(text, "nbd") && strings.Contains(text, "://") {
		return check.NBD(text, timeout)
	}
	return check.File(text, direct), nil
}

func runCommand() *cobra.Command {
	var (
		o                 check.Options
		log               string
		targets           []string
		duration, timeout time.Duration
	)
	cmd := &cobra.Command{Use: "run", Short: "Write and read until the duration is over or ^C", Args: cobra.NoArgs}
	f := cmd.Flags()
	f.StringVar(&log, "log", "", "`file` for the log of every operation; it must not exist")
	f.StringArrayVar(&targets, "target", nil, "`URI` or path; several are tried in turn")
	f.DurationVar(&duration, "duration", 30*time.Second, "how long")
	f.DurationVar(&timeout, "timeout", 30*time.Second, "of one request; then the connection is given up")
	f.IntVar(&o.Writers, "writers", 2, "clients with a session each")
	f.IntVar(&o.Depth, "depth", 4, "requests in flight of each")
	f.IntVar(&o.Runs, "runs", 256, "places on the volume that are used")
	f.IntVar(&o.RunLen, "run-length", 16, "blocks of each place")
	f.IntVar(&o.Reads, "reads", 30, "percent")
	f.IntVar(&o.Flushes, "flushes", 3, "percent, of flushes and FUA writes each")
	f.IntVar(&o.Rate, "rate", 0, "requests/s of all together; 0: no limit")
	f.Uint64Var(&o.Seed, "seed", 1, "of the random choices")
	f.BoolVar(&o.Shared, "shared", false, "all writers write to all blocks")
	_ = cmd.MarkFlagRequired("log")    // they exist
	_ = cmd.MarkFlagRequired("target") //
	cmd.RunE = func(cmd *cobra.Command, _ []string) (err error) {
		out, err := os.OpenFile(log, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o644)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, out.Close()) }()
		o.History = check.NewHistory(out)
		for _, text := range targets {
			t, err := target(text, timeout, true)
			if err != nil {
				return err
			}
			o.Targets = append(o.Targets, t)
		}
		w, err := check.Start(cmd.Context(), o)
		if err != nil {
			return err
		}
		select {
		case <-cmd.Context().Done():
		case <-time.After(duration):
		}
		st := w.Stop()
		fmt.Fprintf(cmd.OutOrStdout(), "%d writes, %d reads, %d flushes, %d sessions of which %d broke, slowest request %d ms, errors %v\n",
			st.Writes, st.Reads, st.Flushes, st.Sessions, st.Broken, st.MaxLatency.Milliseconds(), st.Errors)
		return o.History.Flush()
	}
	return cmd
}

func verdictCommand() *cobra.Command {
	var (
		rules check.Rules
		log   string
	)
	cmd := &cobra.Command{Use: "verdict NAME=URI|PATH...", Short: "Judge the replicas by the log; exit code 1 if a promise was broken", Args: cobra.MinimumNArgs(1)}
	f := cmd.Flags()
	f.StringVar(&log, "log", "", "`file` that run has written")
	f.Int64Var(&rules.Size, "size", 0, "bytes of the volume, for --identical")
	f.BoolVar(&rules.Identical, "identical", false, "the replicas must be equal in every byte")
	f.BoolVar(&rules.FlushedOnly, "flushed-only", false, "all nodes lost power: only what was flushed must be there")
	f.IntVar(&rules.Lin, "order", 0, "blocks checked for linearizability; 0: 64, -1: none")
	_ = cmd.MarkFlagRequired("log") // it exists
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if rules.Identical && rules.Size <= 0 {
			return errors.New("--identical needs --size")
		}
		in, err := os.Open(log)
		if err != nil {
			return err
		}
		defer in.Close()
		h, err := check.LoadHistory(in)
		if err != nil {
			return fmt.Errorf("%s: %w", log, err)
		}
		var replicas []check.Replica
		for _, a := range args {
			name, where, ok := strings.Cut(a, "=")
			if !ok {
				return fmt.Errorf("%s: NAME=URI or NAME=PATH is wanted", a)
			}
			r, err := replica(cmd.Context(), where)
			if err != nil {
				return err
			}
			defer r.Close()
			replicas = append(replicas, check.Replica{Name: name, ReaderAt: r})
		}
		v, err := check.Verify(cmd.Context(), h, replicas, rules)
		if err != nil {
			return err
		}
		fmt.Fprintln(cmd.OutOrStdout(), v)
		return v.Err()
	}
	return cmd
}

type readerCloser interface {
	io.ReaderAt
	io.Closer
}

func replica(ctx context.Context, where string) (readerCloser, error) {
	if !strings.Contains(where, "://") {
		return os.Open(where)
	}
	t, err := target(where, 30*time.Second, true)
	if err != nil {
		return nil, err
	}
	return t(ctx)
}
