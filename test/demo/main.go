package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"github.com/hawser-ha/hawser/replicator/control"
)

func main() {
	hawser := flag.String("hawser", "bin/hawser", "the program to show")
	sizeText := flag.String("size", "1G", "size of the volume")
	keep := flag.Bool("keep", false, "keep folders and logs")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := demo(ctx, *hawser, *sizeText, *keep); err != nil {
		fmt.Fprintln(os.Stderr, "demo:", err)
		os.Exit(1)
	}
}

func demo(ctx context.Context, hawser, sizeText string, keep bool) (err error) {
	size, err := parseSize(sizeText)
	if err != nil {
		return err
	}
	if hawser, err = filepath.Abs(hawser); err != nil {
		return err
	}
	c, err := newCluster(ctx, hawser, size)
	if c != nil {
		defer func() {
			if err != nil {
				c.tailLogs()
			}
			err = errors.Join(err, c.close(keep))
		}()
	}
	if err != nil {
		return err
	}
	s := &story{c: c, began: time.Now()}
	return s.tell()
}

// volume is how the demo uses the device: a file system as root, raw blocks through NBD otherwise.
type volume interface {
	// prepare makes the volume usable.
	prepare(h *host) error
	// fill writes the data set on the Primary and gives its bytes and a description.
	fill(h *host) (int64, string, error)
	// write goes on writing, each piece durable before it counts, until the node dies or stop is closed.
	write(h *host, stop <-chan struct{}) (acknowledged int, err error)
	// resume makes the volume usable on the new Primary and writes one durable piece.
	resume(h *host) error
	// check finds every piece that was acknowledged, and says what it looked at.
	check(h *host) (string, error)
	// leave lets go of the device.
	leave(h *host) error
}

// story is the demo, with its timeline.
type story struct {
	c     *cluster
	began time.Time
}

// say prints one line of the timeline.
func (s *story) say(format string, args ...any) {
	fmt.Printf("%7.2fs  %s\n", time.Since(s.began).Seconds(), fmt.Sprintf(format, args...))
}

func (s *story) tell() error {
	c := s.c
	n1, n2, n3 := c.all[0], c.all[1], c.all[2]
	var v volume
	if os.Geteuid() == 0 {
		v = newFileSystem(c)
	} else {
		fmt.Println("Not root: no block device, file system and mount; blocks are written and checked through the NBD socket instead.")
		v = newBlocks(c)
	}
	for _, h := range c.all {
		if err := c.start(h); err != nil {
			return err
		}
	}
	s.say("three agents run on loopback: n1 and n2 hold the data, n3 is a witness")
	for _, h := range c.data {
		if err := h.do(c, "create-md "+resource, "up "+resource); err != nil {
			return err
		}
	}
	if err := n1.do(c, "wait-connect --timeout 30s "+resource); err != nil {
		return err
	}
	s.say("volume of %s on both, connected with protocol C (every write is on two disks before it is done)", mib(c.size))
	began := time.Now()
	if err := n1.do(c, "primary --force "+resource, "wait-sync --timeout 2m "+resource); err != nil {
		return err
	}
	s.say("n1 is Primary; initial sync of %s in %d ms", mib(c.size), time.Since(began).Milliseconds())
	if out, err := n3.run(c, "status"); err != nil || !bytes.Contains([]byte(out), []byte("witness")) {
		return fmt.Errorf("the witness does not know what it is: %q, %w", out, err)
	}

	if err := v.prepare(n1); err != nil {
		return err
	}
	before, err := sent(c, n1, n2)
	if err != nil {
		return err
	}
	began = time.Now()
	filled, what, err := v.fill(n1)
	if err != nil {
		return err
	}
	took := time.Since(began)
	after, err := sent(c, n1, n2)
	if err != nil {
		return err
	}
	s.say("wrote %s: %s in %.1f s; %s replicated to n2", what, mib(filled), took.Seconds(), mib(after-before))

	outage, acked, err := s.failover(v, n1, n2)
	if err != nil {
		return err
	}
	s.say("n2 took over: %d ms from SIGKILL to the first durable write there", outage.Milliseconds())
	report, err := v.check(n2)
	if err != nil {
		return err
	}
	s.say("n2 has all of it: %s, and the %d writes acknowledged just before the crash", report, acked)
	resynced, err := s.comeBack(v, n1, n2)
	if err != nil {
		return err
	}
	if report, err = v.check(n2); err != nil {
		return err
	}
	s.say("again: %s", report)
	if err := v.leave(n2); err != nil {
		return err
	}
	if err := s.compare(); err != nil {
		return err
	}
	fmt.Printf(`
  bytes replicated          %12d
  outage                    %12d ms   (SIGKILL of n1 to the first durable write on n2)
  resync when n1 came back  %12d bytes in %d ms   (of %d)
  acknowledged writes lost  %12d
`, after-before, outage.Milliseconds(), resynced.Done, resynced.Ended.Sub(resynced.Started).Milliseconds(), c.size, 0)
	return nil
}

