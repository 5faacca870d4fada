package coord

import "golang.org/x/sys/unix"

// BootTime is CLOCK_BOOTTIME in ns: it goes on while the machine sleeps, and nobody can set it.
func BootTime() int64 {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &t); err != nil {
		panic("coord: no CLOCK_BOOTTIME: " + err.Error()) // every kernel since 2.6.39 has it
	}
	return t.Nano()
}
