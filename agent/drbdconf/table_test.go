package drbdconf

import (
	"slices"
	"strings"
	"testing"
)

func TestNodeIDsAreThoseOfDRBD(t *testing.T) {
	for text, want := range map[string]uint32{"192.168.90.17": 0x77f6aca8, "192.168.90.18": 0x29e5908c, "10.9.0.1": 0x056d6c84,
		"10.9.0.2": 0x163d9f70, "172.16.0.1": 0x62ff55ec, "172.16.0.9": 0xe8260d23} {
		if got := uint32(addressHash(text)); got != want {
			t.Errorf("%s: %#x, not %#x", text, got, want)
		}
	}
}

func TestNumbers(t *testing.T) {
	for _, c := range []struct {
		text string
		base Base
		want uint64
		why  string
	}{
		{"40M", KiB, 40960, ""}, {"10240", KiB, 10240, ""}, {"8k", One, 8192, ""}, {"1M", Sector, 2048, ""}, {"1s", KiB, 1, ""}, {"3s", KiB, 2, ""},
		{"60s", One, 30720, ""}, {"007", One, 7, ""}, {"1G", Sector, 2097152, ""}, {"5s", Sector, 5, ""},
		{"", One, 0, "is not a number"}, {"k", One, 0, "is not a number"}, {"-1", One, 0, "is not a number"}, {"1kk", One, 0, "is not a number"},
		{"1T", One, 0, "is not a number"}, {"0x10", One, 0, "is not a number"}, {"1.5", One, 0, "is not a number"},
		{"99999999999999999999", One, 0, "is too big"}, {"18446744073709551615", One, 0, "is too big"}, {"9999999999999999G", One, 0, "is too big"},
	} {
		if got, why := ParseNumber(c.text, c.base); got != c.want && c.why == "" || why != c.why {
			t.Errorf("%q in %d: %d %q, not %d %q", c.text, c.base, got, why, c.want, c.why)
		}
	}
}

// valid is a value that an option takes.
func valid(s Spec) string {
	switch {
	case s.Default != "":
		return s.Default
	case s.Kind == Number:
		return "4096"
	}
	return "x"
}

// Every option of the table is read in its section, printed and read again, and its default is a value it takes.
func TestEveryOptionIsReadAndPrinted(t *testing.T) {
	seen := map[string]bool{}
	for _, s := range Specs() {
		if seen[s.Section+s.Name] {
			t.Errorf("%s %s stands twice", s.Section, s.Name)
		}
		seen[s.Section+s.Name] = true
		if s.Default != "" && s.Check(s.Default) != "" {
			t.Errorf("%s: default %s %s", s.Name, s.Default, s.Check(s.Default))
		}
		option := s.Name + " " + valid(s) + ";"
		if s.Kind == Flag {
			option = s.Name + ";"
		}
		text := s.Section + " { " + option + " }\n"
		if s.Section != "global" {
			text = "common { " + text + "}\n"
		}
		if !roundTrip(t, []byte(text)) {
			_, err := ParseText("f.conf", []byte(text))
			t.Errorf("%s: %v", text, err)
		}
	}
	for name := range syncer {
		if _, err := ParseText("f.conf", []byte("common { syncer { "+name+" "+valid(*(&parser{}).spec("syncer", name))+"; } }")); err != nil {
			t.Errorf("syncer %s: %v", name, err)
		}
	}
}

func TestUnknownOptionsGetNames(t *testing.T) {
	_, err := ParseText("f.conf", []byte("common { disk { c-min-rat 5; } net { c-max-rate 5; } }"))
	if err == nil || !strings.Contains(err.Error(), "did you mean c-min-rate or c-max-rate?") || !strings.Contains(err.Error(), "it belongs into section disk") {
		t.Error(err)
	}
}

func TestTwentyErrorsAreEnough(t *testing.T) {
	_, err := ParseText("f.conf", []byte(strings.Repeat("resource x { y; }\n", 100)))
	list := Errors(err)
	if len(list) != errorsMax+1 || !strings.HasPrefix(list[errorsMax].Reason, "too many errors") {
		t.Errorf("%d errors, the last is %v", len(list), list[len(list)-1])
	}
}

func TestIncludeLoopsAreHarmless(t *testing.T) {
	src := loop{}
	cfg, err := Parse(src, "/a/b", ParseOptions{})
	if err != nil || !slices.Equal(cfg.Files, []string{"/a/b"}) {
		t.Error(cfg.Files, err)
	}
}

// loop is a file that includes itself under many names.
type loop struct{}

func (loop) Read(string) ([]byte, error) {
	return []byte(`include "b"; include "c*"; include "./b";`), nil
}
func (loop) Glob(pattern string) ([]string, error) { return []string{pattern, "/a/b"}, nil }
func (loop) Canonical(string) string               { return "/a/b" }
