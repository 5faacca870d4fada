package decide

// Reason is the rule that decided. People read the text; tests and metrics use the constant.
type Reason string

// The rules.
const (
	EtcdSilent     Reason = "etcd-silent"
	Maintenance    Reason = "maintenance"
	NotHere        Reason = "not-here"
	NotUp          Reason = "not-up"
	Silent         Reason = "replicator-silent"
	Steady         Reason = "steady"
	Following      Reason = "following"
	CoPrimary      Reason = "co-primary"
	Deposed        Reason = "deposed"
	LostPlace      Reason = "lost-place"
	Retake         Reason = "retake"
	Adopt          Reason = "adopt"
	PeerGone       Reason = "peer-gone"
	DiskGone       Reason = "disk-gone"
	LastCopy       Reason = "last-copy"
	Promised       Reason = "promised"
	Caught         Reason = "caught-up"
	StartServices  Reason = "start-services"
	ServicesFailed Reason = "services-failed"
	Stopped        Reason = "stopped"
	Switching      Reason = "switchover"
	SwitchRefused  Reason = "switchover-refused"
	SwitchWait     Reason = "switchover-wait"
	SwitchDone     Reason = "switchover-done"
	Draining       Reason = "drain"
	DrainRefused   Reason = "drain-refused"
	FailingBack    Reason = "failback"
	Elected        Reason = "elected"
	ReplicatorGone Reason = "replicator-gone"
	StepBack       Reason = "step-back"
	Cleanup        Reason = "cleanup"
	NeverPrimary   Reason = "never-primary"
	NotInSync      Reason = "not-in-sync"
	BadDisk        Reason = "bad-disk"
	Unvouched      Reason = "unvouched-disk"
	OtherDisk      Reason = "other-disk"
	NotAutomatic   Reason = "not-automatic"
	Drained        Reason = "drained"
	Braked         Reason = "braked"
	BootWait       Reason = "boot-wait"
	Prefers        Reason = "prefers-other"
	NotFenced      Reason = "not-fenced"
	FenceFailed    Reason = "fencing-uncertain"
	HolderFenced   Reason = "holder-fenced"
	FenceHolder    Reason = "fence-holder"
	Asked          Reason = "asked"
	Forced         Reason = "forced"
	Free           Reason = "free"
	GoingDown      Reason = "going-down"
)

