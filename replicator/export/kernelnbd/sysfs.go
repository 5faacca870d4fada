package kernelnbd

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

func sysRead(elem ...string) (string, error) {
	b, err := os.ReadFile(filepath.Join(append([]string{sysBlock}, elem...)...))
	return strings.TrimSuffix(string(b), "\n"), err
}

// backendOf is the identifier a device was connected with, or "".
func backendOf(index int) string {
	s, err := sysRead("nbd"+strconv.Itoa(index), "backend")
	if err != nil {
		return ""
	}
	return s
}

// pidOf is the process that connected a device, or 0 when it is not connected. The process may have ended.
func pidOf(index int) int {
	s, err := sysRead("nbd"+strconv.Itoa(index), "pid")
	if err != nil {
		return 0
	}
	n, err := strconv.Atoi(s)
	if err != nil {
		return 0
	}
	return n
}

// sysSize is the size of a block device in bytes.
func sysSize(name string) (int64, error) {
	s, err := sysRead(name, "size")
	if err != nil {
		return 0, err
	}
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil {
		return 0, fmt.Errorf("size of %s: %w", name, err)
	}
	return n * 512, nil // the kernel counts in sectors, whatever the block size
}

// findBackend looks for the device that was connected with id.
func findBackend(id string) (index int, found bool, err error) {
	entries, err := os.ReadDir(sysBlock)
	if err != nil {
		return 0, false, err
	}
	for _, e := range entries {
		num, ok := strings.CutPrefix(e.Name(), "nbd")
		if !ok {
			continue
		}
		n, err := strconv.Atoi(num)
		if err == nil && backendOf(n) == id {
			return n, true, nil
		}
	}
	return 0, false, nil
}
