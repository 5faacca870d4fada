package fuse

import (
	"encoding/json"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
)

// TestCompare measures fio on the device against a plain loop device over the same kind of file. It only
// reports: the machines that run it differ too much for a limit. HAWSER_COMPARE=1 turns it on (a minute).
func TestCompare(t *testing.T) {
	if os.Getenv("HAWSER_COMPARE") == "" {
		t.Skip("a measurement of a minute: set HAWSER_COMPARE=1")
	}
	needRoot(t)
	const size = 512 << 20
	v := newFileVolume(t, size)
	fill := randomBytes(9, 1<<20)
	for off := int64(0); off < size; off += int64(len(fill)) {
		if _, err := v.f.WriteAt(fill, off); err != nil {
			t.Fatal(err)
		}
	}
	d := attach(t, v)
	plain := strings.TrimSpace(tool(t, "losetup", "--show", "--direct-io=on", "-f", v.f.Name()))
	t.Cleanup(func() { _ = exec.Command("losetup", "-d", plain).Run() })
	for _, job := range []struct {
		name, rw, bs string
		depth        int
	}{
		{"4k read QD1", "randread", "4k", 1}, {"4k write QD1", "randwrite", "4k", 1},
		{"4k read QD32", "randread", "4k", 32}, {"4k write QD32", "randwrite", "4k", 32},
		{"1M read QD8", "read", "1m", 8}, {"1M write QD8", "write", "1m", 8},
	} {
		dev := map[string][]float64{}
		for range 3 {
			for _, p := range []string{plain, d.Path(), d.File()} {
				dev[p] = append(dev[p], fioIOPS(t, p, job.rw, job.bs, job.depth))
			}
		}
		base := median(dev[plain])
		t.Logf("%-13s plain loop %8.0f/s  this device %.2f  its file %.2f", job.name, base,
			median(dev[d.Path()])/base, median(dev[d.File()])/base)
	}
}

func median(v []float64) float64 {
	a, b, c := v[0], v[1], v[2]
	return max(min(a, b), min(max(a, b), c))
}

func fioIOPS(t *testing.T, path, rw, bs string, depth int) float64 {
	t.Helper()
	out := tool(t, "fio", "--name=x", "--filename="+path, "--ioengine=libaio", "--direct=1", "--rw="+rw, "--bs="+bs,
		"--iodepth="+strconv.Itoa(depth), "--size=512m", "--time_based", "--runtime=1", "--norandommap", "--output-format=json")
	var r struct {
		Jobs []struct{ Read, Write struct{ IOPS float64 } }
	}
	_, doc, _ := strings.Cut(out, "{")
	if err := json.Unmarshal([]byte("{"+doc), &r); err != nil || len(r.Jobs) != 1 {
		t.Fatalf("%v\n%s", err, out)
	}
	iops := r.Jobs[0].Read.IOPS + r.Jobs[0].Write.IOPS
	if iops == 0 {
		t.Fatalf("nothing was done\n%s", out)
	}
	return iops
}
