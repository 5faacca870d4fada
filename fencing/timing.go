package fencing

import (
	"fmt"
	"time"
)

// Timing is the times that must fit together so that a node which cannot renew its lease is dead before anybody may take
// its place. All count from the moment at which the last renewal that succeeded was sent.
type Timing struct {
	TTL        time.Duration // of the lease; nobody takes over before it is over
	RenewEvery time.Duration // from send to send
	RPCTimeout time.Duration // of one renewal
	Margin     time.Duration // for clocks that run at different speeds
	Watchdog   time.Duration // timeout of the watchdog; 0: none
	Deadline   time.Duration // of one fencing; 0: nothing can be fenced
}

// granularity of a watchdog: drivers count whole seconds, and wake up late.
const granularity = time.Second

// SelfFence is the time after which a node that has lost its lease is surely reset: it is fed for the last time so early
// that the watchdog fires before TTL - Margin.
func (t Timing) SelfFence() time.Duration { return t.TTL - t.Margin }

// FedFor is how long after a renewal the watchdog is fed.
func (t Timing) FedFor() time.Duration { return t.TTL - t.Margin - t.Watchdog - granularity }

// Strict is the timeout that leaves the most room: half the lease.
func (t Timing) Strict() time.Duration { return t.TTL / 2 }

// PoisonWait is how long after a poison pill without an answer a node counts as dead, if it has a watchdog.
func (t Timing) PoisonWait() time.Duration { return max(2*t.Watchdog, t.TTL+t.Margin) }

type rule struct {
	name, formula string
	left, right   time.Duration // left < right, or left <= right
	strict        bool
	why           string
}

func (t Timing) rules() []rule {
	rs := []rule{{"renewal", "renew-every + 2 * rpc-timeout <= ttl - margin", t.RenewEvery + 2*t.RPCTimeout, t.TTL - t.Margin, false,
		"two renewals must fit into a lease"}}
	if t.Watchdog > 0 {
		rs = append(rs,
			rule{"feeding", "renew-every + rpc-timeout <= ttl - margin - watchdog.timeout - 1s", t.RenewEvery + t.RPCTimeout, t.FedFor(), false,
				"a renewal that is slow must not reset the node"},
			rule{"self-fence", "watchdog fires < ttl", t.SelfFence(), t.TTL, true, "a node is dead before anybody may take over"})
		if t.Deadline > 0 {
			rs = append(rs, rule{"fencing", "ttl - margin < fencing.deadline", t.SelfFence(), t.Deadline, true,
				"fencing goes on for longer than a node takes to reset itself"})
		}
	}
	return rs
}

// Broken gives a line for each rule that does not hold.
func (t Timing) Broken() []string {
	var lines []string
	for _, r := range t.rules() {
		if !r.holds() {
			lines = append(lines, fmt.Sprintf("timing: %s: %s does not hold: %s and %s", r.why, r.formula, r.left, r.right))
		}
	}
	return lines
}

func (r rule) holds() bool { return r.left < r.right || (!r.strict && r.left == r.right) }

// Lines prints the rules with their numbers.
func (t Timing) Lines() []string {
	var lines []string
	for _, r := range t.rules() {
		word, sign := "holds", "<="
		if r.strict {
			sign = "<"
		}
		if !r.holds() {
			word = "DOES NOT HOLD"
		}
		lines = append(lines, fmt.Sprintf("%s: %s: %s %s %s %s (%s)", r.name, r.formula, r.left, sign, r.right, word, r.why))
	}
	if t.Watchdog > 0 {
		lines = append(lines, fmt.Sprintf("watchdog.timeout %s; fed for %s after a renewal was sent; reset at most %s after it; half of ttl is %s",
			t.Watchdog, t.FedFor(), t.SelfFence(), t.Strict()))
	}
	return lines
}
