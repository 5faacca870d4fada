package fencing

import (
	"context"
	"errors"
)

// Action is what a device is asked for.
type Action string

// Actions.
const (
	Off     Action = "off"
	On      Action = "on"
	Reboot  Action = "reboot"
	Status  Action = "status"  // is the node's power on?
	Monitor Action = "monitor" // does the device work?
)

// Power is what a device knows of a node.
type Power int

// Values of Power. The zero value knows nothing.
const (
	PowerUnknown Power = iota
	PowerOn
	PowerOff
)

// String gives a word for people.
func (p Power) String() string { return [...]string{"unknown", "on", "off"}[p] }

// Errors to ask for with errors.Is.
var (
	// ErrUncertain: nobody knows whether the target is off. Treat it as still writing.
	ErrUncertain = errors.New("fencing outcome unknown")
	// ErrNotDone: the target is surely still on.
	ErrNotDone = errors.New("not fenced, the node is still on")
	// ErrNoDevice: nothing is set up to fence this node.
	ErrNoDevice = errors.New("no device can fence it")
	// ErrBraked: it was fenced too often in short time.
	ErrBraked = errors.New("fenced too often, and it did not help")
	// ErrBusy: another fencing of the same node runs.
	ErrBusy = errors.New("another fencing of it is under way")
	// ErrRefused: it makes no sense, or the Recorder said no. Nothing was done.
	ErrRefused = errors.New("refused")
	// ErrUnsupported: the device does not know the action.
	ErrUnsupported = errors.New("the device cannot do that")
)

// Device is a port to something that can cut a node's power. Safe for concurrent use.
type Device interface {
	// Can tells whether the device knows an action.
	Can(a Action) bool
	// Do carries out Off, On, Reboot or Monitor and returns when it is done, or when ctx ends; then nothing of it runs any
	// more. A nil error: done, as far as the device can tell. Any error: nobody can say, except ErrUnsupported.
	Do(ctx context.Context, a Action, node string) error
	// Power asks whether the node is on.
	Power(ctx context.Context, node string) (Power, error)
}

// Outcome is the answer of a fencing.
type Outcome int

// Values of Outcome. The zero value is that nobody knows.
const (
	Unknown Outcome = iota
	NotDone
	Confirmed
)

// String gives a word for people and for records.
func (o Outcome) String() string { return [...]string{"unknown", "not-done", "confirmed"}[o] }

// MarshalText makes it a word in JSON.
func (o Outcome) MarshalText() ([]byte, error) { return []byte(o.String()), nil }

// UnmarshalText reads the word; one that it does not know is Unknown.
func (o *Outcome) UnmarshalText(text []byte) error {
	*o = Unknown
	for _, k := range []Outcome{NotDone, Confirmed} {
		if string(text) == k.String() {
			*o = k
		}
	}
	return nil
}
