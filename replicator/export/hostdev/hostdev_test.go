package hostdev

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

func TestParseMountinfo(t *testing.T) {
	const text = `25 30 0:23 / /sys rw,nosuid shared:7 - sysfs sysfs rw
96 30 7:3 / /srv/with\040space rw,relatime shared:50 master:1 - ext4 /dev/loop3 rw
97 30 0:51 / /run/hawser/r0\134x rw,nosuid,nodev - fuse.hawser r0/0 rw,user_id=0
98 30 8:1 /sub /mnt rw - xfs /dev/sda1 rw
a line that is none
99 30 x:y / /bad rw - ext4 /dev/sdb rw
`
	want := []Mount{
		{0, 23, "/sys", "sysfs", "sysfs"},
		{7, 3, "/srv/with space", "ext4", "/dev/loop3"},
		{0, 51, `/run/hawser/r0\x`, "fuse.hawser", "r0/0"},
		{8, 1, "/mnt", "xfs", "/dev/sda1"},
	}
	got, err := parseMountinfo(strings.NewReader(text))
	if err != nil || !slices.Equal(got, want) {
		t.Errorf("got %+v, %v", got, err)
	}
}

func FuzzParseMountinfo(f *testing.F) {
	f.Add("96 30 7:3 / /srv/with\\040space rw - ext4 /dev/loop3 rw\n")
	f.Add("1 2 3:4 / \\ - a b")
	f.Fuzz(func(t *testing.T, text string) {
		mounts, _ := parseMountinfo(strings.NewReader(text))
		for _, m := range mounts {
			if m.Point == "" || m.FSType == "" {
				t.Errorf("%+v", m)
			}
		}
	})
}

func TestMountsAt(t *testing.T) {
	m, err := MountsAt("/proc")
	if err != nil || len(m) == 0 || m[len(m)-1].FSType != "proc" {
		t.Errorf("/proc: %+v, %v", m, err)
	}
	if m, err := MountsAt(t.TempDir()); err != nil || len(m) != 0 {
		t.Errorf("a plain folder: %+v, %v", m, err)
	}
}

func TestOpeners(t *testing.T) {
	dir := t.TempDir()
	f, err := os.Create(filepath.Join(dir, "xyz"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for rule, tt := range map[string]struct {
		path string
		seen bool
	}{
		"an open file is seen":                  {f.Name(), true},
		"and everything below an opened folder": {dir, true},
		"another name that starts alike is not": {dir + "/xy", false},
	} {
		got, err := Openers(tt.path)
		if err != nil {
			t.Fatal(err)
		}
		mine := slices.ContainsFunc(got, func(h Holder) bool { return h.PID == os.Getpid() })
		if mine != tt.seen {
			t.Errorf("%s: %v", rule, got)
		}
	}
}

func TestBusyError(t *testing.T) {
	tests := []struct {
		holders []Holder
		text    string
		lasting bool
	}{
		{nil, "/dev/loop3: device is in use", false},
		{[]Holder{{Kind: "mount", Name: "/srv"}}, "/dev/loop3: device is in use: mounted on /srv", true},
		{[]Holder{{Kind: "open", Name: "fio", PID: 12}, {Kind: "open", Name: "dd", PID: 13}},
			"/dev/loop3: device is in use: held open by fio (pid 12), held open by dd (pid 13)", false},
		{[]Holder{{Kind: "swap"}, {Kind: "device", Name: "/dev/dm-1"}},
			"/dev/loop3: device is in use: used as swap space, part of /dev/dm-1", true},
	}
	for _, tt := range tests {
		var err error = &BusyError{Device: "/dev/loop3", Holders: tt.holders}
		b, ok := errors.AsType[*BusyError](err)
		if err.Error() != tt.text || !errors.Is(err, ErrBusy) || !ok || b.Lasting() != tt.lasting {
			t.Errorf("got %q, lasting %v", err, b.Lasting())
		}
	}
}

func TestRetryBusy(t *testing.T) {
	opened := &BusyError{Holders: []Holder{{Kind: "open"}}}
	mounted := &BusyError{Holders: []Holder{{Kind: "mount"}}}
	other := errors.New("other")
	tests := []struct {
		rule    string
		answers []error // the last one is repeated
		calls   int     // 0: until the grace is over
		want    error
	}{
		{"success is at once", []error{nil}, 1, nil},
		{"an opener may go", []error{opened, opened, nil}, 3, nil},
		{"a mount does not go by itself", []error{mounted}, 1, mounted},
		{"other errors are final", []error{opened, other}, 2, other},
		{"an opener that stays is reported", []error{opened}, 0, opened},
	}
	for _, tt := range tests {
		synctest.Test(t, func(t *testing.T) {
			calls, began := 0, time.Now()
			err := RetryBusy(t.Context(), func() error {
				calls++
				return tt.answers[min(calls, len(tt.answers))-1]
			})
			if !errors.Is(err, tt.want) || tt.calls != 0 && calls != tt.calls || tt.calls == 0 && time.Since(began) != grace {
				t.Errorf("%s: %v after %d calls, %s", tt.rule, err, calls, time.Since(began))
			}
		})
	}
}