// texts say each rule as a sentence.
var texts = map[Reason]string{
	EtcdSilent:     "etcd does not answer: nothing is decided; a Primary serves on as long as its licence lasts",
	Maintenance:    "maintenance is on: services and I/O go on, nothing else is decided",
	NotHere:        "this node holds no volume of it",
	NotUp:          "the resource is down on this node",
	Silent:         "the replicator does not answer: nobody knows what it does",
	Steady:         "this node is Primary and everything is as it should be",
	Following:      "another node is Primary",
	CoPrimary:      "two primaries are allowed, and this node is the second one",
	Deposed:        "another node holds the term: a Primary of an older one ends",
	LostPlace:      "nobody holds the term, and this Primary was taken out of the in-sync set: it may lack writes",
	Retake:         "nobody holds the term, and this Primary is in the in-sync set: it takes a new term and goes on",
	Adopt:          "this node held the term with an earlier agent: the new agent takes it over",
	PeerGone:       "a peer does not answer: it leaves the in-sync set, then writes go on",
	DiskGone:       "the own disk is gone: this node leaves the in-sync set and serves from its peers",
	LastCopy:       "the only complete copy is out of reach: I/O waits until it returns",
	Promised:       "a promise to another node still binds",
	Caught:         "a peer has every write and is waited for: it enters the in-sync set",
	StartServices:  "this node is Primary: its services start",
	ServicesFailed: "a service failed too often here: another node takes over",
	Stopped:        "it was stopped by command",
	Switching:      "a switchover was asked for, and its target is in sync",
	SwitchRefused:  "a switchover was asked for, and nobody can take over",
	SwitchWait:     "a switchover moves it to another node: that one goes first",
	SwitchDone:     "the switchover is done",
	Draining:       "this node is drained, and another one can take over",
	DrainRefused:   "this node is drained, but nobody else can take over: it stays Primary",
	FailingBack:    "the preferred node is in sync again, and failback is on",
	Elected:        "this node holds the term: it becomes Primary",
	ReplicatorGone: "the replicator of the holder is gone: the key is given back",
	StepBack:       "this node holds the term, is not Primary and should not be: the key is given back",
	Cleanup:        "services of the Primary still run here, and this node is none",
	NeverPrimary:   "it never was Primary anywhere: a person says whose data counts",
	NotInSync:      "this node is not in the in-sync set: it may lack acknowledged writes",
	BadDisk:        "the disk of this node is not good",
	Unvouched:      "this node does not remember its disk: only a resync makes it good",
	OtherDisk:      "the in-sync set names another disk than the one in this node",
	NotAutomatic:   "auto-promote is off",
	Drained:        "this node is drained",
	Braked:         "it failed here before: the next attempt has to wait",
	BootWait:       "this node has just started, and other nodes in sync are not there yet: they get some time",
	Prefers:        "another node is preferred and ready: it goes first",
	NotFenced:      "the last Primary may still run: it is fenced first",
	FenceFailed:    "the last Primary may still run, and fencing it had no certain outcome",
	HolderFenced:   "the Primary is fenced for sure: its key is removed at once",
	FenceHolder:    "the Primary does not answer: it is fenced",
	Asked:          "a person asks for it, and this node is in sync",
	Forced:         "a person forces it: what only other nodes have may be lost",
	GoingDown:      "the resource is taken down on this node by command",
	Free:           "nobody holds the term, and this node is in sync",
}

// Text says the rule as a sentence.
func (r Reason) Text() string { return texts[r] }

// Kind is what to do.
type Kind string

// Kinds of actions. The loop stops at the first that fails, and looks again.
const (
	Run           Kind = "run"            // ask for candidacy, then take the key by a transaction
	TakeOver      Kind = "take-over"      // replace the key of an earlier agent of this node, under a new term
	BreakHolder   Kind = "break-holder"   // remove the key of a holder that is dead for sure
	BecomePrimary Kind = "become-primary" // promote the replicator, which has its grant
	Narrow        Kind = "narrow"         // take Nodes out of the in-sync set; with none: write it again unchanged
	Widen         Kind = "widen"          // add Members to it
	RunServices   Kind = "start-services"
	StopServices  Kind = "stop-services"
	Demote        Kind = "demote"  // make the replicator Secondary
	Release       Kind = "release" // give the key back
	Depose        Kind = "depose"  // tell the replicator that it holds the term no more
	FenceNode     Kind = "fence"
	DropSwitch    Kind = "drop-switchover" // it is done, or cannot be
)

// Action is one thing to do.
type Action struct {
	Kind    Kind     `json:"kind"`
	Nodes   []string `json:"nodes,omitempty"`
	Answers uint64   `json:"answers,omitempty"` // of Narrow: the newest question that it answers
	First   bool     `json:"first,omitempty"`   // of Run: the in-sync set is made of this node alone
	Dead    bool     `json:"dead,omitempty"`    // of Run: the last holder is dead for sure
}

// Plan is what is decided.
type Plan struct {
	Actions []Action `json:"actions"`
	Why     Reason   `json:"why"`
	Detail  string   `json:"detail,omitempty"` // names and numbers for people
	Until   int64    `json:"until,omitempty"`  // when to look again at the latest, CLOCK_BOOTTIME in ns; 0: at the next change
}

// Has reports whether the plan contains an action of that kind.
func (p *Plan) Has(k Kind) bool {
	for _, a := range p.Actions {
		if a.Kind == k {
			return true
		}
	}
	return false
}
