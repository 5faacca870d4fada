package drbdtools

import (
	"context"
	"errors"
	"os"
	"os/exec"

	"github.com/hawser-ha/hawser/agent/compat"
)

// runHandler runs a handler's command with a shell and gives its exit code.
func (c *call) runHandler(ctx context.Context, g *target, command string) (int, error) {
	cmd := exec.CommandContext(ctx, "/bin/sh", "-c", command)
	cmd.Env = append(os.Environ(), c.environment(g)...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = c.Stdin, c.Stdout, c.Stderr
	err := cmd.Run()
	if e, ok := errors.AsType[*exec.ExitError](err); ok && e.ExitCode() >= 0 {
		return e.ExitCode(), nil
	}
	return 0, err
}

// quoteShell writes a word as a shell reads it.
func quoteShell(word string) string { return compat.Quote(word) }
