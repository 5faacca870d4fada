package config

import (
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"github.com/hawser-ha/hawser/replicator/control"
)

// Verb is one kind of step of an adjustment.
type Verb string

// The verbs, in the order in which Diff uses them.
const (
	Down       Verb = "down"       // stop the replicator: all volumes, all peers
	Disconnect Verb = "disconnect" // Target is the peer
	Detach     Verb = "detach"     // Target is the volume
	Change     Verb = "change"     // set the new definition; Target is "", once
	Attach     Verb = "attach"     // Target is the volume
	Resize     Verb = "resize"     // Target is the volume
	Connect    Verb = "connect"    // Target is the peer
	Up         Verb = "up"         // start the replicator with the new definition
)

// Step is one thing to do, or with Change one of the reasons why.
type Step struct {
	Verb   Verb
	Target string // volume number, peer name or ""
	Text   string // what changes, for people
	// What it costs meanwhile.
	Disconnects bool // the link to a peer
	Detaches    bool // the local copy of a volume
	Stops       bool // the device goes away; possible only while it is not in use
}

// Diff is the fewest steps from a running definition to a wanted one, in order.
// A zero old one is not running, a zero new one is not wanted. Several Change
// steps are one change of the definition with several texts. It says nothing
// about what a Primary would refuse.
func Diff(old, wanted control.Definition) []Step {
	switch {
	case reflect.DeepEqual(old, wanted):
		return nil
	case old.Name == "":
		return []Step{{Verb: Up, Text: "it does not run"}}
	case wanted.Name == "":
		return []Step{{Verb: Down, Text: "it is no longer wanted", Stops: true, Disconnects: true, Detaches: true}}
	}
	if why := restart(old, wanted); len(why) > 0 {
		text := strings.Join(why, "; ")
		return []Step{{Verb: Down, Text: text, Stops: true, Disconnects: true, Detaches: true}, {Verb: Up, Text: text}}
	}
	var before, change, after []Step
	for i, v := range wanted.Volumes {
		was := old.Volumes[i]
		number := strconv.Itoa(v.Number)
		why := fields(was, v, "Disk", "MetaDisk", "MetaIndex")
		if was.Disk != "" {
			why = append(why, fields(was.Opts, v.Opts, atAttach...)...)
		}
		if len(why) > 0 {
			text := fmt.Sprintf("volume %s: %s", number, strings.Join(why, ", "))
			if was.Disk != "" {
				before = append(before, Step{Verb: Detach, Target: number, Text: text, Detaches: true})
			}
			if v.Disk != "" {
				after = append(after, Step{Verb: Attach, Target: number, Text: text})
			}
		} else if was.Size != v.Size {
			after = append(after, Step{Verb: Resize, Target: number, Text: fmt.Sprintf("volume %s: size %d -> %d", number, was.Size, v.Size)})
		}
		same := v.Opts
		online(&same, &was.Opts, atAttach)
		for _, why := range fields(was.Opts, same) {
			change = append(change, Step{Verb: Change, Text: fmt.Sprintf("volume %s: %s", number, why)})
		}
	}
	for i, p := range wanted.Peers {
		was := old.Peers[i]
		if why := append(fields(was, p, "Local", "Remote"), fields(was.Net, p.Net, atConnect...)...); len(why) > 0 {
			text := fmt.Sprintf("peer %s: %s", p.Name, strings.Join(why, ", "))
			before = append(before, Step{Verb: Disconnect, Target: p.Name, Text: text, Disconnects: true})
			after = append(after, Step{Verb: Connect, Target: p.Name, Text: text})
		}
		same := p.Net
		online(&same, &was.Net, atConnect)
		for _, why := range append(fields(was.Net, same), fields(was.Resync, p.Resync)...) {
			change = append(change, Step{Verb: Change, Text: fmt.Sprintf("peer %s: %s", p.Name, why)})
		}
	}
	for _, why := range fields(old.Options, wanted.Options) {
		change = append(change, Step{Verb: Change, Text: why})
	}
	if len(change) == 0 {
		change = []Step{{Verb: Change, Text: "set the new definition"}}
	}
	order := []Verb{Disconnect, Detach, Change, Attach, Resize, Connect}
	steps := slices.Concat(before, change, after)
	slices.SortStableFunc(steps, func(a, b Step) int { return slices.Index(order, a.Verb) - slices.Index(order, b.Verb) })
	return steps
}

