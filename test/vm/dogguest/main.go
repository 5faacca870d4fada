// Command dogguest runs inside a test machine and leads, as far as its watchdog knows: it arms the watchdog and renews
// its licence until it is stopped, killed, or ended by TERM. Each line on standard output is a fact.
//
//	dogguest MODE DEVICE
package main

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hawser-ha/hawser/fencing/watchdog"
)

const (
	licence = 10 * time.Second
	timeout = 4 * time.Second
)

func now() time.Duration {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts); err != nil {
		panic(err)
	}
	return time.Duration(ts.Nano())
}

func main() {
	if err := run(); err != nil {
		fmt.Println("error:", err)
		os.Exit(1)
	}
}

func run() error {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	d, err := watchdog.New(watchdog.Options{Mode: watchdog.Mode(os.Args[1]), Path: os.Args[2], Timeout: timeout, Marker: "/run/watchdog.json", Log: slog.New(slog.NewTextHandler(os.Stdout, nil))})
	if err != nil {
		return err
	}
	ended := make(chan error, 1)
	go func() { ended <- d.Run(ctx) }()
	fmt.Println("adopted:", d.Status().Armed)
	if err := d.MayLead(); err != nil {
		return err
	}
	if err := d.Arm(now() + licence); err != nil {
		return err
	}
	fmt.Printf("armed: %v %s\n", d.Status().Armed, d.Status().Identity)
	t := time.NewTicker(time.Second)
	defer t.Stop()
	for {
		select {
		case <-t.C:
			if err := d.Extend(now() + licence); err != nil {
				return err
			}
		case err := <-ended:
			fmt.Println("ended:", err)
			return err
		}
	}
}
