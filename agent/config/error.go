package config

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/agnivade/levenshtein"
)

// Error is one complaint about a file. Errors come joined; Errors takes them apart.
type Error struct {
	File      string // "" when the resource did not come from a file
	Line, Col int    // from 1; 0 is unknown
	Path      string // where in the document, for example nodes[1].address
	Reason    string // what is wrong
	Hint      string // what to do, may be ""
}

// Error is file:line:col: path: reason (hint).
func (e *Error) Error() string {
	var b strings.Builder
	if e.File != "" {
		b.WriteString(e.File + ":")
	}
	if e.Line > 0 {
		fmt.Fprintf(&b, "%d:%d:", e.Line, e.Col)
	}
	if b.Len() > 0 {
		b.WriteByte(' ')
	}
	if e.Path != "" {
		b.WriteString(e.Path + ": ")
	}
	b.WriteString(e.Reason)
	if e.Hint != "" {
		b.WriteString(" (" + e.Hint + ")")
	}
	return b.String()
}

// Errors lists the complaints in err, which may be joined or nil.
func Errors(err error) []*Error {
	if err == nil {
		return nil
	}
	if e, ok := errors.AsType[*Error](err); ok && err == error(e) { //nolint:errorlint // err itself: joined ones are taken apart below
		return []*Error{e}
	}
	var list []*Error
	if j, ok := err.(interface{ Unwrap() []error }); ok {
		for _, e := range j.Unwrap() {
			list = append(list, Errors(e)...)
		}
		return list
	}
	if e, ok := errors.AsType[*Error](err); ok {
		return []*Error{e}
	}
	return []*Error{{Reason: err.Error()}}
}

// pos is a place in a file.
type pos struct{ line, col int }

// complaints collects errors. A path that is already complained about is not
// judged a second time, nor is anything below it.
type complaints struct {
	file string
	at   map[string]pos
	bad  map[string]bool
	list []*Error
}

func (c *complaints) add(path, reason, hint string) {
	for p := path; p != ""; p = parent(p) {
		if c.bad[p] {
			return
		}
	}
	c.also(path, reason, hint)
	if path != "" {
		if c.bad == nil {
			c.bad = map[string]bool{}
		}
		c.bad[path] = true
	}
}

// also complains even where something was said before.
func (c *complaints) also(path, reason, hint string) {
	e := &Error{File: c.file, Path: path, Reason: reason, Hint: hint}
	for p := path; ; p = parent(p) {
		if at, ok := c.at[p]; ok {
			e.Line, e.Col = at.line, at.col
			break
		}
		if p == "" {
			break
		}
	}
	c.list = append(c.list, e)
}

// parent cuts the last step off a path.
func parent(path string) string {
	if i := strings.LastIndexAny(path, ".["); i > 0 {
		return path[:i]
	}
	return ""
}

func (c *complaints) err() error { return join(c.list) }

// join sorts by place, so that the output reads like the file.
func join(list []*Error) error {
	slices.SortStableFunc(list, func(a, b *Error) int {
		return cmp.Or(cmp.Compare(a.File, b.File), cmp.Compare(a.Line, b.Line), cmp.Compare(a.Col, b.Col))
	})
	errs := make([]error, len(list))
	for i, e := range list {
		errs[i] = e
	}
	return errors.Join(errs...)
}

// wordMax bounds what the comparison of a misspelt word costs.
const wordMax = 64 // bytes

// nearest is the candidate most like a misspelt word, "" when none is like it.
func nearest(word string, candidates []string) string {
	if len(word) > wordMax {
		return ""
	}
	best, bestDist := "", min(max(2, len(word)/3)+1, len(word))
	for _, c := range candidates {
		if d := levenshtein.ComputeDistance(word, c); d < bestDist {
			best, bestDist = c, d
		}
	}
	return best
}

func didYouMean(word string, candidates []string) string {
	if n := nearest(word, candidates); n != "" {
		return "did you mean " + n + "?"
	}
	return "known here: " + strings.Join(candidates, ", ")
}
