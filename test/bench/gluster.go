package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
)

const glusterPort = "49152"

// translator is one volume of a GlusterFS volume file.
func translator(name, kind, subvolumes string, options ...string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "volume %s\n    type %s\n", name, kind)
	if subvolumes != "" {
		fmt.Fprintf(&b, "    subvolumes %s\n", subvolumes)
	}
	for _, o := range options {
		fmt.Fprintf(&b, "    option %s\n", o)
	}
	b.WriteString("end-volume\n")
	return b.String()
}

// brickGraph is what glusterd puts into a brick, less the translators that are off by default.
func brickGraph(dir string) string {
	return translator("posix", "storage/posix", "", "directory "+dir, "fips-mode-rchecksum on") +
		translator("acl", "features/access-control", "posix", "enabled on") +
		translator("locks", "features/locks", "acl", "enforce-mandatory-lock off") +
		translator("upcall", "features/upcall", "locks", "cache-invalidation off") +
		translator("threads", "performance/io-threads", "upcall", "thread-count 16") +
		translator("brick", "features/index", "threads", "index-base "+dir+"/.glusterfs/indices", "xattrop-dirty-watchlist trusted.afr.dirty",
			"xattrop-pending-watchlist trusted.afr.") +
		translator("server", "protocol/server", "brick", "transport-type tcp", "transport.socket.listen-port "+glusterPort, "auth.addr.brick.allow *")
}

// clientGraph writes to both bricks; O_DIRECT passes by write-behind, whose acknowledgements would mean nothing.
func clientGraph() string {
	remote := func(name, host string) string {
		return translator(name, "protocol/client", "", "transport-type tcp", "remote-host "+host, "remote-port "+glusterPort, "remote-subvolume brick")
	}
	return remote("brick-a", addrA) + remote("brick-b", addrB) +
		translator("replicated", "cluster/replicate", "brick-a brick-b", "afr-pending-xattr brick-a,brick-b", "use-anonymous-inode yes", "granular-entry-heal on") +
		translator("utime", "features/utime", "replicated", "noatime on") +
		translator("write-behind", "performance/write-behind", "utime", "strict-O_DIRECT on") +
		translator("open-behind", "performance/open-behind", "write-behind", "pass-through off") +
		translator("quick-read", "performance/quick-read", "open-behind", "pass-through off") +
		translator("md-cache", "performance/md-cache", "quick-read", "pass-through off") +
		translator("stats", "debug/io-stats", "md-cache", "count-fop-hits off")
}

// upGluster starts a replica 2 volume without glusterd, bricks on hosts a and b, and mounts it on host a.
func upGluster(w *world, p *peer) error {
	if err := w.network(); err != nil {
		return err
	}
	dir := filepath.Join(p.dir, p.name)
	w.defers(p, func() error { return os.RemoveAll(dir) })
	start := func(host, name, graph string, args ...string) error {
		file := filepath.Join(dir, name+".vol")
		if err := os.WriteFile(file, []byte(graph), 0o600); err != nil {
			return err
		}
		args = append([]string{args[0], "-N", "-f", file, "-l", filepath.Join(dir, name+".log")}, args[1:]...)
		cmd, err := w.daemon(p, host, args...)
		if err == nil {
			p.pids = append(p.pids, cmd.Process.Pid)
		}
		return err
	}
	for _, h := range []string{"b", "a"} {
		brick := filepath.Join(dir, h)
		if err := os.MkdirAll(filepath.Join(brick, ".glusterfs", "indices"), 0o755); err != nil {
			return err
		}
		if err := start(h, "brick-"+h, brickGraph(brick), "glusterfsd"); err != nil {
			return err
		}
		args := inside(h, "bash", "-c", ": </dev/tcp/127.0.0.1/"+glusterPort)
		if err := w.until("brick "+h, func() bool { return exec.Command(args[0], args[1:]...).Run() == nil }); err != nil {
			return err
		}
	}
	mount := filepath.Join(dir, "mount")
	if err := os.MkdirAll(mount, 0o755); err != nil {
		return err
	}
	if err := start("a", "client", clientGraph(), "glusterfs", mount); err != nil {
		return err
	}
	w.defers(p, func() error {
		if err := syscall.Unmount(mount, syscall.MNT_DETACH); err != nil && !errors.Is(err, syscall.EINVAL) {
			return fmt.Errorf("unmount %s: %w", mount, err)
		}
		return nil
	})
	if err := w.until("GlusterFS mount", func() bool { return exec.Command("mountpoint", "-q", mount).Run() == nil }); err != nil {
		return err
	}
	p.target = filepath.Join(mount, "file")
	p.a, p.b = filepath.Join(dir, "a", "file"), filepath.Join(dir, "b", "file")
	return w.until("replication of GlusterFS", func() bool { return blank(p.target) == nil && exists(p.a) && exists(p.b) })
}
