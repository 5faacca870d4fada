package compat

import (
	"fmt"
	"strings"

	"github.com/hawser-ha/hawser/replicator/control"
)

// Exit codes of drbdsetup.
const (
	ExitTimeout = 5  // a wait, or there was nothing to outdate
	ExitError   = 10 // an error of the driver
	ExitState   = 11 // a change of state was refused
	ExitNoDisk  = 16
	ExitNoData  = 17 // no UpToDate data, or the peer could not be fenced: trying again does not help
	ExitTrouble = 20
)

type refusal struct {
	exit, number int // a negative number is a refused change of state
	text         string
}

var refusals = map[control.Code]refusal{
	control.NotFound:      {ExitError, 158, "Unknown resource"},
	control.NotRunning:    {ExitError, 158, "Unknown resource"},
	control.Running:       {ExitError, 159, "Resource still in use (delete all minors first)"},
	control.BadDefinition: {ExitError, 162, "Invalid configuration request"},
	control.Confirm:       {ExitError, 162, "Invalid configuration request"},
	control.Unsupported:   {ExitError, 162, "Invalid configuration request"},
	control.Denied:        {ExitError, 152, "Permission denied. CAP_SYS_ADMIN necessary"},
	control.DiskInUse:     {ExitError, 114, "Lower device is already claimed. This usually means it is mounted."},
	control.NoMetadata:    {ExitError, 119, "No valid meta-data signature found.\n\n\t==> Use 'drbdadm create-md res' to initialize meta-data area. <==\n"},
	control.DiskError:     {ExitError, 118, "IO error(s) occurred during initial access to meta-data."},
	control.TooSmall:      {ExitError, 111, "Low.dev. smaller than requested DRBD-dev. size."},
	control.SplitBrain:    {ExitError, 151, "Connection must be StandAlone"},
	control.NoDisk:        {ExitNoDisk, 138, "Device does not have a disk-config"},
	control.PeerPrimary:   {ExitState, -1, "Multiple primaries not allowed by config"},
	control.IsPrimary:     {ExitState, -1, "Multiple primaries not allowed by config"},
	control.NotUpToDate:   {ExitNoData, -2, "Need access to UpToDate data"},
	control.NoLicence:     {ExitNoData, -2, "Need access to UpToDate data"},
	control.Stale:         {ExitNoData, -2, "Need access to UpToDate data"},
	control.PeerUnknown:   {ExitNoData, -7, "Refusing to be Primary while peer is not outdated"},
	control.Busy:          {ExitState, -8, "Can not start OV/resync since it is already active"},
	control.RefusedByPeer: {ExitState, -10, "State change was refused by peer node"},
	control.LinkLost:      {ExitState, -10, "State change was refused by peer node"},
	control.Bound:         {ExitState, -10, "State change was refused by peer node"}, // the promise ends by itself
	control.NotPrimary:    {ExitState, -10, "State change was refused by peer node"},
	control.InUse:         {ExitState, -12, "Device is held open by someone"},
	control.Refused:       {ExitState, -10, "State change was refused by peer node"},
	control.NoAlgorithm:   {ExitState, -14, "Need a verify algorithm to start online verify"},
	control.NoConnection:  {ExitState, -15, "Need a connection to start verify or resync"},
}

// Refusal gives the exit code for an error, and what drbdsetup would say: object is the resource or minor it was about.
// What hawser itself says of it follows where the kernel's word would.
func Refusal(object string, err error) (exit int, text string) {
	if err == nil {
		return 0, ""
	}
	e := control.AsError(err)
	why := e.Error() + "\n"
	if e.Hint != "" {
		why += "next: " + e.Hint + "\n"
	}
	r, ok := refusals[e.Code]
	if e.Code == control.NotRunning && e.Resource == "" { // the agent, not a resource
		ok = false
	}
	switch {
	case !ok:
		return ExitTrouble, object + ": " + why
	case r.number < 0:
		return r.exit, fmt.Sprintf("%s: State change failed: (%d) %s\nadditional info from kernel:\n%s", object, r.number, r.text, why)
	}
	return r.exit, fmt.Sprintf("%s: Failure: (%d) %s\nadditional info from kernel:\n%s", object, r.number, strings.TrimSuffix(r.text, "\n"), why)
}
