package main

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

const (
	filesMax   = 3000 // of the data set
	pieceEvery = 2 * time.Millisecond
)

// fileSystem uses the volume as ext4.
type fileSystem struct {
	c     *cluster
	sums  map[string][32]byte
	notes map[string][32]byte // acknowledged pieces: file name to sum
	round int
}

func newFileSystem(c *cluster) *fileSystem {
	return &fileSystem{c: c, sums: map[string][32]byte{}, notes: map[string][32]byte{}}
}

func (f *fileSystem) command(name string, args ...string) error {
	out, err := exec.CommandContext(f.c.ctx, name, args...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("%s %s: %w: %s", name, strings.Join(args, " "), err, strings.TrimSpace(string(out)))
	}
	return nil
}

func (f *fileSystem) mount(h *host) error {
	if err := os.MkdirAll(h.mnt(), 0o755); err != nil {
		return err
	}
	return f.command("mount", "-t", "ext4", h.device(), h.mnt())
}

// leave unmounts.
func (f *fileSystem) leave(h *host) error {
	return f.command("umount", h.mnt())
}

// prepare makes the file system.
func (f *fileSystem) prepare(h *host) error {
	if err := f.command("mkfs.ext4", "-q", "-F", h.device()); err != nil {
		return err
	}
	return f.mount(h)
}

// fill copies Go's source tree, or as much of it as fits.
func (f *fileSystem) fill(h *host) (total int64, what string, err error) {
	out, err := exec.CommandContext(f.c.ctx, "go", "env", "GOROOT").Output()
	if err != nil {
		return 0, "", fmt.Errorf("go env GOROOT: %w", err)
	}
	root := filepath.Join(strings.TrimSpace(string(out)), "src")
	err = filepath.WalkDir(root, func(path string, e fs.DirEntry, err error) error {
		if err != nil || !e.Type().IsRegular() {
			return err
		}
		if len(f.sums) >= filesMax || total > f.c.size/3 {
			return filepath.SkipAll
		}
		rel, err := filepath.Rel(root, path)
		if err != nil {
			return err
		}
		data, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		to := filepath.Join(h.mnt(), "tree", rel)
		if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
			return err
		}
		f.sums["tree/"+rel] = sha256.Sum256(data)
		total += int64(len(data))
		return os.WriteFile(to, data, 0o644)
	})
	if err != nil {
		return 0, "", err
	}
	if len(f.sums) == 0 {
		return 0, "", fmt.Errorf("no files in %s", root)
	}
	return total, fmt.Sprintf("%d files to ext4 on %s", len(f.sums), h.device()), f.sync(h)
}

func (f *fileSystem) sync(h *host) error {
	d, err := os.Open(h.mnt())
	if err != nil {
		return err
	}
	defer d.Close()
	return unix.Syncfs(int(d.Fd()))
}

// piece writes one small file durably and remembers it.
func (f *fileSystem) piece(h *host, name string) error {
	dir := filepath.Join(h.mnt(), "pieces")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	data := []byte(strings.Repeat(name+" was acknowledged\n", 200))
	file, err := os.OpenFile(filepath.Join(dir, name), os.O_CREATE|os.O_WRONLY|os.O_EXCL, 0o644)
	if err != nil {
		return err
	}
	_, err = file.Write(data)
	if err = errors.Join(err, file.Sync(), file.Close()); err != nil {
		return err
	}
	d, err := os.Open(dir) // a new name is durable with its folder
	if err != nil {
		return err
	}
	if err := errors.Join(d.Sync(), d.Close()); err != nil {
		return err
	}
	f.notes[filepath.Join("pieces", name)] = sha256.Sum256(data)
	return nil
}

// write writes pieces; an error ends it, which is what the death of the node looks like.
func (f *fileSystem) write(h *host, stop <-chan struct{}) (n int, err error) {
	f.round++
	for ; ; n++ {
		select {
		case <-stop:
			return n, nil
		case <-f.c.ctx.Done():
			return n, context.Cause(f.c.ctx)
		case <-time.After(pieceEvery):
		}
		if err := f.piece(h, fmt.Sprintf("%d-%06d", f.round, n)); err != nil {
			if h.dead.Load() {
				return n, nil
			}
			return n, err
		}
	}
}

// resume mounts, which replays the journal, and writes one piece.
func (f *fileSystem) resume(h *host) error {
	if err := f.mount(h); err != nil {
		return err
	}
	file, err := os.OpenFile(filepath.Join(h.mnt(), "first-write"), os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	_, err = file.WriteString(time.Now().String())
	return errors.Join(err, file.Sync(), file.Close())
}

// check unmounts, runs fsck over the whole file system, mounts and compares every checksum.
func (f *fileSystem) check(h *host) (string, error) {
	if err := f.leave(h); err != nil {
		return "", err
	}
	if err := f.command("fsck.ext4", "-f", "-n", h.device()); err != nil {
		return "", err
	}
	if err := f.mount(h); err != nil {
		return "", err
	}
	for _, set := range []map[string][32]byte{f.sums, f.notes} {
		for name, want := range set {
			got, err := sumFile(filepath.Join(h.mnt(), name))
			if err != nil {
				return "", fmt.Errorf("an acknowledged write is lost: %w", err)
			}
			if got != want {
				return "", fmt.Errorf("%s is damaged", name)
			}
		}
	}
	return fmt.Sprintf("fsck finds no fault, %d checksums match", len(f.sums)+len(f.notes)), nil
}

func sumFile(path string) (sum [32]byte, err error) {
	f, err := os.Open(path)
	if err != nil {
		return sum, err
	}
	defer f.Close()
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
		return sum, err
	}
	return [32]byte(h.Sum(nil)), nil
}
