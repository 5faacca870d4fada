package drbdconf

import (
	"errors"
	"fmt"
)

// Stage says which verbs of drbdadm an error stops.
type Stage uint8

// Stages of errors.
const (
	Syntax Stage = iota // found by the parser
	Check               // what the parts say together
	Hosts               // sh-nop does not mind
	Local               // only dump and dump-xml of version 9 mind
	Expand              // dump and dump-xml do not mind
	Warn                // for people only
)

// Error is one complaint about a configuration.
type Error struct {
	Pos      Pos
	Stage    Stage
	Code     int    // exit code of drbdadm: 10, or 20
	Resource string // the resource it is about, or common; "" for the file itself
	Reason   string
	Hint     string // what to do, may be ""
}

// Error is FILE:LINE: reason (hint).
func (e *Error) Error() string {
	s := e.Reason
	if e.Hint != "" {
		s += " (" + e.Hint + ")"
	}
	if e.Pos.File == "" {
		return s
	}
	return fmt.Sprintf("%s:%d: %s", e.Pos.File, e.Pos.Line, s)
}

// Stops reports whether drbdadm refuses a verb for this error.
func (e *Error) Stops(verb string) bool {
	dump := verb == "dump" || verb == "dump-xml"
	switch e.Stage {
	case Hosts:
		return verb != "sh-nop"
	case Local:
		return dump
	case Expand:
		return !dump
	case Warn:
		return false
	}
	return true
}

// Errors lists what is in an error of Parse or Verify, warnings too.
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
	return []*Error{{Code: 10, Reason: err.Error()}}
}

func join(list []*Error) error {
	errs := make([]error, len(list))
	for i, e := range list {
		errs[i] = e
	}
	return errors.Join(errs...)
}

// ExitCode is what drbdadm VERB ends with for the errors of Parse and Verify: 0, 10 or 20.
func ExitCode(err error, verb string) int {
	code := 0
	for _, e := range Errors(err) {
		if e.Stops(verb) {
			code = max(code, e.Code)
		}
	}
	return code
}
