// Command faultfs mounts a folder with one file, "disk", that fails on command; see package faultfs.
package main

import (
	"flag"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"syscall"

	"github.com/hawser-ha/hawser/test/faultfs"
)

func main() {
	var o faultfs.Options
	flag.StringVar(&o.Backing, "backing", "", "backing `file`")
	flag.StringVar(&o.Dir, "dir", "", "mount `point`")
	flag.StringVar(&o.Socket, "socket", "", "unix `socket` for commands")
	flag.BoolVar(&o.Volatile, "volatile", false, "keep writes in memory until they are flushed")
	flag.Parse()
	if o.Backing == "" || o.Dir == "" || flag.NArg() > 0 {
		flag.Usage()
		os.Exit(2)
	}
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, syscall.SIGINT, syscall.SIGTERM)
	fs, err := faultfs.Mount(slog.New(slog.NewTextHandler(os.Stderr, nil)), o)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	fmt.Println("ready")
	<-stop
	if err := fs.Close(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
