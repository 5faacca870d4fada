package memguard

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"runtime"

	"golang.org/x/sys/unix"
)

// guardEnv marks the process that Protect has executed again.
const guardEnv = "HAWSER_IO_FLUSHER"

// oomScoreAdj exempts a process from the OOM killer.
const oomScoreAdj = "-1000"

// Protect makes the calling process safe to serve a device to its own host. It must be the first thing main
// does: where the kernel permits the flusher setting, it replaces the process by a fresh image of itself with the
// same arguments, environment and descriptors (those without close-on-exec), and does not return the first
// time. What is not permitted is logged as a warning and left out; Protect never fails.
func Protect(log *slog.Logger) {
	if os.Getenv(guardEnv) == "" {
		if err := reexec(); err != nil {
			log.Warn("memory reclaim may wait for this process's own devices", "err", err)
		}
	}
	// Programs started by this one are not flushers by our word.
	if err := os.Unsetenv(guardEnv); err != nil {
		log.Warn("environment not cleaned", "err", err)
	}
	if err := unix.Mlockall(unix.MCL_CURRENT | unix.MCL_FUTURE | unix.MCL_ONFAULT); err != nil {
		log.Warn("memory not locked", "err", fmt.Errorf("mlockall: %w", err))
	}
	if err := os.WriteFile("/proc/self/oom_score_adj", []byte(oomScoreAdj), 0); err != nil {
		log.Warn("process not exempt from the OOM killer", "err", err)
	}
}

// IsFlusher says whether the calling thread has the flusher setting.
func IsFlusher() bool {
	v, err := unix.PrctlRetInt(unix.PR_GET_IO_FLUSHER, 0, 0, 0, 0)
	return err == nil && v == 1
}

// reexec sets PR_SET_IO_FLUSHER on this thread and executes the program again, which all threads of the new
// image then inherit. It returns only when that is impossible.
func reexec() error {
	// The thread that asks must be the one that executes.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := unix.Prctl(unix.PR_SET_IO_FLUSHER, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("prctl PR_SET_IO_FLUSHER: %w", err)
	}
	err := unix.Exec("/proc/self/exe", os.Args, append(os.Environ(), guardEnv+"=1"))
	// Still the old image: undo the half measure, one thread of many would only confuse.
	return errors.Join(fmt.Errorf("execute again: %w", err), unix.Prctl(unix.PR_SET_IO_FLUSHER, 0, 0, 0, 0))
}
