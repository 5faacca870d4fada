package netns

import (
	"bufio"
	"context"
	"fmt"
	"maps"

	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

const (
	floating      = "10.77.0.100"
	serviceLimit  = 2 * time.Minute // for a chain to start or stop on a busy machine
	commitLimit   = 15 * time.Second
	clientPause   = 50 * time.Millisecond // between attempts to connect
	commitsWanted = 60                    // under load, before and after each step
)

// recipe is docs/recipes.md's PostgreSQL: ext4 on the volume, a floating address, and the database, run by Debian's
// resource agents.
type recipe struct {
	*cluster
	srv string // where the file system is mounted, on both nodes
	bin string // of PostgreSQL
}

func (r *recipe) data() string { return filepath.Join(r.srv, "data") }

func (r *recipe) definition() string {
	return fmt.Sprintf(`services:
  primary:
    - name: fs
      run: ocf:heartbeat:Filesystem
      params: {device: /dev/hawser/%s/0, directory: %s, fstype: ext4, options: noatime}
    - name: ip
      run: ocf:heartbeat:IPaddr2
      params: {ip: %s, cidr_netmask: 24, nic: eth0, arp_count: 2}
    - name: pg
      run: ocf:heartbeat:pgsql
      params: {pgctl: %[4]s/pg_ctl, psql: %[4]s/psql, pgdata: %[2]s/data, socketdir: %[2]s/run, logfile: %[2]s/log}
      start-timeout: 2m
      stop-timeout: 2m
`, resource, r.srv, floating, r.bin)
}

// run runs a command line of sh on a node.
func (r *recipe) run(n *node, line string) string {
	r.t.Helper()
	out, err := n.inside("/bin/sh", "-ec", line).CombinedOutput()
	if err != nil {
		r.t.Fatalf("%s: %s: %v\n%s\n%s", n.name, line, err, out, r.state())
	}
	return strings.TrimSpace(string(out))
}

// services starts or stops the chain of the primary.
func (r *recipe) services(n *node, verb string) {
	r.t.Helper()
	cmd := n.inside(binaries.servicerun, "--node", n.name, "--run-dir", n.runDir(), "--resources-dir", filepath.Join(n.dir, "resources.d"),
		"--timeout", serviceLimit.String(), resource, verb, "primary")
	var out strings.Builder
	cmd.Stdout, cmd.Stderr = &out, n.log
	if err := cmd.Run(); err != nil {
		log, _ := os.ReadFile(filepath.Join(r.srv, "log")) // of a mount of ours: seldom there
		r.t.Fatalf("%s: %s services: %v: %s\n%s\n%s", n.name, verb, err, out.String(), log, r.state())
	}
}

// takeOver makes a node Primary and starts the services there; the HA loop does the same.
func (r *recipe) takeOver(n *node) {
	r.t.Helper()
	n.primary()
	r.services(n, "start")
}

// commits is what clients were told: rows whose transaction was committed.
type commits struct {
	mu   sync.Mutex
	rows map[string]bool
}

func (c *commits) add(row string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.rows[row] = true
}

func (c *commits) len() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.rows)
}

// client inserts rows as fast as it can, one transaction each, and connects again when the database moved.
func (r *recipe) client(ctx context.Context, id int, told *commits) {
	next := 0
	for ctx.Err() == nil {
		r.session(ctx, id, &next, told)
		select {
		case <-time.After(clientPause):
		case <-ctx.Done():
		}
	}
}

// session is one connection: psql, in the namespace of the witness. It ends at the first error.
func (r *recipe) session(ctx context.Context, id int, next *int, told *commits) {
	cmd := exec.Command("nsenter", "--net=/run/netns/"+r.net.ns(r.n3.name), "--", filepath.Join(r.bin, "psql"), "-X", "-q", "-A", "-t",
		"-v", "ON_ERROR_STOP=1", "-h", floating, "-U", "postgres", "-d", "postgres")
	cmd.Env = append(os.Environ(), "PGCONNECT_TIMEOUT=2")
	in, err := cmd.StdinPipe()
	if err != nil {
		r.t.Error(err)
		return
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		r.t.Error(err)
		return
	}
	if err := cmd.Start(); err != nil {
		r.t.Error(err)
		return
	}
	defer func() {
		_ = cmd.Process.Kill() // it may have ended
		_ = cmd.Wait()
	}()
	lines := bufio.NewScanner(out)
	for ctx.Err() == nil {
		*next++ // a row whose outcome is not known is never sent again
		row := fmt.Sprintf("%d-%d", id, *next)
		if _, err := fmt.Fprintf(in, "INSERT INTO rows VALUES ('%s');\n\\echo %s\n", row, row); err != nil {
			return
		}
		late := time.AfterFunc(commitLimit, func() { _ = cmd.Process.Kill() })
		ok := lines.Scan()
		late.Stop()
		if !ok || lines.Text() != row {
			return
		}
		told.add(row)
	}
}

