package params

import (
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	"github.com/agnivade/levenshtein"
)

// limits of a document; a fence agent that says more is broken.
const (
	documentMax = 1 << 20 // bytes
	listMax     = 512
)

// Agent is what a fence agent says about itself.
type Agent struct {
	Name       string
	Short      string
	Parameters []Parameter
	Actions    []string
}

// Parameter is one thing that an agent can be told.
type Parameter struct {
	Name       string
	Required   bool
	Deprecated bool
	Obsoletes  []string // older names of the same thing
	Type       string   // string, integer, second, boolean, select; "" is string
	Default    string
	Options    []string // of select
}

type document struct {
	XMLName    xml.Name `xml:"resource-agent"`
	Name       string   `xml:"name,attr"`
	Short      string   `xml:"shortdesc,attr"`
	Parameters []struct {
		Name       string `xml:"name,attr"`
		Required   string `xml:"required,attr"`
		Deprecated string `xml:"deprecated,attr"`
		Obsoletes  string `xml:"obsoletes,attr"`
		Content    struct {
			Type    string `xml:"type,attr"`
			Default string `xml:"default,attr"`
			Options []struct {
				Value string `xml:"value,attr"`
			} `xml:"option"`
		} `xml:"content"`
	} `xml:"parameters>parameter"`
	Actions []struct {
		Name string `xml:"name,attr"`
	} `xml:"actions>action"`
}

// Parse reads the metadata. What a library prints before the document (warnings, mostly) is passed over.
func Parse(data []byte) (*Agent, error) {
	if len(data) > documentMax {
		return nil, fmt.Errorf("metadata: %d bytes, more than %d", len(data), documentMax)
	}
	text := string(data)
	at := strings.Index(text, "<resource-agent")
	if at < 0 {
		return nil, errors.New("metadata: there is no <resource-agent> in it")
	}
	dec := xml.NewDecoder(strings.NewReader(text[at:]))
	dec.CharsetReader = func(_ string, r io.Reader) (io.Reader, error) { return r, nil }
	var d document
	if err := dec.Decode(&d); err != nil {
		return nil, fmt.Errorf("metadata: %w", err)
	}
	if len(d.Parameters) > listMax || len(d.Actions) > listMax {
		return nil, fmt.Errorf("metadata: more than %d parameters or actions", listMax)
	}
	a := &Agent{Name: d.Name, Short: d.Short}
	for _, p := range d.Parameters {
		name := strings.TrimSpace(p.Name)
		if name == "" || strings.ContainsAny(name, "=\n\r") {
			return nil, fmt.Errorf("metadata: %q is no name of a parameter", p.Name)
		}
		if a.Find(name) != nil {
			continue // some agents list one twice; the first counts
		}
		q := Parameter{Name: name, Required: yes(p.Required), Deprecated: yes(p.Deprecated), Obsoletes: strings.Fields(p.Obsoletes),
			Type: p.Content.Type, Default: p.Content.Default}
		for _, o := range p.Content.Options {
			q.Options = append(q.Options, o.Value)
		}
		a.Parameters = append(a.Parameters, q)
	}
	for _, x := range d.Actions {
		if x.Name != "" && !slices.Contains(a.Actions, x.Name) {
			a.Actions = append(a.Actions, x.Name)
		}
	}
	if len(a.Actions) == 0 {
		return nil, errors.New("metadata: it names no action")
	}
	return a, nil
}

func yes(s string) bool { return s == "1" || s == "true" }

// Find gives a parameter by its name, whatever the case of its letters (settings files lose it); nil if there is none.
func (a *Agent) Find(name string) *Parameter {
	for i := range a.Parameters {
		if strings.EqualFold(a.Parameters[i].Name, name) {
			return &a.Parameters[i]
		}
	}
	return nil
}

// Can tells whether the agent knows an action.
func (a *Agent) Can(action string) bool { return slices.Contains(a.Actions, action) }

// reserved are set by whoever runs the agent.
var reserved = []string{"action", "option", "help", "version"}

