package service

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/hawser-ha/hawser/agent/config"
)

// DefaultOCFRoot is where Debian installs resource agents, below resource.d.
const DefaultOCFRoot = "/usr/lib/ocf"

// exitReason begins the line in which an agent says what is wrong.
const exitReason = "ocf-exit-reason:"

// Exit codes of resource agents.
const (
	ocfSuccess          = 0
	ocfErrGeneric       = 1
	ocfErrArgs          = 2
	ocfErrUnimplemented = 3
	ocfErrPerm          = 4
	ocfErrInstalled     = 5
	ocfErrConfigured    = 6
	ocfNotRunning       = 7
	ocfRunningPromoted  = 8
	ocfFailedPromoted   = 9
	ocfDegraded         = 190
	ocfDegradedPromoted = 191
)

var ocfNames = map[int]string{
	ocfSuccess: "success", ocfErrGeneric: "error", ocfErrArgs: "wrong parameters for this node", ocfErrUnimplemented: "no such action", ocfErrPerm: "no permission",
	ocfErrInstalled: "not installed", ocfErrConfigured: "wrong parameters", ocfNotRunning: "not running", ocfRunningPromoted: "running, promoted",
	ocfFailedPromoted: "failed, promoted", ocfDegraded: "degraded", ocfDegradedPromoted: "degraded, promoted",
}

// ocf runs resource agents.
type ocf struct{ *host }

// agentPath is the program of PROVIDER:TYPE.
func agentPath(root, what string) string {
	provider, typ, _ := strings.Cut(what, ":")
	return filepath.Join(root, "resource.d", provider, typ)
}

func (o *ocf) env(s *config.ServiceSpec, action string, timeout, interval time.Duration) []string {
	provider, typ, _ := strings.Cut(s.What, ":")
	ms := func(d time.Duration) string { return fmt.Sprint(d.Milliseconds()) }
	env := environment(
		"OCF_ROOT="+o.ocfRoot, "OCF_RA_VERSION_MAJOR=1", "OCF_RA_VERSION_MINOR=1", "OCF_RESOURCE_INSTANCE="+s.Name, "OCF_RESOURCE_TYPE="+typ,
		"OCF_RESOURCE_PROVIDER="+provider, "OCF_OUTPUT_FORMAT=text", "OCF_EXIT_REASON_PREFIX="+exitReason,
		"OCF_RESKEY_crm_feature_set=3.16.1", "OCF_RESKEY_CRM_meta_timeout="+ms(timeout), "OCF_RESKEY_CRM_meta_interval="+ms(interval),
		"OCF_RESKEY_CRM_meta_name="+action, "OCF_RESKEY_CRM_meta_on_node="+o.node, "OCF_RESKEY_CRM_meta_on_node_uuid="+o.node,
		"HA_debug=0", "HA_LOGFACILITY=none", "HA_logfacility=none", "HAWSER_RESOURCE="+o.resource, "HAWSER_NODE="+o.node, "HAWSER_ROLE="+string(o.role))
	if action == "monitor" {
		env = append(env, fmt.Sprintf("OCF_CHECK_LEVEL=%d", s.CheckLevel))
		if interval > 0 {
			env = append(env, "OCF_RESKEY_CRM_meta_role=Started")
		}
	}
	for _, name := range sortedKeys(s.Params) {
		env = append(env, "OCF_RESKEY_"+name+"="+s.Params[name])
	}
	return env
}

func sortedKeys(m map[string]string) []string {
	var keys []string
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}

