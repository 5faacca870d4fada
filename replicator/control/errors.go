package control

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
)

// Code is the kind of an error. It is an error itself, so that errors.Is(err, NotPrimary) asks for it.
type Code string

// Error gives the name of the code.
func (c Code) Error() string { return string(c) }

// Codes of errors.
const (
	Failed        Code = "failed"          // any other reason
	Usage         Code = "usage"           // the command makes no sense as given
	Refused       Code = "refused"         // a rule forbids it; nothing was changed
	Unknown       Code = "outcome-unknown" // it may or may not have happened
	NotFound      Code = "not-found"       // no such resource, volume, peer, file
	NotRunning    Code = "not-running"     // the resource is down, or the agent
	Running       Code = "running"         // the resource is up
	Confirm       Code = "needs-force"     // data would be lost: say --force
	BadDefinition Code = "bad-definition"  // the resource file is not right
	NotPrimary    Code = "not-primary"     // it needs to be Primary
	IsPrimary     Code = "is-primary"      // it may not be Primary
	PeerPrimary   Code = "peer-is-primary" // the peer is Primary and two are not allowed
	NotUpToDate   Code = "not-up-to-date"  // it needs an UpToDate disk
	RefusedByPeer Code = "refused-by-peer" // the peer said no
	NoConnection  Code = "no-connection"   // it needs a connection
	LinkLost      Code = "link-lost"       // the connection went away meanwhile
	NoDisk        Code = "no-disk"         // it needs a local disk
	DiskInUse     Code = "disk-in-use"     // somebody else has the disk open
	NoMetadata    Code = "no-metadata"     // there is no valid metadata on the disk
	Busy          Code = "busy"            // a resync or verify runs, or another change is under way
	InUse         Code = "in-use"          // the device is open
	NoAlgorithm   Code = "no-algorithm"    // verify-alg or csums-alg is not set
	TooSmall      Code = "too-small"       // the disk is smaller than the volume
	SplitBrain    Code = "split-brain"     // the data went two ways
	DiskError     Code = "i/o-error"       // the disk failed
	Unsupported   Code = "unsupported"     // not on this kernel, or not as this user
	Denied        Code = "permission"      // not as this user
	Stale         Code = "stale"           // something newer is known: a higher term, a newer in-sync set
	NoLicence     Code = "no-licence"      // the arbiter has not granted it
	Bound         Code = "bound"           // a promise to another node forbids it
	PeerUnknown   Code = "peer-unknown"    // nobody knows what the peer does: it is not fenced
)

// Error is an error of a command, as it travels over the control socket. Zero fields are not said.
type Error struct {
	Code     Code   `json:"code"`
	Resource string `json:"resource,omitempty"`
	Volume   *int   `json:"volume,omitempty"`
	Peer     string `json:"peer,omitempty"`
	Rule     string `json:"rule,omitempty"` // the rule that was broken, in words
	Text     string `json:"text"`           // what went wrong
	Hint     string `json:"hint,omitempty"` // what to do next
	wrapped  error
}

// Errorf makes an Error with that code; %w wraps as usual. Who is filled in later: see On.
func Errorf(code Code, format string, args ...any) *Error {
	err := fmt.Errorf(format, args...)
	return &Error{Code: code, Text: err.Error(), wrapped: errors.Unwrap(err)}
}

// On says what the error is about. peer may be ""; volume All means none.
func (e *Error) On(resource string, volume int, peer string) *Error {
	e.Resource, e.Peer = resource, peer
	if volume >= 0 {
		e.Volume = &volume
	}
	return e
}

// WithRule names the rule that was broken.
func (e *Error) WithRule(rule string) *Error { e.Rule = rule; return e }

// WithHint says what to do next.
func (e *Error) WithHint(hint string) *Error { e.Hint = hint; return e }

// Error gives one line: where, what, the rule.
func (e *Error) Error() string {
	var b strings.Builder
	if e.Resource != "" {
		b.WriteString(e.Resource)
		if e.Volume != nil {
			fmt.Fprintf(&b, "/%d", *e.Volume)
		}
		if e.Peer != "" {
			fmt.Fprintf(&b, " to %s", e.Peer)
		}
		b.WriteString(": ")
	}
	if e.Text == "" {
		b.WriteString(string(e.Code))
	} else {
		b.WriteString(e.Text)
	}
	if e.Rule != "" {
		fmt.Fprintf(&b, " (rule: %s)", e.Rule)
	}
	return b.String()
}

// Is holds for the Code of the error.
func (e *Error) Is(target error) bool {
	c, ok := target.(Code)
	return ok && c == e.Code
}

// Unwrap gives what Errorf wrapped; nothing after a hop over the socket.
func (e *Error) Unwrap() error { return e.wrapped }

// AsError makes an *Error of any error: itself if it is one, outcome unknown if a context ended, else Failed.
func AsError(err error) *Error {
	if err == nil {
		return nil
	}
	if e, ok := errors.AsType[*Error](err); ok {
		if err.Error() == e.Error() {
			return e
		}
		c := *e // keep the words that were put around it
		c.Text, c.Resource, c.Volume, c.Peer, c.Rule = err.Error(), "", nil, "", ""
		return &c
	}
	code := Failed
	if c, ok := errors.AsType[Code](err); ok {
		code = c
	} else if errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) {
		code = Unknown
	}
	return &Error{Code: code, Text: err.Error(), wrapped: err}
}

// Exit codes of the command line.
const (
	ExitDone    = 0
	ExitFailed  = 1
	ExitUsage   = 2
	ExitUnknown = 3 // outcome unknown
	ExitAbsent  = 4 // not there: no such resource, or it is surely down
)

// ExitCode gives the exit code for an error.
func ExitCode(err error) int {
	if err == nil {
		return ExitDone
	}
	switch AsError(err).Code {
	case Usage:
		return ExitUsage
	case Unknown:
		return ExitUnknown
	case NotFound, NotRunning:
		return ExitAbsent
	}
	return ExitFailed
}

// httpStatus gives the HTTP status for an error.
func httpStatus(err error) int {
	switch AsError(err).Code {
	case Usage, BadDefinition:
		return http.StatusBadRequest
	case NotFound:
		return http.StatusNotFound
	case NotRunning:
		return http.StatusServiceUnavailable
	case Denied:
		return http.StatusForbidden
	case Unknown:
		return http.StatusGatewayTimeout
	case Failed, DiskError:
		return http.StatusInternalServerError
	}
	return http.StatusConflict
}