// missing are the rows that were committed and are not there.
func (r *recipe) missing(n *node, told *commits) []string {
	r.t.Helper()
	told.mu.Lock()
	rows := slices.Collect(maps.Keys(told.rows)) // those of now: clients go on
	told.mu.Unlock()
	out := r.run(n, fmt.Sprintf("%s/psql -X -A -t -h %s -U postgres -d postgres -c 'SELECT name FROM rows'", r.bin, floating))
	there := strings.Split(out, "\n")
	slices.Sort(there)
	var lost []string
	for _, row := range rows {
		if _, ok := slices.BinarySearch(there, row); !ok {
			lost = append(lost, row)
		}
	}
	r.t.Logf("%s: %d rows committed, %d there", n.name, len(rows), len(there))
	return lost
}

// powerOff ends a node as far as signals and cables can: nobody hears of it any more, and its programs are dead.
func (r *recipe) powerOff(n *node) {
	r.t.Helper()
	pid, err := strconv.Atoi(r.run(n, "head -n 1 "+filepath.Join(r.data(), "postmaster.pid")))
	if err != nil {
		r.t.Fatal(err)
	}
	r.net.cut(n.name)
	n.crash()
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		r.t.Fatal(err)
	}
}

// A database on a volume moves by order under load, and survives the loss of its node under load; no transaction that
// a client was told committed is lost.
func TestRecipePostgreSQL(t *testing.T) {
	bins, err := filepath.Glob("/usr/lib/postgresql/*/bin")
	if err != nil || len(bins) == 0 {
		t.Fatal("install PostgreSQL (package postgresql; make deps)")
	}
	slices.Sort(bins)
	r := &recipe{bin: bins[len(bins)-1]}
	r.cluster = start(t, setup{size: 256 << 20, device: "fuse", mounts: true, services: func(c *cluster) string {
		r.cluster, r.srv = c, filepath.Join(c.dir, "srv")
		if err := os.Chmod(c.dir, 0o755); err != nil { // the user postgres passes through it
			t.Fatal(err)
		}
		if err := os.MkdirAll(r.srv, 0o755); err != nil {
			t.Fatal(err)
		}
		return r.definition()
	}})

	// What an administrator does once.
	r.n1.primary()
	r.run(r.n1, fmt.Sprintf(`mke2fs -q -t ext4 /dev/hawser/%[1]s/0; mount /dev/hawser/%[1]s/0 %[2]s
install -d -o postgres -g postgres -m 700 %[3]s
runuser -u postgres -- %[4]s/initdb -D %[3]s -A trust -E UTF8 --no-locale >/dev/null
echo "listen_addresses = '*'" >>%[3]s/postgresql.conf
echo "unix_socket_directories = '%[2]s/run'" >>%[3]s/postgresql.conf
echo 'host all all 10.77.0.0/24 trust' >>%[3]s/pg_hba.conf
umount %[2]s`, resource, r.srv, r.data(), r.bin))
	r.services(r.n1, "start")
	r.run(r.n1, fmt.Sprintf("%s/psql -X -q -h %s -U postgres -d postgres -c 'CREATE TABLE rows (name text PRIMARY KEY)'", r.bin, floating))

	ctx, stopLoad := context.WithCancel(context.Background())
	told := &commits{rows: map[string]bool{}}
	var clients sync.WaitGroup
	for id := range 3 {
		clients.Go(func() { r.client(ctx, id, told) })
	}
	defer clients.Wait()
	defer stopLoad()
	more := func() {
		t.Helper()
		goal := told.len() + commitsWanted
		r.until(fmt.Sprintf("%d more committed rows", commitsWanted), time.Minute, func() bool { return told.len() >= goal })
	}

	more()
	r.services(r.n1, "stop") // under load
	r.n1.cli("secondary", resource)
	r.takeOver(r.n2)
	more()
	if lost := r.missing(r.n2, told); len(lost) > 0 {
		t.Errorf("lost by the move: %v", lost)
	}

	r.powerOff(r.n2)
	r.takeOver(r.n1)
	more()
	stopLoad()
	clients.Wait()
	if lost := r.missing(r.n1, told); len(lost) > 0 {
		t.Errorf("lost with n2: %v", lost)
	}
	r.services(r.n1, "stop")
	r.n1.cli("secondary", resource)
}
