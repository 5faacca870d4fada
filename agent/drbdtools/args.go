package drbdtools

import (
	"slices"
	"strings"
)

// arguments are words and options in any order, as getopt takes them.
type arguments struct {
	words   []string
	options map[string]string // by long name without dashes; those given twice count
	count   map[string]int
	bad     string // the first that is not known
}

// option is one that a verb knows.
type option struct {
	long  string
	short string
	value bool // it takes one
}

// split takes words and options apart; what options has not is bad.
func split(args []string, options []option) arguments {
	a := arguments{options: map[string]string{}, count: map[string]int{}}
	find := func(match func(option) bool) *option {
		if i := slices.IndexFunc(options, match); i >= 0 {
			return &options[i]
		}
		return nil
	}
	for i := 0; i < len(args); i++ {
		arg := args[i]
		switch {
		case arg == "--":
			continue
		case strings.HasPrefix(arg, "--"):
			name, value, cut := strings.Cut(arg[2:], "=")
			o := find(func(o option) bool { return o.long == name })
			if o == nil {
				a.unknown("'--" + name + "'")
				continue
			}
			if o.value && !cut && i+1 < len(args) {
				i++
				value = args[i]
			}
			a.options[name] = value
			a.count[name]++
		case strings.HasPrefix(arg, "-") && len(arg) > 1:
			for j, c := range arg[1:] {
				o := find(func(o option) bool { return o.short == string(c) })
				if o == nil {
					a.unknown("'" + string(c) + "'")
					break
				}
				a.count[o.long]++
				if !o.value {
					continue
				}
				rest := arg[1+j+1:]
				if rest == "" && i+1 < len(args) {
					i++
					rest = args[i]
				}
				a.options[o.long] = rest
				break
			}
		default:
			a.words = append(a.words, arg)
		}
	}
	return a
}

func (a *arguments) unknown(what string) {
	if a.bad == "" {
		a.bad = what
	}
}

func (a *arguments) has(name string) bool { return a.count[name] > 0 }

// on reads yes, no and nothing.
func (a *arguments) on(name string) bool { return a.has(name) && a.options[name] != "no" }
