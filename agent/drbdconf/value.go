package drbdconf

import (
	"fmt"
	"math"
	"math/bits"
	"slices"
	"strings"

	"github.com/agnivade/levenshtein"
)

// ParseNumber reads a number with its suffix, in units of base. The reason is "" when it is right.
func ParseNumber(text string, base Base) (n uint64, why string) {
	digits := strings.TrimRight(text, "kKmMgGs")
	suffix := text[len(digits):]
	if digits == "" || len(suffix) > 1 || strings.Trim(digits, "0123456789") != "" {
		return 0, "is not a number"
	}
	for _, c := range []byte(digits) {
		hi, lo := bits.Mul64(n, 10)
		if hi != 0 || lo > math.MaxUint64-10 {
			return 0, "is too big"
		}
		n = lo + uint64(c-'0')
	}
	if suffix == "" {
		return n, ""
	}
	mult := uint64(512)
	switch suffix {
	case "k", "K":
		mult = 1 << 10
	case "m", "M":
		mult = 1 << 20
	case "g", "G":
		mult = 1 << 30
	}
	unit := uint64(1)
	switch base {
	case KiB:
		unit = 1 << 10
	case Sector:
		unit = 512
	}
	hi, lo := bits.Mul64(n, mult)
	if hi != 0 || lo > math.MaxUint64-unit {
		return 0, "is too big"
	}
	return (lo + unit - 1) / unit, ""
}

// Number is the value in base units, within the range; only for options of kind Number.
func (s *Spec) Number(text string) (uint64, string) {
	n, why := ParseNumber(text, s.Base)
	switch {
	case why != "":
		return 0, why
	case n < s.Min && s.Clamp:
		return s.Min, ""
	case n > s.Max && s.Clamp:
		return s.Max, ""
	case n < s.Min:
		return n, fmt.Sprintf("is too small: the least is %d%s", s.Min, s.unit())
	case n > s.Max:
		return n, fmt.Sprintf("is too big: the most is %d%s", s.Max, s.unit())
	}
	return n, ""
}

func (s *Spec) unit() string {
	switch s.Base {
	case KiB:
		return " KiB"
	case Sector:
		return " sectors"
	}
	return ""
}

// Check says what is wrong with a value; "" is nothing.
func (s *Spec) Check(text string) string {
	switch s.Kind {
	case Number:
		_, why := s.Number(text)
		return why
	case Bool:
		if text != "yes" && text != "no" {
			return "is neither yes nor no"
		}
	case Enum:
		if slices.Contains(s.Values, text) {
			return ""
		}
		switch {
		case s.Open == "1":
			if n, why := ParseNumber(text, One); why == "" && n >= 1 && n <= s.Max {
				return ""
			}
			return fmt.Sprintf("is none of %s, nor a number from 1 to %d", strings.Join(s.Values, ", "), s.Max)
		case s.Open != "" && len(text) > len(s.Open) && strings.HasPrefix(text, s.Open):
			return ""
		case s.Open != "":
			return fmt.Sprintf("is none of %s, %sNAME", strings.Join(s.Values, ", "), s.Open)
		case s.Name == "protocol":
			return "is none of A, B, C"
		}
		return "is none of " + strings.Join(s.Values, ", ")
	case Text:
		if uint64(len(text)) > s.Max {
			return fmt.Sprintf("is longer than %d bytes", s.Max)
		}
	}
	return ""
}

// near lists the up to three names most like a word.
func near(word string, names []string) []string {
	type scored struct {
		name string
		dist int
	}
	if len(word) > 64 { // what a comparison costs has a bound
		return nil
	}
	var list []scored
	for _, n := range names {
		if d := levenshtein.ComputeDistance(word, n); d <= max(2, len(word)/2) {
			list = append(list, scored{n, d})
		}
	}
	slices.SortStableFunc(list, func(a, b scored) int { return a.dist - b.dist })
	var out []string
	for _, s := range list[:min(3, len(list))] {
		out = append(out, s.name)
	}
	return out
}

func didYouMean(word string, names []string) string {
	switch n := near(word, names); len(n) {
	case 0:
		return ""
	case 1:
		return "did you mean " + n[0] + "?"
	default:
		return "did you mean " + strings.Join(n[:len(n)-1], ", ") + " or " + n[len(n)-1] + "?"
	}
}
