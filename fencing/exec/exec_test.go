package exec

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hawser-ha/hawser/fencing"
)

// agentHead answers the question for metadata; what follows sees the lines of standard input in $in and the action in $action.
const agentHead = `#!/bin/sh
in=$(cat)
action=$(printf '%s\n' "$in" | sed -n 's/^action=//p')
here=HERE
[ "$action" != metadata ] || { cat <<'X'
a warning of some library
<?xml version="1.0"?>
<resource-agent name="fence_test"><parameters>
<parameter name="ip" required="1"><content type="string"/></parameter>
<parameter name="plug" required="0"><content type="string"/></parameter>
<parameter name="password"><content type="string"/></parameter>
<parameter name="tenantId"><content type="string"/></parameter>
</parameters><actions><action name="on"/><action name="off"/><action name="status"/></actions></resource-agent>
X
exit 0; }
`

func script(t *testing.T, body string) (path, dir string) {
	t.Helper()
	dir = t.TempDir()
	path = filepath.Join(dir, "fence_test")
	if err := os.WriteFile(path, []byte(strings.Replace(agentHead, "HERE", dir, 1)+body), 0o755); err != nil {
		t.Fatal(err)
	}
	return path, dir
}

func TestASecretIsSeenNowhere(t *testing.T) {
	const secret = "hunter2-hunter2"
	t.Setenv("HAWSER_TEST_SECRET", secret)
	path, dir := script(t, `printf '%s\n' "$in" >$here/in
tr '\0' ' ' </proc/$$/cmdline >$here/cmdline
tr '\0' '\n' </proc/$$/environ >$here/environ
echo "login with password $(printf '%s\n' "$in" | sed -n 's/^password=//p') was refused" >&2
exit 1
`)
	for name, s := range map[string]Secret{"file": {File: secretFile(t, secret)}, "environment": {Env: "HAWSER_TEST_SECRET"}} {
		d, err := New(t.Context(), Options{Name: "d", Agent: path, Params: map[string]string{"ip": "x", "tenantid": "T"}, Secrets: []Secret{s}, Plugs: map[string]string{"n2": "7"}})
		if err != nil {
			t.Fatal(err)
		}
		err = d.Do(t.Context(), fencing.Off, "n2")
		e, ok := errors.AsType[*AgentError](err)
		if !ok || e.Code != 1 || !strings.Contains(err.Error(), "password *** was refused") || strings.Contains(fmt.Sprintf("%+v %v", e, d.lines), secret) {
			t.Errorf("%s: %v", name, err)
		}
		for file, want := range map[string]bool{"in": true, "cmdline": false, "environ": false} {
			data, err := os.ReadFile(filepath.Join(dir, file))
			if err != nil {
				t.Fatal(err)
			}
			if strings.Contains(string(data), secret) != want {
				t.Errorf("%s: the secret in %s: %v", name, file, !want)
			}
			if file == "in" && string(data) != "action=off\nip=x\npassword="+secret+"\nplug=7\ntenantId=T\n" {
				t.Errorf("standard input: %q", data)
			}
		}
	}
}

func TestExitStatus(t *testing.T) {
	path, dir := script(t, `exit $(cat $here/code)`)
	d, err := New(t.Context(), Options{Name: "d", Agent: path, Params: map[string]string{"ip": "x"}})
	if err != nil {
		t.Fatal(err)
	}
	for code, want := range map[int]fencing.Power{0: fencing.PowerOn, 1: fencing.PowerUnknown, 2: fencing.PowerOff, 3: fencing.PowerUnknown} {
		if err := os.WriteFile(filepath.Join(dir, "code"), []byte(strconv.Itoa(code)), 0o600); err != nil {
			t.Fatal(err)
		}
		p, err := d.Power(t.Context(), "n2")
		if p != want || (err == nil) != (want != fencing.PowerUnknown) {
			t.Errorf("exit status %d: power %s, %v", code, p, err)
		}
		if err := d.Do(t.Context(), fencing.Off, "n2"); (err == nil) != (code == 0) {
			t.Errorf("off with exit status %d: %v", code, err)
		}
		// It knows no monitor: its status stands for that, and off is no failure.
		if err := d.Do(t.Context(), fencing.Monitor, ""); (err == nil) != (code == 0 || code == 2) {
			t.Errorf("monitor with exit status %d: %v", code, err)
		}
	}
	if d.Can(fencing.Reboot) || !errors.Is(d.Do(t.Context(), fencing.Reboot, "n2"), fencing.ErrUnsupported) {
		t.Error("reboots, although its metadata does not name it")
	}
}

// TestTheWholeGroupIsKilled: a fence agent that hangs has children which hang.
func TestTheWholeGroupIsKilled(t *testing.T) {
	path, dir := script(t, `mkfifo $here/hang
sh -c "echo \$\$ >$here/child; exec sleep 1000" &
echo $$ >$here/self
echo up >$here/up
wait
`)
	d, err := New(t.Context(), Options{Name: "d", Agent: path, Params: map[string]string{"ip": "x"}})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	why := errors.New("time is over")
	ended := make(chan error, 1)
	go func() { ended <- d.Do(ctx, fencing.Off, "n2") }()
	pids := map[string]int{}
	deadline := time.Now().Add(20 * time.Second)
	for _, name := range []string{"self", "child"} {
		for pids[name] == 0 {
			if data, err := os.ReadFile(filepath.Join(dir, name)); err == nil {
				pids[name], _ = strconv.Atoi(strings.TrimSpace(string(data)))
			}
			if time.Now().After(deadline) {
				t.Fatal("in vain: the agent runs")
			}
		}
	}
	cancel(why)
	err = <-ended
	if !errors.Is(err, why) {
		t.Errorf("%v", err)
	}
	for name, pid := range pids {
		for unix.Kill(pid, 0) == nil && running(pid) {
			if time.Now().After(deadline) {
				t.Fatalf("%s (%d) still runs", name, pid)
			}
		}
	}
}