// Secret tells whether a parameter's value must not be seen by others.
func Secret(name string) bool {
	name = strings.ToLower(name)
	if strings.HasSuffix(name, "_script") || strings.HasSuffix(name, "_file") {
		return false // a path
	}
	for _, part := range []string{"passw", "passphrase", "secret", "apikey", "api_key", "hexadecimal_kg", "access_key", "community"} {
		if strings.Contains(name, part) {
			return true
		}
	}
	return name == "token"
}

// Check compares what is set with what the agent knows and gives one error for each complaint, in a fixed order. plugs
// says that the target is named by a plug of its own at each call. The values of set never get into an error where the
// parameter is a secret.
func (a *Agent) Check(set map[string]string, plugs bool) []error {
	var errs []error
	names := make([]string, 0, len(set))
	for n := range set {
		names = append(names, n)
	}
	slices.Sort(names)
	for _, n := range names {
		p := a.Find(n)
		switch {
		case slices.Contains(reserved, strings.ToLower(n)):
			errs = append(errs, fmt.Errorf("parameter %s is set by hawser, remove it", n))
		case p == nil:
			errs = append(errs, fmt.Errorf("%s has no parameter %q%s", a.Name, n, a.near(n)))
		case strings.ContainsAny(set[n], "\n\r\x00"):
			errs = append(errs, fmt.Errorf("parameter %s: its value has more than one line", n))
		default:
			if why := p.fits(set[n]); why != "" {
				if Secret(p.Name) {
					why = "its value is not of type " + p.Type
				}
				errs = append(errs, fmt.Errorf("parameter %s: %s", n, why))
			}
		}
	}
	for i := range a.Parameters {
		p := &a.Parameters[i]
		if !p.Required || p.Deprecated || p.Default != "" || slices.Contains(reserved, p.Name) || (plugs && (p.Name == "plug" || p.Name == "port")) {
			continue
		}
		if !a.given(p, set) {
			errs = append(errs, fmt.Errorf("%s needs parameter %s", a.Name, p.Name))
		}
	}
	return errs
}

// given tells whether p or another name of the same thing is set.
func (a *Agent) given(p *Parameter, set map[string]string) bool {
	for n := range set {
		if strings.EqualFold(n, p.Name) || slices.ContainsFunc(p.Obsoletes, func(o string) bool { return strings.EqualFold(o, n) }) {
			return true
		}
	}
	return false
}

// PlugName is the parameter that names the target at the device: plug, or port with older agents; "" when the device
// stands for one node only.
func (a *Agent) PlugName() string {
	for _, n := range []string{"plug", "port"} {
		if p := a.Find(n); p != nil {
			return p.Name
		}
	}
	return ""
}

func (p *Parameter) fits(v string) string {
	switch p.Type {
	case "integer":
		if _, err := strconv.ParseInt(v, 10, 64); err != nil {
			return fmt.Sprintf("%q is no number", v)
		}
	case "second":
		if f, err := strconv.ParseFloat(strings.TrimSuffix(v, "s"), 64); err != nil || f < 0 {
			return fmt.Sprintf("%q is no number of seconds", v)
		}
	case "boolean":
		if !slices.Contains([]string{"1", "0", "yes", "no", "on", "off", "true", "false"}, strings.ToLower(v)) {
			return fmt.Sprintf("%q is neither true nor false", v)
		}
	case "select":
		if len(p.Options) > 0 && !slices.Contains(p.Options, v) {
			return fmt.Sprintf("%q is none of %s", v, strings.Join(p.Options, ", "))
		}
	}
	return ""
}

// near names a parameter that looks like a misspelt one.
func (a *Agent) near(name string) string {
	if len(name) > 64 { // what a comparison costs has a bound
		return ""
	}
	best, least := "", max(2, len(name)/3)+1
	for i := range a.Parameters {
		if d := levenshtein.ComputeDistance(strings.ToLower(name), strings.ToLower(a.Parameters[i].Name)); d < least {
			best, least = a.Parameters[i].Name, d
		}
	}
	if best == "" {
		return ""
	}
	return "; did you mean " + best + "?"
}
