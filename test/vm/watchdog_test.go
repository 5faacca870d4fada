package vm

import (
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"
)

var fired = regexp.MustCompile(`\[\s*([0-9.]+)\] softdog: Initiating system reboot`)

func seconds(t *testing.T, text string) float64 {
	t.Helper()
	f, err := strconv.ParseFloat(strings.TrimSpace(text), 64)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// TestWatchdog: the kernel's softdog. An agent that is stopped, or killed for good, has its machine reset before its
// licence of 10 s ends; one that is ended, or replaced in time, has not.
func TestWatchdog(t *testing.T) {
	l := New(t, "dog")
	dir := t.TempDir()
	l.Build(dir, "github.com/hawser-ha/hawser/test/vm/dogguest")
	l.Script("vm", "start", "kd", "--ip", "10.77.0.43", "--share", dir, "--mem", "256")
	boot := func() string {
		// A connection to a machine that is just being reset hangs: it gets little time.
		out, err := l.script(8*time.Second, "vm", "exec", "kd", "--", "cat /proc/sys/kernel/random/boot_id")
		if err != nil {
			return ""
		}
		return strings.TrimSpace(out)
	}
	lead := func(log string) {
		t.Helper()
		l.Exec("kd", "cp /host/dogguest /run/ 2>/dev/null; setsid /run/dogguest required /dev/watchdog </dev/null >/run/"+log+" 2>&1 & echo $! >/run/pid")
		l.Wait("kd", 30*time.Second, "grep -q ^armed /run/"+log)
		if out := l.Exec("kd", "cat /run/"+log); !strings.Contains(out, "armed: true Software Watchdog") {
			t.Fatal(out)
		}
	}
	lives := func(what, id string) {
		t.Helper()
		// Twice the licence by the machine's own clock.
		l.Exec("kd", "read a b </proc/uptime; e=$((${a%.*} + 20)); while read a b </proc/uptime; [ ${a%.*} -lt $e ]; do sleep 1; done")
		if got := boot(); got != id {
			t.Fatalf("%s: the machine was reset", what)
		}
	}
	dies := func(what, signal, id string) {
		t.Helper()
		at := seconds(t, l.Exec("kd", "read a b </proc/uptime; echo $a; kill -"+signal+" $(cat /run/pid)"))
		began := time.Now()
		for now := id; now == id || now == ""; now = boot() {
			if time.Since(began) > 2*time.Minute {
				t.Fatalf("%s: the machine lives on", what)
			}
		}
		resets := fired.FindAllStringSubmatch(l.Script("vm", "console", "kd"), -1)
		if len(resets) == 0 {
			t.Fatalf("%s: it was reset, and not by softdog", what)
		}
		took := seconds(t, resets[len(resets)-1][1]) - at
		if took <= 0 || took >= 10 {
			t.Errorf("%s: reset after %.1f s, the licence was good for at most 10", what, took)
		}
		t.Logf("%s: reset after %.1f s", what, took)
	}

	if out, err := l.TryExec("kd", "cp /host/dogguest /run/; /run/dogguest required /dev/watchdog"); err == nil || !strings.Contains(out, "no usable watchdog") {
		t.Fatalf("required and absent: %v\n%s", err, out)
	}
	l.Exec("kd", "modprobe softdog")
	id := boot()
	lead("log1")
	lives("a licence that is renewed", id)
	l.Exec("kd", "kill -TERM $(cat /run/pid); while kill -0 $(cat /run/pid) 2>/dev/null; do sleep 0.1; done; grep -q 'ended: <nil>' /run/log1")
	lives("a clean end", id)
	lead("log2")
	l.Exec("kd", "kill -9 $(cat /run/pid)")
	lead("log3")
	if out := l.Exec("kd", "cat /run/log3"); !strings.Contains(out, "adopted: true") {
		t.Fatalf("the successor did not adopt it:\n%s", out)
	}
	lives("killed and replaced", id)
	dies("stopped", "STOP", id)

	l.Exec("kd", "modprobe softdog")
	id = boot()
	lead("log4")
	dies("killed for good", "KILL", id)
}
