// Command servicerun drives the service chains of one resource from a shell, for tests: it adopts what an earlier call
// started, starts or stops a chain, and ends; the services go on. It stands where the agent's HA loop is.
//
//	servicerun --node n1 --run-dir DIR --resources-dir DIR r0 start|stop primary|secondary|always
//	servicerun ... r0 status
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"time"

	"github.com/hawser-ha/hawser/agent/config"
	"github.com/hawser-ha/hawser/agent/service"
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run() error {
	node := flag.String("node", "", "name of this node")
	runDir := flag.String("run-dir", "", "folder of the agent's sockets")
	resources := flag.String("resources-dir", "", "folder of the resource files")
	limit := flag.Duration("timeout", 2*time.Minute, "for all of it")
	flag.Parse()
	ctx, cancel := context.WithTimeout(context.Background(), *limit)
	defer cancel()
	set, err := config.Load(*resources)
	if err != nil {
		return err
	}
	res, ok := set.Resource(flag.Arg(0))
	if !ok {
		return fmt.Errorf("no resource %s in %s", flag.Arg(0), *resources)
	}
	if err := service.CheckAgents(ctx, "", res); err != nil {
		return err
	}
	log := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelDebug}))
	g, err := service.NewGroup(service.Options{Node: *node, RunDir: *runDir, Log: log})
	if err != nil {
		return err
	}
	r, err := g.New(service.DefinitionOf(res))
	if err != nil {
		return err
	}
	if err := r.Adopt(ctx); err != nil {
		return err
	}
	drive, end := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() { ended <- r.Run(drive) }()
	switch role := service.Role(flag.Arg(2)); flag.Arg(1) {
	case "start":
		err = r.Start(ctx, role)
	case "stop":
		err = r.Stop(ctx, role)
	case "status":
	default:
		err = fmt.Errorf("%q is none of start, stop, status", flag.Arg(1))
	}
	out, jsonErr := json.Marshal(r.Status())
	fmt.Println(string(out))
	end()
	if runErr := <-ended; err == nil {
		err = runErr
	}
	if err == nil {
		err = jsonErr
	}
	return err
}
