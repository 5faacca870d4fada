package ha

import (
	"fmt"
	"net/http"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/hawser-ha/hawser/test/check"
)

// acks waits for so many more acknowledged writes.
func (c *cluster) acks(w *check.Workload, n int64) {
	c.t.Helper()
	from := int64(w.Stats().Writes)
	c.until(fmt.Sprintf("%d writes", n), stateLimit, func() error {
		if got := int64(w.Stats().Writes) - from; got < n {
			return fmt.Errorf("%d", got)
		}
		return nil
	})
}

// The node of the Primary dies, with its agent and its member of etcd: the other one is promoted by itself within a TTL and
// a second, and the dead one comes back as Secondary, is resynced, and enters the in-sync set again.
func TestNodeOfThePrimaryDies(t *testing.T) {
	c := start(t, "", "r0")
	w := c.load("r0")
	c.acks(w, 200)
	c.n(1).die()
	took := c.until("n2 serves writes", ttl+5*time.Second, func() error { return c.n(2).writes("r0") })
	t.Logf("n2 serves writes %s after the death of n1, with a TTL of %s", took.Round(10*time.Millisecond), ttl)
	if took > ttl+time.Second {
		t.Errorf("that is more than a TTL and a second")
	}
	c.acks(w, 200)
	c.inSync("r0", "n2")
	c.n(1).boot()
	c.inSync("r0", "n1", "n2")
	st, err := c.n(1).status("r0")
	if err != nil || st.Role != "Secondary" {
		t.Errorf("n1: %v, %v", st, err)
	}
	history := c.n(3).cli("history", "r0")
	for _, want := range []string{"promote", "n2", "lost: none", "remove", "add"} {
		if !strings.Contains(history, want) {
			t.Errorf("the history lacks %q:\n%s", want, history)
		}
	}
	pause := time.Now()
	t.Log(c.n(3).cli("switchover", "r0", "--to", "n1"))
	c.until("n1 serves writes", stateLimit, func() error { return c.n(1).writes("r0") })
	t.Logf("switchover: n1 serves %s after it was asked for", time.Since(pause).Round(time.Millisecond))
	c.acks(w, 200)
	c.rest(t)
	c.judge(w, "r0")
}

// rest looks at what load balancers see: n1 is Primary.
func (c *cluster) rest(t *testing.T) {
	t.Helper()
	ask := func(n *node, path string) int {
		out, err := exec.Command("ip", "netns", "exec", n.ns(), "curl", "-s", "-o", "/dev/null", "-w", "%{http_code}", "http://"+n.addr+":8480"+path).Output()
		if err != nil {
			t.Fatalf("%s: %v", path, err)
		}
		code := 0
		if _, err := fmt.Sscan(string(out), &code); err != nil {
			t.Fatal(err)
		}
		return code
	}
	for _, x := range []struct {
		n    int
		path string
		want int
	}{{1, "/primary/r0", http.StatusOK}, {2, "/primary/r0", http.StatusServiceUnavailable}, {1, "/replica/r0", http.StatusServiceUnavailable}, {2, "/replica/r0", http.StatusOK},
		{1, "/health", http.StatusOK}, {2, "/readiness", http.StatusOK}, {3, "/readiness", http.StatusOK}, {1, "/primary/nope", http.StatusServiceUnavailable}} {
		if got := ask(c.n(x.n), x.path); got != x.want {
			t.Errorf("n%d %s: %d, want %d", x.n, x.path, got, x.want)
		}
	}
}
