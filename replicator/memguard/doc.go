// Package memguard does what a process must do that serves a block device to its own host.
//
// Such a process is part of that device's writeback: when the kernel, short of memory, makes it wait for dirty
// pages of the device it serves, everything stops for good. Three measures keep it out of that wait:
//
//   - PR_SET_IO_FLUSHER tells memory reclaim not to wait for writeback on behalf of this process. The setting belongs to
//     a thread and passes on to the threads it starts; Go has started several before main. So the
//     process sets it, then executes itself again, once.
//   - mlockall keeps its pages in memory; with MCL_ONFAULT, or every mapping would be populated at once.
//   - oom_score_adj -1000 keeps the OOM killer away from it.
//
// Each needs a right (CAP_SYS_RESOURCE, CAP_IPC_LOCK) that a container may not have; then it is left out with a
// warning. The fourth measure is the administrator's: a memory cgroup of its own, not shared with the
// programs that use the device.
package memguard
