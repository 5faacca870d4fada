package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// peer is one running program or pair of programs.
type peer struct {
	name    string
	dir     string // folder for its disks
	target  string // NBD URI, or file on a mounted file system
	pids    []int  // daemons
	a, b    string // its disks, when it has two
	cluster *cluster
	undo    []func() error
}

// spec says how a peer is started.
type spec struct {
	name  string
	tools []string
	up    func(w *world, p *peer) error
}

func (s *spec) missing() string {
	for _, t := range s.tools {
		if _, err := exec.LookPath(t); err != nil {
			return t
		}
	}
	return ""
}

// group is what is measured side by side.
type group struct {
	name      string
	shm       bool // disks on tmpfs
	roundTrip bool // measure the network beside it
	peers     []spec
}

func (g *group) folder(w *world) string {
	if g.shm {
		return w.shm
	}
	return w.disk
}

var groups = []group{
	{name: "tmpfs", shm: true, peers: []spec{
		{"hawser", nil, upHawser},
		{"nbdkit", []string{"nbdkit"}, upNbdkit},
	}},
	{name: "disk", peers: []spec{
		{"hawser", nil, upHawser},
		{"qemu-nbd", []string{"qemu-nbd"}, upQemuNBD},
	}},
	{name: "pair", roundTrip: true, peers: []spec{
		{"hawser", nil, upHawser},
		{"hawser-c", nil, upHawserPair},
		{"qemu-quorum", []string{"qemu-nbd", "qemu-storage-daemon"}, upQuorum},
		{"qemu-mirror", []string{"qemu-nbd", "qemu-storage-daemon"}, upMirror},
		{"gluster-sync", []string{"glusterfsd", "glusterfs"}, upGluster},
	}},
}

func peerNames() []string {
	var names []string
	for _, g := range groups {
		for _, s := range g.peers {
			if !strings.Contains(" "+strings.Join(names, " ")+" ", " "+s.name+" ") {
				names = append(names, s.name)
			}
		}
	}
	return append(names, "hawser-beside", "hawser-c-beside")
}

// disk makes a backing file of p.
func (p *peer) disk(w *world, suffix string) (string, error) {
	path := filepath.Join(p.dir, p.name+suffix)
	w.defers(p, func() error { return os.Remove(path) })
	return path, blank(path)
}

// served waits until p's NBD server answers.
func (w *world) served(p *peer) error {
	return w.until("NBD server of "+p.name, func() bool { return exec.Command("nbdinfo", "--size", p.target).Run() == nil })
}

func upNbdkit(w *world, p *peer) error {
	path, err := p.disk(w, ".a")
	if err != nil {
		return err
	}
	sock := filepath.Join(w.shm, p.name+".sock")
	cmd, err := w.daemon(p, "", "nbdkit", "-f", "-U", sock, "file", path)
	if err != nil {
		return err
	}
	p.pids, p.target = []int{cmd.Process.Pid}, "nbd+unix:///?socket="+sock
	return w.served(p)
}

func upQemuNBD(w *world, p *peer) error {
	path, err := p.disk(w, ".a")
	if err != nil {
		return err
	}
	sock := filepath.Join(w.shm, p.name+".sock")
	cmd, err := w.daemon(p, "", "qemu-nbd", "-t", "-f", "raw", "--cache=none", "--aio=io_uring", "-e", "8", "-k", sock, path)
	if err != nil {
		return err
	}
	p.pids, p.target = []int{cmd.Process.Pid}, "nbd+unix:///?socket="+sock
	return w.served(p)
}

// qemuPair prepares a disk on host a and a qemu-nbd with the other on host b, and returns the options that make both
// block nodes of a storage daemon on host a.
func qemuPair(w *world, p *peer) ([]string, error) {
	if err := w.network(); err != nil {
		return nil, err
	}
	var err error
	if p.a, err = p.disk(w, ".a"); err != nil {
		return nil, err
	}
	if p.b, err = p.disk(w, ".b"); err != nil {
		return nil, err
	}
	port := fmt.Sprint(w.nextPort())
	cmd, err := w.daemon(p, "b", "qemu-nbd", "-t", "-f", "raw", "--cache=none", "--aio=io_uring", "-b", addrQuick, "-p", port, p.b)
	if err != nil {
		return nil, err
	}
	p.pids = append(p.pids, cmd.Process.Pid)
	remote := "nbd://" + addrQuick + ":" + port
	err = w.until("qemu-nbd on host b", func() bool {
		args := inside("a", "nbdinfo", "--size", remote)
		return exec.Command(args[0], args[1:]...).Run() == nil
	})
	sock := filepath.Join(w.shm, p.name+".sock")
	p.target = "nbd+unix:///q?socket=" + sock
	return []string{
		"qemu-storage-daemon",
		"--blockdev", "driver=file,node-name=disk,filename=" + p.a + ",cache.direct=on,aio=io_uring",
		"--blockdev", "driver=nbd,node-name=remote,server.type=inet,server.host=" + addrQuick + ",server.port=" + port,
		"--nbd-server", "addr.type=unix,addr.path=" + sock,
	}, err
}

func upQuorum(w *world, p *peer) error {
	args, err := qemuPair(w, p)
	if err != nil {
		return err
	}
	args = append(args, "--blockdev", "driver=quorum,node-name=q,vote-threshold=1,read-pattern=fifo,children.0=disk,children.1=remote",
		"--export", "type=nbd,id=e,node-name=q,name=q,writable=on")
	cmd, err := w.daemon(p, "a", args...)
	if err != nil {
		return err
	}
	p.pids = append(p.pids, cmd.Process.Pid)
	return w.served(p)
}

func upMirror(w *world, p *peer) error {
	args, err := qemuPair(w, p)
	if err != nil {
		return err
	}
	qmp := filepath.Join(w.shm, p.name+".qmp")
	args = append(args, "--export", "type=nbd,id=e,node-name=disk,name=q,writable=on",
		"--chardev", "socket,id=m,path="+qmp+",server=on,wait=off", "--monitor", "chardev=m")
	cmd, err := w.daemon(p, "a", args...)
	if err != nil {
		return err
	}
	p.pids = append(p.pids, cmd.Process.Pid)
	if err := w.served(p); err != nil {
		return err
	}
	return startMirror(qmp)
}

// compare says whether the two disks of a replicating peer are the same; otherwise its figures are worth nothing.
func (p *peer) compare() error {
	if p.b == "" {
		return nil
	}
	a, err := os.Open(p.a)
	if err != nil {
		return err
	}
	defer a.Close()
	b, err := os.Open(p.b)
	if err != nil {
		return err
	}
	defer b.Close()
	x, y := make([]byte, 1<<20), make([]byte, 1<<20)
	for i := range dataMiB {
		_, err := io.ReadFull(a, x)
		_, err2 := io.ReadFull(b, y)
		if err := errors.Join(err, err2); err != nil {
			return err
		}
		if !bytes.Equal(x, y) {
			return fmt.Errorf("the replicas differ in the MiB at %d", i<<20)
		}
	}
	return nil
}
