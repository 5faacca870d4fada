package netns

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/hawser-ha/hawser/replicator/control"
	"github.com/hawser-ha/hawser/replicator/undo"
	"github.com/hawser-ha/hawser/test/check"
)

// split makes both nodes write alone: n1 at the start of the volume, n2 in the middle, one block each more than was said.
// Both end as the roles say; what each wrote is returned.
func (c *cluster) split(blocks1, blocks2 int, primary1, primary2 bool) (one, two map[int64][]byte) {
	c.t.Helper()
	c.n1.primary()
	w := c.load(check.Options{Runs: 16}, c.n1)
	c.acks(w, 100)
	c.quiet(w)
	c.n1.cli("disconnect", resource)
	c.n2.cli("disconnect", resource)
	one = c.n1.scribble("n1", 64<<10, blocks1)
	c.n2.cli("primary", "--force", resource)
	two = c.n2.scribble("n2", c.o.size/2+64<<10, blocks2)
	for n, stays := range map[*node]bool{c.n1: primary1, c.n2: primary2} {
		if !stays {
			n.cli("secondary", resource)
		}
	}
	return one, two
}

// scribble writes blocks that only this node has, every other one.
func (n *node) scribble(text string, off int64, blocks int) map[int64][]byte {
	n.c.t.Helper()
	d := n.open()
	out := map[int64][]byte{}
	for i := range blocks {
		at := off + int64(i)*2*check.BlockSize
		b := bytes.Repeat([]byte(fmt.Sprintf("%s wrote %06d alone;   ", text, i)), 200)[:check.BlockSize]
		if err := d.WriteAt(b, at, true); err != nil {
			n.c.t.Fatal(err)
		}
		out[at] = b
	}
	if err := d.Close(); err != nil {
		n.c.t.Fatal(err)
	}
	return out
}

// contents reads those places of a node's disk.
func (n *node) contents(at map[int64][]byte) map[int64][]byte {
	n.c.t.Helper()
	f, err := os.Open(n.backing)
	if err != nil {
		n.c.t.Fatal(err)
	}
	defer f.Close()
	out := map[int64][]byte{}
	for off := range at {
		b := make([]byte, check.BlockSize)
		if _, err := f.ReadAt(b, off); err != nil {
			n.c.t.Fatal(err)
		}
		out[off] = b
	}
	return out
}

func (c *cluster) same(what string, got, want map[int64][]byte) {
	c.t.Helper()
	for off, b := range want {
		if !bytes.Equal(got[off], b) {
			c.t.Errorf("%s: the block at %d is another: %.24q, want %.24q", what, off, got[off], b)
			return
		}
	}
}

// B01: both see the split brain, both stop, and the data of neither is touched.
func TestB01SplitBrain(t *testing.T) {
	c := start(t, setup{})
	one, two := c.split(20, 10, true, true)
	before := [2]map[int64][]byte{c.n2.contents(one), c.n1.contents(two)}
	events := []*recorder{c.n1.record(), c.n2.record()}
	c.n1.cli("connect", resource)
	c.n2.cli("connect", resource)
	for i, n := range c.data() {
		n.wait("StandAlone", stateLimit, func(st *control.Status) bool { return st.Peers[0].Connection == "StandAlone" })
		c.until("news of the split brain on "+n.name, stateLimit, func() bool {
			return len(events[i].find(func(e control.Event) bool { return e.Name == "split-brain" })) > 0
		})
	}
	c.same("n1", c.n1.contents(one), one)
	c.same("n2", c.n2.contents(two), two)
	c.same("n2, where n1 wrote", c.n2.contents(one), before[0])
	c.same("n1, where n2 wrote", c.n1.contents(two), before[1])

	// By hand: n2 gives its data up. It is kept in the undo log.
	c.n2.cli("secondary", resource)
	c.n2.cli("connect", "--discard-my-data", "--force", resource)
	c.n1.cli("connect", resource)
	c.inSync()
	c.same("n2 after the decision", c.n2.contents(one), one)
	c.undone(c.n2, two)
	c.identical()
}

