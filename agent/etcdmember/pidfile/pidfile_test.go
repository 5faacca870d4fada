package pidfile

import (
	"os"
	"path/filepath"
	"testing"
)

func TestOneAtATime(t *testing.T) {
	path := filepath.Join(t.TempDir(), "run", "etcd.pid")
	if pid, err := Running(path); pid != 0 || err != nil {
		t.Fatal(pid, err)
	}
	unlock, err := Lock(path)
	if err != nil {
		t.Fatal(err)
	}
	if pid, err := Running(path); pid != os.Getpid() || err != nil {
		t.Error(pid, err)
	}
	if _, err := Lock(path); err == nil {
		t.Error("locked twice")
	}
	unlock()
	if pid, err := Running(path); pid != 0 || err != nil {
		t.Error(pid, err)
	}
	if err := os.WriteFile(path, []byte("junk"), 0o600); err != nil {
		t.Fatal(err)
	}
	if pid, err := Running(path); pid != 0 || err != nil { // nobody holds it: what it says is old
		t.Error(pid, err)
	}
}