// call runs an action. The reason is empty after success.
func (o *ocf) call(ctx context.Context, s *config.ServiceSpec, h *handle, action string, limit, interval time.Duration) (code int, reason string, err error) {
	path := agentPath(o.ocfRoot, s.What)
	if info, err := os.Stat(path); err != nil || info.IsDir() || info.Mode()&0o111 == 0 {
		if err == nil || errors.Is(err, os.ErrNotExist) {
			return ocfErrInstalled, "there is no resource agent " + path + ": install the package that has it (resource-agents)", nil
		}
		return -1, err.Error(), nil
	}
	began := time.Now()
	code, out, err := runProgram(ctx, limit, []string{path, action}, o.env(s, action, limit, interval), o.outFile(s.Name), h.recorded)
	log := o.log.With("service", s.Name, "action", action, "dur", time.Since(began).Round(time.Millisecond))
	switch {
	case errors.Is(err, errLeft) || errors.Is(err, ErrSuperseded):
		return -1, "", err
	case errors.Is(err, errTimeout):
		reason = fmt.Sprintf("%s: no answer within %s (%s), its process group was killed", action, limit, strings.TrimPrefix(err.Error(), "timeout, "))
		if err.Error() == errTimeout.Error() {
			reason = fmt.Sprintf("%s: no answer within %s, its process group was killed", action, limit)
		}
		log.Warn("resource agent", "why", reason)
		return -1, reason, nil
	case err != nil:
		return -2, fmt.Sprintf("%s: %v", action, err), nil
	}
	log.Debug("resource agent", "code", code, "output", lastLine(out))
	if code == ocfSuccess {
		return code, "", nil
	}
	name := ocfNames[code]
	if name == "" {
		name = "error"
	}
	reason = fmt.Sprintf("%s: exit code %d, %s", action, code, name)
	if why := saidReason(out); why != "" {
		reason += ": " + why
	}
	return code, reason, nil
}

// saidReason is the last exit reason in the output, or its last line.
func saidReason(out string) string {
	why := ""
	for line := range strings.Lines(out) {
		if r, ok := strings.CutPrefix(strings.TrimSpace(line), exitReason); ok {
			why = strings.TrimSpace(r)
		}
	}
	if why == "" {
		why = lastLine(out)
	}
	if len(why) > 300 {
		why = why[:300] + "..."
	}
	return strings.ToValidUTF8(why, "?")
}

func (o *ocf) start(ctx context.Context, s *config.ServiceSpec, h *handle) answer {
	code, reason, err := o.call(ctx, s, h, "start", s.StartTimeout, 0)
	a := answer{broken, reason, err}
	switch code {
	case ocfSuccess:
		a.is = running
	case ocfErrArgs, ocfErrPerm, ocfErrInstalled, ocfErrUnimplemented:
		a.is = refused
	case ocfErrConfigured:
		a.is = nowhere
	}
	return a
}

func (o *ocf) stop(ctx context.Context, s *config.ServiceSpec, h *handle) answer {
	code, reason, err := o.call(ctx, s, h, "stop", s.StopTimeout, 0)
	if err == nil && code == ocfSuccess {
		return answer{is: notRunning}
	}
	a := answer{broken, reason, err}
	switch code {
	case ocfErrArgs, ocfErrPerm, ocfErrInstalled, ocfErrUnimplemented:
		a.is = refused
	case ocfErrConfigured:
		a.is = nowhere
	}
	return a
}

func (o *ocf) monitor(ctx context.Context, s *config.ServiceSpec, h *handle, probe bool) answer {
	interval := s.Monitor
	if probe {
		interval = 0
	}
	code, reason, err := o.call(ctx, s, h, "monitor", s.MonitorTimeout, interval)
	return answer{monitorVerdict(code, probe), reason, err}
}

// monitorVerdict reads the exit code of a monitor. A code below 0 is ours: -1 is a timeout, -2 could not be asked.
func monitorVerdict(code int, probe bool) verdict {
	switch code {
	case ocfSuccess, ocfRunningPromoted:
		return running
	case ocfDegraded, ocfDegradedPromoted:
		return degraded
	case ocfNotRunning:
		return notRunning
	case -2:
		return unclear
	case ocfErrUnimplemented:
		if probe {
			return refused
		}
		return running // the agent has no monitor: it was started, and nothing more is known
	case ocfErrInstalled, ocfErrArgs, ocfErrPerm:
		return refused
	case ocfErrConfigured:
		return nowhere
	}
	return broken // 1, 9, an unknown code, a signal, a timeout: cannot tell
}

// warn compares the parameters with what the agent says of itself: it ignores those that it does not know.
func (o *ocf) warn(ctx context.Context, s *config.ServiceSpec) string {
	m, err := ReadMeta(ctx, o.ocfRoot, s.What)
	if err != nil {
		return ""
	}
	var list []string
	for _, c := range m.check(s.Params) {
		text := c.reason
		if c.param != "" {
			text = "parameter " + c.param + ": " + text
		}
		if c.hint != "" {
			text += " (" + c.hint + ")"
		}
		list = append(list, text)
	}
	return strings.Join(list, "; ")
}