// atAttach are the options of a disk, by their Go names, that are read when it is attached, and atConnect those of a
// connection that both ends agree on, or that a socket gets, when it is made.
var (
	atAttach  = []string{"ALExtents", "ALUpdates", "MDFlushes", "DiskTimeout", "DirectIO"}
	atConnect = []string{"DataIntegrityAlg", "CsumsAlg", "VerifyAlg", "SndbufSize", "RcvbufSize"}
)

// online sets the fields of to that do not change online to what they are in from.
func online(to, from any, names []string) {
	a, b := reflect.ValueOf(to).Elem(), reflect.ValueOf(from).Elem()
	for _, n := range names {
		a.FieldByName(n).Set(b.FieldByName(n))
	}
}

// restart says why the replicator must go down and up again.
func restart(old, wanted control.Definition) []string {
	why := fields(old, wanted, "Name", "Node", "NodeID", "Coordination", "TTL", "Margin")
	for _, w := range fields(old.NBD, wanted.NBD) {
		why = append(why, "nbd "+w)
	}
	number := func(v control.VolumeDef) string { return strconv.Itoa(v.Number) }
	peer := func(p control.PeerDef) string { return p.Name }
	why = append(why, members("volume", names(old.Volumes, number), names(wanted.Volumes, number))...)
	why = append(why, members("peer", names(old.Peers, peer), names(wanted.Peers, peer))...)
	if len(why) > 0 {
		return why
	}
	for i, v := range wanted.Volumes {
		for _, w := range fields(old.Volumes[i], v, "Device", "DevLink") {
			why = append(why, fmt.Sprintf("volume %d: %s", v.Number, w))
		}
	}
	for i, p := range wanted.Peers {
		for _, w := range fields(old.Peers[i], p, "NodeID", "Diskless", "BitmapSlot") {
			why = append(why, fmt.Sprintf("peer %s: %s", p.Name, w))
		}
	}
	return why
}

func names[T any](list []T, name func(T) string) []string {
	var out []string
	for _, x := range list {
		out = append(out, name(x))
	}
	return out
}

func members(what string, old, wanted []string) []string {
	var why []string
	for _, n := range wanted {
		if !slices.Contains(old, n) {
			why = append(why, fmt.Sprintf("%s %s is new", what, n))
		}
	}
	for _, n := range old {
		if !slices.Contains(wanted, n) {
			why = append(why, fmt.Sprintf("%s %s is gone", what, n))
		}
	}
	if len(why) == 0 && !slices.Equal(old, wanted) {
		why = append(why, fmt.Sprintf("the %ss are in another order", what))
	}
	return why
}

// fields describes the fields that differ, by their names in JSON; of all fields
// that are no struct, list or map, or of the Go names given.
func fields(old, wanted any, only ...string) []string {
	var why []string
	a, b := reflect.ValueOf(old), reflect.ValueOf(wanted)
	for i := range a.NumField() {
		f := a.Type().Field(i)
		if len(only) > 0 && !slices.Contains(only, f.Name) {
			continue
		}
		if k := f.Type.Kind(); len(only) == 0 && (k == reflect.Struct || k == reflect.Slice || k == reflect.Map) {
			continue
		}
		x, y := a.Field(i).Interface(), b.Field(i).Interface()
		if reflect.DeepEqual(x, y) {
			continue
		}
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		if f.Name == "SharedSecret" {
			why = append(why, name+" changed")
			continue
		}
		why = append(why, fmt.Sprintf("%s %s -> %s", name, show(x), show(y)))
	}
	return why
}

func show(x any) string {
	switch x := x.(type) {
	case string:
		if x == "" {
			return none
		}
		return x
	case bool:
		if x {
			return "yes"
		}
		return "no"
	}
	return fmt.Sprint(x)
}