// failover writes on old, kills it in the middle, and goes on with fresh.
func (s *story) failover(v volume, old, fresh *host) (outage time.Duration, acked int, err error) {
	type outcome struct {
		n   int
		err error
	}
	stop := make(chan struct{})
	ended := make(chan outcome, 1)
	go func() {
		n, err := v.write(old, stop)
		ended <- outcome{n, err}
	}()
	select {
	case <-time.After(500 * time.Millisecond):
	case <-s.c.ctx.Done():
	}
	at, err := old.kill(s.c)
	if err != nil {
		close(stop)
		<-ended
		return 0, 0, err
	}
	s.say("SIGKILL to agent and replicator of n1, in the middle of writing")
	// No --force: the data of n2 is known to be complete. What may take a moment is that n2 sees the link break.
	err = s.c.until("promotion of n2", 30*time.Second, func() bool { _, err := fresh.run(s.c, "primary", resource); return err == nil })
	if err != nil {
		close(stop)
		<-ended
		return 0, 0, err
	}
	if err := v.resume(fresh); err != nil {
		close(stop)
		<-ended
		return 0, 0, err
	}
	outage = time.Since(at)
	close(stop)
	o := <-ended
	old.clear()
	return outage, o.n, o.err
}

// comeBack starts the dead node again while the other goes on writing, and waits for the resync.
func (s *story) comeBack(v volume, old, fresh *host) (*control.Progress, error) {
	stop := make(chan struct{})
	ended := make(chan error, 1)
	go func() {
		_, err := v.write(fresh, stop)
		ended <- err
	}()
	finish := func() error { close(stop); return <-ended }
	select {
	case <-time.After(300 * time.Millisecond):
	case <-s.c.ctx.Done():
	}
	if err := s.c.start(old); err != nil {
		return nil, errors.Join(err, finish())
	}
	s.say("n1 is started again: it finds that it was up, and connects as Secondary")
	if err := fresh.do(s.c, "wait-sync --timeout 2m "+resource); err != nil {
		return nil, errors.Join(err, finish())
	}
	if err := finish(); err != nil {
		return nil, err
	}
	st, err := fresh.status(s.c)
	if err != nil {
		return nil, err
	}
	p := st.Peer(old.name)
	if p == nil || p.Volume(0) == nil || p.Volume(0).LastSync == nil {
		return nil, errors.New("nothing was resynced, though the nodes were apart")
	}
	r := p.Volume(0).LastSync
	s.say("resync of %s in %d ms, while writes went on", mib(r.Done), r.Ended.Sub(r.Started).Milliseconds())
	return r, nil
}

// compare takes both nodes down and compares their disks.
func (s *story) compare() error {
	var sums [2]string
	for i, h := range s.c.data {
		if i == 0 { // n2 first becomes Secondary
			if err := s.c.data[1].do(s.c, "secondary "+resource); err != nil {
				return err
			}
		}
		if err := h.do(s.c, "down "+resource); err != nil {
			return err
		}
		sum, err := hashFile(h.image(), s.c.size)
		if err != nil {
			return err
		}
		sums[i] = sum
	}
	if sums[0] != sums[1] {
		return fmt.Errorf("the disks differ: %s on n1, %s on n2", sums[0], sums[1])
	}
	s.say("both disks are equal: sha256 %s...", sums[0][:16])
	return nil
}

func hashFile(path string, size int64) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	h := sha256.New()
	if _, err := io.CopyN(h, f, size); err != nil {
		return "", err
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}

// sent gives the bytes that a node has sent to a peer.
func sent(c *cluster, h, peer *host) (int64, error) {
	st, err := h.status(c)
	if err != nil {
		return 0, err
	}
	p := st.Peer(peer.name)
	if p == nil || p.Volume(0) == nil {
		return 0, fmt.Errorf("%s does not know %s", h.name, peer.name)
	}
	return p.Volume(0).Sent, nil
}

func mib(n int64) string { return fmt.Sprintf("%.1f MiB", float64(n)/(1<<20)) }
