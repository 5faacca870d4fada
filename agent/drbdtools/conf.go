package drbdtools

import (
	"errors"
	"fmt"
	"path/filepath"

	"github.com/hawser-ha/hawser/agent/config"
	"github.com/hawser-ha/hawser/agent/drbdconf"
)

// who is for whom a drbd.conf is judged.
func (t *tool) who() drbdconf.VerifyOptions {
	return drbdconf.VerifyOptions{Host: t.Node.Node, Module: "any"}
}

// ownConfig is the node's resources as a drbd.conf, whatever they were written in.
func (t *tool) ownConfig() (*drbdconf.Config, error) {
	if _, err := t.load(); err != nil {
		return nil, err
	}
	text, _ := config.MarshalDRBD(t.ours()) // what it leaves out has no name in DRBD
	cfg, err := drbdconf.ParseText(filepath.Join(t.Node.ResourcesDir, "*"), text)
	if cfg == nil {
		return nil, err
	}
	for _, e := range append(drbdconf.Errors(err), drbdconf.Errors(drbdconf.Verify(cfg, t.who()))...) {
		if e.Stops("up") {
			return cfg, e
		}
	}
	return cfg, nil
}

// isDefault tells whether a file is the one drbdadm takes by default: it is DRBD's and says nothing of ours.
func isDefault(file string) bool { return file == "" || file == "/etc/drbd.conf" }

// configuration is what drbdadm works on for a verb: the node's resources, and those of a file that was named. code is
// not 0 when it has errors that stop the verb, which were told.
func (t *tool) configuration(file string, extra []string, verb string) (cfg *drbdconf.Config, code int) {
	if isDefault(file) && len(extra) == 0 {
		cfg, err := t.ownConfig()
		if err != nil {
			t.errorf("%v\n", err)
			return cfg, 10
		}
		return cfg, 0
	}
	if file == "" {
		file = "/etc/drbd.conf"
	}
	who := t.who()
	who.Local = config.LocalAddress
	src := config.OSFiles()
	if _, err := src.Read(file); err != nil {
		t.errorf("Can not open '%s': %v\n", file, err)
		return nil, 10
	}
	cfg, err := drbdconf.Parse(src, file, drbdconf.ParseOptions{Extra: extra})
	if drbdconf.ExitCode(err, verb) == 0 && cfg != nil {
		err = errors.Join(err, drbdconf.Verify(cfg, who))
	}
	for _, e := range drbdconf.Errors(err) {
		fmt.Fprintf(t.Stderr, "%v\n", e)
	}
	return cfg, drbdconf.ExitCode(err, verb)
}
