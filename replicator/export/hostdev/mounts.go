package hostdev

import (
	"bufio"
	"io"
	"os"
	"strconv"
	"strings"
)

// Mount is one line of mountinfo(5), as far as it matters here.
type Mount struct {
	Major, Minor uint32 // of the device, or of the anonymous superblock
	Point        string
	FSType       string // such as "ext4" or "fuse.hawser"
	Source       string
}

// parseMountinfo reads mountinfo. Lines it cannot read are left out.
func parseMountinfo(r io.Reader) ([]Mount, error) {
	var out []Mount
	s := bufio.NewScanner(r)
	s.Buffer(nil, 1<<20)
	for s.Scan() {
		left, right, ok := strings.Cut(s.Text(), " - ")
		f, g := strings.Fields(left), strings.Fields(right)
		if !ok || len(f) < 5 || len(g) < 2 {
			continue
		}
		maj, min, ok := strings.Cut(f[2], ":")
		major, err1 := strconv.ParseUint(maj, 10, 32)
		minor, err2 := strconv.ParseUint(min, 10, 32)
		if !ok || err1 != nil || err2 != nil {
			continue
		}
		out = append(out, Mount{uint32(major), uint32(minor), unescape(f[4]), g[0], unescape(g[1])})
	}
	return out, s.Err()
}

// unescape undoes the \ooo of mountinfo.
func unescape(s string) string {
	if !strings.ContainsRune(s, '\\') {
		return s
	}
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] == '\\' && i+3 < len(s) {
			if n, err := strconv.ParseUint(s[i+1:i+4], 8, 8); err == nil {
				b.WriteByte(byte(n))
				i += 3
				continue
			}
		}
		b.WriteByte(s[i])
	}
	return b.String()
}

func readMounts(path string) ([]Mount, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return parseMountinfo(f)
}

// MountsAt lists what this process sees mounted on a folder, the topmost last.
func MountsAt(point string) ([]Mount, error) {
	all, err := readMounts("/proc/self/mountinfo")
	var at []Mount
	for _, m := range all {
		if m.Point == point {
			at = append(at, m)
		}
	}
	return at, err
}
