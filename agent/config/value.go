package config

import (
	"fmt"
	"math"
	"math/bits"
	"slices"
	"strconv"
	"strings"
	"time"
)

// kind is the type of an option's value.
type kind uint8

const (
	kindCount   kind = iota // a number; suffixes as in drbd.conf, K is 1024
	kindBytes               // a number of bytes
	kindSectors             // a number of 512-byte sectors
	kindRate                // a number of KiB/s
	kindTime                // a number of the option's unit
	kindBool
	kindEnum
	kindString
	kindPath   // absolute
	kindListen // IP:port
)

// base is what a plain number means, in bytes.
func (k kind) base() uint64 {
	switch k {
	case kindSectors:
		return 512
	case kindRate:
		return 1024
	}
	return 1
}

// value is a parsed option value; the kind says which fields count.
type value struct {
	n   int64 // count, bytes, sectors, KiB/s, units of time
	dur time.Duration
	b   bool
	s   string
}

// parse reads text as the option's kind and checks its range. The error is a
// reason for people, without the option's name.
func (o *option) parse(text string) (value, string) {
	v := value{s: text}
	switch o.kind {
	case kindBool:
		switch text {
		case "yes", "true":
			v.b = true
		case "no", "false":
		default:
			return v, fmt.Sprintf("%q is neither yes nor no", text)
		}
	case kindEnum:
		if o.name == "protocol" {
			v.s = strings.ToUpper(text)
		}
		if !slices.Contains(o.enum, v.s) && !strings.HasPrefix(text, o.prefix()) {
			have := slices.DeleteFunc(slices.Clone(o.enum), func(e string) bool { return e == "" || o.refuse[e] != "" })
			return v, fmt.Sprintf("%q is none of %s", text, strings.Join(have, ", "))
		}
	case kindString:
		if len(text) > int(o.max) {
			return v, fmt.Sprintf("longer than %d bytes", o.max)
		}
	case kindPath:
		if text == none && o.name == "undo-log" {
			return v, ""
		}
		return v, checkPath(text)
	case kindListen:
		_, why := parseAddress(text, true)
		return v, why
	case kindTime:
		return o.parseTime(text)
	default:
		n, why := parseNumber(text, o.kind)
		if why != "" {
			return v, why
		}
		v.n = n
		if n < o.min || n > o.max {
			return v, fmt.Sprintf("%s is outside %d to %d%s", text, o.min, o.max, o.unitName())
		}
	}
	return v, ""
}

// prefix admits open-ended values of an enumeration.
func (o *option) prefix() string {
	if o.name == "after-sb-0pri" {
		return discardNode
	}
	return "\x00"
}

func (o *option) unitName() string {
	switch o.kind {
	case kindBytes:
		return " bytes"
	case kindSectors:
		return " sectors of 512 bytes"
	case kindRate:
		return " KiB/s"
	}
	return ""
}

// parseTime takes a plain number in drbd.conf's unit or a duration like 6s.
func (o *option) parseTime(text string) (value, string) {
	n, err := strconv.ParseInt(text, 10, 32)
	if err != nil {
		d, err := time.ParseDuration(text)
		if err != nil || d < 0 {
			return value{}, fmt.Sprintf("%q is no time: write 6s or 500ms, or a plain number of %s", text, o.unit)
		}
		if d%o.unit != 0 {
			return value{}, fmt.Sprintf("%s is no multiple of %s", text, o.unit)
		}
		n = int64(d / o.unit)
	}
	if n < o.min || n > o.max {
		return value{}, fmt.Sprintf("%s is outside %s to %s", time.Duration(n)*o.unit, time.Duration(o.min)*o.unit, time.Duration(o.max)*o.unit)
	}
	return value{n: n, dur: time.Duration(n) * o.unit}, ""
}

// parseNumber reads digits and a suffix: s is sectors, K M G T are powers of
// 1024 bytes, KiB and so on the same, a rate may end in /s. Without a suffix the
// number is in the kind's own unit.
func parseNumber(text string, k kind) (int64, string) {
	bad := fmt.Sprintf("%q is no number", text)
	digits := 0
	for digits < len(text) && text[digits] >= '0' && text[digits] <= '9' {
		digits++
	}
	n, err := strconv.ParseUint(text[:digits], 10, 64)
	if err != nil {
		return 0, bad
	}
	suffix := text[digits:]
	if k == kindRate {
		suffix = strings.TrimSuffix(suffix, "/s")
	}
	if len(suffix) == 3 {
		suffix = strings.TrimSuffix(suffix, "iB")
	}
	if suffix == "" {
		if digits != len(text) && k != kindRate || n > math.MaxInt64 {
			return 0, bad
		}
		return int64(n), ""
	}
	mult := uint64(0)
	switch suffix {
	case "s":
		mult = 512
	case "k", "K":
		mult = 1 << 10
	case "m", "M":
		mult = 1 << 20
	case "g", "G":
		mult = 1 << 30
	case "t", "T":
		mult = 1 << 40
	default:
		return 0, fmt.Sprintf("%q has an unknown unit: K, M, G, T are powers of 1024 bytes, s is sectors", text)
	}
	hi, total := bits.Mul64(n, mult)
	if hi != 0 || total > math.MaxInt64 {
		return 0, fmt.Sprintf("%q is too large", text)
	}
	return int64((total + k.base() - 1) / k.base()), ""
}

// parseSize reads the size of a volume. It wants a unit: drbd.conf's plain number
// means sectors, and most people who write one mean bytes.
func parseSize(text string) (int64, string) {
	n, why := parseNumber(text, kindBytes)
	switch {
	case why != "":
		return 0, why
	case strings.Trim(text, "0123456789") == "" && n != 0:
		return 0, fmt.Sprintf("%q has no unit", text)
	case n%512 != 0:
		return 0, fmt.Sprintf("%q is no multiple of 512 bytes", text)
	case n > sizeMax:
		return 0, fmt.Sprintf("%q is larger than 1024 TiB", text)
	}
	return n, ""
}

// sizeMax is the largest volume: 2^41 sectors, in bytes.
const sizeMax = 1 << 50