// undone checks that a node's undo log holds what it wrote alone, byte for byte.
func (c *cluster) undone(n *node, lost map[int64][]byte) {
	c.t.Helper()
	var logs []control.UndoLog
	if err := json.Unmarshal([]byte(n.cli("undo", "list", "--json", resource)), &logs); err != nil {
		c.t.Fatal(err)
	}
	if len(logs) != 1 || !logs[0].Complete || logs[0].Error != "" {
		c.t.Fatalf("undo logs of %s: %+v", n.name, logs)
	}
	path := filepath.Join(n.dir, "undo.exported")
	n.cli("undo", "export", resource+"/0", logs[0].ID, "--output", path)
	f, err := os.Open(path)
	if err != nil {
		c.t.Fatal(err)
	}
	defer f.Close()
	r, err := undo.NewReader(f)
	if err != nil {
		c.t.Fatal(err)
	}
	image := map[int64][]byte{}
	for {
		off, data, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			c.t.Fatal(err)
		}
		for i := 0; i+check.BlockSize <= len(data); i += check.BlockSize {
			if _, ok := image[off+int64(i)]; !ok { // the first record is the loser's data
				image[off+int64(i)] = bytes.Clone(data[i : i+check.BlockSize])
			}
		}
	}
	c.same("undo log of "+n.name, image, lost)
}

// B02: each policy picks the loser that its name says; the loser's blocks are in the undo log, and both end in sync.
func TestB02AfterSplitBrain(t *testing.T) {
	const zero, one, two = "after-sb-0pri", "after-sb-1pri", "after-sb-2pri"
	for _, tc := range []struct {
		name               string
		net                map[string]string
		blocks1, blocks2   int
		primary1, primary2 bool
		loser              string // "": both stop
	}{
		{"0pri disconnect", map[string]string{zero: "disconnect"}, 5, 5, false, false, ""},
		{"0pri younger primary loses", map[string]string{zero: "discard-younger-primary"}, 5, 5, false, false, "n2"},
		{"0pri older primary loses", map[string]string{zero: "discard-older-primary"}, 5, 5, false, false, "n1"},
		{"0pri least changes lose", map[string]string{zero: "discard-least-changes"}, 3, 30, false, false, "n1"},
		{"0pri zero changes, both changed", map[string]string{zero: "discard-zero-changes"}, 3, 3, false, false, ""},
		{"0pri zero changes, one changed", map[string]string{zero: "discard-zero-changes"}, 3, 0, false, false, "n2"},
		{"0pri a named node loses", map[string]string{zero: "discard-node-n2"}, 5, 5, false, false, "n2"},
		{"1pri disconnect", map[string]string{zero: "discard-least-changes", one: "disconnect"}, 3, 30, true, false, ""},
		{"1pri discard-secondary", map[string]string{one: "discard-secondary"}, 3, 30, true, false, "n2"},
		{"1pri consensus, agreed", map[string]string{zero: "discard-least-changes", one: "consensus"}, 30, 3, true, false, "n2"},
		{"1pri consensus, not agreed", map[string]string{zero: "discard-least-changes", one: "consensus"}, 3, 30, true, false, ""},
		{"1pri violently-as0p", map[string]string{zero: "discard-least-changes", one: "violently-as0p"}, 30, 3, true, false, "n2"},
		{"2pri disconnect", map[string]string{zero: "discard-least-changes", two: "disconnect"}, 30, 3, true, true, ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c := start(t, setup{net: tc.net})
			a, b := c.split(tc.blocks1, tc.blocks2, tc.primary1, tc.primary2)
			c.n1.cli("connect", resource)
			c.n2.cli("connect", resource)
			if tc.loser == "" {
				for _, n := range c.data() {
					n.wait("StandAlone", stateLimit, func(st *control.Status) bool { return st.Peers[0].Connection == "StandAlone" })
				}
				c.same("n1", c.n1.contents(a), a)
				c.same("n2", c.n2.contents(b), b)
				return
			}
			c.inSync()
			loser, lost, won := c.node(tc.loser), a, b
			if tc.loser == "n2" {
				lost, won = b, a
			}
			c.same("the loser", loser.contents(won), won)
			c.same("the winner", loser.peer().contents(won), won)
			if len(lost) > 0 {
				c.undone(loser, lost)
			}
			if v := loser.now().Volumes[0]; len(lost) > 0 && v.Undo != 1 {
				t.Errorf("status tells of %d undo logs", v.Undo)
			}
		})
	}
}