// running tells whether a process is more than a zombie that its new parent has not reaped.
func running(pid int) bool {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	_, rest, _ := strings.Cut(string(data), ") ")
	return err == nil && !strings.HasPrefix(rest, "Z")
}

// TestAnEscapedChildDoesNotHoldUs: a child in a group of its own keeps the pipes open.
func TestAnEscapedChildDoesNotHoldUs(t *testing.T) {
	path, dir := script(t, `setsid sh -c "echo \$\$ >$here/child; exec sleep 60" &
while ! [ -s $here/child ]; do :; done
exit 0
`)
	d, err := New(t.Context(), Options{Name: "d", Agent: path, Params: map[string]string{"ip": "x"}})
	if err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	if err := d.Do(t.Context(), fencing.Off, "n2"); err != nil {
		t.Error(err)
	}
	if took := time.Since(began); took > 30*time.Second {
		t.Errorf("waited %s for it", took)
	}
	data, err := os.ReadFile(filepath.Join(dir, "child"))
	if err != nil {
		t.Fatal(err)
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(data)))
	if err != nil {
		t.Fatal(err)
	}
	_ = unix.Kill(pid, unix.SIGKILL)
}

func TestComplaints(t *testing.T) {
	path, dir := script(t, "exit 0\n")
	open := filepath.Join(dir, "open")
	if err := os.WriteFile(open, []byte("x"), 0o644); err != nil {
		t.Fatal(err)
	}
	empty := secretFile(t, "")
	two := secretFile(t, "a\naction=on")
	for name, tc := range map[string]struct {
		o    Options
		want string
	}{
		"no such agent":             {Options{Agent: "fence_none"}, "install fence-agents"},
		"no name of an agent":       {Options{Agent: "rm -rf"}, "neither fence_... nor a path"},
		"missing":                   {Options{Agent: path}, "needs parameter ip"},
		"unknown":                   {Options{Agent: path, Params: map[string]string{"ip": "x", "ipp": "y"}}, `no parameter "ipp"`},
		"a secret in the settings":  {Options{Agent: path, Params: map[string]string{"ip": "x", "password": "geheim"}}, "belongs in a file"},
		"everybody may read it":     {Options{Agent: path, Params: map[string]string{"ip": "x"}, Secrets: []Secret{{File: open}}}, "chmod 600"},
		"the file is not there":     {Options{Agent: path, Params: map[string]string{"ip": "x"}, Secrets: []Secret{{File: dir + "/none"}}}, "no such file"},
		"the file is empty":         {Options{Agent: path, Params: map[string]string{"ip": "x"}, Secrets: []Secret{{File: empty}}}, "is empty"},
		"the file has lines":        {Options{Agent: path, Params: map[string]string{"ip": "x"}, Secrets: []Secret{{File: two}}}, "more than one line"},
		"not in the environment":    {Options{Agent: path, Params: map[string]string{"ip": "x"}, Secrets: []Secret{{Env: "HAWSER_TEST_NONE"}}}, "no HAWSER_TEST_NONE"},
		"a secret of another name":  {Options{Agent: path, Params: map[string]string{"ip": "x"}, Secrets: []Secret{{Param: "snmp_passwd", File: two}}}, `no parameter "snmp_passwd"`},
		"a plug that is two values": {Options{Agent: path, Params: map[string]string{"ip": "x"}, Plugs: map[string]string{"n2": "7\naction=on"}}, "plug of node n2"},
		"not an agent at all":       {Options{Agent: "/bin/true"}, "no <resource-agent"},
	} {
		d, err := New(t.Context(), tc.o)
		if err == nil || !strings.Contains(err.Error(), tc.want) || strings.Contains(err.Error(), "geheim") {
			t.Errorf("%s: %v, %v", name, d, err)
		}
	}
}

func TestQuote(t *testing.T) {
	for v, want := range map[string]string{"a": "a", "a b": "a b", "a ": `"a "`, `"a"`: `""a""`, `"`: `"`, `a"b`: `a"b`, "": ""} {
		if got := quote(v); got != want {
			t.Errorf("%q: %q, want %q", v, got, want)
		}
	}
}

func TestPlugOfAnotherNode(t *testing.T) {
	path, _ := script(t, "exit 0\n")
	d, err := New(t.Context(), Options{Name: "d", Agent: path, Params: map[string]string{"ip": "x"}, Plugs: map[string]string{"n2": "7"}})
	if err != nil {
		t.Fatal(err)
	}
	if err := d.Do(t.Context(), fencing.Off, "n3"); err == nil || !strings.Contains(err.Error(), "no plug for node n3") {
		t.Error(err)
	}
}
