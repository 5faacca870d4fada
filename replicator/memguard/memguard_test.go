package memguard

import (
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

// childEnv makes the test binary a process that protects itself and reports.
const childEnv = "MEMGUARD_TEST_CHILD"

func TestMain(m *testing.M) {
	if os.Getenv(childEnv) == "" {
		os.Exit(m.Run())
	}
	Protect(slog.New(slog.NewTextHandler(os.Stderr, nil)))
	fmt.Println(strings.Join(os.Args[1:], " "))
	// PF_MEMALLOC_NOIO and PF_LOCAL_THROTTLE, bits of the flags field of stat(5), are what the setting does.
	const flusher = 0x00080000
	tasks, _ := filepath.Glob("/proc/self/task/*/stat")
	with := 0
	for _, t := range tasks {
		b, err := os.ReadFile(t)
		if err != nil {
			continue
		}
		_, rest, _ := strings.Cut(string(b), ") ")
		flags, _ := strconv.ParseUint(strings.Fields(rest)[6], 10, 64)
		if flags&flusher != 0 {
			with++
		}
	}
	status, _ := os.ReadFile("/proc/self/status")
	locked := "0"
	for line := range strings.Lines(string(status)) {
		if v, ok := strings.CutPrefix(line, "VmLck:"); ok {
			locked = strings.Fields(v)[0]
		}
	}
	oom, _ := os.ReadFile("/proc/self/oom_score_adj")
	fmt.Printf("flusher=%v threads=%d with=%d locked=%s oom=%s guard=%q\n",
		IsFlusher(), len(tasks), with, locked, strings.TrimSpace(string(oom)), os.Getenv(guardEnv))
}

func TestProtect(t *testing.T) {
	cmd := exec.Command(os.Args[0], "some", "arguments")
	cmd.Env = append(os.Environ(), childEnv+"=1")
	var talk strings.Builder
	cmd.Stderr = &talk
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v\n%s", err, talk.String())
	}
	t.Logf("%s%s", out, talk.String())
	args, report, _ := strings.Cut(string(out), "\n")
	if args != "some arguments" {
		t.Errorf("arguments are not kept over the second start: %q", args)
	}
	if !strings.Contains(report, `guard=""`) {
		t.Errorf("the mark of the second start is still in the environment: %s", report)
	}
	permitted := !strings.Contains(talk.String(), "PR_SET_IO_FLUSHER")
	if permitted != strings.Contains(report, "flusher=true") {
		t.Errorf("either the setting is on, or there is a warning: %s%s", report, talk.String())
	}
	if permitted {
		var threads, with int
		var flusher bool
		if _, err := fmt.Sscanf(report, "flusher=%t threads=%d with=%d", &flusher, &threads, &with); err != nil || threads != with {
			t.Errorf("%d of %d threads have the setting: %s", with, threads, report)
		}
	}
	if strings.Contains(report, "oom=-1000") == strings.Contains(talk.String(), "OOM killer") {
		t.Errorf("either the OOM score is set, or there is a warning: %s%s", report, talk.String())
	}
}
