package vm

import (
	"strings"
	"testing"
	"time"
)

// TestKernelNBD: the kernel's nbd client on our server, with a writer on a file system while the server
// is killed, replaced and frozen. No I/O error, nothing lost.
func TestKernelNBD(t *testing.T) {
	l := New(t, "nbd")
	dir := t.TempDir()
	l.Build(dir, "github.com/hawser-ha/hawser/test/vm/nbdguest")
	l.Script("vm", "start", "kn", "--ip", "10.77.0.41", "--disk", l.Disk("kn.img")+":160M", "--share", dir, "--mods", "nbd", "--mem", "320")
	serve := func(log string) {
		t.Helper()
		l.Exec("kn", "cp /host/nbdguest /run/ 2>/dev/null; setsid /run/nbdguest serve -file /dev/vda -id r0/0 </dev/null >/run/"+log+" 2>&1 & echo $! >/run/pid")
		l.Wait("kn", 60*time.Second, "grep -q ^serving /run/"+log)
	}
	serve("log1")
	t.Log(l.Exec("kn", "grep -E '^serving|level=WARN' /run/log1"))
	for file, want := range map[string]string{
		"backend": "r0/0", "queue/io_timeout": "2000", "queue/fua": "1", "queue/write_cache": "write back", "queue/max_sectors_kb": "1024",
	} {
		if got := strings.TrimSpace(l.Exec("kn", "cat /sys/block/nbd0/"+file)); got != want {
			t.Errorf("%s is %q, want %q", file, got, want)
		}
	}
	t.Log("write zeroes, longest: ", l.Exec("kn", "cat /sys/block/nbd0/queue/write_zeroes_max_bytes; uname -r"))
	if !strings.Contains(l.Exec("kn", "cat /run/log1"), "flusher true") {
		t.Error("a root process of a whole machine may be an I/O flusher, and is not")
	}
	l.Exec("kn", "mkfs.ext4 -q /dev/nbd0 && mount /dev/nbd0 /mnt")
	l.Exec("kn", "setsid /run/nbdguest write -file /mnt/f </dev/null >/run/writer 2>&1 & echo $! >/run/wpid")
	goesOn := func(what string) {
		t.Helper()
		began := time.Now()
		l.Exec("kn", "rm -f /run/writes")
		l.Wait("kn", 60*time.Second, "test -s /run/writes || grep -q ^error /run/writer")
		if out, _ := l.TryExec("kn", "grep ^error /run/writer"); out != "" {
			t.Fatalf("%s: the writer says %s\n%s", what, out, l.Exec("kn", "dmesg | tail -n 8"))
		}
		t.Logf("%s: the writer goes on after %s", what, time.Since(began).Round(10*time.Millisecond))
	}
	goesOn("first writes")

	l.Exec("kn", "kill -9 $(cat /run/pid)")
	serve("log2")
	goesOn("kill -9")
	if !strings.Contains(l.Exec("kn", "cat /run/log2"), "adopted=true") {
		t.Error("the second process did not take the device over")
	}

	out, err := l.TryExec("kn", "truncate -s 64M /run/other; /run/nbdguest serve -file /run/other -id r0/0 -wait 3s")
	if err == nil || !strings.Contains(out, "holds on to another connection") {
		t.Errorf("a second process took the device from a living one: %v\n%s", err, out)
	}
	goesOn("another process wanted the device")

	l.Exec("kn", "kill -HUP $(cat /run/pid)")
	l.Wait("kn", 20*time.Second, "grep -q 'device reconnected' /run/log2")
	goesOn("connection broken within the process")

	l.Exec("kn", "kill -USR1 $(cat /run/pid)")
	l.Wait("kn", 20*time.Second, "grep -q '^SIGUSR1: <nil>' /run/log2")
	serve("log3")
	goesOn("planned restart")

	l.Exec("kn", "kill -STOP $(cat /run/pid); sleep 7; kill -CONT $(cat /run/pid)")
	goesOn("frozen for 7 s")

	l.Exec("kn", "kill -TERM $(cat /run/wpid)")
	l.Wait("kn", 60*time.Second, "grep -qE '^(verified|error)' /run/writer")
	if out := l.Exec("kn", "cat /run/writer"); !strings.HasPrefix(out, "verified") {
		t.Errorf("the writer says %s", out)
	} else {
		t.Log(out)
	}
	if out, _ := l.TryExec("kn", "dmesg | grep -iE 'I/O error|EXT4-fs (error|warning)'"); out != "" {
		t.Errorf("the kernel saw %s", out)
	}

	l.Exec("kn", "kill -TERM $(cat /run/pid)")
	l.Wait("kn", 20*time.Second, "grep -q '^SIGTERM' /run/log3")
	if out := l.Exec("kn", "grep '^SIGTERM' /run/log3"); !strings.Contains(out, "mounted on /mnt") {
		t.Errorf("detach of a mounted device: %s", out)
	}
	l.Exec("kn", "kill -USR2 $(cat /run/pid)")
	l.Wait("kn", 20*time.Second, "grep -q '^SIGUSR2' /run/log3")
	if got := strings.TrimSpace(l.Exec("kn", "blockdev --getsize64 /dev/nbd0")); got != "134217728" {
		t.Errorf("after growing it has %s bytes\n%s", got, l.Exec("kn", "tail -n 5 /run/log3"))
	}
	l.Exec("kn", "umount /mnt")
	l.Exec("kn", "kill -TERM $(cat /run/pid)")
	l.Wait("kn", 20*time.Second, "grep -q '^SIGTERM: <nil>' /run/log3")
	l.Exec("kn", "! test -e /sys/block/nbd0/pid")
	l.Exec("kn", "e2fsck -fn /dev/vda")

	// By force, under a mounted file system.
	serve("log4")
	l.Exec("kn", "mount /dev/nbd0 /mnt && echo x >/mnt/x")
	l.Exec("kn", "kill -INT $(cat /run/pid)")
	l.Wait("kn", 20*time.Second, "grep -q '^SIGINT' /run/log4")
	if out := l.Exec("kn", "grep '^SIGINT' /run/log4"); !strings.Contains(out, "<nil>") {
		t.Errorf("forced detach: %s", out)
	}
	if out, err := l.TryExec("kn", "dd if=/dev/zero of=/mnt/y bs=64k count=1 conv=fsync"); err == nil {
		t.Errorf("a write after a forced detach succeeded: %s", out)
	}
	l.Exec("kn", "umount /mnt")
	l.Wait("kn", 20*time.Second, "! test -e /sys/block/nbd0/pid")
}
