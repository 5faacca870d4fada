package service

import (
	"context"
	"encoding/xml"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/hawser-ha/hawser/agent/config"
)

const metaTimeout = 20 * time.Second

// Meta is what a resource agent says of itself.
type Meta struct {
	Name       string
	Parameters []Parameter
}

// Parameter is one of an agent's parameters.
type Parameter struct {
	Name     string
	Required bool
	Type     string // string, integer, boolean, ...
}

// ParseMeta reads the XML that an agent prints for meta-data.
func ParseMeta(data []byte) (*Meta, error) {
	var doc struct {
		XMLName    xml.Name `xml:"resource-agent"`
		Name       string   `xml:"name,attr"`
		Parameters []struct {
			Name     string `xml:"name,attr"`
			Required string `xml:"required,attr"`
			Content  struct {
				Type string `xml:"type,attr"`
			} `xml:"content"`
		} `xml:"parameters>parameter"`
	}
	if err := xml.Unmarshal(data, &doc); err != nil {
		return nil, fmt.Errorf("meta-data of a resource agent: %w", err)
	}
	m := &Meta{Name: doc.Name}
	for _, p := range doc.Parameters {
		m.Parameters = append(m.Parameters, Parameter{Name: p.Name, Required: isYes(p.Required), Type: p.Content.Type})
	}
	return m, nil
}

func isYes(s string) bool { return s == "1" || s == "true" || s == "yes" || s == "on" }

// metas remembers meta-data by program, until the program changes.
var metas struct {
	sync.Mutex
	m map[string]metaEntry
}

type metaEntry struct {
	size  int64
	mtime time.Time
	meta  *Meta
	err   error
}

// ErrNoAgent says that a resource agent is not installed.
var ErrNoAgent = errors.New("the resource agent is not installed")

// ReadMeta asks the agent PROVIDER:TYPE below root, "" is DefaultOCFRoot. It is asked once for each version of its program.
func ReadMeta(ctx context.Context, root, what string) (*Meta, error) {
	if root == "" {
		root = DefaultOCFRoot
	}
	path := agentPath(root, what)
	info, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, ErrNoAgent
	}
	if err != nil {
		return nil, err
	}
	metas.Lock()
	e, ok := metas.m[path]
	metas.Unlock()
	if ok && e.size == info.Size() && e.mtime.Equal(info.ModTime()) {
		return e.meta, e.err
	}
	out, err := os.CreateTemp("", "hawser-meta-*")
	if err != nil {
		return nil, err
	}
	defer func() { _ = os.Remove(out.Name()) }()
	defer out.Close()
	_, typ, _ := strings.Cut(what, ":")
	code, text, err := runProgram(ctx, metaTimeout, []string{path, "meta-data"}, environment("OCF_ROOT="+root, "OCF_RESOURCE_TYPE="+typ,
		"OCF_RESOURCE_INSTANCE="+typ, "HA_LOGFACILITY=none", "HA_logfacility=none"), out.Name(), func(*process) error { return nil })
	if err != nil {
		return nil, fmt.Errorf("meta-data of ocf:%s: %w", what, err)
	}
	e = metaEntry{size: info.Size(), mtime: info.ModTime()}
	// What is said on stderr comes before or after the document, never in it.
	if begin, end := strings.Index(text, "<?xml"), strings.LastIndex(text, "</resource-agent>"); code != 0 || begin < 0 || end < begin {
		e.err = fmt.Errorf("meta-data of ocf:%s: exit code %d: %s", what, code, lastLine(text))
	} else {
		e.meta, e.err = ParseMeta([]byte(text[begin : end+len("</resource-agent>")]))
	}
	metas.Lock()
	defer metas.Unlock()
	if metas.m == nil {
		metas.m = map[string]metaEntry{}
	}
	metas.m[path] = e
	return e.meta, e.err
}

// CheckAgents compares the parameters in a resource file with what the agents installed here know. It joins errors
// with file and line (config.Errors); an agent that is not installed is no error, this node may never run it.
func CheckAgents(ctx context.Context, root string, r *config.Resource) error {
	var errs []error
	for _, role := range config.ServiceRoles {
		for i, s := range r.ServiceChain(role) {
			if s.Kind != config.ServiceOCF {
				continue
			}
			at := fmt.Sprintf("services.%s[%d]", role, i)
			m, err := ReadMeta(ctx, root, s.What)
			switch {
			case errors.Is(err, ErrNoAgent):
			case err != nil:
				errs = append(errs, r.Complain(at, err.Error(), "its parameters were not checked"))
			default:
				for _, c := range m.check(s.Params) {
					path := at + ".params"
					if c.param != "" {
						path += "." + c.param
					}
					errs = append(errs, r.Complain(path, c.reason, c.hint))
				}
			}
		}
	}
	return errors.Join(errs...)
}

type complaint struct{ param, reason, hint string }

// check compares parameters with the meta-data.
func (m *Meta) check(params map[string]string) []complaint {
	var list []complaint
	var names []string
	for _, p := range m.Parameters {
		names = append(names, p.Name)
	}
	for _, name := range sortedKeys(params) {
		i := slices.Index(names, name)
		if i < 0 {
			if name != "trace_ra" && name != "trace_file" { // of ocf-shellfuncs, in every agent
				list = append(list, complaint{name, m.Name + " has no such parameter", config.DidYouMean(name, names)})
			}
			continue
		}
		value := params[name]
		switch m.Parameters[i].Type {
		case "integer":
			if _, err := strconv.ParseInt(value, 10, 64); err != nil && value != "INFINITY" && value != "-INFINITY" {
				list = append(list, complaint{name, fmt.Sprintf("%q is no whole number", value), ""})
			}
		case "boolean":
			if !isYes(strings.ToLower(value)) && !slices.Contains([]string{"0", "false", "no", "off"}, strings.ToLower(value)) {
				list = append(list, complaint{name, fmt.Sprintf("%q is neither true nor false", value), ""})
			}
		}
	}
	for _, p := range m.Parameters {
		if value, ok := params[p.Name]; p.Required && (!ok || value == "") {
			list = append(list, complaint{"", m.Name + " needs the parameter " + p.Name, ""})
		}
	}
	return list
}
