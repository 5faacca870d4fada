// Command nbdguest runs inside a test machine, where the kernel has nbd.
//
//	nbdguest serve -file DEV -id ID [-size BYTES] [-grow BYTES] [-wait DURATION]
//	nbdguest write -file FILE
//
// serve exports DEV through the NBD server and attaches it to the kernel. Signals drive it: TERM detaches, INT
// detaches by force, USR1 releases the device for the next process, USR2 grows the volume, HUP breaks
// the connection; each says on
// standard output what came of it. write writes numbered blocks until TERM, then reads all of them back and
// reports; its exit status is 1 when a write failed or a block is not what was written last.
package main

import (
	"bytes"
	"context"
	"encoding/binary"
	"flag"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/signal"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hawser-ha/hawser/replicator/export/kernelnbd"
	"github.com/hawser-ha/hawser/replicator/export/nbd"
	"github.com/hawser-ha/hawser/replicator/memguard"
)

func main() {
	if len(os.Args) < 2 {
		fmt.Fprintln(os.Stderr, "usage: nbdguest serve|write ...")
		os.Exit(2)
	}
	fs := flag.NewFlagSet(os.Args[1], flag.ExitOnError)
	file := fs.String("file", "", "device or file")
	id := fs.String("id", "", "backend identifier")
	size := fs.Int64("size", 64<<20, "bytes to export")
	grown := fs.Int64("grow", 128<<20, "bytes to export after USR2")
	wait := fs.Duration("wait", 30*time.Second, "longest attach")
	if err := fs.Parse(os.Args[2:]); err != nil {
		os.Exit(2)
	}
	var err error
	switch os.Args[1] {
	case "serve":
		err = serve(*file, *id, *size, *grown, *wait)
	case "write":
		err = write(*file)
	default:
		err = fmt.Errorf("what is %s?", os.Args[1])
	}
	if err != nil {
		fmt.Println("error:", err)
		os.Exit(1)
	}
}

func serve(file, id string, size, grown int64, wait time.Duration) error {
	log := slog.New(slog.NewTextHandler(os.Stdout, &slog.HandlerOptions{Level: slog.LevelDebug}))
	memguard.Protect(log)
	v, err := openVolume(file, size)
	if err != nil {
		return err
	}
	srv := nbd.New(nbd.Config{Log: log})
	if err := srv.Add("vol", "", v); err != nil {
		return err
	}
	signals := make(chan os.Signal, 8)
	signal.Notify(signals, unix.SIGTERM, unix.SIGINT, unix.SIGUSR1, unix.SIGUSR2, unix.SIGHUP)
	ctx, cancel := context.WithTimeout(context.Background(), wait)
	var conn atomic.Pointer[net.Conn] // the newest
	d, err := kernelnbd.Attach(ctx, kernelnbd.Config{
		ID: id, Export: "vol", BlockSize: 512, Log: log,
		Serve: func(c net.Conn) {
			conn.Store(&c)
			srv.ServeSimple(c)
		},
	})
	cancel()
	if err != nil {
		return err
	}
	fmt.Println("serving", d.Path(), "flusher", memguard.IsFlusher())
	for s := range signals {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		err := error(nil)
		switch s {
		case unix.SIGUSR2:
			v.resize(grown)
			err = d.Resize(ctx, grown)
		case unix.SIGHUP:
			err = (*conn.Load()).Close()
		case unix.SIGUSR1:
			d.Release()
		case unix.SIGTERM, unix.SIGINT:
			err = d.Detach(ctx, s == unix.SIGINT)
		}
		cancel()
		fmt.Printf("%s: %v\n", unix.SignalName(s.(syscall.Signal)), err)
		if err == nil && s != unix.SIGUSR2 && s != unix.SIGHUP {
			return nil
		}
	}
	return nil
}

// write keeps blocks of one file under test. Each write is synchronous and bypasses the page cache.
func write(file string) error {
	const block, blocks = 4096, 512
	f, err := os.OpenFile(file, os.O_RDWR|os.O_CREATE|unix.O_DIRECT|unix.O_DSYNC, 0o600)
	if err != nil {
		return err
	}
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, unix.SIGTERM)
	buf, err := unix.Mmap(-1, 0, block, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE) // aligned
	if err != nil {
		return err
	}
	var last [blocks]uint64
	var stall time.Duration
	writes := uint64(0)
	fill := func(n uint64) {
		for i := 0; i < block; i += 8 {
			binary.LittleEndian.PutUint64(buf[i:], n)
		}
	}
	for running := true; running; {
		select {
		case <-stop:
			running = false
			continue
		default:
		}
		writes++
		at := writes * 7 % blocks
		fill(writes)
		began := time.Now()
		if _, err := f.WriteAt(buf, int64(at)*block); err != nil {
			return fmt.Errorf("write %d: %w", writes, err)
		}
		stall = max(stall, time.Since(began))
		last[at] = writes
		if writes%64 == 0 {
			if err := os.WriteFile("/run/writes", fmt.Append(nil, writes), 0o600); err != nil {
				return err
			}
		}
	}
	for at, n := range last {
		if n == 0 {
			continue
		}
		if _, err := f.ReadAt(buf, int64(at)*block); err != nil {
			return fmt.Errorf("read back: %w", err)
		}
		got := bytes.Clone(buf)
		if fill(n); !bytes.Equal(got, buf) {
			return fmt.Errorf("block %d holds write %d, not %d", at, binary.LittleEndian.Uint64(got), n)
		}
	}
	fmt.Println(strings.Join([]string{"verified", fmt.Sprint(writes), "writes, longest", stall.Round(time.Millisecond).String()}, " "))
	return f.Close()
}
